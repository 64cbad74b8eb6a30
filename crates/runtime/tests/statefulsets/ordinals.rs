//! Ordinals that do not start at 0 (KEP-3335).

use crate::kubelet::Kubelet;
use crate::sets::*;
use crate::world::*;
use object::access::{Access, name, uid};
use object::{Gates, Value, json};

fn start(at: i64) -> Value {
    json!({"ordinals": {"start": at}})
}

// O1, J01, J02: names, labels, hostnames and claims use the ordinal.
#[tokio::test(flavor = "multi_thread")]
async fn o1_replicas_are_numbered_from_the_start() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(with(web_with_claims(3), start(4))).await;
    world.until_done(&set).await;
    assert_eq!(world.pods().await, ["web-4", "web-5", "web-6"]);
    assert_eq!(world.claims().await, ["data-web-4", "data-web-5", "data-web-6"]);
    let pod = world.the_pod("web-5").await;
    assert_eq!(pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"], "5");
    assert_eq!(pod["spec"]["hostname"], "web-5");
    let (code, _) =
        world.send("PATCH", &path(&set), "application/merge-patch+json", Some(&json!({"spec": start(-1)}))).await;
    assert_eq!(code, 422);
    let mut plain = with(web(1), json!({"ordinals": {}}));
    plain["metadata"]["name"] = json!("plain");
    let plain = world.create(plain).await;
    world.until_done(&plain).await;
    assert!(world.pods().await.contains(&"plain-0".to_owned()));
    world.stop().await;
}

// J03: scaling down keeps the start.
#[tokio::test(flavor = "multi_thread")]
async fn scaling_down_keeps_the_first_ordinals() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(with(web(4), start(2))).await;
    world.until_done(&set).await;
    let set = world.change(&set, json!({"replicas": 1})).await;
    world.until_done(&set).await;
    assert_eq!(world.pods().await, ["web-2"]);
    world.stop().await;
}

// O2, J04: the new pods are created and become ready, in order; then the old ones are deleted.
#[tokio::test(flavor = "multi_thread")]
async fn o2_new_ordinals_are_created_before_old_ones_are_deleted() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(web(2)).await;
    world.until_done(&set).await;
    let set = world.change(&set, json!({"replicas": 3, "ordinals": {"start": 2}})).await;
    world.until_pods(&["web-2", "web-3", "web-4"]).await;
    world.until_done(&set).await;
    for moment in world.history().await.iter().filter(|moment| moment.pods.contains_key("web-2")) {
        let [first, second] = ["web-0", "web-1"].map(|pod| moment.pods.contains_key(pod));
        if !(first && second) {
            let new = ["web-2", "web-3", "web-4"];
            assert!(new.iter().all(|pod| moment.pods.contains_key(*pod)) && moment.unready().is_empty(), "{moment:?}");
        }
        assert!(first || !second, "the higher one goes first");
    }
    world.stop().await;
}

// O2, J05, J07: pods in both ranges are kept; without ordinals, the range starts at 0.
#[tokio::test(flavor = "multi_thread")]
async fn o2_replicas_in_both_ranges_are_kept() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(with(web_with_claims(3), start(2))).await;
    world.until_done(&set).await;
    let stays = world.the_pod("web-4").await;
    let set = world.change(&set, start(4)).await;
    world.until_pods(&["web-4", "web-5", "web-6"]).await;
    assert_eq!(uid(&world.the_pod("web-4").await), uid(&stays));
    assert_eq!(world.names(REVISIONS).await.len(), 1, "no rollout");
    world.change(&set, json!({"ordinals": null, "replicas": 2})).await;
    world.until_pods(&["web-0", "web-1"]).await;
    world.stop().await;
}

// I25: moving the start is scaling, also for claims.
#[tokio::test(flavor = "multi_thread")]
async fn claims_of_ordinals_out_of_range_follow_the_policy() {
    let (world, _kubelet) = World::lively().await;
    let policy = json!({"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"}});
    let set = world.create(with(web_with_claims(2), policy)).await;
    world.until_done(&set).await;
    let set = world.change(&set, start(2)).await;
    world.until_claims(&["data-web-2", "data-web-3"]).await;
    world.until_done(&set).await;
    world.stop().await;
}

// O3, J09: a partition is an ordinal; with the gate off an offset from the start.
#[tokio::test(flavor = "multi_thread")]
async fn o3_the_partition_is_an_ordinal() {
    for (gate, partition, wanted) in [
        (true, 4, ["x", "y", "y"]),
        (true, 3, ["y", "y", "y"]),
        (true, 6, ["x", "x", "x"]),
        (false, 1, ["x", "y", "y"]),
        (false, 4, ["x", "x", "x"]),
    ] {
        let mut world = World::bare().await;
        world.setup.gates = Gates::default().with("StatefulSetOrdinalPartition", gate);
        world.start(SETS);
        let _kubelet = Kubelet::start(&world);
        let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": partition}});
        let set = world.create(with(with(web(3), start(3)), json!({"updateStrategy": strategy}))).await;
        world.until_done(&set).await;
        world.set_image(&set, "y").await;
        let images = || async {
            let pods = world.get(PODS).await.expect("a list");
            let images = pods.items(&["items"]).iter().map(|pod| pod["spec"]["containers"][0]["image"].clone());
            (images.collect::<Vec<_>>() == wanted).then_some(())
        };
        world.until(&format!("{gate} {partition}: {wanted:?}"), images).await;
        world.quiet().await;
        assert!(images().await.is_some(), "{gate} {partition}");
        world.stop().await;
    }
}

// O4: a slice moves from one set to another, ordinal by ordinal; none runs twice, no claim is lost.
#[tokio::test(flavor = "multi_thread")]
async fn o4_a_slice_moves_between_namespaces() {
    let (world, _kubelet) = World::lively().await;
    world.create(new_namespace("there")).await;
    let here = world.create(web_with_claims(3)).await;
    world.until_done(&here).await;
    let before: Vec<Value> = world.get(CLAIMS).await.expect("a list").items(&["items"]).to_vec();
    let mut there = with(web_with_claims(0), start(3));
    there["metadata"]["namespace"] = json!("there");
    let there = world.create(there).await;
    for moved in 1..=3 {
        let shrunk = world.change(&here, json!({"replicas": 3 - moved})).await;
        world.until_done(&shrunk).await;
        let grown = world.change(&there, json!({"replicas": moved, "ordinals": {"start": 3 - moved}})).await;
        world.until_done(&grown).await;
        let mut running = world.pods().await;
        running.extend(world.names("/api/v1/namespaces/there/pods").await);
        assert_eq!(running, ["web-0", "web-1", "web-2"], "each exactly once");
    }
    for claim in &before {
        let now = world.get(&format!("{CLAIMS}/{}", name(claim))).await.expect("kept");
        assert_eq!(uid(&now), uid(claim));
    }
    world.stop().await;
}

// O4, second story of the KEP: the same between two clusters that do not know each other.
#[tokio::test(flavor = "multi_thread")]
async fn o4_a_slice_moves_between_clusters() {
    let (here, _kubelet) = World::lively().await;
    let (there, _kubelet_there) = World::lively().await;
    let from = here.create(web_with_claims(3)).await;
    here.until_done(&from).await;
    let before = here.get(CLAIMS).await.expect("a list").items(&["items"]).to_vec();
    let to = there.create(with(web_with_claims(0), start(3))).await;
    for moved in 1..=3 {
        let shrunk = here.change(&from, json!({"replicas": 3 - moved})).await;
        here.until_done(&shrunk).await;
        let grown = there.change(&to, json!({"replicas": moved, "ordinals": {"start": 3 - moved}})).await;
        there.until_done(&grown).await;
        let running = [here.pods().await, there.pods().await].concat();
        assert_eq!(running, ["web-0", "web-1", "web-2"], "each exactly once");
    }
    assert_eq!(there.claims().await, ["data-web-0", "data-web-1", "data-web-2"]);
    for claim in &before {
        assert_eq!(uid(&here.claim(name(claim)).await), uid(claim), "what was left is for the one who moves it");
    }
    here.stop().await;
    there.stop().await;
}

// O5: with the gate off the field is kept and ignored; with it on, it is used again.
#[tokio::test(flavor = "multi_thread")]
async fn o5_the_gate_of_the_controllers() {
    let off = Gates::default().with("StatefulSetStartOrdinal", false);
    let mut world = World::bare().await;
    world.setup.gates = off.clone();
    world.start(SETS);
    let _kubelet = Kubelet::start(&world);
    let set = world.create(with(web(2), start(5))).await;
    let set = world.until_done(&set).await;
    assert_eq!(world.pods().await, ["web-0", "web-1"]);
    assert_eq!(set["spec"]["ordinals"]["start"], 5);
    world.stop_controllers().await;
    world.setup.gates = Gates::default();
    world.start(SETS);
    world.until_pods(&["web-5", "web-6"]).await;
    world.stop_controllers().await;
    // The server's gate: a stored field is kept.
    world.restart_server(off).await;
    let labelled = world.merge(&set, json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert_eq!(labelled["spec"]["ordinals"]["start"], 5);
    world.stop().await;
}
