//! The lifecycle of a definition: its names are accepted, it is established, and at deletion its objects are deleted
//! first.

use crate::access::{Access, name, terminating};
use crate::write::stamp;
use crate::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// Finalizer that keeps a deleted definition until its objects are deleted.
pub const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Writes a definition's status: the names it gets, given the `others` that exist, and whether it is served. Called in
/// the write of the definition itself, so that the definition can be used as soon as that write is answered. Call it
/// again for the other definitions of the group when one is deleted or changes its names. Returns whether the status
/// changed.
pub fn establish(definition: &mut Value, others: &[Value], now: jiff::Timestamp) -> bool {
    let before = definition.at(&["status"]).cloned();
    store_version(definition);
    let taken = TakenNames::of(definition, others);
    let accepted = definition.at(&["status", "acceptedNames"]).cloned().unwrap_or_else(|| json!({}));
    let (names, conflict) = accept(definition, &accepted, &taken);
    definition.put(&["status", "acceptedNames"], names);
    match &conflict {
        Some((reason, message)) => set_condition(definition, "NamesAccepted", "False", reason, message, now),
        None => set_condition(definition, "NamesAccepted", "True", "NoConflicts", "no conflicts found", now),
    }
    // An established definition stays established, because objects of it may exist.
    if !condition_is(definition, "Established", "True") {
        match conflict {
            Some(_) => {
                set_condition(definition, "Established", "False", "NotAccepted", "not all names are accepted", now);
            }
            None => {
                let message = "the initial names have been accepted";
                set_condition(definition, "Established", "True", "InitialNamesAccepted", message, now);
            }
        }
    }
    definition.at(&["status"]) != before.as_ref()
}

/// Marks a definition as Terminating, before the general deletion code runs. It then stays until its objects are
/// deleted.
pub fn mark_deleted(definition: &mut Value, now: jiff::Timestamp) {
    if terminating(definition) {
        return;
    }
    let mut finalizers = definition.items(&["metadata", "finalizers"]).to_vec();
    if !finalizers.iter().any(|held| held == CLEANUP_FINALIZER) {
        finalizers.push(json!(CLEANUP_FINALIZER));
        definition.put(&["metadata", "finalizers"], finalizers);
    }
    let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    set_condition(definition, "Terminating", "True", "InstanceDeletionPending", message, now);
}

/// The next step in the deletion of a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleanup {
    /// The definition is not being deleted, or has no cleanup finalizer.
    Nothing,
    /// Delete all objects that are not terminating yet, then check again.
    DeleteObjects,
    /// No object is left: write the result of `finish`, which allows the deletion.
    Finish,
}

/// Decides the next step from the number of objects that are left.
pub fn cleanup(definition: &Value, objects_left: usize) -> Cleanup {
    let waits = definition.items(&["metadata", "finalizers"]).iter().any(|held| held == CLEANUP_FINALIZER);
    match (terminating(definition) && waits, objects_left) {
        (false, _) => Cleanup::Nothing,
        (true, 0) => Cleanup::Finish,
        (true, _) => Cleanup::DeleteObjects,
    }
}

/// Removes the cleanup finalizer after all objects were deleted.
pub fn finish(definition: &mut Value, now: jiff::Timestamp) {
    let mut finalizers = definition.items(&["metadata", "finalizers"]).to_vec();
    finalizers.retain(|held| held != CLEANUP_FINALIZER);
    definition.put(&["metadata", "finalizers"], finalizers);
    let message = "removed all instances";
    set_condition(definition, "Terminating", "False", "InstanceDeletionCompleted", message, now);
}

/// Whether objects of this definition can exist. There are none before it is established. If its group and plural are
/// those of a built-in kind, the objects there belong to the built-in kind, and must not be deleted with the
/// definition.
pub fn owns_objects(definition: &Value) -> bool {
    let (group, plural) = (definition.text(&["spec", "group"]), definition.text(&["spec", "names", "plural"]));
    condition_is(definition, "Established", "True") && !is_builtin(group, plural)
}

/// Whether a built-in kind stores objects under this group and plural.
pub fn is_builtin(group: &str, plural: &str) -> bool {
    static PLACES: LazyLock<BTreeSet<String>> =
        LazyLock::new(|| crate::kinds::all().iter().map(|kind| kind.storage.to_string()).collect());
    PLACES.contains(&format!("{group}/{plural}"))
}

/// Only the server decides which names are accepted and whether the definition is established, so a status write cannot
/// change these conditions.
pub fn keep_verdict(definition: &mut Value, old: &Value) {
    const VERDICT: [&str; 2] = ["NamesAccepted", "Established"];
    let is_verdict = |condition: &Value| VERDICT.contains(&condition.text(&["type"]));
    let mut conditions = definition.items(&["status", "conditions"]).to_vec();
    conditions.retain(|condition| !is_verdict(condition));
    conditions.extend(old.items(&["status", "conditions"]).iter().filter(|it| is_verdict(it)).cloned());
    definition.put(&["status", "conditions"], conditions);
    match old.at(&["status", "acceptedNames"]) {
        Some(names) => definition.put(&["status", "acceptedNames"], names.clone()),
        None => drop(definition.cut(&["status", "acceptedNames"])),
    }
}

/// While a definition is being deleted, objects cannot be created. Returns the message of the 405 response.
pub fn refuses_create(definition: &Value) -> Option<&'static str> {
    let refuses = terminating(definition) || condition_is(definition, "Terminating", "True");
    refuses.then_some("create not allowed while custom resource definition is terminating")
}

/// Adds the storage version to `status.storedVersions`, because objects may be stored in it.
pub fn store_version(definition: &mut Value) {
    let versions = definition.items(&["spec", "versions"]);
    let Some(storage) = versions.iter().find(|version| version.flag(&["storage"])) else { return };
    let storage = storage.text(&["name"]).to_owned();
    let mut stored = definition.items(&["status", "storedVersions"]).to_vec();
    if !stored.iter().any(|version| *version == storage) {
        stored.push(json!(storage));
        definition.put(&["status", "storedVersions"], stored);
    }
}

/// Whether a condition of the definition has this status.
pub fn condition_is(definition: &Value, kind: &str, status: &str) -> bool {
    let mut conditions = definition.items(&["status", "conditions"]).iter();
    conditions.any(|condition| condition.text(&["type"]) == kind && condition.text(&["status"]) == status)
}

/// Names of the other definitions of the group.
#[derive(Default)]
struct TakenNames {
    resources: BTreeSet<String>,
    kinds: BTreeSet<String>,
}

impl TakenNames {
    fn of(definition: &Value, others: &[Value]) -> TakenNames {
        let group = definition.text(&["spec", "group"]);
        let mut taken = TakenNames::default();
        if let Some(builtin) = builtin().get(group) {
            taken.resources.extend(builtin.resources.iter().cloned());
            taken.kinds.extend(builtin.kinds.iter().cloned());
        }
        for other in others {
            if other.text(&["spec", "group"]) != group || name(other) == name(definition) {
                continue;
            }
            let names = |path: &str| other.text(&["status", "acceptedNames", path]).to_owned();
            let short = other.items(&["status", "acceptedNames", "shortNames"]).iter();
            taken.resources.extend([names("plural"), names("singular")]);
            taken.resources.extend(short.filter_map(Value::as_str).map(str::to_owned));
            taken.kinds.extend([names("kind"), names("listKind")]);
        }
        taken.resources.remove("");
        taken.kinds.remove("");
        taken
    }
}

/// Names of the built-in kinds by group. They never change.
fn builtin() -> &'static BTreeMap<String, TakenNames> {
    static BUILTIN: LazyLock<BTreeMap<String, TakenNames>> = LazyLock::new(|| {
        let mut groups: BTreeMap<String, TakenNames> = BTreeMap::new();
        for kind in crate::kinds::all() {
            let taken = groups.entry(kind.group.to_string()).or_default();
            taken.resources.extend([kind.plural.to_string(), kind.singular.to_string()]);
            taken.resources.extend(kind.short_names.iter().map(ToString::to_string));
            taken.kinds.extend([kind.kind.to_string(), kind.list_kind()]);
        }
        groups
    });
    &BUILTIN
}

/// Returns the accepted names, and the conflict for the names that are not accepted. Only the last conflict is
/// reported.
fn accept(definition: &Value, accepted: &Value, taken: &TakenNames) -> (Value, Option<(&'static str, String)>) {
    let wanted = definition.at(&["spec", "names"]).cloned().unwrap_or_else(|| json!({}));
    let mut names = accepted.clone();
    let mut conflict = None;
    let in_use = |name: &str| format!("{name:?} is already in use");
    let fields = [
        ("plural", "PluralConflict", &taken.resources),
        ("singular", "SingularConflict", &taken.resources),
        ("shortNames", "ShortNamesConflict", &taken.resources),
        ("kind", "KindConflict", &taken.kinds),
        ("listKind", "ListKindConflict", &taken.kinds),
    ];
    for (field, reason, taken) in fields {
        if field == "shortNames" {
            let used: Vec<String> = wanted
                .items(&[field])
                .iter()
                .filter_map(Value::as_str)
                .filter(|name| taken.contains(*name) && !accepted.items(&[field]).iter().any(|own| own == name))
                .map(in_use)
                .collect();
            match used.as_slice() {
                [] => copy(&wanted, &mut names, field),
                [one] => conflict = Some((reason, one.clone())),
                several => conflict = Some((reason, format!("[{}]", several.join(", ")))),
            }
        } else if wanted.text(&[field]) != accepted.text(&[field]) && taken.contains(wanted.text(&[field])) {
            conflict = Some((reason, in_use(wanted.text(&[field]))));
        } else {
            copy(&wanted, &mut names, field);
        }
    }
    copy(&wanted, &mut names, "categories");
    // Clients expect both fields, even if nothing was accepted.
    for field in ["plural", "kind"] {
        if !names.has(&[field]) {
            names.put(&[field], "");
        }
    }
    (names, conflict)
}

fn copy(from: &Value, to: &mut Value, field: &str) {
    match from.at(&[field]) {
        Some(value) => to.put(&[field], value.clone()),
        None => drop(to.cut(&[field])),
    }
}

/// Sets a condition. The transition time changes only with the status.
fn set_condition(definition: &mut Value, kind: &str, status: &str, reason: &str, message: &str, now: jiff::Timestamp) {
    let mut conditions = definition.items(&["status", "conditions"]).to_vec();
    let mut condition = json!({
        "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": stamp(now),
    });
    match conditions.iter_mut().find(|known| known.text(&["type"]) == kind) {
        Some(known) => {
            if known.text(&["status"]) == status && known.has(&["lastTransitionTime"]) {
                condition["lastTransitionTime"] = known["lastTransitionTime"].clone();
            }
            *known = condition;
        }
        None => conditions.push(condition),
    }
    definition.put(&["status", "conditions"], conditions);
}
