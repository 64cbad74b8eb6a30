//! What the binder sees: caches with indexes, whom a change concerns, and which volumes claims hold.

use super::figures::Figures;
use kit::NamespaceScope;
use kit::api::Resource;
use kit::cache::{Cache, Index, Key, differs_at, key};
use kit::queue::Queue;
use kit::worker::Source;
use object::Value;
use object::access::{Access, name, namespace, uid};
use object::kinds::storage::{effective_default_class, is_default_class};
use object::kinds::volumes::class_of;
use plan::bind::{self, Action, Place, Plan, Seen, Target, is_bound};
use plan::protect;
use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

/// A kind's resource and its objects.
pub struct Kind {
    pub resource: Resource,
    pub cache: Cache,
}

pub struct Sight {
    pub claims: Kind,
    pub volumes: Kind,
    classes: Kind,
    /// Pods that are on no node: with those that are, claims have found their node already.
    pods: Kind,
    /// Volumes by the claim that their `claimRef` names.
    reserved: Index,
    /// Free volumes by shelf and size.
    shelves: Index,
    /// Claims by the volume that they name.
    naming: Index,
    /// Claims that were never bound, by class; those without class under `None`'s key.
    unbound: Index,
    pods_of: Index,
    held: Arc<Holds>,
    /// The uids of claims that were seen to go and never had a volume.
    went_without: Mutex<HashSet<String>>,
}

/// How many of these are remembered; beyond that the memory starts over. Each matters for a moment only.
const GONE_MAX: usize = 10_000;

impl Sight {
    /// Volumes whose turn came while a claim held them have it in `queue` when it lets go.
    pub fn new(queue: Arc<Queue<Key>>) -> Sight {
        let kind = |api_version, kind, plural, namespaced| Kind {
            resource: Resource::new(api_version, kind, plural, namespaced),
            cache: Cache::default(),
        };
        let claims = kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims", true);
        let volumes = kind("v1", "PersistentVolume", "persistentvolumes", false);
        let classes = kind("storage.k8s.io/v1", "StorageClass", "storageclasses", false);
        let pods = kind("v1", "Pod", "pods", true);
        Sight {
            reserved: volumes.cache.index(|volume| claim_of(volume).into_iter().collect()),
            shelves: volumes.cache.index(|volume| bind::place(volume).as_ref().map(place_key).into_iter().collect()),
            naming: claims.cache.index(|claim| volume_of(claim).into_iter().collect()),
            unbound: claims.cache.index(
                |claim| {
                    if is_bound(claim) { Vec::new() } else { vec![class_key(class_of(claim))] }
                },
            ),
            pods_of: pods.cache.index(claims_of),
            claims,
            volumes,
            classes,
            pods,
            held: Arc::new(Holds { volumes: Mutex::default(), queue }),
            went_without: Mutex::default(),
        }
    }

    pub fn sources(self: &Arc<Sight>, figures: &Figures, scope: &NamespaceScope) -> Vec<Source> {
        let (by_claim, by_volume, by_class, by_pod) = (self.clone(), self.clone(), self.clone(), self.clone());
        let (of_claims, of_volumes, scope) = (figures.clone(), figures.clone(), scope.clone());
        let claims = Source::with_changed(self.claims.resource.clone(), move |changed| {
            let (before, after) = (changed.before.as_deref(), changed.after.as_deref());
            if let (Some(claim), None, false) = (before, after, changed.last_state_unknown) {
                by_claim.note_end(claim);
            }
            of_claims.claim_changed(before, after);
            if differs_at(before, after, OF_CLAIMS) { by_claim.woken_by_claim(before, after) } else { Vec::new() }
        });
        let volumes = Source::changing(self.volumes.resource.clone(), move |before, after| {
            let [counted, counts] = [before, after].map(|it| it.filter(|volume| scope.covers_volume(volume)));
            of_volumes.volume_changed(counted, counts);
            before.into_iter().chain(after).flat_map(|volume| by_volume.around(volume)).collect()
        });
        let classes = Source::new(self.classes.resource.clone(), move |class| by_class.woken_by_class(class));
        let pods = Source::new(self.pods.resource.clone(), move |pod| {
            let is_unbound = |key: &Key| by_pod.claims.cache.get(key).is_some_and(|claim| !is_bound(&claim));
            claims_of(pod).into_iter().filter(is_unbound).collect()
        });
        vec![
            claims.into(self.claims.cache.clone()),
            volumes.into(self.volumes.cache.clone()),
            classes.into(self.classes.cache.clone()),
            pods.into(self.pods.cache.clone()).only("spec.nodeName=".to_owned()),
        ]
    }

    fn note_end(&self, claim: &Value) {
        if claim.text(&["spec", "volumeName"]).is_empty() {
            let mut gone = self.went_without.lock().expect("no panic happens under this lock");
            if gone.len() >= GONE_MAX {
                gone.clear();
            }
            gone.insert(uid(claim).to_owned());
        }
    }

    /// The claim itself; and, when its part in a pair changed, the volumes of that pair.
    fn woken_by_claim(&self, before: Option<&Value>, after: Option<&Value>) -> Vec<Key> {
        let pairing = |claim: &Value| (uid(claim).to_owned(), volume_of(claim), is_bound(claim));
        let Some(any) = after.or(before) else { return Vec::new() };
        let mut woken = vec![key(any)];
        if before.map(pairing) != after.map(pairing) {
            woken.extend(before.into_iter().chain(after).filter_map(volume_of));
            woken.extend(self.reserved.get(&key(any)).iter().map(|volume| key(volume)));
        }
        woken
    }

    fn woken_by_class(&self, class: &Value) -> Vec<Key> {
        let mut claims = self.unbound.get(&class_key(Some(name(class))));
        if is_default_class(class) {
            claims.extend(self.unbound.get(&class_key(None)));
        }
        claims.iter().map(|claim| key(claim)).collect()
    }

    /// A volume and the claims that it concerns.
    pub fn around(&self, volume: &Value) -> Vec<Key> {
        let key = key(volume);
        let naming = self.naming.get(&key);
        let claims = naming.iter().map(|claim| kit::cache::key(claim)).chain(claim_of(volume));
        claims.chain([key]).collect()
    }

    pub fn class(&self, class: &str) -> Option<Arc<Value>> {
        self.classes.cache.get(&("".into(), class.into()))
    }

    /// Whether a claim holds the volume. If so, the volume has its turn when the claim lets go of it, however that ends.
    pub fn is_held(&self, volume: &str) -> bool {
        self.held.lock().get_mut(volume).map(|missed_its_turn| *missed_its_turn = true).is_some()
    }

    /// Looks for a claim: what it finds among the free volumes is held.
    pub fn look(&self) -> Look<'_> {
        Look { sight: self, held: RefCell::default() }
    }
}

impl Seen for Sight {
    fn volume(&self, name: &str) -> Option<Arc<Value>> {
        self.volumes.cache.get(&("".into(), name.into()))
    }
    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.claims.cache.get(&(namespace.into(), name.into()))
    }
    fn class(&self, name: &str) -> Option<Arc<Value>> {
        Sight::class(self, name)
    }
    fn went_without(&self, claim_uid: &str) -> bool {
        self.went_without.lock().expect("no panic happens under this lock").contains(claim_uid)
    }
    fn default_class(&self) -> Option<String> {
        effective_default_class(self.classes.cache.all().iter().map(AsRef::as_ref)).map(str::to_owned)
    }
    fn reserved(&self, namespace: &str, claim: &str) -> Vec<Arc<Value>> {
        self.reserved.get(&(namespace.into(), claim.into()))
    }
    fn first(&self, from: &Place, takes: &dyn Fn(&Value) -> bool) -> Option<Arc<Value>> {
        self.shelves.first_from(&place_key(from), takes)
    }
    fn waiting_pods(&self, namespace: &str, claim: &str) -> Vec<String> {
        let pods = self.pods_of.get(&(namespace.into(), claim.into()));
        pods.iter().filter(|pod| protect::uses(pod, claim)).map(|pod| name(pod).to_owned()).collect()
    }
}

/// What one claim sees: volumes that other claims hold are not free.
pub struct Look<'a> {
    sight: &'a Sight,
    held: RefCell<Option<Held>>,
}

/// The volumes that claims are busy with, by name, and whether their own turn came meanwhile.
struct Holds {
    volumes: Mutex<HashMap<Arc<str>, bool>>,
    queue: Arc<Queue<Key>>,
}

impl Holds {
    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, bool>> {
        self.volumes.lock().expect("no panic happens under this lock")
    }
}

/// A volume that a claim is busy with, until this is dropped.
pub struct Held {
    volume: Arc<Value>,
    all: Arc<Holds>,
}

impl Held {
    pub fn volume(&self) -> Arc<Value> {
        self.volume.clone()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let held = self.all.lock().remove_entry(name(&self.volume));
        if let Some((volume, true)) = held {
            self.all.queue.add(("".into(), volume));
        }
    }
}

impl Look<'_> {
    /// Holds the volume that a plan changes. `None`: another claim holds it.
    pub fn hold(self, plan: &Plan) -> Option<Option<Held>> {
        let changed = plan.actions.iter().find_map(|action| match action {
            Action::Patch { of, .. } if of.is_volume() => Some(of),
            _ => None,
        });
        let found = self.held.into_inner();
        let Some(changed) = changed else { return Some(None) };
        if found.as_ref().is_some_and(|held| name(&held.volume) == changed.name) {
            return Some(found);
        }
        let volume = self.sight.volume(&changed.name)?;
        match self.sight.held.lock().entry(changed.name.as_str().into()) {
            Entry::Vacant(place) => drop(place.insert(false)),
            Entry::Occupied(_) => return None,
        }
        Some(Some(Held { volume, all: self.sight.held.clone() }))
    }
}

impl Seen for Look<'_> {
    fn volume(&self, name: &str) -> Option<Arc<Value>> {
        self.sight.volume(name)
    }
    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.sight.claim(namespace, name)
    }
    fn class(&self, name: &str) -> Option<Arc<Value>> {
        self.sight.class(name)
    }
    fn went_without(&self, claim_uid: &str) -> bool {
        self.sight.went_without(claim_uid)
    }
    fn default_class(&self) -> Option<String> {
        self.sight.default_class()
    }
    fn reserved(&self, namespace: &str, claim: &str) -> Vec<Arc<Value>> {
        self.sight.reserved(namespace, claim)
    }
    fn first(&self, from: &Place, takes: &dyn Fn(&Value) -> bool) -> Option<Arc<Value>> {
        let mut held = self.sight.held.lock();
        let volume = self.sight.first(from, &|volume| !held.contains_key(name(volume)) && takes(volume))?;
        held.insert(name(&volume).into(), false);
        drop(held);
        self.held.replace(Some(Held { volume: volume.clone(), all: self.sight.held.clone() }));
        Some(volume)
    }
    fn waiting_pods(&self, namespace: &str, claim: &str) -> Vec<String> {
        self.sight.waiting_pods(namespace, claim)
    }
}

fn place_key(place: &Place) -> Key {
    (place.shelf.as_str().into(), place.size.as_str().into())
}

fn class_key(class: Option<&str>) -> Key {
    match class {
        Some(class) => ("class".into(), class.into()),
        None => ("none".into(), "".into()),
    }
}

fn claim_of(volume: &Value) -> Option<Key> {
    Target::claim_of(volume).map(|claim| (claim.namespace.into(), claim.name.into()))
}

fn volume_of(claim: &Value) -> Option<Key> {
    Some(claim.text(&["spec", "volumeName"]))
        .filter(|volume| !volume.is_empty())
        .map(|volume| ("".into(), volume.into()))
}

fn claims_of(pod: &Value) -> Vec<Key> {
    protect::claims_of(pod).map(|claim| (namespace(pod).into(), claim.into())).collect()
}

/// What matters here of claims.
const OF_CLAIMS: &[&[&str]] = &[
    &["metadata", "uid"],
    &["metadata", "annotations"],
    &["metadata", "deletionTimestamp"],
    &["spec"],
    &["status", "phase"],
    &["status", "accessModes"],
    &["status", "capacity"],
    &["status", "currentVolumeAttributesClassName"],
];

#[cfg(test)]
mod tests {
    use super::*;
    use object::json;

    #[tokio::test]
    async fn a_volume_that_missed_its_turn_has_it_when_it_is_let_go() {
        let queue = Arc::new(Queue::new(kit::Metrics::default().queue("test")));
        let sight = Sight::new(queue.clone());
        let volume = json!({
            "metadata": {"name": "v", "uid": "1", "resourceVersion": "1"},
            "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]},
            "status": {"phase": "Available"},
        });
        sight.volumes.cache.wrote(volume.clone());
        let place = bind::place(&volume).expect("it is free");
        let look = sight.look();
        assert!(!sight.is_held("v"));
        assert!(look.first(&place, &|_| true).is_some());
        assert!(sight.is_held("v"));
        assert!(sight.look().first(&place, &|_| true).is_none(), "it is not free for others");
        // The claim goes away without having done anything with it.
        drop(look);
        assert_eq!(queue.next().await, ("".into(), "v".into()));
        assert!(!sight.is_held("v"));
    }
}
