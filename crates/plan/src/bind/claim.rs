//! Plans a claim.

use super::matching::{self, Wanted};
use super::{
    Action, BOUND_BY_CONTROLLER, Plan, SELECTED_NODE, Seen, Target, annotation, is_bound, is_reserved_for, pair,
};
use crate::finalizers::precondition;
use crate::reclaim::{Plugins, migration};
use object::Value;
use object::access::{Access, name, namespace, terminating, uid};
use object::kinds::volumes::class_of;
use std::sync::Arc;

/// Plans a claim in any state.
pub fn plan(claim: &Value, seen: &impl Seen, plugins: &Plugins) -> Plan {
    if let Some(annotations) = migration::of_claim(claim, plugins) {
        let mut patch = precondition(claim);
        patch.put(&["metadata", "annotations"], annotations);
        return Plan::default().then([Action::Patch { of: Target::of(claim), status: false, patch }]);
    }
    match (is_bound(claim), claim.text(&["spec", "volumeName"])) {
        (true, volume) => keep(claim, volume, seen),
        // Binding a claim that is being deleted would release the volume at once.
        (false, _) if terminating(claim) => Plan::default(),
        (false, "") => find(claim, seen, plugins),
        (false, volume) => take(claim, volume, seen),
    }
}

/// Finds a volume for a claim that names none, or asks a provisioner.
fn find(claim: &Value, seen: &impl Seen, plugins: &Plugins) -> Plan {
    let class = class_of(claim);
    let found_class = class.filter(|class| !class.is_empty()).and_then(|class| seen.class(class));
    let waits_for_pod = found_class.is_some_and(|class| class.text(&["volumeBindingMode"]) == "WaitForFirstConsumer");
    if let Some(volume) = search(claim, waits_for_pod, seen) {
        return Plan::default().then(pair::bind(&volume, claim));
    }
    let plan = Plan { waits: !waits_for_pod, ..Plan::default() };
    if class.is_none()
        && let Some(default) = seen.default_class()
    {
        let mut patch = precondition(claim);
        patch.put(&["spec", "storageClassName"], default);
        let assign = Action::Patch { of: Target::of(claim), status: false, patch };
        return Plan { retroactive: true, ..plan }.then([assign]);
    }
    if waits_for_pod && !claim.has(&["metadata", "annotations", SELECTED_NODE]) {
        return wait_for_pod(claim, seen, plan).then(pair::set_status(claim, "Pending", None));
    }
    match class.unwrap_or("") {
        "" => {
            let why = "no persistent volumes available for this claim and no storage class is set";
            plan.normal(claim, "FailedBinding", why).then(pair::set_status(claim, "Pending", None))
        }
        class => super::provision::plan(claim, class, seen, plugins, plan),
    }
}

/// The volume for a claim: one that is reserved for it, or else the smallest available one that fits. With
/// `WaitForFirstConsumer`, only the scheduler reserves a volume.
fn search(claim: &Value, waits_for_pod: bool, seen: &impl Seen) -> Option<Arc<Value>> {
    let reserved = matching::choose_reserved(seen.reserved(namespace(claim), name(claim)), claim);
    if reserved.is_some() || waits_for_pod {
        return reserved;
    }
    let wanted = Wanted::of(claim);
    wanted.places().find_map(|place| seen.first(&place, &|volume| wanted.takes(volume)))
}

fn wait_for_pod(claim: &Value, seen: &impl Seen, plan: Plan) -> Plan {
    let pods = seen.waiting_pods(namespace(claim), name(claim));
    if pods.is_empty() {
        let message = "waiting for first consumer to be created before binding";
        return plan.normal(claim, "WaitForFirstConsumer", message);
    }
    let noun = if pods.len() == 1 { "pod" } else { "pods" };
    plan.normal(claim, "WaitForPodScheduled", format!("waiting for {noun} {} to be scheduled", pods.join(",")))
}

/// Binds a claim to the volume that it names, if that volume is available or reserved for it, and not being deleted.
fn take(claim: &Value, volume_name: &str, seen: &impl Seen) -> Plan {
    let pending = pair::set_status(claim, "Pending", None);
    let Some(volume) = seen.volume(volume_name) else { return Plan::default().then(pending) };
    let misfit = if !volume.has(&["spec", "claimRef"]) {
        matching::unfit(&volume, claim)
    } else if is_reserved_for(&volume, claim) {
        matching::unbindable(&volume, claim)
    } else {
        let message = format!("volume {volume_name:?} already bound to a different claim.");
        let plan = Plan::default().warning(claim, "FailedBinding", message);
        let by_user = annotation(claim, BOUND_BY_CONTROLLER).is_empty();
        return if by_user { plan.then(pending) } else { plan };
    };
    match misfit {
        None => Plan::default().then(pair::bind(&volume, claim)),
        Some(why) => {
            let message = format!("Cannot bind to requested volume {volume_name:?}: {why}");
            Plan::default().warning(claim, "VolumeMismatch", message).then(pending)
        }
    }
}

/// Keeps a bound claim bound, or marks it `Lost` if its volume is missing.
fn keep(claim: &Value, volume_name: &str, seen: &impl Seen) -> Plan {
    if volume_name.is_empty() {
        let why = "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!";
        return lose(claim, None, "ClaimLost", why);
    }
    let Some(volume) = seen.volume(volume_name) else {
        let confirm = Action::ConfirmNoVolume { name: volume_name.to_owned() };
        let why = "Bound claim has lost its PersistentVolume. Data on the volume is lost!";
        return lose(claim, Some(confirm), "ClaimLost", why);
    };
    if !volume.has(&["spec", "claimRef"]) || volume.text(&["spec", "claimRef", "uid"]) == uid(claim) {
        return Plan::default().then(pair::bind(&volume, claim));
    }
    let version = volume.text(&["metadata", "resourceVersion"]).to_owned();
    let confirm = Action::ConfirmVolume { of: Target::of(&volume), version };
    let why = "Two claims are bound to the same volume, this one is bound incorrectly";
    lose(claim, Some(confirm), "ClaimMisbound", why)
}

/// Marks a claim `Lost`. The cache may be behind and the message alarms users, so `confirm` checks with the server
/// first.
fn lose(claim: &Value, confirm: Option<Action>, reason: &'static str, message: &str) -> Plan {
    let Some(lost) = pair::set_status(claim, "Lost", None) else { return Plan::default() };
    let plan = Plan::default().then(confirm).then([lost]);
    let is_news = claim.text(&["status", "phase"]) != "Lost";
    if is_news { plan.warning(claim, reason, message) } else { plan }
}
