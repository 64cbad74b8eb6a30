//! Decodes protobuf request bodies, which Go clients send, into the same value that the JSON body would give.
//!
//! Only decoding: responses are JSON, which every such client accepts. The types are those of the built-in schema;
//! their field numbers are in `build/protobuf-fields.txt`.

use crate::decode::{DEPTH_MAX, refuse_object};
use crate::kind::Kinds;
use crate::schema::{self, TypeId};
use crate::status::Status;
use crate::{Map, Value};
use std::sync::Arc;

mod message;
mod numbers;
mod wire;

#[cfg(test)]
mod encode;
#[cfg(test)]
mod tests;

pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Prefix of every protobuf body.
const MAGIC: &[u8] = b"k8s\0";

/// Decodes a body. `type_of` returns the built-in type for the body's `apiVersion` and `kind`, or why it cannot be
/// decoded.
pub fn decode(bytes: &[u8], type_of: impl FnOnce(&str, &str) -> Result<TypeId, Status>) -> Result<Value, Status> {
    let envelope = envelope(bytes)
        .map_err(|why| Status::bad_request(format!("the body of the request is not an object in protobuf: {why}")))?;
    let ty = type_of(&envelope.api_version, &envelope.kind)?;
    let mut members = Map::new();
    let read = message::read(ty, envelope.raw, DEPTH_MAX, &mut members);
    // Set after decoding, so that fields of these names in the message cannot override them.
    members.insert("apiVersion", envelope.api_version.into());
    members.insert("kind", envelope.kind.into());
    let object = Value::Object(members);
    match read {
        Ok(()) => Ok(object),
        Err(why) => Err(refuse_object(&object, &why)),
    }
}

/// Returns the built-in type of a body: a served kind, or the body of a subresource or a DELETE.
pub fn type_of(kinds: &Kinds, api_version: &str, kind: &str) -> Option<TypeId> {
    let arena = schema::builtin();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    if let Some(row) = kinds.by_kind(group, version, kind) {
        // Custom resources have no protobuf form, because their fields have no numbers.
        return row.schema.as_ref().filter(|found| Arc::ptr_eq(&found.schema, arena)).map(|found| found.ty);
    }
    arena.named(match (api_version, kind) {
        ("v1", "Binding") => "io.k8s.api.core.v1.Binding",
        ("policy/v1", "Eviction") => "io.k8s.api.policy.v1.Eviction",
        ("authentication.k8s.io/v1", "TokenRequest") => "io.k8s.api.authentication.v1.TokenRequest",
        ("autoscaling/v1", "Scale") => "io.k8s.api.autoscaling.v1.Scale",
        // Clients send DeleteOptions in the group version of the object that they delete.
        (_, "DeleteOptions") => "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
        _ => return None,
    })
}

/// `runtime.Unknown`: an object's bytes and its type.
struct Envelope<'a> {
    api_version: String,
    kind: String,
    raw: &'a [u8],
}

fn envelope(bytes: &[u8]) -> Result<Envelope<'_>, String> {
    let body = bytes.strip_prefix(MAGIC).ok_or("it does not begin with the bytes that mark one")?;
    let mut found = Envelope { api_version: String::new(), kind: String::new(), raw: &[] };
    for field in wire::Fields(body) {
        let (number, wire) = field?;
        match number {
            1 => {
                for field in wire::Fields(wire.bytes("typeMeta")?) {
                    match field? {
                        (1, wire) => found.api_version = wire.text("apiVersion")?.to_owned(),
                        (2, wire) => found.kind = wire.text("kind")?.to_owned(),
                        _ => {}
                    }
                }
            }
            2 => found.raw = wire.bytes("raw")?,
            3 if !wire.bytes("contentEncoding")?.is_empty() => return Err("its content is encoded".to_owned()),
            4 if !matches!(wire.text("contentType")?, "" | MEDIA_TYPE) => {
                return Err("its content is of another type".to_owned());
            }
            _ => {}
        }
    }
    if found.kind.is_empty() {
        return Err("Object 'Kind' is missing".to_owned());
    }
    Ok(found)
}
