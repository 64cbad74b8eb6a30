//! The writes that bind a volume and a claim, and those that unbind them.

use super::{
    Action, BIND_COMPLETED, BOUND_BY_CONTROLLER, PRE_RESIZE_CAPACITY, Target, WITHDRAWN, annotation, is_reserved_for,
    provision,
};
use crate::csi::reclaim::UNCONFIRMED;
use crate::finalizers::precondition;
use object::access::{Access, name, namespace, uid};
use object::quantity::Quantity;
use object::{Value, json};

/// The remaining actions of a binding: create the directory, then write the volume, its phase, the claim and its
/// status.
pub fn bind(volume: &Value, claim: &Value) -> Vec<Action> {
    let writes = [
        point_volume(volume, claim),
        set_phase(volume, "Bound", ""),
        point_claim(claim, volume),
        set_status(claim, "Bound", Some(volume)),
    ];
    provision::make(volume, claim).into_iter().chain(writes.into_iter().flatten()).collect()
}

/// The writes that release a volume from its claim. A `claimRef` that a user wrote stays without its uid, so the volume
/// stays reserved for that claim name.
pub fn unbind(volume: &Value) -> Vec<Action> {
    let mut patch = precondition(volume);
    if annotation(volume, BOUND_BY_CONTROLLER).is_empty() {
        patch.put(&["spec", "claimRef", "uid"], Value::Null);
    } else {
        patch.put(&["spec", "claimRef"], Value::Null);
        patch.put(&["metadata", "annotations", BOUND_BY_CONTROLLER], Value::Null);
    }
    let freed = Action::Patch { of: Target::of(volume), status: false, patch };
    [freed].into_iter().chain(set_phase(volume, "Available", "")).collect()
}

/// The write that prevents a claim from getting a volume that is being deleted. To read the claim is not enough: a
/// request that binds it may have timed out and still arrive. After this write that request fails its precondition.
pub fn withdraw(volume: &Value, claim: &Value) -> Option<Action> {
    if annotation(claim, WITHDRAWN) == uid(volume) {
        return None;
    }
    let mut patch = precondition(claim);
    patch.put(&["metadata", "annotations", WITHDRAWN], uid(volume));
    Some(Action::Patch { of: Target::of(claim), status: false, patch })
}

pub fn set_phase(volume: &Value, phase: &str, message: &str) -> Option<Action> {
    if volume.text(&["status", "phase"]) == phase {
        return None;
    }
    let mut patch = precondition(volume);
    let message = if message.is_empty() { Value::Null } else { json!(message) };
    patch.put(&["status"], json!({"phase": phase, "message": message}));
    // A volume that is bound or available again needs no decision of a user.
    if matches!(phase, "Bound" | "Available") && volume.text(&["status", "reason"]) == UNCONFIRMED {
        patch.put(&["status", "reason"], Value::Null);
    }
    Some(Action::Patch { of: Target::of(volume), status: true, patch })
}

/// The patch of a claim's status: from its volume, or cleared.
pub fn set_status(claim: &Value, phase: &str, volume: Option<&Value>) -> Option<Action> {
    let mut status = json!({});
    let mut set = |field: &str, wanted: Option<&Value>| {
        if claim.at(&["status", field]) != wanted {
            status.put(&[field], wanted.cloned().unwrap_or_default());
        }
    };
    set("phase", Some(&json!(phase)));
    match volume {
        None => {
            ["accessModes", "capacity", "currentVolumeAttributesClassName"].iter().for_each(|field| set(field, None))
        }
        Some(volume) => {
            set("accessModes", volume.at(&["spec", "accessModes"]));
            // After binding, the sizes may differ on purpose: the volume has grown, its file system not yet.
            if claim.text(&["status", "phase"]) != phase {
                set("capacity", Some(&capacity(volume)));
                set("currentVolumeAttributesClassName", volume.at(&["spec", "volumeAttributesClassName"]));
            }
        }
    }
    if status == json!({}) {
        return None;
    }
    let mut patch = precondition(claim);
    patch.put(&["status"], status);
    Some(Action::Patch { of: Target::of(claim), status: true, patch })
}

fn capacity(volume: &Value) -> Value {
    let mut capacity = volume.at(&["spec", "capacity"]).cloned().unwrap_or_default();
    let before = annotation(volume, PRE_RESIZE_CAPACITY);
    if before.parse::<Quantity>().is_ok() {
        capacity.put(&["storage"], before);
    }
    capacity
}

fn point_volume(volume: &Value, claim: &Value) -> Option<Action> {
    let by_us = !is_reserved_for(volume, claim);
    let reference = claim_reference(claim);
    let same = |field| volume.text(&["spec", "claimRef", field]) == reference.text(&[field]);
    let is_pointed = ["namespace", "name", "uid"].into_iter().all(same);
    let is_marked = volume.has(&["metadata", "annotations", BOUND_BY_CONTROLLER]);
    if is_pointed && (!by_us || is_marked) {
        return None;
    }
    let mut patch = precondition(volume);
    if !is_pointed {
        patch.put(&["spec", "claimRef"], reference);
    }
    if by_us && !is_marked {
        patch.put(&["metadata", "annotations", BOUND_BY_CONTROLLER], "yes");
    }
    Some(Action::Patch { of: Target::of(volume), status: false, patch })
}

pub fn claim_reference(claim: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace(claim), "name": name(claim),
        "uid": uid(claim), "resourceVersion": claim.text(&["metadata", "resourceVersion"]),
    })
}

fn point_claim(claim: &Value, volume: &Value) -> Option<Action> {
    let mut patch = precondition(claim);
    let bare = patch.clone();
    if claim.text(&["spec", "volumeName"]) != name(volume) {
        patch.put(&["spec", "volumeName"], name(volume));
        if !claim.has(&["metadata", "annotations", BOUND_BY_CONTROLLER]) {
            patch.put(&["metadata", "annotations", BOUND_BY_CONTROLLER], "yes");
        }
    }
    if !super::is_bound(claim) {
        patch.put(&["metadata", "annotations", BIND_COMPLETED], "yes");
    }
    (patch != bare).then(|| Action::Patch { of: Target::of(claim), status: false, patch })
}
