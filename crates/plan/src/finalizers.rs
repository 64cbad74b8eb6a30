//! Merge patches that change finalizers, with uid and resourceVersion as preconditions.

use object::access::{Access, uid};
use object::{Value, json};

pub fn has(object: &Value, finalizer: &str) -> bool {
    object.items(&["metadata", "finalizers"]).iter().any(|present| present == finalizer)
}

/// A merge patch with only the preconditions: this uid and this resourceVersion.
pub fn precondition(object: &Value) -> Value {
    let version = object.text(&["metadata", "resourceVersion"]);
    json!({"metadata": {"uid": uid(object), "resourceVersion": version}})
}

/// The merge patch that appends and removes these finalizers.
pub fn patch(object: &Value, add: &[&str], remove: &[&str]) -> Value {
    let mut finalizers = object.items(&["metadata", "finalizers"]).to_vec();
    finalizers.retain(|finalizer| !remove.iter().any(|removed| finalizer == removed));
    finalizers.extend(add.iter().map(|added| json!(added)));
    let mut patch = precondition(object);
    patch.put(&["metadata", "finalizers"], finalizers);
    patch
}
