//! Scenarios I: volume expansion.

use crate::pairs::*;
use crate::storage::*;
use crate::world::*;
use csi::Code;
use csi::directory::{Expansion, Options, Order};
use csi::v1::ControllerExpandVolumeRequest;
use object::access::{Access, name};
use object::{Value, condition, json};

const NO_NODE_PART: &str = "volume.kubernetes.io/node-expansion-not-required";
const SIZE_BEFORE: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";

async fn request(world: &World, claim: &Value, size: &str) {
    world.merge(claim, json!({"spec": {"resources": {"requests": {"storage": size}}}})).await;
}

async fn until_size(world: &World, claim: &Value, size: &str) -> Value {
    let what = format!("the claim has {size}");
    world.until_is(claim, &what, |claim| claim["status"]["capacity"]["storage"] == size).await
}

fn state(claim: &Value) -> &str {
    claim.text(&["status", "allocatedResourceStatuses", "storage"])
}

fn asked(storage: &Storage) -> Vec<i64> {
    let bytes = |call: &csi::directory::Call| {
        let request = call.request::<ControllerExpandVolumeRequest>().expect("a request");
        request.capacity_range.as_ref().expect("a range").required_bytes >> 30
    };
    storage.calls("ControllerExpandVolume").iter().map(bytes).collect()
}

/// I1
#[tokio::test(flavor = "multi_thread")]
async fn i1_a_claim_grows_with_one_call() {
    let (world, storage) = world().await;
    let (claim, volume) = provisioned(&world, "Delete").await;
    request(&world, &claim, "2Gi").await;
    let grown = until_size(&world, &claim, "2Gi").await;
    assert_eq!(asked(&storage), [2]);
    let volume = world.now(&volume).await.expect("its volume");
    assert_eq!(volume["spec"]["capacity"]["storage"], "2Gi");
    assert!(!volume.has(&["metadata", "annotations", SIZE_BEFORE]));
    assert_eq!(grown["status"]["allocatedResources"]["storage"], "2Gi");
    assert_eq!(state(&grown), "");
    assert_eq!(grown["metadata"]["annotations"][NO_NODE_PART], "true");
    for one in ["Resizing", "FileSystemResizePending", "ControllerResizeError"] {
        assert!(condition::get(&grown, one).is_none(), "{one}");
    }
    world.until_event(&claim, "Resizing").await;
    let done = world.until_event(&claim, "VolumeResizeSuccessful").await;
    assert_eq!(done["message"], "Resize volume succeeded");
    assert!(world.requests.refused().is_empty(), "{:?}", world.requests.refused());
    world.stop().await;
}

/// I2, I13: nodes finish the expansion, now or under the next claim.
#[tokio::test(flavor = "multi_thread")]
async fn i2_i13_nodes_do_their_part() {
    for expansion in [Expansion::Both, Expansion::Node] {
        let (world, storage) = world_with(Options { expansion, ..options() }, &everything()).await;
        let (claim, volume) = provisioned(&world, "Retain").await;
        request(&world, &claim, "2Gi").await;
        let waiting = world.until_is(&claim, "a node is awaited", |claim| state(claim) == "NodeResizePending").await;
        assert!(condition::is_true(&waiting, "FileSystemResizePending"));
        assert_eq!(waiting["status"]["capacity"]["storage"], "1Gi");
        let marked = world.now(&volume).await.expect("its volume");
        assert_eq!(marked["spec"]["capacity"]["storage"], "2Gi");
        assert_eq!(marked["metadata"]["annotations"][SIZE_BEFORE], "1Gi");
        assert_eq!(asked(&storage).len(), usize::from(expansion == Expansion::Both), "{expansion}");
        world.until_event(&claim, "FileSystemResizeRequired").await;

        // Another claim uses the volume before a node was available.
        world.delete(&claim, "").await;
        world.until_gone(&claim).await;
        until_phase(&world, &volume, "Released").await;
        world.merge(&volume, json!({"spec": {"claimRef": null}})).await;
        until_phase(&world, &volume, "Available").await;
        let next = world.create(a_claim("next", "2Gi", of_class("c"))).await;
        until_bound(&world, &next, name(&volume)).await;
        let waiting = world.now(&next).await.expect("the next claim");
        assert_eq!(waiting["status"]["capacity"]["storage"], "1Gi");
        world.until_is(&next, "a node is awaited", |claim| state(claim) == "NodeResizePending").await;
        // The node.
        let done = json!({"capacity": {"storage": "2Gi"}, "allocatedResourceStatuses": null, "conditions": []});
        world.set_status(&next, done).await;
        world.until_is(&volume, "unmarked", |volume| !volume.has(&["metadata", "annotations", SIZE_BEFORE])).await;
        world.stop().await;
    }
}

/// I9, I10: the node cannot expand the file system. If the controller has expanded the volume already, its
/// size stays; if only nodes expand volumes, the request can be lowered.
#[tokio::test(flavor = "multi_thread")]
async fn i9_i10_a_node_that_cannot_grow_a_volume() {
    for expansion in [Expansion::Both, Expansion::Node] {
        let (world, storage) = world_with(Options { expansion, ..options() }, &everything()).await;
        let (claim, volume) = provisioned(&world, "Delete").await;
        request(&world, &claim, "10Gi").await;
        world.until_is(&claim, "a node is awaited", |claim| state(claim) == "NodeResizePending").await;
        // A lower request alone changes nothing: the node may be expanding it. Then the node reports that it
        // cannot.
        request(&world, &claim, "5Gi").await;
        world.set_status(&claim, json!({"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}})).await;
        let waiting = world.until_is(&claim, "it is offered again", |claim| state(claim) == "NodeResizePending").await;
        let left = if expansion == Expansion::Both { "10Gi" } else { "5Gi" };
        assert_eq!(waiting["status"]["allocatedResources"]["storage"], left, "{expansion}");
        assert_eq!(waiting["status"]["capacity"]["storage"], "1Gi", "{expansion}");
        if expansion == Expansion::Both {
            assert!(asked(&storage).iter().all(|size| *size == 10), "{:?}", asked(&storage));
            let volume = world.now(&volume).await.expect("its volume");
            assert_eq!(volume["spec"]["capacity"]["storage"], "10Gi");
        } else {
            assert!(asked(&storage).is_empty());
        }
        world.stop().await;
    }
}

/// I6, and how to recover: an impossible size, then a smaller one.
#[tokio::test(flavor = "multi_thread")]
async fn i6_an_impossible_size_is_delayed_and_can_be_lowered() {
    let (world, storage) = world().await;
    let (claim, _) = provisioned(&world, "Delete").await;
    storage.driver.faults().order(Order::fail("ControllerExpandVolume", Code::OutOfRange).times(1));
    request(&world, &claim, "11Gi").await;
    let refused = world.until_is(&claim, "infeasible", |claim| state(claim) == "ControllerResizeInfeasible").await;
    assert!(condition::is_true(&refused, "ControllerResizeError"));
    world.until_event(&claim, "VolumeResizeFailed").await;
    // A change of the claim does not cause a retry.
    world.merge(&claim, json!({"metadata": {"labels": {"x": "y"}}})).await;
    let other = world.create(claim_of("other", "c")).await;
    until_volume(&world, &other).await;
    request(&world, &other, "2Gi").await;
    until_size(&world, &other, "2Gi").await;
    assert_eq!(asked(&storage), [11, 2]);
    request(&world, &claim, "3Gi").await;
    let grown = until_size(&world, &claim, "3Gi").await;
    assert_eq!(grown["status"]["allocatedResources"]["storage"], "3Gi");
    assert_eq!(asked(&storage), [11, 2, 3]);
    let figures = world.figures();
    assert!(figures.contains("controller_expand_volume_errors_total"), "{figures}");
    world.stop().await;
}

/// A call with an unknown outcome is repeated, whatever the claim requests meanwhile; then the smaller size
/// needs no call.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_expansion_is_finished_first() {
    let (world, storage) = world().await;
    let (claim, _) = provisioned(&world, "Delete").await;
    storage.driver.faults().order(Order::fail("ControllerExpandVolume", Code::DeadlineExceeded).times(20));
    request(&world, &claim, "5Gi").await;
    storage.until_called("ControllerExpandVolume", 2).await;
    request(&world, &claim, "3Gi").await;
    let grown = until_size(&world, &claim, "5Gi").await;
    assert_eq!(state(&grown), "");
    assert!(asked(&storage).iter().all(|size| *size == 5), "{:?}", asked(&storage));
    world.stop().await;
}

/// A restart in the middle, lost responses, wrong sizes.
#[tokio::test(flavor = "multi_thread")]
async fn expansions_survive_restarts_and_bad_responses() {
    let (mut world, storage) = world().await;
    let (claim, volume) = provisioned(&world, "Delete").await;
    storage.driver.faults().order(Order::lose_answer("ControllerExpandVolume").times(1));
    storage.driver.faults().order(Order::answer_capacity("ControllerExpandVolume", 5).times(1));
    request(&world, &claim, "2Gi").await;
    until_size(&world, &claim, "2Gi").await;
    assert_eq!(asked(&storage), [2, 2, 2]);

    let gate = csi::directory::Gate::closed();
    storage.driver.faults().order(Order::hold("ControllerExpandVolume", &gate).after().times(1));
    request(&world, &claim, "4Gi").await;
    until_reached(&gate).await;
    world.stop_controllers().await;
    gate.open();
    world.start(&everything());
    until_size(&world, &claim, "4Gi").await;
    assert_eq!(world.now(&volume).await.expect("its volume")["spec"]["capacity"]["storage"], "4Gi");
    world.stop().await;
}

/// I12
#[tokio::test(flavor = "multi_thread")]
async fn i12_a_volume_that_must_be_unused_waits_for_its_pods() {
    let (world, storage) = world().await;
    let (claim, _) = provisioned(&world, "Delete").await;
    let pod = world.create(pod_with("pod", "claim")).await;
    storage.driver.faults().order(Order::fail("ControllerExpandVolume", Code::FailedPrecondition).times(1));
    request(&world, &claim, "2Gi").await;
    until_told(&world, &claim, "only supports offline expansion").await;
    assert_eq!(asked(&storage), [2]);
    force_delete(&world, &pod).await;
    world.until_gone(&pod).await;
    until_size(&world, &claim, "2Gi").await;
    world.stop().await;
}

/// A class that allows expansion later, and drivers that do not support it.
#[tokio::test(flavor = "multi_thread")]
async fn drivers_without_expansion_are_not_called() {
    let (world, storage) = world_with(Options { expansion: Expansion::Never, ..options() }, &everything()).await;
    let (claim, _) = provisioned(&world, "Delete").await;
    request(&world, &claim, "2Gi").await;
    let other = world.create(claim_of("other", "c")).await;
    until_volume(&world, &other).await;
    assert_eq!(asked(&storage), [] as [i64; 0]);
    let claim = world.now(&claim).await.expect("the object exists");
    assert_eq!((claim["status"]["capacity"]["storage"].as_str(), state(&claim)), (Some("1Gi"), ""));
    world.stop().await;
}
