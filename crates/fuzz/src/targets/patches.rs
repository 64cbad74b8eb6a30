//! Patches: a document on the first line, a patch on the second. Merge patches are compared with the crate
//! `json_patch`, JSON patches with a model.

use super::json_patch;
use object::schema::builtin_type;
use object::{Value, patch};

pub fn read(input: &[u8]) -> String {
    let mut lines = input.splitn(2, |byte| *byte == b'\n');
    let mut next = || serde_json::from_slice::<Value>(lines.next().unwrap_or_default()).ok();
    let (Some(document), Some(change)) = (next(), next()) else { return "not JSON".to_owned() };

    let merged = patch::merge(&document, &change);
    let mut theirs = serde_json::Value::from(document.clone());
    ::json_patch::merge(&mut theirs, &change.clone().into());
    assert_eq!(merged, Value::from(theirs), "the merge of {document} and {change}");

    let mut words = json_patch::compare(&document, &change);
    for name in ["io.k8s.api.core.v1.Pod", "io.k8s.api.apps.v1.StatefulSet"] {
        let ty = builtin_type(name);
        match patch::strategic(&ty, &document, &change) {
            Ok(patched) => {
                assert!(patched.is_object(), "{document} and {change} make {patched}");
                let text = patched.to_string();
                // A document may contain a member of this name as data, which a patch must keep.
                assert!(
                    !text.contains("\"$patch\"") || document.to_string().contains("\"$patch\""),
                    "directives are not kept: {document} and {change} make {patched}"
                );
                words.push_str("; merged by keys");
            }
            Err(status) => {
                assert!((400..500).contains(&status.code), "{} {}", status.code, status.message);
                words.push_str(&status.message);
            }
        }
    }
    words
}
