use super::*;

fn now() -> Timestamp {
    Timestamp::from_second(100).unwrap()
}

fn with(mut object: Value, path: &[&str], value: Value) -> Value {
    object.put(path, value);
    object
}

fn leaving(object: Value) -> Value {
    with(object, &["metadata", "deletionTimestamp"], json!("2024-01-01T00:00:00Z"))
}

fn a_volume(phase: &str, finalizers: &[&str]) -> Value {
    json!({
        "metadata": {"name": "v", "uid": "v-1", "resourceVersion": "7", "finalizers": finalizers},
        "status": {"phase": phase},
    })
}

fn a_claim() -> Value {
    json!({
        "metadata": {
            "namespace": "a", "name": "c", "uid": "c-1", "resourceVersion": "9", "finalizers": [CLAIM],
        },
        "status": {"phase": "Bound"},
    })
}

/// A scheduled pod that uses the claim `c`.
fn a_pod() -> Value {
    json!({
        "metadata": {"namespace": "a", "name": "p", "uid": "p-1"},
        "spec": {"nodeName": "n", "volumes": [{"name": "x", "persistentVolumeClaim": {"claimName": "c"}}]},
        "status": {"phase": "Running"},
    })
}

fn ephemeral(pod: Value) -> Value {
    with(pod, &["spec", "volumes"], json!([{"name": "x", "ephemeral": {}}]))
}

fn plan(claim: &Value, pods: &[Value]) -> ClaimStep {
    super::claim(claim, &pods.iter().collect::<Vec<_>>(), &Gates::default(), now())
}

/// `Some(true)`: unused; `None`: no condition is written.
fn says_unused(claim: &Value, pods: &[Value]) -> Option<bool> {
    match plan(claim, pods) {
        ClaimStep::Condition(patch) => Some(condition::is_true(&patch, "Unused")),
        ClaimStep::Nothing => None,
        other => panic!("{other:?}"),
    }
}

// V2, V4: phases and finalizers of PVs.
#[test]
fn pvs_are_protected_while_bound_and_old_ones_get_the_finalizer() {
    for phase in ["Available", "Pending", "Released", "Failed"] {
        let patch = volume(&leaving(a_volume(phase, &["x", VOLUME, "y"]))).expect("released");
        let want = json!({"metadata": {"uid": "v-1", "resourceVersion": "7", "finalizers": ["x", "y"]}});
        assert_eq!(patch, want, "{phase}");
    }
    assert_eq!(volume(&leaving(a_volume("Bound", &[VOLUME]))), None);
    assert_eq!(volume(&leaving(a_volume("Available", &["x"]))), None, "without our finalizer there is nothing to do");
    for phase in ["Available", "Bound"] {
        assert_eq!(volume(&a_volume(phase, &[VOLUME])), None);
        let patch = volume(&a_volume(phase, &["x"])).expect("protected");
        assert_eq!(patch["metadata"]["finalizers"], json!(["x", VOLUME]));
    }
}

// V2: which pods protect a terminating claim.
#[test]
fn a_claim_is_protected_only_by_scheduled_pods() {
    let held = |claim: &Value, pods: &[Value]| match plan(&leaving(claim.clone()), pods) {
        ClaimStep::Release(patch) => {
            assert_eq!(patch["metadata"], json!({"uid": "c-1", "resourceVersion": "9", "finalizers": []}));
            false
        }
        ClaimStep::Nothing => true,
        other => panic!("{other:?}"),
    };
    let claim = a_claim();
    assert!(!held(&claim, &[]));
    assert!(held(&claim, &[a_pod()]));
    for phase in ["Succeeded", "Failed", "Pending"] {
        assert!(held(&claim, &[with(a_pod(), &["status", "phase"], json!(phase))]), "{phase} on a node");
    }
    assert!(!held(&claim, &[with(a_pod(), &["spec", "nodeName"], json!(""))]), "on no node");
    assert!(!held(&claim, &[with(a_pod(), &["metadata", "namespace"], json!("b"))]), "elsewhere");
    let shut_down = with(leaving(a_pod()), &["metadata", "deletionGracePeriodSeconds"], json!(0));
    assert!(held(&claim, std::slice::from_ref(&shut_down)), "an ordinary volume may still be mounted");

    let own = with(claim, &["metadata", "name"], json!("p-x"));
    assert!(!held(&own, &[ephemeral(a_pod())]), "not the pod's claim: it only has the same name");
    let owner = json!([{"uid": "p-1", "controller": true}]);
    let own = with(own, &["metadata", "ownerReferences"], owner);
    assert!(held(&own, &[ephemeral(a_pod())]));
    assert!(held(&own, &[ephemeral(leaving(a_pod()))]));
    assert!(!held(&own, &[ephemeral(shut_down.clone())]), "otherwise each would wait for the other");
    let both = json!([
        {"name": "x", "ephemeral": {}}, {"name": "y", "persistentVolumeClaim": {"claimName": "p-x"}},
    ]);
    assert!(held(&own, &[with(shut_down, &["spec", "volumes"], both)]));
}

#[test]
fn a_claim_without_finalizer_gets_it_unless_it_terminates() {
    let bare = with(a_claim(), &["metadata", "finalizers"], json!(["x"]));
    let ClaimStep::Protect(patch) = plan(&bare, &[]) else { panic!("protects") };
    assert_eq!(patch["metadata"]["finalizers"], json!(["x", CLAIM]));
    assert_eq!(plan(&leaving(bare), &[]), ClaimStep::Nothing);
}

#[test]
fn only_the_first_unused_condition_of_a_claim_can_wait() {
    let is_unsettled = |claim: &Value, pods: &[Value]| super::is_unsettled(claim, &plan(claim, pods));
    assert!(is_unsettled(&a_claim(), &[]));
    assert!(!is_unsettled(&a_claim(), &[a_pod()]), "the condition of a used claim is set at once");
    let used = with(a_claim(), &["status", "conditions"], json!([{"type": "Unused", "status": "False"}]));
    assert_eq!(says_unused(&used, &[]), Some(true));
    assert!(!is_unsettled(&used, &[]), "its pod is deleted");
    assert!(!is_unsettled(&leaving(a_claim()), &[]), "its finalizer is removed at once");
}

// Scenario H8 of the digest.
#[test]
fn a_bound_claim_has_a_condition_whether_a_pod_uses_it() {
    let claim = a_claim();
    assert_eq!(says_unused(&claim, &[]), Some(true));
    assert_eq!(says_unused(&claim, &[with(a_pod(), &["spec", "nodeName"], json!(""))]), Some(false), "on no node");
    for phase in ["Succeeded", "Failed"] {
        assert_eq!(says_unused(&claim, &[with(a_pod(), &["status", "phase"], json!(phase))]), Some(true), "{phase}");
    }
    let states = |states: Value| with(leaving(a_pod()), &["status", "containerStatuses"], states);
    let running = states(json!([{"state": {"terminated": {}}}, {"state": {"running": {}}}]));
    assert_eq!(says_unused(&claim, &[running]), Some(false));
    let ended = states(json!([{"state": {"terminated": {}}}, {"state": {"waiting": {}}}]));
    assert_eq!(says_unused(&claim, std::slice::from_ref(&ended)), Some(true));
    assert_eq!(says_unused(&claim, &[ended, a_pod()]), Some(false));
    // Only bound claims that do not terminate get the condition.
    assert_eq!(says_unused(&with(a_claim(), &["status", "phase"], json!("Pending")), &[]), None);
    assert_eq!(says_unused(&leaving(a_claim()), &[a_pod()]), None);
    let closed = Gates::default().with(UNUSED_GATE, false);
    assert_eq!(super::claim(&claim, &[], &closed, now()), ClaimStep::Nothing);
}

#[test]
fn the_condition_is_written_once_and_keeps_other_conditions() {
    let other = json!({"type": "Resizing", "status": "True"});
    let claim = with(a_claim(), &["status", "conditions"], json!([other]));
    let ClaimStep::Condition(patch) = plan(&claim, &[]) else { panic!("a condition") };
    let want = json!({
        "metadata": {"uid": "c-1", "resourceVersion": "9"},
        "status": {"conditions": [other, {
            "type": "Unused", "status": "True", "reason": "NoPodsUsingPVC",
            "message": "No pods are currently referencing this PVC", "lastTransitionTime": "1970-01-01T00:01:40Z",
        }]},
    });
    assert_eq!(patch, want);
    let said = with(claim, &["status", "conditions"], patch["status"]["conditions"].clone());
    assert_eq!(plan(&said, &[]), ClaimStep::Nothing);
    let ClaimStep::Condition(patch) = plan(&said, &[a_pod()]) else { panic!("a condition") };
    let condition = condition::get(&patch, "Unused").unwrap();
    assert_eq!(condition["reason"], "PodUsingPVC");
    assert_eq!(condition["message"], "A pod is currently referencing this PVC");
}

#[test]
fn the_claims_of_a_pod() {
    let volumes = json!([
        {"name": "a", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "b", "ephemeral": {}}, {"name": "d", "emptyDir": {}},
    ]);
    assert_eq!(claims_of(&with(a_pod(), &["spec", "volumes"], volumes)).collect::<Vec<_>>(), ["c", "p-b"]);
}

// Scenario H9 of the digest.
#[test]
fn attribute_classes_are_protected_by_the_objects_that_use_them() {
    let class =
        json!({"metadata": {"name": "gold", "uid": "g", "resourceVersion": "1", "finalizers": [ATTRIBUTES_CLASS]}});
    assert_eq!(attributes_class(&class, false), None);
    assert_eq!(attributes_class(&leaving(class.clone()), true), None);
    let patch = attributes_class(&leaving(class), false).expect("released");
    assert_eq!(patch["metadata"]["finalizers"], json!([]));
    let claim = json!({
        "spec": {"volumeAttributesClassName": "a"},
        "status": {
            "currentVolumeAttributesClassName": "b",
            "modifyVolumeStatus": {"targetVolumeAttributesClassName": "c", "status": "Pending"},
        },
    });
    assert_eq!(attributes_classes_of_claim(&claim).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(attributes_classes_of_claim(&json!({"spec": {"volumeAttributesClassName": ""}})).count(), 0);
    assert_eq!(attributes_class_of_volume(&claim), Some("a"));
}
