//! The three patch types that change a document directly. Server-side apply is in `crate::apply`.

use crate::schema::TypeRef;
use crate::status::Status;
use crate::{Map, Value};

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
    merge_into(&mut merged, patch);
    merged
}

fn merge_into(document: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        document.clone_from(patch);
        return;
    };
    if !document.is_object() {
        *document = Value::Object(Map::new());
    }
    let Value::Object(members) = document else { unreachable!("the document was made an object above") };
    for (name, change) in changes {
        if change.is_null() {
            members.remove(name);
        } else {
            merge_into(members.entry(name).or_insert(Value::Null), change);
        }
    }
}

/// Kubernetes' strategic merge: lists merge by key, with `$patch`, `$deleteFromPrimitiveList`, `$setElementOrder`, `$retainKeys`.
pub fn strategic(ty: &TypeRef, document: &Value, patch: &Value) -> Result<Value, Status> {
    strategic::apply(ty, document, patch)
}
