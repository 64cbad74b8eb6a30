//! Pods and pairs through the server and all controllers. Time is virtual: it advances when nothing is left
//! to do, so after a while all work is done.

use crate::count::Allocated;
use crate::kubelet::Kubelet;
use crate::limits::{hold, hold_count};
use crate::world::*;
use object::access::{Access, name};
use object::{Value, json};
use std::time::Duration;

const SETS: usize = 10;
const REPLICAS: usize = 5;
const PAIRS: usize = 50;
const OWNED: usize = 100;

async fn everything_is_done() {
    tokio::time::sleep(Duration::from_secs(120)).await;
}

/// What one piece of work took: allocations, requests of controllers, and writes.
struct Taken {
    allocated: Allocated,
    requests: u64,
    writes: u64,
}

async fn taken(world: &World, work: impl Future<Output = ()>) -> Taken {
    everything_is_done().await;
    world.requests.take().await;
    let (before, revision) = (Allocated::so_far(), world.store.revision());
    work.await;
    everything_is_done().await;
    let allocated = before.since();
    let is_about_work = |asked: &&Asked| !asked.path.contains("watch=") && !asked.path.contains("/leases/");
    let requests = world.requests.take().await.iter().filter(is_about_work).count() as u64;
    Taken { allocated, requests, writes: world.store.revision() - revision }
}

fn guard(what: &str, count: usize, taken: &Taken) {
    let count = count as u64;
    // More allocations may be caused by more requests, so requests are checked first.
    hold_count(&format!("{what}: requests of controllers"), taken.requests, count);
    hold_count(&format!("{what}: writes"), taken.writes, count);
    hold(what, count, taken.allocated);
}

fn set(at: usize) -> Value {
    let name = format!("web-{at}");
    let mut set = stateful_set("default", &name, REPLICAS as i64);
    set["spec"]["selector"]["matchLabels"] = json!({"app": name});
    set["spec"]["template"]["metadata"]["labels"] = json!({"app": name});
    set["spec"]["volumeClaimTemplates"] = json!([{
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }]);
    set
}

#[tokio::test(start_paused = true)]
async fn sets() {
    let mut world = World::timed().await;
    world.start("*");
    let kubelet = Kubelet::start(&world);
    let mut made = Vec::new();
    let created = taken(&world, async {
        for at in 0..SETS {
            made.push(world.create(set(at)).await);
        }
    })
    .await;
    let ready = |set: &Value| set.at(&["status", "readyReplicas"]) == Some(&json!(REPLICAS));
    for set in &made {
        let now = world.now(set).await.expect("the object exists");
        assert!(ready(&now), "{now}");
    }
    guard("pod of an ordered set created", SETS * REPLICAS, &created);
    let rolled = taken(&world, async {
        for set in &made {
            world.merge(set, json!({"spec": {"template": {"metadata": {"annotations": {"rolled": "yes"}}}}})).await;
        }
    })
    .await;
    for set in &made {
        let now = world.now(set).await.expect("the object exists");
        let updated = now.at(&["status", "updatedReplicas"]) == Some(&json!(REPLICAS));
        assert!(ready(&now) && updated, "{now}");
    }
    guard("pod of an ordered set rolled", SETS * REPLICAS, &rolled);
    drop(kubelet);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pairs() {
    let mut world = World::timed().await;
    world.start("*");
    let mut volumes = Vec::new();
    for at in 0..PAIRS {
        let mut volume = volume(&format!("v-{at:03}"));
        volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
        volumes.push(world.create(volume).await);
    }
    let mut claims = Vec::new();
    let bound = taken(&world, async {
        for at in 0..PAIRS {
            let mut claim = claim("default", &format!("c-{at:03}"));
            claim["spec"]["storageClassName"] = json!("");
            claims.push(world.create(claim).await);
        }
    })
    .await;
    for claim in &claims {
        let now = world.now(claim).await.expect("the object exists");
        assert_eq!(now.text(&["status", "phase"]), "Bound", "{}", name(claim));
    }
    guard("pair bound", PAIRS, &bound);
    let released = taken(&world, async {
        for claim in &claims {
            world.delete(claim, "").await;
        }
    })
    .await;
    for volume in &volumes {
        let now = world.now(volume).await.expect("the object exists");
        assert_eq!(now.text(&["status", "phase"]), "Released", "{}", name(volume));
    }
    guard("pair released", PAIRS, &released);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn garbage() {
    let mut world = World::timed().await;
    world.start("*");
    let owner = world.create(config_map("default", "owner")).await;
    for at in 0..OWNED {
        let mut owned = config_map("default", &format!("owned-{at:03}"));
        owned["metadata"]["ownerReferences"] = json!([reference(&owner, false)]);
        world.create(owned).await;
    }
    let collected = taken(&world, async { drop(world.delete(&owner, "Background").await) }).await;
    let left = world.names("/api/v1/namespaces/default/configmaps").await;
    assert!(!left.iter().any(|name| name.starts_with("owned")), "{left:?}");
    guard("dependant collected", OWNED, &collected);
    world.stop().await;
}
