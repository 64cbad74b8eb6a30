//! Plans the expansion of volumes: the size to request, the call, and what its response means for claim and PV.
//!
//! The claim's status stores the progress (`allocatedResources`, `allocatedResourceStatuses`), so that a crash loses
//! nothing and an infeasible request can be lowered again.

use super::{
    AccessType, Capability, Code, Driver, Event, Failure, Finish, SecretRef, annotation, csi_source, migration, secret,
    texts,
};
use jiff::{SignedDuration, Timestamp};
use object::access::{Access, name, namespace, uid};
use object::quantity::Quantity;
use object::{Value, condition, json};

pub use crate::bind::PRE_RESIZE_CAPACITY as SIZE_BEFORE;
/// Annotation on a claim: no node expansion is needed.
pub const NO_NODE_PART: &str = "volume.kubernetes.io/node-expansion-not-required";
/// Annotation on a claim of an in-tree volume: the driver that expands it.
const RESIZER: &str = "volume.kubernetes.io/storage-resizer";
const CONDITIONS: [&str; 4] = ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

/// The delay after an infeasible request, unless its size changes.
pub const SLOW: SignedDuration = SignedDuration::from_mins(5);

/// A ControllerExpandVolume request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expand {
    pub handle: String,
    pub bytes: i64,
    pub capability: Capability,
    pub secret: Option<SecretRef>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expanded {
    pub bytes: i64,
    /// Whether NodeExpandVolume must grow the file system.
    pub node_part: bool,
}

/// What is remembered between attempts. A restart loses it, which costs at most one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The last call has a final outcome, so another size may be requested.
    pub ended: bool,
    /// The driver does not expand volumes that are in use.
    pub offline_only: bool,
    /// The driver called this size infeasible; retry at this time.
    pub slow: Option<(i64, Timestamp)>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Nothing,
    /// Remove the annotation with the earlier size, which is no longer needed: a merge patch of the PV.
    Unmark(Value),
    /// Retry at this time.
    Rest(Timestamp),
    /// The driver expands only unused volumes, and this one is in use.
    InUse(Event),
    Expand(Box<Expansion>),
}

/// One attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Expansion {
    /// A merge patch of the claim's status, sent before the call.
    pub mark: Option<Value>,
    /// `None` for drivers that expand only on nodes.
    pub call: Option<Expand>,
    pub bytes: i64,
    pub begins: Event,
}

/// Whether the driver expands this volume for this claim.
pub fn is_for(claim: &Value, volume: &Value, driver: &str) -> bool {
    let own = csi_source(volume).is_some_and(|(of, _)| of == driver);
    let reference = volume.at(&["spec", "claimRef"]).unwrap_or(&Value::Null);
    (own || annotation(claim, RESIZER) == driver)
        && reference.text(&["uid"]) == uid(claim)
        && reference.text(&["namespace"]) == namespace(claim)
}

/// Whether a claim requests more than its capacity, judging by the claim alone.
pub fn wants_more(claim: &Value) -> bool {
    let sizes = Sizes::of(claim, &Value::Null);
    claim.text(&["status", "phase"]) == "Bound"
        && !claim.text(&["spec", "volumeName"]).is_empty()
        && sizes.requested > sizes.actual
}

/// Plans a bound claim and its volume. `in_use` is called only for drivers that expand unused volumes only.
pub fn plan(
    claim: &Value,
    volume: &Value,
    driver: &Driver,
    memory: &Memory,
    in_use: impl FnOnce() -> bool,
    now: Timestamp,
) -> Step {
    let sizes = Sizes::of(claim, volume);
    if !wants_more(claim) {
        let served = !annotation(volume, SIZE_BEFORE).is_empty() && sizes.actual >= sizes.volume;
        return if served && sizes.actual > 0 { Step::Unmark(unmark(volume)) } else { Step::Nothing };
    }
    if !driver.can.expand && !driver.can.node_expand {
        return Step::Nothing;
    }
    let Some(bytes) = sizes.target(claim, driver, memory) else { return Step::Nothing };
    if let Some((size, until)) = memory.slow
        && size == bytes
        && rests(until, now)
    {
        return Step::Rest(until);
    }
    if memory.offline_only && in_use() {
        let message = format!(
            "Unable to expand {} because CSI driver {} only supports offline expansion and volume is currently in-use",
            name(volume),
            driver.name
        );
        return Step::InUse(Event::warning("VolumeResizeFailed", message));
    }
    let message = format!("External resizer is resizing volume {}", name(volume));
    Step::Expand(Box::new(Expansion {
        mark: mark(claim, bytes, now),
        call: driver.can.expand.then(|| call(volume, bytes, driver)),
        bytes,
        begins: Event::normal("Resizing", message),
    }))
}

/// Interprets the response. `claim` is the claim after the patch `mark`.
pub fn finish(
    claim: &Value,
    volume: &Value,
    driver: &Driver,
    bytes: i64,
    answer: Result<Expanded, Failure>,
    memory: &mut Memory,
    now: Timestamp,
) -> Finish {
    let answer = answer.and_then(|expanded| match expanded.bytes {
        // The call succeeded, and 0 means the requested size.
        0 => Ok(Expanded { bytes, ..expanded }),
        less if less < bytes => {
            Err(Failure::new(Code::Internal, format!("volume was expanded to {less} bytes instead of {bytes}")))
        }
        _ => Ok(expanded),
    });
    match answer {
        Ok(expanded) => {
            *memory = Memory::default();
            grown(claim, volume, expanded, now)
        }
        Err(failure) => failed(claim, volume, driver, bytes, &failure, memory, now),
    }
}

/// The sizes that decide, in bytes; 0 if unset.
struct Sizes {
    requested: i64,
    /// The claim's capacity in its status.
    actual: i64,
    volume: i64,
    allocated: i64,
}

impl Sizes {
    fn of(claim: &Value, volume: &Value) -> Sizes {
        let bytes =
            |object: &Value, path: &[&str]| object.at(path).and_then(Quantity::of).map_or(0, |size| size.ceil());
        Sizes {
            requested: bytes(claim, &["spec", "resources", "requests", "storage"]),
            actual: bytes(claim, &["status", "capacity", "storage"]),
            volume: bytes(volume, &["spec", "capacity", "storage"]),
            allocated: bytes(claim, &["status", "allocatedResources", "storage"]),
        }
    }

    /// The size to request; `None` if the controller has nothing to do.
    fn target(&self, claim: &Value, driver: &Driver, memory: &Memory) -> Option<i64> {
        let allocated = if self.allocated > 0 { self.allocated } else { self.requested };
        let smaller = self.volume < self.requested;
        match (smaller, claim.text(&["status", "allocatedResourceStatuses", "storage"])) {
            (true, "NodeResizeInfeasible") => Some(allocated),
            (true, "NodeResizePending" | "NodeResizeInProgress") => (self.volume < allocated).then_some(allocated),
            (true, "ControllerResizeInProgress") if !memory.ended => Some(allocated),
            (true, _) => Some(self.requested),
            (false, "NodeResizePending" | "NodeResizeInProgress") => None,
            (false, "NodeResizeInfeasible") => Some(if driver.can.expand { allocated } else { self.requested }),
            (false, "ControllerResizeInProgress" | "ControllerResizeInfeasible") => Some(allocated),
            (false, _) if self.allocated > 0 => Some(self.allocated),
            (false, _) => (!condition::is_true(claim, "FileSystemResizePending")).then_some(self.requested),
        }
    }
}

fn call(volume: &Value, bytes: i64, driver: &Driver) -> Expand {
    let access = match volume.text(&["spec", "volumeMode"]) {
        "Block" => AccessType::Block,
        _ => AccessType::Mount {
            fs_type: volume.text(&["spec", "csi", "fsType"]).to_owned(),
            flags: texts(volume.items(&["spec", "mountOptions"])),
        },
    };
    let mode = volume.items(&["spec", "accessModes"]).first().and_then(Value::as_str).unwrap_or("");
    Expand {
        handle: migration::handle(volume).unwrap_or_default().into_owned(),
        bytes,
        capability: Capability::of(mode, access, driver),
        secret: secret::for_expansion(volume),
    }
}

/// The patch that marks this size as in progress in the claim's status.
fn mark(claim: &Value, bytes: i64, now: Timestamp) -> Option<Value> {
    let mut changed = claim.clone();
    let sizes = Sizes::of(claim, &Value::Null);
    if sizes.allocated != bytes {
        drop_conditions(&mut changed, &CONDITIONS);
    }
    condition::set(&mut changed, &["status", "conditions"], json!({"type": "Resizing", "status": "True"}), now);
    changed.put(&["status", "allocatedResources", "storage"], shown(claim, bytes));
    changed.put(&["status", "allocatedResourceStatuses", "storage"], "ControllerResizeInProgress");
    let mut patch = status_patch(claim, &changed)?;
    if !annotation(claim, NO_NODE_PART).is_empty() {
        patch.put(&["metadata", "annotations", NO_NODE_PART], Value::Null);
    }
    Some(patch)
}

fn grown(claim: &Value, volume: &Value, expanded: Expanded, now: Timestamp) -> Finish {
    let sizes = Sizes::of(claim, volume);
    let size = shown(claim, expanded.bytes.max(sizes.volume));
    let mut changed = claim.clone();
    let mut volume_change = json!({});
    if expanded.bytes > sizes.volume {
        volume_change.put(&["spec", "capacity", "storage"], size.as_str());
    }
    if expanded.node_part {
        if annotation(volume, SIZE_BEFORE).is_empty() {
            let before = claim.at(&["status", "capacity", "storage"]).cloned().unwrap_or_else(|| json!("0"));
            volume_change.put(&["metadata", "annotations", SIZE_BEFORE], before);
        }
        drop_conditions(&mut changed, &CONDITIONS);
        let message = "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";
        let pending = json!({"type": "FileSystemResizePending", "status": "True", "message": message});
        condition::set(&mut changed, &["status", "conditions"], pending, now);
        changed.put(&["status", "allocatedResourceStatuses", "storage"], "NodeResizePending");
        let event = Event::normal("FileSystemResizeRequired", "Require file system resize of volume on node");
        return Finish {
            volume: of_version(volume, volume_change),
            claim: status_patch(claim, &changed),
            event: Some(event),
            again: false,
        };
    }
    drop_conditions(&mut changed, &CONDITIONS);
    changed.put(&["status", "capacity", "storage"], size);
    changed.cut(&["status", "allocatedResourceStatuses", "storage"]);
    if changed.members(&["status", "allocatedResourceStatuses"]).is_empty() {
        changed.cut(&["status", "allocatedResourceStatuses"]);
    }
    let mut patch = status_patch(claim, &changed);
    if let Some(patch) = &mut patch {
        patch.put(&["metadata", "annotations", NO_NODE_PART], "true");
    }
    let event = Event::normal("VolumeResizeSuccessful", "Resize volume succeeded");
    Finish { volume: of_version(volume, volume_change), claim: patch, event: Some(event), again: false }
}

fn failed(
    claim: &Value,
    volume: &Value,
    driver: &Driver,
    bytes: i64,
    failure: &Failure,
    memory: &mut Memory,
    now: Timestamp,
) -> Finish {
    let text = format!("resize volume \"{}\" by resizer \"{}\" failed: {failure}", name(volume), driver.name);
    let event = Some(Event::warning("VolumeResizeFailed", text));
    memory.offline_only = failure.code == Code::FailedPrecondition;
    memory.ended = !failure.code.leaves_change_open();
    if !memory.ended {
        return Finish { event, again: true, ..Finish::default() };
    }
    let mut changed = claim.clone();
    let message = format!("failed to expand pvc with {failure}");
    let error = json!({"type": "ControllerResizeError", "status": "True", "message": message});
    condition::set(&mut changed, &["status", "conditions"], error, now);
    if matches!(failure.code, Code::InvalidArgument | Code::OutOfRange | Code::NotFound) {
        changed.put(&["status", "allocatedResourceStatuses", "storage"], "ControllerResizeInfeasible");
        memory.slow = Some((bytes, now.saturating_add(SLOW).unwrap_or(now)));
    }
    Finish { claim: status_patch(claim, &changed), event, again: true, volume: None }
}

fn unmark(volume: &Value) -> Value {
    let mut patch = crate::finalizers::precondition(volume);
    patch.put(&["metadata", "annotations", SIZE_BEFORE], Value::Null);
    patch
}

/// Adds the resource version as a precondition: a late patch must not undo a larger size.
fn of_version(volume: &Value, change: Value) -> Option<Value> {
    (change != json!({})).then(|| object::patch::merge(&change, &crate::finalizers::precondition(volume)))
}

/// A size as the user wrote it, if it equals the claim's request.
fn shown(claim: &Value, bytes: i64) -> String {
    let request = claim.at(&["spec", "resources", "requests", "storage"]).and_then(Quantity::of);
    match request.filter(|request| request.ceil() == bytes) {
        Some(request) => request.to_string(),
        None => Quantity::from_bytes(bytes).to_string(),
    }
}

pub(super) fn drop_conditions(claim: &mut Value, types: &[&str]) {
    let mut conditions = claim.items(&["status", "conditions"]).to_vec();
    conditions.retain(|condition| !types.contains(&condition.text(&["type"])));
    claim.put(&["status", "conditions"], conditions);
}

/// The merge patch of the status between two versions of a claim; `None` if they are equal. Lists are replaced whole,
/// hence the precondition.
pub(super) fn status_patch(before: &Value, after: &Value) -> Option<Value> {
    let difference =
        difference(before.at(&["status"]).unwrap_or(&Value::Null), after.at(&["status"]).unwrap_or(&Value::Null))?;
    let mut patch = crate::finalizers::precondition(before);
    patch.put(&["status"], difference);
    Some(patch)
}

fn difference(before: &Value, after: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        let unset = before.is_null() && after.as_array().is_some_and(Vec::is_empty);
        return (before != after && !unset).then(|| after.clone());
    };
    let mut changed = object::Map::new();
    for (key, value) in new {
        if let Some(value) = difference(old.get(key).unwrap_or(&Value::Null), value) {
            changed.insert(key.clone(), value);
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        changed.insert(key.clone(), Value::Null);
    }
    (!changed.is_empty()).then_some(Value::Object(changed))
}

/// Whether to wait until this time. A wait longer than [`SLOW`] means that the clock has jumped back: do not wait.
pub(super) fn rests(until: Timestamp, now: Timestamp) -> bool {
    let left = until.duration_since(now);
    left.is_positive() && left <= SLOW
}

#[cfg(test)]
mod tests;
