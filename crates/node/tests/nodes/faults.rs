//! Pods and nodes with faults, set by their annotations.

use crate::fleet::*;
use crate::world::*;
use object::access::Access;
use object::{condition, json};
use std::time::Duration;
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn a_pod_becomes_ready_and_unready_by_annotations() {
    let fleet = Fleet::of(1).await;
    let started = Instant::now();
    let pod = fleet.create(acting("p", &[("ready", "30s")])).await;
    let running = fleet.until_is(&pod, "runs", |pod| pod["status"]["phase"] == "Running").await;
    assert!(!condition::is_true(&running, "Ready"));
    fleet.until_ready(&pod).await;
    let took = started.elapsed();
    assert!((Duration::from_secs(29)..Duration::from_secs(32)).contains(&took), "{took:?}");
    fleet.annotate(&pod, "ready", Some("false")).await;
    fleet.until_is(&pod, "unready", |pod| !condition::is_true(pod, "Ready")).await;
    fleet.until_event(&pod, "Unhealthy").await;
    fleet.annotate(&pod, "ready", None).await;
    fleet.until_ready(&pod).await;
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_loop_backs_off_and_ends_with_its_annotation() {
    let fleet = Fleet::of(1).await;
    let pod = fleet.create(acting("p", &[("crash-after", "0s"), ("exit-code", "42")])).await;
    let restarts = |count: i64| {
        move |pod: &object::Value| {
            word(pod) == "CrashLoopBackOff" && pod["status"]["containerStatuses"][0]["restartCount"] == count
        }
    };
    let mut before = Instant::now();
    fleet.until_is(&pod, "crashes", restarts(1)).await;
    for (count, wait) in [(2, 10), (3, 20), (4, 40), (5, 80), (6, 160), (7, 300), (8, 300)] {
        let crashed = fleet.until_is(&pod, "crashes again", restarts(count)).await;
        assert_eq!(crashed["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"], 42);
        let took = before.elapsed().as_secs();
        assert!((wait - 1..wait + 3).contains(&took), "restart {count} after {took} s");
        before = Instant::now();
    }
    fleet.until_event(&pod, "BackOff").await;
    fleet.annotate(&pod, "crash-after", None).await;
    let mended = fleet.until_ready(&pod).await;
    assert_eq!(mended["status"]["containerStatuses"][0]["restartCount"], 9);
    assert!(before.elapsed() < Duration::from_secs(2), "at once");
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn images_fail_pods_fail_and_pods_are_evicted() {
    let fleet = Fleet::of(1).await;
    let image = fleet.create(acting("image", &[("image-pull", "error")])).await;
    fleet.until_is(&image, "error", |pod| word(pod) == "ErrImagePull").await;
    fleet.until_is(&image, "back-off", |pod| word(pod) == "ImagePullBackOff").await;
    fleet.until_is(&image, "error again", |pod| word(pod) == "ErrImagePull").await;
    fleet.until_event(&image, "Failed").await;
    fleet.annotate(&image, "image-pull", None).await;
    fleet.until_ready(&image).await;
    let cases =
        [("fail-after", "Failed", ""), ("succeed-after", "Succeeded", ""), ("evict-after", "Failed", "Evicted")];
    for (annotation, phase, reason) in cases {
        let pod = fleet.create(acting(annotation, &[(annotation, "10s")])).await;
        fleet.until_ready(&pod).await;
        let ended = fleet.until_is(&pod, phase, |pod| pod["status"]["phase"] == phase).await;
        assert_eq!(ended.text(&["status", "reason"]), reason);
        assert!(!condition::is_true(&ended, "Ready"));
        fleet.delete(&pod, "").await;
        fleet.until_gone(&pod).await;
    }
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn termination_takes_its_time_or_never_ends() {
    let fleet = Fleet::of(1).await;
    for (wait, most) in [("10s", 10), ("1h", 30)] {
        let pod = fleet.create(acting("slow", &[("terminate-after", wait)])).await;
        fleet.until_ready(&pod).await;
        let asked = Instant::now();
        fleet.delete(&pod, "").await;
        fleet.until_event(&pod, "Killing").await;
        fleet.until_gone(&pod).await;
        let took = asked.elapsed().as_secs();
        assert!((most - 1..=most + 1).contains(&took), "{wait}: {took}");
    }
    let stuck = fleet.create(acting("stuck", &[("terminate-after", "never")])).await;
    fleet.until_ready(&stuck).await;
    fleet.delete(&stuck, "").await;
    fleet.pass(1000).await;
    assert!(fleet.now(&stuck).await.is_some(), "it hangs");
    fleet.annotate(&stuck, "terminate-after", None).await;
    fleet.until_gone(&stuck).await;
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn invalid_annotations_are_reported_once_and_ignored() {
    let fleet = Fleet::of(1).await;
    let pod = fleet.create(acting("p", &[("ready", "perhaps")])).await;
    fleet.until_ready(&pod).await;
    let event = fleet.until_event(&pod, "InvalidSimulation").await;
    assert_eq!(event["type"], "Warning");
    assert_eq!(
        event["message"],
        "annotation \"sim.mainstay.dev/ready\" is \"perhaps\", but must be \"true\", \"false\" or a duration like \"30s\"; it is ignored"
    );
    fleet.merge(&pod, json!({"metadata": {"labels": {"a": "b"}}})).await;
    fleet.pass(60).await;
    assert_eq!(fleet.until_event(&pod, "InvalidSimulation").await["count"], 1);
    let node = fleet.annotate(&node_named(0), "down", Some("maybe")).await;
    fleet.until_event(&node, "InvalidSimulation").await;
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_down_does_nothing_until_it_is_up() {
    let fleet = Fleet::of(1).await;
    let runs = fleet.create(pod("default", "runs")).await;
    fleet.until_ready(&runs).await;
    fleet.annotate(&node_named(0), "down", Some("true")).await;
    fleet.pass(15).await;
    fleet.requests.take().await;
    fleet.delete(&runs, "").await;
    let waits = fleet.create(pod("default", "waits")).await;
    fleet.until_is(&waits, "bound even so", |pod| pod["spec"]["nodeName"] == "simulated-0").await;
    fleet.pass(300).await;
    let asked = fleet.requests.take().await;
    let of_node: Vec<_> = asked.iter().filter(|asked| &*asked.account == "system:node:simulated-0").collect();
    assert!(of_node.is_empty(), "{of_node:?}");
    assert!(fleet.now(&runs).await.is_some());
    fleet.annotate(&node_named(0), "down", None).await;
    fleet.until_gone(&runs).await;
    fleet.until_ready(&waits).await;
    fleet.stop().await;
}

/// Annotations of a pod affect that pod only: a user who may create pods must not stop the pods of others on
/// a shared node.
#[tokio::test(start_paused = true)]
async fn no_annotation_of_a_pod_takes_its_node_down() {
    let fleet = Fleet::of(1).await;
    let bystander = fleet.create(pod("default", "bystander")).await;
    fleet.until_ready(&bystander).await;
    let attacker = fleet.create(acting("attacker", &[("node-down", "true"), ("down", "true")])).await;
    fleet.until_ready(&attacker).await;
    fleet.until_event(&attacker, "InvalidSimulation").await;
    fleet.delete(&bystander, "").await;
    fleet.until_gone(&bystander).await;
    fleet.pass(60).await;
    let node = fleet.now(&node_named(0)).await.expect("the node is registered");
    assert!(condition::is_true(&node, "Ready"), "{node}");
    fleet.stop().await;
}
