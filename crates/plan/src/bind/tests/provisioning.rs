//! Classes: assigned later, waiting for a pod, and provisioning.

use super::world::*;
use crate::bind::{self, Action, PROVISIONED_BY, SELECTED_NODE, STORAGE_PROVISIONERS, Target};
use crate::reclaim::{FINALIZER, HOST_PATH, migration::MIGRATED_TO};
use object::access::{Access, uid};
use object::{Value, json};

fn of_class(class: Value) -> Value {
    claim("c", "1Gi", json!({"spec": {"storageClassName": class}}))
}

fn default_class() -> Value {
    json!({"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}})
}

fn late() -> Value {
    json!({"volumeBindingMode": "WaitForFirstConsumer"})
}

/// The events about a claim of a class, after everything has settled.
fn events_of(class: Value) -> (World, Vec<(&'static str, String)>) {
    let mut world = World::default();
    world.add(class);
    world.add(of_class(json!("x")));
    world.settle();
    let reported = world.take_events().into_iter().collect();
    (world, reported)
}

#[test]
fn c3_a_claim_without_class_gets_a_later_default() {
    let mut world = World::default();
    let claim = world.add(of_class(Value::Null));
    world.settle();
    assert!(!world.now(&claim).has(&["spec", "storageClassName"]));
    world.add(class("older", "example.com", default_class()));
    let mut newer = class("newer", "example.com", default_class());
    newer["metadata"]["creationTimestamp"] = json!("2024-01-02T00:00:00Z");
    world.add(newer);
    assert!(world.plan_claim(&claim).retroactive);
    world.settle();
    assert_eq!(world.now(&claim)["spec"]["storageClassName"], "newer");
    // Not for claims with an empty class or a volume name, and only after a volume without class was searched.
    let none = world.add(super::world::claim("none", "1Gi", json!({})));
    let named = super::world::claim("named", "1Gi", json!({"spec": {"storageClassName": null, "volumeName": "v"}}));
    let named = world.add(named);
    world.add(volume("free", "1Gi", json!({})));
    let mut lucky = super::world::claim("a", "1Gi", json!({"spec": {"storageClassName": null}}));
    lucky["metadata"]["namespace"] = json!("a");
    let lucky = world.add(lucky);
    world.settle();
    assert_eq!(world.bound(&lucky), Some("free".to_owned()));
    assert_eq!(world.now(&none)["spec"]["storageClassName"], "");
    assert!(!world.now(&named).has(&["spec", "storageClassName"]));
    assert!(!world.now(&lucky).has(&["spec", "storageClassName"]));
}

#[test]
fn c5_c6_a_claim_waits_for_its_first_pod() {
    let mut world = World::default();
    world.add(class("w", "example.com", late()));
    world.add(volume("v", "1Gi", json!({"spec": {"storageClassName": "w"}})));
    let claim = world.add(of_class(json!("w")));
    assert!(!world.plan_claim(&claim).waits, "an available volume does not wake it");
    world.settle();
    let message = "waiting for first consumer to be created before binding".to_owned();
    assert_eq!(world.take_events(), [("WaitForFirstConsumer", message)].into());
    world.pods.push(("ns".to_owned(), "c".to_owned(), "web-0".to_owned()));
    world.settle();
    assert_eq!(
        world.take_events(),
        [("WaitForPodScheduled", "waiting for pod web-0 to be scheduled".to_owned())].into()
    );
    world.pods.push(("ns".to_owned(), "c".to_owned(), "web-1".to_owned()));
    world.settle();
    let message = "waiting for pods web-0,web-1 to be scheduled".to_owned();
    assert_eq!(world.take_events(), [("WaitForPodScheduled", message)].into());
    let waiting = world.now(&claim);
    assert!(!waiting.has(&["metadata", "annotations"]) && phase(&waiting) == "Pending");
}

// C7 (11-23, 11-24): once a node is selected a volume is provisioned, although one is available; but the scheduler may
// reserve one.
#[test]
fn c7_a_claim_with_a_selected_node_is_provisioned() {
    let mut world = World::default();
    world.add(class("w", "example.com", late()));
    let free = world.add(volume("v", "1Gi", json!({"spec": {"storageClassName": "w"}})));
    let claim = world.add(of_class(json!("w")));
    world.edit(&claim, json!({"metadata": {"annotations": {SELECTED_NODE: "node"}}}));
    world.settle();
    let asked = world.now(&claim);
    for key in STORAGE_PROVISIONERS {
        assert_eq!(asked["metadata"]["annotations"][key], "example.com");
    }
    let reference = json!({"namespace": "ns", "name": "c", "uid": uid(&claim)});
    world.edit(&free, json!({"spec": {"claimRef": reference}}));
    world.settle();
    assert_eq!(world.bound(&claim), Some("v".to_owned()));
}

// 2.2.A1: a claim whose class does not exist waits without an action.
#[test]
fn a_missing_class_delays_nothing() {
    let mut world = World::default();
    world.add(volume("v", "1Gi", json!({"spec": {"storageClassName": "gone"}})));
    let claim = world.add(of_class(json!("gone")));
    world.settle();
    assert_eq!(world.bound(&claim), Some("v".to_owned()));
}

#[test]
fn d1_an_external_provisioner_is_asked() {
    let (mut world, reported) = events_of(class("x", "example.com/driver", json!({})));
    let message = "Waiting for a volume to be created either by the external provisioner 'example.com/driver' or manually \
                   by the system administrator. If volume creation is delayed, please verify that the provisioner is \
                   running and correctly registered.";
    assert_eq!(reported, [("ExternalProvisioning", message.to_owned())]);
    let claim = world.claims.values().next().unwrap().clone();
    for key in STORAGE_PROVISIONERS {
        assert_eq!(claim["metadata"]["annotations"][key], "example.com/driver");
    }
    let plan = world.plan_claim(&claim);
    assert_eq!((plan.provisioner.as_deref(), plan.waits), (Some("example.com/driver"), true));
    assert_eq!(plan.actions, []);
    // D15: a volume of the class that appears meanwhile is taken.
    world.add(volume("v", "1Gi", json!({"spec": {"storageClassName": "x"}})));
    world.settle();
    assert_eq!(world.bound(&claim), Some("v".to_owned()));
    // The provisioner sets the reference to the claim, so it is not marked as the controller's.
    let mut world = events_of(class("x", "example.com", json!({}))).0;
    let claim = world.claims.values().next().unwrap().clone();
    let mut made = volume("pvc-1", "1Gi", json!({"status": {"phase": "Pending"}}));
    made.put(&["metadata", "annotations", PROVISIONED_BY], "example.com");
    made.put(&["spec", "claimRef"], json!({"namespace": "ns", "name": "c", "uid": uid(&claim)}));
    let made = world.add(made);
    world.settle();
    assert_eq!(world.bound(&claim), Some("pvc-1".to_owned()));
    assert_eq!(world.now(&made)["metadata"]["annotations"], json!({PROVISIONED_BY: "example.com"}));
}

// C13, D13: no provisioner can be asked.
#[test]
fn c13_d13_a_missing_provisioner_is_reported() {
    let (_, reported) = events_of(class("x", "kubernetes.io/no-provisioner", json!({})));
    let message = "no volume plugin matched name: kubernetes.io/no-provisioner".to_owned();
    assert_eq!(reported, [("ProvisioningFailed", message)]);
    let (mut world, reported) = events_of(class("other", "example.com", json!({})));
    let message = "storageclass.storage.k8s.io \"x\" not found".to_owned();
    assert_eq!(reported, [("ProvisioningFailed", message)]);
    world.add(class("x", "example.com", json!({})));
    world.settle();
    assert_eq!(world.take_events().iter().next().unwrap().0, "ExternalProvisioning");
    let claim = world.claims.values().next().unwrap().clone();
    world.plugins.dynamic_provisioning = false;
    let plan = world.plan_claim(&claim);
    assert!(plan.actions.is_empty() && plan.events.is_empty() && plan.waits);
}

// H4: plugins that are migrated, and back.
#[test]
fn h4_claims_of_in_tree_plugins_are_migrated_and_back() {
    let (mut world, _) = events_of(class("x", "kubernetes.io/aws-ebs", json!({})));
    let claim = world.claims.values().next().unwrap().clone();
    assert_eq!(claim["metadata"]["annotations"][STORAGE_PROVISIONERS[0]], "ebs.csi.aws.com");
    // A claim from before the migration.
    world.edit(&claim, json!({"metadata": {"annotations": {STORAGE_PROVISIONERS[0]: "kubernetes.io/aws-ebs"}}}));
    world.sync(&Target::of(&claim), usize::MAX);
    assert_eq!(world.now(&claim)["metadata"]["annotations"][MIGRATED_TO], "ebs.csi.aws.com");
    world.plugins.migrated = false;
    world.sync(&Target::of(&claim), usize::MAX);
    assert!(!world.now(&claim).has(&["metadata", "annotations", MIGRATED_TO]));
    world.settle();
    let message = "no volume plugin matched name: kubernetes.io/aws-ebs".to_owned();
    assert!(world.take_events().contains(&("ProvisioningFailed", message)));
}

fn host_path_world(class_more: Value) -> World {
    let mut world = World::default();
    world.plugins.host_path_provisioning = true;
    world.add(class("x", HOST_PATH, class_more));
    world
}

// 2.8.5, H3: directories of this machine.
#[test]
fn h3_a_directory_is_provisioned_for_a_claim() {
    for (policy, finalizers) in [
        ("Delete", json!([FINALIZER, "kubernetes.io/pv-protection"])),
        ("Retain", json!(["kubernetes.io/pv-protection"])),
    ] {
        let mut world = host_path_world(json!({"reclaimPolicy": policy}));
        let claim = world.add(of_class(json!("x")));
        world.settle();
        let name = format!("pvc-{}", uid(&claim));
        assert_eq!(world.bound(&claim), Some(name.clone()));
        let volume = &world.volumes[&name];
        assert_eq!(volume["metadata"]["finalizers"], finalizers);
        assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], policy);
        assert_eq!(volume["spec"]["storageClassName"], "x");
        assert_eq!(volume["spec"]["capacity"]["storage"], "1Gi");
        assert_eq!(volume["metadata"]["annotations"][PROVISIONED_BY], HOST_PATH);
        assert_eq!(volume["metadata"]["annotations"][bind::BOUND_BY_CONTROLLER], "yes");
        let directory = format!("/tmp/hostpath_pv/{}", uid(&claim));
        assert_eq!(volume["spec"]["hostPath"]["path"], json!(directory));
        assert_eq!(world.directories, [directory].into());
        world.delete(&claim);
        world.settle();
        assert_eq!(world.volumes.is_empty(), policy == "Delete");
        assert_eq!(world.directories.is_empty(), policy == "Delete");
    }
}

/// The binder crashes at any point, and the claim is deleted before it restarts: no directory is left, because a
/// directory is created only after its PV.
#[test]
fn no_directory_is_created_without_a_pv() {
    for died_after in 0..8 {
        let mut world = host_path_world(json!({"reclaimPolicy": "Delete"}));
        let claim = world.add(of_class(json!("x")));
        let target = bind::Target::of(&claim);
        // Several process lifetimes of a few actions each.
        for life in 0..4 {
            world.sync(&target, died_after.min(2 + life));
            let named: std::collections::BTreeSet<String> =
                world.volumes.values().map(|volume| volume.text(&["spec", "hostPath", "path"]).to_owned()).collect();
            assert!(world.directories.is_subset(&named), "after {died_after}, life {life}");
        }
        world.delete(&claim);
        world.settle();
        assert!(world.volumes.is_empty() && world.directories.is_empty(), "after {died_after}");
    }
    // A volume that was bound before and lost its directory does not get an empty one.
    let mut world = host_path_world(json!({"reclaimPolicy": "Retain"}));
    let claim = world.add(of_class(json!("x")));
    world.settle();
    world.directories.clear();
    let volume = world.volumes.values().next().expect("a volume").clone();
    world.edit(&volume, json!({"status": {"phase": "Pending"}}));
    world.settle();
    assert!(world.bound(&claim).is_some() && world.directories.is_empty());
}

#[test]
fn unsupported_claims_are_refused_with_a_reason() {
    let mut disabled = host_path_world(json!({}));
    disabled.plugins.host_path_provisioning = false;
    let source = json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "other"}}});
    let cases = [
        (
            disabled,
            json!({}),
            "Failed to create provisioner: provisioning in volume plugin \"kubernetes.io/host-path\" is disabled",
        ),
        (
            host_path_world(json!({})),
            source,
            "plugin \"kubernetes.io/host-path\" is not a CSI plugin. Only CSI plugin can provision a claim with a datasource",
        ),
        (
            host_path_world(json!({"mountOptions": ["a", "b"]})),
            json!({}),
            "Mount options are not supported by the provisioner but StorageClass \"x\" has mount options [a b]",
        ),
        (
            host_path_world(json!({})),
            json!({"spec": {"volumeMode": "Block"}}),
            "Failed to provision volume with StorageClass \"x\": kubernetes.io/host-path does not support block volume provisioning",
        ),
    ];
    for (mut world, more, message) in cases {
        world.add(object::patch::merge(&of_class(json!("x")), &more));
        world.settle();
        assert_eq!(world.take_events(), [("ProvisioningFailed", message.to_owned())].into());
        assert!(world.volumes.is_empty() && world.directories.is_empty());
    }
}

#[test]
fn a_failed_directory_is_rescheduled_to_another_node() {
    let mut world = host_path_world(late());
    let claim = world.add(of_class(json!("x")));
    world.edit(&claim, json!({"metadata": {"annotations": {SELECTED_NODE: "node"}}}));
    let claim = world.now(&claim);
    let plan = world.plan_claim(&claim);
    let Some(Action::Provision { node, .. }) = plan.actions.last() else { panic!("{plan:?}") };
    assert_eq!(node.as_deref(), Some("node"));
    let failed = bind::provision_failed(&claim, "x", "disk full");
    assert_eq!(failed.events[0].message, "Failed to provision volume with StorageClass \"x\": disk full");
    world.carry_out(failed, usize::MAX);
    assert!(!world.now(&claim).has(&["metadata", "annotations", SELECTED_NODE]));
    assert_eq!(bind::node_gone(&world.now(&claim)).actions, []);
}
