//! The way to a new revision: old pods are deleted, and come back at the new one.

use super::replicas::{count, delete};
use super::set::{Rolling, Strategy};
use super::{Held, Planner, Stage, pods};
use object::Value;
use object::access::{name, terminating};

impl<'a> Planner<'a> {
    pub(super) fn roll(&mut self) {
        match self.set.strategy {
            Strategy::Recreate => {}
            Strategy::OnDelete => {
                let old = self.members.replicas.values().filter(|pod| self.is_old(pod) && !terminating(pod)).count();
                if old > 0 {
                    self.plan.held.push(Held::OnDelete { pods: count(old) });
                }
            }
            Strategy::Rolling(rolling) => self.roll_down(rolling),
        }
    }

    /// All old pods go at once; whether none is left, so that the new ones may come.
    pub(super) fn recreate(&mut self) -> bool {
        let Some(waits_for) = self.members.all().find(|pod| self.is_old(pod)) else {
            if self.revisions.current.name != self.revisions.update.name {
                self.status.recreating("Waiting for new-revision pods to be created");
            }
            return true;
        };
        self.status.recreating("Deleting old revision pods");
        // Also these pods are scaled away, whatever else they are deleted for.
        if self.members.condemned.values().any(|pod| self.is_old(pod)) {
            self.own_condemned_claims();
        }
        let old = self.members.all().filter(|pod| self.is_old(pod) && !terminating(pod));
        let lanes = old.map(|pod| vec![vec![delete(pod, false)]]).collect();
        self.plan.push(Stage { lanes });
        self.plan.held.push(Held::Terminating { pod: name(waits_for).to_owned() });
        false
    }

    fn roll_down(&mut self, rolling: Rolling) {
        let members = self.members;
        let lowest = rolling.partition.unwrap_or(0);
        let held_back = members.replicas.range(..lowest.max(0)).any(|(_, pod)| self.is_old(pod));
        if let Some(partition) = rolling.partition.filter(|_| held_back) {
            self.plan.held.push(Held::Partition { ordinal: partition });
        }
        let Some(max) = rolling.max_unavailable else { return self.roll_one(lowest) };
        let working = |(ordinal, pod): (&i64, &&Value)| !self.is_leaving(*ordinal, pod) && self.is_available(pod);
        let unavailable =
            self.set.replicas - count(members.replicas.iter().filter(|replica| working(*replica)).count());
        self.plan.unavailable = Some(unavailable);
        let candidates = members.replicas.range(lowest.max(0)..).rev();
        let candidates = candidates.filter(|(ordinal, pod)| self.is_old(pod) && !self.is_leaving(**ordinal, pod));
        let (good, broken): (Vec<&Value>, Vec<&Value>) =
            candidates.map(|(_, pod)| *pod).partition(|pod| self.is_available(pod));
        // A broken pod costs nothing to replace. (In order there is none here: it stops everything before the rollout.)
        let budget = usize::try_from((max - unavailable).max(0)).unwrap_or(usize::MAX).min(good.len());
        self.delete_old(broken.into_iter().chain(good[..budget].iter().copied()));
        if budget < good.len() {
            self.plan.held.push(Held::Budget { unavailable: unavailable + count(budget), max });
        }
    }

    /// The way before there was a budget: from the top, the first old pod, if all above it are available.
    fn roll_one(&mut self, lowest: i64) {
        for ordinal in (lowest.max(self.set.start)..self.set.end()).rev() {
            let pod = self.members.replicas.get(&ordinal).copied();
            let leaving = pod.is_none_or(|pod| self.is_leaving(ordinal, pod));
            match pod {
                Some(pod) if self.is_old(pod) && !leaving => {
                    self.delete_old([pod].into_iter());
                    self.plan.held.push(Held::Terminating { pod: name(pod).to_owned() });
                    return;
                }
                Some(pod) if !leaving && self.is_available(pod) => {}
                _ => {
                    self.plan.held.push(Held::NotReady { pod: self.set.pod_name(ordinal) });
                    return;
                }
            }
        }
    }

    fn delete_old(&mut self, old: impl Iterator<Item = &'a Value>) {
        let lanes = old.map(|pod| vec![vec![delete(pod, self.status.leaves(pod))]]).collect();
        self.plan.push(Stage { lanes });
    }

    fn is_old(&self, pod: &Value) -> bool {
        pods::revision(pod) != self.revisions.update.name
    }
}
