//! The three patches that change a document directly; server-side apply has a room of its own.

use crate::schema::TypeRef;
use crate::status::Status;
use serde_json::Value;

mod json;
mod order;
#[cfg(test)]
mod properties;
mod strategic;

#[cfg(test)]
pub(crate) use properties::arbitrary_json;

/// RFC 6902.
pub fn json(document: &Value, patch: &Value) -> Result<Value, Status> {
    json::apply(document, patch)
}

/// RFC 7396.
pub fn merge(document: &Value, patch: &Value) -> Value {
    let mut merged = document.clone();
    json_patch::merge(&mut merged, patch);
    merged
}

/// Kubernetes' strategic merge: lists merge by key, with `$patch`, `$deleteFromPrimitiveList`, `$setElementOrder`, `$retainKeys`.
pub fn strategic(ty: &TypeRef, document: &Value, patch: &Value) -> Result<Value, Status> {
    strategic::apply(ty, document, patch)
}
