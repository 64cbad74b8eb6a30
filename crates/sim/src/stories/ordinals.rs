//! KEP-3335: ordinals start anywhere, and move from set to set.

use super::operator::{NAMESPACE, Operator, Told, at, is_whole, retention, set, the};
use object::json;

/// O1, O2
pub async fn shifted(me: Operator) -> Told {
    let more = object::patch::merge(&retention("Retain", "Retain"), &json!({"ordinals": {"start": 1}}));
    me.create(set("web", 2, "late", more)).await;
    me.until_whole("web").await?;
    me.until_claims(&["data-web-1", "data-web-2"]).await?;
    me.patch(&the("StatefulSet", "web"), json!({"spec": {"ordinals": {"start": 3}}})).await;
    me.until_whole("web").await?;
    me.until_claims(&["data-web-1", "data-web-2", "data-web-3", "data-web-4"]).await?;
    me.patch(&the("StatefulSet", "web"), json!({"spec": {"ordinals": null}})).await;
    me.until_whole("web").await?;
    me.until_volumes(5).await
}

/// O4
pub async fn moved(me: Operator) -> Told {
    me.world.checker().join(&[(NAMESPACE, "web"), ("other", "web")]);
    me.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})).await;
    me.create(set("web", 2, "quick", retention("Retain", "Retain"))).await;
    me.until_whole("web").await?;
    let mut there = set("web", 0, "quick", retention("Retain", "Retain"));
    there["metadata"]["namespace"] = json!("other");
    there["spec"]["ordinals"] = json!({"start": 2});
    me.create(there).await;
    for ordinal in [1, 0] {
        me.scale("web", ordinal).await;
        me.until_gone(&the("Pod", &format!("web-{ordinal}"))).await?;
        let grown = json!({"spec": {"ordinals": {"start": ordinal}, "replicas": 2 - ordinal}});
        me.patch(&at("other", "StatefulSet", "web"), grown).await;
        me.until("the other set is whole", |checker| is_whole(checker, "other", "web")).await?;
    }
    me.until_claims(&["data-web-0", "data-web-1", "data-web-0", "data-web-1"]).await
}
