//! Plans the reclaim policy, whatever is deleted first: the claim, the volume, or both at once.
//!
//! A provisioned volume with the policy `Delete` has our finalizer, so that its PV cannot be deleted before its
//! directory. A volume without it, because a user created it or it was already being deleted, stays `Bound` until its
//! directory is removed: the protection finalizer keeps a bound volume.

pub mod migration;
mod plugins;

#[cfg(test)]
mod tests;

pub use plugins::{HOST_PATH, IN_TREE_PREFIX, Plugins};
pub(crate) use plugins::{directory, no_plugin};

use crate::bind::{Action, Event, PROVISIONED_BY, Plan, Target, pair};
use crate::csi::reclaim::UNCONFIRMED;
use crate::finalizers;
use object::access::{Access, name, terminating};
use object::{Value, json};
use plugins::Deleter;

/// The finalizer on a volume of a built-in plugin, until the plugin has deleted the volume's data.
pub const FINALIZER: &str = "kubernetes.io/pv-controller";
/// The same for external provisioners.
pub const EXTERNAL_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// The reason of events about data that was deleted.
pub const DATA_DELETED: &str = object::well_known::VOLUME_DATA_DELETED;

/// The merge patch that corrects a volume's finalizers and its migration annotation.
pub fn upkeep(volume: &Value, plugins: &Plugins) -> Option<Value> {
    let annotations = migration::of_volume(volume, plugins);
    let (add, remove) = if plugins.honor_reclaim_policy { finalizers_of(volume, plugins) } else { (vec![], vec![]) };
    if annotations.is_none() && add.is_empty() && remove.is_empty() {
        return None;
    }
    let mut patch = if add.is_empty() && remove.is_empty() {
        finalizers::precondition(volume)
    } else {
        finalizers::patch(volume, &add, &remove)
    };
    if let Some(annotations) = annotations {
        patch.put(&["metadata", "annotations"], annotations);
    }
    Some(patch)
}

/// The missing finalizers, and those to remove.
fn finalizers_of(volume: &Value, plugins: &Plugins) -> (Vec<&'static str>, Vec<&'static str>) {
    // Volumes that were not provisioned are their creator's responsibility.
    let by = volume.text(&["metadata", "annotations", PROVISIONED_BY]);
    let present = |finalizer: &&str| finalizers::has(volume, finalizer);
    if plugins.driver_of(by).is_some() {
        return (vec![], [FINALIZER].into_iter().filter(present).collect());
    }
    if !by.starts_with(IN_TREE_PREFIX) {
        return (vec![], vec![]);
    }
    let is_deleted = volume.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Delete";
    let is_of_claim = !volume.text(&["spec", "claimRef", "uid"]).is_empty();
    if is_deleted && (is_of_claim || !terminating(volume)) {
        // A volume that is being deleted cannot get a finalizer: `released` handles it.
        let missing = !present(&FINALIZER) && !terminating(volume);
        let add = if missing { vec![FINALIZER] } else { vec![] };
        return (add, [EXTERNAL_FINALIZER].into_iter().filter(present).collect());
    }
    (vec![], [FINALIZER, EXTERNAL_FINALIZER].into_iter().filter(present).collect())
}

/// Plans a volume whose claim was deleted or took another volume, which `first` confirms.
pub(crate) fn released(volume: &Value, claim: &Target, first: Option<Action>, plugins: &Plugins) -> Plan {
    let phase = volume.text(&["status", "phase"]);
    let is_news = phase != "Released" && phase != "Failed";
    let release = if is_news { pair::set_phase(volume, "Released", "") } else { None };
    let release = Release { volume, first, release };
    if is_kept(volume) {
        return Plan::default();
    }
    if !volume.text(&["metadata", "annotations", migration::MIGRATED_TO]).is_empty() {
        return release.alone();
    }
    match volume.text(&["spec", "persistentVolumeReclaimPolicy"]) {
        "Retain" => release.alone(),
        "Delete" => release.delete(plugins),
        "Recycle" => release.recycle(claim),
        _ => {
            let why = "Volume has unrecognized PersistentVolumeReclaimPolicy";
            release.alone().then_fail(volume, "VolumeUnknownReclaimPolicy", why)
        }
    }
}

/// Whether a user must decide about the volume's directory, because its use since a backup is unknown. With the policy
/// `Retain` there is nothing to decide.
fn is_kept(volume: &Value) -> bool {
    let is_touched = volume.text(&["spec", "persistentVolumeReclaimPolicy"]) != "Retain";
    is_touched && volume.text(&["status", "reason"]) == UNCONFIRMED && plugins::directory(volume).is_some()
}

/// The events on volume and claim after the volume's directory was removed, or emptied for reuse.
pub fn data_deleted(volume: &Value, is_removed: bool) -> Plan {
    let directory = plugins::directory(volume).unwrap_or_default();
    let (done, policy) = if is_removed { ("was removed", "Delete") } else { ("was emptied", "Recycle") };
    let of_claim = Target::claim_of(volume).filter(|claim| !claim.uid.is_empty());
    let claim = match &of_claim {
        Some(of) => format!("PersistentVolumeClaim {}/{}", of.namespace, of.name),
        None => "its claim".to_owned(),
    };
    let message = format!(
        "PersistentVolume {}: its directory {directory} {done}, because its reclaim policy is {policy} and {claim} was deleted",
        name(volume)
    );
    let mut plan = Plan::default().normal(volume, DATA_DELETED, message);
    if let Some(about) = of_claim {
        let message = format!(
            "{claim}: its directory {directory} {done}, because it was deleted and the reclaim policy of PersistentVolume {} is {policy}",
            name(volume)
        );
        plan.events.push(Event { about, warning: false, reason: DATA_DELETED, message });
    }
    plan
}

/// Marks a volume that was restored from a backup. What happened since the backup is unknown: if its claim is missing,
/// a user must decide about its directory.
pub fn from_backup(volume: &mut Value) {
    let is_of_claim = !volume.text(&["spec", "claimRef", "uid"]).is_empty();
    if !is_of_claim || volume.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Retain" {
        return;
    }
    let Some(directory) = plugins::directory(volume) else { return };
    let why = format!(
        "it was restored from a backup, and {directory} may have been used since. To remove only this PersistentVolume, set \
         its reclaim policy to Retain, and remove the directory by hand if it is not needed; to use it again, clear \
         spec.claimRef"
    );
    volume.put(&["status", "reason"], UNCONFIRMED);
    volume.put(&["status", "message"], why);
}

/// Adds a check to the plan of a volume whose claim was deleted: whether a volume of this name was retained before. A
/// volume that was never bound may be one whose claim was deleted early; or a late request created it again after it
/// had been deleted; or it comes from a backup.
pub(crate) fn unless_retained(volume: &Value, plan: Plan) -> Plan {
    let is_made = volume.text(&["metadata", "annotations", PROVISIONED_BY]) == HOST_PATH;
    let is_deleted = volume.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Delete";
    let is_new = matches!(volume.text(&["status", "phase"]), "" | "Pending");
    if !is_made || !is_deleted || !is_new {
        return plan;
    }
    if is_kept(volume) {
        return Plan::default();
    }
    let since = volume.text(&["spec", "claimRef", "resourceVersion"]).to_owned();
    let confirm = Action::ConfirmNotRetained { volume: Target::of(volume), since };
    Plan { actions: [confirm].into_iter().chain(plan.actions).collect(), ..plan }
}

/// Whether the directory of a deleted volume was kept.
pub fn was_retained(volume: &Value) -> bool {
    volume.text(&["spec", "persistentVolumeReclaimPolicy"]) != "Delete"
}

/// Removes the finalizer of a volume that a late request created again, before it is deleted. Its directory is kept.
pub fn came_late(volume: &Value) -> Plan {
    let is_ours = finalizers::has(volume, FINALIZER);
    let let_go = is_ours.then(|| finalizers::patch(volume, &[], &[FINALIZER]));
    Plan::default().then(let_go.map(|patch| Action::Patch { of: Target::of(volume), status: false, patch }))
}

/// Keeps a volume until a user decides, because it is unknown whether its directory was retained before.
pub fn unconfirmed(volume: &Value) -> Plan {
    let directory = plugins::directory(volume).unwrap_or_default();
    let why = format!(
        "its claim was deleted and it was never bound: it may be from a backup, and {directory} may have been retained. To \
         remove only this PersistentVolume, set its reclaim policy to Retain, and remove the directory by hand if it is \
         not needed"
    );
    let mut patch = finalizers::precondition(volume);
    patch.put(&["status"], json!({"reason": UNCONFIRMED, "message": why}));
    Plan::default().then([Action::Patch { of: Target::of(volume), status: true, patch }]).warning(
        volume,
        UNCONFIRMED,
        why,
    )
}

/// A volume that its claim released.
struct Release<'a> {
    volume: &'a Value,
    /// The action that confirms the release.
    first: Option<Action>,
    /// The write of the phase, if it changes.
    release: Option<Action>,
}

impl Release<'_> {
    /// Writes the phase only.
    fn alone(self) -> Plan {
        match self.release {
            Some(release) => Plan::default().then(self.first).then([release]),
            None => Plan::default(),
        }
    }

    fn delete(self, plugins: &Plugins) -> Plan {
        let volume = self.volume;
        let is_ours = finalizers::has(volume, FINALIZER);
        let directory = match plugins.deleter(volume) {
            Deleter::External => return self.alone(),
            // As before the gate: another writer is assumed to be deleting the volume.
            _ if terminating(volume) && !plugins.honor_reclaim_policy => return self.alone(),
            Deleter::None(why) => return self.alone().then_fail(volume, "VolumeFailedDelete", &why),
            Deleter::Directory(directory) => directory.to_owned(),
        };
        // Without our finalizer, only the phase `Bound` keeps the volume until its directory is removed.
        let is_held = is_ours || !plugins.honor_reclaim_policy;
        let (early, late) = if is_held { (self.release, None) } else { (None, self.release) };
        let of = Target::of(volume);
        let let_go = is_ours.then(|| finalizers::patch(volume, &[], &[FINALIZER]));
        let let_go = let_go.map(|patch| Action::Patch { of: of.clone(), status: false, patch });
        let destroy = Action::Destroy { volume: of.clone(), directory };
        Plan::default()
            .then(self.first)
            .then(early)
            .then([confirm_volume(volume), destroy])
            .then(let_go)
            .then(late)
            .then([Action::DeleteVolume { of }])
    }

    fn recycle(self, claim: &Target) -> Plan {
        let volume = self.volume;
        // A volume that is being deleted is not reused.
        if terminating(volume) {
            return self.alone();
        }
        let Some(directory) = plugins::directory(volume) else {
            let why = "No recycler plugin found for the volume!";
            return self.alone().then_fail(volume, "VolumeFailedRecycle", why);
        };
        let (directory, of) = (directory.to_owned(), Target::of(volume));
        let (namespace, claim) = (claim.namespace.clone(), claim.name.clone());
        let no_pods = Action::ConfirmNoPods { namespace, claim, volume: of.clone() };
        Plan::default()
            .then(self.first)
            .then(self.release)
            .then([no_pods, confirm_volume(volume), Action::Scrub { volume: of, directory }])
            .then(pair::unbind(volume))
            .normal(volume, "VolumeRecycled", "Volume recycled")
    }
}

pub(crate) fn confirm_volume(volume: &Value) -> Action {
    let version = volume.text(&["metadata", "resourceVersion"]).to_owned();
    Action::ConfirmVolume { of: Target::of(volume), version }
}

/// Records that a volume's directory could not be removed. Retried.
pub fn destroy_failed(volume: &Value, error: &str) -> Plan {
    // Without our finalizer only the phase `Bound` keeps the volume.
    if terminating(volume) && !finalizers::has(volume, FINALIZER) {
        return Plan::default().warning(volume, "VolumeFailedDelete", error);
    }
    Plan::default().then_fail(volume, "VolumeFailedDelete", error)
}

/// Records that a volume's directory could not be emptied. Retried.
pub fn scrub_failed(volume: &Value, error: &str) -> Plan {
    Plan::default().then_fail(volume, "VolumeFailedRecycle", &format!("Recycle failed: {error}"))
}

/// Records that a volume cannot be recycled yet.
pub fn still_used(volume: &Value, pods: &[String]) -> Plan {
    Plan::default().normal(volume, "VolumeFailedRecycle", format!("Volume is used by pods: {}", pods.join(",")))
}

impl Plan {
    /// Sets the phase `Failed` with a message.
    fn then_fail(self, volume: &Value, reason: &'static str, message: &str) -> Plan {
        match pair::set_phase(volume, "Failed", message) {
            Some(fail) => self.then([fail]).warning(volume, reason, message),
            None => self,
        }
    }
}
