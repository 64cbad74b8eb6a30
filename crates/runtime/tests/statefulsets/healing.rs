//! Replicas that are deleted, fail, or lose their labels or claims.

use crate::kubelet::{Kubelet, running};
use crate::sets::*;
use crate::world::*;
use object::access::{Access, terminating, uid};
use object::json;

// C01: another pod with the same name and the same claim.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_replica_is_created_again_with_its_claim() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(web_with_claims(3)).await;
    world.until_done(&set).await;
    let (pod, claim) = (world.the_pod("web-1").await, world.claim("data-web-1").await);
    world.delete(&pod, "").await;
    world.until_is(&crate::world::pod("default", "web-1"), "another", |now| uid(now) != uid(&pod)).await;
    world.until_done(&set).await;
    assert_eq!(uid(&world.claim("data-web-1").await), uid(&claim));
    world.stop().await;
}

// C02: a terminated pod is replaced, whether it failed or not.
#[tokio::test(flavor = "multi_thread")]
async fn terminated_replicas_are_replaced() {
    for phase in ["Failed", "Succeeded"] {
        let (world, _kubelet) = World::lively().await;
        let set = world.create(web(2)).await;
        world.until_done(&set).await;
        let pod = world.the_pod("web-1").await;
        world.set_status(&pod, json!({"phase": phase, "reason": "Evicted"})).await;
        world.until_gone(&pod).await;
        world.until_told(&set, "SuccessfulDelete", "Delete Pod web-1 in StatefulSet web successful").await;
        world.until_done(&set).await;
        world.stop().await;
    }
}

// C03, C04: a pod kept by a finalizer is deleted once; it is not replaced, and no later pod is created.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_cannot_be_removed_yet_blocks_all_others() {
    let world = World::with(SETS).await;
    let set = world.create(web(1)).await;
    let pod = world.until_pod("web-0").await;
    world.merge(&pod, json!({"metadata": {"finalizers": ["example.com/held"]}})).await;
    world.set_status(&pod, json!({"phase": "Failed"})).await;
    let held = world.until_is(&pod, "terminates", terminating).await;
    world.change(&set, json!({"replicas": 3})).await;
    world.quiet().await;
    let still = world.now(&pod).await.expect("held");
    assert_eq!(still["metadata"]["deletionTimestamp"], held["metadata"]["deletionTimestamp"]);
    assert_eq!(world.pods().await, ["web-0"]);
    let deletions = world.requests.take().await.into_iter().filter(|asked| asked.method == "DELETE");
    assert_eq!(deletions.count(), 1);
    world.merge(&pod, json!({"metadata": {"finalizers": null}})).await;
    world.until_gone(&pod).await;
    world.until_pods(&["web-0"]).await;
    world.quiet().await;
    assert_eq!(world.pods().await, ["web-0"], "not before the new one is ready");
    world.make_ready("web-0").await;
    world.until_pods(&["web-0", "web-1"]).await;
    world.stop().await;
}

// C07, C08: the name label is a replica's identity, the index label is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_name_label_is_restored_and_a_lost_index_only_with_it() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(web(1)).await;
    world.until_done(&set).await;
    let pod = world.the_pod("web-0").await;
    let labels = pod["metadata"]["labels"].clone();
    world.merge(&pod, json!({"metadata": {"labels": {"apps.kubernetes.io/pod-index": null}}})).await;
    world.quiet().await;
    let now = world.now(&pod).await.expect("there");
    assert!(!now.has(&["metadata", "labels", "apps.kubernetes.io/pod-index"]));
    world.merge(&pod, json!({"metadata": {"labels": {"statefulset.kubernetes.io/pod-name": null}}})).await;
    world.until_is(&pod, "labelled again", |pod| pod["metadata"]["labels"] == labels).await;
    world.until_told(&set, "SuccessfulUpdate", "Update Pod web-0 in StatefulSet web successful").await;
    world.stop().await;
}

// C09: a pod that waits for its deleted claim gets a new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_claim_of_a_pending_pod_is_created_again() {
    let world = World::with(SETS).await;
    world.create(web_with_claims(1)).await;
    world.until_pod("web-0").await;
    let claim = world.claim("data-web-0").await;
    world.merge(&claim, json!({"metadata": {"finalizers": null}})).await;
    world.delete(&claim, "").await;
    // The deletion of the claim queues the set: there is no other event.
    world.until_is(&crate::world::claim("default", "data-web-0"), "another", |now| uid(now) != uid(&claim)).await;
    world.stop().await;
}

// C11, C12: a failure is reported and retried.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_of_the_server_is_reported_and_retried() {
    let world = World::with(SETS).await;
    // The revision is the first write.
    world.faults.mishap(SETS, 1, Mishap::Refused(500));
    let set = world.create(web(1)).await;
    world.until_told(&set, "FailedCreate", "Create Pod web-0 in StatefulSet web failed error: out of order").await;
    let _kubelet = Kubelet::start(&world);
    let set = world.until_done(&set).await;
    world.faults.refuse_times("DELETE", 1, 500);
    world.set_image(&set, "y").await;
    world.until_told(&set, "FailedDelete", "Delete Pod web-0 in StatefulSet web failed error: out of order").await;
    world.until_done(&set).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_becomes_unready_is_counted_as_unready() {
    let world = World::with(SETS).await;
    let set = world.create(web(1)).await;
    world.make_ready("web-0").await;
    world.until_done(&set).await;
    world.play("web-0", running(false, crate::kubelet::READY_SINCE)).await;
    world.until_is(&set, "none ready", |set| set.int(&["status", "readyReplicas"]).unwrap_or(0) == 0).await;
    world.stop().await;
}
