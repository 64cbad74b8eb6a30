//! Objects in use are kept: PVs, claims, attribute classes.

use crate::world::*;
use object::access::{Access, terminating};
use object::{Value, condition, json};

const CLAIMS: &str = "persistentvolumeclaim-protection-controller";
const VOLUMES: &str = "persistentvolume-protection-controller";
const CLASSES: &str = "volumeattributesclass-protection-controller";

/// A scheduled pod that uses a claim.
fn user_of(claim: &str, name: &str) -> Value {
    let mut pod = waiting_user_of(claim, name);
    pod["spec"]["nodeName"] = json!("node");
    pod
}

/// A pod without a node that uses a claim.
fn waiting_user_of(claim: &str, name: &str) -> Value {
    let mut pod = pod("default", name);
    pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]);
    pod
}

async fn kill(world: &World, pod: &Value) {
    let force = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
    world.send("DELETE", &path(pod), "application/json", Some(&force)).await;
}

fn unused(claim: &Value) -> (&str, &str) {
    let found = condition::get(claim, "Unused");
    found.map_or(("", ""), |condition| (condition.text(&["status"]), condition.text(&["reason"])))
}

async fn until_unused(world: &World, claim: &Value, want: (&str, &str)) {
    world.until_is(claim, &format!("Unused is {want:?}"), |claim| unused(claim) == want).await;
}

// V2: a PV that is deleted while it is bound is kept until it is not. V1: admission added the finalizer.
#[tokio::test(flavor = "multi_thread")]
async fn v2_a_bound_pv_is_kept_until_it_is_released() {
    let world = World::with(VOLUMES).await;
    let bound = world.create(volume("bound")).await;
    assert_eq!(bound["metadata"]["finalizers"], json!(["kubernetes.io/pv-protection"]));
    world.set_status(&bound, json!({"phase": "Bound"})).await;
    let free = world.create(volume("free")).await;
    world.delete(&bound, "").await;
    world.delete(&free, "").await;
    world.until_gone(&free).await;
    let held = world.now(&bound).await.expect("stays");
    assert!(terminating(&held));
    world.set_status(&bound, json!({"phase": "Released"})).await;
    world.until_gone(&bound).await;
    world.stop().await;
}

// V4, scenario G12: objects older than the admission plugin get their finalizers.
#[tokio::test(flavor = "multi_thread")]
async fn v4_finalizers_that_are_missing_are_added_also_after_failures() {
    let mut world = World::bare().await;
    let strip = json!({"metadata": {"finalizers": ["example.com/held"]}});
    let volume = world.create(volume("old")).await;
    let claim = world.create(claim("default", "old")).await;
    world.merge(&volume, strip.clone()).await;
    world.merge(&claim, strip).await;
    world.faults.refuse_times("PATCH", 5, 500);
    world.start(&format!("{CLAIMS},{VOLUMES}"));
    let want = json!(["example.com/held", "kubernetes.io/pv-protection"]);
    world.until_is(&volume, "protected", |volume| volume["metadata"]["finalizers"] == want).await;
    let want = json!(["example.com/held", "kubernetes.io/pvc-protection"]);
    world.until_is(&claim, "protected", |claim| claim["metadata"]["finalizers"] == want).await;
    world.stop().await;
}

// V2, scenarios H1 and E10: a claim is kept while a scheduled pod uses it.
#[tokio::test(flavor = "multi_thread")]
async fn v2_a_claim_in_use_is_kept_until_its_last_pod_is_removed() {
    let world = World::with(CLAIMS).await;
    let used = world.create(claim("default", "used")).await;
    let free = world.create(claim("default", "free")).await;
    let first = world.create(user_of("used", "first")).await;
    let ended = world.create(user_of("used", "ended")).await;
    world.set_status(&ended, json!({"phase": "Succeeded"})).await;
    let waiting = world.create(waiting_user_of("free", "waiting")).await;
    world.requests.take().await;
    world.delete(&used, "").await;
    world.delete(&free, "").await;
    world.until_gone(&free).await;
    assert!(world.now(&waiting).await.is_some());
    kill(&world, &first).await;
    world.until_gone(&first).await;
    // A terminated pod protects, because its volumes may still be mounted.
    let marker = world.create(claim("default", "marker")).await;
    world.delete(&marker, "").await;
    world.until_gone(&marker).await;
    assert!(terminating(&world.now(&used).await.expect("stays")));
    kill(&world, &ended).await;
    world.until_gone(&used).await;
    let lists = world
        .requests
        .take()
        .await
        .into_iter()
        .filter(|asked| asked.path.starts_with("/api/v1/namespaces/default/pods?"));
    assert!((3..=4).contains(&lists.count()), "one list before each release");
    world.stop().await;
}

// Scenario H4: a pod that replaced another one of the same name protects the claim, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_protected_by_the_next_pod_of_the_same_name() {
    let world = World::with(CLAIMS).await;
    let claim = world.create(claim("default", "data")).await;
    let first = world.create(user_of("data", "web-0")).await;
    kill(&world, &first).await;
    let second = world.create(user_of("data", "web-0")).await;
    world.delete(&claim, "").await;
    let other = world.create(crate::world::claim("default", "other")).await;
    world.delete(&other, "").await;
    world.until_gone(&other).await;
    assert!(world.now(&claim).await.is_some());
    kill(&world, &second).await;
    world.until_gone(&claim).await;
    world.stop().await;
}

// Scenario H6, V4: a list that fails delays releases, and is repeated.
#[tokio::test(flavor = "multi_thread")]
async fn no_claim_is_removed_before_the_server_has_confirmed_that_no_pod_uses_it() {
    let world = World::with(CLAIMS).await;
    world.create(new_namespace("other")).await;
    let (here, there) = (world.create(claim("default", "c")).await, world.create(claim("other", "c")).await);
    // The caches are filled before anything fails.
    let first = world.create(claim("default", "first")).await;
    world.delete(&first, "").await;
    world.until_gone(&first).await;
    world.faults.refuse_times("GET", 3, 500);
    world.requests.take().await;
    world.delete(&here, "").await;
    world.delete(&there, "").await;
    world.until_all_gone(&[here, there]).await;
    let asked = world.requests.take().await;
    let of = |namespace: &str, code: u16| {
        let list = format!("/api/v1/namespaces/{namespace}/pods?");
        asked.iter().filter(|asked| asked.path.starts_with(&list) && asked.code == code).count()
    };
    assert_eq!(of("default", 500) + of("other", 500), 3, "{asked:?}");
    assert_eq!((of("default", 200), of("other", 200)), (1, 1));
    world.stop().await;
}

// Scenario H8.
#[tokio::test(flavor = "multi_thread")]
async fn claims_have_a_condition_whether_they_are_in_use() {
    let world = World::with(CLAIMS).await;
    let claim = world.create(claim("default", "data")).await;
    let bound = std::time::Instant::now();
    world.set_status(&claim, json!({"phase": "Bound"})).await;
    until_unused(&world, &claim, ("True", "NoPodsUsingPVC")).await;
    assert!(bound.elapsed() >= std::time::Duration::from_secs(1), "a pod may be created soon");
    let pod = world.create(waiting_user_of("data", "web-0")).await;
    until_unused(&world, &claim, ("False", "PodUsingPVC")).await;
    world.set_status(&pod, json!({"phase": "Succeeded"})).await;
    until_unused(&world, &claim, ("True", "NoPodsUsingPVC")).await;
    world.stop().await;
}

// Scenario H9: a class that only the status of a claim names is kept.
#[tokio::test(flavor = "multi_thread")]
async fn an_attributes_class_is_kept_while_it_is_used() {
    let world = World::with(CLASSES).await;
    let class = |name: &str| {
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": name},
            "driverName": "example.com", "parameters": {"iops": "1"},
        })
    };
    let (gold, silver) = (world.create(class("gold")).await, world.create(class("silver")).await);
    let claim = world.create(claim("default", "data")).await;
    world.set_status(&claim, json!({"phase": "Bound", "currentVolumeAttributesClassName": "gold"})).await;
    world.delete(&gold, "").await;
    world.delete(&silver, "").await;
    world.until_gone(&silver).await;
    assert!(terminating(&world.now(&gold).await.expect("stays")));
    world.merge(&gold, json!({"metadata": {"labels": {"a": "b"}}})).await;
    world.set_status(&claim, json!({"currentVolumeAttributesClassName": "silver"})).await;
    world.until_gone(&gold).await;
    world.stop().await;
}

/// A claim uses a terminating class, which the controller has not received yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_class_is_released_when_the_server_confirms_that_it_is_unused() {
    let world = World::with(CLASSES).await;
    let gold = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": "gold"},
        "driverName": "example.com", "parameters": {"iops": "1"},
    });
    let gold = world.create(gold).await;
    let is_held = |class: &Value| !class.items(&["metadata", "finalizers"]).is_empty();
    world.until_is(&gold, "it is protected", is_held).await;
    // A later list would contain the claims.
    world.requests.until(|asked| asked.path.starts_with("/api/v1/persistentvolumeclaims?watch"), 1).await;
    world.faults.mute("volumeattributesclass-protection-controller", "/persistentvolumeclaims");
    let data = world.create(claim("default", "data")).await;
    world.set_status(&data, json!({"phase": "Bound", "currentVolumeAttributesClassName": "gold"})).await;
    world.requests.take().await;
    world.delete(&gold, "").await;
    world.requests.until(|asked| asked.path.starts_with("/api/v1/persistentvolumes?"), 1).await;
    assert!(terminating(&world.now(&gold).await.expect("it stays")));
    world.set_status(&data, json!({"currentVolumeAttributesClassName": null})).await;
    world.faults.release();
    world.until_gone(&gold).await;
    world.stop().await;
}

// The roles have no more permissions than needed, and no request is forbidden.
#[tokio::test(flavor = "multi_thread")]
async fn protection_needs_no_more_than_its_roles() {
    let world = World::with(&format!("{CLAIMS},{VOLUMES},{CLASSES}")).await;
    let (volume, claim) = (world.create(volume("v")).await, world.create(claim("default", "c")).await);
    world.set_status(&claim, json!({"phase": "Bound"})).await;
    until_unused(&world, &claim, ("True", "NoPodsUsingPVC")).await;
    world.delete(&volume, "").await;
    world.delete(&claim, "").await;
    world.until_all_gone(&[volume, claim]).await;
    assert!(world.requests.refused().is_empty());
    world.stop().await;
}

/// A pod that uses the claim is created and deleted without events for the controller: the claim is still
/// removed.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_released_when_the_deletion_event_of_its_pod_was_missed() {
    let world = World::with(CLAIMS).await;
    let used = world.create(claim("default", "used")).await;
    let marker = world.create(claim("default", "marker")).await;
    world.delete(&marker, "").await;
    world.until_gone(&marker).await;
    world.faults.mute("pvc-protection-controller", "/pods");
    let user = world.create(user_of("used", "unheard")).await;
    world.requests.take().await;
    world.delete(&used, "").await;
    let pods = "/api/v1/namespaces/default/pods?";
    world.requests.until(|asked| asked.path.starts_with(pods), 1).await;
    kill(&world, &user).await;
    world.until_gone(&user).await;
    // The controller must list, and the list does not contain the pod.
    world.store.compact(world.store.revision()).await.expect("compacted");
    world.faults.cut_watches();
    world.faults.release();
    world.until_gone(&used).await;
    world.stop().await;
}
