//! Invariants: no claim is deleted unless its policy or a user says so, none is removed while a pod uses it,
//! none shrinks.

use super::{Change, Checker, Who, bytes};
use crate::protect::holds;
use object::Value;
use object::access::{Access, name, namespace, terminating, uid};

impl Checker {
    pub(super) fn claim(&mut self, change: &Change<'_>) -> Vec<String> {
        let mut broken = Vec::new();
        if let (None, Some(claim)) = (&change.before, &change.after)
            && change.who.is(Who::SETS)
            && claim.items(&["metadata", "ownerReferences"]).iter().any(|owner| self.sets.ends(owner.text(&["uid"])))
        {
            self.stillborn.insert(uid(claim).to_owned());
        }
        if change.condemns() {
            broken.extend(change.before.as_deref().and_then(|claim| self.unjustified(claim, change)));
        }
        if let Some(claim) = change.after.as_deref().filter(|claim| terminating(claim)) {
            let at = self.changes;
            self.condemned.entry(uid(claim).to_owned()).or_insert(at);
        }
        if let (Some(before), Some(after)) = (change.before.as_deref(), change.after.as_deref()) {
            broken.extend(shrinks(before, after, change.who));
        }
        if let Some(claim) = change.removes() {
            self.claim_gone(claim);
            let told = self.condemned.remove(uid(claim)).unwrap_or(self.changes);
            let used = |pod: &Value| holds(pod, claim) && self.placed.get(uid(pod)).is_some_and(|at| *at < told);
            let user = self.all("Pod").find(|pod| namespace(pod) == namespace(claim) && used(pod));
            if let (Some(pod), true) = (user, change.who != Who::User) {
                broken.push(format!("the claim {} is removed while the pod {} uses it", name(claim), name(pod)));
            }
        }
        broken
    }

    fn unjustified(&self, claim: &Value, change: &Change<'_>) -> Option<String> {
        if change.who == Who::User || self.namespace_ends(namespace(claim)) {
            return None;
        }
        // The controller created it before it knew that its set is terminating. No pod has ever used it.
        if change.who.is(Who::COLLECTOR) && self.stillborn.contains(uid(claim)) {
            return None;
        }
        // The policy at the time when the pod's deletion began counts, however long the deletion took.
        let told = |pod: &str| self.since(self.pods_told.get(pod).copied().unwrap_or(change.now));
        // The collector deletes an object that has lost all of its owners; one existing owner would keep it.
        let owners = claim.items(&["metadata", "ownerReferences"]);
        let said = !owners.is_empty()
            && owners.iter().all(|owner| match owner.text(&["kind"]) {
                "StatefulSet" => self.sets.takes_claims_along(owner.text(&["uid"]), self.since(change.now)),
                "Pod" => self.sets.gives_up(namespace(claim), owner.text(&["name"]), told(owner.text(&["uid"]))),
                kind => self.same(kind, namespace(claim), owner.text(&["name"]), owner.text(&["uid"])).is_none(),
            });
        let may = change.who.is(Who::COLLECTOR) && said;
        (!may).then(|| {
            let (claim, who, owners) = (name(claim), change.who.text(), claim.at(&["metadata", "ownerReferences"]));
            format!(
                "{who} deletes the claim {claim}, although neither its policy nor a user says so (owners: {owners:?})"
            )
        })
    }
}

fn shrinks(before: &Value, after: &Value, who: Who<'_>) -> Option<String> {
    let (asked, has) = (&["spec", "resources", "requests", "storage"], &["status", "capacity", "storage"]);
    let less = |path: &[&str]| bytes(before, path).zip(bytes(after, path)).filter(|(before, after)| after < before);
    if let Some((old, new)) = less(asked).filter(|_| who != Who::User) {
        return Some(format!("{} shrinks the claim {} from {old} to {new}", who.text(), name(after)));
    }
    let (old, new) = less(has)?;
    Some(format!("the claim {} shrank from {old} to {new}", name(after)))
}
