//! PodDisruptionBudgets and evictions.

use crate::world::*;
use futures::future::join_all;
use object::access::{Access, terminating, uid};
use object::{Value, json};

const DISRUPTION: &str = "disruption-controller";

fn budget(spec: Value) -> Value {
    let mut budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"namespace": "default", "name": "budget"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
    });
    for (field, value) in spec.as_object().expect("an object") {
        budget["spec"][field] = value.clone();
    }
    budget
}

/// healthy, desired, expected, allowed.
fn numbers(budget: &Value) -> [i64; 4] {
    ["currentHealthy", "desiredHealthy", "expectedPods", "disruptionsAllowed"]
        .map(|field| budget.int(&["status", field]).unwrap_or(-1))
}

async fn until_numbers(world: &World, budget: &Value, want: [i64; 4]) -> Value {
    world.until_is(budget, &format!("the budget says {want:?}"), |budget| numbers(budget) == want).await
}

fn condition(budget: &Value) -> (&str, &str) {
    let condition = object::condition::get(budget, "DisruptionAllowed").expect("a condition");
    (condition.text(&["status"]), condition.text(&["reason"]))
}

async fn running_pods(world: &World, count: usize, owner: Option<&Value>) -> Vec<Value> {
    let mut pods = Vec::new();
    for at in 0..count {
        let mut wanted = pod("default", &format!("web-{at}"));
        // On a node, a pod has a grace period.
        wanted["spec"]["nodeName"] = json!("node");
        if let Some(owner) = owner {
            let mut reference = reference(owner, true);
            reference["controller"] = json!(true);
            wanted["metadata"]["ownerReferences"] = json!([reference]);
        }
        let pod = world.create(wanted).await;
        set_ready(world, &pod, true).await;
        pods.push(pod);
    }
    pods
}

async fn set_ready(world: &World, pod: &Value, ready: bool) {
    let ready = if ready { "True" } else { "False" };
    world.set_status(pod, json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]})).await;
}

async fn evict(world: &World, pod: &Value) -> (u16, Value) {
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["metadata"]["name"], "namespace": "default"},
    });
    world.send("POST", &format!("{}/eviction", path(pod)), "application/json", Some(&eviction)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_without_a_controller_are_counted() {
    let world = World::with(DISRUPTION).await;
    let budget = world.create(budget(json!({"minAvailable": 2}))).await;
    let empty = until_numbers(&world, &budget, [0, 2, 0, 0]).await;
    assert_eq!(condition(&empty), ("False", "InsufficientPods"));
    world.until_event(&budget, "NoPods").await;
    let pods = running_pods(&world, 3, None).await;
    let full = until_numbers(&world, &budget, [3, 2, 3, 1]).await;
    assert_eq!(condition(&full), ("True", "SufficientPods"));
    assert_eq!(full["status"]["observedGeneration"], full["metadata"]["generation"]);
    set_ready(&world, &pods[0], false).await;
    until_numbers(&world, &budget, [2, 2, 3, 0]).await;
    set_ready(&world, &pods[0], true).await;
    until_numbers(&world, &budget, [3, 2, 3, 1]).await;
    // A pod that is no longer selected is no longer counted.
    world.merge(&pods[0], json!({"metadata": {"labels": {"app": "other"}}})).await;
    until_numbers(&world, &budget, [2, 2, 2, 0]).await;
    world.merge(&budget, json!({"spec": {"minAvailable": 1}})).await;
    until_numbers(&world, &budget, [2, 1, 2, 1]).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_set_are_measured_by_its_replicas() {
    let world = World::with(DISRUPTION).await;
    let set = world.create(stateful_set("default", "web", 4)).await;
    running_pods(&world, 3, Some(&set)).await;
    let budget = world.create(budget(json!({"maxUnavailable": "50%"}))).await;
    until_numbers(&world, &budget, [3, 2, 4, 1]).await;
    world.merge(&set, json!({"spec": {"replicas": 6}})).await;
    until_numbers(&world, &budget, [3, 3, 6, 0]).await;
    world.merge(&budget, json!({"spec": {"maxUnavailable": 4}})).await;
    until_numbers(&world, &budget, [3, 2, 6, 1]).await;
    world.merge(&budget, json!({"spec": {"maxUnavailable": null, "minAvailable": "20%"}})).await;
    until_numbers(&world, &budget, [3, 2, 6, 1]).await;
    world.delete(&set, "Orphan").await;
    world.merge(&set, json!({"metadata": {"finalizers": null}})).await;
    let lost = world.until_is(&budget, "no controller", |budget| condition(budget).1 == "SyncFailed").await;
    assert_eq!(lost["status"]["disruptionsAllowed"], 0);
    world.until_event(&budget, "CalculateExpectedPodCountFailed").await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_a_custom_kind_are_measured_by_its_scale() {
    let world = World::with(DISRUPTION).await;
    let mut kind = definition("Gear", true, &["v1"]);
    kind["spec"]["versions"][0]["subresources"] =
        json!({"scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}});
    world.create(kind).await;
    let mut owner = gear("default", "owner");
    owner["spec"] = json!({"replicas": 5});
    let owner = world.create(owner).await;
    running_pods(&world, 3, Some(&owner)).await;
    let budget = world.create(budget(json!({"maxUnavailable": 3}))).await;
    until_numbers(&world, &budget, [3, 2, 5, 1]).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_evictions_at_once_only_as_many_succeed_as_are_allowed() {
    let world = World::with(DISRUPTION).await;
    let pods = running_pods(&world, 10, None).await;
    let budget = world.create(budget(json!({"minAvailable": 9}))).await;
    until_numbers(&world, &budget, [10, 9, 10, 1]).await;
    let answers = join_all(pods.iter().map(|pod| evict(&world, pod))).await;
    let granted: Vec<usize> = (0..10).filter(|at| answers[*at].0 == 200).collect();
    assert_eq!(granted.len(), 1, "{answers:?}");
    for (code, status) in answers.iter().filter(|(code, _)| *code != 200) {
        assert_eq!((*code, status.text(&["reason"])), (429, "TooManyRequests"), "{status}");
        assert_eq!(status["message"], "Cannot evict pod as it would violate the pod's disruption budget.");
        let cause = &status["details"]["causes"][0];
        assert_eq!(cause["reason"], "DisruptionBudget");
        assert!(
            cause.text(&["message"]).starts_with("The disruption budget budget needs 9 healthy pods and has"),
            "{cause}"
        );
    }
    let evicted = &pods[granted[0]];
    assert!(terminating(&world.now(evicted).await.expect("its grace period runs")));
    until_numbers(&world, &budget, [9, 9, 10, 0]).await;
    // The kubelet removes it, and a new one is created.
    let force = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
    world.send("DELETE", &path(evicted), "application/json", Some(&force)).await;
    let after = until_numbers(&world, &budget, [9, 9, 9, 0]).await;
    assert!(after.at(&["status", "disruptedPods"]).is_none(), "{after}");
    let new = world.create(pod("default", "web-new")).await;
    set_ready(&world, &new, true).await;
    until_numbers(&world, &budget, [10, 9, 10, 1]).await;
    assert_eq!(evict(&world, &new).await.0, 200);
    assert!(!uid(&new).is_empty());
    world.stop().await;
}
