//! KEP-4650: claims that must not change as the template says, until a user corrects it.

use super::operator::{CLAIM, Operator, StoryResult, claim, object_ref, set, template};
use super::templates::{is_rolled, sizes};
use object::access::Access;
use object::{Value, json};
use std::time::Duration;

/// T11: admission refuses a larger claim, and a quota allows only one claim of a VolumeAttributesClass. The rollout
/// waits, pods keep running, and it continues when both are allowed.
pub async fn refused(me: Operator) -> StoryResult {
    let largest = |size: &str| json!({"spec": {"limits": [{"type": CLAIM, "max": {"storage": size}}]}});
    let room =
        |size: &str| json!({"spec": {"hard": {"gold.volumeattributesclass.storage.k8s.io/requests.storage": size}}});
    let (limits, quota) = (object_ref("LimitRange", "limits"), object_ref("ResourceQuota", "room"));
    let with = |size: &str, class: &str| {
        let mut template = template("data", "quick", size);
        template["spec"]["volumeAttributesClassName"] = json!(class);
        template
    };
    let of_class = |class: &str| {
        let is_now = |claim: &Value| claim.text(&["status", "currentVolumeAttributesClassName"]) == class;
        me.world.checker().all(CLAIM).filter(|claim| is_now(claim)).count()
    };
    me.create(object::patch::merge(&limits, &largest("1Gi"))).await;
    let first = json!({"volumeClaimUpdatePolicy": "InPlace", "volumeClaimTemplates": [with("1Gi", "silver")]});
    me.create(set("web", 2, "quick", first)).await;
    me.until_complete("web").await?;
    let pods = me.pod_uids("web");
    me.set_template("web", with("2Gi", "silver")).await;
    me.until_blocked("web", "ClaimUpdateFailed").await?;
    me.pause(Duration::from_secs(60)).await;
    me.expect("no claim is expanded", sizes(&me.world.checker()) == ["1Gi"; 2])?;
    me.patch(&limits, largest("2Gi")).await;
    me.until("all claims are expanded", |checker| is_rolled(checker, "web") && sizes(checker) == ["2Gi"; 2]).await?;

    me.create(object::patch::merge(&quota, &room("2Gi"))).await;
    me.set_template("web", with("2Gi", "gold")).await;
    me.until_blocked("web", "ClaimUpdateFailed").await?;
    me.pause(Duration::from_secs(60)).await;
    me.expect("the quota allows one claim", (of_class("gold"), of_class("silver")) == (1, 1))?;
    me.expect("all pods keep running", pods == me.pod_uids("web"))?;
    me.patch(&quota, room("4Gi")).await;
    me.until("all are gold", |checker| {
        let is_now = |claim: &Value| claim.text(&["status", "currentVolumeAttributesClassName"]) == "gold";
        is_rolled(checker, "web") && checker.all(CLAIM).all(|claim| is_now(claim))
    })
    .await?;
    me.expect("no pod was replaced", pods == me.pod_uids("web"))
}

/// T11, T12: a claim that existed before the set has another class and cannot match the template. The rollout waits,
/// scaling still works. After a user deletes the claim, a new one has the right class and the rollout continues.
pub async fn mismatched(me: Operator) -> StoryResult {
    me.create(claim("data-web-1", "kept")).await;
    me.create(set("web", 3, "quick", json!({}))).await;
    me.until_complete("web").await?;
    let pods = me.pod_uids("web");
    let larger =
        json!({"volumeClaimUpdatePolicy": "InPlace", "volumeClaimTemplates": [template("data", "quick", "2Gi")]});
    me.patch(&object_ref("StatefulSet", "web"), json!({"spec": larger})).await;
    me.until_blocked("web", "ClaimUpdateFailed").await?;
    me.scale("web", 4).await;
    me.until_complete("web").await?;
    me.pause(Duration::from_secs(60)).await;
    me.expect("the rollout waits", sizes(&me.world.checker()) == ["1Gi", "1Gi", "2Gi", "2Gi"])?;
    me.expect("all pods keep running", pods == me.pod_uids("web")[..3])?;
    let (wrong, volume) = (me.uid(CLAIM, "data-web-1"), me.volume_of("data-web-1").await?);
    me.delete(&object_ref(CLAIM, "data-web-1"), "").await;
    me.delete(&object_ref("Pod", "web-1"), "").await;
    me.until("all claims are expanded", |checker| is_rolled(checker, "web") && sizes(checker) == ["2Gi"; 4]).await?;
    me.expect("the claim is a new one", wrong != me.uid(CLAIM, "data-web-1"))?;
    me.expect("the data of the old claim still exists", me.world.driver.handles().contains(&me.handle(&volume)))?;
    me.until_volumes(5).await
}
