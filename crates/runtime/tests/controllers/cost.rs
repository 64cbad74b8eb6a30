//! The cost of the controllers: few requests when idle, and fast with many objects.

use crate::world::*;
use object::access::terminating;
use std::time::{Duration, Instant};

#[tokio::test(start_paused = true)]
async fn idle_controllers_are_quiet() {
    let world = World::with("*").await;
    world.settle().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    world.requests.take().await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let asked = world.requests.take().await;
    let (watches, others): (Vec<_>, Vec<_>) = asked.iter().partition(|asked| asked.path.contains("watch="));
    let discoveries = others.iter().filter(|asked| matches!(asked.path.as_str(), "/api" | "/apis")).count();
    for asked in &others {
        assert_eq!(
            (asked.path.as_str() == "/api" || asked.path.as_str() == "/apis", asked.code),
            (true, 304),
            "{asked:?}"
        );
    }
    // Two discovery requests every half minute; and every watch is renewed about every five minutes.
    assert!(discoveries <= 2 * 121, "{discoveries}");
    assert!(watches.len() < 55 * 13, "{}", watches.len());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_dependents_of_one_owner() {
    let world = World::with("*").await;
    let count = scaled(2000);
    for policy in ["Background", "Foreground", "Orphan"] {
        let owner = world.create(stateful_set("default", "owner", 0)).await;
        let dependents =
            world.create_many(count, |at| blocking(config_map("default", &format!("d-{at}")), &[&owner])).await;
        let started = Instant::now();
        world.delete(&owner, policy).await;
        world.until_gone(&owner).await;
        if policy == "Orphan" {
            for dependent in &dependents {
                let orphan = world.now(dependent).await.expect("survives");
                assert!(!terminating(&orphan) && orphan["metadata"].get("ownerReferences").is_none());
            }
        } else {
            let last = dependents.last().expect("some");
            world.until_gone(last).await;
            let maps = "/api/v1/namespaces/default/configmaps";
            world.until("all go", || async { (world.names(maps).await.len() <= 1).then_some(()) }).await;
        }
        let took = started.elapsed();
        println!("{policy}: {count} dependents in {took:?}");
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_objects_are_listed_soon_after_the_start() {
    let mut world = World::bare().await;
    let count = scaled(10_000);
    world.create_many(count, |at| pod("default", &format!("p-{at}"))).await;
    let memory = server::metrics::resident_bytes().unwrap_or(0);
    let started = Instant::now();
    world.start("*");
    world.settle().await;
    let took = started.elapsed();
    let more = server::metrics::resident_bytes().unwrap_or(0).saturating_sub(memory);
    println!("{count} pods are known after {took:?}; memory grew by {} KB", more / 1024);
    let asked = world.requests.take().await;
    let pages = asked.iter().filter(|asked| {
        &*asked.account == "generic-garbage-collector"
            && asked.path.starts_with("/api/v1/pods?")
            && asked.path.contains("limit=")
    });
    assert_eq!(pages.count(), count.div_ceil(500), "they come in pages");
    assert!(took < Duration::from_secs(10), "{took:?}");
    world.stop().await;
}
