//! No backend volume is deleted while its claim exists or the policy is Retain; none is leaked or lost; a bound volume does not go.

use super::{Change, Checker, Who, bytes};
use crate::finalizers::has;
use crate::{csi, reclaim};
use jiff::{SignedDuration, Timestamp};
use object::Value;
use object::access::{Access, name, terminating, uid};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// What is known of backend volumes, by handle: what their drivers call them, or their directories.
#[derive(Default)]
pub struct Volumes {
    by_handle: BTreeMap<String, History>,
    /// Nobody who deletes data at drivers has looked at volumes since they came to life.
    unseen: bool,
}

#[derive(Default)]
struct History {
    /// It is a directory of the plugin inside: the binder deletes it, not a driver.
    is_inside: bool,
    name: String,
    /// The claim that its object names: namespace, name, uid.
    claim: (String, String, String),
    /// Until when its backend may be deleted: for ever while the policy is Delete and the volume is released or gone, and for a while after the
    /// policy has changed, because somebody may be about to.
    condemned: Option<Timestamp>,
    /// It was, while it might be.
    excused: bool,
    policy: String,
    /// When the policy, or whether policies are honoured, became another: somebody may still act on what was so before.
    turned: Option<Timestamp>,
    /// It was on its way out and nothing held its object for its driver, though the backend was there.
    unheld: bool,
    /// A user told it to go while its backend was there.
    told_by_user: bool,
    /// And somebody lost their memory since.
    forgotten: bool,
    /// Its object went when nothing held it for its driver, and nobody was there who could have known.
    unknown: bool,
    /// Its object went without having to take the backend along.
    kept: bool,
    /// Its object went while the policy was Retain, and no user has had a hand in it since.
    retained: bool,
    /// An object names it.
    named: bool,
    /// It was seen at its driver. The object of a directory comes before the directory.
    made: bool,
    /// Its driver has deleted it.
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
                broken.push(format!("the volume {} goes while it is bound", name(volume)));
            }
        }
        broken
    }

    /// Policies are honoured from now on, or no longer: those of directories, or of drivers' volumes.
    pub(super) fn honours_turned(&mut self, is_inside: bool, now: Timestamp) {
        let turned = self.volumes.by_handle.values_mut().filter(|history| history.is_inside == is_inside);
        turned.for_each(|history| history.turned = Some(now));
    }

    /// A claim is gone. A directory that nothing but its protection holds is deleted while its volume is still called bound.
    pub(super) fn claim_gone(&mut self, claim: &Value) {
        let is_its = |history: &&mut History| history.is_inside && history.claim.2 == uid(claim);
        let released = self.volumes.by_handle.values_mut().filter(is_its);
        released.filter(|history| history.policy == "Delete").for_each(|it| it.condemned = Some(Timestamp::MAX));
    }

    /// A driver has made a volume, or had it before.
    pub fn backend_made(&mut self, handle: &str) {
        let history = self.volumes.by_handle.entry(handle.to_owned()).or_default();
        (history.made, history.deleted) = (true, false);
    }

    /// A driver has deleted a volume.
    pub fn backend_deleted(&mut self, handle: &str) -> Vec<String> {
        let now = self.now;
        let Some(history) = self.volumes.by_handle.get_mut(handle) else { return Vec::new() };
        history.deleted = true;
        history.excused = history.may_go(now);
        let Some(history) = self.volumes.by_handle.get(handle) else { return Vec::new() };
        let mut broken = Vec::new();
        let (namespace, claim, claim_uid) = &history.claim;
        // One that was made for a claim and is deleted by a user before the claim got it was nobody's.
        let has_it = |claim: &Value| claim.text(&["spec", "volumeName"]) == history.name;
        if self.same("PersistentVolumeClaim", namespace, claim, claim_uid).is_some_and(|claim| has_it(claim)) {
            broken.push(format!("the backend volume {handle} is deleted while its claim {claim} exists"));
        }
        if history.retained {
            broken.push(format!("the backend volume {handle} is deleted though it was retained when its object went"));
        }
        if history.policy == "Retain" && !history.excused {
            broken.push(format!("the backend volume {handle} is deleted though its policy is Retain"));
        }
        broken
    }

    /// The controllers, or the server with its history, have lost their memory. A volume whose object nothing held when it was told to go,
    /// because its policy became Delete, or was honoured, only later, is in nobody's books any more unless that was seen and written down before. If
    /// its object is gone, or goes before the controllers have looked again, it may stay.
    pub fn memory_lost(&mut self) {
        for history in self.volumes.by_handle.values_mut().filter(|it| it.unheld) {
            history.forgotten = true;
            history.kept |= !history.named;
        }
    }

    /// Whether there is a volume of which nobody can know any more what was to become of it.
    pub fn has_forgotten(&self) -> bool {
        self.volumes.by_handle.values().any(|history| history.forgotten || history.unknown)
    }

    /// Whoever deletes volumes at their drivers has died: until the next life of it has looked, nobody hears what becomes of volumes.
    pub fn provisioner_died(&mut self) {
        self.volumes.unseen = true;
    }

    pub fn provisioner_looked(&mut self) {
        self.volumes.unseen = false;
    }

    /// What is leaked or lost when everything has come to rest and the driver has these volumes.
    pub fn backend_at_rest(&self, there: &BTreeSet<String>) -> Vec<String> {
        let mut broken = Vec::new();
        for handle in there {
            let wanted = self.volumes.by_handle.get(handle).is_some_and(|it| it.named || it.kept);
            if !wanted {
                broken.push(format!("the backend volume {handle} is leaked: no object names it, and none retained it"));
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

/// What a volume is called where its data is.
pub fn handle(volume: &Value) -> Option<Cow<'_, str>> {
    let directory = Some(volume.text(&["spec", "hostPath", "path"])).filter(|path| !path.is_empty());
    directory.map(Cow::Borrowed).or_else(|| csi::migration::handle(volume))
}

impl History {
    /// What holds its object until the backend is gone.
    fn holder(&self) -> &'static str {
        if self.is_inside { reclaim::FINALIZER } else { csi::FINALIZER }
    }

    /// Whether there was ever anything to lose.
    fn is_made(&self) -> bool {
        self.made || !self.is_inside
    }

    fn may_go(&self, now: Timestamp) -> bool {
        self.condemned.is_some_and(|until| now <= until)
    }

    /// Nobody takes off what holds a volume while the backend is there and to be deleted, but a user.
    fn let_go(&self, change: &Change<'_>, honours: bool, echo: SignedDuration) -> Option<String> {
        let before = change.before.as_deref().filter(|before| has(before, self.holder()))?;
        let is_held = change.after.as_deref().is_some_and(|after| has(after, self.holder()));
        let is_meant = self.turned.is_some_and(|at| change.now.duration_since(at) <= echo);
        let is_nobodys = terminating(before) && before.text(&["spec", "claimRef", "uid"]).is_empty();
        let is_to_go =
            !is_nobodys && before.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Delete" && honours && !is_meant;
        // A directory's volume that came once more is let go of without what was retained before.
        let is_over = self.deleted || (self.is_inside && self.retained);
        let is_wrong = !is_held && is_to_go && !is_over && self.is_made() && change.who != Who::User;
        is_wrong.then(|| format!("{} lets go of the volume {} whose backend is there", change.who.text(), name(before)))
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
        // A directory's volume stays bound until the directory is gone.
        self.unheld |= !self.is_inside && terminating(volume) && !has(volume, self.holder()) && !self.deleted;
        self.told_by_user |= change.condemns() && change.who == Who::User && !self.deleted;
        self.named = change.after.is_some();
        self.retained |= change.after.is_none() && self.policy == "Retain";
        self.retained &= change.after.is_none() || change.who != Who::User;
        // Whoever brings back what was kept takes it over.
        self.kept &= change.before.is_some();
        if change.before.is_none() {
            self.unheld = false;
            self.told_by_user = false;
            self.forgotten = false;
        }
        if change.after.is_none() {
            // Before policies were honoured, a volume whose object its user deleted left its backend behind.
            let is_left = !honours && self.told_by_user;
            let was_bound = !uid(volume).is_empty() && !reference("uid").is_empty();
            self.kept |= self.policy != "Delete" || is_left || !was_bound || self.forgotten || self.retained;
            self.unknown |= unseen && self.unheld && !self.deleted;
            self.kept |= self.unknown;
        }
    }
}
