//! Claims of a set: those that pods need, and whom each belongs to.
//!
//! A claim is deleted by the garbage collector when its last owner is gone. So a retention policy is nothing but references: to the
//! set, while the claim is to go with the set; to the pod, once the replica is scaled away and its claim is to go with it.

use super::pods::{self, Members, Pod};
use super::revisions::Revision;
use super::set::Set;
use super::{Action, Seen, SetEvent as Event};
use object::access::{self, Access, name, terminating, uid};
use object::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The claims that follow the set's naming scheme, whether they have a pod or not, by ordinal and name.
#[derive(Debug)]
pub(super) struct Claims<'a> {
    found: BTreeMap<(i64, &'a str), &'a Value>,
    /// Those of another set, too, by what stands before the ordinal: they go with neither.
    contested: &'a BTreeSet<String>,
}

/// Why a claim cannot be used by a pod that is to be created.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    /// It belongs to the pod that went before, or to an earlier set of this name, and goes with it.
    WithOwner(String),
    Terminating(String),
}

/// Which claims get their owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// All, whatever state the set is in.
    Any,
    /// All but those of condemned pods: their moment comes in this plan.
    BeforeScaling,
    /// Those of condemned pods, which are about to be deleted: now the claims come to belong to them.
    Scaling,
    /// All, but none gets an owner that it does not have: they only lose some.
    TooLate,
}

impl<'a> Claims<'a> {
    pub fn of(set: &Set<'a>, seen: &Seen<'a>) -> Claims<'a> {
        let ours = seen.claims.iter().copied().filter(|claim| access::namespace(claim) == set.namespace);
        let found = ours.filter_map(|claim| Some(((set.claim_ordinal(name(claim))?, name(claim)), claim))).collect();
        Claims { found, contested: seen.contested }
    }

    pub(super) fn is_contested(&self, claim: &str) -> bool {
        claim.rsplit_once('-').is_some_and(|(stem, _)| self.contested.contains(stem))
    }

    /// The templates whose claims a replica lacks.
    pub fn missing<'s>(&'s self, set: &'s Set<'a>, ordinal: i64) -> impl Iterator<Item = &'a Value> + 's {
        set.claim_templates.iter().copied().filter(move |template| self.get(set, ordinal, template).is_none())
    }

    /// A new claim of a template for a replica at this revision.
    pub fn build(&self, set: &Set, template: &Value, ordinal: i64, revision: &Revision) -> Value {
        let mut claim = build(set, template, ordinal, revision);
        if self.is_contested(name(&claim)) {
            claim.cut(&["metadata", "ownerReferences"]);
        }
        claim
    }

    /// The claim of a template.
    pub fn get(&self, set: &Set, ordinal: i64, template: &Value) -> Option<&'a Value> {
        self.found.get(&(ordinal, set.claim_name(template, ordinal).as_str())).copied()
    }

    /// Whether a pod of this ordinal has all its claims, to stay.
    pub fn are_there(&self, set: &Set, ordinal: i64) -> bool {
        self.of_ordinal(ordinal).filter(|claim| !terminating(claim)).count() == set.claim_templates.len()
    }

    /// The first claim that must be gone before a pod of this ordinal is created.
    pub fn leaving(&self, set: &Set, ordinal: i64) -> Option<Leaving> {
        let belongs = |claim: &Value| {
            let pod = set.pod_name(ordinal);
            let with_pod = |owner: &Value| set.retention.with_replica && is_pod(owner, &pod);
            owners(claim).iter().any(|owner| with_pod(owner) || is_namesake(owner, set))
        };
        self.of_ordinal(ordinal).find_map(|claim| {
            if terminating(claim) {
                Some(Leaving::Terminating(name(claim).to_owned()))
            } else if belongs(claim) {
                Some(Leaving::WithOwner(name(claim).to_owned()))
            } else {
                None
            }
        })
    }

    /// What gives claims the owners they should have, and what is to be told about those that belong to others.
    pub fn own(&self, set: &Set, members: &Members, moment: Moment) -> (Vec<Action>, Vec<Event>) {
        let (mut actions, mut events) = (Vec::new(), Vec::new());
        let policy = set.retention;
        for ((ordinal, _), claim) in &self.found {
            // Most claims belong to nobody, and are to.
            if !policy.with_set && !policy.with_replica && owners(claim).is_empty() {
                continue;
            }
            let condemned = members.condemned.contains_key(ordinal);
            match moment {
                Moment::BeforeScaling if condemned => continue,
                Moment::Scaling if !condemned => continue,
                _ => {}
            }
            let pod = members.get(*ordinal);
            let contested = self.is_contested(name(claim));
            let seat = Seat { set, pod_name: set.pod_name(*ordinal), pod, condemned, contested, moment };
            let wanted = seat.wanted(claim);
            if seat.conflicts(claim) && seat.is_news(wanted.is_some()) {
                events.push(if contested { contest(name(claim)) } else { conflict(name(claim)) });
            }
            actions.extend(wanted.map(|owners| Action::OwnClaim {
                claim: name(claim).to_owned(),
                uid: uid(claim).to_owned(),
                resource_version: claim.text(&["metadata", "resourceVersion"]).to_owned(),
                owners,
                pod: seat.pod_name,
            }));
        }
        (actions, events)
    }

    fn of_ordinal(&self, ordinal: i64) -> impl Iterator<Item = &'a Value> + '_ {
        self.found.range((ordinal, "")..).take_while(move |((at, _), _)| *at == ordinal).map(|(_, claim)| *claim)
    }
}

/// The replica that a claim is for.
struct Seat<'s, 'a> {
    set: &'s Set<'a>,
    pod_name: String,
    pod: Option<Pod<'a>>,
    condemned: bool,
    contested: bool,
    moment: Moment,
}

impl Seat<'_, '_> {
    /// All owners that the claim should have, when they are others than it has.
    fn wanted(&self, claim: &Value) -> Option<Vec<Value>> {
        let (ours, others): (Vec<&Value>, Vec<&Value>) = owners(claim).iter().partition(|owner| self.is_ours(owner));
        let policy = self.set.retention;
        // With `whenScaled: Delete` it is on its way out together with a pod that went before.
        let goes = |owner: &&Value| {
            policy.with_replica && is_pod(owner, &self.pod_name) && owner.text(&["uid"]) != self.pod_uid()
        };
        let of_namesake = ours.iter().any(|owner| is_namesake(owner, self.set));
        if terminating(claim) || of_namesake || ours.iter().any(goes) {
            return None;
        }
        let wanted =
            if self.conflicts(claim) { None } else { self.owner(!ours.iter().all(|it| is_set(it, self.set.name))) };
        let has = |wanted: &Value| ours.iter().any(|it| it.text(&["uid"]) == wanted.text(&["uid"]));
        let settled = match (&wanted, ours.as_slice()) {
            (None, []) => true,
            (Some(wanted), _) if self.moment == Moment::TooLate && !has(wanted) => true,
            (Some(wanted), [only]) => same_reference(wanted, only),
            _ => false,
        };
        (!settled).then(|| others.into_iter().cloned().chain(wanted).collect())
    }

    /// The one owner by policy. A condemned pod gets its claims when it is about to be deleted, and keeps those it has.
    fn owner(&self, has_pod: bool) -> Option<Value> {
        let policy = self.set.retention;
        let with_pod = policy.with_replica && self.condemned && (self.moment == Moment::Scaling || has_pod);
        match self.pod {
            Some(pod) if with_pod => Some(json!({
                "apiVersion": "v1", "kind": "Pod", "name": self.pod_name, "uid": pod.uid(),
                "controller": true, "blockOwnerDeletion": false,
            })),
            _ => policy.with_set.then(|| self.set.reference(false)),
        }
    }

    /// Somebody else controls the claim, or may have data in it, so the policy does not hold for it.
    fn conflicts(&self, claim: &Value) -> bool {
        let policy = self.set.retention;
        let others = || owners(claim).iter().any(|owner| owner.flag(&["controller"]) && !self.is_ours(owner));
        (policy.with_set || policy.with_replica) && (self.contested || others())
    }

    /// People are told when something happens that the policy would matter for, not all the time.
    fn is_news(&self, changes: bool) -> bool {
        changes || self.moment == Moment::Scaling || self.pod.is_none_or(|pod| pod.is_pending()) || !self.set.observed()
    }

    fn is_ours(&self, owner: &Value) -> bool {
        is_set(owner, self.set.name) || is_pod(owner, &self.pod_name)
    }

    fn pod_uid(&self) -> &str {
        self.pod.map_or("", |pod| pod.uid())
    }
}

/// The references that a claim has to the set and to the pod of this name. One that it has twice is there once: the list is keyed by
/// uid, and a claim that repeats one could never be applied.
pub(super) fn own_references(set: &Set, claim: &Value, pod: &str) -> Vec<Value> {
    let mut seen = BTreeSet::new();
    let ours = owners(claim).iter().filter(|owner| is_set(owner, set.name) || is_pod(owner, pod));
    ours.filter(|owner| seen.insert(owner.text(&["uid"]))).cloned().collect()
}

fn owners(claim: &Value) -> &[Value] {
    claim.items(&["metadata", "ownerReferences"])
}

fn is_set(owner: &Value, name: &str) -> bool {
    is_reference(owner, "apps/v1", "StatefulSet", name)
}

/// An earlier set of this name: what belongs to it is the collector's, to delete or to set free. A pod that used it meanwhile could
/// be placed by a claim that goes, and the two would wait for each other.
fn is_namesake(owner: &Value, set: &Set) -> bool {
    is_set(owner, set.name) && owner.text(&["uid"]) != set.uid
}

fn is_pod(owner: &Value, name: &str) -> bool {
    is_reference(owner, "v1", "Pod", name)
}

fn is_reference(owner: &Value, api_version: &str, kind: &str, name: &str) -> bool {
    owner.text(&["apiVersion"]) == api_version && owner.text(&["kind"]) == kind && owner.text(&["name"]) == name
}

/// Whether a reference is as we write it; a flag that is left out is false.
fn same_reference(wanted: &Value, found: &Value) -> bool {
    ["kind", "uid"].iter().all(|field| wanted.text(&[field]) == found.text(&[field]))
        && ["controller", "blockOwnerDeletion"].iter().all(|field| wanted.flag(&[field]) == found.flag(&[field]))
}

fn conflict(claim: &str) -> Event {
    let message = format!(
        "PersistentVolumeClaim {claim} has a conflicting OwnerReference that acts as a manging controller, the retention policy \
         is ignored for this claim"
    );
    Event { warning: true, reason: "ConflictingController", message }
}

fn contest(claim: &str) -> Event {
    let message = format!(
        "PersistentVolumeClaim {claim} is by its name a claim of another StatefulSet, too: the retention policy is ignored for this \
         claim. Give the claim template or one of the sets another name; once one of the two sets is gone, the policy of the other \
         holds for all claims of these names"
    );
    Event { warning: true, reason: object::well_known::CONTESTED_CLAIM, message }
}

/// A claim of a replica that stays. It belongs to the set from its first moment, or a set deleted right now would leave it behind.
/// Where claims follow revisions it is of the given one, otherwise of the live template.
pub(super) fn build(set: &Set, live: &Value, ordinal: i64, revision: &Revision) -> Value {
    let claim_name = set.claim_name(live, ordinal);
    let template = if set.claims_in_place { revision.claim_template(live) } else { live };
    let mut labels = template.members(&["metadata", "labels"]).clone();
    labels.extend(set.object.members(&["spec", "selector", "matchLabels"]).clone());
    if set.claims_in_place {
        labels.insert(pods::REVISION_LABEL.to_owned(), Value::from(revision.name.as_str()));
    }
    let mut metadata = json!({"name": claim_name, "namespace": set.namespace, "labels": labels});
    pods::carry_over(template, &mut metadata, &["annotations", "finalizers"]);
    if set.retention.with_set {
        metadata.put(&["ownerReferences"], vec![set.reference(false)]);
    }
    let spec = template.members(&["spec"]).clone();
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
}
