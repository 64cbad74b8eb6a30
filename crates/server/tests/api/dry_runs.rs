//! Compares the response of a dry run with that of the real write, for every kind.

use crate::support::*;
use serde_json::{Value, json};

/// An object of every stored kind, as users write it.
const EVERY_KIND: &str = include_str!("../../../mainstay/tests/manifests/every_kind.yaml");

/// The objects of the manifest, with the path of their collection.
fn every_object(world: &World) -> Vec<(String, Value)> {
    let kinds = world.running.server.registry.kinds();
    let documents = EVERY_KIND.split("\n---\n");
    let objects = documents.map(|text| object::decode::yaml(text.as_bytes()).expect("the manifest is YAML").value);
    objects
        .map(|object| {
            let object: Value = serde_json::to_value(&object).expect("a value is JSON");
            let (api_version, name) = (text(&object, "/apiVersion"), text(&object, "/kind"));
            let kind = kinds.iter().find(|kind| kind.kind.as_ref() == name && kind.api_version() == api_version);
            let kind = kind.unwrap_or_else(|| panic!("{api_version} {name} is not served"));
            let root = if kind.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", kind.group) };
            let place = if kind.namespaced { "/namespaces/default" } else { "" };
            (format!("{root}/{}{place}/{}", kind.version, kind.plural), object)
        })
        .collect()
}

fn without_version(mut object: Value) -> Value {
    object["metadata"].as_object_mut().expect("an object has metadata").remove("resourceVersion");
    object
}

/// The parts that two creations of the same object share: no version, uid, addresses and generated names.
fn without_identity(mut object: Value) -> String {
    object["metadata"]["uid"] = Value::Null;
    if object["kind"] == "Service" {
        assert!(text(&object, "/spec/clusterIP").starts_with("10."), "a dry run allocates an address, too: {object}");
        object["spec"]["clusterIP"] = Value::Null;
        object["spec"]["clusterIPs"] = Value::Null;
    }
    let text = without_version(object).to_string();
    (0..10).fold(text, |text, n| text.replace(&format!("kube-api-access-{n:05}"), "kube-api-access-generated"))
}

#[tokio::test]
async fn a_dry_run_of_any_kind_differs_from_the_write_in_the_version_alone() {
    let world = World::new().await;
    let admin = world.admin();
    for (collection, object) in every_object(&world) {
        let name = text(&object, "/metadata/name");
        let path = format!("{collection}/{name}");
        let dry = format!("{path}?dryRun=All");

        let would = admin.post(&format!("{collection}?dryRun=All"), &object).await.expect(201);
        assert!(would["metadata"].get("resourceVersion").is_none(), "{path}: nothing has this version");
        admin.post(&collection, &object).await.expect(201);
        let stored = admin.get(&path).await.expect(200);
        assert_eq!(without_identity(would), without_identity(stored.clone()), "{path}: create");

        // Writes without changes.
        assert_eq!(admin.put(&dry, &stored).await.expect(200), stored, "{path}: update");
        assert_eq!(admin.patch(&dry, MERGE, &json!({})).await.expect(200), stored, "{path}: patch");
        let applied = admin.apply(&format!("{path}?force=true"), "applier", &object).await.expect(200);
        let again = admin.apply(&format!("{dry}&force=true"), "applier", &object).await.expect(200);
        assert_eq!(again, applied, "{path}: apply");

        // Writes with changes: the response has the version of the stored object.
        let stored = applied;
        let mut labelled = without_version(stored.clone());
        labelled["metadata"]["labels"]["dry"] = json!("run");
        let patch = json!({"metadata": {"labels": {"dry": "run"}}});
        let mut said =
            vec![("update", admin.put(&dry, &labelled).await), ("patch", admin.patch(&dry, MERGE, &patch).await)];
        if name != "everies.example.com" {
            let mut labelled = object.clone();
            labelled["metadata"]["labels"]["dry"] = json!("run");
            said.push(("apply", admin.apply(&format!("{dry}&force=true"), "applier", &labelled).await));
        }
        for (verb, would) in said {
            let would = would.expect(200);
            assert_eq!(text(&would, "/metadata/labels/dry"), "run", "{path}: {verb}");
            assert_eq!(would["metadata"]["resourceVersion"], stored["metadata"]["resourceVersion"], "{path}: {verb}");
        }
        let would = admin.patch(&dry, MERGE, &patch).await.expect(200);
        let changed = admin.patch(&path, MERGE, &patch).await.expect(200);
        assert_eq!(without_version(would), without_version(changed), "{path}: patch");

        let would = admin.delete(&dry).await.expect(200);
        let stored = admin.get(&path).await.expect(200);
        if would["kind"] != "Status" {
            assert_eq!(would["metadata"]["resourceVersion"], stored["metadata"]["resourceVersion"], "{path}: delete");
        }
    }
}

#[tokio::test]
async fn a_dry_run_of_a_subresource_keeps_the_version() {
    let world = World::new().await;
    let admin = world.admin();
    let set = admin.post(SETS, &stateful_set("s")).await.expect(201);
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}});
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let quota = admin.post(quotas, &quota).await.expect(201);
    let replicas = json!({"spec": {"replicas": 5}});
    let ready = json!({"status": {"replicas": 5}});
    let hard = json!({"status": {"hard": {"pods": "5"}}});
    for (path, patch, before) in [
        (format!("{SETS}/s/scale"), replicas, &set),
        (format!("{SETS}/s/status"), ready, &set),
        (format!("{quotas}/q/status"), hard, &quota),
    ] {
        let would = admin.patch(&format!("{path}?dryRun=All"), MERGE, &patch).await.expect(200);
        assert_eq!(would["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"], "{path}");
        // As `kubectl edit --subresource` sends it: the whole object without a version.
        let would = admin.put(&format!("{path}?dryRun=All"), &without_version(would)).await.expect(200);
        assert_eq!(would["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"], "{path}");
    }
    assert_eq!(admin.get(&format!("{SETS}/s")).await.expect(200), set);
    assert_eq!(admin.get(&format!("{quotas}/q")).await.expect(200), quota);
}
