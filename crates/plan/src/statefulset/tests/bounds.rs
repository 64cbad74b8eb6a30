//! Sets whose pods and claims are much larger than the set itself: every plan for them is bounded.

use super::in_place::parallel;
use super::world::{Fate, World, actions, set};
use crate::allowance::Allowance;
use crate::statefulset::{Action, Held};
use object::access::{Access, name};
use object::{Value, json};
use proptest::prelude::*;

/// `count` claim templates, each with an annotation of `bytes` bytes.
fn templates(count: usize, bytes: usize) -> Value {
    let template = |at| {
        let annotations = json!({"note": "x".repeat(bytes)});
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": format!("c{at}"), "annotations": annotations},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        })
    };
    (0..count).map(template).collect::<Vec<Value>>().into()
}

/// A Parallel set with these replicas and claim templates.
fn large(replicas: i64, templates: Value) -> World {
    let mut set = set(replicas);
    parallel(&mut set);
    set.put(&["spec", "volumeClaimTemplates"], templates);
    World::of(set)
}

/// The set of issue 20: 2^31 - 1 replicas with 250 claims of 9 KB each. Its plans create one replica after
/// the other.
#[test]
fn a_set_of_huge_replicas_is_planned_a_piece_at_a_time() {
    let mut world = large(i32::MAX.into(), templates(250, 9_000));
    let mut written = 0;
    for _ in 0..4 {
        let plan = world.step();
        assert!(matches!(plan.held[..], [Held::Many { .. }]), "{:?}", plan.held);
        assert!(plan.written.bytes < Allowance::MAX.bytes + plan.written.largest_bytes, "{:?}", plan.written);
        written += plan.written.objects;
    }
    let (pods, claims) = (world.pods.len(), world.claims.len());
    assert_eq!((pods, pods + claims), (claims / 250, written));
    assert!(claims > 1_000 && claims < 2_000, "{claims} claims");
}

/// A pod template with one value of 2.5 MB: a plan creates two pods.
#[test]
fn a_set_of_huge_pods_is_planned_a_piece_at_a_time() {
    let mut world = large(i32::MAX.into(), json!([]));
    world.spec(
        &["template", "spec", "containers"],
        json!([{"name": "main", "env": [{"name": "X", "value": "x".repeat(2_500_000)}]}]),
    );
    for pods in [2, 4, 6] {
        world.step();
        assert_eq!(world.pods.len(), pods);
    }
}

/// A quota of a few claims is tried a few times, not once for each claim of the replica.
#[test]
fn a_refusal_stops_the_plan() {
    let mut world = large(i32::MAX.into(), templates(250, 10));
    let asked = |world: &mut World, fail| {
        let before = world.claims.len();
        world.step_with(Fate { fail: Some(fail), ..Fate::default() });
        world.claims.len() - before
    };
    // The first action creates the revision.
    assert_eq!(asked(&mut world, 2), 3, "three of the first four claims");
    assert_eq!(world.pods.len(), 0);
    assert_eq!(asked(&mut world, 1), 3);
}

/// No replica gets a pod before it has all its claims, whatever plans create them.
#[test]
fn a_replica_gets_its_pod_when_it_has_all_its_claims() {
    let mut world = large(2, templates(5, 0));
    world.allowance = Allowance { objects: 2, ..Allowance::MAX };
    let mut made = Vec::new();
    for _ in 0..6 {
        let plan = world.step();
        made.push(
            actions(&plan)
                .iter()
                .filter_map(|action| match action {
                    Action::CreateClaim { claim, .. } => Some(name(claim).to_owned()),
                    Action::CreatePod(pod) => Some(name(pod).to_owned()),
                    _ => None,
                })
                .collect::<Vec<_>>()
                .join(" "),
        );
    }
    assert_eq!(
        made,
        [
            "c0-web-0 c1-web-0",
            "c2-web-0 c3-web-0",
            "c4-web-0 web-0",
            "c0-web-1 c1-web-1",
            "c2-web-1 c3-web-1",
            "c4-web-1 web-1",
        ]
    );
    world.settle();
    assert!(!world.step().written.withheld);
}

/// Without an allowance nothing is created, and everything else is done.
#[test]
fn without_an_allowance_only_existing_replicas_are_maintained() {
    let mut world = World::new(3).settled(parallel);
    world.allowance = Allowance { objects: 0, bytes: 0 };
    world.scale(5);
    let plan = world.step();
    assert!(plan.written.withheld && actions(&plan).is_empty(), "{plan:#?}");
    world.scale(2);
    world.settle();
    assert_eq!(world.pods.len(), 2);
}

/// Claims that follow their revision are also written within the allowance: many small claims whose template
/// has become large.
#[test]
fn claims_changed_in_place_count_against_the_allowance() {
    let mut world = large(20, templates(10, 0)).settled(|set| {
        set.put(&["spec", "volumeClaimUpdatePolicy"], "InPlace");
        set.put(&["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"], 20);
    });
    world.spec(&["volumeClaimTemplates"], templates(10, 100_000));
    let plan = world.plan();
    let patches = actions(&plan).iter().filter(|action| matches!(action, Action::ApplyClaim { .. })).count();
    assert_eq!((patches, plan.written.withheld), (plan.written.objects, true), "4 MiB of 20 MB");
    assert!(patches > 30 && patches < 50, "{patches}");
    world.settle();
    assert!(world.claims.values().all(|claim| claim.text(&["metadata", "annotations", "note"]).len() == 100_000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// For any set, each plan stays within the allowance, and plans with small allowances reach what one
    /// large plan would.
    #[test]
    fn plans_are_bounded_whatever_the_set(
        (replicas, count, bytes) in (prop_oneof![0_i64..6, Just(i64::from(i32::MAX))], 0_usize..40, 0_usize..20_000),
        (labels, is_parallel, in_place) in (0_usize..200, any::<bool>(), any::<bool>()),
        allowance in (0_usize..50, 0_usize..200_000),
    ) {
        let mut world = large(replicas, templates(count, bytes));
        let many: object::Map = (0..labels).map(|at| (format!("label-{at}"), json!("x".repeat(50)))).collect();
        world.edit(|set| {
            set.put(&["spec", "podManagementPolicy"], if is_parallel { "Parallel" } else { "OrderedReady" });
            set.put(&["spec", "selector", "matchLabels"], many.clone());
            set.put(&["spec", "template", "metadata", "labels"], many);
            if in_place {
                set.put(&["spec", "volumeClaimUpdatePolicy"], "InPlace");
            }
        });
        world.allowance = Allowance { objects: allowance.0, bytes: allowance.1 };
        for _ in 0..3 {
            let before = world.pods.len() + world.claims.len();
            // Every plan is checked by the invariants, which know the allowance.
            let plan = world.step();
            let made = world.pods.len() + world.claims.len() - before;
            prop_assert!(made <= allowance.0);
            prop_assert!(made > 0 || !plan.written.withheld || allowance.0 == 0 || allowance.1 == 0);
            world.kubelet();
        }
    }
}
