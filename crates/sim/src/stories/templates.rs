//! KEP-4650: claim templates change, and claims follow or not.

use super::operator::{CLAIM, Operator, Told, is_whole, retention, set, template, the};
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

/// T3: the document's second story.
pub async fn asymmetric(me: Operator) -> Told {
    me.create(set("web", 2, "quick", json!({}))).await;
    me.until_whole("web").await?;
    let larger = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
    me.patch(&the(CLAIM, "data-web-1"), larger("5Gi")).await;
    me.patch(&the("StatefulSet", "web"), json!({"spec": {"volumeClaimTemplates": [template("data", "quick", "2Gi")]}}))
        .await;
    me.scale("web", 3).await;
    me.until("each claim has its own size", |checker| {
        is_rolled(checker, "web") && sizes(checker) == ["1Gi", "5Gi", "2Gi"]
    })
    .await?;
    me.patch(&the(CLAIM, "data-web-0"), larger("3Gi")).await;
    me.until("the first has grown, too", |checker| sizes(checker) == ["3Gi", "5Gi", "2Gi"]).await
}

/// T2, T7, T17
pub async fn modified(me: Operator) -> Told {
    let with_class = |class: &str| {
        let mut template = template("data", "quick", "1Gi");
        template["spec"]["volumeAttributesClassName"] = json!(class);
        json!({"volumeClaimUpdatePolicy": "InPlace", "volumeClaimTemplates": [template]})
    };
    me.create(set("web", 2, "quick", with_class("silver"))).await;
    me.until_whole("web").await?;
    let pods = [me.uid("Pod", "web-0"), me.uid("Pod", "web-1")];
    for class in ["gold", "silver", "gold"] {
        me.patch(&the("StatefulSet", "web"), json!({"spec": with_class(class)})).await;
        me.until(&format!("all volumes are {class}"), |checker| {
            let is_now = |claim: &Value| claim.text(&["status", "currentVolumeAttributesClassName"]) == class;
            is_rolled(checker, "web") && checker.all(CLAIM).all(|claim| is_now(claim))
        })
        .await?;
    }
    me.expect("no pod was made anew", pods == [me.uid("Pod", "web-0"), me.uid("Pod", "web-1")])
}

/// T17, R5
pub async fn several(me: Operator) -> Told {
    let templates = |size: &str| json!([template("data", "quick", "1Gi"), template("log", "late", size)]);
    let more = json!({"volumeClaimUpdatePolicy": "InPlace", "volumeClaimTemplates": templates("1Gi")});
    me.create(set("web", 2, "quick", object::patch::merge(&retention("Delete", "Delete"), &more))).await;
    me.until_whole("web").await?;
    me.patch(&the("StatefulSet", "web"), json!({"spec": {"volumeClaimTemplates": templates("2Gi")}})).await;
    me.until("one of each two claims has grown", |checker| {
        is_rolled(checker, "web") && sizes(checker) == ["1Gi", "1Gi", "2Gi", "2Gi"]
    })
    .await?;
    me.scale("web", 1).await;
    me.until_claims(&["data-web-0", "log-web-0"]).await?;
    me.until_volumes(2).await
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
