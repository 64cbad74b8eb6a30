//! Services, and Endpoints of the pods that they select.

use super::operator::{NAMESPACE, Operator, StoryResult, object_ref, retention, set};
use object::access::Access;
use object::{Value, json};

pub async fn published(me: Operator) -> StoryResult {
    me.create(service()).await;
    me.create(set("web", 3, "late", retention("Retain", "Retain"))).await;
    me.until_complete("web").await?;
    me.until_published(3).await?;
    me.delete(&object_ref("Endpoints", "web"), "").await;
    me.scale("web", 1).await;
    me.until_published(1).await?;
    me.force_delete("web-0").await;
    me.until_complete("web").await?;
    me.until_published(1).await?;
    me.delete(&object_ref("Service", "web"), "").await;
    me.until_gone(&object_ref("Endpoints", "web")).await?;
    me.recreate(service()).await;
    me.until_published(1).await
}

fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": NAMESPACE, "name": "web"},
        "spec": {"clusterIP": "None", "selector": {"app": "web"}, "ports": [{"port": 80}]},
    })
}

impl Operator {
    /// Waits until the Endpoints of the Service have exactly `count` ready addresses.
    async fn until_published(&self, count: usize) -> StoryResult {
        self.until(&format!("{count} addresses are published"), |checker| {
            let endpoints = checker.get("Endpoints", NAMESPACE, "web");
            let subsets = endpoints.map(|endpoints| endpoints.items(&["subsets"])).unwrap_or_default();
            let sum = |list: &str| subsets.iter().map(|subset| subset.items(&[list]).len()).sum::<usize>();
            sum("addresses") == count && sum("notReadyAddresses") == 0
        })
        .await
    }
}
