//! KEP-1847: claims are kept or deleted by the set's retention policy.

use super::operator::{CLAIM, LATE_MAX, NAMESPACE, Operator, StoryResult, claim, object_ref, retention, set};
use object::access::{Access, terminating, uid};
use object::{Value, json};

/// R2
pub async fn retained(me: Operator) -> StoryResult {
    me.create(set("web", 2, "quick", retention("Retain", "Retain"))).await;
    me.until_complete("web").await?;
    let second = me.uid(CLAIM, "data-web-1");
    me.scale("web", 1).await;
    me.until_complete("web").await?;
    me.scale("web", 2).await;
    me.until_complete("web").await?;
    me.expect("the second replica reuses its claim", second == me.uid(CLAIM, "data-web-1"))?;
    me.delete(&object_ref("StatefulSet", "web"), "Background").await;
    me.until_gone(&object_ref("Pod", "web-0")).await?;
    me.until_gone(&object_ref("Pod", "web-1")).await?;
    me.until_claims(&["data-web-0", "data-web-1"]).await
}

/// R4, R9
pub async fn scaled_away(me: Operator) -> StoryResult {
    me.create(set("web", 3, "quick", retention("Retain", "Delete"))).await;
    me.until_complete("web").await?;
    let (first, last) = (me.uid(CLAIM, "data-web-0"), me.uid(CLAIM, "data-web-2"));
    me.scale("web", 1).await;
    me.until_complete("web").await?;
    me.until_claims(&["data-web-0"]).await?;
    me.scale("web", 3).await;
    me.until_complete("web").await?;
    me.until_claims(&["data-web-0", "data-web-1", "data-web-2"]).await?;
    me.expect("the claim of the removed replica is a new one", last != me.uid(CLAIM, "data-web-2"))?;
    // A user deletes a pod: its claim stays.
    me.delete(&object_ref("Pod", "web-0"), "").await;
    me.delete(&object_ref("StatefulSet", "web"), "Background").await;
    me.until_gone(&object_ref("Pod", "web-0")).await?;
    me.until_gone(&object_ref("Pod", "web-2")).await?;
    me.expect("the claims remain after the set", first == me.uid(CLAIM, "data-web-0"))?;
    me.until_volumes(3).await
}

/// R3, R12
pub async fn deleted_along(me: Operator) -> StoryResult {
    for propagation in ["Background", "Foreground"] {
        me.create(set("web", 2, "quick", retention("Delete", "Retain"))).await;
        me.until_complete("web").await?;
        let held = me.holdings(&["data-web-0", "data-web-1"]);
        // Scaling keeps claims and reuses them.
        for replicas in [1, 2, 1] {
            me.scale("web", replicas).await;
            me.until_complete("web").await?;
            me.until_claims(&["data-web-0", "data-web-1"]).await?;
            me.expect("the claims are unchanged", held == me.holdings(&["data-web-0", "data-web-1"]))?;
        }
        me.delete(&object_ref("StatefulSet", "web"), propagation).await;
        me.until_gone(&object_ref("StatefulSet", "web")).await?;
        me.until_claims(&[]).await?;
        me.until_volumes(0).await?;
    }
    // Deleted right after its creation.
    me.create(set("brief", 2, "quick", retention("Delete", "Delete"))).await;
    me.delete(&object_ref("StatefulSet", "brief"), "Background").await;
    me.until_gone(&object_ref("StatefulSet", "brief")).await?;
    me.until_claims(&[]).await
}

/// R5, R11
pub async fn policy_flips(me: Operator) -> StoryResult {
    let web = object_ref("StatefulSet", "web");
    me.create(set("web", 3, "quick", retention("Delete", "Delete"))).await;
    me.until_complete("web").await?;
    me.patch(&web, json!({"spec": retention("Retain", "Retain")})).await;
    me.until("the claims have no owner", |checker| {
        checker.all(CLAIM).all(|claim| claim.items(&["metadata", "ownerReferences"]).is_empty())
    })
    .await?;
    me.scale("web", 1).await;
    me.until_gone(&object_ref("Pod", "web-2")).await?;
    // During a scale-down: claims of pods that already terminate stay, too.
    me.patch(&web, json!({"spec": retention("Delete", "Retain")})).await;
    me.until_complete("web").await?;
    me.until("the set owns the claims", |checker| {
        let owners = |claim: &Value| claim.items(&["metadata", "ownerReferences"]).len();
        checker.all(CLAIM).count() == 3 && checker.all(CLAIM).all(|claim| owners(claim) == 1)
    })
    .await?;
    me.delete(&web, "Background").await;
    me.until_claims(&[]).await?;
    me.until_volumes(0).await
}

/// R10
pub async fn orphaned(me: Operator) -> StoryResult {
    me.create(set("web", 2, "quick", retention("Delete", "Delete"))).await;
    me.until_complete("web").await?;
    me.delete(&object_ref("StatefulSet", "web"), "Orphan").await;
    me.until_gone(&object_ref("StatefulSet", "web")).await?;
    me.until("no pod and no claim has an owner", |checker| {
        let free = |object: &Value| object.items(&["metadata", "ownerReferences"]).is_empty();
        checker.all(CLAIM).all(|claim| free(claim)) && checker.all("Pod").all(|pod| free(pod))
    })
    .await?;
    me.until_claims(&["data-web-0", "data-web-1"]).await?;
    // A new set of the same name adopts pods and claims.
    me.create(set("web", 2, "quick", retention("Retain", "Retain"))).await;
    me.until_complete("web").await
}

/// R2, R3, R10: a set is deleted and created again before any controller has seen the deletion. Retained claims stay
/// unchanged; other claims are deleted with the old set and created again.
pub async fn made_anew(me: Operator) -> StoryResult {
    let (kept, brief) = (retention("Retain", "Retain"), retention("Delete", "Delete"));
    me.create(set("web", 2, "quick", kept.clone())).await;
    me.create(set("db", 1, "late", brief.clone())).await;
    me.until_complete("web").await?;
    me.until_complete("db").await?;
    let claims = || [me.uid(CLAIM, "data-web-0"), me.uid(CLAIM, "data-web-1")];
    let (before, gone) = (claims(), me.uid(CLAIM, "data-db-0"));
    for propagation in ["Background", "Foreground", "Orphan"] {
        for (named, class, policy) in [("web", "quick", &kept), ("db", "late", &brief)] {
            me.delete(&object_ref("StatefulSet", named), propagation).await;
            let replicas = if named == "web" { 2 } else { 1 };
            me.recreate(set(named, replicas, class, policy.clone())).await;
        }
        me.until_complete("web").await?;
        me.until_complete("db").await?;
        me.expect("retained claims are unchanged", before == claims())?;
    }
    me.until("the claim of the deleted set is a new one", |checker| {
        checker.get(CLAIM, NAMESPACE, "data-db-0").is_some_and(|claim| uid(claim) != gone)
    })
    .await
}

/// R2, R4: the second user story of the KEP. Claims are deleted with the replicas that are scaled away. Then the set
/// is deleted, created again, and reuses the remaining volumes.
pub async fn brought_back(me: Operator) -> StoryResult {
    let web = object_ref("StatefulSet", "web");
    let left = ["data-web-0", "data-web-1"];
    me.create(set("web", 3, "late", retention("Retain", "Delete"))).await;
    me.until_complete("web").await?;
    let held = me.holdings(&left);
    for propagation in ["Background", "Foreground"] {
        let third = me.uid(CLAIM, "data-web-2");
        me.scale("web", 2).await;
        me.until_complete("web").await?;
        me.until_claims(&left).await?;
        me.delete(&web, propagation).await;
        me.until_gone(&web).await?;
        me.until("no pod exists", |checker| checker.all("Pod").count() == 0).await?;
        me.until_claims(&left).await?;
        me.create(set("web", 3, "late", retention("Retain", "Delete"))).await;
        me.until_complete("web").await?;
        me.expect("remaining claims are reused", held == me.holdings(&left))?;
        me.expect("the claim of the removed replica is a new one", third != me.uid(CLAIM, "data-web-2"))?;
    }
    me.until_volumes(3).await
}

/// Kind of each owner of a claim, and whether that owner is the controller.
fn owners(claim: &Value) -> Vec<(&str, bool)> {
    let references = claim.items(&["metadata", "ownerReferences"]).iter();
    references.map(|owner| (owner.text(&["kind"]), owner.flag(&["controller"]))).collect()
}

impl Operator {
    /// Waits until each claim has exactly one owner of this kind, as its controller.
    async fn until_owned(&self, wanted: &[(&str, &str)]) -> StoryResult {
        self.until(&format!("the owners of claims are {wanted:?}"), |checker| {
            wanted.iter().all(|(named, kind)| {
                checker.get(CLAIM, NAMESPACE, named).is_some_and(|claim| owners(claim) == [(*kind, true)])
            })
        })
        .await
    }
}

/// R6, R7, R8: a set owns claims that existed before it, except claims with another controller, which do not change.
pub async fn claimed_before(me: Operator) -> StoryResult {
    me.create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": NAMESPACE, "name": "keeper"}}))
        .await;
    let keeper = me.read(&object_ref("ConfigMap", "keeper")).await;
    let mut others = claim("data-web-2", "quick");
    let keepers =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "keeper", "uid": uid(&keeper), "controller": true});
    others["metadata"]["ownerReferences"] = json!([keepers]);
    me.create(others).await;
    for named in ["data-web-1", "lone"] {
        me.create(claim(named, "quick")).await;
    }
    me.until_claims(&["data-web-1", "data-web-2", "lone"]).await?;
    let before = me.holdings(&["data-web-1", "data-web-2", "lone"]);
    me.create(set("web", 4, "quick", retention("Delete", "Delete"))).await;
    me.until_complete("web").await?;
    me.expect("the set reuses the claims", before == me.holdings(&["data-web-1", "data-web-2", "lone"]))?;
    me.until_owned(&[("data-web-1", "StatefulSet"), ("data-web-2", "ConfigMap"), ("data-web-3", "StatefulSet")])
        .await?;
    // An owner reference as the first version of the feature wrote it.
    let older = json!([
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": me.uid("StatefulSet", "web")},
    ]);
    me.patch(&object_ref(CLAIM, "data-web-0"), json!({"metadata": {"ownerReferences": older}})).await;
    me.until_owned(&[("data-web-0", "StatefulSet")]).await?;
    // The same reference on a claim with another controller, for this set and for a deleted one. The reference is
    // removed, and nothing else changes.
    for of in [me.uid("StatefulSet", "web"), "00000000-0000-4000-8000-000000000000".to_owned()] {
        let both = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": of}, keepers]);
        me.patch(&object_ref(CLAIM, "data-web-2"), json!({"metadata": {"ownerReferences": both}})).await;
        me.until_owned(&[("data-web-2", "ConfigMap")]).await?;
    }
    me.scale("web", 1).await;
    me.until_complete("web").await?;
    me.until_claims(&["data-web-0", "data-web-2", "lone"]).await?;
    me.until_owned(&[("data-web-0", "StatefulSet"), ("data-web-2", "ConfigMap")]).await?;
    me.delete(&object_ref("StatefulSet", "web"), "Background").await;
    me.until_claims(&["data-web-2", "lone"]).await?;
    me.until_owned(&[("data-web-2", "ConfigMap")]).await?;
    me.expect("both claims keep their PVs", before[1..] == me.holdings(&["data-web-2", "lone"]))?;
    me.until_volumes(2).await
}

/// R10, R11: the policy of an InPlace set becomes Retain, and the set is deleted at once. Requests that were sent
/// before and arrive later do not change the claims.
pub async fn kept_after_all(me: Operator) -> StoryResult {
    let in_place = json!({"volumeClaimUpdatePolicy": "InPlace"});
    me.create(set("web", 2, "quick", object::patch::merge(&retention("Delete", "Delete"), &in_place))).await;
    me.until_complete("web").await?;
    let claims = ["data-web-0", "data-web-1"];
    let held = me.holdings(&claims);
    let web = object_ref("StatefulSet", "web");
    me.patch(&web, json!({"spec": retention("Retain", "Retain")})).await;
    me.until("the claims have no owner", |checker| {
        checker.all(CLAIM).all(|claim| claim.items(&["metadata", "ownerReferences"]).is_empty())
    })
    .await?;
    me.delete(&web, "Background").await;
    me.until_gone(&web).await?;
    me.pause(LATE_MAX).await;
    me.until_claims(&claims).await?;
    me.expect("the claims are unchanged", held == me.holdings(&claims))
}

impl Operator {
    /// Scales from four replicas to one. Returns when the last pod is removed and the next one terminates, which
    /// takes forever.
    async fn begin_scale_down(&self, wanted: &[&str]) -> StoryResult {
        self.behave(&object_ref("Pod", "web-2"), "terminate-after", Some("never")).await;
        self.scale("web", 1).await;
        self.until_gone(&object_ref("Pod", "web-3")).await?;
        self.until("the next pod terminates", |checker| {
            checker.get("Pod", NAMESPACE, "web-2").is_some_and(|pod| terminating(pod))
        })
        .await?;
        self.until_claims(wanted).await
    }

    async fn finish_scale_down(&self) -> StoryResult {
        self.behave(&object_ref("Pod", "web-2"), "terminate-after", None).await;
        self.until_complete("web").await
    }
}

/// R11: whenScaled changes during a scale-down. The latest value applies to claims of pods that still terminate.
/// Claims that were deleted or kept before are not affected.
pub async fn second_thoughts(me: Operator) -> StoryResult {
    // A pod created late, after its replica was scaled away, would delete its retained claim.
    me.world.commit_checker.forbid_late_pods();
    let web = object_ref("StatefulSet", "web");
    me.create(set("web", 4, "quick", retention("Retain", "Delete"))).await;
    me.until_complete("web").await?;
    let rest = ["data-web-0", "data-web-1", "data-web-2"];
    let held = me.holdings(&rest);
    me.begin_scale_down(&rest).await?;
    me.patch(&web, json!({"spec": retention("Retain", "Retain")})).await;
    me.until("the claims have no owner", |checker| {
        checker.all(CLAIM).all(|claim| claim.items(&["metadata", "ownerReferences"]).is_empty())
    })
    .await?;
    me.finish_scale_down().await?;
    me.pause(LATE_MAX).await;
    me.until_claims(&rest).await?;
    me.scale("web", 4).await;
    me.until_complete("web").await?;
    me.expect("retained claims are reused", held == me.holdings(&rest))?;
    let last = me.holdings(&["data-web-0", "data-web-3"]);
    me.begin_scale_down(&["data-web-0", "data-web-1", "data-web-2", "data-web-3"]).await?;
    me.patch(&web, json!({"spec": retention("Retain", "Delete")})).await;
    me.until_owned(&[("data-web-1", "Pod"), ("data-web-2", "Pod")]).await?;
    me.finish_scale_down().await?;
    // Only an existing pod causes the deletion of its claim.
    me.until_claims(&["data-web-0", "data-web-3"]).await?;
    me.expect("the remaining claims are unchanged", last == me.holdings(&["data-web-0", "data-web-3"]))?;
    me.until_volumes(2).await
}
