//! CustomResourceDefinitions, from creation to removal.

use crate::support::*;
use serde_json::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const DATABASES: &str = "/apis/x.io/v1/namespaces/default/databases";

fn schema() -> Value {
    json!({"type": "object", "required": ["spec"], "properties": {
        "spec": {"type": "object", "required": ["engine"], "properties": {
            "engine": {"type": "string", "enum": ["pg", "my"]},
            "replicas": {"type": "integer", "minimum": 0, "maximum": 9, "default": 1},
            "max": {"type": "integer"},
            "size": {"x-kubernetes-int-or-string": true},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "users": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "role": {"type": "string", "default": "reader"}}}},
        }, "x-kubernetes-validations": [
            {"rule": "!has(self.max) || self.replicas <= self.max", "message": "replicas must not exceed max"},
            {"rule": "self.engine == oldSelf.engine", "message": "engine cannot change"},
        ]},
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "selector": {"type": "string"}, "phase": {"type": "string"}}},
    }})
}

fn definition() -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "databases.x.io"},
        "spec": {"group": "x.io", "scope": "Namespaced",
            "names": {"plural": "databases", "singular": "database", "kind": "Database", "shortNames": ["db"], "categories": ["all"]},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema()},
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                    "labelSelectorPath": ".status.selector"}},
                "selectableFields": [{"jsonPath": ".spec.engine"}],
                "additionalPrinterColumns": [{"name": "Engine", "type": "string", "jsonPath": ".spec.engine"},
                    {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]}]}})
}

fn database(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "x.io/v1", "kind": "Database", "metadata": {"name": name}, "spec": spec})
}

async fn world() -> (World, Api) {
    let world = World::new().await;
    let admin = world.admin();
    admin.post(DEFINITIONS, &definition()).await.expect(201);
    (world, admin)
}

#[tokio::test]
async fn a_definition_serves_at_once() {
    let world = World::new().await;
    let admin = world.admin();
    admin.get(DATABASES).await.refused(404, "NotFound");
    let made = admin.post(DEFINITIONS, &definition()).await.expect(201);
    let conditions: Vec<(String, String)> = made["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|condition| (text(condition, "/type"), text(condition, "/status")))
        .collect();
    assert!(conditions.contains(&("Established".into(), "True".into())), "{conditions:?}");
    assert!(conditions.contains(&("NamesAccepted".into(), "True".into())), "{conditions:?}");
    assert_eq!(made["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(made["status"]["acceptedNames"]["listKind"], "DatabaseList");
    let list = admin.get(DATABASES).await.expect(200);
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("DatabaseList"), &json!("x.io/v1")));
    let resources = admin.get("/apis/x.io/v1").await.expect(200);
    let names: Vec<String> =
        resources["resources"].as_array().unwrap().iter().map(|resource| text(resource, "/name")).collect();
    assert_eq!(names, ["databases", "databases/scale", "databases/status"]);
    assert_eq!(admin.get("/apis/x.io").await.expect(200)["preferredVersion"]["groupVersion"], "x.io/v1");
    // A definition must not use the names of another group's kinds, and must be valid.
    let cases = [
        ("/metadata/name", json!("wrong.x.io")),
        ("/spec/scope", json!("Galaxy")),
        ("/spec/versions", json!([])),
        ("/spec/versions/0/storage", json!(false)),
        ("/spec/versions/0/schema", Value::Null),
        ("/spec/versions/0/schema/openAPIV3Schema/type", json!("string")),
        ("/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/engine/type", json!("text")),
        ("/spec/versions/0/subresources/scale/specReplicasPath", json!(".status.x")),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations/0/rule",
            json!("self.nothing +"),
        ),
    ];
    for (at, value) in cases {
        let mut wrong = definition();
        wrong["metadata"]["name"] = json!("databases.x.io");
        *wrong.pointer_mut(at).unwrap() = value.clone();
        let reply = admin.post(&format!("{DEFINITIONS}?dryRun=All"), &wrong).await;
        assert!(matches!(reply.code, 422), "{at} {value}: {} {}", reply.code, reply.body);
    }
}

#[tokio::test]
async fn objects_are_validated_pruned_and_defaulted() {
    let (_world, admin) = world().await;
    let made = admin
        .post(
            DATABASES,
            &database(
                "a",
                json!({"engine": "pg", "junk": 1, "free": {"any": [1, {"x": null}]}, "size": "1Gi",
        "users": [{"name": "u"}]}),
            ),
        )
        .await;
    assert_eq!(made.warnings(), ["299 - \"unknown field \\\"spec.junk\\\"\""]);
    let made = made.expect(201);
    assert_eq!(
        made["spec"],
        json!({"engine": "pg", "replicas": 1, "free": {"any": [1, {"x": null}]}, "size": "1Gi", "users": [{"name": "u", "role": "reader"}]})
    );
    assert_eq!(made["metadata"]["generation"], 1);
    let cases = [
        (json!({}), "spec.engine: Required value"),
        (json!({"engine": "ora"}), "spec.engine: Unsupported value: \"ora\": supported values: \"pg\", \"my\""),
        (
            json!({"engine": 5}),
            "spec.engine: Invalid value: \"integer\": spec.engine in body must be of type string: \"integer\"",
        ),
        (
            json!({"engine": "pg", "replicas": 10}),
            "spec.replicas: Invalid value: 10: spec.replicas in body should be less than or equal to 9",
        ),
        (
            json!({"engine": "pg", "users": [{"name": "a"}, {"name": "a"}]}),
            "spec.users[1]: Duplicate value: {\"name\":\"a\"}",
        ),
        (
            json!({"engine": "pg", "replicas": 3, "max": 2}),
            "spec: Invalid value: \"object\": replicas must not exceed max",
        ),
    ];
    for (spec, message) in cases {
        let said = admin.post(DATABASES, &database("b", spec.clone())).await.refused(422, "Invalid");
        assert!(said.starts_with("Database.x.io \"b\" is invalid: "), "{said}");
        assert!(said.contains(message), "{spec}: {said}");
    }
    let said =
        admin.patch(&format!("{DATABASES}/a"), MERGE, &json!({"spec": {"engine": "my"}})).await.refused(422, "Invalid");
    assert!(said.contains("engine cannot change"), "{said}");
    let strict = admin
        .post(&format!("{DATABASES}?fieldValidation=Strict"), &database("c", json!({"engine": "pg", "junk": 1})))
        .await;
    assert!(strict.refused(400, "BadRequest").contains("unknown field \"spec.junk\""));
    let mut nameless = made.clone();
    nameless["metadata"]["resourceVersion"] = Value::Null;
    let said = admin.put(&format!("{DATABASES}/a"), &nameless).await.refused(422, "Invalid");
    assert!(said.contains("metadata.resourceVersion: Invalid value: 0: must be specified for an update"), "{said}");
    admin.patch(&format!("{DATABASES}/a"), STRATEGIC, &json!({})).await.refused(415, "UnsupportedMediaType");
}

#[tokio::test]
async fn status_scale_columns_and_fields() {
    let (_world, admin) = world().await;
    admin.post(DATABASES, &database("a", json!({"engine": "pg", "replicas": 2}))).await.expect(201);
    admin.post(DATABASES, &database("b", json!({"engine": "my"}))).await.expect(201);
    let path = format!("{DATABASES}/a");
    // Status is separate from spec, and a status write does not change metadata.
    let patch = json!({"metadata": {"labels": {"x": "y"}}, "spec": {"replicas": 7}, "status": {"replicas": 2, "selector": "app=a", "junk": 1}});
    let now = admin.patch(&format!("{path}/status"), MERGE, &patch).await.expect(200);
    assert_eq!((&now["spec"]["replicas"], &now["status"]), (&json!(2), &json!({"replicas": 2, "selector": "app=a"})));
    assert_eq!(now["metadata"]["generation"], 1);
    assert!(now["metadata"].get("labels").is_none(), "{}", now["metadata"]);
    let now = admin.patch(&path, MERGE, &json!({"spec": {"replicas": 3}, "status": {"replicas": 9}})).await.expect(200);
    assert_eq!((&now["status"]["replicas"], &now["metadata"]["generation"]), (&json!(2), &json!(2)));
    let scale = admin.get(&format!("{path}/scale")).await.expect(200);
    assert_eq!(
        (&scale["spec"]["replicas"], &scale["status"]),
        (&json!(3), &json!({"replicas": 2, "selector": "app=a"}))
    );
    admin.patch(&format!("{path}/scale"), MERGE, &json!({"spec": {"replicas": 5}})).await.expect(200);
    assert_eq!(admin.get(&path).await.expect(200)["spec"]["replicas"], 5);
    admin.patch(&format!("{path}/scale"), MERGE, &json!({"spec": {"replicas": 50}})).await.refused(422, "Invalid");
    let table = admin.header("accept", TABLE).get(DATABASES).await.expect(200);
    let columns: Vec<String> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|column| text(column, "/name")).collect();
    assert_eq!(columns, ["Name", "Engine", "Replicas", "Age"]);
    assert_eq!(table["rows"][0]["cells"], json!(["a", "pg", 5, "0s"]));
    let chosen = admin.get(&format!("{DATABASES}?fieldSelector=spec.engine%3Dmy")).await.expect(200);
    assert_eq!(names(&chosen), ["b"]);
    admin.get(&format!("{DATABASES}?fieldSelector=spec.replicas%3D1")).await.refused(400, "BadRequest");
    // Server-side apply uses the schema.
    let applied = database("a", json!({"engine": "pg", "users": [{"name": "x"}]}));
    admin.apply(&path, "one", &applied).await.expect(200);
    let applied = database("a", json!({"engine": "pg", "users": [{"name": "y"}]}));
    let now = admin.apply(&path, "two", &applied).await.expect(200);
    assert_eq!(now["spec"]["users"].as_array().unwrap().len(), 2);
}

/// An update of a custom object needs a resourceVersion that its writer has seen; 0 is not one.
#[tokio::test]
async fn an_update_names_its_version() {
    let (_world, admin) = world().await;
    let made = admin.post(DATABASES, &database("a", json!({"engine": "pg"}))).await.expect(201);
    for place in ["", "/status"] {
        let path = format!("{DATABASES}/a{place}");
        let now = admin.get(&path).await.expect(200);
        for version in [Value::Null, json!(""), json!("0"), json!("00")] {
            let mut unseen = now.clone();
            unseen["metadata"]["resourceVersion"] = version.clone();
            let reply = admin.put(&path, &unseen).await;
            let said = reply.refused(422, "Invalid");
            let why = "metadata.resourceVersion: Invalid value: 0: must be specified for an update";
            assert_eq!(said, format!("Database.x.io \"a\" is invalid: {why}"), "{place} {version}");
        }
    }
    admin.put(&format!("{DATABASES}/a"), &made).await.expect(200);
    // Most built-in kinds accept an update without it.
    admin.post(CONFIG_MAPS, &config_map("m")).await.expect(201);
    let mut map = config_map("m");
    map["metadata"]["resourceVersion"] = json!("0");
    admin.put(&format!("{CONFIG_MAPS}/m"), &map).await.expect(200);
}

/// Small requests cannot build an object above the size limit; an object at the limit can still be reduced and
/// deleted.
#[tokio::test]
async fn an_object_grows_to_its_limit() {
    let (world, admin) = world().await;
    let mut large = database("a", json!({"engine": "pg"}));
    large["metadata"]["finalizers"] = json!(["x.io/a", "x.io/b"]);
    admin.post(DATABASES, &large).await.expect(201);
    let path = format!("{DATABASES}/a");
    let grow = |at: usize, bytes: usize| json!({"spec": {"free": {format!("f-{at}"): "x".repeat(bytes)}}});
    for at in 0..2 {
        admin.patch(&path, MERGE, &grow(at, 1 << 20)).await.expect(200);
    }
    let before = world.store.revision();
    for query in ["", "?dryRun=All"] {
        let said = admin.patch(&format!("{path}{query}"), MERGE, &grow(2, 1 << 20)).await;
        let said = said.refused(413, "RequestEntityTooLarge");
        assert!(
            said.starts_with("databases.x.io \"a\" would take 31") && said.ends_with("the limit is 3145728"),
            "{said}"
        );
        let mut whole = database("b", json!({"engine": "pg", "free": {}}));
        for at in 0..3_030 {
            // Managed fields make the object larger than what was sent.
            whole["spec"]["free"][format!("f-{at}")] = json!("x".repeat(1020));
        }
        admin.post(&format!("{DATABASES}{query}"), &whole).await.refused(413, "RequestEntityTooLarge");
    }
    assert_eq!(world.store.revision(), before);
    // Up to the limit, minus the possible length of numbers.
    let room = 3 * (1 << 20) - world.store.get("/x.io/databases/default/a").unwrap().value.len();
    admin.patch(&path, MERGE, &grow(2, room - 200)).await.expect(200);
    admin
        .patch(&path, MERGE, &json!({"spec": {"free": {"g": "x".repeat(200)}}}))
        .await
        .refused(413, "RequestEntityTooLarge");
    let marked = admin.delete(&path).await.expect(200);
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    let held = json!({"metadata": {"finalizers": ["x.io/b"], "annotations": {"why": "y".repeat(300)}}});
    admin.patch(&path, MERGE, &held).await.expect(200);
    admin.patch(&path, MERGE, &grow(3, 1 << 20)).await.refused(413, "RequestEntityTooLarge");
    admin.patch(&path, MERGE, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    admin.get(&path).await.refused(404, "NotFound");
}

/// Existing objects get a new default when they are read, also by a patch right after their write.
#[tokio::test]
async fn a_new_default_is_there_for_patches() {
    let (_world, admin) = world().await;
    admin.post(DATABASES, &database("a", json!({"engine": "pg"}))).await.expect(201);
    let mut changed = admin.get(&format!("{DEFINITIONS}/databases.x.io")).await.expect(200);
    let properties =
        &mut changed["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    properties["max"]["default"] = json!(7);
    admin.put(&format!("{DEFINITIONS}/databases.x.io"), &changed).await.expect(200);
    let path = format!("{DATABASES}/a");
    let patch =
        json!([{"op": "test", "path": "/spec/max", "value": 7}, {"op": "replace", "path": "/spec/max", "value": 8}]);
    let patched = admin.patch(&path, "application/json-patch+json", &patch).await.expect(200);
    assert_eq!(patched["spec"]["max"], 8);
}

#[tokio::test]
async fn two_versions_of_one_object() {
    let (world, admin) = world().await;
    admin.post(DATABASES, &database("a", json!({"engine": "pg"}))).await.expect(201);
    let mut changed = admin.get(&format!("{DEFINITIONS}/databases.x.io")).await.expect(200);
    let mut second = changed["spec"]["versions"][0].clone();
    second["name"] = json!("v2");
    changed["spec"]["versions"][0]["storage"] = json!(false);
    changed["spec"]["versions"].as_array_mut().unwrap().push(second);
    let mut watching = admin.watch(&format!("{DATABASES}?watch=1&resourceVersion={}", world.store.revision())).await;
    let now = admin.put(&format!("{DEFINITIONS}/databases.x.io"), &changed).await.expect(200);
    assert_eq!(now["status"]["storedVersions"], json!(["v1", "v2"]));
    assert_eq!(now["metadata"]["generation"], 2);
    let path2 = "/apis/x.io/v2/namespaces/default/databases";
    let old = admin.get(&format!("{path2}/a")).await.expect(200);
    assert_eq!(old["apiVersion"], "x.io/v2");
    let mut new = database("b", json!({"engine": "my"}));
    new["apiVersion"] = json!("x.io/v2");
    let made = admin.post(path2, &new).await.expect(201);
    assert_eq!(made["apiVersion"], "x.io/v2");
    // A watch from before the change ends, instead of sending another version. The next watch continues where it was.
    assert_eq!(watching.maybe().await, None);
    let mut watching = admin.watch(&format!("{DATABASES}?watch=1&resourceVersion={}", version(&now))).await;
    let event = watching.next().await;
    assert_eq!((text(&event, "/type").as_str(), text(&event, "/object/apiVersion").as_str()), ("ADDED", "x.io/v1"));
    let list = admin.get(DATABASES).await.expect(200);
    assert!(list["items"].as_array().unwrap().iter().all(|item| item["apiVersion"] == "x.io/v1"), "{list}");
    // The object was written before, in the form of the other version.
    let patched = admin.patch(&format!("{path2}/a"), MERGE, &json!({"spec": {"max": 3}})).await.expect(200);
    assert_eq!((&patched["apiVersion"], &patched["spec"]["max"]), (&json!("x.io/v2"), &json!(3)));
    // The storage version cannot be removed.
    let mut dropped = now.clone();
    dropped["spec"]["versions"].as_array_mut().unwrap().remove(0);
    let said = admin.put(&format!("{DEFINITIONS}/databases.x.io"), &dropped).await.refused(422, "Invalid");
    assert!(said.contains("status.storedVersions[0]: Invalid value: \"v1\": "), "{said}");
}

#[tokio::test]
async fn a_definition_changes_while_in_use() {
    let (_world, admin) = world().await;
    let made = admin.post(DATABASES, &database("a", json!({"engine": "pg", "replicas": 5}))).await.expect(201);
    let mut watching = admin.watch(&format!("{DATABASES}?watch=1")).await;
    assert_eq!(watching.word().await, "ADDED a");
    let chosen = admin.get(&format!("{DATABASES}?fieldSelector=spec.engine%3Dpg")).await.expect(200);
    assert_eq!(names(&chosen), ["a"]);
    let at = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let patch = json!([
        {"op": "replace", "path": format!("{at}/replicas/maximum"), "value": 3},
        {"op": "add", "path": format!("{at}/colour"), "value": {"type": "string", "default": "blue"}},
        {"op": "add", "path": "/spec/versions/0/selectableFields/0", "value": {"jsonPath": ".spec.colour"}},
    ]);
    admin.patch(&format!("{DEFINITIONS}/databases.x.io"), JSON_PATCH, &patch).await.expect(200);
    // Stored objects are served with new defaults, and may stay unchanged even if they are no longer valid.
    let now = admin.get(&format!("{DATABASES}/a")).await.expect(200);
    assert_eq!(now["spec"]["colour"], "blue", "{}", made["spec"]);
    let chosen = admin.get(&format!("{DATABASES}?fieldSelector=spec.colour%3Dblue")).await.expect(200);
    assert_eq!(names(&chosen), ["a"]);
    admin.patch(&format!("{DATABASES}/a"), MERGE, &json!({"metadata": {"labels": {"x": "y"}}})).await.expect(200);
    assert_eq!(watching.maybe().await, None, "a watch of the old shape ends");
    admin.post(DATABASES, &database("b", json!({"engine": "pg", "replicas": 5}))).await.refused(422, "Invalid");
    let chosen = admin.get(&format!("{DATABASES}?fieldSelector=spec.colour%3Dblue")).await.expect(200);
    assert_eq!(names(&chosen), ["a"]);
    let chosen = admin.get(&format!("{DATABASES}?fieldSelector=spec.engine%3Dpg")).await.expect(200);
    assert_eq!(names(&chosen), ["a"]);
}

#[tokio::test]
async fn a_deleted_definition_takes_its_objects_along() {
    let (world, admin) = world().await;
    world.namespace("other").await;
    admin.post(DATABASES, &database("a", json!({"engine": "pg"}))).await.expect(201);
    admin.post("/apis/x.io/v1/namespaces/other/databases", &database("b", json!({"engine": "pg"}))).await.expect(201);
    let mut held = database("held", json!({"engine": "pg"}));
    held["metadata"]["finalizers"] = json!(["x.io/backup"]);
    admin.post(DATABASES, &held).await.expect(201);
    let mut watching = admin.watch(&format!("{DEFINITIONS}?watch=1&resourceVersion={}", world.store.revision())).await;
    let mut objects = admin.watch("/apis/x.io/v1/databases?watch=1").await;
    for _ in 0..3 {
        assert_eq!(objects.next().await["type"], "ADDED");
    }
    let marked = admin.delete(&format!("{DEFINITIONS}/databases.x.io")).await.expect(200);
    assert_eq!(marked["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    assert_eq!(watching.next().await["type"], "MODIFIED");
    let mut gone = vec![objects.word().await, objects.word().await, objects.word().await];
    gone.sort();
    assert_eq!(gone, ["DELETED a", "DELETED b", "MODIFIED held"]);
    let refused = admin.post(DATABASES, &database("late", json!({"engine": "pg"}))).await;
    assert_eq!(refused.code, 405, "{}", refused.body);
    admin.patch(&format!("{DATABASES}/held"), MERGE, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    loop {
        if watching.next().await["type"] == "DELETED" {
            break;
        }
    }
    admin.get(DATABASES).await.refused(404, "NotFound");
    admin.get("/apis/x.io/v1").await.refused(404, "NotFound");
    // A new definition of the same name starts without objects.
    admin.post(DEFINITIONS, &definition()).await.expect(201);
    assert!(names(&admin.get(DATABASES).await.expect(200)).is_empty());
}

/// Also if no version is served, so that no client can delete the objects.
#[tokio::test]
async fn objects_of_versions_that_are_not_served_go_with_their_definition() {
    let (world, admin) = world().await;
    for name in ["a", "b"] {
        admin.post(DATABASES, &database(name, json!({"engine": "pg"}))).await.expect(201);
    }
    let path = format!("{DEFINITIONS}/databases.x.io");
    let mut hidden = admin.get(&path).await.expect(200);
    hidden["spec"]["versions"][0]["served"] = json!(false);
    let hidden = admin.put(&path, &hidden).await.expect(200);
    admin.get(DATABASES).await.refused(404, "NotFound");
    assert_eq!(world.store.count("/x.io/databases/"), 2);
    let mut watching = admin.watch(&format!("{DEFINITIONS}?watch=1&resourceVersion={}", version(&hidden))).await;
    admin.delete(&path).await.expect(200);
    while watching.next().await["type"] != "DELETED" {}
    assert_eq!(world.store.count("/x.io/databases/"), 0);
}

#[tokio::test]
async fn names_that_are_taken_wait_until_they_are_free() {
    let (_world, admin) = world().await;
    let mut rival = definition();
    rival["metadata"]["name"] = json!("stores.x.io");
    rival["spec"]["names"] = json!({"plural": "stores", "kind": "Store", "shortNames": ["db"]});
    let made = admin.post(DEFINITIONS, &rival).await.expect(201);
    let accepted = |object: &Value| {
        object["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .find(|condition| condition["type"] == "NamesAccepted")
            .unwrap()
            .clone()
    };
    assert_eq!(accepted(&made)["status"], "False");
    assert_eq!(accepted(&made)["reason"], "ShortNamesConflict");
    let path = format!("{DEFINITIONS}/stores.x.io");
    let mut watching = admin.watch(&format!("{path}?watch=1&resourceVersion={}", version(&made))).await;
    admin.delete(&format!("{DEFINITIONS}/databases.x.io")).await.expect(200);
    let now = watching.next().await["object"].clone();
    assert_eq!(accepted(&now)["status"], "True", "{now}");
    admin.get("/apis/x.io/v1/namespaces/default/stores").await.expect(200);
}

/// A definition with the name of a built-in kind, which any user with permission for definitions can create.
fn shadow(group: &str, plural: &str, kind: &str) -> Value {
    let mut shadow = definition();
    let approved = json!({"api-approved.kubernetes.io": "unapproved, for a test"});
    shadow["metadata"] = json!({"name": format!("{plural}.{group}"), "annotations": approved});
    shadow["spec"]["group"] = json!(group);
    shadow["spec"]["scope"] = json!("Cluster");
    shadow["spec"]["names"] = json!({"plural": plural, "kind": kind});
    shadow
}

/// Objects of a built-in kind do not belong to such a definition, and stay when it is deleted.
#[tokio::test]
async fn a_definition_named_like_a_built_in_kind_takes_nothing_along() {
    let world = World::new().await;
    let admin = world.admin();
    let class = json!({"metadata": {"name": "kept"}, "provisioner": "x.io/driver", "volumeBindingMode": "WaitForFirstConsumer"});
    admin.post("/apis/storage.k8s.io/v1/storageclasses", &class).await.expect(201);
    for (group, plural, kind) in [
        ("storage.k8s.io", "storageclasses", "Klass"),
        ("rbac.authorization.k8s.io", "clusterroles", "Role2"),
        ("apiextensions.k8s.io", "customresourcedefinitions", "Definition"),
    ] {
        let before = names(&admin.get(&format!("/apis/{group}/v1/{plural}")).await.expect(200));
        let shadow = shadow(group, plural, kind);
        let made = admin.post(DEFINITIONS, &shadow).await.expect(201);
        assert_eq!(condition(&made, "Established"), "False", "{made}");
        let path = format!("{DEFINITIONS}/{plural}.{group}");
        let mut watching = admin.watch(&format!("{path}?watch=1&resourceVersion={}", version(&made))).await;
        admin.delete(&path).await.expect(200);
        while watching.next().await["type"] != "DELETED" {}
        assert_eq!(names(&admin.get(&format!("/apis/{group}/v1/{plural}")).await.expect(200)), before, "{plural}");
    }
}

/// A user who may only write the status must not decide whether and under which names a definition is served.
#[tokio::test]
async fn a_forged_status_serves_nothing() {
    let world = World::new().await;
    let admin = world.admin();
    let group = "rbac.authorization.k8s.io";
    for (plural, accepted) in [("clusterroles", "clusterroles"), ("others", "clusterroles")] {
        let mut forged = admin.post(DEFINITIONS, &shadow(group, plural, "ClusterRole")).await.expect(201);
        let now = forged["metadata"]["creationTimestamp"].clone();
        let yes = |kind: &str| json!({"type": kind, "status": "True", "reason": "Forged", "message": "", "lastTransitionTime": now});
        forged["status"]["conditions"] = json!([yes("Established"), yes("NamesAccepted"), yes("Mine")]);
        forged["status"]["acceptedNames"] = json!({"plural": accepted, "kind": "Foo", "listKind": "FooList"});
        let path = format!("{DEFINITIONS}/{plural}.{group}");
        let written = admin.put(&format!("{path}/status"), &forged).await.expect(200);
        assert_eq!(condition(&written, "Established"), "False", "{written}");
        assert_eq!(condition(&written, "NamesAccepted"), "False", "{written}");
        assert_eq!(condition(&written, "Mine"), "True", "what is not the server's word is kept");
        assert_ne!(written["status"]["acceptedNames"]["kind"], "Foo");
        let roles = admin.get(&format!("/apis/{group}/v1/clusterroles")).await.expect(200);
        assert_eq!(roles["kind"], "ClusterRoleList");
        assert!(names(&roles).contains(&"cluster-admin".to_owned()));
        admin.delete(&path).await.expect(200);
    }
}

fn condition(definition: &Value, kind: &str) -> String {
    let conditions = definition["status"]["conditions"].as_array().expect("conditions");
    conditions.iter().find(|it| it["type"] == kind).map(|it| text(it, "/status")).unwrap_or_default()
}

#[tokio::test]
async fn openapi_tells_about_custom_kinds() {
    let (_world, admin) = world().await;
    let index = admin.get("/openapi/v3").await.expect(200);
    let url = text(&index["paths"]["apis/x.io/v1"], "/serverRelativeURL");
    let document = admin.get(&url).await.expect(200);
    let schema = &document["components"]["schemas"]["io.x.v1.Database"];
    assert_eq!(schema["properties"]["spec"]["properties"]["engine"]["type"], "string", "{schema}");
    assert_eq!(
        schema["x-kubernetes-group-version-kind"][0],
        json!({"group": "x.io", "kind": "Database", "version": "v1"})
    );
    let old = admin.get("/openapi/v2").await.expect(200);
    assert_eq!(old["definitions"]["io.x.v1.Database"]["properties"]["spec"]["properties"]["engine"]["type"], "string");
    admin.delete(&format!("{DEFINITIONS}/databases.x.io")).await.expect(200);
}
