//! StatefulSets: what to do about one set, from what is seen of it.
//!
//! The plan leaves nothing to choose: names, revisions, owners and preconditions are in the actions, and an action that meets another
//! world than the one it was planned for is refused by its precondition. A half-done plan is harmless: the next one starts from what is
//! seen then.

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

pub use action::{Action, Event};

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

/// What is seen of a set. Each list may hold more than the set's own: the plan sorts that out.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub set: &'a Value,
    /// The pods that the set controls, and every pod whose name is the set's with an ordinal.
    pub pods: &'a [&'a SeenPod],
    /// The claims whose names follow the set's scheme: a template's name, the set's, an ordinal.
    pub claims: &'a [&'a Value],
    /// The revisions that the set controls, those without controller beside it, and every one whose name begins with the set's.
    pub revisions: &'a [&'a Value],
    /// Claims whose names follow another set's scheme as well: what stands before the ordinal.
    pub contested: &'a BTreeSet<String>,
    /// How much the plan may create and apply.
    pub allowance: Allowance,
}

/// What to do, in this order: `prepare`, `stages`, the status, `cleanup`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Adoptions, releases, revisions: one after the other. When one fails, nothing more happens and the status is not written, but
    /// `cleanup` is still done.
    pub prepare: Vec<Action>,
    /// One after the other. A stage with a failure is the last; the status is written all the same.
    pub stages: Vec<Stage>,
    /// The set with its new status, for its `/status`, when anything changed.
    pub status: Option<Value>,
    /// Old history. Failures there fail nothing else.
    pub cleanup: Vec<Action>,
    /// Why not more is done.
    pub held: Vec<Held>,
    /// What people should know, beyond what the actions say by themselves.
    pub events: Vec<Event>,
    /// Look again then, if nothing happens before.
    pub next: Option<Timestamp>,
    /// Figures for the metrics: the budget of unavailable replicas, and how many are unavailable.
    pub max_unavailable: Option<i64>,
    pub unavailable: Option<i64>,
    /// The size of what the plan creates and applies. Where it has withheld something, another plan must follow.
    pub written: Written,
}

/// Lanes that may go on at once; they have nothing to do with each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stage {
    pub lanes: Vec<Lane>,
}

/// Steps one after the other. All actions of a step are attempted; a step with a failure is the lane's last.
pub type Lane = Vec<Vec<Action>>;

/// Why a replica, or the whole set, waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// The set is being deleted: its pods and claims are the collector's.
    Deleting,
    /// Ordered: this pod must be running, ready and available before anything after it happens.
    NotReady { pod: String },
    /// The pod that bears this name is on its way out.
    Terminating { pod: String },
    /// A pod that is not the set's bears a replica's name.
    NameTaken { pod: String, by: String },
    /// A claim belongs to the pod that went before or to an earlier set of this name, or is on its way out: it must be gone first.
    ClaimLeaving { pod: String, claim: String },
    /// A claim has not become what the update revision says; `reason` is a word for it, `why` a sentence.
    ClaimNotReady { pod: String, claim: String, reason: &'static str, why: String },
    /// A pod cannot be made what the set wants; only another one can.
    Unfit { pod: String, why: String },
    /// More replicas are missing than the plan's allowance admits; the next plan goes on when these exist.
    Many { missing: i64 },
    /// The budget of unavailable replicas is used up.
    Budget { unavailable: i64, max: i64 },
    /// Pods below this ordinal stay at an older revision.
    Partition { ordinal: i64 },
    /// Pods at an older revision stay until somebody deletes them.
    OnDelete { pods: i64 },
    /// What is wrong with the set's own words; nothing happens until they change.
    Unusable { why: String },
}

/// After so many lanes a set may have changed its mind: it is asked again.
const ASK_AFTER: usize = 64;

/// What to do about a set.
pub fn plan(seen: &Seen, gates: &Gates, now: Timestamp) -> Plan {
    let set = match Set::read(seen.set, gates) {
        Ok(set) => set,
        Err(why) => return Plan { held: vec![Held::Unusable { why }], ..Plan::default() },
    };
    let members = Members::of(&set, seen.pods);
    let claims = Claims::of(&set, seen);
    if set.deleting() {
        return farewell(&set, &members, &claims, now);
    }
    if let Some((held, event)) = set.unusable(gates) {
        // Whom claims belong to does not depend on what is wrong.
        let mut plan = Plan { held: vec![held], events: vec![event], ..Plan::default() };
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
        plan: Plan::default(),
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

/// A set that is being deleted: pods are left to the collector, but a policy set just before the deletion still holds. Where the
/// set is to leave its dependents behind, the collector takes its references away; and one that only somebody else's finalizer still holds
/// may have left them behind already, so it gets nothing any more.
fn farewell(set: &Set, members: &Members, claims: &Claims, now: Timestamp) -> Plan {
    let mut plan = Plan { held: vec![Held::Deleting], ..Plan::default() };
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

/// A plan in the making.
struct Planner<'a> {
    set: &'a Set<'a>,
    members: &'a Members<'a>,
    claims: &'a Claims<'a>,
    revisions: &'a Revisions<'a>,
    now: Timestamp,
    plan: Plan,
    status: Status,
    /// The revisions of pods that differ from the update revision in claims alone, if at all.
    alike: BTreeSet<&'a str>,
    /// Claims whose owners this plan changes: by then they have another resourceVersion than the one that is seen.
    reowned: BTreeSet<String>,
    /// The ordinals of pods whose missing claims this plan creates already.
    provided: BTreeSet<i64>,
    /// Pods are recreated when their claims are ready, and they are not.
    awaits_claims: bool,
    /// What is done last, so that it fails nothing else.
    last: Stage,
    /// The ordinals of replicas that this plan deletes before it comes to the rollout.
    leaving: BTreeSet<i64>,
    /// Claims of condemned pods get their owners at the moment of scaling, which this plan has come to.
    scaling: bool,
    /// What the plan creates and applies, within its allowance.
    output: Output,
}

impl Planner<'_> {
    /// First all replicas, then those too many, then the new revision.
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

    fn finish(mut self, gates: &Gates) -> Plan {
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

    /// Whom claims belong to does not depend on anybody's health, so it is settled before anything else happens: what is deleted
    /// after this, by whomever, takes with it what the policy says now.
    fn own_claims_first(&mut self) {
        let moment = if self.scaling { Moment::BeforeScaling } else { Moment::Any };
        let (actions, events) = self.claims.own(self.set, self.members, moment);
        if !actions.is_empty() {
            self.plan.stages.insert(0, Stage::of_each(actions));
        }
        self.plan.events.extend(events);
    }

    /// Who becomes an owner must be there to stay. Where a set is deleted so that its claims are left behind, and its deletion is not
    /// seen yet, claims that lost their owner seem to want it back; with it they would be collected. And claims outlive their set: one that
    /// is made for a set that is gone, or by words that no longer hold, is what the next set of that name gets.
    ///
    /// And where claims go with replicas that are scaled away, the set must still want that when they go. A plan may be long: the set is asked
    /// again whenever something took its time since it was asked.
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
        // What is done since the set was asked, or the plan began; and whether there is more to it than owners of claims.
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

    /// The claims of pods that are scaled away, before the first of them is deleted.
    fn own_condemned_claims(&mut self) {
        self.scaling = true;
        let (actions, events) = self.claims.own(self.set, self.members, Moment::Scaling);
        self.plan.push(Stage::of_each(actions));
        self.plan.events.extend(events);
    }

    fn is_available(&self, pod: Pod) -> bool {
        pod.is_available(self.set, self.now)
    }

    /// On its way out, or sent there by this plan.
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

    /// Each action for itself.
    fn of_each(actions: Vec<Action>) -> Stage {
        Stage { lanes: actions.into_iter().map(|action| vec![vec![action]]).collect() }
    }
}

impl Plan {
    /// Whether there is nothing to do but to say how things are.
    pub fn is_idle(&self) -> bool {
        self.prepare.is_empty() && self.stages.is_empty() && self.cleanup.is_empty()
    }

    /// Whether the status says nothing new but counts.
    pub fn status_only_counts(&self, set: &Value) -> bool {
        self.status.as_ref().is_some_and(|wanted| status::differ_in_counts(set, wanted))
    }

    /// Whether the status says nothing new but counts, of a set that is not yet where it is going: they will change again soon.
    pub fn status_can_wait(&self, set: &Value) -> bool {
        self.status.as_ref().is_some_and(|wanted| !status::has_arrived(wanted)) && self.status_only_counts(set)
    }

    /// Settles whom claims belong to, and nothing else.
    fn own_claims(&mut self, set: &Set, members: &Members, claims: &Claims, moment: Moment) {
        let (actions, events) = claims.own(set, members, moment);
        self.push(Stage::of_each(actions));
        self.events.extend(events);
        self.confirm(set);
    }

    /// Has the set confirmed before anything else, if something is done that outlasts it.
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

    /// Pushes deletions, but not all in one go: whoever changes their mind meanwhile keeps the rest.
    fn push_piecemeal(&mut self, lanes: impl IntoIterator<Item = Lane>) {
        let mut lanes = lanes.into_iter().peekable();
        while lanes.peek().is_some() {
            self.push(Stage { lanes: lanes.by_ref().take(ASK_AFTER).collect() });
        }
    }

    /// The set with the status to write, when some actions of the plan for it failed, with what is to be told of each.
    pub fn status_after(&self, set: &Value, failed: &[(&Action, Option<&str>)]) -> Option<Value> {
        let actions: Vec<&Action> = failed.iter().map(|(action, _)| *action).collect();
        let planned = self.status_without(&actions);
        let mut after = planned.clone().unwrap_or_else(|| set.clone());
        let mut told = failed.iter().filter_map(|(action, why)| Some((*action, (*why)?)));
        let refused = told.any(|(action, why)| status::refuse_claim(&mut after, action, why));
        let status = if refused { Some(after) } else { planned };
        // What was planned may be as it was, without what failed.
        status.filter(|status| status != set)
    }

    /// The set with the planned status: a pod whose deletion failed, or was never attempted because a stage before it failed, is
    /// not gone after all.
    fn status_without(&self, failed: &[&Action]) -> Option<Value> {
        let mut set = self.status.clone()?;
        let is_counted = |action: &&Action| matches!(action, Action::DeletePod { counted: true, .. });
        if self.stages.iter().flat_map(Stage::actions).filter(is_counted).count() == 0 {
            return Some(set);
        }
        // The set may be asked several times, always by the same words.
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
