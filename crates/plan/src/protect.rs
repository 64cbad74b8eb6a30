//! What is in use stays: the finalizers that keep volumes, claims and attribute classes, and the condition that says whether a claim
//! is in use.

#[cfg(test)]
mod tests;

use crate::finalizers;
use jiff::Timestamp;
use object::access::{Access, controller, name, namespace, terminating, uid};
use object::{Gates, Value, condition, json};

const VOLUME: &str = "kubernetes.io/pv-protection";
const CLAIM: &str = "kubernetes.io/pvc-protection";
const ATTRIBUTES_CLASS: &str = "kubernetes.io/vac-protection";

/// Whether claims say since when no pod uses them.
const UNUSED_GATE: &str = "PersistentVolumeClaimUnusedSinceTime";

/// The merge patch for a volume that lacks its finalizer, or is to go and bound to no claim.
pub fn volume(volume: &Value) -> Option<Value> {
    protect(volume, VOLUME, volume.text(&["status", "phase"]) == "Bound")
}

/// The merge patch for a VolumeAttributesClass that lacks its finalizer, or is to go and named by no volume and no claim.
pub fn attributes_class(class: &Value, named: bool) -> Option<Value> {
    protect(class, ATTRIBUTES_CLASS, named)
}

/// The VolumeAttributesClasses that a claim names: wanted, in force, or on the way.
pub fn attributes_classes_of_claim(claim: &Value) -> impl Iterator<Item = &str> {
    let paths: [&[&str]; 3] = [
        &["spec", "volumeAttributesClassName"],
        &["status", "currentVolumeAttributesClassName"],
        &["status", "modifyVolumeStatus", "targetVolumeAttributesClassName"],
    ];
    paths.into_iter().map(|path| claim.text(path)).filter(|name| !name.is_empty())
}

/// The VolumeAttributesClass that a volume names.
pub fn attributes_class_of_volume(volume: &Value) -> Option<&str> {
    Some(volume.text(&["spec", "volumeAttributesClassName"])).filter(|name| !name.is_empty())
}

/// What to do about a claim: one request, after which it is looked at again.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimStep {
    Nothing,
    /// The merge patch that gives it its finalizer.
    Protect(Value),
    /// The merge patch that takes its finalizer away; only when a fresh list of the pods shows none that [`holds`] it, since what was
    /// seen may be old.
    Release(Value),
    /// The merge patch of its status.
    Condition(Value),
}

/// What to do about a claim. `pods` are all that name it; others do no harm.
pub fn claim(claim: &Value, pods: &[&Value], gates: &Gates, now: Timestamp) -> ClaimStep {
    let held = pods.iter().any(|pod| holds(pod, claim));
    if let Some(patch) = protect(claim, CLAIM, held) {
        return if terminating(claim) { ClaimStep::Release(patch) } else { ClaimStep::Protect(patch) };
    }
    if terminating(claim) || claim.text(&["status", "phase"]) != "Bound" || !gates.on(UNUSED_GATE) {
        return ClaimStep::Nothing;
    }
    let used = pods.iter().any(|pod| !is_over(pod) && names(pod, claim));
    unused(claim, used, now).map_or(ClaimStep::Nothing, ClaimStep::Condition)
}

/// Whether a step makes a claim say for the first time that nobody uses it. It may have been made for a pod that is on its way.
pub fn is_unsettled(claim: &Value, step: &ClaimStep) -> bool {
    let is_new = condition::get(claim, "Unused").is_none();
    is_new && matches!(step, ClaimStep::Condition(patch) if condition::is_true(patch, "Unused"))
}

/// The names of the claims that a pod names, in its namespace.
pub fn claims_of(pod: &Value) -> impl Iterator<Item = String> {
    pod.items(&["spec", "volumes"]).iter().filter_map(move |volume| claim_of(pod, volume))
}

/// Whether a pod keeps a claim from going: it is on a node and names the claim. Whether its containers still run does not matter:
/// its volumes may still be mounted. A pod on no node does not hold, as none takes it while the claim is to go.
pub fn holds(pod: &Value, claim: &Value) -> bool {
    !pod.text(&["spec", "nodeName"]).is_empty() && names(pod, claim) && !(is_its_own(pod, claim) && is_shut_down(pod))
}

/// Whether a pod that has not ended names the claim of this name.
pub fn uses(pod: &Value, claim: &str) -> bool {
    !is_over(pod) && claims_of(pod).any(|named| named == claim)
}

fn claim_of(pod: &Value, volume: &Value) -> Option<String> {
    match volume.text(&["persistentVolumeClaim", "claimName"]) {
        "" if volume.has(&["ephemeral"]) => Some(format!("{}-{}", name(pod), volume.text(&["name"]))),
        "" => None,
        claim => Some(claim.to_owned()),
    }
}

/// Whether a pod names a claim. The claim of an ephemeral volume is known by its name, but is the pod's only if the pod controls it.
fn names(pod: &Value, claim: &Value) -> bool {
    namespace(pod) == namespace(claim)
        && pod.items(&["spec", "volumes"]).iter().any(|volume| {
            claim_of(pod, volume).is_some_and(|named| named == name(claim))
                && (!volume.has(&["ephemeral"]) || is_controlled_by(claim, pod))
        })
}

/// Whether a pod names a claim only as that of its own ephemeral volumes.
fn is_its_own(pod: &Value, claim: &Value) -> bool {
    let plainly = |volume: &Value| volume.text(&["persistentVolumeClaim", "claimName"]) == name(claim);
    is_controlled_by(claim, pod) && !pod.items(&["spec", "volumes"]).iter().any(plainly)
}

fn is_controlled_by(claim: &Value, pod: &Value) -> bool {
    controller(claim).is_some_and(|owner| owner.text(&["uid"]) == uid(pod))
}

/// A pod that its node has let go of, and that waits for nothing but its finalizers. Its own claims must not wait for it: it may be
/// waiting for them.
fn is_shut_down(pod: &Value) -> bool {
    terminating(pod) && pod.int(&["metadata", "deletionGracePeriodSeconds"]) == Some(0)
}

/// A pod that uses nothing any more: it has ended, or is to go and runs no container.
fn is_over(pod: &Value) -> bool {
    let runs = |status: &Value| !status.has(&["state", "terminated"]) && !status.has(&["state", "waiting"]);
    matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed")
        || (terminating(pod) && !pod.items(&["status", "containerStatuses"]).iter().any(runs))
}

fn unused(claim: &Value, used: bool, now: Timestamp) -> Option<Value> {
    let wanted = if used {
        json!({
            "type": "Unused", "status": "False", "reason": "PodUsingPVC",
            "message": "A pod is currently referencing this PVC",
        })
    } else {
        json!({
            "type": "Unused", "status": "True", "reason": "NoPodsUsingPVC",
            "message": "No pods are currently referencing this PVC",
        })
    };
    let same = |condition: &Value| condition.text(&["status"]) == wanted.text(&["status"]);
    if condition::get(claim, "Unused").is_some_and(same) {
        return None;
    }
    let mut conditions = json!({"status": {"conditions": claim.items(&["status", "conditions"])}});
    condition::set(&mut conditions, &["status", "conditions"], wanted, now);
    let mut patch = finalizers::precondition(claim);
    patch.put(&["status"], conditions.cut(&["status"]).unwrap_or_default());
    Some(patch)
}

/// The finalizer is missing on what stays, or has no more use on what is to go.
fn protect(object: &Value, finalizer: &str, in_use: bool) -> Option<Value> {
    match (terminating(object), finalizers::has(object, finalizer)) {
        (false, false) => Some(finalizers::patch(object, &[finalizer], &[])),
        (true, true) if !in_use => Some(finalizers::patch(object, &[], &[finalizer])),
        _ => None,
    }
}
