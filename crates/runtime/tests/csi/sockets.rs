//! Drivers move between sockets, replace each other and are upgraded, while they are idle.

use crate::interference::{OTHER, other_options};
use crate::pairs::*;
use crate::storage::*;
use crate::world::*;
use csi::directory::Options;
use object::access::name;
use object::json;

/// A test cluster with two sockets, and a class for each driver.
async fn world_of(sockets: [&Storage; 2]) -> World {
    let mut world = World::bare().await;
    world.setup.drivers = sockets.map(Storage::endpoint).to_vec();
    world.start(&everything());
    world.create(class("c", "Delete", json!({}))).await;
    world.create(a_class("other", OTHER, json!({}))).await;
    world
}

async fn is_served(world: &World, class: &str) {
    let claim = world.create(claim_of(&format!("claim-{}", world.store.revision()), class)).await;
    until_volume(world, &claim).await;
}

/// No call is sent to the former driver, so no failed call reveals the change.
#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_replaces_an_idle_one_is_found() {
    let (world, mut storage) = world().await;
    provisioned(&world, "Delete").await;
    until_settled(&world).await;
    storage.replace(other_options()).await;
    world.create(a_class("other", OTHER, json!({}))).await;
    is_served(&world, "other").await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_moves_to_another_socket_and_back_is_found_each_time() {
    let (mut one, mut two) = (Storage::new(options()).await, Storage::new(other_options()).await);
    two.stop().await;
    let world = world_of([&one, &two]).await;
    is_served(&world, "c").await;
    for _ in 0..2 {
        two.move_here(&mut one).await;
        is_served(&world, "c").await;
        one.move_here(&mut two).await;
        is_served(&world, "c").await;
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn drivers_that_swap_sockets_are_found() {
    let (mut one, mut two) = (Storage::new(options()).await, Storage::new(other_options()).await);
    let world = world_of([&one, &two]).await;
    for _ in 0..2 {
        is_served(&world, "c").await;
        is_served(&world, "other").await;
        let first = one.driver.clone();
        one.move_here(&mut two).await;
        two.take(first).await;
    }
    world.stop().await;
}

/// A volume waits to be detached by a driver that attaches. The next version does not attach, and would never
/// detach it.
#[tokio::test(flavor = "multi_thread")]
async fn the_capabilities_of_an_upgraded_driver_are_used() {
    let (world, mut storage) = world_with(Options { attach: true, ..options() }, &everything()).await;
    let (claim, volume) = provisioned(&world, "Delete").await;
    world
        .create(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "a"},
            "spec": {"attacher": DRIVER, "nodeName": "node-1", "source": {"persistentVolumeName": name(&volume)}},
        }))
        .await;
    world.delete(&claim, "").await;
    world.until_event(&volume, "VolumeFailedDelete").await;
    storage.upgrade(options()).await;
    world.until_gone(&volume).await;
    assert_eq!(storage.driver.volumes(), []);
    world.stop().await;
}
