//! The revision history and its limit, and the status.

use crate::kubelet::{Kubelet, READY_SINCE, running};
use crate::sets::*;
use crate::world::*;
use object::access::Access;
use object::{Value, json};

async fn numbers(world: &World) -> Vec<i64> {
    let revisions = world.get(REVISIONS).await.expect("a list");
    let mut numbers: Vec<i64> = revisions.items(&["items"]).iter().filter_map(|one| one.int(&["revision"])).collect();
    numbers.sort_unstable();
    numbers
}

async fn until_numbers(world: &World, wanted: &[i64]) {
    world.until(&format!("revisions {wanted:?}"), || async { (numbers(world).await == wanted).then_some(()) }).await;
}

// G01, G02, G03: the limit applies to unused revisions; the oldest are deleted first; lowering it deletes
// more.
#[tokio::test(flavor = "multi_thread")]
async fn history_is_kept_up_to_its_limit() {
    let (world, _kubelet) = World::lively().await;
    let mut set = world.create(with(web(1), json!({"revisionHistoryLimit": 3}))).await;
    world.until_done(&set).await;
    for image in 1..8 {
        set = world.set_image(&set, &format!("image-{image}")).await;
        set = world.until_done(&set).await;
    }
    until_numbers(&world, &[5, 6, 7, 8]).await;
    world.change(&set, json!({"revisionHistoryLimit": 1})).await;
    until_numbers(&world, &[7, 8]).await;
    world.change(&set, json!({"revisionHistoryLimit": 0})).await;
    until_numbers(&world, &[8]).await;
    world.change(&set, json!({"revisionHistoryLimit": -1})).await;
    for image in 11..14 {
        set = world.set_image(&set, &format!("image-{image}")).await;
        set = world.until_done(&set).await;
    }
    world.quiet().await;
    assert_eq!(numbers(&world).await, [8, 9, 10, 11]);
    world.stop().await;
}

// G10: a revision has the set's annotations at its creation.
#[tokio::test(flavor = "multi_thread")]
async fn a_revision_keeps_the_annotations_of_its_creation() {
    let (world, _kubelet) = World::lively().await;
    let mut set = web(1);
    set["metadata"]["annotations"] = json!({"kubernetes.io/change-cause": "first"});
    let set = world.create(set).await;
    let set = world.until_done(&set).await;
    world.merge(&set, json!({"metadata": {"annotations": {"kubernetes.io/change-cause": "second"}}})).await;
    world.quiet().await;
    let path = format!("{REVISIONS}/{}", set.text(&["status", "currentRevision"]));
    let revision = world.get(&path).await.expect("it");
    assert_eq!(revision["metadata"]["annotations"], json!({"kubernetes.io/change-cause": "first"}));
    world.stop().await;
}

// G02 with a collision: the name of another revision is not used.
#[tokio::test(flavor = "multi_thread")]
async fn a_revision_under_the_wanted_name_with_other_content_makes_another_name() {
    let (mut world, kubelet) = World::lively().await;
    let set = world.create(web(1)).await;
    let set = world.until_done(&set).await;
    let wanted = set.text(&["status", "updateRevision"]).to_owned();
    world.stop_controllers().await;
    drop(kubelet);
    world.delete(&set, "Background").await;
    world.until_gone(&set).await;
    for pod in world.pods().await {
        world.delete(&pod_of(&pod), "").await;
    }
    let revision = json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision",
        "metadata": {"namespace": "default", "name": wanted}, "revision": 7,
        "data": {"spec": {"template": {"other": "content"}}},
    });
    world.delete(&revision, "").await;
    world.create(revision).await;
    world.start(ALL);
    let _kubelet = Kubelet::start(&world);
    let set = world.create(web(1)).await;
    let set = world.until_done(&set).await;
    assert_ne!(set.text(&["status", "updateRevision"]), wanted);
    assert_eq!(set["status"]["collisionCount"], 1);
    world.stop().await;
}

fn pod_of(name: &str) -> Value {
    crate::world::pod("default", name)
}

// H01: ready pods, and available ones that were ready for long enough.
#[tokio::test(flavor = "multi_thread")]
async fn the_status_counts_existing_ready_and_available_pods() {
    let world = World::with(SETS).await;
    let parallel = json!({"podManagementPolicy": "Parallel", "minReadySeconds": 3600});
    let set = world.create(with(web(4), parallel)).await;
    let now = object::write::stamp(jiff::Timestamp::now());
    world.play("web-0", running(false, READY_SINCE)).await;
    world.play("web-1", running(true, &now)).await;
    world.play("web-2", running(true, READY_SINCE)).await;
    world.play("web-3", running(true, READY_SINCE)).await;
    world
        .until_is(&set, "counted", |set| {
            let counts = ["replicas", "readyReplicas", "availableReplicas"].map(|field| set.int(&["status", field]));
            counts == [Some(4), Some(3), Some(2)]
        })
        .await;
    world.stop().await;
}

// H04: a write of another client in between is harmless.
#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_of_the_status_is_retried_without_an_event() {
    let world = World::with(SETS).await;
    let set = world.create(web(1)).await;
    world.until_pod("web-0").await;
    world.until_is(&set, "counted", |set| set["status"]["replicas"] == 1).await;
    world.faults.mishap(SETS, 0, Mishap::Refused(409));
    world.make_ready("web-0").await;
    world.until_done(&set).await;
    assert!(!world.faults.mishap_waits());
    let told = world.told(&set).await;
    assert!(told.iter().all(|(reason, _)| reason == "SuccessfulCreate"), "{told:?}");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_of_others_are_kept() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(web(1)).await;
    world.until_done(&set).await;
    let mine = json!({"type": "Mine", "status": "True", "reason": "Because", "message": "it is"});
    world.set_status(&set, json!({"conditions": [mine]})).await;
    let set = world.change(&set, json!({"replicas": 2})).await;
    let done = world.until_done(&set).await;
    assert_eq!(done["status"]["conditions"][0]["type"], "Mine");
    world.stop().await;
}
