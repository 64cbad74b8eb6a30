//! What garbage collection does to the world.

use super::{Place, Uid};
use object::access::Access;
use object::{Value, json};

/// One request. Each carries what must still be true of the object, so a stale one is refused and a repeated one harmless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// DELETE with uid and resourceVersion as preconditions. A conflict is an error like any other: the work is looked at again.
    Delete { place: Place, uid: Uid, resource_version: String, policy: Policy },
    /// Takes these owners out of the object's references: PATCH with [`Action::patch`].
    DropOwners { place: Place, uid: Uid, owners: Vec<Uid> },
    /// Makes these references no longer block their owners, to break a cycle: PATCH with [`Action::patch`].
    Unblock { place: Place, uid: Uid, owners: Vec<Uid> },
    /// Takes a finalizer away: merge PATCH with [`Action::patch`].
    RemoveFinalizer { place: Place, uid: Uid, resource_version: String, finalizer: String, rest: Vec<String> },
    /// A Warning event about the object.
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

    /// The body of a PATCH: a strategic merge for owner references, a JSON merge (also valid as a strategic one) for finalizers.
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

    /// The same change as a JSON merge patch of `live`, for kinds that answer a strategic one with 415 (custom resources).
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
