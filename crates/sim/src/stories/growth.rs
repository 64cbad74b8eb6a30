//! KEP-4650: growth that needs a node, or somebody's help.

use super::operator::{CLAIM, NAMESPACE, Operator, Told, set, template, the};
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

/// Its volume has grown, and its file system waits for a node.
fn waits_for_node(checker: &Checker, claim: &str) -> bool {
    let how_far =
        |claim: &Value| claim.text(&["status", "allocatedResourceStatuses", "storage"]) == "NodeResizePending";
    checker.get(CLAIM, NAMESPACE, claim).is_some_and(|claim| how_far(claim))
}

impl Operator {
    /// Makes the driver anew, and those who asked it what it can do.
    pub(super) async fn restart_driver(&self) {
        self.world.kill_driver();
        self.world.kill_controllers();
        self.pause(Duration::from_secs(3)).await;
    }

    async fn until_rolled(&self, set: &str, wanted: &[&str]) -> Told {
        self.until(&format!("{set} is rolled, and claims have {wanted:?}"), |checker| {
            is_rolled(checker, set) && sizes(checker) == wanted
        })
        .await
    }
}

/// T4, T6: a volume has grown when a node has done its part, which takes a running pod: what grows while there is none waits for the next, and pods
/// are created though their claims are not ready.
pub async fn grown_on_nodes(me: Operator) -> Told {
    me.world.driver.grow_on_nodes();
    me.restart_driver().await;
    me.create(set("web", 2, "quick", in_place())).await;
    me.until_whole("web").await?;
    let (pods, held) = (me.pod_uids("web"), me.holdings(&["data-web-0", "data-web-1"]));
    me.set_template("web", template("data", "quick", "2Gi")).await;
    me.until_rolled("web", &["2Gi", "2Gi"]).await?;
    me.expect("no pod was made anew", pods == me.pod_uids("web"))?;

    me.scale("web", 1).await;
    me.until_whole("web").await?;
    me.patch(&the(CLAIM, "data-web-1"), asks_for("3Gi")).await;
    me.until("its claim waits for a node", |checker| waits_for_node(checker, "data-web-1")).await?;
    // And the template grows further than that.
    me.set_template("web", template("data", "quick", "4Gi")).await;
    me.until("the one that runs has grown", |checker| sizes(checker) == ["4Gi", "2Gi"]).await?;
    me.pause(Duration::from_secs(60)).await;
    me.expect("without a pod it waits on", sizes(&me.world.checker()) == ["4Gi", "2Gi"])?;
    me.scale("web", 2).await;
    me.until_rolled("web", &["4Gi", "4Gi"]).await?;
    me.expect("the claims are the same", held == me.holdings(&["data-web-0", "data-web-1"]))
}

/// T11, T12: a pod that no node takes keeps its claim from growing, and the rollout waits for that claim; when it is deleted by hand, the next one
/// is of the new revision, runs, and the rollout goes on.
pub async fn unblocked(me: Operator) -> Told {
    me.world.driver.grow_on_nodes();
    me.restart_driver().await;
    // In order, a pod that is not ready keeps everything waiting, its claim too.
    let parallel = json!({"podManagementPolicy": "Parallel"});
    me.create(set("web", 2, "quick", object::patch::merge(&in_place(), &parallel))).await;
    me.until_whole("web").await?;
    let (first, held) = (me.uid("Pod", "web-0"), me.holdings(&["data-web-0", "data-web-1"]));
    let on_node = |selector: Value| json!({"template": {"spec": {"nodeSelector": selector}}});
    me.patch(&the("StatefulSet", "web"), json!({"spec": on_node(json!({"disk": "nowhere"}))})).await;
    let pod_is = |what: &'static str, is_so: fn(&Value) -> bool| {
        me.until(what, move |checker| checker.get("Pod", NAMESPACE, "web-1").is_some_and(|pod| is_so(pod)))
    };
    pod_is("no node takes the last one", |pod| {
        pod.has(&["spec", "nodeSelector"]) && pod.text(&["status", "phase"]) == "Pending"
    })
    .await?;
    let stuck = me.uid("Pod", "web-1");
    let claims = json!({"volumeClaimTemplates": [template("data", "quick", "2Gi")]});
    let mended = object::patch::merge(&on_node(json!(null)), &claims);
    me.patch(&the("StatefulSet", "web"), json!({"spec": mended})).await;
    me.until("its claim waits for a node", |checker| waits_for_node(checker, "data-web-1")).await?;
    me.until_blocked("web", "ClaimResizing").await?;
    me.pause(Duration::from_secs(60)).await;
    me.expect("it is not deleted", stuck == me.uid("Pod", "web-1"))?;
    me.expect("nor is any other", first == me.uid("Pod", "web-0"))?;
    me.delete(&the("Pod", "web-1"), "").await;
    me.until_rolled("web", &["2Gi", "2Gi"]).await?;
    me.expect("the claims are the same", held == me.holdings(&["data-web-0", "data-web-1"]))
}

/// T11, T12: a size that the driver does not have blocks a rollout; a person asks for less in the claims' place, one by one, and it goes on.
pub async fn mended_by_hand(me: Operator) -> Told {
    me.world.driver.limit(8 * GI);
    me.restart_driver().await;
    me.create(set("web", 2, "quick", in_place())).await;
    me.until_whole("web").await?;
    let (pods, held) = (me.pod_uids("web"), me.holdings(&["data-web-0", "data-web-1"]));
    me.set_template("web", template("data", "quick", "20Gi")).await;
    for (claim, size, wanted) in [("data-web-1", "2Gi", ["1Gi", "2Gi"]), ("data-web-0", "3Gi", ["3Gi", "2Gi"])] {
        me.until(&format!("{claim} cannot be had so large"), |checker| {
            let how_far = |claim: &Value| claim.text(&["status", "allocatedResourceStatuses", "storage"]).to_owned();
            let found = checker.get(CLAIM, NAMESPACE, claim);
            found.is_some_and(|claim| how_far(claim) == "ControllerResizeInfeasible")
        })
        .await?;
        me.until_blocked("web", "ClaimResizing").await?;
        me.patch(&the(CLAIM, claim), asks_for(size)).await;
        me.until(&format!("claims have {wanted:?}"), |checker| sizes(checker) == wanted).await?;
    }
    me.until_rolled("web", &["3Gi", "2Gi"]).await?;
    me.expect("no pod was made anew", pods == me.pod_uids("web"))?;
    me.expect("the claims are the same", held == me.holdings(&["data-web-0", "data-web-1"]))
}

/// T3, T4: somebody else grows claims of a set that follows its template in place, before, during and after a rollout: nothing is taken back, and nothing
/// is done twice.
pub async fn helped_along(me: Operator) -> Told {
    me.create(set("web", 2, "quick", in_place())).await;
    me.until_whole("web").await?;
    let pods = me.pod_uids("web");
    me.patch(&the(CLAIM, "data-web-0"), asks_for("5Gi")).await;
    me.set_template("web", template("data", "quick", "2Gi")).await;
    me.until_rolled("web", &["5Gi", "2Gi"]).await?;
    me.set_template("web", template("data", "quick", "3Gi")).await;
    me.patch(&the(CLAIM, "data-web-1"), asks_for("4Gi")).await;
    me.until_rolled("web", &["5Gi", "4Gi"]).await?;
    me.patch(&the(CLAIM, "data-web-0"), asks_for("6Gi")).await;
    me.until_rolled("web", &["6Gi", "4Gi"]).await?;
    me.expect("no pod was made anew", pods == me.pod_uids("web"))
}

/// T12, T16: one set is rolled back by taking its policy away: no claim of it follows from then on, new claims are of the newest template, and pods roll as
/// ever; the other set goes on. With the policy back, claims are brought along.
pub async fn withdrawn(me: Operator) -> Told {
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
    me.until_whole("db").await?;
    me.until_whole("web").await?;
    let kept = me.holdings(&["data-web-0", "data-web-1"]);
    me.patch(&the("StatefulSet", "web"), json!({"spec": {"volumeClaimUpdatePolicy": null}})).await;
    let policy = me.field("web", &["spec", "volumeClaimUpdatePolicy"]);
    me.expect("the policy is the older one", policy == Some(json!("OnClaimDelete")))?;
    for named in ["db", "web"] {
        me.patch(&the("StatefulSet", named), larger("2Gi")).await;
    }
    me.until("the other set's claims grow", |checker| is_rolled(checker, "db") && db(checker) == ["2Gi"; 2]).await?;
    me.scale("web", 3).await;
    let pods = json!({"spec": {"template": {"metadata": {"annotations": {"version": "2"}}}}});
    let before = me.uid("Pod", "web-0");
    me.patch(&the("StatefulSet", "web"), pods).await;
    me.until("pods roll, and only the new claim is large", |checker| {
        let is_new = checker.get("Pod", NAMESPACE, "web-0").is_some_and(|pod| uid(pod) != before);
        is_new && is_rolled(checker, "web") && web(checker) == ["1Gi", "1Gi", "2Gi"]
    })
    .await?;
    me.pause(Duration::from_secs(60)).await;
    me.expect("old claims are left alone", web(&me.world.checker()) == ["1Gi", "1Gi", "2Gi"])?;
    me.patch(&the("StatefulSet", "web"), json!({"spec": in_place()})).await;
    me.until("all are large", |checker| is_rolled(checker, "web") && web(checker) == ["2Gi"; 3]).await?;
    me.expect("the claims are the same", kept == me.holdings(&["data-web-0", "data-web-1"]))
}
