//! The status of a set, computed from its pods.

use super::claims_in_place::refusal;
use super::pods::{Members, Pod};
use super::set::Set;
use super::{Action, Held, Planner, Stage};
use jiff::Timestamp;
use object::access::{Access, name};
use object::{Value, condition, json};

const PROGRESSING: &str = "Progressing";
/// Whether the claims of all replicas are at the update revision.
const CLAIMS_UPDATED: &str = object::well_known::VOLUME_CLAIMS_UPDATED;
const CLAIM_REFUSED: &str = "ClaimUpdateFailed";

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
    /// The condition `VolumeClaimsUpdated`; `None` if claims do not follow revisions.
    pub claims: Option<ClaimsUpdated>,
}

/// Whether all claims are up to date, and the reason if not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClaimsUpdated {
    pub done: bool,
    pub reason: String,
    pub message: String,
}

impl Planner<'_> {
    /// The condition about the claims.
    pub(super) fn claims_condition(&self) -> Option<ClaimsUpdated> {
        if !self.set.claims_in_place {
            return None;
        }
        let not_yet = |reason: &str, message: String| ClaimsUpdated { done: false, reason: reason.to_owned(), message };
        let update = &self.revisions.update.name;
        let actions = || self.plan.stages.iter().flat_map(Stage::actions);
        let written = |action: &Action| match action {
            Action::CheckClaim { patch, pod, .. } | Action::ApplyClaim { patch, pod, .. } => {
                Some(claim_of(name(patch), pod))
            }
            _ => None,
        };
        let begun = actions().find_map(written);
        let waits = self.plan.held.iter().find_map(|held| match held {
            Held::ClaimNotReady { pod, claim, reason, why } => {
                Some(not_yet(reason, format!("{}: {why}", claim_of(claim, pod))))
            }
            _ => None,
        });
        let said = condition::get(self.set.object, CLAIMS_UPDATED).filter(|it| it.text(&["reason"]) == CLAIM_REFUSED);
        let said = said.map(|it| it.text(&["message"]));
        let again = said.filter(|said| actions().filter_map(written).any(|claim| said.starts_with(&claim)));
        let (updated, replicas) = (self.status.updated, self.set.replicas);
        Some(match (begun, waits, again) {
            // The update is retried, and its result is not known yet.
            (_, _, Some(said)) => not_yet(CLAIM_REFUSED, said.to_owned()),
            (_, Some(waits), _) => waits,
            (Some(claim), ..) => not_yet("Updating", format!("{claim} is brought to revision {update}")),
            _ if updated < replicas => not_yet("RollingOut", format!("not all replicas are at revision {update}")),
            _ => ClaimsUpdated {
                done: true,
                reason: "UpToDate".to_owned(),
                message: format!("all replicas are at revision {update}"),
            },
        })
    }
}

/// Sets the condition for a refused claim update. Returns whether there was a condition to change.
pub(super) fn refuse_claim(set: &mut Value, action: &Action, why: &str) -> bool {
    let (Action::CheckClaim { patch, pod, .. } | Action::ApplyClaim { patch, pod, .. }) = action else { return false };
    let mut conditions = set.entry(&["status", "conditions"]).as_array_mut().into_iter().flatten();
    let Some(said) = conditions.find(|it| it.text(&["type"]) == CLAIMS_UPDATED) else { return false };
    said.put(&["reason"], CLAIM_REFUSED);
    let message = format!("{} cannot be updated: {}", claim_of(name(patch), pod), refusal(action, why));
    said.put(&["message"], message);
    true
}

fn claim_of(claim: &str, pod: &str) -> String {
    format!("claim {claim} of pod {pod}")
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
            let stays_at = |revision: &str| !pod.terminating && pod.revision() == revision;
            status.replicas += 1;
            status.ready += i64::from(pod.ready);
            status.available += i64::from(pod.is_available(set, now));
            status.current += i64::from(stays_at(current));
            status.updated += i64::from(stays_at(update));
        }
        status
    }

    /// Counts one pod fewer at the current revision; returns whether it was counted there.
    pub fn leaves(&mut self, pod: Pod) -> bool {
        let counted = !pod.terminating && pod.revision() == self.current_revision && self.current > 0;
        self.current -= i64::from(counted);
        counted
    }

    pub fn recreating(&mut self, message: &'static str) {
        self.progress = Some(("True", "RecreateInProgress", message));
    }

    /// When all replicas exist, are ready and at the update revision, that becomes the current one.
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

    /// The set with this status, if it changed.
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
        self.write_claims(&mut status, now);
        // A change of the collision count alone is not written.
        if before == Some(&status) {
            return None;
        }
        status.put(&["collisionCount"], self.collisions);
        let mut changed = set.object.clone();
        changed.put(&["status"], status);
        Some(changed)
    }

    fn write_claims(&self, status: &mut Value, now: Timestamp) {
        if let Some(ClaimsUpdated { done, reason, message }) = &self.claims {
            let word = if *done { "True" } else { "False" };
            let claims = json!({"type": CLAIMS_UPDATED, "status": word, "reason": reason, "message": message});
            condition::set(status, &["conditions"], claims, now);
            return;
        }
        let is_it = |condition: &Value| condition.text(&["type"]) == CLAIMS_UPDATED;
        match status.get_mut("conditions") {
            Some(Value::Array(conditions)) if conditions.len() == 1 && is_it(&conditions[0]) => {
                status.cut(&["conditions"]);
            }
            Some(Value::Array(conditions)) => conditions.retain(|condition| !is_it(condition)),
            _ => {}
        }
    }
}

const COUNTS: &[&str] = &["replicas", "readyReplicas", "availableReplicas", "currentReplicas", "updatedReplicas"];

/// Whether two statuses of a set differ in counts only, and in none that plans depend on. Without a
/// rollingUpdate block, `currentReplicas` determines which pods stay at the current revision, so it matters.
/// The collision count does not.
pub(super) fn differ_in_counts(set: &Value, wanted: &Value) -> bool {
    let by_count = !set.has(&["spec", "updateStrategy", "rollingUpdate", "partition"]);
    let is_count = |member: &str| match member {
        "currentReplicas" => !by_count,
        "collisionCount" => true,
        member => COUNTS.contains(&member),
    };
    let [before, after] =
        [set, wanted].map(|set| set.members(&["status"]).iter().filter(|(member, _)| !is_count(member)));
    before.eq(after)
}

/// Whether all counts of a set are as desired.
pub(super) fn has_arrived(set: &Value) -> bool {
    let goal = set.int(&["spec", "replicas"]);
    COUNTS.iter().all(|count| set.int(&["status", count]).or(Some(0)) == goal)
}

/// Counts of zero and empty names are omitted.
fn put_or_cut(status: &mut Value, field: &str, value: impl Into<Value>, empty: bool) {
    if empty {
        status.cut(&[field]);
    } else {
        status.put(&[field], value);
    }
}
