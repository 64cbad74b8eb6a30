//! Identity and creation.

use crate::kubelet::{Kubelet, READY_SINCE, running};
use crate::sets::*;
use crate::world::*;
use object::access::{Access, name, uid};
use object::{Value, json};
use std::time::Duration;

// B01, B02: one after the other, each with its identity.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_created_in_order_each_when_the_previous_one_is_ready() {
    let world = World::with(SETS).await;
    let set = world.create(with(web(3), json!({"serviceName": "svc"}))).await;
    for (ordinal, pods) in [&["web-0"][..], &["web-0", "web-1"], &["web-0", "web-1", "web-2"]].iter().enumerate() {
        world.until_pods(pods).await;
        world.quiet().await;
        assert_eq!(world.pods().await, *pods, "no other before this one is ready");
        world.until_is(&set, "counted", |set| set["status"]["replicas"] == ordinal + 1).await;
        world.make_ready(pods[ordinal]).await;
    }
    let set = world.until_done(&set).await;
    let revision = set.text(&["status", "updateRevision"]);
    assert_eq!(
        set["status"],
        json!({
            "observedGeneration": 1, "replicas": 3, "readyReplicas": 3, "availableReplicas": 3, "currentReplicas": 3,
            "updatedReplicas": 3, "currentRevision": revision, "updateRevision": revision, "collisionCount": 0,
        })
    );
    for ordinal in 0..3 {
        let pod = world.the_pod(&format!("web-{ordinal}")).await;
        check_identity(&set, &pod, ordinal);
    }
    world.stop().await;
}

fn check_identity(set: &Value, pod: &Value, ordinal: usize) {
    let metadata = &pod["metadata"];
    assert_eq!(metadata["generateName"], "web-");
    assert_eq!(
        metadata["labels"],
        json!({
            "app": "web",
            "statefulset.kubernetes.io/pod-name": name(pod),
            "apps.kubernetes.io/pod-index": ordinal.to_string(),
            "controller-revision-hash": set.text(&["status", "updateRevision"]),
        })
    );
    assert_eq!(metadata["ownerReferences"], json!([controlling(set, true)]));
    assert_eq!((pod["spec"]["hostname"].as_str(), pod["spec"]["subdomain"].as_str()), (Some(name(pod)), Some("svc")));
}

// B03: the claim exists before the pod that mounts it, and both have events.
#[tokio::test(flavor = "multi_thread")]
async fn claims_come_before_their_pods() {
    let world = World::with(SETS).await;
    let set = world.create(web_with_claims(1)).await;
    world.until_pods(&["web-0"]).await;
    for moment in world.history().await.iter().filter(|moment| moment.pods.contains_key("web-0")) {
        assert!(moment.claims.contains_key("data-web-0"));
    }
    let pod = world.the_pod("web-0").await;
    let volumes = pod.items(&["spec", "volumes"]).iter();
    let data: Vec<&Value> = volumes.filter(|volume| volume["name"] == "data").collect();
    assert_eq!(data[0]["persistentVolumeClaim"]["claimName"], "data-web-0");
    world.until_told(&set, "SuccessfulCreate", "Create Claim data-web-0 Pod web-0 in StatefulSet web success").await;
    world.until_told(&set, "SuccessfulCreate", "Create Pod web-0 in StatefulSet web successful").await;
    let event = world.until_event(&set, "SuccessfulCreate").await;
    assert_eq!((event["type"].as_str(), event["source"]["component"].as_str()), (Some("Normal"), Some(SETS)));
    world.stop().await;
}

// B04: the selector's labels override the template's.
#[tokio::test(flavor = "multi_thread")]
async fn claims_have_the_labels_of_their_template_and_of_the_selector() {
    let world = World::with(SETS).await;
    let mut set = with(web(1), json!({"volumeClaimTemplates": [claim_template("data"), claim_template("log")]}));
    set["spec"]["volumeClaimTemplates"][0]["metadata"]["labels"] = json!({"app": "other", "tier": "disk"});
    world.create(set).await;
    world.until_pods(&["web-0"]).await;
    assert_eq!(world.claim("data-web-0").await["metadata"]["labels"], json!({"app": "web", "tier": "disk"}));
    assert_eq!(world.claim("log-web-0").await["metadata"]["labels"], json!({"app": "web"}));
    world.stop().await;
}

// B06, B12: all at once.
#[tokio::test(flavor = "multi_thread")]
async fn parallel_replicas_do_not_wait_for_each_other() {
    let world = World::with(SETS).await;
    let set = world.create(with(web_with_claims(70), json!({"podManagementPolicy": "Parallel"}))).await;
    world.until("all pods", || async { (world.pods().await.len() == 70).then_some(()) }).await;
    world.until_is(&set, "counted", |set| set["status"]["replicas"] == 70).await;
    let kubelet = Kubelet::start(&world);
    world.until_done(&set).await;
    drop(kubelet);
    world.stop().await;
}

fn quota(hard: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"namespace": "default", "name": "quota"},
        "spec": {"hard": hard},
    })
}

// B07: pods within the quota are created and counted, the rest follows when the quota is raised.
#[tokio::test(start_paused = true)]
async fn a_quota_for_pods_delays_pods_and_is_reported() {
    let world = World::bare().await;
    let quota = world.create(quota(json!({"pods": "2"}))).await;
    let mut world = world;
    world.start(SETS);
    let set = world.create(with(web(4), json!({"podManagementPolicy": "Parallel"}))).await;
    world.until_is(&set, "two of four", |set| set["status"]["replicas"] == 2).await;
    world.until_told(&set, "FailedCreate", "in StatefulSet web failed error: pods \"web-").await;
    world.until_told(&set, "FailedCreate", "exceeded quota: quota").await;
    assert_eq!(world.pods().await.len(), 2);
    world.change(&quota, json!({"hard": {"pods": "9"}})).await;
    world.until_pods(&["web-0", "web-1", "web-2", "web-3"]).await;
    world.stop().await;
}

// B08: without its claim there is no pod; both are reported.
#[tokio::test(start_paused = true)]
async fn a_quota_for_claims_delays_the_pod_until_it_is_raised() {
    let mut world = World::bare().await;
    let quota = world.create(quota(json!({"persistentvolumeclaims": "0"}))).await;
    world.start(SETS);
    let set = world.create(web_with_claims(1)).await;
    let claim = "Create Claim data-web-0 for Pod web-0 in StatefulSet web failed error: persistentvolumeclaims \"data-web-0\" is";
    let pod =
        "Create Pod web-0 in StatefulSet web failed error: failed to create PVC data-web-0: persistentvolumeclaims";
    world.until_told(&set, "FailedCreate", claim).await;
    world.until_told(&set, "FailedCreate", pod).await;
    assert_eq!(world.pods().await, [] as [&str; 0]);
    world.change(&quota, json!({"hard": {"persistentvolumeclaims": "9"}})).await;
    world.until_pods(&["web-0"]).await;
    world.stop().await;
}

// B10, H03: ready is not yet available; only time makes it so.
#[tokio::test(start_paused = true)]
async fn with_min_ready_seconds_the_next_replica_waits_for_availability() {
    let mut world = World::bare().await;
    let clock = world.virtual_time();
    world.start(SETS);
    let set = world.create(with(web(2), json!({"minReadySeconds": 30}))).await;
    world.play("web-0", running(true, &clock())).await;
    let ready = tokio::time::Instant::now();
    world.until_is(&set, "ready", |set| set["status"]["readyReplicas"] == 1).await;
    assert_eq!(world.now(&set).await.expect("there")["status"]["availableReplicas"], 0);
    world.until_pods(&["web-0", "web-1"]).await;
    let waited = ready.elapsed();
    assert!((Duration::from_secs(29)..Duration::from_secs(32)).contains(&waited), "{waited:?}");
    world.until_is(&set, "available", |set| set["status"]["availableReplicas"] == 1).await;
    world.stop().await;
}

// B13: a set without replicas has a revision, too.
#[tokio::test(flavor = "multi_thread")]
async fn no_replicas_still_have_a_revision() {
    let world = World::with(SETS).await;
    let set = world.create(web(0)).await;
    let set = world.until_done(&set).await;
    assert_eq!(world.names(REVISIONS).await, [set.text(&["status", "updateRevision"])]);
    assert_eq!(world.pods().await, [] as [&str; 0]);
    // With 0 replicas a rollout is complete at once.
    let changed = world.set_image(&set, "y").await;
    let done = world.until_done(&changed).await;
    assert_ne!(done["status"]["currentRevision"], set["status"]["currentRevision"]);
    assert_eq!(uid(&done), uid(&set));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn existing_pods_are_counted_when_the_controller_starts() {
    let (mut world, kubelet) = World::lively().await;
    let set = world.create(web_with_claims(2)).await;
    world.until_done(&set).await;
    drop(kubelet);
    let before: Vec<String> =
        [world.the_pod("web-0").await, world.the_pod("web-1").await].map(|pod| uid(&pod).to_owned()).into();
    world.stop_controllers().await;
    let set = world.change(&set, json!({"replicas": 3})).await;
    world.start(ALL);
    world.play("web-2", running(true, READY_SINCE)).await;
    world.until_done(&set).await;
    let after: Vec<String> =
        [world.the_pod("web-0").await, world.the_pod("web-1").await].map(|pod| uid(&pod).to_owned()).into();
    assert_eq!(before, after);
    world.stop().await;
}
