//! Properties that hold for every object and every schema.

use super::super::{defaulting, node::Node, schema_check, validation};
use super::*;
use crate::field::Path;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use std::sync::LazyLock;

/// Any JSON, with field names of the sample definitions among the keys.
fn any_json() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        Just("spec".to_owned()),
        Just("image".to_owned()),
        Just("instances".to_owned()),
        Just("backup".to_owned()),
        Just("until".to_owned()),
        Just("ports".to_owned()),
        Just("port".to_owned()),
        Just("zones".to_owned()),
        Just("template".to_owned()),
        Just("dnsNames".to_owned()),
        Just("issuer".to_owned()),
        Just("keys".to_owned()),
        "[a-z]{0,3}",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            btree_map(key.clone(), inner, 0..6).prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Any JSON, with schema keywords among the keys.
fn any_schema() -> impl Strategy<Value = Value> {
    let keyword = prop::sample::select(vec![
        "type",
        "properties",
        "items",
        "additionalProperties",
        "required",
        "default",
        "nullable",
        "enum",
        "pattern",
        "format",
        "minimum",
        "maxLength",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "x-kubernetes-validations",
        "rule",
        "message",
        "fieldPath",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-int-or-string",
        "a",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-map-type",
        "metadata",
    ]);
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        prop::sample::select(vec!["object", "array", "string", "integer", "map", "set", "a", "self.a", "(", "true"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 96, 6, move |inner| {
        prop_oneof![
            1 => vec(inner.clone(), 0..4).prop_map(Value::from),
            4 => btree_map(keyword.clone(), inner, 0..7)
                .prop_map(|members| Value::Object(members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())),
        ]
    })
}

static NODES: LazyLock<[Node; 2]> = LazyLock::new(|| {
    let node = |definition: Value| Node::parse(&definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]);
    [node(postgres()), node(super::cel::certificate())]
});

static KINDS: LazyLock<[Kind; 2]> = LazyLock::new(|| [kind(&postgres()), kind(&super::cel::certificate())]);

proptest! {
    #[test]
    fn pruning_twice_removes_nothing_more(object in any_json()) {
        for node in NODES.iter() {
            let mut once = object.clone();
            defaulting::prune(node, &mut once);
            let mut twice = once.clone();
            prop_assert!(defaulting::prune(node, &mut twice).is_empty());
            prop_assert_eq!(once, twice);
        }
    }

    #[test]
    fn defaulting_twice_changes_nothing_more(object in any_json()) {
        for node in NODES.iter() {
            let mut once = object.clone();
            defaulting::fill(node, &mut once);
            let mut twice = once.clone();
            defaulting::fill(node, &mut twice);
            prop_assert_eq!(once, twice);
        }
    }

    #[test]
    fn defaults_survive_pruning(object in any_json()) {
        for node in NODES.iter() {
            let mut filled = object.clone();
            defaulting::prune(node, &mut filled);
            defaulting::fill(node, &mut filled);
            prop_assert!(defaulting::prune(node, &mut filled).is_empty());
        }
    }

    #[test]
    fn validation_never_panics(object in any_json(), old in any_json()) {
        for kind in KINDS.iter() {
            let mut errors = Errors::default();
            with_ctx(|ctx| kind.rules.validate_update(&object, &old, ctx, &mut errors));
            kind.rules.cells(&object, now());
        }
    }

    #[test]
    fn an_unchanged_object_is_never_refused(object in any_json()) {
        for node in NODES.iter() {
            let errors = validation::validate(node, &object, Some(&object), &Path::default());
            let own: Vec<_> = errors.0.iter().filter(|error| !error.to_string().contains("must not be empty")).collect();
            prop_assert!(own.is_empty(), "{:?}", own);
        }
    }

    #[test]
    fn any_schema_is_validated_and_served_without_panic(schema in any_schema(), object in any_json()) {
        let mut errors = Errors::default();
        schema_check::check(&schema, true, &Path::default(), &mut errors);
        let node = Node::parse(&schema);
        let mut object = object;
        defaulting::prune(&node, &mut object);
        defaulting::fill(&node, &mut object);
        validation::validate(&node, &object, None, &Path::default());
        openapi(&definition_of(schema.clone()), "v1");
        super::super::arena::build(&node);
    }

    #[test]
    fn any_definition_is_validated_without_panic(object in any_json()) {
        let mut definition = json!({"metadata": {"name": "x"}, "spec": object});
        refusals(&definition);
        establish(&mut definition, &[], now());
        kinds_of(&definition);
    }
}

#[test]
fn a_large_schema_compiles_quickly() {
    // Similar to a large operator's schema: hundreds of described fields, nested, with lists, enums and patterns.
    let leaf = json!({"type": "string", "description": "d".repeat(120), "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63});
    let mut schema = json!({"type": "object", "properties": {}});
    for group in 0..20 {
        let mut object = json!({"type": "object", "description": "d".repeat(200), "properties": {}});
        for field in 0..60 {
            object["properties"][format!("field{field}")] = leaf.clone();
        }
        schema["properties"][format!("group{group}")] = json!({"type": "array", "items": object});
    }
    let mut definition = definition_of_spec(schema);
    assert!(definition.to_string().len() > 200_000);
    establish(&mut definition, &[], now());
    kinds_of(&definition);
    let quickest = (0..5)
        .map(|_| {
            let started = std::time::Instant::now();
            assert_eq!(kinds_of(&definition).len(), 1);
            started.elapsed()
        })
        .min()
        .expect("no run was measured");
    // Takes a few milliseconds in an optimized build. The limit leaves room for debug builds on busy machines.
    assert!(quickest.as_millis() < 100, "{quickest:?}");
}
