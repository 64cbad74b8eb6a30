//! Scheduling: which node a pod goes to, from what is seen of nodes, pods, claims, volumes and classes.
//!
//! The cluster is an index that one task keeps; a decision is a pure function of it. Deciding costs what the pod asks about: a look at
//! each node, and at pods only where the pod's own rules speak of them.

mod cluster;
mod facts;
mod others;
mod selector;
pub mod taint;
#[cfg(test)]
mod tests;
mod volumes;
mod why;

pub use cluster::{Cluster, Moved, Taken};
pub use facts::{ClaimUse, HostPort, Pod, Requests, Said, Standing, claims_of, key};
pub use volumes::{Claim, Step, Volumes};
pub use why::{Helps, Unschedulable};

use facts::{Node, Wants};
use object::access::Access;
use others::Neighbours;
use std::cmp::Reverse;
use std::sync::Arc;
use taint::{Effect, Taint};
use volumes::Needs;
use why::Reason;

/// Namespace and name.
pub type Key = (Arc<str>, Arc<str>);

/// The taint that a cordoned node has; who tolerates it may go there all the same.
const CORDONED: &str = "node.kubernetes.io/unschedulable";

/// What to do about a pod that waits.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// It does not wait for a node, or is held back by a scheduling gate.
    Leave,
    Bind(Arc<str>),
    /// It goes to this node once its claims are bound: first write these steps (none: wait for those who bind).
    Prepare(Arc<str>, Vec<Step>),
    Unschedulable(Unschedulable),
}

/// Decides where a pod goes. A place that is reserved for it is kept as long as it does.
pub fn decide(cluster: &Cluster, key: &Key) -> Decision {
    let Some(pod) = cluster.pod(key) else { return Decision::Leave };
    let Some(wants) = pod.wants.as_ref().filter(|wants| !wants.gated) else { return Decision::Leave };
    let nodes = cluster.nodes.len();
    let is_placed = |other: &Key| cluster.pod(other).is_some_and(|pod| pod.standing.node().is_some());
    let needs = match cluster.volumes.needs(key, pod, is_placed) {
        Ok(needs) => needs,
        Err(why) => return Decision::Unschedulable(Unschedulable::anywhere(nodes, &why)),
    };
    let candidate = Candidate { cluster, key, pod, wants, needs, neighbours: Neighbours::of(cluster, key, pod, wants) };
    let reserved = match &pod.standing {
        Standing::Reserved(node) => cluster.nodes.get_key_value(node),
        _ => None,
    };
    if let Some((name, node)) = reserved
        && let Ok(steps) = candidate.judge(name, node)
    {
        return candidate.settle(name, steps);
    }
    let mut reasons = Vec::new();
    let mut best: Option<(Rank, &Arc<str>, Vec<Step>)> = None;
    for (name, node) in &cluster.nodes {
        match candidate.judge(name, node) {
            Ok(steps) => {
                let rank = candidate.rank(name, node);
                if best.as_ref().is_none_or(|(least, ..)| rank < *least) {
                    best = Some((rank, name, steps));
                }
            }
            Err(more) => reasons.extend(more),
        }
    }
    match best {
        Some((_, name, steps)) => candidate.settle(name, steps),
        None => Decision::Unschedulable(Unschedulable::everywhere(nodes, reasons)),
    }
}

/// What makes one node better than another that does as well: smaller is better. Names, which come in order, break ties.
type Rank = (Reverse<i64>, usize, i64, usize);

/// A pod, with all about it that is the same for every node.
struct Candidate<'a> {
    cluster: &'a Cluster,
    key: &'a Key,
    pod: &'a Pod,
    wants: &'a Wants,
    needs: Needs<'a>,
    neighbours: Neighbours,
}

impl Candidate<'_> {
    /// Why the node does not do, in the order in which people are told; otherwise what to write about volumes first.
    fn judge(&self, name: &Arc<str>, node: &Node) -> Result<Vec<Step>, Vec<Reason>> {
        let tolerations = self.wants.spec.items(&["tolerations"]);
        if node.unschedulable && !Taint::plain(CORDONED).is_tolerated(tolerations) {
            return Err(vec![Reason::Cordoned]);
        }
        if let Some(taint) = node.hard_taints().find(|taint| !taint.is_tolerated(tolerations)) {
            return Err(vec![Reason::Taint { key: taint.key.clone(), value: taint.value.clone() }]);
        }
        if !selector::suits(&self.wants.spec, name, node) {
            return Err(vec![Reason::NodeAffinity]);
        }
        self.room(name, node)?;
        let steps = self.cluster.volumes.fit(&self.needs, name, node).map_err(|reason| vec![reason])?;
        match self.neighbours.judge(node) {
            Some(reason) => Err(vec![reason]),
            None => Ok(steps),
        }
    }

    fn room(&self, name: &Arc<str>, node: &Node) -> Result<(), Vec<Reason>> {
        let nothing = Taken::default();
        let taken = self.cluster.taken(name).unwrap_or(&nothing);
        // A reservation of its own is no hindrance.
        let own = taken.pods.contains(self.key);
        let (mut used, mut count) = (taken.requests.clone(), taken.pods.len());
        if own {
            used.subtract(&self.pod.requests);
            count -= 1;
        } else if self.pod.ports.iter().any(|port| taken.ports.iter().any(|other| port.meets(other))) {
            return Err(vec![Reason::Ports]);
        }
        let mut reasons = Vec::new();
        if i128::try_from(count).unwrap_or(i128::MAX) >= node.pods_max {
            reasons.push(Reason::TooManyPods);
        }
        let lacking = node.allocatable.lacking(&used, &self.pod.requests);
        reasons.extend(lacking.into_iter().map(|name| Reason::Insufficient(name.to_owned())));
        if reasons.is_empty() { Ok(()) } else { Err(reasons) }
    }

    fn rank(&self, name: &Arc<str>, node: &Node) -> Rank {
        let tolerations = self.wants.spec.items(&["tolerations"]);
        let disliked = node.taints.iter().filter(|taint| taint.effect == Effect::PreferNoSchedule);
        let disliked = disliked.filter(|taint| !taint.is_tolerated(tolerations)).count();
        let pods = self.cluster.taken(name).map_or(0, |taken| taken.pods.len());
        let liking = selector::liking(&self.wants.spec, name, node).saturating_add(self.neighbours.liking(node));
        (Reverse(liking), disliked, self.neighbours.crowd(node), pods)
    }

    fn settle(&self, name: &Arc<str>, steps: Vec<Step>) -> Decision {
        if self.needs.all_bound() { Decision::Bind(name.clone()) } else { Decision::Prepare(name.clone(), steps) }
    }
}
