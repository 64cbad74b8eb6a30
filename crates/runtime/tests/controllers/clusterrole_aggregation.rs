//! Aggregated ClusterRoles.

use crate::world::*;
use object::{Value, json};

fn role(name: &str, label: &str, resource: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": name, "labels": {format!("rbac.authorization.k8s.io/aggregate-to-{label}"): "true"}},
        "rules": [{"apiGroups": ["example.com"], "resources": [resource], "verbs": ["get"]}],
    })
}

fn sum(name: &str) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}})
}

fn has(role: &Value, resource: &str) -> bool {
    role["rules"].as_array().into_iter().flatten().any(|rule| rule["resources"] == json!([resource]))
}

#[tokio::test(flavor = "multi_thread")]
async fn aggregated_roles_follow_the_roles_they_select() {
    let world = World::with("clusterrole-aggregation-controller").await;
    for name in ["admin", "edit", "view"] {
        world
            .until_is(&sum(name), "the default rules", |role| {
                role["rules"].as_array().is_some_and(|rules| rules.len() > 3)
            })
            .await;
    }
    let gears = world.create(role("gear-viewer", "view", "gears")).await;
    // view is part of edit, which is part of admin.
    for name in ["view", "edit", "admin"] {
        world.until_is(&sum(name), "the new rule", |role| has(role, "gears")).await;
    }
    world
        .merge(&gears, json!({"rules": [{"apiGroups": ["example.com"], "resources": ["wheels"], "verbs": ["get"]}]}))
        .await;
    for name in ["view", "edit", "admin"] {
        world.until_is(&sum(name), "the changed rule", |role| has(role, "wheels") && !has(role, "gears")).await;
    }
    // The label decides, also when it is removed.
    world.merge(&gears, json!({"metadata": {"labels": null}})).await;
    world.until_is(&sum("admin"), "the rule goes", |role| !has(role, "wheels")).await;
    let more = world.create(role("wheel-admin", "admin", "wheels")).await;
    world.until_is(&sum("admin"), "the new rule", |role| has(role, "wheels")).await;
    assert!(!has(&world.now(&sum("edit")).await.expect("there"), "wheels"));
    world.delete(&more, "").await;
    world.until_is(&sum("admin"), "the rule goes", |role| !has(role, "wheels")).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn own_aggregates_get_and_lose_all_their_rules() {
    let world = World::with("clusterrole-aggregation-controller").await;
    let mut all = sum("all");
    all["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"team": "a"}}]});
    all["rules"] = json!([{"apiGroups": [""], "resources": ["mine"], "verbs": ["get"]}]);
    let all = world.create(all).await;
    world.until_is(&all, "rules of its own go", |role| !has(role, "mine")).await;
    let mut part = role("part", "none", "gears");
    part["metadata"]["labels"]["team"] = json!("a");
    let part = world.create(part).await;
    world.until_is(&all, "the rule", |role| has(role, "gears")).await;
    world.delete(&part, "").await;
    world.until_is(&all, "no rules", |role| role["rules"].as_array().is_none_or(Vec::is_empty)).await;
    world.stop().await;
}
