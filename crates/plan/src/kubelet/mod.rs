//! Simulated kubelets: the status of a pod that is bound to a simulated node.
//!
//! A plan depends on the pod object alone: its status has all progress and times, so that nothing is lost
//! when a node restarts. Timestamps in a status, and so delays, are precise to one second.

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

/// A pod, and the objects that its plan needs.
pub struct Seen<'a> {
    pub pod: &'a Value,
    /// The node's address.
    pub host_ip: &'a str,
    /// The address that the pod gets when it starts.
    pub pod_ip: &'a str,
    /// The claims that the pod's volumes use.
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
pub struct PodPlan {
    /// A strategic merge patch of the status; `None` if it needs no change.
    pub status: Option<Value>,
    /// The pod has terminated: delete it with grace period 0, with its uid as a precondition.
    pub remove: bool,
    /// Events to record after the status is written.
    pub events: Vec<PodEvent>,
    /// Events to record once, as long as their cause lasts.
    pub warnings: Vec<PodEvent>,
    /// When to plan again without a change.
    pub next: Option<Timestamp>,
    /// The pod waits for its claims.
    pub held: bool,
    /// The pod waits for Secrets, ConfigMaps or the data of volumes: look them up again.
    pub awaits_config: bool,
    /// The pod uses its claims from now on. Confirm their state with the server first: the finalizer of a
    /// terminating claim only waits for pods that were scheduled before protection looked.
    pub mounts: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodEvent {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

impl PodEvent {
    pub(crate) fn normal(reason: &'static str, message: String) -> PodEvent {
        PodEvent { warning: false, reason, message }
    }
    pub(crate) fn warning(reason: &'static str, message: String) -> PodEvent {
        PodEvent { warning: true, reason, message }
    }
}

/// Plans the status of a pod on a node that is up.
pub fn plan(seen: &Seen, now: Timestamp) -> PodPlan {
    let pod = seen.pod;
    let (behaviour, complaints) = Behaviour::of(pod);
    let mut plan = PodPlan::default();
    plan.warnings
        .extend(complaints.into_iter().map(|why| PodEvent::warning(object::well_known::INVALID_SIMULATION, why)));
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

/// Whether crashed containers are restarted.
fn restarts(pod: &Value, behaviour: &Behaviour) -> bool {
    match pod.text(&["spec", "restartPolicy"]) {
        "Never" => false,
        // A simulated crash is always a failure.
        "OnFailure" => behaviour.crash_after.is_some(),
        _ => true,
    }
}

fn terminate(around: &Around, ended: bool, plan: &mut PodPlan) {
    let pod = around.pod;
    let wait = match around.behaviour.terminate {
        _ if ended => SignedDuration::ZERO,
        Termination::Never => return,
        Termination::After(wait) => wait,
    };
    // deletionTimestamp is the end of the grace period.
    let deadline = time(pod, &["metadata", "deletionTimestamp"]).unwrap_or(around.now);
    let grace = SignedDuration::from_secs(pod.int(&["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0));
    let asked = deadline.checked_sub(grace).unwrap_or(deadline);
    let end = after(asked, wait).min(deadline);
    if wait.is_zero() && (ended || pod.items(&["metadata", "finalizers"]).is_empty()) {
        // No time passes between its termination and its removal, so it is removed at once. With a finalizer,
        // the terminated status must be written first.
        plan.remove = true;
        return;
    }
    let names = status::names(pod.items(&["spec", "containers"]));
    plan.warnings.push(PodEvent::normal("Killing", format!("Stopping {names}")));
    if end > around.now {
        plan.next = Some(end);
        return;
    }
    let mut draft = Draft::of(pod, around.now);
    // Exit code 0 if it stops within its grace period, or 137 if it is killed.
    let code = if after(asked, wait) <= deadline { 0 } else { 137 };
    draft.end_containers(around, code);
    // As real kubelets do: a component that removes the pod later sees by its phase that no container runs.
    draft.end(draft.verdict(), "", "");
    draft.conditions(around, None);
    plan.status = draft.changes();
    plan.remove = true;
}

fn live(seen: &Seen, around: &Around, plan: &mut PodPlan) {
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
    let failed = around.config.containers.values().map(|why| PodEvent::warning("Failed", format!("Error: {why}")));
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

/// Why its claims delay the pod.
fn claim_trouble(seen: &Seen) -> Vec<PodEvent> {
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
        Some(PodEvent::warning("FailedMount", format!("error processing PVC {namespace}/{name}: {why}")))
    });
    troubles.collect()
}

/// In a kubelet's words.
fn mount_failed(volume: &str, why: &str) -> PodEvent {
    PodEvent::warning("FailedMount", format!("MountVolume.SetUp failed for volume {volume:?} : {why}"))
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
    /// How and when the pod ends: by annotation, or by `activeDeadlineSeconds`.
    fn due(around: &Around) -> Option<(Ending, Timestamp)> {
        let begun = status::first_start(around.pod);
        let deadline = around
            .pod
            .int(&["spec", "activeDeadlineSeconds"])
            .map(|seconds| (Ending::Deadline, after(around.since, SignedDuration::from_secs(seconds))));
        let said = match around.behaviour.end {
            None => None,
            // An eviction does not wait until the pod runs.
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

fn finish(ending: Ending, around: &Around, mut draft: Draft, plan: &mut PodPlan) {
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
            // Real kubelets remove the container statuses of an evicted pod.
            draft.drop_containers();
            draft.end("Failed", "Evicted", message);
            plan.events.push(PodEvent::warning("Evicted", message.to_owned()));
        }
        Ending::Deadline => {
            let message = "Pod was active on the node longer than the specified deadline";
            draft.end_containers(around, 137);
            draft.end("Failed", "DeadlineExceeded", message);
            plan.events.push(PodEvent::normal("DeadlineExceeded", message.to_owned()));
        }
    }
    let target = (ending == Ending::Evicted).then_some("TerminationByKubelet");
    draft.conditions(around, target);
    plan.status = draft.changes();
}
