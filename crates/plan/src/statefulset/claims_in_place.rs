//! Claims that follow the revision of their pod (KEP-4650).
//!
//! A label on the claim names the revision that it was last written for. A claim is written once per revision: before
//! its pod is created at that revision, or before its pod of an older revision is deleted or relabelled. The pod waits
//! until the claim is ready.

use super::claims::{self, Claims};
use super::pods;
use super::revisions::Revision;
use super::set::Set;
use super::{Action, Held, Planner, SetEvent as Event};
use object::Value;
use object::access::{Access, name, terminating, uid};
use object::kinds::volumes::BETA_CLASS;
use object::quantity::Quantity;
use std::cmp::{max_by_key, min};

/// What a user can do about a claim that cannot be updated. Deleting the claim is not suggested, because its data would
/// be lost.
const WAY_OUT: &str = "fix the cause, change the template again, or set spec.volumeClaimUpdatePolicy to OnClaimDelete to go on without \
     this claim";

const STORAGE: &[&str] = &["spec", "resources", "requests", "storage"];
const CLASS: &[&str] = &["spec", "volumeAttributesClassName"];
const CURRENT_CLASS: &[&str] = &["status", "currentVolumeAttributesClassName"];

/// The progress of a replica's claims to the update revision, while its pod is at an older one.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// At least one claim is at the update revision.
    pub begun: bool,
    /// At least one claim is still to be written, and can be.
    pub lacks: bool,
    /// A claim that must become ready first.
    pub waits: Option<Wait>,
}

/// Why a claim is not ready: a reason for the condition, and a sentence.
#[derive(Debug)]
pub(super) struct Wait {
    claim: String,
    reason: &'static str,
    why: String,
    /// A user must act before it becomes ready.
    stuck: bool,
}

impl<'a> Planner<'a> {
    /// The progress of a replica's claims. Claims that are being deleted do not count: they are deleted with the pod.
    pub(super) fn progress(&self, ordinal: i64) -> Progress {
        let mut progress = Progress::default();
        if !self.set.claims_in_place {
            return progress;
        }
        let update = &self.revisions.update;
        // A replica whose lost claims this plan creates counts as begun from the next plan on. Until then the budget does not know it.
        let is_provided = self.provided.contains(&ordinal);
        let can_change = !is_provided && self.obstacle(ordinal).is_none();
        for template in &self.set.claim_templates {
            let Some(claim) = self.claims.get(self.set, ordinal, template) else {
                if is_provided {
                    let claim = self.set.claim_name(template, ordinal);
                    let why = "it is being created".to_owned();
                    progress.begun = true;
                    progress.waits = Some(Wait { claim, reason: "ClaimMissing", why, stuck: false });
                } else {
                    progress.lacks = true;
                }
                continue;
            };
            if terminating(claim) {
                continue;
            }
            let wait = if pods::revision(claim) == update.name {
                progress.begun = true;
                unready(claim, update.claim_template(template))
            } else {
                progress.lacks |= can_change;
                self.unchangeable(claim)
            };
            progress.waits = progress.waits.or(wait);
        }
        progress
    }

    /// Why a claim at an older revision cannot be written now, as far as the plan can see.
    fn unchangeable(&self, claim: &Value) -> Option<Wait> {
        if self.claims.is_contested(name(claim)) {
            let why = "by its name it is a claim of another StatefulSet, too".to_owned();
            Some(Wait { stuck: true, ..Wait::of(claim, "ClaimContested", why) })
        } else if self.reowned.contains(name(claim)) {
            Some(Wait::of(claim, "ClaimChanging", "its owners are changed first".to_owned()))
        } else {
            unbound(claim)
        }
    }

    /// The first claim of a replica that cannot be written now. Until it can, no claim of the replica is written,
    /// because an applied size cannot be reduced again.
    fn obstacle(&self, ordinal: i64) -> Option<Wait> {
        let claims = self.set.claim_templates.iter().filter_map(|it| self.claims.get(self.set, ordinal, it));
        let mut old = claims.filter(|it| !terminating(it) && pods::revision(it) != self.revisions.update.name);
        old.find_map(|claim| self.unchangeable(claim))
    }

    /// Creates a replica's missing claims and writes those at another revision.
    pub(super) fn bring_claims(&mut self, ordinal: i64) -> Vec<Action> {
        let (set, revisions) = (self.set, self.revisions);
        let (pod, update) = (set.pod_name(ordinal), &revisions.update);
        let created = self.provided.contains(&ordinal);
        let mut actions = if created { Vec::new() } else { self.create_claims(ordinal, update, false) };
        if self.obstacle(ordinal).is_none() {
            actions.extend(self.apply_claims(ordinal, &pod, update, false));
        }
        actions
    }

    /// Writes the claims of a replica that are at another revision, within the allowance. A volume cannot shrink again.
    /// So if one of several claims grows or changes its attributes class, the server first checks all of them (dry
    /// run), also those that a later plan writes. A single claim needs no check: its apply succeeds or fails as a
    /// whole.
    fn apply_claims(&mut self, ordinal: i64, pod: &str, revision: &Revision, with_pod: bool) -> Vec<Action> {
        let (set, claims) = (self.set, self.claims);
        let build = |template: &Value, claim: &Value| patch(set, template, claim, ordinal, revision);
        let mut stale = claims.stale(set, ordinal, revision).peekable();
        let mut patches = Vec::new();
        while let Some((template, claim)) = stale.peek().copied() {
            let Some(patch) = self.output.admit(|| build(template, claim)) else { break };
            patches.push((patch, claim));
            stale.next();
        }
        let written = patches.len();
        let grows = patches.iter().any(|(patch, claim)| changes_volume(patch, claim));
        if grows {
            patches.extend(stale.map(|(template, claim)| (build(template, claim), claim)));
        }
        let is_checked = grows && patches.len() > 1;
        let mut actions = Vec::new();
        for (at, (patch, claim)) in patches.into_iter().enumerate() {
            let (pod, class) = (pod.to_owned(), storage_class(claim).to_owned());
            if is_checked {
                let (patch, pod, class) = (patch.clone(), pod.clone(), class.clone());
                actions.push(Action::CheckClaim { patch, pod, with_pod, class });
            }
            if at < written {
                actions.push(Action::ApplyClaim { patch, pod, with_pod, class });
            }
        }
        actions
    }

    /// The writes of claims that a pod needs before it is created at a revision. The error is a claim whose owners
    /// change in this plan. The search for such a claim comes before any write is counted against the allowance,
    /// because every counted write must be in the plan.
    pub(super) fn claims_for_creation(&mut self, ordinal: i64, revision: &Revision) -> Result<Vec<Action>, Held> {
        let set = self.set;
        let pod = set.pod_name(ordinal);
        let is_applied = set.claims_in_place && revision.tells_of_claims();
        if is_applied {
            let mut stale = self.claims.stale(set, ordinal, revision).map(|(_, claim)| claim);
            if let Some(claim) = stale.find(|claim| self.reowned.contains(name(claim))) {
                return Err(Wait::of(claim, "ClaimChanging", "its owners are changed first".to_owned()).held(pod));
            }
        }
        let mut actions = self.create_claims(ordinal, revision, true);
        if is_applied {
            actions.extend(self.apply_claims(ordinal, &pod, revision, true));
        }
        Ok(actions)
    }

    /// Creates the missing claims of a pod, within the allowance.
    pub(super) fn create_claims(&mut self, ordinal: i64, revision: &Revision, with_pod: bool) -> Vec<Action> {
        let (set, claims, applied) = (self.set, self.claims, self.set.claims_in_place);
        let admitted = claims.missing(set, ordinal).map_while(|template| {
            let claim = self.output.admit(|| claims.build(set, template, ordinal, revision))?;
            Some(Action::CreateClaim { claim, pod: set.pod_name(ordinal), with_pod, applied })
        });
        admitted.collect()
    }

    /// Holds the replica until the claim is ready, with an event if a user must act.
    pub(super) fn wait_for_claim(&mut self, pod: &str, wait: Wait) {
        if wait.stuck {
            let message = format!(
                "Update Claim {} for Pod {pod} in StatefulSet {} waits: {}; {}",
                wait.claim,
                self.set.name,
                wait.why,
                advice(false)
            );
            self.plan.events.push(Event { warning: true, reason: object::well_known::CLAIM_NOT_READY, message });
        }
        self.plan.held.push(wait.held(pod.to_owned()));
    }
}

impl Claims<'_> {
    /// The claims of a replica that are not at this revision, with their templates, without those being deleted. Claims
    /// that two sets share are left out: the sets would overwrite each other's writes for ever.
    fn stale<'s>(
        &'s self,
        set: &'s Set,
        ordinal: i64,
        revision: &'s Revision,
    ) -> impl Iterator<Item = (&'s Value, &'s Value)> {
        set.claim_templates
            .iter()
            .filter_map(move |template| Some((*template, self.get(set, ordinal, template)?)))
            .filter(|(_, claim)| !terminating(claim) && pods::revision(claim) != revision.name)
            .filter(|(_, claim)| !self.is_contested(name(claim)))
    }
}

impl Wait {
    fn of(claim: &Value, reason: &'static str, why: String) -> Wait {
        Wait { claim: name(claim).to_owned(), reason, why, stuck: false }
    }

    fn held(self, pod: String) -> Held {
        Held::ClaimNotReady { pod, claim: self.claim, reason: self.reason, why: self.why }
    }
}

/// The message about a claim that was not or would not be written: why, what happens to its pod, and what a user can
/// do.
pub(super) fn refusal(action: &Action, why: &str) -> String {
    let (others, class, with_pod) = match action {
        Action::CheckClaim { class, with_pod, .. } => ("no claim of the pod is changed; ", class.as_str(), *with_pod),
        Action::ApplyClaim { class, with_pod, .. } => ("", class.as_str(), *with_pod),
        _ => ("", "", false),
    };
    let class = if class.is_empty() { String::new() } else { format!(" (the claim's storage class is {class})") };
    format!("{why}{class}; {others}{}", advice(with_pod))
}

/// What happens to the pod, and what a user can do.
fn advice(with_pod: bool) -> String {
    let pod = if with_pod { "the pod is not created until then" } else { "the pod keeps running" };
    format!("{pod}; {WAY_OUT}")
}

/// Only part of an unbound claim can be written, so it waits until it is bound.
fn unbound(claim: &Value) -> Option<Wait> {
    let phase = claim.text(&["status", "phase"]);
    let why = format!("it is {}, and only a bound claim can change", if phase.is_empty() { "Pending" } else { phase });
    (phase != "Bound").then(|| Wait { stuck: true, ..Wait::of(claim, "ClaimNotBound", why) })
}

/// Why a claim at this revision is not ready. A claim whose request was lowered by a user needs only that size.
fn unready(claim: &Value, template: &Value) -> Option<Wait> {
    let size = |value: Option<&Value>| value.and_then(Quantity::of).unwrap_or(Quantity::ZERO);
    let wanted = min(size(template.at(STORAGE)), size(claim.at(STORAGE)));
    let capacity = size(claim.at(&["status", "capacity", "storage"]));
    let (class, current) = (claim.text(CLASS), claim.text(CURRENT_CLASS));
    let (reason, what) = if capacity < wanted {
        ("ClaimResizing", format!("its capacity is {capacity} and must become {wanted}"))
    } else if class != current {
        let current = if current.is_empty() { "none" } else { current };
        ("ClaimModifying", format!("its volume attributes class is {current} and must become {class}"))
    } else {
        return None;
    };
    let trouble = trouble(claim);
    let why = trouble.as_ref().map_or_else(|| what.clone(), |trouble| format!("{what} ({trouble})"));
    Some(Wait { stuck: trouble.is_some(), ..Wait::of(claim, reason, why) })
}

/// The first error condition of the resizer or modifier.
fn trouble(claim: &Value) -> Option<String> {
    const ERRORS: &[&str] = &["ControllerResizeError", "NodeResizeError", "ModifyVolumeError"];
    let mut conditions = claim.items(&["status", "conditions"]).iter();
    let error = conditions.find(|it| it.text(&["status"]) == "True" && ERRORS.contains(&it.text(&["type"])))?;
    Some(format!("{}: {}", error.text(&["type"]), error.text(&["message"])))
}

/// Whether the patch changes size or attributes class, not only labels and annotations.
fn changes_volume(patch: &Value, claim: &Value) -> bool {
    let size = |object: &Value| object.at(STORAGE).and_then(Quantity::of);
    size(patch) != size(claim) || patch.text(CLASS) != claim.text(CLASS)
}

/// The claim's storage class, for messages. The deprecated annotation takes precedence.
fn storage_class(claim: &Value) -> &str {
    match claim.at(&["metadata", "annotations", BETA_CLASS]).and_then(Value::as_str) {
        Some(class) => class,
        None => claim.text(&["spec", "storageClassName"]),
    }
}

/// The server-side apply patch of a claim. It contains the template's fields. Of other fields that the controller may
/// own it contains only those that exist: an apply removes owned fields that it does not name.
fn patch(set: &Set, live: &Value, claim: &Value, ordinal: i64, revision: &Revision) -> Value {
    let mut patch = claims::build(set, live, ordinal, revision);
    patch.put(&["metadata", "uid"], uid(claim));
    patch.put(&["metadata", "resourceVersion"], claim.text(&["metadata", "resourceVersion"]));
    let there = claim.items(&["metadata", "finalizers"]);
    let finalizers: Vec<Value> =
        patch.items(&["metadata", "finalizers"]).iter().filter(|it| there.contains(it)).cloned().collect();
    put_or_cut(&mut patch, "finalizers", finalizers);
    put_or_cut(&mut patch, "ownerReferences", claims::own_references(set, claim, &set.pod_name(ordinal)));
    let sizes = (patch.at(STORAGE).cloned(), claim.at(STORAGE).cloned());
    if let (Some(template), Some(claim)) = sizes {
        patch.put(STORAGE, max_by_key(claim, template, Quantity::of));
    }
    if patch.text(CLASS).is_empty() {
        patch.cut(CLASS);
        if let Some(class) = claim.at(CLASS).filter(|_| !claim.text(CLASS).is_empty()) {
            patch.put(CLASS, class.clone());
        }
    }
    patch
}

fn put_or_cut(patch: &mut Value, member: &str, items: Vec<Value>) {
    match items.is_empty() {
        true => drop(patch.cut(&["metadata", member])),
        false => patch.put(&["metadata", member], items),
    }
}
