//! kubectl and custom resources.

mod support;

use serde_json::json;
use std::sync::Arc;
use support::{Cluster, Kubectl, Place, kubectl_on};

/// A server with the kind Widget. CRDs are cluster-scoped, so each test has its own server.
fn widgets() -> Option<Kubectl> {
    let kubectl = kubectl_on(&Arc::new(Cluster::start(Place::InMemory)))?;
    assert_eq!(
        kubectl.ok_with("apply -f -", include_str!("manifests/widgets.yaml")),
        "customresourcedefinition.apiextensions.k8s.io/widgets.shop.example.com created\n"
    );
    kubectl.ok("wait crd/widgets.shop.example.com --for=condition=Established --timeout=30s");
    Some(kubectl)
}

fn widget(name: &str, spec: &str) -> String {
    format!("apiVersion: shop.example.com/v1\nkind: Widget\nmetadata: {{name: {name}}}\nspec: {spec}\n")
}

#[test]
fn a_crd_adds_a_kind_to_all_of_kubectl() {
    let Some(kubectl) = widgets() else { return };
    assert!(kubectl.ok("api-versions").contains("shop.example.com/v1"));
    let resources = kubectl.ok("api-resources --api-group=shop.example.com --no-headers");
    assert_eq!(
        resources.split_whitespace().collect::<Vec<_>>(),
        ["widgets", "wg", "shop.example.com/v1", "true", "Widget"]
    );
    let explained = kubectl.ok("explain widget.spec.size");
    assert!(explained.contains("How large the widget is."), "{explained}");
    assert_eq!(kubectl.create(&widget("one", "{size: large}")), "widget.shop.example.com/one created\n");
    let table = kubectl.ok("get wg");
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "SIZE", "REPLICAS", "AGE"]);
    assert_eq!(rows[1][..3], ["one", "large", "1"], "the default of the schema is filled in");
    kubectl.prints("get widgets.shop.example.com -o name", "widget.shop.example.com/one");
    assert!(kubectl.ok("get all").contains("widget.shop.example.com/one"));
    let described = kubectl.ok("describe widget one");
    assert!(described.contains("Kind:         Widget") && described.contains("large"), "{described}");
    kubectl.prints("label wg one a=b", "widget.shop.example.com/one labeled");
    kubectl.prints("get wg -l a=b -o name", "widget.shop.example.com/one");
}

#[test]
fn the_schema_is_kept() {
    let Some(kubectl) = widgets() else { return };
    for (mistake, spec, sentence) in [
        ("missing", "{}", "spec.size: Required value"),
        (
            "not one of",
            "{size: medium}",
            "spec.size: Unsupported value: \"medium\": supported values: \"small\", \"large\"",
        ),
        (
            "wrong type",
            "{size: small, replicas: many}",
            "spec.replicas: Invalid value: \"string\": spec.replicas in body must be of type integer: \"string\"",
        ),
        (
            "too large",
            "{size: small, replicas: 11}",
            "spec.replicas: Invalid value: 11: spec.replicas in body should be less than or equal to 10",
        ),
        ("unknown field", "{size: small, colour: red}", "unknown field \"spec.colour\""),
        ("twin keys", "{size: small, parts: [{name: a}, {name: a}]}", "spec.parts[1]: Duplicate value"),
    ] {
        let error = kubectl.fails_with("create -f -", &widget("wrong", spec));
        assert!(error.contains(sentence), "{mistake}: expected {sentence:?}, got:\n{error}");
    }
    // Unknown fields are pruned if they are not refused.
    kubectl.ok_with("create -f - --validate=false", &widget("pruned", "{size: small, colour: red}"));
    assert_eq!(kubectl.object("wg/pruned")["spec"], json!({"size": "small", "replicas": 1}));
    let error = kubectl.fails_with("create -f -", "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: wrong}\nspec: {group: example.com, scope: Namespaced, names: {plural: as, kind: A}, versions: []}\n");
    assert!(
        error.contains("metadata.name: Invalid value: \"wrong\": must be spec.names.plural+\".\"+spec.group"),
        "{error}"
    );
}

#[test]
fn subresources_patches_and_applies_work() {
    let Some(kubectl) = widgets() else { return };
    kubectl.ok_with("apply -f -", &widget("one", "{size: small, parts: [{name: a, count: 1}]}"));
    assert_eq!(
        kubectl.ok_with("apply -f -", &widget("one", "{size: small, parts: [{name: a, count: 1}]}")),
        "widget.shop.example.com/one unchanged\n"
    );
    assert_eq!(
        kubectl.ok_with("apply -f -", &widget("one", "{size: large, parts: [{name: a, count: 2}]}")),
        "widget.shop.example.com/one configured\n"
    );
    kubectl.prints("scale wg one --replicas=4", "widget.shop.example.com/one scaled");
    assert_eq!(kubectl.object("wg/one")["metadata"]["generation"], 3);
    kubectl.ok(
        r#"patch wg one --subresource=status --type=merge -p '{"status":{"phase":"Ready"},"spec":{"size":"small"}}'"#,
    );
    let object = kubectl.object("wg/one");
    assert_eq!((&object["status"]["phase"], &object["spec"]["size"]), (&json!("Ready"), &json!("large")));
    assert_eq!(object["metadata"]["generation"], 3, "a status does not change the generation");
    kubectl.prints(
        "wait wg/one --for=jsonpath={.status.phase}=Ready --timeout=30s",
        "widget.shop.example.com/one condition met",
    );
    kubectl.ok(r#"patch wg one --type=json -p '[{"op":"replace","path":"/spec/size","value":"small"}]'"#);
    let error = kubectl.fails(r#"patch wg one --type=strategic -p '{"spec":{"size":"large"}}'"#);
    assert!(
        error.contains("application/strategic-merge-patch+json") || error.contains("strategic merge patch"),
        "{error}"
    );
    // Server-side apply merges keyed lists of two owners.
    kubectl.ok_with(
        "apply --server-side --field-manager=left -f -",
        &widget("two", "{size: small, parts: [{name: a, count: 1}]}"),
    );
    kubectl.ok_with(
        "apply --server-side --field-manager=right -f -",
        &widget("two", "{size: small, parts: [{name: b, count: 2}]}"),
    );
    assert_eq!(
        kubectl.object("wg/two")["spec"]["parts"],
        json!([{"name": "a", "count": 1}, {"name": "b", "count": 2}])
    );
    let error = kubectl.fails_with(
        "apply --server-side --field-manager=right -f -",
        &widget("two", "{size: small, parts: [{name: a, count: 9}]}"),
    );
    assert!(error.contains("conflict with \"left\": .spec.parts[name=\"a\"].count"), "{error}");
}

#[test]
fn deleting_a_crd_deletes_its_objects() {
    let Some(kubectl) = widgets() else { return };
    kubectl.create(&widget("one", "{size: small}"));
    let mut watch = kubectl.start("get wg -w --output-watch-events --no-headers");
    watch.line_with(&["ADDED", "one"]);
    kubectl.ok("delete crd widgets.shop.example.com --timeout=30s");
    watch.line_with(&["DELETED", "one"]);
    let error = kubectl.fails("get --raw /apis/shop.example.com/v1/widgets");
    assert!(error.contains("the server could not find the requested resource"), "{error}");
    kubectl.ok_with("apply -f -", include_str!("manifests/widgets.yaml"));
    kubectl.ok("wait crd/widgets.shop.example.com --for=condition=Established --timeout=30s");
    kubectl.prints("get wg -o name", "");
}
