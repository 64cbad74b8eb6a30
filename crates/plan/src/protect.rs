//! Protection of objects in use: finalizers of PVs, claims and VolumeAttributesClasses, and the condition
//! `Unused` of claims.

#[cfg(test)]
mod tests;

use crate::finalizers;
use jiff::Timestamp;
use object::access::{Access, controller, name, namespace, terminating, uid};
use object::{Gates, Value, condition, json};

const VOLUME: &str = "kubernetes.io/pv-protection";
const CLAIM: &str = "kubernetes.io/pvc-protection";
const ATTRIBUTES_CLASS: &str = "kubernetes.io/vac-protection";

/// Enables the condition that says since when no pod uses a claim.
const UNUSED_GATE: &str = "PersistentVolumeClaimUnusedSinceTime";

/// The merge patch for a PV that lacks its finalizer, or that terminates and is not bound.
pub fn volume(volume: &Value) -> Option<Value> {
    protect(volume, VOLUME, volume.text(&["status", "phase"]) == "Bound")
}

/// The merge patch for a VolumeAttributesClass that lacks its finalizer, or that terminates and is not used
/// by a PV or a claim.
pub fn attributes_class(class: &Value, named: bool) -> Option<Value> {
    protect(class, ATTRIBUTES_CLASS, named)
}

/// The VolumeAttributesClasses that a claim uses: requested, current, or being applied.
pub fn attributes_classes_of_claim(claim: &Value) -> impl Iterator<Item = &str> {
    let paths: [&[&str]; 3] = [
        &["spec", "volumeAttributesClassName"],
        &["status", "currentVolumeAttributesClassName"],
        &["status", "modifyVolumeStatus", "targetVolumeAttributesClassName"],
    ];
    paths.into_iter().map(|path| claim.text(path)).filter(|name| !name.is_empty())
}

/// The VolumeAttributesClass that a PV uses.
pub fn attributes_class_of_volume(volume: &Value) -> Option<&str> {
    Some(volume.text(&["spec", "volumeAttributesClassName"])).filter(|name| !name.is_empty())
}

/// The action for a claim: one request, after which the claim is reconciled again.
#[derive(Clone, Debug, PartialEq)]
pub enum ClaimStep {
    Nothing,
    /// The merge patch that adds its finalizer.
    Protect(Value),
    /// The merge patch that removes its finalizer. Send it only if a fresh list has no pod that [`holds`] the
    /// claim, because the cache may be stale.
    Release(Value),
    /// The merge patch of its status.
    Condition(Value),
}

/// Plans for a claim. `pods` must include all that use it.
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

/// Whether a step sets the condition `Unused` to True for the first time. The claim may have been created for
/// a pod that will be created soon.
pub fn is_unsettled(claim: &Value, step: &ClaimStep) -> bool {
    let is_new = condition::get(claim, "Unused").is_none();
    is_new && matches!(step, ClaimStep::Condition(patch) if condition::is_true(patch, "Unused"))
}

/// The names of the claims that a pod uses, in its namespace.
pub fn claims_of(pod: &Value) -> impl Iterator<Item = String> {
    pod.items(&["spec", "volumes"]).iter().filter_map(move |volume| claim_of(pod, volume))
}

/// Whether a pod keeps a claim from being removed: it is scheduled and uses the claim. It does not matter
/// whether its containers still run: its volumes may still be mounted. A pod without a node does not count,
/// because the scheduler does not place it while the claim terminates.
pub fn holds(pod: &Value, claim: &Value) -> bool {
    !pod.text(&["spec", "nodeName"]).is_empty() && names(pod, claim) && !(is_its_own(pod, claim) && is_shut_down(pod))
}

/// Whether a pod that has not terminated uses the claim of this name.
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

/// Whether a pod uses a claim. The claim of an ephemeral volume is found by name, but counts only if the pod
/// controls it.
fn names(pod: &Value, claim: &Value) -> bool {
    namespace(pod) == namespace(claim)
        && pod.items(&["spec", "volumes"]).iter().any(|volume| {
            claim_of(pod, volume).is_some_and(|named| named == name(claim))
                && (!volume.has(&["ephemeral"]) || is_controlled_by(claim, pod))
        })
}

/// Whether a pod uses a claim only for its own ephemeral volumes.
fn is_its_own(pod: &Value, claim: &Value) -> bool {
    let plainly = |volume: &Value| volume.text(&["persistentVolumeClaim", "claimName"]) == name(claim);
    is_controlled_by(claim, pod) && !pod.items(&["spec", "volumes"]).iter().any(plainly)
}

fn is_controlled_by(claim: &Value, pod: &Value) -> bool {
    controller(claim).is_some_and(|owner| owner.text(&["uid"]) == uid(pod))
}

/// Whether the kubelet has stopped a pod that now waits only for its finalizers. Its own claims must not wait
/// for it, because it may be waiting for them.
fn is_shut_down(pod: &Value) -> bool {
    terminating(pod) && pod.int(&["metadata", "deletionGracePeriodSeconds"]) == Some(0)
}

/// Whether a pod uses no volumes any more: it has terminated, or is being deleted and runs no container.
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

/// Adds the finalizer if it is missing, or removes it from a terminating object that is not in use.
fn protect(object: &Value, finalizer: &str, in_use: bool) -> Option<Value> {
    match (terminating(object), finalizers::has(object, finalizer)) {
        (false, false) => Some(finalizers::patch(object, &[finalizer], &[])),
        (true, true) if !in_use => Some(finalizers::patch(object, &[], &[finalizer])),
        _ => None,
    }
}
