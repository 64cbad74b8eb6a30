//! The claims of a set: which claims its pods need, and the owner of each claim.
//!
//! The garbage collector deletes a claim when its last owner is deleted. So the retention policy consists of owner
//! references: to the set, if claims are deleted with the set; to the pod, once the replica is scaled down and its
//! claim is to be deleted with it.

use super::pods::{self, Members, Pod};
use super::revisions::Revision;
use super::set::Set;
use super::{Action, Seen, SetEvent as Event};
use object::access::{self, Access, name, terminating, uid};
use object::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The claims whose names follow the set's scheme, with or without a pod, by ordinal and name.
#[derive(Debug)]
pub(super) struct Claims<'a> {
    found: BTreeMap<(i64, &'a str), &'a Value>,
    /// Claim names without their ordinal that another set uses too. The retention policy is not applied to them.
    contested: &'a BTreeSet<String>,
}

/// Why a new pod cannot use an existing claim.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    /// Its owner is the previous pod, or an earlier set of this name; the garbage collector will delete it.
    WithOwner(String),
    Terminating(String),
}

/// Which claims get their owner references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// All, whatever state the set is in.
    Any,
    /// All but those of pods that this plan scales down; theirs follow with `Scaling`.
    BeforeScaling,
    /// Only those of pods that are about to be deleted by scaling down: the pods become their owners.
    Scaling,
    /// All, but references are only removed, never added.
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

    /// The templates without a claim for this replica.
    pub fn missing<'s>(&'s self, set: &'s Set<'a>, ordinal: i64) -> impl Iterator<Item = &'a Value> + 's {
        set.claim_templates.iter().copied().filter(move |template| self.get(set, ordinal, template).is_none())
    }

    /// A new claim from a template, for a replica at this revision.
    pub fn build(&self, set: &Set, template: &Value, ordinal: i64, revision: &Revision) -> Value {
        let mut claim = build(set, template, ordinal, revision);
        if self.is_contested(name(&claim)) {
            claim.cut(&["metadata", "ownerReferences"]);
        }
        claim
    }

    /// The claim of a replica and a template.
    pub fn get(&self, set: &Set, ordinal: i64, template: &Value) -> Option<&'a Value> {
        self.found.get(&(ordinal, set.claim_name(template, ordinal).as_str())).copied()
    }

    /// Whether a pod of this ordinal has all its claims, and none is being deleted.
    pub fn are_there(&self, set: &Set, ordinal: i64) -> bool {
        self.of_ordinal(ordinal).filter(|claim| !terminating(claim)).count() == set.claim_templates.len()
    }

    /// The first claim that must be deleted before a pod of this ordinal is created.
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

    /// The actions that set owner references by the policy, and events about claims that have other owners.
    pub fn own(&self, set: &Set, members: &Members, moment: Moment) -> (Vec<Action>, Vec<Event>) {
        let (mut actions, mut events) = (Vec::new(), Vec::new());
        let policy = set.retention;
        for ((ordinal, _), claim) in &self.found {
            // Most claims have no owner and need none.
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

/// A claim's replica.
struct Seat<'s, 'a> {
    set: &'s Set<'a>,
    pod_name: String,
    pod: Option<Pod<'a>>,
    condemned: bool,
    contested: bool,
    moment: Moment,
}

impl Seat<'_, '_> {
    /// The owner references that the claim should have, if they differ from its own.
    fn wanted(&self, claim: &Value) -> Option<Vec<Value>> {
        let (ours, others): (Vec<&Value>, Vec<&Value>) = owners(claim).iter().partition(|owner| self.is_ours(owner));
        let policy = self.set.retention;
        // With `whenScaled: Delete` the garbage collector deletes the claim with the previous pod.
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

    /// The owner by policy. A pod that is scaled down becomes the owner right before its deletion, and stays it.
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

    /// Whether another controller owns the claim, or another set may use it: the policy is then not applied.
    fn conflicts(&self, claim: &Value) -> bool {
        let policy = self.set.retention;
        let others = || owners(claim).iter().any(|owner| owner.flag(&["controller"]) && !self.is_ours(owner));
        (policy.with_set || policy.with_replica) && (self.contested || others())
    }

    /// Limits events to moments at which the policy matters.
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

/// The claim's owner references to the set and to the pod of this name, without duplicates: the list is keyed by uid,
/// and a patch with a duplicate could not be applied.
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

/// Whether the owner is an earlier set of this name: the garbage collector deletes or orphans the claim. A pod that
/// used it meanwhile could be scheduled by a claim that is being deleted, and each would wait for the other.
fn is_namesake(owner: &Value, set: &Set) -> bool {
    is_set(owner, set.name) && owner.text(&["uid"]) != set.uid
}

fn is_pod(owner: &Value, name: &str) -> bool {
    is_reference(owner, "v1", "Pod", name)
}

fn is_reference(owner: &Value, api_version: &str, kind: &str, name: &str) -> bool {
    owner.text(&["apiVersion"]) == api_version && owner.text(&["kind"]) == kind && owner.text(&["name"]) == name
}

/// Whether two references are equal; a missing flag counts as false.
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

/// A new claim of a replica. It has its owner from the beginning, because the set may be deleted at any moment. If
/// claims follow revisions, it is built from the given revision, otherwise from the current template.
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
