//! StatefulSets: what to do about one set, from what is seen of it.
//!
//! The plan leaves nothing to choose: names, revisions, owners and preconditions are in the actions, and an action that meets another
//! world than the one it was planned for is refused by its precondition. A half-done plan is harmless: the next one starts from what is
//! seen then.

mod action;

pub use action::{Action, Event};

use jiff::Timestamp;
use object::Value;

/// What is seen of a set. Each list may hold more than the set's own: the plan sorts that out.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    pub set: &'a Value,
    /// The pods that the set controls, and every pod whose name is the set's with an ordinal.
    pub pods: &'a [&'a Value],
    /// The claims whose names follow the set's scheme: a template's name, the set's, an ordinal.
    pub claims: &'a [&'a Value],
    /// The revisions that the set controls, those without controller beside it, and every one whose name begins with the set's.
    pub revisions: &'a [&'a Value],
}

/// What to do, in this order: `prepare`, `stages`, the status, `cleanup`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Adoptions, releases, revisions: one after the other. When one fails, nothing more happens and the status is not written, but
    /// `cleanup` is still done.
    pub prepare: Vec<Action>,
    /// One after the other. A stage with a failure is the last; the status is written all the same.
    pub stages: Vec<Stage>,
    /// The set with its new status, for its `/status`, when anything changed.
    pub status: Option<Value>,
    /// Old history. Failures there fail nothing else.
    pub cleanup: Vec<Action>,
    /// Why not more is done.
    pub held: Vec<Held>,
    /// What people should know, beyond what the actions say by themselves.
    pub events: Vec<Event>,
    /// Look again then, if nothing happens before.
    pub next: Option<Timestamp>,
    /// Figures for the metrics: the budget of unavailable replicas, and how many are unavailable.
    pub max_unavailable: Option<i64>,
    pub unavailable: Option<i64>,
}

/// Lanes that may go on at once; they have nothing to do with each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stage {
    pub lanes: Vec<Lane>,
}

/// Steps one after the other. All actions of a step are attempted; a step with a failure is the lane's last.
pub type Lane = Vec<Vec<Action>>;

/// Why a replica, or the whole set, waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Held {
    /// The set is being deleted: its pods and claims are the collector's.
    Deleting,
    /// Ordered: this pod must be running, ready and available before anything after it happens.
    NotReady { pod: String },
    /// The pod that bears this name is on its way out.
    Terminating { pod: String },
    /// A pod that is not the set's bears a replica's name.
    NameTaken { pod: String, by: String },
    /// A claim belongs to the pod that went before, or is on its way out: it must be gone first.
    ClaimLeaving { pod: String, claim: String },
    /// The budget of unavailable replicas is used up.
    Budget { unavailable: i64, max: i64 },
    /// What is wrong with the set's own words; nothing happens until they change.
    Unusable { why: String },
}

impl Plan {
    /// The set with the status to write, when some actions failed: a pod whose deletion failed is not gone after all.
    pub fn status_after<'a>(&self, failed: impl IntoIterator<Item = &'a Action>) -> Option<Value> {
        use object::access::Access;
        let mut set = self.status.clone()?;
        let kept =
            failed.into_iter().filter(|action| matches!(action, Action::DeletePod { counted: true, .. })).count();
        if kept > 0 {
            let current = set.int(&["status", "currentReplicas"]).unwrap_or(0);
            set.put(&["status", "currentReplicas"], current + i64::try_from(kept).unwrap_or(i64::MAX));
        }
        Some(set)
    }
}
