//! Custom resources as owners and dependents.

use crate::world::*;
use object::access::{Access, terminating, uid};
use object::json;

#[tokio::test(flavor = "multi_thread")]
async fn kinds_added_while_the_collector_runs_can_own_and_be_owned() {
    let world = World::with(GC).await;
    world.settle().await;
    // The owner's kind is unknown at first.
    let mut early = secret("default", "early");
    early["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "example.com/v1", "kind": "Gear", "name": "nobody", "uid": "none"}]);
    let early = world.create(early).await;
    world.settle().await;
    world.create(definition("Gear", true, &["v1"])).await;
    let owner = world.create(gear("default", "owner")).await;
    let part = world.create(blocking(gear("default", "part"), &[&owner])).await;
    let builtin = world.create(blocking(secret("default", "builtin"), &[&owner])).await;
    world.delete(&owner, "Foreground").await;
    world.until_all_gone(&[owner, part, builtin, early]).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn references_of_custom_resources_are_removed_by_merge_patch() {
    let world = World::with(GC).await;
    world.create(definition("Gear", true, &["v1"])).await;
    let owner = world.create(config_map("default", "owner")).await;
    let stays = world.create(config_map("default", "stays")).await;
    let orphan = world.create(owned(gear("default", "orphan"), &[&owner])).await;
    let shared = world.create(owned(gear("default", "shared"), &[&stays, &owner])).await;
    world.delete(&owner, "Orphan").await;
    world.until_gone(&owner).await;
    let count = |object: &object::Value| object.items(&["metadata", "ownerReferences"]).len();
    assert_eq!(count(&world.now(&orphan).await.expect("survives")), 0);
    assert_eq!(count(&world.now(&shared).await.expect("survives")), 1);
    let refused: Vec<u16> =
        world.requests.take().await.iter().filter(|asked| asked.code == 415).map(|asked| asked.code).collect();
    assert_eq!(refused.len(), 2, "strategic merge is tried first");

    // A cycle through a custom resource is broken the same way.
    let one = world.create(gear("default", "one")).await;
    let two = world.create(blocking(gear("default", "two"), &[&one])).await;
    world.merge(&one, json!({"metadata": {"ownerReferences": [reference(&two, true)]}})).await;
    world.delete(&one, "Foreground").await;
    world.until_all_gone(&[one, two]).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_objects_of_a_deleted_definition_and_their_dependents_are_deleted() {
    let world = World::with(GC).await;
    let kind = world.create(definition("Gear", true, &["v1"])).await;
    let owner = world.create(gear("default", "owner")).await;
    let dependent = world.create(owned(secret("default", "dependent"), &[&owner])).await;
    world.settle().await;
    world.delete(&kind, "").await;
    world.until_gone(&kind).await;
    world.until_gone(&dependent).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_whose_version_is_no_longer_served_still_exists() {
    let world = World::with(GC).await;
    let kind = world.create(definition("Gear", true, &["v1", "v2"])).await;
    let owner = world.create(gear("default", "owner")).await;
    let dependent = world.create(owned(secret("default", "dependent"), &[&owner])).await;
    world.settle().await;
    let mut versions = kind["spec"]["versions"].clone();
    versions[1]["served"] = json!(false);
    world.merge(&kind, json!({"spec": {"versions": versions}})).await;
    // Every change of the dependent queues it again.
    for at in 0..20 {
        world.merge(&dependent, json!({"metadata": {"labels": {"at": at.to_string()}}})).await;
    }
    world.settle().await;
    assert!(!terminating(&world.now(&dependent).await.expect("stays")));
    let other =
        json!({"apiVersion": "example.com/v1", "kind": "Gear", "metadata": {"namespace": "default", "name": "owner"}});
    let found = world.now(&other).await.expect("still there");
    assert_eq!(uid(&found), uid(&owner));
    world.delete(&owner, "Background").await;
    world.until_gone(&dependent).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn orphans_of_a_kind_added_a_moment_ago_are_kept() {
    let world = World::with(GC).await;
    world.settle().await;
    for kind in ["Gear", "Wheel", "Axle", "Bolt", "Screw"] {
        let owner = world.create(config_map("default", "owner")).await;
        world.create(definition(kind, true, &["v1"])).await;
        let mut orphan = gear("default", "orphan");
        orphan["kind"] = json!(kind);
        let orphan = world.create(owned(orphan, &[&owner])).await;
        world.delete(&owner, "Orphan").await;
        world.until_gone(&owner).await;
        assert!(world.now(&orphan).await.is_some_and(|orphan| !terminating(&orphan)), "{kind}");
    }
    world.stop().await;
}
