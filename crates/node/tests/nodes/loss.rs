//! Nodes that are lost for good: their pods are collected, replicas start on other nodes, and volumes are
//! detached.

use crate::fleet::*;
use crate::world::*;
use object::access::{Access, terminating, uid};
use object::{Value, condition, json};
use std::time::Duration;
use tokio::time::Instant;

const COLLECTOR: &str = "pod-garbage-collector-controller";
const ALL: &str = "statefulset-controller,node-lifecycle-controller,pod-garbage-collector-controller";

async fn fleet_with(count: usize, controllers: &str) -> Fleet {
    let mut fleet = Fleet::of(count).await;
    fleet.world.start(controllers);
    fleet
}

fn a_node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
}

fn node_of(pod: &Value) -> Value {
    a_node(pod.text(&["spec", "nodeName"]))
}

/// A pod with a finalizer, so that a test can read its last status.
fn kept(mut pod: Value, node: &str) -> Value {
    pod["metadata"]["finalizers"] = json!(["example.com/kept"]);
    pod["spec"]["nodeName"] = json!(node);
    pod
}

async fn shut_down(fleet: &Fleet, node: &Value) {
    fleet.annotate(node, "down", Some("true")).await;
    let silent = |node: &Value| condition::get(node, "Ready").is_some_and(|ready| ready["status"] == "Unknown");
    fleet.until_is(node, "not ready", silent).await;
}

#[tokio::test(start_paused = true)]
async fn a_replica_of_a_deleted_node_starts_elsewhere() {
    let fleet = fleet_with(2, ALL).await;
    fleet.create(stateful_set("default", "web", 1)).await;
    let replica = pod("default", "web-0");
    let first = fleet.until_ready(&replica).await;
    fleet.annotate(&node_of(&first), "down", Some("true")).await;
    fleet.pass(1).await;
    fleet.delete(&node_of(&first), "").await;
    let deleted = Instant::now();
    fleet.until_gone(&first).await;
    let waited = deleted.elapsed();
    assert!((Duration::from_secs(40)..Duration::from_secs(45)).contains(&waited), "{waited:?}");
    let second = fleet.until_ready(&replica).await;
    assert_ne!(second["spec"]["nodeName"], first["spec"]["nodeName"]);
    let figures = fleet.figures();
    let counted = "pod_gc_collector_force_delete_pods_total{namespace=\"default\",reason=\"orphaned\"} 1";
    assert!(figures.contains(counted), "{figures}");
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_orphan_is_set_to_failed_and_a_terminated_one_is_not_changed() {
    let fleet = fleet_with(1, COLLECTOR).await;
    let orphan = fleet.create(kept(pod("default", "orphan"), "gone")).await;
    let done = fleet.create(kept(pod("default", "done"), "gone")).await;
    fleet.set_status(&done, json!({"phase": "Succeeded"})).await;
    let orphan = fleet.until_is(&orphan, "deleted", terminating).await;
    assert_eq!(orphan["status"]["phase"], "Failed");
    assert_eq!(orphan["metadata"]["deletionGracePeriodSeconds"], 0);
    let target = condition::get(&orphan, "DisruptionTarget").expect("it is a target");
    assert_eq!((target["reason"].as_str(), target["status"].as_str()), (Some("DeletionByPodGC"), Some("True")));
    assert_eq!(target["message"], "PodGC: node no longer exists");
    let done = fleet.until_is(&done, "deleted", terminating).await;
    assert_eq!(
        (done["status"]["phase"].as_str(), condition::get(&done, "DisruptionTarget")),
        (Some("Succeeded"), None)
    );
    // Finalizers keep both. No more requests are sent about them.
    fleet.pass(5).await;
    fleet.requests.take().await;
    fleet.pass(600).await;
    let asked = fleet.requests.take().await;
    let more: Vec<_> = asked
        .iter()
        .filter(|asked| &*asked.account == "pod-garbage-collector" && !asked.path.contains("watch="))
        .collect();
    assert!(more.is_empty(), "{more:?}");
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_new_node_of_the_same_name_keeps_the_pods() {
    let fleet = fleet_with(1, COLLECTOR).await;
    fleet.create(a_node("other")).await;
    let mut resident = pod("default", "resident");
    resident["spec"]["nodeName"] = json!("other");
    let resident = fleet.create(resident).await;
    fleet.delete(&a_node("other"), "").await;
    fleet.pass(30).await;
    fleet.create(a_node("other")).await;
    fleet.pass(600).await;
    let kept = fleet.now(&resident).await.expect("its node exists");
    assert!(!terminating(&kept) && kept["status"]["phase"] == "Pending", "{kept}");
    fleet.delete(&a_node("other"), "").await;
    fleet.until_gone(&resident).await;
    fleet.stop().await;
}

/// The watch of nodes is stale: only the API server knows that the node exists.
#[tokio::test(start_paused = true)]
async fn a_node_that_only_the_cache_lacks_keeps_its_pods() {
    let fleet = fleet_with(1, COLLECTOR).await;
    fleet.pass(5).await;
    fleet.faults.mute("pod-garbage-collector", "/api/v1/nodes");
    fleet.create(a_node("new")).await;
    let mut resident = pod("default", "resident");
    resident["spec"]["nodeName"] = json!("new");
    let resident = fleet.create(resident).await;
    let is_asked = |asked: &Asked| asked.method == "GET" && asked.path == "/api/v1/nodes/new";
    fleet.pass(130).await;
    assert!(fleet.requests.count(is_asked) >= 2, "{}", fleet.requests.summary());
    let kept = fleet.now(&resident).await.expect("its node exists");
    assert!(!terminating(&kept) && kept["status"]["phase"] == "Pending", "{kept}");
    fleet.faults.release();
    fleet.delete(&a_node("new"), "").await;
    fleet.until_gone(&resident).await;
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_out_of_service_loses_its_pods_and_volumes() {
    let fleet = fleet_with(2, ALL).await;
    fleet.create(stateful_set("default", "web", 1)).await;
    let replica = pod("default", "web-0");
    let first = fleet.until_ready(&replica).await;
    let node = node_of(&first);
    let mut stays = pod("default", "stays");
    stays["spec"]["nodeName"] = first["spec"]["nodeName"].clone();
    stays["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    stays["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "used"}}]);
    let stays = fleet.create(stays).await;
    for (name, claim) in [("free", "data-web-0"), ("taken", "used")] {
        let mut volume = volume(name);
        volume["spec"]["claimRef"] = json!({"namespace": "default", "name": claim});
        fleet.create(volume).await;
        fleet.create(attachment(name, node.text(&["metadata", "name"]))).await;
    }
    shut_down(&fleet, &node).await;
    let mut taints = fleet.now(&node).await.expect("it exists")["spec"]["taints"].clone();
    fleet.pass(5).await;
    assert!(
        fleet.now(&attachment("free", "")).await.is_some() && !terminating(&fleet.now(&first).await.expect("it stays"))
    );
    taints
        .as_array_mut()
        .expect("taints")
        .push(json!({"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}));
    fleet.merge(&node, json!({"spec": {"taints": taints}})).await;
    fleet.until_gone(&first).await;
    let second = fleet.until_ready(&replica).await;
    assert_ne!(second["spec"]["nodeName"], first["spec"]["nodeName"]);
    fleet.until_gone(&attachment("free", "")).await;
    fleet.pass(600).await;
    assert!(fleet.now(&attachment("taken", "")).await.is_some(), "a pod that tolerates the taint uses it");
    assert!(!terminating(&fleet.now(&stays).await.expect("it tolerates the taint")));
    // After its deletion it is force deleted, and its volume is detached.
    fleet.delete(&stays, "").await;
    fleet.until_gone(&stays).await;
    fleet.until_gone(&attachment("taken", "")).await;
    let figures = fleet.figures();
    for counted in [
        "pod_gc_collector_force_delete_pods_total{namespace=\"default\",reason=\"out-of-service\"} 2",
        "attachdetach_controller_forced_detaches_total{reason=\"out-of-service\"} 2",
    ] {
        assert!(figures.contains(counted), "{figures}");
    }
    fleet.stop().await;
}

fn attachment(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": name},
        "spec": {"attacher": "driver.example.com", "nodeName": node, "source": {"persistentVolumeName": name}},
    })
}

/// Without the taint, or on a ready node, a terminating pod may still run.
#[tokio::test(start_paused = true)]
async fn the_taint_does_nothing_on_a_node_that_is_ready() {
    let fleet = fleet_with(1, COLLECTOR).await;
    let slow = fleet.create(acting("slow", &[("terminate-after", "never")])).await;
    fleet.until_ready(&slow).await;
    let taint = json!({"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"});
    fleet.merge(&node_named(0), json!({"spec": {"taints": [taint]}})).await;
    fleet.delete(&slow, "").await;
    fleet.pass(600).await;
    let kept = fleet.now(&slow).await.expect("it may run");
    assert!(terminating(&kept) && kept["status"]["phase"] == "Running", "{kept}");
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_was_never_scheduled_is_collected_when_it_is_deleted() {
    let fleet = fleet_with(1, COLLECTOR).await;
    let mut waits = pod("default", "waits");
    waits["spec"]["schedulerName"] = json!("none");
    waits["metadata"]["finalizers"] = json!(["example.com/kept"]);
    let waits = fleet.create(waits).await;
    fleet.delete(&waits, "").await;
    fleet.until_is(&waits, "failed", |pod| pod["status"]["phase"] == "Failed").await;
    fleet.merge(&waits, json!({"metadata": {"finalizers": null}})).await;
    fleet.until_gone(&waits).await;
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_oldest_terminated_pods_above_the_threshold_are_deleted() {
    let mut fleet = Fleet::of(1).await;
    fleet.world.setup.terminated_pod_threshold = 2;
    fleet.world.start(COLLECTOR);
    let mut pods = Vec::new();
    for number in 0..4 {
        let done = fleet.create(acting(&format!("done-{number}"), &[("succeed-after", "0s")])).await;
        fleet.until_is(&done, "ended", |pod| pod["status"]["phase"] == "Succeeded").await;
        fleet.pass(2).await;
        pods.push(done);
    }
    let runs = fleet.create(pod("default", "runs")).await;
    fleet.until_all_gone(&pods[..2]).await;
    fleet.until_ready(&runs).await;
    fleet.pass(600).await;
    assert_eq!(fleet.names("/api/v1/pods").await, ["done-2", "done-3", "runs"]);
    fleet.stop().await;
}

/// The collector stops between the pod's last status and its deletion; the next one finishes it.
#[tokio::test(start_paused = true)]
async fn a_new_collector_finishes_what_the_last_one_began() {
    let mut fleet = fleet_with(1, COLLECTOR).await;
    fleet.faults.mishap("pod-garbage-collector", 1, Mishap::Stuck);
    let mut orphan = pod("default", "orphan");
    orphan["spec"]["nodeName"] = json!("gone");
    let orphan = fleet.create(orphan).await;
    let failed = fleet.until_is(&orphan, "failed", |pod| pod["status"]["phase"] == "Failed").await;
    assert!(!terminating(&failed) && uid(&failed) == uid(&orphan));
    fleet.world.stop_controllers().await;
    fleet.world.start(COLLECTOR);
    fleet.until_gone(&orphan).await;
    fleet.stop().await;
}
