use super::*;
use crate::bind::tests::world::{World, claim, phase, volume};
use crate::bind::{BOUND_BY_CONTROLLER, STORAGE_PROVISIONERS};
use migration::MIGRATED_TO;
use object::access::uid;
use object::{json, patch};
use std::sync::Arc;

/// A volume with a policy and a provisioner, or none.
fn made_by(by: Option<&str>, policy: &str, more: Value) -> Value {
    let made = volume("v", "1Gi", json!({"spec": {"persistentVolumeReclaimPolicy": policy}}));
    let made = patch::merge(&made, &json!({"metadata": {"annotations": {PROVISIONED_BY: by}}}));
    patch::merge(&made, &more)
}

/// A volume with its directory, bound to a claim.
fn bound_pair(volume: Value) -> (World, Arc<Value>, Arc<Value>) {
    let mut world = World::default();
    world.directories.insert("/tmp/v".to_owned());
    let (volume, claim) = (world.add(volume), world.add(claim("c", "1Gi", json!({}))));
    world.settle();
    assert_eq!(world.bound(&claim), Some("v".to_owned()));
    world.take_events();
    (world, volume, claim)
}

fn with(finalizers: &[&str]) -> Value {
    json!({"metadata": {"finalizers": finalizers}})
}

const IN_TREE: Option<&str> = Some(HOST_PATH);
const PROTECTION: &str = "kubernetes.io/pv-protection";

// H3, H4, H5, G10 (13-1 to 13-15): which finalizers a volume has.
#[test]
fn h3_h5_finalizers_by_provisioner_and_policy() {
    let outside = Some("example.com");
    let handed_over = Some("kubernetes.io/aws-ebs");
    let cases: &[(Option<&str>, &str, &[&str], Option<&[&str]>)] = &[
        (None, "Delete", &[PROTECTION], None),
        (None, "Delete", &[PROTECTION, EXTERNAL_FINALIZER], None),
        (None, "Retain", &[FINALIZER], None),
        (outside, "Delete", &[PROTECTION], None),
        (outside, "Delete", &[PROTECTION, EXTERNAL_FINALIZER], None),
        (outside, "Retain", &[FINALIZER], None),
        (handed_over, "Delete", &[FINALIZER, EXTERNAL_FINALIZER], Some(&[EXTERNAL_FINALIZER])),
        (handed_over, "Delete", &[EXTERNAL_FINALIZER], None),
        (IN_TREE, "Delete", &[PROTECTION], Some(&[PROTECTION, FINALIZER])),
        (IN_TREE, "Delete", &[PROTECTION, FINALIZER], None),
        (IN_TREE, "Delete", &[EXTERNAL_FINALIZER, PROTECTION], Some(&[PROTECTION, FINALIZER])),
        (IN_TREE, "Delete", &[EXTERNAL_FINALIZER, FINALIZER], Some(&[FINALIZER])),
        (IN_TREE, "Retain", &[PROTECTION, FINALIZER], Some(&[PROTECTION])),
        (IN_TREE, "Retain", &[PROTECTION, FINALIZER, EXTERNAL_FINALIZER], Some(&[PROTECTION])),
        (IN_TREE, "Recycle", &[PROTECTION, FINALIZER], Some(&[PROTECTION])),
        (IN_TREE, "Retain", &[PROTECTION], None),
    ];
    for (by, policy, before, after) in cases {
        let annotated = handed_over == *by;
        let more = json!({"metadata": {"annotations": {MIGRATED_TO: annotated.then_some("ebs.csi.aws.com")}}});
        let volume = patch::merge(&made_by(*by, policy, with(before)), &more);
        let patch = upkeep(&volume, &Plugins::default());
        let got = patch.map(|patch| patch["metadata"]["finalizers"].clone());
        assert_eq!(got, after.map(|after| json!(after)), "{by:?} {policy} {before:?}");
        // H8: the gate.
        let closed = Plugins { honor_reclaim_policy: false, ..Plugins::default() };
        assert_eq!(upkeep(&volume, &closed), None);
    }
}

// H4: in both directions.
#[test]
fn h4_the_finalizer_changes_with_migration() {
    let mut world = World::default();
    let by = Some("kubernetes.io/gce-pd");
    let source = json!({"spec": {"hostPath": null, "gcePersistentDisk": {"pdName": "x"}}});
    world.plugins.migrated = false;
    let volume = world.add(made_by(by, "Delete", source));
    world.settle();
    assert_eq!(world.now(&volume)["metadata"]["finalizers"], json!([PROTECTION, FINALIZER]));
    world.plugins.migrated = true;
    world.settle();
    let over = world.now(&volume);
    assert_eq!(over["metadata"]["finalizers"], json!([PROTECTION]));
    assert_eq!(over["metadata"]["annotations"][MIGRATED_TO], "pd.csi.storage.gke.io");
    world.edit(&volume, with(&[PROTECTION, EXTERNAL_FINALIZER]));
    world.settle();
    assert_eq!(world.now(&volume)["metadata"]["finalizers"], json!([PROTECTION, EXTERNAL_FINALIZER]));
    world.plugins.migrated = false;
    world.settle();
    let back = world.now(&volume);
    assert_eq!(back["metadata"]["finalizers"], json!([PROTECTION, FINALIZER]));
    assert!(!back.has(&["metadata", "annotations", MIGRATED_TO]));
    assert_eq!(
        migration::of_claim(&json!({"metadata": {"annotations": {STORAGE_PROVISIONERS[1]: "x"}}}), &world.plugins),
        None
    );
}

// H1, H10, F7, F10, F11: the result is the same in any order of deletion, static or dynamic.
#[test]
fn h1_h10_the_policy_is_honoured_in_any_order() {
    for by in [None, IN_TREE] {
        for policy in ["Delete", "Retain"] {
            for volume_first in [true, false] {
                for together in [true, false] {
                    let (mut world, volume, claim) = bound_pair(made_by(by, policy, json!({})));
                    let order = if volume_first { [&volume, &claim] } else { [&claim, &volume] };
                    world.delete(order[0]);
                    if !together {
                        world.settle();
                        if volume_first {
                            assert_eq!(phase(&world.now(&volume)), "Bound");
                        }
                    }
                    world.delete(order[1]);
                    world.settle();
                    let case = format!("{by:?} {policy} {volume_first} {together}");
                    assert!(world.volumes.is_empty() && world.claims.is_empty(), "{case}");
                    assert_eq!(world.directories.is_empty(), policy == "Delete", "{case}");
                }
            }
        }
    }
}

// H8: as before KEP-2644.
#[test]
fn h8_with_the_gate_off_a_volume_deleted_first_keeps_its_data() {
    let mut world = World::default();
    world.plugins.honor_reclaim_policy = false;
    world.directories.insert("/tmp/v".to_owned());
    let volume = world.add(made_by(IN_TREE, "Delete", json!({})));
    let claim = world.add(claim("c", "1Gi", json!({})));
    world.settle();
    assert_eq!(world.now(&volume)["metadata"]["finalizers"], json!([PROTECTION]));
    world.delete(&volume);
    world.settle();
    world.delete(&claim);
    world.settle();
    assert!(world.volumes.is_empty());
    assert_eq!(world.directories.len(), 1, "leaked, as documented");
}

// H5, H6, G7: changes of the policy, also of volumes that are being deleted.
#[test]
fn h6_policy_edits_leak_nothing_and_leave_nothing_stuck() {
    for by in [None, IN_TREE] {
        for (from, to) in [("Retain", "Delete"), ("Delete", "Retain")] {
            for steps in [
                ["edit", "volume", "claim"],
                ["volume", "edit", "claim"],
                ["edit", "claim", "volume"],
                ["claim", "edit", "volume"],
            ] {
                let (mut world, volume, claim) = bound_pair(made_by(by, from, json!({})));
                let mut policy = from;
                for step in steps {
                    let is_there = world.volumes.contains_key("v");
                    match step {
                        "edit" if is_there => {
                            policy = to;
                            world.edit(&volume, json!({"spec": {"persistentVolumeReclaimPolicy": to}}));
                        }
                        "volume" => world.delete(&volume),
                        "claim" => world.delete(&claim),
                        _ => {}
                    }
                    world.settle();
                }
                assert!(world.volumes.is_empty(), "{by:?} {from} {steps:?}");
                assert_eq!(world.directories.is_empty(), policy == "Delete", "{by:?} {from} {steps:?}");
            }
        }
    }
    // A volume without claim is deleted: its data is kept.
    let (mut world, volume, claim) = bound_pair(made_by(IN_TREE, "Delete", json!({})));
    world.edit(&volume, json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}));
    world.delete(&claim);
    world.settle();
    world.edit(&volume, json!({"spec": {"claimRef": null, "persistentVolumeReclaimPolicy": "Delete"}}));
    world.settle();
    assert_eq!(phase(&world.now(&volume)), "Available");
    world.delete(&volume);
    world.settle();
    assert!(world.volumes.is_empty());
    assert_eq!(world.directories.len(), 1);
}

// A provisioned volume that is deleted before it is bound does not get stuck, and is not leaked.
#[test]
fn a_provisioned_volume_deleted_before_binding_is_reclaimed() {
    let mut world = World::default();
    let claim = world.add(claim("c", "1Gi", json!({})));
    world.directories.insert("/tmp/v".to_owned());
    let reference = json!({"namespace": "ns", "name": "c", "uid": uid(&claim)});
    let volume =
        world.add(made_by(IN_TREE, "Delete", json!({"spec": {"claimRef": reference}, "status": {"phase": "Pending"}})));
    world.sync(&Target::of(&volume), usize::MAX);
    world.delete(&volume);
    world.settle();
    assert!(world.volumes.is_empty() && world.directories.is_empty());
    assert_eq!(phase(&world.now(&claim)), "Pending");
    // An external provisioner deletes Released volumes itself.
    let made =
        made_by(Some("example.com"), "Delete", json!({"spec": {"claimRef": reference, "hostPath": null, "csi": {}}}));
    let volume = world.add(patch::merge(
        &made,
        &json!({"metadata": {"finalizers": [EXTERNAL_FINALIZER]}, "status": {"phase": "Pending"}}),
    ));
    world.delete(&volume);
    world.settle();
    assert_eq!(phase(&world.now(&volume)), "Released");
}

// H6: a late creation of a volume that was retained and deleted, or one from a backup, does not delete the data. A
// volume whose claim was deleted before binding does.
#[test]
fn h6_a_volume_created_again_keeps_retained_data() {
    let made = |world: &World| {
        let claim = json!({"namespace": "ns", "name": "c", "uid": "1", "resourceVersion": "7"});
        let more = json!({"metadata": {"finalizers": [PROTECTION, FINALIZER]}, "spec": {"claimRef": claim}});
        assert!(world.claims.is_empty());
        patch::merge(&made_by(IN_TREE, "Delete", json!({"status": {"phase": "Pending"}})), &more)
    };
    for was_retained in [false, true] {
        let mut world = World::default();
        world.directories.insert("/tmp/v".to_owned());
        if was_retained {
            world.retained.insert("v".to_owned());
        }
        let volume = world.add(made(&world));
        world.settle();
        assert!(world.volumes.is_empty(), "{was_retained}");
        assert_eq!(world.directories.len(), usize::from(was_retained));
        let closed = Plugins { honor_reclaim_policy: false, ..Plugins::default() };
        let plan = crate::bind::volume(&volume, &world, &closed);
        let asks = matches!(&plan.actions[0], Action::ConfirmNotRetained { since, .. } if since == "7");
        assert!(asks, "with the gate on and off: {plan:?}");
    }
    // If the history is unknown, a user must decide, by setting Retain.
    let mut world = World::default();
    let volume = world.add(made(&world));
    world.carry_out(unconfirmed(&volume), usize::MAX);
    let kept = world.now(&volume);
    assert_eq!((phase(&kept), kept.text(&["status", "reason"])), ("Pending", crate::csi::reclaim::UNCONFIRMED));
    world.settle();
    assert_eq!(world.now(&volume), kept);
    world.edit(&volume, json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}));
    world.settle();
    assert_eq!(phase(&world.now(&volume)), "Released");
}

// H7, F15 (9-1): a failure is reported and retried.
#[test]
fn h7_a_directory_that_cannot_be_removed_keeps_its_volume() {
    for (by, volume_first, want) in [(IN_TREE, false, "Failed"), (IN_TREE, true, "Failed"), (None, true, "Bound")] {
        let (mut world, volume, claim) = bound_pair(made_by(by, "Delete", json!({})));
        world.broken.insert("/tmp/v".to_owned());
        if volume_first {
            world.delete(&volume);
        }
        world.delete(&claim);
        world.settle();
        let failed = world.now(&volume);
        assert_eq!(phase(&failed), want);
        if want == "Failed" {
            assert_eq!(failed["status"]["message"], "broken");
        }
        assert!(world.take_events().contains(&("VolumeFailedDelete", "broken".to_owned())));
        world.broken.clear();
        world.settle();
        assert!(world.volumes.is_empty() && world.directories.is_empty());
    }
}

// F6, F9, 2.9: which component deletes.
#[test]
fn f9_a_volume_without_a_deleter_fails() {
    let source = |source: Value| json!({"spec": patch::merge(&json!({"hostPath": null}), &source)});
    let nfs = source(json!({"nfs": {"server": "x", "path": "/"}}));
    let csi = source(json!({"csi": {"driver": "example.com", "volumeHandle": "x"}}));
    let disk = source(json!({"gcePersistentDisk": {"pdName": "x"}}));
    let no_deleter = "error getting deleter volume plugin for volume \"v\": no deletable volume plugin matched";
    let unknown = "no volume plugin matched name: kubernetes.io/what";
    let cases = [
        (None, &nfs, "Failed", no_deleter),
        (Some("kubernetes.io/what"), &nfs, "Failed", unknown),
        (None, &csi, "Released", ""),
        (None, &disk, "Released", ""),
        (Some("example.com"), &csi, "Released", ""),
        (Some("kubernetes.io/gce-pd"), &disk, "Released", ""),
    ];
    for (by, source, want, message) in cases {
        let (mut world, volume, claim) = bound_pair(made_by(by, "Delete", source.clone()));
        world.delete(&claim);
        world.settle();
        let volume = world.now(&volume);
        assert_eq!((phase(&volume), volume.text(&["status", "message"])), (want, message));
        let reported = world.take_events();
        assert_eq!(
            reported.iter().any(|(reason, reported)| *reason == "VolumeFailedDelete" && reported == message),
            want == "Failed"
        );
    }
    let (mut world, volume, claim) = bound_pair(made_by(None, "What", json!({})));
    world.delete(&claim);
    world.settle();
    assert_eq!(phase(&world.now(&volume)), "Failed");
    let message = "Volume has unrecognized PersistentVolumeReclaimPolicy".to_owned();
    assert!(world.take_events().contains(&("VolumeUnknownReclaimPolicy", message)));
}

// F12, F14: recycling.
#[test]
fn f12_f14_a_recycled_volume_is_available_again() {
    let (mut world, volume, claim) = bound_pair(made_by(None, "Recycle", json!({})));
    world.pods.push(("ns".to_owned(), "c".to_owned(), "web-0".to_owned()));
    world.delete(&claim);
    world.settle();
    assert_eq!(phase(&world.now(&volume)), "Released");
    assert!(world.take_events().contains(&("VolumeFailedRecycle", "Volume is used by pods: web-0".to_owned())));
    world.pods.clear();
    world.broken.insert("/tmp/v".to_owned());
    world.settle();
    assert_eq!(world.now(&volume)["status"], json!({"phase": "Failed", "message": "Recycle failed: broken"}));
    world.broken.clear();
    world.take_events();
    world.settle();
    let free = world.now(&volume);
    assert_eq!(phase(&free), "Available");
    assert!(!free.has(&["spec", "claimRef"]) && !free.has(&["metadata", "annotations", BOUND_BY_CONTROLLER]));
    assert_eq!(world.take_events(), [("VolumeRecycled", "Volume recycled".to_owned())].into());
    let nfs = json!({"spec": {"hostPath": null, "nfs": {}}});
    let (mut world, volume, claim) = bound_pair(made_by(None, "Recycle", nfs));
    world.delete(&claim);
    world.settle();
    assert_eq!(world.now(&volume)["status"]["message"], "No recycler plugin found for the volume!");
    // A volume that is being deleted is not recycled.
    let (mut world, volume, claim) = bound_pair(made_by(None, "Recycle", json!({})));
    world.delete(&volume);
    world.delete(&claim);
    world.settle();
    assert!(world.volumes.is_empty());
}

// 4-3, 4-4, 4-11, 4-12: a claim counts as deleted only when the server confirms it.
#[test]
fn a_volume_is_released_only_when_the_deletion_of_its_claim_is_confirmed() {
    let (mut world, volume, claim) = bound_pair(made_by(IN_TREE, "Delete", json!({})));
    let mut blind = world.clone();
    blind.claims.clear();
    let plan = blind.plan_volume(&world.now(&volume));
    assert!(matches!(plan.actions[0], Action::ConfirmReleased { .. }), "{plan:?}");
    world.carry_out(plan, usize::MAX);
    assert_eq!((world.bound(&claim), world.directories.len()), (Some("v".to_owned()), 1));
    // Another claim of the same name does not count.
    world.edit(&claim, with(&[]));
    world.delete(&claim);
    let other = world.add(crate::bind::tests::world::claim("c", "1Gi", json!({})));
    world.settle();
    assert!(world.volumes.is_empty() && world.directories.is_empty());
    assert_eq!(phase(&world.now(&other)), "Pending");
    // A volume that has changed meanwhile is not deleted.
    let (mut world, volume, claim) = bound_pair(made_by(IN_TREE, "Delete", json!({})));
    world.delete(&claim);
    world.protect();
    let plan = world.plan_volume(&world.now(&volume));
    world.edit(&volume, json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}}));
    world.carry_out(plan, usize::MAX);
    world.settle();
    assert_eq!((phase(&world.now(&volume)), world.directories.len()), ("Released", 1));
}

/// A directory from a backup is neither removed nor emptied because its claim does not exist, whatever its phase was.
#[test]
fn a_directory_from_a_backup_waits_for_a_user() {
    for policy in ["Delete", "Recycle"] {
        for phase_then in ["Pending", "Released", "Failed"] {
            let mut world = World::default();
            world.directories.insert("/tmp/v".to_owned());
            let of_gone = json!({"namespace": "default", "name": "gone", "uid": "gone-uid"});
            let more = json!({"status": {"phase": phase_then}, "spec": {"claimRef": of_gone}});
            let mut volume = made_by(None, policy, more);
            from_backup(&mut volume);
            let volume = world.add(volume);
            world.settle();
            let kept = world.now(&volume);
            assert_eq!(kept["status"], volume["status"], "{policy} {phase_then}");
            assert_eq!(world.directories.len(), 1, "{policy} {phase_then}");
            // To use it again, the reference is cleared; then it is a volume like any other.
            world.edit(&volume, json!({"spec": {"claimRef": null}}));
            world.settle();
            let free = world.now(&volume);
            assert_eq!((phase(&free), free.has(&["status", "reason"])), ("Available", false), "{policy} {phase_then}");
        }
    }
}
