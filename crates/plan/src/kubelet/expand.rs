//! The node's part of a volume expansion: the file system grows to the size of the volume.

use object::access::{Access, terminating};
use object::quantity::Quantity;
use object::{Value, condition, json};

/// Conditions of a claim that are removed when its expansion is finished.
const RESIZING: [&str; 4] = ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

/// Whether the claim waits for a node to expand its file system.
pub fn is_pending(claim: &Value) -> bool {
    let status = claim.text(&["status", "allocatedResourceStatuses", "storage"]);
    // A resizer that does not set allocatedResourceStatuses sets only the condition.
    let by_condition = status.is_empty() && condition::is_true(claim, "FileSystemResizePending");
    claim.text(&["status", "phase"]) == "Bound"
        && !terminating(claim)
        && (matches!(status, "NodeResizePending" | "NodeResizeInProgress") || by_condition)
}

/// The merge patch, with a resourceVersion, that sets the claim's status after its expansion. `volume` is the
/// size of the PV.
pub fn finished(claim: &Value, volume: Quantity) -> Option<Value> {
    if !is_pending(claim) {
        return None;
    }
    let allocated = claim.at(&["status", "allocatedResources", "storage"]).and_then(Quantity::of);
    let size = allocated.unwrap_or(volume);
    let conditions = claim.items(&["status", "conditions"]).iter();
    let kept: Vec<&Value> = conditions.filter(|it| !RESIZING.contains(&it.text(&["type"]))).collect();
    let alone = claim.members(&["status", "allocatedResourceStatuses"]).len() <= 1;
    let statuses = if alone { Value::Null } else { json!({"storage": null}) };
    Some(json!({
        "metadata": {"resourceVersion": claim.text(&["metadata", "resourceVersion"])},
        "status": {
            "capacity": {"storage": size.to_string()},
            "allocatedResourceStatuses": statuses,
            "conditions": if kept.is_empty() { Value::Null } else { json!(kept) },
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_grows_to_its_allocated_size() {
        let claim = |status: &str| {
            json!({
                "metadata": {"resourceVersion": "7"},
                "status": {
                    "phase": "Bound", "capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
                    "allocatedResourceStatuses": {"storage": status},
                    "conditions": [{"type": "FileSystemResizePending", "status": "True"}, {"type": "Mine", "status": "True"}],
                },
            })
        };
        let volume = Quantity::from_bytes(3 << 30);
        for status in ["NodeResizePending", "NodeResizeInProgress"] {
            assert_eq!(
                finished(&claim(status), volume),
                Some(json!({"metadata": {"resourceVersion": "7"}, "status": {
                    "capacity": {"storage": "2Gi"}, "allocatedResourceStatuses": null,
                    "conditions": [{"type": "Mine", "status": "True"}],
                }}))
            );
        }
        for status in ["ControllerResizeInProgress", "NodeResizeInfeasible"] {
            assert_eq!(finished(&claim(status), volume), None, "{status}");
        }
        let mut older = claim("");
        older["status"].cut(&["allocatedResources"]);
        assert_eq!(finished(&older, volume).unwrap()["status"]["capacity"]["storage"], "3Gi");
        older["status"]["phase"] = json!("Lost");
        assert_eq!(finished(&older, volume), None);
    }
}
