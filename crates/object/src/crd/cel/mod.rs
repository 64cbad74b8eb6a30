//! CEL rules (`x-kubernetes-validations`). They are compiled when a definition is written, and evaluated when its
//! objects are written.

use super::node::{List, Node, Ty};
use super::validation::correlate;
use crate::Value;
use crate::access::Access;
use crate::field::{ErrorKind, Errors, Path};
use kube_cel::cel;
use kube_cel::cel::objects::OptionalValue;
use kube_cel::cel::{Context, ExecutionError, Value as Cel};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

mod cost;
mod expr;
mod functions;
mod types;
mod value;

use expr::Expr;

/// Maximum cost of one rule, and of all rules of one object. The unit is about one visited expression.
const RULE_COST_MAX: u64 = 4_000_000;
const OBJECT_COST_MAX: u64 = 10_000_000;
const MESSAGE_BYTES_MAX: usize = 5 * 1024;
/// Rules deeper than this are evaluated on a thread with a large stack. Few rules are.
const DEPTH_INLINE_MAX: usize = 32;
/// Additional cost of such an evaluation.
const LARGE_STACK_COST: u64 = 10_000;

/// One entry of `x-kubernetes-validations`.
#[derive(Debug, Default)]
pub struct Rule {
    pub text: String,
    pub message: String,
    pub message_expression: String,
    pub reason: String,
    pub field_path: String,
    pub optional_old_self: Option<bool>,
    compiled: OnceLock<Result<Compiled, String>>,
    compiled_message: OnceLock<Result<Compiled, String>>,
}

#[derive(Debug)]
struct Compiled {
    expr: Expr,
    uses_old_self: bool,
    is_deep: bool,
}

impl Rule {
    pub fn parse(rule: &Value) -> Rule {
        let text = |key: &str| rule.text(&[key]).to_owned();
        Rule {
            text: text("rule"),
            message: text("message"),
            message_expression: text("messageExpression"),
            reason: text("reason"),
            field_path: text("fieldPath"),
            optional_old_self: rule.at(&["optionalOldSelf"]).and_then(Value::as_bool),
            ..Rule::default()
        }
    }

    fn compiled(&self) -> Result<&Compiled, &String> {
        self.compiled.get_or_init(|| Compiled::new(&self.text)).as_ref()
    }

    fn compiled_message(&self) -> Option<Result<&Compiled, &String>> {
        let text = &self.message_expression;
        (!text.trim().is_empty()).then(|| self.compiled_message.get_or_init(|| Compiled::new(text)).as_ref())
    }

    /// Returns how error messages name the rule.
    fn shown(&self) -> &str {
        if self.message.is_empty() { self.text.trim() } else { self.message.trim() }
    }

    fn is_optional(&self) -> bool {
        self.optional_old_self == Some(true)
    }
}

impl Compiled {
    fn new(text: &str) -> Result<Compiled, String> {
        let expr = expr::parse(text)?;
        let uses_old_self = expr.references().has_variable("oldSelf");
        Ok(Compiled { is_deep: expr::depth(&expr) > DEPTH_INLINE_MAX, expr, uses_old_self })
    }

    /// Returns an upper bound of the cost of one evaluation.
    fn cost(&self, value: &Value, old: Option<&Value>) -> u64 {
        cost::bound(&self.expr, value, old).saturating_add(if self.is_deep { LARGE_STACK_COST } else { 0 })
    }

    fn evaluate(&self, rule: &Rule, this: &Cel, before: Option<&Cel>) -> Result<Cel, ExecutionError> {
        let run = || with_variables(rule, this, before, |context| execute(&self.expr, context));
        if !self.is_deep {
            return run();
        }
        expr::on_large_stack(run).unwrap_or_else(|error| Err(ExecutionError::function_error("rule", error)))
    }
}

/// Checks the rules of a definition's schema: they compile, use only existing names, and compare old and new values
/// only where these can be correlated.
pub fn check(node: &Node, path: &Path, errors: &mut Errors) {
    check_node(node, true, None, path, errors);
}

fn check_node(node: &Node, is_resource: bool, uncorrelatable: Option<&Path>, path: &Path, errors: &mut Errors) {
    if !node.has_rules {
        return;
    }
    for (index, rule) in node.rules.iter().enumerate() {
        let path = path.child("x-kubernetes-validations").index(index);
        check_rule(node, is_resource, rule, uncorrelatable, &path, errors);
    }
    let below_list = if matches!(node.list, List::Map(_)) { uncorrelatable } else { uncorrelatable.or(Some(path)) };
    if let Some(items) = &node.items {
        check_node(items, items.embedded, below_list, &path.child("items"), errors);
    }
    let below_map = if node.map_atomic { uncorrelatable.or(Some(path)) } else { uncorrelatable };
    if let Some(values) = node.additional.node() {
        check_node(values, values.embedded, below_map, &path.child("additionalProperties"), errors);
    }
    for (name, property) in &node.properties {
        check_node(property, property.embedded, below_map, &path.child("properties").key(name), errors);
    }
}

fn check_rule(
    node: &Node,
    is_resource: bool,
    rule: &Rule,
    uncorrelatable: Option<&Path>,
    path: &Path,
    errors: &mut Errors,
) {
    let scope = types::Scope { node, is_resource, optional_old_self: rule.is_optional() };
    let typed = |compiled: Result<&Compiled, &String>, wanted: types::Expected| match compiled {
        Err(error) => Err(error.clone()),
        Ok(compiled) => types::check(&compiled.expr, &scope, wanted),
    };
    let rule_path = path.child("rule");
    match rule.compiled() {
        compiled @ Ok(Compiled { uses_old_self, .. }) => {
            if let Err(error) = typed(compiled, types::Expected::Bool) {
                errors.invalid(&rule_path, rule.text.as_str(), error);
            }
            match uncorrelatable {
                Some(portion) if *uses_old_self => {
                    let detail =
                        format!("oldSelf cannot be used on the uncorrelatable portion of the schema within {portion}");
                    errors.invalid(&rule_path, rule.text.as_str(), detail);
                }
                _ => {}
            }
            if let (false, Some(optional)) = (*uses_old_self, rule.optional_old_self) {
                let path = path.child("optionalOldSelf");
                errors.invalid(&path, optional, "may not be set if oldSelf is not used in rule");
            }
        }
        Err(error) => errors.invalid(&rule_path, rule.text.as_str(), error.as_str()),
    }
    if let Some(compiled) = rule.compiled_message()
        && let Err(error) = typed(compiled, types::Expected::Text)
    {
        let text = rule.message_expression.as_str();
        errors.invalid(&path.child("messageExpression"), text, format!("messageExpression {error}"));
    }
}

/// Evaluates all rules on an object. `old` is the stored object, on update.
pub fn validate(node: &Node, object: &Value, old: Option<&Value>) -> Errors {
    let mut run = Run { errors: Errors::default(), cost_left: OBJECT_COST_MAX };
    // An exhausted budget is already in `errors`; it only ends the walk.
    let _out_of_budget = run.node(node, true, object, old, &Path::default());
    run.errors
}

struct Run {
    errors: Errors,
    cost_left: u64,
}

/// The cost budget is exhausted; no more rules are evaluated.
struct BudgetExhausted;

impl Run {
    fn node(
        &mut self,
        node: &Node,
        root: bool,
        value: &Value,
        old: Option<&Value>,
        path: &Path,
    ) -> Result<(), BudgetExhausted> {
        if !node.has_rules || value.is_null() {
            return Ok(());
        }
        let old = old.filter(|old| !old.is_null());
        self.rules(node, root || node.embedded, value, old, path)?;
        match value {
            Value::Array(items) => {
                if let Some(child) = &node.items {
                    for (index, item) in items.iter().enumerate() {
                        self.node(child, false, item, correlate(node, old, item), &path.index(index))?;
                    }
                }
            }
            Value::Object(members) => {
                let old = old.filter(|_| !node.map_atomic);
                for (name, member) in members {
                    let old = old.and_then(|old| old.get(name));
                    if let Some(child) = node.properties.get(name.as_str()) {
                        self.node(child, false, member, old, &path.child(name))?;
                    } else if let Some(child) = node.additional.node() {
                        self.node(child, false, member, old, &path.key(name))?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn rules(
        &mut self,
        node: &Node,
        is_resource: bool,
        value: &Value,
        old: Option<&Value>,
        path: &Path,
    ) -> Result<(), BudgetExhausted> {
        if node.rules.is_empty() {
            return Ok(());
        }
        let this = value::to_cel(Some(node), value, is_resource);
        let before = old.map(|old| value::to_cel(Some(node), old, is_resource));
        for rule in &node.rules {
            let compiled = match rule.compiled() {
                Ok(compiled) => compiled,
                Err(error) => {
                    self.invalid(node, path, format!("rule compile error: {error}"));
                    continue;
                }
            };
            // A transition rule needs an old value, unless it sets `optionalOldSelf`.
            if compiled.uses_old_self && before.is_none() && !rule.is_optional() {
                continue;
            }
            self.spend(compiled, rule, node, value, old, path)?;
            let outcome = compiled.evaluate(rule, &this, before.as_ref());
            let unchanged = old == Some(value) && !compiled.uses_old_self;
            match outcome {
                Ok(Cel::Bool(true)) => {}
                Ok(Cel::Bool(false)) if unchanged => {}
                Ok(Cel::Bool(false)) => self.fails(rule, node, value, &this, before.as_ref(), path),
                Ok(_) => self.invalid(node, path, format!("did not evaluate to bool: {}", rule.shown())),
                Err(error) => self.invalid(node, path, sentence(&error, rule)),
            }
        }
        Ok(())
    }

    /// Refuses a rule whose evaluation would cost too much. This happens before the evaluation, because the interpreter
    /// cannot be interrupted.
    fn spend(
        &mut self,
        compiled: &Compiled,
        rule: &Rule,
        node: &Node,
        value: &Value,
        old: Option<&Value>,
        path: &Path,
    ) -> Result<(), BudgetExhausted> {
        let cost = compiled.cost(value, old);
        if cost > RULE_COST_MAX {
            let detail = format!(
                "'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to call cost \
                 exceeds limit for rule: {}",
                rule.shown()
            );
            self.invalid(node, path, detail);
            return Err(BudgetExhausted);
        }
        if cost > self.cost_left {
            let detail = "validation failed due to running out of cost budget, no further validation rules will be run";
            self.invalid(node, path, detail.to_owned());
            return Err(BudgetExhausted);
        }
        self.cost_left -= cost;
        Ok(())
    }

    fn fails(&mut self, rule: &Rule, node: &Node, value: &Value, this: &Cel, before: Option<&Cel>, path: &Path) {
        let message = self.message(rule, value, this, before).unwrap_or_else(|| match rule.message.trim() {
            "" => format!("failed rule: {}", rule.text.trim()),
            message => message.to_owned(),
        });
        let at = if rule.field_path.is_empty() {
            path.clone()
        } else {
            let shown = super::paths::resolve(&rule.field_path, node, true).map(|(shown, _)| shown);
            path.child(&shown.unwrap_or_else(|_| rule.field_path.trim_start_matches('.').to_owned()))
        };
        match rule.reason.as_str() {
            "FieldValueForbidden" => self.errors.forbidden(&at, message),
            "FieldValueRequired" => self.errors.required(&at, message),
            "FieldValueDuplicate" => self.errors.push(ErrorKind::Duplicate, &at, Some(type_of(node).into()), message),
            _ => self.errors.invalid(&at, type_of(node), message),
        }
    }

    /// Returns the result of `messageExpression` if it is usable.
    fn message(&mut self, rule: &Rule, value: &Value, this: &Cel, before: Option<&Cel>) -> Option<String> {
        let compiled = rule.compiled_message()?.ok()?;
        let cost = compiled.cost(value, None);
        if cost > RULE_COST_MAX || cost > self.cost_left {
            return None;
        }
        self.cost_left -= cost;
        match compiled.evaluate(rule, this, before) {
            Ok(Cel::String(text)) => {
                let text = text.trim();
                let usable = !text.is_empty() && text.len() <= MESSAGE_BYTES_MAX && !text.contains('\n');
                usable.then(|| text.to_owned())
            }
            _ => None,
        }
    }

    fn invalid(&mut self, node: &Node, path: &Path, detail: String) {
        self.errors.invalid(path, type_of(node), detail);
    }
}

fn type_of(node: &Node) -> &'static str {
    node.ty.map_or("", Ty::name)
}

fn with_variables<T>(rule: &Rule, this: &Cel, before: Option<&Cel>, run: impl FnOnce(&Context) -> T) -> T {
    thread_local! {
        static FUNCTIONS: Context<'static> = functions::context();
    }
    FUNCTIONS.with(|functions| {
        let mut context = functions.new_inner_scope();
        context.add_variable_from_value("self", this.clone());
        match (rule.is_optional(), before) {
            (true, Some(before)) => {
                context.add_variable_from_value("oldSelf", Cel::Opaque(Arc::new(OptionalValue::of(before.clone()))));
            }
            (true, None) => context.add_variable_from_value("oldSelf", Cel::Opaque(Arc::new(OptionalValue::none()))),
            (false, Some(before)) => context.add_variable_from_value("oldSelf", before.clone()),
            (false, None) => {}
        }
        run(&context)
    })
}

/// The interpreter is a library that may panic on unexpected input. A rule's author must not be able to abort a request
/// that way.
fn execute(expr: &Expr, context: &Context) -> Result<Cel, ExecutionError> {
    catch_unwind(AssertUnwindSafe(|| Cel::resolve(expr, context)))
        .unwrap_or_else(|_| Err(cel::ExecutionError::function_error("rule", "internal error in the CEL interpreter")))
}

fn sentence(error: &ExecutionError, rule: &Rule) -> String {
    let rule = rule.shown();
    match error {
        ExecutionError::NoSuchOverload => format!(
            "'no such overload': call arguments did not match a supported operator, function or macro signature for rule: {rule}"
        ),
        ExecutionError::NoSuchKey(key) => format!("no such key: {key} evaluating rule: {rule}"),
        ExecutionError::IndexOutOfBounds(Cel::Int(index)) => {
            format!("index out of bounds: {index} evaluating rule: {rule}")
        }
        ExecutionError::DivisionByZero(_) => format!("division by zero evaluating rule: {rule}"),
        ExecutionError::RemainderByZero(_) => format!("modulus by zero evaluating rule: {rule}"),
        ExecutionError::Overflow(..) => format!("integer overflow evaluating rule: {rule}"),
        ExecutionError::FunctionError { message, .. } => format!("{message} evaluating rule: {rule}"),
        // The interpreter's other errors print whole values, which may be large or secret.
        _ => format!("type conversion or call error evaluating rule: {rule}"),
    }
}
