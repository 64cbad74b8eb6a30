//! Plans provisioning for a claim: by an external provisioner, or by the built-in one, which creates directories.

use super::pair::claim_reference;
use super::{
    Action, BOUND_BY_CONTROLLER, PROVISIONED_BY, Plan, SELECTED_NODE, STORAGE_PROVISIONERS, Seen, Target, annotation,
    is_bound, matching,
};
use crate::finalizers::precondition;
use crate::reclaim::{self, HOST_PATH, IN_TREE_PREFIX, Plugins};
use object::access::{Access, name, uid};
use object::{Value, json};

const FAILED: &str = "ProvisioningFailed";
/// The parent of provisioned directories.
const DIRECTORIES: &str = "/tmp/hostpath_pv";

/// Asks for a volume for a claim that found none.
pub(super) fn plan(claim: &Value, class_name: &str, seen: &impl Seen, plugins: &Plugins, plan: Plan) -> Plan {
    if !plugins.dynamic_provisioning {
        return plan;
    }
    let Some(class) = seen.class(class_name) else {
        return plan.warning(claim, FAILED, format!("storageclass.storage.k8s.io {class_name:?} not found"));
    };
    let provisioner = class.text(&["provisioner"]);
    let driver = plugins.driver_of(provisioner);
    if driver.is_none() && provisioner == HOST_PATH {
        return inside(claim, &class, seen, plugins, plan);
    }
    if driver.is_none() && provisioner.starts_with(IN_TREE_PREFIX) {
        return plan.warning(claim, FAILED, reclaim::no_plugin(provisioner));
    }
    let provisioner = driver.unwrap_or(provisioner);
    let message = format!(
        "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the system \
         administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered."
    );
    Plan { provisioner: Some(provisioner.to_owned()), ..plan }.then(ask(claim, provisioner)).normal(
        claim,
        "ExternalProvisioning",
        message,
    )
}

/// The annotations that ask a provisioner.
fn ask(claim: &Value, provisioner: &str) -> Option<Action> {
    if annotation(claim, STORAGE_PROVISIONERS[0]) == provisioner {
        return None;
    }
    let mut patch = precondition(claim);
    for key in STORAGE_PROVISIONERS {
        patch.put(&["metadata", "annotations", key], provisioner);
    }
    Some(Action::Patch { of: Target::of(claim), status: false, patch })
}

/// Provisions a directory of this machine.
fn inside(claim: &Value, class: &Value, seen: &impl Seen, plugins: &Plugins, plan: Plan) -> Plan {
    let volume_name = format!("pvc-{}", uid(claim));
    let plan = Plan { provisioner: Some(HOST_PATH.to_owned()), ..plan }.then(ask(claim, HOST_PATH));
    if seen.volume(&volume_name).is_some() {
        return plan;
    }
    let mount_options = class.items(&["mountOptions"]);
    let refusal = if claim.has(&["spec", "dataSource"]) {
        format!("plugin {HOST_PATH:?} is not a CSI plugin. Only CSI plugin can provision a claim with a datasource")
    } else if !mount_options.is_empty() {
        let options: Vec<&str> = mount_options.iter().filter_map(Value::as_str).collect();
        format!(
            "Mount options are not supported by the provisioner but StorageClass {:?} has mount options [{}]",
            name(class),
            options.join(" ")
        )
    } else if !plugins.host_path_provisioning {
        format!("Failed to create provisioner: provisioning in volume plugin {HOST_PATH:?} is disabled")
    } else if matching::volume_mode(claim) == "Block" {
        failure(name(class), &format!("{HOST_PATH} does not support block volume provisioning"))
    } else {
        let directory = format!("{DIRECTORIES}/{}", uid(claim));
        let node = annotation(claim, SELECTED_NODE);
        return plan.then([Action::Provision {
            claim: Target::of(claim),
            class: name(class).to_owned(),
            node: Some(node.to_owned()).filter(|node| !node.is_empty()),
            volume: new_volume(claim, class, &volume_name, &directory, plugins),
        }]);
    };
    plan.warning(claim, FAILED, refusal)
}

/// The PV of a directory. Both names contain the claim's uid, so that a retry finds what the first attempt created.
fn new_volume(claim: &Value, class: &Value, volume_name: &str, directory: &str, plugins: &Plugins) -> Value {
    let policy = class.text(&["reclaimPolicy"]);
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": volume_name,
            "annotations": {
                "kubernetes.io/createdby": "hostpath-dynamic-provisioner",
                BOUND_BY_CONTROLLER: "yes",
                PROVISIONED_BY: HOST_PATH,
            },
        },
        "spec": {
            "accessModes": claim.items(&["spec", "accessModes"]),
            "capacity": {"storage": claim.at(&["spec", "resources", "requests", "storage"])},
            "claimRef": claim_reference(claim),
            "hostPath": {"path": directory, "type": ""},
            "persistentVolumeReclaimPolicy": policy,
            "storageClassName": name(class),
        },
    });
    if policy == "Delete" && plugins.honor_reclaim_policy {
        volume.put(&["metadata", "finalizers"], json!([reclaim::FINALIZER]));
    }
    volume
}

/// The actions that create the directory of a volume before it is bound for the first time.
pub(super) fn make(volume: &Value, claim: &Value) -> Vec<Action> {
    let is_made_here = volume.text(&["metadata", "annotations", PROVISIONED_BY]) == HOST_PATH;
    let is_new = !is_bound(claim) && matches!(volume.text(&["status", "phase"]), "" | "Pending");
    match reclaim::directory(volume).filter(|_| is_made_here && is_new) {
        Some(directory) => {
            let class = volume.text(&["spec", "storageClassName"]).to_owned();
            // The claim may have been deleted since, and the directory with it.
            vec![reclaim::confirm_volume(volume), Action::Make { class, directory: directory.to_owned() }]
        }
        None => Vec::new(),
    }
}

fn failure(class: &str, error: &str) -> String {
    format!("Failed to provision volume with StorageClass {class:?}: {error}")
}

/// Records that the directory could not be created; another node may be able to.
pub fn failed(claim: &Value, class: &str, error: &str) -> Plan {
    Plan::default().then(reschedule(claim)).warning(claim, FAILED, failure(class, error))
}

/// Clears the selected node, because it no longer exists: the scheduler selects another one.
pub fn node_gone(claim: &Value) -> Plan {
    Plan::default().then(reschedule(claim))
}

fn reschedule(claim: &Value) -> Option<Action> {
    if !claim.has(&["metadata", "annotations", SELECTED_NODE]) {
        return None;
    }
    let mut patch = precondition(claim);
    patch.put(&["metadata", "annotations", SELECTED_NODE], Value::Null);
    Some(Action::Patch { of: Target::of(claim), status: false, patch })
}
