//! Rolling restarts of every component.

use super::operator::{CLAIM, NAMESPACE, Operator, StoryResult, is_ready, object_ref, pods_of, retention, set};
use object::access::terminating;
use object::{Value, json};
use std::time::Duration;

pub async fn in_turn(me: Operator) -> StoryResult {
    me.create(set("web", 3, "late", retention("Retain", "Delete"))).await;
    me.restart_each_component().await;
    me.until_complete("web").await?;
    let template = json!({"spec": {"containers": [{"name": "main", "image": "image:2", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}});
    me.patch(&object_ref("StatefulSet", "web"), json!({"spec": {"template": template}})).await;
    me.restart_each_component().await;
    // Wait first: a claim whose replica has no pod during a scale-down is not deleted, as upstream.
    me.until("all replicas are running and updated", |checker| {
        let is_new = |pod: &Value| pod["spec"]["containers"][0]["image"] == "image:2";
        let pods = pods_of(checker, NAMESPACE, "web");
        pods.len() == 3 && pods.iter().all(|pod| is_ready(pod) && is_new(pod))
    })
    .await?;
    me.scale("web", 1).await;
    me.restart_each_component().await;
    me.until_complete("web").await?;
    me.until_claims(&["data-web-0"]).await
}

/// Two controller processes, one of which leads. The leader is disconnected or killed during its work, and the other
/// one leads.
pub async fn handed_over(me: Operator) -> StoryResult {
    me.world.start_election(2);
    me.create(set("web", 3, "quick", retention("Delete", "Delete"))).await;
    me.until("the first pod exists", |checker| checker.get("Pod", NAMESPACE, "web-0").is_some()).await?;
    me.world.disconnect_leader();
    me.until_complete("web").await?;
    me.scale("web", 1).await;
    me.until("a claim is terminating", |checker| checker.all(CLAIM).any(|claim| terminating(claim))).await?;
    me.world.kill_controllers();
    me.until_claims(&["data-web-0"]).await?;
    me.scale("web", 2).await;
    me.until_complete("web").await?;
    me.delete(&object_ref("StatefulSet", "web"), "Foreground").await;
    me.world.disconnect_leader();
    me.until_claims(&[]).await?;
    me.until_volumes(0).await
}

impl Operator {
    /// Kills each component, one after the other. The supervisor restarts it.
    async fn restart_each_component(&self) {
        let pause = Duration::from_millis(1500);
        for part in ["controllers", "nodes", "driver", "server"] {
            self.pause(pause).await;
            match part {
                "controllers" => self.world.kill_controllers(),
                "nodes" => self.world.kill_nodes(),
                "driver" => self.world.kill_driver(),
                _ => self.world.crash_server(),
            }
            self.pause(pause).await;
        }
    }
}
