//! Each controller needs every right that its role gives it, and one that it lacks is seen: exactly that is refused, it is counted and
//! told, and when the right is given back the work goes on by itself.

mod errands;
mod lack;
#[path = "../volumes/pairs.rs"]
#[allow(dead_code, reason = "shared with other tests, which use other parts of it")]
mod pairs;
#[path = "../csi/storage.rs"]
#[allow(dead_code, reason = "shared with other tests, which use other parts of it")]
mod storage;
mod stories;
#[path = "../controllers/world.rs"]
#[allow(dead_code, reason = "shared with other tests, which use other parts of it")]
mod world;

use lack::{each_right, each_right_for_long, each_right_of_events};

#[tokio::test(start_paused = true)]
async fn rights_of_the_garbage_collector() {
    each_right("generic-garbage-collector", stories::collect).await;
    each_right_for_long("generic-garbage-collector", &errands::COLLECTION).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_the_namespace_controller() {
    each_right("namespace-controller", stories::empty_a_namespace).await;
    each_right_for_long("namespace-controller", &errands::NAMESPACES_GO).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_those_who_furnish_namespaces() {
    each_right("service-account-controller", stories::keep_accounts).await;
    each_right("root-ca-cert-publisher", stories::keep_certificates).await;
    each_right_for_long("root-ca-cert-publisher", &errands::CERTIFICATES).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_the_aggregation_of_roles() {
    each_right("clusterrole-aggregation-controller", stories::aggregate).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_the_disruption_controller() {
    each_right("disruption-controller", stories::budget).await;
    each_right_for_long("disruption-controller", &errands::BUDGETS).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_the_endpoints_controller() {
    each_right("endpoint-controller", stories::publish).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_the_node_life_cycle() {
    each_right("node-controller", stories::lose_a_node).await;
    each_right_for_long("node-controller", &errands::NODES_FALL_SILENT).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_the_pod_garbage_collector() {
    each_right("pod-garbage-collector", stories::collect_pods).await;
    each_right_for_long("pod-garbage-collector", &errands::PODS_ARE_COLLECTED).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_the_statefulset_controller() {
    each_right("statefulset-controller", stories::run_a_set).await;
    each_right_for_long("statefulset-controller", &errands::SETS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_of_the_binder() {
    each_right("persistent-volume-binder", stories::bind).await;
    each_right_for_long("persistent-volume-binder", &errands::BINDING).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_protection() {
    each_right("pvc-protection-controller", stories::protect_claims).await;
    each_right_for_long("pvc-protection-controller", &errands::CLAIMS_ARE_PROTECTED).await;
    each_right("pv-protection-controller", stories::protect_volumes).await;
    each_right("volumeattributesclass-protection-controller", stories::protect_classes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_of_the_provisioner() {
    each_right("csi-provisioner", stories::provision).await;
    each_right_for_long("csi-provisioner", &errands::PROVISIONING).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_of_the_resizer() {
    each_right("csi-resizer", stories::resize).await;
    each_right_for_long("csi-resizer", &errands::RESIZING).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_of_the_health_monitor() {
    each_right("csi-health-monitor", stories::lose_data).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_those_who_count() {
    each_right("state-metrics", stories::count).await;
    each_right_for_long("state-metrics", &errands::COUNTING).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_whoever_tells_events() {
    each_right_of_events("statefulset-controller").await;
}

/// A controller without a story here would be one whose rights nobody has looked at.
#[test]
fn every_controller_has_its_story_and_every_role_its_controller() {
    let text = include_str!("main.rs");
    let accounts = runtime::Controllers::accounts("*", &runtime::Reach::default()).expect("a good list");
    for (controller, account) in &accounts {
        assert!(text.contains(&format!("each_right(\"{account}\"")), "{controller}, as {account}");
    }
    let roles = server::authz::bootstrap::objects().into_iter().filter(|object| object["kind"] == "ClusterRole");
    let names: Vec<String> = roles.map(|role| object::access::name(&role).to_owned()).collect();
    let of_controllers: Vec<&str> = names.iter().filter_map(|name| name.strip_prefix("system:controller:")).collect();
    assert_eq!(of_controllers.len(), accounts.len(), "{of_controllers:?}");
}
