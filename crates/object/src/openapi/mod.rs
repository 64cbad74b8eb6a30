//! OpenAPI documents of the served kinds, for `kubectl explain`, client-side validation and client-side apply.
//!
//! Documents are large and built on demand. Callers cache them by [`fingerprint`] until the kinds change.

use crate::kind::{Kind, Kinds};
use crate::schema;
use crate::{Map, Value, json};
use std::collections::BTreeSet;

mod operations;
mod proto;
mod schemas;
mod v2;
mod v3;

pub use proto::encode as v2_protobuf;

/// Media type with which clients request [`v2_protobuf`]. The response has another name, because `@` is not valid in a
/// media type.
pub const V2_PROTOBUF_ASKED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
pub const V2_PROTOBUF_TYPE: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// The title of all documents.
const TITLE: &str = "Kubernetes";

/// Returns the document at `/openapi/v2`, for all groups.
pub fn v2(kinds: &Kinds, version: &str) -> Value {
    let rows: Vec<&Kind> = kinds.iter().map(AsRef::as_ref).collect();
    v2::document(&rows, &schema::definitions(), version)
}

/// Returns the document of one group version, at `/openapi/v3/apis/<group>/<version>`, or `/openapi/v3/api/v1` for the
/// core group. Returns `None` if nothing is served there.
pub fn v3(kinds: &Kinds, group: &str, group_version: &str, version: &str) -> Option<Value> {
    let rows = rows_of(kinds, group, group_version);
    (!rows.is_empty()).then(|| v3::document(&rows, &schema::definitions(), version))
}

/// Returns the index at `/openapi/v3`. Clients cache a document while the hash in its URL stays the same.
pub fn v3_index(kinds: &Kinds) -> Value {
    let groups: BTreeSet<(&str, &str)> = kinds.iter().map(|kind| (&*kind.group, &*kind.version)).collect();
    let mut paths = Map::new();
    for (group, version) in groups {
        let path = if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
        let hash = fingerprint(kinds, Some((group, version)));
        paths.insert(path.clone(), json!({ "serverRelativeURL": format!("/openapi/v3/{path}?hash={hash}") }));
    }
    json!({ "paths": paths })
}

/// Returns a hash that changes when the document of this group version changes (`None`: the v2 document). It is
/// computed without building the document.
pub fn fingerprint(kinds: &Kinds, group_version: Option<(&str, &str)>) -> String {
    let mut hash = Fingerprint::default();
    hash.add(env!("CARGO_PKG_VERSION"));
    hash.add(&schema::definitions_hash().to_string());
    for kind in kinds.iter() {
        if group_version.is_none_or(|wanted| wanted == (&*kind.group, &*kind.version)) {
            hash.add_kind(kind);
        }
    }
    format!("{:016X}{:016X}", hash.a, hash.b)
}

fn rows_of<'a>(kinds: &'a Kinds, group: &str, version: &str) -> Vec<&'a Kind> {
    kinds.iter().map(AsRef::as_ref).filter(|kind: &&Kind| kind.group == group && kind.version == version).collect()
}

/// Two FNV-1a hashes with different seeds. They identify versions of documents; they are not for security.
struct Fingerprint {
    a: u64,
    b: u64,
}

impl Default for Fingerprint {
    fn default() -> Fingerprint {
        Fingerprint { a: 0xcbf2_9ce4_8422_2325, b: 0x9e37_79b9_7f4a_7c15 }
    }
}

impl Fingerprint {
    fn add(&mut self, text: &str) {
        // The zero byte separates the texts, so that "ab","c" and "a","bc" have different hashes.
        for byte in text.bytes().chain([0]) {
            self.a = (self.a ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            self.b = (self.b ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3).rotate_left(5);
        }
    }

    fn add_kind(&mut self, kind: &Kind) {
        for text in [&kind.group, &kind.version, &kind.kind, &kind.plural] {
            self.add(text);
        }
        self.add(&format!("{}{}{:?}", kind.namespaced, kind.stored, kind.subresources));
        if let Some(schema) = &kind.openapi {
            self.add(&schema.to_string());
        }
    }
}

#[cfg(test)]
mod tests;
