//! Kubelets that pretend: what becomes of a pod that is bound to a simulated node.
//!
//! A plan is made from the pod alone: its status says how far it is and since when, so that nothing is forgotten when a node starts
//! anew. Times in a status are whole seconds, and so are delays, near enough.

mod behaviour;
pub mod config;
mod container;
pub mod expand;
mod status;
#[cfg(test)]
mod tests;

pub use behaviour::{Behaviour, DOWN, End, PREFIX, Readiness, Termination, is_down};

use container::{Around, after, earliest, time};
use jiff::{SignedDuration, Timestamp};
use object::Value;
use object::access::{Access, terminating, uid};
use status::Draft;

/// What is seen of a pod and of what it needs.
pub struct Seen<'a> {
    pub pod: &'a Value,
    /// The node's address.
    pub host_ip: &'a str,
    /// The address that the pod gets when it starts.
    pub pod_ip: &'a str,
    /// The claims that the pod's volumes name.
    pub claims: &'a [(&'a str, ClaimState)],
    /// The Secrets and ConfigMaps that [`config::wanted`] names.
    pub configs: &'a config::Found,
    /// Why volumes cannot be mounted, as their drivers say: the name of the PersistentVolume and the reason.
    pub broken_volumes: &'a [(String, String)],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimState {
    Bound,
    Unbound,
    Terminating,
    Missing,
    /// It is bound, and its condition says that the data of its volume is missing.
    DataMissing,
}

/// What to do, in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The status to merge into the pod's, strategically; `None` when it is as it should be.
    pub status: Option<Value>,
    /// The pod has ended and was to go: delete it for good, if it still has its uid.
    pub remove: bool,
    /// What people should know once the status is written.
    pub events: Vec<Event>,
    /// What they should be told once, as long as it is so.
    pub warnings: Vec<Event>,
    /// Look again then, if nothing happens before.
    pub next: Option<Timestamp>,
    /// It waits for its claims.
    pub held: bool,
    /// It waits for Secrets, ConfigMaps or the data of volumes: they must be looked up again.
    pub awaits_config: bool,
    /// From now on it uses its claims. A claim on its way out waits only for pods that were given a node before it was looked at, so whether
    /// they are as they were seen must be asked first.
    pub mounts: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

impl Event {
    pub(crate) fn normal(reason: &'static str, message: String) -> Event {
        Event { warning: false, reason, message }
    }
    pub(crate) fn warning(reason: &'static str, message: String) -> Event {
        Event { warning: true, reason, message }
    }
}

/// What becomes of a pod on a node that is up.
pub fn plan(seen: &Seen, now: Timestamp) -> Plan {
    let pod = seen.pod;
    let (behaviour, complaints) = Behaviour::of(pod);
    let mut plan = Plan::default();
    plan.warnings.extend(complaints.into_iter().map(|why| Event::warning("InvalidSimulation", why)));
    let config = config::trouble(pod, seen.configs);
    let around = Around {
        pod,
        config: &config,
        uid: uid(pod),
        behaviour: &behaviour,
        since: time(pod, &["status", "startTime"]).unwrap_or(now),
        now,
        restarts: restarts(pod, &behaviour),
    };
    let ended = matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed");
    if terminating(pod) {
        terminate(&around, ended, &mut plan);
    } else if !ended {
        live(seen, &around, &mut plan);
    }
    plan
}

/// Whether containers that crash are started again.
fn restarts(pod: &Value, behaviour: &Behaviour) -> bool {
    match pod.text(&["spec", "restartPolicy"]) {
        "Never" => false,
        // Only crashes are simulated, which are failures.
        "OnFailure" => behaviour.crash_after.is_some(),
        _ => true,
    }
}

fn terminate(around: &Around, ended: bool, plan: &mut Plan) {
    let pod = around.pod;
    let wait = match around.behaviour.terminate {
        _ if ended => SignedDuration::ZERO,
        Termination::Never => return,
        Termination::After(wait) => wait,
    };
    // The time of deletion is when the grace period ends.
    let deadline = time(pod, &["metadata", "deletionTimestamp"]).unwrap_or(around.now);
    let grace = SignedDuration::from_secs(pod.int(&["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0));
    let asked = deadline.checked_sub(grace).unwrap_or(deadline);
    let end = after(asked, wait).min(deadline);
    if wait.is_zero() && (ended || pod.items(&["metadata", "finalizers"]).is_empty()) {
        // Nobody could see it end: it is gone in the same moment. Where a finalizer holds it, it must say that it has ended.
        plan.remove = true;
        return;
    }
    let names = status::names(pod.items(&["spec", "containers"]));
    plan.warnings.push(Event::normal("Killing", format!("Stopping {names}")));
    if end > around.now {
        plan.next = Some(end);
        return;
    }
    let mut draft = Draft::of(pod, around.now);
    // What is stopped before its time is over has ended well; else it was killed.
    let code = if after(asked, wait) <= deadline { 0 } else { 137 };
    draft.end_containers(around, code);
    // As kubelets do: whoever removes the pod instead of its node knows by its phase that it does not run, nor will.
    draft.end(draft.verdict(), "", "");
    draft.conditions(around, None);
    plan.status = draft.changes();
    plan.remove = true;
}

fn live(seen: &Seen, around: &Around, plan: &mut Plan) {
    let (pod, now) = (seen.pod, around.now);
    let mut draft = Draft::of(pod, now);
    draft.begin(seen, around);
    let end = End::due(around);
    if let Some((end, at)) = end
        && at <= now
    {
        finish(end, around, draft, plan);
        return;
    }
    plan.next = end.map(|(_, at)| at);
    // After a restore the status may be older than the loss of the data: such a pod starts anew.
    let has_lost_data = has_started(pod) && !seen.broken_volumes.is_empty();
    if has_lost_data {
        draft.begin_again();
    }
    if has_lost_data || !has_started(pod) {
        let trouble = claim_trouble(seen);
        plan.held = !trouble.is_empty();
        plan.awaits_config = !around.config.volumes.is_empty() || !seen.broken_volumes.is_empty();
        plan.warnings.extend(trouble);
        plan.warnings.extend(seen.broken_volumes.iter().map(|(volume, why)| mount_failed(volume, why)));
        plan.warnings.extend(around.config.volumes.iter().cloned());
        let start_at = after(around.since, around.behaviour.start_after);
        let is_held = plan.held || plan.awaits_config;
        if is_held || start_at > now {
            draft.create_containers(pod);
            draft.conditions(around, None);
            plan.next = if is_held { plan.next } else { earliest(plan.next, Some(start_at)) };
            plan.status = draft.changes();
            return;
        }
        plan.mounts = !seen.claims.is_empty();
    }
    plan.awaits_config = !around.config.containers.is_empty();
    let failed = around.config.containers.values().map(|why| Event::warning("Failed", format!("Error: {why}")));
    plan.warnings.extend(failed);
    let (next, events) = draft.run_containers(around);
    plan.next = earliest(plan.next, next);
    if draft.has_started() {
        draft.address(seen);
    }
    if let Some(phase) = draft.outcome(around) {
        draft.end(phase, "", "");
    }
    draft.conditions(around, None);
    plan.status = draft.changes();
    if plan.status.is_some() {
        plan.events = events;
    }
}

/// Why its claims hold the pod back.
fn claim_trouble(seen: &Seen) -> Vec<Event> {
    let namespace = object::access::namespace(seen.pod);
    let troubles = seen.claims.iter().filter_map(|(name, state)| {
        let why = match state {
            ClaimState::Bound => return None,
            ClaimState::Unbound => "PVC is not bound".to_owned(),
            ClaimState::Terminating => "PVC is being deleted".to_owned(),
            // The driver itself is asked where that is possible, and says more.
            ClaimState::DataMissing if !seen.broken_volumes.is_empty() => return None,
            ClaimState::DataMissing => format!("the claim's condition {} is True", crate::csi::health::MISSING),
            ClaimState::Missing => {
                format!("failed to fetch PVC from API server: persistentvolumeclaims {name:?} not found")
            }
        };
        Some(Event::warning("FailedMount", format!("error processing PVC {namespace}/{name}: {why}")))
    });
    troubles.collect()
}

/// In a kubelet's words.
fn mount_failed(volume: &str, why: &str) -> Event {
    Event::warning("FailedMount", format!("MountVolume.SetUp failed for volume {volume:?} : {why}"))
}

/// Whether a pod is to run: it has not ended, and is not being deleted.
pub fn is_to_run(pod: &Value) -> bool {
    !matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed") && !terminating(pod)
}

/// Whether a container of a pod has begun, and so its volumes were mounted.
pub fn has_started(pod: &Value) -> bool {
    pod.items(&["status", "containerStatuses"]).iter().any(|status| status.has(&["containerID"]))
}

impl End {
    /// How the pod ends, and when: by annotation, or by its own deadline.
    fn due(around: &Around) -> Option<(Ending, Timestamp)> {
        let begun = status::first_start(around.pod);
        let deadline = around
            .pod
            .int(&["spec", "activeDeadlineSeconds"])
            .map(|seconds| (Ending::Deadline, after(around.since, SignedDuration::from_secs(seconds))));
        let said = match around.behaviour.end {
            None => None,
            // Eviction does not wait for the pod to run.
            Some(End::Evict(wait)) => Some((Ending::Evicted, after(around.since, wait))),
            Some(End::Succeed(wait)) => begun.map(|begun| (Ending::Succeeded, after(begun, wait))),
            Some(End::Fail(wait)) => begun.map(|begun| (Ending::Failed, after(begun, wait))),
        };
        said.into_iter().chain(deadline).min_by_key(|(_, at)| *at)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Succeeded,
    Failed,
    Evicted,
    Deadline,
}

fn finish(ending: Ending, around: &Around, mut draft: Draft, plan: &mut Plan) {
    match ending {
        Ending::Succeeded => {
            draft.end_containers(around, 0);
            draft.end("Succeeded", "", "");
        }
        Ending::Failed => {
            draft.end_containers(around, around.behaviour.exit_code);
            draft.end("Failed", "", "");
        }
        Ending::Evicted => {
            let message = "The node was low on resource: this is simulated, by annotation of the pod. ";
            // Without its containers, as kubelets leave a pod that they could not let end by itself.
            draft.drop_containers();
            draft.end("Failed", "Evicted", message);
            plan.events.push(Event::warning("Evicted", message.to_owned()));
        }
        Ending::Deadline => {
            let message = "Pod was active on the node longer than the specified deadline";
            draft.end_containers(around, 137);
            draft.end("Failed", "DeadlineExceeded", message);
            plan.events.push(Event::normal("DeadlineExceeded", message.to_owned()));
        }
    }
    let target = (ending == Ending::Evicted).then_some("TerminationByKubelet");
    draft.conditions(around, target);
    plan.status = draft.changes();
}
