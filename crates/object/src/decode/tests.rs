use super::*;
use crate::json;
use crate::schema::{Field, PatchStrategy, Scalar, Schema, Struct, Type, builtin_type};
use proptest::prelude::*;
use std::sync::Arc;

fn stateful_set() -> TypeRef {
    builtin_type("io.k8s.api.apps.v1.StatefulSet")
}

fn pod() -> TypeRef {
    builtin_type("io.k8s.api.core.v1.Pod")
}

fn conformed(ty: &TypeRef, mut value: Value) -> (Value, Vec<String>) {
    let unknown = conform(ty, &mut value).unwrap();
    (value, unknown)
}

fn refused(ty: &TypeRef, mut value: Value) -> String {
    let status = conform(ty, &mut value).unwrap_err();
    assert_eq!((status.code, status.reason), (400, "BadRequest"));
    status.message
}

#[test]
fn json_reports_duplicate_fields_with_their_paths() {
    let text = br#"{"spec":{"replicas":1,"list":[{"a":1},{"a":1,"a":2}],"replicas":2},"metadata":{"labels":{"x":"1","x":"2","x":"3"}}}"#;
    let decoded = json(text).unwrap();
    assert_eq!(decoded.duplicates.fields, ["spec.list[1].a", "spec.replicas", "metadata.labels.x"]);
    assert_eq!(decoded.duplicates.yaml_error(), None);
    assert_eq!(decoded.value["spec"]["replicas"], 2);
    assert_eq!(decoded.value["metadata"]["labels"]["x"], "3");
}

#[test]
fn invalid_json_is_refused_with_one_sentence() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let cases: [(&[u8], &str); 8] = [
        (b"", "unexpected end of JSON input"),
        (b"{", "EOF while parsing an object at line 1 column 1"),
        (b"{} {}", "trailing characters at line 1 column 4"),
        (b"{\"a\":\"\xff\"}", "invalid unicode code point"),
        (b"{\"a\":1e999}", "number out of range"),
        (b"[1]", "cannot unmarshal array into Go value"),
        (b"null", "cannot unmarshal null into Go value"),
        (deep.as_bytes(), "exceeded max depth"),
    ];
    for (text, want) in cases {
        let status = json(text).unwrap_err();
        assert_eq!(status.code, 400);
        assert!(status.message.contains(want), "{} should say {want}", status.message);
        assert!(status.message.len() < 200);
    }
    assert!(document(b"[1]").is_ok());
    let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1));
    assert!(json(nested(DEPTH_MAX).as_bytes()).is_ok());
    assert!(json(nested(DEPTH_MAX + 1).as_bytes()).is_err());
}

#[test]
fn yaml_reads_as_kubernetes_tools_read_it() {
    let text = "a: yes\nb: 'yes'\nc: 0644\nd: 1.5\ne: ~\nf: 2026-01-02\n1: one\ntrue: two\ng: |\n  x\n  y\nh: [1, 0x10]\ni: 1e3\n";
    let decoded = yaml(text.as_bytes()).unwrap();
    let want = json!({
        "a": true, "b": "yes", "c": 420, "d": 1.5, "e": null, "f": "2026-01-02", "1": "one", "true": "two",
        "g": "x\ny\n", "h": [1, 16], "i": 1000.0,
    });
    assert_eq!(decoded.value, want);
    let decoded = yaml(b"---\nspec:\n  replicas: 1\n  x: &a {k: v}\n  replicas: 2\n  y: *a\n").unwrap();
    assert_eq!(decoded.duplicates.lines, ["line 5: key \"replicas\" already set in map"]);
    assert_eq!(decoded.value["spec"], json!({"replicas": 2, "x": {"k": "v"}, "y": {"k": "v"}}));
    assert_eq!(yaml(b"{\"a\": [1]}").unwrap().value, json!({"a": [1]}));
    assert_eq!(yaml(b"{a: [1]}").unwrap().value, json!({"a": [1]}));
}

/// As `sigs.k8s.io/yaml` reports them: line numbers of the values, duplicates inside a value before its own key, no
/// paths.
#[test]
fn yaml_reports_duplicate_fields_with_their_lines() {
    let text = "kind: A\nspec:\n  a: 1\n  list:\n  - {x: 1, x: 2}\n  map:\n    deep: 1\n  map:\n    b: 1\n    b:\n      c: 2\n  a:\nkind: B\n";
    let decoded = yaml(text.as_bytes()).unwrap();
    let lines = [
        "line 5: key \"x\" already set in map",
        "line 11: key \"b\" already set in map",
        "line 9: key \"map\" already set in map",
        "line 12: key \"a\" already set in map",
        "line 13: key \"kind\" already set in map",
    ];
    assert_eq!(decoded.duplicates.lines, lines);
    let error = decoded.duplicates.yaml_error().unwrap();
    assert!(
        error.starts_with("yaml: unmarshal errors:\n  line 5: key \"x\" already set in map\n  line 11: "),
        "{error}"
    );
    assert_eq!(decoded.value["spec"]["map"]["b"], json!({"c": 2}), "the last one counts");
    // JSON is valid YAML.
    let decoded = yaml(b"{\"a\": 1,\n\"a\": 2}").unwrap();
    assert_eq!(decoded.duplicates.lines, ["line 2: key \"a\" already set in map"]);
    let many = format!("{{{}}}", "a: 1,\n".repeat(200));
    let lines = yaml(many.as_bytes()).unwrap().duplicates.lines;
    assert_eq!((lines.len(), lines[100].as_str()), (101, "and 99 more"));
}

#[test]
fn invalid_yaml_is_refused_with_one_sentence() {
    let bomb = (1..12).fold("a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned(), |text, n| {
        let last = n - 1;
        format!("{text}a{n}: &a{n} [*a{last}, *a{last}, *a{last}, *a{last}, *a{last}, *a{last}, *a{last}, *a{last}]\n")
    });
    let fat = format!("a: &a \"{}\"\nb: [{}]\n", "x".repeat(100_000), vec!["*a"; 2000].join(","));
    let deep = format!("a: {}", "[".repeat(100_000));
    let indented: String = (0..500).map(|n| format!("{}a:\n", " ".repeat(n))).collect();
    let cases: [(&[u8], &str); 10] = [
        (b"a: 1\n---\nb: 2\n", "several documents"),
        (b"a: [1", "yaml:"),
        (b"a: b: c", "yaml:"),
        (b"- 1\n", "cannot unmarshal array"),
        (b"", "cannot unmarshal null"),
        (b"a: \xff", "UTF-8"),
        (bomb.as_bytes(), "yaml:"),
        (fat.as_bytes(), "excessive aliasing"),
        (deep.as_bytes(), "yaml:"),
        (indented.as_bytes(), "yaml:"),
    ];
    for (text, want) in cases {
        let status = yaml(text).unwrap_err();
        assert_eq!(status.code, 400);
        assert!(status.message.contains(want), "{} should say {want}", status.message);
        assert!(!status.message.contains('\n') && status.message.len() < 300, "{}", status.message);
    }
    assert!(yaml(b"a: *unknown\n").is_err());
}

#[test]
fn realistic_yaml_stays_within_the_budget() {
    let many = format!("a: [{}1]", "1,".repeat(100_000));
    assert_eq!(yaml(many.as_bytes()).unwrap().value["a"].as_array().map(Vec::len), Some(100_001));
    let chain: String = (1..DEPTH_MAX - 1).map(|n| format!("a{n}: &a{n} {{k: *a{}}}\n", n - 1)).collect();
    assert!(yaml(format!("a0: &a0 {{}}\n{chain}").as_bytes()).is_ok());
    let deep: String = (0..DEPTH_MAX).map(|n| format!("{}a:\n", " ".repeat(n))).collect();
    assert!(yaml(deep.as_bytes()).is_ok());
}

#[test]
fn unknown_fields_are_removed_and_listed() {
    let (value, unknown) = conformed(
        &stateful_set(),
        json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "Spec": {},
            "metadata": {"name": "web", "labels": {"any.key": "v"}, "nope": 1, "creationTimestamp": null},
            "spec": {
                "foo": 1,
                "replicas": 3,
                "template": {"spec": {"containers": [{"name": "a", "bar": {}}, {"name": "b", "Name": "c"}]}},
            },
        }),
    );
    let want = [
        "Spec",
        "metadata.nope",
        "spec.foo",
        "spec.template.spec.containers[0].bar",
        "spec.template.spec.containers[1].Name",
    ];
    assert_eq!(unknown, want);
    let want = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "web", "labels": {"any.key": "v"}},
        "spec": {"replicas": 3, "template": {"spec": {"containers": [{"name": "a"}, {"name": "b"}]}}},
    });
    assert_eq!(value, want);
}

#[test]
fn nulls_are_decoded_as_in_go() {
    let (value, unknown) = conformed(
        &pod(),
        json!({
            "metadata": {"labels": {"a": null}, "annotations": null, "finalizers": [null]},
            "spec": {"containers": [null, {"name": null, "resources": {"limits": {"cpu": null}}}], "volumes": null},
            "status": null,
        }),
    );
    assert!(unknown.is_empty());
    let want = json!({
        "metadata": {"labels": {"a": ""}, "finalizers": [""]},
        "spec": {"containers": [{}, {"resources": {"limits": {"cpu": "0"}}}]},
    });
    assert_eq!(value, want);
}

#[test]
fn scalars_become_canonical() {
    let (value, _) = conformed(
        &pod(),
        json!({
            "metadata": {"creationTimestamp": "2026-01-02T03:04:05.678+01:00"},
            "spec": {"containers": [{
                "resources": {"limits": {"memory": "1024Mi", "cpu": 0.5}, "requests": {"cpu": 1}},
                "livenessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 5},
                "readinessProbe": {"httpGet": {"port": 80}},
            }]},
        }),
    );
    let want = json!({
        "metadata": {"creationTimestamp": "2026-01-02T02:04:05Z"},
        "spec": {"containers": [{
            "resources": {"limits": {"memory": "1Gi", "cpu": "500m"}, "requests": {"cpu": "1"}},
            "livenessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 5},
            "readinessProbe": {"httpGet": {"port": 80}},
        }]},
    });
    assert_eq!(value, want);
}

#[test]
fn wrong_types_are_refused_with_gos_messages() {
    let object = |spec: Value| json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "spec": spec});
    let opening = "StatefulSet in version \"v1\" cannot be handled as a StatefulSet: ";
    let cases = [
        (
            object(json!({"replicas": "3"})),
            "json: cannot unmarshal string into Go struct field StatefulSetSpec.spec.replicas of type int32",
        ),
        (
            object(json!({"replicas": 3_000_000_000_i64})),
            "json: cannot unmarshal number 3000000000 into Go struct field StatefulSetSpec.spec.replicas of type int32",
        ),
        (
            object(json!({"template": {"spec": {"containers": {}}}})),
            "json: cannot unmarshal object into Go struct field PodSpec.spec.template.spec.containers of type []v1.Container",
        ),
        (
            object(json!({"template": {"spec": {"containers": [{"name": 1}]}}})),
            "json: cannot unmarshal number into Go struct field Container.spec.template.spec.containers.name of type string",
        ),
        (
            object(json!({"template": {"metadata": {"labels": {"a": true}}}})),
            "json: cannot unmarshal bool into Go struct field ObjectMeta.spec.template.metadata.labels of type string",
        ),
        (
            object(json!([])),
            "json: cannot unmarshal array into Go struct field StatefulSet.spec of type v1.StatefulSetSpec",
        ),
        (
            object(json!({"template": {"spec": {"containers": [{"resources": {"limits": {"cpu": "much"}}}]}}})),
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
    ];
    for (value, want) in cases {
        assert_eq!(refused(&stateful_set(), value), format!("{opening}{want}"));
    }
    assert_eq!(
        refused(&pod(), json!([])),
        "the object provided is unrecognized: json: cannot unmarshal array into Go value of type v1.Pod"
    );
}

/// `{spec: {size: integer, free: preserve-unknown, maybe: nullable string, inner: embedded}}`.
fn custom() -> TypeRef {
    let mut schema = Schema { structural: true, ..Schema::default() };
    let integer = schema.add(Type::Scalar(Scalar::Int64));
    let string = schema.add(Type::Scalar(Scalar::String));
    let free = schema.add(Type::Struct(Struct { preserve_unknown: true, ..Struct::default() }));
    let inner = schema.add(Type::Struct(Struct { embedded: true, ..Struct::default() }));
    let field = |ty, nullable| Field { ty, required: false, nullable, default: None, patch: PatchStrategy::default() };
    let fields = [
        ("size", field(integer, false)),
        ("free", field(free, false)),
        ("maybe", field(string, true)),
        ("inner", field(inner, false)),
    ];
    let spec = Struct { fields: fields.map(|(name, field)| (name.to_owned(), field)).into(), ..Struct::default() };
    let spec = schema.add(Type::Struct(spec));
    let root = Struct { fields: [("spec".to_owned(), field(spec, false))].into(), ..Struct::default() };
    let ty = schema.add(Type::Struct(root));
    TypeRef { schema: Arc::new(schema), ty }
}

#[test]
fn custom_resources_are_pruned_and_their_types_left_to_validation() {
    let (value, unknown) = conformed(
        &custom(),
        json!({
            "apiVersion": "a.b/v1", "kind": "Custom", "metadata": {"name": "x", "creationTimestamp": null, "nope": 1},
            "spec": {
                "size": "wrong type", "maybe": null, "other": 1, "free": {"any": {"thing": null}},
                "inner": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "y", "nope": 1}, "nope": 1},
            },
            "status": {},
        }),
    );
    assert_eq!(unknown, ["metadata.nope", "spec.inner.metadata.nope", "spec.inner.nope", "spec.other", "status"]);
    let want = json!({
        "apiVersion": "a.b/v1", "kind": "Custom", "metadata": {"name": "x"},
        "spec": {
            "size": "wrong type", "maybe": null, "free": {"any": {"thing": null}},
            "inner": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "y"}},
        },
    });
    assert_eq!(value, want);
    let (value, _) = conformed(&custom(), json!({"spec": {"size": null}}));
    assert_eq!(value, json!({"spec": {}}));
    assert!(
        refused(&custom(), json!({"kind": "Custom", "metadata": {"labels": {"a": 1}}}))
            .contains("ObjectMeta.metadata.labels")
    );
}

#[test]
fn patches_cannot_make_objects_too_deep() {
    let nest = |depth: usize| (0..depth).fold(json!({}), |inner, _| json!({ "a": inner }));
    let mut deep = json!({"spec": {"free": nest(DEPTH_MAX)}});
    assert!(conform(&custom(), &mut deep).unwrap_err().message.contains("exceeded max depth"));
    let mut flat = json!({"spec": {"free": nest(DEPTH_MAX - 3)}});
    assert!(conform(&custom(), &mut flat).is_ok());
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1000.0..1000.0f64).prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    // Real field names, so that the walk reaches deep into the schema.
    let key = prop_oneof![
        "[a-z]{1,3}",
        proptest::sample::select(vec![
            "metadata",
            "spec",
            "status",
            "containers",
            "template",
            "resources",
            "limits",
            "labels"
        ])
        .prop_map(str::to_owned),
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn decoded_json_equals_the_encoded_value(value in any_json()) {
        let decoded = document(value.to_string().as_bytes()).unwrap();
        prop_assert_eq!(decoded.value, value);
        prop_assert!(decoded.duplicates.is_empty());
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), text in "[-\\[\\]{}:,&*|>'\"a1 \n#!<]{0,60}") {
        let _ = (json(&bytes), yaml(&bytes), json(text.as_bytes()), yaml(text.as_bytes()));
    }

    #[test]
    fn conforming_twice_changes_nothing_more(value in any_json()) {
        for ty in [pod(), stateful_set(), custom()] {
            let mut once = value.clone();
            if conform(&ty, &mut once).is_ok() {
                let mut twice = once.clone();
                prop_assert_eq!(conform(&ty, &mut twice).unwrap(), Vec::<String>::new());
                prop_assert_eq!(twice, once);
            }
        }
    }

    /// Only parts that are still shared with a conformed object are skipped.
    #[test]
    fn conforming_a_changed_object_equals_conforming_a_new_one(value in any_json(), patch in any_json()) {
        for ty in [pod(), stateful_set()] {
            let mut old = value.clone();
            if conform(&ty, &mut old).is_ok() {
                old.share();
                let changed = crate::patch::merge(&old, &patch);
                let (mut fresh, mut known) = (changed.to_string().parse::<Value>().unwrap(), changed);
                match (conform(&ty, &mut fresh), conform_changed(&ty, &mut known, Some(&old))) {
                    (Ok(one), Ok(other)) => prop_assert_eq!((one, &fresh), (other, &known)),
                    (one, other) => prop_assert_eq!(one.is_err(), other.is_err()),
                }
            }
        }
    }
}

#[test]
fn shared_parts_at_another_path_are_conformed_again() {
    let mut old = json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "x"}], "securityContext": {"runAsUser": 1}}});
    assert!(conform(&pod(), &mut old).unwrap().is_empty());
    old.share();
    let mut moved = old.clone();
    let context = moved["spec"]["securityContext"].take();
    moved["spec"]["affinity"] = context;
    assert_eq!(conform_changed(&pod(), &mut moved, Some(&old)).unwrap(), ["spec.affinity.runAsUser"]);
}
