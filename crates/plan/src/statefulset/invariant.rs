//! Invariants of plans, checked on the observed objects and without code of the planner. Tests and
//! simulations check every plan.

mod in_place;

use super::{Action, Seen, SetPlan};
use crate::allowance::{self, Written};
use jiff::{SignedDuration, Timestamp};
use object::access::{Access, controller, name, terminating, uid};
use object::{Gates, Value, condition};
use std::collections::BTreeSet;
use std::ops::Range;

/// The spec of a set, as far as plans are checked by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wants {
    pub ordinals: Range<i64>,
    pub ordered: bool,
    /// Claims are deleted with the set, or with a replica that is scaled away.
    pub deleted: bool,
    pub scaled: bool,
    /// Claims follow the revision of their pod.
    pub in_place: bool,
    /// The number of replicas that a rollout may make unavailable,
    pub unavailable_max: i64,
    /// or all of them with the strategy Recreate.
    pub recreates: bool,
}

impl Wants {
    pub fn of(set: &Value, gates: &Gates) -> Wants {
        let start = if gates.on("StatefulSetStartOrdinal") { set.int(&["spec", "ordinals", "start"]) } else { None };
        let start = start.unwrap_or(0).max(0);
        let replicas = set.int(&["spec", "replicas"]).unwrap_or(1).max(0);
        let policy = |half: &str| {
            gates.on("StatefulSetAutoDeletePVC")
                && set.text(&["spec", "persistentVolumeClaimRetentionPolicy", half]) == "Delete"
        };
        Wants {
            ordinals: start..start.saturating_add(replicas),
            ordered: set.text(&["spec", "podManagementPolicy"]) != "Parallel",
            deleted: policy("whenDeleted"),
            scaled: policy("whenScaled"),
            in_place: set.text(&["spec", "volumeClaimUpdatePolicy"]) == "InPlace"
                && gates.on("StatefulSetUpdateVolumeClaimTemplate"),
            unavailable_max: unavailable_max(set, replicas, gates),
            recreates: set.text(&["spec", "updateStrategy", "type"]) == "Recreate",
        }
    }
}

/// Whether a claim of this name also belongs to another set.
fn is_contested(seen: &Seen, claim: &str) -> bool {
    claim.rsplit_once('-').is_some_and(|(stem, _)| seen.contested.contains(stem))
}

/// Whether an owner is the set or its pod.
fn is_ours(owner: &Value, set: &Value, pod: &str) -> bool {
    owner.text(&["uid"]) == uid(set) || (owner.text(&["kind"]) == "Pod" && owner.text(&["name"]) == pod)
}

fn unavailable_max(set: &Value, replicas: i64, gates: &Gates) -> i64 {
    let max = match set.at(&["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"]) {
        _ if !gates.on("MaxUnavailableStatefulSet") => None,
        Some(Value::String(share)) => {
            share.trim_end_matches('%').parse::<i64>().ok().map(|share| share.saturating_mul(replicas) / 100)
        }
        other => other.and_then(Value::as_i64),
    };
    max.unwrap_or(1).max(1)
}

/// The limit of concurrent actions for one replica.
const STEP_MAX: usize = 16;

/// Returns a sentence for every invariant that the plan violates.
pub fn check(seen: &Seen, plan: &SetPlan, gates: &Gates, now: Timestamp) -> Vec<String> {
    let stages = plan.stages.iter().enumerate();
    let staged = stages.flat_map(|(stage, it)| it.actions().map(move |action| (stage, action)));
    let update = plan.status.as_ref().unwrap_or(seen.set).text(&["status", "updateRevision"]);
    let judge = Judge { seen, wants: Wants::of(seen.set, gates), gates, now, staged: staged.collect(), update };
    let mut broken = judge.names();
    broken.extend(judge.deletions());
    broken.extend(judge.budget());
    broken.extend(judge.order());
    broken.extend(judge.owners());
    broken.extend(judge.claims(plan));
    broken.extend(size(seen, plan));
    broken
}

/// What a plan creates and applies stays within its allowance, except for the last object; only few claims of
/// a replica are written concurrently.
fn size(seen: &Seen, plan: &SetPlan) -> Vec<String> {
    let (mut written, mut broken) = (Written { withheld: plan.written.withheld, ..Written::default() }, Vec::new());
    let steps = plan.stages.iter().flat_map(|stage| &stage.lanes).flatten();
    if let Some(wide) = steps.clone().map(Vec::len).find(|actions| *actions > STEP_MAX) {
        broken.push(format!("{wide} actions of one step are done at once, more than {STEP_MAX}"));
    }
    for action in steps.flatten() {
        let object = match action {
            Action::CreatePod(object) | Action::CreateClaim { claim: object, .. } => object,
            Action::ApplyClaim { patch, .. } => patch,
            _ => continue,
        };
        let bytes = allowance::size(object);
        written.objects += 1;
        written.bytes += bytes;
        written.largest_bytes = written.largest_bytes.max(bytes);
    }
    if written != plan.written {
        broken.push(format!("the plan writes {written:?} and says {:?}", plan.written));
    }
    let allowance = seen.allowance;
    let exceeds = written.bytes >= allowance.bytes.saturating_add(written.largest_bytes) && written.objects > 0;
    if written.objects > allowance.objects || exceeds {
        broken.push(format!("the plan writes {written:?} and may write {allowance:?}"));
    }
    broken
}

struct Judge<'a> {
    seen: &'a Seen<'a>,
    wants: Wants,
    gates: &'a Gates,
    now: Timestamp,
    /// The actions with the index of their stage.
    staged: Vec<(usize, &'a Action)>,
    /// The update revision.
    update: &'a str,
}

impl Judge<'_> {
    /// No ordinal exists twice: a created object does not exist yet, is created once, and is in range.
    fn names(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let mut made = BTreeSet::new();
        for (_, action) in &self.staged {
            let (kind, object, is_there) = match action {
                Action::CreatePod(pod) => ("pod", pod, self.pod(name(pod)).is_some()),
                Action::CreateClaim { claim, .. } => {
                    ("claim", claim, self.seen.claims.iter().any(|other| name(other) == name(claim)))
                }
                _ => continue,
            };
            if is_there {
                broken.push(format!("the {kind} {} is created although it exists", name(object)));
            }
            if !made.insert((kind, name(object))) {
                broken.push(format!("the {kind} {} is created twice", name(object)));
            }
            if kind == "pod" && !self.ordinal(name(object)).is_some_and(|at| self.wants.ordinals.contains(&at)) {
                broken.push(format!("the pod {} is created outside of the range", name(object)));
            }
        }
        broken
    }

    /// Pods are deleted once, only the set's own, and none while the set itself is being deleted.
    fn deletions(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let mut gone = BTreeSet::new();
        for (pod_name, pod_uid, _) in self.deleted() {
            let ours = self.pod(pod_name).is_some_and(|pod| {
                let owner = controller(pod).map(|owner| owner.text(&["uid"]));
                uid(pod) == pod_uid && owner.is_none_or(|owner| owner == uid(self.seen.set))
            });
            if !ours {
                broken.push(format!("the pod {pod_name} is deleted although it does not belong to the set"));
            }
            if !gone.insert(pod_name) {
                broken.push(format!("the pod {pod_name} is deleted twice"));
            }
        }
        if terminating(self.seen.set) && self.staged.iter().any(|(_, it)| !matches!(it, Action::OwnClaim { .. })) {
            broken.push("pods or claims are created or deleted although the set is being deleted".to_owned());
        }
        broken
    }

    /// A rollout never deletes more available replicas than the budget allows.
    fn budget(&self) -> Vec<String> {
        let working = self.replicas().filter(|pod| self.is_available(pod)).count();
        let working = i64::try_from(working).unwrap_or(i64::MAX);
        let replicas = self.wants.ordinals.end - self.wants.ordinals.start;
        let taken = self.deleted().filter_map(|(pod, _, _)| self.pod(pod)).filter(|pod| {
            self.ordinal(name(pod)).is_some_and(|at| self.wants.ordinals.contains(&at)) && self.is_available(pod)
        });
        let taken = i64::try_from(taken.count()).unwrap_or(i64::MAX);
        let max = self.wants.unavailable_max;
        // Without the feature gate, pods below the updated one do not count.
        let unavailable = if self.gates.on("MaxUnavailableStatefulSet") { replicas - working } else { 0 };
        let broken = !self.wants.recreates && taken > 0 && unavailable + taken > max;
        broken
            .then(|| format!("{taken} available pods are deleted with {unavailable} unavailable and a budget of {max}"))
            .into_iter()
            .collect()
    }

    /// With OrderedReady a pod is created alone, when all below it are available; and no pod out of range is
    /// deleted before all in range are available.
    fn order(&self) -> Vec<String> {
        if !self.wants.ordered {
            return Vec::new();
        }
        let mut broken = Vec::new();
        let created: Vec<i64> = self
            .staged
            .iter()
            .filter_map(|(_, action)| match action {
                Action::CreatePod(pod) => self.ordinal(name(pod)),
                _ => None,
            })
            .collect();
        if created.len() > 1 {
            broken.push(format!("the ordinals {created:?} are created concurrently"));
        }
        let whole_below = |end: i64| {
            let available = self.replicas().filter(|pod| self.is_available(pod));
            let below = available.filter(|pod| self.ordinal(name(pod)).is_some_and(|at| at < end)).count();
            i64::try_from(below).is_ok_and(|below| below == end - self.wants.ordinals.start)
        };
        if let Some(ordinal) = created.iter().find(|ordinal| !whole_below(**ordinal)) {
            broken.push(format!("the ordinal {ordinal} is created although not all below it are available"));
        }
        let scaled: Vec<&str> = self.deleted().map(|(pod, _, _)| pod).filter(|pod| !self.in_range(pod)).collect();
        if !self.wants.recreates && (scaled.len() > 1 || (!scaled.is_empty() && !whole_below(self.wants.ordinals.end)))
        {
            broken.push(format!("{scaled:?} are scaled away too early or together"));
        }
        broken
    }

    /// With whenScaled Delete, the claims of a pod are owned by it before it is scaled away. No claim gets
    /// the set or its pod as an owner otherwise, and other owners are kept.
    fn owners(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let mut owned = BTreeSet::new();
        for (_, action) in &self.staged {
            let Action::OwnClaim { claim, uid: claim_uid, owners, pod, .. } = action else { continue };
            let Some(found) = self.seen.claims.iter().find(|it| name(it) == claim && uid(it) == claim_uid) else {
                broken.push(format!("the claim {claim} does not exist, but gets owners"));
                continue;
            };
            if !owned.insert(claim) {
                broken.push(format!("the claim {claim} gets owners twice, so the second time is refused"));
            }
            if terminating(found) {
                broken.push(format!("the claim {claim} gets owners while it is terminating"));
            }
            let gains =
                |kind: &str| owners.iter().any(|owner| owner.text(&["kind"]) == kind && owner.flag(&["controller"]));
            if gains("Pod") && (!self.wants.scaled || self.in_range(pod)) {
                broken.push(format!("the claim {claim} is to be deleted with its pod, which is kept"));
            }
            if owners.iter().any(|it| it.text(&["uid"]) == uid(self.seen.set)) && !self.wants.deleted {
                broken.push(format!("the claim {claim} is to be deleted with the set, whose policy is Retain"));
            }
            if is_contested(self.seen, claim) && owners.iter().any(|it| is_ours(it, self.seen.set, pod)) {
                broken
                    .push(format!("the claim {claim} also belongs to another set, and is to be deleted with this one"));
            }
            let foreign = |owner: &&Value| {
                let named = owner.text(&["name"]);
                named != name(self.seen.set) && named != pod
            };
            let kept: Vec<&Value> = found.items(&["metadata", "ownerReferences"]).iter().filter(foreign).collect();
            if kept != owners.iter().filter(foreign).collect::<Vec<_>>() {
                broken.push(format!("the claim {claim} loses an owner that is not the set or its pod"));
            }
            if owners.iter().filter(|owner| owner.flag(&["controller"])).count() > 1 {
                broken.push(format!("the claim {claim} gets two controllers"));
            }
        }
        broken.extend(self.scaled_away_without_claims());
        broken
    }

    fn scaled_away_without_claims(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for (pod_name, pod_uid, stage) in self.deleted().filter(|(pod, _, _)| self.wants.scaled && !self.in_range(pod))
        {
            for claim in self.claims_of(pod_name) {
                let owners = claim.items(&["metadata", "ownerReferences"]);
                let others = owners.iter().any(|owner| {
                    let ours = [uid(self.seen.set), pod_uid].contains(&owner.text(&["uid"]));
                    let alike = [name(self.seen.set), pod_name].contains(&owner.text(&["name"]));
                    !ours && (owner.flag(&["controller"]) || alike)
                });
                let others = others || is_contested(self.seen, name(claim));
                let has = owners.iter().any(|owner| owner.text(&["uid"]) == pod_uid && owner.flag(&["controller"]));
                let gets = self.staged.iter().any(|(at, action)| {
                    matches!(action, Action::OwnClaim { claim: owned, owners, .. }
                        if owned == name(claim) && owners.iter().any(|owner| owner.text(&["uid"]) == pod_uid))
                        && *at < stage
                });
                if !(terminating(claim) || others || has || gets) {
                    broken.push(format!("{pod_name} is scaled away before it owns {}", name(claim)));
                }
            }
        }
        broken
    }

    /// Name, uid and stage of each pod that is deleted.
    fn deleted(&self) -> impl Iterator<Item = (&str, &str, usize)> {
        self.staged.iter().filter_map(|(stage, action)| match action {
            Action::DeletePod { pod, uid, .. } => Some((pod.as_str(), uid.as_str(), *stage)),
            _ => None,
        })
    }

    fn claims_of(&self, pod: &str) -> impl Iterator<Item = &Value> {
        let templates = self.seen.set.items(&["spec", "volumeClaimTemplates"]).iter();
        let names: Vec<String> = templates.map(|template| format!("{}-{pod}", name(template))).collect();
        self.seen.claims.iter().copied().filter(move |claim| names.iter().any(|it| it == name(claim)))
    }

    fn pods(&self) -> impl Iterator<Item = &Value> {
        self.seen.pods.iter().map(|pod| &*pod.object)
    }

    fn pod(&self, pod_name: &str) -> Option<&Value> {
        self.pods().find(|pod| name(pod) == pod_name)
    }

    /// The set's pods in range, including those without a controller, which the plan adopts.
    fn replicas(&self) -> impl Iterator<Item = &Value> {
        self.pods().filter(|pod| {
            let owner = controller(pod).map(|owner| owner.text(&["uid"]));
            self.in_range(name(pod)) && owner.is_none_or(|owner| owner == uid(self.seen.set))
        })
    }

    fn in_range(&self, pod: &str) -> bool {
        self.ordinal(pod).is_some_and(|ordinal| self.wants.ordinals.contains(&ordinal))
    }

    fn ordinal(&self, pod: &str) -> Option<i64> {
        pod.strip_prefix(name(self.seen.set))?.strip_prefix('-')?.parse().ok()
    }

    fn is_available(&self, pod: &Value) -> bool {
        let min_ready = self.seen.set.int(&["spec", "minReadySeconds"]).unwrap_or(0);
        let ready = condition::get(pod, "Ready").filter(|ready| ready.text(&["status"]) == "True");
        let since = ready.and_then(|ready| ready.text(&["lastTransitionTime"]).parse::<Timestamp>().ok());
        let until = since.and_then(|since| since.checked_add(SignedDuration::from_secs(min_ready)).ok());
        pod.text(&["status", "phase"]) == "Running"
            && !terminating(pod)
            && ready.is_some()
            && (min_ready == 0 || until.is_some_and(|until| until <= self.now))
    }
}
