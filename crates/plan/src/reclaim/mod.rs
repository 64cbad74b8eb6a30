//! Honouring the reclaim policy, whatever goes first: the claim, the volume, or both at once.
//!
//! A volume that we made and would have to delete carries our finalizer, so that its object cannot go before what it stands for. A
//! volume without it, because we did not make it or because it was already on its way out, stays Bound until its directory is gone:
//! a Bound volume is held by its protection.

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

/// Holds a volume that one of our own plugins made, until the plugin has deleted what it stands for.
pub const FINALIZER: &str = "kubernetes.io/pv-controller";
/// The same, of provisioners outside.
pub const EXTERNAL_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// The reason of events about data that was deleted.
pub const DATA_DELETED: &str = object::well_known::VOLUME_DATA_DELETED;

/// The merge patch that puts a volume's finalizers and its migration in order.
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

/// Which finalizers are missing, and which should not be there.
fn finalizers_of(volume: &Value, plugins: &Plugins) -> (Vec<&'static str>, Vec<&'static str>) {
    // Volumes that nobody made for a claim are their maker's business.
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
        // None can be added to what is on its way out: then `released` sees to it.
        let missing = !present(&FINALIZER) && !terminating(volume);
        let add = if missing { vec![FINALIZER] } else { vec![] };
        return (add, [EXTERNAL_FINALIZER].into_iter().filter(present).collect());
    }
    (vec![], [FINALIZER, EXTERNAL_FINALIZER].into_iter().filter(present).collect())
}

/// What to do about a volume whose claim let go of it, as `first` makes sure.
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

/// Whether the directory of a volume waits for a person: nobody knows what it was used for since. One that nobody would touch is not meant.
fn is_kept(volume: &Value) -> bool {
    let is_touched = volume.text(&["spec", "persistentVolumeReclaimPolicy"]) != "Retain";
    is_touched && volume.text(&["status", "reason"]) == UNCONFIRMED && plugins::directory(volume).is_some()
}

/// What is told when the directory of a volume was removed, or emptied to be used again: of the volume and of its claim.
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

/// A volume as it comes back from a backup. What happened since is not known: if its claim is gone, its directory waits for a person.
pub fn from_backup(volume: &mut Value) {
    let is_of_claim = !volume.text(&["spec", "claimRef", "uid"]).is_empty();
    if !is_of_claim || volume.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Retain" {
        return;
    }
    let Some(directory) = plugins::directory(volume) else { return };
    let why = format!(
        "it came back from a backup, and {directory} may have been used since. Set its reclaim policy to Retain to let go of it, and remove \
         the directory by hand if nobody wants it; or clear spec.claimRef to use it again"
    );
    volume.put(&["status", "reason"], UNCONFIRMED);
    volume.put(&["status", "message"], why);
}

/// A plan about a volume whose claim is gone, unless what it stands for was retained before. One that was never bound may be one whose claim
/// went before it had it; or it was made by a request that arrived late, when it had come and gone, or from a backup.
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

/// Whether a volume that went left what it stood for.
pub fn was_retained(volume: &Value) -> bool {
    volume.text(&["spec", "persistentVolumeReclaimPolicy"]) != "Delete"
}

/// Lets go of a volume that came late, before it is deleted: what it stands for stays.
pub fn came_late(volume: &Value) -> Plan {
    let is_ours = finalizers::has(volume, FINALIZER);
    let let_go = is_ours.then(|| finalizers::patch(volume, &[], &[FINALIZER]));
    Plan::default().then(let_go.map(|patch| Action::Patch { of: Target::of(volume), status: false, patch }))
}

/// Nobody knows any more whether what a volume stands for was retained before: it is kept, and waits for a person.
pub fn unconfirmed(volume: &Value) -> Plan {
    let directory = plugins::directory(volume).unwrap_or_default();
    let why = format!(
        "its claim is gone and it was never bound: it may be from a backup, and {directory} may have been retained. Set its reclaim \
         policy to Retain to let go of it, and remove the directory by hand if nobody wants it"
    );
    let mut patch = finalizers::precondition(volume);
    patch.put(&["status"], json!({"reason": UNCONFIRMED, "message": why}));
    Plan::default().then([Action::Patch { of: Target::of(volume), status: true, patch }]).warning(
        volume,
        UNCONFIRMED,
        why,
    )
}

/// A volume that its claim let go of.
struct Release<'a> {
    volume: &'a Value,
    /// What makes sure of it.
    first: Option<Action>,
    /// The write that says so, if it is news.
    release: Option<Action>,
}

impl Release<'_> {
    /// Nothing but the phase.
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
            // As it was before the policy was honoured: somebody else is taken to be deleting it.
            _ if terminating(volume) && !plugins.honor_reclaim_policy => return self.alone(),
            Deleter::None(why) => return self.alone().then_fail(volume, "VolumeFailedDelete", &why),
            Deleter::Directory(directory) => directory.to_owned(),
        };
        // Without our finalizer, only being Bound keeps the volume until its directory is gone.
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
        // Nobody will have it any more.
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

/// What to do when a volume's directory could not be removed. It is tried again.
pub fn destroy_failed(volume: &Value, error: &str) -> Plan {
    // A volume that only its protection holds must stay Bound.
    if terminating(volume) && !finalizers::has(volume, FINALIZER) {
        return Plan::default().warning(volume, "VolumeFailedDelete", error);
    }
    Plan::default().then_fail(volume, "VolumeFailedDelete", error)
}

/// What to do when a volume's directory could not be emptied. It is tried again.
pub fn scrub_failed(volume: &Value, error: &str) -> Plan {
    Plan::default().then_fail(volume, "VolumeFailedRecycle", &format!("Recycle failed: {error}"))
}

/// What is told when a volume cannot be recycled yet.
pub fn still_used(volume: &Value, pods: &[String]) -> Plan {
    Plan::default().normal(volume, "VolumeFailedRecycle", format!("Volume is used by pods: {}", pods.join(",")))
}

impl Plan {
    /// The volume is Failed, and says why.
    fn then_fail(self, volume: &Value, reason: &'static str, message: &str) -> Plan {
        match pair::set_phase(volume, "Failed", message) {
            Some(fail) => self.then([fail]).warning(volume, reason, message),
            None => self,
        }
    }
}
