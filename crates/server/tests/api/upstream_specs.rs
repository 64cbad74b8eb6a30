//! Checks of upstream's conformance specs of API machinery, for the kinds of this server.

use crate::support::*;
use serde_json::{Value, json};

const STRICT: &str = "fieldValidation=Strict";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const TWICE: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: twice\n  colour: red\ndata:\n  a: '1'\n  b: '2'\n  a: '3'\nextra: 1\ndata:\n  c: '4'\n";
const LINES: &str =
    "yaml: unmarshal errors:\n  line 9: key \"a\" already set in map\n  line 12: key \"data\" already set in map";

/// "should detect unknown and duplicate fields of a typed object", in YAML.
#[tokio::test]
async fn duplicates_in_yaml_are_reported_with_their_lines_and_with_unknown_fields() {
    let world = World::new().await;
    let admin = world.admin();
    let post = |query: &str| {
        let path = format!("{CONFIG_MAPS}?dryRun=All&{query}");
        let admin = admin.clone();
        async move { admin.send("POST", &path, "application/yaml", TWICE).await }
    };
    let said = post(STRICT).await.refused(400, "BadRequest");
    let head = "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: ";
    assert!(said.starts_with(&format!("{head}{LINES}, unknown field ")), "{said}");
    assert!(said.contains("unknown field \"extra\"") && said.contains("unknown field \"metadata.colour\""), "{said}");
    let warned = post("").await;
    assert_eq!(
        sentences(&warned),
        [
            "line 9: key \"a\" already set in map",
            "line 12: key \"data\" already set in map",
            "unknown field \"extra\"",
            "unknown field \"metadata.colour\""
        ]
    );
    assert_eq!(warned.expect(201)["data"], json!({"c": "4"}), "the last one counts");
    let ignored = post("fieldValidation=Ignore").await;
    assert!(ignored.warnings().is_empty());
    ignored.expect(201);
}

/// "should detect duplicates in a CR when preserving unknown fields".
#[tokio::test]
async fn duplicates_in_an_applied_configuration_are_reported_with_their_lines() {
    let world = World::new().await;
    let admin = world.admin();
    let path = format!("{CONFIG_MAPS}/twice?fieldManager=m");
    let text = TWICE.replace("  colour: red\n", "").replace("extra: 1\n", "");
    let lines = LINES.replace("line 9", "line 8").replace("line 12", "line 10");
    let said = admin.send("PATCH", &format!("{path}&{STRICT}"), APPLY, text.clone()).await.refused(400, "BadRequest");
    assert_eq!(said, format!("error strict decoding patch: {lines}"));
    assert_eq!(names(&admin.get(CONFIG_MAPS).await.expect(200)), Vec::<String>::new());
    // Clients also send JSON, which is valid YAML.
    let body =
        r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "twice"}, "data": {"a": "1", "a": "2"}}"#;
    let said = admin.send("PATCH", &format!("{path}&{STRICT}"), APPLY, body).await.refused(400, "BadRequest");
    assert!(said.ends_with("line 1: key \"a\" already set in map"), "{said}");
    let warned = admin.send("PATCH", &path, APPLY, text).await;
    assert_eq!(
        sentences(&warned),
        ["line 8: key \"a\" already set in map", "line 10: key \"data\" already set in map"]
    );
    warned.expect(201);
}

/// The texts of the warnings of a response.
fn sentences(reply: &Reply) -> Vec<String> {
    let text = |warning: &String| {
        let quoted = warning.strip_prefix("299 - \"")?.strip_suffix('"')?;
        Some(quoted.replace("\\\"", "\""))
    };
    reply.warnings().iter().filter_map(text).collect()
}

/// "should detect unknown and duplicate fields of a typed object", in JSON: in the order of the document. A field that is
/// both unknown and duplicate is reported as unknown.
#[tokio::test]
async fn the_fields_of_a_typed_object_are_reported_in_the_order_of_the_document() {
    let world = World::new().await;
    let admin = world.admin();
    let body = r#"{"metadata": {"name": "s", "name": "t", "strange": 1}, "spec": {"serviceName": "s", "zzz": 1, "aaa": 1, "aaa": 2,
        "replicas": 0, "replicas": 1, "selector": {"matchLabels": {"app": "x"}}, "template": {"metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "c", "imagine": 1, "image": "i", "image": "j"}]}}}}"#;
    let found = [
        "duplicate field \"metadata.name\"",
        "unknown field \"metadata.strange\"",
        "unknown field \"spec.zzz\"",
        "unknown field \"spec.aaa\"",
        "duplicate field \"spec.replicas\"",
        "unknown field \"spec.template.spec.containers[0].imagine\"",
        "duplicate field \"spec.template.spec.containers[0].image\"",
    ];
    let post =
        async |query: &str| admin.send("POST", &format!("{SETS}?dryRun=All&{query}"), "application/json", body).await;
    let said = post(STRICT).await.refused(400, "BadRequest");
    assert!(said.ends_with(&format!(": strict decoding error: {}", found.join(", "))), "{said}");
    assert_eq!(sentences(&post("").await), found);
}

/// For patches, duplicate fields are reported first. The operations of a JSON patch are checked for unknown fields too.
#[tokio::test]
async fn the_fields_of_a_patch_are_reported_with_duplicates_first() {
    let world = World::new().await;
    let admin = world.admin();
    admin.post(SETS, &stateful_set("s")).await.expect(201);
    let merge = r#"{"spec": {"zzz": 1, "aaa": 1, "aaa": 2, "replicas": 0, "replicas": 1}}"#;
    let of_merge = [
        "duplicate field \"spec.aaa\"",
        "duplicate field \"spec.replicas\"",
        "unknown field \"spec.aaa\"",
        "unknown field \"spec.zzz\"",
    ];
    let operations = r#"[{"op": "add", "path": "/spec/zzz", "value": 1, "foo": "bar"},
        {"op": "add", "path": "/spec/xxx", "path": "/spec/yyy", "value": 1}]"#;
    let of_operations = [
        "json patch unknown field \"[0].foo\"",
        "json patch duplicate field \"[1].path\"",
        "unknown field \"spec.yyy\"",
        "unknown field \"spec.zzz\"",
    ];
    for (content_type, body, found) in
        [(MERGE, merge, of_merge), (STRATEGIC, merge, of_merge), (JSON_PATCH, operations, of_operations)]
    {
        let patch =
            async |query: &str| admin.send("PATCH", &format!("{SETS}/s?dryRun=All&{query}"), content_type, body).await;
        let said = patch(STRICT).await.refused(422, "Invalid");
        assert!(said.ends_with(&format!(": strict decoding error: {}", found.join(", "))), "{said}");
        assert_eq!(sentences(&patch("").await), found, "{content_type}");
        assert_eq!(sentences(&patch("fieldValidation=Ignore").await), [""; 0]);
    }
}

/// "should create/apply an invalid CR with extra properties for CRD with validation schema" and "should detect unknown metadata
/// fields in both the root and embedded object of a CR".
#[tokio::test]
async fn unknown_fields_in_an_applied_configuration_are_refused_always() {
    let world = World::new().await;
    let admin = world.admin();
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "size": {"type": "string"},
        "template": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"metadata": {"type": "object"}}}}}}});
    admin.post(DEFINITIONS, &a_definition(schema)).await.expect(201);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "colour": "red"}, "extra": 1});
    let gear = json!({"apiVersion": "x.io/v1", "kind": "Gear", "metadata": {"name": "a", "unknownMeta": "x"}, "unknownField": 1,
        "spec": {"size": "1", "template": {"apiVersion": "v1", "kind": "Sub", "metadata": {"name": "s", "unknownSubMeta": "x"}}}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "c", "image": "i", "imagine": "j"}]}});
    for (path, object, parts) in [
        (format!("{CONFIG_MAPS}/a"), map, vec![".metadata.colour", ".extra"]),
        (
            "/apis/x.io/v1/namespaces/default/gears/a".to_owned(),
            gear,
            vec![".unknownField", ".metadata.unknownMeta", ".spec.template.metadata.unknownSubMeta"],
        ),
        (format!("{PODS}/a"), pod, vec![".spec.containers[name=\"c\"].imagine"]),
    ] {
        for query in [STRICT, "fieldValidation=Warn", "fieldValidation=Ignore"] {
            let reply = admin.apply(&format!("{path}?{query}"), "m", &object).await;
            let said = reply.refused(400, "BadRequest");
            assert!(said.starts_with("failed to create typed patch object ("), "{said}");
            for part in &parts {
                assert!(said.contains(&format!("{part}: field not declared in schema")), "{part}: {said}");
            }
        }
    }
}

fn a_definition(schema: Value) -> Value {
    json!({"metadata": {"name": "gears.x.io"}, "spec": {
        "group": "x.io", "scope": "Namespaced", "names": {"plural": "gears", "singular": "gear", "kind": "Gear"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}})
}

/// The definition of `gears.x.io` in `/openapi/v2`.
async fn published(schema: Value) -> Value {
    let world = World::new().await;
    let admin = world.admin();
    admin.post(DEFINITIONS, &a_definition(schema)).await.expect(201);
    admin.get("/openapi/v2").await.expect(200)["definitions"]["io.x.v1.Gear"].clone()
}

/// "works for CRD without validation schema" and "works for CRD preserving unknown fields at the schema root": with
/// published properties, kubectl would refuse all other fields.
#[tokio::test]
async fn openapi_v2_describes_a_resource_with_any_fields_as_an_object() {
    let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let mut described = any.clone();
    described["properties"] = json!({"spec": {"type": "object", "properties": {"size": {"type": "string"}}}});
    let kind = json!([{"group": "x.io", "kind": "Gear", "version": "v1"}]);
    for schema in [any.clone(), described] {
        assert_eq!(published(schema).await, json!({"type": "object", "x-kubernetes-group-version-kind": kind}));
    }
    // In nested schemas the extension stays, without the properties.
    let mut nested = any.clone();
    nested["properties"] = json!({"size": {"type": "string"}});
    let schema = json!({"type": "object", "properties": {"spec": nested}});
    assert_eq!(published(schema).await["properties"]["spec"], any);
}

/// "should return a 406 for a backend which does not implement metadata".
#[tokio::test]
async fn objects_without_table_form_are_not_sent_as_tables() {
    let world = World::new().await;
    let admin = world.admin();
    admin.post("/api/v1/namespaces/default/serviceaccounts", &json!({"metadata": {"name": "a"}})).await.expect(201);
    admin.post(SETS, &stateful_set("s")).await.expect(201);
    let review = json!({"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}});
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let tokens = "/api/v1/namespaces/default/serviceaccounts/a/token";
    for form in [TABLE, METADATA] {
        let refused = admin.header("accept", form);
        refused.post(reviews, &review).await.refused(406, "NotAcceptable");
        refused.post(tokens, &json!({})).await.refused(406, "NotAcceptable");
        refused.get(&format!("{SETS}/s/scale")).await.refused(406, "NotAcceptable");
        // A client that also accepts an object gets the object.
        let other = admin.header("accept", &format!("{form},application/json"));
        assert_eq!(other.post(reviews, &review).await.expect(201)["status"]["allowed"], true);
        assert_eq!(other.get(&format!("{SETS}/s/scale")).await.expect(200)["kind"], "Scale");
    }
    assert_eq!(admin.header("accept", TABLE).get(&format!("{SETS}/s/status")).await.expect(200)["kind"], "Table");
}

#[tokio::test]
async fn a_controller_revision_needs_data() {
    let world = World::new().await;
    let admin = world.admin();
    let revisions = "/apis/apps/v1/namespaces/default/controllerrevisions";
    for (data, why) in [
        (json!({}), "data is mandatory"),
        (json!({"data": null}), "data is mandatory"),
        (json!({"data": [1]}), "data must be a valid JSON object"),
    ] {
        let mut revision = json!({"metadata": {"name": "r"}, "revision": 1});
        revision.as_object_mut().unwrap().extend(data.as_object().unwrap().clone());
        let said = admin.post(revisions, &revision).await.refused(422, "Invalid");
        assert_eq!(said, format!("ControllerRevision.apps \"r\" is invalid: data: Required value: {why}"));
    }
    admin.post(revisions, &json!({"metadata": {"name": "r"}, "revision": 1, "data": {}})).await.expect(201);
}
