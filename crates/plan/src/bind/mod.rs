//! Plans the binding of claims to volumes: what to do about one claim or one volume.
//!
//! A bound pair references each other: `claimRef` in the volume, `volumeName` in the claim. Four writes bind a pair, in
//! an order in which a crash after any of them does no harm: the next plan continues there. Each write has the seen
//! resource version as its precondition, so of two claims that want one volume the second gets a conflict and plans
//! again.

mod claim;
mod matching;
pub(crate) mod pair;
mod provision;
mod volume;
mod waiting;

#[cfg(test)]
pub(crate) mod tests;

pub use claim::plan as claim;
pub use matching::{Place, Wanted, place};
pub use provision::{failed as provision_failed, node_gone};
pub use volume::plan as volume;
pub use waiting::Waiting;

use object::Value;
use object::access::{Access, name, namespace, uid};
use std::sync::Arc;

/// Annotation of a claim: it was bound once. From then on no other volume is searched for it.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Annotation of a claim or volume: the controller, not a user, wrote the reference to the other, so it may remove it.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// Annotation of a provisioned volume: its provisioner.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Annotations of a claim: the provisioner that is to create a volume for it.
pub const STORAGE_PROVISIONERS: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];
/// Annotation of a claim: the node selected for its first pod. Provisioning may begin.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Annotation of a claim: the uid of a volume that was deleted while it was being bound to the claim.
pub const WITHDRAWN: &str = object::well_known::WITHDRAWN_VOLUME;
/// Annotation of a volume whose file system is still to be expanded: the size before.
pub const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";

/// The objects that a plan reads beside its own.
pub trait Seen {
    fn volume(&self, name: &str) -> Option<Arc<Value>>;
    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<Value>>;
    fn class(&self, name: &str) -> Option<Arc<Value>>;
    /// Whether the claim with this uid was deleted and never had a volume.
    fn went_without(&self, claim_uid: &str) -> bool;
    /// The name of the default class in effect.
    fn default_class(&self) -> Option<String>;
    /// The volumes whose `claimRef` has this namespace and name.
    fn reserved(&self, namespace: &str, claim: &str) -> Vec<Arc<Value>>;
    /// The first volume on a shelf, from a size upwards, that `takes` accepts. Shelves are sorted by size.
    fn first(&self, from: &Place, takes: &dyn Fn(&Value) -> bool) -> Option<Arc<Value>>;
    /// The pods that use this claim and have no node yet.
    fn waiting_pods(&self, namespace: &str, claim: &str) -> Vec<String>;
}

/// What to do: the actions in order, then the rest. If an action fails or finds that the objects have changed, the rest
/// of the plan is dropped.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub events: Vec<Event>,
    /// The claim to requeue.
    pub wake: Option<Target>,
    /// The claim waits for an available volume.
    pub waits: bool,
    /// The volume is available: a waiting claim may take it.
    pub offers: bool,
    /// The provisioner that is asked for a volume.
    pub provisioner: Option<String>,
    /// The claim gets a class that became the default after its creation.
    pub retroactive: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A merge patch. Its precondition is the version seen, or the version that an earlier action of this plan wrote.
    Patch {
        of: Target,
        status: bool,
        patch: Value,
    },
    /// Check with the server that the claim was deleted or names another volume. If not, plan again.
    ConfirmReleased {
        claim: Target,
        volume: String,
    },
    /// Check with the server that no volume has this name.
    ConfirmNoVolume {
        name: String,
    },
    /// Check with the server that the volume is unchanged, because the next action cannot be undone.
    ConfirmVolume {
        of: Target,
        version: String,
    },
    /// Check with the server's history whether a volume of this name was deleted with the policy `Retain` since a
    /// version. Then a late request created this one again, and the directory must be kept.
    ConfirmNotRetained {
        volume: Target,
        since: String,
    },
    /// Check with the server whether pods still use a deleted claim. Recycling waits for them.
    ConfirmNoPods {
        namespace: String,
        claim: String,
        volume: Target,
    },
    /// Create the PV of a directory. The directory is created afterwards, so that none is left without a PV. If the
    /// claim has a selected node, that node must exist.
    Provision {
        claim: Target,
        class: String,
        node: Option<String>,
        volume: Value,
    },
    /// Create a volume's directory. Succeeds if it exists.
    Make {
        class: String,
        directory: String,
    },
    /// Remove a volume's directory and its content.
    Destroy {
        volume: Target,
        directory: String,
    },
    /// Remove the content of a volume's directory.
    Scrub {
        volume: Target,
        directory: String,
    },
    DeleteVolume {
        of: Target,
    },
}

/// A claim, or a volume (without namespace), with its uid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl Target {
    pub fn of(object: &Value) -> Target {
        Target { namespace: namespace(object).into(), name: name(object).into(), uid: uid(object).into() }
    }
    /// The claim that a volume's `claimRef` references.
    pub fn claim_of(volume: &Value) -> Option<Target> {
        let reference = volume.at(&["spec", "claimRef"])?;
        let text = |field| reference.text(&[field]).to_owned();
        Some(Target { namespace: text("namespace"), name: text("name"), uid: text("uid") })
    }
    pub fn is_volume(&self) -> bool {
        self.namespace.is_empty()
    }
}

/// A Kubernetes event on a claim or volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub about: Target,
    pub warning: bool,
    pub reason: &'static str,
    pub message: String,
}

impl Plan {
    pub(crate) fn normal(mut self, about: &Value, reason: &'static str, message: impl Into<String>) -> Plan {
        self.events.push(Event { about: Target::of(about), warning: false, reason, message: message.into() });
        self
    }
    pub(crate) fn warning(mut self, about: &Value, reason: &'static str, message: impl Into<String>) -> Plan {
        self.events.push(Event { about: Target::of(about), warning: true, reason, message: message.into() });
        self
    }
    pub(crate) fn then(mut self, actions: impl IntoIterator<Item = Action>) -> Plan {
        self.actions.extend(actions);
        self
    }
}

pub(crate) fn annotation<'a>(object: &'a Value, key: &str) -> &'a str {
    object.text(&["metadata", "annotations", key])
}

/// Whether a claim was ever bound.
pub fn is_bound(claim: &Value) -> bool {
    claim.has(&["metadata", "annotations", BIND_COMPLETED])
}

/// Whether a volume's `claimRef` references this claim: the same namespace and name, and the same uid if it has one.
fn is_reserved_for(volume: &Value, claim: &Value) -> bool {
    Target::claim_of(volume).is_some_and(|of| {
        of.name == name(claim) && of.namespace == namespace(claim) && (of.uid.is_empty() || of.uid == uid(claim))
    })
}
