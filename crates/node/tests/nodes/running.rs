//! Pods run and terminate.

use crate::fleet::*;
use crate::world::*;
use futures::future::join_all;
use object::access::{Access, uid};
use object::{condition, json};
use std::collections::BTreeSet;

#[tokio::test(start_paused = true)]
async fn a_plain_pod_runs_after_one_binding_and_one_status() {
    let fleet = Fleet::of(1).await;
    fleet.requests.take().await;
    let pod = fleet.create(pod("default", "p")).await;
    let ready = fleet.until_ready(&pod).await;
    assert_eq!(ready["status"]["phase"], "Running");
    assert_eq!(ready["status"]["qosClass"], "BestEffort");
    fleet.pass(60).await;
    let asked = fleet.requests.take().await;
    let writes = |part: &str| asked.iter().filter(|asked| asked.method != "GET" && asked.path.contains(part)).count();
    assert_eq!((writes("/pods/p/binding"), writes("/pods/p/status"), writes("/pods/p")), (1, 1, 2));
    assert_eq!(writes("/events"), 2, "{asked:?}");
    assert_eq!(fleet.told(&pod).await, ["Scheduled", "Started"]);
    let who: BTreeSet<&str> =
        asked.iter().filter(|asked| asked.path.contains("/pods/p/")).map(|asked| &*asked.account).collect();
    assert_eq!(who, BTreeSet::from(["system:kube-scheduler", "system:node:simulated-0"]));
    fleet.requests.take().await;
    fleet.delete(&pod, "").await;
    fleet.until_gone(&pod).await;
    let asked = fleet.requests.take().await;
    let deletions: Vec<_> = asked.iter().filter(|asked| asked.path.contains("/pods/p")).collect();
    assert!(deletions.len() == 1 && deletions[0].method == "DELETE", "{deletions:?}");
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn many_pods_run_with_addresses_of_their_own() {
    let fleet = Fleet::of(3).await;
    let pods = join_all((0..60).map(|at| fleet.create(pod("default", &format!("p-{at}"))))).await;
    let mut addresses = BTreeSet::new();
    let mut nodes: Vec<String> = Vec::new();
    for pod in &pods {
        let ready = fleet.until_ready(pod).await;
        assert!(addresses.insert(ready.text(&["status", "podIP"]).to_owned()), "{addresses:?}");
        nodes.push(ready.text(&["spec", "nodeName"]).to_owned());
    }
    for number in 0..3 {
        assert_eq!(nodes.iter().filter(|node| **node == format!("simulated-{number}")).count(), 20);
    }
    let mut host = pod("default", "host");
    host["spec"]["hostNetwork"] = json!(true);
    let host = fleet.create(host).await;
    let host = fleet.until_ready(&host).await;
    assert_eq!(host["status"]["podIP"], host["status"]["hostIP"]);
    join_all(pods.iter().map(|pod| fleet.delete(pod, ""))).await;
    fleet.until_all_gone(&pods).await;
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_the_same_name_is_another_pod() {
    let fleet = Fleet::of(1).await;
    for _ in 0..5 {
        let first = fleet.create(pod("default", "p")).await;
        fleet.until_ready(&first).await;
        let force = json!({"gracePeriodSeconds": 0});
        fleet.send("DELETE", &path(&first), "application/json", Some(&force)).await;
        let second = fleet.create(pod("default", "p")).await;
        assert_ne!(uid(&first), uid(&second));
        fleet.until_ready(&second).await;
        fleet.delete(&second, "").await;
        fleet.until_gone(&second).await;
    }
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_bound_by_a_user_run_too() {
    let fleet = Fleet::of(1).await;
    let mut bound = pod("default", "p");
    bound["spec"]["nodeName"] = json!("simulated-0");
    let bound = fleet.create(bound).await;
    let ready = fleet.until_ready(&bound).await;
    assert!(condition::is_true(&ready, "PodScheduled"));
    fleet.until_event(&bound, "Started").await;
    assert_eq!(fleet.told(&bound).await, ["Started"]);
    let mut elsewhere = pod("default", "q");
    elsewhere["spec"]["nodeName"] = json!("another");
    let elsewhere = fleet.create(elsewhere).await;
    fleet.pass(60).await;
    assert_eq!(fleet.now(&elsewhere).await.expect("it stays")["status"]["phase"], "Pending");
    fleet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_becomes_ready_when_its_readiness_gates_are_set() {
    let fleet = Fleet::of(1).await;
    let mut gated = pod("default", "p");
    gated["spec"]["readinessGates"] = json!([{"conditionType": "example.com/lb"}]);
    let gated = fleet.create(gated).await;
    let waiting = fleet.until_is(&gated, "all but the gate", |pod| condition::is_true(pod, "ContainersReady")).await;
    assert_eq!(condition::get(&waiting, "Ready").expect("the object exists")["reason"], "ReadinessGatesNotReady");
    let path = format!("{}/status", path(&gated));
    let patch = json!({"status": {"conditions": [{"type": "example.com/lb", "status": "True"}]}});
    fleet.send("PATCH", &path, "application/strategic-merge-patch+json", Some(&patch)).await;
    fleet.until_ready(&gated).await;
    fleet.stop().await;
}

/// A conflict at any write of a node only means that the server was busy: the pod still starts and is
/// removed.
#[tokio::test(start_paused = true)]
async fn a_conflict_at_any_write_of_a_node_is_retried() {
    let fleet = Fleet::of(1).await;
    for after in 0.. {
        fleet.faults.mishap("system:node:simulated-0", after, Mishap::Refused(409));
        let pod = fleet.create(pod("default", "a")).await;
        fleet.until_ready(&pod).await;
        fleet.delete(&pod, "").await;
        fleet.until_gone(&pod).await;
        if fleet.faults.mishap_waits() {
            assert!(after > 1, "it writes when a pod starts and when it is removed");
            break;
        }
    }
    fleet.stop().await;
}

/// A pod that needs a Secret and a ConfigMap waits for both as on a real kubelet, and starts when they are
/// created.
#[tokio::test(start_paused = true)]
async fn missing_secrets_and_config_maps_delay_a_pod() {
    let fleet = Fleet::of(1).await;
    let mut needy = pod("default", "needy");
    needy["spec"]["containers"][0]["env"] =
        json!([{"name": "E", "valueFrom": {"secretKeyRef": {"name": "password", "key": "text"}}}]);
    needy["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "settings", "mountPath": "/etc/settings"}]);
    needy["spec"]["volumes"] = json!([{"name": "settings", "configMap": {"name": "settings"}}]);
    let needy = fleet.create(needy).await;
    fleet.until_event(&needy, "FailedMount").await;
    fleet.until_is(&needy, "held", |pod| word(pod) == "ContainerCreating").await;
    fleet.create(config_map("default", "settings")).await;
    let held = fleet.until_is(&needy, "held", |pod| word(pod) == "CreateContainerConfigError").await;
    let waiting = &held["status"]["containerStatuses"][0]["state"]["waiting"];
    assert_eq!(waiting["message"], "secret \"password\" not found");
    fleet.until_event(&needy, "Failed").await;
    // A Secret without the key is not enough.
    let mut password = secret("default", "password");
    password["data"] = json!({"other": "eA=="});
    let password = fleet.create(password).await;
    let lacks_key = |pod: &object::Value| {
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"]
            == "couldn't find key text in Secret default/password"
    };
    fleet.until_is(&needy, "without its key", lacks_key).await;
    // The lookups of a pod that waits for long are 10 s apart.
    fleet.pass(60).await;
    fleet.requests.take().await;
    fleet.pass(100).await;
    let is_lookup = |asked: &&Asked| asked.path == "/api/v1/namespaces/default/secrets/password";
    let lookups = fleet.requests.take().await.iter().filter(is_lookup).count();
    assert!((9..=11).contains(&lookups), "{lookups}");
    fleet.merge(&password, json!({"data": {"text": "eA=="}})).await;
    fleet.until_ready(&needy).await;
    // A running pod's objects are not looked up any more, and those of pods without references never.
    fleet.create(pod("default", "plain")).await;
    fleet.until_ready(&pod("default", "plain")).await;
    fleet.requests.take().await;
    fleet.pass(100).await;
    let asked = fleet.requests.take().await;
    assert!(
        !asked.iter().any(|asked| asked.path.contains("/secrets/") || asked.path.contains("/configmaps/")),
        "{asked:?}"
    );
    fleet.stop().await;
}
