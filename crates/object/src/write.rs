//! What every write does to an object before its kind's own rules: identity, generation, and fields that are carried
//! over from the stored object.
//!
//! The server decodes and conforms the object, calls one of these functions, then the kind's `default` and `prepare_*`,
//! then `settle_generation`, and then validates. This module also decides what a DELETE does to an object.

use crate::access::{Access, terminating};
use crate::kind::Kind;
use crate::{Map, Value, json};

/// Metadata that only the system writes. It is carried over from the stored object, whatever the client sent.
const SYSTEM_METADATA: &[&str] = &[
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "generateName",
    "selfLink",
];

/// Formats a time as RFC 3339 with seconds, as in object metadata.
pub fn stamp(now: jiff::Timestamp) -> String {
    let seconds = jiff::Timestamp::from_second(now.as_second()).unwrap_or(now);
    seconds.to_string()
}

/// Formats a time with microseconds, as in a Lease.
pub fn precise_stamp(now: jiff::Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// Sets the identity of a new object. Its name is already set.
pub fn for_create(kind: &Kind, object: &mut Value, uid: String, now: jiff::Timestamp) {
    if kind.has_status() && !kind.rules.keeps_status_on_create() {
        object.cut(&["status"]);
    }
    let metadata = object.entry(&["metadata"]);
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion", "generation"] {
        metadata.cut(&[field]);
    }
    metadata.put(&["uid"], uid);
    metadata.put(&["creationTimestamp"], stamp(now));
    if kind.rules.counts_generations() {
        metadata.put(&["generation"], 1);
    }
    drop_empty_metadata(metadata);
}

/// Carries over from `old` the fields that an update may not change.
pub fn for_update(kind: &Kind, new: &mut Value, old: &Value) {
    carry_metadata(new, old);
    if kind.has_status() {
        carry(new, old, "status");
    }
}

/// Carries over from `old` everything that a write to `/status` may not change: all except the status and the user's
/// metadata. For custom resources, metadata is carried over too.
pub fn for_status(kind: &Kind, new: &mut Value, old: &Value) {
    let status = new.cut(&["status"]);
    let mut metadata = new.cut(&["metadata"]).unwrap_or_else(|| json!({}));
    let others = old.members(&[]).iter().filter(|(member, _)| !matches!(member.as_str(), "metadata" | "status"));
    *new = Value::Object(others.map(|(member, value)| (member.clone(), value.clone())).collect());
    if kind.custom {
        let managed = metadata.cut(&["managedFields"]);
        metadata = old.at(&["metadata"]).cloned().unwrap_or_else(|| json!({}));
        if let Some(managed) = managed {
            metadata.put(&["managedFields"], managed);
        }
    }
    new.put(&["metadata"], metadata);
    match status {
        Some(status) => new.put(&["status"], status),
        None => drop(new.cut(&["status"])),
    }
    carry_metadata(new, old);
    // A status write may not change owner references.
    if let Some(members) = new.entry(&["metadata"]).as_object_mut() {
        match old.at(&["metadata", "ownerReferences"]) {
            Some(owners) => drop(members.insert("ownerReferences", owners.clone())),
            None => drop(members.remove("ownerReferences")),
        }
    }
}

fn carry_metadata(new: &mut Value, old: &Value) {
    let metadata = new.entry(&["metadata"]);
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    for field in SYSTEM_METADATA {
        match old.at(&["metadata", field]) {
            Some(value) => metadata.put(&[field], value.clone()),
            None => drop(metadata.cut(&[field])),
        }
    }
    metadata.put(&["name"], old.text(&["metadata", "name"]));
    if let Some(namespace) = old.at(&["metadata", "namespace"]) {
        metadata.put(&["namespace"], namespace.clone());
    }
    if !metadata.has(&["managedFields"])
        && let Some(managed) = old.at(&["metadata", "managedFields"])
    {
        metadata.put(&["managedFields"], managed.clone());
    }
    drop_empty_metadata(metadata);
}

/// Removes empty maps and lists from metadata: absent and empty are equal, and empty ones are not stored.
fn drop_empty_metadata(metadata: &mut Value) {
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        let empty = match metadata.at(&[field]) {
            Some(Value::Object(members)) => members.is_empty(),
            Some(Value::Array(items)) => items.is_empty(),
            _ => false,
        };
        if empty {
            metadata.cut(&[field]);
        }
    }
}

fn carry(new: &mut Value, old: &Value, field: &str) {
    match old.at(&[field]) {
        Some(value) => new.put(&[field], value.clone()),
        None => drop(new.cut(&[field])),
    }
}

/// Increments the generation if anything except metadata and status changed semantically.
pub fn settle_generation(kind: &Kind, new: &mut Value, old: &Value) {
    if !kind.rules.counts_generations() || same_desire(kind, new, old) {
        return;
    }
    let generation = old.int(&["metadata", "generation"]).unwrap_or(0) + 1;
    new.put(&["metadata", "generation"], generation);
}

fn same_desire(kind: &Kind, new: &Value, old: &Value) -> bool {
    let without = |object: &Value| {
        let mut copy = Map::new();
        for (key, value) in object.as_object().into_iter().flatten() {
            if key != "metadata" && !(key == "status" && kind.has_status()) && key != "apiVersion" && key != "kind" {
                copy.insert(key.clone(), value.clone());
            }
        }
        Value::Object(copy)
    };
    let (new, old) = (without(new), without(old));
    new == old || kind.schema.as_ref().is_some_and(|schema| schema.same(&new, &old))
}

/// Whether nothing prevents the removal of a stored object: it is terminating, its grace period is zero, and it has no
/// finalizer.
pub fn is_released(object: &Value) -> bool {
    terminating(object)
        && object.int(&["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0) == 0
        && object.items(&["metadata", "finalizers"]).is_empty()
        && !held_by_namespace_content(object)
}

/// Whether a namespace has `spec.finalizers`, which stay until its content is deleted.
fn held_by_namespace_content(object: &Value) -> bool {
    object.text(&["kind"]) == "Namespace"
        && object.text(&["apiVersion"]) == "v1"
        && !object.items(&["spec", "finalizers"]).is_empty()
}

/// How dependents are treated when their owner is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

/// Options of a DELETE.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deletion {
    pub grace_seconds: Option<i64>,
    pub propagation: Option<Propagation>,
}

/// Result of a DELETE.
#[derive(Debug, PartialEq)]
pub enum Deleted {
    /// The object is removed now; this is its last state.
    Gone(Value),
    /// The object stays and is terminating, as this.
    Marked(Value),
    /// The object does not change.
    Unchanged,
}

/// Decides what a DELETE does to `object`.
pub fn for_delete(kind: &Kind, object: &Value, asked: Deletion, now: jiff::Timestamp) -> Deleted {
    let mut marked = object.clone();
    let was_terminating = terminating(object);
    let old_grace = object.int(&["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0);
    // While a grace period runs, the policy of the first DELETE stays. Without a grace period, a later DELETE may
    // change it.
    if !(was_terminating && old_grace > 0) {
        settle_gc_finalizers(&mut marked, asked.propagation);
    }
    let grace = kind.rules.grace_seconds(object, asked.grace_seconds).unwrap_or(0).max(0);
    // A running deletion continues unchanged, unless a shorter grace period is requested.
    let shortens = was_terminating && asked.grace_seconds.is_some() && grace < old_grace;
    if !was_terminating {
        kind.rules.mark_terminating(&mut marked);
    }
    if !was_terminating || shortens {
        let at = if was_terminating { first_deletion(object, now) } else { now };
        let deadline = at.checked_add(jiff::SignedDuration::from_secs(grace)).unwrap_or(at);
        marked.put(&["metadata", "deletionTimestamp"], stamp(deadline));
        marked.put(&["metadata", "deletionGracePeriodSeconds"], grace);
        if kind.rules.counts_generations() && !was_terminating {
            let generation = object.int(&["metadata", "generation"]).unwrap_or(0) + 1;
            marked.put(&["metadata", "generation"], generation);
        }
    }
    if is_released(&marked) {
        return Deleted::Gone(marked);
    }
    if marked == *object { Deleted::Unchanged } else { Deleted::Marked(marked) }
}

/// Returns the time of the first DELETE: the deletion timestamp minus the grace period.
fn first_deletion(object: &Value, now: jiff::Timestamp) -> jiff::Timestamp {
    let grace = object.int(&["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0);
    let deadline: Option<jiff::Timestamp> = object.text(&["metadata", "deletionTimestamp"]).parse().ok();
    deadline.and_then(|at| at.checked_sub(jiff::SignedDuration::from_secs(grace)).ok()).unwrap_or(now)
}

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

fn settle_gc_finalizers(object: &mut Value, asked: Option<Propagation>) {
    let mut finalizers: Vec<Value> = object.items(&["metadata", "finalizers"]).to_vec();
    let wanted = match asked {
        None => return,
        Some(Propagation::Background) => None,
        Some(Propagation::Foreground) => Some(FOREGROUND),
        Some(Propagation::Orphan) => Some(ORPHAN),
    };
    finalizers.retain(|held| {
        let text = held.as_str().unwrap_or("");
        (text != ORPHAN && text != FOREGROUND) || wanted == Some(text)
    });
    if let Some(wanted) = wanted
        && !finalizers.iter().any(|held| held == wanted)
    {
        finalizers.push(json!(wanted));
    }
    if finalizers.is_empty() {
        object.cut(&["metadata", "finalizers"]);
    } else {
        object.put(&["metadata", "finalizers"], finalizers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::{Plain, Rules};
    use std::sync::Arc;

    struct Graceful;
    impl Rules for Graceful {
        fn counts_generations(&self) -> bool {
            true
        }
        fn grace_seconds(&self, _: &Value, asked: Option<i64>) -> Option<i64> {
            Some(asked.unwrap_or(30))
        }
    }

    fn kind(rules: Arc<dyn Rules>) -> Kind {
        Kind {
            group: "".into(),
            version: "v1".into(),
            kind: "Thing".into(),
            plural: "things".into(),
            singular: "thing".into(),
            short_names: vec![],
            categories: vec![],
            namespaced: true,
            stored: true,
            subresources: vec![crate::kind::Subresource::Status],
            storage: "core/things".into(),
            schema: None,
            custom: false,
            edition: None,
            openapi: None,
            list: None,
            rules,
        }
    }

    fn at(text: &str) -> jiff::Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn an_update_cannot_change_identity_or_status() {
        let kind = kind(Arc::new(Graceful));
        let old = json!({"metadata": {"name": "a", "uid": "1", "generation": 4, "creationTimestamp": "t"},
            "spec": {"x": 1}, "status": {"ok": true}});
        let mut new = json!({"metadata": {"name": "b", "uid": "2", "generation": 9, "labels": {}}, "spec": {"x": 2}, "status": {}});
        for_update(&kind, &mut new, &old);
        settle_generation(&kind, &mut new, &old);
        assert_eq!(
            new,
            json!({"metadata": {"name": "a", "uid": "1", "generation": 5, "creationTimestamp": "t"},
                "spec": {"x": 2}, "status": {"ok": true}})
        );
    }

    #[test]
    fn a_status_write_changes_only_status_and_user_metadata() {
        let old = json!({"metadata": {"name": "a", "uid": "1", "ownerReferences": [{"uid": "o"}]}, "spec": {"x": 1}, "status": {"ok": true}});
        let mut new =
            json!({"metadata": {"name": "a", "labels": {"l": "1"}}, "spec": {"x": 2}, "status": {"ok": false}});
        let mut kind = kind(Arc::new(Graceful));
        let mut of_custom = new.clone();
        for_status(&kind, &mut new, &old);
        assert_eq!(
            new,
            json!({"metadata": {"name": "a", "uid": "1", "labels": {"l": "1"}, "ownerReferences": [{"uid": "o"}]},
                "spec": {"x": 1}, "status": {"ok": false}})
        );
        kind.custom = true;
        for_status(&kind, &mut of_custom, &old);
        assert_eq!((&of_custom["metadata"], &of_custom["status"]), (&old["metadata"], &json!({"ok": false})));
    }

    #[test]
    fn deletion_waits_for_grace_and_finalizers() {
        let now = at("2026-01-01T00:00:00Z");
        let plain = kind(Arc::new(Plain));
        let graceful = kind(Arc::new(Graceful));
        let object = json!({"metadata": {"name": "a"}});
        assert!(matches!(for_delete(&plain, &object, Deletion::default(), now), Deleted::Gone(_)));
        let Deleted::Marked(marked) = for_delete(&graceful, &object, Deletion::default(), now) else { panic!("waits") };
        assert_eq!(marked["metadata"]["deletionTimestamp"], "2026-01-01T00:00:30Z");
        assert_eq!(for_delete(&graceful, &marked, Deletion::default(), now), Deleted::Unchanged);
        let shorter = Deletion { grace_seconds: Some(5), ..Deletion::default() };
        let Deleted::Marked(sooner) = for_delete(&graceful, &marked, shorter, now) else { panic!("shortens") };
        assert_eq!(sooner["metadata"]["deletionTimestamp"], "2026-01-01T00:00:05Z");
        let forced = Deletion { grace_seconds: Some(0), ..Deletion::default() };
        assert!(matches!(for_delete(&graceful, &marked, forced, now), Deleted::Gone(_)));
        let held = json!({"metadata": {"name": "a", "finalizers": ["x/y"]}});
        assert!(matches!(for_delete(&plain, &held, Deletion::default(), now), Deleted::Marked(_)));
    }

    #[test]
    fn the_propagation_policy_is_stored_as_finalizers() {
        let now = at("2026-01-01T00:00:00Z");
        let plain = kind(Arc::new(Plain));
        let object = json!({"metadata": {"name": "a"}});
        let ask = |propagation| Deletion { propagation: Some(propagation), ..Deletion::default() };
        let Deleted::Marked(orphaning) = for_delete(&plain, &object, ask(Propagation::Orphan), now) else { panic!() };
        assert_eq!(orphaning["metadata"]["finalizers"], json!(["orphan"]));
        let Deleted::Marked(foreground) = for_delete(&plain, &orphaning, ask(Propagation::Foreground), now) else {
            panic!()
        };
        assert_eq!(foreground["metadata"]["finalizers"], json!(["foregroundDeletion"]));
        assert!(matches!(for_delete(&plain, &foreground, ask(Propagation::Background), now), Deleted::Gone(_)));
    }
}
