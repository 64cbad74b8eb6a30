//! Scenarios of static and pre-bound pairs, by their numbers in the digest.

use super::world::*;
use crate::bind::{Action, BIND_COMPLETED, BOUND_BY_CONTROLLER, PRE_RESIZE_CAPACITY, PROVISIONED_BY, WITHDRAWN};
use object::access::{Access, uid};
use object::{Value, json};

fn none() -> Value {
    json!({})
}

fn leaving() -> Value {
    json!({"metadata": {"deletionTimestamp": "2024-01-01T00:00:00Z", "finalizers": ["example.com/held"]}})
}

/// The volume that the claim gets.
fn chosen(volumes: &[Value], of: Value) -> Option<String> {
    let mut world = World::default();
    volumes.iter().for_each(|volume| drop(world.add(volume.clone())));
    let claim = world.add(of);
    world.settle();
    world.bound(&claim)
}

fn got(volume: &str) -> Option<String> {
    Some(volume.to_owned())
}

#[test]
fn a1_a_claim_is_bound_to_a_volume() {
    let mut world = World::default();
    let volume = world.add(volume("v", "1Gi", json!({"status": {"phase": "Pending"}})));
    let claim = world.add(claim("c", "1Gi", none()));
    world.settle();
    let (volume, claim) = (world.now(&volume), world.now(&claim));
    assert_eq!((phase(&volume), phase(&claim)), ("Bound", "Bound"));
    let reference = &volume["spec"]["claimRef"];
    assert_eq!(reference["uid"], claim["metadata"]["uid"]);
    let text = |field: &str| reference.text(&[field]);
    assert_eq!(
        [text("kind"), text("apiVersion"), text("namespace"), text("name")],
        ["PersistentVolumeClaim", "v1", "ns", "c"]
    );
    assert!(reference.has(&["resourceVersion"]));
    assert_eq!(volume["metadata"]["annotations"], json!({BOUND_BY_CONTROLLER: "yes"}));
    assert_eq!(claim["metadata"]["annotations"], json!({BOUND_BY_CONTROLLER: "yes", BIND_COMPLETED: "yes"}));
    assert_eq!(claim["spec"]["volumeName"], "v");
    assert!(
        world.take_events().iter().all(|(reason, _)| *reason == "FailedBinding"),
        "only before the volume was available"
    );
}

// A2, A8, A9, A10, A11, A13, A16: which volume fits.
#[test]
fn a2_the_smallest_volume_that_fits_is_chosen() {
    let of = |more: Value| claim("c", "2Gi", more);
    let one = |volume: Value, claim: Value| chosen(&[volume], claim);
    let sizes = [volume("big", "10Gi", none()), volume("right", "3Gi", none()), volume("small", "1Gi", none())];
    assert_eq!(chosen(&sizes, of(none())), got("right"));
    let labelled = |at: &str| json!({"metadata": {"labels": {"foo": at}}});
    let volumes = [volume("a", "2Gi", labelled("false")), volume("b", "9Gi", labelled("true"))];
    let selector = |selector: Value| of(json!({"spec": {"selector": selector}}));
    assert_eq!(chosen(&volumes, selector(json!({"matchLabels": {"foo": "true"}}))), got("b"));
    let expression = json!({"matchExpressions": [{"key": "foo", "operator": "NotIn", "values": ["false"]}]});
    assert_eq!(chosen(&volumes, selector(expression)), got("b"));
    assert_eq!(chosen(&volumes, selector(json!({"matchExpressions": [{"key": "foo", "operator": "?"}]}))), None);
    let block = json!({"spec": {"volumeMode": "Block"}});
    assert_eq!(one(volume("v", "2Gi", block.clone()), of(none())), None);
    assert_eq!(one(volume("v", "2Gi", none()), of(block.clone())), None);
    assert_eq!(one(volume("v", "2Gi", block.clone()), of(block)), got("v"));
    let unsaid = json!({"spec": {"volumeMode": null, "storageClassName": null}});
    assert_eq!(one(volume("v", "2Gi", unsaid.clone()), of(none())), got("v"));
    assert_eq!(one(volume("v", "2Gi", none()), of(unsaid.clone())), got("v"));
    let gold = json!({"spec": {"storageClassName": "gold"}});
    assert_eq!(one(volume("v", "2Gi", gold.clone()), of(none())), None);
    assert_eq!(one(volume("v", "2Gi", gold.clone()), of(gold.clone())), got("v"));
    let beta = json!({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "gold"}}});
    assert_eq!(one(volume("v", "2Gi", gold), of(beta)), got("v"));
    assert_eq!(one(volume("v", "2Gi", leaving()), of(none())), None);
    for phase in ["Pending", "Released", "Failed"] {
        let mut world = World::default();
        let other =
            json!({"status": {"phase": phase}, "spec": {"claimRef": {"namespace": "x", "name": "x", "uid": "x"}}});
        world.add(volume("v", "2Gi", other));
        let claim = world.add(of(none()));
        world.settle();
        assert_eq!(world.bound(&claim), None, "{phase}");
    }
    let local = json!({"spec": {"nodeAffinity": {"required": {}}}});
    assert_eq!(one(volume("v", "2Gi", local), of(unsaid)), got("v"), "node affinity does not matter here");
}

// A7: access modes; few additional modes take precedence over a small size.
#[test]
fn a7_access_modes_match_with_as_few_more_as_possible() {
    let modes = |modes: &[&str]| json!({"spec": {"accessModes": modes}});
    let once = "ReadWriteOnce";
    let many = "ReadWriteMany";
    let volumes = [
        volume("both", "1Gi", modes(&[once, many])),
        volume("many", "3Gi", modes(&[many])),
        volume("all", "1Gi", modes(&[once, many, "ReadOnlyMany"])),
        volume("pod", "1Gi", modes(&["ReadWriteOncePod"])),
    ];
    assert_eq!(chosen(&volumes, claim("c", "1Gi", modes(&[once]))), got("both"));
    assert_eq!(chosen(&volumes, claim("c", "1Gi", modes(&[many]))), got("many"));
    assert_eq!(chosen(&volumes, claim("c", "1Gi", modes(&[many, once]))), got("both"));
    assert_eq!(chosen(&volumes, claim("c", "1Gi", modes(&["ReadWriteOncePod"]))), got("pod"));
    assert_eq!(chosen(&volumes[1..2], claim("c", "1Gi", modes(&[once]))), None);
}

#[test]
fn a3_a4_a_claim_waits_for_a_volume_that_fits() {
    let mut world = World::default();
    world.add(volume("small", "1Gi", none()));
    let claim = world.add(claim("c", "10Gi", none()));
    assert!(world.plan_claim(&claim).waits);
    world.settle();
    assert_eq!(phase(&world.now(&claim)), "Pending");
    let why = "no persistent volumes available for this claim and no storage class is set".to_owned();
    assert_eq!(world.take_events(), [("FailedBinding", why)].into());
    let new = world.add(volume("new", "10Gi", none()));
    assert!(world.plan_volume(&new).offers);
    world.settle();
    assert_eq!(world.bound(&claim), got("new"));
}

#[test]
fn a5_a_claim_gets_its_volumes_capacity_and_modes() {
    let mut world = World::default();
    let modes =
        json!({"spec": {"accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "volumeAttributesClassName": "gold"}});
    let volume = world.add(volume("v", "5Gi", modes));
    let claim = world.add(claim("c", "1Gi", json!({"spec": {"volumeAttributesClassName": "gold"}})));
    world.settle();
    let bound = world.now(&claim);
    assert_eq!(bound["status"]["capacity"], json!({"storage": "5Gi"}));
    assert_eq!(bound["status"]["accessModes"], json!(["ReadWriteOnce", "ReadOnlyMany"]));
    assert_eq!(bound["status"]["currentVolumeAttributesClassName"], "gold", "A11");
    // The size of a bound claim is not changed here: it follows the file system.
    world.edit(&volume, json!({"spec": {"capacity": {"storage": "9Gi"}, "volumeAttributesClassName": "silver"}}));
    world.settle();
    assert_eq!(world.now(&claim)["status"]["capacity"], json!({"storage": "5Gi"}));
    assert_eq!(world.now(&claim)["status"]["currentVolumeAttributesClassName"], "gold");
}

#[test]
fn a11_no_attributes_class_and_an_empty_one_are_the_same() {
    let class = |class: Value| json!({"spec": {"volumeAttributesClassName": class}});
    let volumes = [volume("gold", "1Gi", class(json!("gold"))), volume("none", "1Gi", none())];
    assert_eq!(chosen(&volumes, claim("c", "1Gi", none())), got("none"));
    assert_eq!(chosen(&volumes, claim("c", "1Gi", class(json!("")))), got("none"));
    assert_eq!(chosen(&volumes, claim("c", "1Gi", class(json!("gold")))), got("gold"));
}

// 2.7: the size before an unfinished expansion.
#[test]
fn an_unfinished_expansion_keeps_the_old_size() {
    for (annotation, want) in [("1Gi", "1Gi"), ("what?", "4Gi")] {
        let mut world = World::default();
        world.add(volume("v", "4Gi", json!({"metadata": {"annotations": {PRE_RESIZE_CAPACITY: annotation}}})));
        let claim = world.add(claim("c", "1Gi", none()));
        world.settle();
        assert_eq!(world.now(&claim)["status"]["capacity"], json!({"storage": want}));
    }
}

#[test]
fn a18_binding_continues_after_a_crash_between_any_two_writes() {
    for done in 0..=4 {
        let mut world = World::default();
        world.add(volume("v", "1Gi", none()));
        world.add(volume("w", "1Gi", none()));
        let claim = world.add(claim("c", "1Gi", none()));
        assert_eq!(world.plan_claim(&claim).actions.len(), 4);
        world.sync(&crate::bind::Target::of(&claim), done);
        world.settle();
        assert_eq!(world.bound(&claim), got("v"), "after {done}");
        assert_eq!(phase(&world.volumes["w"]), "Available", "after {done}");
        assert!(!world.volumes["w"].has(&["spec", "claimRef"]));
    }
}

#[test]
fn of_two_claims_that_planned_for_one_volume_the_second_is_refused() {
    let mut world = World::default();
    world.add(volume("v", "1Gi", none()));
    let (a, b) = (world.add(claim("a", "1Gi", none())), world.add(claim("b", "1Gi", none())));
    let (first, second) = (world.plan_claim(&a), world.plan_claim(&b));
    assert_eq!(world.carry_out(first, usize::MAX), Outcome::Done);
    assert_eq!(world.carry_out(second, usize::MAX), Outcome::Stopped);
    world.settle();
    assert_eq!((world.bound(&a), world.bound(&b)), (got("v"), None));
}

#[test]
fn b1_a_reserved_volume_is_bound_to_its_claim() {
    let reserved = json!({"spec": {"claimRef": {"namespace": "ns", "name": "c"}}});
    let mut world = World::default();
    let many = json!({"spec": {
        "accessModes": ["ReadWriteOnce", "ReadWriteMany"], "storageClassName": "other",
        "claimRef": {"namespace": "ns", "name": "c"},
    }});
    let volume_of = world.add(volume("big", "10Gi", many));
    world.add(volume("free", "1Gi", none()));
    let of = world.add(claim("c", "1Gi", json!({"spec": {"selector": {"matchLabels": {"no": "such"}}}})));
    world.settle();
    assert_eq!(world.bound(&of), got("big"), "whatever its class, labels and further modes");
    assert!(!world.now(&volume_of).has(&["metadata", "annotations", BOUND_BY_CONTROLLER]));
    assert_eq!(world.now(&of)["metadata"]["annotations"][BOUND_BY_CONTROLLER], "yes");
    // Size, volume mode and a deletion do matter.
    for unfit in [
        volume("v", "1Mi", reserved.clone()),
        object::patch::merge(&volume("v", "1Gi", reserved.clone()), &json!({"spec": {"volumeMode": "Block"}})),
        object::patch::merge(&volume("v", "1Gi", reserved), &leaving()),
    ] {
        assert_eq!(chosen(&[unfit], claim("c", "1Gi", none())), None);
    }
}

#[test]
fn b3_a_claim_waits_without_an_event_for_the_volume_that_it_names() {
    let mut world = World::default();
    let claim = world.add(claim("c", "1Gi", json!({"spec": {"volumeName": "x"}})));
    world.settle();
    assert_eq!((phase(&world.now(&claim)), world.take_events().len()), ("Pending", 0));
    world.add(volume("x", "1Gi", none()));
    world.settle();
    assert_eq!(world.bound(&claim), got("x"));
    assert!(!world.now(&claim).has(&["metadata", "annotations", BOUND_BY_CONTROLLER]));
    assert_eq!(world.volumes["x"]["metadata"]["annotations"][BOUND_BY_CONTROLLER], "yes");
}

#[test]
fn b4_a_claim_reports_why_the_named_volume_does_not_fit() {
    let of = json!({"spec": {"volumeName": "x"}});
    let spec = |field: &str, value: Value| json!({"spec": {field: value}});
    let cases = [
        (volume("x", "1Mi", none()), "requested PV is too small"),
        (volume("x", "1Gi", spec("storageClassName", json!("gold"))), "storageClassName does not match"),
        (
            volume("x", "1Gi", spec("volumeAttributesClassName", json!("gold"))),
            "volumeAttributesClassName does not match",
        ),
        (volume("x", "1Gi", spec("volumeMode", json!("Block"))), "incompatible volumeMode"),
        (volume("x", "1Gi", spec("accessModes", json!(["ReadOnlyMany"]))), "incompatible accessMode"),
        (volume("x", "1Mi", leaving()), "the volume is marked for deletion \"x\""),
    ];
    for (volume, why) in cases {
        let mut world = World::default();
        world.add(volume);
        let claim = world.add(claim("c", "1Gi", of.clone()));
        world.settle();
        assert_eq!(phase(&world.now(&claim)), "Pending");
        let message = format!("Cannot bind to requested volume \"x\": {why}");
        assert_eq!(world.take_events(), [("VolumeMismatch", message)].into());
    }
}

// B5, B7: labels do not matter for a named volume; if both name each other, nothing else does.
#[test]
fn b5_b7_labels_do_not_matter_for_a_named_volume() {
    let selector = json!({"spec": {"volumeName": "x", "selector": {"matchLabels": {"no": "such"}}}});
    assert_eq!(chosen(&[volume("x", "1Gi", none())], claim("c", "1Gi", selector.clone())), got("x"));
    let misfit = json!({"spec": {"claimRef": {"namespace": "ns", "name": "c"}, "storageClassName": "other"}});
    assert_eq!(chosen(&[volume("x", "1Mi", misfit)], claim("c", "1Gi", selector)), got("x"));
}

#[test]
fn b6_a_claim_waits_for_the_named_volume_of_another_claim() {
    let mut world = World::default();
    let other = world.add(claim("other", "1Gi", none()));
    let volume = world.add(volume("x", "1Gi", none()));
    world.settle();
    let claim = world.add(claim("c", "1Gi", json!({"spec": {"volumeName": "x"}})));
    world.settle();
    assert_eq!(phase(&world.now(&claim)), "Pending");
    let message = "volume \"x\" already bound to a different claim.".to_owned();
    assert_eq!(world.take_events(), [("FailedBinding", message)].into());
    world.delete(&other);
    world.settle();
    assert_eq!((phase(&world.now(&volume)), phase(&world.now(&claim))), ("Released", "Pending"));
    world.edit(&volume, json!({"spec": {"claimRef": null}}));
    world.settle();
    assert_eq!(world.bound(&claim), got("x"));
}

// V3, B8 by the settled disagreement, A13: a volume that is being deleted is never bound, and delays no claim.
#[test]
fn v3_a_terminating_volume_is_never_bound() {
    let reserved = |uid: Value| {
        let reference = json!({"spec": {"claimRef": {"namespace": "ns", "name": "c", "uid": uid}}});
        object::patch::merge(&volume("x", "1Gi", reference), &leaving())
    };
    let by_us = json!({"metadata": {"annotations": {BOUND_BY_CONTROLLER: "yes"}}, "status": {"phase": "Bound"}});
    for volume in [
        volume("x", "1Gi", leaving()),
        reserved(json!(null)),
        reserved(json!("uid-c")),
        object::patch::merge(&reserved(json!("uid-c")), &by_us),
    ] {
        for names_it in [json!(null), json!("x")] {
            let mut world = World::default();
            let volume = world.add(volume.clone());
            let more = json!({"metadata": {"uid": "uid-c"}, "spec": {"volumeName": names_it}});
            let claim = world.add(claim("c", "1Gi", more));
            world.settle();
            assert_eq!(phase(&world.now(&claim)), "Pending");
            assert!(!crate::bind::is_bound(&world.now(&claim)));
            let settled = world.now(&volume);
            assert_eq!(phase(&settled), "Available", "otherwise its protection finalizer would keep it for ever");
            assert_eq!(settled.text(&["spec", "claimRef", "uid"]), "");
        }
    }
}

// V3 under decision 21: the write that binds the pair timed out, and arrives after its volume was deleted.
#[test]
fn a_claim_is_not_bound_late_to_a_volume_that_was_withdrawn() {
    let mut world = World::default();
    let volume = world.add(volume("x", "1Gi", none()));
    let claim = world.add(claim("c", "1Gi", none()));
    let (_, write) = world.carry_out_but(world.plan_claim(&claim), 2);
    let write = write.expect("the claim is to be written");
    assert_eq!(phase(&world.now(&volume)), "Bound");
    world.delete(&volume);
    world.settle();
    assert!(world.volumes.is_empty());
    world.arrive(write);
    world.settle();
    let settled = world.now(&claim);
    assert_eq!((phase(&settled), crate::bind::is_bound(&settled)), ("Pending", false));
    assert_eq!(settled["metadata"]["annotations"], json!({WITHDRAWN: uid(&volume)}));
    // Nor by a writer that has not received the deletion of the volume.
    let mut reserved = (*volume).clone();
    reserved.put(&["spec", "claimRef"], json!({"namespace": "ns", "name": "c", "uid": uid(&claim)}));
    world.add(reserved);
    assert_eq!(world.plan_claim(&settled).actions, []);
}

// A claim that had its volume was deleted, and the cache has its state before binding: its last state decides.
#[test]
fn a_used_volume_is_not_freed_by_an_outdated_claim() {
    let mut world = World::default();
    let volume = world.add(volume("x", "1Gi", json!({"metadata": {"finalizers": ["example.com/held"]}})));
    let claim = world.add(claim("c", "1Gi", none()));
    let mut behind = world.clone();
    world.settle();
    world.delete(&volume);
    world.delete(&claim);
    world.protect();
    behind.volumes = world.volumes.clone();
    assert!(!world.claims.contains_key(&("ns".to_owned(), "c".to_owned())));
    assert_eq!(world.carry_out(behind.plan_volume(&world.now(&volume)), usize::MAX), Outcome::Stopped);
    world.settle();
    assert_eq!(phase(&world.now(&volume)), "Released");
    assert_eq!(world.now(&volume).text(&["spec", "claimRef", "uid"]), uid(&claim));
}

// E2 for static volumes, V2: a pair stays bound while its volume is being deleted.
#[test]
fn a_pair_stays_bound_while_its_volume_is_being_deleted() {
    let mut world = World::default();
    let volume = world.add(volume("x", "1Gi", none()));
    let claim = world.add(claim("c", "1Gi", none()));
    world.settle();
    world.delete(&volume);
    world.settle();
    assert_eq!(world.bound(&claim), got("x"));
    // Even if its reference is cleared: it has the claim's data.
    world.edit(&volume, json!({"spec": {"claimRef": null}}));
    world.sync(&crate::bind::Target::of(&claim), usize::MAX);
    world.settle();
    assert_eq!(world.bound(&claim), got("x"));
    world.delete(&claim);
    world.settle();
    assert!(world.volumes.is_empty() && world.claims.is_empty());
}

// B11, and 2.2 B: lost claims, and how they recover.
#[test]
fn b11_a_claim_whose_volume_vanishes_is_lost_until_it_returns() {
    let mut world = World::default();
    let volume_of = world.add(volume("x", "1Gi", none()));
    let claim = world.add(claim("c", "1Gi", none()));
    world.settle();
    let before = world.now(&volume_of);
    world.take_events();
    world.edit(&volume_of, json!({"metadata": {"finalizers": null}}));
    world.delete(&volume_of);
    world.settle();
    let lost = world.now(&claim);
    assert_eq!(lost["status"], json!({"phase": "Lost"}));
    assert_eq!(world.events.len(), 1, "reported once");
    let message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!".to_owned();
    assert_eq!(world.take_events(), [("ClaimLost", message)].into());
    world.settle();
    assert_eq!(world.take_events(), [].into());
    let mut again = volume("x", "1Gi", none());
    again.put(&["spec", "claimRef"], before["spec"]["claimRef"].clone());
    world.add(again);
    world.settle();
    assert_eq!(world.bound(&claim), got("x"));
    // A claim that has lost even the name.
    world.edit(&claim, json!({"spec": {"volumeName": null}}));
    let plan = world.plan_claim(&world.now(&claim));
    assert_eq!(
        plan.events[0].message,
        "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"
    );
}

// A claim is not marked Lost because the cache is behind.
#[test]
fn a_claim_is_lost_only_when_the_server_confirms_it() {
    let mut world = World::default();
    world.add(volume("x", "1Gi", none()));
    let claim = world.add(claim("c", "1Gi", none()));
    world.settle();
    let mut blind = world.clone();
    blind.volumes.clear();
    let plan = blind.plan_claim(&world.now(&claim));
    assert_eq!(plan.actions[0], Action::ConfirmNoVolume { name: "x".to_owned() });
    assert_eq!(world.carry_out(plan, usize::MAX), Outcome::Stopped);
    assert_eq!((world.bound(&claim), world.take_events().len()), (got("x"), 0));
}

#[test]
fn b14_b15_a_volume_that_points_elsewhere_loses_its_claim() {
    let message = "Two claims are bound to the same volume, this one is bound incorrectly".to_owned();
    for (uid, phase_of_volume) in [("", "Available"), ("other", "Released")] {
        let mut world = World::default();
        let volume = world.add(volume("x", "1Gi", none()));
        let claim = world.add(claim("c", "1Gi", none()));
        world.settle();
        world.take_events();
        world.edit(&volume, json!({"spec": {"claimRef": {"uid": uid}}}));
        world.settle();
        assert_eq!(phase(&world.now(&claim)), "Lost");
        assert_eq!(phase(&world.now(&volume)), phase_of_volume);
        assert_eq!(world.take_events(), [("ClaimMisbound", message.clone())].into());
    }
}

// 4-7, 4-8, 10-2: a volume whose claim took another volume.
#[test]
fn a_volume_whose_claim_took_another_is_freed() {
    for by_us in [true, false] {
        let mut world = World::default();
        world.add(volume("taken", "1Gi", none()));
        let claim = world.add(claim("c", "1Gi", none()));
        world.settle();
        let mut left = volume("left", "1Gi", json!({"status": {"phase": "Bound"}}));
        left.put(&["spec", "claimRef"], json!({"namespace": "ns", "name": "c", "uid": uid(&claim)}));
        if by_us {
            left.put(&["metadata", "annotations", BOUND_BY_CONTROLLER], "yes");
        }
        let left = world.add(left);
        world.settle();
        let left = world.now(&left);
        assert_eq!(phase(&left), "Available");
        assert_eq!(left.has(&["spec", "claimRef"]), !by_us, "what a user wrote is kept, except for the uid");
        assert_eq!(left.text(&["spec", "claimRef", "uid"]), "");
        assert!(!left.has(&["metadata", "annotations", BOUND_BY_CONTROLLER]));
        assert_eq!(world.bound(&claim), got("taken"));
    }
}

#[test]
fn b18_of_two_volumes_provisioned_for_a_claim_one_is_reclaimed() {
    let mut world = World::default();
    let claim = world.add(claim("c", "1Gi", none()));
    let made = |name: &str| {
        let mut made = volume(name, "1Gi", json!({"status": {"phase": "Pending"}}));
        made.put(&["metadata", "annotations", PROVISIONED_BY], "kubernetes.io/host-path");
        made.put(&["spec", "persistentVolumeReclaimPolicy"], "Delete");
        made.put(&["spec", "claimRef"], json!({"namespace": "ns", "name": "c", "uid": uid(&claim)}));
        made
    };
    world.add(made("a"));
    world.add(made("b"));
    world.directories.extend(["/tmp/a".to_owned(), "/tmp/b".to_owned()]);
    world.settle();
    assert_eq!(world.bound(&claim), got("a"));
    assert_eq!(world.volumes.keys().collect::<Vec<_>>(), ["a"]);
    assert_eq!(world.directories, ["/tmp/a".to_owned()].into());
}

/// A provisioner created a volume for a claim, because it did not know of a volume with data that a user had reserved
/// for it. The reserved volume is bound, even if binding the other one had begun and whatever their sizes; the other
/// one is deleted. (It was the reverse, and the data was lost.)
#[test]
fn a_reserved_volume_takes_precedence_over_a_provisioned_one() {
    for is_begun in [false, true] {
        for size in ["1Gi", "5Gi"] {
            let mut world = World::default();
            let mut claim = claim("c", "1Gi", none());
            claim.put(&["metadata", "creationTimestamp"], "2026-01-02T00:00:00Z");
            let claim = world.add(claim);
            let with_data = |name: &str, size: &str, born: &str| {
                let mut made = volume(name, size, none());
                made.put(&["metadata", "annotations", PROVISIONED_BY], "kubernetes.io/host-path");
                made.put(&["metadata", "creationTimestamp"], born);
                made.put(&["spec", "persistentVolumeReclaimPolicy"], "Delete");
                made
            };
            let mut reserved = with_data("pvc-of-another", size, "2026-01-01T00:00:00Z");
            reserved.put(&["spec", "claimRef"], json!({"namespace": "ns", "name": "c"}));
            if is_begun {
                reserved.put(&["spec", "claimRef", "uid"], uid(&claim));
                reserved.put(&["status", "phase"], "Bound");
            }
            world.add(reserved);
            let empty = format!("pvc-{}", uid(&claim));
            let mut made = with_data(&empty, "2Gi", "2026-01-02T00:00:01Z");
            made.put(&["spec", "claimRef"], json!({"namespace": "ns", "name": "c", "uid": uid(&claim)}));
            world.add(made);
            let places = ["pvc-of-another", &empty].map(|name| format!("/tmp/{name}"));
            world.directories.extend(places.clone());
            world.settle();
            assert_eq!(world.bound(&claim), got("pvc-of-another"), "{is_begun} {size}");
            assert_eq!(world.volumes.keys().collect::<Vec<_>>(), ["pvc-of-another"]);
            assert_eq!(world.directories, [places[0].clone()].into());
        }
    }
}

/// A claim is deleted during binding, after the volume's write and before its own: no claim used the volume, and it is
/// available again, as far as known. A volume provisioned for the claim is deleted, because no other claim needs it.
#[test]
fn a_volume_whose_binding_only_began_is_available_again() {
    for (is_known, is_made, is_free) in [(true, false, true), (false, false, false), (true, true, false)] {
        let mut world = World::default();
        let mut begun = volume(if is_made { "pvc-gone" } else { "free" }, "1Gi", json!({"status": {"phase": "Bound"}}));
        begun.put(&["spec", "claimRef"], json!({"namespace": "ns", "name": "c", "uid": "gone"}));
        begun.put(&["spec", "persistentVolumeReclaimPolicy"], "Delete");
        if is_made {
            begun.put(&["metadata", "annotations", PROVISIONED_BY], "kubernetes.io/host-path");
        } else {
            begun.put(&["metadata", "annotations", BOUND_BY_CONTROLLER], "yes");
        }
        let directory = format!("/tmp/{}", object::access::name(&begun));
        world.directories.insert(directory.clone());
        let begun = world.add(begun);
        if is_known {
            world.went_without.insert("gone".to_owned());
        }
        world.settle();
        assert_eq!(world.directories.contains(&directory), is_free, "known {is_known}, provisioned for it {is_made}");
        if is_free {
            assert_eq!(phase(&world.now(&begun)), "Available");
            assert!(!world.now(&begun).has(&["spec", "claimRef"]));
        }
    }
}

/// A volume that was provisioned for another claim, reserved for this one and not taken, is kept.
#[test]
fn a_reserved_volume_that_is_not_taken_is_kept() {
    let mut world = World::default();
    let mut claim = claim("c", "1Gi", none());
    claim.put(&["metadata", "creationTimestamp"], "2026-01-02T00:00:00Z");
    world.add(volume("taken", "1Gi", none()));
    let claim = world.add(claim);
    world.settle();
    assert_eq!(world.bound(&claim), got("taken"));
    let mut left = volume("left", "1Gi", json!({"status": {"phase": "Bound"}}));
    left.put(&["metadata", "annotations", PROVISIONED_BY], "kubernetes.io/host-path");
    left.put(&["metadata", "creationTimestamp"], "2026-01-01T00:00:00Z");
    left.put(&["spec", "persistentVolumeReclaimPolicy"], "Delete");
    left.put(&["spec", "claimRef"], json!({"namespace": "ns", "name": "c", "uid": uid(&claim)}));
    let left = world.add(left);
    world.directories.insert("/tmp/left".to_owned());
    world.settle();
    assert_eq!(phase(&world.now(&left)), "Available");
    assert!(world.directories.contains("/tmp/left"));
}

#[test]
fn b19_different_modes_are_reported_on_both_objects() {
    let mut world = World::default();
    let claim = world.add(claim("c", "1Gi", none()));
    let mut block = volume("x", "1Gi", json!({"spec": {"volumeMode": "Block"}}));
    block.put(&["spec", "claimRef"], json!({"namespace": "ns", "name": "c", "uid": uid(&claim)}));
    let block = world.add(block);
    let plan = world.plan_volume(&block);
    assert!(plan.actions.is_empty() && plan.wake.is_none());
    let reported: Vec<(&str, &str)> =
        plan.events.iter().map(|event| (event.about.name.as_str(), event.message.as_str())).collect();
    let of_volume =
        "Cannot bind PersistentVolume to requested PersistentVolumeClaim \"c\" due to incompatible volumeMode.";
    let of_claim =
        "Cannot bind PersistentVolume \"x\" to requested PersistentVolumeClaim due to incompatible volumeMode.";
    assert_eq!(reported, [("x", of_volume), ("c", of_claim)]);
    // With equal modes, the claim is requeued to bind.
    world.edit(&block, json!({"spec": {"volumeMode": "Filesystem"}}));
    assert_eq!(world.plan_volume(&world.now(&block)).wake.map(|claim| claim.name), Some("c".to_owned()));
}

#[test]
fn b20_a_released_volume_is_available_when_its_reference_is_cleared() {
    let mut world = World::default();
    let volume = world.add(volume("x", "1Gi", none()));
    let first = world.add(claim("first", "1Gi", none()));
    world.settle();
    world.delete(&first);
    let second = world.add(claim("second", "1Gi", none()));
    world.settle();
    assert_eq!(phase(&world.now(&volume)), "Released");
    assert_eq!(world.bound(&second), None);
    world.edit(&volume, json!({"spec": {"claimRef": null}}));
    world.settle();
    assert_eq!(world.bound(&second), got("x"));
}

#[test]
fn a_claim_deleted_during_binding_leaves_the_volume_unchanged() {
    // How far binding got, and the state of the volume afterwards.
    for (done, want) in [(0, "Available"), (1, "Available"), (2, "gone"), (3, "gone")] {
        let mut world = World::default();
        let policy = json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}});
        let volume = world.add(volume("v", "1Gi", policy));
        world.directories.insert("/tmp/v".to_owned());
        let claim = world.add(claim("c", "1Gi", none()));
        world.sync(&crate::bind::Target::of(&claim), done);
        world.delete(&claim);
        world.settle();
        let found = world.volumes.get("v").map_or("gone", |volume| phase(volume));
        assert_eq!((found, world.directories.is_empty()), (want, want == "gone"), "after {done}");
        if want == "Available" {
            assert!(!world.now(&volume).has(&["spec", "claimRef"]));
        }
    }
}
