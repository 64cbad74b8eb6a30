//! KEP-4650: claim templates change, and claims follow or not.

use super::operator::{CLAIM, Operator, Told, is_whole, set, template, the};
use object::access::Access;
use object::{Value, json};
use plan::invariant::Checker;

fn sizes(checker: &Checker) -> Vec<String> {
    checker.all(CLAIM).map(|claim| claim.text(&["status", "capacity", "storage"]).to_owned()).collect()
}

/// The rollout is over: everything is at the newest revision.
fn is_rolled(checker: &Checker, set: &str) -> bool {
    let is_over = |set: &Value| {
        let status = |member: &str| set.text(&["status", member]).to_owned();
        status("currentRevision") == status("updateRevision")
            && set.int(&["status", "updatedReplicas"]) == set.int(&["spec", "replicas"])
    };
    is_whole(checker, super::operator::NAMESPACE, set)
        && checker.get("StatefulSet", super::operator::NAMESPACE, set).is_some_and(|set| is_over(set))
}

/// T4, T5, T6, T7
pub async fn grown_in_place(me: Operator) -> Told {
    me.create(set("web", 2, "quick", json!({"volumeClaimUpdatePolicy": "InPlace"}))).await;
    me.until_whole("web").await?;
    let pods = [me.uid("Pod", "web-0"), me.uid("Pod", "web-1")];
    let web = the("StatefulSet", "web");
    me.patch(&web, json!({"spec": {"volumeClaimTemplates": [template("data", "quick", "2Gi")]}})).await;
    me.until("the claims have grown", |checker| is_rolled(checker, "web") && sizes(checker) == ["2Gi", "2Gi"]).await?;
    me.expect("no pod was made anew", pods == [me.uid("Pod", "web-0"), me.uid("Pod", "web-1")])?;
    // Claims and pods change together.
    let template = json!({"spec": {"containers": [{"name": "main", "image": "image:2", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}});
    let claims = json!([self::template("data", "quick", "3Gi")]);
    me.patch(&web, json!({"spec": {"template": template, "volumeClaimTemplates": claims}})).await;
    me.until("claims and pods are new", |checker| is_rolled(checker, "web") && sizes(checker) == ["3Gi", "3Gi"]).await
}

/// T3, T12
pub async fn changed_for_new_claims(me: Operator) -> Told {
    me.create(set("web", 1, "quick", json!({}))).await;
    me.until_whole("web").await?;
    let web = the("StatefulSet", "web");
    me.patch(&web, json!({"spec": {"volumeClaimTemplates": [template("data", "quick", "2Gi")]}})).await;
    me.scale("web", 2).await;
    me.until("only the new claim is large", |checker| is_rolled(checker, "web") && sizes(checker) == ["1Gi", "2Gi"])
        .await?;
    me.patch(&web, json!({"spec": {"volumeClaimUpdatePolicy": "InPlace"}})).await;
    me.until("both are large", |checker| is_rolled(checker, "web") && sizes(checker) == ["2Gi", "2Gi"]).await
}

/// Template changes, one replica at a time and two at a time.
pub async fn rolled(me: Operator) -> Told {
    let more = json!({
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}},
    });
    me.create(set("web", 3, "late", more)).await;
    me.until_whole("web").await?;
    for version in [2, 3] {
        let image = format!("image:{version}");
        let template = json!({"spec": {"containers": [{"name": "main", "image": image, "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}});
        let max = 3 - (version - 1);
        let strategy = json!({"rollingUpdate": {"maxUnavailable": max}});
        me.patch(&the("StatefulSet", "web"), json!({"spec": {"template": template, "updateStrategy": strategy}})).await;
        me.until(&format!("all run {image}"), |checker| {
            is_rolled(checker, "web")
                && checker.all("Pod").all(|pod| pod.items(&["spec", "containers"])[0].text(&["image"]) == image)
        })
        .await?;
    }
    Ok(())
}
