//! Creates missing replicas, replaces terminated ones, and deletes those out of range.

use super::claims::Leaving;
use super::pods::{self, Pod};
use super::revisions::Revision;
use super::set::{Rolling, Strategy};
use super::{Action, Held, Lane, Planner, SetEvent, Stage};
use object::access::Access;

/// The limit of pods that are created concurrently.
const BATCH_MAX: usize = 500;
/// Concurrent writes of claims of one replica: first this many,
const CLAIMS_MIN: usize = 4;
/// then twice as many each time, up to this number. So if a quota refuses one, few others were attempted.
const CLAIMS_MAX: usize = 16;

impl<'a> Planner<'a> {
    /// Handles one replica after the other, in ascending order. Returns whether all exist and are available.
    pub(super) fn in_order(&mut self) -> bool {
        let mut care = Stage::default();
        for ordinal in self.set.start..self.set.end() {
            let held = match self.members.replicas.get(&ordinal) {
                Some(pod) => self.tend(ordinal, *pod, &mut care),
                None => {
                    let creation = self.create(ordinal);
                    self.plan.push(care);
                    match creation {
                        Ok(lane) => {
                            self.plan.push(Stage { lanes: lane.into_iter().collect() });
                            self.plan.held.push(Held::NotReady { pod: self.set.pod_name(ordinal) });
                        }
                        Err(held) => self.plan.held.push(held),
                    }
                    return false;
                }
            };
            if let Some(held) = held {
                self.plan.push(care);
                self.plan.held.push(held);
                return false;
            }
        }
        self.plan.push(care);
        true
    }

    /// Handles all replicas at once. Returns whether none was left for a later plan.
    pub(super) fn at_once(&mut self) -> bool {
        let mut care = Stage::default();
        for (ordinal, pod) in &self.members.replicas {
            let held = self.tend(*ordinal, *pod, &mut care);
            // With Parallel nothing waits for an unready pod.
            self.plan.held.extend(held.filter(|held| !matches!(held, Held::NotReady { .. })));
        }
        self.plan.push(care);
        let mut lanes = Vec::new();
        let members = self.members;
        let missing = (self.set.start..self.set.end()).filter(|ordinal| !members.replicas.contains_key(ordinal));
        for ordinal in missing {
            match self.create(ordinal) {
                Ok(lane) => lanes.extend(lane),
                Err(held) => self.plan.held.push(held),
            }
            if self.output.has_withheld() {
                break;
            }
        }
        let whole = !self.output.has_withheld();
        if !whole {
            self.plan.held.push(Held::Many { missing: self.set.replicas - count(members.replicas.len()) });
        }
        self.plan.slow_start(lanes);
        whole
    }

    /// Maintains an existing replica; returns what an ordered set must wait for.
    fn tend(&mut self, ordinal: i64, pod: Pod<'a>, care: &mut Stage) -> Option<Held> {
        let pod_name = || pod.name().to_owned();
        if pod.is_over() && !pod.terminating {
            care.lanes.push(vec![vec![delete(pod, false)]]);
            self.leaving.insert(ordinal);
        }
        if self.is_leaving(ordinal, pod) {
            return Some(Held::Terminating { pod: pod_name() });
        }
        // An adopted pod has a new resourceVersion by then, so its labels are left to the next plan.
        let labels = pods::lost_labels(self.set, ordinal, pod).filter(|_| !self.members.adopted.contains(&ordinal));
        care.lanes.extend(labels.map(|labels| vec![vec![label(pod, labels)]]));
        let cared_for = pod.is_pending() || (self.set.claims_in_place && !self.is_rolled(ordinal, pod));
        if cared_for && !self.provided.contains(&ordinal) {
            let missing = self.create_claims(ordinal, &self.revision_of_claims(ordinal, pod), false);
            if !missing.is_empty() {
                care.add(missing);
                self.provided.insert(ordinal);
            }
        }
        if pod.is_pending()
            && let Some(Leaving::Terminating(claim)) = self.claims.leaving(self.set, ordinal)
        {
            return Some(Held::ClaimLeaving { pod: pod_name(), claim });
        }
        if !self.is_available(pod) {
            return Some(Held::NotReady { pod: pod_name() });
        }
        let template = pods::lost_volume(self.set, pod)?;
        let why = format!(
            "it does not mount the claim {}, and the volumes of a pod are immutable: delete the pod, so that it is created again",
            self.set.claim_name(template, ordinal)
        );
        self.plan.events.push(SetEvent {
            warning: true,
            reason: "FailedUpdate",
            message: format!("Update Pod {} in StatefulSet {} failed error: {why}", pod.name(), self.set.name),
        });
        Some(Held::Unfit { pod: pod_name(), why })
    }

    /// Creates the missing claims of a replica, then its pod, as far as the allowance admits.
    fn create(&mut self, ordinal: i64) -> Result<Option<Lane>, Held> {
        let pod = self.set.pod_name(ordinal);
        if let Some(stranger) = self.members.strangers.get(&ordinal) {
            if stranger.terminating {
                return Err(Held::Terminating { pod });
            }
            let (by, why) = pods::stranger(self.set, *stranger);
            self.cannot_create(&pod, &why);
            return Err(Held::NameTaken { pod, by });
        }
        match self.claims.leaving(self.set, ordinal) {
            Some(Leaving::Terminating(claim)) => {
                self.cannot_create(&pod, &format!("pvc {claim} is being deleted"));
                return Err(Held::ClaimLeaving { pod, claim });
            }
            Some(Leaving::WithOwner(claim)) => return Err(Held::ClaimLeaving { pod, claim }),
            None => {}
        }
        let revision = self.revision_for(ordinal);
        let mut lane = steps(self.claims_for_creation(ordinal, revision)?);
        // A pod without all its claims would wait for them and occupy a node.
        if !self.output.has_withheld() {
            let pod = self.output.admit(|| pods::build(self.set, ordinal, revision));
            lane.extend(pod.map(|pod| vec![Action::CreatePod(pod)]));
        }
        Ok(Some(lane).filter(|lane| !lane.is_empty()))
    }

    fn cannot_create(&mut self, pod: &str, why: &str) {
        let message = format!("Create Pod {pod} in StatefulSet {} failed error: {why}", self.set.name);
        self.plan.events.push(SetEvent { warning: true, reason: "FailedCreate", message });
    }

    /// The revision of a new pod of this ordinal.
    fn revision_for(&self, ordinal: i64) -> &'a Revision<'a> {
        let Strategy::Rolling(Rolling { partition, .. }) = self.set.strategy else {
            // Old and new pods must not exist at the same time.
            return if self.awaits_claims { &self.revisions.current } else { &self.revisions.update };
        };
        let held_back = match partition {
            Some(partition) => ordinal < partition,
            // Without a rollingUpdate block, an ordered rollout is bounded by its own progress. Not with
            // Parallel: unready pods of an old revision are replaced at once there, and a pod created at the
            // old revision would be replaced for ever.
            None => {
                let current = self.set.object.int(&["status", "currentReplicas"]).unwrap_or(0);
                self.set.ordered && ordinal - self.set.start < current
            }
        };
        if held_back { &self.revisions.current } else { &self.revisions.update }
    }

    /// The revision of a missing claim of this pod: the update revision if the rollout includes the pod.
    fn revision_of_claims(&self, ordinal: i64, pod: Pod) -> Revision<'a> {
        let own = if self.is_rolled(ordinal, pod) { None } else { self.revisions.named(pod.revision()) };
        own.unwrap_or_else(|| self.revisions.update.clone())
    }

    /// Deletes pods that are out of range, in descending order. Returns whether nothing must be waited for.
    pub(super) fn scale_down(&mut self) -> bool {
        if self.members.condemned.is_empty() {
            return true;
        }
        self.own_condemned_claims();
        if !self.set.ordered {
            let leaving = self.members.condemned.values().rev().filter(|pod| !pod.terminating);
            self.plan.push_piecemeal(leaving.map(|pod| vec![vec![delete(*pod, false)]]));
            return true;
        }
        self.scale_down_one();
        false
    }

    /// If several pods are unhealthy, none is deleted except the lowest of them when it is next: the others
    /// may recover, and may hold the only copy of data. Pods that cannot recover do not count.
    fn scale_down_one(&mut self) {
        let condemned = &self.members.condemned;
        let Some((ordinal, pod)) = condemned.last_key_value() else { return };
        let pod_name = pod.name().to_owned();
        let unhealthy = |(ordinal, pod): (&i64, &Pod)| {
            pod.terminating || !(self.is_available(*pod) || self.is_hopeless(*ordinal, *pod))
        };
        let lowest = condemned.iter().find(|one| unhealthy(*one));
        if !pod.terminating && unhealthy((ordinal, pod)) && lowest.is_some_and(|(lowest, _)| lowest != ordinal) {
            self.plan.held.push(Held::NotReady { pod: pod_name });
            return;
        }
        if !pod.terminating {
            self.plan.push(Stage { lanes: vec![vec![vec![delete(*pod, false)]]] });
        }
        self.plan.held.push(Held::Terminating { pod: pod_name });
    }

    /// Whether the pod has terminated, or waits for a claim that will not be created.
    fn is_hopeless(&self, ordinal: i64, pod: Pod) -> bool {
        pod.is_over() || (pod.is_pending() && !self.claims.are_there(self.set, ordinal))
    }
}

impl Stage {
    /// Adds writes to the claims of one replica.
    pub(super) fn add(&mut self, claims: Vec<Action>) {
        self.lanes.extend(Some(steps(claims)).filter(|lane| !lane.is_empty()));
    }
}

/// Writes claims of one replica with growing concurrency, as long as all succeed. An applied size cannot be taken back,
/// so all checks and creations come before the first apply.
fn steps(claims: Vec<Action>) -> Lane {
    let (checks, writes): (Vec<_>, Vec<_>) =
        claims.into_iter().partition(|action| matches!(action, Action::CheckClaim { .. }));
    let (applies, creations): (Vec<_>, Vec<_>) =
        writes.into_iter().partition(|action| matches!(action, Action::ApplyClaim { .. }));
    let mut lane = Lane::new();
    for claims in [checks, creations, applies] {
        let (mut claims, mut size) = (claims.into_iter().peekable(), CLAIMS_MIN);
        while claims.peek().is_some() {
            lane.push(claims.by_ref().take(size).collect());
            size = (size * 2).min(CLAIMS_MAX);
        }
    }
    lane
}

impl super::SetPlan {
    /// Executes lanes with growing concurrency, as long as all succeed: if the cluster refuses pods, few were
    /// attempted.
    fn slow_start(&mut self, lanes: Vec<Lane>) {
        let mut lanes = lanes.into_iter();
        let mut size = 1;
        loop {
            let stage = Stage { lanes: lanes.by_ref().take(size).collect() };
            if stage.lanes.is_empty() {
                return;
            }
            self.stages.push(stage);
            size = (size * 2).min(BATCH_MAX);
        }
    }
}

/// Deletes a pod. An unready pod may be deleted when a ready one must not, so its resourceVersion is a
/// precondition.
pub(super) fn delete(pod: Pod, counted: bool) -> Action {
    let resource_version = (!pod.ready).then(|| pod.object.text(&["metadata", "resourceVersion"]).to_owned());
    Action::DeletePod { pod: pod.name().to_owned(), uid: pod.uid().to_owned(), resource_version, counted }
}

pub(super) fn label(pod: Pod, labels: Vec<(String, String)>) -> Action {
    let resource_version = pod.object.text(&["metadata", "resourceVersion"]).to_owned();
    Action::LabelPod { pod: pod.name().to_owned(), uid: pod.uid().to_owned(), resource_version, labels }
}

pub(super) fn count(many: usize) -> i64 {
    i64::try_from(many).unwrap_or(i64::MAX)
}
