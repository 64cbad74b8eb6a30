//! Objects and an executor for tests: executes plans, one action at a time.

use crate::bind::{self, Action, Event, Place, Plan, Seen, Target};
use crate::reclaim::{self, Plugins};
use crate::{finalizers, protect};
use object::access::{Access, name, namespace, terminating, uid};
use object::kinds::storage::effective_default_class;
use object::{Gates, Value, json, patch};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Clone, Default)]
pub struct World {
    pub volumes: BTreeMap<String, Arc<Value>>,
    pub claims: BTreeMap<(String, String), Arc<Value>>,
    pub classes: BTreeMap<String, Arc<Value>>,
    /// Namespace, claim, pod.
    pub pods: Vec<(String, String, String)>,
    /// The existing directories.
    pub directories: BTreeSet<String>,
    /// The directories that were removed, each while its volume's policy was Delete.
    pub destroyed: BTreeSet<String>,
    /// The directories that cannot be removed or emptied.
    pub broken: BTreeSet<String>,
    /// The directories that should have been removed with their volumes.
    pub leaked: Vec<String>,
    pub events: Vec<Event>,
    pub plugins: Plugins,
    /// The uids of deleted claims that never had a volume.
    pub went_without: BTreeSet<String>,
    /// The names of volumes that had the policy Retain when they were deleted.
    pub retained: BTreeSet<String>,
    version: u64,
}

impl Seen for World {
    fn volume(&self, name: &str) -> Option<Arc<Value>> {
        self.volumes.get(name).cloned()
    }
    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.claims.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }
    fn class(&self, name: &str) -> Option<Arc<Value>> {
        self.classes.get(name).cloned()
    }
    fn went_without(&self, claim_uid: &str) -> bool {
        self.went_without.contains(claim_uid)
    }
    fn default_class(&self) -> Option<String> {
        effective_default_class(self.classes.values().map(AsRef::as_ref)).map(str::to_owned)
    }
    fn reserved(&self, namespace: &str, claim: &str) -> Vec<Arc<Value>> {
        let is_it = |volume: &&Arc<Value>| {
            Target::claim_of(volume).is_some_and(|of| of.namespace == namespace && of.name == claim)
        };
        self.volumes.values().filter(is_it).cloned().collect()
    }
    fn first(&self, from: &Place, takes: &dyn Fn(&Value) -> bool) -> Option<Arc<Value>> {
        let placed = self.volumes.values().filter_map(|volume| Some((bind::place(volume)?, volume)));
        let shelf = placed.filter(|(place, volume)| place.shelf == from.shelf && place >= from && takes(volume));
        shelf.min_by_key(|(place, _)| place.clone()).map(|(_, volume)| volume.clone())
    }
    fn waiting_pods(&self, namespace: &str, claim: &str) -> Vec<String> {
        let named = self.pods.iter().filter(|pod| pod.0 == namespace && pod.1 == claim);
        named.map(|pod| pod.2.clone()).collect()
    }
}

/// The progress of a plan.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// An action found changed objects, or the limit of actions was reached.
    Stopped,
}

impl World {
    pub fn add(&mut self, mut object: Value) -> Arc<Value> {
        self.version += 1;
        let uid = format!("uid-{}", self.version);
        object.default_to(&["metadata", "uid"], uid);
        object.put(&["metadata", "resourceVersion"], self.version.to_string());
        let object = Arc::new(object);
        match object.text(&["kind"]) {
            "PersistentVolume" => drop(self.volumes.insert(name(&object).into(), object.clone())),
            "StorageClass" => drop(self.classes.insert(name(&object).into(), object.clone())),
            _ => drop(self.claims.insert((namespace(&object).into(), name(&object).into()), object.clone())),
        }
        object
    }

    pub fn now(&self, object: &Value) -> Arc<Value> {
        self.find(&Target::of(object)).expect("it is there")
    }

    pub fn find(&self, target: &Target) -> Option<Arc<Value>> {
        let found =
            if target.is_volume() { self.volume(&target.name) } else { self.claim(&target.namespace, &target.name) };
        found.filter(|object| uid(object) == target.uid)
    }

    /// Changes an object as a user does.
    pub fn edit(&mut self, object: &Value, change: Value) {
        let of = Target::of(object);
        let before = self.find(&of).expect("it is there");
        self.write(&before, patch::merge(&before, &change));
    }

    /// Deletes an object as a user does: finalizers may keep it.
    pub fn delete(&mut self, object: &Value) {
        if let Some(before) = self.find(&Target::of(object)).filter(|before| !terminating(before)) {
            let mut after = (*before).clone();
            after.put(&["metadata", "deletionTimestamp"], "2024-01-01T00:00:00Z");
            self.write(&before, after);
        }
    }

    fn write(&mut self, before: &Value, mut after: Value) {
        self.version += 1;
        after.put(&["metadata", "resourceVersion"], self.version.to_string());
        let is_gone = terminating(&after) && after.items(&["metadata", "finalizers"]).is_empty();
        let place = (namespace(before).to_owned(), name(before).to_owned());
        if is_gone && place.0.is_empty() {
            self.note_leak(before);
            if reclaim::was_retained(before) {
                self.retained.insert(place.1.clone());
            }
        }
        match (place.0.is_empty(), is_gone) {
            (true, true) => drop(self.volumes.remove(&place.1)),
            (true, false) => drop(self.volumes.insert(place.1, Arc::new(after))),
            (false, true) => drop(self.claims.remove(&place)),
            (false, false) => drop(self.claims.insert(place, Arc::new(after))),
        }
    }

    /// A used volume leaves its directory behind only if its policy says so.
    fn note_leak(&mut self, volume: &Value) {
        // A user who clears the reference takes over the responsibility for the directory.
        let was_bound = matches!(phase(volume), "Bound" | "Released" | "Failed")
            && !volume.text(&["spec", "claimRef", "uid"]).is_empty();
        let is_deleted = volume.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Delete";
        let directory = volume.text(&["spec", "hostPath", "path"]);
        if was_bound && is_deleted && self.directories.contains(directory) {
            self.leaked.push(directory.to_owned());
        }
    }

    pub fn plan_claim(&self, claim: &Value) -> Plan {
        bind::claim(claim, self, &self.plugins)
    }

    pub fn plan_volume(&self, volume: &Value) -> Plan {
        bind::volume(volume, self, &self.plugins)
    }

    /// Plans an object's current state and executes at most this many actions.
    pub fn sync(&mut self, of: &Target, most: usize) -> Outcome {
        let Some(object) = self.find(of) else { return Outcome::Done };
        let plan = if of.is_volume() { self.plan_volume(&object) } else { self.plan_claim(&object) };
        self.carry_out(plan, most)
    }

    pub fn carry_out(&mut self, plan: Plan, most: usize) -> Outcome {
        self.carry_out_but(plan, most).0
    }

    /// Executes at most this many actions; returns the rest. The next action may have been sent anyway, and may arrive
    /// at any time.
    pub fn carry_out_but(&mut self, plan: Plan, most: usize) -> (Outcome, Option<Action>) {
        // The versions that our own actions wrote.
        let mut versions: BTreeMap<String, String> = BTreeMap::new();
        for (at, mut action) in plan.actions.into_iter().enumerate() {
            if at == most {
                if let Action::Patch { of, patch, .. } = &mut action
                    && let Some(version) = versions.get(&of.uid)
                {
                    patch.put(&["metadata", "resourceVersion"], version.as_str());
                }
                return (Outcome::Stopped, Some(action));
            }
            if !self.act(action, &mut versions) {
                return (Outcome::Stopped, None);
            }
        }
        self.events.extend(plan.events);
        (Outcome::Done, None)
    }

    /// A write arrives that its sender had given up.
    pub fn arrive(&mut self, write: Action) {
        self.act(write, &mut BTreeMap::new());
    }

    /// False if the action found changed objects.
    fn act(&mut self, action: Action, versions: &mut BTreeMap<String, String>) -> bool {
        match action {
            Action::Patch { of, status, patch } => return self.patch(&of, status, patch, versions),
            Action::ConfirmReleased { claim, volume } => {
                return self.find(&claim).is_none_or(|claim| {
                    let bound_to = claim.text(&["spec", "volumeName"]);
                    !bound_to.is_empty() && bound_to != volume
                });
            }
            Action::ConfirmNoVolume { name } => return self.volume(&name).is_none(),
            Action::ConfirmVolume { of, version } => {
                let version = versions.get(&of.uid).unwrap_or(&version);
                return self.find(&of).is_some_and(|volume| volume.text(&["metadata", "resourceVersion"]) == version);
            }
            Action::ConfirmNotRetained { volume, .. } => {
                if self.retained.contains(&volume.name) {
                    let late = self.find(&volume).expect("it was seen");
                    self.carry_out(reclaim::came_late(&late), usize::MAX);
                    self.delete(&late);
                    return false;
                }
            }
            Action::ConfirmNoPods { namespace, claim, volume } => {
                let pods = self.waiting_pods(&namespace, &claim);
                if !pods.is_empty() {
                    let volume = self.find(&volume).expect("it is there");
                    self.events.extend(reclaim::still_used(&volume, &pods).events);
                    return false;
                }
            }
            Action::Make { directory, .. } => drop(self.directories.insert(directory)),
            Action::Provision { volume, .. } => {
                let finalizers = finalizers::patch(&volume, &["kubernetes.io/pv-protection"], &[]);
                self.add(patch::merge(
                    &volume,
                    &json!({"metadata": {"finalizers": finalizers["metadata"]["finalizers"]}}),
                ));
            }
            Action::Destroy { volume, directory } => {
                if self.broken.contains(&directory) {
                    let failed = reclaim::destroy_failed(&self.find(&volume).expect("it is there"), "broken");
                    self.carry_out(failed, usize::MAX);
                    return false;
                }
                let volume = self.find(&volume).expect("it was confirmed");
                assert_eq!(volume.text(&["spec", "persistentVolumeReclaimPolicy"]), "Delete");
                self.directories.remove(&directory);
                self.destroyed.insert(directory);
            }
            Action::Scrub { volume, directory } => {
                if self.broken.contains(&directory) {
                    let failed = reclaim::scrub_failed(&self.find(&volume).expect("it is there"), "broken");
                    self.carry_out(failed, usize::MAX);
                    return false;
                }
            }
            Action::DeleteVolume { of } => {
                if let Some(volume) = self.find(&of) {
                    self.delete(&volume);
                }
            }
        }
        true
    }

    fn patch(&mut self, of: &Target, status: bool, mut wanted: Value, versions: &mut BTreeMap<String, String>) -> bool {
        let Some(before) = self.find(of) else { return false };
        let version = wanted.cut(&["metadata", "resourceVersion"]).expect("every patch is of a version");
        assert_eq!(wanted.cut(&["metadata", "uid"]), Some(json!(of.uid)));
        let version = versions.get(&of.uid).map_or_else(|| version.as_str().expect("text"), String::as_str);
        if before.text(&["metadata", "resourceVersion"]) != version {
            return false;
        }
        let is_of_status = wanted.has(&["status"]);
        assert_eq!(is_of_status, status, "status and spec are written separately: {wanted}");
        let added = wanted
            .items(&["metadata", "finalizers"])
            .iter()
            .any(|finalizer| !before.items(&["metadata", "finalizers"]).contains(finalizer));
        assert!(!(added && terminating(&before)), "no finalizer is added to an object that is being deleted");
        let after = patch::merge(&before, &wanted);
        assert_ne!(after, *before, "every write changes something: {wanted}");
        self.write(&before, after);
        versions.insert(of.uid.clone(), self.version.to_string());
        true
    }

    /// Runs the protection controllers.
    pub fn protect(&mut self) {
        for volume in self.volumes.values().cloned().collect::<Vec<_>>() {
            if let Some(patch) = protect::volume(&volume) {
                self.carry_out(of_patch(&volume, patch), 1);
            }
        }
        let now = jiff::Timestamp::UNIX_EPOCH;
        let closed = Gates::default().with("PersistentVolumeClaimUnusedSinceTime", false);
        for claim in self.claims.values().cloned().collect::<Vec<_>>() {
            use protect::ClaimStep::{Protect, Release};
            if let Protect(patch) | Release(patch) = protect::claim(&claim, &[], &closed, now) {
                self.carry_out(of_patch(&claim, patch), 1);
            }
        }
    }

    pub fn targets(&self) -> Vec<Target> {
        self.volumes.values().chain(self.claims.values()).map(|object| Target::of(object)).collect()
    }

    /// Continues until no plan has actions.
    pub fn settle(&mut self) {
        for _ in 0..100 {
            let before = self.version;
            for target in self.targets() {
                self.sync(&target, usize::MAX);
            }
            self.protect();
            if self.version == before {
                return;
            }
        }
        panic!("it never settles: {:#?}\n{:#?}", self.volumes, self.claims);
    }

    /// The events since the last call: reason and message.
    pub fn take_events(&mut self) -> BTreeSet<(&'static str, String)> {
        std::mem::take(&mut self.events).into_iter().map(|event| (event.reason, event.message)).collect()
    }

    /// The volume that a claim is bound to, if both reference each other.
    pub fn bound(&self, claim: &Value) -> Option<String> {
        let claim = self.find(&Target::of(claim))?;
        let volume = self.volume(claim.text(&["spec", "volumeName"]))?;
        let agrees = Target::claim_of(&volume) == Some(Target::of(&claim)) && bind::is_bound(&claim);
        (agrees && phase(&claim) == "Bound" && phase(&volume) == "Bound").then(|| name(&volume).to_owned())
    }
}

fn of_patch(object: &Value, patch: Value) -> Plan {
    Plan::default().then([Action::Patch { of: Target::of(object), status: false, patch }])
}

pub fn phase(object: &Value) -> &str {
    object.text(&["status", "phase"])
}

/// An available volume; `more` is merged into it.
pub fn volume(name: &str, size: &str, more: Value) -> Value {
    let volume = json!({
        "kind": "PersistentVolume",
        "metadata": {"name": name, "finalizers": ["kubernetes.io/pv-protection"]},
        "spec": {
            "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
            "volumeMode": "Filesystem", "hostPath": {"path": format!("/tmp/{name}")},
        },
        "status": {"phase": "Available"},
    });
    patch::merge(&volume, &more)
}

/// A claim of class `""`; `more` is merged into it.
pub fn claim(name: &str, size: &str, more: Value) -> Value {
    let claim = json!({
        "kind": "PersistentVolumeClaim",
        "metadata": {"namespace": "ns", "name": name, "finalizers": ["kubernetes.io/pvc-protection"]},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, "storageClassName": "",
            "volumeMode": "Filesystem",
        },
        "status": {"phase": "Pending"},
    });
    patch::merge(&claim, &more)
}

pub fn class(name: &str, provisioner: &str, more: Value) -> Value {
    let class = json!({
        "kind": "StorageClass", "metadata": {"name": name, "creationTimestamp": "2024-01-01T00:00:00Z"},
        "provisioner": provisioner, "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate",
    });
    patch::merge(&class, &more)
}
