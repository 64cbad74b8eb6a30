//! Invariants of claims that follow revisions.

use super::{Judge, is_contested};
use crate::statefulset::{Action, Lane, SetPlan};
use object::Value;
use object::access::{Access, name, terminating, uid};
use object::quantity::Quantity;
use object::selector::LabelSelector;
use std::collections::BTreeSet;

const LABEL: &[&str] = &["metadata", "labels", "controller-revision-hash"];

impl Judge<'_> {
    pub(super) fn claims(&self, plan: &SetPlan) -> Vec<String> {
        let mut broken = self.applies();
        let lanes = plan.stages.iter().flat_map(|stage| &stage.lanes);
        broken.extend(lanes.flat_map(|lane| self.partial_growth(lane)));
        broken.extend(self.ends());
        broken.extend(self.flights());
        broken
    }

    /// A claim is written in the observed version, once per plan, never while it terminates, never to a
    /// smaller size, and only with the policy InPlace.
    fn applies(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let mut written = BTreeSet::new();
        for (_, action) in &self.staged {
            let Action::ApplyClaim { patch, pod, .. } = action else { continue };
            let claim_name = name(patch);
            let version = patch.text(&["metadata", "resourceVersion"]);
            let seen = self.seen.claims.iter().find(|it| name(it) == claim_name && uid(it) == uid(patch));
            let Some(claim) = seen.filter(|it| it.text(&["metadata", "resourceVersion"]) == version) else {
                broken.push(format!("the claim {claim_name} is written in a version that was not observed"));
                continue;
            };
            let size = |object: &Value| {
                object
                    .at(&["spec", "resources", "requests", "storage"])
                    .and_then(Quantity::of)
                    .unwrap_or(Quantity::ZERO)
            };
            let owned =
                self.staged.iter().any(|(_, it)| matches!(it, Action::OwnClaim { claim, .. } if claim == claim_name));
            let forbidden = [
                (!self.wants.in_place, "although the set's policy is not InPlace"),
                (!written.insert(claim_name), "twice"),
                (terminating(claim), "while it is terminating"),
                (size(patch) < size(claim), "to a smaller size"),
                (claim.text(LABEL) == patch.text(LABEL), "although it is at that revision"),
                (patch.text(LABEL).is_empty(), "without a revision"),
                (!self.in_range(pod), "although its pod is scaled away"),
                (owned, "and gets owners in one plan"),
                (patch.has(&["status"]) || patch.has(&["spec", "volumeName"]), "with fields that no template has"),
            ];
            let sentences = forbidden.iter().filter(|(is_so, _)| *is_so);
            broken.extend(sentences.map(|(_, how)| format!("the claim {claim_name} is written {how}")));
        }
        broken
    }

    /// A claim's volume changes only if all claims of its replica can follow: none of them is known to be refused, and the server was
    /// asked about all of them in an earlier step.
    fn partial_growth(&self, lane: &Lane) -> Vec<String> {
        let (mut broken, mut checked) = (Vec::new(), BTreeSet::<&str>::new());
        for step in lane {
            for action in step {
                let Action::ApplyClaim { patch, pod, with_pod, .. } = action else { continue };
                let Some(claim) = self.seen.claims.iter().find(|it| name(it) == name(patch)) else { continue };
                if !changes_volume(patch, claim) {
                    continue;
                }
                let others = self.claims_of(pod).filter(|it| name(it) != name(patch) && !terminating(it));
                for other in others.filter(|it| it.text(LABEL) != patch.text(LABEL)) {
                    let (contested, other_name) = (is_contested(self.seen, name(other)), name(other));
                    if !with_pod && (contested || !is_bound(other)) {
                        broken.push(format!("{} changes while {other_name} cannot", name(patch)));
                    }
                    let is_checked = [name(patch), other_name].iter().all(|it| checked.contains(it));
                    if !(is_checked || contested) {
                        broken.push(format!("{} changes before the server was asked about {other_name}", name(patch)));
                    }
                }
            }
            checked.extend(step.iter().filter_map(|action| match action {
                Action::CheckClaim { patch, .. } => Some(name(patch)),
                _ => None,
            }));
        }
        broken
    }

    /// The rollout deletes or relabels the pod of a working replica only when its claims are at the update
    /// revision and ready.
    fn ends(&self) -> Vec<String> {
        let relabelled = self.staged.iter().filter_map(|(_, action)| match action {
            Action::LabelPod { pod, labels, .. } if labels.iter().any(|(label, _)| label == LABEL[2]) => {
                Some((pod.as_str(), "relabelled"))
            }
            _ => None,
        });
        let deleted = self.deleted().map(|(pod, _, _)| (pod, "deleted")).filter(|(pod, _)| self.is_rolled_over(pod));
        let mut broken = Vec::new();
        for (pod, how) in relabelled.chain(deleted).filter(|(pod, _)| self.wants.in_place && self.in_range(pod)) {
            let unready = self.claims_of(pod).find(|claim| !terminating(claim) && !self.is_ready(claim));
            broken.extend(unready.map(|claim| format!("{pod} is {how} before {} is ready", name(claim))));
            let templates = self.seen.set.items(&["spec", "volumeClaimTemplates"]).iter().map(name);
            if self.claims_of(pod).count() < templates.collect::<BTreeSet<_>>().len() {
                broken.push(format!("{pod} is {how} before all its claims exist"));
            }
        }
        broken
    }

    /// The number of replicas in flight is within the budget, and no replica is begun before one with a
    /// higher ordinal.
    fn flights(&self) -> Vec<String> {
        let strategy = self.seen.set.text(&["spec", "updateStrategy", "type"]);
        if !self.wants.in_place || strategy == "Recreate" {
            return Vec::new();
        }
        // Pods that the selector does not match are about to be released.
        let selector = self.seen.set.at(&["spec", "selector"]).unwrap_or(&Value::Null);
        let Ok(selector) = LabelSelector::from_object(selector) else { return Vec::new() };
        let selected = |pod: &&Value| selector.matches(pod.members(&["metadata", "labels"]));
        // Replicas below the partition are not in flight, whatever state they had reached.
        let partition = self.seen.set.int(&["spec", "updateStrategy", "rollingUpdate", "partition"]).unwrap_or(0);
        let offset = if self.gates.on("StatefulSetOrdinalPartition") { 0 } else { self.wants.ordinals.start };
        let reached = |pod: &&Value| self.ordinal(name(pod)).is_some_and(|at| at >= partition.saturating_add(offset));
        let old = || {
            let chosen = self.replicas().filter(selected).filter(reached);
            chosen.filter(|pod| pod.text(LABEL) != self.update && !terminating(pod))
        };
        let stays = |claim: &&Value| !terminating(claim);
        let flying =
            |pod: &&Value| self.claims_of(name(pod)).filter(stays).any(|claim| claim.text(LABEL) == self.update);
        let applied = |pod: &&Value| {
            self.staged.iter().any(
                |(_, action)| matches!(action, Action::ApplyClaim { pod: of, with_pod: false, .. } if of == name(pod)),
            )
        };
        // A lost claim is created again, whichever replica is next.
        let made = |pod: &&Value| {
            self.staged.iter().any(|(_, action)| match action {
                Action::CreateClaim { pod: of, claim, .. } => of == name(pod) && claim.text(LABEL) == self.update,
                _ => false,
            })
        };
        let begun = |pod: &&Value| applied(pod) || made(pod);
        let ended = |pod: &&Value| {
            self.staged.iter().any(|(_, action)| match action {
                Action::LabelPod { pod: of, labels, .. } => {
                    of == name(pod) && labels.iter().any(|(label, _)| label == LABEL[2])
                }
                Action::DeletePod { pod: of, .. } => of == name(pod),
                _ => false,
            })
        };
        let new = old().filter(|pod| applied(pod) && !flying(pod)).count();
        let stay = old().filter(|pod| flying(pod) && !ended(pod)).count();
        let max = self.wants.unavailable_max;
        let mut broken = Vec::new();
        if new > 0 && i64::try_from(new + stay).unwrap_or(i64::MAX) > max {
            broken.push(format!("{new} replicas are begun in addition to {stay} in flight, with a budget of {max}"));
        }
        let place = |pod: &&Value| self.ordinal(name(pod));
        let highest_left = old().filter(|pod| self.is_available(pod) && !begun(pod) && !flying(pod) && !ended(pod));
        // A replica whose claim cannot be written now does not block the next one.
        let can_begin =
            |claim: &Value| is_bound(claim) && !self.staged.iter().any(|(_, it)| it.owned_claim() == Some(name(claim)));
        let highest_left =
            highest_left.filter(|pod| self.claims_of(name(pod)).all(can_begin)).filter_map(|pod| place(&pod)).max();
        let lowest_new = old()
            .filter(|pod| self.is_available(pod) && applied(pod) && !flying(pod))
            .filter_map(|pod| place(&pod))
            .min();
        if let (Some(left), Some(new)) = (highest_left, lowest_new)
            && left > new
        {
            broken.push(format!("the ordinal {new} is begun before {left}"));
        }
        broken
    }

    /// Whether the rollout replaces the pod; a pod that has terminated is replaced anyway.
    fn is_rolled_over(&self, pod: &str) -> bool {
        self.pod(pod).is_some_and(|pod| {
            pod.text(LABEL) != self.update && !matches!(pod.text(&["status", "phase"]), "Failed" | "Succeeded")
        })
    }

    fn is_ready(&self, claim: &Value) -> bool {
        let mut templates = self.seen.set.items(&["spec", "volumeClaimTemplates"]).iter();
        let template = templates.rfind(|template| {
            name(claim)
                .strip_prefix(name(template))
                .is_some_and(|rest| rest.strip_prefix('-').is_some_and(|pod| self.ordinal(pod).is_some()))
        });
        let size = |value: Option<&Value>| value.and_then(Quantity::of).unwrap_or(Quantity::ZERO);
        let asked = size(claim.at(&["spec", "resources", "requests", "storage"]));
        let wanted = size(template.and_then(|it| it.at(&["spec", "resources", "requests", "storage"])));
        claim.text(LABEL) == self.update
            && size(claim.at(&["status", "capacity", "storage"])) >= asked.min(wanted)
            && claim.text(&["spec", "volumeAttributesClassName"])
                == claim.text(&["status", "currentVolumeAttributesClassName"])
    }
}

fn changes_volume(patch: &Value, claim: &Value) -> bool {
    let size = |object: &Value| object.at(&["spec", "resources", "requests", "storage"]).and_then(Quantity::of);
    let class = |object: &Value| object.text(&["spec", "volumeAttributesClassName"]).to_owned();
    size(patch) != size(claim) || class(patch) != class(claim)
}

fn is_bound(claim: &Value) -> bool {
    claim.text(&["status", "phase"]) == "Bound"
}
