//! What was said last about a volume counts, however late it is heard: its data cannot be brought back.

use crate::pairs::*;
use crate::policies::set_policy;
use crate::storage::*;
use crate::world::*;
use csi::Code;
use csi::directory::{Gate, Order};
use object::access::{Access, name};
use object::{Value, json};

/// A volume that was told to go with Retain, whose policy is Delete now: that is written down, because nothing holds its object.
pub async fn doomed_volume(world: &World) -> (Value, Value) {
    let (claim, volume) = provisioned(world, "Retain").await;
    world.delete(&volume, "").await;
    set_policy(world, &volume, "Delete").await;
    world.until("its deletion is written down", || async { (!doomed(world).await.is_empty()).then_some(()) }).await;
    (claim, volume)
}

/// Waits until an event in a namespace says so.
async fn until_told(world: &World, namespace: &str, is_it: impl Fn(&str) -> bool) {
    let path = format!("/api/v1/namespaces/{namespace}/events");
    let told = async || {
        let events = world.get(&path).await.unwrap_or_default();
        events.items(&["items"]).iter().any(|event| is_it(event.text(&["message"]))).then_some(())
    };
    world.until("it is told", told).await;
}

/// One write lets the object go and says Retain: nobody ever sees it so but in its end.
#[tokio::test(flavor = "multi_thread")]
async fn the_policy_that_a_volume_had_in_the_end_counts() {
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

/// The provisioner hears nothing of volumes while one becomes Retain and goes, and the server has forgotten how it was: the data is kept, and
/// that is told.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_not_seen_to_go_is_not_judged_by_what_was_seen_before() {
    let (world, storage) = world().await;
    let (claim, volume) = doomed_volume(&world).await;
    world.faults.mute("csi-provisioner", "/persistentvolumes");
    set_policy(&world, &volume, "Retain").await;
    world.delete(&claim, "").await;
    world.until_all_gone(&[claim, volume]).await;
    // It has to list, and cannot ask what happened before.
    world.store.compact(world.store.revision()).await.expect("compacted");
    world.faults.cut_watches();
    world.faults.release();
    until_settled(&world).await;
    assert_eq!((storage.calls("DeleteVolume").len(), storage.driver.volumes().len()), (0, 1));
    until_told(&world, "kube-system", |message| message.contains("went while nobody looked")).await;
    world.stop().await;
}

/// A volume whose deletion fails is taken by another claim, or is to be kept, and the provisioner has not heard of it when it tries again.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_is_not_deleted_by_what_was_seen_of_it_before() {
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

/// A volume's object goes by force while its claim has it, and a person makes it anew: from then on that one decides.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_down_ends_with_the_object_that_takes_over() {
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

/// A copy whose making has no outcome yet holds its source, also when nobody wants it any more: a driver that misses the source could never say.
#[tokio::test(flavor = "multi_thread")]
async fn a_source_stays_as_long_as_a_driver_may_be_copying_it() {
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
    assert!(world.now(&source).await.is_some(), "it is being copied, for all that is known");
    storage.driver.faults().clear();
    world.until_gone(&source).await;
    world.until_gone(&source_volume).await;
    until_in_step(&world, &storage, "the copy goes too").await;
    world.stop().await;
}

/// A volume whose deletion fails is freed of its claim by a person, who deletes it after all. Nobody would ever release it: its object goes, its backend
/// stays, as with any volume that nobody claimed, and that is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_was_freed_goes_when_it_is_told_to() {
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
    until_told(&world, "default", |message| message.starts_with("The volume belongs to no claim")).await;
    world.stop().await;
}
