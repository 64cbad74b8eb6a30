//! Checks that a schema is structural: every field's type is given outside of value validations, metadata is not
//! specified, and nothing is contradictory. Only structural schemas support pruning, defaulting and apply.

use super::re2;
use crate::access::Access;
use crate::field::{Errors, Path};
use crate::{Value, json};

/// The position of a schema. It decides the error message for a missing type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Checks the schema of a whole custom resource.
pub fn check(schema: &Value, path: &Path, errors: &mut Errors) {
    let mut found = Errors::default();
    skeleton(schema, Level::Root, path, &mut found);
    complete_skeleton(schema, path, &mut found);
    errors.extend(found);
}

const LOGIC: [&str; 3] = ["anyOf", "allOf", "oneOf"];

fn skeleton(schema: &Value, level: Level, path: &Path, errors: &mut Errors) {
    let ty = schema.text(&["type"]);
    if ty == "array" && !schema.has(&["items"]) {
        errors.required(&path.child("items"), "must be specified");
    }
    if let Some(items) = schema.at(&["items"]) {
        skeleton(items, Level::Item, &path.child("items"), errors);
    }
    for (name, property) in schema.members(&["properties"]) {
        skeleton(property, Level::Field, &path.child("properties").key(name), errors);
    }
    if let Some(additional) = schema.at(&["additionalProperties"]) {
        let additional_path = path.child("additionalProperties");
        if level == Level::Root {
            errors.forbidden(&additional_path, "must not be used at the root");
        }
        if additional.is_object() {
            skeleton(additional, Level::Field, &additional_path, errors);
        }
    }
    extensions(schema, path, errors);
    values(schema, is_int_or_string(schema), path, errors);
    types(schema, ty, level, path, errors);
    metadata(schema, level, path, errors);
}

fn extensions(schema: &Value, path: &Path, errors: &mut Errors) {
    if schema.flag(&["x-kubernetes-int-or-string"]) {
        for other in ["x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"] {
            if schema.flag(&[other]) {
                errors.invalid(&path.child(other), true, "must be false if x-kubernetes-int-or-string is true");
            }
        }
    }
}

fn types(schema: &Value, ty: &str, level: Level, path: &Path, errors: &mut Errors) {
    let ty_path = path.child("type");
    let embedded = schema.flag(&["x-kubernetes-embedded-resource"]);
    let untyped_is_fine =
        schema.flag(&["x-kubernetes-int-or-string"]) || schema.flag(&["x-kubernetes-preserve-unknown-fields"]);
    if embedded && ty != "object" {
        let detail = "must be object if x-kubernetes-embedded-resource is true";
        if ty.is_empty() { errors.required(&ty_path, detail) } else { errors.invalid(&ty_path, ty, detail) }
    } else if ty.is_empty() && !untyped_is_fine {
        let detail = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.required(&ty_path, detail);
    }
    if embedded && schema.has(&["additionalProperties"]) {
        let detail = "must not be used if x-kubernetes-embedded-resource is set";
        errors.forbidden(&path.child("additionalProperties"), detail);
    }
    if level == Level::Root && !ty.is_empty() && ty != "object" {
        errors.invalid(&ty_path, ty, "must be object at the root");
    }
    if embedded && !schema.flag(&["x-kubernetes-preserve-unknown-fields"]) && schema.members(&["properties"]).is_empty()
    {
        errors.required(
            &path.child("properties"),
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        );
    }
}

/// The server defines a resource's metadata; a schema may only restrict its name.
fn metadata(schema: &Value, level: Level, path: &Path, errors: &mut Errors) {
    let is_resource = level == Level::Root || schema.flag(&["x-kubernetes-embedded-resource"]);
    if !is_resource {
        return;
    }
    let properties = schema.members(&["properties"]);
    let properties_path = path.child("properties");
    for name in ["kind", "apiVersion"] {
        if let Some(property) = properties.get(name)
            && property.text(&["type"]) != "string"
        {
            errors.invalid(&properties_path.key(name).child("type"), property.text(&["type"]), "must be string");
        }
    }
    let Some(metadata) = properties.get("metadata") else { return };
    let metadata_path = properties_path.key("metadata");
    if metadata.text(&["type"]) != "object" {
        errors.invalid(&metadata_path.child("type"), metadata.text(&["type"]), "must be object");
    }
    let only_names = metadata.members(&["properties"]).keys().all(|name| name == "name" || name == "generateName");
    let plain = metadata.as_object().is_some_and(|members| {
        members.iter().all(|(key, value)| matches!(key.as_str(), "type" | "properties" | "default") || value.is_null())
    });
    if level == Level::Root && !(only_names && plain) {
        errors.forbidden(
            &metadata_path,
            "must not specify anything other than name and generateName, but metadata is implicitly specified",
        );
    }
}

/// Checks the value validations of one node: the logical operators, and that the pattern compiles.
fn values(schema: &Value, spelled_int_or_string: IntOrString, path: &Path, errors: &mut Errors) {
    for logic in LOGIC {
        for (index, branch) in schema.items(&[logic]).iter().enumerate() {
            let allowed = match (logic, spelled_int_or_string) {
                ("anyOf", IntOrString::AnyOf) => continue,
                ("allOf", IntOrString::FirstOfAll) if index == 0 => IntOrString::AnyOf,
                _ => IntOrString::No,
            };
            nested(branch, allowed, &path.child(logic).index(index), errors);
        }
    }
    if let Some(not) = schema.at(&["not"]) {
        nested(not, IntOrString::No, &path.child("not"), errors);
    }
    let pattern = schema.text(&["pattern"]);
    if !pattern.is_empty()
        && let Err(error) = re2::compile(pattern)
    {
        let detail = format!("must be a valid regular expression, but isn't: {error}");
        errors.invalid(&path.child("pattern"), pattern, detail);
    }
}

/// Keywords that are not allowed inside value validations, and the error messages.
const FORBIDDEN_INSIDE: [(&str, &str); 13] = [
    ("type", "must be empty to be structural"),
    ("additionalProperties", "must be undefined to be structural"),
    ("default", "must be undefined to be structural"),
    ("title", "must be empty to be structural"),
    ("description", "must be empty to be structural"),
    ("nullable", "must be false to be structural"),
    ("externalDocs", "must be undefined to be structural"),
    ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
    ("x-kubernetes-embedded-resource", "must be false to be structural"),
    ("x-kubernetes-int-or-string", "must be false to be structural"),
    ("x-kubernetes-list-map-keys", "must be empty to be structural"),
    ("x-kubernetes-list-type", "must be undefined to be structural"),
    ("x-kubernetes-map-type", "must be undefined to be structural"),
];

fn nested(schema: &Value, allowed: IntOrString, path: &Path, errors: &mut Errors) {
    values(schema, allowed, path, errors);
    if let Some(items) = schema.at(&["items"]) {
        nested(items, IntOrString::No, &path.child("items"), errors);
    }
    for (name, property) in schema.members(&["properties"]) {
        nested(property, IntOrString::No, &path.child("properties").key(name), errors);
    }
    for (key, detail) in FORBIDDEN_INSIDE {
        if !is_zero(schema.at(&[key])) {
            errors.forbidden(&path.child(key), detail);
        }
    }
    if !schema.items(&["x-kubernetes-validations"]).is_empty() {
        errors.forbidden(&path.child("x-kubernetes-validations"), "must be empty to be structural");
    }
    if schema.has(&["properties", "metadata"]) {
        errors.forbidden(&path.child("properties").key("metadata"), "must not be specified in a nested context");
    }
}

fn is_zero(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    }
}

/// The two positions in which `type` is allowed inside value validations, to express int-or-string.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IntOrString {
    No,
    AnyOf,
    FirstOfAll,
}

fn is_int_or_string(schema: &Value) -> IntOrString {
    let spelled = [json!({"type": "integer"}), json!({"type": "string"})];
    if schema.items(&["anyOf"]) == spelled {
        IntOrString::AnyOf
    } else if schema.items(&["allOf"]).first().is_some_and(|first| first.items(&["anyOf"]) == spelled) {
        IntOrString::FirstOfAll
    } else {
        IntOrString::No
    }
}

/// Checks that every field in a value validation is also declared outside of value validations.
fn complete_skeleton(schema: &Value, path: &Path, errors: &mut Errors) {
    for logic in LOGIC {
        for (index, branch) in schema.items(&[logic]).iter().enumerate() {
            complete(branch, Some(schema), path, &path.child(logic).index(index), errors);
        }
    }
    if let Some(not) = schema.at(&["not"]) {
        complete(not, Some(schema), path, &path.child("not"), errors);
    }
    if let Some(items) = schema.at(&["items"]) {
        complete_skeleton(items, &path.child("items"), errors);
    }
    for (name, property) in schema.members(&["properties"]) {
        complete_skeleton(property, &path.child("properties").key(name), errors);
    }
    if let Some(additional) = schema.at(&["additionalProperties"]).filter(|additional| additional.is_object()) {
        complete_skeleton(additional, &path.child("additionalProperties"), errors);
    }
}

fn complete(branch: &Value, skeleton: Option<&Value>, path: &Path, branch_path: &Path, errors: &mut Errors) {
    let Some(skeleton) = skeleton else {
        errors.required(path, format!("because it is defined in {branch_path}"));
        return;
    };
    for logic in LOGIC {
        for (index, inner) in branch.items(&[logic]).iter().enumerate() {
            complete(inner, Some(skeleton), path, &branch_path.child(logic).index(index), errors);
        }
    }
    if let Some(not) = branch.at(&["not"]) {
        complete(not, Some(skeleton), path, &branch_path.child("not"), errors);
    }
    if let Some(items) = branch.at(&["items"]) {
        complete(items, skeleton.at(&["items"]), &path.child("items"), &branch_path.child("items"), errors);
    }
    for (name, property) in branch.members(&["properties"]) {
        let place = skeleton.at(&["properties", name]);
        let (path, branch_path) = (path.child("properties").key(name), branch_path.child("properties").key(name));
        complete(property, place, &path, &branch_path, errors);
    }
}
