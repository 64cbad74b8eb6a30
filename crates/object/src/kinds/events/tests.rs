use super::super::testing::*;
use super::*;

fn core_event() -> Value {
    json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "d"},
        "involvedObject": {"kind": "Pod", "namespace": "d", "name": "web-0", "fieldPath": "spec"},
        "reason": "Pulled", "message": " done ", "type": "Normal", "count": 3,
        "source": {"component": "kubelet", "host": "n"},
        "firstTimestamp": "2026-11-15T11:00:00Z", "lastTimestamp": "2026-11-15T11:59:00Z"})
}

fn new_event() -> Value {
    json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e", "namespace": "d"},
        "regarding": {"kind": "Pod", "namespace": "d", "name": "web-0"}, "eventTime": "2026-11-15T11:59:50.000000Z",
        "reason": "Pulled", "action": "Pulling", "note": "done", "type": "Normal",
        "reportingController": "x.io/me", "reportingInstance": "me-1"})
}

const EVENTS: &str = "events.k8s.io/Event";

#[test]
fn the_two_forms_convert_into_each_other() {
    let mut event = core_event();
    to_events_v1(&mut event);
    assert_eq!(
        event,
        json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e", "namespace": "d"},
            "regarding": {"kind": "Pod", "namespace": "d", "name": "web-0", "fieldPath": "spec"},
            "reason": "Pulled", "note": " done ", "type": "Normal", "deprecatedCount": 3,
            "deprecatedSource": {"component": "kubelet", "host": "n"},
            "deprecatedFirstTimestamp": "2026-11-15T11:00:00Z", "deprecatedLastTimestamp": "2026-11-15T11:59:00Z"})
    );
    to_core(&mut event);
    assert_eq!(event, core_event());
    assert_eq!(kind("Event").storage, kind(EVENTS).storage);
    assert!(kind(EVENTS).rules.converts() && !kind("Event").rules.converts());
    let mut stored = new_event();
    kind(EVENTS).rules.to_stored(&mut stored);
    assert_eq!(stored["reportingComponent"], "x.io/me");
    kind(EVENTS).rules.from_stored(&mut stored);
    assert_eq!(stored, new_event());
}

#[test]
fn columns_are_equal_in_both_forms() {
    let want = "60s | Normal | Pulled | pod/web-0 | spec | kubelet, n | done | 60m | 3 | e";
    assert_eq!(shown("Event", &core_event()), want);
    let mut event = core_event();
    to_events_v1(&mut event);
    assert_eq!(shown(EVENTS, &event), want);
    assert_eq!(
        headers("Event"),
        "Last Seen | Type | Reason | Object | Subobject* | Source* | Message | First Seen* | Count* | Name*"
    );
    assert_eq!(
        shown(EVENTS, &new_event()),
        "10s | Normal | Pulled | pod/web-0 |  | x.io/me, me-1 | done | 10s | 1 | e"
    );
    let mut series = new_event();
    series["series"] = json!({"count": 7, "lastObservedTime": "2026-11-15T11:59:55.000000Z"});
    assert_eq!(shown(EVENTS, &series), "5s | Normal | Pulled | pod/web-0 |  | x.io/me, me-1 | done | 10s | 7 | e");
}

#[test]
fn field_selectors_accept_both_names() {
    let rules = &kind("Event").rules;
    let mut event = core_event();
    assert_eq!(rules.field_value(&event, "involvedObject.name"), "web-0");
    assert_eq!(rules.field_value(&event, "source"), "kubelet");
    event.cut(&["source"]);
    event["reportingComponent"] = json!("me");
    assert_eq!(rules.field_value(&event, "source"), "me");
    assert_eq!(kind(EVENTS).rules.field_value(&new_event(), "regarding.kind"), "Pod");
}

#[test]
fn core_events_must_be_in_the_namespace_of_their_object() {
    assert_eq!(refused("Event", core_event()), "[]");
    let mut event = core_event();
    event["involvedObject"]["namespace"] = json!("e");
    let want = "involvedObject.namespace: Invalid value: \"e\": does not match event.namespace";
    assert_eq!(refused("Event", event.clone()), want);
    event["involvedObject"].cut(&["namespace"]);
    assert_eq!(refused("Event", event.clone()), want.replace("\"e\"", "\"\""));
    event["metadata"]["namespace"] = json!("default");
    assert_eq!(refused("Event", event), "[]");
}

#[test]
fn events_of_events_k8s_io_are_validated_strictly() {
    assert_eq!(refused(EVENTS, new_event()), "[]");
    type Change = fn(&mut Value);
    let cases: [(Change, &str); 9] = [
        (|event| drop(event.cut(&["eventTime"])), "eventTime: Required value"),
        (|event| event["type"] = json!("X"), "type: Invalid value: \"\": has invalid value: X"),
        (|event| drop(event.cut(&["action"])), "action: Required value"),
        (
            |event| event["reason"] = json!("x".repeat(129)),
            "reason: Invalid value: \"\": can have at most 128 characters",
        ),
        (
            |event| event["note"] = json!("x".repeat(1025)),
            "message: Invalid value: \"\": can have at most 1024 characters",
        ),
        (|event| event["deprecatedCount"] = json!(1), "count: Invalid value: \"\": needs to be unset"),
        (|event| event["deprecatedSource"] = json!({"host": "h"}), "source: Invalid value: \"\": needs to be unset"),
        (
            |event| event["series"] = json!({"count": 1, "lastObservedTime": "x"}),
            "series.count: Invalid value: \"\": should be at least 2",
        ),
        (|event| event["series"] = json!({"count": 2}), "series.lastObservedTime: Required value"),
    ];
    for (change, want) in cases {
        let mut event = new_event();
        change(&mut event);
        assert_eq!(refused(EVENTS, event), want);
    }
    let old = stored(EVENTS, new_event());
    let series =
        |new: &mut Value| new["series"] = json!({"count": 2, "lastObservedTime": "2026-11-15T11:59:55.000000Z"});
    assert_eq!(change_refused(EVENTS, &old, series), "[]");
    assert_eq!(
        change_refused(EVENTS, &old, |new| new["note"] = json!("other")),
        "message: Invalid value: \"other\": field is immutable"
    );
    assert_eq!(
        change_refused(EVENTS, &old, |new| new["reportingController"] = json!("y")),
        "reportingController: Invalid value: \"y\": field is immutable"
    );
}
