//! Compares JSON patches with a model of RFC 6902 and 6901: the result, and which patches are refused.
//!
//! The model shares no code with the server and follows the RFCs in the simplest way. Intended differences of the
//! server are marked in the model by name:
//!
//! - *null for what is missing*: as upstream, a missing `value` is null, and `test` treats a missing member as null.
//!
//! - *limits*: depth, number of operations and copied bytes. A patch refused for a limit must be near it.

use object::{Value, patch};
use serde_json::{Map, Number, Value as Json, json};
use std::collections::BTreeSet;

/// The server's limits, as in `object::patch::json`.
const DEPTH_MAX: usize = 120;
const OPERATIONS_MAX: usize = 10_000;
/// The server counts copied bytes approximately, at most five times the real number.
const COPIED_BYTES_CLOSE: usize = (3 << 20) / 5;

/// The result of a patch, and the values that count for the limits.
pub struct Patched {
    pub document: Result<Json, &'static str>,
    deepest: usize,
    copied_bytes: usize,
}

/// Compares the server's result with the model's, and describes it.
pub fn compare(document: &Value, change: &Value) -> String {
    let model = apply(&document.clone().into(), &change.clone().into());
    match (patch::json(document, change), &model.document) {
        (Ok(found), Ok(expected)) => {
            assert_eq!(found, Value::from(expected.clone()), "{document} patched by {change}");
            "patched".to_owned()
        }
        (Ok(found), Err(why)) => panic!("{document} patched by {change} must be refused ({why}), and is {found}"),
        (Err(status), expected) => {
            assert!(matches!(status.code, 400 | 413 | 422), "{} {}", status.code, status.message);
            let length = change.as_array().map_or(0, Vec::len);
            let is_near =
                model.deepest > DEPTH_MAX || model.copied_bytes > COPIED_BYTES_CLOSE || length > OPERATIONS_MAX;
            assert!(expected.is_err() || is_near, "{document} patched by {change}: {}", status.message);
            status.message
        }
    }
}

fn apply(document: &Json, change: &Json) -> Patched {
    let mut patched = Patched { document: Err("not a list"), deepest: 0, copied_bytes: 0 };
    let Json::Array(operations) = change else { return patched };
    let mut now = document.clone();
    for operation in operations {
        match step(now, operation, &mut patched.copied_bytes) {
            Ok(next) => now = next,
            Err(why) => {
                patched.document = Err(why);
                return patched;
            }
        }
        patched.deepest = patched.deepest.max(depth(&now));
    }
    patched.document = Ok(now);
    patched
}

type Step<T> = Result<T, &'static str>;

fn step(document: Json, operation: &Json, copied_bytes: &mut usize) -> Step<Json> {
    let Json::Object(members) = operation else { return Err("not an object") };
    let text = |member: &str| members.get(member).and_then(Json::as_str).ok_or("a required member is missing");
    let path = tokens(text("path")?)?;
    // null for what is missing
    let value = || members.get("value").cloned().unwrap_or(Json::Null);
    match text("op")? {
        "add" => put(document, &path, value(), true),
        "remove" => Ok(take(document, &path)?.0),
        "replace" => put(document, &path, value(), false),
        "move" => {
            let from = tokens(text("from")?)?;
            if from.len() < path.len() && path.starts_with(&from) {
                return Err("moved into itself");
            }
            let (rest, moved) = take(document, &from)?;
            put(rest, &path, moved, true)
        }
        "copy" => {
            let copied = find(&document, &tokens(text("from")?)?).ok_or("not found")?.clone();
            *copied_bytes += copied.to_string().len();
            put(document, &path, copied, true)
        }
        "test" => {
            // null for what is missing
            let found = find(&document, &path).unwrap_or(&Json::Null);
            if equal(found, &value()) { Ok(document) } else { Err("not equal") }
        }
        _ => Err("no such operation"),
    }
}

/// RFC 6901: a slash precedes every token; `~1` is a slash, `~0` a tilde, and any other tilde is invalid.
fn tokens(pointer: &str) -> Step<Vec<String>> {
    let Some(rest) = pointer.strip_prefix('/') else {
        return if pointer.is_empty() { Ok(Vec::new()) } else { Err("no leading slash") };
    };
    rest.split('/').map(unescaped).collect()
}

fn unescaped(token: &str) -> Step<String> {
    let (mut plain, mut rest) = (String::new(), token.chars());
    while let Some(character) = rest.next() {
        plain.push(match character {
            '~' => match rest.next() {
                Some('0') => '~',
                Some('1') => '/',
                _ => return Err("an invalid tilde"),
            },
            other => other,
        });
    }
    Ok(plain)
}

/// The list index of a token: digits without a leading zero.
fn index(token: &str) -> Option<usize> {
    let is_number = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && (token == "0" || !token.starts_with('0'))).then(|| token.parse().ok()).flatten()
}

fn find<'a>(document: &'a Json, path: &[String]) -> Option<&'a Json> {
    let Some((first, rest)) = path.split_first() else { return Some(document) };
    let inner = match document {
        Json::Object(members) => members.get(first),
        Json::Array(items) => items.get(index(first)?),
        _ => None,
    };
    find(inner?, rest)
}

/// Sets a value at a path. With `is_new` it is added, otherwise it must exist.
fn put(document: Json, path: &[String], value: Json, is_new: bool) -> Step<Json> {
    let Some((first, rest)) = path.split_first() else { return Ok(value) };
    let is_last = rest.is_empty();
    match document {
        Json::Object(mut members) => {
            let new = match members.remove(first) {
                Some(before) => put(before, rest, value, is_new)?,
                None if is_last && is_new => value,
                None => return Err("not found"),
            };
            members.insert(first.clone(), new);
            Ok(Json::Object(members))
        }
        Json::Array(mut items) if is_last && is_new => {
            let at = if first == "-" { items.len() } else { index(first).ok_or("not an index")? };
            if at > items.len() {
                return Err("beyond the end");
            }
            items.insert(at, value);
            Ok(Json::Array(items))
        }
        Json::Array(mut items) => {
            let at = index(first).filter(|at| *at < items.len()).ok_or("not found")?;
            items[at] = put(std::mem::take(&mut items[at]), rest, value, is_new)?;
            Ok(Json::Array(items))
        }
        _ => Err("not found"),
    }
}

/// Removes the value at a path. Returns the document without it, and the value. The whole document cannot be removed.
fn take(document: Json, path: &[String]) -> Step<(Json, Json)> {
    let (first, rest) = path.split_first().ok_or("the whole document")?;
    let is_last = rest.is_empty();
    match document {
        Json::Object(mut members) => {
            let before = members.remove(first).ok_or("not found")?;
            if is_last {
                return Ok((Json::Object(members), before));
            }
            let (left, taken) = take(before, rest)?;
            members.insert(first.clone(), left);
            Ok((Json::Object(members), taken))
        }
        Json::Array(mut items) => {
            let at = index(first).filter(|at| *at < items.len()).ok_or("not found")?;
            let before = items.remove(at);
            if is_last {
                return Ok((Json::Array(items), before));
            }
            let (left, taken) = take(before, rest)?;
            items.insert(at, left);
            Ok((Json::Array(items), taken))
        }
        _ => Err("not found"),
    }
}

/// RFC 6902, 4.6: numbers are equal by value, whatever their notation, and the order of members does not matter.
fn equal(one: &Json, other: &Json) -> bool {
    match (one, other) {
        (Json::Number(one), Json::Number(other)) => one == other || digits(one) == digits(other),
        (Json::Array(one), Json::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| equal(one, other))
        }
        (Json::Object(one), Json::Object(other)) => {
            let same = |(key, value): (&String, &Json)| other.get(key).is_some_and(|other| equal(value, other));
            one.len() == other.len() && one.iter().all(same)
        }
        _ => one == other,
    }
}

/// The number without a fraction if it is whole. Minus zero is zero.
fn digits(number: &Number) -> String {
    match number.as_f64().filter(|float| number.is_f64() && float.fract() == 0.0) {
        Some(float) => format!("{:.0}", float + 0.0),
        None => number.to_string(),
    }
}

fn depth(value: &Json) -> usize {
    match value {
        Json::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Json::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

const KEYS: [&str; 8] = ["a", "b", "", "-", "0", "1", "~", "/"];
/// Pointer tokens: the escaped `KEYS`, and tokens that match nothing.
const TOKENS: [&str; 16] =
    ["a", "b", "", "-", "0", "1", "~0", "~1", "2", "01", "+1", "-1", "~", "~01", "~~0", "18446744073709551616"];

/// Patches that are mostly meaningful: the input's bytes choose a document and operations on its members.
pub fn chosen(input: &[u8]) -> String {
    let mut choices = Choices(input.iter());
    let document = choices.value(3);
    let length = choices.below(6);
    let operations: Vec<Json> = (0..length).map(|_| choices.operation()).collect();
    let mut words = compare(&document.into(), &Json::from(operations.clone()).into());
    // Performed operations are part of the description, even if the outcome is the same.
    let done: BTreeSet<&str> = operations.iter().filter_map(|operation| operation["op"].as_str()).collect();
    words.extend(done);
    words
}

/// Reads choices from the input. At its end, every choice is the first one.
struct Choices<'a>(std::slice::Iter<'a, u8>);

impl Choices<'_> {
    fn below(&mut self, end: usize) -> usize {
        usize::from(self.0.next().copied().unwrap_or(0)) % end
    }

    fn value(&mut self, depth: usize) -> Json {
        match self.below(if depth == 0 { 8 } else { 16 }) {
            0 => json!(null),
            1 => json!(1),
            2 => json!(1.0),
            3 => json!("a"),
            4 => json!([]),
            5 => json!({}),
            6 => json!(-0.0),
            7 => json!(0),
            8..12 => (0..self.below(4)).map(|_| self.value(depth - 1)).collect(),
            _ => {
                let mut members = Map::new();
                for _ in 0..self.below(4) {
                    let key = KEYS[self.below(KEYS.len())];
                    members.insert(key.to_owned(), self.value(depth - 1));
                }
                Json::Object(members)
            }
        }
    }

    fn pointer(&mut self) -> String {
        let length = self.below(4);
        let mut pointer: String = (0..length).map(|_| format!("/{}", TOKENS[self.below(TOKENS.len())])).collect();
        if self.below(32) == 31 {
            pointer.insert(0, 'a');
        }
        pointer
    }

    fn operation(&mut self) -> Json {
        let op = ["add", "remove", "replace", "move", "copy", "test"][self.below(6)];
        let mut operation = json!({"op": op, "path": self.pointer()});
        // Sometimes adds an unneeded member, or omits a required one.
        let extra = self.below(16);
        if (extra == 1) != matches!(op, "move" | "copy") {
            operation["from"] = self.pointer().into();
        }
        if (extra == 2) != matches!(op, "add" | "replace" | "test") {
            operation["value"] = self.value(2);
        }
        operation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the appendix of RFC 6902, as a test of the model itself.
    #[test]
    fn the_model_passes_the_examples_of_the_rfc() {
        let cases = [
            (json!({"x": "p"}), json!([{"op": "add", "path": "/q", "value": "r"}]), json!({"q": "r", "x": "p"})),
            (
                json!({"x": ["p", "q"]}),
                json!([{"op": "add", "path": "/x/1", "value": "r"}]),
                json!({"x": ["p", "r", "q"]}),
            ),
            (json!({"q": "r", "x": "p"}), json!([{"op": "remove", "path": "/q"}]), json!({"x": "p"})),
            (json!({"x": ["p", "r", "q"]}), json!([{"op": "remove", "path": "/x/1"}]), json!({"x": ["p", "q"]})),
            (
                json!({"q": "r", "x": "p"}),
                json!([{"op": "replace", "path": "/q", "value": "s"}]),
                json!({"q": "s", "x": "p"}),
            ),
            (
                json!({"x": [1, 2, 3, 4]}),
                json!([{"op": "move", "from": "/x/1", "path": "/x/3"}]),
                json!({"x": [1, 3, 4, 2]}),
            ),
            (
                json!({"x": "p"}),
                json!([{"op": "add", "path": "/c", "value": {"d": {}}}]),
                json!({"x": "p", "c": {"d": {}}}),
            ),
            (
                json!({"/": 9, "~1": 10}),
                json!([{"op": "test", "path": "/~01", "value": 10}]),
                json!({"/": 9, "~1": 10}),
            ),
            (json!({"x": ["p"]}), json!([{"op": "add", "path": "/x/-", "value": [1, 2]}]), json!({"x": ["p", [1, 2]]})),
            (
                json!({"a": 1}),
                json!([{"op": "test", "path": "/a", "value": 1.0}, {"op": "replace", "path": "", "value": 2}]),
                json!(2),
            ),
        ];
        for (document, change, expected) in cases {
            assert_eq!(apply(&document, &change).document, Ok(expected), "{change}");
        }
        let refused = [
            (json!({"x": "p"}), json!([{"op": "add", "path": "/q/t", "value": "r"}])),
            (json!({"q": "r"}), json!([{"op": "test", "path": "/q", "value": "p"}])),
            (json!({"/": 9, "~1": 10}), json!([{"op": "test", "path": "/~01", "value": "10"}])),
            (json!({"a": {"b": 1}}), json!([{"op": "move", "from": "/a", "path": "/a/b"}])),
            (json!([1]), json!([{"op": "remove", "path": "/-"}])),
            (json!([1]), json!([{"op": "add", "path": "/2", "value": 2}])),
            (json!([1, 2]), json!([{"op": "replace", "path": "/01", "value": 2}])),
        ];
        for (document, change) in refused {
            assert!(apply(&document, &change).document.is_err(), "{change}");
        }
    }
}
