//! Nodes that are lost for good, and nodes that return.

use super::operator::{CLAIM, NAMESPACE, Operator, StoryResult, object_ref, pods_of, retention, set};
use object::access::{Access, name, uid};
use object::{Value, condition, json};
use std::collections::BTreeSet;
use std::time::Duration;

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Whatever happens to nodes: no ordinal and no volume is used twice, and the set becomes complete again with the
/// same claims.
pub async fn lost(me: Operator) -> StoryResult {
    me.create(set("web", 3, "late", retention("Retain", "Retain"))).await;
    me.until_complete("web").await?;
    let claims = me.uids_of_claims();

    // The machine is switched off and its Node is deleted.
    let node = me.node_of("web-0")?;
    me.behave(&node, "down", Some("true")).await;
    me.pause(Duration::from_secs(5)).await;
    me.delete(&node, "").await;
    me.until_deserted(&node).await?;
    me.until_complete("web").await?;
    me.create(node.clone()).await;
    me.until_serving(&node).await?;

    // A new Node of the same name is created before the old machine is known to be off.
    let node = me.node_of("web-1")?;
    let pods = me.uids_of_pods();
    me.behave(&node, "down", Some("true")).await;
    me.pause(Duration::from_secs(5)).await;
    me.delete(&node, "").await;
    me.pause(Duration::from_secs(10)).await;
    me.create(node.clone()).await;
    me.until_serving(&node).await?;
    me.pause(Duration::from_secs(100)).await;
    me.until_complete("web").await?;
    me.expect("the pods are unchanged", me.uids_of_pods() == pods)?;

    // The machine is off and is declared out of service. Its volume is detached.
    let node = me.node_of("web-2")?;
    let volume = me.volume_of("data-web-2").await?;
    let attachment = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "attachment"},
        "spec": {"attacher": "driver.example.com", "nodeName": name(&node), "source": {"persistentVolumeName": name(&volume)}},
    });
    me.create(attachment.clone()).await;
    me.behave(&node, "down", Some("true")).await;
    me.until("the node is not ready", |checker| {
        checker.get("Node", "", name(&node)).is_some_and(|node| !condition::is_true(node, "Ready"))
    })
    .await?;
    me.until_tainted(&node).await?;
    me.until_deserted(&node).await?;
    me.until("its volume is detached", |checker| checker.get("VolumeAttachment", "", "attachment").is_none()).await?;
    me.until_complete("web").await?;
    me.behave(&node, "down", None).await;
    me.until_serving(&node).await?;
    me.patch(&node, json!({"spec": {"taints": null}})).await;
    me.until_complete("web").await?;
    me.expect("all claims are unchanged", me.uids_of_claims() == claims)
}

impl Operator {
    fn node_of(&self, pod: &str) -> Result<Value, String> {
        let checker = self.world.checker();
        let pod = checker.get("Pod", NAMESPACE, pod).ok_or_else(|| format!("there is no pod {pod}"))?;
        Ok(object_ref("Node", pod.text(&["spec", "nodeName"])))
    }

    fn uids_of_claims(&self) -> BTreeSet<String> {
        self.world.checker().all(CLAIM).map(|claim| uid(claim).to_owned()).collect()
    }

    fn uids_of_pods(&self) -> BTreeSet<String> {
        pods_of(&self.world.checker(), NAMESPACE, "web").iter().map(|pod| uid(pod).to_owned()).collect()
    }

    /// Waits until no pod is on a node, or the node is in service again because its process restarted.
    async fn until_deserted(&self, node: &Value) -> StoryResult {
        let node = name(node).to_owned();
        self.until(&format!("no pod is on {node}"), |checker| {
            let is_back = checker.get("Node", "", &node).is_some_and(|node| condition::is_true(node, "Ready"));
            is_back || !checker.all("Pod").any(|pod| pod.text(&["spec", "nodeName"]) == node)
        })
        .await
    }

    async fn until_serving(&self, node: &Value) -> StoryResult {
        self.until("the node is in service", |checker| {
            checker.get("Node", "", name(node)).is_some_and(|node| condition::is_true(node, "Ready"))
        })
        .await
    }

    /// Adds the taint to those of the node. Other clients change taints too, so it retries until the taint stays.
    async fn until_tainted(&self, node: &Value) -> StoryResult {
        for _ in 0..20 {
            let Some(seen) = self.world.checker().get("Node", "", name(node)).cloned() else { break };
            let mut taints = seen.items(&["spec", "taints"]).to_vec();
            if taints.iter().any(|taint| taint.text(&["key"]) == OUT_OF_SERVICE) {
                return Ok(());
            }
            taints.push(json!({"key": OUT_OF_SERVICE, "effect": "NoExecute"}));
            let version = seen.text(&["metadata", "resourceVersion"]);
            let tainted = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
            self.patch(node, tainted).await;
            self.pause(Duration::from_millis(500)).await;
        }
        Err("the node was not tainted".to_owned())
    }
}
