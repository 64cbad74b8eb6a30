//! Comparison by meaning.

use super::{Schema, TypeId};
use serde_json::Value;

pub(super) fn same(_schema: &Schema, _ty: TypeId, a: Option<&Value>, b: Option<&Value>) -> bool {
    a == b
}
