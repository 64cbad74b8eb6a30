//! Scaling and start ordinals: scenarios E and J, contract O.

use super::world::{Fate, World, actions, is_idle, set};
use super::{leaving, not_ready};
use crate::statefulset::{Action, Held};
use object::access::Access;
use object::json;

fn parallel(world: &mut World) {
    world.edit(|set| set.put(&["spec", "podManagementPolicy"], "Parallel"));
}

fn start(world: &mut World, start: i64) {
    world.spec(&["ordinals", "start"], start);
}

#[test]
fn e01_up_in_order() {
    let mut world = World::new(1).settled(|_| {});
    world.scale(3);
    world.settle();
    assert_eq!(world.log, ["+web-1", "+web-2"]);
}

#[test]
fn e02_down_in_reverse_order_each_when_the_previous_one_is_deleted() {
    let mut world = World::new(3).settled(|_| {});
    world.scale(0);
    for ordinal in (0..3).rev() {
        assert_eq!(world.step().held, [leaving(&format!("web-{ordinal}"))]);
        assert_eq!(world.step().held, [leaving(&format!("web-{ordinal}"))], "it waits");
        world.bury();
    }
    assert_eq!(world.log, ["-web-2", "-web-1", "-web-0"]);
    world.settle();
    assert_eq!(world.status("replicas"), 0);
}

#[test]
fn e03_scaling_up_stops_at_an_unready_pod() {
    let mut world = World::new(1).settled(|_| {});
    world.ready("web-0", false);
    world.scale(3);
    assert_eq!(world.step().held, [not_ready("web-0")]);
    assert_eq!(world.log.len(), 0);
    world.settle();
    assert_eq!(world.log, ["+web-1", "+web-2"]);
}

#[test]
fn e04_two_unhealthy_condemned_pods_block() {
    let mut world = World::new(3).settled(|_| {});
    (0..3).for_each(|ordinal| world.ready(&format!("web-{ordinal}"), false));
    world.scale(0);
    assert_eq!(world.step().held, [not_ready("web-2")]);
    world.ready("web-2", true);
    assert_eq!(world.step().held, [leaving("web-2")], "the healthy one is deleted");
    world.bury();
    assert_eq!(world.step().held, [not_ready("web-1")]);
    world.ready("web-0", true);
    assert_eq!(world.step().held, [leaving("web-1")], "the only unhealthy one is deleted");
    assert_eq!(world.log, ["-web-2", "-web-1"]);
}

/// Beyond upstream, where this waits for ever: pods that have terminated, or lost their claim before they
/// ran, do not recover.
#[test]
fn e04_pods_that_cannot_recover_do_not_block() {
    let mut world = World::new(3).settled(|_| {});
    world.fail("web-0", "Failed");
    world.fail("web-1", "Failed");
    world.edit_pod("web-2", |pod| pod.put(&["status"], json!({"phase": "Pending"})));
    world.delete_claim("data-web-2");
    world.scale(0);
    world.settle();
    assert_eq!(world.log, ["-web-2", "-web-1", "-web-0"]);
}

#[test]
fn e05_one_unhealthy_condemned_pod_is_deleted() {
    let mut world = World::new(3).settled(|_| {});
    world.ready("web-2", false);
    world.scale(2);
    world.step();
    assert_eq!(world.log, ["-web-2"]);
}

#[test]
fn e05_no_pod_is_deleted_while_one_in_range_is_unhealthy() {
    let mut world = World::new(3).settled(|_| {});
    world.ready("web-0", false);
    world.scale(2);
    assert_eq!(world.step().held, [not_ready("web-0")]);
    assert_eq!(world.log.len(), 0);
}

#[test]
fn e08_in_parallel_nothing_waits_for_readiness() {
    let mut world = World::new(2);
    parallel(&mut world);
    world.step();
    world.scale(4);
    world.step();
    assert_eq!(world.log, ["+web-0", "+web-1", "+web-2", "+web-3"]);
    world.scale(0);
    world.step();
    assert_eq!(world.log[4..], ["-web-3", "-web-2", "-web-1", "-web-0"]);
    assert!(actions(&world.step()).is_empty(), "once");
}

#[test]
fn e09_down_waits_until_pods_are_available() {
    let mut world = World::new(3).settled(|_| {});
    world.advance(10);
    world.spec(&["minReadySeconds"], 30);
    world.scale(1);
    let plan = world.step();
    assert_eq!((world.log.len(), plan.held), (0, vec![not_ready("web-0")]));
    assert!(plan.next.is_some());
    world.settle();
    assert_eq!(world.log, ["-web-2", "-web-1"]);
}

#[test]
fn e11_scaling_comes_before_updating() {
    let mut world = World::new(2).settled(|_| {});
    world.image("v2");
    world.scale(3);
    world.settle();
    assert_eq!(world.log, ["+web-2", "-web-1", "+web-1", "-web-0", "+web-0"]);
    assert!(world.images().iter().all(|(_, image)| *image == "v2"));
}

#[test]
fn e12_a_failed_deletion_is_tried_again() {
    let mut world = World::new(2).settled(|_| {});
    world.scale(1);
    world.step_with(Fate { fail: Some(0), ..Fate::default() });
    assert_eq!(world.told(), ["FailedDelete: Delete Pod web-1 in StatefulSet web failed error: boom"]);
    world.settle();
    assert_eq!(world.pod_names(), ["web-0"]);
}

/// The pods of a set deleted in the background are left to the collector; its claims are kept.
#[test]
fn e14_all_pods_of_a_deleted_set_are_deleted_at_once() {
    let mut world = World::new(3).settled(|_| {});
    world.delete_set();
    world.collect();
    world.bury();
    assert_eq!((world.pods.len(), world.claims.len()), (0, 3));
}

/// O1.
#[test]
fn j01_ordinals_begin_at_the_start() {
    let mut world = World::new(4);
    start(&mut world, 4);
    world.settle();
    assert_eq!(world.pod_names(), ["web-4", "web-5", "web-6", "web-7"]);
    assert_eq!(world.claim_names(), ["data-web-4", "data-web-5", "data-web-6", "data-web-7"]);
    assert_eq!(world.pods["web-6"]["metadata"]["labels"]["apps.kubernetes.io/pod-index"], "6");
    assert_eq!(world.pods["web-6"]["spec"]["hostname"], "web-6");
}

/// O1.
#[test]
fn j02_an_empty_block_begins_at_zero() {
    let mut world = World::new(1);
    world.spec(&["ordinals"], json!({}));
    world.settle();
    assert_eq!(world.pod_names(), ["web-0"]);
}

#[test]
fn j03_down_to_the_start() {
    let mut world = World::new(7);
    start(&mut world, 2);
    world.settle();
    world.scale(1);
    world.settle();
    assert_eq!(world.pod_names(), ["web-2"]);
}

/// O2: the new pods are created and become ready, then the old ones are deleted, on either side of the range.
#[test]
fn j04_a_moved_start_creates_new_pods_before_old_ones_are_deleted() {
    let mut world = World::new(2).settled(|_| {});
    start(&mut world, 2);
    world.scale(3);
    world.settle();
    assert_eq!(world.log, ["+web-2", "+web-3", "+web-4", "-web-1", "-web-0"]);
    world.log.clear();
    start(&mut world, 1);
    world.scale(2);
    let kept = world.pods["web-2"]["metadata"]["uid"].clone();
    world.settle();
    assert_eq!(world.log, ["+web-1", "-web-4", "-web-3"]);
    assert_eq!(world.pods["web-2"]["metadata"]["uid"], kept, "pods in both ranges are kept");
}

/// O2.
#[test]
fn j04_in_parallel_too() {
    let mut world = World::new(2);
    parallel(&mut world);
    world.settle();
    world.log.clear();
    start(&mut world, 2);
    world.step();
    assert_eq!(world.log, ["+web-2", "+web-3", "-web-1", "-web-0"]);
}

#[test]
fn j05_j07_the_start_moves_up_and_away() {
    for (from, to, want) in [(2, Some(4), ["web-4", "web-5"]), (3, None, ["web-0", "web-1"])] {
        let mut world = World::new(2);
        start(&mut world, from);
        world.settle();
        match to {
            Some(to) => start(&mut world, to),
            None => world.edit(|set| drop(set["spec"].cut(&["ordinals"]))),
        }
        world.settle();
        assert_eq!(world.pod_names(), want);
    }
}

/// O5: ignored with the gate off, and used again with it on.
#[test]
fn o5_the_gate_decides_whether_the_start_applies() {
    let mut world = World::new(2);
    start(&mut world, 3);
    world.settle();
    world.gates = world.gates.with("StatefulSetStartOrdinal", false);
    world.settle();
    assert_eq!(world.pod_names(), ["web-0", "web-1"]);
    world.gates = world.gates.with("StatefulSetStartOrdinal", true);
    world.settle();
    assert_eq!(world.pod_names(), ["web-3", "web-4"]);
}

/// O4: a slice moves from one set to another; each plan knows only its own set, and no ordinal runs twice.
#[test]
fn o4_a_slice_moves_between_sets() {
    let mut from = World::new(5).settled(|_| {});
    let mut to = World::new(0);
    start(&mut to, 5);
    to.settle();
    for moved in 1..=5_i64 {
        from.scale(5 - moved);
        from.settle();
        to.edit(|set| {
            set.put(&["spec", "ordinals", "start"], 5 - moved);
            set.put(&["spec", "replicas"], moved);
        });
        to.settle();
        let twice = from.pods.keys().find(|pod| to.pods.contains_key(*pod));
        assert_eq!(twice, None);
        assert_eq!(from.pods.len() + to.pods.len(), 5);
    }
    assert_eq!((from.claims.len(), to.claims.len()), (5, 5), "claims are kept");
}

#[test]
fn ordinals_beyond_the_maximum_are_reported() {
    let mut world = World::new(3);
    start(&mut world, 2_147_483_646);
    let plan = world.plan();
    assert!(is_idle(&plan));
    let why = "the ordinals 2147483646 to 2147483648 exceed the maximum of 2147483647: lower spec.ordinals.start or \
               spec.replicas";
    assert_eq!(plan.held, [Held::Unusable { why: why.to_owned() }]);
    assert_eq!((plan.events[0].reason, plan.events[0].message.as_str()), ("UnusableOrdinals", why));
    world.scale(2);
    world.settle();
    assert_eq!(world.pod_names(), ["web-2147483646", "web-2147483647"]);
    world.scale(0);
    start(&mut world, 2_147_483_647);
    world.settle();
    assert_eq!(world.pods.len(), 0);
}

/// A half-executed plan is harmless: each action alone, then a crash, then a new plan.
#[test]
fn a_new_plan_continues_wherever_the_last_one_stopped() {
    let mut set = set(3);
    set.put(
        &["spec", "persistentVolumeClaimRetentionPolicy"],
        json!({"whenDeleted": "Delete", "whenScaled": "Delete"}),
    );
    let mut world = World::of(set);
    let one_at_a_time = |world: &mut World| {
        for _ in 0..40 {
            world.step_with(Fate { crash: Some(1), ..Fate::default() });
            world.kubelet();
        }
    };
    one_at_a_time(&mut world);
    assert_eq!((world.pods.len(), world.claims.len()), (3, 3));
    world.scale(1);
    world.step_with(Fate { crash: Some(1), ..Fate::default() });
    assert_eq!(world.owners("data-web-1"), ["Pod/web-1"], "the first claim, then the crash");
    let next = world.plan();
    assert!(matches!(actions(&next)[0], Action::OwnClaim { claim, .. } if claim == "data-web-2"));
    one_at_a_time(&mut world);
    world.collect();
    assert_eq!((world.pod_names(), world.claim_names()), (vec!["web-0"], vec!["data-web-0"]));
}
