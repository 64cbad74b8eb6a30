//! What happens to a driver's volume when its claim is deleted: the reclaim policy decides, in whatever order objects
//! are deleted and policies changed (KEP-2644).
//!
//! A volume with the policy `Delete` has a finalizer while it is bound, so that its PV cannot be deleted before the
//! volume. If the PV was already being deleted when the policy became `Delete`, a finalizer cannot be added any more;
//! the deletion is journaled instead. A volume is deleted only if it is known to have served a claim in this cluster:
//! an annotation records the PV's uid, which a PV restored from a backup does not match.

use super::journal::PendingDeletion;
use super::{Event, FINALIZER, MIGRATED_TO, PROVISIONED_BY, annotation, csi_source, migration, secret};
use object::access::{Access, name, terminating, uid};
use object::kinds::volumes::class_of;
use object::{Value, json, well_known};

/// Annotation on a PV: its uid and the claim that it was provisioned for or bound to in this cluster.
pub const RECORD: &str = well_known::PROVISIONED;
/// Annotation on a PV: the user's confirmation that its data is to be deleted; the value is the volume handle.
pub const CONFIRM: &str = well_known::CONFIRM_DELETE;
/// The reason in a PV's status for keeping the data.
pub const UNCONFIRMED: &str = well_known::DELETION_UNCONFIRMED;

/// What is known about a volume of one of our drivers.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub volume: &'a Value,
    pub class: Option<&'a Value>,
    /// It was provisioned for the claim that it references, or seen bound to it; the annotation may not say so yet.
    pub served: bool,
    /// Its deletion is in the journal.
    pub deletion: bool,
    /// Its creation is still in the journal.
    pub written: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// A strategic merge patch of the PV: finalizer and annotation.
    pub patch: Option<Value>,
    /// The finalizer is removed now, or once the journal no longer has the volume's creation.
    pub releases_pv: bool,
    /// A merge patch of the PV's status: sets or clears the reason for keeping the data.
    pub status: Option<Value>,
    pub step: Step,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum Step {
    #[default]
    Nothing,
    /// Journal the deletion, because the PV cannot get a finalizer.
    JournalDeletion(Box<PendingDeletion>),
    /// Remove the deletion from the journal.
    CancelDeletion,
    /// Delete the volume at the driver, then the PV.
    Delete(Box<PendingDeletion>),
    /// Keep the volume, for this reason.
    Keep(String),
    /// A user removed the finalizer while the PV was being deleted. Keep the volume, and report it.
    Stripped,
    /// The PV is being deleted and no claim references it: keep the volume, as with any unclaimed PV. The text is for
    /// an event.
    Left(String),
    /// The volume should be deleted but cannot be, for this reason.
    Failed(String),
}

/// Whether a volume is of this driver.
pub fn is_of(volume: &Value, driver: &str) -> bool {
    let migrated = annotation(volume, MIGRATED_TO) == driver;
    match annotation(volume, PROVISIONED_BY) {
        "" => migrated || csi_source(volume).is_some_and(|(of, _)| of == driver),
        provisioner => migrated || provisioner == driver,
    }
}

/// Whether the annotation has this PV's uid and the uid of the claim that it references.
pub fn is_recorded(volume: &Value) -> bool {
    Facts::of(&Seen { volume, class: None, served: false, deletion: false, written: false }).record.is_some()
}

/// Plans a volume. `honor`: whether gate HonorPVReclaimPolicy is on.
pub fn plan(seen: &Seen, driver: &str, honor: bool) -> Plan {
    let facts = Facts::of(seen);
    let add = honor && facts.deletes && !facts.leaving && facts.phase == "Bound" && !facts.held;
    let releases_pv = facts.held && (!facts.deletes || !honor || facts.is_unclaimed());
    let remove = releases_pv && !seen.written;
    let held = (facts.held || add) && !remove;
    let wanted = facts.served.then(|| Record {
        // A PV that lost the finalizer by another writer stays marked: see `Step::Stripped`.
        protected: held || (!remove && facts.deletes && facts.is_protected()),
        ..facts.own_record()
    });
    let patch = patch(seen.volume, add, remove, wanted.filter(|wanted| facts.record != Some(*wanted)));
    let step = step(seen, &facts, driver, honor);
    let status = status(seen.volume, &step);
    Plan { patch, releases_pv, status, step }
}

/// The deletion to journal for a PV that was deleted without our finalizer; `None` if the volume is kept.
pub fn vanished(seen: &Seen, driver: &str, honor: bool) -> Option<PendingDeletion> {
    let facts = Facts::of(seen);
    // A PV that had the finalizer can only be deleted if a user removed it.
    let unheld = !facts.held && !facts.is_protected();
    let is_deleted = honor && facts.deletes && facts.served && unheld;
    is_deleted.then(|| deletion(seen, driver).ok()).flatten().map(|deletion| PendingDeletion { gone: true, ..deletion })
}

/// Whether a claim uses the volume, or will. A PV that is being deleted is not bound to new claims.
pub fn uses(claim: &Value, claim_uid: &str, volume: &str, leaving: bool) -> bool {
    let bound_to = claim.text(&["spec", "volumeName"]);
    uid(claim) == claim_uid && (bound_to == volume || (bound_to.is_empty() && !leaving))
}

/// The content of the annotation [`RECORD`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record<'a> {
    volume_uid: &'a str,
    claim_uid: &'a str,
    /// The finalizer was added.
    protected: bool,
}

impl<'a> Record<'a> {
    fn of(volume: &'a Value) -> Option<Record<'a>> {
        let (volume_uid, rest) = annotation(volume, RECORD).split_once('/')?;
        let (claim_uid, protected) = match rest.split_once('/') {
            None => (rest, false),
            Some((claim_uid, mark)) => (claim_uid, mark == "protected"),
        };
        Some(Record { volume_uid, claim_uid, protected })
    }

    fn text(&self) -> String {
        let mark = if self.protected { "/protected" } else { "" };
        format!("{}/{}{mark}", self.volume_uid, self.claim_uid)
    }
}

/// The facts that decide.
struct Facts<'a> {
    volume_uid: &'a str,
    claim_uid: &'a str,
    phase: &'a str,
    /// The policy is Delete.
    deletes: bool,
    leaving: bool,
    held: bool,
    /// The annotation, if it has this PV's uid and the uid of the claim that it references.
    record: Option<Record<'a>>,
    served: bool,
}

impl<'a> Facts<'a> {
    fn of(seen: &Seen<'a>) -> Facts<'a> {
        let volume = seen.volume;
        let (volume_uid, claim_uid) = (uid(volume), volume.text(&["spec", "claimRef", "uid"]));
        let is_own = |record: &Record| record.volume_uid == volume_uid && record.claim_uid == claim_uid;
        let record = Record::of(volume).filter(is_own);
        let phase = volume.text(&["status", "phase"]);
        Facts {
            volume_uid,
            claim_uid,
            phase,
            deletes: volume.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Delete",
            leaving: terminating(volume),
            held: crate::finalizers::has(volume, FINALIZER),
            record,
            served: !claim_uid.is_empty() && (record.is_some() || seen.served || phase == "Bound"),
        }
    }

    /// The PV is being deleted and its `claimRef` was cleared, so that it will never become `Released`.
    fn is_unclaimed(&self) -> bool {
        self.leaving && self.phase == "Available" && self.claim_uid.is_empty()
    }

    fn is_protected(&self) -> bool {
        self.record.is_some_and(|record| record.protected)
    }

    fn own_record(&self) -> Record<'a> {
        Record { volume_uid: self.volume_uid, claim_uid: self.claim_uid, protected: false }
    }
}

fn patch(volume: &Value, add: bool, remove: bool, record: Option<Record>) -> Option<Value> {
    if !add && !remove && record.is_none() {
        return None;
    }
    let mut patch = json!({"metadata": {"uid": uid(volume)}});
    if add {
        patch.put(&["metadata", "finalizers"], json!([FINALIZER]));
    }
    if remove {
        patch.put(&["metadata", "$deleteFromPrimitiveList/finalizers"], json!([FINALIZER]));
        // The patch may arrive after the policy has changed again.
        patch.put(&["metadata", "resourceVersion"], volume.text(&["metadata", "resourceVersion"]));
    }
    if let Some(record) = record {
        patch.put(&["metadata", "annotations", RECORD], record.text());
    }
    Some(patch)
}

/// The events on PV and claim when a volume's data was deleted.
pub fn data_deleted(deletion: &PendingDeletion) -> [Event; 2] {
    let PendingDeletion { volume, driver, handle, claim_namespace, claim_name, .. } = deletion;
    let data = format!("the CSI driver {driver} deleted its data ({handle})");
    let claim = format!("PersistentVolumeClaim {claim_namespace}/{claim_name}");
    [
        format!("PersistentVolume {volume}: {data}, because its reclaim policy is Delete and {claim} was deleted"),
        format!(
            "{claim}: {data}, because it was deleted and the reclaim policy of PersistentVolume {volume} is Delete"
        ),
    ]
    .map(|message| Event::normal(crate::reclaim::DATA_DELETED, message))
}

/// The patch that removes the finalizer after the volume is deleted.
pub fn release(volume_uid: &str) -> Value {
    json!({"metadata": {"uid": volume_uid, "$deleteFromPrimitiveList/finalizers": [FINALIZER]}})
}

fn step(seen: &Seen, facts: &Facts, driver: &str, honor: bool) -> Step {
    if !facts.deletes {
        return if seen.deletion { Step::CancelDeletion } else { Step::Nothing };
    }
    let released = facts.phase == "Released";
    if facts.leaving && !honor {
        return Step::Nothing;
    }
    if facts.held && facts.is_unclaimed() {
        let handle = migration::handle(seen.volume).unwrap_or_default();
        return Step::Left(format!(
            "No claim references this volume: the PersistentVolume is deleted, and the data ({handle} of {driver}) is kept"
        ));
    }
    if facts.leaving && !facts.held {
        return match (facts.served, facts.is_protected()) {
            // The volume never served a claim in this cluster: keep it.
            (false, _) => Step::Nothing,
            (true, true) => Step::Stripped,
            // Journal the deletion before anything else: without a finalizer the PV may disappear at any moment.
            (true, false) if !seen.deletion => {
                deletion(seen, driver).map_or_else(Step::Failed, |deletion| Step::JournalDeletion(Box::new(deletion)))
            }
            (true, false) if released => delete(seen, driver),
            (true, false) => Step::Nothing,
        };
    }
    if !released {
        return Step::Nothing;
    }
    if facts.served || is_confirmed(seen.volume) { delete(seen, driver) } else { Step::Keep(unconfirmed(seen.volume)) }
}

fn delete(seen: &Seen, driver: &str) -> Step {
    deletion(seen, driver).map_or_else(Step::Failed, |deletion| Step::Delete(Box::new(deletion)))
}

fn is_confirmed(volume: &Value) -> bool {
    let word = annotation(volume, CONFIRM);
    !word.is_empty() && migration::handle(volume).is_some_and(|handle| handle == word)
}

fn unconfirmed(volume: &Value) -> String {
    let handle = migration::handle(volume).unwrap_or_default();
    format!(
        "The claim of this volume was deleted and its policy is Delete, but it was not seen bound to that claim in this \
         cluster: it may have been restored from a backup. Its data is kept. To delete it, annotate it with \
         {CONFIRM}={handle}; to remove only this object, set its reclaim policy to Retain and delete it; to use it \
         again, clear spec.claimRef."
    )
}

fn deletion(seen: &Seen, driver: &str) -> Result<PendingDeletion, String> {
    let volume = seen.volume;
    let Some(handle) = migration::handle(volume).filter(|handle| !handle.is_empty()) else {
        return Err(format!("the volume source has no handle for the driver {driver}"));
    };
    let claim = |field: &str| volume.text(&["spec", "claimRef", field]).to_owned();
    Ok(PendingDeletion {
        volume: name(volume).to_owned(),
        uid: uid(volume).to_owned(),
        version: volume.text(&["metadata", "resourceVersion"]).to_owned(),
        gone: false,
        driver: driver.to_owned(),
        handle: handle.into_owned(),
        class: class_of(volume).unwrap_or("").to_owned(),
        secret: secret::for_deletion(volume, seen.class)?,
        claim_namespace: claim("namespace"),
        claim_name: claim("name"),
        claim_uid: claim("uid"),
    })
}

fn status(volume: &Value, step: &Step) -> Option<Value> {
    let is_said = volume.text(&["status", "reason"]) == UNCONFIRMED;
    let status = match step {
        Step::Keep(why) if !is_said => json!({"reason": UNCONFIRMED, "message": why}),
        Step::Keep(_) => return None,
        _ if is_said => json!({"reason": null, "message": null}),
        _ => return None,
    };
    Some(json!({"metadata": {"uid": uid(volume)}, "status": status}))
}

#[cfg(test)]
mod tests;
