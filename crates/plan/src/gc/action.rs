//! The requests of the garbage collector.

use super::{Place, Uid};
use object::access::Access;
use object::{Value, json};

/// One request. Each has preconditions, so that a stale one is refused and a repeated one is harmless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// DELETE with uid and resourceVersion as preconditions. After a conflict the work is repeated, as after
    /// any error.
    Delete { place: Place, uid: Uid, resource_version: String, policy: Policy },
    /// Removes these owners from the object's owner references: PATCH with [`Action::patch`].
    DropOwners { place: Place, uid: Uid, owners: Vec<Uid> },
    /// Sets `blockOwnerDeletion` of these owner references to false, to break a cycle: PATCH with
    /// [`Action::patch`].
    Unblock { place: Place, uid: Uid, owners: Vec<Uid> },
    /// Removes a finalizer: merge PATCH with [`Action::patch`].
    RemoveFinalizer { place: Place, uid: Uid, resource_version: String, finalizer: String, rest: Vec<String> },
    /// Records a Warning event about the object.
    Report { place: Place, uid: Uid, reason: &'static str, message: String },
}

/// `propagationPolicy` of a DELETE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    Background,
    Foreground,
    Orphan,
}

impl Policy {
    pub fn name(self) -> &'static str {
        match self {
            Policy::Background => "Background",
            Policy::Foreground => "Foreground",
            Policy::Orphan => "Orphan",
        }
    }
}

impl Action {
    /// The body of a DELETE.
    pub fn delete_options(&self) -> Option<Value> {
        let Action::Delete { uid, resource_version, policy, .. } = self else { return None };
        Some(json!({
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "preconditions": {"uid": &**uid, "resourceVersion": resource_version},
            "propagationPolicy": policy.name(),
        }))
    }

    /// The body of a PATCH: a strategic merge patch for owner references, a JSON merge patch (also valid as a
    /// strategic one) for finalizers.
    pub fn patch(&self) -> Option<Value> {
        match self {
            Action::DropOwners { uid, owners, .. } => {
                let entries: Vec<Value> =
                    owners.iter().map(|owner| json!({"$patch": "delete", "uid": &**owner})).collect();
                Some(json!({"metadata": {"uid": &**uid, "ownerReferences": entries}}))
            }
            Action::Unblock { uid, owners, .. } => {
                let entries: Vec<Value> =
                    owners.iter().map(|owner| json!({"uid": &**owner, "blockOwnerDeletion": false})).collect();
                Some(json!({"metadata": {"uid": &**uid, "ownerReferences": entries}}))
            }
            Action::RemoveFinalizer { uid, resource_version, rest, .. } => Some(json!({
                "metadata": {"uid": &**uid, "resourceVersion": resource_version, "finalizers": rest}
            })),
            Action::Delete { .. } | Action::Report { .. } => None,
        }
    }

    /// The same change as a JSON merge patch of `live`, for custom resources, which answer a strategic merge
    /// patch with 415.
    pub fn merge_patch(&self, live: &Value) -> Option<Value> {
        let listed =
            |owners: &[Uid], reference: &Value| owners.iter().any(|owner| **owner == *reference.text(&["uid"]));
        let references = live.items(&["metadata", "ownerReferences"]).iter();
        let (uid, references): (&Uid, Vec<Value>) = match self {
            Action::DropOwners { uid, owners, .. } => {
                (uid, references.filter(|reference| !listed(owners, reference)).cloned().collect())
            }
            Action::Unblock { uid, owners, .. } => {
                let unblock = |reference: &Value| {
                    let mut reference = reference.clone();
                    if listed(owners, &reference) {
                        reference.put(&["blockOwnerDeletion"], false);
                    }
                    reference
                };
                (uid, references.map(unblock).collect())
            }
            Action::RemoveFinalizer { .. } => return self.patch(),
            Action::Delete { .. } | Action::Report { .. } => return None,
        };
        let resource_version = live.text(&["metadata", "resourceVersion"]);
        Some(json!({
            "metadata": {"uid": &**uid, "resourceVersion": resource_version, "ownerReferences": references}
        }))
    }
}
