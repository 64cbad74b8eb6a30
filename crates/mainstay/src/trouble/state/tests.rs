use super::*;
use object::json;

const AFTER: Duration = Duration::from_secs(30);

fn set(ready: i64, extra: Value) -> Value {
    let mut set = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "u", "generation": 1},
        "spec": {"replicas": 3},
        "status": {"observedGeneration": 1, "replicas": 3, "readyReplicas": ready, "currentRevision": "a", "updateRevision": "a"},
    });
    set.put(&["status", "conditions"], extra);
    set
}

fn texts(lines: Vec<Line>) -> Vec<String> {
    let text = |line| match line {
        Line::Text(text) | Line::Stuck { text, .. } => text,
    };
    lines.into_iter().map(text).collect()
}

#[test]
fn a_stuck_set_is_reported_once_and_again_after_it_recovered() {
    let (start, mut tracker) = (Instant::now(), Tracker::new(AFTER));
    let at = |seconds: u64| start + Duration::from_secs(seconds);
    tracker.set(&set(1, json!([])), false, at(0));
    assert!(tracker.due(at(29)).is_empty());
    // Progress restarts the timeout; any other change does not.
    tracker.set(&set(2, json!([])), false, at(29));
    tracker.set(&set(2, json!([])), false, at(50));
    assert!(tracker.due(at(58)).is_empty());
    let stuck = "StatefulSet shop/web makes no progress: 2 of 3 replicas are ready";
    assert_eq!(texts(tracker.due(at(59))), [stuck]);
    assert!(tracker.due(at(600)).is_empty(), "reported once");
    tracker.set(&set(3, json!([])), false, at(601));
    assert_eq!(texts(tracker.due(at(601))), ["StatefulSet shop/web is complete: 3 of 3 replicas are ready"]);
    tracker.set(&set(2, json!([])), false, at(700));
    assert!(tracker.due(at(729)).is_empty());
    assert_eq!(texts(tracker.due(at(730))), [stuck]);
    let mut gone = set(2, json!([]));
    gone.put(&["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
    tracker.set(&gone, false, at(731));
    assert!(tracker.due(at(9000)).is_empty());
}

#[test]
fn a_condition_gives_the_reason() {
    let (start, mut tracker) = (Instant::now(), Tracker::new(AFTER));
    let held =
        json!([{"type": "ClaimsUpdated", "status": "False", "reason": "Resizing", "message": "data-web-2: too small"}]);
    tracker.set(&set(3, held), false, start);
    let said = texts(tracker.due(start + AFTER));
    assert_eq!(
        said,
        ["StatefulSet shop/web makes no progress: 3 of 3 replicas are ready; Resizing: data-web-2: too small"]
    );
}

#[test]
fn completeness_depends_on_the_update_strategy() {
    let cases = [
        (json!({}), true),
        (json!({"spec": {"replicas": 0}, "status": {"replicas": 0, "readyReplicas": 0}}), true),
        (json!({"status": {"observedGeneration": 0}}), false),
        (json!({"status": {"updateRevision": "b", "updatedReplicas": 1}}), false),
        (json!({"status": {"updateRevision": "b", "updatedReplicas": 3}}), true),
        (json!({"spec": {"updateStrategy": {"type": "OnDelete"}}, "status": {"updateRevision": "b"}}), true),
        (
            json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 2}}}, "status": {"updateRevision": "b", "updatedReplicas": 1}}),
            true,
        ),
        (json!({"status": {"replicas": 4}}), false),
    ];
    for (change, complete) in cases {
        let mut set = set(3, json!([]));
        for part in ["spec", "status"] {
            for (name, value) in change.members(&[part]).iter() {
                set.put(&[part, name], value.clone());
            }
        }
        assert_eq!(is_complete(&set), complete, "{change}");
    }
}

#[test]
fn a_node_that_is_not_ready_is_reported_once() {
    let (start, mut tracker) = (Instant::now(), Tracker::new(AFTER));
    let node = |status: &str| {
        json!({
            "metadata": {"name": "n", "uid": "u"},
            "status": {"conditions": [{"type": "Ready", "status": status, "reason": "NodeStatusUnknown"}]},
        })
    };
    tracker.node(&node("True"), false, start);
    tracker.node(&node("Unknown"), false, start);
    tracker.node(&node("Unknown"), false, start + AFTER);
    let line = "Node n is not ready (Ready=Unknown, NodeStatusUnknown); its pods count as not ready";
    assert_eq!(texts(tracker.due(start + AFTER)), [line]);
    assert!(tracker.due(start + AFTER * 2).is_empty());
    tracker.node(&node("True"), false, start + AFTER * 3);
    assert_eq!(texts(tracker.due(start + AFTER * 3)), ["Node n is ready again"]);
}

#[test]
fn the_reason_of_a_pod_that_is_not_ready() {
    let pod = |status: Value| json!({"metadata": {"name": "web-1"}, "status": status});
    let cases = [
        (
            json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}]}),
            Some("pod web-1: Unschedulable: no node"),
        ),
        (
            json!({"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}),
            Some("pod web-1: ImagePullBackOff"),
        ),
        (json!({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}), None),
        (json!({}), None),
    ];
    for (status, expected) in cases {
        assert_eq!(pod_reason(&pod(status.clone())).as_deref(), expected, "{status}");
    }
    assert_eq!([ordinal(&pod(json!({}))), ordinal(&json!({"metadata": {"name": "x"}}))], [1, u64::MAX]);
}

#[test]
fn an_event_is_reported_once() {
    let mut tracker = Tracker::new(AFTER);
    let event = |n: usize| json!({"metadata": {"uid": n.to_string()}});
    assert!(tracker.is_new_event(&event(0)));
    assert!(!tracker.is_new_event(&event(0)));
    for n in 1..=EVENTS_MAX {
        assert!(tracker.is_new_event(&event(n)));
    }
    assert_eq!(tracker.told_events.len(), EVENTS_MAX);
}
