//! The actions of a plan, and what each tells people when it is done or fails.

use object::Value;
use object::access::name;

/// One request, with its precondition.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Ask the server itself whether the set is still this one, says what it said, and is being deleted, so that its dependents go with it, or is not: what
    /// no precondition can guard follows.
    ConfirmSet {
        uid: String,
        generation: i64,
        leaving: bool,
    },
    /// Make the set the controller (and a blocking owner).
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
    /// Take the set's reference away.
    ReleasePod {
        pod: String,
        uid: String,
    },
    CreateRevision(Value),
    /// A revision comes back into use: it becomes the newest.
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
    /// For a pod that is to be created (`with_pod`: its failure is the pod's too), or for one that waits for it. Where claims follow
    /// revisions it is created by server-side apply (`applied`), so that a later one can take away what this one gave.
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
    /// Server-side apply of what a revision says of a claim; the patch holds the precondition. `class` is the claim's storage class.
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
    /// Put identity labels back.
    LabelPod {
        pod: String,
        uid: String,
        resource_version: String,
        labels: Vec<(String, String)>,
    },
    /// `counted`: the planned status already counts it as gone from `currentReplicas`.
    DeletePod {
        pod: String,
        uid: String,
        /// The version that it must still be at: one that has become ready since must not go.
        resource_version: Option<String>,
        counted: bool,
    },
}

/// Something to tell about the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

impl Action {
    /// The claim that gets other owners.
    pub(super) fn owned_claim(&self) -> Option<&str> {
        match self {
            Action::OwnClaim { claim, .. } => Some(claim),
            _ => None,
        }
    }

    /// It writes an object that counts against the plan's allowance.
    pub fn is_growth(&self) -> bool {
        matches!(self, Action::CreatePod(_) | Action::CreateClaim { .. } | Action::ApplyClaim { .. })
    }

    /// What is told when it is done.
    pub fn done(&self, set: &str) -> Option<Event> {
        let normal = |reason, message| Some(Event { warning: false, reason, message });
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

    /// What is told when it fails.
    pub fn failed(&self, set: &str, error: &str) -> Vec<Event> {
        let warning = |reason, message| Event { warning: true, reason, message };
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
