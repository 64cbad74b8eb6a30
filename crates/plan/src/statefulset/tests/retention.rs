//! The owners of claims: scenarios I, contract R.

use super::not_ready;
use super::world::{Fate, World, actions, is_idle, set};
use crate::statefulset::{Action, Held};
use object::access::Access;
use object::{Value, json};

pub const NOBODY: [&str; 0] = [];

pub fn settled(replicas: i64, when_deleted: &str, when_scaled: &str) -> World {
    let mut world = World::new(replicas);
    world.policy(when_deleted, when_scaled);
    world.settled(|_| {})
}

pub fn parallel(replicas: i64, when_deleted: &str, when_scaled: &str) -> World {
    let mut set = set(replicas);
    set.put(&["spec", "podManagementPolicy"], "Parallel");
    let mut world = World::of(set);
    world.policy(when_deleted, when_scaled);
    world.settled(|_| {})
}

fn hold(world: &mut World, pod: &str, held: bool) {
    let finalizers = if held { json!(["example.com/hold"]) } else { json!([]) };
    world.edit_pod(pod, |pod| pod.put(&["metadata", "finalizers"], finalizers));
}

fn config_map(controller: bool) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "elsewhere", "controller": controller})
}

/// The names of claims that get owners, by stage.
fn owned(plan: &crate::statefulset::SetPlan) -> Vec<Vec<&str>> {
    plan.stages.iter().map(|stage| stage.actions().filter_map(owned_claim).collect()).collect()
}

fn owned_claim(action: &Action) -> Option<&str> {
    match action {
        Action::OwnClaim { claim, .. } => Some(claim),
        _ => None,
    }
}

/// R2.
#[test]
fn i01_r2_retained_claims_have_no_owner_and_are_used_again() {
    let mut world = settled(3, "Retain", "Retain");
    let claims = world.claims.clone();
    world.scale(1);
    world.settle();
    world.scale(3);
    world.settle();
    assert_eq!(world.claims, claims);
    assert_eq!(world.owners("data-web-2"), NOBODY);
    world.delete_set();
    world.settle();
    assert_eq!((world.pods.len(), world.claims), (0, claims));
}

/// R3, R7: from the creation on, and not blocking deletion.
#[test]
fn i02_r3_r7_claims_that_are_deleted_with_the_set() {
    let mut world = World::new(2);
    world.policy("Delete", "Retain");
    world.step();
    let reference = json!([{
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "set-1",
        "controller": true, "blockOwnerDeletion": false,
    }]);
    assert_eq!(world.claims["data-web-0"]["metadata"]["ownerReferences"], reference, "at creation");
    world.settle();
    assert_eq!(world.claims["data-web-1"]["metadata"]["ownerReferences"], reference);
    world.delete_set();
    world.settle();
    assert_eq!(world.claims.len(), 0);
}

/// R12: also if it is deleted right after its creation, wherever the creation stopped.
#[test]
fn r12_a_set_created_and_deleted_at_once_leaves_nothing() {
    for crash in 0..4 {
        let mut world = World::new(2);
        world.policy("Delete", "Delete");
        world.step_with(Fate { crash: Some(crash), ..Fate::default() });
        world.delete_set();
        world.settle();
        assert_eq!((world.pods.len(), world.claims.len(), world.revisions.len()), (0, 0, 0), "{crash}");
    }
}

/// R3.
#[test]
fn i03_r3_scaling_keeps_claims_that_are_deleted_with_the_set() {
    let mut world = settled(3, "Delete", "Retain");
    let claims = world.claims.clone();
    world.scale(1);
    world.settle();
    assert_eq!(world.owners("data-web-2"), ["StatefulSet/web"]);
    world.scale(3);
    world.settle();
    assert_eq!(world.claims, claims);
}

/// R4: all references first, then the pods, with OrderedReady and Parallel.
#[test]
fn i04_r4_condemned_pods_own_their_claims_before_one_is_deleted() {
    for mut world in [settled(3, "Retain", "Delete"), parallel(3, "Retain", "Delete")] {
        world.scale(1);
        let plan = world.step();
        assert_eq!(owned(&plan)[0], ["data-web-1", "data-web-2"]);
        assert!(matches!(&plan.stages[1].lanes[0][0][..], [Action::DeletePod { pod, .. }] if pod == "web-2"));
        let uid = world.pods["web-2"]["metadata"]["uid"].clone();
        assert_eq!(
            world.claims["data-web-2"]["metadata"]["ownerReferences"],
            json!([{
                "apiVersion": "v1", "kind": "Pod", "name": "web-2", "uid": uid,
                "controller": true, "blockOwnerDeletion": false,
            }])
        );
        world.settle();
        assert_eq!((world.claim_names(), world.owners("data-web-0")), (vec!["data-web-0"], vec![]));
    }
}

/// A set whose deletion is not observed yet must not own its orphaned claims again: it is confirmed first.
#[test]
fn a_new_owner_is_confirmed_first() {
    let policy = |set: &mut Value| set.put(&["spec", "persistentVolumeClaimRetentionPolicy", "whenDeleted"], "Delete");
    let mut world = World::new(1).settled(policy);
    world.edit_claim("data-web-0", |claim| drop(claim.cut(&["metadata", "ownerReferences"])));
    let plan = world.plan();
    assert!(matches!(&plan.prepare[..], [Action::ConfirmSet { uid, .. }] if uid == "set-1"), "{plan:#?}");
    let owns = |action: &&Action| matches!(action, Action::OwnClaim { claim, .. } if claim == "data-web-0");
    assert_eq!(plan.stages.iter().flat_map(crate::statefulset::Stage::actions).filter(owns).count(), 1);
}

/// A claim outlives its set, so none is created for a set that is deleted or changed by then: it is confirmed
/// first.
#[test]
fn a_set_is_confirmed_before_claims_are_created() {
    let mut world = World::new(1);
    world.set.as_mut().expect("a set").put(&["metadata", "generation"], 3);
    let plan = world.plan();
    let makes = |action: &&Action| matches!(action, Action::CreateClaim { .. });
    assert_eq!(plan.stages.iter().flat_map(crate::statefulset::Stage::actions).filter(makes).count(), 1, "{plan:#?}");
    assert!(
        matches!(&plan.prepare[0], Action::ConfirmSet { uid, generation: 3, leaving: false } if uid == "set-1"),
        "{plan:#?}"
    );
}

/// R4, R11: claims are deleted with the pods that are scaled away, so the set is confirmed right before each
/// such deletion: also if all claims have their owners already, and whatever the plan does before.
#[test]
fn a_set_is_confirmed_right_before_replicas_are_deleted() {
    let mut world = settled(3, "Retain", "Delete");
    world.scale(1);
    world.step();
    world.kubelet();
    world.collect();
    let plan = world.plan();
    assert!(matches!(actions(&plan)[..], [Action::DeletePod { pod, .. }] if pod == "web-1"), "{plan:#?}");
    assert!(matches!(&plan.prepare[..], [Action::ConfirmSet { leaving: false, .. }]), "{plan:#?}");
    // The user changes the policy, which is not observed yet.
    let old = plan;
    world.policy("Retain", "Retain");
    world.execute(&old, Fate::default());
    assert!(world.pods.contains_key("web-1"));
    // New pods are created first, which takes time.
    let mut world = parallel(2, "Retain", "Delete");
    world.set.as_mut().expect("a set").put(&["spec", "ordinals"], json!({"start": 5}));
    let plan = world.plan();
    let kinds: Vec<&str> = actions(&plan)
        .iter()
        .filter_map(|action| match action {
            Action::CreatePod(_) => Some("create"),
            Action::ConfirmSet { .. } => Some("confirm"),
            Action::DeletePod { .. } => Some("delete"),
            _ => None,
        })
        .collect();
    assert_eq!(kinds, ["create", "create", "confirm", "delete", "delete"]);
}

/// R11: the policy of a set with an invalid spec applies.
#[test]
fn the_policy_of_an_unusable_set_applies() {
    let mut world = settled(1, "Delete", "Retain");
    assert_eq!(world.owners("data-web-0"), ["StatefulSet/web"]);
    world.policy("Retain", "Retain");
    world.scale(2);
    world.set.as_mut().expect("a set").put(&["spec", "ordinals"], json!({"start": i32::MAX}));
    let plan = world.step();
    assert!(matches!(plan.held[..], [Held::Unusable { .. }]), "{plan:#?}");
    assert_eq!(world.owners("data-web-0"), [] as [&str; 0]);
    world.policy("Delete", "Retain");
    assert!(matches!(&world.plan().prepare[..], [Action::ConfirmSet { .. }]), "a new owner is confirmed");
}

/// R10: a set that is being deleted with its dependents may be changed to orphan them, which is not observed
/// yet.
#[test]
fn a_terminating_owner_is_confirmed_first() {
    let mut world = settled(1, "Delete", "Retain");
    world.edit_claim("data-web-0", |claim| drop(claim.cut(&["metadata", "ownerReferences"])));
    world.set.as_mut().expect("a set").put(&["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
    world.set.as_mut().expect("a set").put(&["metadata", "finalizers"], json!(["foregroundDeletion"]));
    let plan = world.plan();
    assert!(matches!(&plan.prepare[..], [Action::ConfirmSet { leaving: true, .. }]), "{plan:#?}");
    world.set.as_mut().expect("a set").put(&["metadata", "finalizers"], json!(["orphan"]));
    world.execute(&plan, Fate::default());
    assert_eq!(world.owners("data-web-0"), [] as [&str; 0]);
}

/// R4: if an owner reference cannot be written, no pod is deleted.
#[test]
fn r4_no_pod_is_deleted_before_it_owns_its_claims() {
    let mut world = parallel(3, "Retain", "Delete");
    world.scale(0);
    world.step_with(Fate { fail: Some(1), ..Fate::default() });
    assert_eq!(world.log.len(), 0);
    let told = "FailedUpdate: Update Pod web-1 in StatefulSet web failed error: could not update claim data-web-1 for delete \
                policy ownerRefs: boom";
    assert_eq!(world.told(), [told]);
    world.settle();
    assert_eq!((world.pods.len(), world.claims.len()), (0, 0));
}

/// R5.
#[test]
fn i05_r5_one_controller_at_a_time() {
    let mut world = settled(3, "Delete", "Delete");
    hold(&mut world, "web-2", true);
    world.scale(2);
    world.settle();
    assert_eq!(world.owners("data-web-1"), ["StatefulSet/web"]);
    assert_eq!(world.owners("data-web-2"), ["Pod/web-2"]);
    hold(&mut world, "web-2", false);
    world.settle();
    assert_eq!(world.claim_names(), ["data-web-0", "data-web-1"]);
    world.delete_set();
    world.settle();
    assert_eq!(world.claims.len(), 0);
}

/// R4: only scaling down deletes claims.
#[test]
fn i06_r4_no_other_deletion_of_pods_deletes_claims() {
    for strategy in ["RollingUpdate", "OnDelete"] {
        let mut world = settled(3, "Retain", "Delete");
        let claims = world.claims.clone();
        world.spec(&["updateStrategy"], json!({"type": strategy}));
        world.delete_pod("web-0");
        world.settle();
        world.fail("web-1", "Failed");
        world.settle();
        world.image("v2");
        world.settle();
        world.delete_pod("web-2");
        world.settle();
        assert_eq!(world.claims, claims);
    }
}

/// R11: used and leftover claims alike, without changes of pods.
#[test]
fn i07_i08_r11_policy_changes_reach_every_claim() {
    let mut world = settled(3, "Retain", "Retain");
    world.put_claim("other-web-0", json!([]));
    world.put_claim("data-web", json!([]));
    world.put_claim("data-web-01", json!([]));
    world.scale(1);
    world.settle();
    world.events.clear();
    world.log.clear();
    world.policy("Delete", "Retain");
    world.step();
    for claim in ["data-web-0", "data-web-1", "data-web-2"] {
        assert_eq!(world.owners(claim), ["StatefulSet/web"], "{claim}");
    }
    for claim in ["other-web-0", "data-web", "data-web-01"] {
        assert_eq!(world.owners(claim), NOBODY, "R6: {claim} does not have a name of the set");
    }
    world.policy("Retain", "Delete");
    world.step();
    for claim in ["data-web-0", "data-web-1", "data-web-2"] {
        assert_eq!(world.owners(claim), NOBODY, "{claim}");
    }
    assert!(is_idle(&world.settle()));
    assert_eq!((world.log.len(), world.told().len()), (0, 0), "pods are not affected");
    world.delete_set();
    world.settle();
    assert_eq!(world.claims.len(), 6);
}

/// R11: from Delete to Retain in the middle of a scale-down, with the pod existing and deleted.
#[test]
fn r11_retain_retains_in_the_middle_of_a_scale_down() {
    for gone in [false, true] {
        let mut world = settled(3, "Retain", "Delete");
        world.scale(1);
        hold(&mut world, "web-2", !gone);
        world.step();
        world.bury();
        assert_eq!(
            (world.pods.len(), world.owners("data-web-2")),
            (if gone { 2 } else { 3 }, vec!["Pod/web-2".to_owned()])
        );
        world.policy("Retain", "Retain");
        world.step();
        hold(&mut world, "web-2", false);
        world.settle();
        assert_eq!((world.pod_names(), world.claims.len()), (vec!["web-0"], 3), "{gone}");
        assert!(["data-web-1", "data-web-2"].iter().all(|claim| world.owners(claim).is_empty()));
    }
}

/// R11: from Retain to Delete in the middle of a scale-down: a claim whose pod still exists is deleted with
/// it.
#[test]
fn r11_delete_deletes_in_the_middle_of_a_scale_down() {
    let mut world = settled(3, "Retain", "Retain");
    hold(&mut world, "web-2", true);
    world.scale(1);
    world.step();
    world.policy("Retain", "Delete");
    world.step();
    hold(&mut world, "web-2", false);
    world.settle();
    assert_eq!(world.claim_names(), ["data-web-0"]);
}

/// I24 without the lag: owner references do not wait for health.
#[test]
fn i24_the_policy_applies_to_the_claim_of_an_unready_pod() {
    let mut world = settled(3, "Retain", "Retain");
    world.ready("web-0", false);
    world.policy("Delete", "Retain");
    world.step();
    assert!((0..3).all(|ordinal| world.owners(&format!("data-web-{ordinal}")) == ["StatefulSet/web"]));
}

/// In a blocked scale-down, claims are owned by the set, not yet by their pods.
#[test]
fn r4_pods_own_their_claims_only_when_they_are_scaled_away() {
    let mut world = settled(3, "Delete", "Delete");
    world.ready("web-0", false);
    world.scale(1);
    world.step();
    assert_eq!(world.owners("data-web-2"), ["StatefulSet/web"]);
    world.settle();
    assert_eq!(world.claim_names(), ["data-web-0"]);
}

/// A scale-down that is blocked half-way keeps the owners that it has set.
#[test]
fn r4_a_blocked_scale_down_keeps_the_owners_it_has_set() {
    let mut world = settled(3, "Delete", "Delete");
    hold(&mut world, "web-2", true);
    world.scale(1);
    world.step();
    world.ready("web-0", false);
    assert_eq!(world.step().held, [not_ready("web-0")]);
    assert_eq!(world.owners("data-web-2"), ["Pod/web-2"]);
}

/// R11, R12: policy and scale change together; each claim gets its owner once, those of condemned pods their
/// pod.
#[test]
fn r12_a_policy_that_changes_with_the_scale_down() {
    let mut world = settled(3, "Retain", "Retain");
    world.policy("Delete", "Delete");
    world.scale(1);
    let plan = world.step();
    assert_eq!(owned(&plan)[..2], [vec!["data-web-0"], vec!["data-web-1", "data-web-2"]]);
    world.settle();
    assert_eq!(world.claim_names(), ["data-web-0"]);
}

/// A scale-down is reverted while its pod terminates: the replica is wanted again, and so is its claim.
#[test]
fn r4_a_scale_down_reverted_in_time_deletes_nothing() {
    for mut world in [settled(2, "Retain", "Delete"), parallel(2, "Retain", "Delete")] {
        let claim = world.claims["data-web-1"]["metadata"]["uid"].clone();
        hold(&mut world, "web-1", true);
        world.scale(1);
        world.step();
        assert_eq!(world.owners("data-web-1"), ["Pod/web-1"]);
        world.scale(2);
        world.step();
        assert_eq!(world.owners("data-web-1"), NOBODY);
        hold(&mut world, "web-1", false);
        world.settle();
        assert_eq!(world.claims["data-web-1"]["metadata"]["uid"], claim);
        assert_eq!(world.pods.len(), 2);
    }
}

/// R9: the pod waits until its old claim is removed; with Parallel others do not wait. The removal of the
/// claim is enough to continue.
#[test]
fn r9_a_pod_waits_until_the_claim_of_its_predecessor_is_removed() {
    for (mut world, others) in [(settled(1, "Retain", "Delete"), 0), (parallel(1, "Retain", "Delete"), 1)] {
        world.scale(2);
        world.settle();
        let claim = world.claims["data-web-1"]["metadata"]["uid"].clone();
        world.scale(1);
        world.step();
        world.bury();
        world.scale(3);
        world.log.clear();
        world.events.clear();
        let held = Held::ClaimLeaving { pod: "web-1".to_owned(), claim: "data-web-1".to_owned() };
        assert_eq!(world.step().held, std::slice::from_ref(&held), "it is owned by the deleted pod");
        assert_eq!((world.log.len(), world.owners("data-web-1")), (others, vec!["Pod/web-1".to_owned()]));
        world.edit_claim("data-web-1", |claim| claim.put(&["metadata", "finalizers"], json!(["example.com/hold"])));
        world.collect();
        world.events.clear();
        assert_eq!(world.step().held, [held], "it is terminating");
        assert_eq!(
            world.told(),
            ["FailedCreate: Create Pod web-1 in StatefulSet web failed error: pvc data-web-1 is being deleted",]
        );
        world.edit_claim("data-web-1", |claim| drop(claim.cut(&["metadata", "finalizers"])));
        world.settle();
        assert_eq!(world.pods.len(), 3);
        assert_ne!(world.claims["data-web-1"]["metadata"]["uid"], claim, "both are new");
    }
}

/// R9, I15: a claim of an earlier set of this name is deleted with that set, or released: until then no pod
/// is created that would use it. An existing pod continues to run.
#[test]
fn r9_a_pod_waits_until_the_claim_of_an_earlier_set_is_collected_or_released() {
    for (mut world, others) in [(settled(1, "Retain", "Retain"), false), (parallel(1, "Retain", "Retain"), true)] {
        let of = |uid: &str| json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": uid, "controller": true});
        for claim in ["data-web-0", "data-web-1"] {
            let mut stale = world.claims["data-web-0"].clone();
            stale.put(&["metadata", "name"], claim);
            stale.put(&["metadata", "uid"], format!("stale-{claim}"));
            stale.put(&["metadata", "ownerReferences"], json!([of("set-0")]));
            world.claims.insert(claim.to_owned(), stale);
            world.doomed.insert(claim.to_owned());
        }
        world.scale(3);
        world.log.clear();
        let plan = world.step();
        let held = Held::ClaimLeaving { pod: "web-1".to_owned(), claim: "data-web-1".to_owned() };
        assert_eq!(plan.held, [held], "the first pod exists already");
        assert_eq!((world.pods.contains_key("web-1"), world.pods.contains_key("web-2")), (false, others));
        // A released claim is used; a deleted one is created again.
        world.edit_claim("data-web-0", |claim| drop(claim.cut(&["metadata", "ownerReferences"])));
        world.collect();
        world.settle();
        assert_eq!(world.pods.len(), 3);
        let uids = ["data-web-0", "data-web-1"]
            .map(|claim| world.claims[claim].text(&["metadata", "uid"]).starts_with("stale"));
        assert_eq!(uids, [true, false]);
    }
}

/// A terminating claim is never touched.
#[test]
fn r12_a_terminating_claim_is_not_changed() {
    let mut world = settled(2, "Retain", "Retain");
    world.delete_claim("data-web-1");
    world.policy("Delete", "Delete");
    let plan = world.step();
    assert_eq!(owned(&plan), [["data-web-0"]]);
}

/// R8.
#[test]
fn i11_i16_r8_a_claim_of_another_controller() {
    let mut world = settled(3, "Delete", "Delete");
    world.edit_claim("data-web-1", |claim| {
        claim["metadata"]["ownerReferences"].as_array_mut().unwrap().insert(0, config_map(true));
    });
    world.step();
    assert_eq!(world.owners("data-web-1"), ["ConfigMap/c"], "ours is removed");
    let told = "ConflictingController: PersistentVolumeClaim data-web-1 has a conflicting OwnerReference that acts as a manging \
                controller, the retention policy is ignored for this claim";
    assert_eq!(world.told(), [told]);
    world.events.clear();
    world.settle();
    assert_eq!(world.told(), NOBODY, "reported once");
    world.scale(0);
    world.settle();
    assert!(world.told().iter().any(|event| event == told), "reported when the policy would apply");
    assert_eq!(world.claim_names(), ["data-web-1"]);
    assert_eq!(world.owners("data-web-1"), ["ConfigMap/c"]);
}

/// R8: also reported when the policy changes.
#[test]
fn r8_reported_when_the_policy_changes() {
    let mut world = settled(1, "Retain", "Retain");
    world.edit_claim("data-web-0", |claim| claim.put(&["metadata", "ownerReferences"], json!([config_map(true)])));
    world.settle();
    assert_eq!(world.told(), NOBODY);
    world.policy("Delete", "Retain");
    world.settle();
    assert_eq!(world.told().len(), 1);
}

/// R7.
#[test]
fn i13_r7_other_owners_are_kept() {
    let mut world = settled(1, "Retain", "Retain");
    world.edit_claim("data-web-0", |claim| claim.put(&["metadata", "ownerReferences"], json!([config_map(false)])));
    world.policy("Delete", "Retain");
    world.settle();
    assert_eq!(world.owners("data-web-0"), ["ConfigMap/c", "StatefulSet/web"]);
    world.delete_set();
    world.settle();
    assert_eq!(world.owners("data-web-0"), ["ConfigMap/c"]);
}

/// R7: references of earlier versions are updated.
#[test]
fn i14_r7_older_references_are_upgraded() {
    for (controller, blocks) in [(json!(false), json!(false)), (Value::Null, Value::Null), (json!(true), json!(true))] {
        let mut world = settled(1, "Delete", "Retain");
        let wanted = world.claims["data-web-0"]["metadata"]["ownerReferences"].clone();
        world.edit_claim("data-web-0", |claim| {
            claim["metadata"]["ownerReferences"][0]["controller"] = controller;
            claim["metadata"]["ownerReferences"][0]["blockOwnerDeletion"] = blocks;
        });
        world.settle();
        assert_eq!(world.claims["data-web-0"]["metadata"]["ownerReferences"], wanted);
        world.edit_claim("data-web-0", |claim| {
            claim["metadata"]["ownerReferences"][0].cut(&["blockOwnerDeletion"]);
        });
        assert!(is_idle(&world.plan()), "an omitted field is false");
    }
}

#[test]
fn i15_a_claim_of_an_earlier_set_of_that_name_is_not_changed() {
    let earlier = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "set-0"}]);
    for (deleted, scaled) in [("Retain", "Retain"), ("Delete", "Delete")] {
        let mut world = settled(1, deleted, scaled);
        world.edit_claim("data-web-0", |claim| claim.put(&["metadata", "ownerReferences"], earlier.clone()));
        assert!(is_idle(&world.plan()), "{deleted} {scaled}");
        world.scale(0);
        assert!(owned(&world.plan()).concat().is_empty());
    }
}

/// R6: claims that existed before are treated alike.
#[test]
fn r6_claims_created_beforehand_are_used_and_treated_alike() {
    let mut world = World::new(1);
    world.put_claim("data-web-0", json!([]));
    world.put_claim("shared", json!([]));
    world.policy("Delete", "Delete");
    let before = world.claims["data-web-0"]["metadata"]["uid"].clone();
    let plan = world.step();
    assert_eq!(owned(&plan)[0], ["data-web-0"]);
    assert_eq!(actions(&plan).len(), 2, "its pod, and no claim");
    world.settle();
    assert_eq!(world.claims["data-web-0"]["metadata"]["uid"], before);
    world.scale(0);
    world.settle();
    assert_eq!(world.claim_names(), ["shared"], "I23");
}

#[test]
fn i20_i21_an_orphaned_pod_is_adopted_and_scaled_away_with_its_claim() {
    let mut world = settled(3, "Retain", "Delete");
    world.edit_pod("web-2", |pod| drop(pod.cut(&["metadata", "ownerReferences"])));
    world.scale(1);
    world.settle();
    assert_eq!((world.pod_names(), world.claim_names()), (vec!["web-0"], vec!["data-web-0"]));
}

/// R10: while its dependents are being orphaned, a set's owner references are not added again.
#[test]
fn i22_r10_orphaned_claims_do_not_get_their_owner_again() {
    let mut world = settled(1, "Delete", "Retain");
    world.edit(|set| {
        set.put(&["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
        set.put(&["metadata", "finalizers"], json!(["orphan"]));
    });
    world.edit_claim("data-web-0", |claim| drop(claim.cut(&["metadata", "ownerReferences"])));
    let plan = world.plan();
    assert_eq!((plan.held, plan.stages), (vec![Held::Deleting], vec![]));
}

/// R10: a set that orphaned its claims and is kept by another finalizer does not own them again; owner
/// references that it should not have are still removed.
#[test]
fn i22_r10_a_set_kept_by_another_finalizer_gets_no_claims() {
    let mut world = settled(2, "Delete", "Retain");
    world.edit(|set| {
        set.put(&["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
        set.put(&["metadata", "finalizers"], json!(["example.com/hold"]));
    });
    world.edit_claim("data-web-0", |claim| drop(claim.cut(&["metadata", "ownerReferences"])));
    assert_eq!(owned(&world.plan()), [] as [Vec<&str>; 0]);
    world.policy("Retain", "Retain");
    world.step();
    assert_eq!((world.owners("data-web-0"), world.owners("data-web-1")), (vec![], vec![]));
}

/// R12: a policy changed just before a foreground deletion applies.
#[test]
fn r12_the_policy_applies_to_a_set_that_is_being_deleted() {
    for (from, to, owners) in [("Delete", "Retain", vec![]), ("Retain", "Delete", vec!["StatefulSet/web"])] {
        let mut world = settled(3, from, "Retain");
        world.scale(2);
        world.settle();
        world.policy(to, "Retain");
        world.edit(|set| {
            set.put(&["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
            set.put(&["metadata", "finalizers"], json!(["foregroundDeletion"]));
        });
        world.log.clear();
        world.step();
        for claim in ["data-web-0", "data-web-1", "data-web-2"] {
            assert_eq!(world.owners(claim), owners, "{claim}");
        }
        assert_eq!(world.log.len(), 0);
    }
}

#[test]
fn i25_a_moved_start_deletes_claims_when_the_new_pods_are_ready() {
    let mut world = settled(2, "Retain", "Delete");
    world.spec(&["ordinals", "start"], 2);
    world.step();
    assert_eq!(world.claim_names(), ["data-web-0", "data-web-1", "data-web-2"]);
    world.settle();
    assert_eq!(world.log, ["+web-2", "+web-3", "-web-1", "-web-0"]);
    assert_eq!(world.claim_names(), ["data-web-2", "data-web-3"]);
}

/// R14: with the gate off the policy is Retain, with the gate on it applies; both in the middle of a
/// scale-down.
#[test]
fn r14_the_gate_decides_whether_the_policy_applies() {
    let mut world = settled(2, "Delete", "Delete");
    world.gates = world.gates.with("StatefulSetAutoDeletePVC", false);
    world.step();
    assert!(["data-web-0", "data-web-1"].iter().all(|claim| world.owners(claim).is_empty()));
    world.scale(1);
    world.settle();
    assert_eq!(world.claims.len(), 2, "nothing goes");
    world.gates = world.gates.with("StatefulSetAutoDeletePVC", true);
    world.settle();
    assert!(
        ["data-web-0", "data-web-1"].iter().all(|claim| world.owners(claim) == ["StatefulSet/web"]),
        "the owners are set again"
    );

    let mut world = settled(3, "Retain", "Delete");
    hold(&mut world, "web-2", true);
    world.scale(1);
    world.step();
    world.gates = world.gates.with("StatefulSetAutoDeletePVC", false);
    world.step();
    hold(&mut world, "web-2", false);
    world.settle();
    assert_eq!((world.pod_names(), world.claims.len()), (vec!["web-0"], 3), "existing claims are kept");
}
