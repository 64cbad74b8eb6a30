//! CSIStorageCapacity objects: the available capacity of a driver, for schedulers.

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

/// No pod is scheduled before the capacity is known, so it must be published before the first volume exists.
#[tokio::test(flavor = "multi_thread")]
async fn capacity_is_published_when_the_driver_or_nodes_are_added_later() {
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
    // The provisioner runs: it has received the class, and has no driver yet.
    let other = world.create(claim_of("other", "w")).await;
    world.until_event(&other, "WaitForFirstConsumer").await;
    storage.start().await;
    until_places(&world, &["a"]).await;
    node(&world, "b").await;
    until_places(&world, &["a", "b"]).await;
    // A node that has the driver and gets its topology label later.
    let metadata = json!({"name": "c", "labels": {"tier": "db"}});
    let late = world.create(json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})).await;
    let looks = || world.requests.count(|asked| asked.method == "GET" && asked.path.ends_with(CAPACITIES));
    let before = looks();
    csi_node(&world, "c").await;
    world.until_moment("the node is seen", || looks() > before).await;
    world.merge(&late, json!({"metadata": {"labels": {"zone": "c"}}})).await;
    until_places(&world, &["a", "b", "c"]).await;
    world.stop().await;
}
