//! The OpenAPI schema of a custom resource, for `kubectl explain` and client-side validation.

use crate::access::Access;
use crate::{Map, Value, json};

const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object. Servers should convert \
     recognized schemas to the latest internal value, and may reject unrecognized values.";
const KIND: &str = "Kind is a string value representing the REST resource this object represents. Servers may infer this from the \
     endpoint the client submits requests to. Cannot be updated. In CamelCase.";
const METADATA: &str = "Standard object's metadata.";

/// Returns the schema of one version, with the fields that every resource has. References have the form
/// `#/definitions/…`, as in the built-in definitions; [`crate::openapi`] converts them for each document.
pub fn openapi(definition: &Value, version: &str) -> Value {
    let versions = definition.items(&["spec", "versions"]);
    let found = versions.iter().find(|known| known.text(&["name"]) == version);
    let schema = found.and_then(|version| version.at(&["schema", "openAPIV3Schema"]));
    let mut schema = schema.cloned().unwrap_or_else(|| json!({"type": "object"}));
    if !schema.is_object() {
        schema = json!({});
    }
    embed(&mut schema, true);
    schema.put(
        &["x-kubernetes-group-version-kind"],
        json!([{
            "group": definition.text(&["spec", "group"]),
            "kind": definition.text(&["spec", "names", "kind"]),
            "version": version,
        }]),
    );
    schema
}

/// Returns the definition name of a kind: `com.example.v1.CronTab` for `example.com/v1`.
pub fn definition_name(group: &str, version: &str, kind: &str) -> String {
    let reversed: Vec<&str> = group.split('.').rev().collect();
    format!("{}.{version}.{kind}", reversed.join("."))
}

/// Adds the fields of resources to this schema and to embedded resources below it.
fn embed(schema: &mut Value, is_root: bool) {
    let Some(members) = schema.as_object_mut() else { return };
    let is_resource = is_root || members.get("x-kubernetes-embedded-resource") == Some(&json!(true));
    let properties = members.entry("properties");
    if is_resource {
        let properties = properties.or_insert_with(|| json!({}));
        if let Some(properties) = properties.as_object_mut() {
            resource_fields(properties);
        }
    }
    for (key, member) in members.iter_mut() {
        match (key.as_str(), member) {
            ("properties", Value::Object(properties)) => {
                for (name, property) in properties {
                    if !(is_resource && name == "metadata") {
                        embed(property, false);
                    }
                }
            }
            ("items" | "additionalProperties", inner) => embed(inner, false),
            _ => {}
        }
    }
}

fn resource_fields(properties: &mut Map) {
    properties.insert("apiVersion".to_owned(), json!({"type": "string", "description": API_VERSION}));
    properties.insert("kind".to_owned(), json!({"type": "string", "description": KIND}));
    let reference = "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    let metadata = json!({"description": METADATA, "$ref": reference});
    properties.insert("metadata".to_owned(), metadata);
}
