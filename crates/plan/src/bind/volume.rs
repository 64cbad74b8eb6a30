//! What to do about a volume.

use super::matching::{can_be_made_for, is_named_for, place, volume_mode};
use super::{Action, BOUND_BY_CONTROLLER, Plan, Seen, Target, is_bound, pair};
use crate::reclaim::{self, Plugins};
use object::Value;
use object::access::{Access, name, terminating, uid};

/// What to do about a volume, whatever state it is in.
pub fn plan(volume: &Value, seen: &impl Seen, plugins: &Plugins) -> Plan {
    // Whatever happens to the volume next relies on the finalizer, so it comes first.
    if let Some(patch) = reclaim::upkeep(volume, plugins) {
        return Plan::default().then([Action::Patch { of: Target::of(volume), status: false, patch }]);
    }
    let Some(reference) = Target::claim_of(volume).filter(|reference| !reference.uid.is_empty()) else {
        return available(volume);
    };
    let claim = seen.claim(&reference.namespace, &reference.name).filter(|claim| uid(claim) == reference.uid);
    let Some(claim) = claim else { return without_claim(volume, reference, seen, plugins) };
    let bound_to = claim.text(&["spec", "volumeName"]);
    // A volume on its way out is not bound any more, or it would wait for its claim, and its claim for another volume.
    let comes_too_late = terminating(volume) && !is_bound(&claim);
    if bound_to.is_empty() && !comes_too_late {
        return let_claim_bind(volume, &claim);
    }
    if bound_to == name(volume) && !comes_too_late {
        return Plan::default().then(pair::set_phase(volume, "Bound", ""));
    }
    let was_made_for_it = can_be_made_for(volume, &claim) && !was_free(volume);
    let is_deleted = volume.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Delete";
    if was_made_for_it && is_deleted {
        // It was made for a claim that took another one, or cannot have it any more.
        return reclaim::released(volume, &reference, comes_too_late, plugins);
    }
    free(volume, reference, comes_too_late)
}

/// The claim is gone.
fn without_claim(volume: &Value, claim: Target, seen: &impl Seen, plugins: &Plugins) -> Plan {
    // Where volume and phase are written at once, only the claim's end tells whether it had the volume.
    let is_begun = volume.text(&["status", "phase"]) == "Bound" && !is_named_for(volume, &claim.uid);
    if was_free(volume) || (is_begun && seen.went_without(&claim.uid)) {
        free(volume, claim, false)
    } else {
        reclaim::released(volume, &claim, false, plugins)
    }
}

/// Takes the volume from a claim that does not have it. A write of ours may have succeeded without our knowing: hence the question.
fn free(volume: &Value, claim: Target, unless_bound: bool) -> Plan {
    let confirm = Action::ConfirmReleased { claim, volume: name(volume).to_owned(), unless_bound };
    Plan::default().then([confirm]).then(pair::unbind(volume))
}

/// Whether we had only begun to bind a free volume: then nobody ever had it, and it is free again.
fn was_free(volume: &Value) -> bool {
    volume.text(&["status", "phase"]) == "Available" && volume.has(&["metadata", "annotations", BOUND_BY_CONTROLLER])
}

fn available(volume: &Value) -> Plan {
    let plan = Plan { offers: place(volume).is_some(), ..Plan::default() };
    plan.then(pair::set_phase(volume, "Available", ""))
}

fn let_claim_bind(volume: &Value, claim: &Value) -> Plan {
    if volume_mode(volume) == volume_mode(claim) {
        return Plan { wake: Some(Target::of(claim)), ..Plan::default() };
    }
    let of_volume = format!(
        "Cannot bind PersistentVolume to requested PersistentVolumeClaim {:?} due to incompatible volumeMode.",
        name(claim)
    );
    let of_claim = format!(
        "Cannot bind PersistentVolume {:?} to requested PersistentVolumeClaim due to incompatible volumeMode.",
        name(volume)
    );
    Plan::default().warning(volume, "VolumeMismatch", of_volume).warning(claim, "VolumeMismatch", of_claim)
}
