//! What binding costs: many pairs at once, nothing when nothing happens, no more for one pair when there are many.

use crate::pairs::*;
use crate::world::*;
use object::access::{Access, name};
use object::json;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Waits until all claims are bound: the last write to each was answered. Looking at them all the time would cost more
/// than binding them.
async fn until_all_bound(world: &World, count: usize) {
    let is_last = |asked: &Asked| {
        asked.code == 200 && asked.path.contains("/persistentvolumeclaims/") && asked.path.contains("withStatus")
    };
    world.until_moment("all are bound", || world.requests.count(is_last) == count).await;
}

/// Each claim has a volume of its own.
async fn check_pairs(world: &World, count: usize) {
    let list = world.get("/api/v1/persistentvolumeclaims").await.expect("a list");
    let claims = list.items(&["items"]);
    let volumes: HashSet<&str> = claims.iter().map(|claim| claim.text(&["spec", "volumeName"])).collect();
    assert_eq!(volumes.len(), count, "no two have one volume");
    assert!(claims.iter().all(|claim| phase(claim) == "Bound"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_static_pairs_at_once() {
    let count = scaled(1000);
    // The claims are there first, or the volumes are.
    for claims_first in [false, true] {
        let mut world = World::bare().await;
        let volumes = |at: usize| a_volume(&format!("v-{at}"), "1Gi", json!({}));
        let claims = |at: usize| a_claim(&format!("c-{at}"), "1Gi", json!({}));
        world.create_many(count, volumes).await;
        if !claims_first {
            world.create_many(count, claims).await;
        } else {
            world.start(BINDER);
            for at in 0..count {
                until_phase(&world, &volume(&format!("v-{at}")), "Available").await;
            }
            world.stop_controllers().await;
            world.create_many(count, claims).await;
        }
        world.requests.take().await;
        let started = Instant::now();
        world.start(BINDER);
        until_all_bound(&world, count).await;
        let took = started.elapsed();
        check_pairs(&world, count).await;
        println!("{count} pairs in {took:?}: {:.0}/s", count as f64 / took.as_secs_f64());
        let asked = world.requests.take().await;
        let writes = asked.iter().filter(|asked| asked.method == "PATCH" && !asked.path.contains("/events"));
        let per_pair = if claims_first { 2 } else { 3 };
        assert_eq!(writes.count(), count * per_pair, "each write is done once, and none is refused");
        assert!(asked.iter().all(|asked| asked.code < 300), "{:?}", asked.iter().find(|asked| asked.code >= 300));
        assert!(took < Duration::from_secs(10), "{took:?}");
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_that_wait_are_called_by_volumes_one_by_one() {
    let count = scaled(1000);
    let world = World::with(BINDER).await;
    // Sizes of all kinds, so that many volumes would do for many claims.
    let size = |at: usize| format!("{}Gi", 1 + at % 7);
    let claims = world.create_many(count, |at| a_claim(&format!("c-{at}"), &size(at), json!({}))).await;
    world.until_event(claims.last().expect("some"), "FailedBinding").await;
    let started = Instant::now();
    world.create_many(count, |at| a_volume(&format!("v-{at}"), &size(at), json!({}))).await;
    until_all_bound(&world, count).await;
    let took = started.elapsed();
    check_pairs(&world, count).await;
    println!("{count} claims that waited in {took:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn who_waits_asks_for_nothing() {
    let world = World::with(&all()).await;
    world.create(a_class("x", "example.com", json!({}))).await;
    world.create(a_volume("small", "1Mi", json!({}))).await;
    let pending = world.create(a_claim("pending", "1Gi", json!({}))).await;
    let asking = world.create(a_claim("asking", "1Gi", of_class("x"))).await;
    world.until_event(&pending, "FailedBinding").await;
    world.until_event(&asking, "ExternalProvisioning").await;
    settle(&world).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.requests.take().await;
    tokio::time::sleep(Duration::from_secs(20 * 60)).await;
    let asked = world.requests.take().await;
    let asked: Vec<_> = asked.iter().filter(|asked| !asked.path.contains("watch=")).collect();
    assert!(asked.is_empty(), "{asked:?}");
    // But who comes much later is still told why.
    tokio::time::sleep(Duration::from_secs(20 * 60)).await;
    let asked = world.requests.take().await;
    let told = asked.iter().filter(|asked| asked.path.contains("/events") && asked.method != "GET").count();
    assert_eq!(told, 2, "{asked:?}");
    assert_eq!(name(&pending), "pending");
    world.stop().await;
}
