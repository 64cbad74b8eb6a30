//! Garbage collection through the API.

use crate::world::*;
use object::access::{Access, name, terminating, uid};
use object::{Value, json};

async fn world() -> World {
    World::with(GC).await
}

/// The uids of an object's owners.
fn owners(object: &Value) -> Vec<&str> {
    object.items(&["metadata", "ownerReferences"]).iter().map(|owner| owner.text(&["uid"])).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn background_deletion_deletes_the_dependents_after_the_owner() {
    let world = world().await;
    let owner = world.create(config_map("default", "owner")).await;
    let first = world.create(owned(secret("default", "first"), &[&owner])).await;
    let second = world.create(blocking(config_map("default", "second"), &[&owner])).await;
    let other = world.create(config_map("default", "other")).await;
    world.delete(&owner, "Background").await;
    assert!(world.now(&owner).await.is_none(), "the owner does not wait");
    world.until_all_gone(&[first, second]).await;
    assert!(world.now(&other).await.is_some());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chains_of_any_depth_are_deleted() {
    let world = world().await;
    for policy in ["Background", "Foreground"] {
        let mut chain = vec![world.create(stateful_set("default", "top", 0)).await];
        for at in 0..5 {
            let link = if at % 2 == 0 {
                config_map("default", &format!("link-{at}"))
            } else {
                secret("default", &format!("link-{at}"))
            };
            chain.push(world.create(blocking(link, &[&chain[at]])).await);
        }
        world.delete(&chain[0], policy).await;
        world.until_all_gone(&chain).await;
    }
    world.stop().await;
}

/// K14 of the volumes' scenarios.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreground_owner_outlives_its_blocking_dependents_also_those_just_created() {
    let world = world().await;
    for round in 0..10 {
        let owner = world.create(stateful_set("default", &format!("owner-{round}"), 0)).await;
        let mut dependents = Vec::new();
        for at in 0..3 {
            let dependent = config_map("default", &format!("blocking-{round}-{at}"));
            dependents.push(world.create(blocking(dependent, &[&owner])).await);
            let dependent = claim("default", &format!("claim-{round}-{at}"));
            dependents.push(world.create(blocking(held(dependent), &[&owner])).await);
        }
        world.delete(&owner, "Foreground").await;
        let going = world.now(&owner).await.expect("waits");
        assert!(terminating(&going) && going["metadata"]["finalizers"] == json!(["foregroundDeletion"]));
        for at in [1, 3, 5] {
            world.until_is(&dependents[at], "the claim is told to go", terminating).await;
            assert!(world.now(&owner).await.is_some(), "kept by the finalizers of its dependents");
        }
        for dependent in dependents.iter().filter(|dependent| dependent.text(&["kind"]) == "PersistentVolumeClaim") {
            assert!(world.now(&owner).await.is_some());
            world.merge(dependent, json!({"metadata": {"finalizers": null}})).await;
        }
        world.until_gone(&owner).await;
        for dependent in &dependents {
            assert!(world.now(dependent).await.is_none(), "{} outlived its owner", name(dependent));
        }
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dependents_that_do_not_block_do_not_delay_a_foreground_owner_but_are_deleted_too() {
    let world = world().await;
    let owner = world.create(config_map("default", "owner")).await;
    let loose = world.create(held(owned(secret("default", "loose"), &[&owner]))).await;
    world.delete(&owner, "Foreground").await;
    world.until_gone(&owner).await;
    world.until_is(&loose, "the dependent is told to go", terminating).await;
    world.merge(&loose, json!({"metadata": {"finalizers": null}})).await;
    world.until_gone(&loose).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn orphans_are_kept_even_when_just_created() {
    let world = world().await;
    for round in 0..10 {
        let owner = world.create(stateful_set("default", &format!("owner-{round}"), 0)).await;
        let mut orphans = Vec::new();
        for at in 0..5 {
            for orphan in [config_map, secret, claim, pod] {
                orphans.push(world.create(owned(orphan("default", &format!("orphan-{round}-{at}")), &[&owner])).await);
            }
        }
        world.delete(&owner, "Orphan").await;
        world.until_gone(&owner).await;
        for orphan in &orphans {
            let orphan = world.now(orphan).await.expect("survives");
            assert_eq!(owners(&orphan), [] as [&str; 0]);
            assert!(!terminating(&orphan));
        }
    }
    world.settle().await;
    assert_eq!(world.names("/api/v1/namespaces/default/pods").await.len(), 50);
    assert_eq!(world.names("/api/v1/namespaces/default/secrets").await.len(), 50);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_existing_owner_is_enough_and_missing_ones_are_removed() {
    let world = world().await;
    let stays = world.create(config_map("default", "stays")).await;
    let goes = world.create(config_map("default", "goes")).await;
    let waits = world.create(held(config_map("default", "waits"))).await;
    let absent = json!({"apiVersion": "v1", "kind": "Secret", "name": "absent", "uid": "absent"});
    let mut shared = blocking(secret("default", "shared"), &[&stays, &goes, &waits]);
    shared["metadata"]["ownerReferences"].as_array_mut().unwrap().push(absent);
    let shared = world.create(shared).await;
    world.until_is(&shared, "the absent owner is dropped", |shared| owners(shared).len() == 3).await;
    world.delete(&goes, "Background").await;
    world.until_is(&shared, "the gone owner is dropped", |shared| owners(shared).len() == 2).await;
    world.delete(&waits, "Foreground").await;
    let left = world.until_is(&shared, "the waiting owner is dropped", |shared| owners(shared).len() == 1).await;
    assert_eq!(owners(&left), [uid(&stays)]);
    world
        .until_is(&waits, "the waiting owner is released", |waits| {
            waits["metadata"]["finalizers"] == json!(["example.com/held"])
        })
        .await;
    world.delete(&stays, "Background").await;
    world.until_gone(&shared).await;
    world.stop().await;
}

/// K15 of the volumes' scenarios.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_kept_by_another_finalizer_still_owns() {
    let world = world().await;
    let owner = world.create(held(config_map("default", "owner"))).await;
    let dependent = world.create(owned(secret("default", "dependent"), &[&owner])).await;
    world.delete(&owner, "Background").await;
    world.settle().await;
    assert!(!terminating(&world.now(&dependent).await.expect("stays")));
    world.merge(&owner, json!({"metadata": {"finalizers": null}})).await;
    world.until_gone(&dependent).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_object_under_the_same_name_is_not_the_owner() {
    let mut world = World::bare().await;
    let owner = world.create(config_map("default", "owner")).await;
    let dependent = world.create(owned(secret("default", "dependent"), &[&owner])).await;
    world.delete(&owner, "Background").await;
    let successor = world.create(config_map("default", "owner")).await;
    let heir = world.create(owned(secret("default", "heir"), &[&successor])).await;
    world.start(GC);
    world.until_gone(&dependent).await;
    assert!(world.now(&heir).await.is_some());
    world.stop().await;
}

/// K8 of the volumes' scenarios.
#[tokio::test(flavor = "multi_thread")]
async fn dependents_of_missing_or_deleted_owners_are_deleted() {
    let world = world().await;
    let owner = world.create(config_map("default", "owner")).await;
    world.delete(&owner, "Background").await;
    let late = world.create(owned(secret("default", "late"), &[&owner])).await;
    let mut stray = secret("default", "stray");
    stray["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "nobody", "uid": "none"}]);
    let stray = world.create(stray).await;
    world.until_all_gone(&[late, stray]).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_in_another_namespace_does_not_count_and_is_reported() {
    let world = world().await;
    world.create(new_namespace("elsewhere")).await;
    let owner = world.create(config_map("elsewhere", "owner")).await;
    world.settle().await;
    let dependent = world.create(owned(secret("default", "dependent"), &[&owner])).await;
    world.until_gone(&dependent).await;
    let event = world.until_event(&dependent, "OwnerRefInvalidNamespace").await;
    assert_eq!(event["type"], "Warning");
    let want = format!(
        "ownerRef [v1/ConfigMap, namespace: default, name: owner, uid: {}] does not exist in namespace \"default\"",
        uid(&owner)
    );
    assert_eq!(event["message"], want);
    assert!(world.now(&owner).await.is_some());
    world.stop().await;
}

/// K11 of the volumes' scenarios.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_scoped_object_with_a_namespaced_owner_is_kept_and_reported() {
    let world = world().await;
    let owner = world.create(config_map("default", "owner")).await;
    let dependent = world.create(owned(volume("volume"), &[&owner])).await;
    let event = world.until_event(&dependent, "OwnerRefInvalidNamespace").await;
    assert!(event.text(&["message"]).ends_with("does not exist in namespace \"\""), "{event}");
    world.delete(&owner, "Background").await;
    world.settle().await;
    assert!(!terminating(&world.now(&dependent).await.expect("stays")));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_scoped_owners_own_in_all_namespaces() {
    let world = world().await;
    let owner = world.create(volume("owner")).await;
    let near = world.create(owned(volume("near"), &[&owner])).await;
    let far = world.create(owned(secret("default", "far"), &[&owner])).await;
    world.merge(&owner, json!({"metadata": {"finalizers": null}})).await;
    world.merge(&near, json!({"metadata": {"finalizers": null}})).await;
    world.delete(&owner, "Background").await;
    world.until_all_gone(&[near, far]).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_of_unknown_kind_or_version_cannot_be_judged() {
    let world = world().await;
    let mut kept = Vec::new();
    for (at, (version, kind)) in
        [("v1", "Nothing"), ("nowhere.io/v1", "ConfigMap"), ("v9", "ConfigMap")].iter().enumerate()
    {
        let mut dependent = secret("default", &format!("kept-{at}"));
        dependent["metadata"]["ownerReferences"] =
            json!([{"apiVersion": version, "kind": kind, "name": "owner", "uid": "some-uid"}]);
        kept.push(world.create(dependent).await);
    }
    world.settle().await;
    for kept in &kept {
        assert!(!terminating(&world.now(kept).await.expect("stays")));
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cycles_of_blocking_owners_are_broken() {
    let world = world().await;
    for size in [1, 2, 4] {
        let mut circle = Vec::new();
        for at in 0..size {
            circle.push(world.create(config_map("default", &format!("circle-{size}-{at}"))).await);
        }
        for at in 0..size {
            let owner = reference(&circle[(at + 1) % size], true);
            circle[at] = world.merge(&circle[at], json!({"metadata": {"ownerReferences": [owner]}})).await;
        }
        world.settle().await;
        assert!(world.now(&circle[0]).await.is_some());
        world.delete(&circle[0], "Foreground").await;
        world.until_all_gone(&circle).await;
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_starts_in_the_middle_finishes() {
    let mut world = World::bare().await;
    let waiting = world.create(stateful_set("default", "waiting", 0)).await;
    let orphaning = world.create(stateful_set("default", "orphaning", 0)).await;
    let gone = world.create(stateful_set("default", "gone", 0)).await;
    let blocks = world.create(blocking(claim("default", "blocks"), &[&waiting])).await;
    let below = world.create(blocking(secret("default", "below"), &[&blocks])).await;
    let orphan = world.create(owned(claim("default", "orphan"), &[&orphaning])).await;
    let dependent = world.create(owned(secret("default", "dependent"), &[&gone])).await;
    world.delete(&waiting, "Foreground").await;
    world.delete(&orphaning, "Orphan").await;
    world.delete(&gone, "Background").await;
    world.start(GC);
    world.until_is(&blocks, "told to go", terminating).await;
    world.stop_controllers().await;
    assert!(world.now(&waiting).await.is_some(), "its dependent is protected");
    world.merge(&blocks, json!({"metadata": {"finalizers": null}})).await;
    world.start(GC);
    world.until_all_gone(&[waiting, orphaning, blocks, below, dependent]).await;
    let orphan = world.now(&orphan).await.expect("survives");
    assert_eq!(owners(&orphan), [] as [&str; 0]);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_with_an_owner_blocks_nothing() {
    let world = world().await;
    for policy in ["Orphan", "Foreground", "Background"] {
        let owner = world.create(config_map("default", "owner")).await;
        let event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"namespace": "default", "name": format!("event-{policy}").to_lowercase()},
            "involvedObject": {"namespace": "default"}, "reason": "Test", "message": "x", "type": "Normal",
        });
        let event = world.create(blocking(event, &[&owner])).await;
        world.delete(&owner, policy).await;
        world.until_gone(&owner).await;
        assert!(world.now(&event).await.is_some(), "events expire");
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_policy_applies_until_a_later_deletion_changes_it() {
    let world = world().await;
    let owner = world.create(held(config_map("default", "owner"))).await;
    let dependent = world.create(held(blocking(secret("default", "dependent"), &[&owner]))).await;
    world.delete(&owner, "Foreground").await;
    world.until_is(&dependent, "is told to go", terminating).await;
    world.delete(&owner, "Background").await;
    let left = world.now(&owner).await.expect("held by another");
    assert_eq!(left["metadata"]["finalizers"], json!(["example.com/held"]));
    world.merge(&owner, json!({"metadata": {"finalizers": null}})).await;
    world.until_gone(&owner).await;
    world.merge(&dependent, json!({"metadata": {"finalizers": null}})).await;
    world.until_gone(&dependent).await;
    world.stop().await;
}

/// Decision 21: a delayed request of a controller sets a deleted set as the owner of a claim. The claim's
/// data cannot be restored, so it is kept without an owner; other objects are deleted as usual.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_gets_a_deleted_set_as_owner_is_kept() {
    for propagation in ["Background", "Orphan"] {
        let world = world().await;
        let set = world.create(stateful_set("default", "web", 0)).await;
        let kept = world.create(claim("default", "data-web-0")).await;
        let other = world.create(secret("default", "other")).await;
        world.settle().await;
        world.delete(&set, propagation).await;
        world.until_gone(&set).await;
        for late in [&kept, &other] {
            world.merge(late, json!({"metadata": {"ownerReferences": [reference(&set, false)]}})).await;
        }
        world.until_gone(&other).await;
        let is_free = |claim: &Value| claim.items(&["metadata", "ownerReferences"]).is_empty();
        let found = world.until_is(&kept, "it belongs to nobody", is_free).await;
        assert!(!terminating(&found), "{propagation}");
        world.stop().await;
    }
}
