//! Finalizers: merge patches that change them, of exactly the object that was seen.

use object::access::{Access, uid};
use object::{Value, json};

pub fn has(object: &Value, finalizer: &str) -> bool {
    object.items(&["metadata", "finalizers"]).iter().any(|present| present == finalizer)
}

/// A merge patch that applies only to this version of this object, and changes nothing yet.
pub fn precondition(object: &Value) -> Value {
    let version = object.text(&["metadata", "resourceVersion"]);
    json!({"metadata": {"uid": uid(object), "resourceVersion": version}})
}

/// The merge patch that appends some finalizers and removes others.
pub fn patch(object: &Value, add: &[&str], remove: &[&str]) -> Value {
    let mut finalizers = object.items(&["metadata", "finalizers"]).to_vec();
    finalizers.retain(|finalizer| !remove.iter().any(|removed| finalizer == removed));
    finalizers.extend(add.iter().map(|added| json!(added)));
    let mut patch = precondition(object);
    patch.put(&["metadata", "finalizers"], finalizers);
    patch
}
