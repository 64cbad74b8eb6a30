use super::super::testing::*;
use super::*;
use crate::gates::Gates;

fn named(mut object: Value) -> Value {
    object.put(&["metadata"], json!({"name": "a", "namespace": "d"}));
    object
}

#[test]
fn namespaces_are_active_and_finalized_and_selectable_by_name() {
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

    let (_, errors) = update_status("ResourceQuota", &old, json!({"metadata": {}, "status": {"used": {"pods": "-1"}}}));
    assert_eq!(errors.message(), "status.used[pods]: Invalid value: \"-1\": must be greater than or equal to 0");
}

#[test]
fn limit_ranges_fill_containers_and_keep_order() {
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
