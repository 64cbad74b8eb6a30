//! Kinds: volumes.

use crate::kind::Kind;

pub fn rows() -> Vec<Kind> {
    Vec::new()
}

// Placeholders until the volume kinds land: just what claim templates need.

use crate::access::Access;
use crate::field::{Errors, Path};
use serde_json::Value;

pub fn default_claim_spec(spec: &mut Value) {
    spec.default_to(&["volumeMode"], "Filesystem");
}

pub fn validate_claim_spec(spec: &Value, path: &Path, errors: &mut Errors) {
    if spec.items(&["accessModes"]).is_empty() {
        errors.required(&path.child("accessModes"), "at least 1 access mode is required");
    }
    if !spec.has(&["resources", "requests", "storage"]) {
        errors.required(&path.child("resources").key("storage"), "");
    }
}
