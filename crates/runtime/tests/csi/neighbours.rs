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
use object::access::{name, uid};
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

/// A deletion waits for its claim, and a volume with another backend gets the name: the claim's end is heard of by that name, and the deletion goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_waits_for_its_claim_goes_on_when_another_volume_has_the_name() {
    let (world, storage) = world().await;
    let handle = bare_volume(&world, &storage).await;
    let (claim, volume) = doomed_volume(&world).await;
    world.merge(&volume, json!({"metadata": {"finalizers": null}})).await;
    world.until_gone(&volume).await;
    until_phase(&world, &claim, "Lost").await;
    let mut next = static_volume(&handle, "Retain");
    next["metadata"]["name"] = json!(name(&volume));
    world.create(next).await;
    let own_key = format!("_{}", uid(&volume));
    world.until("it is set aside", || async { (doomed(&world).await == [own_key.clone()]).then_some(()) }).await;
    settle(&world).await;
    world.delete(&claim, "").await;
    world.until_gone(&claim).await;
    until_settled(&world).await;
    assert_eq!(storage.handles(), [handle].into());
    world.stop().await;
}

/// What is written down of a volume of a driver that is served elsewhere stays where it is, and a volume of ours that has the name is looked after beside it.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_have_written_down_is_not_moved_and_stands_in_nobodys_way() {
    let (mut world, storage) = world().await;
    let handle = bare_volume(&world, &storage).await;
    world.stop_controllers().await;
    write_down(&world, "static", &deletion("nobody.example.com", "static", "h")).await;
    world.start(&everything());
    let volume = world.create(static_volume(&handle, "Retain")).await;
    let claim = world.create(a_claim("holder", "1Gi", json!({}))).await;
    until_bound(&world, &claim, "static").await;
    until_recorded(&world, &volume).await;
    assert_eq!(journal(&world).await, ["static"]);
    world.delete(&volume, "").await;
    set_policy(&world, &volume, "Delete").await;
    let both = [format!("_{}", uid(&volume)), "static".to_owned()];
    world.until("both are written down", || async { (doomed(&world).await == both).then_some(()) }).await;
    // What is done with leaves the journal with the next write, if not before.
    provisioned(&world, "Delete").await;
    assert_eq!(doomed(&world).await, both);
    world.delete(&claim, "").await;
    world.until_all_gone(&[claim, volume]).await;
    until_in_step(&world, &storage, "its backend goes").await;
    world.until("that is done", || async { (journal(&world).await == ["static"]).then_some(()) }).await;
    world.stop().await;
}

/// A volume is being made while an earlier one of its name is to be deleted, which may be the same backend: that waits, and leaves it alone in the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_waits_for_what_is_being_made_by_the_same_name() {
    let (mut world, storage) = world().await;
    world.create(class("c", "Delete", json!({}))).await;
    storage.driver.faults().order(Order::fail("CreateVolume", Code::DeadlineExceeded).after());
    let claim = world.create(claim_of("claim", "c")).await;
    storage.until_called("CreateVolume", 1).await;
    world.stop_controllers().await;
    let (volume, handle) = (format!("pvc-{}", uid(&claim)), storage.driver.volumes().remove(0).0);
    write_down(&world, "_earlier", &deletion(DRIVER, &volume, &handle)).await;
    storage.driver.faults().clear();
    let gate = Gate::closed();
    storage.driver.faults().order(Order::hold("CreateVolume", &gate).times(1));
    world.start(&everything());
    until_reached(&gate).await;
    settle(&world).await;
    assert_eq!(storage.calls("DeleteVolume").len(), 0);
    gate.open();
    until_volume(&world, &claim).await;
    until_settled(&world).await;
    assert_eq!(storage.handles(), [handle].into());
    assert_eq!(storage.calls("DeleteVolume").len(), 0);
    world.stop().await;
}

/// And the other way round: what is wanted by a name is not asked for while an earlier volume of that name is being deleted.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_wanted_by_a_name_waits_for_the_deletion_of_what_had_it() {
    let (mut world, storage) = world().await;
    world.create(class("c", "Delete", json!({}))).await;
    world.stop_controllers().await;
    let claim = world.create(claim_of("claim", "c")).await;
    write_down(&world, "_earlier", &deletion(DRIVER, &format!("pvc-{}", uid(&claim)), "h")).await;
    let gate = Gate::closed();
    storage.driver.faults().order(Order::hold("DeleteVolume", &gate).times(1));
    world.start(&everything());
    until_reached(&gate).await;
    until_told(&world, &claim, "is still being deleted").await;
    assert_eq!(storage.calls("CreateVolume").len(), 0);
    gate.open();
    until_volume(&world, &claim).await;
    until_settled(&world).await;
    world.stop().await;
}

/// A volume may have been made when its driver was served here last. It is served elsewhere for a while, then comes, and refuses once: that does not say that it
/// has made nothing.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_found_of_a_driver_that_comes_later_is_doubted() {
    let (mut world, mut storage) = world().await;
    let mut there = Storage::new(other_options()).await;
    storage.driver.faults().order(Order::fail("CreateVolume", Code::DeadlineExceeded).after());
    world.create(class("c", "Delete", json!({}))).await;
    world.create(a_class("other", OTHER, json!({}))).await;
    let claim = world.create(claim_of("claim", "c")).await;
    storage.until_called("CreateVolume", 1).await;
    world.stop_controllers().await;
    world.delete(&claim, "").await;
    world.setup.drivers = vec![there.endpoint()];
    world.start(&everything());
    let beside = world.create(claim_of("beside", "other")).await;
    let volume = until_volume(&world, &beside).await;
    world.delete(&beside, "").await;
    world.until_gone(&volume).await;
    assert_eq!((journal(&world).await.len(), storage.driver.volumes().len()), (1, 1));
    storage.driver.faults().clear();
    storage.driver.faults().order(Order::fail("CreateVolume", Code::InvalidArgument).times(1));
    there.move_here(&mut storage).await;
    until_settled(&world).await;
    until_in_step(&world, &there, "it is made, and goes").await;
    world.stop().await;
}

/// What another process has written down since this one looked is found when the driver comes.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_down_elsewhere_is_found_when_its_driver_comes() {
    let (mut world, mut storage) = world().await;
    let mut there = Storage::new(other_options()).await;
    world.setup.drivers = vec![there.endpoint()];
    world.start_beside(PROVISIONER);
    world.create(class("c", "Delete", json!({}))).await;
    world.create(a_class("other", OTHER, json!({}))).await;
    let beside = world.create(claim_of("beside", "other")).await;
    let volume = until_volume(&world, &beside).await;
    world.delete(&beside, "").await;
    world.until_gone(&volume).await;
    until_settled(&world).await;
    storage.driver.faults().order(Order::fail("CreateVolume", Code::DeadlineExceeded).after());
    let claim = world.create(claim_of("claim", "c")).await;
    storage.until_called("CreateVolume", 1).await;
    world.delete(&claim, "").await;
    world.until_gone(&claim).await;
    storage.stop().await;
    storage.driver.faults().clear();
    drop(there.give_way_to(storage.driver.clone()).await);
    until_settled(&world).await;
    until_in_step(&world, &there, "it is made, and goes").await;
    world.stop().await;
}

/// What another process was done with long ago, this one has seen as it was then. When the driver comes to it, it does not go on with that.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_are_done_with_is_not_gone_on_with_when_their_driver_comes() {
    let (mut world, mut storage) = world().await;
    let mut there = Storage::new(other_options()).await;
    world.setup.drivers = vec![there.endpoint()];
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
    let volume = until_volume(&world, &claim).await;
    until_settled(&world).await;
    world.delete(&claim, "").await;
    world.until_gone(&claim).await;
    world.delete(&volume, "").await;
    world.until_gone(&volume).await;
    // Nobody can tell any more that the volume was there.
    world.store.compact(world.store.revision()).await.expect("compacted");
    there.move_here(&mut storage).await;
    let next = world.create(claim_of("next", "c")).await;
    until_volume(&world, &next).await;
    until_settled(&world).await;
    assert_eq!(storage.calls("CreateVolume").len(), 2, "one for each claim");
    world.stop().await;
}

/// The journal is deleted while a driver is away of which it says something: that is written again, because nobody is done with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_journal_that_was_deleted_forgets_nothing_of_drivers_that_are_away() {
    let (mut world, mut storage) = world().await;
    let there = Storage::new(other_options()).await;
    storage.driver.faults().order(Order::fail("CreateVolume", Code::DeadlineExceeded).after());
    world.create(class("c", "Delete", json!({}))).await;
    world.create(a_class("other", OTHER, json!({}))).await;
    let claim = world.create(claim_of("claim", "c")).await;
    storage.until_called("CreateVolume", 1).await;
    world.stop_controllers().await;
    world.delete(&claim, "").await;
    storage.stop().await;
    storage.driver.faults().clear();
    world.setup.drivers.push(there.endpoint());
    world.start(&everything());
    let beside = world.create(claim_of("beside", "other")).await;
    until_volume(&world, &beside).await;
    world.delete(&config_map("kube-system", "mainstay-csi-journal"), "").await;
    let next = world.create(claim_of("next", "other")).await;
    for claim in [beside, next] {
        let volume = until_volume(&world, &claim).await;
        world.delete(&claim, "").await;
        world.until_gone(&volume).await;
    }
    world.until("it is written again", || async { (journal(&world).await.len() == 1).then_some(()) }).await;
    storage.start().await;
    until_settled(&world).await;
    until_in_step(&world, &storage, "it is made, and goes").await;
    world.stop().await;
}
