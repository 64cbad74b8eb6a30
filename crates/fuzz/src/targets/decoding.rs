//! Decoders of objects.

use object::schema::builtin_type;
use object::{Kinds, Value, decode, protobuf, schema};
use std::sync::OnceLock;

static KINDS: OnceLock<Kinds> = OnceLock::new();

/// Accepts the same JSON as serde_json, except that our limit of depth is lower.
pub fn json(input: &[u8]) -> String {
    let ours = decode::json(input);
    let theirs = serde_json::from_slice::<serde_json::Value>(input).map(Value::from);
    match (&ours, &theirs) {
        (Ok(ours), Ok(theirs)) => assert_eq!(&ours.value, theirs),
        (Ok(ours), Err(error)) => panic!("{} is accepted, but serde_json says: {error}", ours.value),
        (Err(status), Ok(theirs)) => {
            assert!(!theirs.is_object() || is_deep(theirs), "{theirs} is refused: {}", status.message);
        }
        (Err(_), Err(_)) => {}
    }
    conformed(ours)
}

fn is_deep(value: &Value) -> bool {
    fn depth(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
            Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
            _ => 0,
        }
    }
    depth(value) >= decode::DEPTH_MAX
}

/// JSON parsed as YAML gives the same value.
pub fn yaml(input: &[u8]) -> String {
    let ours = decode::yaml(input);
    if let (Ok(yaml), Ok(json)) = (&ours, decode::json(input)) {
        assert_eq!(yaml.value, json.value);
    }
    conformed(ours)
}

/// Conforming a conformed object again changes nothing.
fn conformed(decoded: Result<decode::Decoded, object::Status>) -> String {
    let mut value = match decoded {
        Ok(decoded) => decoded.value,
        Err(status) => {
            assert!((400..500).contains(&status.code), "{} {}", status.code, status.message);
            return status.message;
        }
    };
    let mut words = String::new();
    for name in ["io.k8s.api.core.v1.Pod", "io.k8s.api.apps.v1.StatefulSet", "io.k8s.api.core.v1.PersistentVolume"] {
        let ty = builtin_type(name);
        let mut once = value.clone();
        match decode::conform(&ty, &mut once) {
            Ok(unknown) => {
                let mut twice = once.clone();
                let more = decode::conform(&ty, &mut twice).expect("it conforms");
                assert_eq!((&twice, more.len()), (&once, 0), "of {value}");
                words.push_str(&format!("{} unknown; ", unknown.len().min(3)));
                // Used by the following checks.
                value = once;
            }
            Err(status) => words.push_str(&status.message),
        }
    }
    words
}

/// Protobuf messages as Go clients send them. The decoded object conforms, or is refused with a reason.
pub fn protobuf(input: &[u8]) -> String {
    let kinds = KINDS.get_or_init(Kinds::builtin);
    let read = protobuf::decode(input, |api_version, kind| {
        protobuf::type_of(kinds, api_version, kind).ok_or_else(|| object::Status::bad_request("no such kind"))
    });
    match read {
        Err(status) => {
            assert!((400..500).contains(&status.code), "{} {}", status.code, status.message);
            status.message
        }
        Ok(object) => {
            let (api_version, kind) =
                (object["apiVersion"].as_str().unwrap_or(""), object["kind"].as_str().unwrap_or(""));
            let Some(ty) = protobuf::type_of(kinds, api_version, kind) else { return "read".to_owned() };
            let ty = schema::TypeRef { schema: schema::builtin().clone(), ty };
            let text = object.to_string();
            let mut read_back: Value = serde_json::from_str(&text).expect("what is stored can be read");
            match decode::conform(&ty, &mut read_back) {
                Ok(unknown) => {
                    assert!(unknown.is_empty(), "the message has fields that its kind does not have: {unknown:?}");
                    format!("a {kind}")
                }
                Err(status) => status.message,
            }
        }
    }
}
