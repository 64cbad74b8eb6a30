//! Claim templates updated in place with errors: T11, T12, T18.

use crate::sets::*;
use crate::storage::*;
use crate::world::*;
use object::access::{Access, uid};
use object::{Value, json};
use std::time::Duration;

/// Waits until the update of a claim is refused for this reason, and checks that nothing else happened.
async fn until_blocked(world: &World, set: &Value, claim: &str, why: &str) {
    let message = format!("Update Claim {claim} for Pod {} in StatefulSet web failed error: ", &claim["data-".len()..]);
    world.until_told(set, "FailedUpdate", &message).await;
    let told = world.told(set).await;
    let told = told.iter().find(|(reason, text)| reason == "FailedUpdate" && text.starts_with(&message)).unwrap();
    assert!(told.1.contains(why) && told.1.contains("OnClaimDelete"), "{told:?}");
    let said = |set: &Value| {
        let said = object::condition::get(set, "VolumeClaimsUpdated");
        said.is_some_and(|it| it.text(&["reason"]) == "ClaimUpdateFailed" && it.text(&["message"]).contains(why))
    };
    let seen = world.until_is(set, "the condition says it too", said).await;
    assert_eq!(seen.int(&["status", "updatedReplicas"]).unwrap_or(0), 0);
    assert_eq!(seen["status"]["readyReplicas"], seen["spec"]["replicas"], "pods keep running");
}

/// T11: one cause after the other; each blocks the rollout, does not block scaling, and the rollout continues
/// when it is removed.
#[tokio::test(start_paused = true)]
async fn t11_t18_a_class_that_does_not_allow_it() {
    let (world, _kubelet, _storage, set) = World::settled(in_place(2)).await;
    let uids = world.pod_uids().await;
    world.merge(&growing_class(), json!({"allowVolumeExpansion": false})).await;
    let set = world.grow(&set, "20Gi").await;
    until_blocked(&world, &set, "data-web-1", "the storageclass that provisions the pvc must support resize").await;
    assert_eq!(world.size("data-web-0").await, "10Gi", "the rollout stops there");
    // Scaling is not blocked: a new claim needs no expansion.
    let set = world.change(&set, json!({"replicas": 3})).await;
    world.until_is(&set, "scaled", |set| set["status"]["readyReplicas"] == 3).await;
    assert_eq!(world.size("data-web-2").await, "20Gi");
    let set = world.change(&set, json!({"replicas": 2})).await;
    world.until_pods(&["web-0", "web-1"]).await;
    world.merge(&growing_class(), json!({"allowVolumeExpansion": true})).await;
    world.until_done(&set).await;
    assert_eq!(world.pod_uids().await, uids);
    assert_eq!(world.size("data-web-0").await, "20Gi");
    world.stop().await;
}

/// Two replicas with two claims each: `data` of a class that grows, and `logs` of the class `fixed`, which does not.
async fn with_a_fixed_class() -> (World, crate::kubelet::Kubelet, Storage, Value) {
    let (world, kubelet) = World::lively().await;
    let storage = Storage::start(&world);
    world.create(growing_class()).await;
    let mut fixed = growing_class();
    fixed["metadata"]["name"] = json!("fixed");
    fixed["allowVolumeExpansion"] = json!(false);
    world.create(fixed).await;
    let mut set = in_place(2);
    let mut logs = set["spec"]["volumeClaimTemplates"][0].clone();
    logs["metadata"]["name"] = json!("logs");
    logs["spec"]["storageClassName"] = json!("fixed");
    set["spec"]["volumeClaimTemplates"].as_array_mut().unwrap().push(logs);
    let set = world.create(set).await;
    let set = world.until_done(&set).await;
    (world, kubelet, storage, set)
}

/// Both claim templates ask for this much.
async fn grow_both(world: &World, set: &Value, size: &str) -> Value {
    let mut templates = set["spec"]["volumeClaimTemplates"].clone();
    for template in templates.as_array_mut().unwrap() {
        template["spec"]["resources"]["requests"]["storage"] = json!(size);
    }
    world.change(set, json!({"volumeClaimTemplates": templates})).await
}

/// T11, T17: one of two classes does not allow growth, so no claim of the replica grows; it goes on by itself when cured.
#[tokio::test(start_paused = true)]
async fn t11_t17_no_claim_grows_beside_one_that_cannot() {
    let (world, _kubelet, _storage, set) = with_a_fixed_class().await;
    let uids = world.pod_uids().await;
    let set = grow_both(&world, &set, "20Gi").await;
    let message = "Update Claim logs-web-1 for Pod web-1 in StatefulSet web failed error: ";
    world.until_told(&set, "FailedUpdate", message).await;
    let blocks = |set: &Value| {
        let said = object::condition::get(set, "VolumeClaimsUpdated").map_or("", |it| it.text(&["message"]));
        said.starts_with("claim logs-web-1 of pod web-1 cannot be updated: ")
            && said.contains("must support resize (the claim's storage class is fixed); no claim of the pod is changed")
    };
    world.until_is(&set, "the condition names claim and class", blocks).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    for claim in world.claims().await {
        assert_eq!(world.size(&claim).await, "10Gi", "{claim}");
    }
    assert_eq!(world.applies().await.iter().filter(|claim| claim.ends_with("-web-1")).count(), 2, "their creation");
    let fixed = world.get("/apis/storage.k8s.io/v1/storageclasses/fixed").await.expect("the class");
    world.merge(&fixed, json!({"allowVolumeExpansion": true})).await;
    world.until_done(&set).await;
    for claim in world.claims().await {
        assert_eq!(world.size(&claim).await, "20Gi", "{claim}");
    }
    assert_eq!(world.pod_uids().await, uids);
    world.stop().await;
}

/// T11: a later replica has an older claim of another class: none of its claims grows.
#[tokio::test(start_paused = true)]
async fn t11_an_older_claim_of_another_class_stops_its_replica_whole() {
    let (world, _kubelet) = World::lively().await;
    let _storage = Storage::start(&world);
    world.create(growing_class()).await;
    let mut older = claim("default", "logs-web-0");
    older["spec"]["storageClassName"] = json!("older");
    older["spec"]["resources"]["requests"]["storage"] = json!("10Gi");
    world.create(older).await;
    let mut set = with(in_place(2), json!({"volumeClaimUpdatePolicy": "OnClaimDelete"}));
    let mut logs = set["spec"]["volumeClaimTemplates"][0].clone();
    logs["metadata"]["name"] = json!("logs");
    set["spec"]["volumeClaimTemplates"].as_array_mut().unwrap().push(logs);
    let set = world.create(set).await;
    let set = world.until_done(&set).await;
    let set = grow_both(&world, &set, "20Gi").await;
    let set = world.change(&set, json!({"volumeClaimUpdatePolicy": "InPlace"})).await;
    world.until_told(&set, "FailedUpdate", "Update Claim logs-web-0 for Pod web-0").await;
    world.until_told(&set, "FailedUpdate", "no claim of the pod is changed").await;
    let sizes = [world.size("data-web-0").await, world.size("logs-web-0").await, world.size("data-web-1").await];
    assert_eq!(sizes, ["10Gi", "10Gi", "20Gi"]);
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t11_a_quota_for_storage() {
    let (world, _kubelet, _storage, set) = World::settled(in_place(2)).await;
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"namespace": "default", "name": "storage"},
        "spec": {"hard": {"requests.storage": "25Gi"}},
    });
    let quota = world.create(quota).await;
    let set = world.grow(&set, "20Gi").await;
    until_blocked(&world, &set, "data-web-1", "exceeded quota").await;
    world.merge(&quota, json!({"spec": {"hard": {"requests.storage": "40Gi"}}})).await;
    world.until_done(&set).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t11_a_quota_for_a_class() {
    let mut set = in_place(2);
    set["spec"]["volumeClaimTemplates"][0]["spec"]["volumeAttributesClassName"] = json!("silver");
    let (world, _kubelet, _storage, set) = World::settled(set).await;
    let scope = json!({"matchExpressions": [
        {"scopeName": "VolumeAttributesClass", "operator": "In", "values": ["gold"]},
    ]});
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"namespace": "default", "name": "gold"},
        "spec": {"hard": {"persistentvolumeclaims": "0"}, "scopeSelector": scope},
    });
    let quota = world.create(quota).await;
    let set = world.change_template(&set, |it| it["spec"]["volumeAttributesClassName"] = json!("gold")).await;
    until_blocked(&world, &set, "data-web-1", "exceeded quota").await;
    world.delete(&quota, "").await;
    world.until_done(&set).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t11_admission_refuses() {
    let (world, _kubelet, _storage, set) = World::settled(in_place(2)).await;
    let limit = json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": {"namespace": "default", "name": "small"},
        "spec": {"limits": [{"type": "PersistentVolumeClaim", "max": {"storage": "15Gi"}}]},
    });
    let limit = world.create(limit).await;
    let set = world.grow(&set, "20Gi").await;
    until_blocked(&world, &set, "data-web-1", "maximum storage usage per PersistentVolumeClaim is 15Gi").await;
    world.delete(&limit, "").await;
    world.until_done(&set).await;
    world.stop().await;
}

/// T11: a claim created by others differs in an immutable field; T12: a user replaces it.
#[tokio::test(start_paused = true)]
async fn t11_t12_a_claim_that_cannot_be_updated_to_the_template() {
    let (world, _kubelet) = World::lively().await;
    let storage = Storage::start(&world);
    world.create(growing_class()).await;
    let mut other = claim("default", "data-web-1");
    other["spec"]["storageClassName"] = json!("other");
    other["spec"]["resources"]["requests"]["storage"] = json!("10Gi");
    world.create(other).await;
    let set = world.create(with(in_place(2), json!({"volumeClaimUpdatePolicy": "OnClaimDelete"}))).await;
    world.until_done(&set).await;
    let set = world.change(&set, json!({"volumeClaimUpdatePolicy": "InPlace"})).await;
    until_blocked(&world, &set, "data-web-1", "spec is immutable").await;
    let claim = world.claim("data-web-1").await;
    world.delete(&claim, "").await;
    world.delete(&world.the_pod("web-1").await, "").await;
    world.until_gone(&claim).await;
    world.until_done(&set).await;
    assert_eq!(world.claim("data-web-1").await["spec"]["storageClassName"], "growing");
    drop(storage);
    world.stop().await;
}

/// T12: the policy is set back: a change of claims alone restarts nothing, and claims are no longer written.
#[tokio::test(start_paused = true)]
async fn t12_back_to_on_claim_delete() {
    let (world, _kubelet, _storage, set) = World::settled(in_place(2)).await;
    let uids = world.pod_uids().await;
    world.merge(&growing_class(), json!({"allowVolumeExpansion": false})).await;
    let set = world.grow(&set, "20Gi").await;
    until_blocked(&world, &set, "data-web-1", "must support resize").await;
    let set = world.change(&set, json!({"volumeClaimUpdatePolicy": "OnClaimDelete"})).await;
    let done = world.until_done(&set).await;
    assert_eq!(world.pod_uids().await, uids);
    assert_eq!(world.size("data-web-1").await, "10Gi");
    assert!(!done.has(&["status", "conditions"]), "{}", done["status"]);
    // With a new image pods are rolled out as usual.
    let set = world.change(&set, json!({"volumeClaimUpdatePolicy": "InPlace"})).await;
    until_told_again(&world, &set).await;
    let set = world.set_image(&set, "y").await;
    let set = world.change(&set, json!({"volumeClaimUpdatePolicy": "OnClaimDelete"})).await;
    world.until_done(&set).await;
    assert_eq!(world.size("data-web-1").await, "10Gi");
    assert!(world.pod_uids().await.iter().all(|uid| !uids.contains(uid)));
    world.stop().await;
}

async fn until_told_again(world: &World, set: &Value) {
    let refused = |set: &Value| {
        let said = object::condition::get(set, "VolumeClaimsUpdated");
        said.is_some_and(|it| it.text(&["reason"]) == "ClaimUpdateFailed")
    };
    world.until_is(set, "refused again", refused).await;
}

/// T12: a user makes a claim that never becomes ready smaller again, or deletes its pod.
#[tokio::test(start_paused = true)]
async fn t12_a_claim_or_a_pod_is_fixed_by_hand() {
    let (world, _kubelet, storage, set) = World::settled(in_place(2)).await;
    storage.leave(&["data-web-0", "data-web-1"]);
    let set = world.grow(&set, "20Gi").await;
    let claim = world.until_size("data-web-1", "20Gi").await;
    // The request is reduced to slightly more than the capacity, as the server requires.
    world.merge(&claim, json!({"spec": {"resources": {"requests": {"storage": "11Gi"}}}})).await;
    world.provide("data-web-1").await;
    world.until_size("data-web-0", "20Gi").await;
    assert_eq!(world.size("data-web-1").await, "11Gi", "it is not made larger again");
    let pod = world.the_pod("web-0").await;
    world.delete(&pod, "").await;
    world.until_done(&set).await;
    assert_ne!(uid(&world.the_pod("web-0").await), uid(&pod));
    world.stop().await;
}

/// T12: the template is changed again while a claim is stuck.
#[tokio::test(start_paused = true)]
async fn t12_the_template_is_changed_again() {
    let (world, _kubelet, storage, set) = World::settled(in_place(2)).await;
    let uids = world.pod_uids().await;
    storage.leave(&["data-web-1"]);
    let set = world.change_template(&set, |it| it["spec"]["volumeAttributesClassName"] = json!("bad")).await;
    let bad = world
        .until_is(&claim("default", "data-web-1"), "asked for", |it| it["spec"]["volumeAttributesClassName"] == "bad")
        .await;
    world.set_status(&bad, json!({"conditions": [{
        "type": "ModifyVolumeError", "status": "True", "message": "no such thing", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]})).await;
    world.until_told(&set, "ClaimNotReady", "(ModifyVolumeError: no such thing); the pod keeps running").await;
    let set = world.change_template(&set, |it| it["spec"]["volumeAttributesClassName"] = json!("good")).await;
    world
        .until_is(&claim("default", "data-web-1"), "asked again", |it| {
            it["spec"]["volumeAttributesClassName"] == "good"
        })
        .await;
    storage.resume();
    world.provide("data-web-1").await;
    world.until_done(&set).await;
    assert_eq!(world.pod_uids().await, uids);
    assert_eq!(world.claim("data-web-0").await["spec"]["volumeAttributesClassName"], "good");
    world.stop().await;
}

/// T11: a failure is retried with backoff, and reported a few times.
#[tokio::test(start_paused = true)]
async fn t11_failures_are_tried_again_with_pauses() {
    let (world, _kubelet, _storage, set) = World::settled(in_place(2)).await;
    world.merge(&growing_class(), json!({"allowVolumeExpansion": false})).await;
    let set = world.grow(&set, "20Gi").await;
    until_blocked(&world, &set, "data-web-1", "must support resize").await;
    world.requests.take().await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    let asked = world.requests.take().await;
    let ours = |asked: &&Asked| &*asked.account == SETS;
    let tries = asked.iter().filter(ours).filter(|asked| asked.path.contains("fieldManager")).count();
    assert!((10..60).contains(&tries), "{tries} tries in ten minutes");
    let statuses = asked.iter().filter(ours).filter(|asked| asked.path.ends_with("/status")).count();
    assert!(statuses <= 1, "the status is written {statuses} times, though nothing changes");
    world.stop().await;
}
