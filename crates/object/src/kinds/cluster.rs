//! Kinds: cluster.

use crate::kind::Kind;

pub fn rows() -> Vec<Kind> {
    Vec::new()
}
