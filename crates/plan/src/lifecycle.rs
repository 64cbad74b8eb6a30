//! The node lifecycle: conditions and taints of nodes that stop reporting, and the eviction of their pods.

use crate::schedule::taint::Taint;
use jiff::{SignedDuration, Timestamp};
use object::access::{Access, terminating};
use object::write::stamp;
use object::{Value, condition, json};

/// A node without a heartbeat for this long is unreachable.
pub const GRACE: SignedDuration = SignedDuration::from_secs(40);

/// Taints that follow from a node's conditions; only this controller writes them.
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
const PRESSURES: [(&str, &str); 4] = [
    ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "node.kubernetes.io/network-unavailable"),
];
const CORDONED: &str = "node.kubernetes.io/unschedulable";
/// The conditions that a kubelet reports.
const REPORTED: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// What to do about a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodePlan {
    /// A strategic merge patch of the node's status.
    pub status: Option<Value>,
    /// The node's new taints, if they must change.
    pub taints: Option<Vec<Value>>,
    /// The node was ready and is not any more.
    pub lost: bool,
    /// When to plan again if the node does not report before.
    pub next: Option<Timestamp>,
}

/// Plans for a node whose last heartbeat was at `heard`.
pub fn node(node: &Value, heard: Timestamp, now: Timestamp) -> NodePlan {
    let deadline = heard.checked_add(GRACE).unwrap_or(Timestamp::MAX);
    let mut seen = node.clone();
    let mut plan = NodePlan::default();
    if now < deadline {
        plan.next = Some(deadline);
    } else {
        let unknown: Vec<Value> = REPORTED.iter().filter_map(|kind| unknown(node, kind, now)).collect();
        if !unknown.is_empty() {
            plan.lost = condition::is_true(node, "Ready");
            for condition in &unknown {
                condition::set(&mut seen, &["status", "conditions"], condition.clone(), now);
            }
            plan.status = Some(json!({"conditions": unknown}));
        }
    }
    let taints = taints(&seen, now);
    plan.taints = (taints != node.items(&["spec", "taints"])).then_some(taints);
    plan
}

/// The condition `Unknown` of a node without heartbeats, unless it is set already.
fn unknown(node: &Value, kind: &str, now: Timestamp) -> Option<Value> {
    let old = condition::get(node, kind);
    if old.is_some_and(|old| old.text(&["status"]) == "Unknown") {
        return None;
    }
    let (reason, message) = match old {
        Some(_) => ("NodeStatusUnknown", "Kubelet stopped posting node status."),
        None => ("NodeStatusNeverUpdated", "Kubelet never posted node status."),
    };
    Some(json!({
        "type": kind, "status": "Unknown", "reason": reason, "message": message, "lastTransitionTime": stamp(now),
    }))
}

/// The taints that the node should have: those of others, and those that follow from its conditions.
fn taints(node: &Value, now: Timestamp) -> Vec<Value> {
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    match condition::get(node, "Ready").map(|ready| ready.text(&["status"])) {
        Some("True") => {}
        Some("False") => wanted.extend([(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")]),
        Some(_) => wanted.extend([(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")]),
        // The node has not reported yet.
        None => wanted.push((NOT_READY, "NoSchedule")),
    }
    let under_pressure = |kind: &str| condition::is_true(node, kind);
    wanted.extend(PRESSURES.iter().filter(|(kind, _)| under_pressure(kind)).map(|(_, key)| (*key, "NoSchedule")));
    if node.flag(&["spec", "unschedulable"]) {
        wanted.push((CORDONED, "NoSchedule"));
    }
    let is_ours = |key: &str| {
        [NOT_READY, UNREACHABLE, CORDONED].contains(&key) || PRESSURES.iter().any(|(_, pressure)| *pressure == key)
    };
    let of = |taint: &Value| (taint.text(&["key"]).to_owned(), taint.text(&["effect"]).to_owned());
    let is = |taint: &Value, (key, effect): (&str, &str)| of(taint) == (key.to_owned(), effect.to_owned());
    let have = node.items(&["spec", "taints"]);
    let mut taints: Vec<Value> = have
        .iter()
        .filter(|taint| !is_ours(taint.text(&["key"])) || wanted.iter().any(|wanted| is(taint, *wanted)))
        .cloned()
        .collect();
    for (key, effect) in wanted.into_iter().filter(|wanted| !have.iter().any(|taint| is(taint, *wanted))) {
        taints.push(json!({"key": key, "effect": effect, "timeAdded": stamp(now)}));
    }
    taints
}

/// The condition of a node that affects its pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trouble {
    pub not_ready: bool,
    /// The NoExecute taints, and since when.
    pub taints: Vec<(Taint, Timestamp)>,
}

impl Trouble {
    /// The trouble of a node. A taint without `timeAdded` is as old as it was in `before`, the last result.
    pub fn of(node: &Value, before: Option<&Trouble>, now: Timestamp) -> Option<Trouble> {
        let ready = condition::get(node, "Ready");
        let not_ready = ready.is_some_and(|ready| ready.text(&["status"]) != "True");
        let taints = node.items(&["spec", "taints"]).iter().filter(|taint| taint.text(&["effect"]) == "NoExecute");
        let taints: Vec<(Taint, Timestamp)> = taints
            .map(|raw| {
                let taint = Taint::of(raw);
                let added = raw.text(&["timeAdded"]).parse().ok();
                let known = before.and_then(|before| before.taints.iter().find(|(known, _)| *known == taint));
                let since = added.or_else(|| known.map(|(_, since)| *since)).unwrap_or(now);
                (taint, since)
            })
            .collect();
        (not_ready || !taints.is_empty()).then_some(Trouble { not_ready, taints })
    }
}

/// What a node's trouble means for one of its pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The pod is ready by its status, but the node does not confirm it.
    pub unready: bool,
    /// When the pod is to be deleted.
    pub evict: Option<Timestamp>,
}

pub fn pod(pod: &Value, trouble: &Trouble, now: Timestamp) -> Verdict {
    if matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed") {
        return Verdict::default();
    }
    let unready = trouble.not_ready && condition::is_true(pod, "Ready");
    Verdict { unready, evict: if terminating(pod) { None } else { eviction(pod, trouble, now) } }
}

fn eviction(pod: &Value, trouble: &Trouble, now: Timestamp) -> Option<Timestamp> {
    let mut first: Option<Timestamp> = None;
    for (taint, since) in &trouble.taints {
        let tolerations = pod.items(&["spec", "tolerations"]).iter().filter(|it| taint.is_tolerated_by(it));
        let mut tolerated = false;
        for toleration in tolerations {
            tolerated = true;
            // A toleration without a limit does not lift the limit of another.
            if let Some(seconds) = toleration.int(&["tolerationSeconds"]) {
                let end = since.checked_add(SignedDuration::from_secs(seconds.max(0))).unwrap_or(Timestamp::MAX);
                first = Some(first.map_or(end, |first| first.min(end)));
            }
        }
        if !tolerated {
            return Some(now);
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn ready(status: &str) -> Value {
        json!({"spec": {}, "status": {"conditions": [{"type": "Ready", "status": status}]}})
    }

    fn keys(taints: &[Value]) -> Vec<String> {
        taints.iter().map(|taint| format!("{}:{}", taint.text(&["key"]), taint.text(&["effect"]))).collect()
    }

    #[test]
    fn a_node_with_heartbeats_is_not_changed() {
        let plan = node(&ready("True"), at(100), at(139));
        assert_eq!(plan, NodePlan { next: Some(at(140)), ..NodePlan::default() });
    }

    #[test]
    fn a_node_without_heartbeats_is_unknown_and_unreachable_until_it_reports() {
        let mut silent = ready("True");
        silent["spec"]["taints"] = json!([{"key": "mine", "effect": "NoSchedule"}]);
        let plan = node(&silent, at(100), at(140));
        let status = plan.status.unwrap();
        assert_eq!(status["conditions"][0]["reason"], "NodeStatusUnknown");
        assert_eq!(status["conditions"][1]["reason"], "NodeStatusNeverUpdated");
        assert_eq!(status.items(&["conditions"]).len(), 4);
        assert!(plan.lost && plan.next.is_none());
        let taints = plan.taints.unwrap();
        assert_eq!(
            keys(&taints),
            [
                "mine:NoSchedule",
                "node.kubernetes.io/unreachable:NoSchedule",
                "node.kubernetes.io/unreachable:NoExecute"
            ]
        );
        assert_eq!(taints[2]["timeAdded"], "1970-01-01T00:02:20Z");
        // A second plan changes nothing.
        silent["status"] = status;
        silent["spec"]["taints"] = json!(taints);
        assert_eq!(node(&silent, at(100), at(200)), NodePlan::default());
        silent["status"]["conditions"][0]["status"] = json!("True");
        let healed = node(&silent, at(201), at(201));
        assert_eq!((keys(&healed.taints.unwrap()), healed.lost), (vec!["mine:NoSchedule".to_owned()], false));
    }

    #[test]
    fn taints_follow_conditions_and_cordons() {
        let pressed = |kind: &str| json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": kind, "status": "True"}]}});
        let cases = [
            (ready("False"), vec!["node.kubernetes.io/not-ready:NoSchedule", "node.kubernetes.io/not-ready:NoExecute"]),
            (json!({}), vec!["node.kubernetes.io/not-ready:NoSchedule"]),
            (pressed("DiskPressure"), vec!["node.kubernetes.io/disk-pressure:NoSchedule"]),
            (
                json!({"spec": {"unschedulable": true}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
                vec!["node.kubernetes.io/unschedulable:NoSchedule"],
            ),
        ];
        for (seen, want) in cases {
            assert_eq!(keys(&node(&seen, at(0), at(0)).taints.unwrap()), want, "{seen}");
        }
    }

    #[test]
    fn pods_are_evicted_when_their_tolerations_expire() {
        let taint = |key: &str| json!({"key": key, "effect": "NoExecute", "timeAdded": stamp(at(100))});
        let of = |tolerations: Value| json!({"spec": {"tolerations": tolerations}, "status": {"phase": "Running"}});
        let for_seconds = |key: &str, seconds: i64| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        let trouble = |keys: &[&str]| {
            let taints: Vec<Value> = keys.iter().map(|key| taint(key)).collect();
            Trouble::of(&json!({"spec": {"taints": taints}}), None, at(110)).unwrap()
        };
        let cases = [
            (of(json!([])), trouble(&["k"]), Some(at(110))),
            (of(json!([for_seconds("k", 300)])), trouble(&["k"]), Some(at(400))),
            (of(json!([for_seconds("k", -5)])), trouble(&["k"]), Some(at(100))),
            (of(json!([{"operator": "Exists"}])), trouble(&["k", "l"]), None),
            (of(json!([for_seconds("k", 300)])), trouble(&["k", "l"]), Some(at(110))),
            (of(json!([for_seconds("k", 300), for_seconds("l", 30)])), trouble(&["k", "l"]), Some(at(130))),
            (of(json!([{"operator": "Exists"}, for_seconds("k", 30)])), trouble(&["k"]), Some(at(130))),
        ];
        for (seen, trouble, want) in cases {
            assert_eq!(pod(&seen, &trouble, at(110)).evict, want, "{seen}");
            let mut going = seen.clone();
            going["metadata"]["deletionTimestamp"] = json!(stamp(at(0)));
            assert_eq!(pod(&going, &trouble, at(110)).evict, None, "it is terminating already");
            let mut over = seen;
            over["status"]["phase"] = json!("Failed");
            assert_eq!(pod(&over, &trouble, at(110)), Verdict::default());
        }
    }

    #[test]
    fn a_taint_without_a_time_is_as_old_as_when_it_was_first_seen() {
        let tainted =
            json!({"spec": {"taints": [{"key": "k", "effect": "NoExecute"}, {"key": "l", "effect": "NoSchedule"}]}});
        let first = Trouble::of(&tainted, None, at(5)).unwrap();
        assert_eq!(first.taints.len(), 1);
        assert_eq!(Trouble::of(&tainted, Some(&first), at(9)).unwrap(), first);
        assert_eq!(Trouble::of(&ready("True"), Some(&first), at(9)), None);
        let unready = Trouble::of(&ready("Unknown"), None, at(9)).unwrap();
        assert!(pod(&ready("True"), &unready, at(9)).unready);
        assert!(!pod(&ready("False"), &unready, at(9)).unready);
    }
}
