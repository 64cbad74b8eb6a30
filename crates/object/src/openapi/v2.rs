//! Swagger 2.0.

use super::TITLE;
use super::operations::{self, Operation, Parameter};
use super::schemas;
use crate::access::Access;
use crate::kind::Kind;
use crate::{Map, Value, json};

pub(super) fn document(kinds: &[&Kind], published: &Map, version: &str) -> Value {
    let mut all = Vec::new();
    let mut paths = Map::new();
    for kind in kinds {
        for operation in operations::of(kind) {
            let path =
                paths.entry(operation.path.clone()).or_insert_with(|| operations::path_item(&operation.path, query));
            path[operation.method] = write(&operation, kind.custom);
            all.push(operation);
        }
    }
    let mut definitions = schemas::closure(kinds, &all, published);
    for (name, definition) in &mut definitions {
        open_root(definition);
        schemas::each_schema(definition, &mut drop_newer_words);
        if let (Some("IntOrString" | "Quantity"), Value::Object(members)) = (name.rsplit('.').next(), definition) {
            members.remove("x-kubernetes-int-or-string");
            members.insert("type".to_owned(), json!("string"));
            if name.ends_with("IntOrString") {
                members.insert("format".to_owned(), json!("int-or-string"));
            }
        }
    }
    json!({
        "swagger": "2.0",
        "info": {"title": TITLE, "version": version},
        "paths": paths,
        "definitions": definitions,
        "securityDefinitions": {
            "BearerToken": {"type": "apiKey", "name": "authorization", "in": "header", "description": "Bearer Token authentication"},
        },
        "security": [{"BearerToken": []}],
    })
}

/// A custom resource that allows unknown fields is published as an object without properties, as Kubernetes does.
/// kubectl would otherwise treat the properties of a v2 definition as the only allowed ones.
fn open_root(definition: &mut Value) {
    const KIND: &str = "x-kubernetes-group-version-kind";
    if definition.at(&[KIND]).is_some() && definition.at(&[PRESERVE]).is_some_and(|set| *set == true) {
        let kind = definition.cut(&[KIND]).unwrap_or(Value::Null);
        *definition = json!({"type": "object", KIND: kind});
    }
}

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";

/// Removes the keywords that version 2 lacks. (Schemas of custom resources are written in OpenAPI 3.) Readers then
/// accept more, not less.
fn drop_newer_words(schema: &mut Map) {
    for word in ["oneOf", "anyOf", "not", "nullable"] {
        schema.remove(word);
    }
    if schema.get(PRESERVE).is_some_and(|set| *set == true) {
        schema.remove("properties");
        schema.remove("items");
    }
    if schema.get("x-kubernetes-int-or-string").is_some_and(|set| set == true) {
        schema.remove("type");
    }
}

fn query(parameter: &Parameter) -> Value {
    json!({
        "name": parameter.name,
        "in": "query",
        "description": parameter.description,
        "type": parameter.ty,
        "uniqueItems": true,
    })
}

fn write(operation: &Operation, custom: bool) -> Value {
    let reference = |name: &str| json!({ "$ref": format!("#/definitions/{name}") });
    let answer = |description: &str| json!({ "description": description, "schema": reference(&operation.answer) });
    let mut responses = json!({ "200": answer("OK"), "401": {"description": "Unauthorized"} });
    if matches!(operation.method, "post" | "put" | "patch") {
        responses["201"] = answer("Created");
    }
    if matches!(operation.method, "post" | "delete") {
        responses["202"] = answer("Accepted");
    }
    let mut parameters: Vec<Value> = operation.query.iter().map(|parameter| query(parameter)).collect();
    if let Some(body) = &operation.body {
        let mut written = json!({ "name": "body", "in": "body", "schema": reference(body) });
        if operation.method != "delete" {
            written["required"] = json!(true);
        }
        parameters.push(written);
    }
    let consumes: &[&str] = match operation.method {
        "patch" if custom => {
            &["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"]
        }
        "patch" => &[
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
            "application/apply-patch+yaml",
        ],
        _ => &["application/json", "application/yaml"],
    };
    let mut produces = vec!["application/json"];
    if operation.action == "list" {
        produces.push("application/json;stream=watch");
    }
    json!({
        "description": operation.description,
        "operationId": operation.id,
        "tags": [operation.tag],
        "schemes": ["https"],
        "consumes": consumes,
        "produces": produces,
        "parameters": parameters,
        "responses": responses,
        "x-kubernetes-action": operation.action,
        "x-kubernetes-group-version-kind": operation.gvk,
    })
}
