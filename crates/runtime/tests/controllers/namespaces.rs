//! The deletion of namespaces.

use crate::world::*;
use futures::future::join_all;
use object::access::{Access, terminating};
use object::{Value, json};
use std::time::{Duration, Instant};

fn condition<'a>(namespace: &'a Value, name: &str) -> (&'a str, &'a str) {
    let found = object::condition::get(namespace, name);
    found.map(|condition| (condition.text(&["status"]), condition.text(&["message"]))).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_content_is_deleted_and_then_the_namespace() {
    let world = World::with(NAMESPACES).await;
    let namespace = world.create(new_namespace("full")).await;
    world.create(definition("Gear", true, &["v1"])).await;
    let mut content = Vec::new();
    for object in [
        config_map("full", "a"),
        secret("full", "a"),
        pod("full", "a"),
        gear("full", "a"),
        stateful_set("full", "a", 3),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": "full", "name": "a"}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "full", "name": "a"}, "spec": {"ports": [{"port": 80}]}}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"namespace": "full", "name": "a"}}),
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"namespace": "full", "name": "a"}}),
        json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"namespace": "full", "name": "a"},
            "involvedObject": {"namespace": "full"}, "reason": "Test", "message": "x", "type": "Normal",
        }),
    ] {
        content.push(world.create(object).await);
    }
    let elsewhere = world.create(secret("default", "a")).await;
    world.delete(&namespace, "").await;
    world.until_gone(&namespace).await;
    for object in &content {
        let listed = world.names(&collection(object)).await;
        assert_eq!(listed, [] as [&str; 0], "{}", path(object));
    }
    assert!(world.now(&elsewhere).await.is_some());
    // The name can be used again, without effects of the old namespace.
    let again = world.create(new_namespace("full")).await;
    world.create(secret("full", "a")).await;
    world.delete(&again, "").await;
    world.until_gone(&again).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_with_finalizers_keep_the_namespace_and_are_reported() {
    let world = World::with(NAMESPACES).await;
    let namespace = world.create(new_namespace("held")).await;
    let holder = world.create(held(config_map("held", "holder"))).await;
    world.create(secret("held", "free")).await;
    world.delete(&namespace, "").await;
    let said = world
        .until_is(&namespace, "says what holds it", |namespace| {
            condition(namespace, "NamespaceFinalizersRemaining").0 == "True"
        })
        .await;
    assert_eq!(said["status"]["phase"], "Terminating");
    assert_eq!(
        condition(&said, "NamespaceFinalizersRemaining").1,
        "Some content in the namespace has finalizers remaining: example.com/held in 1 resource instances"
    );
    assert_eq!(
        condition(&said, "NamespaceContentRemaining"),
        ("True", "Some resources are remaining: configmaps. has 1 resource instances")
    );
    assert_eq!(condition(&said, "NamespaceDeletionContentFailure").0, "False");
    assert_eq!(condition(&said, "NamespaceDeletionDiscoveryFailure").0, "False");
    let (code, refused) = world.try_create(&secret("held", "late")).await;
    assert_eq!(code, 403);
    assert_eq!(
        refused["message"],
        "secrets \"late\" is forbidden: unable to create new content in namespace held because it is being terminated"
    );
    // It waits with few requests: about as often as the time doubles, and only for resources with remaining
    // objects.
    world.requests.take().await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let waiting = world.requests.take().await;
    assert!(waiting.len() < 40, "{} requests: {waiting:?}", waiting.len());
    world.merge(&holder, json!({"metadata": {"finalizers": null}})).await;
    world.until_gone(&namespace).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_have_their_grace_period_and_are_deleted_before_the_rest() {
    let world = World::with(NAMESPACES).await;
    let namespace = world.create(new_namespace("busy")).await;
    let mut running = pod("busy", "running");
    running["spec"]["nodeName"] = json!("node");
    running["spec"]["terminationGracePeriodSeconds"] = json!(600);
    let running = world.create(running).await;
    let mounted = world.create(secret("busy", "mounted")).await;
    world.delete(&namespace, "").await;
    let going = world.until_is(&running, "told to go", terminating).await;
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 600);
    let said = world
        .until_is(&namespace, "says what is left", |namespace| {
            condition(namespace, "NamespaceContentRemaining").0 == "True"
        })
        .await;
    assert!(condition(&said, "NamespaceContentRemaining").1.contains("pods. has 1 resource instances"), "{said}");
    assert!(world.now(&mounted).await.is_some(), "objects that a pod uses are kept until it has stopped");
    let force = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
    world.send("DELETE", &path(&running), "application/json", Some(&force)).await;
    world.until_gone(&namespace).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn some_namespaces_cannot_be_deleted() {
    let world = World::with(NAMESPACES).await;
    for name in ["default", "kube-system", "kube-public"] {
        let (code, refused) = world.delete(&new_namespace(name), "").await;
        assert_eq!(code, 403, "{refused}");
        assert_eq!(refused["message"], format!("namespaces {name:?} is forbidden: this namespace may not be deleted"));
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_with_a_thousand_objects_is_deleted_quickly() {
    let world = World::with("*").await;
    let namespace = world.create(new_namespace("large")).await;
    // A quota is charged for each of them.
    let quota = json!({"hard": {"count/configmaps": "2000"}});
    world
        .create(json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"namespace": "large", "name": "quota"}, "spec": quota,
        }))
        .await;
    for at in 0..10 {
        let batch = (0..100).map(|more| {
            let name = format!("n-{at}-{more}");
            world.create(if at % 2 == 0 { config_map("large", &name) } else { pod("large", &name) })
        });
        join_all(batch).await;
    }
    let started = Instant::now();
    world.delete(&namespace, "").await;
    world.until_gone(&namespace).await;
    let took = started.elapsed();
    println!("a namespace with 1,000 objects went in {took:?}");
    assert!(took < Duration::from_secs(if cfg!(debug_assertions) { 15 } else { 3 }), "{took:?}");
    world.stop().await;
}

/// The controller receives late that the namespace is terminating. By then it is deleted and created again:
/// the new content is kept.
#[tokio::test(flavor = "multi_thread")]
async fn the_content_of_a_recreated_namespace_is_kept() {
    let world = World::with(NAMESPACES).await;
    let namespace = world.create(new_namespace("twice")).await;
    let holds = world.create(held(config_map("twice", "holds"))).await;
    world.delete(&namespace, "").await;
    world.until_is(&holds, "it is told to go", terminating).await;
    // The next read of whether the namespace is still terminating.
    world.faults.answer_late_at("namespace-controller", "/api/v1/namespaces/twice");
    world.merge(&holds, json!({"metadata": {"finalizers": null}})).await;
    world.until_moment("it has asked", || !world.faults.late_read_waits()).await;
    let gone = world.now(&namespace).await.expect("there");
    let mut finalized = gone.clone();
    finalized["spec"]["finalizers"] = json!([]);
    let (code, _) = world.send("PUT", "/api/v1/namespaces/twice/finalize", "application/json", Some(&finalized)).await;
    assert_eq!(code, 200);
    world.until_gone(&namespace).await;
    world.create(new_namespace("twice")).await;
    let kept = world.create(config_map("twice", "kept")).await;
    world.faults.release();
    // It has finished with that when it has emptied another one.
    let other = world.create(new_namespace("other")).await;
    world.create(config_map("other", "content")).await;
    world.delete(&other, "").await;
    world.until_gone(&other).await;
    let found = world.now(&kept).await.expect("it stays");
    assert!(!terminating(&found));
    world.stop().await;
}

/// A kind is served in another version from the moment on in which the controller reads discovery: its
/// objects still exist.
#[tokio::test(flavor = "multi_thread")]
async fn objects_of_a_kind_whose_version_changes_are_not_missed() {
    let world = World::with(NAMESPACES).await;
    let namespace = world.create(new_namespace("changing")).await;
    let kind = world.create(definition("Gear", true, &["v1", "v2"])).await;
    let mut versions = kind["spec"]["versions"].clone();
    versions[1]["served"] = json!(false);
    world.merge(&kind, json!({"spec": {"versions": versions}})).await;
    let holds = world.create(held(gear("changing", "holds"))).await;
    world.faults.answer_late_at("namespace-controller", "/apis");
    world.delete(&namespace, "").await;
    world.until_moment("it has asked", || !world.faults.late_read_waits()).await;
    versions[0]["served"] = json!(false);
    versions[1]["served"] = json!(true);
    world.merge(&kind, json!({"spec": {"versions": versions}})).await;
    world.faults.release();
    let mut now = holds.clone();
    now["apiVersion"] = json!("example.com/v2");
    world.until_is(&now, "it is told to go", terminating).await;
    assert!(world.now(&namespace).await.is_some(), "something is left");
    world.merge(&now, json!({"metadata": {"finalizers": null}})).await;
    world.until_gone(&namespace).await;
    world.stop().await;
}
