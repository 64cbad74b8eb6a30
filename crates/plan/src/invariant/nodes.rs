//! Invariants: only pods of lost nodes are terminated by others than their kubelet, and no volume is used on
//! two nodes.

use super::replicas::{is_running, may_run};
use super::{Change, Checker, Who};
use crate::podgc::{NodeState, may_detach};
use crate::protect::claims_of;
use jiff::Timestamp;
use object::Value;
use object::access::{Access, controller, name, namespace, terminating, uid};
use std::collections::BTreeMap;

/// When lost nodes returned to service.
#[derive(Default)]
pub(super) struct Nodes {
    /// The time when a lost node returned to service, by name.
    back_since: BTreeMap<String, Timestamp>,
}

impl Checker {
    pub(super) fn node(&mut self, change: &Change<'_>) {
        let Some(node) = change.object() else { return };
        let (before, after) = (NodeState::of(change.before.as_deref()), NodeState::of(change.after.as_deref()));
        if before.is_lost() && !after.is_lost() {
            self.nodes.back_since.insert(name(node).to_owned(), change.now);
        }
    }

    /// Whether the node is lost, or was a moment ago: a request may have been sent before it returned.
    fn is_lost(&self, node: &str, now: Timestamp) -> bool {
        let state = NodeState::of(self.get("Node", "", node).map(AsRef::as_ref));
        state.is_lost() || self.nodes.back_since.get(node).is_some_and(|back| *back >= self.since(now))
    }

    pub(super) fn ended_by_others(&self, change: &Change<'_>) -> Option<String> {
        let (before, after) = (change.before.as_deref()?, change.after.as_deref()?);
        let (node, who) = (after.text(&["spec", "nodeName"]), change.who);
        let ends = may_run(before) && !may_run(after);
        if !ends || who == Who::User || who.is(&format!("system:node:{node}")) || self.is_lost(node, change.now) {
            return None;
        }
        Some(format!(
            "the pod {} may run on {node}, which is in service, and {} set it to terminated",
            name(after),
            who.text()
        ))
    }

    /// Replicas of sets do not share volumes; pods of users may.
    pub(super) fn shares_volume(&self, change: &Change<'_>) -> Option<String> {
        let pod = change.after.as_deref().filter(|pod| is_running(pod) && is_of_set(pod))?;
        if change.before.as_deref().is_some_and(is_running) {
            return None;
        }
        let node = |pod: &Value| pod.text(&["spec", "nodeName"]).to_owned();
        let claims: Vec<String> = claims_of(pod).collect();
        let mut others = self.all("Pod").filter(|other| namespace(other) == namespace(pod) && uid(other) != uid(pod));
        let other = others.find(|other| {
            is_running(other)
                && is_of_set(other)
                && node(other) != node(pod)
                && claims_of(other).any(|it| claims.contains(&it))
        })?;
        Some(format!("a volume of {} on {} is in use by {} on {}", name(pod), node(pod), name(other), node(other)))
    }

    pub(super) fn attachment(&self, change: &Change<'_>) -> Option<String> {
        let attachment = change.before.as_deref().filter(|attachment| !terminating(attachment))?;
        let is_kept = change.after.as_deref().is_some_and(|after| !terminating(after));
        if is_kept || change.who == Who::User {
            return None;
        }
        let node = attachment.text(&["spec", "nodeName"]);
        let volume = self.get("PersistentVolume", "", attachment.text(&["spec", "source", "persistentVolumeName"]));
        let pods: Vec<&Value> =
            self.all("Pod").map(AsRef::as_ref).filter(|pod| pod.text(&["spec", "nodeName"]) == node).collect();
        let is_free = may_detach(volume.map(AsRef::as_ref), &pods);
        (!is_free || !self.is_lost(node, change.now)).then(|| {
            format!(
                "{} detaches the volume {} from {node}, where it may be in use",
                change.who.text(),
                name(attachment)
            )
        })
    }
}

fn is_of_set(pod: &Value) -> bool {
    controller(pod).is_some_and(|owner| owner.text(&["kind"]) == "StatefulSet")
}
