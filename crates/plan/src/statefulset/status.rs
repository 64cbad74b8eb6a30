//! The status of a set: what its pods are like at the moment of the plan.

use super::pods::{self, Members};
use super::set::Set;
use jiff::Timestamp;
use object::access::{Access, terminating};
use object::{Value, condition, json};

const PROGRESSING: &str = "Progressing";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    replicas: i64,
    ready: i64,
    available: i64,
    current: i64,
    updated: i64,
    current_revision: String,
    update_revision: String,
    collisions: i64,
    /// The condition `Progressing`: status, reason, message.
    progress: Option<(&'static str, &'static str, &'static str)>,
}

impl Status {
    pub fn count(
        set: &Set,
        members: &Members,
        (current, update): (&str, &str),
        collisions: i64,
        now: Timestamp,
    ) -> Status {
        let mut status = Status {
            current_revision: current.to_owned(),
            update_revision: update.to_owned(),
            collisions,
            ..Status::default()
        };
        for pod in members.all() {
            let stays_at = |revision: &str| !terminating(pod) && pods::revision(pod) == revision;
            status.replicas += 1;
            status.ready += i64::from(pods::is_ready(pod));
            status.available += i64::from(pods::is_available(set, pod, now));
            status.current += i64::from(stays_at(current));
            status.updated += i64::from(stays_at(update));
        }
        status
    }

    /// One pod fewer at the current revision; whether it was counted there.
    pub fn leaves(&mut self, pod: &Value) -> bool {
        let counted = !terminating(pod) && pods::revision(pod) == self.current_revision && self.current > 0;
        self.current -= i64::from(counted);
        counted
    }

    pub fn recreating(&mut self, message: &'static str) {
        self.progress = Some(("True", "RecreateInProgress", message));
    }

    /// When all replicas are there, ready and at the update revision, that becomes the current one.
    pub fn complete(&mut self, set: &Set) -> bool {
        let done = [self.updated, self.ready, self.replicas].iter().all(|count| *count == set.replicas);
        if done {
            self.current_revision.clone_from(&self.update_revision);
            self.current = self.updated;
        }
        done
    }

    pub fn recreated(&mut self, set: &Set) {
        if condition::get(set.object, PROGRESSING).is_some() {
            self.progress = Some(("False", "RecreateCompleted", "All pods recreated successfully"));
        }
    }

    /// The set with this status, when it says anything new.
    pub fn written(&self, set: &Set, now: Timestamp) -> Option<Value> {
        let before = set.object.at(&["status"]);
        let mut status = before.filter(|status| status.is_object()).cloned().unwrap_or_else(|| json!({}));
        let always = [("replicas", self.replicas), ("availableReplicas", self.available)];
        for (field, count) in always {
            status.put(&[field], count);
        }
        let generation = set.object.int(&["metadata", "generation"]).unwrap_or(0);
        let counts = [
            ("observedGeneration", generation),
            ("readyReplicas", self.ready),
            ("currentReplicas", self.current),
            ("updatedReplicas", self.updated),
        ];
        for (field, count) in counts {
            put_or_cut(&mut status, field, count, count == 0);
        }
        let revisions = [("currentRevision", &self.current_revision), ("updateRevision", &self.update_revision)];
        for (field, revision) in revisions {
            put_or_cut(&mut status, field, revision.as_str(), revision.is_empty());
        }
        if let Some((value, reason, message)) = self.progress {
            let progress = json!({"type": PROGRESSING, "status": value, "reason": reason, "message": message});
            condition::set(&mut status, &["conditions"], progress, now);
        }
        // Alone the count of collisions is no news.
        if before == Some(&status) {
            return None;
        }
        status.put(&["collisionCount"], self.collisions);
        let mut changed = set.object.clone();
        changed.put(&["status"], status);
        Some(changed)
    }
}

/// Counters at zero and empty names are left out.
fn put_or_cut(status: &mut Value, field: &str, value: impl Into<Value>, empty: bool) {
    if empty {
        status.cut(&[field]);
    } else {
        status.put(&[field], value);
    }
}
