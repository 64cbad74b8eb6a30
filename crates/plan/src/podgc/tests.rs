use super::*;
use proptest::prelude::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pod(name: &str, node: &str, phase: &str, is_terminating: bool) -> Value {
    let mut pod = json!({
        "metadata": {"namespace": "default", "name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {}, "status": {"phase": phase},
    });
    if !node.is_empty() {
        pod["spec"]["nodeName"] = json!(node);
    }
    if is_terminating {
        pod["metadata"]["deletionTimestamp"] = json!(stamp(at(0)));
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    }
    pod
}

fn node(ready: &str, taints: &[&str]) -> Value {
    let taints: Vec<Value> = taints.iter().map(|key| json!({"key": key, "effect": "NoExecute"})).collect();
    json!({"spec": {"taints": taints}, "status": {"conditions": [{"type": "Ready", "status": ready}]}})
}

#[test]
fn a_node_is_out_of_service_if_it_is_tainted_and_not_ready() {
    let cases = [
        (None, NodeState::Gone),
        (Some(node("True", &[])), NodeState::Serving),
        (Some(node("True", &[OUT_OF_SERVICE])), NodeState::Serving),
        (Some(node("Unknown", &["node.kubernetes.io/unreachable"])), NodeState::Serving),
        (Some(node("Unknown", &["node.kubernetes.io/unreachable", OUT_OF_SERVICE])), NodeState::OutOfService),
        (Some(node("False", &[OUT_OF_SERVICE])), NodeState::OutOfService),
        (Some(json!({"spec": {"taints": [{"key": OUT_OF_SERVICE}]}})), NodeState::OutOfService),
    ];
    for (seen, want) in cases {
        assert_eq!(NodeState::of(seen.as_ref()), want, "{seen:?}");
    }
}

#[test]
fn a_missing_node_is_quarantined_and_then_confirmed() {
    let seconds = SignedDuration::from_secs;
    let cases = [
        (NodeState::Serving, 9999, Step::Nothing),
        (NodeState::OutOfService, 0, Step::Confirm),
        (NodeState::Gone, 0, Step::Wait(seconds(40))),
        (NodeState::Gone, 39, Step::Wait(seconds(1))),
        (NodeState::Gone, 40, Step::Confirm),
    ];
    for (state, missing_s, want) in cases {
        assert_eq!(step(state, seconds(missing_s)), want, "{state:?} {missing_s}");
    }
    let all = [NodeState::Serving, NodeState::OutOfService, NodeState::Gone];
    for cached in all {
        for live in all {
            let confirmed = confirmed(cached, live);
            assert_eq!(confirmed.is_some(), cached == live && live.is_lost(), "{cached:?} {live:?}");
        }
    }
}

#[test]
fn pods_are_collected_as_upstream_does() {
    use Reason::{Orphaned, OutOfService, Terminated, Unscheduled};
    let all = [Terminated, OutOfService, Orphaned, Unscheduled];
    let mut held = pod("held", "n", "Failed", true);
    held["metadata"]["deletionGracePeriodSeconds"] = json!(0);
    held["metadata"]["finalizers"] = json!(["example.com/x"]);
    let cases: [(Value, &[Reason]); 9] = [
        (pod("runs", "n", "Running", false), &[Orphaned]),
        (pod("ends", "n", "Running", true), &[OutOfService, Orphaned]),
        (pod("new", "n", "Pending", false), &[Orphaned]),
        (pod("waits", "", "Pending", false), &[]),
        (pod("given-up", "", "Pending", true), &[Unscheduled]),
        (pod("done", "n", "Succeeded", false), &[Terminated, Orphaned]),
        (pod("failed", "n", "Failed", true), &[Terminated, OutOfService, Orphaned]),
        (pod("refused", "", "Failed", false), &[Terminated]),
        (held, &[]),
    ];
    for (seen, want) in cases {
        let collected: Vec<Reason> = all.into_iter().filter(|reason| is_collectable(&seen, *reason)).collect();
        assert_eq!(collected, want, "{seen}");
    }
}

#[test]
fn a_pod_is_set_to_failed_before_it_is_deleted() {
    let running = pod("p", "n", "Running", true);
    let orphaned = final_status(&running, Reason::Orphaned, at(7)).unwrap();
    let condition = &orphaned["conditions"][0];
    assert_eq!(orphaned["phase"], "Failed");
    assert_eq!(
        (condition["reason"].as_str(), condition["type"].as_str()),
        (Some("DeletionByPodGC"), Some("DisruptionTarget"))
    );
    assert_eq!(condition["message"], "PodGC: node no longer exists");
    assert_eq!(condition["lastTransitionTime"], "1970-01-01T00:00:07Z");
    for reason in [Reason::OutOfService, Reason::Unscheduled] {
        assert_eq!(final_status(&running, reason, at(7)), Some(json!({"phase": "Failed"})));
    }
    assert_eq!(final_status(&pod("p", "n", "Succeeded", false), Reason::Orphaned, at(7)), None);
    let mut evicted = running;
    evicted["status"]["conditions"] = json!([
        {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "lastTransitionTime": "1970-01-01T00:00:01Z"},
    ]);
    let again = final_status(&evicted, Reason::Orphaned, at(7)).unwrap();
    assert_eq!(again["conditions"][0]["lastTransitionTime"], "1970-01-01T00:00:01Z", "it was a target before");
}

#[test]
fn evicted_pods_are_deleted_first_and_then_the_oldest() {
    let mut pods: Vec<Value> = (0..5).map(|number| pod(&format!("p{number}"), "n", "Succeeded", false)).collect();
    pods[4]["metadata"]["creationTimestamp"] = json!("2025-01-01T00:00:00Z");
    pods[3]["status"] = json!({"phase": "Failed", "reason": "Evicted"});
    pods.push(pod("running", "n", "Running", false));
    let seen: Vec<&Value> = pods.iter().collect();
    let names = |threshold| -> Vec<&str> { surplus(&seen, threshold).into_iter().map(name).collect() };
    assert_eq!(names(2), ["p3", "p4", "p0"]);
    assert_eq!(names(5), [""; 0]);
    assert_eq!((names(0), names(-1)), (vec![], vec![]), "switched off");
}

#[test]
fn a_volume_is_detached_when_no_pod_of_the_node_uses_it() {
    let volume = json!({"spec": {"claimRef": {"namespace": "default", "name": "data-web-0"}}});
    let using = |claim: &str, phase: &str| {
        let mut pod = pod("p", "n", phase, true);
        pod["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
        pod
    };
    let mut elsewhere = using("data-web-0", "Running");
    elsewhere["metadata"]["namespace"] = json!("other");
    let cases = [
        (vec![], true, true),
        (vec![using("data-web-0", "Running")], false, false),
        (vec![using("data-web-0", "Failed")], true, true),
        (vec![using("data-web-1", "Running")], true, false),
        (vec![elsewhere], true, false),
        (vec![pod("p", "n", "Running", false)], true, true),
    ];
    for (pods, want, of_unknown) in cases {
        let pods: Vec<&Value> = pods.iter().collect();
        assert_eq!(may_detach(Some(&volume), &pods), want, "{pods:?}");
        assert_eq!(may_detach(None, &pods), of_unknown, "{pods:?}");
    }
}

fn any_pod() -> impl Strategy<Value = Value> {
    let phases = prop::sample::select(vec!["Pending", "Running", "Succeeded", "Failed", "Unknown", ""]);
    (any::<bool>(), phases, any::<bool>(), any::<bool>(), 0i64..2).prop_map(
        |(is_bound, phase, ends, is_held, grace)| {
            let mut pod = pod("p", if is_bound { "n" } else { "" }, phase, ends);
            if ends {
                pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
            }
            if is_held {
                pod["metadata"]["finalizers"] = json!(["example.com/x"]);
            }
            pod
        },
    )
}

proptest! {
    /// For any cached and live node state: a pod that may run is deleted only if its node is certainly lost,
    /// and its status becomes Failed first.
    #[test]
    fn no_pod_that_may_run_is_deleted(seen in any_pod(), cached in 0usize..3, live in 0usize..3) {
        let states = [NodeState::Serving, NodeState::OutOfService, NodeState::Gone];
        let (cached, live) = (states[cached], states[live]);
        let may_run = is_scheduled(&seen) && !has_ended(&seen);
        for reason in [Reason::Terminated, Reason::Unscheduled] {
            prop_assert!(!(may_run && is_collectable(&seen, reason)));
        }
        if let Some(reason) = confirmed(cached, live)
            && is_collectable(&seen, reason)
        {
            prop_assert!(live == NodeState::Gone || (live == NodeState::OutOfService && terminating(&seen)));
            let status = final_status(&seen, reason, at(0));
            prop_assert_eq!(status.is_none(), has_ended(&seen));
            // A pod is collected once: afterwards only its finalizers keep it.
            let mut after = seen;
            after["status"]["phase"] = json!("Failed");
            after["metadata"]["deletionTimestamp"] = json!(stamp(at(0)));
            after["metadata"]["deletionGracePeriodSeconds"] = json!(0);
            after["metadata"]["finalizers"] = json!(["example.com/x"]);
            prop_assert!(!is_collectable(&after, reason));
        }
    }

    /// At least `threshold` terminated pods are left, and only terminated ones are deleted.
    #[test]
    fn the_threshold_is_kept(pods in prop::collection::vec(any_pod(), 0..20), threshold in -1i64..10) {
        let seen: Vec<&Value> = pods.iter().collect();
        let ended = seen.iter().filter(|pod| is_collectable(pod, Reason::Terminated)).count() as i64;
        let removed = surplus(&seen, threshold);
        prop_assert!(removed.iter().all(|pod| has_ended(pod)));
        let wanted = if threshold > 0 { (ended - threshold).max(0) } else { 0 };
        prop_assert_eq!(removed.len() as i64, wanted);
    }
}
