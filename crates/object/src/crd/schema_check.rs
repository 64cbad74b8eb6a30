//! Validation of a definition's schema beyond being structural: supported keywords, list and map types with their keys,
//! defaults, and CEL rules that compile.

use super::cel;
use super::defaulting;
use super::node::{Node, Ty};
use super::structural;
use super::validation;
use crate::access::Access;
use crate::field::{Errors, Path};
use crate::value::Key;
use crate::{Value, json};
use std::collections::BTreeSet;

/// Validates `openAPIV3Schema` of one version. With `has_status`, the status subresource restricts what is allowed at
/// the root.
pub fn check(schema: &Value, has_status: bool, path: &Path, errors: &mut Errors) {
    let before = errors.count();
    if has_status {
        root_with_status(schema, path, errors);
    }
    if schema.flag(&["nullable"]) {
        errors.forbidden(&path.child("nullable"), "nullable cannot be true at the root");
    }
    structural::check(schema, path, errors);
    let is_structural = errors.count() == before;
    keywords(schema, &Place { is_root: true, ..Place::default() }, path, errors);
    if !is_structural || errors.count() > before {
        return;
    }
    let node = Node::parse(schema);
    defaults(&node, Where::Root, path, errors);
    if errors.count() == before {
        cel::check(&node, path, errors);
    }
}

const ALLOWED_AT_ROOT: [(&str, &str); 22] = [
    ("description", "Description"),
    ("type", "Type"),
    ("format", "Format"),
    ("title", "Title"),
    ("maximum", "Maximum"),
    ("exclusiveMaximum", "ExclusiveMaximum"),
    ("minimum", "Minimum"),
    ("exclusiveMinimum", "ExclusiveMinimum"),
    ("maxLength", "MaxLength"),
    ("minLength", "MinLength"),
    ("pattern", "Pattern"),
    ("maxItems", "MaxItems"),
    ("minItems", "MinItems"),
    ("uniqueItems", "UniqueItems"),
    ("multipleOf", "MultipleOf"),
    ("required", "Required"),
    ("items", "Items"),
    ("properties", "Properties"),
    ("externalDocs", "ExternalDocs"),
    ("example", "Example"),
    ("x-kubernetes-preserve-unknown-fields", "XPreserveUnknownFields"),
    ("x-kubernetes-validations", "XValidations"),
];

/// With a status subresource the status schema is used separately, so validations at the root must not refer to it.
fn root_with_status(schema: &Value, path: &Path, errors: &mut Errors) {
    let ty = schema.text(&["type"]);
    if !ty.is_empty() && ty != "object" {
        errors.invalid(
            &path.child("type"),
            ty,
            "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled",
        );
    }
    let stranger = |(key, value): (&Key, &Value)| {
        let is_set = !matches!(value, Value::Null | Value::Bool(false)) && *value != json!([]) && *value != json!("");
        is_set && !ALLOWED_AT_ROOT.iter().any(|(allowed, _)| key == allowed)
    };
    if schema.as_object().is_some_and(|members| members.iter().any(stranger)) {
        let names: Vec<&str> = ALLOWED_AT_ROOT.iter().map(|(_, name)| *name).collect();
        let names = names.join(" ");
        let detail =
            format!("only [{names}] fields are allowed at the root of the schema if the status subresource is enabled");
        errors.invalid(path, schema.clone(), detail);
    }
}

/// Restrictions on a schema that follow from its position.
#[derive(Clone, Default)]
struct Place {
    is_root: bool,
    /// Inside `metadata`, `kind` or `apiVersion` of a resource.
    in_meta: bool,
    /// Why a default is not allowed here.
    no_defaults: Option<String>,
}

fn keywords(schema: &Value, place: &Place, path: &Path, errors: &mut Errors) {
    supported(schema, place, path, errors);
    additional_properties(schema, place, path, errors);
    for (name, property) in schema.members(&["properties"]) {
        let mut inner = Place { is_root: false, ..place.clone() };
        let is_resource = place.is_root || schema.flag(&["x-kubernetes-embedded-resource"]);
        if is_resource && matches!(name.as_str(), "metadata" | "kind" | "apiVersion") {
            inner.in_meta = true;
            if place.is_root {
                inner.no_defaults = Some(format!("in top-level {name}"));
            }
        }
        keywords(property, &inner, &path.child("properties").key(name), errors);
    }
    let inner = Place { is_root: false, ..place.clone() };
    for logic in ["allOf", "oneOf", "anyOf"] {
        for (index, branch) in schema.items(&[logic]).iter().enumerate() {
            keywords(branch, &inner, &path.child(logic).index(index), errors);
        }
    }
    for key in ["not", "items"] {
        if let Some(branch) = schema.at(&[key]).filter(|branch| branch.is_object()) {
            keywords(branch, &inner, &path.child(key), errors);
        }
    }
    if schema.at(&["x-kubernetes-preserve-unknown-fields"]) == Some(&json!(false)) {
        let path = path.child("x-kubernetes-preserve-unknown-fields");
        errors.invalid(&path, false, "must be true or undefined");
    }
    map_type(schema, path, errors);
    list_type(schema, path, errors);
    rules(schema, path, errors);
}

fn supported(schema: &Value, place: &Place, path: &Path, errors: &mut Errors) {
    let ty = schema.text(&["type"]);
    if ty == "null" {
        let detail = "type cannot be set to null, use nullable as an alternative";
        errors.forbidden(&path.child("type"), detail);
    } else if !ty.is_empty() && Ty::parse(ty).is_none() {
        errors.not_supported(&path.child("type"), ty, &Ty::NAMES);
    }
    if let Some(reason) = &place.no_defaults
        && schema.has(&["default"])
    {
        errors.forbidden(&path.child("default"), format!("must not be set {reason}"));
    }
    for key in ["id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref"] {
        let empty = matches!(schema.at(&[key]), Some(value) if *value == json!({}) || *value == json!(""));
        if schema.has(&[key]) && !empty {
            errors.forbidden(&path.child(key), format!("{key} is not supported"));
        }
    }
    if schema.at(&["items"]).is_some_and(Value::is_array) {
        errors.forbidden(&path.child("items"), "items must be a schema object and not an array");
    }
    if place.in_meta && schema.flag(&["x-kubernetes-embedded-resource"]) {
        let path = path.child("x-kubernetes-embedded-resource");
        errors.forbidden(&path, "must not be used inside of resource meta");
    }
    if schema.flag(&["uniqueItems"]) {
        let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        errors.forbidden(&path.child("uniqueItems"), detail);
    }
}

fn additional_properties(schema: &Value, place: &Place, path: &Path, errors: &mut Errors) {
    let Some(additional) = schema.at(&["additionalProperties"]) else { return };
    let path = path.child("additionalProperties");
    if !schema.members(&["properties"]).is_empty() && *additional != json!(true) {
        errors.forbidden(&path, "additionalProperties and properties are mutual exclusive");
    }
    if additional.is_object() {
        let mut inner = Place { is_root: false, ..place.clone() };
        if place.in_meta {
            inner.no_defaults = Some("inside additionalProperties applying to object metadata".to_owned());
        }
        keywords(additional, &inner, &path, errors);
    }
}

fn must_be(schema: &Value, wanted: &str, because: &str, path: &Path, errors: &mut Errors) {
    let ty = schema.text(&["type"]);
    let detail = format!("must be {wanted} if {because} is specified");
    match ty {
        _ if ty == wanted => {}
        "" => errors.required(&path.child("type"), detail),
        _ => errors.invalid(&path.child("type"), ty, detail),
    }
}

fn map_type(schema: &Value, path: &Path, errors: &mut Errors) {
    const KEY: &str = "x-kubernetes-map-type";
    if schema.has(&[KEY]) {
        must_be(schema, "object", KEY, path, errors);
        let map_type = schema.text(&[KEY]);
        if !matches!(map_type, "atomic" | "granular") {
            errors.not_supported(&path.child(KEY), map_type, &["atomic", "granular"]);
        }
    }
}

const LIST_TYPE: &str = "x-kubernetes-list-type";
const LIST_KEYS: &str = "x-kubernetes-list-map-keys";

fn list_type(schema: &Value, path: &Path, errors: &mut Errors) {
    let list_type = schema.text(&[LIST_TYPE]);
    let items = schema.at(&["items"]).filter(|items| items.is_object());
    if schema.has(&[LIST_TYPE]) {
        must_be(schema, "array", LIST_TYPE, path, errors);
        if !matches!(list_type, "atomic" | "set" | "map") {
            errors.not_supported(&path.child(LIST_TYPE), list_type, &["atomic", "set", "map"]);
        }
    }
    if !schema.items(&[LIST_KEYS]).is_empty() && list_type != "map" {
        let (path, detail) = (path.child(LIST_TYPE), "must be map if x-kubernetes-list-map-keys is non-empty");
        if list_type.is_empty() { errors.required(&path, detail) } else { errors.invalid(&path, list_type, detail) }
    }
    if let (Some(items), "set" | "map") = (items, list_type)
        && items.flag(&["nullable"])
    {
        let detail = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        errors.forbidden(&path.child("items").child("nullable"), detail);
    }
    match list_type {
        "set" => set_items(items, path, errors),
        "map" => map_items(schema, items, path, errors),
        _ => {}
    }
}

fn set_items(items: Option<&Value>, path: &Path, errors: &mut Errors) {
    let Some(items) = items else { return };
    let detail = "must be atomic as item of a list with x-kubernetes-list-type=set";
    let (key, atomic) = match items.text(&["type"]) {
        "array" => (LIST_TYPE, matches!(items.text(&[LIST_TYPE]), "" | "atomic")),
        "object" => ("x-kubernetes-map-type", items.text(&["x-kubernetes-map-type"]) == "atomic"),
        _ => return,
    };
    if !atomic {
        let value = items.at(&[key]).cloned().unwrap_or(Value::Null);
        errors.invalid(&path.child("items").child(key), value, detail);
    }
}

fn map_items(schema: &Value, items: Option<&Value>, path: &Path, errors: &mut Errors) {
    let keys = schema.items(&[LIST_KEYS]);
    let keys_path = path.child(LIST_KEYS);
    if keys.is_empty() {
        errors.required(&keys_path, "must not be empty if x-kubernetes-list-type is map");
    }
    let Some(items) = items else {
        errors.required(&path.child("items"), "must have a schema if x-kubernetes-list-type is map");
        return;
    };
    let items_path = path.child("items");
    if items.text(&["type"]) != "object" {
        let detail = "must be object if parent array's x-kubernetes-list-type is map";
        errors.invalid(&items_path.child("type"), items.text(&["type"]), detail);
        return;
    }
    let mut seen = BTreeSet::new();
    for key in keys.iter().filter_map(Value::as_str) {
        let key_path = items_path.child("properties").key(key);
        match items.at(&["properties", key]) {
            None => errors.invalid(&keys_path, json!(keys), "entries must all be names of item properties"),
            Some(property) => key_property(items, key, property, &key_path, errors),
        }
        if !seen.insert(key) {
            errors.invalid(&keys_path, json!(keys), "must not contain duplicate entries");
        }
    }
}

fn key_property(items: &Value, key: &str, property: &Value, path: &Path, errors: &mut Errors) {
    if matches!(property.text(&["type"]), "array" | "object") {
        let detail = "must be a scalar type if parent array's x-kubernetes-list-type is map";
        errors.invalid(&path.child("type"), property.text(&["type"]), detail);
    }
    if !items.items(&["required"]).iter().any(|name| name == key) && !property.has(&["default"]) {
        errors.required(
            &path.child("default"),
            "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
        );
    }
    if property.flag(&["nullable"]) {
        let detail = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
        errors.forbidden(&path.child("nullable"), detail);
    }
}

const REASONS: [&str; 4] = ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"];

/// Checks the form of CEL rules. They are compiled only if the rest of the schema is valid.
fn rules(schema: &Value, path: &Path, errors: &mut Errors) {
    for (index, rule) in schema.items(&["x-kubernetes-validations"]).iter().enumerate() {
        let path = path.child("x-kubernetes-validations").index(index);
        let (text, message) = (rule.text(&["rule"]).trim(), rule.text(&["message"]));
        let has_newline = |text: &str| text.contains(['\n', '\r']);
        if text.is_empty() {
            errors.required(&path.child("rule"), "rule is not specified");
        } else if !message.is_empty() && message.trim().is_empty() {
            errors.invalid(&path.child("message"), message, "message must be non-empty if specified");
        } else if has_newline(message.trim()) {
            errors.invalid(&path.child("message"), message, "message must not contain line breaks");
        } else if has_newline(text) && message.trim().is_empty() {
            errors.required(&path.child("message"), "message must be specified if rule contains line breaks");
        }
        let expression = rule.text(&["messageExpression"]);
        if !expression.is_empty() && expression.trim().is_empty() {
            let detail = "messageExpression must be non-empty if specified";
            errors.required(&path.child("messageExpression"), detail);
        }
        if let Some(reason) = rule.at(&["reason"]).and_then(Value::as_str)
            && !REASONS.contains(&reason)
        {
            errors.not_supported(&path.child("reason"), reason, &REASONS);
        }
        let field_path = rule.text(&["fieldPath"]);
        if !field_path.is_empty() && super::paths::resolve(field_path, &Node::parse(schema), true).is_err() {
            errors.invalid(&path.child("fieldPath"), field_path, "fieldPath must be a valid path");
        }
    }
}

/// The position of a default, which decides how it is pruned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    Root,
    Plain,
}

/// Checks that defaults are valid and have no fields that pruning would remove.
fn defaults(node: &Node, place: Where, path: &Path, errors: &mut Errors) {
    if let Some(default) = &node.default {
        let path = path.child("default");
        let mut pruned = default.clone();
        defaulting::prune(node, &mut pruned);
        if pruned != *default {
            errors.invalid(&path, default.clone(), "must not have unknown fields");
        }
        let mut whole = default.clone();
        defaulting::fill(node, &mut whole);
        errors.extend(validation::validate_under(node, &whole, &path));
    }
    if let Some(items) = &node.items {
        defaults(items, Where::Plain, &path.child("items"), errors);
    }
    if let Some(values) = node.additional.node() {
        defaults(values, Where::Plain, &path.child("additionalProperties"), errors);
    }
    for (name, property) in &node.properties {
        let is_meta = place == Where::Root && matches!(name.as_str(), "metadata" | "kind" | "apiVersion");
        if !is_meta {
            defaults(property, Where::Plain, &path.child("properties").key(name), errors);
        }
    }
}
