//! Pods and nodes that misbehave.

use super::operator::{CLAIM, NAMESPACE, Operator, StoryResult, is_ready, object_ref, pods_of, retention, set};
use object::access::{Access, terminating};
use object::{Value, json};
use std::time::Duration;

/// Annotations that make simulated pods misbehave, with a value.
pub const MISBEHAVIOURS: [(&str, &str); 6] = [
    ("ready", "false"),
    ("start-after", "20s"),
    ("crash-after", "1s"),
    ("fail-after", "1s"),
    ("evict-after", "1s"),
    ("terminate-after", "never"),
];

/// R4: whatever happens to pods, claims stay the same, and a rollout waits for replicas that are not ready.
pub async fn troubled(me: Operator) -> StoryResult {
    me.create(set("web", 3, "late", retention("Delete", "Delete"))).await;
    me.until_complete("web").await?;
    let claims = me.claim_uids();
    // A failed pod and an evicted pod are replaced.
    me.behave(&object_ref("Pod", "web-1"), "fail-after", Some("0s")).await;
    me.until_replaced("web-1").await?;
    me.evict("web-2").await;
    me.until_replaced("web-2").await?;
    // A rollout waits for a replica that is not ready, and continues when it is.
    let template = json!({"metadata": {"annotations": {"sim.mainstay.dev/ready": "false"}}});
    me.patch(&object_ref("StatefulSet", "web"), json!({"spec": {"template": template}})).await;
    me.until("the last replica is updated", |checker| {
        let is_new = |pod: &Value| pod.has(&["metadata", "annotations", "sim.mainstay.dev/ready"]);
        checker.get("Pod", NAMESPACE, "web-2").is_some_and(|pod| is_new(pod) && !terminating(pod))
    })
    .await?;
    me.pause(Duration::from_secs(30)).await;
    let others = {
        let checker = me.world.checker();
        pods_of(&checker, NAMESPACE, "web").iter().filter(|pod| is_ready(pod)).count()
    };
    me.expect("the other replicas are unchanged meanwhile", others == 2)?;
    let template = json!({"metadata": {"annotations": {"sim.mainstay.dev/ready": null}}});
    me.patch(&object_ref("StatefulSet", "web"), json!({"spec": {"template": template}})).await;
    // A controller that has not seen the reverted template would continue the rollout as soon as the replica is
    // ready.
    me.until("the controller has observed the reverted template", |checker| {
        let is_seen = |set: &Value| set.int(&["metadata", "generation"]) == set.int(&["status", "observedGeneration"]);
        checker.get("StatefulSet", NAMESPACE, "web").is_some_and(|set| is_seen(set))
    })
    .await?;
    me.behave(&object_ref("Pod", "web-2"), "ready", None).await;
    me.until_complete("web").await?;
    // A node is down for longer than pods tolerate, and returns.
    let node = me.world.checker().get("Pod", NAMESPACE, "web-0").map(|pod| pod.text(&["spec", "nodeName"]).to_owned());
    let node = object_ref("Node", &node.unwrap_or_default());
    me.behave(&node, "down", Some("true")).await;
    me.pause(Duration::from_secs(400)).await;
    me.expect("a pod that may still run is not replaced", me.world.checker().get("Pod", NAMESPACE, "web-0").is_some())?;
    me.behave(&node, "down", None).await;
    me.until_complete("web").await?;
    me.expect("all claims are unchanged", me.claim_uids() == claims)
}

impl Operator {
    fn claim_uids(&self) -> Vec<String> {
        self.world.checker().all(CLAIM).map(|claim| claim.text(&["metadata", "uid"]).to_owned()).collect()
    }

    /// Waits until a pod is replaced and the set is complete.
    async fn until_replaced(&self, pod: &str) -> StoryResult {
        let old = self.uid("Pod", pod);
        self.until(&format!("{pod} is a new pod"), |checker| {
            checker.get("Pod", NAMESPACE, pod).is_some_and(|pod| pod.text(&["metadata", "uid"]) != old)
        })
        .await?;
        self.until_complete("web").await
    }
}
