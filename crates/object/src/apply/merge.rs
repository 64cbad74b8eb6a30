//! Merges an applied configuration into the live object.

use super::element;
use super::set::{Node, Set, child, is_member};
use super::shape::{Items, Shape, Ty};
use crate::schema::TypeRef;
use crate::value::Key;
use crate::{Map, Value};
use std::collections::{HashMap, HashSet};

/// Sets the fields of the configuration in a copy of the live object. All other fields stay.
pub(super) fn merge(ty: &TypeRef, live: &Value, config: &Value) -> Value {
    merged(Ty::root(ty), live, config)
}

/// Removes from `object` the fields that the manager applied before (`last`) and that no manager owns now. `owned`
/// includes the manager's new set.
pub(super) fn prune(ty: &TypeRef, object: &mut Value, last: &Set, owned: &Set) {
    let root = Ty::root(ty);
    let Value::Object(members) = object else { return };
    // apiVersion, kind and metadata must never be removed, although sets do not contain them.
    let identity: Vec<(Key, Value)> = ["apiVersion", "kind", "metadata"]
        .into_iter()
        .filter_map(|name| members.remove_entry(name))
        .map(|(name, mut value)| {
            let element = element::member(&name);
            if let Some(last) = child(&last.0, &element) {
                let none = Node::new();
                prune_value(root.member(&name), &mut value, last, child(&owned.0, &element).unwrap_or(&none));
            }
            (name, value)
        })
        .collect();
    prune_members(root, members, &last.0, &owned.0);
    members.extend(identity);
}

fn merged(ty: Ty, live: &Value, config: &Value) -> Value {
    match (ty.shape(Some(live), Some(config)), live, config) {
        (Shape::Members, Value::Object(live), Value::Object(config)) => {
            let kept = live.iter().filter(|(name, _)| !config.contains_key(*name));
            let mut members: Map = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
            for (name, value) in config.iter().filter(|(_, value)| !value.is_null()) {
                let value = match live.get(name) {
                    Some(old) => merged(ty.member(name), old, value),
                    None => without_nulls(value),
                };
                members.insert(name.clone(), value);
            }
            Value::Object(members)
        }
        (Shape::Items(items), Value::Array(live), Value::Array(config)) => {
            merged_items(items, live, config).unwrap_or_else(|| without_nulls(&Value::Array(config.clone())))
        }
        _ => without_nulls(config),
    }
}

/// In stored objects a null field is absent.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let kept = members.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(name, value)| (name.clone(), without_nulls(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        scalar => scalar.clone(),
    }
}

/// Merges lists by the identity of their items. Returns `None` if an item has no identity. Items of the configuration
/// keep the configuration's order, and the other live items keep the live order.
fn merged_items(items: Items, live: &[Value], config: &[Value]) -> Option<Value> {
    let live_elements = items.elements(live)?;
    let config_elements = items.elements(config)?;
    let in_config: HashSet<&str> = config_elements.iter().map(String::as_str).collect();
    let mut in_live: HashMap<&str, &Value> = HashMap::with_capacity(live.len());
    for (element, item) in live_elements.iter().zip(live) {
        in_live.entry(element).or_insert(item);
    }
    let take = |at: usize| match in_live.get(config_elements[at].as_str()) {
        Some(old) => merged(items.ty(), old, &config[at]),
        None => without_nulls(&config[at]),
    };

    let mut out = Vec::with_capacity(live.len().max(config.len()));
    let mut shared = config_elements.iter().filter(|element| in_live.contains_key(element.as_str())).peekable();
    let mut taken: HashSet<&str> = HashSet::with_capacity(config.len());
    let (mut l, mut c) = (0, 0);
    while l < live.len() || c < config.len() {
        if let Some(element) = live_elements.get(l) {
            if !in_config.contains(element.as_str()) {
                out.push(live[l].clone());
                l += 1;
                continue;
            }
            // The configuration decides the place of this item; here only whether it comes next.
            let turn = shared.peek().is_none_or(|next| *next == element);
            if taken.contains(element.as_str()) || (c < config.len() && !turn) {
                l += 1;
                continue;
            }
        }
        if let Some(element) = config_elements.get(c) {
            out.push(take(c));
            taken.insert(element);
            shared.next_if(|next| *next == element);
            c += 1;
        } else {
            l += 1;
        }
    }
    Some(Value::Array(out))
}

fn prune_value(ty: Ty, value: &mut Value, last: &Node, owned: &Node) {
    match (ty.shape(Some(value), None), value) {
        (Shape::Members, Value::Object(members)) => prune_members(ty, members, last, owned),
        (Shape::Items(items), Value::Array(list)) => {
            list.retain_mut(|item| match items.element(item) {
                Ok(element) => !pruned(items.ty(), item, child(last, &element), child(owned, &element), false),
                Err(_) => true,
            });
        }
        _ => {}
    }
}

fn prune_members(ty: Ty, members: &mut Map, last: &Node, owned: &Node) {
    let mut element = String::new();
    members.retain(|name, value| {
        element.clear();
        element.push_str("f:");
        element.push_str(name);
        !pruned(ty.member(name), value, child(last, &element), child(owned, &element), ty.declares(name))
    });
}

/// Prunes the value at one place and below it. Returns true if the value itself must be removed: it was applied and no
/// manager owns it now, or nothing is left in it. A declared field counts as owned if any field below it is owned. List
/// items and map keys count only if they are owned themselves.
fn pruned(ty: Ty, value: &mut Value, last: Option<&Node>, owned: Option<&Node>, declared: bool) -> bool {
    let Some(last) = last else { return false };
    let names = |node: &Node| declared || is_member(node);
    if names(last) && !owned.is_some_and(names) {
        return true;
    }
    let was_empty = is_empty(value);
    let none = Node::new();
    prune_value(ty, value, last, owned.unwrap_or(&none));
    is_empty(value) && !was_empty
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(members) => members.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;
    use crate::schema::builtin_type;

    /// Merges two lists of containers, given by their names.
    fn order(live: &str, config: &str) -> String {
        let pod = |names: &str| {
            let list: Vec<Value> = names.chars().map(|name| json!({"name": name.to_string()})).collect();
            json!({"spec": {"containers": list}})
        };
        let merged = merge(&builtin_type("io.k8s.api.core.v1.Pod"), &pod(live), &pod(config));
        merged["spec"]["containers"].as_array().unwrap().iter().filter_map(|item| item["name"].as_str()).collect()
    }

    #[test]
    fn configured_items_get_the_configured_order_and_other_items_stay() {
        for (live, config, outcome) in [
            ("abc", "abc", "abc"),
            ("abc", "c", "abc"),
            ("abc", "cba", "cba"),
            ("ab", "x", "abx"),
            ("ab", "xb", "axb"),
            ("abcd", "db", "acdb"),
            ("", "ab", "ab"),
            ("abc", "", "abc"),
            ("abc", "bx", "abcx"),
        ] {
            assert_eq!(order(live, config), outcome, "{live} + {config}");
        }
    }
}
