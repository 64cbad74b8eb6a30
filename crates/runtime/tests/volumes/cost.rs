//! The cost of binding: many pairs at once, no requests when idle, and a constant cost per pair.

use crate::pairs::*;
use crate::world::*;
use object::access::{Access, name};
use object::json;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Waits until all claims are bound, by counting the last write to each: reading them repeatedly would cost
/// more than binding them.
async fn until_all_bound(world: &World, count: usize) {
    let is_last = |asked: &Asked| {
        asked.code == 200 && asked.path.contains("/persistentvolumeclaims/") && asked.path.contains("withStatus")
    };
    world.until_moment("all are bound", || world.requests.count(is_last) == count).await;
}

/// Checks that each claim has a PV of its own.
async fn check_pairs(world: &World, count: usize) {
    let list = world.get("/api/v1/persistentvolumeclaims").await.expect("a list");
    let claims = list.items(&["items"]);
    let volumes: HashSet<&str> = claims.iter().map(|claim| claim.text(&["spec", "volumeName"])).collect();
    assert_eq!(volumes.len(), count, "no two claims have the same PV");
    assert!(claims.iter().all(|claim| phase(claim) == "Bound"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_static_pairs_at_once() {
    let count = scaled(1000);
    // The claims are created first, or the PVs.
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
async fn waiting_claims_are_bound_as_pvs_are_created() {
    let count = scaled(1000);
    let world = World::with(BINDER).await;
    // Different sizes, so that many PVs match many claims.
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
async fn waiting_claims_cost_no_requests() {
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
    // The event is still repeated after a long time.
    tokio::time::sleep(Duration::from_secs(20 * 60)).await;
    let asked = world.requests.take().await;
    let told = asked.iter().filter(|asked| asked.path.contains("/events") && asked.method != "GET").count();
    assert_eq!(told, 2, "{asked:?}");
    assert_eq!(name(&pending), "pending");
    world.stop().await;
}
