//! All patch types, server-side apply, and unknown fields.

use crate::support::*;
use serde_json::{Value, json};

#[tokio::test]
async fn each_type_changes_its_way() {
    let world = World::new().await;
    let admin = world.admin();
    let mut start = scheduled("p");
    start["metadata"]["labels"] = json!({"a": "1", "b": "2"});
    start["metadata"]["finalizers"] = json!(["x.io/one", "x.io/two"]);
    start["spec"]["containers"] = json!([{"name": "one", "image": "i:1"}, {"name": "two", "image": "i:1"}]);
    admin.post(PODS, &start).await.expect(201);
    let path = format!("{PODS}/p");
    // (media type, patch, path to look at, expected value)
    let cases = [
        (
            MERGE,
            json!({"metadata": {"labels": {"a": null, "c": "3"}}}),
            "/metadata/labels",
            json!({"b": "2", "c": "3"}),
        ),
        (STRATEGIC, json!({"metadata": {"labels": {"b": null}}}), "/metadata/labels", json!({"c": "3"})),
        (
            STRATEGIC,
            json!({"metadata": {"labels": {"$patch": "replace", "z": "1"}}}),
            "/metadata/labels",
            json!({"z": "1"}),
        ),
        (
            STRATEGIC,
            json!({"spec": {"containers": [{"name": "two", "image": "i:2"}]}}),
            "/spec/containers/1/image",
            json!("i:2"),
        ),
        (
            STRATEGIC,
            json!({"spec": {"$setElementOrder/containers": [{"name": "one"}, {"name": "two"}],
            "containers": [{"name": "one", "image": "i:3"}]}}),
            "/spec/containers/0/image",
            json!("i:3"),
        ),
        (
            STRATEGIC,
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x.io/one"]}}),
            "/metadata/finalizers",
            json!(["x.io/two"]),
        ),
        (
            STRATEGIC,
            json!({"metadata": {"finalizers": ["x.io/three"]}}),
            "/metadata/finalizers",
            json!(["x.io/three", "x.io/two"]),
        ),
        (MERGE, json!({"metadata": {"finalizers": ["x.io/four"]}}), "/metadata/finalizers", json!(["x.io/four"])),
        (
            JSON_PATCH,
            json!([{"op": "add", "path": "/metadata/labels/x~1y", "value": "v"}, {"op": "test", "path": "/metadata/labels/z", "value": "1"}]),
            "/metadata/labels",
            json!({"z": "1", "x/y": "v"}),
        ),
        (
            JSON_PATCH,
            json!([{"op": "remove", "path": "/metadata/labels/z"}, {"op": "copy", "from": "/metadata/labels/x~1y", "path": "/metadata/labels/w"}]),
            "/metadata/labels",
            json!({"w": "v", "x/y": "v"}),
        ),
        (
            JSON_PATCH,
            json!([{"op": "add", "path": "/metadata/finalizers/-", "value": "x.io/five"}]),
            "/metadata/finalizers",
            json!(["x.io/four", "x.io/five"]),
        ),
    ];
    for (media, patch, at, want) in cases {
        let now = admin.patch(&path, media, &patch).await.expect(200);
        assert_eq!(now.pointer(at), Some(&want), "{media} {patch}");
    }
}

#[tokio::test]
async fn broken_patches_get_a_sentence() {
    let world = World::new().await;
    let admin = world.admin();
    admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    admin.post(PODS, &pod("p")).await.expect(201);
    let path = format!("{CONFIG_MAPS}/a");
    let cases: [(&str, &str, u16); 16] = [
        (MERGE, "", 400),
        (MERGE, "{", 400),
        (MERGE, "[]", 400),
        (MERGE, "\"text\"", 400),
        (MERGE, r#"{"data": 5}"#, 400),
        (MERGE, r#"{"data": {"key": 5}}"#, 400),
        (MERGE, r#"{"kind": "Secret"}"#, 400),
        (MERGE, r#"{"metadata": null}"#, 400),
        (STRATEGIC, r#"{"data": {"$patch": "explode"}}"#, 400),
        (STRATEGIC, "[]", 400),
        (JSON_PATCH, "{}", 400),
        (JSON_PATCH, r#"[{"op": "jump", "path": "/a"}]"#, 422),
        (JSON_PATCH, r#"[{"op": "remove", "path": "/data/absent"}]"#, 422),
        (JSON_PATCH, r#"[{"op": "test", "path": "/data/key", "value": "other"}]"#, 422),
        (JSON_PATCH, r#"[{"op": "add", "path": "data", "value": "other"}]"#, 422),
        (APPLY, "{", 400),
    ];
    let before = world.store.revision();
    for (media, body, code) in cases {
        let reply = admin.send("PATCH", &format!("{path}?fieldManager=m"), media, body.to_owned()).await;
        assert_eq!(reply.code, code, "{media} {body}: {}", reply.body);
        assert_eq!(reply.body["kind"], "Status", "{media} {body}: {}", reply.body);
        assert!(!text(&reply.body, "/message").is_empty());
    }
    let many: Vec<Value> = (0..10_001).map(|_| json!({"op": "test", "path": "/kind", "value": "ConfigMap"})).collect();
    let reply = admin.patch(&path, JSON_PATCH, &json!(many)).await;
    assert_eq!(reply.code, 413, "{}", reply.body);
    assert_eq!(world.store.revision(), before);
    admin.patch(&format!("{CONFIG_MAPS}/none"), MERGE, &json!({})).await.refused(404, "NotFound");
    admin.patch(&format!("{PODS}/p"), STRATEGIC, &json!({"spec": {"containers": [{"image": "x"}]}})).await;
    assert_eq!(admin.get(&path).await.expect(200)["data"], json!({"key": "value"}), "the server goes on");
}

fn managers(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    entries
        .iter()
        .map(|entry| {
            let sub = text(entry, "/subresource");
            let sub = if sub.is_empty() { sub } else { format!("/{sub}") };
            format!("{} {}{sub}", text(entry, "/manager"), text(entry, "/operation"))
        })
        .collect()
}

fn applied(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

#[tokio::test]
async fn apply_creates_owns_and_lets_go() {
    let world = World::new().await;
    let admin = world.admin();
    let path = format!("{CONFIG_MAPS}/a");
    let made = admin.apply(&path, "one", &applied(json!({"x": "1", "y": "2"}))).await.expect(201);
    assert_eq!(managers(&made), ["one Apply"]);
    assert_eq!(made["metadata"]["managedFields"][0]["fieldsV1"], json!({"f:data": {"f:x": {}, "f:y": {}}}));
    // Repeating the apply writes nothing.
    let before = world.store.revision();
    world.clock.advance(60);
    let again = admin.apply(&path, "one", &applied(json!({"x": "1", "y": "2"}))).await.expect(200);
    assert_eq!(again, made);
    assert_eq!(world.store.revision(), before);
    // A second manager adds a field and shares an equal value.
    let shared = admin.apply(&path, "two", &applied(json!({"x": "1", "z": "3"}))).await.expect(200);
    assert_eq!(managers(&shared), ["one Apply", "two Apply"]);
    assert_eq!(shared["data"], json!({"x": "1", "y": "2", "z": "3"}));
    // A field that a manager drops is removed, unless another manager owns it.
    let dropped = admin.apply(&path, "one", &applied(json!({}))).await.expect(200);
    assert_eq!(dropped["data"], json!({"x": "1", "z": "3"}));
    let dropped = admin.apply(&path, "two", &applied(json!({"z": "3"}))).await.expect(200);
    assert_eq!(dropped["data"], json!({"z": "3"}));
    // An update owns only the fields that it changes.
    let patched =
        admin.patch(&format!("{path}?fieldManager=editor"), MERGE, &json!({"data": {"z": "4"}})).await.expect(200);
    assert!(managers(&patched).contains(&"editor Update".to_owned()), "{:?}", managers(&patched));
    let patched =
        admin.patch(&format!("{path}?fieldManager=other"), MERGE, &json!({"data": {"z": "4"}})).await.expect(200);
    assert!(!managers(&patched).contains(&"other Update".to_owned()), "{:?}", managers(&patched));
}

#[tokio::test]
async fn conflicts_name_managers_and_fields() {
    let world = World::new().await;
    let admin = world.admin();
    let path = format!("{CONFIG_MAPS}/a");
    admin.apply(&path, "one", &applied(json!({"x": "1", "y": "1"}))).await.expect(201);
    let refused = admin.apply(&path, "two", &applied(json!({"x": "2", "y": "1"}))).await;
    let causes = refused.body["details"]["causes"].clone();
    let said = refused.refused(409, "Conflict");
    assert_eq!(said, "Apply failed with 1 conflict: conflict with \"one\": .data.x");
    assert_eq!(
        causes,
        json!([{"reason": "FieldManagerConflict", "message": "conflict with \"one\"", "field": ".data.x"}])
    );
    let refused = admin.apply(&path, "two", &applied(json!({"x": "2", "y": "2"}))).await.refused(409, "Conflict");
    assert_eq!(refused, "Apply failed with 2 conflicts: conflicts with \"one\":\n- .data.x\n- .data.y");
    let forced =
        admin.apply(&format!("{path}?force=true"), "two", &applied(json!({"x": "2", "y": "1"}))).await.expect(200);
    assert_eq!(forced["data"], json!({"x": "2", "y": "1"}));
    // The loser of the conflict still owns shared fields.
    let one = forced["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .find(|entry| entry["manager"] == "one")
        .unwrap()
        .clone();
    assert_eq!(one["fieldsV1"], json!({"f:data": {"f:y": {}}}));
    // An update causes a conflict too.
    admin.patch(&format!("{path}?fieldManager=editor"), MERGE, &json!({"data": {"y": "9"}})).await.expect(200);
    let refused = admin.apply(&path, "two", &applied(json!({"x": "2", "y": "1"}))).await.refused(409, "Conflict");
    assert_eq!(refused, "Apply failed with 1 conflict: conflict with \"editor\" using v1: .data.y");
}

#[tokio::test]
async fn apply_needs_to_know_what_and_who() {
    let world = World::new().await;
    let admin = world.admin();
    let path = format!("{CONFIG_MAPS}/a");
    let body = applied(json!({}));
    let said = admin.patch(&path, APPLY, &body).await.refused(422, "Invalid");
    assert!(said.contains("fieldManager: Required value: is required for apply patch"), "{said}");
    let mut nameless = body.clone();
    nameless["metadata"] = json!({});
    let mut other_kind = body.clone();
    other_kind["kind"] = json!("Secret");
    let mut other_name = body.clone();
    other_name["metadata"]["name"] = json!("b");
    let mut with_managed = body.clone();
    with_managed["metadata"]["managedFields"] = json!([{"manager": "x", "operation": "Apply"}]);
    for bad in [nameless, other_kind, other_name, with_managed, json!({"data": {}})] {
        admin.apply(&path, "m", &bad).await.refused(400, "BadRequest");
    }
    let mut with_uid = body.clone();
    with_uid["metadata"]["uid"] = json!("u");
    admin.apply(&path, "m", &with_uid).await.refused(409, "Conflict");
    let mut stale = body.clone();
    stale["metadata"]["resourceVersion"] = json!("1");
    admin.apply(&path, "m", &body).await.expect(201);
    admin.apply(&path, "m", &stale).await.refused(409, "Conflict");
    let said = admin.patch(&format!("{path}?force=true"), MERGE, &json!({})).await.refused(422, "Invalid");
    assert!(said.contains("force: Forbidden: may not be specified for non-apply patch"), "{said}");
    // The media type says YAML, and JSON is valid YAML.
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  from: yaml\n";
    let now = admin.send("PATCH", &format!("{path}?fieldManager=m"), APPLY, yaml).await.expect(200);
    assert_eq!(now["data"], json!({"from": "yaml"}));
}

#[tokio::test]
async fn lists_with_keys_are_shared_by_item() {
    let world = World::new().await;
    let admin = world.admin();
    let path = "/api/v1/namespaces/default/services/s";
    let service = |ports: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": ports}});
    let web = json!({"name": "web", "port": 80, "protocol": "TCP"});
    let admin_port = json!({"name": "admin", "port": 81, "protocol": "TCP"});
    admin.apply(path, "one", &service(json!([web]))).await.expect(201);
    let both = admin.apply(path, "two", &service(json!([admin_port]))).await.expect(200);
    let ports = |object: &Value| -> Vec<i64> {
        object["spec"]["ports"].as_array().unwrap().iter().map(|port| port["port"].as_i64().unwrap()).collect()
    };
    assert_eq!(ports(&both), [80, 81]);
    let said =
        admin.apply(path, "two", &service(json!([{"name": "www", "port": 80, "protocol": "TCP"}, admin_port]))).await;
    let said = said.refused(409, "Conflict");
    assert_eq!(said, "Apply failed with 1 conflict: conflict with \"one\": .spec.ports[port=80,protocol=\"TCP\"].name");
    let rest =
        admin.apply(path, "one", &service(json!([{"name": "new", "port": 90, "protocol": "TCP"}]))).await.expect(200);
    assert_eq!(ports(&rest), [81, 90]);
    let twice = service(json!([web, web]));
    let reply = admin.apply(path, "one", &twice).await;
    assert!(matches!(reply.code, 400 | 422 | 500), "{}", reply.body);
    assert_ne!(reply.code, 500, "{}", reply.body);
}

#[tokio::test]
async fn a_patch_brings_the_status_along_where_it_is_asked_to() {
    let world = World::new().await;
    let admin = world.admin();
    let path = format!("{SETS}/s");
    admin.post(SETS, &stateful_set("s")).await.expect(201);
    let revision = world.store.revision();
    let both = json!({"spec": {"replicas": 7}, "status": {"replicas": 3, "observedGeneration": 1}});
    let with = format!("{path}?withStatus=true&fieldManager=c");
    let now = admin.patch(&with, MERGE, &both).await.expect(200);
    assert_eq!((&now["spec"]["replicas"], &now["status"]["replicas"]), (&json!(7), &json!(3)));
    assert_eq!(now["metadata"]["generation"], 2);
    let owners = managers(&now);
    assert!(owners.contains(&"c Update".to_owned()) && owners.contains(&"c Update/status".to_owned()), "{owners:?}");
    // Both are one change with one revision.
    assert_eq!(world.store.revision(), revision + 1);
    // The rules of spec and status both apply, and a violation leaves both unchanged.
    for refused in [
        json!({"spec": {"replicas": -1}, "status": {"replicas": 5}}),
        json!({"spec": {"replicas": 5}, "status": {"replicas": -1}}),
    ] {
        admin.patch(&with, MERGE, &refused).await.refused(422, "Invalid");
        assert_eq!(admin.get(&path).await.expect(200), now);
    }
    // Without the option, and for users without permission for the status, the status is ignored.
    let unasked = admin.patch(&path, MERGE, &both).await.expect(200);
    assert_eq!(unasked["status"]["replicas"], 3);
    let role = json!({"metadata": {"name": "spec"}, "rules": [{"apiGroups": ["apps"], "resources": ["statefulsets"], "verbs": ["patch"]}]});
    admin.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await.expect(201);
    let binding = json!({"metadata": {"name": "spec"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "spec"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "kim"}]});
    admin.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await.expect(201);
    let more = json!({"spec": {"replicas": 8}, "status": {"replicas": 4}});
    let half = world.as_user("kim", &[]).patch(&with, MERGE, &more).await.expect(200);
    assert_eq!((&half["spec"]["replicas"], &half["status"]["replicas"]), (&json!(8), &json!(3)));
}

#[tokio::test]
async fn status_has_its_own_owners() {
    let world = World::new().await;
    let admin = world.admin();
    let path = format!("{SETS}/s");
    let mut set = stateful_set("s");
    admin.apply(&path, "user", &set).await.expect(201);
    set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "s"}, "spec": {"replicas": 9},
        "status": {"replicas": 1, "observedGeneration": 1}});
    let now = admin.apply(&format!("{path}/status"), "controller", &set).await.expect(200);
    assert_eq!((&now["status"]["replicas"], &now["spec"]["replicas"]), (&json!(1), &json!(2)));
    assert_eq!(managers(&now), ["controller Apply/status", "user Apply"]);
    assert_eq!(now["metadata"]["generation"], 1);
    let patched = admin
        .patch(&format!("{path}/status?fieldManager=c2"), MERGE, &json!({"status": {"readyReplicas": 1}}))
        .await
        .expect(200);
    assert!(managers(&patched).contains(&"c2 Update/status".to_owned()));
    admin
        .apply(
            &format!("{SETS}/none/status"),
            "c",
            &json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "none"}}),
        )
        .await
        .refused(404, "NotFound");
    // Scaling is recorded under the subresource.
    let scaled = admin.patch(&format!("{path}/scale?fieldManager=hpa"), MERGE, &json!({"spec": {"replicas": 4}})).await;
    scaled.expect(200);
    let now = admin.get(&path).await.expect(200);
    assert!(managers(&now).contains(&"hpa Update/scale".to_owned()), "{:?}", managers(&now));
    let said = admin.apply(&path, "user", &stateful_set("s")).await.refused(409, "Conflict");
    assert!(
        said.contains("conflict with \"hpa\" with subresource \"scale\"") && said.contains(".spec.replicas"),
        "{said}"
    );
}

#[tokio::test]
async fn an_update_keeps_and_clears_the_record_of_owners() {
    let world = World::new().await;
    let admin = world.admin();
    let path = format!("{CONFIG_MAPS}/a");
    let made =
        admin.header("user-agent", "kubectl/v1.35 (linux)").post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    assert_eq!(managers(&made), ["kubectl Update"]);
    // An object without managedFields keeps them; an empty list clears them.
    let kept = admin.put(&path, &config_map("a")).await.expect(200);
    assert_eq!(managers(&kept), ["kubectl Update"]);
    let cleared = admin.patch(&path, MERGE, &json!({"metadata": {"managedFields": [{}]}})).await.expect(200);
    assert!(cleared["metadata"].get("managedFields").is_none(), "{cleared}");
    // At the next apply, the fields have no owner.
    let now = admin.apply(&path, "one", &applied(json!({"key": "other"}))).await;
    let now = if now.code == 409 {
        admin.apply(&format!("{path}?force=true"), "one", &applied(json!({"key": "other"}))).await
    } else {
        now
    };
    assert_eq!(now.expect(200)["data"]["key"], "other");
}

#[tokio::test]
async fn fields_that_do_not_belong() {
    let world = World::new().await;
    let admin = world.admin();
    let body = r#"{"metadata": {"name": "f", "colour": "red"}, "data": {"a": "1", "a": "2"}, "extra": {"b": 1}}"#;
    let post = |query: &'static str| {
        let admin = admin.clone();
        async move { admin.send("POST", &format!("{CONFIG_MAPS}?dryRun=All{query}"), "application/json", body).await }
    };
    let strict = post("&fieldValidation=Strict").await;
    let said = strict.refused(400, "BadRequest");
    for part in [
        "strict decoding error: ",
        "unknown field \"extra\"",
        "unknown field \"metadata.colour\"",
        "duplicate field \"data.a\"",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    for query in ["", "&fieldValidation=Warn"] {
        let warned = post(query).await;
        let warnings = warned.warnings();
        for part in [
            "299 - \"unknown field \\\"extra\\\"\"",
            "299 - \"unknown field \\\"metadata.colour\\\"\"",
            "299 - \"duplicate field \\\"data.a\\\"\"",
        ] {
            assert!(warnings.contains(&part.to_owned()), "{part}: {warnings:?}");
        }
        let made = warned.expect(201);
        assert!(made.get("extra").is_none());
        assert_eq!(made["data"]["a"], "2", "the last one counts");
    }
    let ignored = post("&fieldValidation=Ignore").await;
    assert!(ignored.warnings().is_empty());
    assert!(ignored.expect(201).get("extra").is_none());
    post("&fieldValidation=Maybe").await.refused(422, "Invalid");

    // The same for updates and patches.
    admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let path = format!("{CONFIG_MAPS}/a");
    let mut wrong = applied(json!({}));
    wrong["extra"] = json!(1);
    let strict = format!("{path}?fieldValidation=Strict");
    for reply in [
        admin.put(&strict, &wrong).await,
        admin.patch(&strict, MERGE, &json!({"extra": 1})).await,
        admin.patch(&strict, STRATEGIC, &json!({"extra": 1})).await,
        admin.patch(&strict, JSON_PATCH, &json!([{"op": "add", "path": "/extra", "value": 1}])).await,
    ] {
        assert_eq!(reply.code / 100, 4, "{}: {}", reply.asked, reply.body);
        assert!(text(&reply.body, "/message").contains("unknown field \"extra\""), "{}", reply.body);
    }
    let warned = admin.patch(&path, MERGE, &json!({"extra": 1})).await;
    assert_eq!(warned.warnings(), ["299 - \"unknown field \\\"extra\\\"\""]);
}

#[tokio::test]
async fn conditions_merge_by_their_type() {
    let world = World::new().await;
    let admin = world.admin();
    admin.post(PODS, &scheduled("p")).await.expect(201);
    let path = format!("{PODS}/p/status");
    let condition = |kind: &str, status: &str| json!({"status": {"conditions": [{"type": kind, "status": status}]}});
    admin.patch(&path, STRATEGIC, &condition("Ready", "False")).await.expect(200);
    admin.patch(&path, STRATEGIC, &condition("Initialized", "True")).await.expect(200);
    let now = admin.patch(&path, STRATEGIC, &condition("Ready", "True")).await.expect(200);
    let mut seen: Vec<String> = now["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|condition| format!("{} {}", text(condition, "/type"), text(condition, "/status")))
        .collect();
    seen.sort();
    assert_eq!(seen, ["Initialized True", "Ready True"]);
    // Two controllers apply one condition each.
    let applied = |kind: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "status": {"conditions": [{"type": kind, "status": "True"}]}})
    };
    admin.apply(&path, "one", &applied("x.io/One")).await.expect(200);
    admin.apply(&path, "two", &applied("x.io/Two")).await.expect(200);
    let none = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}});
    let now = admin.apply(&path, "one", &none).await.expect(200);
    let kinds: Vec<String> =
        now["status"]["conditions"].as_array().unwrap().iter().map(|condition| text(condition, "/type")).collect();
    assert!(kinds.contains(&"x.io/Two".to_owned()) && !kinds.contains(&"x.io/One".to_owned()), "{kinds:?}");
}

/// kubectl apply without --server-side: a three-way merge with the last-applied annotation, sent as strategic merge
/// patch.
#[tokio::test]
async fn what_kubectl_apply_sends() {
    let world = World::new().await;
    let admin = world.admin();
    let mut set = stateful_set("web");
    set["spec"]["template"]["spec"]["containers"][0]["env"] =
        json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]);
    set["spec"]["template"]["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "name": "http"}]);
    admin.post(SETS, &set).await.expect(201);
    let patch = json!({"spec": {"template": {"spec": {
        "$setElementOrder/containers": [{"name": "main"}],
        "containers": [{"name": "main",
            "$setElementOrder/env": [{"name": "B"}, {"name": "C"}],
            "env": [{"$patch": "delete", "name": "A"}, {"name": "C", "value": "3"}],
            "$setElementOrder/ports": [{"containerPort": 81}],
            "ports": [{"containerPort": 81, "name": "http"}, {"$patch": "delete", "containerPort": 80}]}]}}}});
    let now = admin.patch(&format!("{SETS}/web"), STRATEGIC, &patch).await.expect(200);
    let main = &now["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(main["env"], json!([{"name": "B", "value": "2"}, {"name": "C", "value": "3"}]));
    assert_eq!(main["ports"], json!([{"containerPort": 81, "name": "http", "protocol": "TCP"}]));
    assert_eq!(now["metadata"]["generation"], 2);
}
