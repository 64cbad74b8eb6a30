//! Scenarios K: the volumes of a StatefulSet's claims, with a real driver.

use crate::pairs::*;
use crate::storage::*;
use crate::world::*;
use object::access::{Access, terminating, uid};
use object::{Value, json};

const SETS: &str = "statefulset-controller";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";

/// What happens to a set's claims.
#[derive(Clone, Copy, Debug)]
struct Case {
    when_deleted: &'static str,
    /// The policy changes to this before the set is deleted.
    becomes: Option<&'static str>,
    /// How the set is deleted.
    propagation: &'static str,
    claims_stay: bool,
    pods_stay: bool,
}

fn set_with_claims(when_deleted: &str, when_scaled: &str) -> Value {
    let mut set = stateful_set("default", "web", 2);
    set["spec"]["podManagementPolicy"] = json!("Parallel");
    let policy = json!({"whenDeleted": when_deleted, "whenScaled": when_scaled});
    set["spec"]["persistentVolumeClaimRetentionPolicy"] = policy;
    let spec = claim_of("data", "c")["spec"].clone();
    set["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": spec}]);
    set
}

async fn claims(world: &World) -> Vec<Value> {
    world.get(CLAIMS).await.expect("a list").items(&["items"]).to_vec()
}

/// A test cluster with a set of two replicas whose claims are bound.
async fn with_set(when_deleted: &str, when_scaled: &str) -> (World, Storage, Value) {
    let (world, storage) = world_with(options(), &format!("{},{GC},{SETS}", everything())).await;
    world.create(class("c", "Delete", json!({}))).await;
    let set = world.create(set_with_claims(when_deleted, when_scaled)).await;
    world.until("claims are bound", || async { are_bound(&claims(&world).await).then_some(()) }).await;
    (world, storage, set)
}

fn are_bound(claims: &[Value]) -> bool {
    claims.len() == 2 && claims.iter().all(|claim| phase(claim) == "Bound")
}

async fn scale(world: &World, set: &Value, replicas: usize) {
    world.merge(set, json!({"spec": {"replicas": replicas}})).await;
}

/// The pod or claim of the second replica.
fn second(kind: &str) -> Value {
    let name = if kind == "Pod" { "web-1" } else { "data-web-1" };
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"namespace": "default", "name": name}})
}

/// K1, K2, K3, K4, K17: in whichever way a set is deleted, its claims, PVs and volumes are either all deleted
/// or all kept.
#[tokio::test(flavor = "multi_thread")]
async fn k1_k2_k3_k4_k17_volumes_are_deleted_with_their_set_or_kept() {
    let case = |when_deleted, becomes, propagation, claims_stay, pods_stay| Case {
        when_deleted,
        becomes,
        propagation,
        claims_stay,
        pods_stay,
    };
    for case in [
        case("Delete", None, "Background", false, false),
        case("Delete", None, "Foreground", false, false),
        case("Delete", None, "Orphan", true, true),
        case("Retain", None, "Background", true, false),
        case("Delete", Some("Retain"), "Background", true, false),
    ] {
        let (world, storage, set) = with_set(case.when_deleted, "Retain").await;
        let is_owned = |claim: &Value| !claim.items(&["metadata", "ownerReferences"]).is_empty();
        assert!(
            claims(&world).await.iter().all(|claim| is_owned(claim) == (case.when_deleted == "Delete")),
            "{case:?}"
        );
        if let Some(policy) = case.becomes {
            let policy = json!({"spec": {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": policy}}});
            world.merge(&set, policy).await;
            let are_free = async || !claims(&world).await.iter().any(is_owned);
            world.until("claims are let go", || async { are_free().await.then_some(()) }).await;
        }
        world.delete(&set, case.propagation).await;
        world.until_gone(&set).await;
        if case.claims_stay {
            // The collector has handled all earlier writes.
            world.settle().await;
            let left = claims(&world).await;
            assert!(are_bound(&left) && !left.iter().any(is_owned), "{case:?}: {left:?}");
            assert_eq!(storage.driver.volumes().len(), 2, "{case:?}");
        } else {
            let are_gone = async || handles(&world).await.is_empty() && claims(&world).await.is_empty();
            world.until(&format!("{case:?}"), || async { are_gone().await.then_some(()) }).await;
            assert_eq!(storage.driver.volumes(), [], "{case:?}");
        }
        let pods = if case.pods_stay { 2 } else { 0 };
        let has_pods = async || world.names("/api/v1/namespaces/default/pods").await.len() == pods;
        world.until(&format!("{case:?}: {pods} pods"), || async { has_pods().await.then_some(()) }).await;
        world.stop().await;
    }
}

/// K6: a replica created again while its predecessor's claim is being removed waits for that, and starts with
/// a new volume.
#[tokio::test(flavor = "multi_thread")]
async fn k6_a_replica_created_again_gets_a_new_volume() {
    let (world, storage, set) = with_set("Retain", "Delete").await;
    let held = world.now(&second("PersistentVolumeClaim")).await.expect("its claim");
    let finalizers = json!(["kubernetes.io/pvc-protection", "example.com/held"]);
    world.merge(&held, json!({"metadata": {"finalizers": finalizers}})).await;
    let old = storage.handles();
    scale(&world, &set, 1).await;
    world.until_is(&held, "the claim goes", terminating).await;
    world.until_gone(&second("Pod")).await;
    scale(&world, &set, 2).await;
    let is_seen = |set: &Value| set["status"]["observedGeneration"] == set["metadata"]["generation"];
    world.until_is(&set, "the set is looked at", is_seen).await;
    assert!(world.now(&second("Pod")).await.is_none(), "it waits");
    world.merge(&held, json!({"metadata": {"finalizers": null}})).await;
    world.until_gone(&held).await;
    world.until("the pod is created again", || async { world.now(&second("Pod")).await }).await;
    world.until("claims are bound", || async { are_bound(&claims(&world).await).then_some(()) }).await;
    world.until_gone(&volume(held.text(&["spec", "volumeName"]))).await;
    assert_eq!(storage.handles().intersection(&old).count(), 1, "one is as before, one is new");
    assert_eq!(storage.driver.volumes().len(), 2);
    world.stop().await;
}

/// K7: a claim with another controller is kept with its volume, and this is reported.
#[tokio::test(flavor = "multi_thread")]
async fn k7_a_claim_with_another_controller_keeps_its_volume() {
    let (world, storage, set) = with_set("Retain", "Delete").await;
    let other = world.create(config_map("default", "other")).await;
    let mut reference = reference(&other, false);
    reference["controller"] = json!(true);
    world.merge(&second("PersistentVolumeClaim"), json!({"metadata": {"ownerReferences": [reference]}})).await;
    scale(&world, &set, 1).await;
    world.until_gone(&second("Pod")).await;
    world.until_event(&set, "ConflictingController").await;
    world.settle().await;
    assert!(are_bound(&claims(&world).await));
    assert_eq!(storage.driver.volumes().len(), 2);
    world.stop().await;
}

/// T5, T6, T7: templates that grow in place reach the driver, replica by replica, and no pod is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn templates_that_grow_in_place_reach_the_driver() {
    let (world, storage, set) = with_set("Retain", "Retain").await;
    let pods = async || world.get("/api/v1/namespaces/default/pods").await.expect("a list").items(&["items"]).to_vec();
    for pod in pods().await {
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        world.set_status(&pod, json!({"phase": "Running", "conditions": [ready]})).await;
    }
    let uids = async || pods().await.iter().map(|pod| uid(pod).to_owned()).collect::<Vec<_>>();
    let before = uids().await;
    let mut templates = set["spec"]["volumeClaimTemplates"].clone();
    templates[0]["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
    world.merge(&set, json!({"spec": {"volumeClaimTemplates": templates, "volumeClaimUpdatePolicy": "InPlace"}})).await;
    let is_done = |set: &Value| {
        let status = &set["status"];
        status["observedGeneration"] == set["metadata"]["generation"]
            && status["updatedReplicas"] == 2
            && status["currentRevision"] == status["updateRevision"]
    };
    world.until_is(&set, "the rollout ends", is_done).await;
    let sizes: Vec<Value> =
        claims(&world).await.iter().map(|claim| claim["status"]["capacity"]["storage"].clone()).collect();
    assert_eq!(sizes, ["2Gi", "2Gi"]);
    assert_eq!(storage.calls("ControllerExpandVolume").len(), 2);
    assert_eq!(uids().await, before);
    world.stop().await;
}
