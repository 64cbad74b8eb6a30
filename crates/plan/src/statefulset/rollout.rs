//! The rollout to a new revision: the claims of an old pod are updated first; then the pod is deleted and
//! created again at the new revision, or only relabelled if nothing but its claims differs.

use super::claims_in_place::Progress;
use super::pods::{self, Pod};
use super::replicas::{count, delete, label};
use super::set::{Rolling, Strategy};
use super::{Held, Lane, Planner, Stage};

/// An old pod that the rollout may update.
struct Candidate<'a> {
    ordinal: i64,
    pod: Pod<'a>,
    works: bool,
    progress: Progress,
}

/// How many replicas may be updated at once.
struct Budget {
    max: i64,
    /// Replicas that are not available.
    down: i64,
    /// Available replicas whose claims are being updated.
    flying: i64,
    /// Unavailable replicas whose claims are being updated.
    mending: i64,
    /// A replica waits for the budget, so none below it is begun.
    exhausted: bool,
}

impl Budget {
    fn used(&self) -> i64 {
        self.down + self.flying
    }

    /// Whether one more may be begun. An unavailable replica does not use the budget, but limits the number
    /// of concurrent claim updates.
    fn admits(&mut self, works: bool) -> bool {
        if !works {
            return self.flying + self.mending < self.max;
        }
        self.exhausted |= self.used() >= self.max;
        !self.exhausted
    }

    fn under_way(&mut self, works: bool) -> &mut i64 {
        if works { &mut self.flying } else { &mut self.mending }
    }
}

/// The result for a candidate.
enum Move {
    Waits,
    Relabelled,
    Deleted,
}

/// The moves of the rollout: first it completes what is ready, then it begins the next, one replica after the
/// other.
#[derive(Default)]
struct Moves {
    ends: Stage,
    begins: Vec<Stage>,
}

impl<'a> Planner<'a> {
    pub(super) fn roll(&mut self) {
        match self.set.strategy {
            Strategy::Recreate if self.awaits_claims => {}
            Strategy::Recreate => self.roll_within(0, 1),
            Strategy::OnDelete => {
                let old = self.members.replicas.values().filter(|pod| self.is_old(**pod) && !pod.terminating).count();
                if old > 0 {
                    self.plan.held.push(Held::OnDelete { pods: count(old) });
                }
            }
            Strategy::Rolling(rolling) => self.roll_down(rolling),
        }
    }

    /// Deletes all old pods at once, when their claims are ready for the new ones. Returns whether none of
    /// them is terminating, so that pods may be created: new ones, or old ones while claims are not ready.
    /// Pods that differ in claims only are kept.
    pub(super) fn recreate(&mut self) -> bool {
        let members = self.members;
        let Some(waits_for) = members.all().find(|pod| self.must_go(*pod)) else {
            let none_is_old = !members.all().any(|pod| self.is_old(pod));
            if none_is_old && self.revisions.current.name != self.revisions.update.name {
                self.status.recreating("Waiting for new-revision pods to be created");
            }
            return true;
        };
        self.awaits_claims = !self.claims_before_recreation();
        if self.awaits_claims {
            self.status.recreating("Waiting for the claims of old revision pods");
            return true;
        }
        self.status.recreating("Deleting old revision pods");
        // These pods are scaled away, too, so their claims need their owners first.
        if members.condemned.values().any(|pod| self.must_go(*pod)) {
            self.own_condemned_claims();
        }
        let old = members.all().filter(|pod| self.must_go(*pod) && !pod.terminating);
        let lanes: Vec<Lane> = old.map(|pod| vec![vec![delete(pod, false)]]).collect();
        self.plan.push_piecemeal(lanes);
        self.plan.held.push(Held::Terminating { pod: waits_for.name().to_owned() });
        false
    }

    /// Whether the claims of all pods that must be replaced are ready.
    fn claims_before_recreation(&mut self) -> bool {
        let members = self.members;
        let mut ready = true;
        let old = members.replicas.iter().rev().filter(|(_, pod)| !pod.terminating && !pod.is_over());
        for (ordinal, pod) in old.filter(|(_, pod)| self.must_go(**pod)).collect::<Vec<_>>() {
            let progress = self.progress(*ordinal);
            if progress.lacks {
                let claims = self.bring_claims(*ordinal);
                self.last.add(claims);
                self.provided.insert(*ordinal);
            }
            ready &= !progress.lacks && progress.waits.is_none();
            if let Some(wait) = progress.waits {
                self.wait_for_claim(pod.name(), wait);
            }
        }
        ready
    }

    fn roll_down(&mut self, rolling: Rolling) {
        let members = self.members;
        let lowest = rolling.partition.unwrap_or(0).max(0);
        let held_back = members.replicas.range(..lowest).any(|(_, pod)| self.is_old(*pod));
        if let Some(partition) = rolling.partition.filter(|_| held_back) {
            self.plan.held.push(Held::Partition { ordinal: partition });
        }
        let Some(max) = rolling.max_unavailable else { return self.roll_one(lowest) };
        let available = |(ordinal, pod): (&i64, &Pod)| !self.is_leaving(*ordinal, *pod) && self.is_available(*pod);
        let available = count(members.replicas.iter().filter(|replica| available(*replica)).count());
        self.plan.unavailable = Some(self.set.replicas - available);
        self.roll_within(lowest, max);
    }

    /// Updates from the highest ordinal down, as many at once as the budget admits. Unavailable pods come
    /// first. (With OrderedReady there are none here: they stop the plan before the rollout.)
    fn roll_within(&mut self, lowest: i64, max: i64) {
        let members = self.members;
        let claims_only = self.changes_claims_only();
        let works = |ordinal: i64, pod: Pod| !self.is_leaving(ordinal, pod) && self.works(pod, claims_only);
        let down =
            self.set.replicas - count(members.replicas.iter().filter(|(ordinal, pod)| works(**ordinal, **pod)).count());
        let candidates = members.replicas.range(lowest..).rev();
        let candidates = candidates.filter(|(ordinal, pod)| self.is_old(**pod) && !self.is_leaving(**ordinal, **pod));
        let candidates = candidates.map(|(ordinal, pod)| Candidate {
            ordinal: *ordinal,
            pod: *pod,
            works: works(*ordinal, *pod),
            progress: self.progress(*ordinal),
        });
        let (good, broken): (Vec<Candidate>, Vec<Candidate>) = candidates.partition(|candidate| candidate.works);
        let begun = |candidates: &[Candidate]| count(candidates.iter().filter(|it| it.progress.begun).count());
        let mut budget = Budget { max, down, flying: begun(&good), mending: begun(&broken), exhausted: false };
        let mut moves = Moves::default();
        for candidate in broken.into_iter().chain(good) {
            self.advance(candidate, &mut budget, &mut moves);
        }
        self.make(moves);
        if budget.exhausted {
            self.plan.held.push(Held::Budget { unavailable: budget.used(), max });
        }
    }

    /// Makes the next move of an old replica, if the budget admits it.
    fn advance(&mut self, candidate: Candidate<'a>, budget: &mut Budget, moves: &mut Moves) -> Move {
        let Candidate { ordinal, pod, works, progress } = candidate;
        if progress.lacks || progress.waits.is_some() {
            // An unavailable replica for which nothing can be done does not use the budget.
            if !progress.begun && (works || progress.lacks) {
                if !budget.admits(works) {
                    return Move::Waits;
                }
                *budget.under_way(works) += 1;
            }
            if progress.lacks {
                let mut stage = Stage::default();
                stage.add(self.bring_claims(ordinal));
                moves.begins.push(stage);
            }
            if let Some(wait) = progress.waits {
                self.wait_for_claim(pod.name(), wait);
            }
            return Move::Waits;
        }
        if !self.must_go(pod) {
            let Some(relabel) = self.relabel(ordinal, pod) else { return Move::Waits };
            moves.ends.lanes.push(relabel);
            *budget.under_way(works) -= i64::from(progress.begun);
            return Move::Relabelled;
        }
        if works && (budget.down >= budget.max || !(progress.begun || budget.admits(works))) {
            budget.exhausted = true;
            return Move::Waits;
        }
        moves.ends.lanes.push(vec![vec![delete(pod, self.status.leaves(pod))]]);
        *budget.under_way(works) -= i64::from(progress.begun);
        budget.down += i64::from(works);
        Move::Deleted
    }

    /// The rollout without the gate MaxUnavailableStatefulSet: the highest old pod, if all above it are
    /// available.
    fn roll_one(&mut self, lowest: i64) {
        let (members, claims_only) = (self.members, self.changes_claims_only());
        let (mut moves, mut passed_over) = (Moves::default(), false);
        let old = members.replicas.range(lowest..).filter(|(ordinal, pod)| {
            self.set.claims_in_place && self.is_old(**pod) && !self.is_leaving(**ordinal, **pod)
        });
        let lowest_begun = old.map(|(ordinal, _)| *ordinal).find(|ordinal| self.progress(*ordinal).begun);
        for ordinal in (lowest.max(self.set.start)..self.set.end()).rev() {
            let pod = members.replicas.get(&ordinal).copied().filter(|pod| !self.is_leaving(ordinal, *pod));
            let works = pod.is_some_and(|pod| self.works(pod, claims_only));
            let progress = self.progress(ordinal);
            // A replica with a lower ordinal may have been begun because its claim was lost: it comes first.
            let is_next = progress.begun || lowest_begun.is_none_or(|begun| begun > ordinal);
            passed_over |= !is_next && pod.is_some_and(|pod| self.is_old(pod));
            if let Some(pod) = pod.filter(|pod| is_next && self.is_old(*pod)) {
                let mut alone = Budget { max: 1, down: 0, flying: 0, mending: 0, exhausted: false };
                match self.advance(Candidate { ordinal, pod, works, progress }, &mut alone, &mut moves) {
                    Move::Relabelled if !passed_over => {}
                    Move::Relabelled | Move::Waits => break,
                    Move::Deleted => {
                        self.plan.held.push(Held::Terminating { pod: pod.name().to_owned() });
                        break;
                    }
                }
            }
            if !works {
                self.plan.held.push(Held::NotReady { pod: self.set.pod_name(ordinal) });
                break;
            }
        }
        self.make(moves);
    }

    fn make(&mut self, moves: Moves) {
        self.plan.push(moves.ends);
        moves.begins.into_iter().for_each(|stage| self.plan.push(stage));
    }

    /// Sets the pod's revision label without restarting it. Not in a plan that changes the pod otherwise,
    /// because its resourceVersion would be outdated.
    fn relabel(&self, ordinal: i64, pod: Pod) -> Option<Lane> {
        let settled = !self.members.adopted.contains(&ordinal) && pods::lost_labels(self.set, ordinal, pod).is_none();
        let labels = vec![(pods::REVISION_LABEL.to_owned(), self.revisions.update.name.clone())];
        settled.then(|| vec![vec![label(pod, labels)]])
    }

    /// Whether all replicas exist and are ready, some of them not for minReadySeconds, and the rollout
    /// changes only claims, which need not wait for that.
    pub(super) fn lacks_only_time(&self) -> bool {
        let replicas = &self.members.replicas;
        let ready = |(ordinal, pod): (&i64, &Pod)| !self.is_leaving(*ordinal, *pod) && pod.ready;
        count(replicas.len()) == self.set.replicas
            && self.members.condemned.is_empty()
            && replicas.iter().all(ready)
            && replicas.iter().any(|(ordinal, pod)| self.is_rolled(*ordinal, *pod))
            && self.changes_claims_only()
    }

    /// Whether the rollout replaces no pod.
    fn changes_claims_only(&self) -> bool {
        !self.members.replicas.iter().any(|(ordinal, pod)| self.is_rolled(*ordinal, *pod) && self.must_go(*pod))
    }

    fn works(&self, pod: Pod, claims_only: bool) -> bool {
        self.is_available(pod) || (claims_only && pod.ready)
    }

    /// Whether the pod is old and the rollout updates it.
    pub(super) fn is_rolled(&self, ordinal: i64, pod: Pod) -> bool {
        let reached = match self.set.strategy {
            Strategy::Rolling(rolling) => ordinal >= rolling.partition.unwrap_or(0),
            Strategy::Recreate => true,
            Strategy::OnDelete => false,
        };
        reached && self.is_old(pod)
    }

    pub(super) fn is_old(&self, pod: Pod) -> bool {
        pod.revision() != self.revisions.update.name
    }

    /// Whether the pod is old and must be replaced to be at the update revision.
    fn must_go(&self, pod: Pod) -> bool {
        self.is_old(pod) && !self.alike.contains(pod.revision())
    }
}
