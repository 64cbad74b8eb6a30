//! KEP-3335: ordinals start at any number, and move between sets.

use super::operator::{
    CLAIM, LATE_MAX, NAMESPACE, Operator, StoryResult, VOLUME, is_complete, object_in, object_ref, retention, set,
};
use object::access::{Access, name};
use object::json;

/// O1, O2
pub async fn shifted(me: Operator) -> StoryResult {
    let more = object::patch::merge(&retention("Retain", "Retain"), &json!({"ordinals": {"start": 1}}));
    me.create(set("web", 2, "late", more)).await;
    me.until_complete("web").await?;
    me.until_claims(&["data-web-1", "data-web-2"]).await?;
    me.patch(&object_ref("StatefulSet", "web"), json!({"spec": {"ordinals": {"start": 3}}})).await;
    me.until_complete("web").await?;
    me.until_claims(&["data-web-1", "data-web-2", "data-web-3", "data-web-4"]).await?;
    me.patch(&object_ref("StatefulSet", "web"), json!({"spec": {"ordinals": null}})).await;
    me.until_complete("web").await?;
    me.until_volumes(5).await
}

/// O4
pub async fn moved(me: Operator) -> StoryResult {
    me.begin_to_move().await?;
    for ordinal in [1, 0] {
        me.move_out(ordinal).await?;
        me.move_in(ordinal).await?;
    }
    me.until_claims(&["data-web-0", "data-web-1", "data-web-0", "data-web-1"]).await
}

/// O4, H2, H6: each replica moves with its volume, as in `examples/slice-migration`: the PV is retained, its claim
/// deleted, and the PV reserved for the claim of the same name in the other namespace. Finally it is deleted by its
/// policy.
pub async fn moved_along(me: Operator) -> StoryResult {
    let policy = |policy: &str| json!({"spec": {"persistentVolumeReclaimPolicy": policy}});
    me.begin_to_move().await?;
    let before = me.world.driver.handles();
    for ordinal in [1, 0] {
        let claim = format!("data-web-{ordinal}");
        let volume = me.volume_of(&claim).await?;
        me.move_out(ordinal).await?;
        me.patch(&volume, policy("Retain")).await;
        me.delete(&object_ref(CLAIM, &claim), "").await;
        me.until_gone(&object_ref(CLAIM, &claim)).await?;
        let next = json!({"namespace": "other", "name": claim, "uid": null, "resourceVersion": null});
        me.patch(&volume, json!({"spec": {"claimRef": next}})).await;
        me.move_in(ordinal).await?;
        me.until("the claim has its PV", |checker| {
            let is_it = |claim: &object::Value| claim.text(&["spec", "volumeName"]) == name(&volume);
            checker.get(CLAIM, "other", &claim).is_some_and(|claim| is_it(claim))
        })
        .await?;
        me.patch(&volume, policy("Delete")).await;
    }
    // A late creation of a claim may create it again, without data, and no precondition can prevent that (decision
    // 21).
    me.pause(LATE_MAX).await;
    for claim in ["data-web-0", "data-web-1"].map(|named| object_ref(CLAIM, named)) {
        if me.world.checker().get(CLAIM, NAMESPACE, name(&claim)).is_some() {
            me.delete(&claim, "").await;
        }
    }
    me.until_claims(&["data-web-0", "data-web-1"]).await?;
    // A provisioner that has not seen the reservation yet makes another PV, which is never bound and is deleted
    // again.
    me.until_volumes(2).await?;
    me.until_handles(&before).await?;
    // In the other namespace the PV of one replica is deleted first, then its claim.
    let last = me.world.checker().get(CLAIM, "other", "data-web-1").cloned().unwrap_or_default();
    let last = object_ref(VOLUME, last.text(&["spec", "volumeName"]));
    me.until_finalizer(&last, plan::csi::FINALIZER).await?;
    // A provisioner that was down has not recorded this claim yet, and would wait for a user to confirm.
    me.until("the provisioner has recorded the claim", |checker| {
        let is_known = |volume: &object::Value| {
            let record = volume.text(&["metadata", "annotations", plan::csi::reclaim::RECORD]);
            record.contains(volume.text(&["spec", "claimRef", "uid"]))
        };
        checker.get(VOLUME, "", name(&last)).is_some_and(|volume| is_known(volume))
    })
    .await?;
    me.patch(&object_in("other", "StatefulSet", "web"), json!({"spec": {"replicas": 1}})).await;
    me.until_gone(&object_in("other", "Pod", "web-1")).await?;
    me.delete(&last, "").await;
    me.delete(&object_in("other", CLAIM, "data-web-1"), "").await;
    me.until_gone(&last).await?;
    me.expect("its data is deleted, that of the other replica is not", me.world.driver.handles().len() == 1)
}

impl Operator {
    /// Creates a set of two replicas, and an empty set in the other namespace that will get them.
    async fn begin_to_move(&self) -> StoryResult {
        self.world.checker().join(&[(NAMESPACE, "web"), ("other", "web")]);
        self.create(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other"}})).await;
        self.create(set("web", 2, "quick", retention("Retain", "Retain"))).await;
        self.until_complete("web").await?;
        let mut there = set("web", 0, "quick", retention("Retain", "Retain"));
        there["metadata"]["namespace"] = json!("other");
        there["spec"]["ordinals"] = json!({"start": 2});
        self.create(there).await;
        Ok(())
    }

    async fn move_out(&self, ordinal: i64) -> StoryResult {
        self.scale("web", ordinal).await;
        self.until_gone(&object_ref("Pod", &format!("web-{ordinal}"))).await
    }

    async fn move_in(&self, ordinal: i64) -> StoryResult {
        let grown = json!({"spec": {"ordinals": {"start": ordinal}, "replicas": 2 - ordinal}});
        self.patch(&object_in("other", "StatefulSet", "web"), grown).await;
        self.until("the other set is complete", |checker| is_complete(checker, "other", "web")).await
    }
}
