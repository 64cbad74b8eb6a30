//! Each controller has the permissions that it needs, and no others.

use crate::world::*;
use object::access::{Access, terminating};
use object::{Value, json};

fn role(account: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": format!("system:controller:{account}")},
    })
}

/// Removes verbs from all rules of a controller's role.
async fn forbid(world: &World, account: &str, verbs: &[&str]) {
    let role = world.now(&role(account)).await.expect("its role");
    let mut rules = role["rules"].clone();
    for rule in rules.as_array_mut().expect("rules") {
        rule["verbs"].as_array_mut().expect("verbs").retain(|verb| !verbs.iter().any(|forbidden| verb == forbidden));
    }
    rules.as_array_mut().expect("rules").retain(|rule| rule["verbs"] != json!([]));
    world.merge(&role, json!({"rules": rules})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_of_the_controllers_is_forbidden() {
    let mut world = World::bare().await;
    world.create(definition("Gear", true, &["v1"])).await;
    world.setup.drivers = vec![runtime::csi::Endpoint::parse("/nowhere/csi.sock").expect("an endpoint")];
    world.start("*");
    // Objects of all kinds.
    let namespace = world.create(new_namespace("busy")).await;
    world.create(new_namespace("other")).await;
    let owner = world.create(stateful_set("busy", "owner", 2)).await;
    let orphaned = world.create(stateful_set("busy", "orphaned", 2)).await;
    let dependent = world.create(blocking(gear("busy", "dependent"), &[&owner])).await;
    let orphan = world.create(owned(gear("busy", "orphan"), &[&orphaned])).await;
    let stranger = world.create(config_map("other", "stranger")).await;
    world.settle().await;
    let strayed = world.create(owned(secret("busy", "strayed"), &[&stranger])).await;
    let volume = world.create(owned(volume("volume"), &[&stranger])).await;
    world.delete(&owner, "Foreground").await;
    world.delete(&orphaned, "Orphan").await;
    world.until_all_gone(&[owner, dependent, orphaned, strayed]).await;
    assert!(world.now(&orphan).await.is_some());
    world.until_event(&volume, "OwnerRefInvalidNamespace").await;
    let mut gears = role("x");
    gears["metadata"] = json!({"name": "gears", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}});
    gears["rules"] = json!([{"apiGroups": ["example.com"], "resources": ["gears"], "verbs": ["*"]}]);
    world.create(gears).await;
    let mut view = role("x");
    view["metadata"]["name"] = json!("view");
    world.until_is(&view, "aggregates", |view| view["rules"].to_string().contains("gears")).await;
    let budget = world
        .create(json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"namespace": "other", "name": "b"},
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        }))
        .await;
    world.create(owned(pod("other", "a"), &[])).await;
    world.until_event(&budget, "UnmanagedPods").await;
    let service =
        |kind: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"namespace": "other", "name": "s"}});
    let mut web = service("Service");
    web["spec"] = json!({"clusterIP": "None", "selector": {"app": "web"}, "ports": [{"port": 80}]});
    world.create(web).await;
    world.until_is(&service("Endpoints"), "are made", |_| true).await;
    for (kind, name) in [("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")] {
        let object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"namespace": "other", "name": name}});
        if kind == "ConfigMap" {
            world.merge(&object, json!({"data": {"x": "y"}})).await;
            world.until_is(&object, "repaired", |map| map["data"]["x"].is_null()).await;
        }
        world.delete(&object, "").await;
        world.until_is(&object, "comes back", |_| true).await;
    }
    world.delete(&namespace, "").await;
    world.until_gone(&namespace).await;
    let accounts: std::collections::BTreeSet<_> = world
        .requests
        .take()
        .await
        .into_iter()
        .inspect(|asked| assert_ne!(asked.code, 403, "{asked:?}"))
        .map(|asked| asked.account)
        .collect();
    // The health monitor does nothing until a driver answers.
    assert_eq!(accounts.len(), runtime::NAMES.len() - 1, "all others worked: {accounts:?}");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_may_not_delete_still_orphans() {
    let mut world = World::bare().await;
    forbid(&world, "generic-garbage-collector", &["delete"]).await;
    let owner = world.create(config_map("default", "owner")).await;
    let orphaned = world.create(config_map("default", "orphaned")).await;
    let dependent = world.create(owned(secret("default", "dependent"), &[&owner])).await;
    let orphan = world.create(owned(secret("default", "orphan"), &[&orphaned])).await;
    world.delete(&owner, "Background").await;
    world.delete(&orphaned, "Orphan").await;
    world.start(GC);
    world.until_gone(&orphaned).await;
    assert_eq!(world.now(&orphan).await.expect("survives").items(&["metadata", "ownerReferences"]).len(), 0);
    until_refused(&world, "DELETE", "/api/v1/namespaces/default/secrets/dependent").await;
    assert!(!terminating(&world.now(&dependent).await.expect("stays")));
    for asked in world.requests.refused() {
        assert_eq!(
            (asked.method.as_str(), asked.path.as_str()),
            ("DELETE", "/api/v1/namespaces/default/secrets/dependent")
        );
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_may_not_patch_still_deletes_and_loses_no_orphan() {
    let mut world = World::bare().await;
    forbid(&world, "generic-garbage-collector", &["patch"]).await;
    let owner = world.create(config_map("default", "owner")).await;
    let orphaned = world.create(config_map("default", "orphaned")).await;
    let dependent = world.create(owned(secret("default", "dependent"), &[&owner])).await;
    let orphan = world.create(owned(secret("default", "orphan"), &[&orphaned])).await;
    world.delete(&owner, "Background").await;
    world.delete(&orphaned, "Orphan").await;
    world.start(GC);
    world.until_gone(&dependent).await;
    until_refused(&world, "PATCH", "/api/v1/namespaces/default/secrets/orphan").await;
    assert!(world.now(&orphaned).await.is_some(), "not before its dependents are orphaned");
    assert_eq!(world.now(&orphan).await.expect("survives").items(&["metadata", "ownerReferences"]).len(), 1);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_controller_that_may_not_delete_reports_it_in_the_namespace() {
    let mut world = World::bare().await;
    forbid(&world, "namespace-controller", &["delete"]).await;
    let namespace = world.create(new_namespace("stuck")).await;
    let content = world.create(secret("stuck", "content")).await;
    world.delete(&namespace, "").await;
    world.start(NAMESPACES);
    let said = world
        .until_is(&namespace, "says what failed", |namespace| {
            object::condition::is_true(namespace, "NamespaceDeletionContentFailure")
        })
        .await;
    let failure = object::condition::get(&said, "NamespaceDeletionContentFailure").expect("a condition");
    assert!(failure.text(&["message"]).contains("cannot delete resource"), "{failure}");
    assert!(world.now(&content).await.is_some());
    for asked in world.requests.refused() {
        assert_eq!(asked.method, "DELETE");
    }
    // When it gets the permission, it continues by itself.
    let role = world.now(&role("namespace-controller")).await.expect("its role");
    let mut rules = role["rules"].clone();
    let rule = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["delete"]});
    rules.as_array_mut().expect("rules").push(rule);
    world.merge(&role, json!({"rules": rules})).await;
    world.until_gone(&namespace).await;
    world.stop().await;
}

/// Waits until a controller got 403. Refusals change nothing in the store, so the test polls.
async fn until_refused(world: &World, method: &str, path: &str) {
    for _ in 0..1000 {
        if world.requests.refused().iter().any(|asked| asked.method == method && asked.path == path) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{method} {path} was never refused");
}
