//! Columns of `kubectl get pods`, including the one-word status.

use crate::access::{Access, name, terminating};
use crate::table::{AGE, Column, NAME, age, column, since, wide};
use crate::{Value, json};
use jiff::Timestamp;

pub const COLUMNS: &[Column] = &[
    NAME,
    column("Ready", "string", "How many of the pod's containers are ready, of how many."),
    column("Status", "string", "What the pod or its containers are doing, in one word."),
    column("Restarts", "string", "How often containers were restarted, and when that last happened."),
    AGE,
    wide("IP", "string", "The pod's address in the cluster."),
    wide("Node", "string", "The node that runs the pod."),
    wide("Nominated Node", "string", "The node where room is being made for the pod."),
    wide("Readiness Gates", "string", "How many of the pod's readiness gates are open, of how many."),
];

pub fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let summary = summarize(pod);
    let or_none = |text: &str| if text.is_empty() { json!("<none>") } else { json!(text) };
    let first = pod.items(&["status", "podIPs"]).first();
    let ip = first.map_or_else(|| pod.text(&["status", "podIP"]), |ip| ip.text(&["ip"]));
    vec![
        json!(name(pod)),
        json!(format!("{}/{}", summary.ready, summary.total)),
        json!(status_word(pod, &summary.reason)),
        json!(restarts(&summary, now)),
        json!(age(pod, now)),
        or_none(ip),
        or_none(pod.text(&["spec", "nodeName"])),
        or_none(pod.text(&["status", "nominatedNodeName"])),
        json!(readiness_gates(pod)),
    ]
}

/// The state that results from the statuses of the containers.
#[derive(Default)]
struct Summary {
    reason: String,
    ready: usize,
    total: usize,
    restarts: i64,
    last_restart: String,
}

impl Summary {
    /// Adds a container's restarts, and keeps the time of the latest one.
    fn count(&mut self, status: &Value) {
        self.restarts = self.restarts.saturating_add(status.int(&["restartCount"]).unwrap_or(0));
        let finished = status.text(&["lastState", "terminated", "finishedAt"]);
        // Times are in canonical form, so they can be compared as text.
        if finished > self.last_restart.as_str() {
            finished.clone_into(&mut self.last_restart);
        }
    }
}

fn summarize(pod: &Value) -> Summary {
    let mut summary =
        Summary { reason: pod_reason(pod), total: pod.items(&["spec", "containers"]).len(), ..Summary::default() };
    let sidecars: Vec<&str> = pod
        .items(&["spec", "initContainers"])
        .iter()
        .filter(|container| container.text(&["restartPolicy"]) == "Always")
        .map(|container| container.text(&["name"]))
        .collect();
    summary.total += sidecars.len();
    let mut of_sidecars = Summary::default();
    let initializing = evaluate_init(pod, &sidecars, &mut summary, &mut of_sidecars);
    if !initializing || has_condition(pod, "Initialized") {
        // After initialization, restarts of init containers no longer count; those of sidecars do.
        summary.restarts = of_sidecars.restarts;
        summary.last_restart = of_sidecars.last_restart;
        evaluate_regular(pod, &mut summary);
    }
    summary
}

fn pod_reason(pod: &Value) -> String {
    let gated = |condition: &Value| {
        condition.text(&["type"]) == "PodScheduled" && condition.text(&["reason"]) == "SchedulingGated"
    };
    if pod.items(&["status", "conditions"]).iter().any(gated) {
        return "SchedulingGated".to_owned();
    }
    let reason = pod.text(&["status", "reason"]);
    if reason.is_empty() { pod.text(&["status", "phase"]).to_owned() } else { reason.to_owned() }
}

/// Evaluates the init containers up to the first one that is not finished. Returns whether there is such a container.
fn evaluate_init(pod: &Value, sidecars: &[&str], summary: &mut Summary, of_sidecars: &mut Summary) -> bool {
    for (index, status) in pod.items(&["status", "initContainerStatuses"]).iter().enumerate() {
        let sidecar = sidecars.contains(&status.text(&["name"]));
        summary.count(status);
        if sidecar {
            of_sidecars.count(status);
        }
        let ended = status.at(&["state", "terminated"]);
        if ended.is_some_and(|state| state.int(&["exitCode"]).unwrap_or(0) == 0) {
            continue;
        }
        if sidecar && status.flag(&["started"]) {
            summary.ready += usize::from(status.flag(&["ready"]));
            continue;
        }
        let waiting = status.text(&["state", "waiting", "reason"]);
        summary.reason = match ended {
            Some(state) => format!("Init:{}", end_reason(state)),
            None if !waiting.is_empty() && waiting != "PodInitializing" => format!("Init:{waiting}"),
            None => format!("Init:{index}/{}", pod.items(&["spec", "initContainers"]).len()),
        };
        return true;
    }
    false
}

fn evaluate_regular(pod: &Value, summary: &mut Summary) {
    let mut running = false;
    for status in pod.items(&["status", "containerStatuses"]).iter().rev() {
        summary.count(status);
        let waiting = status.text(&["state", "waiting", "reason"]);
        if !waiting.is_empty() {
            waiting.clone_into(&mut summary.reason);
        } else if let Some(state) = status.at(&["state", "terminated"]) {
            summary.reason = end_reason(state);
        } else if status.flag(&["ready"]) && status.has(&["state", "running"]) {
            running = true;
            summary.ready += 1;
        }
    }
    if summary.reason == "Completed" && running {
        let word = if has_condition(pod, "Ready") { "Running" } else { "NotReady" };
        word.clone_into(&mut summary.reason);
    }
}

fn end_reason(state: &Value) -> String {
    let signal = state.int(&["signal"]).unwrap_or(0);
    match state.text(&["reason"]) {
        "" if signal != 0 => format!("Signal:{signal}"),
        "" => format!("ExitCode:{}", state.int(&["exitCode"]).unwrap_or(0)),
        reason => reason.to_owned(),
    }
}

fn has_condition(pod: &Value, kind: &str) -> bool {
    let met = |condition: &Value| condition.text(&["type"]) == kind && condition.text(&["status"]) == "True";
    pod.items(&["status", "conditions"]).iter().any(met)
}

fn status_word<'a>(pod: &Value, reason: &'a str) -> &'a str {
    let terminal = matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed");
    match (terminating(pod), pod.text(&["status", "reason"])) {
        (true, "NodeLost") => "Unknown",
        (true, _) if !terminal => "Terminating",
        _ => reason,
    }
}

fn restarts(summary: &Summary, now: Timestamp) -> String {
    if summary.restarts != 0 && !summary.last_restart.is_empty() {
        format!("{} ({} ago)", summary.restarts, since(&summary.last_restart, now))
    } else {
        summary.restarts.to_string()
    }
}

fn readiness_gates(pod: &Value) -> String {
    let gates = pod.items(&["spec", "readinessGates"]);
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let open = gates.iter().filter(|gate| has_condition(pod, gate.text(&["conditionType"]))).count();
    format!("{open}/{}", gates.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T01:00:00Z";

    /// Returns the Ready, Status and Restarts cells of a pod.
    fn row(spec: Value, status: Value, deleted: bool) -> [String; 3] {
        let mut pod = json!({"metadata": {"name": "p", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": spec, "status": status});
        if deleted {
            pod.put(&["metadata", "deletionTimestamp"], NOW);
        }
        let cells = cells(&pod, NOW.parse().unwrap());
        assert_eq!(cells.len(), COLUMNS.len());
        assert_eq!(cells[4], "60m");
        [1, 2, 3].map(|index| cells[index].as_str().unwrap().to_owned())
    }

    #[test]
    fn pod_states_are_upstreams() {
        let one = json!({"containers": [{"name": "a"}]});
        let up = json!({"name": "a", "ready": true, "state": {"running": {}}});
        let crashing = json!({"name": "a", "restartCount": 3, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"finishedAt": "2026-01-01T00:55:00Z"}}});
        let done = json!({"name": "a", "state": {"terminated": {"reason": "Completed", "exitCode": 0}}});
        let with_init = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}, {"name": "j"}]});
        let with_sidecar =
            json!({"containers": [{"name": "a"}], "initContainers": [{"name": "s", "restartPolicy": "Always"}]});
        let cases = [
            (one.clone(), json!({"phase": "Pending"}), false, ["0/1", "Pending", "0"]),
            (one.clone(), json!({"phase": "Running", "containerStatuses": [up]}), false, ["1/1", "Running", "0"]),
            (one.clone(), json!({"phase": "Running", "containerStatuses": [up]}), true, ["1/1", "Terminating", "0"]),
            (one.clone(), json!({"phase": "Running", "reason": "NodeLost"}), true, ["0/1", "Unknown", "0"]),
            (
                one.clone(),
                json!({"phase": "Running", "containerStatuses": [crashing]}),
                false,
                ["0/1", "CrashLoopBackOff", "3 (5m ago)"],
            ),
            (one.clone(), json!({"phase": "Succeeded", "containerStatuses": [done]}), false, ["0/1", "Completed", "0"]),
            (one.clone(), json!({"phase": "Succeeded", "containerStatuses": [done]}), true, ["0/1", "Completed", "0"]),
            (
                one.clone(),
                json!({"phase": "Failed", "containerStatuses": [{"name": "a", "state": {"terminated": {"exitCode": 7}}}]}),
                false,
                ["0/1", "ExitCode:7", "0"],
            ),
            (one.clone(), json!({"phase": "Failed", "reason": "Evicted"}), false, ["0/1", "Evicted", "0"]),
            (
                one,
                json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}),
                false,
                ["0/1", "SchedulingGated", "0"],
            ),
            (
                with_init.clone(),
                json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]}),
                false,
                ["0/1", "Init:0/2", "0"],
            ),
            (
                with_init.clone(),
                json!({"phase": "Pending", "initContainerStatuses": [
                    {"name": "i", "state": {"terminated": {"exitCode": 0}}},
                    {"name": "j", "restartCount": 1, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}),
                false,
                ["0/1", "Init:CrashLoopBackOff", "1"],
            ),
            (
                with_init,
                json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 1, "signal": 9}}}]}),
                false,
                ["0/1", "Init:Signal:9", "0"],
            ),
            (
                with_sidecar,
                json!({"phase": "Running", "containerStatuses": [up],
                    "initContainerStatuses": [{"name": "s", "started": true, "ready": true, "restartCount": 2, "state": {"running": {}}}]}),
                false,
                ["2/2", "Running", "2"],
            ),
            (
                json!({"containers": [{"name": "a"}, {"name": "b"}]}),
                json!({"phase": "Running", "containerStatuses": [done, {"name": "b", "ready": true, "state": {"running": {}}}]}),
                false,
                ["1/2", "NotReady", "0"],
            ),
        ];
        for (spec, status, deleted, want) in cases {
            assert_eq!(row(spec, status.clone(), deleted), want, "{status}");
        }
    }

    #[test]
    fn wide_cells_fall_back_to_none() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"readinessGates": [{"conditionType": "a"}, {"conditionType": "b"}], "nodeName": "n"},
            "status": {"podIPs": [{"ip": "10.0.0.1"}], "conditions": [{"type": "a", "status": "True"}]}});
        let cells = cells(&pod, NOW.parse().unwrap());
        assert_eq!(cells[4..], [json!("<unknown>"), json!("10.0.0.1"), json!("n"), json!("<none>"), json!("1/2")]);
    }
}
