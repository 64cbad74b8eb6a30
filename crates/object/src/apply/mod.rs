//! Server-side apply: field ownership, stored in `metadata.managedFields`.
//!
//! [`track`] records every write except apply. [`apply`] merges a configuration and resolves ownership. Versions of a
//! kind are only labels here: sets are not converted between them.

use crate::Value;
use crate::access::Access;
use crate::schema::TypeRef;
use crate::status::Status;
use managed::{Managed, Operation};
use set::Set;

mod compare;
mod conflict;
mod element;
mod extract;
mod last_applied;
mod managed;
mod merge;
mod set;
mod shape;
#[cfg(test)]
mod tests;

/// The manager that owns all fields of an object that had no managed fields when it was first applied to.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The writer of a request: the field manager's name, the subresource (`""` = the object itself), the time, and the
/// version.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    pub manager: &'a str,
    pub subresource: &'a str,
    pub api_version: &'a str,
    pub now: jiff::Timestamp,
}

/// Merges an applied configuration into the live object (`None` = create). Returns the result with its managed fields.
/// Conflicts with other managers give status 409 with one cause per field, unless `force` is set.
pub fn apply(
    ty: &TypeRef,
    live: Option<&Value>,
    applied: &Value,
    writer: &Writer,
    force: bool,
) -> Result<Value, Status> {
    let scope = Scope::of(writer);
    let mut set = read_config(ty, applied, writer)?;
    compare::strip(ty, &mut set, scope);

    let mut managed = known_managers(ty, live, writer);
    let last = managed.take(writer, Operation::Apply);
    let nothing = Value::Object(crate::Map::new());
    let mut merged = merge::merge(ty, live.unwrap_or(&nothing), applied);
    merged.cut(&["metadata", "managedFields"]);
    if !last.set.is_empty() {
        let mut owned = set.clone();
        managed.0.iter().for_each(|entry| owned.unite(entry.set.clone()));
        merge::prune(ty, &mut merged, &last.set, &owned);
    }

    let changes = compare::diff(ty, live, &merged, scope);
    let conflicts = conflict::find(&managed, &changes.touched);
    if !force && !conflicts.is_empty() {
        check_conflicts(ty, live, conflicts, writer)?;
    }
    managed.disown(&changes);
    managed.put_applied(last, set, writer, !changes.is_empty());
    managed.sort();

    if writer.manager == last_applied::KUBECTL {
        last_applied::refresh(&mut merged, applied);
    }
    // If no manager is left, write an empty list: if the field were absent, the update would carry over the old
    // entries.
    if !managed.is_empty() || live.is_some_and(|live| live.has(&["metadata", "managedFields"])) {
        merged.put(&["metadata", "managedFields"], managed.write());
    }
    Ok(merged)
}

/// Records in `new`'s managed fields what a write other than apply changed since `old` (`None` = create).
pub fn track(ty: &TypeRef, old: Option<&Value>, new: &mut Value, writer: &Writer) {
    if !new.as_object().is_some_and(|members| members.get("metadata").is_none_or(Value::is_object)) {
        return;
    }
    let sent = new.cut(&["metadata", "managedFields"]);
    let stored = old.and_then(|old| old.at(&["metadata", "managedFields"]));
    let mut managed = Managed::base(sent, stored, writer.subresource);
    // An object whose managed fields were cleared is not tracked until the next apply.
    if managed.is_empty() && old.is_some() {
        return;
    }
    let changes = compare::diff(ty, old, new, Scope::of(writer));
    if !changes.is_empty() {
        managed.update(changes, writer);
    }
    if !managed.is_empty() {
        new.put(&["metadata", "managedFields"], managed.write());
    }
}

/// The parts of an object that a write can own.
#[derive(Clone, Copy, PartialEq)]
enum Scope {
    /// The object itself. Its status is reset in each write, so the writer does not own it.
    Object,
    /// `/status`: only metadata and status.
    Status,
    /// The whole object.
    Whole,
}

impl Scope {
    fn of(writer: &Writer) -> Scope {
        match writer.subresource {
            "" => Scope::Object,
            "status" => Scope::Status,
            _ => Scope::Whole,
        }
    }

    /// Whether the writer can own this top-level field.
    fn manages(self, root: shape::Ty, name: &str) -> bool {
        match (self, name) {
            (_, "apiVersion" | "kind") => false,
            (_, "metadata") | (Scope::Whole, _) => true,
            (Scope::Object, "status") => !root.declares(name),
            (Scope::Object, _) => true,
            (Scope::Status, name) => name == "status",
        }
    }
}

/// Checks that an applied configuration has only fields that the type declares. The error names all unknown fields.
pub fn check(ty: &TypeRef, applied: &Value, writer: &Writer) -> Result<(), Status> {
    read_config(ty, applied, writer).map(drop)
}

/// Checks an applied configuration and returns its paths.
fn read_config(ty: &TypeRef, applied: &Value, writer: &Writer) -> Result<Set, Status> {
    if !applied.is_object() {
        return Err(Status::bad_request("an applied configuration must be an object"));
    }
    let version = applied.text(&["apiVersion"]);
    if version != writer.api_version {
        return Err(Status::bad_request(format!(
            "Incorrect version specified in apply patch. Specified patch version: {version}, expected: {}",
            writer.api_version
        )));
    }
    if applied.has(&["metadata", "managedFields"]) {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    extract::extract(ty, applied).map_err(|errors| {
        let group_version = if version.contains('/') { version.to_owned() } else { format!("/{version}") };
        let what = format!(
            "{}/{}; {group_version}, Kind={}",
            crate::access::namespace(applied),
            crate::access::name(applied),
            applied.text(&["kind"])
        );
        let errors = match errors.as_slice() {
            [one] => one.clone(),
            many => format!("errors:\n  {}", many.join("\n  ")),
        };
        Status::bad_request(format!("failed to create typed patch object ({what}): {errors}"))
    })
}

/// Returns the live object's managers. If there are none, all fields belong to `before-first-apply`.
fn known_managers(ty: &TypeRef, live: Option<&Value>, writer: &Writer) -> Managed {
    let Some(live) = live else { return Managed::default() };
    let mut managed = Managed::stored(live.at(&["metadata", "managedFields"]));
    if managed.is_empty() {
        let all = compare::diff(ty, None, live, Scope::of(writer));
        managed.update(all, &Writer { manager: BEFORE_FIRST_APPLY, ..*writer });
    }
    managed
}

/// Returns the conflicts as an error, except those of kubectl's migration: fields that it applied client-side and that
/// were not changed since.
fn check_conflicts(
    ty: &TypeRef,
    live: Option<&Value>,
    mut conflicts: Vec<conflict::Conflict>,
    writer: &Writer,
) -> Result<(), Status> {
    let own = if writer.manager == last_applied::KUBECTL {
        live.and_then(|live| last_applied::unchanged(ty, live))
    } else {
        None
    };
    if let Some(own) = own {
        for conflict in &mut conflicts {
            conflict.fields.subtract(&own);
        }
        conflicts.retain(|conflict| !conflict.fields.is_empty());
    }
    if conflicts.is_empty() { Ok(()) } else { Err(conflict::status(&conflicts)) }
}
