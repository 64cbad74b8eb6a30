//! CustomResourceDefinitions: from a definition to a [`crate::Kind`] with schema, pruning, defaults, validation and columns.

use crate::kind::Kind;

/// The kinds that a definition adds, one for each served version.
pub fn kinds_of(_definition: &serde_json::Value) -> Vec<Kind> {
    Vec::new()
}

pub fn rows() -> Vec<Kind> {
    Vec::new()
}
