//! The set of paths in an applied configuration: the fields that its manager will own.

use super::element;
use super::set::{Node, Set, node};
use super::shape::{Items, Shape, Ty};
use crate::Value;
use crate::schema::TypeRef;
use std::collections::HashSet;

/// Returns the paths of a configuration, or all its errors (`.spec.ports: duplicate entries for key [port=80]`).
pub(super) fn extract(ty: &TypeRef, config: &Value) -> Result<Set, Vec<String>> {
    let mut walk = Walk { path: String::new(), errors: Vec::new() };
    let found = walk.visit(Ty::root(ty), config).unwrap_or_default();
    if walk.errors.is_empty() { Ok(Set(found)) } else { Err(walk.errors) }
}

struct Walk {
    path: String,
    errors: Vec<String>,
}

impl Walk {
    fn error(&mut self, why: impl std::fmt::Display) {
        self.errors.push(format!("{}: {why}", self.path));
    }

    /// Returns the paths of the value at this place and below, or `None` if there are none.
    fn visit(&mut self, ty: Ty, value: &Value) -> Option<Node> {
        match ty.shape(Some(value), None) {
            Shape::Members => self.visit_members(ty, value),
            Shape::Items(items) => self.visit_items(items, value),
            Shape::Leaf => {
                let fits = match ty.expected() {
                    Some("map") => value.is_object(),
                    Some(_) => value.is_array(),
                    None => true,
                };
                if !fits && !value.is_null() {
                    self.error(format_args!("expected {}, got {}", ty.expected().unwrap_or(""), kind(value)));
                }
                Some(Node::new())
            }
        }
    }

    fn visit_members(&mut self, ty: Ty, value: &Value) -> Option<Node> {
        let mut children = Node::new();
        for (name, value) in value.as_object()? {
            let end = self.path.len();
            self.path.push('.');
            self.path.push_str(name);
            let declared = ty.declares(name);
            if !declared && ty.structure().is_some_and(|found| !found.preserve_unknown) {
                self.error("field not declared in schema");
            }
            let empty = value.is_null() || value.as_object().is_some_and(|members| members.is_empty());
            let below = self.visit(ty.member(name), value);
            if let Some(below) = with_self(below, empty || !declared) {
                children.insert(element::member(name), Value::Object(below));
            }
            self.path.truncate(end);
        }
        node(children, false)
    }

    fn visit_items(&mut self, items: Items, value: &Value) -> Option<Node> {
        let mut children = Node::new();
        let mut seen = HashSet::new();
        for (index, item) in value.as_array()?.iter().enumerate() {
            let element = match items.element(item) {
                Ok(element) => element,
                Err(why) => {
                    self.error(format_args!("element {index}: {why}"));
                    continue;
                }
            };
            let end = self.path.len();
            element::show(&element, &mut self.path);
            if !seen.insert(element.clone()) {
                let key = self.path.split_off(end);
                self.error(format_args!("duplicate entries for key {key}"));
                continue;
            }
            let below = self.visit(items.ty(), item);
            children.insert(element, Value::Object(with_self(below, true).unwrap_or_default()));
            self.path.truncate(end);
        }
        node(children, false)
    }
}

/// Returns the node, marked as a member of the set itself if `member` is true.
fn with_self(below: Option<Node>, member: bool) -> Option<Node> {
    match below {
        Some(below) if below.is_empty() => Some(below),
        Some(below) => node(below, member),
        None => node(Node::new(), member),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "map",
    }
}
