//! The definitions of a document: those of its kinds and lists, and all definitions that these refer to.

use super::operations::{self, Operation};
use crate::kind::Kind;
use crate::schema::OBJECT_META;
use crate::{Map, Value, json};

pub(super) const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
pub(super) const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
pub(super) const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const REFERENCE: &str = "#/definitions/";
const GVK: &str = "x-kubernetes-group-version-kind";

const API_VERSION_TEXT: &str = "APIVersion defines the versioned schema of this representation of an object. Servers should convert \
     recognized schemas to the latest internal value, and may reject unrecognized values. More info: \
     https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const KIND_TEXT: &str = "Kind is a string value representing the REST resource this object represents. Servers may infer this from the \
     endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: \
     https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
const METADATA_TEXT: &str = "Standard object's metadata. More info: \
     https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";

/// Returns the definition name of a kind: `io.k8s.api.apps.v1.StatefulSet`, `com.example.v1.Backup`.
pub(super) fn name(kind: &Kind) -> String {
    let builtin = kind.schema.as_ref().filter(|_| !kind.custom).and_then(|ty| ty.schema.name_of(ty.ty));
    if let Some(name) = builtin {
        return name.to_owned();
    }
    let reversed: Vec<&str> = kind.group.rsplit('.').collect();
    format!("{}.{}.{}", reversed.join("."), kind.version, kind.kind)
}

/// Returns the definition name of a built-in type that is not a row of the kind table.
pub(super) fn builtin_name(group: &str, version: &str, kind: &str) -> String {
    let group = if group.is_empty() { "core" } else { group.split('.').next().unwrap_or(group) };
    format!("io.k8s.api.{group}.{version}.{kind}")
}

/// Returns the definitions of these kinds and everything that they and `operations` refer to. References have the form
/// `#/definitions/…`.
pub(super) fn closure(kinds: &[&Kind], operations: &[Operation], published: &Map) -> Map {
    let mut out = Map::new();
    let mut wanted: Vec<String> = Vec::new();
    for kind in kinds {
        add_kind(kind, published, &mut out, &mut wanted);
    }
    for operation in operations {
        wanted.push(operation.answer.clone());
        wanted.extend(operation.body.clone());
    }
    while let Some(name) = wanted.pop() {
        if out.contains_key(&name) {
            continue;
        }
        let definition = if name == PATCH {
            json!({"description": "Patch is a change to be made to an object.", "type": "object"})
        } else {
            let mut definition = published.get(&name).cloned().unwrap_or_else(|| json!({ "type": "object" }));
            name_as_kind(&name, &mut definition);
            definition
        };
        collect_references(&definition, &mut wanted);
        out.insert(name, definition);
    }
    out
}

fn add_kind(kind: &Kind, published: &Map, out: &mut Map, wanted: &mut Vec<String>) {
    let name = name(kind);
    let mut definition = match &kind.openapi {
        Some(schema) => custom(schema),
        None => published.get(&name).cloned().unwrap_or_else(|| custom(&json!({}))),
    };
    let gvk = |kind_name: &str| json!([operations::gvk(&kind.group, &kind.version, kind_name)]);
    definition[GVK] = gvk(&kind.kind);
    collect_references(&definition, wanted);
    if kind.stored {
        let list = json!({
            "description": format!("{}List is a list of {}", kind.kind, kind.kind),
            "type": "object",
            "required": ["items"],
            "properties": {
                "apiVersion": {"description": API_VERSION_TEXT, "type": "string"},
                "kind": {"description": KIND_TEXT, "type": "string"},
                "metadata": {"description": "Standard list metadata.", "$ref": format!("{REFERENCE}{LIST_META}")},
                "items": {
                    "description": format!("List of {}.", kind.plural),
                    "type": "array",
                    "items": {"$ref": format!("{REFERENCE}{name}")},
                },
            },
            GVK: gvk(&kind.list_kind()),
        });
        collect_references(&list, wanted);
        out.insert(format!("{name}List"), list);
    }
    out.insert(name, definition);
}

/// Returns a custom resource's schema, with the members that every object has.
fn custom(schema: &Value) -> Value {
    let mut definition = schema.clone();
    if !definition.is_object() {
        definition = json!({});
    }
    definition["type"] = json!("object");
    if definition.get("properties").is_none_or(|properties| !properties.is_object()) {
        definition["properties"] = json!({});
        definition["x-kubernetes-preserve-unknown-fields"] = json!(true);
    }
    let properties = &mut definition["properties"];
    properties["apiVersion"] = json!({"description": API_VERSION_TEXT, "type": "string"});
    properties["kind"] = json!({"description": KIND_TEXT, "type": "string"});
    properties["metadata"] = json!({"description": METADATA_TEXT, "$ref": format!("{REFERENCE}{OBJECT_META}")});
    definition
}

/// Adds group, version and kind to definitions that are used in requests but are not rows of the kind table.
fn name_as_kind(name: &str, definition: &mut Value) {
    let gvk = match name {
        STATUS => operations::gvk("", "v1", "Status"),
        DELETE_OPTIONS => operations::gvk("", "v1", "DeleteOptions"),
        "io.k8s.api.autoscaling.v1.Scale" => operations::gvk("autoscaling", "v1", "Scale"),
        "io.k8s.api.core.v1.Binding" => operations::gvk("", "v1", "Binding"),
        "io.k8s.api.policy.v1.Eviction" => operations::gvk("policy", "v1", "Eviction"),
        "io.k8s.api.authentication.v1.TokenRequest" => operations::gvk("authentication.k8s.io", "v1", "TokenRequest"),
        _ => return,
    };
    definition[GVK] = json!([gvk]);
}

fn collect_references(schema: &Value, wanted: &mut Vec<String>) {
    match schema {
        Value::Object(members) => {
            if let Some(name) = members.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix(REFERENCE)) {
                wanted.push(name.to_owned());
            }
            members.values().for_each(|member| collect_references(member, wanted));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_references(item, wanted)),
        _ => {}
    }
}

/// Calls `change` for every schema in a definition, including the definition itself, innermost first.
pub(super) fn each_schema(schema: &mut Value, change: &mut impl FnMut(&mut Map)) {
    let Value::Object(members) = schema else { return };
    for (key, member) in members.iter_mut() {
        match (key.as_str(), member) {
            ("properties" | "patternProperties" | "definitions", Value::Object(named)) => {
                named.values_mut().for_each(|schema| each_schema(schema, change));
            }
            ("items" | "additionalProperties" | "not", member) => each_schema(member, change),
            ("allOf" | "anyOf" | "oneOf", Value::Array(schemas)) => {
                schemas.iter_mut().for_each(|schema| each_schema(schema, change));
            }
            _ => {}
        }
    }
    change(members);
}
