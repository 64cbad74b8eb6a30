//! Scenarios E and F: deleting in any order; static volumes.

use crate::pairs::*;
use crate::storage::*;
use crate::world::*;
use csi::Code;
use csi::directory::{Gate, Order};
use object::access::{Access, name, terminating};
use object::{Value, json};

fn permutations() -> Vec<Vec<&'static str>> {
    let mut all: Vec<Vec<&str>> = vec![Vec::new()];
    for next in ["pod", "claim", "volume", "class"] {
        let insert = |order: &Vec<&'static str>| {
            let order = order.clone();
            (0..=order.len()).map(move |at| {
                let mut order = order.clone();
                order.insert(at, next);
                order
            })
        };
        all = all.iter().flat_map(insert).collect();
    }
    assert_eq!(all.len(), 24);
    all
}

/// E1, E2, E3, E5, E7, H1, H10: all orders of deleting pod, claim, PV and class, under both policies.
#[tokio::test(flavor = "multi_thread")]
async fn h1_h10_all_orders_of_deletion_have_the_same_result() {
    let (world, storage) = world().await;
    for policy in ["Delete", "Retain"] {
        for order in permutations() {
            let case = format!("{policy} {order:?}");
            let class = world.create(class("c", policy, json!({}))).await;
            let claim = world.create(claim_of("claim", "c")).await;
            let volume = until_volume(&world, &claim).await;
            let handle = volume.text(&["spec", "csi", "volumeHandle"]).to_owned();
            let pod = world.create(pod_with("pod", "claim")).await;
            for (at, what) in order.iter().enumerate() {
                let object = match *what {
                    "pod" => &pod,
                    "claim" => &claim,
                    "volume" => &volume,
                    _ => &class,
                };
                force_delete(&world, object).await;
                // The claim is removed when it and its pod were deleted.
                let claim_stays = !["pod", "claim"].iter().all(|other| order[..at].contains(other));
                if *what == "volume" && claim_stays {
                    let held = world.now(&volume).await.expect("it is held");
                    assert!(terminating(&held), "{case}");
                    assert_eq!((phase(&held), has_finalizer(&held)), ("Bound", policy == "Delete"), "{case}");
                }
                if world.now(&pod).await.is_some() {
                    assert!(world.now(&claim).await.is_some(), "{case}: the pod uses it");
                    assert!(storage.handles().contains(&handle), "{case}: the pod uses it");
                }
            }
            world.until_all_gone(&[pod, claim, volume, class]).await;
            assert_eq!(storage.handles().contains(&handle), policy == "Retain", "{case}");
        }
    }
    // Each volume that is to be deleted had one call, and no other had.
    assert_eq!(storage.calls("DeleteVolume").len(), 24);
    assert_eq!(storage.driver.volumes().len(), 24);
    assert!(world.requests.refused().is_empty(), "{:?}", world.requests.refused());
    world.stop().await;
}

/// E1: a retained PV stays Released until a user deletes it.
#[tokio::test(flavor = "multi_thread")]
async fn e1_a_retained_pv_is_released_and_kept() {
    let (world, storage) = world().await;
    let (claim, volume) = provisioned(&world, "Retain").await;
    world.delete(&claim, "").await;
    world.until_gone(&claim).await;
    until_phase(&world, &volume, "Released").await;
    let other = world.create(claim_of("other", "c")).await;
    until_volume(&world, &other).await;
    assert!(world.now(&volume).await.is_some());
    world.delete(&volume, "").await;
    world.until_gone(&volume).await;
    assert_eq!(storage.calls("DeleteVolume").len(), 0);
    world.stop().await;
}

/// E11
#[tokio::test(flavor = "multi_thread")]
async fn e11_a_namespace_is_deleted_with_its_claims() {
    for policy in ["Delete", "Retain"] {
        let (world, storage) = world_with(options(), &format!("{},{GC},{NAMESPACES}", everything())).await;
        let place = world.create(new_namespace("place")).await;
        world.create(class("c", policy, json!({}))).await;
        let mut claim = claim_of("claim", "c");
        claim["metadata"]["namespace"] = json!("place");
        let claim = world.create(claim).await;
        let volume = until_volume(&world, &claim).await;
        world.delete(&place, "").await;
        world.until_gone(&place).await;
        if policy == "Delete" {
            world.until_gone(&volume).await;
            assert_eq!(storage.driver.volumes(), []);
        } else {
            until_phase(&world, &volume, "Released").await;
            assert_eq!(storage.driver.volumes().len(), 1);
        }
        world.stop().await;
    }
}

/// E14, E15, E16: one of the controllers is stopped for a while.
#[tokio::test(flavor = "multi_thread")]
async fn e14_e15_e16_stopped_controllers_are_waited_for() {
    for (policy, away) in [
        ("Delete", PROVISIONER),
        ("Retain", PROVISIONER),
        ("Delete", BINDER),
        ("Retain", BINDER),
        ("Delete", "persistentvolume-protection-controller"),
        ("Retain", "persistentvolume-protection-controller"),
    ] {
        let case = format!("{policy} without {away}");
        let (mut world, storage) = world().await;
        let (claim, volume) = provisioned(&world, policy).await;
        world.stop_controllers().await;
        let others: Vec<String> = everything().split(',').filter(|name| *name != away).map(str::to_owned).collect();
        world.start(&others.join(","));
        world.delete(&volume, "").await;
        world.delete(&claim, "").await;
        world.until_gone(&claim).await;
        match (policy, away) {
            ("Retain", PROVISIONER) => world.until_gone(&volume).await,
            ("Delete", PROVISIONER) => {
                let held = until_phase(&world, &volume, "Released").await;
                assert!(has_finalizer(&held), "{case}");
                assert_eq!(storage.calls("DeleteVolume").len(), 0, "{case}");
            }
            (_, BINDER) => {
                assert_eq!(phase(&world.now(&volume).await.expect("it stays")), "Bound", "{case}");
                assert_eq!(storage.calls("DeleteVolume").len(), 0, "{case}");
            }
            ("Delete", _) => {
                storage.until_called("DeleteVolume", 1).await;
                let only = |found: &Value| found["metadata"]["finalizers"] == json!(["kubernetes.io/pv-protection"]);
                world.until_is(&volume, "only its protection holds it", only).await;
            }
            _ => drop(until_phase(&world, &volume, "Released").await),
        }
        world.stop_controllers().await;
        world.start(&everything());
        world.until_gone(&volume).await;
        assert_eq!(storage.driver.volumes().len(), usize::from(policy == "Retain"), "{case}");
        world.stop().await;
    }
}

/// E17
#[tokio::test(flavor = "multi_thread")]
async fn e17_an_attached_volume_is_not_deleted() {
    let (world, storage) = world_with(csi::directory::Options { attach: true, ..options() }, &everything()).await;
    let (claim, volume) = provisioned(&world, "Delete").await;
    let attachment = world
        .create(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "a"},
            "spec": {"attacher": DRIVER, "nodeName": "node-1", "source": {"persistentVolumeName": name(&volume)}},
        }))
        .await;
    world.delete(&claim, "").await;
    let event = world.until_event(&volume, "VolumeFailedDelete").await;
    assert_eq!(event["message"], format!("persistentvolume {} is still attached to node node-1", name(&volume)));
    assert_eq!(storage.calls("DeleteVolume").len(), 0);
    world.delete(&attachment, "").await;
    world.until_gone(&volume).await;
    assert_eq!(storage.driver.volumes(), []);
    world.stop().await;
}

/// E18, H7: failing, late and lost responses to a deletion; nothing is lost, and it completes.
#[tokio::test(flavor = "multi_thread")]
async fn e18_h7_a_deletion_that_fails_is_retried() {
    let (mut world, storage) = world().await;
    world.create(class("c", "Delete", json!({}))).await;
    for order in [
        Order::fail("DeleteVolume", Code::Internal),
        Order::fail("DeleteVolume", Code::Unavailable),
        Order::fail("DeleteVolume", Code::DeadlineExceeded).after(),
        Order::lose_answer("DeleteVolume"),
    ] {
        let case = format!("{order:?}");
        let claim = world.create(claim_of("claim", "c")).await;
        let volume = until_volume(&world, &claim).await;
        storage.driver.faults().order(order.times(2));
        world.delete(&claim, "").await;
        let event = world.until_event(&volume, "VolumeFailedDelete").await;
        assert!(event.text(&["message"]).starts_with("rpc error: code = "), "{event}");
        world.until_gone(&volume).await;
        assert_eq!(storage.driver.volumes(), [], "{case}");
    }
    assert!(world.figures().contains("controller_persistentvolume_delete_failed_total{class=\"c\"}"));
    assert!(world.figures().contains("persistentvolume_delete_duration_seconds"));

    // The volume is deleted, and the provisioner stops before it can record that.
    let claim = world.create(claim_of("claim", "c")).await;
    let volume = until_volume(&world, &claim).await;
    let gate = Gate::closed();
    storage.driver.faults().order(Order::hold("DeleteVolume", &gate).after().times(1));
    world.delete(&claim, "").await;
    until_reached(&gate).await;
    world.stop_controllers().await;
    assert!(has_finalizer(&world.now(&volume).await.expect("it is held")));
    gate.open();
    world.start(&everything());
    world.until_gone(&volume).await;
    world.stop().await;
}

pub fn static_volume(handle: &str, policy: &str) -> Value {
    let mut volume = a_volume("static", "1Gi", json!({"spec": {"persistentVolumeReclaimPolicy": policy}}));
    volume["spec"].as_object_mut().expect("a spec").remove("hostPath");
    volume["spec"]["csi"] = json!({"driver": DRIVER, "volumeHandle": handle});
    volume
}

/// The handle of a volume of the driver without a PV.
pub async fn bare_volume(world: &World, storage: &Storage) -> String {
    let class = world.create(class("bare", "Retain", json!({}))).await;
    let claim = world.create(claim_of("bare", "bare")).await;
    let volume = until_volume(world, &claim).await;
    world.delete(&claim, "").await;
    world.delete(&volume, "").await;
    world.delete(&class, "").await;
    world.until_all_gone(&[volume, claim, class]).await;
    assert_eq!(storage.driver.volumes().len(), 1);
    storage.driver.volumes().remove(0).0
}

/// F1, F3, F5, H5: static volumes.
#[tokio::test(flavor = "multi_thread")]
async fn f1_f3_f5_h5_static_volumes_are_managed_once_they_are_bound() {
    let (world, storage) = world().await;
    let handle = bare_volume(&world, &storage).await;
    // Never bound: the PV is removed at once, and the volume is kept.
    let volume = world.create(static_volume(&handle, "Delete")).await;
    until_phase(&world, &volume, "Available").await;
    assert!(!has_finalizer(&world.now(&volume).await.expect("the object exists")));
    world.delete(&volume, "").await;
    world.until_gone(&volume).await;
    // Retain: never changed, in either order.
    for volume_first in [false, true] {
        let volume = world.create(static_volume(&handle, "Retain")).await;
        let claim = world.create(a_claim("claim", "1Gi", json!({}))).await;
        until_bound(&world, &claim, "static").await;
        until_recorded(&world, &volume).await;
        let mut both = [&claim, &volume];
        if volume_first {
            both.reverse();
        }
        for object in both {
            world.delete(object, "").await;
        }
        world.until_all_gone(&[claim, volume]).await;
    }
    assert_eq!((storage.calls("DeleteVolume").len(), storage.driver.volumes().len()), (0, 1));
    // Bound: it gets the finalizer, and is deleted with its volume.
    let volume = world.create(static_volume(&handle, "Delete")).await;
    let claim = world.create(a_claim("claim", "1Gi", json!({}))).await;
    // Otherwise the PV could become free again before the claim is bound.
    until_bound(&world, &claim, "static").await;
    until_recorded(&world, &volume).await;
    world.delete(&claim, "").await;
    world.until_gone(&volume).await;
    assert_eq!(storage.driver.volumes(), []);
    world.stop().await;
}

/// F6: volumes of drivers that are not served are not changed.
#[tokio::test(flavor = "multi_thread")]
async fn f6_volumes_of_other_drivers_are_not_changed() {
    let (world, storage) = world().await;
    let mut volume = static_volume("h", "Delete");
    volume["spec"]["csi"]["driver"] = json!("nobody.example.com");
    let volume = world.create(volume).await;
    let claim = world.create(a_claim("claim", "1Gi", json!({}))).await;
    until_bound(&world, &claim, "static").await;
    world.delete(&claim, "").await;
    let released = until_phase(&world, &volume, "Released").await;
    // Work of our driver, so that anything wrong would have happened.
    let (claim, _) = provisioned(&world, "Delete").await;
    world.delete(&claim, "").await;
    storage.until_called("DeleteVolume", 1).await;
    let now = world.now(&volume).await.expect("it stays");
    assert_eq!(now["metadata"]["resourceVersion"], released["metadata"]["resourceVersion"]);
    world.stop().await;
}

/// H9: the metrics under the names of KEP-2644 and of the sidecars.
#[tokio::test(flavor = "multi_thread")]
async fn h9_metrics_of_csi_volumes() {
    let (world, storage) = world().await;
    storage.driver.faults().order(Order::fail("CreateVolume", Code::Internal).times(1));
    storage.driver.faults().order(Order::fail("DeleteVolume", Code::Internal).times(1));
    storage.driver.faults().order(Order::fail("ControllerExpandVolume", Code::Internal).times(1));
    let (claim, volume) = provisioned(&world, "Delete").await;
    world.merge(&claim, json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})).await;
    world.until_is(&claim, "grows", |claim| claim["status"]["capacity"]["storage"] == "2Gi").await;
    world.delete(&claim, "").await;
    world.until_gone(&volume).await;
    let figures = world.figures();
    for prefix in ["", "controller_"] {
        for (figure, count) in [
            ("persistentvolumeclaim_provision_total{class=\"c\",source=\"\"}", 1),
            ("persistentvolumeclaim_provision_failed_total{class=\"c\",source=\"\"}", 1),
            ("persistentvolumeclaim_provision_duration_seconds_count{class=\"c\",source=\"\"}", 1),
            ("persistentvolume_delete_total{class=\"c\"}", 1),
            ("persistentvolume_delete_failed_total{class=\"c\"}", 1),
            ("persistentvolume_delete_duration_seconds_count{class=\"c\"}", 1),
        ] {
            let line = format!("\n{prefix}{figure} {count}\n");
            assert!(figures.contains(&line), "{line}: {figures}");
        }
    }
    let expansions =
        format!("controller_expand_volume_errors_total{{driver_name=\"{DRIVER}\",grpc_status_code=\"Internal\"}} 1");
    assert!(figures.contains(&expansions), "{figures}");
    let calls = "method_name=\"/csi.v1.Controller/DeleteVolume\",grpc_status_code=\"Internal\"";
    assert!(figures.contains("csi_sidecar_operations_seconds_count") && figures.contains(calls), "{figures}");
    world.stop().await;
}
