//! Tests with whole pods: create, update, and properties that hold for any input.

use super::*;
use crate::gates::Gates;
use crate::json;
use crate::kind::{Ctx, Rules};
use proptest::prelude::*;

fn plain() -> Value {
    json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "image": "x:1"}]}})
}

fn with(path: &[&str], value: impl Into<Value>) -> Value {
    let mut pod = plain();
    pod.put(path, value);
    pod
}

fn stored(mut pod: Value) -> Value {
    default_pod(&mut pod);
    pod
}

fn texts(errors: &Errors) -> Vec<String> {
    errors.0.iter().map(ToString::to_string).collect()
}

fn refused(pod: Value) -> Vec<String> {
    let mut errors = Errors::default();
    validate_create(&stored(pod), &mut errors);
    texts(&errors)
}

/// Returns the errors of changing a stored pod.
fn change(old: &Value, edit: impl FnOnce(&mut Value)) -> Vec<String> {
    let mut new = old.clone();
    edit(&mut new);
    let mut errors = Errors::default();
    validate_update(&stored(new), old, &mut errors);
    texts(&errors)
}

#[test]
fn invalid_pods_are_refused_with_upstreams_messages() {
    let token = json!([{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]);
    let mut held = with(&["spec", "schedulingGates"], json!([{"name": "g"}]));
    held.put(&["spec", "nodeName"], "n");
    let cases = [
        (
            with(&["spec", "restartPolicy"], "Sometimes"),
            vec![
                "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
            ],
        ),
        (
            with(&["spec", "activeDeadlineSeconds"], 0),
            vec!["spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"],
        ),
        (
            with(&["spec", "preemptionPolicy"], "x"),
            vec![
                "spec.preemptionPolicy: Unsupported value: \"x\": supported values: \"PreemptLowerPriority\", \"Never\"",
            ],
        ),
        (
            with(&["spec", "ephemeralContainers"], json!([{"name": "e", "image": "x"}])),
            vec!["spec.ephemeralContainers: Forbidden: cannot be set on create"],
        ),
        (held, vec!["spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"]),
        (
            with(&["spec", "volumes"], token),
            vec![
                "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: must not be specified when serviceAccountName is not set",
            ],
        ),
        (
            with(&["spec", "containers"], json!([{"name": "a", "image": " x"}])),
            vec!["spec.containers[0].image: Invalid value: \" x\": must not have leading or trailing whitespace"],
        ),
        (
            with(&["spec", "resourceClaims"], json!([{"name": "c"}])),
            vec![
                "spec.resourceClaims[0]: Invalid value: {\"name\":\"c\"}: must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
            ],
        ),
        (
            with(&["spec", "overhead"], json!({"cpu": "-1"})),
            vec!["spec.overhead[cpu]: Invalid value: \"-1\": must be greater than or equal to 0"],
        ),
        (plain(), vec![]),
    ];
    for (pod, want) in cases {
        assert_eq!(refused(pod.clone()), want, "{pod}");
    }
    for field in ["nodeName", "serviceAccountName", "priorityClassName", "runtimeClassName"] {
        let messages = refused(with(&["spec", field], "A_b"));
        assert!(
            messages[0].starts_with(&format!("spec.{field}: Invalid value: \"A_b\": a lowercase RFC 1123 subdomain")),
            "{messages:?}"
        );
    }
    let mut errors = Errors::default();
    validate_spec(&json!({"containers": [{"name": "a"}]}), None, &Path::new("spec"), &mut errors);
    assert_eq!(texts(&errors)[0], "spec.terminationGracePeriodSeconds: Required value");
}

#[test]
fn templates_have_their_own_rules() {
    let mut template = json!({"metadata": {"labels": {"a": "b c"}, "annotations": {"x y": ""}},
        "spec": {"containers": [{"name": "a", "image": " x"}], "ephemeralContainers": [{"name": "e", "image": "x"}]}});
    default_spec(&mut template["spec"]);
    let mut errors = Errors::default();
    validate_template(&template, &Path::new("spec.template"), &mut errors);
    let messages = texts(&errors);
    assert!(messages[0].starts_with("spec.template.labels: Invalid value: \"b c\""), "{messages:?}");
    assert!(messages[1].starts_with("spec.template.annotations: Invalid value: \"x y\""), "{messages:?}");
    assert_eq!(
        messages[2..],
        ["spec.template.spec.ephemeralContainers: Forbidden: ephemeral containers not allowed in pod template"]
    );
}

#[test]
fn images_deadlines_tolerations_and_metadata_are_mutable() {
    let old = stored(with(
        &["spec", "tolerations"],
        json!([{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]),
    ));
    let edits: [fn(&mut Value); 6] = [
        |pod| pod["spec"]["containers"][0]["image"] = json!("x:2"),
        |pod| pod.put(&["spec", "activeDeadlineSeconds"], 5),
        |pod| pod["spec"]["tolerations"][0]["tolerationSeconds"] = json!(9),
        |pod| pod["spec"]["tolerations"].as_array_mut().unwrap().push(json!({"operator": "Exists"})),
        |pod| pod.put(&["metadata", "labels"], json!({"a": "b"})),
        |pod| pod.put(&["status", "phase"], "Running"),
    ];
    for edit in edits {
        assert_eq!(change(&old, edit), Vec::<String>::new());
    }
}

#[test]
fn all_other_pod_fields_are_immutable() {
    let old = stored(with(&["spec", "activeDeadlineSeconds"], 10));
    let fixed = "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,\
        `spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),\
        `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n";
    let messages = change(&old, |pod| pod.put(&["spec", "nodeName"], "n"));
    assert_eq!(messages, [format!("{fixed}  spec.nodeName: null -> \"n\"")]);
    let messages = change(&old, |pod| pod["spec"]["containers"][0]["env"] = json!([{"name": "A"}]));
    assert_eq!(messages, [format!("{fixed}  spec.containers[0].env: null -> [{{\"name\":\"A\"}}]")]);
    type Edit = fn(&mut Value);
    let cases: [(Edit, &str); 5] = [
        (
            |pod| pod.put(&["spec", "activeDeadlineSeconds"], 11),
            "spec.activeDeadlineSeconds: Invalid value: 11: must be less than or equal to previous value",
        ),
        (
            |pod| drop(pod.cut(&["spec", "activeDeadlineSeconds"])),
            "spec.activeDeadlineSeconds: Invalid value: null: must not update from a positive integer to nil value",
        ),
        (
            |pod| pod["spec"]["containers"].as_array_mut().unwrap().push(json!({"name": "b", "image": "x"})),
            "spec.containers: Forbidden: pod updates may not add or remove containers",
        ),
        (
            |pod| pod.put(&["spec", "schedulingGates"], json!([{"name": "g"}])),
            "spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'g'",
        ),
        (
            |pod| {
                pod.put(
                    &["metadata", "annotations"],
                    json!({"container.apparmor.security.beta.kubernetes.io/a": "unconfined"}),
                )
            },
            "metadata.annotations[container.apparmor.security.beta.kubernetes.io/a]: Forbidden: may not add AppArmor annotations",
        ),
    ];
    for (edit, want) in cases {
        assert_eq!(change(&old, edit), [want]);
    }
    let tolerating = stored(with(&["spec", "tolerations"], json!([{"key": "a", "operator": "Exists"}])));
    assert_eq!(
        change(&tolerating, |pod| pod.put(&["spec", "tolerations"], json!([]))),
        ["spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"]
    );
}

#[test]
fn quantities_of_equal_value_are_equal() {
    let old = stored(with(
        &["spec", "containers"],
        json!([{"name": "a", "image": "x", "resources": {"limits": {"memory": "1Gi"}}}]),
    ));
    let messages = change(&old, |pod| pod["spec"]["containers"][0]["resources"]["limits"]["memory"] = json!("1024Mi"));
    assert_eq!(messages, Vec::<String>::new());
}

#[test]
fn a_negative_grace_period_may_be_changed_to_one() {
    let old = stored(with(&["spec", "terminationGracePeriodSeconds"], -5));
    assert_eq!(change(&old, |pod| pod.put(&["spec", "terminationGracePeriodSeconds"], 1)), Vec::<String>::new());
    assert_eq!(change(&old, |pod| pod.put(&["spec", "terminationGracePeriodSeconds"], 2)).len(), 1);
}

#[test]
fn scheduling_of_gated_pods_may_be_narrowed_and_gates_removed() {
    let terms = |expressions: Value| json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}});
    let a = json!({"key": "a", "operator": "Exists"});
    let b = json!({"key": "b", "operator": "Exists"});
    let mut pod = with(&["spec", "schedulingGates"], json!([{"name": "g"}]));
    pod.put(&["spec", "nodeSelector"], json!({"disk": "ssd"}));
    let open = stored(pod.clone());
    pod.put(&["spec", "affinity"], terms(json!([a])));
    let placed = stored(pod);
    assert_eq!(change(&open, |pod| drop(pod.cut(&["spec", "schedulingGates"]))), Vec::<String>::new());
    assert_eq!(change(&open, |pod| pod.put(&["spec", "nodeSelector", "zone"], "z")), Vec::<String>::new());
    assert_eq!(change(&open, |pod| pod.put(&["spec", "affinity"], terms(json!([a])))), Vec::<String>::new());
    assert_eq!(change(&placed, |pod| pod.put(&["spec", "affinity"], terms(json!([a, b])))), Vec::<String>::new());
    assert_eq!(
        change(&open, |pod| drop(pod.cut(&["spec", "nodeSelector"]))),
        [
            "spec.nodeSelector: Invalid value: \"\": only additions to spec.nodeSelector are allowed (no mutations or deletions)"
        ]
    );
    let messages = change(&placed, |pod| pod.put(&["spec", "affinity"], terms(json!([b]))));
    assert!(messages[0].ends_with("only additions are allowed (no mutations or deletions)"), "{messages:?}");
}

/// Defaults are in the schema and in canonical form, so conforming the result changes nothing.
#[test]
fn defaults_conform_to_the_schema() {
    let spec = json!({
        "hostNetwork": true, "serviceAccount": "s", "resources": {"limits": {"cpu": "1"}}, "schedulingGates": [{"name": "g"}],
        "containers": [{
            "name": "a", "image": "x", "ports": [{"containerPort": 1}], "resources": {"limits": {"cpu": "1u"}},
            "env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "livenessProbe": {"httpGet": {"port": 1}}, "readinessProbe": {"grpc": {"port": 1}},
        }],
        "volumes": [
            {"name": "a"}, {"name": "b", "secret": {}}, {"name": "c", "configMap": {}}, {"name": "d", "downwardAPI": {}},
            {"name": "e", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}, {"name": "f", "hostPath": {"path": "/"}},
            {"name": "g", "iscsi": {"targetPortal": "p", "iqn": "i", "lun": 1}}, {"name": "h", "rbd": {"monitors": ["m"], "image": "i"}},
            {"name": "i", "azureDisk": {"diskName": "d", "diskURI": "u"}},
            {"name": "j", "scaleIO": {"gateway": "g", "system": "s", "secretRef": {}}}, {"name": "k", "image": {"reference": "r"}},
            {"name": "l", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
        ],
    });
    let gates = Gates::default();
    let ctx = Ctx { gates: &gates, now: jiff::Timestamp::UNIX_EPOCH };
    let set =
        json!({"selector": {}, "template": {"spec": spec}, "volumeClaimTemplates": [{"spec": {}}], "ordinals": {}});
    let rows = [crate::kinds::pods::rows(), crate::kinds::apps::rows(), crate::kinds::policy::rows()].concat();
    for row in rows {
        let own = match row.kind.as_ref() {
            "Pod" => spec.clone(),
            "StatefulSet" => set.clone(),
            "ControllerRevision" => continue,
            _ => json!({}),
        };
        let mut object =
            json!({"apiVersion": row.api_version(), "kind": row.kind, "metadata": {"name": "x"}, "spec": own});
        row.rules.default(&mut object, &ctx);
        row.rules.prepare_create(&mut object, &ctx);
        let mut read = object.clone();
        let unknown = crate::decode::conform(row.schema.as_ref().unwrap(), &mut read).unwrap();
        assert_eq!(unknown, Vec::<String>::new(), "{}", row.kind);
        assert_eq!(read, object, "{}", row.kind);
    }
}

/// Any JSON, with many keys of pods and sets, so that the rules meet wrong types everywhere.
fn any_json() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        proptest::sample::select(vec![
            "spec",
            "metadata",
            "status",
            "name",
            "containers",
            "initContainers",
            "ephemeralContainers",
            "volumes",
            "template",
            "volumeClaimTemplates",
            "env",
            "valueFrom",
            "fieldRef",
            "fieldPath",
            "ports",
            "containerPort",
            "hostPort",
            "image",
            "volumeMounts",
            "volumeDevices",
            "mountPath",
            "resources",
            "limits",
            "requests",
            "cpu",
            "memory",
            "hugepages-2Mi",
            "livenessProbe",
            "httpGet",
            "port",
            "lifecycle",
            "preStop",
            "securityContext",
            "sysctls",
            "windowsOptions",
            "runAsUserName",
            "affinity",
            "nodeAffinity",
            "podAffinity",
            "requiredDuringSchedulingIgnoredDuringExecution",
            "nodeSelectorTerms",
            "matchExpressions",
            "tolerations",
            "key",
            "operator",
            "values",
            "topologySpreadConstraints",
            "selector",
            "matchLabels",
            "updateStrategy",
            "rollingUpdate",
            "maxUnavailable",
            "partition",
            "ordinals",
            "start",
            "replicas",
            "annotations",
            "labels",
            "projected",
            "sources",
            "secret",
            "items",
            "path",
            "iscsi",
            "iqn",
            "initiatorName",
            "dnsConfig",
            "searches",
            "hostAliases",
            "podIP",
            "podIPs",
            "ip",
            "containerStatuses",
            "initContainerStatuses",
            "state",
            "terminated",
            "lastState",
            "finishedAt",
            "conditions",
            "type",
            "data",
            "restartPolicy",
            "schedulingGates",
            "readinessGates",
            "hostNetwork",
            "terminationGracePeriodSeconds",
            "data",
            "minAvailable",
            "persistentVolumeClaimRetentionPolicy",
            "ephemeral",
            "volumeClaimTemplate",
            "resourceClaims",
        ])
        .prop_map(str::to_owned),
        "[a-z]{0,3}",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-2i64..70000).prop_map(Value::from),
        "[-a-zA-Z0-9./:%'\\[\\]äß ]{0,12}".prop_map(Value::from),
        proptest::sample::select(vec![
            "Always",
            "In",
            "1Gi",
            "500m",
            "iqn.x",
            "eui.é",
            "naa.1234567890",
            "metadata.labels['a']",
            "a\\b",
            "100%"
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 96, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(key.clone(), inner, 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Runs every rule of a kind on objects of any form.
fn run_all(rules: &dyn Rules, mut new: Value, mut old: Value, ctx: &Ctx) -> Result<(), TestCaseError> {
    rules.default(&mut new, ctx);
    rules.default(&mut old, ctx);
    let mut again = new.clone();
    rules.default(&mut again, ctx);
    prop_assert_eq!(&again, &new);
    let mut errors = Errors::default();
    rules.prepare_create(&mut again, ctx);
    rules.validate_create(&again, ctx, &mut errors);
    rules.prepare_update(&mut new, &old, ctx);
    rules.validate_update(&new, &old, ctx, &mut errors);
    rules.prepare_status(&mut new, &old, ctx);
    rules.validate_status(&new, &old, ctx, &mut errors);
    let mut unchanged = Errors::default();
    rules.validate_update(&new, &new, ctx, &mut unchanged);
    rules.warnings(&new, None, ctx);
    rules.warnings(&new, Some(&old), ctx);
    rules.grace_seconds(&new, None);
    prop_assert_eq!(rules.cells(&new, ctx.now).len(), rules.columns().len());
    for field in rules.selectable_fields() {
        rules.field_value(&new, field);
    }
    errors.message();
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn rules_never_panic_and_defaulting_is_idempotent(new in any_json(), spec in any_json(), old in any_json()) {
        let gates = Gates::default();
        let ctx = Ctx { gates: &gates, now: jiff::Timestamp::UNIX_EPOCH };
        let rows = [crate::kinds::pods::rows(), crate::kinds::apps::rows(), crate::kinds::policy::rows()].concat();
        for row in rows {
            let framed = json!({"metadata": {"name": "x"}, "spec": spec, "status": new});
            let templated = json!({"spec": {"template": {"spec": spec}, "volumeClaimTemplates": [spec]}});
            for object in [new.clone(), framed, templated] {
                run_all(row.rules.as_ref(), object, old.clone(), &ctx)?;
            }
        }
    }
}
