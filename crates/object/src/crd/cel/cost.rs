//! Computes an upper bound for the cost of a CEL rule on given data, before the rule is evaluated.
//!
//! The bound follows selections into the data, so only the selected parts count. It assumes that every branch is taken
//! and every loop runs to its end. The unit is one visited expression; copying ten bytes or elements counts as one.

use super::expr::{Expr, for_children};
use super::value::escape;
use crate::Value;
use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, Expr as Ast, LiteralValue, operators};

/// Returns the bound for one evaluation with `self` and `oldSelf`.
pub fn bound(expr: &Expr, this: &Value, old: Option<&Value>) -> u64 {
    if !can_grow_fast(expr) {
        return 1;
    }
    let mut walk = Walk { variables: vec![("self", Known::Values(vec![this]))], work: 0 };
    if let Some(old) = old {
        walk.variables.push(("oldSelf", Known::Values(vec![old])));
    }
    let (cost, _) = walk.expr(expr);
    cost
}

/// Whether the cost can grow faster than the rule's length times the object's size: with loops, or functions that
/// multiply sizes.
fn can_grow_fast(expr: &Expr) -> bool {
    let mut found = match &expr.expr {
        Ast::Comprehension(_) => true,
        Ast::Call(call) => matches!(call.func_name.as_str(), "replace" | "join" | "range" | "format"),
        _ => false,
    };
    if !found {
        for_children(&expr.expr, &mut |part| found = found || can_grow_fast(part));
    }
    found
}

/// What is known about a value: its candidates, or an upper bound of its size.
#[derive(Clone)]
enum Known<'a> {
    Values(Vec<&'a Value>),
    Size {
        count: u64,
        bytes: u64,
    },
    /// A number that is at most this large.
    Number(u64),
}

const SMALL: Known<'static> = Known::Size { count: 1, bytes: 16 };

/// Maximum number of candidates. More are replaced by an upper bound of their size.
const CANDIDATES_MAX: usize = 10_000;
/// Maximum number of steps to compute the bound. Beyond it the cost counts as unlimited.
const WORK_MAX: u64 = 5_000_000;

struct Walk<'a> {
    variables: Vec<(&'a str, Known<'a>)>,
    work: u64,
}

impl<'a> Walk<'a> {
    fn expr(&mut self, expr: &'a Expr) -> (u64, Known<'a>) {
        self.work += 1;
        if self.work > WORK_MAX {
            return (u64::MAX, SMALL);
        }
        match &expr.expr {
            Ast::Ident(name) => {
                let known = self.variables.iter().rev().find(|(variable, _)| variable == name);
                (1, known.map_or(SMALL, |(_, known)| known.clone()))
            }
            Ast::Literal(LiteralValue::Int(number)) => (1, Known::Number((*number.inner()).max(0).unsigned_abs())),
            Ast::Literal(LiteralValue::String(text)) => (1, sized(1, text.inner().len() as u64)),
            Ast::Select(select) => {
                let (cost, _) = self.expr(&select.operand);
                (add(cost, 1), SMALL)
            }
            Ast::Call(call) => self.call(call),
            Ast::Comprehension(inner) => self.comprehension(inner),
            Ast::List(list) => {
                let parts: Vec<(u64, Known)> = list.elements.iter().map(|part| self.expr(part)).collect();
                let bytes = parts.iter().map(|(_, part)| self.bytes(part)).fold(16, add);
                (parts.iter().map(|(cost, _)| *cost).fold(1, add), sized(parts.len() as u64, bytes))
            }
            Ast::Map(_) => {
                let mut parts = Vec::new();
                for_children(&expr.expr, &mut |part| parts.push(part));
                let parts: Vec<(u64, Known)> = parts.into_iter().map(|part| self.expr(part)).collect();
                let bytes = parts.iter().map(|(_, part)| self.bytes(part)).fold(16, add);
                (parts.iter().map(|(cost, _)| *cost).fold(1, add), sized(parts.len() as u64, bytes))
            }
            Ast::Literal(_) | Ast::Struct(_) | Ast::Unspecified => (1, SMALL),
        }
    }

    fn call(&mut self, call: &'a CallExpr) -> (u64, Known<'a>) {
        let parts: Vec<(u64, Known)> =
            call.target.as_deref().into_iter().chain(&call.args).map(|part| self.expr(part)).collect();
        let cost = parts.iter().map(|(cost, _)| *cost).fold(1, add);
        let sizes: Vec<u64> = parts.iter().map(|(_, part)| self.bytes(part)).collect();
        let total = sizes.iter().copied().fold(0, add);
        match (call.func_name.as_str(), parts.as_slice()) {
            (operators::INDEX | operators::OPT_INDEX, [(_, of), _]) => {
                let selected = match &call.args[1].expr {
                    Ast::Literal(LiteralValue::String(name)) => self.member(of, name.inner()),
                    _ => self.elements(of),
                };
                (cost, selected)
            }
            (operators::CONDITIONAL, [_, (_, yes), (_, no)]) => (cost, self.either(yes, no)),
            (operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT, _)
            | (operators::NOT_STRICTLY_FALSE, _) => (cost, SMALL),
            (operators::EQUALS | operators::NOT_EQUALS, _) => {
                (add(cost, sizes.iter().min().copied().unwrap_or(0) / 10), SMALL)
            }
            ("size", [(_, of)]) => (cost, Known::Number(self.count(of).max(self.bytes(of)))),
            ("range", [.., (_, limit)]) => {
                let count = largest_number(limit);
                (add(cost, count), sized(count, count.saturating_mul(8)))
            }
            ("replace" | "join", _) => {
                let grown = sizes.iter().fold(1u64, |product, size| product.saturating_mul((*size).max(1)));
                (add(cost, grown / 10), sized(1, grown))
            }
            _ => {
                let count = parts.iter().map(|(_, part)| self.count(part)).fold(0, add).max(1);
                let count =
                    if matches!(call.func_name.as_str(), "split" | "findAll" | "flatten") { total } else { count };
                (add(cost, total / 10), sized(count, add(total, 16)))
            }
        }
    }

    fn comprehension(&mut self, inner: &'a ComprehensionExpr) -> (u64, Known<'a>) {
        let (range_cost, range) = self.expr(&inner.iter_range);
        let (init_cost, init) = self.expr(&inner.accu_init);
        let rounds = self.count(&range);
        let item = self.elements(&range);
        let item_bytes = self.bytes(&item);
        let start = self.bytes(&init);
        let depth = self.variables.len();
        self.variables.push((&inner.accu_var, init.clone()));
        self.variables.push((&inner.iter_var, item));
        let (condition, _) = self.expr(&inner.loop_cond);
        let (step, grown) = self.expr(&inner.loop_step);
        // The first round adds at least as much as each later one, and the interpreter copies the accumulator in every
        // round.
        let growth = self.bytes(&grown).saturating_sub(start);
        let end = add(start, growth.saturating_mul(rounds));
        let round = add(add(condition, step), item_bytes / 10);
        let copies = rounds.saturating_mul(end / 20);
        self.variables.truncate(depth);
        if rounds > 0 {
            self.variables.push((&inner.accu_var, sized(rounds.max(1), end)));
        } else {
            self.variables.push((&inner.accu_var, init));
        }
        let (result_cost, result) = self.expr(&inner.result);
        self.variables.truncate(depth);
        let cost = [init_cost, rounds.saturating_mul(round), copies, result_cost].into_iter().fold(range_cost, add);
        (cost, result)
    }

    fn member(&mut self, of: &Known<'a>, name: &str) -> Known<'a> {
        match of {
            Known::Values(values) => {
                self.work += values.len() as u64;
                let found = values.iter().filter_map(|value| {
                    let members = value.as_object()?;
                    members.get(name).or_else(|| members.iter().find(|(key, _)| escape(key) == name).map(|(_, v)| v))
                });
                Known::Values(found.collect())
            }
            size => size.clone(),
        }
    }

    /// Returns what a loop variable or a computed index can be.
    fn elements(&mut self, of: &Known<'a>) -> Known<'a> {
        let Known::Values(values) = of else { return of.clone() };
        let mut found = Vec::new();
        for value in values {
            match value {
                Value::Array(items) => found.extend(items),
                Value::Object(members) => found.extend(members.values()),
                _ => {}
            }
            if found.len() > CANDIDATES_MAX {
                return sized(self.count(of), self.bytes(of));
            }
        }
        self.work += found.len() as u64;
        Known::Values(found)
    }

    fn either(&mut self, yes: &Known<'a>, no: &Known<'a>) -> Known<'a> {
        match (yes, no) {
            (Known::Values(yes), Known::Values(no)) => Known::Values(yes.iter().chain(no).copied().collect()),
            _ => sized(self.count(yes).max(self.count(no)), self.bytes(yes).max(self.bytes(no))),
        }
    }

    /// Returns the maximum number of elements.
    fn count(&self, of: &Known) -> u64 {
        match of {
            Known::Values(values) => values
                .iter()
                .map(|value| match value {
                    Value::Array(items) => items.len() as u64,
                    Value::Object(members) => members.len() as u64,
                    _ => 1,
                })
                .max()
                .unwrap_or(0),
            Known::Size { count, .. } => *count,
            Known::Number(_) => 1,
        }
    }

    /// Returns the size of the largest candidate.
    fn bytes(&mut self, of: &Known) -> u64 {
        match of {
            Known::Values(values) => {
                let sizes = values.iter().map(|value| size_of(value, &mut self.work));
                sizes.max().unwrap_or(0)
            }
            Known::Size { bytes, .. } => *bytes,
            Known::Number(_) => 8,
        }
    }
}

fn sized<'a>(count: u64, bytes: u64) -> Known<'a> {
    Known::Size { count, bytes }
}

fn add(a: u64, b: u64) -> u64 {
    a.saturating_add(b)
}

fn size_of(value: &Value, work: &mut u64) -> u64 {
    *work += 1;
    match value {
        Value::String(text) => 8 + text.len() as u64,
        Value::Array(items) => items.iter().map(|item| size_of(item, work)).fold(16, add),
        Value::Object(members) => {
            members.iter().map(|(key, member)| key.len() as u64 + size_of(member, work)).fold(16, add)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}

/// Returns the largest number that the value can be. An unknown value can be any number.
fn largest_number(of: &Known) -> u64 {
    match of {
        Known::Values(values) => {
            values.iter().map(|value| value.as_i64().map_or(u64::MAX, |n| n.max(0).unsigned_abs())).max().unwrap_or(0)
        }
        Known::Number(number) => *number,
        Known::Size { .. } => u64::MAX,
    }
}
