//! Update strategies: OnDelete, partitions, minReadySeconds and Recreate, with claims.

use super::operator::{
    CLAIM, NAMESPACE, Operator, StoryResult, is_complete, object_ref, pods_of, retention, set, template,
};
use super::templates::{is_rolled, sizes};
use object::access::{Access, name, terminating, uid};
use object::{Value, json};
use plan::invariant::Checker;
use std::time::Duration;

/// Patch with the next revision of pods and claims.
fn larger() -> Value {
    let pods = json!({"metadata": {"annotations": {"version": "2"}}});
    json!({"spec": {"template": pods, "volumeClaimTemplates": [template("data", "quick", "2Gi")]}})
}

/// Whether each pod has the next revision, by ordinal.
fn are_new(checker: &Checker) -> Vec<bool> {
    let is_new = |pod: &Value| pod.text(&["metadata", "annotations", "version"]) == "2";
    pods_of(checker, NAMESPACE, "web").iter().map(|pod| is_new(pod)).collect()
}

/// Requested and actual sizes of all claims. A pending expansion shows as a difference.
fn asked_and_had(checker: &Checker) -> (Vec<String>, Vec<String>) {
    let asked = |claim: &Value| claim.text(&["spec", "resources", "requests", "storage"]).to_owned();
    (checker.all(CLAIM).map(|claim| asked(claim)).collect(), sizes(checker))
}

impl Operator {
    /// Waits until the pods and claims with `true` are updated. All others must not change.
    async fn until_updated(&self, wanted: &[bool]) -> StoryResult {
        let size = |is_new: &bool| if *is_new { "2Gi" } else { "1Gi" }.to_owned();
        let wanted_sizes: Vec<String> = wanted.iter().map(size).collect();
        let is_so = |checker: &Checker| {
            are_new(checker) == wanted && asked_and_had(checker) == (wanted_sizes.clone(), wanted_sizes.clone())
        };
        self.until(&format!("the updated replicas are {wanted:?}"), |checker| {
            is_complete(checker, NAMESPACE, "web") && is_so(checker)
        })
        .await?;
        self.pause(Duration::from_secs(60)).await;
        // Readiness depends on the nodes, so only revisions and sizes are checked now.
        self.expect(&format!("exactly {wanted:?} are updated"), is_so(&self.world.checker()))
    }

    /// Deletes a pod, and waits for its replacement.
    async fn replace(&self, pod: &str) -> StoryResult {
        let old = self.uid("Pod", pod);
        self.delete(&object_ref("Pod", pod), "").await;
        self.until(&format!("{pod} is a new pod"), |checker| {
            checker.get("Pod", NAMESPACE, pod).is_some_and(|pod| uid(pod) != old)
        })
        .await
    }
}

/// T6: with OnDelete a claim is updated when a user deletes its pod, and not before.
pub async fn one_by_one(me: Operator) -> StoryResult {
    let more = json!({"volumeClaimUpdatePolicy": "InPlace", "updateStrategy": {"type": "OnDelete"}});
    me.create(set("web", 3, "quick", more)).await;
    me.until_complete("web").await?;
    me.patch(&object_ref("StatefulSet", "web"), larger()).await;
    let mut wanted = [false; 3];
    me.until_updated(&wanted).await?;
    for ordinal in [1, 2, 0] {
        me.replace(&format!("web-{ordinal}")).await?;
        wanted[ordinal] = true;
        me.until_updated(&wanted).await?;
    }
    Ok(())
}

/// T6: a partition is lowered step by step. Pods and claims below it do not change, also when a pod there is
/// replaced.
pub async fn stepwise(me: Operator) -> StoryResult {
    let with = |partition: usize| json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}});
    let more = object::patch::merge(&json!({"volumeClaimUpdatePolicy": "InPlace"}), &with(3));
    me.create(set("web", 3, "quick", more)).await;
    me.until_complete("web").await?;
    me.patch(&object_ref("StatefulSet", "web"), larger()).await;
    let mut wanted = [false; 3];
    me.until_updated(&wanted).await?;
    for partition in [2, 1, 0] {
        me.patch(&object_ref("StatefulSet", "web"), json!({"spec": with(partition)})).await;
        wanted[partition] = true;
        me.until_updated(&wanted).await?;
        me.replace("web-0").await?;
        me.until_updated(&wanted).await?;
    }
    me.until("the rollout is over", |checker| is_rolled(checker, "web")).await
}

/// O1, O3: ordinals start above 0, and the partition is compared with ordinals. A partition above the last ordinal
/// updates no replica, and one at or below the start updates all. New replicas get their revision by their ordinals
/// alone.
pub async fn sliced(me: Operator) -> StoryResult {
    let web = object_ref("StatefulSet", "web");
    let with = |partition: i64| json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}}});
    let range = |start: i64, replicas: i64| json!({"ordinals": {"start": start}, "replicas": replicas});
    let more = object::patch::merge(&json!({"volumeClaimUpdatePolicy": "InPlace"}), &retention("Retain", "Delete"));
    let more = object::patch::merge(&object::patch::merge(&more, &range(4, 3)), &with(9));
    me.create(set("web", 3, "quick", more)).await;
    me.until_complete("web").await?;
    me.patch(&web, larger()).await;
    me.until_updated(&[false; 3]).await?;
    me.patch(&web, json!({"spec": with(6)})).await;
    me.until_updated(&[false, false, true]).await?;
    // A new replica is above the partition, and a replaced one below it.
    me.scale("web", 4).await;
    me.until_updated(&[false, false, true, true]).await?;
    me.replace("web-5").await?;
    me.until_updated(&[false, false, true, true]).await?;
    // The slice begins two ordinals earlier, below the partition.
    me.patch(&web, json!({"spec": range(2, 6)})).await;
    me.until_updated(&[false, false, false, false, true, true]).await?;
    me.patch(&web, json!({"spec": with(5)})).await;
    me.until_updated(&[false, false, false, true, true, true]).await?;
    // The slice loses both ends, with their claims.
    me.patch(&web, json!({"spec": range(4, 2)})).await;
    me.until_updated(&[false, true]).await?;
    me.patch(&web, json!({"spec": with(3)})).await;
    me.until_updated(&[true, true]).await?;
    me.until("the rollout is over", |checker| is_rolled(checker, "web")).await?;
    me.until_claims(&["data-web-4", "data-web-5"]).await
}

/// With minReadySeconds the next replica is updated after the previous one was ready for that time.
pub async fn unhurried(me: Operator) -> StoryResult {
    const LONG: i64 = 20;
    me.create(set("web", 2, "quick", json!({"minReadySeconds": LONG, "volumeClaimUpdatePolicy": "InPlace"}))).await;
    me.until_complete("web").await?;
    me.patch(&object_ref("StatefulSet", "web"), larger()).await;
    me.until("the rollout is over", |checker| is_rolled(checker, "web") && sizes(checker) == ["2Gi", "2Gi"]).await?;
    let since = |pod: &str| {
        let checker = me.world.checker();
        let pod = checker.get("Pod", NAMESPACE, pod).cloned().unwrap_or_default();
        pod.text(&["metadata", "creationTimestamp"]).parse().unwrap_or(jiff::Timestamp::MAX).as_second()
    };
    let between = since("web-0") - since("web-1");
    me.expect(&format!("{LONG} s pass between two replicas, not {between}"), between >= LONG)
}

/// T6: Recreate updates all claims first, and then deletes all pods at once.
pub async fn all_at_once(me: Operator) -> StoryResult {
    let gate = "StatefulSetRecreateStrategy";
    me.server_with(gate, true).await;
    me.controllers_with(gate, true).await;
    let more = json!({"volumeClaimUpdatePolicy": "InPlace", "updateStrategy": {"type": "Recreate"}});
    me.create(set("web", 3, "quick", more)).await;
    me.until_complete("web").await?;
    me.patch(&object_ref("StatefulSet", "web"), larger()).await;
    me.until("a pod terminates", |checker| {
        checker.all("Pod").any(|pod| terminating(pod)) || are_new(checker).contains(&true)
    })
    .await?;
    me.expect("all claims are expanded by then", sizes(&me.world.checker()) == ["2Gi"; 3])?;
    me.until("all pods terminate before one is created", |checker| {
        let pods = checker.all("Pod").filter(|pod| name(pod).starts_with("web-"));
        pods.into_iter().all(|pod| terminating(pod)) || are_new(checker).contains(&true)
    })
    .await?;
    me.expect("no new pod exists yet", !are_new(&me.world.checker()).contains(&true))?;
    me.until_updated(&[true; 3]).await
}
