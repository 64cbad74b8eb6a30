//! From bytes to objects: JSON and YAML, duplicate fields noticed, then conformed to a schema.

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

/// How deep objects and lists may nest. Stored objects travel inside lists and watch events, and most JSON readers stop at 128
/// levels, so that nothing deeper than this may ever be stored.
pub const DEPTH_MAX: usize = 100;

/// A document as a value, and the fields that it sets more than once: the last one counts.
#[derive(Debug)]
pub struct Decoded {
    pub value: Value,
    pub duplicates: Duplicates,
}

/// Reads a JSON object.
pub fn json(bytes: &[u8]) -> Result<Decoded, Status> {
    read::only_objects(read::json(bytes)?)
}

/// Reads any JSON document, such as the list of a JSON patch.
pub fn document(bytes: &[u8]) -> Result<Decoded, Status> {
    read::json(bytes)
}

/// Reads a YAML object (one document), with the scalars of YAML 1.1 as Kubernetes tools read them: `yes` is true, `0644` octal.
pub fn yaml(bytes: &[u8]) -> Result<Decoded, Status> {
    // Most YAML that programs send is JSON, which reads faster. The YAML reader reports duplicate fields in its own words.
    if bytes.trim_ascii_start().starts_with(b"{")
        && let Ok(decoded) = read::json(bytes)
        && decoded.duplicates.is_empty()
    {
        return Ok(decoded);
    }
    read::only_objects(read::yaml(bytes)?)
}

/// Makes `value` an object of type `ty`: removes unknown fields and says their paths, drops nulls, checks types (400), writes
/// quantities and times in canonical form.
///
/// In the arena of a CustomResourceDefinition (`structural`) only the metadata is treated so; elsewhere unknown fields and nulls
/// that are not allowed go, and wrong types stay for validation to refuse.
pub fn conform(ty: &TypeRef, value: &mut Value) -> Result<Vec<String>, Status> {
    conform_changed(ty, value, None)
}

/// The same for what was made of an object that conforms: what it still shares with it is not looked at again.
pub fn conform_changed(ty: &TypeRef, value: &mut Value, old: Option<&Value>) -> Result<Vec<String>, Status> {
    conform::conform(ty, value, old).map_err(|sentence| strict::refuse_object(value, &sentence))
}

#[cfg(test)]
mod tests;
