//! Sets of field paths, stored in the form of `managedFields[].fieldsV1`, so that reading and writing them needs no
//! conversion.
//!
//! A node is a map from path elements to nodes. An empty node is a path in the set. A node with children is itself in
//! the set only if it has the member `.`. The root is different: an empty root is the empty set. In canonical form no
//! node has `.` alone, and elements are as [`element::canonical`] returns them.

use super::element;
use crate::{Map, Value};

pub(super) type Node = Map;

const SELF: &str = ".";

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Set(pub Node);

impl Set {
    /// Reads a set that a client sent.
    pub fn parse(fields: &Value) -> Result<Set, String> {
        let Value::Object(members) = fields else { return Err("fieldsV1 must be an object".to_owned()) };
        let mut root = parse_node(members)?.unwrap_or_default();
        root.remove(SELF);
        Ok(Set(root))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn unite(&mut self, other: Set) {
        if self.is_empty() {
            *self = other;
            return;
        }
        unite_children(&mut self.0, other.0);
    }

    pub fn subtract(&mut self, other: &Set) {
        subtract_children(&mut self.0, &other.0);
    }

    pub fn intersection(&self, other: &Set) -> Set {
        Set(common_children(&self.0, &other.0))
    }

    /// Returns all paths in display form. At each level, paths that end there come before deeper ones.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        list_paths(&self.0, &mut String::new(), &mut paths);
        paths
    }
}

/// Whether a node below the root is itself in the set.
pub(super) fn is_member(node: &Node) -> bool {
    node.is_empty() || node.contains_key(SELF)
}

/// Returns a node with these children; `member` tells whether the node is itself in the set. Returns `None` if nothing
/// is left.
pub(super) fn node(mut children: Node, member: bool) -> Option<Node> {
    match (children.is_empty(), member) {
        (true, false) => return None,
        (false, true) => drop(children.insert(SELF.to_owned(), leaf())),
        _ => {}
    }
    Some(children)
}

pub(super) fn leaf() -> Value {
    Value::Object(Node::new())
}

/// Returns the child node at an element. A stored set may contain invalid values; they count as no child.
pub(super) fn child<'a>(node: &'a Node, element: &str) -> Option<&'a Node> {
    node.get(element).and_then(Value::as_object)
}

/// Returns `None` if the node contained only unknown kinds of elements.
fn parse_node(members: &Node) -> Result<Option<Node>, String> {
    let mut children = Node::new();
    for (key, value) in members {
        let Value::Object(below) = value else { return Err(format!("{key:?} in fieldsV1 must be an object")) };
        if key == SELF {
            continue;
        }
        if let Some(element) = element::canonical(key)?
            && let Some(below) = parse_node(below)?
        {
            children.insert(element, Value::Object(below));
        }
    }
    Ok(node(children, is_member(members)))
}

fn unite_children(into: &mut Node, other: Node) {
    for (element, theirs) in other {
        match into.get_mut(&element) {
            None => drop(into.insert(element, theirs)),
            Some(Value::Object(ours)) => {
                if let Value::Object(theirs) = theirs {
                    unite_node(ours, theirs);
                }
            }
            Some(_) => {}
        }
    }
}

fn unite_node(ours: &mut Node, theirs: Node) {
    match (ours.is_empty(), theirs.is_empty()) {
        (true, true) => {}
        (true, false) => {
            *ours = theirs;
            ours.insert(SELF.to_owned(), leaf());
        }
        (false, true) => drop(ours.insert(SELF.to_owned(), leaf())),
        (false, false) => unite_children(ours, theirs),
    }
}

fn subtract_children(from: &mut Node, other: &Node) {
    for (element, theirs) in other {
        let (Some(Value::Object(ours)), Value::Object(theirs)) = (from.get_mut(element), theirs) else { continue };
        if !subtract_node(ours, theirs) {
            from.remove(element);
        }
    }
}

/// Removes `theirs` from `ours`. Returns whether anything is left.
fn subtract_node(ours: &mut Node, theirs: &Node) -> bool {
    if ours.is_empty() {
        return !is_member(theirs);
    }
    if is_member(theirs) {
        ours.remove(SELF);
    }
    // `.` was removed above, so only real children remain.
    subtract_children(ours, theirs);
    if ours.len() == 1 && ours.contains_key(SELF) {
        ours.clear();
        return true;
    }
    !ours.is_empty()
}

fn common_children(a: &Node, b: &Node) -> Node {
    let mut common = Node::new();
    for (element, below) in a {
        let (Value::Object(below), Some(Value::Object(theirs))) = (below, b.get(element)) else { continue };
        if element == SELF {
            continue;
        }
        if let Some(found) = node(common_children(below, theirs), is_member(below) && is_member(theirs)) {
            common.insert(element.clone(), Value::Object(found));
        }
    }
    common
}

fn list_paths(node: &Node, path: &mut String, paths: &mut Vec<String>) {
    let start = path.len();
    let children = || {
        node.iter()
            .filter(|(element, _)| *element != SELF)
            .filter_map(|(element, value)| Some((element, value.as_object()?)))
    };
    for (element, below) in children() {
        if is_member(below) {
            element::show(element, path);
            paths.push(path.clone());
            path.truncate(start);
        }
    }
    for (element, below) in children() {
        if !below.is_empty() {
            element::show(element, path);
            list_paths(below, path, paths);
            path.truncate(start);
        }
    }
}

#[cfg(test)]
mod tests;
