//! The actions of a plan, and the events of their success or failure.

use object::Value;
use object::access::name;

/// One request with its precondition.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// GET the set and check that it has this uid and generation, and that it is (`leaving`) or is not being
    /// deleted with its dependents. Actions follow that no precondition of their own can guard.
    ConfirmSet {
        uid: String,
        generation: i64,
        leaving: bool,
    },
    /// Makes the set the controller, and an owner that blocks deletion.
    AdoptPod {
        pod: String,
        uid: String,
        resource_version: String,
    },
    AdoptRevision {
        revision: String,
        uid: String,
        resource_version: String,
    },
    /// Removes the set's owner reference.
    ReleasePod {
        pod: String,
        uid: String,
    },
    CreateRevision(Value),
    /// An older revision is used again: it gets the highest number.
    RenumberRevision {
        revision: String,
        uid: String,
        resource_version: String,
        number: i64,
    },
    DeleteRevision {
        revision: String,
        uid: String,
    },
    /// Creates a claim for a pod that is created next (`with_pod`: its failure is reported for the pod, too),
    /// or for one that waits for it. If claims follow revisions, it is created by server-side apply
    /// (`applied`), so that a later apply can remove fields.
    CreateClaim {
        claim: Value,
        pod: String,
        with_pod: bool,
        applied: bool,
    },
    /// Asks the server whether it would admit an `ApplyClaim` (a dry run). It changes nothing.
    CheckClaim {
        patch: Value,
        pod: String,
        with_pod: bool,
        class: String,
    },
    /// Server-side apply of a revision's claim template; the patch has the preconditions. `class` is the claim's StorageClass.
    ApplyClaim {
        patch: Value,
        pod: String,
        with_pod: bool,
        class: String,
    },
    /// Sets all owner references of a claim.
    OwnClaim {
        claim: String,
        uid: String,
        resource_version: String,
        owners: Vec<Value>,
        pod: String,
    },
    CreatePod(Value),
    /// Restores the identity labels.
    LabelPod {
        pod: String,
        uid: String,
        resource_version: String,
        labels: Vec<(String, String)>,
    },
    /// `counted`: the planned status already excludes the pod from `currentReplicas`.
    DeletePod {
        pod: String,
        uid: String,
        /// The required resourceVersion: a pod that has become ready since must not be deleted.
        resource_version: Option<String>,
        counted: bool,
    },
}

/// An event about the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetEvent {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

impl Action {
    /// The claim whose owners this changes.
    pub(super) fn owned_claim(&self) -> Option<&str> {
        match self {
            Action::OwnClaim { claim, .. } => Some(claim),
            _ => None,
        }
    }

    /// Whether it writes an object that counts against the plan's allowance.
    pub fn is_growth(&self) -> bool {
        matches!(self, Action::CreatePod(_) | Action::CreateClaim { .. } | Action::ApplyClaim { .. })
    }

    /// The event when it succeeds.
    pub fn done(&self, set: &str) -> Option<SetEvent> {
        let normal = |reason, message| Some(SetEvent { warning: false, reason, message });
        match self {
            Action::CreateClaim { claim, pod, .. } => normal(
                "SuccessfulCreate",
                format!("Create Claim {} Pod {pod} in StatefulSet {set} success", name(claim)),
            ),
            Action::ApplyClaim { patch, pod, .. } => {
                let message = format!("Update Claim {} Pod {pod} in StatefulSet {set} success", name(patch));
                normal("SuccessfulUpdate", message)
            }
            Action::CreatePod(pod) => {
                normal("SuccessfulCreate", format!("Create Pod {} in StatefulSet {set} successful", name(pod)))
            }
            Action::LabelPod { pod, .. } => {
                normal("SuccessfulUpdate", format!("Update Pod {pod} in StatefulSet {set} successful"))
            }
            Action::DeletePod { pod, .. } => {
                normal("SuccessfulDelete", format!("Delete Pod {pod} in StatefulSet {set} successful"))
            }
            _ => None,
        }
    }

    /// The events when it fails.
    pub fn failed(&self, set: &str, error: &str) -> Vec<SetEvent> {
        let warning = |reason, message| SetEvent { warning: true, reason, message };
        let pod_create = |pod: &str, error: &str| {
            warning("FailedCreate", format!("Create Pod {pod} in StatefulSet {set} failed error: {error}"))
        };
        match self {
            Action::CreateClaim { claim, pod, with_pod, .. } => {
                let claim = name(claim);
                let message = format!("Create Claim {claim} for Pod {pod} in StatefulSet {set} failed error: {error}");
                let mut events = vec![warning("FailedCreate", message)];
                if *with_pod {
                    events.push(pod_create(pod, &format!("failed to create PVC {claim}: {error}")));
                }
                events
            }
            Action::CheckClaim { patch, pod, with_pod, .. } | Action::ApplyClaim { patch, pod, with_pod, .. } => {
                let claim = name(patch);
                let message = format!(
                    "Update Claim {claim} for Pod {pod} in StatefulSet {set} failed error: {}",
                    super::claims_in_place::refusal(self, error)
                );
                let mut events = vec![warning("FailedUpdate", message)];
                if *with_pod {
                    events.push(pod_create(pod, &format!("failed to update PVC {claim}: {error}")));
                }
                events
            }
            Action::CreatePod(pod) => vec![pod_create(name(pod), error)],
            Action::OwnClaim { claim, pod, .. } => vec![warning(
                "FailedUpdate",
                format!(
                    "Update Pod {pod} in StatefulSet {set} failed error: could not update claim {claim} for delete policy \
                     ownerRefs: {error}"
                ),
            )],
            Action::LabelPod { pod, .. } => {
                vec![warning("FailedUpdate", format!("Update Pod {pod} in StatefulSet {set} failed error: {error}"))]
            }
            Action::DeletePod { pod, .. } => {
                vec![warning("FailedDelete", format!("Delete Pod {pod} in StatefulSet {set} failed error: {error}"))]
            }
            _ => Vec::new(),
        }
    }
}
