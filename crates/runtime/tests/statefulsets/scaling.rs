//! Scaling up and down.

use crate::kubelet::{Kubelet, running};
use crate::sets::*;
use crate::world::*;
use object::access::{Access, uid};
use object::json;
use std::time::Duration;

// E01, E02: up in order, down in reverse, one at a time.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_created_upwards_and_deleted_downwards_one_at_a_time() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(web(1)).await;
    world.until_done(&set).await;
    let set = world.change(&set, json!({"replicas": 4})).await;
    world.until_done(&set).await;
    let set = world.change(&set, json!({"replicas": 0})).await;
    world.until_done(&set).await;
    let mut steps: Vec<Vec<String>> = Vec::new();
    for moment in world.history().await {
        assert!(moment.unready().len() <= 1, "{moment:?}");
        let names: Vec<String> = moment.names().iter().map(ToString::to_string).collect();
        if steps.last() != Some(&names) {
            steps.push(names);
        }
    }
    let sizes: Vec<usize> = steps.iter().map(Vec::len).collect();
    assert_eq!(sizes, [1, 2, 3, 4, 3, 2, 1, 0]);
    let all = ["web-0", "web-1", "web-2", "web-3"];
    for step in steps {
        assert_eq!(step, all[..step.len()]);
    }
    world.stop().await;
}

// E02: the next replica is deleted only when the previous one is removed.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_deleted_only_when_the_one_above_is_removed() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(web(3)).await;
    world.until_done(&set).await;
    let last = world.the_pod("web-2").await;
    world.merge(&last, json!({"metadata": {"finalizers": ["example.com/held"]}})).await;
    world.change(&set, json!({"replicas": 0})).await;
    world.until_is(&last, "goes", object::access::terminating).await;
    world.quiet().await;
    assert_eq!(world.pods().await, ["web-0", "web-1", "web-2"]);
    world.merge(&last, json!({"metadata": {"finalizers": null}})).await;
    world.until_pods(&[]).await;
    world.stop().await;
}

// E03: no replica is added while one is not ready.
#[tokio::test(flavor = "multi_thread")]
async fn scaling_up_waits_for_ready_replicas() {
    let world = World::with(SETS).await;
    let set = world.create(web(1)).await;
    world.make_unready("web-0").await;
    world.change(&set, json!({"replicas": 3})).await;
    world.quiet().await;
    assert_eq!(world.pods().await, ["web-0"]);
    world.make_ready("web-0").await;
    world.until_pods(&["web-0", "web-1"]).await;
    world.stop().await;
}

// E04, E05: one unready replica does not block scaling down, several do.
#[tokio::test(flavor = "multi_thread")]
async fn scaling_down_is_blocked_by_several_unready_replicas() {
    let world = World::with(SETS).await;
    let set = world.create(web(3)).await;
    for pod in ["web-0", "web-1", "web-2"] {
        world.make_ready(pod).await;
    }
    world.until_done(&set).await;
    world.make_unready("web-2").await;
    let set = world.change(&set, json!({"replicas": 2})).await;
    world.until_pods(&["web-0", "web-1"]).await;
    world.make_unready("web-0").await;
    world.make_unready("web-1").await;
    world.change(&set, json!({"replicas": 0})).await;
    world.quiet().await;
    assert_eq!(world.pods().await, ["web-0", "web-1"]);
    world.make_ready("web-0").await;
    world.until_pods(&[]).await;
    world.stop().await;
}

// E08: with Parallel readiness does not matter.
#[tokio::test(flavor = "multi_thread")]
async fn parallel_sets_scale_without_regard_to_readiness() {
    let world = World::with(SETS).await;
    let set = world.create(with(web(2), json!({"podManagementPolicy": "Parallel"}))).await;
    world.until_pods(&["web-0", "web-1"]).await;
    let set = world.change(&set, json!({"replicas": 4})).await;
    world.until_pods(&["web-0", "web-1", "web-2", "web-3"]).await;
    world.change(&set, json!({"replicas": 0})).await;
    world.until_pods(&[]).await;
    world.stop().await;
}

// E09: a replica that is ready but not yet available blocks scaling down.
#[tokio::test(start_paused = true)]
async fn scaling_down_waits_for_availability() {
    let mut world = World::bare().await;
    let clock = world.virtual_time();
    world.start(SETS);
    let set = world.create(with(web(3), json!({"podManagementPolicy": "OrderedReady"}))).await;
    for pod in ["web-0", "web-1", "web-2"] {
        world.play(pod, running(true, &clock())).await;
    }
    let ready = tokio::time::Instant::now();
    world.until_done(&set).await;
    world.change(&set, json!({"minReadySeconds": 30, "replicas": 1})).await;
    world.until_pods(&["web-0"]).await;
    let waited = ready.elapsed();
    assert!(waited > Duration::from_secs(28), "{waited:?}");
    world.stop().await;
}

// E11: new ordinals at the new revision first, then the old ones are rolled out.
#[tokio::test(flavor = "multi_thread")]
async fn scaling_up_with_a_new_template() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(web(2)).await;
    world.until_done(&set).await;
    let containers = json!([{"name": "main", "image": "y"}]);
    let set = world.change(&set, json!({"replicas": 4, "template": {"spec": {"containers": containers}}})).await;
    world.until_done(&set).await;
    for moment in world.history().await {
        assert!(moment.image("web-3").is_none_or(|image| image == "y"), "{moment:?}");
        if moment.image("web-1") == Some("y") {
            assert!(moment.pods.contains_key("web-3"), "the new ordinals come first");
        }
    }
    world.stop().await;
}

// E12: a failed deletion is reported and retried.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_deletion_is_retried() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(web(2)).await;
    world.until_done(&set).await;
    world.faults.refuse_times("DELETE", 2, 500);
    world.change(&set, json!({"replicas": 0})).await;
    world.until_pods(&[]).await;
    world.until_told(&set, "FailedDelete", "Delete Pod web-1 in StatefulSet web failed error").await;
    world.stop().await;
}

// E14, R2: the deletion of a set deletes its pods, and no claim.
#[tokio::test(flavor = "multi_thread")]
async fn the_deletion_of_a_set_deletes_its_pods_and_keeps_its_claims() {
    for policy in ["Background", "Foreground"] {
        let (world, _kubelet) = World::lively().await;
        let set = world.create(web_with_claims(3)).await;
        world.until_done(&set).await;
        world.delete(&set, policy).await;
        world.until_gone(&set).await;
        world.until_pods(&[]).await;
        world.quiet().await;
        assert_eq!(world.claims().await, ["data-web-0", "data-web-1", "data-web-2"]);
        world.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_deleted_and_created_again_gets_new_pods() {
    let (world, _kubelet) = World::lively().await;
    let first = world.create(web_with_claims(2)).await;
    world.until_done(&first).await;
    let pods = [world.the_pod("web-0").await, world.the_pod("web-1").await];
    let claim = world.claim("data-web-0").await;
    world.delete(&first, "Background").await;
    let second = world.create(web_with_claims(2)).await;
    let second = world.until_done(&second).await;
    for pod in &pods {
        assert!(world.now(pod).await.is_none());
    }
    assert_eq!(world.the_pod("web-0").await["metadata"]["ownerReferences"], json!([controlling(&second, true)]));
    assert_eq!(uid(&world.claim("data-web-0").await), uid(&claim), "with Retain it uses the old claims");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scale_subresource_scales_the_set() {
    let world = World::with(SETS).await;
    let _kubelet = Kubelet::start(&world);
    let set = world.create(web(1)).await;
    world.until_done(&set).await;
    let scale = format!("{}/scale", path(&set));
    let patch = json!({"spec": {"replicas": 3}});
    let (code, _) = world.send("PATCH", &scale, "application/merge-patch+json", Some(&patch)).await;
    assert_eq!(code, 200);
    world.until_pods(&["web-0", "web-1", "web-2"]).await;
    world.until_is(&set, "counted", |set| set.int(&["status", "replicas"]) == Some(3)).await;
    world.stop().await;
}
