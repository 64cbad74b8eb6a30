//! Users who try to exceed their permissions: none of their requests changes anything.

use crate::support::*;
use serde_json::{Value, json};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// Every served resource and subresource: its path in `default`, or in the cluster, and its verbs.
async fn served(admin: &Api) -> Vec<(String, Vec<String>)> {
    let mut roots = vec!["/api/v1".to_owned()];
    let groups = admin.get("/apis").await.expect(200);
    for group in groups["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            roots.push(format!("/apis/{}", version["groupVersion"].as_str().unwrap()));
        }
    }
    let mut found = Vec::new();
    for root in roots {
        let list = admin.get(&root).await.expect(200);
        for resource in list["resources"].as_array().unwrap() {
            let place = if resource["namespaced"] == true { "/namespaces/default" } else { "" };
            let name = resource["name"].as_str().unwrap();
            let verbs = resource["verbs"].as_array().unwrap().iter().map(|verb| verb.as_str().unwrap().to_owned());
            let path = match name.split_once('/') {
                Some((plural, sub)) => format!("{root}{place}/{plural}/x/{sub}"),
                None => format!("{root}{place}/{name}"),
            };
            found.push((path, verbs.collect()));
        }
    }
    found
}

/// The requests that a verb can be sent as.
fn requests(verb: &str, path: &str) -> Vec<(&'static str, String, &'static str)> {
    let named = if path.ends_with("/x") || path.contains("/x/") { path.to_owned() } else { format!("{path}/x") };
    match verb {
        "create" => vec![("POST", path.to_owned(), "application/json")],
        "update" => vec![("PUT", named, "application/json")],
        "patch" => [MERGE, STRATEGIC, JSON_PATCH, APPLY]
            .map(|media| ("PATCH", format!("{named}?fieldManager=m"), media))
            .into(),
        "delete" => vec![("DELETE", named, "application/json")],
        "deletecollection" => vec![("DELETE", path.to_owned(), "application/json")],
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn anonymous_users_cannot_write() {
    let world = World::new().await;
    let (admin, stranger) = (world.admin(), world.outside());
    let before = world.store.revision();
    let mut tried = 0;
    for (path, verbs) in served(&admin).await {
        for verb in &verbs {
            for (method, path, media) in requests(verb, &path) {
                // The same resource can be addressed in several ways.
                for path in [
                    path.clone(),
                    format!("{path}/").replace("?fieldManager=m/", "/?fieldManager=m"),
                    format!("/{path}"),
                    path.replace("/api", "/%61pi"),
                ] {
                    let body = json!({"metadata": {"name": "x"}}).to_string();
                    let reply = stranger.send(method, &path, media, body).await;
                    let said = reply.refused(403, "Forbidden");
                    assert!(said.contains("User \"system:anonymous\" cannot"), "{method} {path}: {said}");
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 500, "{tried} requests");
    assert_eq!(world.store.revision(), before, "nothing was written");
}

/// Kim may write roles and bindings, but has few permissions. No kind of write gives Kim more.
#[tokio::test]
async fn no_write_of_roles_and_bindings_grants_more() {
    let world = World::new().await;
    let admin = world.admin();
    let may = json!([
        {"verbs": ["get", "list", "create", "update", "patch", "delete"], "apiGroups": ["rbac.authorization.k8s.io"],
         "resources": ["roles", "rolebindings", "clusterroles", "clusterrolebindings"]},
        {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]},
    ]);
    let kim_is = |kind: &str, name: &str, role: &str| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "kim"}],
        })
    };
    admin
        .post(&format!("{RBAC}/clusterroles"), &json!({"metadata": {"name": "small"}, "rules": may}))
        .await
        .expect(201);
    admin.post(&format!("{RBAC}/clusterrolebindings"), &kim_is("ClusterRoleBinding", "kim", "small")).await.expect(201);
    let mut others = kim_is("ClusterRoleBinding", "others", "cluster-admin");
    others["subjects"][0]["name"] = json!("lee");
    admin.post(&format!("{RBAC}/clusterrolebindings"), &others).await.expect(201);
    let kim = world.as_user("kim", &[]);
    // Kim may grant permissions that Kim has: such writes succeed.
    let same = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
    for kind in ["roles", "clusterroles"] {
        let collection = collection(kind);
        kim.post(&collection, &json!({"metadata": {"name": "mine"}, "rules": same})).await.expect(201);
    }
    kim.post(&collection("rolebindings"), &kim_is("RoleBinding", "mine", "mine")).await.expect(201);

    let before = world.store.revision();
    let more = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
    let mut refused = Vec::new();
    for kind in ["roles", "clusterroles"] {
        let collection = collection(kind);
        let mine = format!("{collection}/mine");
        let object = |name: &str| {
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": if kind == "roles" { "Role" } else { "ClusterRole" },
                "metadata": {"name": name}, "rules": more,
            })
        };
        refused.push(kim.post(&collection, &object("new")).await);
        let mut labelled = object("new");
        labelled["metadata"]["labels"] = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
        refused.push(kim.post(&collection, &labelled).await);
        refused.push(kim.put(&mine, &object("mine")).await);
        refused.push(kim.patch(&mine, MERGE, &json!({"rules": more})).await);
        refused.push(kim.patch(&mine, STRATEGIC, &json!({"rules": more})).await);
        refused.push(
            kim.patch(&mine, JSON_PATCH, &json!([{"op": "add", "path": "/rules/0/verbs/-", "value": "delete"}])).await,
        );
        refused.push(kim.apply(&mine, "kim&force=true", &object("mine")).await);
        refused.push(kim.apply(&format!("{collection}/new"), "kim", &object("new")).await);
    }
    let aggregates = json!({"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {}}]}});
    refused.push(kim.patch(&format!("{RBAC}/clusterroles/mine"), MERGE, &aggregates).await);
    for (plural, kind) in [("rolebindings", "RoleBinding"), ("clusterrolebindings", "ClusterRoleBinding")] {
        refused.push(kim.post(&collection(plural), &kim_is(kind, "new", "cluster-admin")).await);
        refused.push(
            kim.apply(&format!("{}/new", collection(plural)), "kim", &kim_is(kind, "new", "cluster-admin")).await,
        );
    }
    // The binding of another user, with Kim as added subject.
    let others = format!("{RBAC}/clusterrolebindings/others");
    let subjects = kim_is("ClusterRoleBinding", "others", "cluster-admin")["subjects"].clone();
    refused.push(kim.put(&others, &kim_is("ClusterRoleBinding", "others", "cluster-admin")).await);
    refused.push(kim.patch(&others, MERGE, &json!({"subjects": subjects})).await);
    refused.push(kim.patch(&others, STRATEGIC, &json!({"subjects": subjects})).await);
    refused.push(
        kim.patch(&others, JSON_PATCH, &json!([{"op": "add", "path": "/subjects/-", "value": subjects[0]}])).await,
    );
    refused.push(kim.apply(&others, "kim&force=true", &kim_is("ClusterRoleBinding", "others", "cluster-admin")).await);
    // Impersonation and tokens of other accounts.
    let token = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"});
    let accounts = "/api/v1/namespaces/kube-system/serviceaccounts/generic-garbage-collector/token";
    refused.push(kim.post(accounts, &token).await);
    for reply in refused {
        reply.refused(403, "Forbidden");
    }
    assert_eq!(world.store.revision(), before, "nothing was written");
}

fn collection(plural: &str) -> String {
    if plural.starts_with("cluster") {
        format!("{RBAC}/{plural}")
    } else {
        format!("{RBAC}/namespaces/default/{plural}")
    }
}

/// A name is one path segment; special characters in it address nothing else.
#[tokio::test]
async fn names_in_paths_stay_names() {
    let world = World::new().await;
    let admin = world.admin();
    world.namespace("other").await;
    admin.post("/api/v1/namespaces/other/secrets", &json!({"metadata": {"name": "s"}})).await.expect(201);
    let rules = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
    let roles = format!("{RBAC}/namespaces/default");
    admin.post(&format!("{roles}/roles"), &json!({"metadata": {"name": "all"}, "rules": rules})).await.expect(201);
    let binding = json!({"metadata": {"name": "all"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "all"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "kim"}]});
    admin.post(&format!("{roles}/rolebindings"), &binding).await.expect(201);
    // Kim has all permissions in `default`, and no others.
    let kim = world.as_user("kim", &[]);
    kim.get("/api/v1/namespaces/default/secrets").await.expect(200);
    let before = world.store.revision();
    let tricks = [
        "/api/v1/namespaces/default/../other/secrets/s",
        "/api/v1/namespaces/default%2F..%2Fother/secrets/s",
        "/api/v1/namespaces/default/secrets/..%2F..%2Fother%2Fsecrets%2Fs",
        "/api/v1/namespaces/default/secrets/../../other/secrets/s",
        "/api/v1/namespaces/default%00/secrets/s",
        "/api/v1/namespaces/default/secrets/s%00",
        "/api/v1/namespaces/default/secrets/%2e%2e",
        "/api/v1/namespaces//secrets/s",
        "/api/v1/namespaces/%2F/secrets/s",
        "/api/v1/namespaces/default/%2e%2e/other",
        "/api/v1/namespaces/.%2e/secrets/s",
    ];
    for path in tricks {
        for (method, body) in
            [("GET", String::new()), ("DELETE", String::new()), ("PUT", json!({"metadata": {"name": "s"}}).to_string())]
        {
            let reply = kim.send(method, path, "application/json", body).await;
            assert!((400..500).contains(&reply.code), "{method} {path}: {} {}", reply.code, reply.body);
        }
    }
    // A body cannot name another namespace than its path.
    let elsewhere: Value = json!({"metadata": {"name": "t", "namespace": "other"}});
    kim.post("/api/v1/namespaces/default/secrets", &elsewhere).await.refused(400, "BadRequest");
    for name in ["../x", "a/b", "..", ".", "a%2Fb", "\u{0}", "a\u{0}b", ""] {
        let reply = kim.post("/api/v1/namespaces/default/secrets", &json!({"metadata": {"name": name}})).await;
        assert!(reply.code == 422, "{name:?}: {} {}", reply.code, reply.body);
    }
    assert_eq!(world.store.revision(), before, "nothing was written");
}
