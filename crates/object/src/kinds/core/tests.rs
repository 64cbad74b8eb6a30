use super::super::testing::*;
use super::*;
use crate::gates::Gates;

fn named(mut object: Value) -> Value {
    object.put(&["metadata"], json!({"name": "a", "namespace": "d"}));
    object
}

#[test]
fn new_namespaces_are_active_have_a_finalizer_and_a_name_label() {
    let object =
        json!({"metadata": {"name": "a"}, "spec": {"finalizers": ["x/y"]}, "status": {"phase": "Terminating"}});
    let mut old = stored("Namespace", object);
    assert_eq!(old["spec"]["finalizers"], json!(["x/y", "kubernetes"]));
    assert_eq!(old["status"], json!({"phase": "Active"}));
    assert_eq!(old["metadata"]["labels"][NAME_LABEL], "a");
    assert_eq!(shown("Namespace", &old), "a | Active | 0s");

    let (new, _) = update("Namespace", &old, json!({"metadata": {"name": "a"}, "spec": {"finalizers": []}}));
    assert_eq!(new["spec"]["finalizers"], json!(["x/y", "kubernetes"]), "only /finalize changes them");
    let mut finalized = old.clone();
    finalized["spec"]["finalizers"] = json!(["mine"]);
    let mut errors = Errors::default();
    with_ctx(&Gates::default(), |ctx| kind("Namespace").rules.validate_update(&finalized, &old, ctx, &mut errors));
    assert_eq!(
        errors.message(),
        "spec.finalizers[0]: Invalid value: \"mine\": name is neither a standard finalizer name nor is it fully qualified"
    );

    let (_, errors) =
        update_status("Namespace", &old, json!({"metadata": {"name": "a"}, "status": {"phase": "Terminating"}}));
    assert_eq!(
        errors.message(),
        "status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"
    );
    old.put(&["metadata", "deletionTimestamp"], "2026-11-15T12:00:00Z");
    let (_, errors) =
        update_status("Namespace", &old, json!({"metadata": {"name": "a"}, "status": {"phase": "Active"}}));
    assert_eq!(
        errors.message(),
        "status.Phase: Invalid value: \"Active\": may only be 'Terminating' if `deletionTimestamp` is not empty"
    );
    kind("Namespace").rules.mark_terminating(&mut old);
    assert_eq!(old["status"]["phase"], "Terminating");
    assert_eq!(kind("Namespace").rules.field_value(&old, "status.phase"), "Terminating");
    assert!(
        refused("Namespace", json!({"metadata": {"name": "a"}, "spec": {"finalizers": ["-"]}}))
            .contains("spec.finalizers: Invalid value: \"-\"")
    );
}

#[test]
fn config_maps_check_keys_size_and_immutability() {
    let old = stored("ConfigMap", named(json!({"data": {"a.b": "c"}, "binaryData": {"x": "AAAA"}, "immutable": true})));
    assert_eq!(shown("ConfigMap", &old), "a | 2 | 0s");
    let cases = [
        (json!({"data": {"..": ""}}), "data[..]: Invalid value: \"..\": must not be '..'"),
        (json!({"data": {"..a": ""}}), "data[..a]: Invalid value: \"..a\": must not start with '..'"),
        (
            json!({"data": {"a": ""}, "binaryData": {"a": ""}}),
            "data[a]: Invalid value: \"a\": duplicate of key present in binaryData",
        ),
        (json!({"data": {"a": "x".repeat(1024 * 1024 + 1)}}), ": Too long: may not be more than 1048576 bytes"),
    ];
    for (object, want) in cases {
        assert_eq!(refused("ConfigMap", named(object)), want);
    }
    assert!(
        refused("ConfigMap", named(json!({"binaryData": {"a b": ""}})))
            .starts_with("binaryData[a b]: Invalid value: \"a b\": a valid config key")
    );
    let frozen = |change: fn(&mut Value)| change_refused("ConfigMap", &old, change);
    assert_eq!(frozen(|_| {}), "[]");
    assert_eq!(
        frozen(|new| new["immutable"] = json!(false)),
        "immutable: Forbidden: field is immutable when `immutable` is set"
    );
    assert_eq!(
        frozen(|new| new["data"]["q"] = json!("1")),
        "data: Forbidden: field is immutable when `immutable` is set"
    );
    assert_eq!(
        frozen(|new| drop(new.cut(&["binaryData"]))),
        "binaryData: Forbidden: field is immutable when `immutable` is set"
    );
}

#[test]
fn secrets_have_types_with_their_keys() {
    let old = stored("Secret", named(json!({"stringData": {"k": "v"}, "data": {"k": "b2xk", "l": "AA=="}})));
    assert_eq!(old["data"], json!({"k": "dg==", "l": "AA=="}));
    assert!(!old.has(&["stringData"]));
    assert_eq!(shown("Secret", &old), "a | Opaque | 2 | 0s");
    assert_eq!(
        change_refused("Secret", &old, |new| new["type"] = json!("x")),
        "type: Invalid value: \"x\": field is immutable"
    );
    let cases = [
        ("kubernetes.io/tls", json!({}), "[data[tls.crt]: Required value, data[tls.key]: Required value]"),
        ("kubernetes.io/basic-auth", json!({}), "[data[username]: Required value, data[password]: Required value]"),
        ("kubernetes.io/basic-auth", json!({"username": ""}), "[]"),
        ("kubernetes.io/ssh-auth", json!({}), "data[ssh-privatekey]: Required value"),
        ("kubernetes.io/dockercfg", json!({}), "data[.dockercfg]: Required value"),
        (
            "kubernetes.io/service-account-token",
            json!({}),
            "metadata.annotations[kubernetes.io/service-account.name]: Required value",
        ),
        ("kubernetes.io/dockerconfigjson", json!({".dockerconfigjson": "e30="}), "[]"),
    ];
    for (kind, data, want) in cases {
        assert_eq!(refused("Secret", named(json!({"type": kind, "data": data}))), want, "{kind}");
    }
    let bad = refused(
        "Secret",
        named(json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "eA=="}})),
    );
    assert!(bad.starts_with("data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": "), "{bad}");
}

#[test]
fn service_accounts_keep_only_the_names_of_secrets() {
    let old = stored("ServiceAccount", named(json!({"secrets": [{"name": "s", "uid": "1"}]})));
    assert_eq!(old["secrets"], json!([{"name": "s"}]));
    assert_eq!(shown("ServiceAccount", &old), "a | 1 | 0s");
    let annotated = json!({"metadata": {"name": "a", "annotations": {ENFORCE_MOUNTABLE: "true"}}});
    assert_eq!(warnings("ServiceAccount", &annotated).len(), 1);
}

#[test]
fn quotas_accept_only_known_resources_and_scopes() {
    let spec = |spec: Value| named(json!({"spec": spec}));
    let ok = json!({"hard": {"pods": "3", "count/statefulsets.apps": "2", "gold.storageclass.storage.k8s.io/requests.storage": "1Gi",
        "requests.nvidia.com/gpu": "1"}});
    let mut old = stored("ResourceQuota", spec(ok));
    old["status"] = json!({"hard": {"limits.cpu": "2", "pods": "3", "secrets": "1"}, "used": {"pods": "1"}});
    assert_eq!(shown("ResourceQuota", &old), "a | pods: 1/3, secrets: 0/1 | limits.cpu: 0/2 | 0s");
    let cases = [
        (
            json!({"hard": {"nope": "1"}}),
            "[spec.hard[nope]: Invalid value: \"nope\": must be a standard resource type or fully qualified, \
             spec.hard[nope]: Invalid value: \"nope\": must be a standard resource for quota]",
        ),
        (
            json!({"hard": {"storage": "1"}}),
            "spec.hard[storage]: Invalid value: \"storage\": must be a standard resource for quota",
        ),
        (json!({"hard": {"pods": "-1"}}), "spec.hard[pods]: Invalid value: \"-1\": must be greater than or equal to 0"),
        (json!({"hard": {"pods": "500m"}}), "spec.hard[pods]: Invalid value: \"500m\": must be an integer"),
        (json!({"scopes": ["X"]}), "spec.scopes: Invalid value: [\"X\"]: unsupported scope"),
        (
            json!({"hard": {"cpu": "1"}, "scopes": ["BestEffort"]}),
            "spec.scopes: Invalid value: [\"BestEffort\"]: unsupported scope applied to resource",
        ),
        (
            json!({"scopes": ["BestEffort", "NotBestEffort"]}),
            "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\"]: conflicting scopes",
        ),
        (
            json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In"}]}}),
            "spec.scopeSelector.matchExpressions.values: Required value: must be at least one value when `operator` is 'In' or 'NotIn' for scope selector",
        ),
        (
            json!({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists", "values": ["a"]}]}}),
            "spec.scopeSelector.matchExpressions.values: Invalid value: [\"a\"]: must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector",
        ),
        (
            json!({"scopeSelector": {"matchExpressions": [{"scopeName": "X", "operator": "Exists"}]}}),
            "spec.scopeSelector.matchExpressions.scopeName: Invalid value: \"X\": unsupported scope",
        ),
        (
            json!({"hard": {"requests.storage": "1"}, "scopeSelector": {"matchExpressions": [
                {"scopeName": "VolumeAttributesClass", "operator": "In", "values": ["gold"]}]}}),
            "[]",
        ),
    ];
    for (object, want) in cases {
        assert_eq!(refused("ResourceQuota", spec(object)), want);
    }
    assert_eq!(
        change_refused("ResourceQuota", &old, |new| new["spec"]["scopes"] = json!(["Terminating"])),
        "spec.scopes: Invalid value: [\"Terminating\"]: field is immutable"
    );
    let (_, errors) = update_status("ResourceQuota", &old, json!({"metadata": {}, "status": {"used": {"pods": "-1"}}}));
    assert_eq!(errors.message(), "status.used[pods]: Invalid value: \"-1\": must be greater than or equal to 0");
}

#[test]
fn limit_ranges_default_container_amounts_and_check_their_order() {
    let limits = |limit: Value| named(json!({"spec": {"limits": [limit]}}));
    let old = stored("LimitRange", limits(json!({"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Gi"}})));
    assert_eq!(
        old["spec"]["limits"][0],
        json!({"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Gi"},
            "default": {"cpu": "2"}, "defaultRequest": {"cpu": "2", "memory": "1Gi"}})
    );
    assert_eq!(shown("LimitRange", &old), "a | 2026-11-15T12:00:00Z");
    let p = "spec.limits[0]";
    let cases = [
        (
            json!({"type": "X"}),
            format!("{p}.type: Invalid value: \"X\": must be a standard limit type or fully qualified"),
        ),
        (
            json!({"type": "PersistentVolumeClaim"}),
            format!(
                "{p}.limits: Required value: either minimum or maximum storage value is required, but neither was provided"
            ),
        ),
        (
            json!({"type": "Pod", "default": {"cpu": "1"}}),
            format!("{p}.default: Forbidden: may not be specified when `type` is 'Pod'"),
        ),
        (
            json!({"type": "PersistentVolumeClaim", "min": {"storage": "2Gi"}, "max": {"storage": "1Gi"}}),
            format!("{p}.min[storage]: Invalid value: \"2Gi\": min value 2Gi is greater than max value 1Gi"),
        ),
        (
            json!({"type": "Pod", "max": {"storage": "1"}}),
            format!("{p}.max[storage]: Invalid value: \"storage\": must be a standard resource for containers"),
        ),
        (
            json!({"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "2"}}),
            format!(
                "{p}.defaultRequest[cpu]: Invalid value: \"2\": default request value 2 is greater than default limit value 1"
            ),
        ),
        (
            json!({"type": "Pod", "maxLimitRequestRatio": {"cpu": "500m"}}),
            format!("{p}.maxLimitRequestRatio[cpu]: Invalid value: \"500m\": ratio 500m is less than 1"),
        ),
        (
            json!({"type": "Pod", "min": {"cpu": "1"}, "max": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "3"}}),
            format!("{p}.maxLimitRequestRatio[cpu]: Invalid value: \"3\": ratio 3 is greater than max/min = 2.000000"),
        ),
        (
            json!({"type": "Container", "default": {"x.io/gpu": "2"}, "defaultRequest": {"x.io/gpu": "1"}}),
            format!(
                "{p}.defaultRequest[x.io/gpu]: Invalid value: \"1\": default value 2 must equal to defaultRequest value 1 in x.io/gpu"
            ),
        ),
    ];
    for (limit, want) in cases {
        assert_eq!(refused("LimitRange", limits(limit)), want);
    }
    let twice = named(json!({"spec": {"limits": [{"type": "Pod"}, {"type": "Pod"}]}}));
    assert_eq!(refused("LimitRange", twice), "spec.limits[1].type: Duplicate value: \"Pod\"");
}
