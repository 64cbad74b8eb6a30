//! The scheduler's view of claims, PVs and classes, and the constraints that a pod's claims put on its node.

use super::Key;
use super::facts::{ClaimUse, Node, Pod, key};
use super::selector;
use super::why::Reason;
use crate::bind::{BIND_COMPLETED, SELECTED_NODE};
use crate::csi::{csi_source, health};
use object::access::{Access, name, terminating, uid};
use object::kinds::volumes::{BETA_CLASS, class_of};
use object::quantity::Quantity;
use object::selector::LabelSelector;
use object::{Value, condition, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Claims, PVs, classes, and which pods use which claims.
#[derive(Debug, Default)]
pub struct Volumes {
    claims: HashMap<Key, Claim>,
    volumes: HashMap<Arc<str>, Volume>,
    classes: HashMap<Arc<str>, Class>,
    users: HashMap<Key, Vec<Key>>,
    /// PVs without a claimRef, by class, the smallest first.
    free: BTreeMap<Arc<str>, BTreeSet<(Quantity, Arc<str>)>>,
    /// PVs with a claimRef that are not bound yet, by the claim.
    meant: HashMap<Key, BTreeSet<Arc<str>>>,
}

/// A claim; of a bound one only a few fields.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    pub uid: Box<str>,
    pub bound: bool,
    pub lost: bool,
    pub terminating: bool,
    /// Its condition says that the data of its volume is missing.
    pub data_missing: bool,
    pub volume: Arc<str>,
    /// Whether only one pod at a time may use it.
    pub exclusive: bool,
    /// The uids of its owners.
    owners: Box<[Box<str>]>,
    /// The fields of the claim that matching needs, while it is not bound.
    wants: Option<Arc<Value>>,
}

#[derive(Clone, Debug, PartialEq)]
struct Volume {
    affinity: Option<Value>,
    class: Arc<str>,
    capacity: Quantity,
    /// The claim in its claimRef, and that claim's uid (empty: any).
    claim: Option<(Key, Box<str>)>,
    /// Its CSI driver and handle.
    csi: Option<Box<(Box<str>, Box<str>)>>,
    /// The fields of the PV that matching needs, while it can still be chosen.
    offers: Option<Arc<Value>>,
}

#[derive(Clone, Debug, PartialEq)]
struct Class {
    waits: bool,
    provisions: bool,
    topologies: Vec<Value>,
}

/// What to write before a pod can be bound.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Give the claim this PV, by setting the PV's `claimRef`.
    Give { volume: Arc<str>, volume_version: String, claim: Key, claim_uid: String },
    /// Set the selected node of the claim, so that its provisioner creates a volume for that node.
    Select { claim: Key, claim_version: String },
}

/// The constraints that a pod's claims put on its node.
#[derive(Debug, Default)]
pub struct Needs<'a> {
    /// The PVs of bound claims; `None` for a PV that does not exist.
    bound: Vec<Option<&'a Volume>>,
    /// Unbound claims that wait for the first consumer, the smallest first.
    waiting: Vec<(Key, &'a Claim)>,
    /// Whether another pod uses a ReadWriteOncePod claim.
    exclusive_taken: bool,
}

impl Needs<'_> {
    pub fn all_bound(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl Volumes {
    /// Returns whether a field changed that can affect pods.
    pub fn apply_claim(&mut self, claim: &Value) -> bool {
        let facts = Claim::of(claim);
        let key = key(claim);
        if self.claims.get(&key) == Some(&facts) {
            return false;
        }
        self.claims.insert(key, facts);
        true
    }

    pub fn remove_claim(&mut self, key: &Key) {
        self.claims.remove(key);
    }

    pub fn claim(&self, key: &Key) -> Option<&Claim> {
        self.claims.get(key)
    }

    pub fn apply_volume(&mut self, volume: &Value) -> bool {
        let (name, facts) = (Arc::from(name(volume)), Volume::of(volume));
        if self.volumes.get(&name) == Some(&facts) {
            return false;
        }
        self.remove_volume(&name);
        match &facts.claim {
            _ if facts.offers.is_none() => {}
            None => {
                self.free.entry(facts.class.clone()).or_default().insert((facts.capacity, name.clone()));
            }
            Some((claim, _)) => {
                self.meant.entry(claim.clone()).or_default().insert(name.clone());
            }
        }
        self.volumes.insert(name, facts);
        true
    }

    pub fn remove_volume(&mut self, name: &Arc<str>) {
        let Some(facts) = self.volumes.remove(name) else { return };
        match &facts.claim {
            None => take_from(&mut self.free, &facts.class, &(facts.capacity, name.clone())),
            Some((claim, _)) => {
                if let Some(meant) = self.meant.get_mut(claim) {
                    meant.remove(name);
                    if meant.is_empty() {
                        self.meant.remove(claim);
                    }
                }
            }
        }
    }

    /// The capacity of a PV.
    pub fn size(&self, volume: &str) -> Option<Quantity> {
        self.volumes.get(volume).map(|volume| volume.capacity)
    }

    /// The CSI driver and the handle of a volume; `None` if the volume is not known, or of no CSI driver.
    pub fn csi_source(&self, volume: &str) -> Option<(&str, &str)> {
        let (driver, handle) = &**self.volumes.get(volume)?.csi.as_ref()?;
        Some((driver, handle))
    }

    /// Whether a volume is known.
    pub fn has_volume(&self, volume: &str) -> bool {
        self.volumes.contains_key(volume)
    }

    pub fn apply_class(&mut self, class: &Value) {
        self.classes.insert(name(class).into(), Class::of(class));
    }

    pub fn remove_class(&mut self, name: &str) {
        self.classes.remove(name);
    }

    pub fn claim_keys(&self) -> impl Iterator<Item = &Key> {
        self.claims.keys()
    }

    pub fn volume_names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.volumes.keys()
    }

    pub fn class_names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.classes.keys()
    }

    pub(super) fn note_user(&mut self, pod: &Key, claims: &[ClaimUse]) {
        for used in claims {
            self.users.entry((pod.0.clone(), used.name.clone())).or_default().push(pod.clone());
        }
    }

    pub(super) fn forget_user(&mut self, pod: &Key, claims: &[ClaimUse]) {
        for used in claims {
            let claim = (pod.0.clone(), used.name.clone());
            if let Some(users) = self.users.get_mut(&claim) {
                users.retain(|user| user != pod);
                if users.is_empty() {
                    self.users.remove(&claim);
                }
            }
        }
    }

    /// The pods that use a claim and have not terminated.
    pub fn users(&self, claim: &Key) -> &[Key] {
        self.users.get(claim).map_or(&[], Vec::as_slice)
    }

    /// Marks a PV as given to a claim before the server has confirmed it, so that it is not chosen again.
    pub fn assume_given(&mut self, volume: &Arc<str>, claim: &Key, claim_uid: &str) {
        let Some(mut facts) = self.volumes.get(volume).cloned() else { return };
        self.remove_volume(volume);
        facts.claim = Some((claim.clone(), claim_uid.into()));
        self.meant.entry(claim.clone()).or_default().insert(volume.clone());
        self.volumes.insert(volume.clone(), facts);
    }

    /// The constraints of the pod's claims, or the message why no node fits.
    pub(super) fn needs(
        &self,
        pod_key: &Key,
        pod: &Pod,
        is_placed: impl Fn(&Key) -> bool,
    ) -> Result<Needs<'_>, String> {
        let mut needs = Needs::default();
        for used in &pod.claims {
            let key = (pod_key.0.clone(), used.name.clone());
            let claim = self.usable(&key, used, pod_key, pod)?;
            if claim.exclusive && self.users(&key).iter().any(|user| user != pod_key && is_placed(user)) {
                needs.exclusive_taken = true;
            }
            if claim.bound {
                needs.bound.push(self.volumes.get(&claim.volume));
            } else if claim.volume.is_empty() && self.class_of(claim).is_some_and(|class| class.waits) {
                needs.waiting.push((key, claim));
            } else {
                return Err("pod has unbound immediate PersistentVolumeClaims".to_owned());
            }
        }
        needs.waiting.sort_by_key(|(key, claim)| (claim.request(), key.clone()));
        Ok(needs)
    }

    fn usable(&self, key: &Key, used: &ClaimUse, pod_key: &Key, pod: &Pod) -> Result<&Claim, String> {
        let name = &used.name;
        let Some(claim) = self.claims.get(key) else {
            let made = "waiting for ephemeral volume controller to create the ";
            return Err(format!("{}persistentvolumeclaim {name:?} not found", if used.ephemeral { made } else { "" }));
        };
        if claim.lost {
            return Err(format!(
                "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {:?}",
                claim.volume
            ));
        }
        if claim.terminating {
            return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
        }
        if used.ephemeral && !claim.owners.contains(&pod.uid) {
            let (namespace, pod) = pod_key;
            return Err(format!("PVC {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)"));
        }
        Ok(claim)
    }

    fn class_of(&self, claim: &Claim) -> Option<&Class> {
        self.classes.get(class_of(claim.wants.as_deref()?)?)
    }

    /// The steps to write first, or why the node does not fit the claims.
    pub(super) fn fit(&self, needs: &Needs<'_>, name: &str, node: &Node) -> Result<Vec<Step>, Reason> {
        if needs.exclusive_taken {
            return Err(Reason::ExclusiveClaim);
        }
        for volume in &needs.bound {
            let Some(volume) = volume else { return Err(Reason::VolumeMissing) };
            if !volume.reaches(name, node) {
                return Err(Reason::VolumeAffinity);
            }
        }
        let mut steps = Vec::new();
        let mut chosen: Vec<Arc<str>> = Vec::new();
        for (key, claim) in &needs.waiting {
            let wants = claim.wants.as_deref().unwrap_or(&Value::Null);
            let selected = wants.text(&["metadata", "annotations", SELECTED_NODE]);
            if !selected.is_empty() {
                if selected != name {
                    return Err(Reason::NoVolume);
                }
                continue;
            }
            if let Some((volume, facts)) = self.find(key, claim, name, node, &chosen) {
                chosen.push(volume.clone());
                if facts.claim.is_none() {
                    let offers = facts.offers.as_deref().unwrap_or(&Value::Null);
                    steps.push(Step::Give {
                        volume: volume.clone(),
                        volume_version: offers.text(&["metadata", "resourceVersion"]).to_owned(),
                        claim: key.clone(),
                        claim_uid: claim.uid.to_string(),
                    });
                }
                continue;
            }
            let class = self.class_of(claim);
            if !class.is_some_and(|class| class.provisions && selector::is_allowed(&class.topologies, node)) {
                return Err(Reason::NoVolume);
            }
            let claim_version = wants.text(&["metadata", "resourceVersion"]).to_owned();
            steps.push(Step::Select { claim: key.clone(), claim_version });
        }
        Ok(steps)
    }

    /// Finds a PV with a claimRef to the claim, or else the smallest free one that matches it and is
    /// reachable from the node.
    fn find(
        &self,
        key: &Key,
        claim: &Claim,
        name: &str,
        node: &Node,
        chosen: &[Arc<str>],
    ) -> Option<(&Arc<str>, &Volume)> {
        let known = |name: &Arc<str>| self.volumes.get_key_value(name);
        let is_meant =
            |volume: &Volume| volume.claim.as_ref().is_some_and(|(_, uid)| uid.is_empty() || *uid == claim.uid);
        let meant = self.meant.get(key).into_iter().flatten().filter_map(known);
        let wants = claim.wants.as_deref()?;
        // A PV with a claimRef that does not match is ignored, as the binder does: the claim gets another
        // one, or one is provisioned.
        let fits = |volume: &Volume| volume.offers.as_deref().is_none_or(|offers| serves(offers, wants));
        let meant =
            meant.into_iter().find(|(_, volume)| is_meant(volume) && fits(volume) && volume.reaches(name, node));
        if meant.is_some() {
            return meant;
        }
        let class = class_of(wants).unwrap_or("");
        let free = self.free.get(class)?.range((claim.request(), Arc::from(""))..).filter_map(|(_, name)| known(name));
        free.into_iter().find(|(volume_name, volume)| {
            !chosen.contains(volume_name) && volume.suits(wants) && volume.reaches(name, node)
        })
    }
}

fn take_from(
    free: &mut BTreeMap<Arc<str>, BTreeSet<(Quantity, Arc<str>)>>,
    class: &Arc<str>,
    entry: &(Quantity, Arc<str>),
) {
    if let Some(of_class) = free.get_mut(class) {
        of_class.remove(entry);
        if of_class.is_empty() {
            free.remove(class);
        }
    }
}

impl Claim {
    fn of(claim: &Value) -> Claim {
        let volume = claim.text(&["spec", "volumeName"]);
        let bound = !volume.is_empty() && claim.has(&["metadata", "annotations", BIND_COMPLETED]);
        let owners = claim.items(&["metadata", "ownerReferences"]).iter();
        Claim {
            uid: uid(claim).into(),
            bound,
            lost: claim.text(&["status", "phase"]) == "Lost",
            terminating: terminating(claim),
            data_missing: condition::is_true(claim, health::MISSING),
            volume: volume.into(),
            exclusive: claim.items(&["spec", "accessModes"]).iter().any(|mode| mode == "ReadWriteOncePod"),
            owners: owners.map(|owner| owner.text(&["uid"]).into()).collect(),
            wants: (!bound).then(|| Arc::new(trimmed(claim))),
        }
    }

    fn request(&self) -> Quantity {
        request(self.wants.as_deref().unwrap_or(&Value::Null))
    }
}

impl Volume {
    fn of(volume: &Value) -> Volume {
        let reference = volume.at(&["spec", "claimRef"]).filter(|reference| !reference.text(&["name"]).is_empty());
        let claim = reference.map(|reference| {
            let key: Key = (reference.text(&["namespace"]).into(), reference.text(&["name"]).into());
            (key, reference.text(&["uid"]).into())
        });
        let phase_allows = match volume.text(&["status", "phase"]) {
            "Available" => true,
            // The binder has not handled it yet, but the claim in its claimRef may rely on it.
            "Pending" | "" => claim.is_some(),
            _ => false,
        };
        Volume {
            affinity: volume.at(&["spec", "nodeAffinity", "required"]).cloned(),
            class: class_of(volume).unwrap_or("").into(),
            capacity: volume.at(&["spec", "capacity", "storage"]).and_then(Quantity::of).unwrap_or(Quantity::ZERO),
            claim,
            csi: csi_source(volume).map(|(driver, handle)| Box::new((driver.into(), handle.into()))),
            offers: (phase_allows && !terminating(volume)).then(|| Arc::new(trimmed(volume))),
        }
    }

    fn reaches(&self, name: &str, node: &Node) -> bool {
        self.affinity.as_ref().is_none_or(|affinity| selector::takes(affinity, name, node))
    }

    /// Whether a free PV of the claim's class matches the claim.
    fn suits(&self, wants: &Value) -> bool {
        let Some(offers) = self.offers.as_deref() else { return false };
        let chooses = |selector: &Value| {
            LabelSelector::from_object(selector)
                .is_ok_and(|selector| selector.matches(offers.members(&["metadata", "labels"])))
        };
        serves(offers, wants) && wants.at(&["spec", "selector"]).is_none_or(chooses)
    }
}

/// Whether a PV satisfies size, modes and attributes of a claim, regardless of class and labels.
fn serves(offers: &Value, wants: &Value) -> bool {
    let mode = |object: &Value| match object.text(&["spec", "volumeMode"]) {
        "" => "Filesystem".to_owned(),
        mode => mode.to_owned(),
    };
    let attributes = |object: &Value| object.text(&["spec", "volumeAttributesClassName"]).to_owned();
    let modes = offers.items(&["spec", "accessModes"]);
    let capacity = offers.at(&["spec", "capacity", "storage"]).and_then(Quantity::of);
    capacity.is_some_and(|capacity| capacity >= request(wants))
        && wants.items(&["spec", "accessModes"]).iter().all(|mode| modes.contains(mode))
        && mode(wants) == mode(offers)
        && attributes(wants) == attributes(offers)
}

fn request(wants: &Value) -> Quantity {
    wants.at(&["spec", "resources", "requests", "storage"]).and_then(Quantity::of).unwrap_or(Quantity::ZERO)
}

impl Class {
    fn of(class: &Value) -> Class {
        Class {
            waits: class.text(&["volumeBindingMode"]) == "WaitForFirstConsumer",
            provisions: !matches!(class.text(&["provisioner"]), "" | NO_PROVISIONER),
            topologies: class.items(&["allowedTopologies"]).to_vec(),
        }
    }
}

/// The fields of an unbound claim or a free PV that matching needs.
fn trimmed(object: &Value) -> Value {
    let mut kept = json!({});
    let paths: [&[&str]; 11] = [
        &["metadata", "resourceVersion"],
        &["metadata", "labels"],
        &["metadata", "annotations", SELECTED_NODE],
        &["metadata", "annotations", BETA_CLASS],
        &["spec", "storageClassName"],
        &["spec", "accessModes"],
        &["spec", "selector"],
        &["spec", "resources", "requests", "storage"],
        &["spec", "volumeMode"],
        &["spec", "volumeAttributesClassName"],
        &["spec", "capacity", "storage"],
    ];
    for path in paths {
        if let Some(value) = object.at(path) {
            kept.put(path, value.clone());
        }
    }
    kept
}
