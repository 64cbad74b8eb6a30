//! Builds the new status of a pod.

use super::container::{self, Around, earliest, time};
use super::{PodEvent, Seen};
use jiff::Timestamp;
use object::access::Access;
use object::write::stamp;
use object::{Map, Value, condition, json};

/// The current pod and its new status.
pub struct Draft<'a> {
    pod: &'a Value,
    /// An object with only the status.
    new: Value,
    now: Timestamp,
}

const CONDITIONS: &[&str] = &["status", "conditions"];

impl<'a> Draft<'a> {
    pub fn of(pod: &'a Value, now: Timestamp) -> Draft<'a> {
        let new = json!({"status": pod.at(&["status"]).cloned().unwrap_or_else(|| json!({}))});
        Draft { pod, new, now }
    }

    /// Sets the fields that a node reports for every pod.
    pub fn begin(&mut self, seen: &Seen, around: &Around) {
        self.new.default_to(&["status", "startTime"], stamp(around.since));
        self.new.put(&["status", "hostIP"], seen.host_ip);
        self.new.put(&["status", "hostIPs"], json!([{"ip": seen.host_ip}]));
        self.new.default_to(&["status", "phase"], "Pending");
        if let Some(generation) = self.pod.int(&["metadata", "generation"]) {
            self.new.put(&["status", "observedGeneration"], generation);
        }
    }

    /// Sets the pod's address: its own, or the node's with hostNetwork.
    pub fn address(&mut self, seen: &Seen) {
        let ip = if self.pod.flag(&["spec", "hostNetwork"]) { seen.host_ip } else { seen.pod_ip };
        if self.new.text(&["status", "podIP"]).is_empty() {
            self.new.put(&["status", "podIP"], ip);
            self.new.put(&["status", "podIPs"], json!([{"ip": ip}]));
        }
    }

    /// Sets all containers to waiting until the pod is set up.
    pub fn create_containers(&mut self, pod: &Value) {
        let inits = pod.items(&["spec", "initContainers"]);
        let reason = if inits.is_empty() { "ContainerCreating" } else { "PodInitializing" };
        for (list, specs) in
            [("containerStatuses", pod.items(&["spec", "containers"])), ("initContainerStatuses", inits)]
        {
            if !specs.is_empty() {
                let statuses: Vec<Value> = specs.iter().map(|spec| container::waiting(spec, reason, "")).collect();
                self.new.put(&["status", list], statuses);
            }
        }
    }

    /// Advances all containers. Returns when a status changes without an event, and the events to record.
    pub fn run_containers(&mut self, around: &Around) -> (Option<Timestamp>, Vec<PodEvent>) {
        let (mut at, mut events, mut started) = (None, Vec::new(), Vec::new());
        for (list, statuses) in [("initContainers", "initContainerStatuses"), ("containers", "containerStatuses")] {
            let specs = around.pod.items(&["spec", list]);
            if specs.is_empty() {
                continue;
            }
            let before = self.pod.items(&["status", statuses]);
            let mut after = Vec::with_capacity(specs.len());
            let is_initialized = list != "containers" || self.are_inits_begun(around.pod);
            for spec in specs {
                let old = before.iter().find(|status| status.text(&["name"]) == spec.text(&["name"]));
                let next = match old {
                    None if !is_initialized => container::initializing(spec),
                    Some(old) if !is_initialized && !has_begun(old) => container::initializing(spec),
                    old => next_status(list, spec, old, around),
                };
                let begins = |status: &Value| status.text(&["containerID"]).to_owned();
                if begins(&next.status) != old.map(begins).unwrap_or_default() {
                    started.push(spec.text(&["name"]));
                }
                if old != Some(&next.status) {
                    events.extend(next.events);
                }
                at = earliest(at, next.at);
                after.push(next.status);
            }
            self.new.put(&["status", statuses], after);
        }
        if !started.is_empty() {
            events.insert(0, PodEvent::normal("Started", format!("Started {}", joined(&started))));
        }
        let running = all_have_begun(&self.new);
        self.new.put(&["status", "phase"], if running { "Running" } else { "Pending" });
        (at, events)
    }

    fn are_inits_begun(&self, pod: &Value) -> bool {
        let statuses = self.new.items(&["status", "initContainerStatuses"]);
        statuses.len() >= pod.items(&["spec", "initContainers"]).len() && statuses.iter().all(has_begun)
    }

    /// Whether a container has started.
    pub fn has_started(&self) -> bool {
        self.new.items(&["status", "containerStatuses"]).iter().any(has_begun)
    }

    /// `Succeeded` or `Failed` if all containers have terminated and none will be restarted.
    pub fn outcome(&self, around: &Around) -> Option<&'static str> {
        let statuses = self.new.items(&["status", "containerStatuses"]);
        let have_ended = !statuses.is_empty() && statuses.iter().all(|status| status.has(&["state", "terminated"]));
        (have_ended && !around.restarts).then(|| self.verdict())
    }

    /// The final phase: `Succeeded` if all containers exist and exited with 0.
    pub fn verdict(&self) -> &'static str {
        let statuses = self.new.items(&["status", "containerStatuses"]);
        let has_succeeded = |status: &Value| status.int(&["state", "terminated", "exitCode"]) == Some(0);
        if !statuses.is_empty() && statuses.iter().all(has_succeeded) { "Succeeded" } else { "Failed" }
    }

    /// Terminates all running containers with this exit code; sidecars, which stop last, exit with 0.
    pub fn end_containers(&mut self, around: &Around, code: i64) {
        for (list, code) in [("containerStatuses", code), ("initContainerStatuses", 0)] {
            let ended: Vec<Value> =
                self.new.items(&["status", list]).iter().map(|status| container::ended(status, around, code)).collect();
            if !ended.is_empty() {
                self.new.put(&["status", list], ended);
            }
        }
    }

    pub fn drop_containers(&mut self) {
        self.new.cut(&["status", "containerStatuses"]);
        self.new.cut(&["status", "initContainerStatuses"]);
    }

    /// The pod waits as if it had never run.
    pub fn begin_again(&mut self) {
        self.new.put(&["status", "phase"], "Pending");
        self.drop_containers();
    }

    pub fn end(&mut self, phase: &str, reason: &str, message: &str) {
        self.new.put(&["status", "phase"], phase);
        for (field, text) in [("reason", reason), ("message", message)] {
            if text.is_empty() {
                self.new.cut(&["status", field]);
            } else {
                self.new.put(&["status", field], text);
            }
        }
    }

    /// Sets the conditions that a kubelet reports. `target` is the reason of DisruptionTarget, if it is to be
    /// set.
    pub fn conditions(&mut self, around: &Around, target: Option<&str>) {
        let phase = self.new.text(&["status", "phase"]).to_owned();
        let over = match phase.as_str() {
            "Succeeded" => Some("PodCompleted"),
            "Failed" => Some("PodFailed"),
            _ => None,
        };
        let started = self.has_started();
        self.set("PodReadyToStartContainers", started && over.is_none(), "", "");
        let inits = around.pod.items(&["spec", "initContainers"]);
        if started || inits.is_empty() || over.is_some() {
            self.set("Initialized", true, over.filter(|over| *over == "PodCompleted").unwrap_or(""), "");
        } else {
            let message = format!("containers with incomplete status: [{}]", listed(inits));
            self.set("Initialized", false, "ContainersNotInitialized", &message);
        }
        let unready = self.unready(around.pod);
        let message = format!("containers with unready status: [{}]", unready.join(" "));
        match over {
            Some(reason) => {
                self.set("ContainersReady", false, reason, "");
                self.set("Ready", false, reason, "");
            }
            None if !unready.is_empty() => {
                self.set("ContainersReady", false, "ContainersNotReady", &message);
                self.set("Ready", false, "ContainersNotReady", &message);
            }
            None => {
                self.set("ContainersReady", true, "", "");
                match closed_gate(around.pod) {
                    Some(why) => self.set("Ready", false, "ReadinessGatesNotReady", &why),
                    None => self.set("Ready", true, "", ""),
                }
            }
        }
        self.set("PodScheduled", true, "", "");
        if let Some(reason) = target {
            self.set("DisruptionTarget", true, reason, "The node was low on resource: this is simulated");
        }
    }

    fn unready(&self, pod: &Value) -> Vec<String> {
        let statuses = self.new.items(&["status", "containerStatuses"]);
        let unready =
            |name: &str| !statuses.iter().any(|status| status.text(&["name"]) == name && status.flag(&["ready"]));
        let names = pod.items(&["spec", "containers"]).iter().map(|spec| spec.text(&["name"]));
        names.filter(|name| unready(name)).map(str::to_owned).collect()
    }

    fn set(&mut self, kind: &str, holds: bool, reason: &str, message: &str) {
        let status = if holds { "True" } else { "False" };
        if let Some(old) = condition::get(&self.new, kind)
            && (old.text(&["status"]), old.text(&["reason"]), old.text(&["message"])) == (status, reason, message)
        {
            return;
        }
        let mut wanted = json!({"type": kind, "status": status, "lastProbeTime": null});
        for (field, text) in [("reason", reason), ("message", message)] {
            if !text.is_empty() {
                wanted[field] = json!(text);
            }
        }
        condition::set(&mut self.new, CONDITIONS, wanted, self.now);
    }

    /// The changes as a strategic merge patch: conditions by type, other fields as a whole.
    pub fn changes(&self) -> Option<Value> {
        let (old, new) = (self.pod.members(&["status"]), self.new.members(&["status"]));
        let mut changes = Map::new();
        for (field, value) in new.iter().filter(|(field, value)| old.get(*field) != Some(*value)) {
            let changed = if field == "conditions" { self.changed_conditions() } else { value.clone() };
            changes.insert(field.clone(), changed);
        }
        for field in old.keys().filter(|field| !new.contains_key(*field)) {
            changes.insert(field.clone(), Value::Null);
        }
        (!changes.is_empty()).then_some(Value::Object(changes))
    }

    fn changed_conditions(&self) -> Value {
        let changed = self.new.items(CONDITIONS).iter().filter_map(|condition| {
            let old = condition::get(self.pod, condition.text(&["type"]));
            if old == Some(condition) {
                return None;
            }
            let mut condition = condition.clone();
            for field in ["reason", "message"] {
                if !condition.has(&[field]) && old.is_some_and(|old| old.has(&[field])) {
                    condition[field] = Value::Null;
                }
            }
            Some(condition)
        });
        changed.collect()
    }
}

fn next_status(list: &str, spec: &Value, old: Option<&Value>, around: &Around) -> container::Next {
    let settled = |status: Value| container::Next { status, at: None, events: Vec::new() };
    let sidecar = spec.text(&["restartPolicy"]) == "Always";
    let begun = old.is_some_and(has_begun);
    let unconfigured = around.config.containers.get(spec.text(&["name"])).filter(|_| !begun);
    if list == "initContainers" && !sidecar {
        if let Some(why) = unconfigured {
            return container::unconfigured(spec, why);
        }
        return settled(if begun { old.cloned().unwrap_or_default() } else { container::completed(spec, around) });
    }
    if around.behaviour.image_pull_fails && !begun {
        return container::unpullable(spec, around);
    }
    if let Some(why) = unconfigured {
        return container::unconfigured(spec, why);
    }
    container::running(spec, old, around)
}

/// Whether all containers of a pod have started; others still need their Secrets and ConfigMaps.
pub fn all_have_begun(pod: &Value) -> bool {
    let statuses = pod.items(&["status", "containerStatuses"]);
    !statuses.is_empty() && statuses.iter().all(has_begun)
}

fn has_begun(status: &Value) -> bool {
    status.has(&["containerID"])
}

/// Why the pod's readiness gates keep it from being ready.
fn closed_gate(pod: &Value) -> Option<String> {
    pod.items(&["spec", "readinessGates"]).iter().find_map(|gate| {
        let kind = gate.text(&["conditionType"]);
        match condition::get(pod, kind).map(|condition| condition.text(&["status"])) {
            None => Some(format!("corresponding condition of pod readiness gate {kind:?} does not exist.")),
            Some("True") => None,
            Some(other) => Some(format!("the status of pod readiness gate {kind:?} is not \"True\", but {other}")),
        }
    })
}

/// When the first of the pod's containers started.
pub fn first_start(pod: &Value) -> Option<Timestamp> {
    let states = pod.items(&["status", "containerStatuses"]).iter();
    states.filter_map(|status| time(status, &["state", "running", "startedAt"])).min()
}

/// `container a` or `containers a, b`.
pub fn names(specs: &[Value]) -> String {
    joined(&specs.iter().map(|spec| spec.text(&["name"])).collect::<Vec<_>>())
}

fn joined(names: &[&str]) -> String {
    let word = if names.len() == 1 { "container" } else { "containers" };
    format!("{word} {}", names.join(", "))
}

fn listed(specs: &[Value]) -> String {
    specs.iter().map(|spec| spec.text(&["name"])).collect::<Vec<_>>().join(" ")
}
