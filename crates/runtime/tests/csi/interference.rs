//! Interference: another provisioner with the same journal, another driver at the socket, another volume of
//! the same name, a namespace that is deleted with all its content.

use crate::deletion::{bare_volume, static_volume};
use crate::last_state::doomed_volume;
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

/// Two processes serve one driver each, with one journal. An entry that one has removed is not written again
/// by the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_provisioner_does_not_restore_entries_that_another_has_removed() {
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

/// Another driver serves the socket of a volume's driver. Its response that the volume does not exist is
/// ignored.
#[tokio::test(flavor = "multi_thread")]
async fn another_driver_at_the_socket_is_recognized() {
    let (world, mut storage) = world().await;
    let (claim, volume) = provisioned(&world, "Delete").await;
    let first = storage.replace(other_options()).await;
    world.delete(&claim, "").await;
    until_phase(&world, &volume, "Released").await;
    until_told(&world, &volume, OTHER).await;
    assert!(first.volumes().len() == 1 && world.now(&volume).await.is_some());
    // The other driver is served, too.
    world.create(a_class("other", OTHER, json!({}))).await;
    let claim = world.create(claim_of("beside", "other")).await;
    until_volume(&world, &claim).await;
    // And the first one when it is back.
    storage.give_way_to(first).await;
    world.until_gone(&volume).await;
    assert_eq!(storage.driver.volumes(), []);
    world.stop().await;
}

/// A PV was removed while its driver refuses the deletion, and another PV of the same name is created and
/// removed likewise: both volumes are deleted in the end. (The second one was ignored while the first was
/// pending, and the journal entry of the first was lost.)
#[tokio::test(flavor = "multi_thread")]
async fn a_journal_entry_does_not_block_the_next_pv_of_the_same_name() {
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
    world.until("both are journaled", || async { (pending_deletions(&world).await.len() == 2).then_some(()) }).await;
    world.delete(&claim, "").await;
    world.until_all_gone(&[claim, next]).await;
    assert_eq!(storage.driver.volumes().len(), 2);

    storage.driver.faults().clear();
    until_in_step(&world, &storage, "both are deleted").await;
    until_settled(&world).await;
    world.stop().await;
}

/// A namespace is deleted while a driver may be copying a volume of it, with a secret that is deleted, too.
/// The outcome can then be asked only without the secret; if the driver refuses that, the source does not
/// wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_with_the_secret_of_an_open_copy_is_deleted() {
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
        assert!(world.now(&source).await.is_some(), "it may still be being copied");
        storage.driver.faults().clear();
        if refuses {
            storage.driver.faults().order(Order::fail("CreateVolume", Code::Unauthenticated));
            world.until_gone(&place).await;
            assert_eq!(journal(&world).await.len(), 1, "the request is repeated");
            storage.driver.faults().clear();
        }
        world.until_gone(&place).await;
        until_in_step(&world, &storage, "the copy is deleted too").await;
        until_settled(&world).await;
        world.stop().await;
    }
}

/// A deletion waits for its claim, and another volume gets the PV's name: the removal of the claim still
/// resumes the deletion.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_waits_for_its_claim_resumes_when_another_pv_has_the_name() {
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
    world
        .until("the deletion has a key of its own", || async {
            (pending_deletions(&world).await == [own_key.clone()]).then_some(())
        })
        .await;
    settle(&world).await;
    world.delete(&claim, "").await;
    world.until_gone(&claim).await;
    until_settled(&world).await;
    assert_eq!(storage.handles(), [handle].into());
    world.stop().await;
}

/// A journal entry of a driver that another process serves is not changed, and a PV of ours with the same
/// name is handled independently.
#[tokio::test(flavor = "multi_thread")]
async fn journal_entries_of_other_drivers_are_kept_and_block_nothing() {
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
    world.until("both are journaled", || async { (pending_deletions(&world).await == both).then_some(()) }).await;
    // Finished entries leave the journal with the next write, if not before.
    provisioned(&world, "Delete").await;
    assert_eq!(pending_deletions(&world).await, both);
    world.delete(&claim, "").await;
    world.until_all_gone(&[claim, volume]).await;
    until_in_step(&world, &storage, "the volume is deleted").await;
    world.until("that is done", || async { (journal(&world).await == ["static"]).then_some(()) }).await;
    world.stop().await;
}

/// A volume is being provisioned while an earlier one of its name is to be deleted, which may be the same
/// volume: the deletion waits, and does not delete it in the end.
#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_waits_for_a_creation_of_the_same_name() {
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

/// And the reverse: a volume is not created while an earlier volume of the same name is being deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_creation_waits_for_a_deletion_of_the_same_name() {
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

/// A volume may have been created when its driver was last served here. The driver is served elsewhere for a
/// while, returns and refuses once: this does not prove that nothing was created.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_of_a_driver_that_returns_proves_nothing() {
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
    until_in_step(&world, &there, "the volume is created and deleted").await;
    world.stop().await;
}

/// Journal entries that another process wrote meanwhile are found when the driver returns.
#[tokio::test(flavor = "multi_thread")]
async fn journal_entries_of_another_process_are_found_when_the_driver_returns() {
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
    until_in_step(&world, &there, "the volume is created and deleted").await;
    world.stop().await;
}

/// This process has read a journal entry that another process finished since. It is not resumed when the
/// driver returns.
#[tokio::test(flavor = "multi_thread")]
async fn entries_finished_by_another_process_are_not_resumed() {
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
    // The past events of the PV are compacted.
    world.store.compact(world.store.revision()).await.expect("compacted");
    there.move_here(&mut storage).await;
    let next = world.create(claim_of("next", "c")).await;
    until_volume(&world, &next).await;
    until_settled(&world).await;
    assert_eq!(storage.calls("CreateVolume").len(), 2, "one for each claim");
    world.stop().await;
}

/// The journal is deleted while a driver with an entry is not served: the entry is written again, because it
/// is not finished.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_journal_is_restored_for_drivers_that_are_not_served() {
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
    until_in_step(&world, &storage, "the volume is created and deleted").await;
    world.stop().await;
}
