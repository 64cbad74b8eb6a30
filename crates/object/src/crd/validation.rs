//! Value validation of custom resources, with upstream's messages.
//!
//! Ratcheting: on update, a value that did not change is not validated again, so that a stricter schema does not make
//! existing objects impossible to update.

use super::formats;
use super::node::{Additional, Checks, List, Node, Ty};
use crate::access::Access;
use crate::field::{ErrorKind, Errors, Path};
use crate::value::Number;
use crate::{Map, Value, json};
use std::collections::HashSet;

/// Validates a whole object, or a part of one at `path`.
pub fn validate(node: &Node, value: &Value, old: Option<&Value>, path: &Path) -> Errors {
    let mut errors = Errors::default();
    check(node, value, old, path, &mut errors);
    unique(node, value, old, path, &mut errors);
    resources(node, value, path, &mut errors);
    errors
}

/// Validates a standalone value inside another object, such as a default in a definition: messages name the value's own
/// fields, and paths lead to the value.
pub fn validate_under(node: &Node, value: &Value, path: &Path) -> Errors {
    let mut errors = validate(node, value, None, &Path::default());
    for error in &mut errors.0 {
        error.path = match error.path.as_str() {
            "" | NOWHERE => path.clone(),
            inner => path.child(inner),
        };
    }
    errors
}

/// The path of errors about several alternatives, which belong to no field.
pub const NOWHERE: &str = "<nil>";

fn check(node: &Node, value: &Value, old: Option<&Value>, path: &Path, errors: &mut Errors) {
    let unchanged = old == Some(value);
    if !unchanged && !plain(node, value, path, errors) {
        return;
    }
    if !value.is_null() {
        logic(&node.checks, value, path, errors);
    }
    match value {
        Value::Array(items) => {
            if let Some(child) = &node.items {
                for (index, item) in items.iter().enumerate() {
                    let old = correlate(node, old, item);
                    check(child, item, old.or_else(|| unchanged.then_some(item)), &path.index(index), errors);
                }
            }
        }
        Value::Object(members) => {
            for (name, member) in members {
                if let Some(child) = node.properties.get(name.as_str()).or_else(|| node.additional.node()) {
                    let old = old.filter(|_| !node.map_atomic).and_then(|old| old.get(name));
                    check(child, member, old.or_else(|| unchanged.then_some(member)), &path.child(name), errors);
                }
            }
        }
        _ => {}
    }
}

/// Returns the old item that corresponds to this item. Only list maps can correlate items.
pub fn correlate<'a>(node: &Node, old: Option<&'a Value>, item: &Value) -> Option<&'a Value> {
    let List::Map(keys) = &node.list else { return None };
    let mut candidates = old?.as_array()?.iter();
    candidates.find(|old| keys.iter().all(|key| old.get(key) == item.get(key) && old.get(key).is_some()))
}

/// Checks the type and the validations of this value. Returns false if its type is wrong, so that callers skip further
/// checks.
fn plain(node: &Node, value: &Value, path: &Path, errors: &mut Errors) -> bool {
    if !has_type(node, value) {
        let wanted = if node.int_or_string { "integer,string" } else { node.ty.map_or("", Ty::name) };
        let got = type_name(value);
        let detail = format!("{path} in body must be of type {wanted}: {got:?}");
        errors.push(ErrorKind::TypeInvalid, path, Some(json!(got)), detail);
        return false;
    }
    let checks = &node.checks;
    match value {
        Value::String(text) => string(checks, text, path, errors),
        Value::Number(number) => numeric(node, number, path, errors),
        Value::Array(items) => array(checks, items, path, errors),
        Value::Object(members) => object(node, members, path, errors),
        Value::Null | Value::Bool(_) => {}
    }
    if !checks.one_of_values.is_empty() && !checks.one_of_values.iter().any(|allowed| same_json(allowed, value)) {
        let words: Vec<String> = checks
            .one_of_values
            .iter()
            .map(|allowed| allowed.as_str().map_or_else(|| allowed.to_string(), str::to_owned))
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        errors.not_supported(path, value.clone(), &words);
    }
    true
}

fn has_type(node: &Node, value: &Value) -> bool {
    if value.is_null() {
        return node.nullable || (node.ty.is_none() && !node.int_or_string);
    }
    if node.int_or_string {
        return value.is_string() || is_whole(value);
    }
    match node.ty {
        None => true,
        Some(Ty::Object) => value.is_object(),
        Some(Ty::Array) => value.is_array(),
        Some(Ty::String) => value.is_string(),
        Some(Ty::Integer) => is_whole(value),
        Some(Ty::Number) => value.is_number(),
        Some(Ty::Boolean) => value.is_boolean(),
    }
}

fn is_whole(value: &Value) -> bool {
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// JSON equality in which `1` and `1.0` are the same number.
fn same_json(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => compare(a, b).is_eq(),
        _ => a == b,
    }
}

fn string(checks: &Checks, text: &str, path: &Path, errors: &mut Errors) {
    if checks.length_max.is_some() || checks.length_min.is_some() {
        let length = text.chars().count() as u64;
        if let Some(max) = checks.length_max.filter(|max| length > *max) {
            errors.too_long(path, usize::try_from(max).unwrap_or(usize::MAX));
        }
        if let Some(min) = checks.length_min.filter(|min| length < *min) {
            errors.invalid(path, text, format!("{path} in body should be at least {min} chars long"));
        }
    }
    if let Some(pattern) = &checks.pattern
        && !pattern.matches(text)
    {
        errors.invalid(path, text, format!("{path} in body should match '{}'", pattern.text));
    }
    if !formats::is_valid(&checks.format, text) {
        let detail = format!("{path} in body must be of type {}: {text:?}", checks.format);
        errors.push(ErrorKind::TypeInvalid, path, Some(json!(text)), detail);
    }
}

fn numeric(node: &Node, number: &Number, path: &Path, errors: &mut Errors) {
    let checks = &node.checks;
    let mut fails = |words: String| {
        errors.invalid(path, Value::Number(number.clone()), format!("{path} in body should be {words}"));
    };
    if let Some(min) = &checks.minimum {
        let order = compare(number, min);
        if order.is_lt() || (checks.exclusive_minimum && order.is_eq()) {
            let words = if checks.exclusive_minimum { "greater than" } else { "greater than or equal to" };
            fails(format!("{words} {}", go_number(min)));
        }
    }
    if let Some(max) = &checks.maximum {
        let order = compare(number, max);
        if order.is_gt() || (checks.exclusive_maximum && order.is_eq()) {
            let words = if checks.exclusive_maximum { "less than" } else { "less than or equal to" };
            fails(format!("{words} {}", go_number(max)));
        }
    }
    if let Some(factor) = &checks.multiple_of
        && !is_multiple(number, factor)
    {
        fails(format!("a multiple of {}", go_number(factor)));
    }
    let fits = match checks.format.as_str() {
        "int32" => number.as_f64().is_some_and(|n| (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&n)),
        "int64" => number.is_i64() || number.as_f64().is_some_and(|n| n.abs() < 9.2e18),
        _ => true,
    };
    if node.ty == Some(Ty::Integer) && !fits {
        let detail = format!("Checked value must be of type integer with format {} in {path}", checks.format);
        errors.invalid(&Path::new(NOWHERE), "", detail);
    }
}

fn compare(a: &Number, b: &Number) -> std::cmp::Ordering {
    match (a.as_i64(), b.as_i64()) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => a.as_f64().unwrap_or(f64::NAN).total_cmp(&b.as_f64().unwrap_or(f64::NAN)),
    }
}

fn is_multiple(number: &Number, factor: &Number) -> bool {
    match (number.as_i64(), factor.as_i64()) {
        (Some(number), Some(factor)) => factor > 0 && number.checked_rem(factor) == Some(0),
        _ => {
            let ratio = number.as_f64().unwrap_or(f64::NAN) / factor.as_f64().unwrap_or(f64::NAN);
            (ratio - ratio.round()).abs() < 1e-9
        }
    }
}

/// Formats a bound as upstream's messages do: Go's shortest form, `1e+06` from a million on.
fn go_number(number: &Number) -> String {
    let number = number.as_f64().unwrap_or(f64::NAN);
    let magnitude = number.abs();
    if magnitude != 0.0 && !(1e-4..1e6).contains(&magnitude) {
        let text = format!("{number:e}");
        if let Some((mantissa, exponent)) = text.split_once('e') {
            let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |digits| ('-', digits));
            return format!("{mantissa}e{sign}{digits:0>2}");
        }
    }
    format!("{number}")
}

fn array(checks: &Checks, items: &[Value], path: &Path, errors: &mut Errors) {
    let count = items.len() as u64;
    if let Some(max) = checks.items_max.filter(|max| count > *max) {
        errors.too_many(path, items.len(), usize::try_from(max).unwrap_or(usize::MAX));
    }
    if let Some(min) = checks.items_min.filter(|min| count < *min) {
        errors.invalid(path, count, format!("{path} in body should have at least {min} items"));
    }
    if checks.unique_items && first_repeated(items).is_some() {
        errors.invalid(path, json!(items), format!("{path} in body shouldn't contain duplicates"));
    }
}

fn object(node: &Node, members: &Map, path: &Path, errors: &mut Errors) {
    let checks = &node.checks;
    let count = members.len() as u64;
    if let Some(max) = checks.properties_max.filter(|max| count > *max) {
        errors.too_many(path, members.len(), usize::try_from(max).unwrap_or(usize::MAX));
    }
    if let Some(min) = checks.properties_min.filter(|min| count < *min) {
        errors.invalid(path, count, format!("{path} in body should have at least {min} properties"));
    }
    for name in &checks.required {
        if !members.contains_key(name) {
            errors.required(&path.child(name), "");
        }
    }
    if matches!(node.additional, Additional::Never) {
        for name in members.keys().filter(|name| !node.properties.contains_key(name.as_str())) {
            errors.invalid(path, name.as_str(), format!("{} in body is a forbidden property", path.child(name)));
        }
    }
}

/// allOf, anyOf, oneOf and not. If all alternatives fail, the one with the fewest errors is reported.
fn logic(checks: &Checks, value: &Value, path: &Path, errors: &mut Errors) {
    let nowhere = Path::new(NOWHERE);
    let mut says = |detail: String| errors.invalid(&nowhere, "", format!("\"{path}\" must {detail}"));
    let verdicts = |branches: &[Node]| -> Vec<Errors> {
        branches
            .iter()
            .map(|branch| {
                let mut found = Errors::default();
                check(branch, value, None, path, &mut found);
                found
            })
            .collect()
    };
    let nearest = |verdicts: Vec<Errors>| verdicts.into_iter().min_by_key(Errors::count).unwrap_or_default();
    let mut reported = Errors::default();
    if !checks.any_of.is_empty() {
        let found = verdicts(&checks.any_of);
        if !found.iter().any(Errors::is_empty) {
            says("validate at least one schema (anyOf)".to_owned());
            reported.extend(nearest(found));
        }
    }
    if !checks.one_of.is_empty() {
        let found = verdicts(&checks.one_of);
        match found.iter().filter(|found| found.is_empty()).count() {
            1 => {}
            0 => {
                says("validate one and only one schema (oneOf). Found none valid".to_owned());
                reported.extend(nearest(found));
            }
            several => {
                says(format!("validate one and only one schema (oneOf). Found {several} valid alternatives"));
            }
        }
    }
    if !checks.all_of.is_empty() {
        let found = verdicts(&checks.all_of);
        let failed = found.iter().filter(|found| !found.is_empty()).count();
        if failed > 0 {
            let none = if failed == found.len() { ". None validated" } else { "" };
            says(format!("validate all the schemas (allOf){none}"));
            found.into_iter().for_each(|found| reported.extend(found));
        }
    }
    if let Some(not) = &checks.not {
        let mut found = Errors::default();
        check(not, value, None, path, &mut found);
        if found.is_empty() {
            says("not validate the schema (not)".to_owned());
        }
    }
    errors.extend(reported);
}

/// Checks that sets have no duplicate items, and list maps no duplicate keys.
fn unique(node: &Node, value: &Value, old: Option<&Value>, path: &Path, errors: &mut Errors) {
    if old == Some(value) {
        return;
    }
    match value {
        Value::Array(items) => {
            let repeated = match &node.list {
                List::Atomic => None,
                List::Set => first_repeated(items).map(|index| (index, items[index].clone())),
                List::Map(keys) => {
                    let identities: Vec<Value> = items.iter().map(|item| identity(item, keys)).collect();
                    first_repeated(&identities).map(|index| (index, identities[index].clone()))
                }
            };
            if let Some((index, value)) = repeated {
                errors.duplicate(&path.index(index), value);
            }
            if let Some(child) = &node.items {
                for (index, item) in items.iter().enumerate() {
                    unique(child, item, correlate(node, old, item), &path.index(index), errors);
                }
            }
        }
        Value::Object(members) => {
            for (name, member) in members {
                if let Some(child) = node.properties.get(name.as_str()).or_else(|| node.additional.node()) {
                    unique(child, member, old.and_then(|old| old.get(name)), &path.child(name), errors);
                }
            }
        }
        _ => {}
    }
}

fn identity(item: &Value, keys: &[String]) -> Value {
    let members = keys.iter().filter_map(|key| item.get(key).map(|value| (key.clone(), value.clone())));
    Value::Object(members.collect())
}

fn first_repeated(items: &[Value]) -> Option<usize> {
    let mut seen = HashSet::with_capacity(items.len());
    items.iter().position(|item| !seen.insert(item.to_string()))
}

/// Checks that embedded resources have apiVersion, kind and metadata.
fn resources(node: &Node, value: &Value, path: &Path, errors: &mut Errors) {
    match value {
        Value::Object(members) => {
            if node.embedded {
                for name in ["apiVersion", "kind"] {
                    if value.text(&[name]).is_empty() {
                        errors.required(&path.child(name), "must not be empty");
                    }
                }
            }
            for (name, member) in members {
                if let Some(child) = node.properties.get(name.as_str()).or_else(|| node.additional.node()) {
                    resources(child, member, &path.child(name), errors);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                if let Some(child) = &node.items {
                    resources(child, item, &path.index(index), errors);
                }
            }
        }
        _ => {}
    }
}
