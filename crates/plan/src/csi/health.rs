//! Plans the health monitor: which volumes a driver must have, and how PV and claim report missing data.
//!
//! A PV's status has no conditions, so `status.reason` and `status.message` report it (`kubectl get pv` shows the reason).
//! A claim gets the condition [`MISSING`].

use super::csi_source;
use super::reclaim::UNCONFIRMED;
use crate::finalizers;
use jiff::Timestamp;
use object::access::{Access, name, terminating, uid};
use object::{Value, condition, json};

/// The condition of a claim, the reason in the status of a PV, and the reason of events.
pub const MISSING: &str = object::well_known::VOLUME_DATA_MISSING;
/// The reason of events when the data is available again.
pub const FOUND: &str = object::well_known::VOLUME_DATA_FOUND;

/// The handle of a volume that the driver must have. `None` for volumes of other drivers, and for volumes that the
/// provisioner may be deleting: their data may be deleted before their PV.
pub fn expected_handle<'a>(volume: &'a Value, driver: &str) -> Option<&'a str> {
    let (of, handle) = csi_source(volume)?;
    let policy = volume.text(&["spec", "persistentVolumeReclaimPolicy"]);
    let may_be_deleted = match volume.text(&["status", "phase"]) {
        "Bound" => false,
        phase => terminating(volume) || (matches!(phase, "Released" | "Failed") && policy == "Delete"),
    };
    (of == driver && !may_be_deleted).then_some(handle)
}

/// Whether the status of a PV reports missing data.
pub fn says_missing(volume: &Value) -> bool {
    volume.text(&["status", "reason"]) == MISSING
}

/// The message for the PV's status, its claim and the events.
pub fn message(volume: &Value, why: &str) -> String {
    format!("PersistentVolume {}: its data is missing: {why}; restore it from a backup", name(volume))
}

/// The merge patch for the status of a PV; `None` if it needs no change. `missing` is the [`message`] if data is
/// missing.
pub fn volume_status(volume: &Value, missing: Option<&str>) -> Option<Value> {
    let status = match missing {
        // A status that asks a user to confirm a deletion takes precedence.
        Some(_) if volume.text(&["status", "reason"]) == UNCONFIRMED => return None,
        Some(message) if says_missing(volume) && volume.text(&["status", "message"]) == message => return None,
        Some(message) => json!({"reason": MISSING, "message": message}),
        None if says_missing(volume) => json!({"reason": null, "message": null}),
        None => return None,
    };
    Some(json!({"metadata": {"uid": uid(volume)}, "status": status}))
}

/// Whether a claim is bound to a volume.
pub fn is_claim_of(claim: &Value, volume: &Value) -> bool {
    uid(claim) == volume.text(&["spec", "claimRef", "uid"]) && claim.text(&["spec", "volumeName"]) == name(volume)
}

/// The merge patch for the status of the volume's claim; `None` if it needs no change.
pub fn claim_status(claim: &Value, missing: Option<&str>, now: Timestamp) -> Option<Value> {
    let path = &["status", "conditions"];
    let mut conditions = json!({"status": {"conditions": claim.items(path)}});
    match missing {
        Some(message) => {
            let wanted = json!({"type": MISSING, "status": "True", "reason": "DataNotFound", "message": message});
            if !condition::set(&mut conditions, path, wanted, now) {
                return None;
            }
        }
        None => {
            condition::get(claim, MISSING)?;
            let others = claim.items(path).iter().filter(|condition| condition.text(&["type"]) != MISSING);
            conditions.put(path, others.cloned().collect::<Vec<_>>());
        }
    }
    let mut patch = finalizers::precondition(claim);
    patch.put(&["status"], conditions.cut(&["status"]).unwrap_or_default());
    Some(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(driver: &str, phase: &str, policy: &str) -> Value {
        json!({
            "metadata": {"name": "pv", "uid": "v"},
            "spec": {
                "csi": {"driver": driver, "volumeHandle": "h"}, "persistentVolumeReclaimPolicy": policy,
                "claimRef": {"namespace": "a", "name": "data", "uid": "c"},
            },
            "status": {"phase": phase},
        })
    }

    #[test]
    fn volumes_of_other_drivers_and_volumes_being_deleted_are_not_monitored() {
        for (driver, phase, policy, leaving, judged) in [
            ("d", "Bound", "Delete", false, true),
            ("d", "Bound", "Retain", true, true),
            ("d", "", "Delete", false, true),
            ("d", "Available", "Delete", false, true),
            ("d", "Released", "Retain", false, true),
            ("d", "Released", "Delete", false, false),
            ("d", "Failed", "Delete", false, false),
            ("d", "Available", "Delete", true, false),
            ("d", "Released", "Retain", true, false),
            ("other", "Bound", "Delete", false, false),
        ] {
            let mut volume = volume(driver, phase, policy);
            if leaving {
                volume.put(&["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
            }
            assert_eq!(expected_handle(&volume, "d").is_some(), judged, "{driver} {phase} {policy} {leaving}");
        }
        let directory = json!({"spec": {"hostPath": {"path": "/tmp/a"}}, "status": {"phase": "Bound"}});
        assert_eq!(expected_handle(&directory, "d"), None);
    }

    #[test]
    fn the_condition_is_written_once_and_removed_without_the_others() {
        let now = Timestamp::UNIX_EPOCH;
        let mut volume = volume("d", "Bound", "Delete");
        let mut claim = json!({
            "metadata": {"name": "data", "uid": "c", "resourceVersion": "7"}, "spec": {"volumeName": "pv"},
            "status": {"conditions": [{"type": "Unused", "status": "True"}]},
        });
        assert!(is_claim_of(&claim, &volume));
        assert_eq!((volume_status(&volume, None), claim_status(&claim, None, now)), (None, None));
        let text = message(&volume, "no directory");
        assert!(text.starts_with("PersistentVolume pv: "), "{text}");
        let missing = Some(text.as_str());
        let (of_volume, of_claim) = (volume_status(&volume, missing).unwrap(), claim_status(&claim, missing, now));
        let of_claim = of_claim.unwrap();
        assert_eq!(of_claim["metadata"], json!({"uid": "c", "resourceVersion": "7"}));
        assert!(condition::is_true(&of_claim, MISSING) && condition::is_true(&of_claim, "Unused"));
        volume.put(&["status", "reason"], of_volume["status"]["reason"].clone());
        volume.put(&["status", "message"], of_volume["status"]["message"].clone());
        claim.put(&["status"], of_claim["status"].clone());
        assert_eq!((volume_status(&volume, missing), claim_status(&claim, missing, now)), (None, None));
        let (of_volume, of_claim) = (volume_status(&volume, None).unwrap(), claim_status(&claim, None, now).unwrap());
        assert_eq!(of_volume["status"], json!({"reason": null, "message": null}));
        assert_eq!(of_claim["status"]["conditions"], json!([{"type": "Unused", "status": "True"}]));
    }

    #[test]
    fn an_unconfirmed_deletion_keeps_its_reason() {
        let mut volume = volume("d", "Released", "Retain");
        volume.put(&["status", "reason"], UNCONFIRMED);
        assert_eq!((volume_status(&volume, Some("x")), volume_status(&volume, None)), (None, None));
    }
}
