//! Small requests that ask for a great deal of work, or for a large answer: what they cost is bounded.

use crate::support::*;
use serde_json::{Map, Value, json};

/// No refusal says more than this, whatever was wrong.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;

#[tokio::test]
async fn many_controllers_are_told_of_once() {
    let world = World::new().await;
    let owner = |at: usize| {
        let name = format!("owner-{at}");
        json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": at.to_string(), "controller": true})
    };
    let owners: Vec<Value> = (0..5000).map(owner).collect();
    let path = format!("{CONFIG_MAPS}?dryRun=All");
    let object = json!({"metadata": {"name": "a", "ownerReferences": owners}});
    let reply = world.admin().post(&path, &object).await;
    assert!(reply.bytes.len() < REFUSAL_BYTES_MAX, "{}", reply.bytes.len());
    let said = reply.refused(422, "Invalid");
    assert!(said.ends_with("Found \"true\" in references for Pod/owner-0 and Pod/owner-1"), "{said}");

    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}, "scopes": vec!["None"; 5000]}});
    let reply = world.admin().post("/api/v1/namespaces/default/resourcequotas", &quota).await;
    assert!(reply.bytes.len() < REFUSAL_BYTES_MAX, "{}", reply.bytes.len());
    assert!(reply.refused(422, "Invalid").ends_with("unsupported scope"));
}

#[tokio::test]
async fn of_many_errors_the_first_are_told_and_the_others_counted() {
    let world = World::new().await;
    let labels: Map<String, Value> = (0..200_000).map(|at| (format!("_{at:06}"), json!(""))).collect();
    let reply = world.admin().post(CONFIG_MAPS, &json!({"metadata": {"name": "a", "labels": labels}})).await;
    assert!(reply.bytes.len() < REFUSAL_BYTES_MAX * 2, "{}", reply.bytes.len());
    assert_eq!(reply.body["details"]["causes"].as_array().unwrap().len(), 100);
    let said = reply.refused(422, "Invalid");
    assert!(said.contains("Invalid value: \"_000000\"") && said.ends_with(", and 199900 more]"), "{said}");
}

/// A rule allows all pairs of what it names, and each pair was compared with all that its author holds.
#[tokio::test]
async fn a_role_of_very_many_rights_is_refused_to_who_does_not_hold_it_whole() {
    const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
    let world = World::new().await;
    let binding = |kind: &str, user: &str, role: &str| {
        json!({"kind": kind, "metadata": {"name": user}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
            "name": role}, "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]})
    };
    let roles = format!("{RBAC}/namespaces/default/roles");
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    world.admin().post(&bindings, &binding("RoleBinding", "kim", "admin")).await.expect(201);
    let everywhere = binding("ClusterRoleBinding", "root", "cluster-admin");
    world.admin().post(&format!("{RBAC}/clusterrolebindings"), &everywhere).await.expect(201);
    let cube = |count: usize| {
        let words: Vec<String> = (0..count).map(|at| format!("w{at}")).collect();
        json!({"metadata": {"name": "cube"}, "rules": [{"verbs": words, "apiGroups": words, "resources": words}]})
    };
    let kim = world.as_user("kim", &[]);
    let said = kim.post(&roles, &cube(400)).await.refused(403, "Forbidden");
    assert!(said.contains("the rules name too many verbs, groups, resources and names"), "{said}");
    let few = kim.post(&roles, &cube(40)).await;
    assert!(few.bytes.len() < REFUSAL_BYTES_MAX, "{}", few.bytes.len());
    let said = few.refused(403, "Forbidden");
    assert!(
        said.contains("is attempting to grant RBAC permissions not currently held") && said.ends_with("\nand more")
    );
    // Who holds all of it writes it as ever.
    world.as_user("root", &[]).post(&roles, &cube(400)).await.expect(201);
}

/// The place of a field is shown with all that is above it, and a name can be as long as a body.
#[tokio::test]
async fn long_names_are_not_told_again_and_again() {
    let world = World::new().await;
    let twice: Vec<String> = (0..200).map(|at| format!("\"f{at}\":1,\"f{at}\":1")).collect();
    let body = format!("{{\"metadata\":{{\"name\":\"a\"}},\"{}\":{{{}}}}}", "x".repeat(1 << 20), twice.join(","));
    let path = format!("{CONFIG_MAPS}?fieldValidation=Strict");
    let reply = world.admin().send("POST", &path, "application/json", body).await;
    assert!(reply.bytes.len() < 4 * REFUSAL_BYTES_MAX, "{}", reply.bytes.len());
    assert!(reply.refused(400, "BadRequest").contains("strict decoding error: unknown field \"xxx"));
}
