//! The last step of a volume's expansion, which is the node's: its file system grows to what the volume has become.

use object::access::{Access, terminating};
use object::quantity::Quantity;
use object::{Value, condition, json};

/// Conditions of a claim that are over once it has grown.
const RESIZING: [&str; 4] = ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

/// Whether the claim waits for a node to finish its expansion.
pub fn is_pending(claim: &Value) -> bool {
    let status = claim.text(&["status", "allocatedResourceStatuses", "storage"]);
    // Who does not say how far it is says so by its condition alone.
    let by_condition = status.is_empty() && condition::is_true(claim, "FileSystemResizePending");
    claim.text(&["status", "phase"]) == "Bound"
        && !terminating(claim)
        && (matches!(status, "NodeResizePending" | "NodeResizeInProgress") || by_condition)
}

/// The claim's status after its expansion, as a merge patch of exactly this version; `volume` is the size of its volume.
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
    fn a_claim_grows_to_what_was_allocated() {
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
