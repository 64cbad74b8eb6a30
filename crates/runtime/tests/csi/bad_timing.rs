//! Invalid input and bad timing: drivers that never respond, classes and secrets that are deleted in the
//! middle.

use crate::pairs::until_phase;
use crate::storage::*;
use crate::world::*;
use csi::Code;
use csi::directory::{Gate, Order};
use csi::v1::{CreateVolumeRequest, DeleteVolumeRequest};
use object::access::{Access, name, uid};
use object::{Value, json};
use runtime::csi::{DriverBackoff, Endpoint};

const SECRET_NAME: &str = "csi.storage.k8s.io/provisioner-secret-name";
const SECRET_NAMESPACE: &str = "csi.storage.k8s.io/provisioner-secret-namespace";

fn key(password: &str) -> Value {
    let mut key = secret("default", "key");
    key["stringData"] = json!({"password": password});
    key
}

fn asked(storage: &Storage) -> Vec<CreateVolumeRequest> {
    let request = |call: &csi::directory::Call| call.request::<CreateVolumeRequest>().expect("a request").clone();
    storage.calls("CreateVolume").iter().map(request).collect()
}

/// A call without a response times out, is repeated, and delays no other call; a response that arrives long
/// after that changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_never_responds_delays_no_other() {
    let storage = Storage::new(options()).await;
    let mut world = World::bare().await;
    let endpoint = storage.endpoint();
    world.setup.drivers =
        vec![Endpoint { options: plan::csi::Options { timeout_s: 1, ..endpoint.options }, ..endpoint }];
    world.start(&everything());
    for call in ["CreateVolume", "ControllerExpandVolume", "DeleteVolume"] {
        let gate = Gate::closed();
        let claim = world.create(claim_of(&call.to_lowercase(), "c")).await;
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("pvc-{}", uid(&claim))},
        });
        if call == "CreateVolume" {
            storage.driver.faults().order(Order::hold(call, &gate).about(name(&volume)).times(1));
            world.create(class("c", "Delete", json!({}))).await;
        } else {
            let volume = until_volume(&world, &claim).await;
            let handle = volume.text(&["spec", "csi", "volumeHandle"]);
            storage.driver.faults().order(Order::hold(call, &gate).about(handle).times(1));
        }
        match call {
            "ControllerExpandVolume" => {
                world.merge(&claim, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})).await;
            }
            "DeleteVolume" => drop(world.delete(&claim, "").await),
            _ => {}
        }
        until_reached(&gate).await;
        let other = world.create(claim_of("other", "c")).await;
        let others = until_volume(&world, &other).await;
        world.delete(&other, "").await;
        world.until_gone(&others).await;
        // The call is still open, and everything continues without its response.
        match call {
            "CreateVolume" => drop(until_volume(&world, &claim).await),
            "DeleteVolume" => world.until_gone(&volume).await,
            _ => {
                let is_large = |claim: &Value| claim["status"]["capacity"]["storage"] == "2Gi";
                world.until_is(&claim, "it grows", is_large).await;
            }
        }
        gate.open();
        world.delete(&claim, "").await;
        world.until_gone(&volume).await;
        until_in_step(&world, &storage, call).await;
    }
    until_settled(&world).await;
    world.stop().await;
}

/// Whatever happens to the class while the outcome is unknown, exactly the same request is repeated.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_request_is_repeated_unchanged_whatever_happens_to_its_class() {
    for (comes_again, restarts) in [(false, false), (true, false), (false, true), (true, true)] {
        let case = format!("the class comes again: {comes_again}, restart: {restarts}");
        let (mut world, storage) = world().await;
        storage.driver.faults().order(Order::lose_answer("CreateVolume").times(1));
        storage.driver.faults().order(Order::fail("CreateVolume", Code::Unavailable));
        let old = world.create(class("c", "Delete", json!({"parameters": {"tier": "one"}}))).await;
        let claim = world.create(claim_of("claim", "c")).await;
        storage.until_called("CreateVolume", 2).await;
        world.delete(&old, "").await;
        if comes_again {
            world.create(class("c", "Retain", json!({"parameters": {"tier": "two"}, "mountOptions": ["ro"]}))).await;
        }
        if restarts {
            world.stop_controllers().await;
            world.start(&everything());
        }
        let so_far = storage.calls("CreateVolume").len();
        storage.until_called("CreateVolume", so_far + 1).await;
        storage.driver.faults().clear();
        let volume = until_volume(&world, &claim).await;
        let asked = asked(&storage);
        assert!(asked.iter().all(|request| *request == asked[0]), "{case}: {asked:?}");
        assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Delete", "{case}");
        assert_eq!(storage.driver.volumes().len(), 1, "{case}");
        world.delete(&claim, "").await;
        world.until_gone(&volume).await;
        assert_eq!(storage.driver.volumes(), [], "{case}");
        world.stop().await;
    }
}

/// A deleted secret is waited for while the outcome of a request is unknown, and not needed to delete a
/// volume.
#[tokio::test(flavor = "multi_thread")]
async fn deleted_secrets_are_waited_for_but_not_for_a_deletion() {
    let (world, storage) = world().await;
    let parameters = json!({SECRET_NAME: "key", SECRET_NAMESPACE: "default"});
    world.create(class("c", "Delete", json!({"parameters": parameters}))).await;
    let first = world.create(key("one")).await;
    storage.driver.faults().order(Order::lose_answer("CreateVolume").times(1));
    storage.driver.faults().order(Order::fail("CreateVolume", Code::Unavailable));
    let claim = world.create(claim_of("claim", "c")).await;
    storage.until_called("CreateVolume", 2).await;
    world.delete(&first, "").await;
    until_told(&world, &claim, "secrets \"key\" not found").await;
    storage.driver.faults().clear();
    let second = world.create(key("two")).await;
    let volume = until_volume(&world, &claim).await;
    assert_eq!(asked(&storage).last().expect("a call").secrets["password"], "two", "the current secret");
    world.delete(&second, "").await;
    world.delete(&claim, "").await;
    world.until_gone(&volume).await;
    let deletion = storage.calls("DeleteVolume").remove(0);
    assert!(deletion.request::<DeleteVolumeRequest>().expect("a request").secrets.is_empty());
    assert_eq!(storage.driver.volumes(), []);
    world.stop().await;
}

/// Claim and secret were deleted before the driver was called, and the response to the call without a secret
/// was lost: a later refusal, when the secret exists again, does not prove that nothing was created.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_response_without_a_secret_counts_as_unknown() {
    let (world, storage) = world().await;
    let parameters = json!({SECRET_NAME: "key", SECRET_NAMESPACE: "default"});
    world.create(class("c", "Delete", json!({"parameters": parameters}))).await;
    let first = world.create(key("one")).await;
    // The journal entry may have been written.
    world.faults.refuse_at(Some(("POST", "/configmaps", 503)));
    let claim = world.create(claim_of("claim", "c")).await;
    until_told(&world, &claim, "cannot write the CSI journal").await;
    world.delete(&first, "").await;
    world.delete(&claim, "").await;
    let gate = Gate::closed();
    let fails = Order::fail("CreateVolume", Code::DeadlineExceeded).after();
    storage.driver.faults().order(fails.clone().times(1));
    storage.driver.faults().order(Order { gate: Some(gate.clone()), ..fails }.times(1));
    world.faults.refuse_at(None);
    until_reached(&gate).await;
    world.create(key("two")).await;
    storage.driver.faults().order(Order::fail("CreateVolume", Code::Internal).times(1));
    gate.open();
    until_settled(&world).await;
    until_in_step(&world, &storage, "the volume is created and deleted").await;
    assert!(asked(&storage).iter().any(|request| request.secrets.is_empty()));
    world.stop().await;
}

/// There is something to journal at shutdown, and the server does not respond: the controllers still stop.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_never_responds_does_not_block_shutdown() {
    let (mut world, _storage) = world().await;
    let (_, volume) = provisioned(&world, "Retain").await;
    until_settled(&world).await;
    world.faults.refuse(Some(500));
    // The PV is removed without a finalizer that could keep it, and its last policy was Delete.
    world.delete(&volume, "").await;
    world.merge(&volume, json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}})).await;
    world.merge(&volume, json!({"metadata": {"finalizers": null}})).await;
    let is_journal = |asked: &Asked| asked.path.contains("mainstay-csi-journal") && asked.code == 500;
    world.until_moment("the journal is written", || world.requests.count(is_journal) > 0).await;
    world.faults.silence();
    tokio::time::timeout(std::time::Duration::from_secs(20), world.stop_controllers()).await.expect("an end");
    world.stop().await;
}

/// It is unknown whether the journal entry was written: it is written again, not reverted. A revert is a
/// write whose response can be lost, too; if the server stopped after every write, nothing would ever be
/// provisioned.
#[tokio::test(flavor = "multi_thread")]
async fn a_journal_entry_that_may_be_written_is_not_reverted() {
    let storage = Storage::new(options()).await;
    let mut world = World::bare().await;
    // The retry is later than the time when finished entries leave the journal.
    world.setup.drivers = vec![Endpoint { backoff: DriverBackoff::default(), ..storage.endpoint() }];
    world.start(&everything());
    provisioned(&world, "Delete").await;
    until_settled(&world).await;
    world.requests.take().await;
    let gate = Gate::closed();
    storage.driver.faults().order(Order::hold("CreateVolume", &gate).times(1));
    world.faults.mishap("csi-provisioner", 0, Mishap::AnswerLost);
    let claim = world.create(claim_of("other", "c")).await;
    until_reached(&gate).await;
    assert!(!world.faults.mishap_waits());
    assert_eq!(journal(&world).await, [format!("pvc-{}", uid(&claim))]);
    let is_journal = |asked: &&Asked| asked.method != "GET" && asked.path.contains("mainstay-csi-journal");
    let answers: Vec<u16> = world.requests.take().await.iter().filter(is_journal).map(|asked| asked.code).collect();
    // Once without a response, once a conflict, and once with success.
    assert_eq!(answers, [504, 409, 200]);
    gate.open();
    until_volume(&world, &claim).await;
    until_settled(&world).await;
    world.stop().await;
}

/// A conflict at any write of a deletion only means that another client wrote: the PV is not considered
/// removed.
#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_at_any_write_of_a_deletion_is_retried() {
    let (world, storage) = world().await;
    world.create(class("c", "Delete", json!({}))).await;
    for volume_first in [false, true] {
        for after in 0.. {
            let claim = world.create(claim_of("claim", "c")).await;
            let volume = until_volume(&world, &claim).await;
            until_settled(&world).await;
            world.faults.mishap("csi-provisioner", after, Mishap::Refused(409));
            let mut order = [&claim, &volume];
            if volume_first {
                order.reverse();
            }
            for object in order {
                world.delete(object, "").await;
            }
            world.until_gone(&claim).await;
            world.until_gone(&volume).await;
            if world.faults.mishap_waits() {
                assert!(after > 0, "it writes when a volume is deleted");
                break;
            }
        }
    }
    assert_eq!(storage.driver.volumes(), []);
    world.stop().await;
}

/// Claims and PVs have separate watches. A claim that was bound, lost its PV and was deleted, and of which
/// the controller only has the first state, gets no second volume.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_in_an_outdated_state_gets_no_second_volume() {
    let (world, storage) = world().await;
    world.create(class("c", "Retain", json!({}))).await;
    let gate = Gate::closed();
    storage.driver.faults().order(Order::hold("CreateVolume", &gate).times(1));
    let claim = world.create(claim_of("late", "c")).await;
    until_reached(&gate).await;
    world.faults.mute("csi-provisioner", "/persistentvolumeclaims");
    gate.open();
    let volume = until_volume(&world, &claim).await;
    until_settled(&world).await;
    world.requests.take().await;
    world.delete(&claim, "").await;
    world.until_gone(&claim).await;
    world.delete(&volume, "").await;
    world.until_gone(&volume).await;
    // It reads whether the claim still exists.
    let asks = |asked: &Asked| {
        asked.account.as_ref() == "csi-provisioner" && asked.path.ends_with("/persistentvolumeclaims/late")
    };
    world.until_moment("the provisioner asks", || world.requests.count(asks) > 0).await;
    world.faults.release();
    let other = world.create(claim_of("other", "c")).await;
    until_volume(&world, &other).await;
    assert_eq!(asked(&storage).len(), 2, "one for each claim");
    world.stop().await;
}

/// The PV of a retained volume is created, and the response is lost; a user deletes it with its claim at any
/// time during the next attempt. It is not created again. (It was, when the claim was read before the PV.)
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_pv_is_not_created_again_after_a_lost_response() {
    let (world, storage) = world().await;
    world.create(class("c", "Retain", json!({}))).await;
    for after in 0.. {
        let gate = Gate::closed();
        storage.driver.faults().order(Order::hold("CreateVolume", &gate).times(1));
        let claim = world.create(claim_of("claim", "c")).await;
        until_reached(&gate).await;
        world.faults.mute("csi-provisioner", "/persistentvolumes");
        world.faults.mishap("csi-provisioner", 0, Mishap::AnswerLost);
        world.faults.answer_late("csi-provisioner", after);
        gate.open();
        let bound = until_phase(&world, &claim, "Bound").await;
        let volume = world.get(&format!("/api/v1/persistentvolumes/{}", bound.text(&["spec", "volumeName"]))).await;
        let volume = volume.expect("its volume");
        // It is in its next attempt, or has finished it.
        let next_attempt = async {
            while world.faults.late_read_waits() && !journal(&world).await.is_empty() {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(world.patience, next_attempt).await.expect("another attempt");
        let is_over = world.faults.late_read_waits();
        world.delete(&claim, "").await;
        world.until_gone(&claim).await;
        world.delete(&volume, "").await;
        world.until_gone(&volume).await;
        world.faults.release();
        until_settled(&world).await;
        assert_eq!(world.names("/api/v1/persistentvolumes").await, [] as [&str; 0], "after {after} reads");
        assert_eq!(storage.handles().len(), after + 1, "it is retained");
        if is_over {
            assert!(after > 0, "it reads before it retries");
            break;
        }
    }
    world.stop().await;
}
