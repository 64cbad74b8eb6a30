//! Pod garbage collection: which pods no kubelet will ever terminate, and which volumes of lost nodes may be
//! detached.
//!
//! A pod that may still run must not be deleted, because its StatefulSet would start the same ordinal a
//! second time. So a pod is collected only if its node is deleted, if an administrator declared the node out
//! of service, if the pod was never scheduled, or if it has terminated.

#[cfg(test)]
mod tests;

use crate::protect::claims_of;
use jiff::{SignedDuration, Timestamp};
use object::access::{Access, name, namespace, terminating};
use object::write::stamp;
use object::{Value, condition, json};

/// The taint by which an administrator declares that a node is shut down and its pods do not run any more.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// A Node must be missing from the cache for this long before the API server is asked for it.
pub const QUARANTINE: SignedDuration = SignedDuration::from_secs(40);
/// Default of `--terminated-pod-gc-threshold`.
pub const TERMINATED_THRESHOLD: i64 = 12_500;

/// Why a pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// There are more terminated pods than the threshold allows.
    Terminated,
    /// The pod is terminating, and its node is not ready and tainted [`OUT_OF_SERVICE`].
    OutOfService,
    /// The pod's Node does not exist.
    Orphaned,
    /// The pod is terminating and was never scheduled.
    Unscheduled,
}

impl Reason {
    /// The value of the metrics' label `reason`, as upstream's.
    pub fn label(self) -> &'static str {
        match self {
            Reason::Terminated => "terminated",
            Reason::OutOfService => "out-of-service",
            Reason::Orphaned => "orphaned",
            Reason::Unscheduled => "unscheduled",
        }
    }
}

/// Whether a kubelet can still terminate the pods of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// The Node exists; its kubelet may be unreachable, but its pods may run.
    Serving,
    /// The Node is not ready and tainted [`OUT_OF_SERVICE`].
    OutOfService,
    /// There is no such Node.
    Gone,
}

impl NodeState {
    pub fn of(node: Option<&Value>) -> NodeState {
        let Some(node) = node else { return NodeState::Gone };
        let is_tainted = node.items(&["spec", "taints"]).iter().any(|taint| taint.text(&["key"]) == OUT_OF_SERVICE);
        if is_tainted && !condition::is_true(node, "Ready") { NodeState::OutOfService } else { NodeState::Serving }
    }

    pub fn is_lost(self) -> bool {
        self != NodeState::Serving
    }
}

/// What to do about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: the kubelet terminates its pods.
    Nothing,
    /// Check again after this time.
    Wait(SignedDuration),
    /// GET the Node from the API server. Pods are deleted only if the result agrees with the cache, see
    /// [`confirmed`].
    Confirm,
}

/// Plans for a node in this state in the cache; `missing_for` is how long it has been missing.
pub fn step(cached: NodeState, missing_for: SignedDuration) -> Step {
    match cached {
        NodeState::Serving => Step::Nothing,
        NodeState::OutOfService => Step::Confirm,
        NodeState::Gone if missing_for < QUARANTINE => Step::Wait(QUARANTINE - missing_for),
        NodeState::Gone => Step::Confirm,
    }
}

/// The reason for which pods of a node are deleted, after a GET of the Node; `None` if the cache is stale.
pub fn confirmed(cached: NodeState, live: NodeState) -> Option<Reason> {
    match (cached, live) {
        (NodeState::Gone, NodeState::Gone) => Some(Reason::Orphaned),
        (NodeState::OutOfService, NodeState::OutOfService) => Some(Reason::OutOfService),
        _ => None,
    }
}

/// Whether a pod of a lost node is to be deleted for this reason.
pub fn is_collectable(pod: &Value, reason: Reason) -> bool {
    let applies = match reason {
        Reason::Orphaned => is_scheduled(pod),
        Reason::OutOfService => is_scheduled(pod) && terminating(pod),
        Reason::Unscheduled => !is_scheduled(pod) && terminating(pod),
        Reason::Terminated => has_ended(pod),
    };
    applies && !waits_for_finalizers(pod)
}

/// The strategic merge patch of a pod's status before it is deleted, so that its phase shows that it does not
/// run. `None` if the pod has terminated already.
pub fn final_status(pod: &Value, reason: Reason, now: Timestamp) -> Option<Value> {
    if has_ended(pod) {
        return None;
    }
    let mut status = json!({"phase": "Failed"});
    if reason == Reason::Orphaned {
        let mut target = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
            "message": "PodGC: node no longer exists",
        });
        let old = condition::get(pod, "DisruptionTarget").filter(|old| old.text(&["status"]) == "True");
        let since = old.map(|old| old.text(&["lastTransitionTime"]).to_owned()).filter(|since| !since.is_empty());
        target["lastTransitionTime"] = json!(since.unwrap_or_else(|| stamp(now)));
        status["conditions"] = json!([target]);
    }
    Some(status)
}

/// The terminated pods to delete so that at most `threshold` are left: first evicted ones, then the oldest. A
/// threshold of 0 or less keeps all.
pub fn surplus<'a>(pods: &[&'a Value], threshold: i64) -> Vec<&'a Value> {
    let Ok(threshold @ 1..) = usize::try_from(threshold) else { return Vec::new() };
    let mut ended: Vec<&Value> = pods.iter().copied().filter(|pod| is_collectable(pod, Reason::Terminated)).collect();
    let surplus = ended.len().saturating_sub(threshold);
    if surplus == 0 {
        return Vec::new();
    }
    let is_evicted =
        |pod: &Value| pod.text(&["status", "reason"]) == "Evicted" && pod.text(&["status", "phase"]) == "Failed";
    // Times in RFC 3339, UTC and whole seconds sort as text.
    ended
        .sort_by_key(|pod| (!is_evicted(pod), pod.text(&["metadata", "creationTimestamp"]), name(pod), namespace(pod)));
    ended.truncate(surplus);
    ended
}

/// Whether a VolumeAttachment to a lost node may be deleted, because no pod of that node uses the volume any
/// more. `volume` is the PV that the attachment names, if it exists; `pods` are all pods of the node.
pub fn may_detach(volume: Option<&Value>, pods: &[&Value]) -> bool {
    let mut users = pods.iter().filter(|pod| !has_ended(pod) && claims_of(pod).next().is_some());
    let Some(claim) = volume.and_then(|volume| volume.at(&["spec", "claimRef"])) else {
        // Which pods use an inline or deleted volume is unknown, so every pod with volumes counts.
        return users.next().is_none();
    };
    !users.any(|pod| {
        namespace(pod) == claim.text(&["namespace"]) && claims_of(pod).any(|used| used == claim.text(&["name"]))
    })
}

pub fn has_ended(pod: &Value) -> bool {
    matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed")
}

fn is_scheduled(pod: &Value) -> bool {
    !pod.text(&["spec", "nodeName"]).is_empty()
}

/// Whether a terminated pod that was deleted without a grace period waits only for finalizers: another
/// deletion changes nothing.
fn waits_for_finalizers(pod: &Value) -> bool {
    terminating(pod)
        && has_ended(pod)
        && pod.int(&["metadata", "deletionGracePeriodSeconds"]) == Some(0)
        && !pod.items(&["metadata", "finalizers"]).is_empty()
}
