//! No claim of a replica changes its volume while another claim of that replica cannot follow; contract T11, T17.

use super::in_place::{in_place, moves};
use super::world::{Fate, World, actions};
use crate::statefulset::{Action, Held};
use object::access::{Access, name};
use object::{Value, json};

/// Two replicas with two claims each, `data` and `logs` of the storage class `fixed`, and what the set says besides.
fn two_claims(change: impl FnOnce(&mut Value)) -> World {
    in_place(2, |set| {
        let mut logs = set["spec"]["volumeClaimTemplates"][0].clone();
        logs.put(&["metadata", "name"], "logs");
        logs.put(&["spec", "storageClassName"], "fixed");
        set["spec"]["volumeClaimTemplates"].as_array_mut().unwrap().push(logs);
        change(set);
    })
}

/// Both templates ask for this much.
fn grow_both(world: &mut World, size: &str) {
    world.edit(|set| {
        for template in set["spec"]["volumeClaimTemplates"].as_array_mut().unwrap() {
            template.put(&["spec", "resources", "requests", "storage"], size);
        }
    });
}

/// The claims that a plan asks about.
fn checks(world: &World) -> Vec<String> {
    let plan = world.plan();
    let checked = actions(&plan).into_iter().filter_map(|action| match action {
        Action::CheckClaim { patch, .. } => Some(name(patch).to_owned()),
        _ => None,
    });
    checked.collect()
}

/// T11, T17: one of two claims is refused, so neither grows, whichever comes first; the set says which claim and which class; the
/// rollout goes on when that is cured.
#[test]
fn t11_t17_a_refused_claim_keeps_the_others_of_its_replica_from_growing() {
    for refused in ["data-web-1", "logs-web-1"] {
        let mut world = two_claims(|_| {});
        let uids = world.uids();
        world.refused.insert(refused.to_owned());
        grow_both(&mut world, "20Gi");
        assert_eq!(checks(&world), ["data-web-1", "logs-web-1"]);
        for _ in 0..3 {
            world.step();
            assert_eq!((world.applied.len(), world.sizes()), (0, vec!["10Gi"; 4]), "{refused}");
        }
        let class = if refused == "logs-web-1" { " (the claim's storage class is fixed)" } else { "" };
        let why = format!("boom{class}; no claim of the pod is changed; the pod keeps running; ");
        let said = world.claims_said();
        let wanted = format!("False ClaimUpdateFailed: claim {refused} of pod web-1 cannot be updated: {why}");
        assert!(said.starts_with(&wanted), "{said}");
        let told = world.told();
        let wanted =
            format!("FailedUpdate: Update Claim {refused} for Pod web-1 in StatefulSet web failed error: {why}");
        assert!(told.iter().all(|it| it.starts_with(&wanted)) && told.len() == 3, "{told:?}");
        assert!(world.plan().status.is_none(), "the status is not written over and over");
        world.refused.clear();
        world.settle();
        assert_eq!((world.sizes(), world.uids()), (vec!["20Gi"; 4], uids));
        assert_eq!(world.applied, ["data-web-1", "logs-web-1", "data-web-0", "logs-web-0"], "each once");
    }
}

/// T11: a plan whose allowance admits one claim asks about both: the one that a later plan writes may be refused.
#[test]
fn t11_claims_that_a_later_plan_writes_are_checked_too() {
    let mut world = two_claims(|_| {});
    world.allowance.objects = 1;
    world.refused.insert("logs-web-1".to_owned());
    grow_both(&mut world, "20Gi");
    for _ in 0..3 {
        assert_eq!(checks(&world), ["data-web-1", "logs-web-1"]);
        world.step();
        assert_eq!((world.applied.len(), world.sizes()), (0, vec!["10Gi"; 4]));
    }
    world.refused.clear();
    world.settle();
    assert_eq!((world.sizes(), world.applied.len()), (vec!["20Gi"; 4], 4));
}

/// T11: what can be seen of a claim is enough: nothing is asked, and the other claim is not written.
#[test]
fn t11_a_claim_that_is_seen_not_to_follow_keeps_the_others_from_growing() {
    let cases: [(&str, fn(&mut World)); 2] = [
        ("ClaimNotBound", |world| world.edit_claim("logs-web-1", |it| it.put(&["status", "phase"], "Lost"))),
        ("ClaimContested", |world| _ = world.contested.insert("logs-web".to_owned())),
    ];
    for (reason, change) in cases {
        let mut world = two_claims(|_| {});
        world.stuck.insert("logs-web-1".to_owned());
        change(&mut world);
        grow_both(&mut world, "20Gi");
        let plan = world.step();
        assert_eq!((moves(&plan), checks(&world)), (vec![], vec![]), "{reason}");
        let waits = |held: &Held| matches!(held, Held::ClaimNotReady { reason: found, claim, .. } if *found == reason && claim == "logs-web-1");
        assert!(plan.held.iter().any(waits), "{reason}: {:?}", plan.held);
        assert!(world.claims_said().starts_with(&format!("False {reason}: claim logs-web-1 of pod web-1: ")));
        world.settle();
        assert_eq!(world.sizes(), ["10Gi"; 4], "{reason}");
        world.contested.clear();
        world.stuck.clear();
        world.settle();
        assert_eq!(world.sizes(), ["20Gi"; 4], "{reason}: cured");
    }
}

/// The server is asked only where something could be done by halves.
#[test]
fn t11_when_the_server_is_asked_first() {
    let both = ["data-web-1", "logs-web-1"];
    let cases: [(&str, fn(&mut World), &[&str]); 5] = [
        ("both grow", |world| grow_both(world, "20Gi"), &both),
        ("one grows", |world| world.grow("20Gi"), &both),
        (
            "one gets a class",
            |world| world.edit_template(|it| it.put(&["spec", "volumeAttributesClassName"], "gold")),
            &both,
        ),
        (
            "labels can be taken back",
            |world| world.edit_template(|it| it.put(&["metadata", "labels"], json!({"a": "b"}))),
            &[],
        ),
        ("an image changes no claim", |world| world.image("v2"), &[]),
    ];
    for (what, change, want) in cases {
        let mut world = two_claims(|_| {});
        change(&mut world);
        assert_eq!(checks(&world), want, "{what}");
        world.settle();
        assert_eq!(world.applied.len(), 4, "{what}: a check writes nothing");
    }
    let mut world = in_place(2, |_| {});
    world.grow("20Gi");
    assert_eq!(checks(&world), [""; 0], "a single claim is refused or done");
    // Claims that have the size already need no growth.
    let mut world = two_claims(|_| {});
    for claim in ["data-web-1", "logs-web-1"] {
        world.edit_claim(claim, |it| it.put(&["spec", "resources", "requests", "storage"], "20Gi"));
        world.provide(claim);
    }
    grow_both(&mut world, "20Gi");
    assert_eq!(checks(&world), [""; 0]);
}

/// T8, T11: the same where claims wait for their pod to be deleted, or all are written before all pods.
#[test]
fn t8_t11_every_strategy_writes_all_claims_of_a_replica_or_none() {
    for strategy in ["OnDelete", "Recreate", "RollingUpdate"] {
        let mut world = two_claims(|set| set.put(&["spec", "updateStrategy"], json!({"type": strategy})));
        world.refused.insert("logs-web-1".to_owned());
        grow_both(&mut world, "20Gi");
        world.image("v2");
        world.step();
        world.delete_pod("web-1");
        for _ in 0..3 {
            world.kubelet();
            world.step();
        }
        let size = |claim: &str| world.claims[claim].text(&["spec", "resources", "requests", "storage"]).to_owned();
        assert_eq!([size("data-web-1"), size("logs-web-1")], ["10Gi"; 2], "{strategy}");
        if strategy == "OnDelete" {
            let told = world.told().join("\n");
            assert!(told.contains("FailedCreate: Create Pod web-1") && !world.pods.contains_key("web-1"), "{told}");
        }
        world.refused.clear();
        world.delete_pod("web-0");
        world.settle();
        assert_eq!(world.sizes(), ["20Gi"; 4], "{strategy}");
    }
}

/// A claim that cannot be created keeps the others of its replica from growing, too, whether its pod runs or is created with it.
#[test]
fn t11_claims_are_created_before_others_grow() {
    for runs in [true, false] {
        let mut world = two_claims(|set| set.put(&["spec", "podManagementPolicy"], "Parallel"));
        grow_both(&mut world, "20Gi");
        world.claims.remove("logs-web-1");
        if !runs {
            world.pods.remove("web-1");
        }
        let plan = world.plan();
        let staged = plan.stages.iter().flat_map(|stage| stage.actions());
        // A confirmation is no action that can fail.
        let mut actions = plan.prepare.iter().chain(staged).filter(|it| !matches!(it, Action::ConfirmSet { .. }));
        let fail = actions.position(|action| matches!(action, Action::CreateClaim { .. }));
        assert!(fail.is_some(), "{plan:#?}");
        world.step_with(Fate { fail, ..Fate::default() });
        let there = (world.claims.contains_key("logs-web-1"), world.pods.contains_key("web-1"));
        assert_eq!((world.applied.len(), there), (0, (false, runs)));
        world.settle();
        assert_eq!(world.sizes(), ["20Gi"; 4]);
    }
}

/// A crash between the two writes leaves one claim behind; the next plan brings it along.
#[test]
fn p39_t17_a_crash_at_any_write_of_two_claims() {
    for at in 0..12 {
        let mut world = two_claims(|_| {});
        grow_both(&mut world, "20Gi");
        world.step_with(Fate { crash: Some(at), ..Fate::default() });
        world.settle();
        assert_eq!((world.sizes(), world.applied.len()), (vec!["20Gi"; 4], 4), "{at}");
    }
}

/// A pod that waits for a claim's owners to change gets none of its missing claims in that plan, and none is counted.
#[test]
fn claims_are_counted_only_if_the_plan_creates_them() {
    let mut world = two_claims(|set| set.put(&["spec", "volumeClaimUpdatePolicy"], "OnClaimDelete"));
    world.scale(0);
    world.settle();
    world.claims.remove("logs-web-0");
    world.spec(&["volumeClaimUpdatePolicy"], "InPlace");
    world.policy("Delete", "Retain");
    world.scale(1);
    // The plan is checked by the invariants: what it says that it writes is what it writes.
    let plan = world.plan();
    let changing = |held: &Held| matches!(held, Held::ClaimNotReady { reason: "ClaimChanging", .. });
    assert!(plan.held.iter().any(changing), "{:?}", plan.held);
    assert_eq!(plan.written.objects, 0);
    world.settle();
    assert_eq!((world.pods.len(), world.claims.contains_key("logs-web-0")), (1, true));
}

/// Both pods wait for a claim that is lost when the templates change: the plan that creates these claims begins no other change of either.
#[test]
fn t11_lost_claims_are_created_before_their_replicas_are_begun() {
    let mut world = two_claims(|set| set.put(&["spec", "podManagementPolicy"], "Parallel"));
    grow_both(&mut world, "20Gi");
    for (pod, claim) in [("web-0", "data-web-0"), ("web-1", "logs-web-1")] {
        world.fail(pod, "Pending");
        world.claims.remove(claim);
    }
    world.step();
    assert_eq!((world.applied.len(), world.claims.len()), (0, 4));
    world.settle();
    assert_eq!(world.sizes(), ["20Gi"; 4]);
}
