//! Validation of definitions: each rule once, with its error message.

use super::*;

/// A change of a valid definition, and the expected errors.
struct Case {
    path: &'static [&'static str],
    value: Value,
    want: &'static [&'static str],
}

fn case(path: &'static [&'static str], value: Value, want: &'static [&'static str]) -> Case {
    Case { path, value, want }
}

#[test]
fn realistic_definitions_are_accepted() {
    assert_eq!(refusals(&postgres()), Vec::<String>::new());
    assert_eq!(refusals(&super::cel::certificate()), Vec::<String>::new());
}

#[test]
fn group_scope_and_names_are_checked() {
    let label = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, \
                 and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is \
                 '[a-z]([-a-z0-9]*[a-z0-9])?')";
    let cases = [
        case(
            &["metadata", "name"],
            json!("widget.example.com"),
            &["metadata.name: Invalid value: \"widget.example.com\": must be spec.names.plural+\".\"+spec.group"],
        ),
        case(&["spec", "scope"], json!(""), &["spec.scope: Required value"]),
        case(
            &["spec", "scope"],
            json!("Galaxy"),
            &["spec.scope: Unsupported value: \"Galaxy\": supported values: \"Cluster\", \"Namespaced\""],
        ),
        case(
            &["spec", "names", "listKind"],
            json!("Widget"),
            &["spec.names.listKind: Invalid value: \"Widget\": kind and listKind may not be the same"],
        ),
        case(
            &["spec", "preserveUnknownFields"],
            json!(true),
            &[
                "spec.preserveUnknownFields: Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields \
               to true in spec.versions[*].schema instead",
            ],
        ),
        case(
            &["spec", "conversion"],
            json!({"strategy": "Webhook", "webhook": {}}),
            &[
                "spec.conversion.strategy: Forbidden: conversion webhooks are not supported by this server: use strategy None \
               and one schema for all versions",
            ],
        ),
        case(
            &["spec", "conversion"],
            json!({"strategy": "None", "webhook": {}}),
            &["spec.conversion.webhook: Forbidden: should not be set when strategy is not set to Webhook"],
        ),
        case(
            &["spec", "conversion"],
            json!({"strategy": "Magic"}),
            &["spec.conversion.strategy: Unsupported value: \"Magic\": supported values: \"None\", \"Webhook\""],
        ),
    ];
    for Case { path, value, want } in cases {
        let mut definition = definition_of_spec(json!({"type": "object"}));
        definition.put(path, value.clone());
        assert_eq!(refusals(&definition), want, "{path:?} = {value}");
    }
    let mut definition = definition_of_spec(json!({"type": "object"}));
    definition["spec"]["names"]["shortNames"] = json!(["W!"]);
    assert_eq!(refusals(&definition), [format!("spec.names.shortNames[0]: Invalid value: \"W!\": {label}")]);
    definition["spec"]["names"] = json!({"plural": "widgets", "kind": "Wid_get"});
    let messages = refusals(&definition);
    let mixed = format!("may have mixed case, but should otherwise match: {label}");
    assert!(messages.contains(&format!("spec.names.kind: Invalid value: \"Wid_get\": {mixed}")), "{messages:?}");
    definition["spec"]["names"] = json!({});
    let messages = refusals(&definition);
    for field in ["plural", "singular", "kind", "listKind"] {
        assert!(messages.contains(&format!("spec.names.{field}: Required value")), "{messages:?}");
    }
}

#[test]
fn groups_are_domains_and_community_groups_need_approval() {
    let of_group = |group: &str| {
        let mut definition = definition_of_spec(json!({"type": "object"}));
        definition["spec"]["group"] = json!(group);
        definition["metadata"]["name"] = json!(format!("widgets.{group}"));
        definition
    };
    assert_eq!(
        refusals(&of_group("example")),
        ["spec.group: Invalid value: \"example\": should be a domain with at least one dot"]
    );
    assert!(refusals(&of_group("")).contains(&"spec.group: Required value".to_owned()));
    let mut community = of_group("snapshot.storage.k8s.io");
    assert_eq!(
        refusals(&community),
        [
            "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation \
          \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111"
        ]
    );
    community["metadata"]["annotations"] =
        json!({"api-approved.kubernetes.io": "https://github.com/kubernetes/pull/1"});
    assert_eq!(refusals(&community), Vec::<String>::new());
    community["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "unapproved, experimental"});
    assert_eq!(refusals(&community), Vec::<String>::new());
    community["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "yes"});
    assert_eq!(refusals(&community).len(), 1);
    assert_eq!(refusals(&of_group("notk8s.io")), Vec::<String>::new());
}

#[test]
fn versions_are_checked() {
    let change = |edit: &dyn Fn(&mut Value)| {
        let mut definition = definition_of_spec(json!({"type": "object"}));
        edit(&mut definition["spec"]["versions"]);
        refusals(&definition)
    };
    let second = |versions: &mut Value, name: &str, storage: bool| {
        let mut second = versions[0].clone();
        second["name"] = json!(name);
        second["storage"] = json!(storage);
        versions.as_array_mut().unwrap().push(second);
    };
    let ends_with = |messages: &[String], want: &str| {
        messages.iter().any(|messages| messages.starts_with("spec.versions: ") && messages.ends_with(want))
    };
    let messages = change(&|versions| second(versions, "v2", true));
    assert!(ends_with(&messages, "must have exactly one version marked as storage version"), "{messages:?}");
    let messages = change(&|versions| second(versions, "v1", false));
    assert!(ends_with(&messages, "must contain unique version names"), "{messages:?}");
    let messages = change(&|versions| versions[0]["storage"] = json!(false));
    assert!(ends_with(&messages, "must have exactly one version marked as storage version"), "{messages:?}");
    assert!(
        change(&|versions| versions[0]["name"] = json!("1"))[0]
            .starts_with("spec.versions[0].name: Invalid value: \"1\": ")
    );
    assert_eq!(
        change(&|versions| drop(versions[0].cut(&["schema"]))),
        ["spec.versions[0].schema.openAPIV3Schema: Required value: schemas are required"]
    );
    assert_eq!(
        change(&|versions| versions[0]["deprecationWarning"] = json!("old")),
        ["spec.versions[0].deprecationWarning: Invalid value: \"old\": can only be set for deprecated versions"]
    );
}

#[test]
fn subresources_columns_and_selectable_fields_are_checked() {
    let of = |key: &str, value: Value| {
        let mut definition = definition_of_spec(json!({"type": "object", "properties": {
            "color": {"type": "string"}, "list": {"type": "array", "items": {"type": "string"}}}}));
        definition["spec"]["versions"][0][key] = value;
        refusals(&definition)
    };
    let scale = |spec: &str, status: &str, selector: &str| {
        let scale = json!({"specReplicasPath": spec, "statusReplicasPath": status, "labelSelectorPath": selector});
        of("subresources", json!({"scale": scale}))
    };
    assert_eq!(scale(".spec.n", ".status.n", ".status.s"), Vec::<String>::new());
    assert_eq!(
        scale("", "status.n", ".metadata.s"),
        [
            "spec.subresources.scale.specReplicasPath: Required value",
            "spec.subresources.scale.statusReplicasPath: Invalid value: \"status.n\": must be a simple json path starting with .",
            "spec.subresources.scale.labelSelectorPath: Invalid value: \".metadata.s\": should be a json path under either .spec or .status",
        ]
    );
    assert_eq!(
        scale(".status.n", ".spec.n", ""),
        [
            "spec.subresources.scale.specReplicasPath: Invalid value: \".status.n\": should be a json path under .spec",
            "spec.subresources.scale.statusReplicasPath: Invalid value: \".spec.n\": should be a json path under .status",
        ]
    );
    assert_eq!(
        of(
            "additionalPrinterColumns",
            json!([{"name": "", "type": "text", "jsonPath": "spec", "format": "x"}, {"name": "a"}])
        ),
        [
            "spec.additionalPrinterColumns[0].name: Required value",
            "spec.additionalPrinterColumns[0].type: Invalid value: \"text\": must be one of boolean,date,integer,number,string",
            "spec.additionalPrinterColumns[0].format: Invalid value: \"x\": must be one of \
             byte,date,date-time,double,float,int32,int64,password,binary",
            "spec.additionalPrinterColumns[0].JSONPath: Invalid value: \"spec\": must be a simple json path starting with .",
            "spec.additionalPrinterColumns[1].type: Required value: must be one of boolean,date,integer,number,string",
            "spec.additionalPrinterColumns[1].JSONPath: Required value",
        ]
    );
    assert_eq!(
        of(
            "selectableFields",
            json!([{"jsonPath": ".spec.colour"}, {"jsonPath": ".spec.list"}, {"jsonPath": ".spec.color"}, {"jsonPath": ".spec.color"}])
        ),
        [
            "spec.selectableFields[0].jsonPath: Invalid value: \".spec.colour\": is an invalid path: does not refer to a valid field",
            "spec.selectableFields[1].jsonPath: Invalid value: \".spec.list\": must point to a field of type string, boolean or \
             integer. Enum string fields and strings with formats are allowed.",
            "spec.selectableFields[3].jsonPath: Duplicate value: \".spec.color\"",
        ]
    );
}

/// Path of errors in the schema of `spec`.
const AT: &str = "spec.validation.openAPIV3Schema.properties[spec]";

#[test]
fn schemas_must_be_structural() {
    let cases: Vec<(Value, Vec<&str>)> = vec![
        (json!({}), vec![".type: Required value: must not be empty for specified object fields"]),
        (json!({"type": "array"}), vec![".items: Required value: must be specified"]),
        (
            json!({"type": "array", "items": {}}),
            vec![".items.type: Required value: must not be empty for specified array items"],
        ),
        (
            json!({"type": "string", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
            vec![".type: Invalid value: \"string\": must be object if x-kubernetes-embedded-resource is true"],
        ),
        (
            json!({"type": "object", "x-kubernetes-embedded-resource": true}),
            vec![
                ".properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without \
                 x-kubernetes-preserve-unknown-fields",
            ],
        ),
        (
            json!({"x-kubernetes-int-or-string": true, "x-kubernetes-preserve-unknown-fields": true}),
            vec![
                ".x-kubernetes-preserve-unknown-fields: Invalid value: true: must be false if x-kubernetes-int-or-string is true",
            ],
        ),
        (
            json!({"type": "string", "allOf": [{"type": "string", "description": "x", "default": "a", "nullable": true}]}),
            vec![
                ".allOf[0].type: Forbidden: must be empty to be structural",
                ".allOf[0].default: Forbidden: must be undefined to be structural",
                ".allOf[0].description: Forbidden: must be empty to be structural",
                ".allOf[0].nullable: Forbidden: must be false to be structural",
            ],
        ),
        (
            json!({"type": "object", "not": {"additionalProperties": {"minLength": 1}}}),
            vec![".not.additionalProperties: Forbidden: must be undefined to be structural"],
        ),
        (
            json!({"type": "object", "anyOf": [{"properties": {"a": {"minLength": 1}}}]}),
            vec![
                ".properties[a]: Required value: because it is defined in \
                 spec.validation.openAPIV3Schema.properties[spec].anyOf[0].properties[a]",
            ],
        ),
        (
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                "oneOf": [{"properties": {"metadata": {"minProperties": 1}}}],
                "properties": {"metadata": {"type": "object"}}}),
            vec![".oneOf[0].properties[metadata]: Forbidden: must not be specified in a nested context"],
        ),
        (
            json!({"type": "string", "pattern": "("}),
            vec![".pattern: Invalid value: \"(\": must be a valid regular expression, but isn't: unclosed group"],
        ),
    ];
    for (schema, want) in cases {
        let want: Vec<String> = want.iter().map(|want| format!("{AT}{want}")).collect();
        assert_eq!(refusals(&definition_of_spec(schema.clone())), want, "{schema}");
    }
}

#[test]
fn the_root_schema_must_not_restrict_metadata_or_status() {
    let root = "spec.validation.openAPIV3Schema";
    let meta = json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 9}}}}});
    assert_eq!(refusals(&definition_of(meta)), Vec::<String>::new());
    let cases: Vec<(Value, String)> = vec![
        (json!({"type": "string"}), format!("{root}.type: Invalid value: \"string\": must be object at the root")),
        (json!({"properties": {}}), format!("{root}.type: Required value: must not be empty at the root")),
        (
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            format!("{root}.additionalProperties: Forbidden: must not be used at the root"),
        ),
        (
            json!({"type": "object", "nullable": true}),
            format!("{root}.nullable: Forbidden: nullable cannot be true at the root"),
        ),
        (
            json!({"type": "object", "properties": {"kind": {"type": "integer"}}}),
            format!("{root}.properties[kind].type: Invalid value: \"integer\": must be string"),
        ),
        (
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
            format!(
                "{root}.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but \
                 metadata is implicitly specified"
            ),
        ),
        (
            json!({"type": "object", "properties": {"metadata": {"type": "object", "default": {}}}}),
            format!("{root}.properties[metadata].default: Forbidden: must not be set in top-level metadata"),
        ),
    ];
    for (schema, want) in cases {
        assert_eq!(refusals(&definition_of(schema.clone())), [want], "{schema}");
    }
    let mut definition = definition_of(json!({"type": "object", "oneOf": [{"required": ["spec"]}]}));
    definition["spec"]["versions"][0]["subresources"] = json!({"status": {}});
    let messages = refusals(&definition);
    assert!(
        messages[0].contains("fields are allowed at the root of the schema if the status subresource is enabled"),
        "{messages:?}"
    );
}

#[test]
fn keywords_lists_and_maps_are_checked() {
    let item = |extra: Value| {
        let mut item = json!({"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}});
        for (key, value) in extra.as_object().unwrap() {
            item[key] = value.clone();
        }
        item
    };
    let map = |keys: Value, items: Value| json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys, "items": items});
    let cases: Vec<(Value, &str)> = vec![
        (
            json!({"type": "text"}),
            ".type: Unsupported value: \"text\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
        ),
        (json!({"type": "null"}), ".type: Forbidden: type cannot be set to null, use nullable as an alternative"),
        (json!({"type": "string", "id": "x"}), ".id: Forbidden: id is not supported"),
        (json!({"type": "string", "$ref": "#/x"}), ".$ref: Forbidden: $ref is not supported"),
        (
            json!({"type": "object", "patternProperties": {"a": {}}}),
            ".patternProperties: Forbidden: patternProperties is not supported",
        ),
        (json!({"type": "object", "definitions": {"a": {}}}), ".definitions: Forbidden: definitions is not supported"),
        (
            json!({"type": "array", "uniqueItems": true, "items": {"type": "string"}}),
            ".uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
            ".additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
        ),
        (
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": false}),
            ".x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined",
        ),
        (
            json!({"type": "string", "x-kubernetes-map-type": "atomic"}),
            ".type: Invalid value: \"string\": must be object if x-kubernetes-map-type is specified",
        ),
        (
            json!({"type": "object", "x-kubernetes-map-type": "loose"}),
            ".x-kubernetes-map-type: Unsupported value: \"loose\": supported values: \"atomic\", \"granular\"",
        ),
        (
            json!({"type": "string", "x-kubernetes-list-type": "set"}),
            ".type: Invalid value: \"string\": must be array if x-kubernetes-list-type is specified",
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "bag"}),
            ".x-kubernetes-list-type: Unsupported value: \"bag\": supported values: \"atomic\", \"set\", \"map\"",
        ),
        (
            json!({"type": "array", "items": item(json!({})), "x-kubernetes-list-map-keys": ["name"]}),
            ".x-kubernetes-list-type: Required value: must be map if x-kubernetes-list-map-keys is non-empty",
        ),
        (
            json!({"type": "array", "items": item(json!({})), "x-kubernetes-list-type": "set"}),
            ".items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set",
        ),
        (
            json!({"type": "array", "items": {"type": "string", "nullable": true}, "x-kubernetes-list-type": "set"}),
            ".items.nullable: Forbidden: cannot be nullable when x-kubernetes-list-type is set",
        ),
        (
            map(json!([]), item(json!({}))),
            ".x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map",
        ),
        (
            map(json!(["name"]), json!({"type": "string"})),
            ".items.type: Invalid value: \"string\": must be object if parent array's x-kubernetes-list-type is map",
        ),
        (
            map(json!(["nam"]), item(json!({}))),
            ".x-kubernetes-list-map-keys: Invalid value: [\"nam\"]: entries must all be names of item properties",
        ),
        (
            map(json!(["name", "name"]), item(json!({}))),
            ".x-kubernetes-list-map-keys: Invalid value: [\"name\",\"name\"]: must not contain duplicate entries",
        ),
        (
            map(json!(["name"]), item(json!({"required": []}))),
            ".items.properties[name].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a \
             default or be a required property",
        ),
        (
            map(json!(["name"]), item(json!({"properties": {"name": {"type": "string", "nullable": true}}}))),
            ".items.properties[name].nullable: Forbidden: this property is in x-kubernetes-list-map-keys, so it cannot be nullable",
        ),
        (
            map(json!(["name"]), item(json!({"properties": {"name": {"type": "object"}}}))),
            ".items.properties[name].type: Invalid value: \"object\": must be a scalar type if parent array's x-kubernetes-list-type is map",
        ),
    ];
    for (schema, want) in cases {
        assert_eq!(refusals(&definition_of_spec(schema.clone())), [format!("{AT}{want}")], "{schema}");
    }
}

#[test]
fn defaults_must_be_valid_and_pruned() {
    let cases: Vec<(Value, &str)> = vec![
        (
            json!({"type": "integer", "minimum": 1, "default": 0}),
            ".default: Invalid value: 0:  in body should be greater than or equal to 1",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "default": {"a": "x", "b": 1}}),
            ".default: Invalid value: {\"a\":\"x\",\"b\":1}: must not have unknown fields",
        ),
        (
            json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}, "default": {}}),
            ".default.a: Required value",
        ),
        (
            json!({"type": "string", "default": 1}),
            ".default: Invalid value: \"integer\":  in body must be of type string: \"integer\"",
        ),
    ];
    for (schema, want) in cases {
        assert_eq!(refusals(&definition_of_spec(schema.clone())), [format!("{AT}{want}")], "{schema}");
    }
    let chained = json!({"type": "object", "default": {}, "required": ["a"],
        "properties": {"a": {"type": "string", "default": "x"}}});
    assert_eq!(
        refusals(&definition_of_spec(chained)),
        Vec::<String>::new(),
        "inner defaults are applied to outer ones"
    );
}

#[test]
fn unknown_formats_give_a_warning() {
    let definition = definition_of_spec(json!({"type": "string", "format": "datum"}));
    let warnings = with_ctx(|ctx| definition::Definition.warnings(&definition, None, ctx));
    assert_eq!(warnings, ["unrecognized format \"datum\""]);
}
