//! Invariants: no ordinal runs twice, and never more replicas are unavailable than the budget allows.

use super::sets::ordinal;
use super::{Change, Checker, Who};
use crate::protect::claims_of;
use jiff::Timestamp;
use object::access::{Access, controller, name, namespace, terminating, uid};
use object::{Value, condition};

impl Checker {
    pub(super) fn pod(&mut self, change: &Change<'_>) -> Vec<String> {
        let mut broken = Vec::new();
        if let Some(pod) = &change.after
            && !pod.text(&["spec", "nodeName"]).is_empty()
        {
            let at = self.changes;
            self.placed.entry(uid(pod).to_owned()).or_insert(at);
        }
        if change.before.is_none() {
            broken.extend(self.runs_elsewhere(change));
        }
        if let Some(pod) = change.object().filter(|_| change.condemns()) {
            self.pods_told.insert(uid(pod).to_owned(), change.now);
        }
        if let Some(pod) = change.removes() {
            self.placed.remove(uid(pod));
            // The pod's own kubelet knows that it has terminated.
            let node = format!("system:node:{}", pod.text(&["spec", "nodeName"]));
            if change.who != Who::User && !change.who.is(&node) && may_run(pod) {
                let (pod, who) = (name(pod), change.who.text());
                broken.push(format!(
                    "the pod {pod} is removed by {who} while it may run: another pod of its name could run at the same time"
                ));
            }
        }
        broken.extend(self.ended_by_others(change));
        broken.extend(self.shares_volume(change));
        broken.extend(self.starts_without_claim(change));
        broken.extend(self.flight(change));
        broken
    }

    /// Protection removes a claim's finalizer when no scheduled pod uses it; a kubelet must not start a pod
    /// that was scheduled after that.
    fn starts_without_claim(&self, change: &Change<'_>) -> Option<String> {
        let pod = change.after.as_deref().filter(|pod| is_running(pod))?;
        if change.before.as_deref().is_none_or(is_running) {
            return None;
        }
        let is_there = |claim: &String| self.get("PersistentVolumeClaim", namespace(pod), claim).is_some();
        let missing = claims_of(pod).find(|claim| !is_there(claim))?;
        Some(format!("the pod {} starts without its claim {missing}", name(pod)))
    }

    fn runs_elsewhere(&self, change: &Change<'_>) -> Option<String> {
        let pod = change.after.as_deref()?;
        let (set, number) = ordinal(name(pod))?;
        let runs = |(place, twin): &(String, String)| {
            let other = self.get("Pod", place, &format!("{twin}-{number}"));
            other.is_some_and(|other| !matches!(other.text(&["status", "phase"]), "Succeeded" | "Failed"))
        };
        let (place, twin) = self.sets.twins(namespace(pod), set).into_iter().find(runs)?;
        Some(format!("the ordinal {number} runs twice: {}/{} and {place}/{twin}-{number}", namespace(pod), name(pod)))
    }

    /// Tracks the replicas that the controller has deleted, and checks their number against the budget.
    fn flight(&mut self, change: &Change<'_>) -> Option<String> {
        let pod = change.object()?;
        let (_, number) = ordinal(name(pod))?;
        let since = self.since(change.now);
        let owner = controller(pod).filter(|owner| owner.text(&["kind"]) == "StatefulSet")?;
        let history = self.sets.get_mut(owner.text(&["uid"]))?;
        let in_range = history.wants().is_some_and(|wants| wants.ordinals.contains(&number));
        if change.after.as_deref().is_some_and(works) && history.away.get(&number).is_some_and(|gone| gone != uid(pod))
        {
            history.away.remove(&number);
        }
        let taken = change.condemns() && change.who.is(Who::SETS) && change.before.as_deref().is_some_and(works);
        let there_since = pod.text(&["metadata", "creationTimestamp"]).parse().unwrap_or(Timestamp::MAX);
        if !taken || !in_range || history.gave_up_lately(number, there_since, since) {
            return None;
        }
        history.away.insert(number, uid(pod).to_owned());
        let away: Vec<i64> = history.away.keys().copied().collect();
        let max = history.budget(since);
        let is_over = i64::try_from(away.len()).is_ok_and(|count| count > max);
        is_over.then(|| format!("the ordinals {away:?} are unavailable at once, with a budget of {max}"))
    }
}

fn works(pod: &Value) -> bool {
    !terminating(pod)
        && pod.text(&["status", "phase"]) == "Running"
        && condition::get(pod, "Ready").is_some_and(|ready| ready.text(&["status"]) == "True")
}

pub(super) fn is_running(pod: &Value) -> bool {
    let mut containers = pod.items(&["status", "containerStatuses"]).iter();
    !is_over(pod) && containers.any(|container| container.has(&["state", "running"]))
}

/// Whether the kubelet may have started the pod, even if the status does not say so yet.
pub(super) fn may_run(pod: &Value) -> bool {
    !is_over(pod) && !pod.text(&["spec", "nodeName"]).is_empty()
}

fn is_over(pod: &Value) -> bool {
    matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed")
}
