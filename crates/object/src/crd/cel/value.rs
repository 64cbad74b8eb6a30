//! Converts JSON to CEL values, with the types that the schema gives.

use crate::Value;
use crate::crd::formats;
use crate::crd::node::{Additional, Node, Ty};
use base64::Engine;
use kube_cel::cel::Value as Cel;
use kube_cel::cel::objects::{Key, Map};
use std::collections::HashMap;
use std::sync::Arc;

/// Converts `value`. Of a resource, rules see `apiVersion`, `kind`, the names in `metadata`, and its own fields.
pub fn to_cel(node: Option<&Node>, value: &Value, is_resource: bool) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(truth) => Cel::Bool(*truth),
        Value::Number(number) => match (node.and_then(|node| node.ty), number.as_i64()) {
            (Some(Ty::Number), _) | (_, None) => whole_or_float(node, number),
            (_, Some(integer)) => Cel::Int(integer),
        },
        Value::String(text) => string(node, text),
        Value::Array(items) => {
            let child = node.and_then(|node| node.items.as_deref());
            let items: Vec<Cel> =
                items.iter().map(|item| to_cel(child, item, child.is_some_and(|child| child.embedded))).collect();
            Cel::List(Arc::new(items))
        }
        Value::Object(members) => {
            let mut map = HashMap::with_capacity(members.len());
            for (name, member) in members {
                if let Some((name, member)) = member_of(node, name, member, is_resource) {
                    map.insert(Key::String(Arc::new(name)), member);
                }
            }
            Cel::Map(Map { map: Arc::new(map) })
        }
    }
}

fn member_of(node: Option<&Node>, name: &str, member: &Value, is_resource: bool) -> Option<(String, Cel)> {
    if is_resource && name == "metadata" {
        let names = member.as_object()?.iter().filter(|(name, _)| matches!(name.as_str(), "name" | "generateName"));
        let names = names.map(|(name, value)| (Key::String(Arc::new(name.to_string())), to_cel(None, value, false)));
        return Some((name.to_owned(), Cel::Map(Map { map: Arc::new(names.collect()) })));
    }
    let Some(node) = node else { return Some((name.to_owned(), to_cel(None, member, false))) };
    if let Some(child) = node.properties.get(name) {
        return Some((escape(name), to_cel(Some(child), member, child.embedded)));
    }
    match &node.additional {
        // Map keys are data, so they are not escaped.
        Additional::Of(child) => Some((name.to_owned(), to_cel(Some(child), member, child.embedded))),
        _ => Some((escape(name), to_cel(None, member, false))),
    }
}

fn whole_or_float(node: Option<&Node>, number: &crate::value::Number) -> Cel {
    let float = number.as_f64().unwrap_or(f64::NAN);
    let wants_whole = node.is_some_and(|node| node.ty == Some(Ty::Integer) || node.int_or_string);
    #[allow(clippy::cast_possible_truncation, reason = "checked above to be whole and in range")]
    if wants_whole && float.fract() == 0.0 && float.abs() < 9.2e18 {
        return Cel::Int(float as i64);
    }
    Cel::Float(float)
}

fn string(node: Option<&Node>, text: &str) -> Cel {
    let plain = || Cel::String(Arc::new(text.to_owned()));
    let Some(node) = node.filter(|node| node.ty == Some(Ty::String)) else { return plain() };
    match node.checks.format.as_str() {
        "date-time" => chrono::DateTime::parse_from_rfc3339(text).map_or_else(|_| plain(), Cel::Timestamp),
        "date" => {
            chrono::DateTime::parse_from_rfc3339(&format!("{text}T00:00:00Z")).map_or_else(|_| plain(), Cel::Timestamp)
        }
        "duration" => formats::duration(text)
            .map_or_else(plain, |nanoseconds| Cel::Duration(chrono::Duration::nanoseconds(nanoseconds))),
        "byte" => base64::engine::general_purpose::STANDARD
            .decode(text)
            .map_or_else(|_| plain(), |bytes| Cel::Bytes(Arc::new(bytes))),
        _ => plain(),
    }
}

const RESERVED: &str = "true false null in as break const continue else for function if import let \
     loop package namespace return var void while";

/// Escapes a field name for CEL expressions.
pub fn escape(name: &str) -> String {
    if RESERVED.split(' ').any(|word| word == name) {
        return format!("__{name}__");
    }
    if !name.contains(['_', '.', '-', '/']) {
        return name.to_owned();
    }
    name.replace("__", "__underscores__").replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_documented() {
        let cases = [
            ("plain", "plain"),
            ("snake_case", "snake_case"),
            ("a__b", "a__underscores__b"),
            ("a.b", "a__dot__b"),
            ("x-prop", "x__dash__prop"),
            ("a/b", "a__slash__b"),
            ("namespace", "__namespace__"),
        ];
        for (name, want) in cases {
            assert_eq!(escape(name), want);
        }
    }
}
