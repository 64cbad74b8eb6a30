//! Differences between two objects, as sets of field paths.

use super::set::{Node, Set, node};
use super::shape::{Items, Shape, Ty};
use super::{Scope, element};
use crate::schema::{TypeRef, builtin};
use crate::value::Key;
use crate::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Metadata fields that have no field manager.
const UNMANAGED_METADATA: &[&str] = &[
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "clusterName",
    "managedFields",
];

/// Structs that upstream's Go types always have, even if empty, so that no manager owns their existence.
const IMPLIED: &[&str] = &["metadata", "spec", "status", "template", "updateStrategy", "resources"];

#[derive(Debug, Default, PartialEq)]
pub(super) struct Diff {
    /// Fields that were added or changed.
    pub touched: Set,
    pub removed: Set,
}

impl Diff {
    pub fn is_empty(&self) -> bool {
        self.touched.is_empty() && self.removed.is_empty()
    }
}

/// Compares the managed fields of two objects. Without an old object, all fields are new.
pub(super) fn diff(ty: &TypeRef, old: Option<&Value>, new: &Value, scope: Scope) -> Diff {
    let implied = Arc::ptr_eq(&ty.schema, builtin());
    let root = Ty::root(ty);
    let mut found = Children::default();
    join(members(old), members(Some(new)), |name, old, new| match name {
        "metadata" => found.add_member(name, metadata(root.member(name), old, new)),
        name if !scope.manages(root, name) => {}
        name => found.add_member(name, member(root, name, old, new, implied)),
    });
    Diff { touched: Set(found.touched), removed: Set(found.removed) }
}

/// Removes the fields that have no manager from the set of a configuration.
pub(super) fn strip(ty: &TypeRef, set: &mut Set, scope: Scope) {
    let root = Ty::root(ty);
    set.0.retain(|element, below| match element.strip_prefix("f:") {
        Some("metadata") => {
            let Value::Object(below) = below else { return false };
            below.retain(|element, _| {
                element.strip_prefix("f:").is_some_and(|name| !UNMANAGED_METADATA.contains(&name))
            });
            !below.is_empty()
        }
        Some(name) => scope.manages(root, name),
        None => false,
    });
}

/// Differences at one path and below it.
#[derive(Default)]
struct Found {
    touched: Option<Node>,
    removed: Option<Node>,
}

/// Differences below one path.
#[derive(Default)]
struct Children {
    touched: Node,
    removed: Node,
}

impl Children {
    fn add_member(&mut self, name: &str, found: Found) {
        // Most members are unchanged, so build the path element only for changed ones.
        if found.touched.is_some() || found.removed.is_some() {
            self.add(element::member(name), found);
        }
    }

    fn add(&mut self, element: Key, found: Found) {
        if let Some(removed) = found.removed {
            self.removed.insert(element.clone(), Value::Object(removed));
        }
        if let Some(touched) = found.touched {
            self.touched.insert(element, Value::Object(touched));
        }
    }

    /// Adds the difference of the path itself: touched if it is new, removed if it no longer exists.
    fn at(self, old: Option<&Value>, new: Option<&Value>) -> Found {
        Found {
            touched: node(self.touched, old.is_none() && new.is_some()),
            removed: node(self.removed, new.is_none() && old.is_some()),
        }
    }
}

/// Placeholder for a struct that exists without members.
static EMPTY: Value = Value::Null;

fn metadata(ty: Ty, old: Option<&Value>, new: Option<&Value>) -> Found {
    let mut found = Children::default();
    join(members(old), members(new), |name, old, new| {
        if !UNMANAGED_METADATA.contains(&name) {
            found.add_member(name, compare(ty.member(name), old, new, false));
        }
    });
    found.at(Some(&EMPTY), Some(&EMPTY))
}

fn compare(ty: Ty, old: Option<&Value>, new: Option<&Value>, implied: bool) -> Found {
    if let (Some(old), Some(new)) = (old, new)
        && old.is_same(new)
    {
        return Found::default();
    }
    match ty.shape(old, new) {
        Shape::Leaf => compare_leaf(old, new),
        Shape::Members => {
            let (old_members, new_members) = (members(old), members(new));
            if old_members.is_empty() && new_members.is_empty() {
                return compare_leaf(old, new);
            }
            let mut found = Children::default();
            join(old_members, new_members, |name, old, new| {
                found.add_member(name, member(ty, name, old, new, implied))
            });
            found.at(old, new)
        }
        Shape::Items(items) => compare_items(items, old, new),
    }
}

/// Compares one member. If the parent struct always exists (`implied`), some of its structs and its required lists do
/// too.
fn member(parent: Ty, name: &str, old: Option<&Value>, new: Option<&Value>, implied: bool) -> Found {
    let ty = parent.member(name);
    if !implied {
        return compare(ty, old, new, false);
    }
    let struct_there = ty.structure().is_some_and(|found| !found.atomic) && IMPLIED.contains(&name);
    let list_there =
        ty.is_list() && parent.structure().and_then(|found| found.fields.get(name)).is_some_and(|field| field.required);
    let there = struct_there || list_there;
    if there && old.is_none() && members(new).is_empty() && list(new).is_empty() {
        return Found::default();
    }
    compare(ty, old.or_else(|| there.then_some(&EMPTY)), new, struct_there)
}

fn compare_leaf(old: Option<&Value>, new: Option<&Value>) -> Found {
    let present = |value: Option<&Value>| value.is_some_and(|value| !value.is_null());
    match (present(old), present(new)) {
        (false, false) => Found::default(),
        (true, false) => Found { touched: None, removed: Some(Node::new()) },
        (true, true) if old == new => Found::default(),
        (_, true) => Found { touched: Some(Node::new()), removed: None },
    }
}

fn compare_items(items: Items, old: Option<&Value>, new: Option<&Value>) -> Found {
    let (old_items, new_items) = (list(old), list(new));
    if old_items.is_empty() && new_items.is_empty() || old == new {
        return compare_leaf(old, new);
    }
    let (Some(old_elements), Some(new_elements)) = (items.elements(old_items), items.elements(new_items)) else {
        return compare_leaf(old, new);
    };
    // A list from before a schema change may contain an element twice, so compare all items with the same element.
    let mut sides: BTreeMap<String, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
    for (element, item) in old_elements.into_iter().zip(old_items) {
        sides.entry(element).or_default().0.push(item);
    }
    for (element, item) in new_elements.into_iter().zip(new_items) {
        sides.entry(element).or_default().1.push(item);
    }
    let mut found = Children::default();
    for (element, (old, new)) in sides {
        let below = match (old.as_slice(), new.as_slice()) {
            ([], [new]) => compare(items.ty(), None, Some(new), false),
            ([old], []) => compare(items.ty(), Some(old), None, false),
            ([old], [new]) => compare(items.ty(), Some(old), Some(new), false),
            (old, new) if old == new => Found::default(),
            (_, []) => Found { touched: None, removed: Some(Node::new()) },
            _ => Found { touched: Some(Node::new()), removed: None },
        };
        found.add(element.into(), below);
    }
    found.at(old, new)
}

fn members(value: Option<&Value>) -> &Map {
    static NONE: std::sync::LazyLock<Map> = std::sync::LazyLock::new(Map::new);
    value.and_then(Value::as_object).unwrap_or(&NONE)
}

fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Visits the members of both maps in the order of their names, without lookups: both maps are sorted.
fn join<'a>(old: &'a Map, new: &'a Map, mut visit: impl FnMut(&str, Option<&'a Value>, Option<&'a Value>)) {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return,
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some((old_name, _)), Some((new_name, _))) => old_name.cmp(new_name),
        };
        let old_member = if order.is_le() { old.next() } else { None };
        let new_member = if order.is_ge() { new.next() } else { None };
        if let Some((name, _)) = old_member.or(new_member) {
            visit(name, old_member.map(|(_, value)| value), new_member.map(|(_, value)| value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_maps_iterate_in_sorted_order() {
        let map: Map = ["b", "c", "a"].into_iter().map(|key| (key.to_owned(), Value::Null)).collect();
        assert_eq!(map.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    }
}
