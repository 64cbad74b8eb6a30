//! KEP-4650: claim templates change, and claims are updated or not.

use super::operator::{
    CLAIM, NAMESPACE, Operator, StoryResult, is_complete, object_ref, pods_of, retention, set, template,
};
use object::access::{Access, uid};
use object::{Value, condition, json};
use plan::invariant::Checker;
use std::time::Duration;

pub fn sizes(checker: &Checker) -> Vec<String> {
    checker.all(CLAIM).map(|claim| claim.text(&["status", "capacity", "storage"]).to_owned()).collect()
}

/// Whether the rollout is complete: all replicas have the newest revision.
pub fn is_rolled(checker: &Checker, set: &str) -> bool {
    let is_over = |set: &Value| {
        let status = |member: &str| set.text(&["status", member]).to_owned();
        status("currentRevision") == status("updateRevision")
            && set.int(&["status", "updatedReplicas"]) == set.int(&["spec", "replicas"])
    };
    is_complete(checker, NAMESPACE, set) && checker.get("StatefulSet", NAMESPACE, set).is_some_and(|set| is_over(set))
}

/// T4, T5, T6, T7
pub async fn grown_in_place(me: Operator) -> StoryResult {
    me.create(set("web", 2, "quick", json!({"volumeClaimUpdatePolicy": "InPlace"}))).await;
    me.until_complete("web").await?;
    let pods = [me.uid("Pod", "web-0"), me.uid("Pod", "web-1")];
    let web = object_ref("StatefulSet", "web");
    me.patch(&web, json!({"spec": {"volumeClaimTemplates": [template("data", "quick", "2Gi")]}})).await;
    me.until("the claims are expanded", |checker| is_rolled(checker, "web") && sizes(checker) == ["2Gi", "2Gi"])
        .await?;
    me.expect("no pod was replaced", pods == [me.uid("Pod", "web-0"), me.uid("Pod", "web-1")])?;
    // Claims and pods change together.
    let template = json!({"spec": {"containers": [{"name": "main", "image": "image:2", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}});
    let claims = json!([self::template("data", "quick", "3Gi")]);
    me.patch(&web, json!({"spec": {"template": template, "volumeClaimTemplates": claims}})).await;
    me.until("claims and pods are updated", |checker| is_rolled(checker, "web") && sizes(checker) == ["3Gi", "3Gi"])
        .await
}

/// T3, T12
pub async fn changed_for_new_claims(me: Operator) -> StoryResult {
    me.create(set("web", 1, "quick", json!({}))).await;
    me.until_complete("web").await?;
    let web = object_ref("StatefulSet", "web");
    me.patch(&web, json!({"spec": {"volumeClaimTemplates": [template("data", "quick", "2Gi")]}})).await;
    me.scale("web", 2).await;
    me.until("only the new claim is large", |checker| is_rolled(checker, "web") && sizes(checker) == ["1Gi", "2Gi"])
        .await?;
    me.patch(&web, json!({"spec": {"volumeClaimUpdatePolicy": "InPlace"}})).await;
    me.until("both are large", |checker| is_rolled(checker, "web") && sizes(checker) == ["2Gi", "2Gi"]).await
}

/// T3: the second user story of the KEP.
pub async fn asymmetric(me: Operator) -> StoryResult {
    me.create(set("web", 2, "quick", json!({}))).await;
    me.until_complete("web").await?;
    let larger = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
    me.patch(&object_ref(CLAIM, "data-web-1"), larger("5Gi")).await;
    me.patch(
        &object_ref("StatefulSet", "web"),
        json!({"spec": {"volumeClaimTemplates": [template("data", "quick", "2Gi")]}}),
    )
    .await;
    me.scale("web", 3).await;
    me.until("each claim has its own size", |checker| {
        is_rolled(checker, "web") && sizes(checker) == ["1Gi", "5Gi", "2Gi"]
    })
    .await?;
    me.patch(&object_ref(CLAIM, "data-web-0"), larger("3Gi")).await;
    me.until("the first claim is expanded, too", |checker| sizes(checker) == ["3Gi", "5Gi", "2Gi"]).await
}

/// T2, T7, T17
pub async fn modified(me: Operator) -> StoryResult {
    let with_class = |class: &str| {
        let mut template = template("data", "quick", "1Gi");
        template["spec"]["volumeAttributesClassName"] = json!(class);
        json!({"volumeClaimUpdatePolicy": "InPlace", "volumeClaimTemplates": [template]})
    };
    me.create(set("web", 2, "quick", with_class("silver"))).await;
    me.until_complete("web").await?;
    let pods = [me.uid("Pod", "web-0"), me.uid("Pod", "web-1")];
    for class in ["gold", "silver", "gold"] {
        me.patch(&object_ref("StatefulSet", "web"), json!({"spec": with_class(class)})).await;
        me.until(&format!("all volumes are {class}"), |checker| {
            let is_now = |claim: &Value| claim.text(&["status", "currentVolumeAttributesClassName"]) == class;
            is_rolled(checker, "web") && checker.all(CLAIM).all(|claim| is_now(claim))
        })
        .await?;
    }
    me.expect("no pod was replaced", pods == [me.uid("Pod", "web-0"), me.uid("Pod", "web-1")])
}

/// T17, R5
pub async fn several(me: Operator) -> StoryResult {
    let templates = |size: &str| json!([template("data", "quick", "1Gi"), template("log", "late", size)]);
    let more = json!({"volumeClaimUpdatePolicy": "InPlace", "volumeClaimTemplates": templates("1Gi")});
    me.create(set("web", 2, "quick", object::patch::merge(&retention("Delete", "Delete"), &more))).await;
    me.until_complete("web").await?;
    me.patch(&object_ref("StatefulSet", "web"), json!({"spec": {"volumeClaimTemplates": templates("2Gi")}})).await;
    me.until("one of each two claims is expanded", |checker| {
        is_rolled(checker, "web") && sizes(checker) == ["1Gi", "1Gi", "2Gi", "2Gi"]
    })
    .await?;
    me.scale("web", 1).await;
    me.until_claims(&["data-web-0", "log-web-0"]).await?;
    me.until_volumes(2).await
}

/// Template changes, two replicas at a time and one at a time.
pub async fn rolled(me: Operator) -> StoryResult {
    let more = json!({
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}},
    });
    me.create(set("web", 3, "late", more)).await;
    me.until_complete("web").await?;
    for version in [2, 3] {
        let image = format!("image:{version}");
        let template = json!({"spec": {"containers": [{"name": "main", "image": image, "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}});
        let max = 3 - (version - 1);
        let strategy = json!({"rollingUpdate": {"maxUnavailable": max}});
        me.patch(
            &object_ref("StatefulSet", "web"),
            json!({"spec": {"template": template, "updateStrategy": strategy}}),
        )
        .await;
        me.until(&format!("all run {image}"), |checker| {
            is_rolled(checker, "web")
                && checker.all("Pod").all(|pod| pod.items(&["spec", "containers"])[0].text(&["image"]) == image)
        })
        .await?;
    }
    Ok(())
}

impl Operator {
    /// Waits until a rollout waits for a claim with this reason.
    pub async fn until_blocked(&self, set: &str, reason: &str) -> StoryResult {
        self.until(&format!("{set} is blocked: {reason}"), |checker| {
            let found = checker.get("StatefulSet", NAMESPACE, set);
            let said = found.and_then(|set| condition::get(set, "VolumeClaimsUpdated"));
            said.is_some_and(|said| said.text(&["reason"]) == reason)
        })
        .await
    }

    pub fn pod_uids(&self, set: &str) -> Vec<String> {
        pods_of(&self.world.checker(), NAMESPACE, set).iter().map(|pod| uid(pod).to_owned()).collect()
    }

    pub async fn set_template(&self, set: &str, template: Value) {
        self.patch(&object_ref("StatefulSet", set), json!({"spec": {"volumeClaimTemplates": [template]}})).await;
    }
}

/// T11: a quota allows one claim more, then another. The rollout waits, pods keep running, and it continues without
/// help.
pub async fn out_of_quota(me: Operator) -> StoryResult {
    let room = |size: &str| json!({"spec": {"hard": {"requests.storage": size}}});
    let quota = object_ref("ResourceQuota", "room");
    me.create(object::patch::merge(&quota, &room("4Gi"))).await;
    me.create(set("web", 3, "quick", json!({"volumeClaimUpdatePolicy": "InPlace"}))).await;
    me.until_complete("web").await?;
    let pods = me.pod_uids("web");
    me.set_template("web", template("data", "quick", "2Gi")).await;
    for (size, wanted) in [("4Gi", ["1Gi", "1Gi", "2Gi"]), ("5Gi", ["1Gi", "2Gi", "2Gi"])] {
        me.patch(&quota, room(size)).await;
        me.until(&format!("claims have {wanted:?}"), |checker| sizes(checker) == wanted).await?;
        me.until_blocked("web", "ClaimUpdateFailed").await?;
        me.pause(Duration::from_secs(60)).await;
        me.expect("the next claim waits", sizes(&me.world.checker()) == wanted)?;
        me.expect("all pods keep running", pods == me.pod_uids("web"))?;
    }
    // Scaling still works: a replica is removed, and deleting its claim frees quota.
    me.scale("web", 2).await;
    me.until_complete("web").await?;
    me.delete(&object_ref(CLAIM, "data-web-2"), "").await;
    me.until("all claims are expanded", |checker| is_rolled(checker, "web") && sizes(checker) == ["2Gi", "2Gi"])
        .await?;
    me.expect("no pod was replaced", pods[..2] == me.pod_uids("web"))?;
    // A claim that exceeds the quota is created when the quota allows it.
    me.scale("web", 3).await;
    me.pause(Duration::from_secs(60)).await;
    me.patch(&quota, room("6Gi")).await;
    me.until("the new claim is as large", |checker| is_rolled(checker, "web") && sizes(checker) == ["2Gi"; 3]).await
}

/// T11, T12: a class without volume expansion, or a missing VolumeAttributesClass, blocks a rollout. Shows how users
/// unblock it.
pub async fn blocked(me: Operator) -> StoryResult {
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fixed"}});
    me.create(object::patch::merge(&class, &json!({"provisioner": csi::directory::DEFAULT_NAME}))).await;
    me.create(set("web", 2, "fixed", json!({"volumeClaimUpdatePolicy": "InPlace"}))).await;
    me.until_complete("web").await?;
    let pods = me.pod_uids("web");
    me.set_template("web", template("data", "fixed", "2Gi")).await;
    me.until_blocked("web", "ClaimUpdateFailed").await?;
    // Scaling still works, and new claims use the new template.
    me.scale("web", 3).await;
    me.until_complete("web").await?;
    me.expect("no claim is expanded", sizes(&me.world.checker()) == ["1Gi", "1Gi", "2Gi"])?;
    let policy = |policy: &str| json!({"spec": {"volumeClaimUpdatePolicy": policy}});
    me.patch(&object_ref("StatefulSet", "web"), policy("OnClaimDelete")).await;
    me.until("the rollout is over", |checker| is_rolled(checker, "web")).await?;
    me.expect("claims are unchanged", sizes(&me.world.checker()) == ["1Gi", "1Gi", "2Gi"])?;
    me.patch(&object_ref("StatefulSet", "web"), policy("InPlace")).await;
    me.until_blocked("web", "ClaimUpdateFailed").await?;
    me.patch(&class, json!({"allowVolumeExpansion": true})).await;
    me.until("all claims are expanded", |checker| is_rolled(checker, "web") && sizes(checker) == ["2Gi"; 3]).await?;
    me.expect("no pod was replaced", pods == me.pod_uids("web")[..2])?;

    let with = |class: &str| {
        let mut template = template("data", "fixed", "2Gi");
        template["spec"]["volumeAttributesClassName"] = json!(class);
        template
    };
    let all_are = |checker: &Checker, class: &str| {
        let is_now = |claim: &Value| claim.text(&["status", "currentVolumeAttributesClassName"]) == class;
        is_rolled(checker, "web") && checker.all(CLAIM).all(|claim| is_now(claim))
    };
    me.set_template("web", with("silver")).await;
    me.until("all are silver", |checker| all_are(checker, "silver")).await?;
    me.set_template("web", with("nowhere")).await;
    me.until_blocked("web", "ClaimModifying").await?;
    // The class is reverted: the claim that changed first stays as it is, and the next rollout updates it.
    me.set_template("web", with("silver")).await;
    me.until("the rollout is over", |checker| is_rolled(checker, "web")).await?;
    me.set_template("web", with("gold")).await;
    me.until("all are gold", |checker| all_are(checker, "gold")).await?;
    me.expect("no pod was replaced", pods == me.pod_uids("web")[..2])
}

/// T11, T17: the class of one of two templates does not allow expansion. No claim of a replica is expanded until both
/// classes allow it.
pub async fn blocked_whole(me: Operator) -> StoryResult {
    let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fixed"}});
    me.create(object::patch::merge(&class, &json!({"provisioner": csi::directory::DEFAULT_NAME}))).await;
    let templates = |size: &str| json!([template("data", "quick", size), template("log", "fixed", size)]);
    let more = json!({"volumeClaimUpdatePolicy": "InPlace", "volumeClaimTemplates": templates("1Gi")});
    me.create(set("web", 2, "quick", more)).await;
    me.until_complete("web").await?;
    let pods = me.pod_uids("web");
    me.patch(&object_ref("StatefulSet", "web"), json!({"spec": {"volumeClaimTemplates": templates("2Gi")}})).await;
    me.until_blocked("web", "ClaimUpdateFailed").await?;
    me.pause(Duration::from_secs(60)).await;
    me.expect("no claim is expanded", sizes(&me.world.checker()) == ["1Gi"; 4])?;
    // A new replica gets claims of the new template, which need no expansion.
    me.scale("web", 3).await;
    me.until_complete("web").await?;
    me.expect(
        "only new claims have the new size",
        sizes(&me.world.checker()) == ["1Gi", "1Gi", "2Gi", "1Gi", "1Gi", "2Gi"],
    )?;
    me.patch(&class, json!({"allowVolumeExpansion": true})).await;
    me.until("all claims are expanded", |checker| is_rolled(checker, "web") && sizes(checker) == ["2Gi"; 6]).await?;
    me.expect("no pod was replaced", pods == me.pod_uids("web")[..2])
}

/// The labels and annotations that the story sets on a claim.
fn story_labels(claim: &Value) -> [&str; 4] {
    let label = |name: &str| claim.text(&["metadata", "labels", name]);
    [label("tier"), label("mine"), claim.text(&["metadata", "annotations", "note"]), label("extra")]
}

/// T2, T5, T16, T17: labels and annotations of the template are added to claims and removed again, and those of users
/// stay. All changes are made while the controllers are down.
pub async fn labelled(me: Operator) -> StoryResult {
    let web = object_ref("StatefulSet", "web");
    let with = |metadata: Value, size: &str| {
        let mut template = template("data", "quick", size);
        template["metadata"] = object::patch::merge(&template["metadata"], &metadata);
        json!({"spec": {"volumeClaimUpdatePolicy": "InPlace", "volumeClaimTemplates": [template]}})
    };
    me.create(set("web", 2, "quick", json!({}))).await;
    me.until_complete("web").await?;
    let pods = me.pod_uids("web");
    for named in ["data-web-0", "data-web-1"] {
        me.patch(&object_ref(CLAIM, named), json!({"metadata": {"labels": {"mine": "yes"}}})).await;
    }
    let both = json!({"labels": {"tier": "low", "extra": "yes"}, "annotations": {"note": "first"}});
    let changed = json!({"labels": {"tier": "high"}, "annotations": {"note": "second"}});
    let steps = [
        (both, "1Gi", ["low", "yes", "first", "yes"]),
        (changed, "2Gi", ["high", "yes", "second", ""]),
        (json!({}), "2Gi", ["", "yes", "", ""]),
    ];
    for (metadata, size, wanted) in steps {
        me.world.kill_controllers();
        me.patch(&web, with(metadata, size)).await;
        me.until(&format!("claims have {wanted:?}"), |checker| {
            is_rolled(checker, "web")
                && sizes(checker) == [size; 2]
                && checker.all(CLAIM).all(|claim| story_labels(claim) == wanted)
        })
        .await?;
    }
    me.expect("no pod was replaced", pods == me.pod_uids("web"))
}
