//! Rolling restarts of every part.

use super::operator::{Operator, Told, retention, set, the};
use object::json;
use std::time::Duration;

pub async fn in_turn(me: Operator) -> Told {
    me.create(set("web", 3, "late", retention("Retain", "Delete"))).await;
    me.bounce().await;
    me.until_whole("web").await?;
    let template = json!({"spec": {"containers": [{"name": "main", "image": "image:2", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}});
    me.patch(&the("StatefulSet", "web"), json!({"spec": {"template": template}})).await;
    me.bounce().await;
    me.scale("web", 1).await;
    me.bounce().await;
    me.until_whole("web").await?;
    me.until_claims(&["data-web-0"]).await
}

impl Operator {
    /// Every part goes and comes back, one after the other.
    async fn bounce(&self) {
        let pause = Duration::from_millis(1500);
        for part in ["controllers", "nodes", "server"] {
            self.pause(pause).await;
            match part {
                "controllers" => self.world.kill_controllers(),
                "nodes" => self.world.kill_nodes(),
                _ => self.world.crash_server(),
            }
            self.pause(pause).await;
        }
    }
}
