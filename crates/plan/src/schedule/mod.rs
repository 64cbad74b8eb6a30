//! Scheduling: the choice of a node for a pod, from nodes, pods, claims, PVs and classes.
//!
//! The cluster is an index that one task updates; a decision is a pure function of it. A decision visits each
//! node once, and pods only if the pod's own rules refer to them.

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

/// The taint of a cordoned node; pods that tolerate it may be scheduled there.
const CORDONED: &str = "node.kubernetes.io/unschedulable";

/// The decision about a pending pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Nothing: it does not need a node, or a scheduling gate is set.
    Leave,
    Bind(Arc<str>),
    /// The pod gets this node when its claims are bound: first write these steps (if there are none, wait for
    /// the binder).
    Prepare(Arc<str>, Vec<Step>),
    Unschedulable(Unschedulable),
}

/// Decides about a pod. A reserved node is kept as long as it fits.
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

/// The order of fitting nodes: the smallest is best. Ties are broken by name.
type Rank = (Reverse<i64>, usize, i64, usize);

/// A pod with all facts that are the same for every node.
struct Candidate<'a> {
    cluster: &'a Cluster,
    key: &'a Key,
    pod: &'a Pod,
    wants: &'a Wants,
    needs: Needs<'a>,
    neighbours: Neighbours,
}

impl Candidate<'_> {
    /// The steps to write about volumes first, or why the node does not fit, in the order in which reasons
    /// are reported.
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
        // Its own reservation does not count.
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
