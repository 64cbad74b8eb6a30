//! Decoding: from JSON or YAML bytes to objects. Detects duplicate fields and conforms objects to a schema.

use crate::Value;
use crate::schema::TypeRef;
use crate::status::Status;

mod conform;
mod duplicates;
mod order;
mod read;
mod scalar;
mod strict;
mod trail;

pub(crate) use scalar::instant;
pub use strict::{Duplicates, FieldValidation, Strict, refuse_object, refuse_patch};

/// Maximum nesting depth of objects and lists. Stored objects are embedded in lists and watch events, and most JSON
/// readers stop at 128 levels, so nothing deeper than this may be stored.
pub const DEPTH_MAX: usize = 100;

/// A decoded document, and the fields that it sets more than once. The last value of a duplicate field counts.
#[derive(Debug)]
pub struct Decoded {
    pub value: Value,
    pub duplicates: Duplicates,
}

/// Decodes a JSON object.
pub fn json(bytes: &[u8]) -> Result<Decoded, Status> {
    read::only_objects(read::json(bytes)?)
}

/// Decodes any JSON document, such as the list of a JSON patch.
pub fn document(bytes: &[u8]) -> Result<Decoded, Status> {
    read::json(bytes)
}

/// Decodes a YAML object (one document). Scalars follow YAML 1.1, as in Kubernetes' tools: `yes` is true, `0644` is
/// octal.
pub fn yaml(bytes: &[u8]) -> Result<Decoded, Status> {
    // Most YAML that programs send is JSON, which decodes faster. Documents with duplicate fields go to the YAML
    // decoder, which reports them in YAML's words.
    if bytes.trim_ascii_start().starts_with(b"{")
        && let Ok(decoded) = read::json(bytes)
        && decoded.duplicates.is_empty()
    {
        return Ok(decoded);
    }
    read::only_objects(read::yaml(bytes)?)
}

/// Makes `value` an object of type `ty`: removes unknown fields and returns their paths, drops nulls, checks types
/// (status 400), and converts quantities and times to canonical form.
///
/// For a CustomResourceDefinition (`structural`), only the metadata is handled this way. Elsewhere unknown fields and
/// disallowed nulls are removed, and wrong types are left for validation.
pub fn conform(ty: &TypeRef, value: &mut Value) -> Result<Vec<String>, Status> {
    conform_changed(ty, value, None)
}

/// Same for a value that was derived from a conformed object: parts that it still shares with `old` are skipped.
pub fn conform_changed(ty: &TypeRef, value: &mut Value, old: Option<&Value>) -> Result<Vec<String>, Status> {
    conform::conform(ty, value, old).map_err(|sentence| strict::refuse_object(value, &sentence))
}

#[cfg(test)]
mod tests;
