//! Scenarios J: changes of the VolumeAttributesClass.

use crate::storage::*;
use crate::world::*;
use csi::Code;
use csi::directory::{Gate, Order};
use csi::v1::ControllerModifyVolumeRequest;
use object::access::Access;
use object::{Value, condition, json};

fn attributes(name: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": name},
        "driverName": DRIVER, "parameters": {"tier": name},
    })
}

async fn wish(world: &World, claim: &Value, class: Option<&str>) {
    world.merge(claim, json!({"spec": {"volumeAttributesClassName": class}})).await;
}

fn state(claim: &Value) -> &str {
    claim.text(&["status", "modifyVolumeStatus", "status"])
}

async fn until_current(world: &World, claim: &Value, class: &str) -> Value {
    let is_there = |claim: &Value| claim["status"]["currentVolumeAttributesClassName"] == class;
    world.until_is(claim, &format!("the volume is {class}"), is_there).await
}

fn asked(storage: &Storage) -> Vec<String> {
    let tier = |call: &csi::directory::Call| {
        let request = call.request::<ControllerModifyVolumeRequest>().expect("a request");
        request.mutable_parameters["tier"].clone()
    };
    storage.calls("ControllerModifyVolume").iter().map(tier).collect()
}

/// J1
#[tokio::test(flavor = "multi_thread")]
async fn j1_a_volume_is_modified() {
    let (world, storage) = world().await;
    world.create(attributes("gold")).await;
    let (claim, volume) = provisioned(&world, "Delete").await;
    wish(&world, &claim, Some("gold")).await;
    let done = until_current(&world, &claim, "gold").await;
    assert!(!done.has(&["status", "modifyVolumeStatus"]));
    assert!(condition::get(&done, "ModifyingVolume").is_none());
    assert_eq!(world.now(&volume).await.expect("its volume")["spec"]["volumeAttributesClassName"], "gold");
    assert_eq!(asked(&storage), ["gold"]);
    world.until_event(&claim, "VolumeModify").await;
    world.until_event(&claim, "VolumeModifySuccessful").await;
    assert!(world.requests.refused().is_empty(), "{:?}", world.requests.refused());
    world.stop().await;
}

/// J2, J4: an impossible class, and a reverted one.
#[tokio::test(flavor = "multi_thread")]
async fn j2_j4_an_impossible_class_is_delayed_and_can_be_reverted() {
    let (world, storage) = world().await;
    world.create(attributes("gold")).await;
    world.create(attributes("silver")).await;
    let (claim, _) = provisioned(&world, "Delete").await;
    storage.driver.faults().order(Order::fail("ControllerModifyVolume", Code::InvalidArgument).times(1));
    wish(&world, &claim, Some("gold")).await;
    let refused = world.until_is(&claim, "infeasible", |claim| state(claim) == "Infeasible").await;
    assert_eq!(condition::get(&refused, "ModifyVolumeError").expect("an error")["reason"], "InvalidArgument");
    wish(&world, &claim, None).await;
    let canceled = world.until_event(&claim, "VolumeModifyCanceled").await;
    assert_eq!(canceled["message"], "Cancelled modify.");
    let back = world.until_is(&claim, "taken back", |claim| condition::get(claim, "ModifyingVolume").is_none()).await;
    assert!(condition::get(&back, "ModifyVolumeError").is_some());
    assert_eq!(asked(&storage), ["gold"]);
    // Another class is tried at once.
    wish(&world, &claim, Some("silver")).await;
    until_current(&world, &claim, "silver").await;
    assert_eq!(asked(&storage), ["gold", "silver"]);
    assert!(world.figures().contains("controller_modify_volume_errors_total"));
    world.stop().await;
}

/// J5, J6: a change with an unknown outcome is finished before the next, also after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn j5_j6_an_open_change_is_finished_first() {
    let (mut world, storage) = world().await;
    world.create(attributes("gold")).await;
    world.create(attributes("silver")).await;
    let (claim, _) = provisioned(&world, "Delete").await;
    let gate = Gate::closed();
    storage.driver.faults().order(Order::hold("ControllerModifyVolume", &gate).times(1));
    wish(&world, &claim, Some("gold")).await;
    until_reached(&gate).await;
    world.stop_controllers().await;
    wish(&world, &claim, Some("silver")).await;
    storage.driver.faults().order(Order::fail("ControllerModifyVolume", Code::DeadlineExceeded).times(2));
    gate.open();
    world.start(&everything());
    until_current(&world, &claim, "silver").await;
    let asked = asked(&storage);
    let golds = asked.iter().take_while(|class| *class == "gold").count();
    assert!(golds >= 3 && asked[golds..].iter().all(|class| class == "silver"), "{asked:?}");
    world.stop().await;
}

/// J7: a missing class is waited for. Upstream would not react to its creation.
#[tokio::test(flavor = "multi_thread")]
async fn j7_a_class_created_later_is_used() {
    let (world, storage) = world().await;
    let (claim, _) = provisioned(&world, "Delete").await;
    wish(&world, &claim, Some("gold")).await;
    world.until_is(&claim, "waits", |claim| state(claim) == "Pending").await;
    let event = world.until_event(&claim, "VolumeModifyFailed").await;
    assert_eq!(event["message"], "VAC \"gold\" does not exist.");
    assert_eq!(asked(&storage), [] as [String; 0]);
    world.create(attributes("gold")).await;
    until_current(&world, &claim, "gold").await;
    world.stop().await;
}
