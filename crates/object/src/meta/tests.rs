use super::*;
use crate::json;
use crate::kind::Rules;
use proptest::prelude::*;
use std::sync::Arc;

struct Labelled;
impl Rules for Labelled {
    fn name_rule(&self) -> NameRule {
        NameRule::Label
    }
}

fn kind(namespaced: bool, builtin: bool) -> Kind {
    let mut kind = Kind::clone(crate::kinds::testing::kind("ConfigMap"));
    kind.namespaced = namespaced;
    kind.custom = !builtin;
    kind.rules = Arc::new(Labelled);
    kind
}

fn created(meta: Value) -> String {
    let mut errors = Errors::default();
    validate_create(&json!({"metadata": meta}), &kind(true, true), &mut errors);
    errors.message()
}

#[test]
fn invalid_metadata_is_refused_on_create() {
    let ok = json!({"name": "a", "namespace": "default", "labels": {"a/b": "c"}, "finalizers": ["a.b/c", "orphan"]});
    assert_eq!(created(ok), "[]");
    let owner = |name: &str| json!({"apiVersion": "v1", "kind": "K", "name": name, "uid": "1", "controller": true});
    let cases = [
        (json!({"namespace": "d"}), "metadata.name: Required value: name or generateName is required"),
        (json!({"name": "a"}), "metadata.namespace: Required value"),
        (
            json!({"name": "a", "namespace": "d", "annotations": {"a": "x".repeat(262_144)}}),
            "metadata.annotations: Too long: may not be more than 262144 bytes",
        ),
        (
            json!({"name": "a", "namespace": "d", "generation": -1}),
            "metadata.generation: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            json!({"name": "a", "namespace": "d", "ownerReferences": [{"apiVersion": "a/b/c", "kind": "K", "name": "n", "uid": "u"}]}),
            "metadata.ownerReferences.apiVersion: Invalid value: \"a/b/c\": version must not be empty",
        ),
        (
            json!({"name": "a", "namespace": "d", "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "n"}]}),
            "metadata.ownerReferences.uid: Invalid value: \"\": must not be empty",
        ),
        (
            json!({"name": "a", "namespace": "d", "finalizers": ["mine"]}),
            "metadata.finalizers[0]: Invalid value: \"mine\": name is neither a standard finalizer name nor is it fully qualified",
        ),
        (
            json!({"name": "a", "namespace": "d", "finalizers": ["orphan", "foregroundDeletion"]}),
            "metadata.finalizers: Invalid value: [\"orphan\",\"foregroundDeletion\"]: finalizer orphan and foregroundDeletion cannot be both set",
        ),
        (
            json!({"name": "a", "namespace": "d", "managedFields": [{"operation": "Apply", "fieldsType": "X"}]}),
            "metadata.managedFields[0].fieldsType: Invalid value: \"X\": must be `FieldsV1`",
        ),
        (
            json!({"name": "a", "namespace": "d", "managedFields": [{"operation": "x", "manager": "a\u{7}"}]}),
            "[metadata.managedFields[0].operation: Invalid value: \"x\": must be `Apply` or `Update`, \
             metadata.managedFields[0].manager: Invalid value: \"a\\u0007\": invalid character U+0007 (at position 1)]",
        ),
    ];
    for (meta, want) in cases {
        assert_eq!(created(meta), want);
    }
    let starts = [
        (json!({"name": "A", "namespace": "d"}), "metadata.name: Invalid value: \"A\": a lowercase RFC 1123 label"),
        (
            json!({"name": "a", "namespace": "a.b"}),
            "metadata.namespace: Invalid value: \"a.b\": a lowercase RFC 1123 label",
        ),
        (json!({"name": "a", "namespace": "d", "generateName": "A-"}), "metadata.generateName: Invalid value: \"A-\""),
        (
            json!({"name": "a", "namespace": "d", "labels": {"-": "b"}}),
            "metadata.labels: Invalid value: \"-\": name part",
        ),
        (
            json!({"name": "a", "namespace": "d", "labels": {"a": "b c"}}),
            "metadata.labels: Invalid value: \"b c\": a valid label",
        ),
        (
            json!({"name": "a", "namespace": "d", "annotations": {"a b": ""}}),
            "metadata.annotations: Invalid value: \"a b\"",
        ),
        (
            json!({"name": "a", "namespace": "d", "ownerReferences": [owner("x"), owner("y")]}),
            "metadata.ownerReferences: Invalid value: [{",
        ),
    ];
    for (meta, want) in starts {
        let got = created(meta);
        assert!(got.starts_with(want), "{got}\nshould start with\n{want}");
    }
    let two = created(json!({"name": "a", "namespace": "d", "ownerReferences": [owner("x"), owner("y")]}));
    assert!(
        two.ends_with(
            "Only one reference can have Controller set to true. Found \"true\" in references for K/x and K/y"
        )
    );
}

#[test]
fn generated_name_prefixes_may_end_in_a_dash_and_annotation_keys_may_be_upper_case() {
    let ok = json!({"name": "a", "namespace": "d", "generateName": "web-", "annotations": {"Example.com/A": "x"}});
    assert_eq!(created(ok), "[]");
}

#[test]
fn the_scope_decides_about_the_namespace_and_custom_kinds_may_use_any_finalizer() {
    let mut errors = Errors::default();
    let object = json!({"metadata": {"name": "a", "namespace": "d"}});
    validate_create(&object, &kind(false, true), &mut errors);
    assert_eq!(errors.message(), "metadata.namespace: Forbidden: not allowed on this type");
    let mut errors = Errors::default();
    let object = json!({"metadata": {"name": "a", "namespace": "d", "finalizers": ["mine"]}});
    validate_create(&object, &kind(true, false), &mut errors);
    assert!(errors.is_empty(), "{}", errors.message());
}

#[test]
fn finalizers_without_a_path_give_one_warning() {
    let object = json!({"metadata": {"finalizers": ["mine", "x/y", "orphan"]}});
    let want = "metadata.finalizers: \"mine\": prefer a domain-qualified finalizer name including a path (/) to avoid accidental \
                conflicts with other finalizer writers";
    assert_eq!(warnings(&object, None), [want]);
    assert!(warnings(&object, Some(&object)).is_empty());
}

#[test]
fn identity_is_immutable() {
    let old = json!({"metadata": {"name": "a", "namespace": "d", "uid": "1", "generation": 2,
        "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y"], "deletionTimestamp": "2026-01-02T00:00:00Z"}});
    let updated = |change: fn(&mut Value)| {
        let mut new = old.clone();
        change(&mut new);
        let mut errors = Errors::default();
        validate_update(&new, &old, &kind(true, true), &mut errors);
        errors.message()
    };
    assert_eq!(updated(|_| {}), "[]");
    assert_eq!(updated(|new| new["metadata"]["finalizers"] = json!([])), "[]");
    assert_eq!(
        updated(|new| new["metadata"]["finalizers"] = json!(["x/y", "b/c", "a/b"])),
        "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, \
         found new finalizers []string{\"a/b\", \"b/c\"}"
    );
    assert_eq!(
        updated(|new| new["metadata"]["uid"] = json!("2")),
        "metadata.uid: Invalid value: \"2\": field is immutable"
    );
    assert_eq!(
        updated(|new| new["metadata"]["generation"] = json!(1)),
        "metadata.generation: Invalid value: 1: must not be decremented"
    );
    assert_eq!(
        updated(|new| {
            new.cut(&["metadata", "deletionTimestamp"]);
        }),
        "metadata.deletionTimestamp: Invalid value: null: field is immutable"
    );
}

#[test]
fn label_selectors_in_objects_are_validated() {
    let message = |selector: Value| {
        let mut errors = Errors::default();
        validate_label_selector(&selector, &Path::new("spec.selector"), &mut errors);
        errors.message()
    };
    assert_eq!(message(Value::Null), "[]");
    assert_eq!(message(json!({"matchExpressions": [{"key": "a", "operator": "Exists"}]})), "[]");
    assert_eq!(
        message(json!({"matchExpressions": [{"key": "a", "operator": "In"}]})),
        "spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'"
    );
    assert_eq!(
        message(json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]})),
        "spec.selector.matchExpressions[0].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
    );
    assert_eq!(
        message(json!({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]})),
        "spec.selector.matchExpressions[0].operator: Invalid value: \"Gt\": not a valid selector operator"
    );
}

/// Small arbitrary JSON values.
pub(crate) fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z/.-]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        let key = "(metadata|spec|name|labels|finalizers|ownerReferences|managedFields|[a-z]{1,3})";
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..5).prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn arbitrary_json_never_panics(new in any_json(), old in any_json()) {
        let mut errors = Errors::default();
        validate_create(&new, &kind(true, true), &mut errors);
        validate_update(&new, &old, &kind(true, true), &mut errors);
        validate_label_selector(&new, &Path::new("x"), &mut errors);
    }
}
