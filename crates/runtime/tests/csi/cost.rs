//! The cost of CSI volumes in requests.

use crate::storage::*;
use crate::world::*;
use object::json;

/// The number of the provisioner's writes of PVs (waits for at least `volumes`), and of its journal.
async fn writes(world: &World, volumes: usize) -> (usize, usize) {
    let is_ours = |asked: &Asked, what: &str| {
        &*asked.account == "csi-provisioner" && asked.method != "GET" && asked.path.contains(what)
    };
    let about_volumes = |asked: &Asked| is_ours(asked, "/persistentvolumes");
    world.until_moment("all is answered", || world.requests.count(about_volumes) >= volumes).await;
    let asked = world.requests.take().await;
    let count = |what: &str| asked.iter().filter(|asked| is_ours(asked, what)).count();
    (count("/persistentvolumes"), count("/configmaps"))
}

/// Each volume takes two writes to provision and two to delete; journal writes are combined.
#[tokio::test(flavor = "multi_thread")]
async fn many_volumes_cost_two_writes_each() {
    let count = scaled(200);
    let (world, storage) = world().await;
    world.create(class("c", "Delete", json!({}))).await;
    let claims = world.create_many(count, |at| claim_of(&format!("claim-{at}"), "c")).await;
    for claim in &claims {
        until_volume(&world, claim).await;
    }
    until_settled(&world).await;
    let (volumes, journal) = writes(&world, 2 * count).await;
    assert_eq!(volumes, 2 * count, "the object, and the record on it");
    assert!(journal <= count + 3, "{journal} writes for {count} volumes");
    assert_eq!(storage.calls("CreateVolume").len(), count);

    for claim in &claims {
        world.delete(claim, "").await;
    }
    world.until("all are gone", || async { handles(&world).await.is_empty().then_some(()) }).await;
    let (volumes, journal) = writes(&world, 2 * count).await;
    assert_eq!(volumes, 2 * count, "the deletion, and the finalizer");
    // The response to the last write before may be counted here.
    assert!(journal <= 1, "nothing is journaled: the objects have all state");
    assert_eq!(storage.calls("DeleteVolume").len(), count);
    world.stop().await;
}
