//! Endpoints of Services.

use crate::world::*;
use object::access::{Access, uid};
use object::{Value, json};

const ENDPOINTS: &str = "endpoints-controller";

fn service(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": name}, "spec": spec})
}

fn selecting(name: &str) -> Value {
    service(name, json!({"clusterIP": "None", "selector": {"app": "web"}, "ports": [{"port": 80}]}))
}

fn endpoints(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"namespace": "default", "name": name}})
}

/// The ready and the not-ready addresses.
fn ips(endpoints: &Value) -> [Vec<String>; 2] {
    ["addresses", "notReadyAddresses"].map(|list| {
        let addresses = endpoints.items(&["subsets"]).iter().flat_map(|subset| subset.items(&[list]));
        addresses.map(|address| address.text(&["ip"]).to_owned()).collect()
    })
}

async fn until_ips(world: &World, name: &str, ready: &[&str], not_ready: &[&str]) -> Value {
    let want = [ready, not_ready].map(|ips| ips.iter().map(|ip| (*ip).to_owned()).collect::<Vec<_>>());
    world.until_is(&endpoints(name), &format!("{name} has {want:?}"), |found| ips(found) == want).await
}

async fn running(world: &World, name: &str, ip: &str) -> Value {
    let pod = world.create(pod("default", name)).await;
    set_ready(world, &pod, ip, "True").await;
    pod
}

async fn set_ready(world: &World, pod: &Value, ip: &str, ready: &str) {
    let conditions = json!([{"type": "Ready", "status": ready}]);
    let status = json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": conditions});
    world.set_status(pod, status).await;
}

#[tokio::test(start_paused = true)]
async fn endpoints_follow_pods_and_are_deleted_with_their_service() {
    let world = World::with(ENDPOINTS).await;
    let web = world.create(selecting("web")).await;
    until_ips(&world, "web", &[], &[]).await;
    let first = running(&world, "a", "10.1.0.1").await;
    let second = running(&world, "b", "10.1.0.2").await;
    let found = until_ips(&world, "web", &["10.1.0.1", "10.1.0.2"], &[]).await;
    assert_eq!(found["metadata"]["labels"]["endpoints.kubernetes.io/managed-by"], "endpoint-controller");
    assert_eq!(found["subsets"][0]["addresses"][0]["targetRef"]["uid"], first["metadata"]["uid"]);
    set_ready(&world, &second, "10.1.0.2", "False").await;
    until_ips(&world, "web", &["10.1.0.1"], &["10.1.0.2"]).await;
    // Labels decide, also when they change.
    world.merge(&first, json!({"metadata": {"labels": {"app": "db"}}})).await;
    until_ips(&world, "web", &[], &["10.1.0.2"]).await;
    world.merge(&web, json!({"spec": {"selector": {"app": "db"}}})).await;
    until_ips(&world, "web", &["10.1.0.1"], &[]).await;
    world.merge(&web, json!({"spec": {"publishNotReadyAddresses": true, "selector": {"app": "web"}}})).await;
    let before = until_ips(&world, "web", &["10.1.0.2"], &[]).await;
    // Changes by a user are reverted.
    world.merge(&before, json!({"subsets": null})).await;
    until_ips(&world, "web", &["10.1.0.2"], &[]).await;
    world.delete(&before, "").await;
    let is_back = |found: &Value| uid(found) != uid(&before) && ips(found)[0].len() == 1;
    world.until_is(&endpoints("web"), "is back", is_back).await;
    world.delete(&second, "").await;
    until_ips(&world, "web", &[], &[]).await;
    world.delete(&web, "").await;
    world.until_gone(&endpoints("web")).await;
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn endpoints_that_users_write_are_not_changed() {
    let world = World::with(ENDPOINTS).await;
    let manual = |name: &str| {
        let mut manual = endpoints(name);
        manual["subsets"] = json!([{"addresses": [{"ip": "10.9.0.1"}], "ports": [{"port": 80}]}]);
        manual
    };
    let outside = world.create(service("outside", json!({"ports": [{"port": 80}]}))).await;
    let written = world.create(manual("outside")).await;
    let alone = world.create(manual("alone")).await;
    world.create(selecting("web")).await;
    running(&world, "a", "10.1.0.1").await;
    until_ips(&world, "web", &["10.1.0.1"], &[]).await;
    assert_eq!(world.now(&written).await, Some(written.clone()));
    // They are deleted with their Service, as upstream's are; without one they are kept.
    world.delete(&outside, "").await;
    world.until_gone(&written).await;
    assert_eq!(world.now(&alone).await, Some(alone));
    world.stop().await;
}

#[tokio::test(start_paused = true)]
async fn endpoints_of_a_service_deleted_without_a_controller_are_removed() {
    let mut world = World::bare().await;
    world.start(ENDPOINTS);
    let web = world.create(selecting("web")).await;
    world.create(selecting("other")).await;
    running(&world, "a", "10.1.0.1").await;
    until_ips(&world, "web", &["10.1.0.1"], &[]).await;
    world.stop_controllers().await;
    world.delete(&web, "").await;
    world.start(ENDPOINTS);
    world.until_gone(&endpoints("web")).await;
    world.stop().await;
}

/// A change of one pod costs one write, however many other Services and pods exist, and one that no Service
/// needs costs none.
#[tokio::test(start_paused = true)]
async fn the_cost_depends_on_the_change_only() {
    let world = World::with(ENDPOINTS).await;
    world
        .create_many(20, |at| {
            let selector = json!({"app": format!("app-{at}")});
            service(&format!("s-{at}"), json!({"clusterIP": "None", "selector": selector, "ports": [{"port": 80}]}))
        })
        .await;
    world.create(selecting("web")).await;
    let pod = running(&world, "a", "10.1.0.1").await;
    until_ips(&world, "web", &["10.1.0.1"], &[]).await;
    until_ips(&world, "s-19", &[], &[]).await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    world.requests.take().await;
    world.merge(&pod, json!({"metadata": {"annotations": {"a": "b"}}})).await;
    set_ready(&world, &pod, "10.1.0.1", "False").await;
    until_ips(&world, "web", &[], &["10.1.0.1"]).await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    let asked = world.requests.take().await;
    let written: Vec<_> = asked.iter().filter(|asked| asked.method != "GET").collect();
    assert_eq!(written.len(), 1, "{written:?}");
    world.stop().await;
}
