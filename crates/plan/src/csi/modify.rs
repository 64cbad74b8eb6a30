//! Plans claims that request another VolumeAttributesClass than their volume has.

use super::provision::string_map;
use super::resize::{SLOW, drop_conditions, rests, status_patch};
use super::{Code, Driver, Event, Failure, Finish, SecretRef, csi_source, secret};
use jiff::Timestamp;
use object::access::{Access, name};
use object::{Value, condition, json};
use std::collections::BTreeMap;

/// A request to change a volume's attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Modify {
    pub handle: String,
    pub parameters: BTreeMap<String, String>,
    pub secret: Option<SecretRef>,
}

/// What is remembered between attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The last call has a final outcome, so another class may be requested. Unknown (false) after a restart.
    pub ended: bool,
    /// The driver called this class infeasible; retry at this time.
    pub slow: Option<(String, Timestamp)>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Nothing,
    /// Retry at this time.
    Rest(Timestamp),
    /// Only patch the claim's status and record an event.
    Note {
        claim: Option<Value>,
        event: Option<Event>,
    },
    Modify(Box<Modification>),
}

/// One attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Modification {
    /// A merge patch of the claim's status, sent before the call.
    pub mark: Option<Value>,
    pub call: Modify,
    /// The requested class.
    pub class: String,
    pub begins: Event,
}

const CONDITIONS: [&str; 2] = ["ModifyingVolume", "ModifyVolumeError"];

/// Whether the claim may need a modification, judging by the claim alone.
pub fn is_due(claim: &Value) -> bool {
    let facts = Facts::of(claim);
    claim.text(&["status", "phase"]) == "Bound" && (facts.wanted != facts.current || facts.is_noted)
}

/// The class to request next: the class of a call without a final outcome, or else the class in the spec.
pub fn next_class<'a>(claim: &'a Value, memory: &Memory) -> &'a str {
    let facts = Facts::of(claim);
    let pinned = facts.state == "InProgress" && (!memory.ended || facts.wanted.is_empty());
    if pinned { facts.target } else { facts.wanted }
}

/// Plans a bound claim and its volume; `class` is the object named by [`next_class`].
pub fn plan(
    claim: &Value,
    volume: &Value,
    class: Option<&Value>,
    driver: &Driver,
    memory: &Memory,
    now: Timestamp,
) -> Step {
    let facts = Facts::of(claim);
    if !is_due(claim) || !driver.can.modify || csi_source(volume).is_none_or(|(of, _)| of != driver.name) {
        return Step::Nothing;
    }
    if facts.wanted.is_empty() && facts.state != "InProgress" {
        return cancel(claim);
    }
    let wanted = next_class(claim, memory);
    let Some(class) = class else {
        return pending(claim, format!("VAC \"{wanted}\" does not exist."));
    };
    if class.text(&["driverName"]) != driver.name {
        let of = class.text(&["driverName"]);
        return pending(claim, format!("VAC \"{wanted}\" is for driver {of}, the volume is of {}.", driver.name));
    }
    if let Some((slow, until)) = &memory.slow
        && slow == wanted
        && rests(*until, now)
    {
        return Step::Rest(*until);
    }
    let mut changed = claim.clone();
    changed.put(
        &["status", "modifyVolumeStatus"],
        json!({"targetVolumeAttributesClassName": wanted, "status": "InProgress"}),
    );
    let modifying = json!({"type": "ModifyingVolume", "status": "True"});
    condition::set(&mut changed, &["status", "conditions"], modifying, now);
    let message = format!("external resizer is modifying volume {} with vac {wanted}", name(claim));
    Step::Modify(Box::new(Modification {
        mark: status_patch(claim, &changed),
        call: Modify {
            handle: volume.text(&["spec", "csi", "volumeHandle"]).to_owned(),
            parameters: string_map(class, &["parameters"]),
            secret: secret::for_modification(volume),
        },
        class: wanted.to_owned(),
        begins: Event::normal("VolumeModify", message),
    }))
}

/// Interprets the response. `claim` is the claim after the patch `mark`.
pub fn finish(
    claim: &Value,
    volume: &Value,
    class: &str,
    answer: Result<(), Failure>,
    memory: &mut Memory,
    now: Timestamp,
) -> Finish {
    let mut changed = claim.clone();
    let Err(failure) = answer else {
        *memory = Memory { ended: true, slow: None };
        drop_conditions(&mut changed, &CONDITIONS);
        changed.put(&["status", "currentVolumeAttributesClassName"], class);
        changed.cut(&["status", "modifyVolumeStatus"]);
        let message = format!("external resizer modified volume {} with vac {class} successfully", name(claim));
        let is_new = volume.text(&["spec", "volumeAttributesClassName"]) != class;
        let mut patch = crate::finalizers::precondition(volume);
        patch.put(&["spec", "volumeAttributesClassName"], class);
        return Finish {
            volume: is_new.then_some(patch),
            claim: status_patch(claim, &changed),
            event: Some(Event::normal("VolumeModifySuccessful", message)),
            again: false,
        };
    };
    memory.ended = !failure.code.leaves_change_open();
    let error = json!({
        "type": "ModifyVolumeError", "status": "True", "reason": failure.code.to_string(),
        "message": format!("ModifyVolume failed with error. Waiting for retry. {failure}"),
    });
    condition::set(&mut changed, &["status", "conditions"], error, now);
    if failure.code == Code::InvalidArgument {
        changed.put(&["status", "modifyVolumeStatus", "status"], "Infeasible");
        memory.slow = Some((class.to_owned(), now.saturating_add(SLOW).unwrap_or(now)));
    }
    let event = Some(Event::warning("VolumeModifyFailed", failure.to_string()));
    Finish { volume: None, claim: status_patch(claim, &changed), event, again: true }
}

struct Facts<'a> {
    wanted: &'a str,
    current: &'a str,
    target: &'a str,
    state: &'a str,
    is_noted: bool,
}

impl<'a> Facts<'a> {
    fn of(claim: &'a Value) -> Facts<'a> {
        Facts {
            wanted: claim.text(&["spec", "volumeAttributesClassName"]),
            current: claim.text(&["status", "currentVolumeAttributesClassName"]),
            target: claim.text(&["status", "modifyVolumeStatus", "targetVolumeAttributesClassName"]),
            state: claim.text(&["status", "modifyVolumeStatus", "status"]),
            is_noted: claim.has(&["status", "modifyVolumeStatus"]),
        }
    }
}

/// The spec was changed back before the driver was called.
fn cancel(claim: &Value) -> Step {
    if condition::get(claim, "ModifyingVolume").is_none() {
        return Step::Nothing;
    }
    let mut changed = claim.clone();
    drop_conditions(&mut changed, &["ModifyingVolume"]);
    let event = Some(Event::normal("VolumeModifyCanceled", "Cancelled modify."));
    Step::Note { claim: status_patch(claim, &changed), event }
}

/// The class cannot be used yet; the watch of classes requeues the claim. A call in progress stays in progress.
fn pending(claim: &Value, why: String) -> Step {
    let mut changed = claim.clone();
    if Facts::of(claim).state != "InProgress" {
        changed.put(&["status", "modifyVolumeStatus", "status"], "Pending");
    }
    Step::Note { claim: status_patch(claim, &changed), event: Some(Event::warning("VolumeModifyFailed", why)) }
}

#[cfg(test)]
mod tests;
