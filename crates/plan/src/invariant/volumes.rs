//! Invariants: no backend volume is deleted while its claim exists or its policy is Retain, none is leaked or
//! lost, and no bound PV is removed.

use super::{Change, Checker, Who, bytes};
use crate::finalizers::has;
use crate::{csi, reclaim};
use jiff::{SignedDuration, Timestamp};
use object::Value;
use object::access::{Access, name, terminating, uid};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// The history of backend volumes by handle: the driver's handle, or the path of a directory.
#[derive(Default)]
pub struct Volumes {
    by_handle: BTreeMap<String, History>,
    /// The provisioner has not listed the PVs since its last start.
    unseen: bool,
}

#[derive(Default)]
struct History {
    /// A directory of the built-in plugin: the binder deletes it, not a driver.
    is_inside: bool,
    name: String,
    /// The claim that the PV names: namespace, name, uid.
    claim: (String, String, String),
    /// Until when the backend volume may be deleted: for ever while the policy is Delete and the PV is
    /// released or removed; and for a while after a change of the policy, because a request may have been
    /// sent before.
    condemned: Option<Timestamp>,
    /// It was deleted while that was allowed.
    excused: bool,
    policy: String,
    /// When the policy changed, or whether policies are honoured: requests by the former state may still
    /// follow.
    turned: Option<Timestamp>,
    /// The PV was terminating without the driver's finalizer while the backend volume existed.
    unheld: bool,
    /// A user deleted the PV while the backend volume existed.
    told_by_user: bool,
    /// The controllers lost their memory after `unheld`.
    forgotten: bool,
    /// The PV was removed without the driver's finalizer while the provisioner did not run.
    unknown: bool,
    /// The PV was removed in a way that keeps the backend volume.
    kept: bool,
    /// The PV was removed while its policy was Retain, and no user has changed that since.
    retained: bool,
    /// A PV names this handle.
    named: bool,
    /// The backend volume was created. A directory is created after its PV.
    made: bool,
    /// The driver has deleted the backend volume.
    deleted: bool,
}

impl Checker {
    pub(super) fn volume(&mut self, change: &Change<'_>) -> Vec<String> {
        let mut broken = Vec::new();
        let (unseen, echo) = (self.volumes.unseen, self.echo);
        if let Some((volume, handle)) = change.object().and_then(|volume| Some((volume, handle(volume)?))) {
            let is_inside = volume.has(&["spec", "hostPath"]);
            let honours = self.honours(is_inside);
            let history = self.volumes.by_handle.entry(handle.into_owned()).or_default();
            history.is_inside = is_inside;
            broken.extend(history.let_go(change, honours, echo));
            history.see(volume, change, honours, unseen, echo);
        }
        if let (Some(before), Some(after)) = (change.before.as_deref(), change.after.as_deref()) {
            let capacity = &["spec", "capacity", "storage"];
            let sizes = bytes(before, capacity).zip(bytes(after, capacity)).filter(|(before, after)| after < before);
            if let Some((old, new)) = sizes.filter(|_| change.who != Who::User) {
                broken.push(format!("{} shrinks the volume {} from {old} to {new}", change.who.text(), name(after)));
            }
        }
        if let Some(volume) = change.removes().filter(|volume| volume.text(&["status", "phase"]) == "Bound") {
            let reference = |member| volume.text(&["spec", "claimRef", member]);
            let claim = self.same("PersistentVolumeClaim", reference("namespace"), reference("name"), reference("uid"));
            if claim.is_some() && change.who != Who::User {
                broken.push(format!("the volume {} is removed while it is bound", name(volume)));
            }
        }
        broken
    }

    /// Reclaim policies are honoured from now on, or no longer: those of directories, or of drivers' volumes.
    pub(super) fn honours_turned(&mut self, is_inside: bool, now: Timestamp) {
        let turned = self.volumes.by_handle.values_mut().filter(|history| history.is_inside == is_inside);
        turned.for_each(|history| history.turned = Some(now));
    }

    /// A claim was removed. Its directory may be deleted while the PV is still Bound, because the binder
    /// holds only its finalizer.
    pub(super) fn claim_gone(&mut self, claim: &Value) {
        let is_its = |history: &&mut History| history.is_inside && history.claim.2 == uid(claim);
        let released = self.volumes.by_handle.values_mut().filter(is_its);
        released.filter(|history| history.policy == "Delete").for_each(|it| it.condemned = Some(Timestamp::MAX));
    }

    /// A driver has created a volume, or had it before.
    pub fn backend_made(&mut self, handle: &str) {
        let history = self.volumes.by_handle.entry(handle.to_owned()).or_default();
        (history.made, history.deleted) = (true, false);
    }

    /// A driver has deleted a volume; returns the violations.
    pub fn backend_deleted(&mut self, handle: &str) -> Vec<String> {
        let now = self.now;
        let Some(history) = self.volumes.by_handle.get_mut(handle) else { return Vec::new() };
        history.deleted = true;
        history.excused = history.may_go(now);
        let Some(history) = self.volumes.by_handle.get(handle) else { return Vec::new() };
        let mut broken = Vec::new();
        let (namespace, claim, claim_uid) = &history.claim;
        // A volume that a user deleted before the claim was bound to it belonged to no claim.
        let has_it = |claim: &Value| claim.text(&["spec", "volumeName"]) == history.name;
        if self.same("PersistentVolumeClaim", namespace, claim, claim_uid).is_some_and(|claim| has_it(claim)) {
            broken.push(format!("the backend volume {handle} is deleted while its claim {claim} exists"));
        }
        if history.retained {
            broken.push(format!(
                "the backend volume {handle} is deleted although its PV was removed with the policy Retain"
            ));
        }
        if history.policy == "Retain" && !history.excused {
            broken.push(format!("the backend volume {handle} is deleted although its policy is Retain"));
        }
        broken
    }

    /// The controllers, or the server with its history, lost their memory. The deletion of a PV without the
    /// driver's finalizer (its policy became Delete, or was honoured, only later) is then unknown to them,
    /// unless they journaled it before. If the PV is removed, or is removed before they list the PVs again,
    /// the backend volume may stay.
    pub fn memory_lost(&mut self) {
        for history in self.volumes.by_handle.values_mut().filter(|it| it.unheld) {
            history.forgotten = true;
            history.kept |= !history.named;
        }
    }

    /// Whether there is a volume whose fate the controllers can no longer know.
    pub fn has_forgotten(&self) -> bool {
        self.volumes.by_handle.values().any(|history| history.forgotten || history.unknown)
    }

    /// The provisioner stopped: until it has started and listed the PVs, it misses events.
    pub fn provisioner_died(&mut self) {
        self.volumes.unseen = true;
    }

    pub fn provisioner_looked(&mut self) {
        self.volumes.unseen = false;
    }

    /// The volumes that are leaked or lost, when nothing happens any more and the driver has `there`.
    pub fn backend_at_rest(&self, there: &BTreeSet<String>) -> Vec<String> {
        let mut broken = Vec::new();
        for handle in there {
            let wanted = self.volumes.by_handle.get(handle).is_some_and(|it| it.named || it.kept);
            if !wanted {
                broken.push(format!("the backend volume {handle} is leaked: no PV names it, and no PV retained it"));
            }
        }
        for (handle, history) in &self.volumes.by_handle {
            if !there.contains(handle)
                && history.is_made()
                && (history.named || history.kept)
                && !(history.excused || history.may_go(self.now))
            {
                broken.push(format!("the backend volume {handle} is lost"));
            }
        }
        broken
    }
}

/// The handle of a PV's backend volume.
pub fn handle(volume: &Value) -> Option<Cow<'_, str>> {
    let directory = Some(volume.text(&["spec", "hostPath", "path"])).filter(|path| !path.is_empty());
    directory.map(Cow::Borrowed).or_else(|| csi::migration::handle(volume))
}

impl History {
    /// The finalizer that keeps the PV until the backend volume is deleted.
    fn holder(&self) -> &'static str {
        if self.is_inside { reclaim::FINALIZER } else { csi::FINALIZER }
    }

    /// Whether the backend volume ever existed.
    fn is_made(&self) -> bool {
        self.made || !self.is_inside
    }

    fn may_go(&self, now: Timestamp) -> bool {
        self.condemned.is_some_and(|until| now <= until)
    }

    /// Only a user may remove the finalizer of a PV whose backend volume exists and is to be deleted.
    fn let_go(&self, change: &Change<'_>, honours: bool, echo: SignedDuration) -> Option<String> {
        let before = change.before.as_deref().filter(|before| has(before, self.holder()))?;
        let is_held = change.after.as_deref().is_some_and(|after| has(after, self.holder()));
        let is_meant = self.turned.is_some_and(|at| change.now.duration_since(at) <= echo);
        let is_nobodys = terminating(before) && before.text(&["spec", "claimRef", "uid"]).is_empty();
        let is_to_go =
            !is_nobodys && before.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Delete" && honours && !is_meant;
        // A PV that was created again for a retained directory loses its finalizer without a deletion.
        let is_over = self.deleted || (self.is_inside && self.retained);
        let is_wrong = !is_held && is_to_go && !is_over && self.is_made() && change.who != Who::User;
        is_wrong.then(|| {
            format!("{} removes the finalizer of the volume {} whose backend exists", change.who.text(), name(before))
        })
    }

    fn see(&mut self, volume: &Value, change: &Change<'_>, honours: bool, unseen: bool, echo: SignedDuration) {
        let reference = |member| volume.text(&["spec", "claimRef", member]).to_owned();
        self.name = name(volume).to_owned();
        self.claim = (reference("namespace"), reference("name"), reference("uid"));
        let policy = volume.text(&["spec", "persistentVolumeReclaimPolicy"]);
        if !self.policy.is_empty() && self.policy != policy {
            self.turned = Some(change.now);
        }
        policy.clone_into(&mut self.policy);
        let phase = volume.text(&["status", "phase"]);
        let over = phase == "Released" || (terminating(volume) && phase != "Bound") || change.after.is_none();
        if self.policy == "Delete" && over {
            self.condemned = Some(Timestamp::MAX);
        } else if self.condemned == Some(Timestamp::MAX) {
            self.condemned = Some(change.now + echo);
        }
        // The PV of a directory stays Bound until the directory is deleted.
        self.unheld |= !self.is_inside && terminating(volume) && !has(volume, self.holder()) && !self.deleted;
        self.told_by_user |= change.condemns() && change.who == Who::User && !self.deleted;
        self.named = change.after.is_some();
        self.retained |= change.after.is_none() && self.policy == "Retain";
        self.retained &= change.after.is_none() || change.who != Who::User;
        // A PV that is created for a kept backend volume manages it again.
        self.kept &= change.before.is_some();
        if change.before.is_none() {
            self.unheld = false;
            self.told_by_user = false;
            self.forgotten = false;
        }
        if change.after.is_none() {
            // Without honoured policies, deleting a PV directly keeps its backend volume.
            let is_left = !honours && self.told_by_user;
            let was_bound = !uid(volume).is_empty() && !reference("uid").is_empty();
            self.kept |= self.policy != "Delete" || is_left || !was_bound || self.forgotten || self.retained;
            self.unknown |= unseen && self.unheld && !self.deleted;
            self.kept |= self.unknown;
        }
    }
}
