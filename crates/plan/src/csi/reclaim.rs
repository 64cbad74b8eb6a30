//! What becomes of a driver's volume when its claim is gone: the reclaim policy decides, in whatever order objects are deleted and
//! policies edited (KEP-2644).
//!
//! A volume whose policy is Delete carries a finalizer while it is bound, so that its object cannot go before its backend. Where the
//! finalizer came too late (the object was already on its way out when the policy became Delete), the deletion is written down
//! instead. And a volume is deleted only if it is known to have served a claim here: each carries a record with its own uid, which
//! a volume that came back from a backup does not match.

use super::journal::Doomed;
use super::{Event, FINALIZER, MIGRATED_TO, PROVISIONED_BY, annotation, csi_source, migration, secret};
use object::access::{Access, name, terminating, uid};
use object::kinds::volumes::class_of;
use object::{Value, json, well_known};

/// On a volume: for whom it was made or bound here.
pub const RECORD: &str = well_known::PROVISIONED;
/// On a volume: the user's word that it is to be deleted; its value is the volume's handle.
pub const CONFIRM: &str = well_known::CONFIRM_DELETE;
/// In a volume's status: why it is not deleted.
pub const UNCONFIRMED: &str = well_known::DELETION_UNCONFIRMED;

/// What is seen of a volume that one of our drivers is responsible for.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub volume: &'a Value,
    pub class: Option<&'a Value>,
    /// It was made for the claim that it names, or seen bound to it, though its record may not say so yet.
    pub served: bool,
    /// Its deletion is written down.
    pub doomed: bool,
    /// It is still written down that it is to be made.
    pub written: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// A strategic merge patch of the volume: finalizer and record.
    pub patch: Option<Value>,
    /// The finalizer is taken off, or will be when nothing is written down that would make the volume again.
    pub lets_go: bool,
    /// A merge patch of the volume's status: why it is kept, or that it no longer is.
    pub status: Option<Value>,
    pub step: Step,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub enum Step {
    #[default]
    Nothing,
    /// Write its deletion down: the object cannot be held.
    Doom(Box<Doomed>),
    /// Its deletion is no longer wanted.
    Spare,
    /// Delete it at the driver, then the object.
    Delete(Box<Doomed>),
    /// Do not delete it, and say why.
    Keep(String),
    /// It is on its way out without the finalizer that it had: somebody took it off. Its backend stays, and people are told.
    Stripped,
    /// It is told to go and belongs to no claim: as with any volume that nobody claimed, its backend stays. Why, for people.
    Left(String),
    /// It is to be deleted but cannot be.
    Failed(String),
}

/// Whether a driver is responsible for a volume.
pub fn is_of(volume: &Value, driver: &str) -> bool {
    let migrated = annotation(volume, MIGRATED_TO) == driver;
    match annotation(volume, PROVISIONED_BY) {
        "" => migrated || csi_source(volume).is_some_and(|(of, _)| of == driver),
        provisioner => migrated || provisioner == driver,
    }
}

/// Whether a volume's record is of this very volume and of the claim that it names.
pub fn is_recorded(volume: &Value) -> bool {
    Facts::of(&Seen { volume, class: None, served: false, doomed: false, written: false }).record.is_some()
}

/// What to do about a volume. `honor`: the reclaim policy is honoured in any order of deletion.
pub fn plan(seen: &Seen, driver: &str, honor: bool) -> Plan {
    let facts = Facts::of(seen);
    let add = honor && facts.deletes && !facts.leaving && facts.phase == "Bound" && !facts.held;
    let lets_go = facts.held && (!facts.deletes || !honor || facts.is_nobodys());
    let remove = lets_go && !seen.written;
    let held = (facts.held || add) && !remove;
    let wanted = facts.served.then(|| Record {
        // What had the finalizer and lost it by another's hand is still marked: see `Step::Stripped`.
        protected: held || (!remove && facts.deletes && facts.is_protected()),
        ..facts.own_record()
    });
    let patch = patch(seen.volume, add, remove, wanted.filter(|wanted| facts.record != Some(*wanted)));
    let step = step(seen, &facts, driver, honor);
    let status = status(seen.volume, &step);
    Plan { patch, lets_go, status, step }
}

/// What to write down about a volume whose object has gone although nobody here let it go: `None` when its backend is to stay.
pub fn vanished(seen: &Seen, driver: &str, honor: bool) -> Option<Doomed> {
    let facts = Facts::of(seen);
    // With the finalizer it can only have gone by the hand of somebody who took that off.
    let unheld = !facts.held && !facts.is_protected();
    let is_doomed = honor && facts.deletes && facts.served && unheld;
    is_doomed.then(|| doomed(seen, driver).ok()).flatten().map(|doomed| Doomed { gone: true, ..doomed })
}

/// Whether a claim still uses, or is about to use, the volume that names it. What is on its way out is bound to no claim any more.
pub fn uses(claim: &Value, claim_uid: &str, volume: &str, leaving: bool) -> bool {
    let bound_to = claim.text(&["spec", "volumeName"]);
    uid(claim) == claim_uid && (bound_to == volume || (bound_to.is_empty() && !leaving))
}

/// For whom a volume was made or bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record<'a> {
    volume_uid: &'a str,
    claim_uid: &'a str,
    /// The finalizer was put on it.
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

/// The few facts that decide.
struct Facts<'a> {
    volume_uid: &'a str,
    claim_uid: &'a str,
    phase: &'a str,
    /// The policy is Delete.
    deletes: bool,
    leaving: bool,
    held: bool,
    /// The record, if it is of this very volume and of the claim that it names.
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

    /// It is told to go, and was freed of the claim that it had: nobody would ever release it.
    fn is_nobodys(&self) -> bool {
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
        // It may arrive late, when the policy is another.
        patch.put(&["metadata", "resourceVersion"], volume.text(&["metadata", "resourceVersion"]));
    }
    if let Some(record) = record {
        patch.put(&["metadata", "annotations", RECORD], record.text());
    }
    Some(patch)
}

/// What is told when the data of a volume was deleted: of the volume and of its claim.
pub fn data_deleted(doomed: &Doomed) -> [Event; 2] {
    let Doomed { volume, driver, handle, claim_namespace, claim_name, .. } = doomed;
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

/// The patch that takes the finalizer off after the backend is deleted.
pub fn release(volume_uid: &str) -> Value {
    json!({"metadata": {"uid": volume_uid, "$deleteFromPrimitiveList/finalizers": [FINALIZER]}})
}

fn step(seen: &Seen, facts: &Facts, driver: &str, honor: bool) -> Step {
    if !facts.deletes {
        return if seen.doomed { Step::Spare } else { Step::Nothing };
    }
    let released = facts.phase == "Released";
    if facts.leaving && !honor {
        return Step::Nothing;
    }
    if facts.held && facts.is_nobodys() {
        let handle = migration::handle(seen.volume).unwrap_or_default();
        return Step::Left(format!(
            "The volume belongs to no claim: its object goes, and {handle} of {driver} is left as it is"
        ));
    }
    if facts.leaving && !facts.held {
        return match (facts.served, facts.is_protected()) {
            // It never served a claim: its backend is not ours to judge.
            (false, _) => Step::Nothing,
            (true, true) => Step::Stripped,
            // What the object cannot hold is written down before anything is done: the object may go any moment.
            (true, false) if !seen.doomed => {
                doomed(seen, driver).map_or_else(Step::Failed, |doomed| Step::Doom(Box::new(doomed)))
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
    doomed(seen, driver).map_or_else(Step::Failed, |doomed| Step::Delete(Box::new(doomed)))
}

fn is_confirmed(volume: &Value) -> bool {
    let word = annotation(volume, CONFIRM);
    !word.is_empty() && migration::handle(volume).is_some_and(|handle| handle == word)
}

fn unconfirmed(volume: &Value) -> String {
    let handle = migration::handle(volume).unwrap_or_default();
    format!(
        "The claim of this volume is gone and its policy is Delete, but it was not seen bound to that claim here: it may have come \
         back from a backup. Its data is kept. To delete it, annotate it with {CONFIRM}={handle}; to remove only this object, set its \
         reclaim policy to Retain and delete it; to use it again, clear spec.claimRef."
    )
}

fn doomed(seen: &Seen, driver: &str) -> Result<Doomed, String> {
    let volume = seen.volume;
    let Some(handle) = migration::handle(volume).filter(|handle| !handle.is_empty()) else {
        return Err(format!("what the driver {driver} calls the volume cannot be told from its source"));
    };
    let claim = |field: &str| volume.text(&["spec", "claimRef", field]).to_owned();
    Ok(Doomed {
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
