//! Not alone: another provisioner at the same journal, another driver at the socket, another volume of the same name, a namespace that
//! goes with all that is in it.

use crate::deletion::{bare_volume, static_volume};
use crate::last_words::doomed_volume;
use crate::pairs::*;
use crate::policies::set_policy;
use crate::storage::*;
use crate::world::*;
use csi::Code;
use csi::directory::{Gate, Options, Order};
use object::access::name;
use object::{Value, json};

pub const OTHER: &str = "other.csi.mainstay.dev";

pub fn other_options() -> Options {
    Options { name: OTHER.to_owned(), ..options() }
}

/// Two processes serve a driver each, and one journal. What one is done with is not brought back by the other, which has seen it there.
#[tokio::test(flavor = "multi_thread")]
async fn a_provisioner_does_not_write_again_what_another_has_taken_out() {
    let (mut world, storage) = world().await;
    let other = Storage::new(other_options()).await;
    world.setup.drivers = vec![other.endpoint()];
    world.start_beside(PROVISIONER);
    world.create(class("c", "Retain", json!({}))).await;
    world.create(a_class("other", OTHER, json!({}))).await;
    let gate = Gate::closed();
    storage.driver.faults().order(Order::hold("CreateVolume", &gate).times(1));
    let claim = world.create(claim_of("claim", "c")).await;
    until_reached(&gate).await;
    let beside = world.create(claim_of("beside", "other")).await;
    until_volume(&world, &beside).await;
    gate.open();
    until_volume(&world, &claim).await;
    until_settled(&world).await;
    for next in ["second", "third"] {
        let claim = world.create(claim_of(next, "other")).await;
        until_volume(&world, &claim).await;
        until_settled(&world).await;
    }
    world.stop().await;
}

/// Another driver answers where the driver of a volume was. It knows nothing of that volume, and its word that there is none counts for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_is_not_taken_for_the_one_that_was_there_before() {
    let (world, mut storage) = world().await;
    let (claim, volume) = provisioned(&world, "Delete").await;
    let first = storage.replace(other_options()).await;
    world.delete(&claim, "").await;
    until_phase(&world, &volume, "Released").await;
    until_told(&world, &volume, OTHER).await;
    assert!(first.volumes().len() == 1 && world.now(&volume).await.is_some());
    // The other one is served, too.
    world.create(a_class("other", OTHER, json!({}))).await;
    let claim = world.create(claim_of("beside", "other")).await;
    until_volume(&world, &claim).await;
    // And the first one when it is back.
    storage.give_way_to(first).await;
    world.until_gone(&volume).await;
    assert_eq!(storage.driver.volumes(), []);
    world.stop().await;
}

/// A volume went while its driver refuses to delete it, and another one comes by its name, and goes alike: each is looked after, and both backends go
/// in the end. (The second one was left alone as long as the first was there, and what was written down of the first one was forgotten for it.)
#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_down_of_a_volume_does_not_stand_in_the_way_of_the_next_one_of_its_name() {
    let (world, storage) = world().await;
    let handle = bare_volume(&world, &storage).await;
    storage.driver.faults().order(Order::fail("DeleteVolume", Code::Internal));
    let (claim, volume) = doomed_volume(&world).await;
    world.delete(&claim, "").await;
    world.until_all_gone(&[claim, volume.clone()]).await;

    let mut next = static_volume(&handle, "Retain");
    next["metadata"]["name"] = json!(name(&volume));
    let next = world.create(next).await;
    let claim = world.create(a_claim("next", "1Gi", json!({}))).await;
    until_bound(&world, &claim, name(&next)).await;
    until_recorded(&world, &next).await;
    world.delete(&next, "").await;
    set_policy(&world, &next, "Delete").await;
    world.until("both are written down", || async { (doomed(&world).await.len() == 2).then_some(()) }).await;
    world.delete(&claim, "").await;
    world.until_all_gone(&[claim, next]).await;
    assert_eq!(storage.driver.volumes().len(), 2);

    storage.driver.faults().clear();
    until_in_step(&world, &storage, "both go").await;
    until_settled(&world).await;
    world.stop().await;
}

/// A namespace is told to go while a driver may be copying a volume in it, with a secret that goes along. Whether it is made can then be asked only without;
/// and where the driver does not say, the source does not wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_goes_with_the_secret_of_a_copy_that_may_be_under_way() {
    for refuses in [false, true] {
        let (world, storage) = world_with(options(), &format!("{},{GC},{NAMESPACES}", everything())).await;
        let place = world.create(new_namespace("place")).await;
        let secret = world.create(secret("place", "key")).await;
        let parameters = json!({
            "csi.storage.k8s.io/provisioner-secret-name": "key",
            "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
        });
        world.create(class("c", "Delete", json!({"parameters": parameters}))).await;
        let in_place = |mut claim: Value| {
            claim["metadata"]["namespace"] = json!("place");
            claim
        };
        let source = world.create(in_place(claim_of("claim", "c"))).await;
        until_volume(&world, &source).await;
        storage.driver.faults().order(Order::fail("CreateVolume", Code::DeadlineExceeded).after());
        let mut copy = in_place(claim_of("copy", "c"));
        copy["spec"]["dataSource"] = json!({"kind": "PersistentVolumeClaim", "name": "claim"});
        let copy = world.create(copy).await;
        storage.until_called("CreateVolume", 2).await;
        world.delete(&place, "").await;
        world.until_all_gone(&[copy, secret]).await;
        assert!(world.now(&source).await.is_some(), "it is being copied, for all that is known");
        storage.driver.faults().clear();
        if refuses {
            storage.driver.faults().order(Order::fail("CreateVolume", Code::Unauthenticated));
            world.until_gone(&place).await;
            assert_eq!(journal(&world).await.len(), 1, "it is asked on");
            storage.driver.faults().clear();
        }
        world.until_gone(&place).await;
        until_in_step(&world, &storage, "the copy goes, too").await;
        until_settled(&world).await;
        world.stop().await;
    }
}
