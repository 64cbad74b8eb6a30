//! Claims updated in place with errors: failures and recoveries, gates, undo; contract T11 to T18.

use super::in_place::{LABEL, budget, in_place, moves, none, parallel};
use super::world::{Fate, World, actions, is_idle};
use crate::statefulset::{Action, Held};
use object::access::Access;
use object::{Value, json};

fn class(world: &mut World, class: &str) {
    world.edit_template(|template| template.put(&["spec", "volumeAttributesClassName"], class));
}

/// P16, P17, P18, P19, T11, T18: for any error of the server it is retried, nothing else happens, and it
/// continues when the cause is removed.
#[test]
fn p16_t11_t18_a_refused_claim_stops_the_rollout_and_nothing_else() {
    let mut world = in_place(3, |_| {});
    let uids = world.uids();
    world.refused.insert("data-web-2".to_owned());
    world.grow("20Gi");
    for _ in 0..3 {
        assert_eq!(moves(&world.step()), ["data-web-2"], "tried again");
    }
    let told = world.told();
    assert!(
        told[0]
            .starts_with("FailedUpdate: Update Claim data-web-2 for Pod web-2 in StatefulSet web failed error: boom; "),
        "{told:?}"
    );
    assert!(told[0].contains("OnClaimDelete"), "what the user can do: {told:?}");
    let said = world.claims_said();
    assert!(
        said.starts_with("False ClaimUpdateFailed: claim data-web-2 of pod web-2 cannot be updated: boom; "),
        "{said}"
    );
    assert_eq!((world.status("updatedReplicas"), world.uids()), (0, uids.clone()));
    assert!(world.plan().status.is_none(), "the status is written once");
    // Scaling is not blocked.
    world.scale(4);
    world.step();
    world.kubelet();
    world.step();
    assert!(world.pods.contains_key("web-3") && world.is_new("data-web-3"));
    world.scale(3);
    world.step();
    world.bury();
    world.refused.clear();
    world.settle();
    assert_eq!((world.sizes()[..3].to_vec(), world.uids()), (vec!["20Gi"; 3], uids));
    assert!(world.claims_said().starts_with("True"));
}

/// T11 with a budget: after a failure, lower replicas are not begun.
#[test]
fn t11_a_failure_stops_the_walk() {
    let mut world = in_place(4, budget(3));
    world.refused.insert("data-web-3".to_owned());
    world.grow("20Gi");
    world.step();
    assert_eq!(world.applied, [] as [&str; 0]);
}

/// T11 for Recreate: while claims are not ready, replicas are created and deleted at the old revision.
#[test]
fn t11_recreate_does_not_block_scaling() {
    let mut world = in_place(2, |set| set.put(&["spec", "updateStrategy"], json!({"type": "Recreate"})));
    let old = world.status_text("updateRevision").to_owned();
    world.refused.insert("data-web-1".to_owned());
    world.grow("20Gi");
    world.image("v2");
    for replicas in [3, 2, 3] {
        world.scale(replicas);
        for _ in 0..5 {
            world.step();
            world.kubelet();
        }
        assert_eq!(world.pods.len(), usize::try_from(replicas).unwrap());
        assert!(world.pods.values().all(|pod| pod.text(LABEL) == old), "no new pods at the same time as old ones");
    }
    world.refused.clear();
    world.settle();
    assert!(world.images().iter().all(|(_, image)| *image == "v2"));
    assert_eq!(world.sizes(), ["20Gi"; 3]);
}

/// A missing claim of a pending pod is created once, also if that pod is to be recreated.
#[test]
fn recreate_with_a_missing_claim() {
    let mut world = in_place(1, |set| set.put(&["spec", "updateStrategy"], json!({"type": "Recreate"})));
    world.fail("web-0", "Pending");
    world.claims.remove("data-web-0");
    world.image("v2");
    assert_eq!(moves(&world.step()), ["+data-web-0"]);
    world.settle();
    assert_eq!(world.log, ["-web-0", "+web-0"]);
}

/// One claim of an unavailable pod is missing, the other is old: each is written once.
#[test]
fn t17_a_missing_claim_and_an_old_one() {
    let mut world = in_place(1, |set| {
        parallel(set);
        let mut logs = set["spec"]["volumeClaimTemplates"][0].clone();
        logs.put(&["metadata", "name"], "logs");
        set["spec"]["volumeClaimTemplates"].as_array_mut().unwrap().push(logs);
    });
    world.fail("web-0", "Pending");
    world.claims.remove("data-web-0");
    world.grow("20Gi");
    assert_eq!(moves(&world.step()), ["+data-web-0"]);
    assert_eq!(moves(&world.step()), ["logs-web-0"]);
    world.settle();
    assert_eq!(world.sizes(), ["20Gi", "10Gi"]);
}

/// P21, T12, Q8: going back to OnClaimDelete restarts nothing and writes no claim.
#[test]
fn p21_t12_back_to_on_claim_delete_without_a_restart() {
    let mut world = in_place(3, |_| {});
    let uids = world.uids();
    world.refused.insert("data-web-2".to_owned());
    world.grow("20Gi");
    world.step();
    world.spec(&["volumeClaimUpdatePolicy"], "OnClaimDelete");
    world.settle();
    assert_eq!((world.sizes(), world.uids(), world.applied.len()), (vec!["10Gi"; 3], uids, 0));
    let update = world.status_text("updateRevision");
    assert!(world.pods.values().all(|pod| pod.text(LABEL) == update));
    assert_eq!(world.status_text("currentRevision"), update);
    assert_eq!(world.claims_said(), "");
}

/// P20: pods are rolled out, claims are not changed.
#[test]
fn p20_t12_back_to_on_claim_delete_pods_roll_normally() {
    let mut world = in_place(2, |_| {});
    world.refused.insert("data-web-1".to_owned());
    world.grow("20Gi");
    world.image("v2");
    world.step();
    world.spec(&["volumeClaimUpdatePolicy"], "OnClaimDelete");
    world.settle();
    assert_eq!(world.log, ["-web-1", "+web-1", "-web-0", "+web-0"]);
    assert_eq!((world.sizes(), world.applied.len()), (vec!["10Gi"; 2], 0));
}

/// P23, P24, T12: a claim that never becomes ready blocks everything but scaling; how a user can recover.
#[test]
fn p23_t12_ways_out_of_a_claim_that_never_gets_ready() {
    let stuck = || {
        let mut world = in_place(2, |_| {});
        world.stuck.insert("data-web-1".to_owned());
        world.grow("20Gi");
        world.image("v2");
        world.settle();
        assert_eq!((world.log.len(), world.status("updatedReplicas")), (0, 0));
        world
    };
    // By making the claim smaller again: the controller does not make it larger.
    let mut world = stuck();
    world.edit_claim("data-web-1", |claim| claim.put(&["spec", "resources", "requests", "storage"], "10Gi"));
    world.settle();
    assert_eq!(world.sizes(), ["20Gi", "10Gi"]);
    assert_eq!(world.log.len(), 4);
    // By deleting the pod: it is created at the new revision.
    let mut world = stuck();
    world.delete_pod("web-1");
    world.settle();
    assert_eq!(world.log, ["+web-1", "-web-0", "+web-0"]);
    // By deleting the claim and the pod.
    let mut world = stuck();
    world.delete_claim("data-web-1");
    world.stuck.clear();
    world.settle();
    assert!(world.claims.values().all(|claim| claim.text(&["status", "capacity", "storage"]) == "20Gi"));
    assert_eq!(world.log, ["-web-1", "+web-1", "-web-0", "+web-0"]);
}

/// Errors of the resizer are reported once.
#[test]
fn t12_errors_of_the_resizer_are_reported() {
    let mut world = in_place(1, |_| {});
    world.stuck.insert("data-web-0".to_owned());
    world.grow("20Gi");
    world.step();
    let error = json!([{"type": "ControllerResizeError", "status": "True", "message": "no space"}]);
    world.edit_claim("data-web-0", |claim| claim.put(&["status", "conditions"], error));
    world.events.clear();
    world.step();
    let told = world.told().join("\n");
    let why = "its capacity is 10Gi and must become 20Gi (ControllerResizeError: no space)";
    assert!(told.starts_with(&format!(
        "ClaimNotReady: Update Claim data-web-0 for Pod web-0 in StatefulSet web waits: {why}; "
    )));
    assert!(world.claims_said().contains(why));
}

/// Q31, T12: changed again while it is blocked.
#[test]
fn t12_changed_again_while_blocked() {
    let mut world = in_place(3, |_| {});
    world.stuck.insert("data-web-2".to_owned());
    class(&mut world, "silver");
    world.settle();
    class(&mut world, "gold");
    assert_eq!(moves(&world.step()), ["data-web-2"], "the same replica, at the newer revision");
    world.stuck.clear();
    world.settle();
    assert_eq!(world.claims["data-web-2"]["spec"]["volumeAttributesClassName"], "gold");
    assert_eq!(world.applied, ["data-web-2", "data-web-2", "data-web-1", "data-web-0"]);
}

/// Edited back while a claim is in flight: the pod is at the target, so its claim is not changed until the
/// next rollout.
#[test]
fn t12_edited_back_while_in_flight() {
    let mut world = in_place(2, |_| {});
    let uids = world.uids();
    world.edit_template(|template| template.put(&["metadata", "labels"], json!({"a": "b"})));
    world.step();
    world.edit_template(|template| drop(template.cut(&["metadata", "labels"])));
    world.settle();
    assert_eq!((world.applied.as_slice(), world.uids()), (&["data-web-1".to_owned()][..], uids));
    assert_eq!(world.status_text("currentRevision"), world.status_text("updateRevision"));
    assert_eq!(world.claims["data-web-1"]["metadata"]["labels"]["a"], "b");
    world.grow("20Gi");
    world.settle();
    assert!(!world.claims["data-web-1"].has(&["metadata", "labels", "a"]), "then it is corrected");
}

/// Q15: an unbound claim is not changed while its pod exists, and is changed when it does not.
#[test]
fn p35_unbound_claims() {
    let mut world = in_place(2, parallel);
    world.edit_claim("data-web-1", |claim| claim.put(&["status"], json!({"phase": "Pending"})));
    world.stuck.insert("data-web-1".to_owned());
    world.fail("web-1", "Pending");
    world.grow("20Gi");
    let plan = world.step();
    assert_eq!(moves(&plan), none(), "web-1 uses the budget up");
    let why = "it is Pending, and only a bound claim can change".to_owned();
    let held =
        Held::ClaimNotReady { pod: "web-1".to_owned(), claim: "data-web-1".to_owned(), reason: "ClaimNotBound", why };
    assert!(plan.held.contains(&held), "{:?}", plan.held);
    world.delete_pod("web-1");
    world.bury();
    world.step();
    assert!(!world.pods.contains_key("web-1"));
    let told = world.told().join("\n");
    assert!(
        told.contains("FailedUpdate: Update Claim data-web-1") && told.contains("FailedCreate: Create Pod web-1"),
        "{told}"
    );
    world.stuck.clear();
    world.delete_claim("data-web-1");
    world.settle();
    assert_eq!(world.sizes(), ["20Gi"; 2]);
}

/// Q16: a terminating claim is neither written nor waited for.
#[test]
fn a_terminating_claim_is_skipped() {
    for image in [false, true] {
        let mut world = in_place(1, |_| {});
        world.delete_claim("data-web-0");
        world.grow("20Gi");
        if image {
            world.image("v2");
        }
        assert_eq!(moves(&world.step()), [if image { "-web-0" } else { "=web-0" }]);
        world.delete_pod("web-0");
        world.settle();
        assert_eq!(world.sizes(), ["20Gi"]);
    }
}

/// A claim that is lost while it is waited for is created at the target, and waited for.
#[test]
fn a_claim_lost_in_flight_is_created_again() {
    let mut world = in_place(2, |_| {});
    world.grow("20Gi");
    world.step();
    world.claims.remove("data-web-1");
    assert_eq!(moves(&world.step()), ["+data-web-1"]);
    assert_eq!(moves(&world.step()), none(), "awaited");
    world.storage();
    assert_eq!(moves(&world.step()), ["=web-1", "data-web-0"]);
}

/// P29, Q11: claims that never had a label get one, and nothing restarts.
#[test]
fn p29_a_set_becomes_in_place() {
    let mut world = World::new(3).settled(|_| {});
    let uids = world.uids();
    world.spec(&["volumeClaimUpdatePolicy"], "InPlace");
    world.settle();
    assert_eq!((world.applied.len(), world.uids()), (3, uids));
    let update = world.status_text("updateRevision");
    assert!(world.pods.values().chain(world.claims.values()).all(|it| it.text(LABEL) == update));
}

/// A revision without claim templates does not change claims.
#[test]
fn t10_a_revision_without_claim_templates_does_not_change_claims() {
    let mut world = World::new(2).settled(|set| {
        set.put(&["spec", "updateStrategy", "rollingUpdate", "partition"], 2);
    });
    world.spec(&["volumeClaimUpdatePolicy"], "InPlace");
    world.grow("20Gi");
    world.delete_pod("web-1");
    world.settle();
    assert_eq!((world.sizes(), world.applied.len()), (vec!["1Gi"; 2], 0));
}

/// P37, Q25.
#[test]
fn p37_a_claim_whose_label_was_removed_is_not_changed() {
    let mut world = in_place(2, |_| {});
    world.edit_claim("data-web-1", |claim| drop(claim.cut(&["metadata", "labels"])));
    let plan = world.settle();
    assert!(is_idle(&plan) && world.applied.is_empty());
}

/// P39, Q36, T5: if the controller stops at any write, each claim is still written once.
#[test]
fn p39_t5_a_crash_at_any_write() {
    for first in 0..6 {
        for at in 0..4 {
            let mut world = in_place(3, |_| {});
            world.grow("20Gi");
            for _ in 0..first {
                world.step();
                world.kubelet();
            }
            world.step_with(Fate { crash: Some(at), ..Fate::default() });
            world.settle();
            assert_eq!(world.applied, ["data-web-2", "data-web-1", "data-web-0"], "{first} {at}");
        }
    }
}

/// P44, P43, T17, Q29: undo to an older class, by the older revision.
#[test]
fn p44_t17_undo_of_a_class() {
    let mut world = in_place(2, |set| {
        set["spec"]["volumeClaimTemplates"][0].put(&["spec", "volumeAttributesClassName"], "gold");
    });
    let (uids, first) = (world.uids(), world.status_text("updateRevision").to_owned());
    class(&mut world, "silver");
    world.settle();
    // As kubectl does it: the revision is a patch.
    let data = world.revisions[&first]["data"].clone();
    let mut template = data["spec"]["template"].clone();
    template.cut(&["$patch"]);
    world.edit(|set| {
        set.put(&["spec", "template"], template);
        set.put(&["spec", "volumeClaimTemplates"], data["spec"]["volumeClaimTemplates"].clone());
    });
    world.settle();
    assert_eq!((world.status_text("updateRevision"), world.revisions.len()), (first.as_str(), 2));
    assert_eq!(world.revisions[&first]["revision"], 3);
    assert!(world.claims.values().all(|claim| claim.text(&["spec", "volumeAttributesClassName"]) == "gold"));
    assert_eq!(world.uids(), uids);
}

/// Q14: a class that is removed from the template stays on the claim.
#[test]
fn a_class_taken_out_of_the_template_stays() {
    let mut world = in_place(1, |set| {
        set["spec"]["volumeClaimTemplates"][0].put(&["spec", "volumeAttributesClassName"], "gold");
    });
    world.edit_template(|template| drop(template.cut(&["spec", "volumeAttributesClassName"])));
    world.settle();
    assert_eq!(world.claims["data-web-0"]["spec"]["volumeAttributesClassName"], "gold");
    assert!(world.is_new("data-web-0"));
}

/// P49, T16, Q38: the controller's gate is turned off in the middle of a rollout.
#[test]
fn p49_t16_the_gate_closes_in_the_middle() {
    let mut world = in_place(3, |_| {});
    let uids = world.uids();
    world.stuck.insert("data-web-2".to_owned());
    world.grow("20Gi");
    world.settle();
    world.gates = world.gates.clone().with("StatefulSetUpdateVolumeClaimTemplate", false);
    world.settle();
    let update = world.status_text("updateRevision");
    assert_eq!(world.status_text("currentRevision"), update);
    assert!(world.revisions[update].has(&["data", "spec", "volumeClaimTemplates"]));
    assert_eq!((world.applied.as_slice(), world.uids()), (&["data-web-2".to_owned()][..], uids));
    assert_eq!(world.claims_said(), "");
    // P50: and on again. Only another change reaches the claims.
    world.stuck.clear();
    world.gates = world.gates.clone().with("StatefulSetUpdateVolumeClaimTemplate", true);
    world.settle();
    assert_eq!(world.sizes(), ["10Gi", "10Gi", "20Gi"]);
    world.grow("30Gi");
    world.settle();
    assert_eq!(world.sizes(), ["30Gi"; 3]);
}

/// T16: with the controller's gate off, new claims have the newest template and no revision label.
#[test]
fn t16_claims_made_with_the_gate_closed() {
    let mut world = in_place(1, |_| {});
    world.gates = world.gates.clone().with("StatefulSetUpdateVolumeClaimTemplate", false);
    world.grow("20Gi");
    world.scale(2);
    world.settle();
    assert_eq!(world.sizes(), ["10Gi", "20Gi"]);
    assert_eq!(world.claims["data-web-1"].text(LABEL), "");
}

/// P51: without history, the revisions of existing pods are still known.
#[test]
fn p51_without_history() {
    let mut world = in_place(2, |set| set.put(&["spec", "revisionHistoryLimit"], 0));
    let uids = world.uids();
    for size in ["20Gi", "30Gi", "40Gi"] {
        world.grow(size);
        world.step();
    }
    world.settle();
    assert_eq!((world.uids(), world.revisions.len()), (uids, 1));
}

/// A pod of an unknown revision is restarted, because its template is not known.
#[test]
fn a_pod_of_an_unknown_revision_is_restarted() {
    let mut world = in_place(1, |_| {});
    world.edit_pod("web-0", |pod| pod.put(LABEL, "web-lost"));
    world.settle();
    assert_eq!(world.log, ["-web-0", "+web-0"]);
}

/// If owners and templates both change, owners are written first: a claim is applied in the observed version.
#[test]
fn owners_and_claims_change_one_after_the_other() {
    let mut world = in_place(2, |_| {});
    world.grow("20Gi");
    world.policy("Delete", "Retain");
    let plan = world.step();
    assert!(actions(&plan).iter().all(|action| matches!(action, Action::OwnClaim { .. })), "{plan:#?}");
    let waits = |held: &Held| matches!(held, Held::ClaimNotReady { reason: "ClaimChanging", .. });
    assert!(plan.held.iter().any(waits), "{:?}", plan.held);
    world.settle();
    assert_eq!(world.sizes(), ["20Gi"; 2]);
    assert!(world.claims.values().all(|claim| claim.has(&["metadata", "ownerReferences"])));
}

/// P32: an incompatible leftover claim blocks its pod, and with OrderedReady those above; deleting the claim
/// unblocks it.
#[test]
fn p32_an_incompatible_leftover() {
    let mut world = in_place(3, |_| {});
    world.scale(1);
    world.settle();
    world.grow("20Gi");
    world.settle();
    world.refused.insert("data-web-1".to_owned());
    world.scale(3);
    world.step();
    world.kubelet();
    world.step();
    assert_eq!(world.pod_names(), ["web-0"]);
    assert!(world.claims_said().contains("data-web-1"), "{}", world.claims_said());
    world.refused.clear();
    world.delete_claim("data-web-1");
    world.settle();
    assert_eq!((world.pod_names().len(), world.sizes()), (3, vec!["20Gi"; 3]));
}

/// T15: the controller never deletes claims.
#[test]
fn t15_no_action_deletes_a_claim() {
    let mut world = in_place(3, |_| {});
    world.grow("20Gi");
    world.scale(0);
    world.settle();
    let _: &Value = &world.claims["data-web-2"];
    assert_eq!(world.claims.len(), 3);
}
