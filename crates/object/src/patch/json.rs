//! JSON patch (RFC 6902), with an API server's limits: number of operations, copied bytes, and depth of the result.

use crate::status::Status;
use crate::{Map, Value};
use json_patch::jsonptr::PointerBuf;
use json_patch::{
    AddOperation, CopyOperation, MoveOperation, PatchErrorKind, PatchOperation, RemoveOperation, ReplaceOperation,
    TestOperation,
};
use serde_json::Value as Json;

const OPERATIONS_MAX: usize = 10_000;
/// Maximum number of bytes that all `copy` operations of one patch add together. Without a limit, forty copies could
/// double a document to a terabyte.
const COPIED_BYTES_MAX: usize = 3 << 20;
/// Maximum number of list items that all operations of one patch may move, or visit to compute depths. Inserting an
/// item at the front moves all later items. 10,000 insertions in front of their own items need half of this limit.
const STEPS_MAX: usize = 100_000_000;
/// Maximum depth of a document. JSON with more than 127 levels cannot be read back.
const DEPTH_MAX: usize = 120;

pub(super) fn apply(document: &Value, patch: &Value) -> Result<Value, Status> {
    let Value::Array(operations) = patch else {
        return Err(Status::bad_request("a JSON patch must be a list of operations"));
    };
    if operations.len() > OPERATIONS_MAX {
        return Err(Status::too_large(format!(
            "Request entity too large: The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {}",
            operations.len()
        )));
    }
    let operations: Vec<&Map> = operations.iter().enumerate().map(members).collect::<Result<_, _>>()?;
    let document = Json::from(document.clone());
    let mut run = Run { depth_bound: depth(&document), document, copied_bytes: 0, steps: 0 };
    for (index, operation) in operations.into_iter().enumerate() {
        run.step(operation).map_err(|why| unprocessable(index, operation, &why))?;
    }
    Ok(run.document.into())
}

fn members((index, operation): (usize, &Value)) -> Result<&Map, Status> {
    operation
        .as_object()
        .ok_or_else(|| Status::bad_request(format!("operation {index} of the JSON patch must be an object")))
}

fn unprocessable(index: usize, operation: &Map, why: &str) -> Status {
    let word = |key: &str| operation.get(key).and_then(Value::as_str).unwrap_or("").to_owned();
    let message =
        format!("JSON patch operation {index} ({:?} at {:?}) does not apply: {why}", word("op"), word("path"));
    Status::new(422, "Invalid", message)
}

/// A patch that is being applied.
struct Run {
    /// In the form that the library needs.
    document: Json,
    copied_bytes: usize,
    steps: usize,
    /// An upper bound for the document's depth.
    depth_bound: usize,
}

impl Run {
    fn step(&mut self, operation: &Map) -> Result<(), String> {
        let operation = read(operation)?;
        match &operation {
            // The library treats 1 and 1.0 as different, so `test` is implemented here.
            PatchOperation::Test(TestOperation { path, value }) => return self.test(path, value),
            PatchOperation::Add(AddOperation { path, value }) => {
                self.shift(path)?;
                self.deepen(path.count() + depth(value))?;
            }
            PatchOperation::Replace(ReplaceOperation { path, value }) => {
                self.deepen(path.count() + depth(value))?;
            }
            PatchOperation::Copy(CopyOperation { from, path }) => {
                self.shift(path)?;
                let source = from.resolve(&self.document).map_err(|_| "the path \"from\" does not exist".to_owned())?;
                self.copied_bytes += size(source);
                if self.copied_bytes > COPIED_BYTES_MAX {
                    return Err(format!("the copies of one patch are limited to {COPIED_BYTES_MAX} bytes"));
                }
                self.deepen(path.count() + depth(source))?;
            }
            PatchOperation::Move(MoveOperation { from, path }) => {
                self.shift(from)?;
                self.shift(path)?;
                let estimate = (path.count() + self.depth_bound).saturating_sub(from.count());
                if estimate <= DEPTH_MAX {
                    self.deepen(estimate)?;
                } else {
                    // The bound grows with each move. When it becomes too high, compute the real depth.
                    self.spend(size(&self.document))?;
                    self.depth_bound = depth(&self.document);
                    let moved =
                        from.resolve(&self.document).map_err(|_| "the path \"from\" does not exist".to_owned())?;
                    self.deepen(path.count() + depth(moved))?;
                }
            }
            PatchOperation::Remove(RemoveOperation { path }) => self.shift(path)?,
        }
        json_patch::patch_unsafe(&mut self.document, std::slice::from_ref(&operation))
            .map_err(|error| explain(&error.kind).to_owned())
    }

    /// As upstream: an absent value equals null.
    fn test(&self, path: &PointerBuf, value: &Json) -> Result<(), String> {
        match path.resolve(&self.document) {
            Ok(found) if are_equal(found, value) => Ok(()),
            Ok(_) => Err("test failed".to_owned()),
            Err(_) if value.is_null() => Ok(()),
            Err(_) => Err("doc is missing path".to_owned()),
        }
    }

    /// Counts the items that move when an item is inserted at or removed from this place of a list.
    fn shift(&mut self, path: &PointerBuf) -> Result<(), String> {
        let items = match path.split_back() {
            // Appending moves no items.
            Some((_, last)) if last.encoded() == "-" => 0,
            Some((list, _)) => list.resolve(&self.document).ok().and_then(Json::as_array).map_or(0, Vec::len),
            None => 0,
        };
        self.spend(items)
    }

    fn spend(&mut self, steps: usize) -> Result<(), String> {
        self.steps += steps;
        if self.steps > STEPS_MAX {
            return Err(format!("one patch may move at most {STEPS_MAX} items of lists"));
        }
        Ok(())
    }

    /// Refuses an operation that would make the document too deep.
    fn deepen(&mut self, depth: usize) -> Result<(), String> {
        if depth > DEPTH_MAX {
            return Err(format!("the result would be nested deeper than {DEPTH_MAX} levels"));
        }
        self.depth_bound = self.depth_bound.max(depth);
        Ok(())
    }
}

/// Parses one operation. An absent value is null, as upstream.
fn read(operation: &Map) -> Result<PatchOperation, String> {
    let path = pointer(operation, "path")?;
    let value = || operation.get("value").cloned().unwrap_or(Value::Null).into();
    Ok(match operation.get("op").and_then(Value::as_str) {
        Some("add") => PatchOperation::Add(AddOperation { path, value: value() }),
        Some("remove") => PatchOperation::Remove(RemoveOperation { path }),
        Some("replace") => PatchOperation::Replace(ReplaceOperation { path, value: value() }),
        Some("move") => PatchOperation::Move(MoveOperation { from: pointer(operation, "from")?, path }),
        Some("copy") => PatchOperation::Copy(CopyOperation { from: pointer(operation, "from")?, path }),
        Some("test") => PatchOperation::Test(TestOperation { path, value: value() }),
        Some(other) => return Err(format!("Unexpected kind: {other}")),
        None => return Err("it has no \"op\"".to_owned()),
    })
}

fn pointer(operation: &Map, field: &str) -> Result<PointerBuf, String> {
    let text = operation.get(field).and_then(Value::as_str).ok_or_else(|| format!("it has no {field:?}"))?;
    PointerBuf::parse(text).map_err(|_| format!("{text:?} is not a JSON pointer"))
}

fn explain(kind: &PatchErrorKind) -> &'static str {
    match kind {
        PatchErrorKind::InvalidFromPointer => "the path \"from\" does not exist",
        PatchErrorKind::CannotMoveInsideItself => "a value cannot move inside itself",
        _ => "doc is missing path",
    }
}

/// Whether two values are equal for `test`. Numbers are compared by value, not by their text (RFC 6902, section 4.6).
fn are_equal(one: &Json, other: &Json) -> bool {
    match (one, other) {
        (Json::Array(one), Json::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| are_equal(one, other))
        }
        (Json::Object(one), Json::Object(other)) => {
            let is_there = |(key, value)| other.get(key).is_some_and(|other| are_equal(value, other));
            one.len() == other.len() && one.iter().all(is_there)
        }
        (Json::Number(one), Json::Number(other)) if one != other => {
            whole(one).is_some_and(|number| whole(other) == Some(number))
        }
        (one, other) => one == other,
    }
}

/// Returns a number without a fraction as an integer, if it fits.
fn whole(number: &serde_json::Number) -> Option<i128> {
    let from_float = || number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 1e30).map(|it| it as i128);
    number.as_i128().or_else(from_float)
}

/// Nesting depth; 0 for a scalar.
fn depth(value: &Json) -> usize {
    match value {
        Json::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Json::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Approximate size of the JSON text in bytes.
fn size(value: &Json) -> usize {
    match value {
        Json::Array(items) => 2 + items.iter().map(|item| 1 + size(item)).sum::<usize>(),
        Json::Object(members) => 2 + members.iter().map(|(key, value)| 4 + key.len() + size(value)).sum::<usize>(),
        Json::String(text) => 2 + text.len(),
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    fn run(document: Value, patch: Value) -> Result<Value, (u16, String)> {
        apply(&document, &patch).map_err(|status| (status.code, status.message))
    }

    #[test]
    fn applies_every_operation() {
        let document = json!({"a": {"b": [1, 2]}, "c": "x", "e/f": 1});
        let patch = json!([
            {"op": "test", "path": "/a/b/0", "value": 1},
            {"op": "test", "path": "/absent", "value": null},
            {"op": "add", "path": "/a/b/-", "value": 3},
            {"op": "add", "path": "/a/b/0", "value": 0},
            {"op": "replace", "path": "/c", "value": "y"},
            {"op": "copy", "from": "/c", "path": "/d"},
            {"op": "move", "from": "/d", "path": "/g"},
            {"op": "remove", "path": "/e~1f"},
        ]);
        assert_eq!(run(document, patch).unwrap(), json!({"a": {"b": [0, 1, 2, 3]}, "c": "y", "g": "y"}));
    }

    #[test]
    fn errors_name_the_operation_and_the_reason() {
        let cases = [
            (json!([{"op": "test", "path": "/a", "value": 2}]), "test failed"),
            (json!([{"op": "test", "path": "/b", "value": 2}]), "missing path"),
            (json!([{"op": "remove", "path": "/b"}]), "missing path"),
            (json!([{"op": "replace", "path": "/b/c", "value": 1}]), "missing path"),
            (json!([{"op": "add", "path": "/a/c", "value": 1}]), "missing path"),
            (json!([{"op": "add", "path": "b", "value": 1}]), "is not a JSON pointer"),
            (json!([{"op": "copy", "from": "/b", "path": "/c"}]), "the path \"from\" does not exist"),
            (json!([{"op": "move", "path": "/c"}]), "it has no \"from\""),
            (json!([{"op": "frob", "path": "/c"}]), "Unexpected kind: frob"),
            (json!([{"path": "/c"}]), "it has no \"op\""),
            (json!([{"op": "move", "from": "/l", "path": "/l/0"}]), "inside itself"),
        ];
        for (patch, words) in cases {
            let (code, message) = run(json!({"a": 1, "l": [1]}), patch.clone()).unwrap_err();
            assert_eq!(code, 422, "{patch}");
            assert!(message.contains(words), "{patch}: {message}");
        }
        let (_, message) = run(json!({}), json!([{"op": "remove", "path": "/spec"}])).unwrap_err();
        assert_eq!(message, "JSON patch operation 0 (\"remove\" at \"/spec\") does not apply: doc is missing path");
    }

    /// Regression test for a finding of `fuzz json-patch`.
    #[test]
    fn numbers_test_equal_by_value() {
        let equal = [("1", "1.0"), ("1.0", "1"), ("0", "-0.0"), ("[{\"b\":1e2}]", "[{\"b\":100}]"), ("0.5", "5e-1")];
        let different = [
            ("1", "1.5"),
            ("1", "\"1\""),
            ("0", "false"),
            ("[1]", "[1,1]"),
            ("{\"b\":1}", "{\"b\":1.0,\"c\":1}"),
            // Equal as floats, but not as numbers.
            ("9007199254740993", "9007199254740992.0"),
            ("18446744073709551615", "18446744073709551616.0"),
            ("1e300", "1e299"),
        ];
        for (cases, expected) in [(&equal[..], true), (&different[..], false)] {
            for (held, tested) in cases {
                let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
                let patch = json!([{"op": "test", "path": "/a", "value": read(tested)}]);
                assert_eq!(run(json!({"a": read(held)}), patch).is_ok(), expected, "{held} and {tested}");
            }
        }
    }

    #[test]
    fn malformed_patches_are_bad_requests_and_long_ones_too_large() {
        assert_eq!(run(json!({}), json!({"a": 1})).unwrap_err().0, 400);
        assert_eq!(run(json!({}), json!(["x"])).unwrap_err().0, 400);
        let many = Value::Array(vec![json!({"op": "add", "path": "/a", "value": 1}); OPERATIONS_MAX + 1]);
        let (code, message) = run(json!({}), many).unwrap_err();
        assert_eq!(code, 413);
        assert!(message.contains("The allowed maximum operations in a JSON patch is 10000, got 10001"), "{message}");
    }

    #[test]
    fn copies_are_limited_in_size() {
        let doubling = Value::Array(vec![json!({"op": "copy", "from": "/a", "path": "/a/-"}); 60]);
        let (code, message) = run(json!({"a": ["0123456789"]}), doubling).unwrap_err();
        assert_eq!(code, 422);
        assert!(message.contains("limited to 3145728 bytes"), "{message}");
    }

    #[test]
    fn moved_list_items_are_limited() {
        let long = Value::Array(vec![json!(0); 1_000_000]);
        let cases = [
            json!({"op": "add", "path": "/x/0", "value": 1}),
            json!({"op": "remove", "path": "/x/0"}),
            json!({"op": "copy", "from": "/x/1", "path": "/x/0"}),
            json!({"op": "move", "from": "/x/1", "path": "/x/0"}),
        ];
        for case in cases {
            let moves = if case["op"] == "move" { 50 } else { 100 };
            let (code, message) = run(json!({"x": long}), Value::Array(vec![case.clone(); 200])).unwrap_err();
            assert_eq!(code, 422, "{case}");
            let at: usize = message.split_whitespace().nth(3).unwrap().parse().unwrap();
            assert!(at.abs_diff(moves) <= 1, "{case}: {message}");
            assert!(message.ends_with("one patch may move at most 100000000 items of lists"), "{message}");
        }
        // The maximum number of operations, each inserting in front of the others, stays within the limit. So does
        // appending to a long list.
        let in_front = Value::Array(vec![json!({"op": "add", "path": "/x/0", "value": 1}); OPERATIONS_MAX]);
        let done = run(json!({"x": []}), in_front).unwrap();
        assert_eq!(done["x"].as_array().unwrap().len(), OPERATIONS_MAX);
        let behind = Value::Array(vec![json!({"op": "add", "path": "/x/-", "value": 1}); OPERATIONS_MAX]);
        let done = run(json!({"x": long}), behind).unwrap();
        assert_eq!(done["x"].as_array().unwrap().len(), 1_000_000 + OPERATIONS_MAX);
    }

    /// Each move into a deep document needs its depth.
    #[test]
    fn computing_depths_counts_towards_the_limit() {
        let mut deep = json!({});
        for _ in 0..110 {
            deep = json!({"a": deep});
        }
        let document = json!({"deep": deep, "x": 0, "wide": "-".repeat(1 << 20)});
        let place = format!("/deep{}/x", "/a".repeat(30));
        let mut swings = Vec::new();
        for _ in 0..500 {
            swings.push(json!({"op": "move", "from": "/x", "path": place}));
            swings.push(json!({"op": "move", "from": place, "path": "/x"}));
        }
        let (code, message) = run(document, Value::Array(swings)).unwrap_err();
        assert_eq!(code, 422);
        assert!(message.contains("one patch may move"), "{message}");
    }

    #[test]
    fn nesting_is_limited_and_repeated_moves_are_allowed() {
        let mut path = String::new();
        let mut deep = Vec::new();
        for _ in 0..200 {
            path.push_str("/a");
            deep.push(json!({"op": "add", "path": path, "value": {}}));
        }
        let (code, message) = run(json!({}), Value::Array(deep)).unwrap_err();
        assert_eq!(code, 422);
        assert!(message.contains("nested deeper"), "{message}");

        let mut swings = Vec::new();
        for _ in 0..500 {
            swings.push(json!({"op": "move", "from": "/x", "path": "/a/b/c/x"}));
            swings.push(json!({"op": "move", "from": "/a/b/c/x", "path": "/x"}));
        }
        let document = json!({"x": {"y": 1}, "a": {"b": {"c": {}}}});
        assert_eq!(run(document.clone(), Value::Array(swings)).unwrap(), document);
    }
}
