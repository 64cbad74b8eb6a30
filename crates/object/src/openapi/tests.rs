use super::*;
use crate::kind::Subresource;
use crate::kinds::row;
use std::sync::Arc;

const VERSION: &str = "v1.37.0";

fn scale() -> Subresource {
    Subresource::Scale {
        spec_replicas: "spec.replicas".to_owned(),
        status_replicas: "status.replicas".to_owned(),
        selector: None,
    }
}

fn custom(schema: Value) -> Kind {
    let mut kind =
        row("example.com", "v1", "Backup", "backups", "io.k8s.api.core.v1.ConfigMap").with_status().with(scale());
    kind.schema = None;
    kind.custom = true;
    kind.openapi = Some(Arc::new(schema));
    kind
}

fn some_kinds() -> Kinds {
    let mut kinds = Kinds::default();
    kinds.insert(
        row("", "v1", "Pod", "pods", "io.k8s.api.core.v1.Pod")
            .with_status()
            .with(Subresource::Binding)
            .with(Subresource::Eviction),
    );
    kinds.insert(
        row("", "v1", "Namespace", "namespaces", "io.k8s.api.core.v1.Namespace").cluster_scoped().with_status(),
    );
    kinds.insert(
        row("", "v1", "ServiceAccount", "serviceaccounts", "io.k8s.api.core.v1.ServiceAccount")
            .with(Subresource::Token),
    );
    kinds.insert(
        row("apps", "v1", "StatefulSet", "statefulsets", "io.k8s.api.apps.v1.StatefulSet").with_status().with(scale()),
    );
    kinds.insert(
        row("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", "io.k8s.api.authentication.v1.TokenReview")
            .cluster_scoped()
            .review(),
    );
    kinds.insert(
        row(
            "apiextensions.k8s.io",
            "v1",
            "CustomResourceDefinition",
            "customresourcedefinitions",
            "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
        )
        .cluster_scoped(),
    );
    kinds.insert(custom(json!({
        "type": "object",
        "description": "A backup.",
        "properties": {"spec": {"type": "object", "properties": {"at": {"nullable": true, "anyOf": [{"type": "string"}]}}}},
    })));
    kinds
}

fn references<'a>(value: &'a Value, out: &mut Vec<&'a str>) {
    match value {
        Value::Object(members) => {
            out.extend(members.get("$ref").and_then(Value::as_str));
            members.values().for_each(|member| references(member, out));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, out)),
        _ => {}
    }
}

fn assert_references_resolve(document: &Value) {
    let mut found = Vec::new();
    references(document, &mut found);
    assert!(!found.is_empty());
    for reference in found {
        let pointer = reference.strip_prefix('#').expect(reference);
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
}

#[test]
fn every_reference_has_a_definition() {
    let kinds = some_kinds();
    assert_references_resolve(&v2(&kinds, VERSION));
    for kind in kinds.iter() {
        assert_references_resolve(&v3(&kinds, &kind.group, &kind.version, VERSION).unwrap());
    }
    assert!(v3(&kinds, "apps", "v2", VERSION).is_none());
}

#[test]
fn kubectl_explain_finds_each_kind_by_its_path() {
    let kinds = some_kinds();
    for kind in kinds.iter() {
        let document = v3(&kinds, &kind.group, &kind.version, VERSION).unwrap();
        let prefix = if kind.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", kind.group) };
        let path = &document["paths"][format!("{prefix}/{}/{}", kind.version, kind.plural)];
        let method = if kind.stored { "get" } else { "post" };
        let gvk = &path[method]["x-kubernetes-group-version-kind"];
        assert_eq!(*gvk, json!({"group": kind.group, "version": kind.version, "kind": kind.kind}));
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let named: Vec<_> = schemas
            .values()
            .filter(|schema| {
                schema["x-kubernetes-group-version-kind"].as_array().is_some_and(|gvks| gvks.contains(gvk))
            })
            .collect();
        assert_eq!(named.len(), 1, "{kind:?}");
        assert!(named[0]["properties"]["metadata"].is_object());
    }
}

#[test]
fn patch_operations_have_the_media_types_that_kubectl_needs() {
    let kinds = some_kinds();
    let patch = |group: &str, path: &str| v3(&kinds, group, "v1", VERSION).unwrap()["paths"][path]["patch"].clone();
    let built_in = patch("apps", "/apis/apps/v1/namespaces/{namespace}/statefulsets/{name}");
    let names: Vec<&str> =
        built_in["parameters"].as_array().unwrap().iter().filter_map(|p| p["name"].as_str()).collect();
    assert_eq!(names, ["dryRun", "fieldManager", "fieldValidation", "force"]);
    let strategic = "application/strategic-merge-patch+json";
    assert!(built_in["requestBody"]["content"].get(strategic).is_some());
    let custom = patch("example.com", "/apis/example.com/v1/namespaces/{namespace}/backups/{name}");
    assert!(custom["requestBody"]["content"].get(strategic).is_none());
    assert!(custom["requestBody"]["content"].get("application/merge-patch+json").is_some());
}

#[test]
fn operations_cover_subresources_and_reviews() {
    let document = v2(&some_kinds(), VERSION);
    let paths = &document["paths"];
    let ids = |path: &str| -> Vec<String> {
        let methods = paths[path].as_object().expect(path);
        methods.values().filter_map(|method| method["operationId"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!(ids("/api/v1/pods"), ["listCoreV1PodForAllNamespaces"]);
    let collection = ["deleteCoreV1CollectionNamespacedPod", "listCoreV1NamespacedPod", "createCoreV1NamespacedPod"];
    assert_eq!(ids("/api/v1/namespaces/{namespace}/pods"), collection);
    assert_eq!(
        ids("/api/v1/namespaces/{name}/status"),
        ["readCoreV1NamespaceStatus", "patchCoreV1NamespaceStatus", "replaceCoreV1NamespaceStatus"]
    );
    assert_eq!(ids("/api/v1/namespaces/{namespace}/pods/{name}/eviction"), ["createCoreV1NamespacedPodEviction"]);
    assert_eq!(ids("/apis/authentication.k8s.io/v1/tokenreviews"), ["createAuthenticationV1TokenReview"]);
    let scale = &paths["/apis/apps/v1/namespaces/{namespace}/statefulsets/{name}/scale"]["get"];
    assert_eq!(scale["x-kubernetes-group-version-kind"]["kind"], "Scale");
    assert_eq!(scale["responses"]["200"]["schema"]["$ref"], "#/definitions/io.k8s.api.autoscaling.v1.Scale");
    assert_eq!(document["definitions"]["com.example.v1.Backup"]["description"], "A backup.");
    let at = &document["definitions"]["com.example.v1.Backup"]["properties"]["spec"]["properties"]["at"];
    assert_eq!(*at, json!({}), "version 2 cannot express nullable and anyOf");
}

#[test]
fn the_index_has_a_hash_of_each_documents_content() {
    let kinds = some_kinds();
    let mut changed = some_kinds();
    changed.insert(custom(json!({"type": "object"})));
    let (before, after) = (v3_index(&kinds), v3_index(&changed));
    let url = |index: &Value, path: &str| index["paths"][path]["serverRelativeURL"].as_str().unwrap().to_owned();
    assert!(url(&before, "api/v1").starts_with("/openapi/v3/api/v1?hash="));
    assert_eq!(url(&before, "apis/apps/v1"), url(&after, "apis/apps/v1"));
    assert_ne!(url(&before, "apis/example.com/v1"), url(&after, "apis/example.com/v1"));
    assert_ne!(url(&before, "api/v1").split('=').nth(1), url(&before, "apis/apps/v1").split('=').nth(1));
    assert_ne!(fingerprint(&kinds, None), fingerprint(&changed, None));
}

/// Returns the top-level fields of a protobuf message: number and payload of each length-delimited field.
fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        match key & 7 {
            0 => {
                varint(&mut bytes);
            }
            1 => bytes = &bytes[8..],
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                out.push((key >> 3, &bytes[..length]));
                bytes = &bytes[length..];
            }
            wire => panic!("wire type {wire}"),
        }
    }
    out
}

#[test]
fn the_protobuf_form_has_the_same_content() {
    let document = v2(&some_kinds(), VERSION);
    let bytes = v2_protobuf(&document);
    let top = fields(&bytes);
    let part = |number: u64| top.iter().find(|(found, _)| *found == number).map(|(_, payload)| *payload).unwrap();
    assert_eq!(part(1), b"2.0");
    let names = |map: &[u8], pair: u64| -> Vec<String> {
        let pairs = fields(map).into_iter().filter(|(number, _)| *number == pair);
        pairs.map(|(_, payload)| String::from_utf8(fields(payload)[0].1.to_vec()).unwrap()).collect()
    };
    let keys = |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().map(ToString::to_string).collect() };
    assert_eq!(names(part(8), 2), keys(&document["paths"]));
    assert_eq!(names(part(9), 1), keys(&document["definitions"]));
}
