//! Elements of field paths, as `fieldsV1` writes them: `f:name`, `k:{"name":"x"}`, `v:"x"`, `i:0`.

use crate::schema::{ListType, Schema, Type, TypeId};
use crate::value::{Key, Text};
use crate::{Map, Value};
use std::fmt::Write;

/// Returns the element of a member.
pub(super) fn member(name: &str) -> Key {
    let element: Text = ["f:", name].into_iter().collect();
    element.as_str().into()
}

/// Returns the element of a list item, or why the item has none.
pub(super) fn item(schema: &Schema, list: &ListType, item_type: TypeId, item: &Value) -> Result<String, &'static str> {
    match list {
        ListType::Set | ListType::Atomic => match item {
            Value::Null => Err("associative list without keys has an element that's an explicit null"),
            Value::Object(_) => Err("associative list without keys has an element that's a map type"),
            Value::Array(_) => Err("not supported: associative list with lists as elements"),
            scalar => Ok(value(scalar)),
        },
        ListType::Map { keys } => {
            let members = match item {
                Value::Object(members) => members,
                Value::Null => return Err("associative list with keys may not have a null element"),
                _ => return Err("associative list with keys may not have non-map elements"),
            };
            let mut found: Vec<(&str, &Value)> = keys
                .iter()
                .filter_map(|key| Some((key.as_str(), key_value(schema, item_type, members, key)?)))
                .collect();
            if found.is_empty() {
                return Err("associative list with keys has an element that omits all key fields \
                            (and doesn't have default values for any key fields)");
            }
            found.sort_unstable_by_key(|(key, _)| *key);
            Ok(keyed(found))
        }
    }
}

/// Returns the item's value of a key field, or the field's default.
fn key_value<'a>(schema: &'a Schema, item: TypeId, members: &'a Map, key: &str) -> Option<&'a Value> {
    let given = members.get(key).filter(|value| !value.is_null());
    given.or_else(|| match schema.get(item) {
        Type::Struct(item) => item.fields.get(key)?.default.as_ref(),
        _ => None,
    })
}

/// Writes a `k:` element. `keys` must be sorted.
fn keyed<'a>(keys: impl IntoIterator<Item = (&'a str, &'a Value)>) -> String {
    let mut element = String::from("k:{");
    for (at, (key, value)) in keys.into_iter().enumerate() {
        if at > 0 {
            element.push(',');
        }
        write_json(&mut element, key);
        element.push(':');
        write_json(&mut element, value);
    }
    element.push('}');
    element
}

fn value(scalar: &Value) -> String {
    let mut element = String::from("v:");
    write_json(&mut element, scalar);
    element
}

fn write_json<T: serde::Serialize + ?Sized>(out: &mut String, value: &T) {
    // Serialization cannot fail: these values contain only strings, numbers, lists and maps.
    if let Ok(text) = serde_json::to_string(value) {
        out.push_str(&text);
    }
}

/// Converts an element that a client sent to canonical form. Returns `None` for an unknown kind of element, which
/// callers skip.
pub(super) fn canonical(element: &str) -> Result<Option<String>, String> {
    let bad = |why: &dyn std::fmt::Display| format!("{element:?} is not a path element: {why}");
    let Some((kind, rest)) = element.split_once(':') else { return Err(bad(&"it has no kind")) };
    match kind {
        "f" => Ok(Some(element.to_owned())),
        "k" => {
            let keys: Map = serde_json::from_str(rest).map_err(|error| bad(&error))?;
            Ok(Some(keyed(keys.iter().map(|(key, value)| (key.as_str(), value)))))
        }
        "v" => {
            let scalar: Value = serde_json::from_str(rest).map_err(|error| bad(&error))?;
            Ok(Some(value(&scalar)))
        }
        "i" => {
            let index: i64 = rest.parse().map_err(|error| bad(&error))?;
            Ok(Some(format!("i:{index}")))
        }
        _ => Ok(None),
    }
}

/// Appends an element to a path in upstream's display form: `.spec.containers[name="x"].image`.
pub(super) fn show(element: &str, path: &mut String) {
    // Writing to a String cannot fail.
    let _ = match element.split_once(':') {
        Some(("f", name)) => write!(path, ".{name}"),
        Some(("k", keys)) => {
            let keys: Map = serde_json::from_str(keys).unwrap_or_default();
            let keys: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
            write!(path, "[{}]", keys.join(","))
        }
        Some(("v", value)) => write!(path, "[={value}]"),
        Some(("i", index)) => write!(path, "[{index}]"),
        _ => write!(path, ".{element}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_have_a_canonical_form_and_a_display_form() {
        for (element, form, shown) in [
            ("f:spec", "f:spec", ".spec"),
            ("f:a:b", "f:a:b", ".a:b"),
            (
                r#"k:{ "protocol":"TCP", "port": 80}"#,
                r#"k:{"port":80,"protocol":"TCP"}"#,
                r#"[port=80,protocol="TCP"]"#,
            ),
            (r#"v: "x""#, r#"v:"x""#, r#"[="x"]"#),
            ("i:07", "i:7", "[7]"),
        ] {
            assert_eq!(canonical(element).unwrap().as_deref(), Some(form));
            let mut path = String::new();
            show(form, &mut path);
            assert_eq!(path, shown);
        }
        assert_eq!(canonical("z:future"), Ok(None));
        for bad in ["spec", "k:[]", "k:{", "v:", "i:x"] {
            assert!(canonical(bad).is_err(), "{bad}");
        }
    }
}
