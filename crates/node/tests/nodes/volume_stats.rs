//! The usage of mounted volumes, as a kubelet publishes it.

use crate::fleet::*;
use crate::world::*;
use node::{Bytes, Driver, Setup, Usage};
use object::access::Access;
use object::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

const DRIVER: &str = "directory.example.com";

/// Publishes the used bytes that the test sets. The volume with the handle `damaged` cannot be read.
fn with_driver(used: Arc<AtomicI64>) -> impl FnOnce(&mut Setup) {
    move |setup| {
        let probe = move |handle: String| {
            let used = used.load(Ordering::Relaxed);
            let bytes = Bytes { capacity: 100, available: 100 - used, used };
            let usage = match handle.as_str() {
                "whole" => Some(Usage { bytes: Some(bytes), is_abnormal: false }),
                "damaged" => Some(Usage { bytes: None, is_abnormal: true }),
                _ => None,
            };
            Box::pin(std::future::ready(usage)) as _
        };
        setup.drivers = vec![Driver { name: DRIVER.to_owned(), probe: Arc::new(probe) }];
    }
}

/// A claim that is bound to a volume of this driver with this handle, and both have the handle's name.
async fn bound(fleet: &Fleet, handle: &str, driver: &str) -> Value {
    let mut volume = volume(handle);
    volume["spec"].cut(&["hostPath"]);
    volume["spec"]["csi"] = json!({"driver": driver, "volumeHandle": handle});
    volume["spec"]["claimRef"] = json!({"namespace": "default", "name": handle});
    fleet.create(volume).await;
    let mut claim = claim("default", handle);
    claim["metadata"]["annotations"]["pv.kubernetes.io/bind-completed"] = json!("yes");
    claim["spec"]["volumeName"] = json!(handle);
    let claim = fleet.create(claim).await;
    fleet.set_status(&claim, json!({"phase": "Bound"})).await;
    let mut pod = pod("default", handle);
    pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": handle}}]);
    let pod = fleet.create(pod).await;
    fleet.until_ready(&pod).await
}

fn samples(fleet: &Fleet) -> Vec<String> {
    let mut registry = prometheus_client::registry::Registry::default();
    fleet.setup.volume_stats.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
    let shorten = |line: &str| {
        let rest = line.strip_prefix("kubelet_volume_stats_")?;
        Some(rest.replace("{namespace=\"default\",persistentvolumeclaim=", " ").replace('}', ""))
    };
    text.lines().filter_map(shorten).collect()
}

#[tokio::test(start_paused = true)]
async fn claims_that_are_mounted_have_volume_stats() {
    let used = Arc::new(AtomicI64::new(30));
    let mut fleet = Fleet::with(1, with_driver(used.clone())).await;
    let whole = bound(&fleet, "whole", DRIVER).await;
    bound(&fleet, "damaged", DRIVER).await;
    bound(&fleet, "elsewhere", "other.example.com").await;
    fleet.pass(2).await;
    let damaged = "health_status_abnormal \"damaged\" 1";
    let healthy = "health_status_abnormal \"whole\" 0";
    assert_eq!(
        samples(&fleet),
        ["capacity_bytes \"whole\" 100", "available_bytes \"whole\" 70", "used_bytes \"whole\" 30", damaged, healthy]
    );

    used.store(40, Ordering::Relaxed);
    fleet.pass(61).await;
    assert!(samples(&fleet).contains(&"used_bytes \"whole\" 40".to_owned()), "{:?}", samples(&fleet));

    fleet.delete(&whole, "").await;
    fleet.until_gone(&whole).await;
    fleet.pass(61).await;
    assert_eq!(samples(&fleet), [damaged]);

    fleet.stop_nodes().await;
    assert_eq!(samples(&fleet), [""; 0], "another process may run the nodes");
    fleet.start().await;
    fleet.stop().await;
}
