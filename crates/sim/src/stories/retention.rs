//! KEP-1847: claims stay or go as the set's policy says.

use super::operator::{CLAIM, Operator, Told, retention, set, the};

pub async fn retained(me: Operator) -> Told {
    me.prepare().await;
    me.create(set("web", 2, "quick", retention("Retain", "Retain"))).await;
    me.until_whole("web").await?;
    let second = me.uid(CLAIM, "data-web-1");
    me.scale("web", 1).await;
    me.until_whole("web").await?;
    me.scale("web", 2).await;
    me.until_whole("web").await?;
    me.expect("the second replica has its claim back", second == me.uid(CLAIM, "data-web-1"))?;
    me.delete(&the("StatefulSet", "web"), "Background").await;
    me.until_gone(&the("Pod", "web-0")).await?;
    me.until_gone(&the("Pod", "web-1")).await?;
    me.until_claims(&["data-web-0", "data-web-1"]).await
}
