//! Which pods and revisions belong to a set, and how that changes.

use crate::kubelet::Kubelet;
use crate::sets::*;
use crate::world::*;
use object::access::{Access, name, terminating, uid};
use object::{Value, json};

fn owners(object: &Value) -> &[Value] {
    object.items(&["metadata", "ownerReferences"])
}

// D01: a released pod is adopted again.
#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_that_fits_is_adopted_again() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(web(1)).await;
    world.until_done(&set).await;
    let pod = world.the_pod("web-0").await;
    world.merge(&pod, json!({"metadata": {"ownerReferences": null}})).await;
    world.until_is(&pod, "adopted", |pod| owners(pod) == [controlling(&set, true)]).await;
    world.stop().await;
}

// D02: a pod without the set's labels is released; its name stays in use, which the set reports, until the
// labels are restored.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_without_the_labels_is_released_and_blocks_its_name() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(web(2)).await;
    world.until_done(&set).await;
    let pod = world.the_pod("web-0").await;
    let labels = pod["metadata"]["labels"].clone();
    world.merge(&pod, json!({"metadata": {"labels": {"app": null}}})).await;
    world.until_is(&pod, "released", |pod| owners(pod).is_empty()).await;
    world.until_told(&set, "FailedCreate", "web-0").await;
    world.until_is(&set, "one fewer", |set| set["status"]["replicas"] == 1).await;
    world.merge(&pod, json!({"metadata": {"labels": labels}})).await;
    world.until_is(&pod, "adopted", |pod| owners(pod) == [controlling(&set, true)]).await;
    world.until_done(&set).await;
    assert_eq!(uid(&world.the_pod("web-0").await), uid(&pod));
    world.stop().await;
}

// D03: names and labels must both match.
#[tokio::test(flavor = "multi_thread")]
async fn pods_of_other_names_or_labels_are_not_adopted() {
    let (world, _kubelet) = World::lively().await;
    let other_name = world.create(pod("default", "xweb-4")).await;
    let mut unlabelled = pod("default", "web-3");
    unlabelled["metadata"].cut(&["labels"]);
    let unlabelled = world.create(unlabelled).await;
    let set = world.create(web(1)).await;
    world.until_done(&set).await;
    world.quiet().await;
    for stranger in [other_name, unlabelled] {
        let now = world.now(&stranger).await.expect("there");
        assert_eq!(owners(&now), [] as [Value; 0], "{}", name(&now));
    }
    world.stop().await;
}

// D04, and beyond upstream: the owner of a pod with a replica's name is reported, and with Parallel the other
// replicas do not wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_used_by_another_controller_is_reported_and_blocks_only_its_replica() {
    let (world, _kubelet) = World::lively().await;
    let other = world.create(config_map("default", "other")).await;
    let mut taken = pod("default", "web-1");
    taken["metadata"]["ownerReferences"] = json!([controlling(&other, false)]);
    let taken = world.create(taken).await;
    let set = world.create(with(web(3), json!({"podManagementPolicy": "Parallel"}))).await;
    world.until_told(&set, "FailedCreate", "ConfigMap/other").await;
    world.until_is(&set, "the others", |set| set["status"]["readyReplicas"] == 2).await;
    world.quiet().await;
    let now = world.now(&taken).await.expect("untouched");
    assert_eq!(owners(&now), [controlling(&other, false)]);
    let told = world.told(&set).await;
    assert_eq!(told.iter().filter(|(_, message)| message.contains("ConfigMap/other")).count(), 1, "{told:?}");
    // When the name is free again, it is used at once.
    world.delete(&taken, "").await;
    world.until_done(&set).await;
    world.stop().await;
}

// D08: revisions without an owner are adopted.
#[tokio::test(flavor = "multi_thread")]
async fn an_orphaned_revision_is_adopted() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(web(1)).await;
    let set = world.until_done(&set).await;
    let revision = world.get(&format!("{REVISIONS}/{}", set.text(&["status", "currentRevision"]))).await.expect("one");
    world.merge(&revision, json!({"metadata": {"ownerReferences": null}})).await;
    world.until_is(&revision, "adopted", |revision| owners(revision) == [controlling(&set, true)]).await;
    world.stop().await;
}

// D09: a pod that cannot be updated is reported, and blocks those after it.
#[tokio::test(start_paused = true)]
async fn an_adopted_pod_without_its_volume_is_reported() {
    let mut world = World::bare().await;
    let pod = world.create(pod("default", "web-0")).await;
    world.start(SETS);
    let set = world.create(web_with_claims(2)).await;
    world.until_is(&pod, "adopted", |pod| owners(pod) == [controlling(&set, true)]).await;
    world.make_ready("web-0").await;
    world.until_told(&set, "FailedUpdate", "Update Pod web-0 in StatefulSet web failed error:").await;
    assert_eq!(world.pods().await, ["web-0"]);
    world.delete(&pod, "").await;
    let _kubelet = Kubelet::start(&world);
    world.until_done(&set).await;
    world.stop().await;
}

// R10, I22: an orphaned set leaves all its objects, and another set of its name adopts them.
#[tokio::test(flavor = "multi_thread")]
async fn r10_an_orphaning_deletion_keeps_all_and_another_set_adopts_them() {
    let (world, _kubelet) = World::lively().await;
    let policy = json!({"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Delete"}});
    let set = world.create(with(web_with_claims(2), policy.clone())).await;
    world.until_done(&set).await;
    let pods = [world.the_pod("web-0").await, world.the_pod("web-1").await];
    let claims = [world.claim("data-web-0").await, world.claim("data-web-1").await];
    assert_eq!(owners(&claims[0]), [controlling(&set, false)]);
    world.delete(&set, "Orphan").await;
    world.until_gone(&set).await;
    for left in pods.iter().chain(&claims) {
        world.until_is(left, "let go of", |left| owners(left).is_empty()).await;
    }
    world.quiet().await;
    let again = world.create(with(web_with_claims(2), policy)).await;
    world.until_done(&again).await;
    for (left, blocks) in pods.iter().map(|pod| (pod, true)).chain(claims.iter().map(|claim| (claim, false))) {
        world.until_is(left, "taken back", |left| owners(left) == [controlling(&again, blocks)]).await;
    }
    assert_eq!(world.names(REVISIONS).await.len(), 1, "the history is taken back too");
    world.stop().await;
}

// R10: the same if another finalizer keeps the set longer than the collector does.
#[tokio::test(flavor = "multi_thread")]
async fn r10_an_orphaning_deletion_blocked_by_another_finalizer_keeps_all() {
    let (world, _kubelet) = World::lively().await;
    let policy = json!({"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Delete"}});
    let mut set = with(web_with_claims(1), policy);
    set["metadata"]["finalizers"] = json!(["example.com/hold"]);
    let set = world.create(set).await;
    world.until_done(&set).await;
    let left = [world.the_pod("web-0").await, world.claim("data-web-0").await];
    world.delete(&set, "Orphan").await;
    let is_held = |set: &Value| set["metadata"]["finalizers"] == json!(["example.com/hold"]);
    world.until_is(&set, "left to the one who holds it", is_held).await;
    for left in &left {
        world.until_is(left, "let go of", |left| owners(left).is_empty()).await;
    }
    world.quiet().await;
    world.merge(&set, json!({"metadata": {"finalizers": null}})).await;
    world.until_gone(&set).await;
    world.quiet().await;
    for left in &left {
        world.until_is(left, "there, and nobody's", |left| owners(left).is_empty() && !terminating(left)).await;
    }
    world.stop().await;
}

// Two sets have claims of the same names, because names contain dashes: the claims are deleted with neither.
#[tokio::test(flavor = "multi_thread")]
async fn contested_claims_are_deleted_with_neither_set() {
    let (world, _kubelet) = World::lively().await;
    let named = |name: &str, template: &str, replicas: i64, policy: &str| {
        let spec = json!({
            "volumeClaimTemplates": [claim_template(template)],
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": policy, "whenScaled": "Retain"},
        });
        let mut set = with(stateful_set("default", name, replicas), spec);
        set["spec"]["selector"]["matchLabels"] = json!({"app": name});
        set["spec"]["template"]["metadata"]["labels"] = json!({"app": name});
        set
    };
    let first = world.create(named("db-web", "data", 2, "Delete")).await;
    world.until_done(&first).await;
    let claims = [world.claim("data-db-web-0").await, world.claim("data-db-web-1").await];
    assert_eq!(owners(&claims[0]), [controlling(&first, false)]);
    let second = world.create(named("web", "data-db", 1, "Delete")).await;
    world.until_done(&second).await;
    for claim in &claims {
        world.until_is(claim, "nobody's", |claim| owners(claim).is_empty()).await;
    }
    world.until_told(&second, "ContestedClaim", "PersistentVolumeClaim data-db-web-0 is by its name").await;
    world.delete(&second, "Foreground").await;
    world.until_gone(&second).await;
    // Now they belong to one set only.
    for claim in &claims {
        let is_back = |claim: &Value| owners(claim) == [controlling(&first, false)] && !terminating(claim);
        world.until_is(claim, "the first one's again", is_back).await;
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sets_with_a_common_name_prefix_do_not_affect_each_other() {
    let (world, _kubelet) = World::lively().await;
    let named = |name: &str, template: &str| {
        let mut set =
            with(stateful_set("default", name, 2), json!({"volumeClaimTemplates": [claim_template(template)]}));
        set["spec"]["selector"]["matchLabels"] = json!({"app": name});
        set["spec"]["template"]["metadata"]["labels"] = json!({"app": name});
        set
    };
    // `a-0` of the first set would be a pod of the second; and both have a claim `d-a-0-1`.
    let sets = [named("a", "d"), named("a-0", "d"), named("0", "d-a")];
    let mut created = Vec::new();
    for set in sets {
        created.push(world.create(set).await);
    }
    for set in &created {
        world.until_done(set).await;
    }
    world.until_pods(&["0-0", "0-1", "a-0", "a-0-0", "a-0-1", "a-1"]).await;
    world.until_claims(&["d-a-0", "d-a-0-0", "d-a-0-1", "d-a-1"]).await;
    world.stop().await;
}
