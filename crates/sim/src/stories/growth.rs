//! KEP-4650: expansion that needs a node or a user.

use super::operator::{CLAIM, NAMESPACE, Operator, StoryResult, object_ref, set, template};
use super::templates::{is_rolled, sizes};
use object::access::{Access, uid};
use object::{Value, json};
use plan::invariant::Checker;
use std::time::Duration;

const GI: i64 = 1 << 30;

fn in_place() -> Value {
    json!({"volumeClaimUpdatePolicy": "InPlace"})
}

fn asks_for(size: &str) -> Value {
    json!({"spec": {"resources": {"requests": {"storage": size}}}})
}

/// The volume is expanded, and its file system waits for a node.
fn waits_for_node(checker: &Checker, claim: &str) -> bool {
    let how_far =
        |claim: &Value| claim.text(&["status", "allocatedResourceStatuses", "storage"]) == "NodeResizePending";
    checker.get(CLAIM, NAMESPACE, claim).is_some_and(|claim| how_far(claim))
}

impl Operator {
    /// Restarts the driver, and the controllers that cache its capabilities.
    pub(super) async fn restart_driver(&self) {
        self.world.kill_driver();
        self.world.kill_controllers();
        self.pause(Duration::from_secs(3)).await;
    }

    async fn until_rolled(&self, set: &str, wanted: &[&str]) -> StoryResult {
        self.until(&format!("the rollout of {set} is complete, and claims have {wanted:?}"), |checker| {
            is_rolled(checker, set) && sizes(checker) == wanted
        })
        .await
    }
}

/// T4, T6: an expansion is complete only after the node did its part, which requires a running pod. Without a pod the
/// expansion waits for the next one, and pods are created although their claims are not expanded.
pub async fn grown_on_nodes(me: Operator) -> StoryResult {
    me.world.driver.grow_on_nodes();
    me.restart_driver().await;
    me.create(set("web", 2, "quick", in_place())).await;
    me.until_complete("web").await?;
    let (pods, held) = (me.pod_uids("web"), me.holdings(&["data-web-0", "data-web-1"]));
    me.set_template("web", template("data", "quick", "2Gi")).await;
    me.until_rolled("web", &["2Gi", "2Gi"]).await?;
    me.expect("no pod was replaced", pods == me.pod_uids("web"))?;

    me.scale("web", 1).await;
    me.until_complete("web").await?;
    me.patch(&object_ref(CLAIM, "data-web-1"), asks_for("3Gi")).await;
    me.until("the claim waits for a node", |checker| waits_for_node(checker, "data-web-1")).await?;
    // The template requests even more.
    me.set_template("web", template("data", "quick", "4Gi")).await;
    me.until("the claim of the running pod is expanded", |checker| sizes(checker) == ["4Gi", "2Gi"]).await?;
    me.pause(Duration::from_secs(60)).await;
    me.expect("the claim without a pod still waits", sizes(&me.world.checker()) == ["4Gi", "2Gi"])?;
    me.scale("web", 2).await;
    me.until_rolled("web", &["4Gi", "4Gi"]).await?;
    me.expect("the claims are unchanged", held == me.holdings(&["data-web-0", "data-web-1"]))
}

/// T11, T12: an unschedulable pod prevents the expansion of its claim, and the rollout waits for that claim. After a
/// user deletes the pod, the new one has the new revision, runs, and the rollout continues.
pub async fn unblocked(me: Operator) -> StoryResult {
    me.world.driver.grow_on_nodes();
    me.restart_driver().await;
    // With OrderedReady, a pod that is not ready would block all others and their claims.
    let parallel = json!({"podManagementPolicy": "Parallel"});
    me.create(set("web", 2, "quick", object::patch::merge(&in_place(), &parallel))).await;
    me.until_complete("web").await?;
    let (first, held) = (me.uid("Pod", "web-0"), me.holdings(&["data-web-0", "data-web-1"]));
    let on_node = |selector: Value| json!({"template": {"spec": {"nodeSelector": selector}}});
    me.patch(&object_ref("StatefulSet", "web"), json!({"spec": on_node(json!({"disk": "nowhere"}))})).await;
    let pod_is = |what: &'static str, is_so: fn(&Value) -> bool| {
        me.until(what, move |checker| checker.get("Pod", NAMESPACE, "web-1").is_some_and(|pod| is_so(pod)))
    };
    pod_is("the last pod is unschedulable", |pod| {
        pod.has(&["spec", "nodeSelector"]) && pod.text(&["status", "phase"]) == "Pending"
    })
    .await?;
    let stuck = me.uid("Pod", "web-1");
    let claims = json!({"volumeClaimTemplates": [template("data", "quick", "2Gi")]});
    let mended = object::patch::merge(&on_node(json!(null)), &claims);
    me.patch(&object_ref("StatefulSet", "web"), json!({"spec": mended})).await;
    me.until("the claim waits for a node", |checker| waits_for_node(checker, "data-web-1")).await?;
    me.until_blocked("web", "ClaimResizing").await?;
    me.pause(Duration::from_secs(60)).await;
    me.expect("the pod is not deleted", stuck == me.uid("Pod", "web-1"))?;
    me.expect("the other pod is not deleted", first == me.uid("Pod", "web-0"))?;
    me.delete(&object_ref("Pod", "web-1"), "").await;
    me.until_rolled("web", &["2Gi", "2Gi"]).await?;
    me.expect("the claims are unchanged", held == me.holdings(&["data-web-0", "data-web-1"]))
}

/// T11, T12: the driver has too little capacity for a size, so the rollout is blocked. A user requests less on each
/// claim, and the rollout continues.
pub async fn mended_by_hand(me: Operator) -> StoryResult {
    me.world.driver.limit(8 * GI);
    me.restart_driver().await;
    me.create(set("web", 2, "quick", in_place())).await;
    me.until_complete("web").await?;
    let (pods, held) = (me.pod_uids("web"), me.holdings(&["data-web-0", "data-web-1"]));
    me.set_template("web", template("data", "quick", "20Gi")).await;
    for (claim, size, wanted) in [("data-web-1", "2Gi", ["1Gi", "2Gi"]), ("data-web-0", "3Gi", ["3Gi", "2Gi"])] {
        me.until(&format!("the expansion of {claim} is infeasible"), |checker| {
            let how_far = |claim: &Value| claim.text(&["status", "allocatedResourceStatuses", "storage"]).to_owned();
            let found = checker.get(CLAIM, NAMESPACE, claim);
            found.is_some_and(|claim| how_far(claim) == "ControllerResizeInfeasible")
        })
        .await?;
        me.until_blocked("web", "ClaimResizing").await?;
        me.patch(&object_ref(CLAIM, claim), asks_for(size)).await;
        me.until(&format!("claims have {wanted:?}"), |checker| sizes(checker) == wanted).await?;
    }
    me.until_rolled("web", &["3Gi", "2Gi"]).await?;
    me.expect("no pod was replaced", pods == me.pod_uids("web"))?;
    me.expect("the claims are unchanged", held == me.holdings(&["data-web-0", "data-web-1"]))
}

/// T3, T4: a user expands claims of an InPlace set before, during and after a rollout. No expansion is reverted or
/// repeated.
pub async fn helped_along(me: Operator) -> StoryResult {
    me.create(set("web", 2, "quick", in_place())).await;
    me.until_complete("web").await?;
    let pods = me.pod_uids("web");
    me.patch(&object_ref(CLAIM, "data-web-0"), asks_for("5Gi")).await;
    me.set_template("web", template("data", "quick", "2Gi")).await;
    me.until_rolled("web", &["5Gi", "2Gi"]).await?;
    me.set_template("web", template("data", "quick", "3Gi")).await;
    me.patch(&object_ref(CLAIM, "data-web-1"), asks_for("4Gi")).await;
    me.until_rolled("web", &["5Gi", "4Gi"]).await?;
    me.patch(&object_ref(CLAIM, "data-web-0"), asks_for("6Gi")).await;
    me.until_rolled("web", &["6Gi", "4Gi"]).await?;
    me.expect("no pod was replaced", pods == me.pod_uids("web"))
}

/// T12, T16: a user removes the InPlace policy of one set. Its claims no longer follow, new claims use the newest
/// template, and pods are still updated. Another set continues. With the policy back, the claims follow again.
pub async fn withdrawn(me: Operator) -> StoryResult {
    let of = |named: &'static str| {
        move |checker: &Checker| -> Vec<String> {
            let is_its = |claim: &&std::sync::Arc<Value>| object::access::name(claim).starts_with(named);
            let size = |claim: &Value| claim.text(&["status", "capacity", "storage"]).to_owned();
            checker.all(CLAIM).filter(is_its).map(|claim| size(claim)).collect()
        }
    };
    let (db, web) = (of("data-db-"), of("data-web-"));
    let larger = |size: &str| json!({"spec": {"volumeClaimTemplates": [template("data", "quick", size)]}});
    for named in ["db", "web"] {
        me.create(set(named, 2, "quick", in_place())).await;
    }
    me.until_complete("db").await?;
    me.until_complete("web").await?;
    let kept = me.holdings(&["data-web-0", "data-web-1"]);
    me.patch(&object_ref("StatefulSet", "web"), json!({"spec": {"volumeClaimUpdatePolicy": null}})).await;
    let policy = me.field("web", &["spec", "volumeClaimUpdatePolicy"]);
    me.expect("the policy is OnClaimDelete", policy == Some(json!("OnClaimDelete")))?;
    for named in ["db", "web"] {
        me.patch(&object_ref("StatefulSet", named), larger("2Gi")).await;
    }
    me.until("the other set's claims are expanded", |checker| is_rolled(checker, "db") && db(checker) == ["2Gi"; 2])
        .await?;
    me.scale("web", 3).await;
    let pods = json!({"spec": {"template": {"metadata": {"annotations": {"version": "2"}}}}});
    let before = me.uid("Pod", "web-0");
    me.patch(&object_ref("StatefulSet", "web"), pods).await;
    me.until("pods are updated, and only the new claim is large", |checker| {
        let is_new = checker.get("Pod", NAMESPACE, "web-0").is_some_and(|pod| uid(pod) != before);
        is_new && is_rolled(checker, "web") && web(checker) == ["1Gi", "1Gi", "2Gi"]
    })
    .await?;
    me.pause(Duration::from_secs(60)).await;
    me.expect("old claims are unchanged", web(&me.world.checker()) == ["1Gi", "1Gi", "2Gi"])?;
    me.patch(&object_ref("StatefulSet", "web"), json!({"spec": in_place()})).await;
    me.until("all are large", |checker| is_rolled(checker, "web") && web(checker) == ["2Gi"; 3]).await?;
    me.expect("the claims are unchanged", kept == me.holdings(&["data-web-0", "data-web-1"]))
}
