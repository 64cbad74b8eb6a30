//! Claims of a set that are deleted: why, and whether a pod still uses them. For events: nothing is decided by it.

use super::{SeenPod, SetEvent};
use crate::protect;
use object::Value;
use object::access::{Access, name, namespace, terminating, uid};

/// The reason of events about claims that are gone.
pub const DELETED: &str = object::well_known::CLAIM_DELETED;
/// The reason of events about claims that were deleted while a pod uses them.
pub const DELETED_IN_USE: &str = object::well_known::CLAIM_DELETED_IN_USE;

/// At most so many names are in one event.
const NAMES_MAX: usize = 5;

/// What is kept of a claim that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departed {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub volume: String,
    /// The pod that owned it.
    pub pod: Option<String>,
    /// The name and uid of the set that owned it.
    pub set: Option<(String, String)>,
}

impl Departed {
    pub fn of(claim: &Value) -> Departed {
        let owners = claim.items(&["metadata", "ownerReferences"]);
        let owner = |kind: &str| owners.iter().find(|owner| owner.text(&["kind"]) == kind);
        let text = |owner: &Value, field: &str| owner.text(&[field]).to_owned();
        Departed {
            namespace: namespace(claim).to_owned(),
            name: name(claim).to_owned(),
            uid: uid(claim).to_owned(),
            volume: claim.text(&["spec", "volumeName"]).to_owned(),
            pod: owner("Pod").map(|owner| text(owner, "name")),
            set: owner("StatefulSet").map(|owner| (text(owner, "name"), text(owner, "uid"))),
        }
    }

    /// The uid of the set that must be known to remain or to be gone before [`Departed::why`] can say why the claim was deleted.
    pub fn depends_on(&self) -> Option<&str> {
        self.set.as_ref().filter(|_| self.pod.is_none()).map(|(_, uid)| uid.as_str())
    }

    /// Why it was deleted. `set_remains`: the set that owned it is there, and not being deleted.
    pub fn why(&self, set_remains: bool) -> String {
        match (&self.pod, &self.set) {
            // Claims belong to pods only while their replica is scaled away.
            (Some(pod), _) => format!("whenScaled is Delete and Pod {pod} was scaled away"),
            (None, Some(_)) if !set_remains => "whenDeleted is Delete and the set was deleted".to_owned(),
            _ => "a client deleted it".to_owned(),
        }
    }

    /// For the claim itself.
    pub fn event(&self, set: &str, why: &str) -> SetEvent {
        let Departed { namespace, name, volume, .. } = self;
        let data = match volume.as_str() {
            "" => "it had no volume".to_owned(),
            volume => format!("the reclaim policy of PersistentVolume {volume} decides about its data"),
        };
        let message =
            format!("PersistentVolumeClaim {namespace}/{name} of StatefulSet {set}: deleted, because {why}; {data}");
        SetEvent { warning: false, reason: DELETED, message }
    }
}

/// For the set: claims that are gone for one reason.
pub fn of_set(set: &str, namespace: &str, why: &str, claims: &[&str]) -> SetEvent {
    let more = claims.len().saturating_sub(NAMES_MAX);
    let mut names = claims.iter().take(NAMES_MAX).copied().collect::<Vec<_>>().join(", ");
    if more > 0 {
        names.push_str(&format!(" and {more} more"));
    }
    let message = format!(
        "StatefulSet {namespace}/{set}: claims deleted, because {why}: {names}; the reclaim policies of their volumes decide about \
         the data"
    );
    SetEvent { warning: false, reason: DELETED, message }
}

/// The claims of a set that are being deleted while a pod that is to stay uses them: each claim with the name of the pod. A claim that
/// belongs to its pod goes with it by policy.
pub fn in_use<'a>(claims: &[&'a Value], pods: &[&SeenPod]) -> Vec<(&'a Value, String)> {
    let leaving = claims.iter().filter(|claim| terminating(claim) && Departed::of(claim).pod.is_none());
    let user_of = |claim: &Value| {
        let stays = pods.iter().filter(|pod| !terminating(&pod.object) && namespace(&pod.object) == namespace(claim));
        let mut users = stays.filter(|pod| protect::uses(&pod.object, name(claim)));
        users.next().map(|pod| name(&pod.object).to_owned())
    };
    leaving.filter_map(|claim| Some((*claim, user_of(claim)?))).collect()
}

/// For the set and for the claim, in this order.
pub fn in_use_events(set: &Value, claim: &Value, pod: &str) -> [SetEvent; 2] {
    let (namespace, set, claim) = (namespace(set), name(set), name(claim));
    let rest = format!(
        "deleted while Pod {pod} uses it: it stays until the pod is gone, and then the reclaim policy of its volume decides about its data"
    );
    [
        format!("StatefulSet {namespace}/{set}: PersistentVolumeClaim {claim} was {rest}"),
        format!("PersistentVolumeClaim {namespace}/{claim} of StatefulSet {set}: {rest}"),
    ]
    .map(|message| SetEvent { warning: true, reason: DELETED_IN_USE, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::json;
    use std::sync::Arc;

    fn claim(owners: Value, leaving: bool) -> Value {
        let mut claim = json!({
            "metadata": {"namespace": "shop", "name": "data-web-0", "uid": "c", "ownerReferences": owners},
            "spec": {"volumeName": "pv"},
        });
        if leaving {
            claim.put(&["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
        }
        claim
    }

    #[test]
    fn the_owner_of_a_claim_says_why_it_was_deleted() {
        let pod = json!({"kind": "Pod", "name": "web-0", "uid": "p"});
        let set = json!({"kind": "StatefulSet", "name": "web", "uid": "s"});
        for (owners, remains, depends, why) in [
            (json!([]), true, None, "a client deleted it"),
            (json!([]), false, None, "a client deleted it"),
            (json!([set]), true, Some("s"), "a client deleted it"),
            (json!([set]), false, Some("s"), "whenDeleted is Delete and the set was deleted"),
            (json!([pod]), true, None, "whenScaled is Delete and Pod web-0 was scaled away"),
        ] {
            let departed = Departed::of(&claim(owners.clone(), false));
            assert_eq!((departed.depends_on(), departed.why(remains).as_str()), (depends, why), "{owners}");
            let event = departed.event("web", why);
            assert!(event.message.starts_with("PersistentVolumeClaim shop/data-web-0 ") && event.message.contains(why));
        }
    }

    #[test]
    fn an_event_of_a_set_names_some_claims_and_counts_the_others() {
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        assert!(of_set("web", "shop", "x", &names).message.contains("x: a, b, c, d, e and 2 more;"));
        let one = of_set("web", "shop", "x", &names[..1]).message;
        assert!(one.starts_with("StatefulSet shop/web: ") && one.contains("x: a;"), "{one}");
    }

    #[test]
    fn only_a_pod_that_stays_makes_the_deletion_of_its_claim_worth_a_warning() {
        let pod = |leaving: bool, phase: &str, claim: &str| {
            let mut pod = json!({
                "metadata": {"namespace": "shop", "name": "web-0", "uid": "p"},
                "spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]},
                "status": {"phase": phase},
            });
            if leaving {
                pod.put(&["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
            }
            SeenPod::read(Arc::new(pod))
        };
        let by_policy = json!([{"kind": "Pod", "name": "web-0", "uid": "p"}]);
        for (claim, pod, warned) in [
            (claim(json!([]), true), pod(false, "Running", "data-web-0"), true),
            (claim(json!([]), false), pod(false, "Running", "data-web-0"), false),
            (claim(by_policy, true), pod(false, "Running", "data-web-0"), false),
            (claim(json!([]), true), pod(true, "Running", "data-web-0"), false),
            (claim(json!([]), true), pod(false, "Succeeded", "data-web-0"), false),
            (claim(json!([]), true), pod(false, "Running", "other"), false),
        ] {
            assert_eq!(in_use(&[&claim], &[&pod]).len(), usize::from(warned), "{claim} {pod:?}");
        }
    }
}
