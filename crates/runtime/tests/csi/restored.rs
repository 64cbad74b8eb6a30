//! PVs restored from a backup: upstream deletes their data at once.

use crate::pairs::*;
use crate::storage::*;
use crate::world::*;
use object::access::{Access, name};
use object::{Value, json};

/// A PV that was lost and restored from a backup.
async fn lost_and_restored(world: &World, storage: &Storage) -> Value {
    let (claim, volume) = provisioned(world, "Delete").await;
    let restored = lose_and_restore(world, &claim, &volume).await;
    assert_eq!(storage.driver.volumes().len(), 1);
    restored
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_from_a_backup_is_kept_until_its_deletion_is_confirmed() {
    let (mut world, storage) = world().await;
    let volume = lost_and_restored(&world, &storage).await;
    let event = world.until_event(&volume, "DeletionUnconfirmed").await;
    assert_eq!(event["type"], "Warning");
    let kept = world.until_is(&volume, "says why", |volume| volume["status"]["reason"] == "DeletionUnconfirmed").await;
    assert_eq!(phase(&kept), "Released");
    let handle = volume.text(&["spec", "csi", "volumeHandle"]);
    let how = format!("mainstay.dev/confirm-delete={handle}");
    assert!(kept.text(&["status", "message"]).contains(&how), "{}", kept["status"]);

    // Neither a restart nor its deletion changes that.
    world.stop_controllers().await;
    world.start(&everything());
    world.delete(&volume, "").await;
    let (claim, other) = {
        let claim = world.create(claim_of("other", "c")).await;
        let volume = until_volume(&world, &claim).await;
        (claim, volume)
    };
    world.delete(&claim, "").await;
    world.until_gone(&other).await;
    assert_eq!(storage.driver.volumes().len(), 1);
    // A wrong confirmation is ignored.
    world.merge(&volume, json!({"metadata": {"annotations": {"mainstay.dev/confirm-delete": "another"}}})).await;
    assert!(world.now(&volume).await.is_some());
    world.merge(&volume, json!({"metadata": {"annotations": {"mainstay.dev/confirm-delete": handle}}})).await;
    world.until_gone(&volume).await;
    assert_eq!(storage.driver.volumes(), []);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_from_a_backup_can_be_used_again_or_its_object_removed() {
    let (world, storage) = world().await;
    let volume = lost_and_restored(&world, &storage).await;
    world.until_event(&volume, "DeletionUnconfirmed").await;
    world.merge(&volume, json!({"spec": {"claimRef": null}})).await;
    until_phase(&world, &volume, "Available").await;
    // By name: the binder may not have received its own status write yet, and would have another volume
    // provisioned.
    let mut again = claim_of("again", "c");
    again["spec"]["volumeName"] = json!(name(&volume));
    let claim = world.create(again).await;
    until_bound(&world, &claim, name(&volume)).await;
    let used = until_recorded(&world, &volume).await;
    world.until_is(&used, "says nothing any more", |volume| !volume.has(&["status", "reason"])).await;
    assert_eq!(storage.calls("CreateVolume").len(), 1, "its data is used");
    world.delete(&claim, "").await;
    world.until_gone(&volume).await;
    assert_eq!(storage.driver.volumes(), []);

    let again = lost_and_restored_again(&world, &storage).await;
    world.merge(&again, json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}})).await;
    world.delete(&again, "").await;
    world.until_gone(&again).await;
    assert_eq!(storage.driver.volumes().len(), 1, "only the PV was deleted");
    world.stop().await;
}

/// Like [`lost_and_restored`], with the existing class.
async fn lost_and_restored_again(world: &World, storage: &Storage) -> Value {
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "c"}});
    world.delete(&class, "").await;
    lost_and_restored(world, storage).await
}

/// PV and claim are both restored. Unchanged, they do not refer to each other: nothing is deleted, and they
/// are bound when the PV's reference is cleared. Restored as backup tools do it, without uid and the binder's
/// annotations, they are bound at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_pv_and_its_claim_from_a_backup_are_bound_again() {
    for as_they_were in [true, false] {
        let (world, storage) = world().await;
        let (claim, volume) = provisioned(&world, "Delete").await;
        let claim = world.now(&claim).await.expect("its claim");
        let (mut saved_claim, mut saved) = (backup(&claim), backup(&volume));
        world.merge(&volume, json!({"spec": {"persistentVolumeReclaimPolicy": "Retain"}})).await;
        world.until_is(&volume, "without finalizer", |volume| !has_finalizer(volume)).await;
        world.delete(&claim, "").await;
        world.delete(&volume, "").await;
        world.until_all_gone(&[claim, volume]).await;
        if !as_they_were {
            saved_claim["metadata"].cut(&["annotations"]);
            saved["spec"]["claimRef"].cut(&["uid"]);
            saved["spec"]["claimRef"].cut(&["resourceVersion"]);
        }
        let volume = world.create(saved).await;
        let claim = world.create(saved_claim).await;
        if as_they_were {
            until_phase(&world, &claim, "Lost").await;
            world.until_event(&volume, "DeletionUnconfirmed").await;
            world.merge(&volume, json!({"spec": {"claimRef": null}})).await;
        }
        until_bound(&world, &claim, name(&volume)).await;
        until_recorded(&world, &volume).await;
        assert_eq!((storage.calls("CreateVolume").len(), storage.calls("DeleteVolume").len()), (1, 0));
        // From now on it is a PV like any other.
        world.delete(&claim, "").await;
        world.until_gone(&volume).await;
        assert_eq!(storage.driver.volumes(), []);
        world.stop().await;
    }
}
