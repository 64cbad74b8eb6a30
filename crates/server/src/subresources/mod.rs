//! What the subresources do to their parents: pure functions from objects to objects. Reading, storing and starting over when
//! somebody was faster is the verbs' business.

pub mod binding;
pub mod eviction;
pub mod scale;

use object::access::{Access, name, uid};
use object::{Status, Value};

/// A uid or resourceVersion in the `metadata` of what was sent is a precondition on the object.
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
