//! StatefulSets: plans the actions for one set from the observed objects.
//!
//! A plan leaves nothing to choose: names, revisions, owners and preconditions are in the actions. An action
//! whose object has changed since is refused by its precondition. A half-executed plan is harmless: the next
//! one starts from the objects observed then.

mod action;
mod claims;
mod claims_in_place;
pub mod departure;
pub mod invariant;
mod pods;
mod replicas;
mod revisions;
mod rollout;
mod set;
mod status;

pub use action::{Action, SetEvent};

use crate::allowance::{Allowance, Output, Written};
use claims::{Claims, Moment};
use jiff::Timestamp;
use object::access::Access;
use object::{Gates, Value};
pub use pods::SeenPod;
use pods::{Members, Pod};
use revisions::Revisions;
use set::{Set, Strategy};
use status::Status;
use std::collections::BTreeSet;

/// The observed objects of a set. Each list may hold more than the set's own; the planner filters them.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub set: &'a Value,
    /// The pods that the set controls, and every pod whose name is the set's with an ordinal.
    pub pods: &'a [&'a SeenPod],
    /// The claims whose names are built from a template's name, the set's name and an ordinal.
    pub claims: &'a [&'a Value],
    /// The revisions that the set controls, those of the namespace without a controller, and every one whose
    /// name begins with the set's.
    pub revisions: &'a [&'a Value],
    /// Claim names (without the ordinal) that another set's templates produce, too.
    pub contested: &'a BTreeSet<String>,
    /// How much the plan may create and apply.
    pub allowance: Allowance,
}

/// What to do, in this order: `prepare`, `stages`, the status, `cleanup`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SetPlan {
    /// Adoptions, releases and revisions, executed one after the other. When one fails, nothing more is
    /// executed and the status is not written, except that `cleanup` is still executed.
    pub prepare: Vec<Action>,
    /// Executed one after the other, up to the first stage with a failure; the status is written even so.
    pub stages: Vec<Stage>,
    /// The set with its new status, to PUT to `/status` if it changed.
    pub status: Option<Value>,
    /// Deletes old revisions. Failures here do not affect anything else.
    pub cleanup: Vec<Action>,
    /// Why not more is done.
    pub held: Vec<Held>,
    /// Events in addition to those of the actions.
    pub events: Vec<SetEvent>,
    /// When to plan again without a change.
    pub next: Option<Timestamp>,
    /// Values for metrics: the budget of unavailable replicas, and how many are unavailable.
    pub max_unavailable: Option<i64>,
    pub unavailable: Option<i64>,
    /// The size of what the plan creates and applies. If objects were withheld, another plan must follow.
    pub written: Written,
}

/// Independent lanes, which may be executed concurrently.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stage {
    pub lanes: Vec<Lane>,
}

/// Steps, executed one after the other, up to the first step with a failure. All actions of a step are
/// attempted.
pub type Lane = Vec<Vec<Action>>;

/// Why a replica, or the whole set, waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// The set is being deleted: its pods and claims are left to the garbage collector.
    Deleting,
    /// OrderedReady: this pod must be running, ready and available before anything after it happens.
    NotReady { pod: String },
    /// The pod of this name is terminating.
    Terminating { pod: String },
    /// A pod that does not belong to the set has a replica's name.
    NameTaken { pod: String, by: String },
    /// A claim is owned by the previous pod or by an earlier set of this name, or is terminating: it must be
    /// removed first.
    ClaimLeaving { pod: String, claim: String },
    /// A claim is not at the update revision yet; `reason` is a CamelCase reason, `why` a sentence.
    ClaimNotReady { pod: String, claim: String, reason: &'static str, why: String },
    /// A pod cannot be updated to match the set; it must be replaced.
    Unfit { pod: String, why: String },
    /// More replicas are missing than the plan's allowance admits; the next plan continues when these exist.
    Many { missing: i64 },
    /// The budget of unavailable replicas is used up.
    Budget { unavailable: i64, max: i64 },
    /// Pods below this ordinal stay at an older revision.
    Partition { ordinal: i64 },
    /// Pods at an older revision stay until a user deletes them.
    OnDelete { pods: i64 },
    /// The set's spec is invalid; nothing happens until it changes.
    Unusable { why: String },
}

/// After this many lanes the set may have changed: it is confirmed again.
const ASK_AFTER: usize = 64;

/// Plans the actions for a set.
pub fn plan(seen: &Seen, gates: &Gates, now: Timestamp) -> SetPlan {
    let set = match Set::read(seen.set, gates) {
        Ok(set) => set,
        Err(why) => return SetPlan { held: vec![Held::Unusable { why }], ..SetPlan::default() },
    };
    let members = Members::of(&set, seen.pods);
    let claims = Claims::of(&set, seen);
    if set.deleting() {
        return farewell(&set, &members, &claims, now);
    }
    if let Some((held, event)) = set.unusable(gates) {
        // The owners of claims do not depend on the invalid field.
        let mut plan = SetPlan { held: vec![held], events: vec![event], ..SetPlan::default() };
        plan.own_claims(&set, &members, &claims, Moment::Any);
        return plan;
    }
    let revisions = Revisions::choose(&set, seen.revisions, gates);
    let names = (revisions.current.name.as_str(), revisions.update.name.as_str());
    let status = Status::count(&set, &members, names, revisions.collisions, now);
    let seen_revisions: BTreeSet<&str> = members.all().map(|pod| pod.revision()).collect();
    let reowned = if set.claims_in_place { claims.own(&set, &members, Moment::BeforeScaling).0 } else { Vec::new() };
    let mut planner = Planner {
        set: &set,
        members: &members,
        claims: &claims,
        revisions: &revisions,
        now,
        plan: SetPlan::default(),
        status,
        alike: seen_revisions.into_iter().filter(|revision| revisions.is_alike(revision)).collect(),
        reowned: reowned.iter().filter_map(Action::owned_claim).map(str::to_owned).collect(),
        provided: BTreeSet::new(),
        awaits_claims: false,
        last: Stage::default(),
        leaving: BTreeSet::new(),
        scaling: false,
        output: Output::new(seen.allowance),
    };
    planner.run();
    planner.finish(gates)
}

/// Plans for a set that is being deleted. Its pods are left to the garbage collector, but a retention policy
/// changed just before the deletion still applies. If the set orphans its dependents, the collector removes
/// its owner references. If another finalizer holds the set, its dependents may be orphaned already, so it
/// gets no new ones.
fn farewell(set: &Set, members: &Members, claims: &Claims, now: Timestamp) -> SetPlan {
    let mut plan = SetPlan { held: vec![Held::Deleting], ..SetPlan::default() };
    if !set.orphaning() {
        let moment = if set.waits_for_dependents() { Moment::Any } else { Moment::TooLate };
        plan.own_claims(set, members, claims, moment);
    }
    let text = |field: &str| set.object.text(&["status", field]);
    let collisions = set.object.int(&["status", "collisionCount"]).unwrap_or(0);
    let revisions = (text("currentRevision"), text("updateRevision"));
    plan.status = Status::count(set, members, revisions, collisions, now).written(set, now);
    plan
}

/// Builds a plan.
struct Planner<'a> {
    set: &'a Set<'a>,
    members: &'a Members<'a>,
    claims: &'a Claims<'a>,
    revisions: &'a Revisions<'a>,
    now: Timestamp,
    plan: SetPlan,
    status: Status,
    /// The revisions of pods that differ from the update revision at most in claims.
    alike: BTreeSet<&'a str>,
    /// Claims whose owners this plan changes, and so their resourceVersion: they cannot be applied in the
    /// same plan.
    reowned: BTreeSet<String>,
    /// The ordinals of pods whose missing claims this plan already creates.
    provided: BTreeSet<i64>,
    /// With Recreate: pods are deleted only when their claims are ready, and some are not.
    awaits_claims: bool,
    /// Executed last, so that its failures do not block anything else.
    last: Stage,
    /// The ordinals of replicas that this plan deletes before the rollout.
    leaving: BTreeSet<i64>,
    /// Whether the plan scales down: the claims of condemned pods get their owners then.
    scaling: bool,
    /// What the plan creates and applies, within its allowance.
    output: Output,
}

impl Planner<'_> {
    /// First creates missing replicas, then scales down, then rolls out the new revision.
    fn run(&mut self) {
        if self.set.strategy == Strategy::Recreate && !self.recreate() {
            return;
        }
        let there = if self.set.ordered { self.in_order() } else { self.at_once() };
        let settled = if there { self.scale_down() } else { self.lacks_only_time() };
        if settled {
            self.roll();
        }
        let last = std::mem::take(&mut self.last);
        self.plan.push(last);
    }

    fn finish(mut self, gates: &Gates) -> SetPlan {
        self.plan.written = self.output.written();
        self.prepare();
        self.own_claims_first();
        self.confirm_set();
        self.status.claims = self.claims_condition();
        if self.status.complete(self.set) && self.set.strategy == Strategy::Recreate {
            self.status.recreated(self.set);
        }
        self.plan.status = self.status.written(self.set, self.now);
        self.plan.cleanup = self.revisions.outdated(self.set, self.members);
        self.plan.max_unavailable = gates.on("MaxUnavailableStatefulSet").then(|| match self.set.strategy {
            Strategy::Rolling(rolling) => rolling.max_unavailable.unwrap_or(1),
            _ => 1,
        });
        if !self.set.min_ready.is_zero() {
            let coming = self.members.all().filter_map(|pod| pod.available_from(self.set));
            self.plan.next = coming.filter(|from| *from > self.now).min();
        }
        self.plan
    }

    fn prepare(&mut self) {
        let (adoptions, releases) = self.members.claim();
        let mut adoptions: Vec<Action> = self.revisions.adoptions().chain(adoptions.iter().cloned()).collect();
        if !adoptions.is_empty() {
            adoptions.insert(0, confirmation(self.set));
        }
        self.plan.prepare = adoptions;
        self.plan.prepare.extend_from_slice(releases);
        self.plan.prepare.extend(self.revisions.action.clone());
    }

    /// The owners of claims do not depend on the health of pods, so they are set before anything else.
    /// Whatever is deleted afterwards, by any client, then has the consequences of the current policy.
    fn own_claims_first(&mut self) {
        let moment = if self.scaling { Moment::BeforeScaling } else { Moment::Any };
        let (actions, events) = self.claims.own(self.set, self.members, moment);
        if !actions.is_empty() {
            self.plan.stages.insert(0, Stage::of_each(actions));
        }
        self.plan.events.extend(events);
    }

    /// Confirms the set where needed. A new owner must exist and stay: if a set was deleted with its claims
    /// orphaned, and the deletion is not observed yet, the claims appear to have lost their owner; adding it
    /// again would make the collector delete them. And claims outlive their set: a claim created for a
    /// deleted set, or by an outdated spec, would be used by the next set of that name.
    ///
    /// If claims are deleted with replicas that are scaled away, the policy must still hold when the replicas
    /// are deleted. A plan may be long, so the set is confirmed again after stages that take time.
    fn confirm_set(&mut self) {
        let with_replica = self.set.retention.with_replica;
        let condemned: BTreeSet<&str> = self.members.condemned.values().map(|pod| pod.name()).collect();
        let gives_up = |action: &Action| match action {
            Action::DeletePod { pod, .. } => with_replica && condemned.contains(pod.as_str()),
            Action::OwnClaim { owners, .. } => owners.iter().any(|owner| owner.text(&["kind"]) == "Pod"),
            _ => false,
        };
        let is_quick = |action: &Action| matches!(action, Action::OwnClaim { .. });
        let makes_claim = |action: &Action| matches!(action, Action::CreateClaim { .. });
        // Lanes since the last confirmation or the start of the plan, and whether they did more than set
        // owners of claims.
        let (mut first, mut done, mut took_time) = (false, 0, false);
        for stage in std::mem::take(&mut self.plan.stages) {
            let is_given_up = stage.actions().any(gives_up);
            let is_long_ago = done >= ASK_AFTER;
            if is_given_up || (is_long_ago && stage.actions().any(makes_claim)) {
                if is_long_ago || took_time {
                    self.plan.stages.push(Stage::of_each(vec![confirmation(self.set)]));
                    (done, took_time) = (0, false);
                } else {
                    first |= self.plan.stages.iter().flat_map(Stage::actions).all(is_quick);
                }
            }
            done += stage.lanes.len();
            took_time |= !stage.actions().all(is_quick);
            self.plan.stages.push(stage);
        }
        if first {
            self.plan.confirm_first(self.set);
        }
        self.plan.confirm(self.set);
    }

    /// Sets the owners of the claims of pods that are scaled away, before the first of these pods is deleted.
    fn own_condemned_claims(&mut self) {
        self.scaling = true;
        let (actions, events) = self.claims.own(self.set, self.members, Moment::Scaling);
        self.plan.push(Stage::of_each(actions));
        self.plan.events.extend(events);
    }

    fn is_available(&self, pod: Pod) -> bool {
        pod.is_available(self.set, self.now)
    }

    /// Whether the pod is terminating, or deleted by this plan.
    fn is_leaving(&self, ordinal: i64, pod: Pod) -> bool {
        pod.terminating || self.leaving.contains(&ordinal)
    }
}

fn confirmation(set: &Set) -> Action {
    let generation = set.object.int(&["metadata", "generation"]).unwrap_or(0);
    Action::ConfirmSet { uid: set.uid.to_owned(), generation, leaving: set.deleting() }
}

impl Stage {
    /// All its actions, lane by lane.
    pub fn actions(&self) -> impl Iterator<Item = &Action> {
        self.lanes.iter().flatten().flatten()
    }

    /// A stage with one lane per action.
    fn of_each(actions: Vec<Action>) -> Stage {
        Stage { lanes: actions.into_iter().map(|action| vec![vec![action]]).collect() }
    }
}

impl SetPlan {
    /// Whether the plan at most writes the status.
    pub fn is_idle(&self) -> bool {
        self.prepare.is_empty() && self.stages.is_empty() && self.cleanup.is_empty()
    }

    /// Whether the status differs in counts only.
    pub fn status_only_counts(&self, set: &Value) -> bool {
        self.status.as_ref().is_some_and(|wanted| status::differ_in_counts(set, wanted))
    }

    /// Whether the status differs in counts only and the set has not reached its desired state: the counts
    /// will change again soon.
    pub fn status_can_wait(&self, set: &Value) -> bool {
        self.status.as_ref().is_some_and(|wanted| !status::has_arrived(wanted)) && self.status_only_counts(set)
    }

    /// Sets the owners of claims, and nothing else.
    fn own_claims(&mut self, set: &Set, members: &Members, claims: &Claims, moment: Moment) {
        let (actions, events) = claims.own(set, members, moment);
        self.push(Stage::of_each(actions));
        self.events.extend(events);
        self.confirm(set);
    }

    /// Confirms the set before anything else, if an action has effects that outlive the set.
    fn confirm(&mut self, set: &Set) {
        let lasts = |action: &Action| match action {
            Action::OwnClaim { owners, .. } => !owners.is_empty(),
            action => matches!(action, Action::CreateClaim { .. }),
        };
        if self.stages.iter().flat_map(Stage::actions).any(lasts) {
            self.confirm_first(set);
        }
    }

    fn confirm_first(&mut self, set: &Set) {
        if !self.prepare.iter().any(|action| matches!(action, Action::ConfirmSet { .. })) {
            self.prepare.insert(0, confirmation(set));
        }
    }

    fn push(&mut self, stage: Stage) {
        if !stage.lanes.is_empty() {
            self.stages.push(stage);
        }
    }

    /// Adds deletions in several stages: after a failed confirmation the remaining pods are kept.
    fn push_piecemeal(&mut self, lanes: impl IntoIterator<Item = Lane>) {
        let mut lanes = lanes.into_iter().peekable();
        while lanes.peek().is_some() {
            self.push(Stage { lanes: lanes.by_ref().take(ASK_AFTER).collect() });
        }
    }

    /// The set with the status to write when some actions failed, each with the message to report.
    pub fn status_after(&self, set: &Value, failed: &[(&Action, Option<&str>)]) -> Option<Value> {
        let actions: Vec<&Action> = failed.iter().map(|(action, _)| *action).collect();
        let planned = self.status_without(&actions);
        let mut after = planned.clone().unwrap_or_else(|| set.clone());
        let mut told = failed.iter().filter_map(|(action, why)| Some((*action, (*why)?)));
        let refused = told.any(|(action, why)| status::refuse_claim(&mut after, action, why));
        let status = if refused { Some(after) } else { planned };
        // Without what failed, the planned status may equal the current one.
        status.filter(|status| status != set)
    }

    /// The set with the planned status. A pod whose deletion failed, or was not attempted because an earlier
    /// stage failed, is counted again.
    fn status_without(&self, failed: &[&Action]) -> Option<Value> {
        let mut set = self.status.clone()?;
        let is_counted = |action: &&Action| matches!(action, Action::DeletePod { counted: true, .. });
        if self.stages.iter().flat_map(Stage::actions).filter(is_counted).count() == 0 {
            return Some(set);
        }
        // The same confirmation may occur several times in a plan, so actions are compared by address.
        let has_failed = |action: &Action| failed.iter().any(|failed| std::ptr::eq(*failed, action));
        let last = self.stages.iter().position(|stage| stage.actions().any(has_failed));
        let skipped = self.stages.iter().skip(last.map_or(self.stages.len(), |last| last + 1)).flat_map(Stage::actions);
        let kept = failed.iter().copied().chain(skipped).filter(is_counted).count();
        let current = set.int(&["status", "currentReplicas"]).unwrap_or(0);
        if kept > 0 {
            set.put(&["status", "currentReplicas"], current.saturating_add(replicas::count(kept)));
        }
        Some(set)
    }
}

#[cfg(test)]
mod tests;
