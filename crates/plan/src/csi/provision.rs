//! Plans the request to a driver for a claim. The request and the PV are computed once and journaled before the driver
//! is called. Every retry repeats exactly this request, whatever happens to claim and class meanwhile.

use super::cloning::{self, Start};
use super::parameters::{self, Parameters};
use super::secret::{self, Use, Words};
use super::topology::{self, Cluster, Obstacle, Offer};
use super::{
    AccessType, Capability, Driver, Event, FINALIZER, MIGRATED_TO, PROVISIONED_BY, SELECTED_NODE, STORAGE_PROVISIONERS,
    SecretRef, annotation, texts,
};
use crate::reclaim::Plugins;
use object::access::{Access, name, namespace, terminating, uid};
use object::kinds::volumes::class_of;
use object::quantity::Quantity;
use object::{Value, json};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A CreateVolume request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateVolume {
    pub name: String,
    pub required_bytes: i64,
    pub capabilities: Vec<Capability>,
    pub parameters: BTreeMap<String, String>,
    pub mutable_parameters: BTreeMap<String, String>,
    /// The handle of the volume to copy.
    pub source: Option<String>,
    pub topology: Option<Offer>,
    pub secret: Option<SecretRef>,
}

/// What is journaled before CreateVolume: enough to repeat the call and to save the PV, without other objects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Intent {
    pub driver: String,
    pub request: CreateVolume,
    /// The PV, except the fields that only the response has.
    pub volume: Value,
    /// Whether another node can be selected if the topology segment of this one has no capacity.
    pub reschedules: bool,
}

impl Intent {
    pub fn class(&self) -> &str {
        self.volume.text(&["spec", "storageClassName"])
    }
    /// The reference to the claim.
    pub fn claim(&self) -> &Value {
        self.volume.at(&["spec", "claimRef"]).unwrap_or(&Value::Null)
    }
}

/// A claim and the objects that it refers to.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub claim: &'a Value,
    pub class: Option<&'a Value>,
    pub attributes_class: Option<&'a Value>,
    /// The claim to copy, and its PV.
    pub source: Option<&'a Value>,
    pub source_volume: Option<&'a Value>,
    pub cluster: Cluster<'a>,
}

/// What to do for a claim.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// The claim is not for this driver, or not ready.
    Nothing,
    /// An external populator creates the volume; record this event.
    Leave(Event),
    /// The volume cannot be requested now, for this reason. Retried.
    Failed(String),
    /// The selected node cannot be used.
    Reschedule(String),
    /// First add the finalizer to the source of the copy, with this merge patch.
    HoldSource(Value),
    /// Journal this intent, then call the driver.
    Create(Box<Intent>),
}

/// The name of a claim's PV.
pub fn volume_name(claim: &Value) -> String {
    format!("pvc-{}", uid(claim))
}

/// The driver that the binder asked for in the claim's annotation. Without it no provisioner acts.
pub fn wanted_driver(claim: &Value) -> Option<&str> {
    let migrated = annotation(claim, MIGRATED_TO);
    let asked = STORAGE_PROVISIONERS.iter().map(|key| annotation(claim, key));
    asked.chain([migrated]).find(|driver| !driver.is_empty())
}

/// Plans a claim that has no PV yet.
pub fn plan(seen: &Seen, driver: &Driver) -> Step {
    let claim = seen.claim;
    // A claim that is being deleted needs no volume.
    if !claim.text(&["spec", "volumeName"]).is_empty() || terminating(claim) {
        return Step::Nothing;
    }
    let Some(class) = seen.class else {
        let class = class_of(claim).unwrap_or("");
        return Step::Failed(format!("storageclass.storage.k8s.io \"{class}\" not found"));
    };
    let provisioner = class.text(&["provisioner"]);
    if provisioner != driver.name {
        if Plugins::default().driver_of(provisioner) != Some(&driver.name) {
            return Step::Nothing;
        }
        return Step::Failed(format!(
            "the class names the in-tree plugin {provisioner}, whose parameters are not translated here: name the driver {} instead",
            driver.name
        ));
    }
    let waits = class.text(&["volumeBindingMode"]) == "WaitForFirstConsumer";
    if waits && annotation(claim, SELECTED_NODE).is_empty() {
        return Step::Nothing;
    }
    match create(seen, class, driver) {
        Ok(step) => step,
        Err(Obstacle::Passing(why)) => Step::Failed(why),
        Err(Obstacle::Reschedule(why)) => Step::Reschedule(why),
    }
}

impl From<String> for Obstacle {
    fn from(why: String) -> Obstacle {
        Obstacle::Passing(why)
    }
}

fn create(seen: &Seen, class: &Value, driver: &Driver) -> Result<Step, Obstacle> {
    let claim = seen.claim;
    let source = match cloning::start(claim) {
        Start::Empty => None,
        Start::Claim(_) => Some(cloning::handle(claim, seen.source, seen.source_volume, &driver.name)?.to_owned()),
        Start::Snapshot(_) => return Err("volumes from snapshots are not supported".to_owned().into()),
        Start::Foreign => {
            let message = "Assuming an external populator will provision the volume";
            return Ok(Step::Leave(Event::normal("Provisioning", message)));
        }
    };
    check_abilities(claim, driver, source.is_some())?;
    if claim.has(&["spec", "selector"]) {
        return Err("claim Selector is not supported".to_owned().into());
    }
    let sorted = parameters::sort(class.members(&["parameters"]))?;
    let mutable_parameters = mutable_parameters(seen, driver)?;
    let secrets = Secrets::of(class, claim)?;
    let topology = topology::offer(claim, class, driver, &seen.cluster)?;
    if let (Some(from), true) = (seen.source, source.is_some())
        && !crate::finalizers::has(from, cloning::PROTECTION)
    {
        return Ok(Step::HoldSource(crate::finalizers::patch(from, &[cloning::PROTECTION], &[])));
    }
    let access = access_type(claim, class, &sorted, driver);
    let modes = claim.items(&["spec", "accessModes"]).iter().filter_map(Value::as_str);
    let request = CreateVolume {
        name: volume_name(claim),
        required_bytes: requested(claim).ceil(),
        capabilities: modes.map(|mode| Capability::of(mode, access.clone(), driver)).collect(),
        parameters: parameters_for(claim, sorted, driver),
        mutable_parameters,
        source,
        topology,
        secret: secrets.get(Use::Provision).cloned(),
    };
    let volume = volume(claim, class, driver, &access, &secrets);
    let reschedules = driver.can.topology && !annotation(claim, SELECTED_NODE).is_empty();
    Ok(Step::Create(Box::new(Intent { driver: driver.name.clone(), request, volume, reschedules })))
}

fn check_abilities(claim: &Value, driver: &Driver, copies: bool) -> Result<(), String> {
    let modifies = !claim.text(&["spec", "volumeAttributesClassName"]).is_empty();
    let needed = [
        (true, driver.can.controller_service, "CONTROLLER_SERVICE"),
        (true, driver.can.create_delete, "CREATE_DELETE_VOLUME"),
        (copies, driver.can.clone, "CLONE_VOLUME"),
        (modifies, driver.can.modify, "MODIFY_VOLUME"),
    ];
    match needed.iter().find(|(needed, can, _)| *needed && !can) {
        Some((.., ability)) => Err(format!("CSI driver {} does not support {ability}", driver.name)),
        None => Ok(()),
    }
}

fn requested(claim: &Value) -> Quantity {
    claim.at(&["spec", "resources", "requests", "storage"]).and_then(Quantity::of).unwrap_or(Quantity::ZERO)
}

fn access_type(claim: &Value, class: &Value, sorted: &Parameters, driver: &Driver) -> AccessType {
    if claim.text(&["spec", "volumeMode"]) == "Block" {
        return AccessType::Block;
    }
    let named = &sorted.fs_type;
    let fs_type = if named.is_empty() { driver.options.default_fs_type.clone() } else { named.clone() };
    AccessType::Mount { fs_type, flags: texts(class.items(&["mountOptions"])) }
}

fn parameters_for(claim: &Value, sorted: Parameters, driver: &Driver) -> BTreeMap<String, String> {
    let mut parameters = sorted.for_driver;
    if driver.options.extra_create_metadata {
        let prefix = parameters::RESERVED;
        parameters.insert(format!("{prefix}pvc/name"), name(claim).to_owned());
        parameters.insert(format!("{prefix}pvc/namespace"), namespace(claim).to_owned());
        parameters.insert(format!("{prefix}pv/name"), volume_name(claim));
    }
    parameters
}

fn mutable_parameters(seen: &Seen, driver: &Driver) -> Result<BTreeMap<String, String>, String> {
    let wanted = seen.claim.text(&["spec", "volumeAttributesClassName"]);
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    let Some(class) = seen.attributes_class else {
        return Err(format!("volumeattributesclass.storage.k8s.io \"{wanted}\" not found"));
    };
    let of = class.text(&["driverName"]);
    if of != driver.name {
        let ours = &driver.name;
        return Err(format!(
            "VAC {wanted} referenced in PVC is for driver {of} which does not match driver name {ours}"
        ));
    }
    Ok(string_map(class, &["parameters"]))
}

pub(super) fn string_map(object: &Value, path: &[&str]) -> BTreeMap<String, String> {
    let members = object.members(path).iter();
    members.map(|(key, value)| (key.to_string(), value.as_str().unwrap_or("").to_owned())).collect()
}

/// The Secrets that a class names, by use.
struct Secrets(Vec<(Use, SecretRef)>);

impl Secrets {
    fn of(class: &Value, claim: &Value) -> Result<Secrets, String> {
        let volume = volume_name(claim);
        let words = Words { volume: &volume, claim: Some(claim) };
        let mut found = Vec::new();
        for wanted in Use::ALL {
            if let Some(secret) = secret::of_class(class.members(&["parameters"]), wanted, &words)? {
                found.push((wanted, secret));
            }
        }
        Ok(Secrets(found))
    }

    fn get(&self, wanted: Use) -> Option<&SecretRef> {
        self.0.iter().find(|(used, _)| *used == wanted).map(|(_, secret)| secret)
    }
}

/// The PV, except the fields that only the response has.
fn volume(claim: &Value, class: &Value, driver: &Driver, access: &AccessType, secrets: &Secrets) -> Value {
    let policy = match class.text(&["reclaimPolicy"]) {
        "" => "Delete",
        policy => policy,
    };
    let mut source = json!({"driver": driver.name});
    if let AccessType::Mount { fs_type, .. } = access
        && !fs_type.is_empty()
    {
        source.put(&["fsType"], fs_type.as_str());
    }
    if driver.options.publish_read_only && claim["spec"]["accessModes"] == json!(["ReadOnlyMany"]) {
        source.put(&["readOnly"], true);
    }
    for (wanted, field) in [
        (Use::ControllerPublish, "controllerPublishSecretRef"),
        (Use::NodeStage, "nodeStageSecretRef"),
        (Use::NodePublish, "nodePublishSecretRef"),
        (Use::ControllerExpand, "controllerExpandSecretRef"),
        (Use::NodeExpand, "nodeExpandSecretRef"),
    ] {
        if let Some(secret) = secrets.get(wanted) {
            source.put(&[field], json!({"name": secret.name, "namespace": secret.namespace}));
        }
    }
    let mut volume = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": volume_name(claim), "annotations": annotations(class, secrets)},
        "spec": {
            "accessModes": claim["spec"]["accessModes"],
            "persistentVolumeReclaimPolicy": policy,
            "volumeMode": if *access == AccessType::Block { "Block" } else { "Filesystem" },
            "storageClassName": class_of(claim).unwrap_or(""),
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace(claim), "name": name(claim),
                "uid": uid(claim), "resourceVersion": claim.text(&["metadata", "resourceVersion"]),
            },
            "csi": source,
        },
    });
    // Also with gate HonorPVReclaimPolicy off: the finalizer is then removed once the journal no longer has the volume.
    if policy == "Delete" {
        volume.put(&["metadata", "finalizers"], json!([FINALIZER]));
    }
    if let Some(options) = class.at(&["mountOptions"]) {
        volume.put(&["spec", "mountOptions"], options.clone());
    }
    let attributes_class = claim.text(&["spec", "volumeAttributesClassName"]);
    if !attributes_class.is_empty() {
        volume.put(&["spec", "volumeAttributesClassName"], attributes_class);
    }
    volume
}

fn annotations(class: &Value, secrets: &Secrets) -> Value {
    let part = |secret: Option<&SecretRef>, of: fn(&SecretRef) -> &str| secret.map_or("", of).to_owned();
    let deletion = secrets.get(Use::Provision);
    let mut annotations = json!({
        PROVISIONED_BY: class.text(&["provisioner"]),
        secret::DELETION_NAME: part(deletion, |secret| &secret.name),
        secret::DELETION_NAMESPACE: part(deletion, |secret| &secret.namespace),
    });
    if let Some(modify) = secrets.get(Use::Modify) {
        annotations.put(&[secret::MODIFY_NAME], modify.name.as_str());
        annotations.put(&[secret::MODIFY_NAMESPACE], modify.namespace.as_str());
    }
    annotations
}

#[cfg(test)]
mod tests;
