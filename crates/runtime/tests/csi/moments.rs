//! Bad input and bad moments: drivers that never answer, classes and secrets that go in the middle.

use crate::pairs::until_phase;
use crate::storage::*;
use crate::world::*;
use csi::Code;
use csi::directory::{Gate, Order};
use csi::v1::{CreateVolumeRequest, DeleteVolumeRequest};
use object::access::{Access, name, uid};
use object::{Value, json};
use runtime::csi::{Endpoint, Pace};

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

/// A call that is never answered is given up after its time, made again, and holds up no other; an answer that comes too late, when
/// it was given up long ago, changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_never_answers_holds_up_nobody_else() {
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
        // The call is still open, and it all goes on without its answer.
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

/// Whatever becomes of the class while the outcome is open: what was asked for is asked for again, to the letter.
#[tokio::test(flavor = "multi_thread")]
async fn an_open_request_is_repeated_to_the_letter_whatever_becomes_of_its_class() {
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

/// A secret that is gone is waited for while the outcome of a request is open, and done without when a volume is deleted.
#[tokio::test(flavor = "multi_thread")]
async fn secrets_that_are_gone_are_waited_for_but_not_at_the_end() {
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
    assert_eq!(asked(&storage).last().expect("a call").secrets["password"], "two", "the secret as it is now");
    world.delete(&second, "").await;
    world.delete(&claim, "").await;
    world.until_gone(&volume).await;
    let deletion = storage.calls("DeleteVolume").remove(0);
    assert!(deletion.request::<DeleteVolumeRequest>().expect("a request").secrets.is_empty());
    assert_eq!(storage.driver.volumes(), []);
    world.stop().await;
}

/// Claim and secret went before the driver was asked, and the answer to the call without a secret was lost: a refusal that comes later, when the secret is there
/// again, does not say that nothing was made.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_was_lost_without_a_secret_is_an_answer_that_was_lost() {
    let (world, storage) = world().await;
    let parameters = json!({SECRET_NAME: "key", SECRET_NAMESPACE: "default"});
    world.create(class("c", "Delete", json!({"parameters": parameters}))).await;
    let first = world.create(key("one")).await;
    // It is written down, for all that is known.
    world.faults.refuse_at(Some(("POST", "/configmaps", 503)));
    let claim = world.create(claim_of("claim", "c")).await;
    until_told(&world, &claim, "it cannot be written down").await;
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
    until_in_step(&world, &storage, "it is made, and goes").await;
    assert!(asked(&storage).iter().any(|request| request.secrets.is_empty()));
    world.stop().await;
}

/// There is something to write down at the end, and a server that does not answer: it ends all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_never_answers_does_not_hold_up_the_end() {
    let (mut world, _storage) = world().await;
    let (_, volume) = provisioned(&world, "Retain").await;
    until_settled(&world).await;
    world.faults.refuse(Some(500));
    // It goes without a finalizer that could hold it, and the last word was Delete.
    world.delete(&volume, "").await;
    world.merge(&volume, json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}})).await;
    world.merge(&volume, json!({"metadata": {"finalizers": null}})).await;
    let is_journal = |asked: &Asked| asked.path.contains("mainstay-csi-journal") && asked.code == 500;
    world.until_moment("it is to be written down", || world.requests.count(is_journal) > 0).await;
    world.faults.silence();
    tokio::time::timeout(std::time::Duration::from_secs(20), world.stop_controllers()).await.expect("an end");
    world.stop().await;
}

/// Whether it was written down nobody knows: it is written again, not taken back. Taking it back is a write whose answer can get lost, too,
/// and then nothing is ever made where the server dies after every write.
#[tokio::test(flavor = "multi_thread")]
async fn what_may_be_written_down_is_not_taken_back() {
    let storage = Storage::new(options()).await;
    let mut world = World::bare().await;
    // It is tried again after what is done with would have left the journal.
    world.setup.drivers = vec![Endpoint { pace: Pace::default(), ..storage.endpoint() }];
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
    // Once without an answer, once by the version before that, and once with an answer.
    assert_eq!(answers, [504, 409, 200]);
    gate.open();
    until_volume(&world, &claim).await;
    until_settled(&world).await;
    world.stop().await;
}

/// A conflict at any write of a deletion says only that something else was going on: the volume is not taken for gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_at_any_write_of_a_deletion_is_not_the_end() {
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
                assert!(after > 0, "it writes when a volume goes");
                break;
            }
        }
    }
    assert_eq!(storage.driver.volumes(), []);
    world.stop().await;
}

/// Claims and volumes are heard of apart. A claim that was bound, lost its volume and went, and that is heard of only as it was before, gets no
/// second volume.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_heard_of_late_gets_no_second_volume() {
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
    // It looks whether the claim is still there.
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

/// The object of a retained volume is saved, and nobody hears the answer; its user deletes it with its claim, at any moment of the attempt that
/// follows. It does not come again. (It did, where the claim was asked for before the object.)
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_was_saved_unheard_and_deleted_does_not_come_again() {
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
        // It is in the middle of its next attempt, or done with it.
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
            assert!(after > 0, "it asks before it tries again");
            break;
        }
    }
    world.stop().await;
}
