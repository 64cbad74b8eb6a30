//! Invalid input gives one clear sentence, and the server continues.

use crate::support::*;
use serde_json::{Value, json};

#[tokio::test]
async fn broken_bodies() {
    let world = World::new().await;
    let admin = world.admin();
    let json_type = "application/json";
    let yaml_type = "application/yaml";
    let cases: [(&str, &[u8]); 22] = [
        (json_type, b""),
        (json_type, b"{"),
        (json_type, b"}"),
        (json_type, b"null"),
        (json_type, b"[]"),
        (json_type, b"\"text\""),
        (json_type, b"5"),
        (json_type, b"{\"metadata\": []}"),
        (json_type, b"{\"metadata\": {\"name\": 5}}"),
        (json_type, b"{\"metadata\": {\"name\": \"a\", \"labels\": {\"x\": 5}}}"),
        (json_type, b"{\"metadata\": {\"name\": \"a\", \"labels\": [\"x\"]}}"),
        (json_type, b"{\"metadata\": {\"name\": \"a\"}, \"data\": {\"x\": {\"y\": 1}}}"),
        (json_type, b"{\"metadata\": {\"name\": \"a\"}, \"data\": \"x\"}"),
        (json_type, b"{\"kind\": 5}"),
        (json_type, b"{\"kind\": \"ConfigMap\", \"apiVersion\": {}}"),
        (json_type, b"{\"metadata\": {\"name\": \"a\"}} trailing"),
        (json_type, b"\xff\xfe{}"),
        (json_type, b"{\"metadata\": {\"name\": \"\xff\"}}"),
        (yaml_type, b"a: [1"),
        (yaml_type, b"\t- x"),
        (yaml_type, b"- list\n"),
        (yaml_type, b"a: *nobody\n"),
    ];
    for (media, body) in cases {
        let reply = admin.send("POST", CONFIG_MAPS, media, body.to_vec()).await;
        let shown = String::from_utf8_lossy(body).into_owned();
        assert_eq!(reply.code, 400, "{media} {shown}: {}", reply.body);
        let said = reply.refused(400, "BadRequest");
        assert!(said.len() < 400 && !said.contains('\n'), "{shown}: {said}");
    }
    assert!(names(&admin.get(CONFIG_MAPS).await.expect(200)).is_empty());
}

#[tokio::test]
async fn names_labels_and_metadata_are_checked() {
    let world = World::new().await;
    let admin = world.admin();
    let long = "a".repeat(254);
    let named = |name: &str| json!({"name": name});
    let cases: Vec<(Value, &str)> = vec![
        (named("Upper"), "metadata.name: Invalid value: \"Upper\": a lowercase RFC 1123 subdomain must consist of"),
        (named("-a"), "a lowercase RFC 1123 subdomain"),
        (named("a_b"), "a lowercase RFC 1123 subdomain"),
        (named("a/b"), "a lowercase RFC 1123 subdomain"),
        (named("ä"), "a lowercase RFC 1123 subdomain"),
        (named(".."), "a lowercase RFC 1123 subdomain"),
        (named(&long), "must be no more than 253 "),
        (
            json!({"name": "a", "labels": {"bad key": "x"}}),
            "metadata.labels: Invalid value: \"bad key\": name part must consist of",
        ),
        (
            json!({"name": "a", "labels": {"x": "bad value"}}),
            "metadata.labels: Invalid value: \"bad value\": a valid label must be",
        ),
        (json!({"name": "a", "labels": {"x": "y".repeat(64)}}), "must be no more than 63 "),
        (json!({"name": "a", "annotations": {"-": "x"}}), "metadata.annotations: Invalid value: \"-\""),
        (json!({"name": "a", "annotations": {"x": "y".repeat(300 * 1024)}}), "metadata.annotations: Too long: "),
        (
            json!({"name": "a", "finalizers": ["nodomain"]}),
            "metadata.finalizers[0]: Invalid value: \"nodomain\": name is neither a standard finalizer name nor is it fully qualified",
        ),
        (
            json!({"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]}),
            "metadata.ownerReferences.uid: Invalid value: \"\": must not be empty",
        ),
        (
            json!({"name": "a", "ownerReferences": [
            {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1", "controller": true},
            {"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "2", "controller": true}]}),
            "Only one reference can have Controller set to true",
        ),
        (
            json!({"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "Event", "name": "p", "uid": "1"}]}),
            "disallowed from being an owner",
        ),
    ];
    for (metadata, message) in cases {
        let said = admin.post(CONFIG_MAPS, &json!({"metadata": metadata})).await.refused(422, "Invalid");
        assert!(said.contains(message), "{metadata}: {said}");
    }
    let said = admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "a.b"}})).await.refused(422, "Invalid");
    assert!(said.contains("a lowercase RFC 1123 label must consist of"), "{said}");
    let said = admin
        .post(
            "/api/v1/namespaces/default/services",
            &json!({"metadata": {"name": "1a"}, "spec": {"ports": [{"port": 1}]}}),
        )
        .await;
    assert!(said.refused(422, "Invalid").contains("a DNS-1035 label must consist of"));
    let role = json!({"metadata": {"name": "a/b"}});
    let said = admin.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await.refused(422, "Invalid");
    assert!(said.contains("metadata.name: Invalid value: \"a/b\": may not contain '/'"), "{said}");
}

#[tokio::test]
async fn several_errors_come_together_with_their_causes() {
    let world = World::new().await;
    let mut wrong = stateful_set("s");
    wrong["spec"]["replicas"] = json!(-1);
    wrong["spec"]["template"]["spec"]["containers"][0]["image"] = json!("");
    wrong["spec"]["selector"]["matchLabels"] = json!({"app": "other"});
    let reply = world.admin().post(SETS, &wrong).await;
    let causes = reply.body["details"]["causes"].as_array().unwrap().clone();
    let fields: Vec<String> = causes.iter().map(|cause| text(cause, "/field")).collect();
    for field in ["spec.replicas", "spec.template.metadata.labels", "spec.template.spec.containers[0].image"] {
        assert!(fields.contains(&field.to_owned()), "{field}: {fields:?}");
    }
    assert_eq!(
        (&reply.body["details"]["kind"], &reply.body["details"]["group"]),
        (&json!("StatefulSet"), &json!("apps"))
    );
    let said = reply.refused(422, "Invalid");
    assert!(said.starts_with("StatefulSet.apps \"s\" is invalid: [") && said.ends_with(']'), "{said}");
}

#[tokio::test]
async fn duplicates_in_keyed_lists() {
    let world = World::new().await;
    let admin = world.admin();
    let mut containers = pod("a");
    containers["spec"]["containers"] = json!([{"name": "x", "image": "i"}, {"name": "x", "image": "i"}]);
    let mut ports = pod("b");
    ports["spec"]["volumes"] = json!([{"name": "v", "emptyDir": {}}, {"name": "v", "emptyDir": {}}]);
    for (object, message) in [
        (containers, "spec.containers[1].name: Duplicate value: \"x\""),
        (ports, "spec.volumes[1].name: Duplicate value: \"v\""),
    ] {
        let said = admin.post(PODS, &object).await.refused(422, "Invalid");
        assert!(said.contains(message), "{said}");
    }
    let mut env = pod("c");
    env["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]);
    let reply = admin.post(PODS, &env).await;
    assert!(
        reply
            .warnings()
            .iter()
            .any(|warning| warning.contains("spec.containers[0].env[1]: hides previous definition of \\\"A\\\"")),
        "{:?}",
        reply.warnings()
    );
    reply.expect(201);
}

#[tokio::test]
async fn paths_that_serve_nothing() {
    let world = World::new().await;
    let admin = world.admin();
    let cases = [
        ("GET", "/api/v1/unicorns", 404),
        ("GET", "/api/v2/pods", 404),
        ("GET", "/apis/none.io/v1/things", 404),
        ("GET", "/apis/apps/v1beta1/statefulsets", 404),
        ("GET", "/nothing/here", 404),
        ("GET", "/api/v1/namespaces/default/nodes", 404),
        ("GET", "/api/v1/namespaces/default/pods/p/unknown", 404),
        ("GET", "/api/v1/namespaces/default/pods/p/log/x/y", 404),
        ("GET", "/api/v1/namespaces/default/configmaps/a/status", 404),
        ("PUT", "/api/v1/namespaces/default/pods", 405),
        ("DELETE", "/api", 405),
        ("POST", "/healthz", 405),
        ("POST", "/api/v1/namespaces/default/pods/p", 405),
        ("DELETE", "/api/v1/namespaces/default/pods/p/status", 405),
        ("GET", "/api/v1/namespaces/%zz/pods", 400),
        ("GET", "/api/v1/pods?limit=%ff", 400),
        ("TRACE", "/api/v1/pods", 405),
    ];
    for (method, path, code) in cases {
        let reply = admin.send(method, path, "", Vec::new()).await;
        assert_eq!(reply.code, code, "{method} {path}: {}", reply.body);
        assert_eq!(reply.body["kind"], "Status", "{method} {path}");
    }
    let head = admin.send("HEAD", "/api/v1/namespaces/default", "", Vec::new()).await;
    assert_eq!(head.code, 200);
}

/// Every input gives a response, never a hang or a panic, and every stored object can be read.
#[tokio::test]
async fn malformed_input_of_many_kinds() {
    let world = World::new().await;
    let admin = world.admin();
    let seeds = [json!(null), json!(-1), json!("x"), json!([null]), json!({"a": null}), json!([{"name": 5}])];
    let outer = ["metadata", "spec", "status", "data", "rules", "subjects", "roleRef", "template"];
    let inner = ["replicas", "selector", "template", "containers", "ports", "versions", "resources", "hard", "limits"];
    let nonsense = |seed: &Value| {
        let whole = outer.map(|field| json!({field: seed}));
        let nested = inner.map(|field| json!({"spec": {field: seed}}));
        whole.into_iter().chain(nested).collect::<Vec<Value>>()
    };
    for kind in world.running.server.registry.kinds().iter() {
        let root = if kind.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", kind.group) };
        let place = if kind.namespaced { "/namespaces/default" } else { "" };
        let collection = format!("{root}/{}{place}/{}?dryRun=All", kind.version, kind.plural);
        for mut object in seeds.iter().flat_map(nonsense) {
            if object.get("metadata").is_none() {
                object["metadata"] = json!({"name": "n"});
            }
            let reply = admin.post(&collection, &object).await;
            assert!(reply.code < 500, "{collection} {object}: {} {}", reply.code, reply.body);
        }
    }
    assert_eq!(admin.get("/readyz").await.code, 200);
}
