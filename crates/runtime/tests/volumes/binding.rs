//! Binding of claims and PVs, through the real server.

use crate::pairs::*;
use crate::world::*;
use futures::future::join_all;
use object::access::{Access, terminating, uid};
use object::json;

#[tokio::test(flavor = "multi_thread")]
async fn a1_a2_a5_a_claim_gets_the_smallest_pv_that_matches() {
    let world = World::with(BINDER).await;
    let big = world.create(a_volume("big", "10Gi", json!({}))).await;
    let right = world.create(a_volume("right", "5Gi", json!({}))).await;
    until_phase(&world, &big, "Available").await;
    until_phase(&world, &right, "Available").await;
    // A claim takes a PV that the binder has received. When it has received a later PV, it has received
    // these.
    world.create(a_volume("marker", "1Gi", of_class("m"))).await;
    let marker = world.create(a_claim("marker", "1Gi", of_class("m"))).await;
    until_bound(&world, &marker, "marker").await;
    let claim = world.create(a_claim("c", "3Gi", json!({}))).await;
    until_bound(&world, &claim, "right").await;
    let (claim, right) = (world.now(&claim).await.expect("there"), world.now(&right).await.expect("there"));
    assert_eq!(claim["status"]["capacity"]["storage"], "5Gi");
    assert_eq!(claim["status"]["accessModes"], json!(["ReadWriteOnce"]));
    assert_eq!(
        claim["metadata"]["annotations"],
        json!({"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"})
    );
    assert_eq!(right["metadata"]["annotations"], json!({"pv.kubernetes.io/bound-by-controller": "yes"}));
    assert_eq!(right["spec"]["claimRef"]["kind"], "PersistentVolumeClaim");
    until_phase(&world, &big, "Available").await;
    assert!(world.requests.refused().is_empty());
    world.stop().await;
}

// A3, A4, without the 15 seconds in between (11.6 of the digest: a new PV is handled at once).
#[tokio::test(flavor = "multi_thread")]
async fn a3_a4_a_claim_waits_and_is_bound_when_a_pv_is_created() {
    let world = World::with(BINDER).await;
    world.create(a_volume("small", "1Gi", json!({}))).await;
    let claim = world.create(a_claim("c", "10Gi", json!({}))).await;
    let event = world.until_event(&claim, "FailedBinding").await;
    assert_eq!(event["type"], "Normal");
    assert_eq!(event["message"], "no persistent volumes available for this claim and no storage class is set");
    assert_eq!(phase(&world.now(&claim).await.expect("there")), "Pending");
    world.create(a_volume("new", "10Gi", json!({}))).await;
    until_bound(&world, &claim, "new").await;
    // The same by the claim's volumeName, and by the PV's claimRef.
    let named = world.create(a_claim("named", "1Gi", json!({"spec": {"volumeName": "late"}}))).await;
    world.create(a_volume("late", "1Gi", json!({}))).await;
    until_bound(&world, &named, "late").await;
    let awaited = world.create(a_claim("awaited", "4Gi", json!({}))).await;
    world.until_event(&awaited, "FailedBinding").await;
    let reference = json!({"spec": {"claimRef": {"namespace": "default", "name": "awaited"}}});
    world.create(a_volume("meant", "4Gi", reference)).await;
    until_bound(&world, &awaited, "meant").await;
    // And when a PV changes so that it matches.
    let picky = json!({"spec": {"selector": {"matchLabels": {"fast": "yes"}}}});
    let picky = world.create(a_claim("picky", "1Gi", picky)).await;
    world.until_event(&picky, "FailedBinding").await;
    world.merge(&volume("small"), json!({"metadata": {"labels": {"fast": "yes"}}})).await;
    until_bound(&world, &picky, "small").await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b10_of_many_claims_only_the_one_that_a_pv_names_gets_it() {
    let world = World::with(BINDER).await;
    let claims = join_all((0..101).map(|at| world.create(a_claim(&format!("c-{at}"), "1Gi", json!({}))))).await;
    let reference = json!({"spec": {"claimRef": {"namespace": "default", "name": "c-50"}}});
    world.create(a_volume("v", "1Gi", reference)).await;
    until_bound(&world, &claims[50], "v").await;
    for (at, claim) in claims.iter().enumerate().filter(|(at, _)| *at != 50) {
        assert_eq!(phase(&world.now(claim).await.expect("there")), "Pending", "{at}");
    }
    world.stop().await;
}

// A18: any write fails, loses its response or gets stuck, and the binder is restarted after that.
#[tokio::test(flavor = "multi_thread")]
async fn a18_binding_survives_faults_and_restarts() {
    for mishap in [Mishap::Refused(500), Mishap::Refused(409), Mishap::AnswerLost, Mishap::Stuck, Mishap::AnswerStuck] {
        for after in 0..4 {
            let mut world = World::bare().await;
            let volumes = [a_volume("v-0", "1Gi", json!({})), a_volume("v-1", "1Gi", json!({}))];
            join_all(volumes.into_iter().map(|volume| world.create(volume))).await;
            let claim = world.create(a_claim("c", "1Gi", json!({}))).await;
            world.faults.mishap("persistent-volume-binder", after, mishap);
            world.start(BINDER);
            if matches!(mishap, Mishap::Stuck | Mishap::AnswerStuck) {
                world.until_moment("the mishap", || !world.faults.mishap_waits()).await;
                world.stop_controllers().await;
                world.start(BINDER);
            }
            let bound = until_phase(&world, &claim, "Bound").await;
            until_bound(&world, &claim, bound.text(&["spec", "volumeName"])).await;
            let other = if bound.text(&["spec", "volumeName"]) == "v-0" { "v-1" } else { "v-0" };
            let other = until_phase(&world, &volume(other), "Available").await;
            assert!(!other.has(&["spec", "claimRef"]), "{mishap:?} after {after}: {other}");
            world.stop().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_the_status_parameter_gets_a_separate_status_write() {
    let mut world = World::bare().await;
    world.faults.unknown("withStatus=true");
    let volume = world.create(a_volume("v", "1Gi", json!({}))).await;
    world.start(BINDER);
    until_phase(&world, &volume, "Available").await;
    world.requests.take().await;
    let claim = world.create(a_claim("c", "1Gi", json!({}))).await;
    until_bound(&world, &claim, "v").await;
    let writes = world.requests.take().await.into_iter().filter(|asked| asked.method == "PATCH" && asked.code == 200);
    let paths: Vec<String> = writes.map(|asked| asked.path).filter(|path| !path.contains("/events")).collect();
    let (volume, claim) = (path(&volume), path(&claim));
    let whole = |path: &str| format!("{path}?withStatus=true");
    assert_eq!(paths, [whole(&volume), format!("{volume}/status"), whole(&claim), format!("{claim}/status")]);
    world.stop().await;
}

// V3
#[tokio::test(flavor = "multi_thread")]
async fn v3_a_pre_bound_pair_with_a_terminating_volume_stays_pending() {
    let world = World::with(&all()).await;
    let reference = json!({"spec": {"claimRef": {"namespace": "default", "name": "c"}}});
    let volume = world.create(held(a_volume("v", "1Gi", reference))).await;
    world.delete(&volume, "").await;
    let claim = world.create(a_claim("c", "1Gi", json!({"spec": {"volumeName": "v"}}))).await;
    let event = world.until_event(&claim, "VolumeMismatch").await;
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["message"], "Cannot bind to requested volume \"v\": the volume is marked for deletion \"v\"");
    settle(&world).await;
    assert_eq!(phase(&world.now(&claim).await.expect("there")), "Pending");
    let left = world.now(&volume).await.expect("a foreign finalizer holds it");
    assert_eq!((phase(&left), terminating(&left)), ("Available", true));
    // A13: and no other claim gets it either.
    let other = world.create(a_claim("other", "1Gi", json!({}))).await;
    world.until_event(&other, "FailedBinding").await;
    assert_eq!(phase(&world.now(&other).await.expect("there")), "Pending");
    world.stop().await;
}

// V3: the write that binds a claim is delayed and executed after its PV was removed (decision 21). Without an
// earlier write to the claim, it would be Lost.
#[tokio::test(flavor = "multi_thread")]
async fn v3_a_claim_is_not_bound_late_to_a_removed_pv() {
    let world = World::with(&all()).await;
    let volume = world.create(a_volume("v", "1Gi", json!({}))).await;
    until_phase(&world, &volume, "Available").await;
    world.faults.mishap("persistent-volume-binder", 1, Mishap::Late);
    world.faults.refuse_at(Some(("PATCH", "/c?withStatus=true", 500)));
    let claim = world.create(a_claim("c", "1Gi", json!({}))).await;
    let is_of_claim = |asked: &Asked| asked.path.ends_with("/c?withStatus=true");
    world.requests.until(|asked| is_of_claim(asked) && asked.code == 500, 1).await;
    assert!(!world.faults.mishap_waits(), "the first write was given up");
    world.delete(&volume, "").await;
    world.until_gone(&volume).await;
    world.faults.release();
    world.requests.until(|asked| is_of_claim(asked) && asked.code != 500, 1).await;
    world.faults.refuse_at(None);
    settle(&world).await;
    let left = world.now(&claim).await.expect("there");
    assert_eq!((phase(&left), left.text(&["spec", "volumeName"])), ("Pending", ""));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b11_b14_b20_lost_misbound_and_freed() {
    let world = World::with(&all()).await;
    let volume = world.create(a_volume("v", "1Gi", json!({}))).await;
    let first = world.create(a_claim("first", "1Gi", json!({}))).await;
    until_bound(&world, &first, "v").await;
    // B14
    world.merge(&volume, json!({"spec": {"claimRef": {"uid": null}}})).await;
    let lost = until_phase(&world, &first, "Lost").await;
    assert!(!lost.has(&["status", "capacity"]) && !lost.has(&["status", "accessModes"]));
    world.until_event(&first, "ClaimMisbound").await;
    until_phase(&world, &volume, "Available").await;
    // The PV is bound again to the claim whose uid it names.
    world.merge(&volume, json!({"spec": {"claimRef": {"uid": uid(&first)}}})).await;
    until_bound(&world, &first, "v").await;
    // B20
    world.delete(&first, "").await;
    world.until_gone(&first).await;
    until_phase(&world, &volume, "Released").await;
    let second = world.create(a_claim("second", "1Gi", json!({}))).await;
    world.until_event(&second, "FailedBinding").await;
    world.merge(&volume, json!({"spec": {"claimRef": null}})).await;
    until_bound(&world, &second, "v").await;
    // B11
    // In this order: a finalizer that is missing earlier is restored.
    world.delete(&volume, "").await;
    world.merge(&volume, json!({"metadata": {"finalizers": null}})).await;
    until_phase(&world, &second, "Lost").await;
    world.until_event(&second, "ClaimLost").await;
    assert_eq!(told(&world, &second).await.iter().filter(|(reason, _)| reason == "ClaimLost").count(), 1);
    world.stop().await;
}

// Classes: C3, C5, C6, C13, D1, D13.
#[tokio::test(flavor = "multi_thread")]
async fn c3_d13_classes_created_later_are_used_at_once() {
    let world = World::with(BINDER).await;
    let mut without = claim("default", "without");
    without["spec"].as_object_mut().expect("a spec").remove("storageClassName");
    let without = world.create(without).await;
    let missing = world.create(a_claim("missing", "1Gi", of_class("x"))).await;
    world.until_event(&without, "FailedBinding").await;
    let event = world.until_event(&missing, "ProvisioningFailed").await;
    assert_eq!(event["message"], "storageclass.storage.k8s.io \"x\" not found");
    world.create(a_class("x", "example.com/driver", json!({}))).await;
    let asked = |claim: &object::Value, by: &str| {
        ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"]
            .iter()
            .all(|key| claim.text(&["metadata", "annotations", key]) == by)
    };
    world.until_is(&missing, "is handed over", |claim| asked(claim, "example.com/driver")).await;
    world.until_event(&missing, "ExternalProvisioning").await;
    assert!(!world.now(&without).await.expect("there").has(&["spec", "storageClassName"]));
    let default = json!({"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}});
    world.create(a_class("y", "example.com/other", default)).await;
    let given = world.until_is(&without, "is handed over", |claim| asked(claim, "example.com/other")).await;
    assert_eq!(given["spec"]["storageClassName"], "y");
    assert!(world.figures().contains("retroactive_storageclass_total 1"));
    world.create(a_class("none", "kubernetes.io/no-provisioner", json!({}))).await;
    let none = world.create(a_claim("none", "1Gi", of_class("none"))).await;
    world.until_event(&none, "ProvisioningFailed").await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c5_c6_c7_claims_wait_for_their_first_pod() {
    let world = World::with(BINDER).await;
    world.create(a_class("w", "example.com", json!({"volumeBindingMode": "WaitForFirstConsumer"}))).await;
    let claim = world.create(a_claim("c", "1Gi", of_class("w"))).await;
    world.until_event(&claim, "WaitForFirstConsumer").await;
    let free = world.create(a_volume("free", "1Gi", of_class("w"))).await;
    until_phase(&world, &free, "Available").await;
    let mut pod = pod("default", "web-0");
    pod["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]);
    world.create(pod).await;
    let event = world.until_event(&claim, "WaitForPodScheduled").await;
    assert_eq!(event["message"], "waiting for pod web-0 to be scheduled");
    // The scheduler selects a node for provisioning, or gives the claim a PV.
    let second = world.create(a_claim("second", "1Gi", of_class("w"))).await;
    let node = json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": "node"}}});
    world.merge(&second, node).await;
    world.until_event(&second, "ExternalProvisioning").await;
    let reference = json!({"namespace": "default", "name": "c", "uid": uid(&claim)});
    world.merge(&free, json!({"spec": {"claimRef": reference}})).await;
    until_bound(&world, &claim, "free").await;
    world.stop().await;
}
