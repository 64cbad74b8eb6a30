//! Server-side apply: who owns which field, kept in `metadata.managedFields`.

use crate::schema::TypeRef;
use crate::status::Status;
use serde_json::Value;

/// Who writes: the field manager's name, through which subresource (`""` = the object itself), when, in which version.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    pub manager: &'a str,
    pub subresource: &'a str,
    pub api_version: &'a str,
    pub now: jiff::Timestamp,
}

/// Merges an applied configuration into the live object (`None` = create) and returns the result with its managed fields.
/// Conflicts with other managers are a 409 with one cause for each field, unless `force`.
pub fn apply(
    _ty: &TypeRef,
    _live: Option<&Value>,
    applied: &Value,
    _writer: &Writer,
    _force: bool,
) -> Result<Value, Status> {
    Ok(applied.clone())
}

/// Records in `new`'s managed fields what `writer` changed since `old` (`None` = create) by anything but apply.
pub fn track(_ty: &TypeRef, _old: Option<&Value>, _new: &mut Value, _writer: &Writer) {}
