//! Generates the built-in schema from `generated/definitions.json` (by `crates/generate`) and `build/merge-rules.txt`.
//!
//! Writes three files to OUT_DIR:
//! - `arena.json`: the definitions without descriptions, for the running server.
//! - `definitions.json.deflate`: the definitions with descriptions, unpacked only for OpenAPI documents.
//! - `fields.rs`: the names of all fields.

use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

const PUBLISHED: &str = "generated/definitions.json";
const RULES: &str = "build/merge-rules.txt";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={PUBLISHED}");
    println!("cargo::rerun-if-changed={RULES}");
    let mut definitions = published();
    for definition in definitions.values_mut() {
        to_openapi_form(definition);
    }
    apply_rules(&mut definitions, &std::fs::read_to_string(RULES).expect("cannot read the merge rules"));

    let out = std::env::var("OUT_DIR").expect("OUT_DIR is not set");
    let full = serde_json::to_vec(&definitions).expect("cannot serialize the definitions");
    let file = std::fs::File::create(Path::new(&out).join("definitions.json.deflate"))
        .expect("cannot create a file in OUT_DIR");
    let mut packer = flate2::write::DeflateEncoder::new(file, flate2::Compression::best());
    packer.write_all(&full).and_then(|()| packer.finish().map(drop)).expect("cannot write to OUT_DIR");

    for definition in definitions.values_mut() {
        strip_prose(definition);
    }
    let arena = serde_json::to_vec(&definitions).expect("cannot serialize the definitions");
    std::fs::write(Path::new(&out).join("arena.json"), arena).expect("cannot write to OUT_DIR");
    let fields: Vec<String> = fields(&definitions).into_iter().collect();
    std::fs::write(Path::new(&out).join("fields.rs"), format!("&{fields:?}")).expect("cannot write to OUT_DIR");
}

/// Returns the names of all fields, and the same names with the prefix `f:` of managed fields.
fn fields(definitions: &Map<String, Value>) -> BTreeSet<String> {
    let properties = definitions.values().filter_map(|definition| definition["properties"].as_object());
    let names: BTreeSet<String> = properties.flat_map(Map::keys).cloned().collect();
    let managed = names.iter().map(|name| format!("f:{name}")).chain([".".to_owned()]).collect();
    names.union(&managed).cloned().collect()
}

/// Returns the OpenAPI definitions of every built-in kind and of all types that they refer to.
fn published() -> Map<String, Value> {
    let text = std::fs::read_to_string(PUBLISHED).expect("cannot read the published definitions");
    serde_json::from_str(&text).expect("the published definitions are not a JSON object")
}

/// Converts a schema to OpenAPI's form: references to `#/definitions/…`, and no keywords that only JSON Schema has.
fn to_openapi_form(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if let Some(Value::String(reference)) = members.get_mut("$ref") {
                *reference = reference.replace("#/$defs/", "#/definitions/");
            }
            members.values_mut().for_each(to_openapi_form);
        }
        Value::Array(items) => items.iter_mut().for_each(to_openapi_form),
        _ => {}
    }
}

fn strip_prose(schema: &mut Value) {
    if let Value::Object(members) = schema {
        // A property can be named "description"; then the value is a schema and must stay.
        if members.get("description").is_some_and(Value::is_string) {
            members.remove("description");
        }
        members.values_mut().for_each(strip_prose);
    }
}

/// `core.v1.Pod` → its full definition name.
fn full_name(short: &str) -> String {
    if let Some(rest) = short.strip_prefix("meta.") {
        format!("io.k8s.apimachinery.pkg.apis.meta.{rest}")
    } else if let Some(rest) = short.strip_prefix("apiextensions.") {
        format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.{rest}")
    } else {
        format!("io.k8s.api.{short}")
    }
}

fn apply_rules(definitions: &mut Map<String, Value>, rules: &str) {
    for (number, line) in rules.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.is_empty() || words[0].starts_with('#') {
            continue;
        }
        let place = format!("{RULES}:{}: {line}", number + 1);
        let definition = definitions.get_mut(&full_name(words[1])).unwrap_or_else(|| panic!("no such type: {place}"));
        match words.as_slice() {
            ["field", _, field, kind, prose @ ..] => {
                definition["properties"][field] = json!({"type": kind, "description": prose.join(" ")});
            }
            ["atomic", _] => definition["x-kubernetes-map-type"] = json!("atomic"),
            ["default", _, field, value] => {
                let value: Value = serde_json::from_str(value).unwrap_or_else(|error| panic!("{error}: {place}"));
                property(definition, field, &place)["default"] = value;
            }
            ["list", _, field, list, patch] => list_rule(property(definition, field, &place), list, patch),
            _ => panic!("not a merge rule: {place}"),
        }
    }
}

fn property<'a>(definition: &'a mut Value, field: &str, place: &str) -> &'a mut Value {
    definition["properties"].get_mut(field).unwrap_or_else(|| panic!("no such field: {place}"))
}

fn list_rule(property: &mut Value, list: &str, patch: &str) {
    match list.split_once(':') {
        Some((kind, keys)) => {
            property["x-kubernetes-list-type"] = json!(kind);
            property["x-kubernetes-list-map-keys"] = keys.split(',').collect();
        }
        None => property["x-kubernetes-list-type"] = json!(list),
    }
    if patch == "-" {
        return;
    }
    let (merge, retain) = patch.split_once('+').map_or((patch, None), |(merge, retain)| (merge, Some(retain)));
    let (strategy, key) = merge.split_once(':').map_or((merge, None), |(strategy, key)| (strategy, Some(key)));
    property["x-kubernetes-patch-strategy"] =
        json!(retain.map_or_else(|| strategy.to_owned(), |retain| format!("{strategy},{retain}")));
    if let Some(key) = key {
        property["x-kubernetes-patch-merge-key"] = json!(key);
    }
}
