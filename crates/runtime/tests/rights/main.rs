//! Each controller needs every permission of its role. One that is missing is refused, counted and reported,
//! and when it is granted the work continues by itself.

mod missing_permission;
#[path = "../volumes/pairs.rs"]
#[allow(dead_code, reason = "shared with other tests, which use other parts of it")]
mod pairs;
mod permission_scenarios;
#[path = "../csi/storage.rs"]
#[allow(dead_code, reason = "shared with other tests, which use other parts of it")]
mod storage;
mod stories;
#[path = "../controllers/world.rs"]
#[allow(dead_code, reason = "shared with other tests, which use other parts of it")]
mod world;

use missing_permission::{each_right, each_right_for_long, each_right_of_events};

#[tokio::test(start_paused = true)]
async fn rights_of_the_garbage_collector() {
    each_right("generic-garbage-collector", stories::collect).await;
    each_right_for_long("generic-garbage-collector", &permission_scenarios::COLLECTION).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_the_namespace_controller() {
    each_right("namespace-controller", stories::empty_a_namespace).await;
    each_right_for_long("namespace-controller", &permission_scenarios::NAMESPACE_DELETION).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_the_controllers_that_fill_namespaces() {
    each_right("service-account-controller", stories::keep_accounts).await;
    each_right("root-ca-cert-publisher", stories::keep_certificates).await;
    each_right_for_long("root-ca-cert-publisher", &permission_scenarios::CERTIFICATES).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_the_aggregation_of_roles() {
    each_right("clusterrole-aggregation-controller", stories::aggregate).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_the_disruption_controller() {
    each_right("disruption-controller", stories::budget).await;
    each_right_for_long("disruption-controller", &permission_scenarios::BUDGETS).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_the_endpoints_controller() {
    each_right("endpoint-controller", stories::publish).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_the_node_life_cycle() {
    each_right("node-controller", stories::lose_a_node).await;
    each_right_for_long("node-controller", &permission_scenarios::UNREACHABLE_NODES).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_the_pod_garbage_collector() {
    each_right("pod-garbage-collector", stories::collect_pods).await;
    each_right_for_long("pod-garbage-collector", &permission_scenarios::POD_COLLECTION).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_the_statefulset_controller() {
    each_right("statefulset-controller", stories::run_a_set).await;
    each_right_for_long("statefulset-controller", &permission_scenarios::SETS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_of_the_binder() {
    each_right("persistent-volume-binder", stories::bind).await;
    each_right_for_long("persistent-volume-binder", &permission_scenarios::BINDING).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_protection() {
    each_right("pvc-protection-controller", stories::protect_claims).await;
    each_right_for_long("pvc-protection-controller", &permission_scenarios::CLAIMS_ARE_PROTECTED).await;
    each_right("pv-protection-controller", stories::protect_volumes).await;
    each_right("volumeattributesclass-protection-controller", stories::protect_classes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_of_the_provisioner() {
    each_right("csi-provisioner", stories::provision).await;
    each_right_for_long("csi-provisioner", &permission_scenarios::PROVISIONING).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_of_the_resizer() {
    each_right("csi-resizer", stories::resize).await;
    each_right_for_long("csi-resizer", &permission_scenarios::RESIZING).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_of_the_health_monitor() {
    each_right("csi-health-monitor", stories::lose_data).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_the_state_metrics() {
    each_right("state-metrics", stories::count).await;
    each_right_for_long("state-metrics", &permission_scenarios::COUNTING).await;
}

#[tokio::test(start_paused = true)]
async fn rights_of_the_event_recorder() {
    each_right_of_events("statefulset-controller").await;
}

/// A controller without a story here would have untested permissions.
#[test]
fn every_controller_has_a_story() {
    let text = include_str!("main.rs");
    for controller in runtime::descriptors() {
        let account = controller.account;
        assert!(text.contains(&format!("each_right(\"{account}\"")), "{}, as {account}", controller.name);
    }
}
