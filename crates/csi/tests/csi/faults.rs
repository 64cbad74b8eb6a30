//! Fault orders, and the log of calls.

use crate::world::*;
use csi::directory::{DirectoryDriver, Faults, Gate, Options, Order, Serving};
use csi::v1::volume_content_source::{self as source, VolumeSource};
use csi::v1::*;
use csi::{Code, Driver, Settings};
use std::time::Duration;

#[tokio::test]
async fn a_call_fails_as_often_as_ordered_and_is_not_executed() {
    let world = World::new().await;
    let mut order = Order::fail("CreateVolume", Code::ResourceExhausted).times(2);
    order.message = "no room".to_owned();
    world.server.faults().order(order);
    for _ in 0..2 {
        let failure = world.driver.create_volume(create("a")).await.unwrap_err();
        assert_eq!(failure.to_string(), "rpc error: code = ResourceExhausted desc = no room");
        assert_eq!(failure.code, Code::ResourceExhausted);
    }
    assert!(world.server.volumes().is_empty() && world.server.faults().pending().is_empty());
    world.create("a").await;
    let codes: Vec<Code> = world.server.calls().named("CreateVolume").iter().map(|call| call.code).collect();
    assert_eq!(codes, [Code::ResourceExhausted, Code::ResourceExhausted, Code::Ok]);
}

#[tokio::test]
async fn an_order_may_apply_to_one_volume_and_last_forever() {
    let world = World::new().await;
    let id = world.create("a").await.volume_id;
    world.server.faults().order(Order::fail("*", Code::Internal).about(&id));
    world.server.faults().order(Order::fail("CreateVolume", Code::Aborted).about("c"));
    for _ in 0..3 {
        assert_eq!(code(world.driver.delete_volume(delete(&id)).await), Code::Internal);
        assert_eq!(code(world.driver.create_volume(create("c")).await), Code::Aborted);
    }
    world.create("b").await;
    world.server.faults().clear();
    world.delete(&id).await;
}

#[tokio::test]
async fn a_lost_response_does_not_lose_the_volume_and_the_client_reconnects() {
    let world = World::new().await;
    world.server.faults().order(Order::lose_answer("CreateVolume").times(1));
    let failure = world.driver.create_volume(create("a")).await.unwrap_err();
    assert_eq!(failure.code, Code::Unavailable, "{failure}");
    let made = world.server.volumes();
    assert_eq!(made.len(), 1);
    assert_eq!(world.create("a").await.volume_id, made[0].0);
    // Without `after` the connection breaks before the call is executed.
    let order = Order { call: "DeleteVolume".to_owned(), drop_connection: true, times: Some(1), ..Order::default() };
    world.server.faults().order(order);
    assert_eq!(code(world.driver.delete_volume(delete(&made[0].0)).await), Code::Unavailable);
    assert_eq!(world.server.volumes(), made);
}

#[tokio::test]
async fn an_ordered_call_is_executed_without_its_caller_and_excludes_other_calls() {
    let world = World::new().await;
    let gate = Gate::closed();
    world.server.faults().order(Order::hold("CreateVolume", &gate).goes_on().times(1));
    let caller = tokio::spawn({
        let driver = world.driver.clone();
        async move { driver.create_volume(create("a")).await }
    });
    gate.reached(1).await;
    caller.abort();
    assert_eq!(code(world.driver.create_volume(create("a")).await), Code::Aborted);
    world.create("b").await;
    assert_eq!(world.server.volumes().len(), 1, "volume a is not created yet");
    gate.open();
    while world.server.volumes().len() < 2 {
        tokio::task::yield_now().await;
    }
    // Stopping the driver stops such calls too.
    let gate = Gate::closed();
    world.server.faults().order(Order::hold("CreateVolume", &gate).goes_on().times(1));
    let caller = tokio::spawn({
        let driver = world.driver.clone();
        async move { driver.create_volume(create("c")).await }
    });
    gate.reached(1).await;
    world.server.end();
    assert_eq!(code(caller.await.unwrap()), Code::Unavailable);
    gate.open();
    world.create("c").await;
    assert_eq!(world.server.volumes().len(), 3);
}

#[tokio::test]
async fn an_error_after_the_execution_hides_it() {
    let world = World::new().await;
    let id = world.create("a").await.volume_id;
    world.server.faults().order(Order::fail("DeleteVolume", Code::Unavailable).after().times(1));
    assert_eq!(code(world.driver.delete_volume(delete(&id)).await), Code::Unavailable);
    assert!(world.server.volumes().is_empty());
    world.delete(&id).await;
}

#[tokio::test]
async fn a_disconnected_caller_is_logged_and_running_calls_complete() {
    let world = World::new().await;
    let gate = Gate::closed();
    world.server.faults().order(Order::hold("CreateVolume", &gate).after().times(1));
    let creating = tokio::spawn({
        let driver = world.driver.clone();
        async move { driver.create_volume(create("a")).await }
    });
    gate.reached(1).await;
    creating.abort();
    let calls = world.server.calls().wait_until(|calls| !calls.is_empty()).await;
    assert_eq!(format!("{calls:?}"), "[CreateVolume(a) Cancelled]");
    assert_eq!(world.create("a").await.volume_id, world.server.volumes()[0].0);
}

#[tokio::test]
async fn a_call_with_a_late_response_ends_at_the_deadline() {
    let world = World::new().await;
    world.server.faults().order(Order::delay("CreateVolume", Duration::from_secs(3600)).times(1));
    let failure = world.driver.within(Duration::from_millis(100)).create_volume(create("a")).await.unwrap_err();
    assert_eq!(failure.code, Code::DeadlineExceeded, "{failure}");
    // The call was dropped while it waited, before it was executed.
    assert!(world.server.volumes().is_empty());
    world.create("a").await;
}

#[tokio::test]
async fn responses_can_be_wrong() {
    let world = World::new().await;
    let id = world.create("a").await.volume_id;
    world.server.faults().order(Order::answer_capacity("CreateVolume", 1).times(1));
    world.server.faults().order(Order::answer_capacity("ControllerExpandVolume", 2).times(1));
    assert_eq!(world.create("b").await.capacity_bytes, 1);
    assert_eq!(world.create("b").await.capacity_bytes, 10 * GIB);
    let request = ControllerExpandVolumeRequest {
        volume_id: id.clone(),
        capacity_range: at_least(11 * GIB),
        ..Default::default()
    };
    assert_eq!(world.driver.controller_expand_volume(request.clone()).await.unwrap().capacity_bytes, 2);
    assert_eq!(world.driver.controller_expand_volume(request).await.unwrap().capacity_bytes, 11 * GIB);
    let order =
        Order { call: "CreateVolume".to_owned(), without_content_source: true, times: Some(1), ..Order::default() };
    world.server.faults().order(order);
    let source = source::Type::Volume(VolumeSource { volume_id: id });
    let volume_content_source = Some(VolumeContentSource { r#type: Some(source) });
    let clone = CreateVolumeRequest { volume_content_source, ..create("c") };
    assert!(world.driver.create_volume(clone.clone()).await.unwrap().volume.unwrap().content_source.is_none());
    assert!(world.driver.create_volume(clone).await.unwrap().volume.unwrap().content_source.is_some());
}

#[tokio::test]
async fn a_gate_holds_a_call_until_it_opens_and_the_log_has_the_request() {
    let world = World::new().await;
    let gate = Gate::closed();
    world.server.faults().order(Order::hold("DeleteVolume", &gate));
    let id = world.create("a").await.volume_id;
    let secrets = [("password".to_owned(), "secret".to_owned())];
    let deleting = tokio::spawn({
        let (driver, request) =
            (world.driver.clone(), DeleteVolumeRequest { secrets: secrets.clone().into(), ..delete(&id) });
        async move { driver.delete_volume(request).await }
    });
    gate.reached(1).await;
    assert_eq!(world.server.volumes().len(), 1);
    gate.open();
    let calls = world.server.calls().wait_until(|calls| calls.iter().any(|call| call.name == "DeleteVolume")).await;
    deleting.await.unwrap().unwrap();
    assert_eq!(format!("{calls:?}"), format!("[CreateVolume(a) Ok, DeleteVolume({id}) Ok]"));
    assert_eq!(calls[0].request::<CreateVolumeRequest>(), Some(&create("a")));
    assert_eq!(calls[1].request::<DeleteVolumeRequest>().unwrap().secrets, secrets.into());
}

#[tokio::test]
async fn the_log_keeps_the_newest_calls_and_is_empty_by_default() {
    let root = tempfile::tempdir().unwrap();
    for kept in [0, 2] {
        let options = Options { durable: false, calls_kept: kept, ..Options::default() };
        let server = DirectoryDriver::open(&root.path().join(kept.to_string()), options, Faults::default()).unwrap();
        let serving = Serving::start(server.clone(), &root.path().join("csi.sock")).await.unwrap();
        let driver = Driver::connect(&serving.endpoint(), Settings::default()).unwrap();
        for name in ["a", "b", "c"] {
            driver.create_volume(create(name)).await.unwrap();
        }
        let subjects: Vec<String> = server.calls().all().into_iter().map(|call| call.subject).collect();
        assert_eq!(subjects, ["b", "c"][..kept]);
        serving.stop().await;
    }
}

#[tokio::test]
async fn orders_in_a_file_are_read_again_whenever_it_changes() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("faults.json");
    let orders = |text: &str| std::fs::write(&file, text).unwrap();
    orders(r#"[{"call": "CreateVolume", "code": "UNAVAILABLE", "message": "on order", "times": 1}]"#);
    let faults = Faults::from_file(&file).unwrap();
    let options = Options { durable: false, ..Options::default() };
    let server = DirectoryDriver::open(&root.path().join("volumes"), options, faults).unwrap();
    let serving = Serving::start(server, &root.path().join("csi.sock")).await.unwrap();
    let driver = Driver::connect(&serving.endpoint(), Settings::default()).unwrap();
    let failure = driver.create_volume(create("a")).await.unwrap_err();
    assert_eq!((failure.code, failure.message.as_str()), (Code::Unavailable, "on order"));
    driver.create_volume(create("a")).await.unwrap();
    orders(r#"[{"call": "*", "code": "Aborted", "after": true}]"#);
    assert_eq!(code(driver.create_volume(create("b")).await), Code::Aborted);
    // An unreadable file is an error.
    orders(r#"[{"call": "CreateVolume", "cod": "ABORTED"}]"#);
    let failure = driver.create_volume(create("c")).await.unwrap_err();
    assert!(failure.code == Code::Internal && failure.message.contains("unknown field `cod`"), "{failure}");
    orders("[]");
    driver.create_volume(create("c")).await.unwrap();
}

#[test]
fn an_invalid_file_of_orders_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("faults.json");
    let cases = [
        ("", "is not a list of fault orders: EOF"),
        (r#"[{"call": "Create"}]"#, "has a fault order for \"Create\", which is not a CSI call"),
        (r#"[{"call": "Probe", "code": "BROKEN"}]"#, "no code is named \"BROKEN\""),
        (r#"[{"call": "Probe", "code": "OK"}]"#, "OK is not a failure"),
        (r#"[{"call": "Probe", "times": -1}]"#, "invalid value"),
    ];
    for (text, expected) in cases {
        std::fs::write(&file, text).unwrap();
        let sentence = Faults::from_file(&file).unwrap_err();
        assert!(sentence.contains(expected) && sentence.contains("faults.json"), "{sentence}");
    }
    assert!(Faults::from_file(&root.path().join("none")).unwrap_err().starts_with("cannot read the fault orders in "));
}
