//! A light type check when a definition is written: rules use only existing fields, variables and functions, and return
//! a boolean. What the schema does not determine is checked at evaluation.

use super::expr::{Expr, for_children};
use super::value::escape;
use crate::crd::node::{Additional, Node, Ty};
use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, Expr as Ast, LiteralValue, SelectExpr, operators};

/// The type of `self` in a rule.
pub struct Scope<'a> {
    pub node: &'a Node,
    pub is_resource: bool,
    pub optional_old_self: bool,
}

/// The type that an expression must have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    Bool,
    Text,
}

#[derive(Clone, Copy)]
enum Type<'a> {
    /// A value described by the schema; the flag tells whether it is a resource.
    Of(&'a Node, bool),
    /// The metadata of a resource.
    Meta,
    Bool,
    Text,
    /// A known type without special treatment.
    Other,
    Unknown,
}

/// Checks an expression in its scope. The error is a sentence for the rule's author.
pub fn check(expr: &Expr, scope: &Scope, wanted: Expected) -> Result<(), String> {
    let mut walk = Walk { scope, variables: Vec::new() };
    let found = walk.expr(expr).map_err(|error| format!("compilation failed: ERROR: <input>: {error}"))?;
    let fits = match (wanted, found) {
        (_, Type::Unknown) => true,
        (Expected::Bool, Type::Bool) | (Expected::Text, Type::Text) => true,
        (Expected::Bool, Type::Of(node, _)) => node.ty == Some(Ty::Boolean) || node.ty.is_none(),
        (Expected::Text, Type::Of(node, _)) => node.ty == Some(Ty::String) || node.ty.is_none(),
        _ => false,
    };
    match wanted {
        _ if fits => Ok(()),
        Expected::Bool => Err("cel expression must evaluate to a bool".to_owned()),
        Expected::Text => Err("must evaluate to a string".to_owned()),
    }
}

struct Walk<'a> {
    scope: &'a Scope<'a>,
    variables: Vec<(&'a str, Type<'a>)>,
}

impl<'a> Walk<'a> {
    fn expr(&mut self, expr: &'a Expr) -> Result<Type<'a>, String> {
        match &expr.expr {
            Ast::Ident(name) => self.ident(name),
            Ast::Literal(LiteralValue::Boolean(_)) => Ok(Type::Bool),
            Ast::Literal(LiteralValue::String(_)) => Ok(Type::Text),
            Ast::Literal(_) => Ok(Type::Other),
            Ast::Select(select) => self.select(select),
            Ast::Call(call) => self.call(call),
            Ast::Comprehension(inner) => self.comprehension(inner),
            Ast::List(_) | Ast::Map(_) => {
                self.parts(&expr.expr)?;
                Ok(Type::Other)
            }
            Ast::Struct(_) | Ast::Unspecified => Err("message construction is not supported".to_owned()),
        }
    }

    fn parts(&mut self, ast: &'a Ast) -> Result<(), String> {
        let mut parts = Vec::new();
        for_children(ast, &mut |part| parts.push(part));
        parts.into_iter().try_for_each(|part| self.expr(part).map(drop))
    }

    fn ident(&self, name: &str) -> Result<Type<'a>, String> {
        if let Some((_, ty)) = self.variables.iter().rev().find(|(known, _)| *known == name) {
            return Ok(*ty);
        }
        match name {
            "self" => Ok(Type::Of(self.scope.node, self.scope.is_resource)),
            "oldSelf" if self.scope.optional_old_self => Ok(Type::Unknown),
            "oldSelf" => Ok(Type::Of(self.scope.node, self.scope.is_resource)),
            _ if is_listed(super::functions::TYPES, name) => Ok(Type::Other),
            _ => Err(undeclared(name)),
        }
    }

    /// `has(a.b)`; other selections were rewritten into index operations.
    fn select(&mut self, select: &'a SelectExpr) -> Result<Type<'a>, String> {
        let operand = self.expr(&select.operand)?;
        field(operand, &select.field)?;
        Ok(Type::Bool)
    }

    fn call(&mut self, call: &'a CallExpr) -> Result<Type<'a>, String> {
        let name = call.func_name.as_str();
        if let Some(target) = call.target.as_deref() {
            let qualified = match &target.expr {
                Ast::Ident(prefix) => is_listed(QUALIFIED, &format!("{prefix}.{name}")),
                _ => false,
            };
            if !qualified {
                self.expr(target)?;
                if !is_listed(METHODS, name) {
                    return Err(undeclared(name));
                }
            }
        } else if !name.contains(['_', '@', '!', '-']) && !is_listed(FUNCTIONS, name) && !is_listed(METHODS, name) {
            return Err(undeclared(name));
        }
        let args = call.args.iter().map(|arg| self.expr(arg)).collect::<Result<Vec<_>, _>>()?;
        Ok(match (name, args.as_slice()) {
            (operators::CONDITIONAL, [_, yes, no]) => match (yes, no) {
                (Type::Bool, Type::Bool) => Type::Bool,
                (Type::Text, Type::Text) => Type::Text,
                _ => Type::Unknown,
            },
            (operators::INDEX | operators::OPT_INDEX, [of, _]) => {
                let found = match &call.args[1].expr {
                    Ast::Literal(LiteralValue::String(name)) => field(*of, name.inner())?,
                    _ => element(*of),
                };
                if name == operators::INDEX { found } else { Type::Unknown }
            }
            (operators::ADD, [left, right]) => match (left, right) {
                (Type::Unknown, _) | (_, Type::Unknown) => Type::Unknown,
                _ if is_text(*left) || is_text(*right) => Type::Text,
                _ => Type::Other,
            },
            (operators::SUBSTRACT | operators::MULTIPLY | operators::DIVIDE | operators::MODULO, _) => Type::Other,
            (name, _) if BOOLEAN.contains(&name) => Type::Bool,
            ("size", _) => Type::Other,
            ("string" | "format" | "lowerAscii" | "upperAscii" | "trim" | "join" | "replace" | "substring", _) => {
                Type::Text
            }
            _ => Type::Unknown,
        })
    }

    fn comprehension(&mut self, inner: &'a ComprehensionExpr) -> Result<Type<'a>, String> {
        let range = self.expr(&inner.iter_range)?;
        let item = match range {
            Type::Of(node, _) if node.ty == Some(Ty::Object) => Type::Text,
            Type::Of(..) => element(range),
            _ => Type::Unknown,
        };
        let init = match (self.expr(&inner.accu_init)?, &inner.accu_init.expr) {
            // Loops build lists and numbers, whose types are not tracked. A bound variable keeps its type.
            (Type::Other, _) => Type::Unknown,
            (ty, _) => ty,
        };
        let depth = self.variables.len();
        self.variables.push((&inner.accu_var, init));
        self.variables.push((&inner.iter_var, item));
        self.expr(&inner.loop_cond)?;
        self.expr(&inner.loop_step)?;
        self.variables.pop();
        let result = self.expr(&inner.result)?;
        self.variables.truncate(depth);
        Ok(result)
    }
}

fn is_listed(list: &str, name: &str) -> bool {
    list.split(' ').any(|known| known == name)
}

fn undeclared(name: &str) -> String {
    format!("undeclared reference to '{name}' (in container '')")
}

/// Returns the type of a field, or an error if there is no such field.
fn field<'a>(of: Type<'a>, name: &str) -> Result<Type<'a>, String> {
    let undefined = || Err(format!("undefined field '{name}'"));
    match of {
        Type::Unknown => Ok(Type::Unknown),
        Type::Meta => {
            if matches!(name, "name" | "generateName") {
                Ok(Type::Text)
            } else {
                undefined()
            }
        }
        Type::Of(_, true) if name == "metadata" => Ok(Type::Meta),
        Type::Of(_, true) if matches!(name, "apiVersion" | "kind") => Ok(Type::Text),
        Type::Of(node, _) => {
            if let Some((_, child)) = node.properties.iter().find(|(key, _)| escape(key) == name) {
                return Ok(Type::Of(child, child.embedded));
            }
            match (&node.additional, node.ty) {
                (Additional::Of(child), _) => Ok(Type::Of(child, child.embedded)),
                (Additional::Anything, _) | (_, None) => Ok(Type::Unknown),
                _ if node.preserve_unknown || node.int_or_string => Ok(Type::Unknown),
                (_, Some(Ty::Object)) => undefined(),
                (_, Some(ty)) => Err(format!("type '{}' does not support field selection", cel_name(ty))),
            }
        }
        Type::Bool => Err("type 'bool' does not support field selection".to_owned()),
        Type::Text => Err("type 'string' does not support field selection".to_owned()),
        Type::Other => Ok(Type::Unknown),
    }
}

fn is_text(ty: Type) -> bool {
    matches!(ty, Type::Text) || matches!(ty, Type::Of(node, _) if node.ty == Some(Ty::String))
}

fn element(of: Type<'_>) -> Type<'_> {
    match of {
        Type::Of(Node { items: Some(items), .. }, _) => Type::Of(items, items.embedded),
        Type::Of(node, _) => node.additional.node().map_or(Type::Unknown, |child| Type::Of(child, child.embedded)),
        _ => Type::Unknown,
    }
}

fn cel_name(ty: Ty) -> &'static str {
    match ty {
        Ty::Array => "list",
        Ty::Integer => "int",
        Ty::Number => "double",
        Ty::Boolean => "bool",
        Ty::Object | Ty::String => ty.name(),
    }
}

const BOOLEAN: &[&str] = &[
    operators::LOGICAL_AND,
    operators::LOGICAL_OR,
    operators::LOGICAL_NOT,
    operators::EQUALS,
    operators::NOT_EQUALS,
    operators::LESS,
    operators::LESS_EQUALS,
    operators::GREATER,
    operators::GREATER_EQUALS,
    operators::IN,
    operators::NOT_STRICTLY_FALSE,
    "contains",
    "startsWith",
    "endsWith",
    "matches",
    "hasValue",
    "isSorted",
    "isURL",
    "isQuantity",
    "isIP",
    "isCIDR",
    "isSemver",
    "isInteger",
    "isGreaterThan",
    "isLessThan",
    "containsIP",
    "containsCIDR",
    "isCanonical",
    "isLoopback",
];

/// Functions that are called without a receiver. (Those in `METHODS` may be called without one too.)
const FUNCTIONS: &str = "size string bytes double int uint bool dyn type duration timestamp matches url isURL quantity isQuantity ip \
     isIP cidr isCIDR semver isSemver has";

const METHODS: &str = "size contains startsWith endsWith matches value hasValue or orValue getFullYear getMonth getDayOfYear \
     getDayOfMonth getDate getDayOfWeek getHours getMinutes getSeconds getMilliseconds isInteger asInteger \
     asApproximateFloat sign add sub isSorted sum slice sort flatten distinct first last min max indexOf \
     lastIndexOf reverse getScheme getHost getHostname getPort getEscapedPath getQuery find findAll format charAt \
     lowerAscii upperAscii replace split substring trim join isGreaterThan isLessThan compareTo ip string \
     validate major minor patch family isLoopback isUnspecified isLinkLocalMulticast isLinkLocalUnicast \
     isGlobalUnicast containsIP containsCIDR prefixLength masked isCanonical";

const QUALIFIED: &str = "optional.none optional.of optional.ofNonZeroValue lists.range sets.contains sets.equivalent sets.intersects \
     base64.decode base64.encode strings.quote jsonpatch.escapeKey ip.isCanonical format.dns1123Label \
     format.dns1123Subdomain format.dns1035Label format.dns1035LabelPrefix format.dns1123LabelPrefix \
     format.dns1123SubdomainPrefix format.qualifiedName format.labelValue format.uri format.uuid format.byte \
     format.date format.datetime format.named math.ceil math.floor math.round math.trunc math.abs math.sign \
     math.isInf math.isNaN math.isFinite math.bitAnd math.bitOr math.bitXor math.bitNot math.bitShiftLeft \
     math.bitShiftRight math.sqrt math.greatest math.least";
