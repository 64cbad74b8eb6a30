//! OpenAPI 3.0.

use super::TITLE;
use super::operations::{self, Operation, Parameter};
use super::schemas;
use crate::kind::Kind;
use crate::{Map, Value, json};

const ANSWERS: &str = "application/json";
const BODIES: [&str; 2] = ["application/json", "application/yaml"];
const STREAMS: &str = "application/json;stream=watch";
const PATCHES: [&str; 3] =
    ["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];
const STRATEGIC: &str = "application/strategic-merge-patch+json";

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
        schemas::each_schema(definition, &mut refer_to_components);
        if let Value::Object(members) = definition {
            say_alternatives(name, members);
        }
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": TITLE, "version": version},
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": {
                "BearerToken": {"type": "apiKey", "name": "authorization", "in": "header", "description": "Bearer Token authentication"},
            },
        },
    })
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn refer_to_components(schema: &mut Map) {
    if let Some(Value::String(reference)) = schema.get_mut("$ref") {
        *reference = reference.replace("#/definitions/", "#/components/schemas/").into();
    }
}

/// Adds both JSON types to the two scalar types that accept two.
fn say_alternatives(name: &str, definition: &mut Map) {
    let types = match name.rsplit('.').next() {
        Some("IntOrString") => ["integer", "string"],
        Some("Quantity") => ["string", "number"],
        _ => return,
    };
    definition.remove("x-kubernetes-int-or-string");
    definition.insert("oneOf".to_owned(), types.iter().map(|ty| json!({ "type": ty })).collect());
    if types[0] == "integer" {
        definition.insert("format".to_owned(), json!("int-or-string"));
    }
}

fn query(parameter: &Parameter) -> Value {
    json!({
        "name": parameter.name,
        "in": "query",
        "description": parameter.description,
        "schema": {"type": parameter.ty, "uniqueItems": true},
    })
}

fn write(operation: &Operation, custom: bool) -> Value {
    let answer = |extra: Option<&'static str>| -> Map {
        let types = [ANSWERS].into_iter().chain(extra);
        types.map(|ty| (ty.to_owned(), json!({ "schema": reference(&operation.answer) }))).collect()
    };
    let content = answer((operation.action == "list").then_some(STREAMS));
    let mut responses = json!({
        "200": {"description": "OK", "content": content},
        "401": {"description": "Unauthorized"},
    });
    if matches!(operation.method, "post" | "put" | "patch") {
        responses["201"] = json!({"description": "Created", "content": answer(None)});
    }
    if matches!(operation.method, "post" | "delete") {
        responses["202"] = json!({"description": "Accepted", "content": answer(None)});
    }
    let mut out = json!({
        "description": operation.description,
        "operationId": operation.id,
        "tags": [operation.tag],
        "responses": responses,
        "x-kubernetes-action": operation.action,
        "x-kubernetes-group-version-kind": operation.gvk,
    });
    if !operation.query.is_empty() {
        out["parameters"] = operation.query.iter().map(|parameter| query(parameter)).collect();
    }
    if let Some(body) = &operation.body {
        out["requestBody"] = json!({ "content": body_content(operation, body, custom) });
        if operation.method != "delete" {
            out["requestBody"]["required"] = json!(true);
        }
    }
    out
}

fn body_content(operation: &Operation, body: &str, custom: bool) -> Map {
    let types: Vec<&str> = match operation.method {
        "patch" if custom => PATCHES.to_vec(),
        "patch" => PATCHES.into_iter().chain([STRATEGIC]).collect(),
        _ => BODIES.to_vec(),
    };
    types.into_iter().map(|ty| (ty.to_owned(), json!({ "schema": reference(body) }))).collect()
}
