//! Nodes register, report, renew their leases, and register again.

use crate::fleet::*;
use crate::world::*;
use object::access::{name, uid};
use object::{condition, json};
use std::time::Duration;

#[tokio::test(start_paused = true)]
async fn nodes_register_with_csi_node_and_lease() {
    let fleet = Fleet::of(3).await;
    assert_eq!(fleet.names("/api/v1/nodes").await, ["simulated-0", "simulated-1", "simulated-2"]);
    assert_eq!(fleet.names("/apis/storage.k8s.io/v1/csinodes").await.len(), 3);
    let node = fleet.now(&node_named(1)).await.expect("the object exists");
    assert!(condition::is_true(&node, "Ready"));
    assert_eq!(node["metadata"]["labels"]["topology.kubernetes.io/zone"], "zone-b");
    assert_eq!(node["metadata"]["labels"]["mainstay.dev/simulated"], "true");
    assert_eq!(node["status"]["nodeInfo"]["kubeletVersion"], "mainstay-simulated");
    let lease = fleet.get("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/simulated-1").await;
    let lease = lease.expect("a lease");
    assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], uid(&node));
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 40);
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_node_renews_every_ten_seconds_and_reports_every_five_minutes() {
    let fleet = Fleet::of(2).await;
    fleet.pass(5).await;
    fleet.requests.take().await;
    fleet.pass(900).await;
    let asked = fleet.requests.take().await;
    let count = |part: &str| asked.iter().filter(|asked| asked.method == "PATCH" && asked.path.contains(part)).count();
    let (renewals, reports) = (count("/leases/simulated-"), count("/nodes/simulated-"));
    assert!((2 * 88..=2 * 90).contains(&renewals), "{renewals}");
    assert!((2 * 2..=2 * 3).contains(&reports), "{reports}");
    let others = asked.iter().filter(|asked| asked.method != "PATCH" && !asked.path.contains("watch=")).count();
    assert_eq!(others, 0, "{asked:?}");
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_node_registers_again_and_changed_fields_are_corrected() {
    let fleet = Fleet::of(1).await;
    let node = fleet.now(&node_named(0)).await.expect("the object exists");
    fleet.delete(&node, "").await;
    let again = fleet.until_is(&node_named(0), "another", |found| uid(found) != uid(&node)).await;
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"namespace": "kube-node-lease", "name": "simulated-0"}});
    fleet.until_is(&lease, "its owner", |lease| lease["metadata"]["ownerReferences"][0]["uid"] == uid(&again)).await;
    fleet.merge(&again, json!({"metadata": {"labels": {"rack": "7"}}})).await;
    let mut broken = again["status"].clone();
    broken["conditions"][3]["status"] = json!("False");
    broken["capacity"]["cpu"] = json!("1");
    fleet.set_status(&again, broken).await;
    let mended = fleet
        .until_is(&again, "right again", |node| {
            condition::is_true(node, "Ready") && node["status"]["capacity"]["cpu"] != "1"
        })
        .await;
    assert_eq!(mended["metadata"]["labels"]["rack"], "7", "labels of users are kept");
    fleet.delete(&lease, "").await;
    fleet.until_is(&lease, "a lease again", |_| true).await;
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn restarted_nodes_use_the_existing_objects() {
    let mut fleet = Fleet::of(2).await;
    let pod = fleet.create(pod("default", "p")).await;
    let before = fleet.until_ready(&pod).await;
    let node = fleet.now(&node_named(0)).await.expect("the object exists");
    fleet.stop_nodes().await;
    fleet.pass(3600).await;
    fleet.start().await;
    assert_eq!(uid(&fleet.now(&node_named(0)).await.expect("the object exists")), uid(&node));
    let other = fleet.create(crate::world::pod("default", "q")).await;
    let other = fleet.until_ready(&other).await;
    assert_ne!(other["spec"]["nodeName"], before["spec"]["nodeName"], "running pods count");
    assert_ne!(other["status"]["podIP"], before["status"]["podIP"]);
    let after = fleet.now(&pod).await.expect("it runs");
    assert_eq!(after["status"], before["status"], "nothing was started twice");
    assert_eq!(name(&after), "p");
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nodes_recover_from_server_errors() {
    let fleet = Fleet::of(1).await;
    fleet.faults.refuse(Some(500));
    fleet.faults.cut_watches();
    let pod = fleet.create(pod("default", "p")).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    fleet.faults.refuse(None);
    fleet.until_ready(&pod).await;
    fleet.stop().await;
}

/// A machine that is switched off does not register again when its Node is deleted, and registers when a Node
/// of its name is created.
#[tokio::test(start_paused = true)]
async fn a_node_deleted_while_it_is_down_registers_when_it_is_created_again() {
    let fleet = Fleet::of(1).await;
    let pod = fleet.create(pod("default", "p")).await;
    fleet.until_ready(&pod).await;
    fleet.annotate(&node_named(0), "down", Some("true")).await;
    fleet.pass(1).await;
    fleet.delete(&node_named(0), "").await;
    fleet.delete(&pod, "").await;
    fleet.pass(600).await;
    assert_eq!(fleet.now(&node_named(0)).await, None);
    assert!(fleet.now(&pod).await.is_some(), "the machine is off and terminates no pod");
    fleet.create(node_named(0)).await;
    let back = fleet.until_is(&node_named(0), "ready", |node| condition::is_true(node, "Ready")).await;
    fleet.until_gone(&pod).await;
    let labelled = |node: &object::Value| node["metadata"]["labels"]["mainstay.dev/simulated"] == "true";
    fleet.until_is(&back, "labelled", labelled).await;
    fleet.stop().await;
}

fn driver(name: &str) -> node::Driver {
    node::Driver { name: name.to_owned(), probe: std::sync::Arc::new(|_| Box::pin(std::future::ready(None))) }
}

#[tokio::test(start_paused = true)]
async fn the_csi_node_lists_the_drivers_and_belongs_to_the_node_that_exists() {
    let with_driver = |setup: &mut node::Setup| setup.drivers = vec![driver("directory.example.com")];
    let mut fleet = Fleet::with(1, with_driver).await;
    fleet.world.start("garbage-collector-controller");
    let csi_node = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "simulated-0"}});
    let listed = |csi_node: &object::Value| csi_node["spec"]["drivers"].clone();
    let own = json!({"name": "directory.example.com", "nodeID": "simulated-0", "topologyKeys": []});
    let stored = fleet.now(&csi_node).await.expect("it is registered");
    assert_eq!(listed(&stored), json!([own]));

    // The Node registers again at once. The CSINode of the deleted Node must not be collected for good.
    let node = fleet.now(&node_named(0)).await.expect("it is there");
    fleet.delete(&node, "").await;
    let again = fleet.until_is(&node_named(0), "another", |found| uid(found) != uid(&node)).await;
    fleet.settle().await;
    let is_owned = |csi_node: &object::Value| csi_node["metadata"]["ownerReferences"][0]["uid"] == uid(&again);
    fleet.until_is(&csi_node, "owned by the Node that exists", is_owned).await;

    // A CSINode of an earlier run, with the driver of another process.
    fleet.stop_nodes().await;
    let other = json!({"name": "other.example.com", "nodeID": "x", "topologyKeys": ["zone"]});
    let stored = fleet.now(&csi_node).await.expect("it is there");
    fleet.merge(&stored, json!({"spec": {"drivers": [other]}})).await;
    fleet.start().await;
    fleet.until_is(&csi_node, "both drivers", |csi_node| listed(csi_node) == json!([other, own])).await;
    fleet.stop().await;
}
