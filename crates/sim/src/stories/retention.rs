//! KEP-1847: claims stay or go as the set's policy says.

use super::operator::{CLAIM, LATE_MAX, NAMESPACE, Operator, Told, claim, retention, set, the};
use object::access::{Access, terminating, uid};
use object::{Value, json};

/// R2
pub async fn retained(me: Operator) -> Told {
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

/// R4, R9
pub async fn scaled_away(me: Operator) -> Told {
    me.create(set("web", 3, "quick", retention("Retain", "Delete"))).await;
    me.until_whole("web").await?;
    let (first, last) = (me.uid(CLAIM, "data-web-0"), me.uid(CLAIM, "data-web-2"));
    me.scale("web", 1).await;
    me.until_whole("web").await?;
    me.until_claims(&["data-web-0"]).await?;
    me.scale("web", 3).await;
    me.until_whole("web").await?;
    me.until_claims(&["data-web-0", "data-web-1", "data-web-2"]).await?;
    me.expect("what was scaled away came back anew", last != me.uid(CLAIM, "data-web-2"))?;
    // A pod that is deleted by hand keeps its claim.
    me.delete(&the("Pod", "web-0"), "").await;
    me.delete(&the("StatefulSet", "web"), "Background").await;
    me.until_gone(&the("Pod", "web-0")).await?;
    me.until_gone(&the("Pod", "web-2")).await?;
    me.expect("the set leaves its claims", first == me.uid(CLAIM, "data-web-0"))?;
    me.until_volumes(3).await
}

/// R3, R12
pub async fn deleted_along(me: Operator) -> Told {
    for propagation in ["Background", "Foreground"] {
        me.create(set("web", 2, "quick", retention("Delete", "Retain"))).await;
        me.until_whole("web").await?;
        let held = me.holdings(&["data-web-0", "data-web-1"]);
        // Scaling leaves claims, and takes them up again.
        for replicas in [1, 2, 1] {
            me.scale("web", replicas).await;
            me.until_whole("web").await?;
            me.until_claims(&["data-web-0", "data-web-1"]).await?;
            me.expect("they are the same", held == me.holdings(&["data-web-0", "data-web-1"]))?;
        }
        me.delete(&the("StatefulSet", "web"), propagation).await;
        me.until_gone(&the("StatefulSet", "web")).await?;
        me.until_claims(&[]).await?;
        me.until_volumes(0).await?;
    }
    // Deleted at once after it was made.
    me.create(set("brief", 2, "quick", retention("Delete", "Delete"))).await;
    me.delete(&the("StatefulSet", "brief"), "Background").await;
    me.until_gone(&the("StatefulSet", "brief")).await?;
    me.until_claims(&[]).await
}

/// R5, R11
pub async fn policy_flips(me: Operator) -> Told {
    let web = the("StatefulSet", "web");
    me.create(set("web", 3, "quick", retention("Delete", "Delete"))).await;
    me.until_whole("web").await?;
    me.patch(&web, json!({"spec": retention("Retain", "Retain")})).await;
    me.until("the claims belong to nobody", |checker| {
        checker.all(CLAIM).all(|claim| claim.items(&["metadata", "ownerReferences"]).is_empty())
    })
    .await?;
    me.scale("web", 1).await;
    me.until_gone(&the("Pod", "web-2")).await?;
    // In the middle of the scale-down: the claim of the one that went already stays, too.
    me.patch(&web, json!({"spec": retention("Delete", "Retain")})).await;
    me.until_whole("web").await?;
    me.until("the claims belong to the set", |checker| {
        let owners = |claim: &Value| claim.items(&["metadata", "ownerReferences"]).len();
        checker.all(CLAIM).count() == 3 && checker.all(CLAIM).all(|claim| owners(claim) == 1)
    })
    .await?;
    me.delete(&web, "Background").await;
    me.until_claims(&[]).await?;
    me.until_volumes(0).await
}

/// R10
pub async fn orphaned(me: Operator) -> Told {
    me.create(set("web", 2, "quick", retention("Delete", "Delete"))).await;
    me.until_whole("web").await?;
    me.delete(&the("StatefulSet", "web"), "Orphan").await;
    me.until_gone(&the("StatefulSet", "web")).await?;
    me.until("nothing belongs to the set any more", |checker| {
        let free = |object: &Value| object.items(&["metadata", "ownerReferences"]).is_empty();
        checker.all(CLAIM).all(|claim| free(claim)) && checker.all("Pod").all(|pod| free(pod))
    })
    .await?;
    me.until_claims(&["data-web-0", "data-web-1"]).await?;
    // A set of the same name takes them over.
    me.create(set("web", 2, "quick", retention("Retain", "Retain"))).await;
    me.until_whole("web").await
}

/// R2, R3, R10: a set is deleted and made anew at once, before anybody has heard of its end. What is retained stays what it was; what goes
/// with the set goes, and comes anew.
pub async fn made_anew(me: Operator) -> Told {
    let (kept, brief) = (retention("Retain", "Retain"), retention("Delete", "Delete"));
    me.create(set("web", 2, "quick", kept.clone())).await;
    me.create(set("db", 1, "late", brief.clone())).await;
    me.until_whole("web").await?;
    me.until_whole("db").await?;
    let claims = || [me.uid(CLAIM, "data-web-0"), me.uid(CLAIM, "data-web-1")];
    let (before, gone) = (claims(), me.uid(CLAIM, "data-db-0"));
    for propagation in ["Background", "Foreground", "Orphan"] {
        for (named, class, policy) in [("web", "quick", &kept), ("db", "late", &brief)] {
            me.delete(&the("StatefulSet", named), propagation).await;
            let replicas = if named == "web" { 2 } else { 1 };
            me.create_anew(set(named, replicas, class, policy.clone())).await;
        }
        me.until_whole("web").await?;
        me.until_whole("db").await?;
        me.expect("what is retained is as it was", before == claims())?;
    }
    me.until("what went with its set is another one", |checker| {
        checker.get(CLAIM, NAMESPACE, "data-db-0").is_some_and(|claim| uid(claim) != gone)
    })
    .await
}

/// R2, R4: the document's second story. Claims go with the replicas that are scaled away; the set itself goes for a while, comes back, and
/// takes the volumes that it left.
pub async fn brought_back(me: Operator) -> Told {
    let web = the("StatefulSet", "web");
    let left = ["data-web-0", "data-web-1"];
    me.create(set("web", 3, "late", retention("Retain", "Delete"))).await;
    me.until_whole("web").await?;
    let held = me.holdings(&left);
    for propagation in ["Background", "Foreground"] {
        let third = me.uid(CLAIM, "data-web-2");
        me.scale("web", 2).await;
        me.until_whole("web").await?;
        me.until_claims(&left).await?;
        me.delete(&web, propagation).await;
        me.until_gone(&web).await?;
        me.until("no pod is left", |checker| checker.all("Pod").count() == 0).await?;
        me.until_claims(&left).await?;
        me.create(set("web", 3, "late", retention("Retain", "Delete"))).await;
        me.until_whole("web").await?;
        me.expect("what was left is used again", held == me.holdings(&left))?;
        me.expect("what was scaled away comes anew", third != me.uid(CLAIM, "data-web-2"))?;
    }
    me.until_volumes(3).await
}

/// Who a claim belongs to, and whether as its controller.
fn owners(claim: &Value) -> Vec<(&str, bool)> {
    let references = claim.items(&["metadata", "ownerReferences"]).iter();
    references.map(|owner| (owner.text(&["kind"]), owner.flag(&["controller"]))).collect()
}

impl Operator {
    /// Waits until these claims belong to these kinds, as their controller.
    async fn until_owned(&self, wanted: &[(&str, &str)]) -> Told {
        self.until(&format!("claims belong to {wanted:?}"), |checker| {
            wanted.iter().all(|(named, kind)| {
                checker.get(CLAIM, NAMESPACE, named).is_some_and(|claim| owners(claim) == [(*kind, true)])
            })
        })
        .await
    }
}

/// R6, R7, R8: claims that were there before the set are its own like all others, unless they have another controller: that one is left alone.
pub async fn claimed_before(me: Operator) -> Told {
    me.create(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": NAMESPACE, "name": "keeper"}}))
        .await;
    let keeper = me.read(&the("ConfigMap", "keeper")).await;
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
    me.until_whole("web").await?;
    me.expect("the set uses them", before == me.holdings(&["data-web-1", "data-web-2", "lone"]))?;
    me.until_owned(&[("data-web-1", "StatefulSet"), ("data-web-2", "ConfigMap"), ("data-web-3", "StatefulSet")])
        .await?;
    // As the first version of the feature left it.
    let older = json!([
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": me.uid("StatefulSet", "web")},
    ]);
    me.patch(&the(CLAIM, "data-web-0"), json!({"metadata": {"ownerReferences": older}})).await;
    me.until_owned(&[("data-web-0", "StatefulSet")]).await?;
    // The same on a claim that has another controller, of this set and of one that is no more: it is taken off, and that is all.
    for of in [me.uid("StatefulSet", "web"), "00000000-0000-4000-8000-000000000000".to_owned()] {
        let both = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": of}, keepers]);
        me.patch(&the(CLAIM, "data-web-2"), json!({"metadata": {"ownerReferences": both}})).await;
        me.until_owned(&[("data-web-2", "ConfigMap")]).await?;
    }
    me.scale("web", 1).await;
    me.until_whole("web").await?;
    me.until_claims(&["data-web-0", "data-web-2", "lone"]).await?;
    me.until_owned(&[("data-web-0", "StatefulSet"), ("data-web-2", "ConfigMap")]).await?;
    me.delete(&the("StatefulSet", "web"), "Background").await;
    me.until_claims(&["data-web-2", "lone"]).await?;
    me.until_owned(&[("data-web-2", "ConfigMap")]).await?;
    me.expect("both have their volumes", before[1..] == me.holdings(&["data-web-2", "lone"]))?;
    me.until_volumes(2).await
}

/// R10, R11: claims that were to go with their set, and follow its template in place, are kept after all; the set goes at once. Whatever was sent for it
/// before and arrives after that leaves them alone.
pub async fn kept_after_all(me: Operator) -> Told {
    let in_place = json!({"volumeClaimUpdatePolicy": "InPlace"});
    me.create(set("web", 2, "quick", object::patch::merge(&retention("Delete", "Delete"), &in_place))).await;
    me.until_whole("web").await?;
    let claims = ["data-web-0", "data-web-1"];
    let held = me.holdings(&claims);
    let web = the("StatefulSet", "web");
    me.patch(&web, json!({"spec": retention("Retain", "Retain")})).await;
    me.until("the claims belong to nobody", |checker| {
        checker.all(CLAIM).all(|claim| claim.items(&["metadata", "ownerReferences"]).is_empty())
    })
    .await?;
    me.delete(&web, "Background").await;
    me.until_gone(&web).await?;
    me.pause(LATE_MAX).await;
    me.until_claims(&claims).await?;
    me.expect("they are the same", held == me.holdings(&claims))
}

impl Operator {
    /// Scales from four replicas to one, and stops when the last is gone and the next one goes, but does not end.
    async fn begin_to_shrink(&self, wanted: &[&str]) -> Told {
        self.behave(&the("Pod", "web-2"), "terminate-after", Some("never")).await;
        self.scale("web", 1).await;
        self.until_gone(&the("Pod", "web-3")).await?;
        self.until("the next one goes", |checker| {
            checker.get("Pod", NAMESPACE, "web-2").is_some_and(|pod| terminating(pod))
        })
        .await?;
        self.until_claims(wanted).await
    }

    async fn go_on_to_shrink(&self) -> Told {
        self.behave(&the("Pod", "web-2"), "terminate-after", None).await;
        self.until_whole("web").await
    }
}

/// R11: whenScaled changes in the middle of a scale-down. Claims of replicas that are still going follow the last word; what went before stays
/// gone, and what was left before stays.
pub async fn second_thoughts(me: Operator) -> Told {
    // One that came when its replica was given up already would take along what was kept.
    me.world.ledger.pods_come_in_time();
    let web = the("StatefulSet", "web");
    me.create(set("web", 4, "quick", retention("Retain", "Delete"))).await;
    me.until_whole("web").await?;
    let rest = ["data-web-0", "data-web-1", "data-web-2"];
    let held = me.holdings(&rest);
    me.begin_to_shrink(&rest).await?;
    me.patch(&web, json!({"spec": retention("Retain", "Retain")})).await;
    me.until("the claims belong to nobody", |checker| {
        checker.all(CLAIM).all(|claim| claim.items(&["metadata", "ownerReferences"]).is_empty())
    })
    .await?;
    me.go_on_to_shrink().await?;
    me.pause(LATE_MAX).await;
    me.until_claims(&rest).await?;
    me.scale("web", 4).await;
    me.until_whole("web").await?;
    me.expect("what was kept is used again", held == me.holdings(&rest))?;
    let last = me.holdings(&["data-web-0", "data-web-3"]);
    me.begin_to_shrink(&["data-web-0", "data-web-1", "data-web-2", "data-web-3"]).await?;
    me.patch(&web, json!({"spec": retention("Retain", "Delete")})).await;
    me.until_owned(&[("data-web-1", "Pod"), ("data-web-2", "Pod")]).await?;
    me.go_on_to_shrink().await?;
    // Only a pod can take its claim along.
    me.until_claims(&["data-web-0", "data-web-3"]).await?;
    me.expect("what is left is as it was", last == me.holdings(&["data-web-0", "data-web-3"]))?;
    me.until_volumes(2).await
}
