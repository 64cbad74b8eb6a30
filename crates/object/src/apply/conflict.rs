//! Apply conflicts between field managers, in upstream's words.

use super::managed::{Entry, Managed, Operation};
use super::set::Set;
use crate::status::Status;
use std::fmt::Write;

/// A manager, and those of its fields that an apply would change.
pub(super) struct Conflict {
    manager: String,
    pub fields: Set,
}

/// Returns the managers that own fields of `touched`, with these fields.
pub(super) fn find(managed: &Managed, touched: &Set) -> Vec<Conflict> {
    let mut conflicts: Vec<Conflict> = managed
        .0
        .iter()
        .map(|entry| Conflict { manager: describe(entry), fields: entry.set.intersection(touched) })
        .filter(|conflict| !conflict.fields.is_empty())
        .collect();
    conflicts.sort_by(|a, b| a.manager.cmp(&b.manager));
    conflicts
}

/// Status 409 with one cause per field.
pub(super) fn status(conflicts: &[Conflict]) -> Status {
    let fields: Vec<(&str, String)> = conflicts
        .iter()
        .flat_map(|conflict| conflict.fields.paths().into_iter().map(|path| (conflict.manager.as_str(), path)))
        .collect();
    let mut message = match fields.as_slice() {
        [(manager, path)] => format!("Apply failed with 1 conflict: conflict with {manager}: {path}"),
        many => format!("Apply failed with {} conflicts:", many.len()),
    };
    if fields.len() != 1 {
        for (at, conflict) in conflicts.iter().enumerate() {
            let lead = if at == 0 { ' ' } else { '\n' };
            let _ = write!(message, "{lead}conflicts with {}:", conflict.manager);
            for path in conflict.fields.paths() {
                let _ = write!(message, "\n- {path}");
            }
        }
    }
    fields.iter().fold(Status::new(409, "Conflict", message), |status, (manager, path)| {
        status.with_cause("FieldManagerConflict", format!("conflict with {manager}"), path)
    })
}

/// Describes a manager: `"kubectl" with subresource "scale" using apps/v1`. The version is omitted for appliers,
/// because it does not identify them.
fn describe(entry: &Entry) -> String {
    let mut text = format!("{:?}", entry.manager());
    if !entry.subresource().is_empty() {
        let _ = write!(text, " with subresource {:?}", entry.subresource());
    }
    if entry.operation() == Operation::Update {
        let _ = write!(text, " using {}", entry.api_version());
    }
    text
}
