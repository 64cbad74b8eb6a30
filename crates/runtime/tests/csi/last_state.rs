//! The last state of a PV counts, however late it is received: its data cannot be restored.

use crate::pairs::*;
use crate::policies::set_policy;
use crate::storage::*;
use crate::world::*;
use csi::Code;
use csi::directory::{Gate, Order};
use object::access::{Access, name};
use object::{Value, json};

/// A PV that was deleted with Retain, and whose policy is Delete now: this is journaled, because the PV has
/// no finalizer.
pub async fn doomed_volume(world: &World) -> (Value, Value) {
    let (claim, volume) = provisioned(world, "Retain").await;
    world.delete(&volume, "").await;
    set_policy(world, &volume, "Delete").await;
    world
        .until("its deletion is journaled", || async { (!pending_deletions(world).await.is_empty()).then_some(()) })
        .await;
    (claim, volume)
}

/// Waits until an event in a namespace has such a message.
async fn until_told(world: &World, namespace: &str, is_it: impl Fn(&str) -> bool) {
    let path = format!("/api/v1/namespaces/{namespace}/events");
    let told = async || {
        let events = world.get(&path).await.unwrap_or_default();
        events.items(&["items"]).iter().any(|event| is_it(event.text(&["message"]))).then_some(())
    };
    world.until("the event is recorded", told).await;
}

/// One write removes the finalizer and sets Retain: only the deletion event shows this.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_policy_of_a_pv_counts() {
    let (world, storage) = world().await;
    let (claim, volume) = doomed_volume(&world).await;
    let last = json!({"metadata": {"finalizers": null}, "spec": {"persistentVolumeReclaimPolicy": "Retain"}});
    world.merge(&volume, last).await;
    world.delete(&claim, "").await;
    world.until_all_gone(&[claim, volume]).await;
    until_settled(&world).await;
    assert_eq!((storage.calls("DeleteVolume").len(), storage.driver.volumes().len()), (0, 1));
    world.stop().await;
}

/// The provisioner receives no events while the policy of a PV becomes Retain and the PV is removed, and the
/// server has compacted its last state: the data is kept, and this is reported.
#[tokio::test(flavor = "multi_thread")]
async fn a_missed_deletion_is_not_decided_by_the_last_known_state() {
    let (world, storage) = world().await;
    let (claim, volume) = doomed_volume(&world).await;
    world.faults.mute("csi-provisioner", "/persistentvolumes");
    set_policy(&world, &volume, "Retain").await;
    world.delete(&claim, "").await;
    world.until_all_gone(&[claim, volume]).await;
    // It must list, and cannot read past events.
    world.store.compact(world.store.revision()).await.expect("compacted");
    world.faults.cut_watches();
    world.faults.release();
    until_settled(&world).await;
    assert_eq!((storage.calls("DeleteVolume").len(), storage.driver.volumes().len()), (0, 1));
    until_told(&world, "kube-system", |message| message.contains("was deleted unobserved")).await;
    world.stop().await;
}

/// A PV whose deletion fails is used by another claim, or is to be retained, and the provisioner has not
/// received that when it retries.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_not_deleted_by_an_outdated_state() {
    for is_taken in [true, false] {
        let (world, storage) = world().await;
        let (claim, volume) = provisioned(&world, "Delete").await;
        let gate = Gate::closed();
        let fails = Order { gate: Some(gate.clone()), ..Order::fail("DeleteVolume", Code::Internal) };
        storage.driver.faults().order(fails.times(1));
        world.delete(&claim, "").await;
        until_reached(&gate).await;
        world.faults.mute("csi-provisioner", "/persistentvolumes");
        if is_taken {
            world.merge(&volume, json!({"spec": {"claimRef": null}})).await;
            let other = json!({"spec": {"volumeName": name(&volume)}});
            let other = world.create(object::patch::merge(&claim_of("other", "c"), &other)).await;
            until_phase(&world, &other, "Bound").await;
        } else {
            set_policy(&world, &volume, "Retain").await;
        }
        world.requests.take().await;
        gate.open();
        let asks = format!("GET /api/v1/persistentvolumes/{} ", name(&volume));
        world.until_moment("it tries again", || world.requests.summary().contains(&asks)).await;
        world.faults.release();
        settle(&world).await;
        assert_eq!(storage.driver.volumes().len(), 1, "taken {is_taken}");
        let wanted = if is_taken { "Bound" } else { "Released" };
        assert_eq!(phase(&world.now(&volume).await.expect("it stays")), wanted);
        world.stop().await;
    }
}

/// A PV is force deleted while its claim uses it, and a user creates it again: from then on the new PV
/// decides.
#[tokio::test(flavor = "multi_thread")]
async fn a_journal_entry_ends_when_another_pv_manages_the_volume() {
    let (world, storage) = world().await;
    let (claim, volume) = doomed_volume(&world).await;
    let old = world.now(&volume).await.expect("there");
    world.merge(&volume, json!({"metadata": {"finalizers": null}})).await;
    world.until_gone(&volume).await;
    until_phase(&world, &claim, "Lost").await;
    let mut new = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name(&volume)}, "spec": old["spec"],
    });
    new["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    let new = world.create(new).await;
    until_phase(&world, &claim, "Bound").await;
    until_settled(&world).await;
    world.delete(&new, "").await;
    world.delete(&claim, "").await;
    world.until_all_gone(&[claim, new]).await;
    settle(&world).await;
    assert_eq!((storage.calls("DeleteVolume").len(), storage.driver.volumes().len()), (0, 1));
    world.stop().await;
}

/// A copy without a known outcome protects its source, also when it is no longer wanted: a driver without the
/// source could not answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_is_kept_while_a_driver_may_be_copying_it() {
    let (world, storage) = world().await;
    let (source, source_volume) = provisioned(&world, "Delete").await;
    let mut copy = claim_of("copy", "c");
    copy["spec"]["dataSource"] = json!({"kind": "PersistentVolumeClaim", "name": "claim"});
    storage.driver.faults().order(Order::fail("CreateVolume", Code::DeadlineExceeded));
    let copy = world.create(copy).await;
    world.until_event(&copy, "ProvisioningFailed").await;
    world.delete(&source, "").await;
    world.delete(&copy, "").await;
    world.until_gone(&copy).await;
    settle(&world).await;
    assert!(world.now(&source).await.is_some(), "it may be being copied");
    storage.driver.faults().clear();
    world.until_gone(&source).await;
    world.until_gone(&source_volume).await;
    until_in_step(&world, &storage, "the copy is deleted too").await;
    world.stop().await;
}

/// A user clears the claimRef of a PV whose deletion fails, and deletes the PV. It would never be released:
/// the PV is removed and its volume kept, as for any PV without a claim, and this is reported.
#[tokio::test(flavor = "multi_thread")]
async fn a_pv_without_a_claim_is_removed_when_it_is_deleted() {
    let (world, storage) = world().await;
    let (claim, volume) = provisioned(&world, "Delete").await;
    storage.driver.faults().order(Order::fail("DeleteVolume", Code::Internal).times(1000));
    world.delete(&claim, "").await;
    world.until_event(&volume, "VolumeFailedDelete").await;
    world.merge(&volume, json!({"spec": {"claimRef": null}})).await;
    until_phase(&world, &volume, "Available").await;
    world.delete(&volume, "").await;
    world.until_gone(&volume).await;
    assert_eq!(storage.driver.volumes().len(), 1);
    until_told(&world, "default", |message| message.starts_with("No claim references this volume")).await;
    world.stop().await;
}
