//! The controller's caches: which objects belong to a set, and which sets a change concerns. Both use indexes
//! and never scan all sets or pods.

use super::departed::DepartedClaims;
use super::{planner, resource};
use crate::metrics::Metrics;
use jiff::Timestamp;
use kit::api::Resource;
use kit::cache::{self, Cache, Index, Key, by_controller, controlled_by, differs, differs_at, key};
use kit::worker::Source;
use object::access::{self, Access, controller, name, namespace, uid};
use object::{Gates, Value};
use plan::allowance::Allowance;
use planner::{Seen, SeenPod, SetPlan};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use tokio::time::Instant;

/// The watched resources and their indexes.
pub(super) struct Informers {
    pub sets: Informer,
    pub pods: Informer,
    pub claims: Informer,
    pub revisions: Informer,
    pods_by_controller: Index,
    pods_by_stem: Index,
    claims_by_stem: Index,
    revisions_by_controller: Index,
    revisions_by_stem: Index,
    pub departed: DepartedClaims,
}

/// A watched resource and its cache.
pub(super) struct Informer {
    pub resource: Resource,
    pub cache: Cache,
}

/// A set, and the objects that its plan depends on.
pub(super) struct Scene {
    pub set: Arc<Value>,
    pods: Vec<Arc<SeenPod>>,
    claims: Vec<Arc<Value>>,
    revisions: Vec<Arc<Value>>,
    contested: BTreeSet<String>,
}

impl Informers {
    pub fn new() -> Informers {
        let follow = |resource, cache| Informer { resource, cache };
        let sets = follow(resource("apps/v1", "StatefulSet", "statefulsets"), Cache::default());
        let pods = follow(resource("v1", "Pod", "pods"), Cache::default().viewed(SeenPod::read));
        let claims = resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims");
        let claims = follow(claims, Cache::default());
        let revisions = follow(resource("apps/v1", "ControllerRevision", "controllerrevisions"), Cache::default());
        Informers {
            pods_by_controller: pods.cache.index(by_controller),
            pods_by_stem: pods.cache.index(by_numbered_stem),
            claims_by_stem: claims.cache.index(by_numbered_stem),
            revisions_by_controller: revisions.cache.index(by_controller),
            revisions_by_stem: revisions.cache.index(|revision| by_stem(revision, revision_stem(name(revision)))),
            sets,
            pods,
            claims,
            revisions,
            departed: DepartedClaims::default(),
        }
    }

    /// The watches that fill the caches, with the sets that each change queues.
    pub fn sources(&self, metrics: &Metrics) -> Vec<Source> {
        let delays = ObservationDelays { since: Mutex::default(), metrics: metrics.clone() };
        let known = self.sets.cache.clone();
        let sets = move |before: Option<&Value>, after: Option<&Value>| {
            delays.note(before, after);
            changed(&known, before, after)
        };
        let known = self.sets.cache.clone();
        let pods = move |pod: &Value| {
            let bearer = numbered_stem(name(pod)).and_then(|stem| existing(&known, pod, stem));
            controlling(&known, pod).into_iter().chain(bearer).collect()
        };
        let known = self.sets.cache.clone();
        let departed = self.departed.clone();
        let claims = move |before: Option<&Value>, after: Option<&Value>| {
            if !claim_differs(before, after) {
                return Vec::new();
            }
            let sets_of = |claim: &Value| {
                let stem = numbered_stem(name(claim));
                stem.map(|stem| claiming(&known, namespace(claim), stem)).unwrap_or_default()
            };
            let gone = before.filter(|before| after.is_none_or(|after| uid(after) != uid(before)));
            let of_gone = gone.map(|claim| departed.note(claim, sets_of(claim))).unwrap_or_default();
            before.into_iter().chain(after).flat_map(sets_of).chain(of_gone).collect()
        };
        let known = self.sets.cache.clone();
        let revisions = move |revision: &Value| {
            let bearer = revision_stem(name(revision)).and_then(|stem| existing(&known, revision, stem));
            controlling(&known, revision).into_iter().chain(bearer).collect()
        };
        vec![
            Source::changing(self.sets.resource.clone(), sets).into(self.sets.cache.clone()),
            on_difference(&self.pods, pod_differs, pods),
            Source::changing(self.claims.resource.clone(), claims).into(self.claims.cache.clone()),
            on_difference(&self.revisions, differs, revisions),
        ]
    }

    pub fn look(&self, key: &Key) -> Option<Scene> {
        let set = self.sets.cache.get(key)?;
        let here = |stem: &str| -> Key { (key.0.clone(), stem.into()) };
        let controlled = controlled_by(uid(&set));
        let pods = self.pods.cache.find_views(&[(&self.pods_by_controller, &controlled), (&self.pods_by_stem, key)]);
        let templates = set.items(&["spec", "volumeClaimTemplates"]).iter();
        let stems: Vec<Key> = templates.map(|template| here(&format!("{}-{}", name(template), key.1))).collect();
        let by_stem: Vec<_> = stems.iter().map(|stem| (&self.claims_by_stem, stem)).collect();
        let claims = self.claims.cache.find(&by_stem);
        let revisions = self.revisions.cache.find(&[
            (&self.revisions_by_controller, &controlled),
            (&self.revisions_by_controller, &cache::uncontrolled_in(&key.0)),
            (&self.revisions_by_stem, key),
        ]);
        let is_contested = |stem: &Key| claiming(&self.sets.cache, &stem.0, &stem.1).len() > 1;
        let contested = stems.iter().filter(|stem| is_contested(stem)).map(|stem| stem.1.to_string()).collect();
        Some(Scene { pods, claims, revisions, contested, set })
    }
}

impl Scene {
    pub fn plan(&self, allowance: Allowance, gates: &Gates, now: Timestamp) -> SetPlan {
        self.show(allowance, |seen| planner::plan(seen, gates, now))
    }

    /// The claims that are being deleted while a pod uses them, and that pod.
    pub fn claims_deleted_in_use(&self) -> Vec<(&Value, String)> {
        let claims: Vec<&Value> =
            self.claims.iter().map(AsRef::as_ref).filter(|claim| access::terminating(claim)).collect();
        if claims.is_empty() {
            return Vec::new();
        }
        let pods: Vec<&SeenPod> = self.pods.iter().map(AsRef::as_ref).collect();
        planner::departure::in_use(&claims, &pods)
    }

    /// The number of existing pods and claims.
    pub fn objects(&self) -> usize {
        self.pods.len() + self.claims.len()
    }

    /// The invariants that a plan for these objects breaks.
    pub fn broken_by(&self, plan: &SetPlan, allowance: Allowance, gates: &Gates, now: Timestamp) -> Vec<String> {
        self.show(allowance, |seen| planner::invariant::check(seen, plan, gates, now))
    }

    fn show<T>(&self, allowance: Allowance, to: impl FnOnce(&Seen) -> T) -> T {
        let pods: Vec<&SeenPod> = self.pods.iter().map(AsRef::as_ref).collect();
        let [claims, revisions] =
            [&self.claims, &self.revisions].map(|objects| objects.iter().map(AsRef::as_ref).collect::<Vec<&Value>>());
        let (set, contested) = (&*self.set, &self.contested);
        to(&Seen { set, pods: &pods, claims: &claims, revisions: &revisions, contested, allowance })
    }
}

/// Measures how long a change of a set's spec waits until it is acted on.
struct ObservationDelays {
    /// When a spec was first seen that is not acted on yet.
    since: Mutex<HashMap<Key, Instant>>,
    metrics: Metrics,
}

impl ObservationDelays {
    fn note(&self, before: Option<&Value>, after: Option<&Value>) {
        let mut since = self.since.lock().expect("no panic happens under this lock");
        let observed = |set: &Value| set.int(&["status", "observedGeneration"]) >= set.int(&["metadata", "generation"]);
        match after {
            Some(set) if observed(set) => {
                if let Some(since) = since.remove(&key(set)) {
                    self.metrics.set_observed(since.elapsed());
                }
            }
            Some(set) => drop(since.entry(key(set)).or_insert_with(Instant::now)),
            None => drop(before.and_then(|set| since.remove(&key(set)))),
        }
    }
}

/// Queues what `wakes` returns for an object before and after a change, if the change is relevant.
fn on_difference(
    informer: &Informer,
    differs: fn(Option<&Value>, Option<&Value>) -> bool,
    wakes: impl Fn(&Value) -> Vec<Key> + Send + Sync + 'static,
) -> Source {
    let wakes = move |before: Option<&Value>, after: Option<&Value>| match differs(before, after) {
        true => before.into_iter().chain(after).flat_map(&wakes).collect(),
        false => Vec::new(),
    };
    Source::changing(informer.resource.clone(), wakes).into(informer.cache.clone())
}

/// The set that controls the object.
fn controlling(sets: &Cache, object: &Value) -> Option<Key> {
    let owner = controller(object).filter(|owner| owner.text(&["kind"]) == "StatefulSet")?;
    let key: Key = (namespace(object).into(), owner.text(&["name"]).into());
    sets.get(&key).filter(|set| uid(set) == owner.text(&["uid"])).map(|_| key)
}

fn existing(sets: &Cache, beside: &Value, set: &str) -> Option<Key> {
    let key: Key = (namespace(beside).into(), set.into());
    sets.get(&key).map(|_| key)
}

/// The sets that a claim may belong to. Before the ordinal, its name is `<template>-<set>`, and both may
/// contain dashes.
fn claiming(sets: &Cache, namespace: &str, stem: &str) -> Vec<Key> {
    let splits = stem.match_indices('-').map(|(at, _)| (&stem[..at], &stem[at + 1..]));
    let fits = |(template, set): (&str, &str)| {
        let key: Key = (namespace.into(), set.into());
        let set = sets.get(&key)?;
        let has = set.items(&["spec", "volumeClaimTemplates"]).iter().any(|known| name(known) == template);
        has.then_some(key)
    };
    splits.filter_map(fits).collect()
}

/// The sets that a change of one concerns. When a set is created or deleted, sets with claims of the same
/// names must be reconciled. A set may also be replaced by another one without an event in between.
fn changed(sets: &Cache, before: Option<&Value>, after: Option<&Value>) -> Vec<Key> {
    let comes_or_goes = before.map(uid) != after.map(uid);
    let either = [before, after].into_iter().flatten();
    let rivals = either.filter(|_| comes_or_goes).flat_map(|set| rivals(sets, set));
    before.or(after).map(key).into_iter().chain(rivals).collect()
}

/// The sets whose claims have the same names.
fn rivals(sets: &Cache, set: &Value) -> Vec<Key> {
    let templates = set.items(&["spec", "volumeClaimTemplates"]).iter();
    let stems = templates.map(|template| format!("{}-{}", name(template), name(set)));
    stems.flat_map(|stem| claiming(sets, namespace(set), &stem)).filter(|rival| *rival.1 != *name(set)).collect()
}

fn by_numbered_stem(object: &Value) -> Vec<Key> {
    by_stem(object, numbered_stem(name(object)))
}

fn by_stem(object: &Value, stem: Option<&str>) -> Vec<Key> {
    stem.map(|stem| (namespace(object).into(), stem.into())).into_iter().collect()
}

/// The name without the ordinal: `web` of `web-0`.
fn numbered_stem(name: &str) -> Option<&str> {
    let (stem, number) = name.rsplit_once('-')?;
    (!number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())).then_some(stem)
}

/// The name without the hash: `web` of `web-5d4f8c7b9`.
fn revision_stem(name: &str) -> Option<&str> {
    name.rsplit_once('-').map(|(stem, _)| stem)
}

/// Whether a pod changed in what the planner uses: identity, owner, health, and the claims it mounts.
fn pod_differs(before: Option<&Value>, after: Option<&Value>) -> bool {
    let paths: &[&[&str]] = &[
        &["metadata", "uid"],
        &["metadata", "labels"],
        &["metadata", "ownerReferences"],
        &["metadata", "deletionTimestamp"],
        &["spec", "volumes"],
        &["status", "phase"],
    ];
    let ready = |pod: &Value| {
        let ready = object::condition::get(pod, "Ready")?;
        Some(["status", "lastTransitionTime"].map(|field| ready.text(&[field]).to_owned()))
    };
    differs_at(before, after, paths) || before.and_then(ready) != after.and_then(ready)
}

/// Whether a claim changed in what the planner uses: identity, owner, deletion, and the state of its volume.
fn claim_differs(before: Option<&Value>, after: Option<&Value>) -> bool {
    let paths: &[&[&str]] = &[
        &["metadata", "uid"],
        &["metadata", "labels"],
        &["metadata", "ownerReferences"],
        &["metadata", "deletionTimestamp"],
        &["metadata", "finalizers"],
        &["spec", "resources"],
        &["spec", "volumeAttributesClassName"],
        &["status", "phase"],
        &["status", "capacity"],
        &["status", "currentVolumeAttributesClassName"],
    ];
    let conditions = |claim: &Value| -> Vec<[String; 3]> {
        let conditions = claim.items(&["status", "conditions"]).iter();
        conditions.map(|found| ["type", "status", "message"].map(|field| found.text(&[field]).to_owned())).collect()
    };
    differs_at(before, after, paths) || before.map(conditions) != after.map(conditions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::json;

    fn set(name: &str, uid: &str, template: &str) -> Value {
        json!({
            "metadata": {"namespace": "a", "name": name, "uid": uid},
            "spec": {"volumeClaimTemplates": [{"metadata": {"name": template}}]},
        })
    }

    /// Also if another set of the same name replaced it while no watch was open.
    #[test]
    fn sets_with_claims_of_the_same_names_are_queued_when_a_set_is_created_or_deleted() {
        let sets = Cache::default();
        let other = set("db-web", "1", "data");
        sets.wrote(Arc::new(other.clone()));
        let (plain, contested, again) =
            (set("web", "2", "data"), set("web", "3", "data-db"), set("web", "3", "data-db"));
        for (before, after, told) in [
            (None, Some(&plain), false),
            (None, Some(&contested), true),
            (Some(&contested), None, true),
            (Some(&plain), Some(&contested), true),
            (Some(&contested), Some(&plain), true),
            (Some(&contested), Some(&again), false),
        ] {
            let keys = changed(&sets, before, after);
            assert!(keys.contains(&key(&plain)));
            assert_eq!(keys.contains(&key(&other)), told, "{before:?} {after:?}");
        }
    }
}
