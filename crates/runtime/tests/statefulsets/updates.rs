//! Rollouts: which replicas change, in which order, and when.

use crate::history::Moment;
use crate::kubelet::{Kubelet, READY_SINCE, running};
use crate::sets::*;
use crate::world::*;
use object::access::{Access, terminating, uid};
use object::{Gates, Value, json};
use std::time::Duration;

fn rolling(block: Value) -> Value {
    json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": block}})
}

/// The images of all pods, in order.
async fn images(world: &World) -> Vec<String> {
    let pods = world.get(PODS).await.expect("a list");
    pods.items(&["items"]).iter().map(|pod| pod["spec"]["containers"][0].text(&["image"]).to_owned()).collect()
}

async fn until_images(world: &World, wanted: &[&str]) {
    world
        .until(&format!("the images are {wanted:?}"), || async { (images(world).await == wanted).then_some(()) })
        .await;
}

/// The order in which pods got an image.
fn order(history: &[Moment], image: &str) -> Vec<String> {
    let mut order: Vec<String> = Vec::new();
    for moment in history {
        for pod in moment.names() {
            if moment.image(pod) == Some(image) && !order.iter().any(|known| known == pod) {
                order.push(pod.to_owned());
            }
        }
    }
    order
}

// F01, F02: from the highest ordinal down, each when the previous one is ready; and back to the existing
// revision.
#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_goes_from_the_highest_ordinal_down_and_can_be_undone() {
    let (world, _kubelet) = World::lively().await;
    let first = world.create(web_with_claims(3)).await;
    let first = world.until_done(&first).await;
    let second = world.set_image(&first, "y").await;
    let second = world.until_done(&second).await;
    let history = world.history().await;
    assert_eq!(order(&history, "y"), ["web-2", "web-1", "web-0"]);
    assert!(history.iter().all(|moment| moment.unready().len() <= 1));
    assert_ne!(first["status"]["updateRevision"], second["status"]["updateRevision"]);
    let third = world.set_image(&second, "x").await;
    let third = world.until_done(&third).await;
    assert_eq!(first["status"]["updateRevision"], third["status"]["updateRevision"], "no new revision");
    let revisions = world.get(REVISIONS).await.expect("a list");
    let mut numbers: Vec<i64> = revisions.items(&["items"]).iter().filter_map(|one| one.int(&["revision"])).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [2, 3], "the first became the third");
    world.stop().await;
}

// F03: no rollout starts while a replica is not ready.
#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_waits_for_ready_replicas() {
    let (world, kubelet) = World::lively().await;
    let set = world.create(web(3)).await;
    world.until_done(&set).await;
    drop(kubelet);
    world.make_unready("web-1").await;
    world.set_image(&set, "y").await;
    world.until_is(&set, "seen", |set| set["status"]["updateRevision"] != set["status"]["currentRevision"]).await;
    world.quiet().await;
    assert_eq!(images(&world).await, ["x", "x", "x"]);
    world.make_ready("web-1").await;
    let _kubelet = Kubelet::start(&world);
    until_images(&world, &["y", "y", "y"]).await;
    world.stop().await;
}

// F04, F05: with OrderedReady, a user must delete a replica stuck at a bad revision; with Parallel it is
// replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_revision_needs_a_user_with_ordered_ready_only() {
    for policy in ["OrderedReady", "Parallel"] {
        let (world, kubelet) = World::lively().await;
        let set = world.create(with(web(3), json!({"podManagementPolicy": policy}))).await;
        world.until_done(&set).await;
        drop(kubelet);
        world.set_image(&set, "bad").await;
        until_images(&world, &["x", "x", "bad"]).await;
        let stuck = world.until_pod("web-2").await;
        world.set_image(&set, "x").await;
        if policy == "OrderedReady" {
            world.quiet().await;
            assert_eq!(images(&world).await, ["x", "x", "bad"]);
            world.delete(&stuck, "").await;
        }
        let _kubelet = Kubelet::start(&world);
        until_images(&world, &["x", "x", "x"]).await;
        world.until_done(&set).await;
        world.stop().await;
    }
}

// F06, F07, F08: replicas below a partition stay at the old revision, also when they are created again.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_allows_a_rollout_in_phases() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(with(web(3), rolling(json!({"partition": 3})))).await;
    let before = world.until_done(&set).await;
    world.set_image(&set, "y").await;
    let held = world.until_is(&set, "seen", |set| {
        set["status"]["updateRevision"] != set["status"]["currentRevision"]
            && set["status"]["observedGeneration"] == set["metadata"]["generation"]
    });
    assert_eq!(held.await["status"]["currentRevision"], before["status"]["currentRevision"]);
    world.quiet().await;
    assert_eq!(images(&world).await, ["x", "x", "x"]);
    world.change(&set, rolling(json!({"partition": 2}))).await;
    until_images(&world, &["x", "x", "y"]).await;
    for name in ["web-0", "web-2"] {
        let pod = world.the_pod(name).await;
        world.delete(&pod, "").await;
        world.until_is(&crate::world::pod("default", name), "another", |now| uid(now) != uid(&pod)).await;
    }
    until_images(&world, &["x", "x", "y"]).await;
    world.change(&set, rolling(json!({"partition": 1}))).await;
    until_images(&world, &["x", "y", "y"]).await;
    world.until_is(&set, "not promoted yet", |set| set["status"]["updatedReplicas"] == 2).await;
    assert_ne!(world.now(&set).await.expect("there")["status"]["currentRevision"], json!(null));
    let set = world.change(&set, rolling(json!({"partition": 0}))).await;
    until_images(&world, &["y", "y", "y"]).await;
    world.until_done(&set).await;
    world.stop().await;
}

// F10: scaling up with a partition.
#[tokio::test(flavor = "multi_thread")]
async fn new_ordinals_above_the_partition_get_the_new_revision() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(with(web(3), rolling(json!({"partition": 2})))).await;
    world.until_done(&set).await;
    let template = json!({"spec": {"containers": [{"name": "main", "image": "y"}]}});
    world.change(&set, json!({"replicas": 5, "template": template})).await;
    until_images(&world, &["x", "x", "y", "y", "y"]).await;
    world.stop().await;
}

// F13: with OnDelete only deleted pods get the new revision.
#[tokio::test(flavor = "multi_thread")]
async fn on_delete_waits_for_the_user() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(with(web(2), json!({"updateStrategy": {"type": "OnDelete"}}))).await;
    world.until_done(&set).await;
    world.set_image(&set, "y").await;
    world.quiet().await;
    assert_eq!(images(&world).await, ["x", "x"]);
    let set = world.change(&set, json!({"replicas": 3})).await;
    until_images(&world, &["x", "x", "y"]).await;
    for name in ["web-0", "web-1"] {
        world.delete(&world.the_pod(name).await, "").await;
    }
    until_images(&world, &["y", "y", "y"]).await;
    world.until_done(&set).await;
    world.stop().await;
}

// F15, F16: never more unavailable than allowed; percentages are rounded down, to at least one.
#[tokio::test(flavor = "multi_thread")]
async fn the_budget_of_unavailable_replicas_is_kept() {
    for (replicas, budget, most) in
        [(6, json!(2), 2), (5, json!("50%"), 2), (5, json!("10%"), 1), (4, json!("100%"), 4)]
    {
        let (world, _kubelet) = World::lively().await;
        let spec = rolling(json!({"maxUnavailable": budget}));
        let set = with(with(web(replicas), spec), json!({"podManagementPolicy": "Parallel"}));
        let set = world.create(set).await;
        world.until_done(&set).await;
        let before = world.history().await.len();
        let set = world.set_image(&set, "y").await;
        world.until_done(&set).await;
        let history = world.history().await;
        let ready = |moment: &Moment| i64::try_from(moment.pods.len() - moment.unready().len()).expect("small");
        let least = history[before..].iter().map(ready).min().expect("a rollout");
        assert!(replicas - least <= most, "{budget}: only {least} of {replicas} were ready");
        world.stop().await;
    }
}

// F15: when one is available again, the next is deleted.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_is_deleted_when_the_budget_allows_it() {
    let (world, kubelet) = World::lively().await;
    let spec = rolling(json!({"maxUnavailable": 2}));
    let set = world.create(with(with(web(6), spec), json!({"podManagementPolicy": "Parallel"}))).await;
    world.until_done(&set).await;
    drop(kubelet);
    world.set_image(&set, "y").await;
    until_images(&world, &["x", "x", "x", "x", "y", "y"]).await;
    world.quiet().await;
    assert_eq!(images(&world).await, ["x", "x", "x", "x", "y", "y"]);
    world.make_ready("web-4").await;
    until_images(&world, &["x", "x", "x", "y", "y", "y"]).await;
    world.stop().await;
}

// F20, F21: terminating and unready replicas use up the budget.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_are_unavailable_for_other_reasons_count() {
    let (world, kubelet) = World::lively().await;
    let set = world.create(with(web(3), json!({"podManagementPolicy": "Parallel"}))).await;
    world.until_done(&set).await;
    let leaving = world.the_pod("web-2").await;
    world.merge(&leaving, json!({"metadata": {"finalizers": ["example.com/held"]}})).await;
    world.delete(&leaving, "").await;
    world.quiet().await;
    world.set_image(&set, "y").await;
    world.quiet().await;
    assert_eq!(images(&world).await, ["x", "x", "x"]);
    drop(kubelet);
    world.stop().await;

    let (world, kubelet) = World::lively().await;
    let set = world.create(with(web(3), rolling(json!({"maxUnavailable": 3})))).await;
    world.until_done(&set).await;
    drop(kubelet);
    world.make_unready("web-0").await;
    world.set_image(&set, "y").await;
    world.quiet().await;
    assert_eq!(images(&world).await, ["x", "x", "x"]);
    world.stop().await;
}

// F22: the next pod is deleted when the previous one is available, not only ready.
#[tokio::test(start_paused = true)]
async fn a_rollout_waits_for_availability() {
    let mut world = World::bare().await;
    let clock = world.virtual_time();
    world.start(SETS);
    let set = world.create(with(web(2), json!({"minReadySeconds": 30}))).await;
    world.play("web-0", running(true, READY_SINCE)).await;
    world.play("web-1", running(true, READY_SINCE)).await;
    world.until_done(&set).await;
    world.set_image(&set, "y").await;
    until_images(&world, &["x", "y"]).await;
    world.play("web-1", running(true, &clock())).await;
    let ready = tokio::time::Instant::now();
    until_images(&world, &["y", "y"]).await;
    assert!(ready.elapsed() > Duration::from_secs(28), "{:?}", ready.elapsed());
    world.stop().await;
}

// F23, F24: changes outside the template restart nothing and create no revision.
#[tokio::test(flavor = "multi_thread")]
async fn other_changes_restart_nothing() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(web(2)).await;
    world.until_done(&set).await;
    let pods = [world.the_pod("web-0").await, world.the_pod("web-1").await];
    let counts = |available: i64| {
        move |set: &Value| {
            set["status"]["availableReplicas"] == available
                && set["status"]["observedGeneration"] == set["metadata"]["generation"]
        }
    };
    let soon = object::write::stamp(jiff::Timestamp::now());
    for pod in &pods {
        world.set_status(pod, running(true, &soon)).await;
    }
    world.change(&set, json!({"minReadySeconds": 3600})).await;
    world.until_is(&set, "none available", counts(0)).await;
    world.change(&set, json!({"minReadySeconds": 0})).await;
    world.until_is(&set, "all available", counts(2)).await;
    world.change(&set, rolling(json!({"partition": 1}))).await;
    world.merge(&set, json!({"metadata": {"annotations": {"a": "b"}}})).await;
    world.quiet().await;
    assert_eq!(world.names(REVISIONS).await.len(), 1);
    for pod in &pods {
        assert!(world.now(pod).await.is_some());
    }
    world.stop().await;
}

// F25: what `kubectl rollout restart` does.
#[tokio::test(flavor = "multi_thread")]
async fn an_annotation_of_the_template_restarts_all() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(web(2)).await;
    let set = world.until_done(&set).await;
    let pod = world.the_pod("web-0").await;
    let annotated = json!({"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}});
    let set = world.change(&set, json!({"template": annotated})).await;
    world.until_done(&set).await;
    assert!(world.now(&pod).await.is_none());
    assert_eq!(world.names(REVISIONS).await.len(), 2);
    world.stop().await;
}

// F28, F29: all old pods are deleted before the first new one is created, also a stuck one.
#[tokio::test(flavor = "multi_thread")]
async fn recreate_never_mixes_revisions() {
    let gates = Gates::default().with("StatefulSetRecreateStrategy", true);
    let mut world = World::gated(gates.clone()).await;
    world.setup.gates = gates;
    world.start(ALL);
    let kubelet = Kubelet::start(&world);
    let set = world.create(with(web_with_claims(3), json!({"updateStrategy": {"type": "Recreate"}}))).await;
    world.until_done(&set).await;
    let claim = world.claim("data-web-0").await;
    world.make_unready("web-0").await;
    let set = world.set_image(&set, "y").await;
    let progress = |status: &'static str| {
        move |set: &Value| object::condition::get(set, "Progressing").is_some_and(|it| it.text(&["status"]) == status)
    };
    world.until_is(&set, "recreated", progress("False")).await;
    let set = world.until_done(&set).await;
    for moment in world.history().await {
        let mut images: Vec<_> = moment.names().iter().filter_map(|pod| moment.image(pod)).collect();
        images.dedup();
        assert!(images.len() <= 1, "{images:?}");
    }
    assert_eq!(uid(&world.claim("data-web-0").await), uid(&claim));
    assert_eq!(object::condition::get(&set, "Progressing").expect("it")["reason"], "RecreateCompleted");
    drop(kubelet);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strategy_with_its_gate_off_is_reported_and_does_nothing() {
    let mut world = World::gated(Gates::default().with("StatefulSetRecreateStrategy", true)).await;
    world.start(SETS);
    let set = world.create(with(web(1), json!({"updateStrategy": {"type": "Recreate"}}))).await;
    world.until_event(&set, "UnknownStrategy").await;
    assert_eq!(world.pods().await, [] as [&str; 0]);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_deleted_in_the_middle_of_a_rollout_is_created_at_the_new_revision() {
    let (world, kubelet) = World::lively().await;
    let set = world.create(web(3)).await;
    world.until_done(&set).await;
    drop(kubelet);
    let set = world.set_image(&set, "y").await;
    until_images(&world, &["x", "x", "y"]).await;
    let old = world.the_pod("web-0").await;
    world.delete(&old, "").await;
    until_images(&world, &["y", "x", "y"]).await;
    assert!(!terminating(&world.the_pod("web-1").await));
    let _kubelet = Kubelet::start(&world);
    world.until_done(&set).await;
    world.stop().await;
}
