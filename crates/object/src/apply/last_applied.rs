//! kubectl's `last-applied-configuration` annotation: migration from client-side to server-side apply without
//! conflicts.

use super::Scope;
use super::compare::diff;
use super::extract::extract;
use super::set::Set;
use crate::Value;
use crate::access::Access;
use crate::schema::TypeRef;

/// Only `kubectl apply --server-side` with its default manager name migrates. Other manager names do not.
pub(super) const KUBECTL: &str = "kubectl";
const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
const ANNOTATIONS_BYTES_MAX: usize = 256 << 10;

/// Returns the fields that kubectl applied client-side and that were not changed since. Server-side apply may take them
/// over.
pub(super) fn unchanged(ty: &TypeRef, live: &Value) -> Option<Set> {
    let text = live.at(&["metadata", "annotations", ANNOTATION])?.as_str()?;
    let applied: Value = serde_json::from_str(text).ok()?;
    let mut set = extract(ty, &applied).ok()?;
    let since = diff(ty, Some(&applied), live, Scope::Whole);
    set.subtract(&since.touched);
    set.subtract(&since.removed);
    Some(set)
}

/// Updates the annotation if the object has one, so that client-side apply still works afterwards.
pub(super) fn refresh(object: &mut Value, config: &Value) {
    if !object.has(&["metadata", "annotations", ANNOTATION]) {
        return;
    }
    let mut config = config.clone();
    config.cut(&["metadata", "annotations", ANNOTATION]);
    config.cut(&["metadata", "managedFields"]);
    let text = format!("{config}\n");
    let annotations = object.members(&["metadata", "annotations"]);
    let others: usize = annotations
        .iter()
        .filter(|(key, _)| *key != ANNOTATION)
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum();
    if others + ANNOTATION.len() + text.len() > ANNOTATIONS_BYTES_MAX {
        object.cut(&["metadata", "annotations", ANNOTATION]);
    } else {
        object.put(&["metadata", "annotations", ANNOTATION], text);
    }
}
