//! CSIStorageCapacity objects: what a driver has left, as schedulers read it.

use crate::storage::*;
use crate::world::*;
use object::access::Access;
use object::{Value, json};

const CAPACITIES: &str = "/apis/storage.k8s.io/v1/namespaces/kube-system/csistoragecapacities";

async fn until_places(world: &World, wanted: &[&str]) {
    let place = |object: &Value| object.text(&["nodeTopology", "matchLabels", "zone"]).to_owned();
    let places = async || {
        let list = world.get(CAPACITIES).await.expect("a list");
        let mut places: Vec<String> = list.items(&["items"]).iter().map(place).collect();
        places.sort();
        places
    };
    world.until(&format!("capacity in {wanted:?}"), || async { (places().await == wanted).then_some(()) }).await;
}

async fn node(world: &World, zone: &str) {
    let metadata = json!({"name": zone, "labels": {"zone": zone}});
    world.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})).await;
    csi_node(world, zone).await;
}

async fn csi_node(world: &World, zone: &str) {
    let drivers = json!([{"name": DRIVER, "nodeID": zone, "topologyKeys": ["zone"]}]);
    let csi_node = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": zone}, "spec": {"drivers": drivers},
    });
    world.create(csi_node).await;
}

/// Nothing is placed before the capacity is known, so nobody can wait for the first volume to tell it.
#[tokio::test(flavor = "multi_thread")]
async fn capacity_is_told_when_the_driver_comes_late_and_when_nodes_come() {
    let zone = |zone: &str| [("zone".to_owned(), zone.to_owned())].into();
    let options = csi::directory::Options { places: vec![zone("a"), zone("b"), zone("c")], ..options() };
    let mut storage = Storage::new(options).await;
    storage.stop().await;
    let mut world = World::bare().await;
    world.setup.drivers = vec![storage.endpoint()];
    let driver = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER}, "spec": {"storageCapacity": true},
    });
    world.create(driver).await;
    world.create(class("w", "Delete", json!({"volumeBindingMode": "WaitForFirstConsumer"}))).await;
    node(&world, "a").await;
    world.start(&everything());
    // The provisioner is at work: it has heard of the class, and has no driver yet.
    let other = world.create(claim_of("other", "w")).await;
    world.until_event(&other, "WaitForFirstConsumer").await;
    storage.start().await;
    until_places(&world, &["a"]).await;
    node(&world, "b").await;
    until_places(&world, &["a", "b"]).await;
    // One that has the driver, and is put into a place only then.
    let metadata = json!({"name": "c", "labels": {"tier": "db"}});
    let late = world.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})).await;
    let looks = || world.requests.count(|asked| asked.method == "GET" && asked.path.ends_with(CAPACITIES));
    let before = looks();
    csi_node(&world, "c").await;
    world.until_moment("it is heard of", || looks() > before).await;
    world.merge(&late, json!({"metadata": {"labels": {"zone": "c"}}})).await;
    until_places(&world, &["a", "b", "c"]).await;
    world.stop().await;
}
