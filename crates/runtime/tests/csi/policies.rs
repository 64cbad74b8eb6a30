//! Scenarios G: changes of the policy, and finalizers removed by others. The gate.

use crate::pairs::*;
use crate::storage::*;
use crate::world::*;
use csi::Code;
use csi::directory::{Gate, Order};
use object::access::{Access, name, terminating};
use object::{Value, json};

pub async fn set_policy(world: &World, volume: &Value, policy: &str) {
    world.merge(volume, json!({"spec": {"persistentVolumeReclaimPolicy": policy}})).await;
}

/// G2, G4, H6: changes while bound and while released.
#[tokio::test(flavor = "multi_thread")]
async fn g2_g4_h6_edits_of_the_policy_are_followed() {
    let (world, storage) = world().await;
    let (claim, volume) = provisioned(&world, "Retain").await;
    for policy in ["Delete", "Retain", "Delete"] {
        set_policy(&world, &volume, policy).await;
        until_recorded(&world, &volume).await;
    }
    world.delete(&volume, "").await;
    world.delete(&claim, "").await;
    world.until_gone(&volume).await;
    assert_eq!((storage.calls("DeleteVolume").len(), storage.driver.volumes().len()), (1, 0));

    let claim = world.create(claim_of("claim", "c")).await;
    let volume = until_volume(&world, &claim).await;
    world.delete(&claim, "").await;
    until_phase(&world, &volume, "Released").await;
    assert_eq!(storage.driver.volumes().len(), 1);
    set_policy(&world, &volume, "Delete").await;
    world.until_gone(&volume).await;
    assert_eq!(storage.driver.volumes(), []);
    world.stop().await;
}

/// H6: Retain becomes Delete on a terminating PV: the volume is deleted once, and nothing is stuck.
#[tokio::test(flavor = "multi_thread")]
async fn h6_a_policy_that_becomes_delete_while_terminating_is_honoured() {
    let (world, storage) = world().await;
    for _ in 0..10 {
        let class = world.create(class("c", "Retain", json!({}))).await;
        let claim = world.create(claim_of("claim", "c")).await;
        let volume = until_volume(&world, &claim).await;
        world.delete(&volume, "").await;
        set_policy(&world, &volume, "Delete").await;
        world.delete(&claim, "").await;
        world.until_all_gone(&[claim, volume]).await;
        until_in_step(&world, &storage, "the volume is deleted too").await;
        world.delete(&class, "").await;
    }
    storage.until_called("DeleteVolume", 10).await;
    until_settled(&world).await;
    assert_eq!(storage.calls("DeleteVolume").len(), 10, "each once");
    assert_eq!(storage.driver.volumes(), []);

    // To Delete and back again: the volume is kept.
    let (claim, volume) = provisioned(&world, "Retain").await;
    world.delete(&volume, "").await;
    set_policy(&world, &volume, "Delete").await;
    world
        .until("its deletion is journaled", || async { (!pending_deletions(&world).await.is_empty()).then_some(()) })
        .await;
    set_policy(&world, &volume, "Retain").await;
    world.delete(&claim, "").await;
    world.until_all_gone(&[claim, volume]).await;
    until_settled(&world).await;
    assert_eq!((storage.calls("DeleteVolume").len(), storage.driver.volumes().len()), (10, 1));
    world.stop().await;
}

/// The same, with the provisioner stopped at the worst time: journal entries are finished, and the last
/// policy counts.
#[tokio::test(flavor = "multi_thread")]
async fn h6_a_pv_removed_while_the_provisioner_is_stopped_follows_its_last_policy() {
    // Also if the found state cannot be journaled at once.
    for (last, refused) in [("Delete", false), ("Delete", true), ("Retain", false)] {
        let (mut world, storage) = world().await;
        let (claim, volume) = provisioned(&world, "Retain").await;
        world.delete(&volume, "").await;
        set_policy(&world, &volume, "Delete").await;
        world
            .until("its deletion is journaled", || async {
                (!pending_deletions(&world).await.is_empty()).then_some(())
            })
            .await;
        world.stop_controllers().await;
        world.start(&all());
        set_policy(&world, &volume, last).await;
        world.delete(&claim, "").await;
        world.until_all_gone(&[claim, volume]).await;
        assert_eq!(storage.driver.volumes().len(), 1);
        world.stop_controllers().await;
        if refused {
            world.faults.mishap("csi-provisioner", 0, Mishap::Refused(500));
        }
        world.start(&everything());
        until_settled(&world).await;
        assert_eq!(storage.driver.volumes().len(), usize::from(last == "Retain"), "{last} {refused}");
        world.stop().await;
    }
}

/// The same before the driver has ever responded to this provisioner: only then it is known who serves it.
#[tokio::test(flavor = "multi_thread")]
async fn h6_a_pv_removed_before_its_driver_is_known_is_deleted_when_it_is() {
    let (mut world, mut storage) = world().await;
    let (claim, volume) = provisioned(&world, "Retain").await;
    world.stop_controllers().await;
    storage.stop().await;
    world.start(&everything());
    world.delete(&volume, "").await;
    set_policy(&world, &volume, "Delete").await;
    // A later object that the provisioner has received shows that it has received this one.
    let other = world.create(class("late", "Delete", json!({}))).await;
    let waiting = world.create(claim_of("waiting", name(&other))).await;
    world.until_event(&waiting, "ExternalProvisioning").await;
    world.delete(&claim, "").await;
    world.until_all_gone(&[claim, volume]).await;
    assert_eq!(storage.driver.volumes().len(), 1);
    storage.start().await;
    until_volume(&world, &waiting).await;
    until_in_step(&world, &storage, "it is deleted").await;
    until_settled(&world).await;
    world.stop().await;
}

/// G8: no finalizer can be added to a terminating object, so no controller tries.
#[tokio::test(flavor = "multi_thread")]
async fn g8_no_finalizer_is_added_to_a_terminating_pv() {
    let (world, storage) = world().await;
    let (claim, volume) = provisioned(&world, "Retain").await;
    world.delete(&volume, "").await;
    let patch = json!({"metadata": {"finalizers": ["kubernetes.io/pv-protection", "example.com/late"]}});
    let (code, _) = world.send("PATCH", &path(&volume), "application/merge-patch+json", Some(&patch)).await;
    assert_eq!(code, 422);
    set_policy(&world, &volume, "Delete").await;
    world.delete(&claim, "").await;
    world.until_gone(&volume).await;
    until_in_step(&world, &storage, "gone").await;
    let refused = world.requests.take().await.into_iter().filter(|asked| asked.code == 422).count();
    assert_eq!(refused, 0, "no controller tried");
    world.stop().await;
}

/// G11: a forged phase deletes nothing while the claim exists.
#[tokio::test(flavor = "multi_thread")]
async fn g11_no_volume_is_deleted_while_its_claim_exists() {
    let (mut world, storage) = world().await;
    let (claim, volume) = provisioned(&world, "Delete").await;
    world.stop_controllers().await;
    world.start(PROVISIONER);
    world.set_status(&volume, json!({"phase": "Released"})).await;
    let other = world.create(claim_of("other", "c")).await;
    let asks = json!({"metadata": {"annotations": {"volume.kubernetes.io/storage-provisioner": DRIVER}}});
    world.merge(&other, asks).await;
    world.until_event(&other, "ProvisioningSucceeded").await;
    assert_eq!(storage.calls("DeleteVolume").len(), 0);
    // The binder corrects the phase, and everything continues as usual.
    world.stop_controllers().await;
    world.start(&everything());
    until_phase(&world, &volume, "Bound").await;
    world.delete(&claim, "").await;
    world.until_gone(&volume).await;
    world.stop().await;
}

/// Finalizers removed by a user: on an active PV they are added again; for a terminating PV the volume is
/// kept, with an event.
#[tokio::test(flavor = "multi_thread")]
async fn finalizers_removed_by_a_user() {
    let (world, storage) = world().await;
    let (claim, volume) = provisioned(&world, "Delete").await;
    world.merge(&volume, json!({"metadata": {"finalizers": ["kubernetes.io/pv-protection"]}})).await;
    until_recorded(&world, &volume).await;
    world.delete(&volume, "").await;
    world.until_is(&volume, "on its way out", terminating).await;
    world.merge(&volume, json!({"metadata": {"finalizers": ["kubernetes.io/pv-protection"]}})).await;
    let event = world.until_event(&volume, "VolumeFailedDelete").await;
    assert!(event.text(&["message"]).contains("removed by hand"), "{event}");
    world.delete(&claim, "").await;
    world.until_all_gone(&[claim, volume]).await;
    // Other work, so that anything wrong would have happened.
    let claim = world.create(claim_of("other", "c")).await;
    let volume = until_volume(&world, &claim).await;
    world.delete(&claim, "").await;
    world.until_gone(&volume).await;
    assert_eq!((storage.calls("DeleteVolume").len(), storage.driver.volumes().len()), (1, 1));
    world.stop().await;
}

/// H8: with the gate off the behaviour is that before KEP-2644; existing finalizers are removed.
#[tokio::test(flavor = "multi_thread")]
async fn h8_with_the_gate_off_the_order_matters_again() {
    let (mut world, storage) = world().await;
    let (claim, volume) = provisioned(&world, "Delete").await;
    world.stop_controllers().await;
    let on = world.setup.gates.clone();
    world.setup.gates = on.clone().with("HonorPVReclaimPolicy", false);
    world.start(&everything());
    world.until_is(&volume, "without finalizer", |volume| !has_finalizer(volume)).await;
    // The claim first: as usual.
    world.delete(&claim, "").await;
    world.until_gone(&volume).await;
    assert_eq!(storage.driver.volumes(), []);
    // The PV first: the volume leaks.
    let claim = world.create(claim_of("claim", "c")).await;
    let bound = until_phase(&world, &claim, "Bound").await;
    let volume = world.get(&format!("/api/v1/persistentvolumes/{}", bound.text(&["spec", "volumeName"]))).await;
    let volume = volume.expect("its volume");
    world.until_is(&volume, "without finalizer", |volume| !has_finalizer(volume)).await;
    world.delete(&volume, "").await;
    world.delete(&claim, "").await;
    world.until_all_gone(&[claim, volume]).await;
    assert_eq!(storage.driver.volumes().len(), 1);
    // On again: existing PVs are protected again.
    let claim = world.create(claim_of("claim", "c")).await;
    until_phase(&world, &claim, "Bound").await;
    world.stop_controllers().await;
    world.setup.gates = on;
    world.start(&everything());
    let volume = until_volume(&world, &claim).await;
    world.delete(&volume, "").await;
    world.delete(&claim, "").await;
    world.until_gone(&volume).await;
    assert_eq!(storage.driver.volumes().len(), 1);
    world.stop().await;
}

/// H8, version skew: binder and provisioner are processes with different gates, and each honours policies, or
/// not, for its own volumes.
#[tokio::test(flavor = "multi_thread")]
async fn h8_binder_and_provisioner_have_gates_of_their_own() {
    let (mut world, storage) = world().await;
    world.setup.provisioning.host_path = true;
    world.create(class("outside", "Delete", json!({}))).await;
    world.create(a_class("in-tree", "kubernetes.io/host-path", json!({}))).await;
    let gates = world.setup.gates.clone();
    for (binder, provisioner) in [(true, false), (false, true)] {
        world.stop_controllers().await;
        world.setup.gates = gates.clone().with("HonorPVReclaimPolicy", binder);
        world.start(&all());
        world.setup.gates = gates.clone().with("HonorPVReclaimPolicy", provisioner);
        world.start_beside(PROVISIONER);
        for (class, honours) in [("in-tree", binder), ("outside", provisioner)] {
            let before = storage.handles();
            let claim = world.create(claim_of("claim", class)).await;
            let bound = until_phase(&world, &claim, "Bound").await;
            let volume = world.get(&format!("/api/v1/persistentvolumes/{}", bound.text(&["spec", "volumeName"]))).await;
            let volume = volume.expect("its volume");
            let directory = volume.text(&["spec", "hostPath", "path"]).to_owned();
            let is_there = || match class {
                "in-tree" => std::path::Path::new(&directory).is_dir(),
                _ => storage.handles() != before,
            };
            assert!(is_there(), "{class} was made");
            if !honours {
                world.until_is(&volume, "nothing holds it", |volume| !has_finalizer(volume)).await;
            }
            world.delete(&volume, "").await;
            world.delete(&claim, "").await;
            world.until_all_gone(&[claim, volume]).await;
            settle(&world).await;
            assert_eq!(is_there(), !honours, "{class}, binder {binder}, provisioner {provisioner}");
            if class == "in-tree" && !honours {
                std::fs::remove_dir_all(&directory).expect("what is left is removed by hand");
            }
        }
    }
    world.stop().await;
}

/// A policy that becomes Retain while the deletion keeps failing keeps the data.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_becomes_retain_in_time_saves_the_data() {
    let (world, storage) = world().await;
    let (claim, volume) = provisioned(&world, "Delete").await;
    storage.driver.faults().order(Order::fail("DeleteVolume", Code::Internal));
    world.delete(&claim, "").await;
    world.until_event(&volume, "VolumeFailedDelete").await;
    set_policy(&world, &volume, "Retain").await;
    world.until_is(&volume, "without finalizer", |volume| !has_finalizer(volume)).await;
    storage.driver.faults().clear();
    let other = world.create(claim_of("other", "c")).await;
    until_volume(&world, &other).await;
    assert_eq!(phase(&world.now(&volume).await.expect("it stays")), "Released");
    assert_eq!(storage.driver.volumes().len(), 2);
    world.stop().await;
}

/// Objects created again under the same name while the old ones are being deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_created_again_gets_its_own_volume() {
    let (world, storage) = world().await;
    let (first, volume) = provisioned(&world, "Delete").await;
    let gate = Gate::closed();
    storage.driver.faults().order(Order::hold("DeleteVolume", &gate).times(1));
    world.delete(&first, "").await;
    until_reached(&gate).await;
    let second = world.create(claim_of("claim", "c")).await;
    let new = until_volume(&world, &second).await;
    assert_ne!(name(&new), name(&volume));
    gate.open();
    world.until_gone(&volume).await;
    assert_eq!(storage.handles(), handles(&world).await);
    assert_eq!(storage.driver.volumes().len(), 1);
    world.stop().await;
}
