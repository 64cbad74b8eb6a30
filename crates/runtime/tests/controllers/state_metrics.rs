//! Metrics about objects, as Prometheus reads them.

use crate::world::{Faults, World, claim, stateful_set, volume};
use object::{Value, json};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use runtime::{Controllers, Setup};
use server::authn::service_account_user;
use std::time::Duration;

fn figures(registry: &Registry) -> Vec<String> {
    let mut text = String::new();
    encode(&mut text, registry).expect("it can be written");
    text.lines().filter(|line| line.starts_with("kube_")).map(str::to_owned).collect()
}

/// Waits until the metrics are as wanted. They change without a write to wait for, so the test polls.
async fn until(registry: &Registry, what: &str, check: impl Fn(&[String]) -> bool) {
    for _ in 0..1000 {
        if check(&figures(registry)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("in vain: {what}; there is\n{}", figures(registry).join("\n"));
}

fn start(world: &World, setup: &Setup) -> Controllers {
    let client = |account: &str| world.client(account, service_account_user("kube-system", account), Faults::default());
    Controllers::start(setup, client).expect("a good list")
}

fn has(line: &str) -> impl Fn(&[String]) -> bool {
    move |lines| lines.iter().filter(|known| *known == line).count() == 1
}

/// R16, O6
#[tokio::test(flavor = "multi_thread")]
async fn r16_o6_metrics_follow_the_objects_and_are_shown_once() {
    let world = World::bare().await;
    let setup = Setup::new("state-metrics");
    let mut registry = Registry::default();
    setup.metrics.register(&mut registry);
    let controllers = start(&world, &setup);
    let mut web: Value = stateful_set("default", "web", 3);
    web["spec"]["ordinals"] = json!({"start": 5});
    web["spec"]["persistentVolumeClaimRetentionPolicy"] = json!({"whenDeleted": "Delete", "whenScaled": "Retain"});
    let web = world.create(web).await;
    let data = world.create(claim("default", "data")).await;
    let disk = world.create(volume("disk")).await;
    let of_web = "namespace=\"default\",statefulset=\"web\"";
    let policy = format!("{{{of_web},when_deleted=\"Delete\",when_scaled=\"Retain\"}} 1");
    for line in [
        format!("kube_statefulset_replicas{{{of_web}}} 3"),
        format!("kube_statefulset_ordinals_start{{{of_web}}} 5"),
        format!("kube_statefulset_status_replicas_ready{{{of_web}}} 0"),
        format!("kube_statefulset_persistentvolumeclaim_retention_policy{policy}"),
        format!("kube_statefulset_persistent_volume_claim_retention_policy{policy}"),
    ] {
        until(&registry, &line, has(&line)).await;
    }
    world.set_status(&web, json!({"replicas": 3, "readyReplicas": 2, "currentReplicas": 1})).await;
    for (name, value) in [("", 3), ("_ready", 2), ("_current", 1)] {
        let line = format!("kube_statefulset_status_replicas{name}{{{of_web}}} {value}");
        until(&registry, &line, has(&line)).await;
    }
    world.set_status(&data, json!({"phase": "Bound"})).await;
    world.set_status(&disk, json!({"phase": "Released"})).await;
    for line in [
        r#"kube_persistentvolumeclaim_status_phase{namespace="default",persistentvolumeclaim="data",phase="Bound"} 1"#,
        r#"kube_persistentvolumeclaim_status_phase{namespace="default",persistentvolumeclaim="data",phase="Pending"} 0"#,
        r#"kube_persistentvolume_status_phase{persistentvolume="disk",phase="Released"} 1"#,
    ] {
        until(&registry, line, has(line)).await;
    }

    world.delete(&web, "").await;
    until(&registry, "the set goes", |lines| !lines.iter().any(|line| line.contains("web"))).await;
    controllers.stop().await;
    assert_eq!(figures(&registry), [] as [&str; 0], "another process may show them now");
    let controllers = start(&world, &setup);
    let line = r#"kube_persistentvolume_status_phase{persistentvolume="disk",phase="Released"} 1"#;
    until(&registry, "they come back, once", has(line)).await;
    assert!(world.requests.refused().is_empty(), "{:?}", world.requests.refused());
    controllers.stop().await;
    world.stop().await;
}
