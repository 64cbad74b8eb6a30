//! Garbage collection: objects whose owners are deleted are deleted too, unless they are to be orphaned.
//!
//! [`Graph`] is the state: it is fed with watch events (`apply`) and hands out work (`next_work`).
//! [`Graph::decide`] asks for live objects until it knows enough, then returns actions. A driver runs this
//! loop:
//!
//! ```text
//! while let Some(work) = graph.next_work() {
//!     let mut answers = Answers::default();
//!     let plan = loop {
//!         match graph.decide(&work, &answers) {
//!             Step::Ask(places) => GET each place, answers.insert(place, answer),
//!             Step::Do(plan) => break plan,
//!         }
//!     };
//!     for uid in &plan.gone { graph.apply(GraphEvent::Gone(uid, 0)) }
//!     run plan.actions in order, stop at the first error;
//!     graph.done(&work);
//!     after an error, or when plan.held.retries(): graph.requeue(work) after a back-off
//! }
//! ```
//!
//! The dependents are those in the graph, which may lag behind. So before a driver executes a plan that
//! [`CollectionPlan::releases`] an owner, it lists all objects and waits until the graph [`Graph::has_heard_of`] every
//! dependent. A dependent that the graph does not know yet would be deleted instead of orphaned, or outlive
//! an owner that must wait for it.

mod action;
mod decide;
mod graph;
#[cfg(test)]
mod tests;

pub use action::{Action, Policy};
pub use decide::{Answer, Answers, CollectionPlan, Held, Step};
pub use graph::{Graph, GraphEvent, Work};

use object::Value;
use object::access::{self, Access};
use std::fmt;
use std::sync::Arc;

/// Keeps an owner until its blocking dependents are deleted.
pub const FOREGROUND: &str = "foregroundDeletion";
/// Keeps an owner until its dependents no longer refer to it.
pub const ORPHAN: &str = "orphan";

pub type Uid = Arc<str>;

/// What a GET of an object needs. The namespace is that of the dependent; it is ignored for cluster-scoped
/// kinds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub api_version: Arc<str>,
    pub kind: Arc<str>,
    /// `""` for cluster-scoped objects.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl Place {
    /// The API group; all versions of a group have the same objects.
    fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    fn is_claim(&self) -> bool {
        &*self.kind == "PersistentVolumeClaim" && self.group().is_empty()
    }
}

/// One entry of `metadata.ownerReferences`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerRef {
    pub api_version: Arc<str>,
    pub kind: Arc<str>,
    pub name: Arc<str>,
    pub uid: Uid,
    /// `blockOwnerDeletion`.
    pub blocks: bool,
    /// In the graph: the version at which a known object got this owner; otherwise 0.
    pub since: u64,
}

impl OwnerRef {
    /// The place of an owner of a dependent in `namespace`.
    pub fn place(&self, namespace: &Arc<str>) -> Place {
        Place {
            api_version: self.api_version.clone(),
            kind: self.kind.clone(),
            namespace: namespace.clone(),
            name: self.name.clone(),
        }
    }

    fn written(&self, namespace: &str) -> String {
        let OwnerRef { api_version, kind, name, uid, .. } = self;
        format!("[{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}]")
    }
}

/// The metadata of an object that garbage collection needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    pub place: Place,
    pub uid: Uid,
    pub resource_version: String,
    pub owners: Vec<OwnerRef>,
    pub finalizers: Vec<String>,
    /// Whether it has a deletionTimestamp.
    pub deleting: bool,
}

impl Fact {
    /// Reads an object; a `PartialObjectMetadata` is enough. The kind is an argument, because a metadata-only
    /// watch does not carry it.
    pub fn of(api_version: &str, kind: &str, object: &Value) -> Fact {
        let owners = object.items(&["metadata", "ownerReferences"]).iter().map(|owner| OwnerRef {
            api_version: owner.text(&["apiVersion"]).into(),
            kind: owner.text(&["kind"]).into(),
            name: owner.text(&["name"]).into(),
            uid: owner.text(&["uid"]).into(),
            blocks: owner.flag(&["blockOwnerDeletion"]),
            since: 0,
        });
        let finalizers = object.items(&["metadata", "finalizers"]).iter().filter_map(Value::as_str);
        Fact {
            place: Place {
                api_version: api_version.into(),
                kind: kind.into(),
                namespace: access::namespace(object).into(),
                name: access::name(object).into(),
            },
            uid: access::uid(object).into(),
            resource_version: object.text(&["metadata", "resourceVersion"]).to_owned(),
            owners: owners.collect(),
            finalizers: finalizers.map(str::to_owned).collect(),
            deleting: access::terminating(object),
        }
    }

    pub fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers.iter().any(|finalizer| finalizer == name)
    }
    /// Terminating with the foreground finalizer: waits until its blocking dependents are deleted.
    pub fn waits_for_dependents(&self) -> bool {
        self.deleting && self.has_finalizer(FOREGROUND)
    }
    /// Terminating with the orphan finalizer: waits until its dependents no longer refer to it.
    pub fn waits_for_orphans(&self) -> bool {
        self.deleting && self.has_finalizer(ORPHAN)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { api_version, kind, namespace, name } = self;
        write!(f, "{api_version}/{kind} {namespace}/{name}")
    }
}
