//! Rollouts: scenarios F, contract O3.

use super::world::{Fate, World, actions, is_idle, set};
use super::{leaving, not_ready};
use crate::statefulset::{Action, Held};
use object::access::Access;
use object::{Value, condition, json};

/// A settled set at image v1.
fn settled(replicas: i64, parallel: bool, strategy: Value) -> World {
    let mut set = set(replicas);
    if parallel {
        set.put(&["spec", "podManagementPolicy"], "Parallel");
    }
    set.put(&["spec", "updateStrategy"], strategy);
    World::of(set).settled(|_| {})
}

fn rolling(partition: i64, max: impl Into<Value>) -> Value {
    let max: Value = max.into();
    json!({"type": "RollingUpdate", "rollingUpdate": {"partition": partition, "maxUnavailable": max}})
}

fn deleted(plan: &crate::statefulset::SetPlan) -> Vec<&str> {
    let pods = actions(plan).into_iter().filter_map(|action| match action {
        Action::DeletePod { pod, .. } => Some(pod.as_str()),
        _ => None,
    });
    pods.collect()
}

fn updated(world: &World) -> Vec<&str> {
    world.images().into_iter().filter(|(_, image)| *image == "v2").map(|(pod, _)| pod).collect()
}

#[test]
fn f01_from_the_highest_ordinal_each_when_the_previous_one_is_ready() {
    let mut world = settled(3, false, rolling(0, 1));
    let old = world.status_text("currentRevision").to_owned();
    world.image("v2");
    let plan = world.step();
    assert_eq!(deleted(&plan), ["web-2"]);
    assert_eq!(plan.held, [Held::Budget { unavailable: 1, max: 1 }]);
    assert_eq!(world.status_text("currentRevision"), old);
    assert_ne!(world.status_text("updateRevision"), old);
    assert_eq!((world.status("currentReplicas"), world.status("updatedReplicas")), (2, 0));
    world.bury();
    world.step();
    assert_eq!(world.step().held, [not_ready("web-2")]);
    assert_eq!(updated(&world), ["web-2"]);
    while !updated(&world).contains(&"web-0") {
        world.kubelet();
        world.step();
    }
    world.step();
    assert_eq!(world.status("updatedReplicas"), 3);
    assert_eq!(world.status_text("currentRevision"), old, "the last one is not ready");
    world.settle();
    assert_eq!(world.log, ["-web-2", "+web-2", "-web-1", "+web-1", "-web-0", "+web-0"]);
    assert_eq!(world.status_text("currentRevision"), world.status_text("updateRevision"));
    assert_eq!((world.status("currentReplicas"), world.status("updatedReplicas")), (3, 3));
}

#[test]
fn f02_back_to_an_older_revision_without_a_new_object() {
    let mut world = settled(2, false, rolling(0, 1));
    let first = world.status_text("currentRevision").to_owned();
    world.image("v2");
    world.settle();
    world.log.clear();
    world.image("v1");
    world.settle();
    assert_eq!(world.revisions.len(), 2);
    assert_eq!(world.revisions[&first]["revision"], 3);
    assert_eq!(world.status_text("currentRevision"), first);
    assert_eq!(world.log, ["-web-1", "+web-1", "-web-0", "+web-0"]);
}

#[test]
fn f03_f21_in_order_an_unready_pod_stops_it_whatever_the_budget() {
    let mut world = settled(3, false, rolling(0, 3));
    world.ready("web-1", false);
    world.image("v2");
    assert_eq!(world.step().held, [not_ready("web-1")]);
    assert_eq!(world.log.len(), 0);
    world.ready("web-1", true);
    assert_eq!(deleted(&world.step()), ["web-2", "web-1", "web-0"]);
}

/// F04 with OrderedReady, F05 with Parallel: a bad revision that is reverted.
#[test]
fn f04_f05_a_bad_revision() {
    for (parallel, heals) in [(false, false), (true, true)] {
        let mut world = settled(3, parallel, rolling(0, 1));
        world.image("bad");
        world.step();
        world.bury();
        world.step();
        world.ready("web-2", false);
        world.image("v1");
        world.step();
        assert_eq!(world.log.len(), if heals { 3 } else { 2 }, "{:?}", world.log);
        world.delete_pod("web-2");
        world.settle();
        assert!(world.images().iter().all(|(_, image)| *image == "v1"));
        assert_eq!(
            world.log.iter().filter(|it| **it != "-web-2" && **it != "+web-2").count(),
            0,
            "no other pod restarts"
        );
    }
}

#[test]
fn f06_a_partition_past_the_end_updates_none() {
    let mut world = settled(2, false, rolling(2, 1));
    world.image("v2");
    world.scale(3);
    world.spec(&["updateStrategy", "rollingUpdate", "partition"], 3);
    world.delete_pod("web-0");
    assert_eq!(world.settle().held, [Held::Partition { ordinal: 3 }]);
    assert_eq!(updated(&world), [] as [&str; 0], "new and recreated pods are old ones");
    assert_ne!(world.status_text("currentRevision"), world.status_text("updateRevision"));
}

#[test]
fn f07_f08_a_partition_updates_a_part_and_is_lowered() {
    let mut world = settled(3, false, rolling(2, 1));
    let old = world.status_text("currentRevision").to_owned();
    world.image("v2");
    world.settle();
    assert_eq!(updated(&world), ["web-2"]);
    world.delete_pod("web-0");
    world.delete_pod("web-2");
    world.settle();
    assert_eq!(updated(&world), ["web-2"]);
    for (partition, want) in [(1, vec!["web-1", "web-2"]), (0, vec!["web-0", "web-1", "web-2"])] {
        assert_eq!(world.status_text("currentRevision"), old);
        world.spec(&["updateStrategy", "rollingUpdate", "partition"], partition);
        world.settle();
        assert_eq!(updated(&world), want);
    }
    assert_ne!(world.status_text("currentRevision"), old);
}

#[test]
fn f10_new_ordinals_above_the_partition_are_new_ones() {
    let mut world = settled(3, false, rolling(2, 1));
    world.image("v2");
    world.scale(5);
    world.settle();
    assert_eq!(updated(&world), ["web-2", "web-3", "web-4"]);
}

/// O3: a partition is an ordinal; with the gate off, the distance from the start.
#[test]
fn o3_j09_a_partition_is_an_ordinal() {
    let cases = [
        (true, 4, vec!["web-4", "web-5"]),
        (true, 3, vec!["web-3", "web-4", "web-5"]),
        (true, 1, vec!["web-3", "web-4", "web-5"]),
        (true, 6, vec![]),
        (false, 1, vec!["web-4", "web-5"]),
        (false, 4, vec![]),
    ];
    for (gate, partition, want) in cases {
        let mut set = set(3);
        set.put(&["spec", "ordinals", "start"], 3);
        set.put(&["spec", "updateStrategy"], rolling(partition, 1));
        let mut world = World::of(set);
        world.gates = world.gates.with("StatefulSetOrdinalPartition", gate);
        world.settle();
        world.image("v2");
        world.settle();
        assert_eq!(updated(&world), want, "{gate} {partition}");
        world.pods.keys().cloned().collect::<Vec<_>>().iter().for_each(|pod| world.delete_pod(pod));
        world.settle();
        assert_eq!(updated(&world), want, "recreated pods too: {gate} {partition}");
    }
}

#[test]
fn f13_on_delete_waits_until_pods_are_deleted_by_a_user() {
    let mut world = settled(2, false, json!({"type": "OnDelete"}));
    world.image("v2");
    world.scale(3);
    assert_eq!(world.settle().held, [Held::OnDelete { pods: 2 }]);
    assert_eq!(updated(&world), ["web-2"]);
    world.delete_pod("web-0");
    world.settle();
    assert_eq!(updated(&world), ["web-0", "web-2"]);
    assert_ne!(world.status_text("currentRevision"), world.status_text("updateRevision"));
    world.delete_pod("web-1");
    assert_eq!(world.settle().held, []);
    assert_eq!(world.status_text("currentRevision"), world.status_text("updateRevision"));
}

#[test]
fn f15_in_parallel_the_budget_is_kept_and_used() {
    let mut world = settled(6, true, rolling(0, 2));
    world.image("v2");
    assert_eq!(deleted(&world.step()), ["web-5", "web-4"]);
    assert_eq!(world.plan().held, [leaving("web-4"), leaving("web-5"), Held::Budget { unavailable: 2, max: 2 }]);
    world.bury();
    world.step();
    assert_eq!(deleted(&world.step()), [] as [&str; 0]);
    world.ready("web-4", true);
    let plan = world.step();
    assert_eq!(deleted(&plan), ["web-3"], "as soon as one is available again");
    assert_eq!((plan.max_unavailable, plan.unavailable), (Some(2), Some(1)));
}

#[test]
fn f16_a_percentage_is_rounded_down_and_at_least_one() {
    for (replicas, max, want) in
        [(5, json!("50%"), 2), (5, json!("10%"), 1), (25, json!("10%"), 2), (3, json!("100%"), 3)]
    {
        let mut world = settled(replicas, true, rolling(0, max.clone()));
        world.image("v2");
        assert_eq!(deleted(&world.plan()).len(), want, "{max} of {replicas}");
        assert_eq!(world.plan().max_unavailable, Some(i64::try_from(want).unwrap()));
    }
}

#[test]
fn f20_a_terminating_pod_uses_the_budget_up() {
    let mut world = settled(3, true, rolling(0, 1));
    world.delete_pod("web-2");
    world.image("v2");
    assert_eq!(deleted(&world.step()), [] as [&str; 0]);
}

#[test]
fn f22_the_next_pod_is_deleted_when_the_previous_one_is_available() {
    let mut world = settled(2, false, rolling(0, 1));
    world.advance(60);
    world.spec(&["minReadySeconds"], 30);
    world.image("v2");
    world.step();
    world.bury();
    world.step();
    world.ready("web-1", true);
    assert_eq!(deleted(&world.step()), [] as [&str; 0]);
    world.advance(30);
    assert_eq!(deleted(&world.step()), ["web-0"]);
}

#[test]
fn f23_f24_changes_outside_the_template_restart_nothing() {
    let mut world = settled(2, false, rolling(0, 1));
    world.advance(10);
    world.spec(&["minReadySeconds"], 3_600);
    world.step();
    assert_eq!(world.status("availableReplicas"), 0);
    world.spec(&["minReadySeconds"], 0);
    world.spec(&["updateStrategy", "rollingUpdate", "partition"], 1);
    world.spec(&["revisionHistoryLimit"], 3);
    world.edit(|set| set.put(&["metadata", "annotations"], json!({"a": "b"})));
    world.settle();
    assert_eq!((world.status("availableReplicas"), world.log.len(), world.revisions.len()), (2, 0, 1));
    assert_eq!(world.status("observedGeneration"), 5);
}

#[test]
fn f25_an_annotation_of_the_template_is_rolled_out() {
    let mut world = settled(1, false, rolling(0, 1));
    world.spec(&["template", "metadata", "annotations"], json!({"restartedAt": "now"}));
    world.settle();
    assert_eq!((world.revisions.len(), world.log.len()), (2, 2));
    assert_eq!(world.pods["web-0"]["metadata"]["annotations"]["restartedAt"], "now");
}

/// 2.7.3: without a rollingUpdate block, the progress of the rollout decides the revision of recreated pods.
#[test]
fn without_a_block_a_pod_below_the_rollout_is_recreated_at_its_revision() {
    let mut world = settled(3, false, json!({"type": "RollingUpdate"}));
    world.image("v2");
    world.step();
    world.kubelet();
    world.step();
    world.kubelet();
    world.delete_pod("web-0");
    world.bury();
    world.step();
    assert_eq!(updated(&world), ["web-2"]);
    assert!(world.pods.contains_key("web-0"));
    world.settle();
    assert_eq!(updated(&world), ["web-0", "web-1", "web-2"]);
}

/// Counts of a changing set may wait; fields that plans depend on, and final counts, may not.
#[test]
fn counts_wait_unless_plans_depend_on_them() {
    let late = |strategy: Value| {
        let mut world = settled(3, false, strategy);
        world.image("v2");
        let can_wait = |world: &mut World| {
            let plan = world.plan();
            let waits = plan.status_can_wait(world.set.as_ref().unwrap());
            world.execute(&plan, Fate { counts_wait: true, ..Fate::default() });
            world.kubelet();
            waits
        };
        let all: Vec<bool> = (0..20).map(|_| can_wait(&mut world)).collect();
        let replaced = world.log.iter().filter(|line| line.starts_with("+")).count();
        assert_eq!((replaced, updated(&world)), (3, vec!["web-0", "web-1", "web-2"]), "each is replaced once");
        assert_eq!(world.status("readyReplicas"), 3);
        assert_eq!(world.status_text("currentRevision"), world.status_text("updateRevision"));
        all
    };
    let all = late(rolling(0, 1));
    assert!(!all[0], "a new generation is reported at once");
    assert!(all.contains(&true));
    late(json!({"type": "RollingUpdate"}));
}

/// With Parallel it would otherwise be replaced at once, and recreated at the old revision for ever.
#[test]
fn without_a_block_a_parallel_pod_is_recreated_at_the_update_revision() {
    let mut world = settled(3, true, json!({"type": "RollingUpdate"}));
    world.image("v2");
    world.step();
    world.delete_pod("web-0");
    world.bury();
    world.step();
    assert_eq!(updated(&world), ["web-0", "web-2"]);
    assert_eq!(deleted(&world.step()), [] as [&str; 0]);
}

/// 2.11.4.
#[test]
fn with_the_gate_off_one_at_a_time_and_nothing_below_counts() {
    let mut world = settled(3, true, rolling(0, 3));
    world.gates = world.gates.with("MaxUnavailableStatefulSet", false);
    world.ready("web-0", false);
    world.image("v2");
    let plan = world.step();
    assert_eq!(deleted(&plan), ["web-2"]);
    assert_eq!((plan.max_unavailable, plan.unavailable), (None, None));
    assert_eq!(deleted(&world.step()), [] as [&str; 0]);
    world.bury();
    world.step();
    assert_eq!(world.step().held, [not_ready("web-2")]);
    world.settle();
    assert_eq!(updated(&world), ["web-0", "web-1", "web-2"]);
}

/// 2.11.3: an intermediate revision; currentReplicas never goes below zero.
#[test]
fn pods_of_a_third_revision_are_not_counted_as_current() {
    let mut world = settled(3, true, rolling(0, 3));
    world.image("v2");
    world.step();
    world.bury();
    world.step();
    world.image("v3");
    let plan = world.step();
    assert_eq!(deleted(&plan).len(), 3, "unavailable pods are replaced at once");
    assert_eq!(world.status("currentReplicas"), 0);
    assert!(actions(&plan).iter().all(|it| matches!(it, Action::DeletePod { counted: false, .. })));
}

/// Only a pod that is counted in currentReplicas is subtracted from it.
#[test]
fn a_pod_of_a_third_revision_does_not_change_current_replicas() {
    let mut world = settled(2, true, rolling(0, 1));
    world.image("v2");
    world.step();
    world.bury();
    world.step();
    world.image("v3");
    assert_eq!(deleted(&world.step()), ["web-1"]);
    assert_eq!(world.status("currentReplicas"), 1);
}

/// C12.
#[test]
fn c12_a_deletion_that_failed_is_not_counted() {
    let mut world = settled(2, false, rolling(0, 1));
    world.image("v2");
    world.step_with(Fate { fail: Some(1), ..Fate::default() });
    assert_eq!(world.told(), ["FailedDelete: Delete Pod web-1 in StatefulSet web failed error: boom"]);
    assert_eq!(world.status("currentReplicas"), 2);
    // While it fails again, nothing else changes, and nothing is written.
    let before = world.set.clone();
    world.step_with(Fate { fail: Some(0), ..Fate::default() });
    assert_eq!(world.set, before);
    world.settle();
    assert_eq!(updated(&world), ["web-0", "web-1"]);
}

/// Nor is one that was never attempted.
#[test]
fn c12_a_deletion_that_was_never_attempted_is_not_counted() {
    let mut world = settled(2, false, rolling(0, 1));
    world.image("v2");
    world.policy("Delete", "Retain");
    world.step_with(Fate { fail: Some(1), ..Fate::default() });
    assert_eq!((world.log.len(), world.status("currentReplicas")), (0, 2));
}

fn recreate(replicas: i64) -> World {
    let mut set = set(replicas);
    set.put(&["spec", "updateStrategy"], json!({"type": "Recreate"}));
    let mut world = World::of(set);
    world.gates = world.gates.with("StatefulSetRecreateStrategy", true);
    world.settled(|_| {})
}

#[test]
fn f28_recreate_deletes_all_pods_before_the_first_is_created() {
    let mut world = recreate(3);
    let claims = world.claims.clone();
    let progress = |world: &World| {
        let set = world.set.clone().unwrap();
        condition::get(&set, "Progressing")
            .map(|it| format!("{} {}: {}", it.text(&["status"]), it.text(&["reason"]), it.text(&["message"])))
    };
    assert_eq!(progress(&world), None);
    world.image("v2");
    world.edit_pod("web-1", |pod| pod.put(&["metadata", "finalizers"], json!(["example.com/hold"])));
    world.step();
    assert_eq!(world.log, ["-web-0", "-web-1", "-web-2"]);
    assert_eq!(progress(&world).unwrap(), "True RecreateInProgress: Deleting old revision pods");
    world.settle();
    assert_eq!(world.pod_names(), ["web-1"], "no new pods at the same time as old ones");
    world.edit_pod("web-1", |pod| drop(pod.cut(&["metadata", "finalizers"])));
    world.bury();
    world.step();
    assert_eq!(progress(&world).unwrap(), "True RecreateInProgress: Waiting for new-revision pods to be created");
    world.settle();
    assert_eq!(world.log[3..], ["+web-0", "+web-1", "+web-2"]);
    assert_eq!(progress(&world).unwrap(), "False RecreateCompleted: All pods recreated successfully");
    assert_eq!(world.claims, claims);
}

#[test]
fn f29_recreate_replaces_a_stuck_pod() {
    let mut world = recreate(2);
    world.image("bad");
    world.step();
    world.bury();
    world.step();
    world.ready("web-0", false);
    world.image("v2");
    world.settle();
    assert_eq!(updated(&world), ["web-0", "web-1"]);
}

/// R4 where upstream leaks: pods own their claims before they are deleted, for whatever reason.
#[test]
fn r4_recreate_and_scale_down_together() {
    let mut world = recreate(3);
    world.policy("Retain", "Delete");
    world.scale(1);
    world.image("v2");
    world.settle();
    assert_eq!((world.pod_names(), world.claim_names()), (vec!["web-0"], vec!["data-web-0"]));
}

#[test]
fn recreate_needs_its_gate() {
    let mut set = set(1);
    set.put(&["spec", "updateStrategy"], json!({"type": "Recreate"}));
    let plan = World::of(set).plan();
    let why = "statefulset a/web uses Recreate strategy but feature gate StatefulSetRecreateStrategy is disabled";
    assert!(is_idle(&plan));
    assert_eq!(plan.held, [Held::Unusable { why: why.to_owned() }]);
    assert_eq!(
        (plan.events[0].warning, plan.events[0].reason, plan.events[0].message.as_str()),
        (true, "UnknownStrategy", why)
    );
}

/// An unavailable pod uses no budget. One that has become ready since it was observed would.
#[test]
fn an_unavailable_pod_is_deleted_only_in_the_observed_version() {
    let mut world = settled(3, true, rolling(0, 1));
    world.image("v2");
    let versions = |world: &World| -> Vec<(String, bool)> {
        let plan = world.plan();
        let deletions = actions(&plan).into_iter().filter_map(|action| match action {
            Action::DeletePod { pod, resource_version, .. } => Some((pod.clone(), resource_version.is_some())),
            _ => None,
        });
        deletions.collect()
    };
    assert_eq!(versions(&world), [("web-2".to_owned(), false)]);
    world.edit_pod("web-0", |pod| pod.put(&["status"], json!({"phase": "Running"})));
    assert_eq!(versions(&world), [("web-0".to_owned(), true)]);
}
