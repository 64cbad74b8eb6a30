//! The three patch types that change a document directly. Server-side apply is in `crate::apply`.

use crate::access::Access;
use crate::schema::TypeRef;
use crate::status::Status;
use crate::value::Key;
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

/// More unknown fields of operations than this are not listed.
const UNKNOWN_MAX: usize = 100;

/// The paths of the unknown fields of a JSON patch's operations, such as `[0].foo`.
pub fn unknown_in_operations(patch: &Value) -> Vec<String> {
    let is_unknown = |key: &Key| !matches!(key.as_str(), "op" | "path" | "from" | "value");
    let operations = patch.items(&[]).iter().enumerate();
    let keys = operations.flat_map(|(index, operation)| operation.members(&[]).keys().map(move |key| (index, key)));
    let unknown = keys.filter(|(_, key)| is_unknown(key)).take(UNKNOWN_MAX);
    unknown.map(|(index, key)| crate::field::shown_place(&format_args!("[{index}].{key}"))).collect()
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
