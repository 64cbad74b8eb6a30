//! Objects of custom kinds: pruning, defaults, validation, columns.

use super::*;
use crate::kind::Subresource;
use crate::schema::{ListType, Type};

#[test]
fn unknown_fields_are_pruned_and_defaults_are_set() {
    let kind = kind(&postgres());
    let mut object = cluster(json!({
        "image": "pg:17",
        "imagee": "typo",
        "backup": {"until": null, "junk": 1},
        "mode": null,
        "ports": [{"port": 5432, "extra": true}],
        "overrides": {"any": {"thing": [1]}},
        "parameters": {"work_mem": "1MB"},
        "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"free": true}},
    }));
    object["status"] = json!({"free": {"form": 1}});
    object["top"] = json!("stranger");
    let unknown = kind.rules.conform(&mut object).unwrap().unwrap();
    assert_eq!(unknown, ["spec.backup.junk", "spec.imagee", "spec.ports[0].extra", "top"]);
    with_ctx(|ctx| kind.rules.default(&mut object, ctx));
    assert_eq!(
        object["spec"],
        json!({
            "image": "pg:17",
            "instances": 1,
            "mode": "async",
            "backup": {"retention": "7d", "until": null},
            "ports": [{"port": 5432, "protocol": "TCP"}],
            "overrides": {"any": {"thing": [1]}},
            "parameters": {"work_mem": "1MB"},
            "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"free": true}},
        })
    );
    assert_eq!(object["status"], json!({"free": {"form": 1}}));
}

#[test]
fn every_value_validation_has_upstreams_message() {
    let kind = kind(&postgres());
    let cases: Vec<(Value, &str)> = vec![
        (json!({}), "spec.image: Required value"),
        (json!({"image": ""}), "spec.image: Invalid value: \"\": spec.image in body should be at least 1 chars long"),
        (json!({"image": "x".repeat(65)}), "spec.image: Too long: may not be more than 64 bytes"),
        (
            json!({"image": "x", "instances": 0}),
            "spec.instances: Invalid value: 0: spec.instances in body should be greater than or equal to 1",
        ),
        (
            json!({"image": "x", "instances": 10}),
            "spec.instances: Invalid value: 10: spec.instances in body should be less than or equal to 9",
        ),
        (
            json!({"image": "x", "instances": "3"}),
            "spec.instances: Invalid value: \"string\": spec.instances in body must be of type integer: \"string\"",
        ),
        (
            json!({"image": "x", "instances": 1.5}),
            "spec.instances: Invalid value: \"number\": spec.instances in body must be of type integer: \"number\"",
        ),
        (
            json!({"image": "x", "mode": "quorum"}),
            "spec.mode: Unsupported value: \"quorum\": supported values: \"async\", \"sync\"",
        ),
        (
            json!({"image": "x", "backup": {"retention": "7"}}),
            "spec.backup.retention: Invalid value: \"7\": spec.backup.retention in body should match '^[1-9][0-9]*[dwm]$'",
        ),
        (
            json!({"image": "x", "backup": {"until": "tomorrow"}}),
            "spec.backup.until: Invalid value: \"tomorrow\": spec.backup.until in body must be of type date-time: \"tomorrow\"",
        ),
        (
            json!({"image": "x", "maxSkew": true}),
            "spec.maxSkew: Invalid value: \"boolean\": spec.maxSkew in body must be of type integer,string: \"boolean\"",
        ),
        (
            json!({"image": "x", "parameters": {"a": 1}}),
            "spec.parameters.a: Invalid value: \"integer\": spec.parameters.a in body must be of type string: \"integer\"",
        ),
        (
            json!({"image": "x", "ports": [{"port": 1}, {"port": 2}, {"port": 3}, {"port": 4}]}),
            "spec.ports: Too many: 4: must have at most 3 items",
        ),
        (json!({"image": "x", "ports": [{}]}), "spec.ports[0].port: Required value"),
        (
            json!({"image": "x", "ports": [{"port": 1}, {"port": 1, "protocol": "TCP"}]}),
            "spec.ports[1]: Duplicate value: {\"port\":1,\"protocol\":\"TCP\"}",
        ),
        (
            json!({"image": "x", "ports": [{"port": 1, "weight": 0}]}),
            "spec.ports[0].weight: Invalid value: 0: spec.ports[0].weight in body should be greater than 0",
        ),
        (json!({"image": "x", "zones": ["a", "b", "a"]}), "spec.zones[2]: Duplicate value: \"a\""),
        (
            json!({"image": "x", "template": {"kind": "Pod"}}),
            "spec.template.apiVersion: Required value: must not be empty",
        ),
        (json!("x"), "spec: Invalid value: \"string\": spec in body must be of type object: \"string\""),
    ];
    for (spec, want) in cases {
        assert_eq!(create(&kind, cluster(spec.clone())).1, [want], "{spec}");
    }
    let (_, fine) = create(&kind, cluster(json!({"image": "x", "maxSkew": "25%", "instances": 3.0, "ports": []})));
    assert_eq!(fine, Vec::<String>::new());
}

#[test]
fn rare_validations_have_upstreams_message_too() {
    let kind = kind(&definition_of_spec(json!({"type": "object", "properties": {
        "step": {"type": "integer", "multipleOf": 5, "maximum": 2_000_000, "exclusiveMaximum": true},
        "big": {"type": "integer", "format": "int32"},
        "map": {"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"type": "integer"}},
        "list": {"type": "array", "minItems": 2, "items": {"type": "string"}},
        "closed": {"type": "object", "additionalProperties": false},
        "any": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        "one": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        "all": {"type": "string", "allOf": [{"minLength": 2}, {"pattern": "^a"}]},
        "not": {"type": "string", "not": {"enum": ["forbidden"]}},
    }})));
    let cases: Vec<(Value, Vec<&str>)> = vec![
        (json!({"step": 7}), vec!["spec.step: Invalid value: 7: spec.step in body should be a multiple of 5"]),
        (
            json!({"step": 2_000_000}),
            vec!["spec.step: Invalid value: 2000000: spec.step in body should be less than 2e+06"],
        ),
        (
            json!({"big": 3_000_000_000u64}),
            vec!["<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in spec.big"],
        ),
        (json!({"map": {}}), vec!["spec.map: Invalid value: 0: spec.map in body should have at least 1 properties"]),
        (json!({"map": {"a": 1, "b": 2, "c": 3}}), vec!["spec.map: Too many: 3: must have at most 2 items"]),
        (json!({"list": ["a"]}), vec!["spec.list: Invalid value: 1: spec.list in body should have at least 2 items"]),
        (
            json!({"any": {}}),
            vec![
                "<nil>: Invalid value: \"\": \"spec.any\" must validate at least one schema (anyOf)",
                "spec.any.a: Required value",
            ],
        ),
        (
            json!({"one": {"a": "", "b": ""}}),
            vec![
                "<nil>: Invalid value: \"\": \"spec.one\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
            ],
        ),
        (
            json!({"one": {}}),
            vec![
                "<nil>: Invalid value: \"\": \"spec.one\" must validate one and only one schema (oneOf). Found none valid",
                "spec.one.a: Required value",
            ],
        ),
        (
            json!({"all": "b"}),
            vec![
                "<nil>: Invalid value: \"\": \"spec.all\" must validate all the schemas (allOf). None validated",
                "spec.all: Invalid value: \"b\": spec.all in body should be at least 2 chars long",
                "spec.all: Invalid value: \"b\": spec.all in body should match '^a'",
            ],
        ),
        (
            json!({"not": "forbidden"}),
            vec!["<nil>: Invalid value: \"\": \"spec.not\" must not validate the schema (not)"],
        ),
    ];
    for (spec, want) in cases {
        assert_eq!(create(&kind, widget(spec.clone())).1, want, "{spec}");
    }
}

#[test]
fn unchanged_invalid_fields_do_not_block_an_update() {
    let strict = kind(&definition_of_spec(json!({"type": "object", "properties": {
        "old": {"type": "string", "minLength": 5},
        "other": {"type": "string"},
        "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "items": {
            "type": "object", "required": ["name"],
            "properties": {"name": {"type": "string"}, "size": {"type": "integer", "minimum": 5}}}},
    }})));
    let old = widget(json!({"old": "abc", "list": [{"name": "a", "size": 1}]}));
    assert!(!create(&strict, old.clone()).1.is_empty());
    let new = widget(json!({"old": "abc", "other": "x", "list": [{"name": "b", "size": 9}, {"name": "a", "size": 1}]}));
    assert_eq!(update(&strict, &old, new), Vec::<String>::new());
    let worse = widget(json!({"old": "ab", "list": [{"name": "a", "size": 2}]}));
    assert_eq!(update(&strict, &old, worse).len(), 2);
}

#[test]
fn a_served_kind_has_the_properties_of_its_definition() {
    let kind = kind(&postgres());
    assert_eq!(kind.api_version(), "postgresql.example.com/v1");
    assert_eq!((&*kind.kind, &*kind.plural, &*kind.singular), ("Cluster", "clusters", "cluster"));
    assert_eq!(kind.list_kind(), "ClusterList");
    assert_eq!(kind.storage, "postgresql.example.com/clusters");
    assert!(kind.namespaced && kind.stored && kind.has_status() && kind.rules.counts_generations());
    assert_eq!(
        kind.subresource("scale"),
        Some(&Subresource::Scale {
            spec_replicas: "spec.instances".to_owned(),
            status_replicas: "status.instances".to_owned(),
            selector: Some("status.selector".to_owned()),
        })
    );
    assert_eq!(kind.rules.selectable_fields(), ["spec.image"]);
    assert_eq!(kind.rules.field_value(&cluster(json!({"image": "x"})), "spec.image"), "x");
    assert_eq!(kind.short_names, ["pg"]);
    assert_eq!(kind.categories, ["all"]);
}

#[test]
fn columns_show_the_values_of_their_paths() {
    let kind = kind(&postgres());
    let names: Vec<&str> = kind.rules.columns().iter().map(|column| &*column.name).collect();
    assert_eq!(names, ["Name", "Instances", "Ready", "Since", "Age"]);
    assert_eq!(kind.rules.columns()[3].priority, 1);
    let mut object = cluster(json!({"image": "x", "instances": 3}));
    object["metadata"]["creationTimestamp"] = json!("2026-11-15T09:00:00Z");
    object["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}], "since": "soon"});
    assert_eq!(
        kind.rules.cells(&object, now()),
        [json!("main"), json!(3), json!("True"), json!("<invalid>"), json!("60m")]
    );
    object.cut(&["status"]);
    assert_eq!(kind.rules.cells(&object, now())[2], Value::Null);

    let plain = super::kind(&definition_of_spec(json!({"type": "object"})));
    let names: Vec<&str> = plain.rules.columns().iter().map(|column| &*column.name).collect();
    assert_eq!(names, ["Name", "Age"]);
}

#[test]
fn the_type_of_a_custom_kind_has_lists_maps_and_metadata() {
    let kind = kind(&postgres());
    let schema = kind.schema.expect("the custom kind has no schema");
    let field = |ty: &Type, name: &str| match ty {
        Type::Struct(inner) => inner.fields[name].ty,
        other => panic!("no struct: {other:?}"),
    };
    let spec = field(schema.get(), "spec");
    let ports = field(schema.schema.get(spec), "ports");
    match schema.schema.get(ports) {
        Type::List { list, .. } => {
            assert_eq!(*list, ListType::Map { keys: vec!["port".to_owned(), "protocol".to_owned()] });
        }
        other => panic!("no list: {other:?}"),
    }
    let meta = field(schema.get(), "metadata");
    let Type::Struct(meta) = schema.schema.get(meta) else { panic!("metadata is a struct") };
    assert!(meta.fields.contains_key("ownerReferences") && meta.fields.contains_key("labels"));
    let Type::Struct(overrides) = schema.schema.get(field(schema.schema.get(spec), "overrides")) else { panic!() };
    assert!(overrides.preserve_unknown);
    let Type::Struct(template) = schema.schema.get(field(schema.schema.get(spec), "template")) else { panic!() };
    assert!(template.embedded && template.fields.contains_key("metadata"));
}

#[test]
fn versions_share_their_storage_and_conversion_changes_only_the_api_version() {
    let mut definition = definition_of_spec(json!({"type": "object", "properties": {"a": {"type": "string"}}}));
    let mut beta = definition["spec"]["versions"][0].clone();
    beta["name"] = json!("v1beta1");
    beta["storage"] = json!(false);
    beta["deprecated"] = json!(true);
    beta["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["b"] =
        json!({"type": "string", "default": "new"});
    let mut hidden = beta.clone();
    hidden["name"] = json!("v1alpha1");
    hidden["served"] = json!(false);
    definition["spec"]["versions"].as_array_mut().unwrap().extend([beta, hidden]);
    let kinds = kinds(&definition);
    assert_eq!(kinds.len(), 2, "only served versions are kinds");
    assert_eq!(kinds[0].storage, kinds[1].storage);
    assert!(!kinds[0].rules.converts() && kinds[1].rules.converts());
    assert_eq!(kinds[1].rules.deprecation(), Some("example.com/v1beta1 Widget is deprecated"));
    let mut object = widget(json!({"a": "x"}));
    kinds[1].rules.from_stored(&mut object);
    assert_eq!(object["apiVersion"], "example.com/v1beta1");
    assert_eq!(object["spec"], json!({"a": "x", "b": "new"}));
    kinds[1].rules.to_stored(&mut object);
    assert_eq!(object["apiVersion"], "example.com/v1");
}

#[test]
fn the_openapi_schema_has_the_fields_of_every_resource() {
    let schema = openapi(&postgres(), "v1");
    assert_eq!(schema["properties"]["spec"]["properties"]["image"]["type"], "string");
    assert_eq!(
        schema["properties"]["metadata"]["$ref"],
        "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    );
    assert_eq!(schema["properties"]["spec"]["properties"]["template"]["properties"]["kind"]["type"], "string");
    assert!(schema["properties"]["spec"]["properties"]["image"].get("properties").is_none());
    assert_eq!(
        schema["x-kubernetes-group-version-kind"],
        json!([{"group": "postgresql.example.com", "kind": "Cluster", "version": "v1"}])
    );
    // Every reference in the documents must have a definition.
    let mut all = crate::Kinds::default();
    all.insert(kind(&postgres()));
    let document =
        crate::openapi::v3(&all, "postgresql.example.com", "v1", "v1.37.0").expect("it is served").to_string();
    assert!(document.contains("com.example.postgresql.v1.Cluster") && !document.contains("#/definitions/"));
    assert_eq!(definition_name("postgresql.example.com", "v1", "Cluster"), "com.example.postgresql.v1.Cluster");
}
