//! Plans that take long: their set may change meanwhile.

use super::retention::parallel;
use super::world::{Fate, World, set};
use crate::statefulset::{Action, SetPlan, Stage};
use object::access::{Access, uid};
use object::json;

/// The number of creations or deletions in each stage; `?` is a confirmation.
fn stages(plan: &SetPlan) -> String {
    let told = plan.stages.iter().map(|stage| {
        let of = |what: fn(&Action) -> bool| stage.actions().filter(|action| what(action)).count();
        match of(|action| matches!(action, Action::ConfirmSet { .. })) {
            0 => (of(|it| matches!(it, Action::CreateClaim { .. } | Action::DeletePod { .. }))).to_string(),
            _ => "?".to_owned(),
        }
    });
    told.collect::<Vec<String>>().join(" ")
}

/// R4, decision 21: a long plan confirms its set repeatedly. After a change in the middle, the remaining pods
/// are kept, and no more claims get owners by the former policy.
#[test]
fn a_long_plan_confirms_the_set_again() {
    let mut world = parallel(0, "Retain", "Delete");
    world.scale(200);
    let plan = world.plan();
    assert!(matches!(plan.prepare[0], Action::ConfirmSet { .. }));
    assert_eq!(stages(&plan), "1 2 4 8 16 32 64 ? 73");
    world.settle();
    world.scale(0);
    let plan = world.plan();
    // The owners of 200 claims, then the pods.
    assert_eq!(stages(&plan), "0 ? 64 ? 64 ? 64 ? 8");
    // The user changes the set after the first stage.
    let old = plan;
    world.scale(200);
    world.execute(&old, Fate::default());
    assert_eq!(world.pods.len(), 200);
}

/// The same if all pods are recreated at once.
#[test]
fn a_long_recreation_confirms_the_set_again() {
    let mut set = set(0);
    set.put(&["spec", "updateStrategy"], json!({"type": "Recreate"}));
    set.put(&["spec", "podManagementPolicy"], "Parallel");
    let mut world = World::of(set);
    world.gates = world.gates.with("StatefulSetRecreateStrategy", true);
    world.policy("Retain", "Delete");
    let mut world = world.settled(|_| {});
    world.scale(200);
    world.settle();
    world.image("v2");
    world.scale(50);
    // The owners of 150 claims; the set is confirmed until the last pod that is scaled away is deleted.
    assert_eq!(stages(&world.plan()), "0 ? 64 ? 64 ? 64 ? 8");
}

/// Of several equal confirmations the one that failed counts: what was done before it is done.
#[test]
fn the_failed_confirmation_decides_what_was_done() {
    let set = set(3);
    let ask = || Stage::of_each(vec![Action::ConfirmSet { uid: uid(&set).to_owned(), generation: 1, leaving: false }]);
    let delete = |pod: &str| {
        let (pod, uid) = (pod.to_owned(), pod.to_owned());
        Stage::of_each(vec![Action::DeletePod { pod, uid, resource_version: None, counted: true }])
    };
    let mut status = set.clone();
    status.put(&["status", "currentReplicas"], 1);
    let stages = vec![ask(), delete("web-2"), ask(), delete("web-1")];
    let plan = SetPlan { stages, status: Some(status), ..SetPlan::default() };
    for (at, kept) in [(0, 2), (2, 1)] {
        let failed = plan.stages[at].actions().next().unwrap();
        let after = plan.status_after(&set, &[(failed, None)]).unwrap();
        assert_eq!(after.int(&["status", "currentReplicas"]), Some(1 + kept), "the confirmation at {at}");
    }
}
