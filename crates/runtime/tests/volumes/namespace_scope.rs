//! Controllers restricted to some namespaces, on a cluster with other controllers for the rest.

use crate::pairs::*;
use crate::world::*;
use kit::NamespaceScope;
use object::access::{Access, name, uid};
use object::{Value, json, patch};

/// Objects of another namespace, each in a state in which our controllers would act on it.
struct Theirs {
    /// Of the PV that is bound to a claim that is deleted.
    directory: Directory,
    objects: Vec<Value>,
    claim: Value,
}

impl Theirs {
    async fn make(world: &World) -> Theirs {
        world.create(new_namespace("other")).await;
        let directory = Directory::new();
        let claim = world.create(their_claim("bound")).await;
        let pointed = world
            .merge(
                &claim,
                json!({
                    "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
                    "spec": {"volumeName": "of-claim"},
                }),
            )
            .await;
        world.set_status(&pointed, json!({"phase": "Bound"})).await;
        let to_delete = |directory: &Directory| json!({"hostPath": {"path": directory.path()}, "persistentVolumeReclaimPolicy": "Delete"});
        let going = a_volume("going", "1Gi", json!({"spec": to_claim("gone", "gone")}));
        let volumes = [
            ("Bound", a_volume("of-claim", "1Gi", json!({"spec": to_claim("bound", uid(&claim))}))),
            ("Bound", a_volume("of-nobody", "1Gi", json!({"spec": to_claim("gone", "gone")}))),
            ("Released", going),
            (
                "Pending",
                a_volume("kept", "1Gi", json!({"spec": {"claimRef": {"namespace": "other", "name": "later"}}})),
            ),
        ];
        let mut objects = Vec::new();
        for (phase, volume) in volumes {
            let volume = world.create(patch::merge(&volume, &json!({"spec": to_delete(&directory)}))).await;
            world.set_status(&volume, json!({"phase": phase})).await;
            objects.push(volume);
        }
        // One PV that protection would release, and one that it would protect.
        world.delete(&objects[2], "").await;
        world.merge(&objects[3], json!({"metadata": {"finalizers": null}})).await;
        // A claim that would be bound to the free PV, one that would be released, and one that would be
        // protected.
        objects.push(world.create(their_claim("pending")).await);
        let leaving = world.create(patch::merge(&their_claim("leaving"), &of_class("sets"))).await;
        world.delete(&leaving, "").await;
        let bare = world.create(patch::merge(&their_claim("bare"), &of_class("sets"))).await;
        world.merge(&bare, json!({"metadata": {"finalizers": null}})).await;
        let set = a_set("other", "web");
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"namespace": "other", "name": "budget"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        });
        objects.extend([leaving, bare, world.create(set).await, world.create(budget).await, claim.clone()]);
        Theirs { directory, objects, claim }
    }

    /// All these objects, each with its resourceVersion.
    async fn versions(&self, world: &World) -> Vec<(String, String)> {
        let mut versions = Vec::new();
        for place in [
            "/api/v1/namespaces/other/pods",
            "/api/v1/namespaces/other/persistentvolumeclaims",
            "/api/v1/namespaces/other/events",
            "/apis/apps/v1/namespaces/other/statefulsets",
            "/apis/apps/v1/namespaces/other/controllerrevisions",
            "/apis/policy/v1/namespaces/other/poddisruptionbudgets",
            "/api/v1/persistentvolumes",
        ] {
            let list = world.get(place).await.expect("a list");
            let items = list.items(&["items"]).iter();
            let theirs = items.filter(|item| {
                namespace_of(item) == "other" || item.text(&["spec", "claimRef", "namespace"]) == "other"
            });
            let version = |item: &Value| item.text(&["metadata", "resourceVersion"]).to_owned();
            versions.extend(theirs.map(|item| (format!("{place}/{}", name(item)), version(item))));
        }
        versions
    }
}

fn namespace_of(object: &Value) -> &str {
    object.text(&["metadata", "namespace"])
}

fn their_claim(name: &str) -> Value {
    patch::merge(&claim("other", name), &of_class(""))
}

/// A set of one pod with a claim that no PV here matches.
fn a_set(namespace: &str, name: &str) -> Value {
    let mut set = stateful_set(namespace, name, 1);
    let template = json!({"metadata": {"name": "data"}, "spec": a_claim("data", "1Gi", of_class("sets"))["spec"]});
    set["spec"]["volumeClaimTemplates"] = json!([template]);
    set
}

fn to_claim(name: &str, uid: &str) -> Value {
    json!({"claimRef": {"namespace": "other", "name": name, "uid": uid}})
}

/// Work in our own namespace: a set with claims, and a PV that is reclaimed with its directory. When it is
/// done, anything wrong elsewhere would have happened.
async fn work_of_our_own(world: &World, round: &str) {
    let directory = Directory::new();
    let spec = json!({"hostPath": {"path": directory.path()}, "persistentVolumeReclaimPolicy": "Delete"});
    let volume = world.create(a_volume(&format!("ours-{round}"), "2Gi", json!({"spec": spec}))).await;
    let claim = world.create(a_claim(&format!("ours-{round}"), "2Gi", json!({}))).await;
    until_bound(world, &claim, name(&volume)).await;
    world.delete(&claim, "").await;
    world.until_all_gone(&[claim, volume]).await;
    assert!(!directory.exists());
    let set = world.create(a_set("default", &format!("web-{round}"))).await;
    world.until_is(&set, "the set has its pod", |set| set.int(&["status", "replicas"]) == Some(1)).await;
    settle(world).await;
}

async fn others_are_left_alone(scope: &str) {
    let mut world = World::bare().await;
    world.create(new_namespace("test")).await;
    let theirs = Theirs::make(&world).await;
    let before = theirs.versions(&world).await;
    assert_eq!(before.len(), theirs.objects.len(), "{before:?}");
    world.setup.scope = NamespaceScope::parse(scope).expect("good names");
    let free = world.create(a_volume("free", "1Gi", json!({}))).await;
    world.start("*");
    work_of_our_own(&world, "one").await;
    let free = until_phase(&world, &free, "Available").await;
    assert!(!free.has(&["spec", "claimRef"]), "their claim would take it: {free}");
    assert_eq!(theirs.versions(&world).await, before);

    // A claim of another namespace is deleted, which was the only use of its PV; and a free PV is given to
    // that namespace.
    world.delete(&theirs.claim, "").await;
    world.merge(&theirs.claim, json!({"metadata": {"finalizers": null}})).await;
    world.until_gone(&theirs.claim).await;
    let taken = world.create(a_volume("taken", "1Ti", json!({}))).await;
    until_phase(&world, &taken, "Available").await;
    world.merge(&taken, json!({"spec": to_claim("gone", "gone")})).await;
    let before = theirs.versions(&world).await;
    work_of_our_own(&world, "two").await;
    let figures = world.figures();
    assert!(
        figures.contains("kube_statefulset_replicas{namespace=\"default\",statefulset=\"web-two\"} 1"),
        "{figures}"
    );
    assert!(!figures.contains("\"other\"") && !figures.contains("persistentvolume=\"of-claim\""), "{figures}");
    world.stop_controllers().await;
    assert_eq!(theirs.versions(&world).await, before);
    assert!(theirs.directory.exists(), "their data");
    let touched = |path: &str| path.contains("/namespaces/other/") || path.contains("persistentvolumes/of-");
    assert_eq!(world.requests.count(|asked| asked.method != "GET" && touched(&asked.path)), 0);

    // All these objects need work: controllers for all namespaces change each of them.
    world.setup.scope = NamespaceScope::default();
    world.start("*,-garbage-collector-controller");
    for (place, version) in before {
        world
            .until(&format!("{place} is worked on"), || async {
                let found = world.get(&place).await;
                found.is_none_or(|found| found.text(&["metadata", "resourceVersion"]) != version).then_some(())
            })
            .await;
    }
    world.until_moment("their data goes", || !theirs.directory.exists()).await;
    world.stop().await;
}

/// A single namespace is watched by its own path.
#[tokio::test(flavor = "multi_thread")]
async fn objects_outside_of_one_namespace_are_not_changed() {
    others_are_left_alone("default").await;
}

/// For several namespaces everything is watched, and the rest dropped.
#[tokio::test(flavor = "multi_thread")]
async fn objects_outside_of_several_namespaces_are_not_changed() {
    others_are_left_alone("default,test").await;
}
