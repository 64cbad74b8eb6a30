//! Nodes that stop reporting, and their pods.

use crate::fleet::*;
use crate::world::*;
use object::access::{Access, terminating};
use object::{Value, condition, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

const LIFECYCLE: &str = "node-lifecycle-controller";

fn taints(node: &Value) -> Vec<String> {
    let taints = node.items(&["spec", "taints"]).iter();
    taints.map(|taint| format!("{}:{}", taint.text(&["key"]), taint.text(&["effect"]))).collect()
}

async fn fleet_with_lifecycle(count: usize, controllers: &str) -> Fleet {
    let mut fleet = Fleet::of(count).await;
    fleet.world.start(controllers);
    fleet
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_node_is_marked_its_pods_are_deleted_and_it_recovers() {
    let fleet = fleet_with_lifecycle(1, LIFECYCLE).await;
    let pod = fleet.create(pod("default", "p")).await;
    let mut patient = crate::world::pod("default", "patient");
    patient["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    let patient = fleet.create(patient).await;
    fleet.until_ready(&pod).await;
    fleet.until_ready(&patient).await;
    fleet.pass(300).await;
    let node = fleet.now(&node_named(0)).await.expect("the object exists");
    assert!(condition::is_true(&node, "Ready") && taints(&node).is_empty(), "a healthy node is not changed");

    let down = Instant::now();
    fleet.annotate(&node_named(0), "down", Some("true")).await;
    let unknown = |node: &Value| condition::get(node, "Ready").is_some_and(|ready| ready["status"] == "Unknown");
    let lost = fleet.until_is(&node, "unknown", unknown).await;
    let silence = down.elapsed();
    assert!((Duration::from_secs(30)..Duration::from_secs(51)).contains(&silence), "{silence:?}");
    assert_eq!(condition::get(&lost, "Ready").expect("the object exists")["reason"], "NodeStatusUnknown");
    let tainted = |node: &Value| {
        taints(node) == ["node.kubernetes.io/unreachable:NoSchedule", "node.kubernetes.io/unreachable:NoExecute"]
    };
    fleet.until_is(&node, "tainted", tainted).await;
    fleet.until_event(&lost, "NodeNotReady").await;
    let unready = fleet.until_is(&pod, "not ready", |pod| !condition::is_true(pod, "Ready")).await;
    assert!(!terminating(&unready), "its tolerations last five minutes");
    fleet.until_is(&pod, "deleted", terminating).await;
    let left = down.elapsed() - silence;
    assert!((Duration::from_secs(295)..Duration::from_secs(305)).contains(&left), "{left:?}");
    fleet.until_event(&pod, "TaintManagerEviction").await;
    fleet.pass(1000).await;
    let stuck = fleet.now(&pod).await.expect("never force deleted");
    assert!(condition::is_true(&stuck, "DisruptionTarget"));
    assert!(!terminating(&fleet.now(&patient).await.expect("it tolerates everything")));

    fleet.annotate(&node_named(0), "down", None).await;
    fleet.until_gone(&pod).await;
    fleet.until_ready(&patient).await;
    fleet.until_is(&node, "healed", |node| condition::is_true(node, "Ready") && taints(node).is_empty()).await;
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_recovers_in_time_keeps_its_pods() {
    let fleet = fleet_with_lifecycle(1, LIFECYCLE).await;
    let pod = fleet.create(pod("default", "p")).await;
    fleet.until_ready(&pod).await;
    fleet.annotate(&node_named(0), "down", Some("true")).await;
    fleet.until_is(&pod, "not ready", |pod| !condition::is_true(pod, "Ready")).await;
    fleet.pass(200).await;
    fleet.annotate(&node_named(0), "down", Some("false")).await;
    fleet.until_ready(&pod).await;
    fleet.pass(1000).await;
    let kept = fleet.now(&pod).await.expect("it stays");
    assert!(!terminating(&kept) && condition::is_true(&kept, "Ready"));
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn taints_set_by_users_evict_pods() {
    let fleet = fleet_with_lifecycle(2, LIFECYCLE).await;
    let leaves = fleet.create(pod("default", "leaves")).await;
    let mut later = pod("default", "later");
    later["spec"]["tolerations"] =
        json!([{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}]);
    later["spec"]["nodeName"] = json!("simulated-0");
    let later = fleet.create(later).await;
    let node = fleet.until_ready(&leaves).await["spec"]["nodeName"].clone();
    assert_eq!(node, "simulated-0");
    fleet.until_ready(&later).await;
    let tainted = Instant::now();
    fleet.merge(&node_named(0), json!({"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoExecute"}]}})).await;
    fleet.until_gone(&leaves).await;
    assert!(tainted.elapsed() < Duration::from_secs(5));
    fleet.until_gone(&later).await;
    assert!((59..63).contains(&tainted.elapsed().as_secs()), "{:?}", tainted.elapsed());
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cordoned_node_is_tainted_and_untainted() {
    let fleet = fleet_with_lifecycle(1, LIFECYCLE).await;
    let node = fleet.merge(&node_named(0), json!({"spec": {"unschedulable": true}})).await;
    fleet.until_is(&node, "tainted", |node| taints(node) == ["node.kubernetes.io/unschedulable:NoSchedule"]).await;
    fleet.merge(&node, json!({"spec": {"unschedulable": false}})).await;
    fleet.until_is(&node, "untainted", |node| taints(node).is_empty()).await;
    fleet.stop().await;
}

/// No ordinal runs twice: a pod that may still run is not replaced.
#[tokio::test(start_paused = true)]
async fn a_replica_on_an_unreachable_node_is_not_replaced() {
    let fleet = fleet_with_lifecycle(2, "statefulset-controller,node-lifecycle-controller").await;
    let set = fleet.create(stateful_set("default", "web", 1)).await;
    let replica = pod("default", "web-0");
    let first = fleet.until_ready(&replica).await;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": first["spec"]["nodeName"]}});
    fleet.annotate(&node, "down", Some("true")).await;
    let going = fleet.until_is(&replica, "terminating", terminating).await;
    assert_eq!(going["metadata"]["uid"], first["metadata"]["uid"]);
    fleet.pass(3000).await;
    let stuck = fleet.now(&replica).await.expect("it stays");
    assert_eq!(stuck["metadata"]["uid"], first["metadata"]["uid"]);
    fleet.annotate(&node, "down", None).await;
    fleet.until_gone(&first).await;
    let second = fleet.until_ready(&replica).await;
    assert_ne!(second["metadata"]["uid"], first["metadata"]["uid"]);
    assert!(fleet.now(&set).await.is_some());
    fleet.stop().await;
}

/// Clocks of nodes and controllers that jump: what was heard, and when to report again, is measured by the monotonic clock.
#[tokio::test(start_paused = true)]
async fn clocks_that_jump_make_no_node_lost_and_hide_none() {
    let jump_s = Arc::new(AtomicI64::new(0));
    let jumping = |clock: &kit::Clock| -> kit::Clock {
        let (clock, jump_s) = (clock.clone(), jump_s.clone());
        Arc::new(move || clock() + jiff::SignedDuration::from_secs(jump_s.load(Ordering::Relaxed)))
    };
    let mut fleet = Fleet::with(1, |setup| setup.clock = jumping(&setup.clock)).await;
    fleet.world.setup.clock = jumping(&fleet.world.setup.clock);
    fleet.world.start(LIFECYCLE);
    let node = fleet.now(&node_named(0)).await.expect("it is there");
    let is_well = |node: &Value| condition::is_true(node, "Ready") && taints(node).is_empty();
    fleet.until_is(&node, "ready", is_well).await;
    fleet.pass(100).await;
    let since = |node: &Value| condition::get(node, "Ready").map(|ready| ready["lastTransitionTime"].clone());
    let before = since(&fleet.now(&node_named(0)).await.expect("it is there"));
    for to_s in [-3600, 7200, 0] {
        jump_s.store(to_s, Ordering::Relaxed);
        fleet.pass(300).await;
        let now = fleet.now(&node_named(0)).await.expect("it is there");
        assert!(is_well(&now) && since(&now) == before, "after a jump to {to_s} s: {now:?}");
    }
    let down = Instant::now();
    fleet.annotate(&node_named(0), "down", Some("true")).await;
    fleet.pass(10).await;
    jump_s.store(-3600, Ordering::Relaxed);
    fleet.until_is(&node, "lost", |node| !condition::is_true(node, "Ready")).await;
    let silence = down.elapsed();
    assert!((Duration::from_secs(30)..Duration::from_secs(61)).contains(&silence), "{silence:?}");
    fleet.stop().await;
}
