//! The cost of simulated nodes: many pods start quickly, and idle pods take little memory.

use crate::fleet::*;
use crate::world::*;
use futures::StreamExt;
use futures::future::join_all;
use object::Value;
use std::time::{Duration, Instant};

/// Fewer if the build is not optimized.
fn scaled(count: usize) -> usize {
    if cfg!(debug_assertions) { count / 25 } else { count }
}

/// Waits for this many ready pods.
async fn until_ready_count(fleet: &Fleet, wanted: usize) {
    let ready = |pod: &Value| object::condition::is_true(pod, "Ready");
    let mut watch = std::pin::pin!(kit::watcher::objects(
        &kit::api::Api::new(fleet.client("reader", server::User::apiserver(), Faults::default())),
        &kit::api::Resource::new("v1", "Pod", "pods", true),
        None,
    ));
    let mut names = std::collections::HashSet::new();
    while names.len() < wanted {
        if let Some(kit::watcher::Event::Apply(pod)) = watch.next().await
            && ready(&pod)
        {
            names.insert(object::access::name(&pod).to_owned());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_pods_run_and_terminate() {
    let fleet = Fleet::of(3).await;
    let count = scaled(5000);
    let memory = server::metrics::resident_bytes().unwrap_or(0);
    let started = Instant::now();
    let create = async {
        for from in (0..count).step_by(100) {
            join_all((from..count.min(from + 100)).map(|at| fleet.create(pod("default", &format!("p-{at}"))))).await;
        }
        started.elapsed()
    };
    let (created, ()) = tokio::join!(create, until_ready_count(&fleet, count));
    let took = started.elapsed();
    let more = server::metrics::resident_bytes().unwrap_or(0).saturating_sub(memory);
    println!("{count} pods: created after {created:?}, ready after {took:?}; memory grew by {} KB", more / 1024);
    assert!(took < created + Duration::from_secs(10), "{took:?}");
    let started = Instant::now();
    fleet.send("DELETE", "/api/v1/namespaces/default/pods", "application/json", None).await;
    let pods = "/api/v1/namespaces/default/pods";
    fleet.until("all go", || async { fleet.names(pods).await.is_empty().then_some(()) }).await;
    println!("{count} pods: deleted after {:?}", started.elapsed());
    fleet.stop().await;
}
