//! Subresources as pure functions on objects. The verbs read, store and retry.

pub mod binding;
pub mod eviction;
pub mod scale;

use object::access::{Access, name, uid};
use object::{Status, Value};

/// A uid or resourceVersion in the `metadata` of the sent object is a precondition.
fn check_preconditions(group: &str, plural: &str, object: &Value, sent: &Value) -> Result<(), Status> {
    let (wanted, has) = (uid(sent), uid(object));
    if !wanted.is_empty() && wanted != has {
        let why = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {has}");
        return Err(Status::conflict(group, plural, name(object), why));
    }
    let version = sent.text(&["metadata", "resourceVersion"]);
    if !version.is_empty() && version != "0" && version != object.text(&["metadata", "resourceVersion"]) {
        return Err(Status::modified(group, plural, name(object)));
    }
    Ok(())
}
