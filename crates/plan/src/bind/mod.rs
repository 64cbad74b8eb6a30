//! Binding claims to volumes: what to do about one claim, or about one volume, from what is seen.
//!
//! A pair points at each other: `claimRef` in the volume, `volumeName` in the claim. Four writes make a pair, in an order in which
//! stopping after any of them does no harm: the next plan goes on from there. Each write is of exactly the version that was seen, so
//! of two claims that want one volume the second is refused and plans anew.

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

/// Annotation of a claim: it was bound once. What happens to it from then on is not about finding a volume any more.
pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Annotation of a claim or volume: its pointer at the other was written by us, not by a user, so we may take it back.
pub const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// Annotation of a volume that was made for a claim: by whom.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Annotations of a claim: who is to make a volume for it.
pub const STORAGE_PROVISIONERS: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];
/// Annotation of a claim: the node of its first pod, for which a volume may be made now.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Annotation of a claim: the uid of a volume that it was about to get, and that was told to go before it had it.
pub const WITHDRAWN: &str = object::well_known::WITHDRAWN_VOLUME;
/// Annotation of a volume that was expanded, but not yet its file system: the size before.
pub const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";

/// What a plan looks at beside the object that it is about.
pub trait Seen {
    fn volume(&self, name: &str) -> Option<Arc<Value>>;
    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<Value>>;
    fn class(&self, name: &str) -> Option<Arc<Value>>;
    /// Whether the claim of this uid was seen to go, and never had a volume.
    fn went_without(&self, claim_uid: &str) -> bool;
    /// The name of the default class in effect.
    fn default_class(&self) -> Option<String>;
    /// The volumes whose `claimRef` is of this name.
    fn reserved(&self, namespace: &str, claim: &str) -> Vec<Arc<Value>>;
    /// The first volume on a shelf, from a size on, that `takes` accepts: shelves are sorted by size.
    fn first(&self, from: &Place, takes: &dyn Fn(&Value) -> bool) -> Option<Arc<Value>>;
    /// The names of the pods that name this claim and are on no node yet.
    fn waiting_pods(&self, namespace: &str, claim: &str) -> Vec<String>;
}

/// What to do: the actions one after the other, then the rest. When an action fails or finds a world that is not the one planned for,
/// nothing more is done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub events: Vec<Event>,
    /// The claim that has to do something about the volume.
    pub wake: Option<Target>,
    /// The claim waits for a free volume.
    pub waits: bool,
    /// The volume is free: a claim that waits may take it.
    pub offers: bool,
    /// Who is asked to make a volume for the claim.
    pub provisioner: Option<String>,
    /// The claim is given a class that became the default after it was created.
    pub retroactive: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A merge patch, of exactly the version seen; or, where an earlier action changed the same object, of the version that came of it.
    Patch {
        of: Target,
        status: bool,
        patch: Value,
    },
    /// Ask the server itself whether the claim let go of the volume: it is gone, or names another one. Else all is different.
    ConfirmReleased {
        claim: Target,
        volume: String,
    },
    /// Ask the server itself whether there is really no volume of this name.
    ConfirmNoVolume {
        name: String,
    },
    /// Ask the server itself whether the volume is still the one that was seen: what follows cannot be undone.
    ConfirmVolume {
        of: Target,
        version: String,
    },
    /// Ask the server's history whether a volume of this name was retained when it went, since a version. Then this one came late, and what it
    /// stands for is not its own to delete.
    ConfirmNotRetained {
        volume: Target,
        since: String,
    },
    /// Ask the server itself whether pods still use a claim that is gone. Then recycling waits.
    ConfirmNoPods {
        namespace: String,
        claim: String,
        volume: Target,
    },
    /// Save the volume that stands for a directory, which is made afterwards: what nobody names would be left behind. Where the claim is for
    /// a node, the node must be there.
    Provision {
        claim: Target,
        class: String,
        node: Option<String>,
        volume: Value,
    },
    /// Make a volume's directory. One that is there already is as good.
    Make {
        class: String,
        directory: String,
    },
    /// Remove a volume's directory with all that is in it.
    Destroy {
        volume: Target,
        directory: String,
    },
    /// Remove all that is in a volume's directory.
    Scrub {
        volume: Target,
        directory: String,
    },
    DeleteVolume {
        of: Target,
    },
}

/// A claim, or a volume (without namespace), and which one exactly.
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
    /// The claim that a volume's `claimRef` names.
    pub fn claim_of(volume: &Value) -> Option<Target> {
        let reference = volume.at(&["spec", "claimRef"])?;
        let text = |field| reference.text(&[field]).to_owned();
        Some(Target { namespace: text("namespace"), name: text("name"), uid: text("uid") })
    }
    pub fn is_volume(&self) -> bool {
        self.namespace.is_empty()
    }
}

/// Something to tell about a claim or volume.
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

/// Whether a claim was bound once.
pub fn is_bound(claim: &Value) -> bool {
    claim.has(&["metadata", "annotations", BIND_COMPLETED])
}

/// Whether a volume's `claimRef` is of this claim: the same name, and the same uid where it gives one.
fn is_reserved_for(volume: &Value, claim: &Value) -> bool {
    Target::claim_of(volume).is_some_and(|of| {
        of.name == name(claim) && of.namespace == namespace(claim) && (of.uid.is_empty() || of.uid == uid(claim))
    })
}
