//! The reclaim policy through the real server, with real directories.

use crate::pairs::*;
use crate::world::*;
use object::access::{Access, name, terminating, uid};
use object::{Gates, Value, json, patch};
use runtime::Provisioning;
use std::path::PathBuf;

const FINALIZER: &str = "kubernetes.io/pv-controller";
const EXTERNAL: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// A PV of a directory.
fn of_directory(directory: &Directory, policy: &str, made_by: Option<&str>) -> Value {
    let more = json!({
        "metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": made_by}},
        "spec": {"hostPath": {"path": directory.path()}, "persistentVolumeReclaimPolicy": policy},
    });
    let mut volume = a_volume("v", "1Gi", more);
    if made_by.is_none() {
        volume["metadata"].as_object_mut().expect("metadata").remove("annotations");
    }
    volume
}

/// A PV that is bound to a claim, with the finalizers that it should have.
async fn bound_pair(world: &World, volume: Value) -> (Value, Value) {
    let volume = world.create(volume).await;
    let claim = world.create(a_claim("c", "1Gi", json!({}))).await;
    until_bound(world, &claim, "v").await;
    settle(world).await;
    (volume, claim)
}

/// A claim for which a directory was provisioned, and the name of its PV.
async fn made_inside() -> (World, Value, String) {
    let mut world = World::bare().await;
    world.setup.provisioning = Provisioning { host_path: true, ..Provisioning::default() };
    world.start(&all());
    world.create(a_class("x", "kubernetes.io/host-path", json!({}))).await;
    let claim = world.create(a_claim("c", "1Gi", of_class("x"))).await;
    let made = format!("pvc-{}", uid(&claim));
    until_bound(&world, &claim, &made).await;
    (world, claim, made)
}

fn finalizers(volume: &Value) -> Vec<&str> {
    volume.items(&["metadata", "finalizers"]).iter().filter_map(Value::as_str).collect()
}

// H1, H3, H10, F7, F10, F11, E1, E2: all orders of deleting pod, claim, PV and class have the same result.
#[tokio::test(flavor = "multi_thread")]
async fn h1_h10_all_orders_of_deletion_have_the_same_result() {
    let world = World::with(&all()).await;
    for order in permutations(["pod", "claim", "volume", "class"]) {
        for (policy, made_by) in
            [("Delete", None), ("Delete", Some("kubernetes.io/host-path")), ("Retain", Some("kubernetes.io/host-path"))]
        {
            let case = format!("{order:?} {policy} {made_by:?}");
            let directory = Directory::new();
            let class = world.create(a_class("x", "kubernetes.io/host-path", json!({"reclaimPolicy": policy}))).await;
            let volume = patch::merge(&of_directory(&directory, policy, made_by), &of_class("x"));
            let volume = world.create(volume).await;
            let claim = world.create(a_claim("c", "1Gi", of_class("x"))).await;
            until_bound(&world, &claim, "v").await;
            let mut pod = pod("default", "p");
            pod["spec"]["nodeName"] = json!("node");
            pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]);
            let pod = world.create(pod).await;
            for what in order {
                let object = match what {
                    "pod" => &pod,
                    "claim" => &claim,
                    "volume" => &volume,
                    _ => &class,
                };
                let force = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
                world.send("DELETE", &path(object), "application/json", Some(&force)).await;
                if what == "volume"
                    && let Some(held) = world.now(&volume).await
                    && world.now(&claim).await.is_some()
                {
                    assert!(terminating(&held) && directory.exists(), "{case}");
                }
            }
            world.until_all_gone(&[pod, claim, volume, class]).await;
            assert_eq!(directory.exists(), policy == "Retain", "{case}");
        }
    }
    assert!(world.requests.refused().is_empty());
    world.stop().await;
}

fn permutations(of: [&'static str; 4]) -> Vec<[&'static str; 4]> {
    let mut all = Vec::new();
    for a in 0..4 {
        for b in 0..4 {
            for c in 0..4 {
                for d in 0..4 {
                    let distinct: std::collections::BTreeSet<usize> = [a, b, c, d].into();
                    if distinct.len() == 4 {
                        all.push([of[a], of[b], of[c], of[d]]);
                    }
                }
            }
        }
    }
    assert_eq!(all.len(), 24);
    all
}

// H3, H5, H6, G10, F1: finalizers depend on provisioner and policy.
#[tokio::test(flavor = "multi_thread")]
async fn h3_h6_finalizers_follow_the_policy() {
    let world = World::with(&all()).await;
    let directory = Directory::new();
    let (volume, claim) = bound_pair(&world, of_directory(&directory, "Delete", Some("kubernetes.io/host-path"))).await;
    let protection = "kubernetes.io/pv-protection";
    let until = async |want: &[&str]| {
        world.until_is(&volume, &format!("its finalizers are {want:?}"), |volume| finalizers(volume) == want).await
    };
    until(&[protection, FINALIZER]).await;
    let set =
        async |policy: &str| world.merge(&volume, json!({"spec": {"persistentVolumeReclaimPolicy": policy}})).await;
    set("Retain").await;
    until(&[protection]).await;
    set("Delete").await;
    until(&[protection, FINALIZER]).await;
    // Left over from an external provisioner.
    world.merge(&volume, json!({"metadata": {"finalizers": [protection, EXTERNAL]}})).await;
    until(&[protection, FINALIZER]).await;
    // G7: the policy of a terminating PV changes, back and forth.
    set("Retain").await;
    until(&[protection]).await;
    world.delete(&volume, "").await;
    set("Delete").await;
    settle(&world).await;
    let held = world.now(&volume).await.expect("its claim holds it");
    assert_eq!((phase(&held), finalizers(&held)), ("Bound", vec![protection]));
    world.delete(&claim, "").await;
    world.until_gone(&volume).await;
    assert!(!directory.exists(), "deleted, and nothing was stuck");

    // H5: a PV that was never bound is not deleted with its data.
    let directory = Directory::new();
    let free = world.create(of_directory(&directory, "Delete", None)).await;
    until_phase(&world, &free, "Available").await;
    assert_eq!(finalizers(&world.now(&free).await.expect("there")), [protection]);
    world.delete(&free, "").await;
    world.until_gone(&free).await;
    settle(&world).await;
    assert!(directory.exists());
    world.stop().await;
}

// H6: the creation of a retained and removed PV is executed again: its data is kept. A PV from a backup waits
// for a confirmation.
#[tokio::test(flavor = "multi_thread")]
async fn h6_a_delayed_creation_keeps_retained_data() {
    let (world, claim, made) = made_inside().await;
    let volume = world.get(&format!("/api/v1/persistentvolumes/{made}")).await.expect("there");
    let directory = PathBuf::from(volume.text(&["spec", "hostPath", "path"]));
    world.merge(&volume, json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}})).await;
    world.delete(&claim, "").await;
    world.until_gone(&claim).await;
    world.delete(&volume, "").await;
    world.until_gone(&volume).await;
    let metadata = json!({"name": made, "annotations": volume["metadata"]["annotations"], "finalizers": [FINALIZER]});
    let mut late =
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": volume["spec"]});
    let again = world.create(late.clone()).await;
    world.until_gone(&again).await;
    assert!(directory.is_dir(), "it was retained");
    // From a backup: the history of the former PV is unknown.
    late["spec"]["claimRef"]["resourceVersion"] = json!("");
    let restored = world.create(late).await;
    world.until_event(&restored, "DeletionUnconfirmed").await;
    settle(&world).await;
    assert!(directory.is_dir() && world.now(&restored).await.is_some());
    world.merge(&restored, json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}})).await;
    until_phase(&world, &restored, "Released").await;
    std::fs::remove_dir(&directory).expect("it is empty");
    world.stop().await;
}

// H8: with the gate off, the behaviour is that before KEP-2644.
#[tokio::test(flavor = "multi_thread")]
async fn h8_with_the_gate_off_a_pv_that_is_deleted_first_leaks() {
    let mut world = World::bare().await;
    world.setup.gates = Gates::default().with("HonorPVReclaimPolicy", false);
    world.start(&all());
    let directory = Directory::new();
    let (volume, claim) = bound_pair(&world, of_directory(&directory, "Delete", Some("kubernetes.io/host-path"))).await;
    assert_eq!(finalizers(&world.now(&volume).await.expect("there")), ["kubernetes.io/pv-protection"]);
    world.delete(&volume, "").await;
    world.delete(&claim, "").await;
    world.until_gone(&volume).await;
    settle(&world).await;
    assert!(directory.exists());
    world.stop().await;
}

// H7, F15: a failure is reported and retried, and nothing is lost meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn h7_a_deletion_that_fails_is_reported_and_retried() {
    let world = World::with(&all()).await;
    let directory = Directory::new();
    // A failure: the volume's directory is a link.
    let target = directory.0.join("elsewhere");
    std::fs::rename(directory.path(), &target).expect("moves");
    std::os::unix::fs::symlink(&target, directory.path()).expect("links");
    let (volume, claim) = bound_pair(&world, of_directory(&directory, "Delete", Some("kubernetes.io/host-path"))).await;
    world.delete(&claim, "").await;
    let failed = until_phase(&world, &volume, "Failed").await;
    assert!(failed.text(&["status", "message"]).contains("is a symbolic link"), "{failed}");
    let event = world.until_event(&volume, "VolumeFailedDelete").await;
    assert_eq!(event["type"], "Warning");
    world.delete(&volume, "").await;
    settle(&world).await;
    assert!(world.now(&volume).await.is_some(), "our finalizer holds it");
    assert!(
        world.figures().contains(
            "volume_operation_errors_total{plugin_name=\"kubernetes.io/host-path\",operation_name=\"delete\"}"
        )
    );
    std::fs::remove_file(directory.path()).expect("the link goes");
    std::fs::rename(&target, directory.path()).expect("moves");
    world.until_gone(&volume).await;
    assert!(!directory.exists());
    world.stop().await;
}

// F9, and directories outside of the one that may be deleted from.
#[tokio::test(flavor = "multi_thread")]
async fn f9_volumes_that_cannot_be_deleted_fail_with_a_message() {
    let world = World::with(&all()).await;
    let nfs = json!({"spec": {"hostPath": null, "nfs": {"server": "x", "path": "/"}, "persistentVolumeReclaimPolicy": "Delete"}});
    let (volume, claim) = bound_pair(&world, a_volume("v", "1Gi", nfs)).await;
    world.delete(&claim, "").await;
    let failed = until_phase(&world, &volume, "Failed").await;
    let why = "error getting deleter volume plugin for volume \"v\": no deletable volume plugin matched";
    assert_eq!(failed["status"]["message"], why);
    world.until_event(&volume, "VolumeFailedDelete").await;
    world.delete(&volume, "").await;
    world.until_gone(&volume).await;
    let elsewhere =
        json!({"spec": {"hostPath": {"path": "/proc/self/task"}, "persistentVolumeReclaimPolicy": "Delete"}});
    let (volume, claim) = bound_pair(&world, a_volume("v", "1Gi", elsewhere)).await;
    world.delete(&claim, "").await;
    let event = world.until_event(&volume, "VolumeFailedDelete").await;
    assert_eq!(event["message"], "host_path deleter only supports /tmp/.+ but received provided /proc/self/task");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f12_f14_a_recycled_volume_is_empty_and_free_again() {
    let world = World::with(&all()).await;
    let directory = Directory::new();
    let (volume, claim) = bound_pair(&world, of_directory(&directory, "Recycle", None)).await;
    let mut user = pod("default", "user");
    user["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]);
    let user = world.create(user).await;
    world.delete(&claim, "").await;
    let event = world.until_event(&volume, "VolumeFailedRecycle").await;
    assert_eq!((&event["type"], &event["message"]), (&json!("Normal"), &json!("Volume is used by pods: default/user")));
    assert_eq!((phase(&world.now(&volume).await.expect("there")), directory.content()), ("Released", 2));
    world.delete(&user, "").await;
    world.until_gone(&user).await;
    // Any change queues it before the next periodic check.
    world.merge(&volume, json!({"metadata": {"labels": {"a": "b"}}})).await;
    let free = until_phase(&world, &volume, "Available").await;
    assert!(!free.has(&["spec", "claimRef"]));
    assert_eq!(directory.content(), 0);
    world.until_event(&volume, "VolumeRecycled").await;
    world.stop().await;
}

// H3, 2.8.5: a directory from provisioning to deletion.
#[tokio::test(flavor = "multi_thread")]
async fn h3_directories_are_provisioned_and_deleted_for_claims() {
    let (world, claim, made) = made_inside().await;
    let event = world.until_event(&claim, "ProvisioningSucceeded").await;
    assert_eq!(event["message"], format!("Successfully provisioned volume {made} using kubernetes.io/host-path"));
    let volume = world.get(&format!("/api/v1/persistentvolumes/{made}")).await.expect("there");
    assert_eq!(finalizers(&volume), [FINALIZER, "kubernetes.io/pv-protection"]);
    assert_eq!(volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"], "kubernetes.io/host-path");
    let directory = PathBuf::from(volume.text(&["spec", "hostPath", "path"]));
    assert!(directory.is_dir());
    let provision =
        "volume_operation_total_seconds_count{plugin_name=\"kubernetes.io/host-path\",operation_name=\"provision\"} 1";
    world.until_moment("the metric is updated", || world.figures().contains(provision)).await;
    world.delete(&claim, "").await;
    world.until_gone(&volume).await;
    assert!(!directory.exists());
    for object in [&claim, &volume] {
        let event = world.until_event(object, "VolumeDataDeleted").await;
        let message = event.text(&["message"]);
        assert!(message.starts_with(object.text(&["kind"])) && message.contains("reclaim policy"), "{message}");
    }
    // A claim whose selected node does not exist gets another node.
    world.create(a_class("w", "kubernetes.io/host-path", json!({"volumeBindingMode": "WaitForFirstConsumer"}))).await;
    let late = world.create(a_claim("late", "1Gi", of_class("w"))).await;
    let node = json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "gone"}}});
    world.merge(&late, node).await;
    let selected = ["metadata", "annotations", "volume.kubernetes.io/selected-node"];
    world.until_is(&late, "its node is chosen anew", |claim| !claim.has(&selected)).await;
    assert!(world.requests.refused().is_empty());
    assert_eq!(name(&late), "late");
    world.stop().await;
}

/// A claim is deleted when the PV's part of binding is written and its own cannot be: no claim used the PV,
/// so it is free again with its data.
#[tokio::test(flavor = "multi_thread")]
async fn a_pv_whose_binding_was_not_completed_is_free_again() {
    let world = World::with(&all()).await;
    let directory = Directory::new();
    let volume = world.create(of_directory(&directory, "Delete", None)).await;
    until_phase(&world, &volume, "Available").await;
    world.faults.refuse_at(Some(("PATCH", "persistentvolumeclaims/c?withStatus=true", 503)));
    let claim = world.create(a_claim("c", "1Gi", json!({}))).await;
    world.until_is(&volume, "it is begun", |volume| volume.has(&["spec", "claimRef", "uid"])).await;
    world.delete(&claim, "").await;
    world.until_gone(&claim).await;
    world.faults.refuse_at(None);
    until_phase(&world, &volume, "Available").await;
    settle(&world).await;
    assert!(directory.exists());
    assert!(!world.now(&volume).await.expect("there").has(&["spec", "claimRef"]));
    world.stop().await;
}

// H9, 2.11: metrics.
#[tokio::test(flavor = "multi_thread")]
async fn h9_metrics_of_pvs_and_claims() {
    let world = World::with(&all()).await;
    world.create(a_volume("free", "9Gi", of_class("gold"))).await;
    let directory = Directory::new();
    let (volume, claim) = bound_pair(&world, of_directory(&directory, "Delete", None)).await;
    world.create(a_claim("waits", "20Gi", json!({}))).await;
    settle(&world).await;
    let until = async |lines: &[&str]| {
        let has_all = || lines.iter().all(|line| world.figures().lines().any(|found| found == *line));
        world.until_moment(&format!("{lines:?}"), has_all).await;
    };
    until(&[
        "pv_collector_total_pv_count{plugin_name=\"kubernetes.io/host-path\",volume_mode=\"Filesystem\"} 2",
        "pv_collector_bound_pv_count{storage_class=\"\"} 1",
        "pv_collector_unbound_pv_count{storage_class=\"gold\"} 1",
        "pv_collector_bound_pvc_count{namespace=\"default\",storage_class=\"\",volume_attributes_class=\"\"} 1",
        "pv_collector_unbound_pvc_count{namespace=\"default\",storage_class=\"\",volume_attributes_class=\"\"} 1",
    ])
    .await;
    assert!(world.figures().contains("persistentvolumeclaim_bind_duration_seconds_count"));
    world.delete(&claim, "").await;
    world.until_gone(&volume).await;
    until(&[
        "volume_operation_total_seconds_count{plugin_name=\"N/A\",operation_name=\"delete\"} 1",
        "pv_collector_total_pv_count{plugin_name=\"kubernetes.io/host-path\",volume_mode=\"Filesystem\"} 1",
    ])
    .await;
    assert!(!world.figures().contains("pv_collector_bound_pv_count{"), "nothing is left to count");
    world.stop().await;
}

// E15, E16, E11: a stopped controller finishes its work when it is started again, and a deleted namespace
// deletes its claims.
#[tokio::test(flavor = "multi_thread")]
async fn e11_e15_e16_reclaiming_waits_for_stopped_controllers() {
    let namespaces = "namespace-controller,garbage-collector-controller";
    let mut world = World::with(&format!("{},{namespaces}", all())).await;
    let directory = Directory::new();
    world.create(new_namespace("leaving")).await;
    let volume = world.create(of_directory(&directory, "Delete", Some("kubernetes.io/host-path"))).await;
    let mut claim = a_claim("c", "1Gi", json!({}));
    claim["metadata"]["namespace"] = json!("leaving");
    let claim = world.create(claim).await;
    until_bound(&world, &claim, "v").await;
    settle(&world).await;
    world.stop_controllers().await;
    world.delete(&volume, "").await;
    world.start(&format!("{PROTECTION},{namespaces}"));
    world.delete(&new_namespace("leaving"), "").await;
    world.until_gone(&claim).await;
    let waits = world.now(&volume).await.expect("no controller knows that its claim is removed");
    assert_eq!((phase(&waits), terminating(&waits), directory.exists()), ("Bound", true, true));
    world.stop_controllers().await;
    world.start(BINDER);
    let held = world.until_is(&volume, "only its protection is left", |volume| finalizers(volume).len() == 1).await;
    assert_eq!((finalizers(&held), directory.exists()), (vec!["kubernetes.io/pv-protection"], false));
    world.stop_controllers().await;
    world.start(PROTECTION);
    world.until_gone(&volume).await;
    world.stop().await;
}

/// A conflict at any write of a deletion only means that another client wrote: the PV is not considered
/// removed.
#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_at_any_write_of_a_deletion_is_retried() {
    let world = World::with(&all()).await;
    for after in 0.. {
        let directory = Directory::new();
        let (volume, claim) =
            bound_pair(&world, of_directory(&directory, "Delete", Some("kubernetes.io/host-path"))).await;
        world.faults.mishap("persistent-volume-binder", after, Mishap::Refused(409));
        world.delete(&claim, "").await;
        world.until_gone(&volume).await;
        if world.faults.mishap_waits() {
            assert!(after > 1, "it writes the phase and the deletion");
            break;
        }
    }
    world.stop().await;
}
