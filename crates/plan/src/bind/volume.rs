//! Plans a volume.

use super::matching::{can_be_made_for, is_named_for, place, volume_mode};
use super::{Action, BOUND_BY_CONTROLLER, Plan, Seen, Target, is_bound, pair};
use crate::reclaim::{self, Plugins};
use object::Value;
use object::access::{Access, name, terminating, uid};

/// Plans a volume in any state.
pub fn plan(volume: &Value, seen: &impl Seen, plugins: &Plugins) -> Plan {
    // All later steps rely on the finalizer, so it is written first.
    if let Some(patch) = reclaim::upkeep(volume, plugins) {
        return Plan::default().then([Action::Patch { of: Target::of(volume), status: false, patch }]);
    }
    let Some(reference) = Target::claim_of(volume).filter(|reference| !reference.uid.is_empty()) else {
        return available(volume);
    };
    let claim = seen.claim(&reference.namespace, &reference.name).filter(|claim| uid(claim) == reference.uid);
    let Some(claim) = claim else { return without_claim(volume, reference, seen, plugins) };
    // Do not complete the binding of a deleted volume: the volume would wait for the claim, and the claim could not get
    // another one.
    if terminating(volume) && !is_bound(&claim) {
        return part(volume, &claim, pair::withdraw(volume, &claim), plugins);
    }
    match claim.text(&["spec", "volumeName"]) {
        "" => let_claim_bind(volume, &claim),
        bound_to if bound_to == name(volume) => Plan::default().then(pair::set_phase(volume, "Bound", "")),
        _ => part(volume, &claim, Some(confirm_released(volume, reference)), plugins),
    }
}

/// The claim exists without this volume, which `first` confirms: it took another volume, or cannot have this one any
/// more.
fn part(volume: &Value, claim: &Value, first: Option<Action>, plugins: &Plugins) -> Plan {
    let was_made_for_it = can_be_made_for(volume, claim) && !was_free(volume);
    let is_deleted = volume.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Delete";
    if was_made_for_it && is_deleted {
        return reclaim::released(volume, &Target::of(claim), first, plugins);
    }
    Plan::default().then(first).then(pair::unbind(volume))
}

/// The claim does not exist any more.
fn without_claim(volume: &Value, claim: Target, seen: &impl Seen, plugins: &Plugins) -> Plan {
    // `claimRef` and phase may be written in one request, so the phase alone does not show whether the claim got the
    // volume.
    let is_begun = volume.text(&["status", "phase"]) == "Bound" && !is_named_for(volume, &claim.uid);
    let confirm = confirm_released(volume, claim.clone());
    if was_free(volume) || (is_begun && seen.went_without(&claim.uid)) {
        return Plan::default().then([confirm]).then(pair::unbind(volume));
    }
    reclaim::unless_retained(volume, reclaim::released(volume, &claim, Some(confirm), plugins))
}

/// Checks with the server, because an earlier write of ours may have succeeded although its response was lost.
fn confirm_released(volume: &Value, claim: Target) -> Action {
    Action::ConfirmReleased { claim, volume: name(volume).to_owned() }
}

/// Whether the binding of an available volume had only begun. No claim ever used it, so it becomes available again.
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
