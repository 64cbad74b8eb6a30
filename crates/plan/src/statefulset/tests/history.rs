//! Revisions and status: scenarios G and H.

use super::world::{World, actions, is_idle, set};
use crate::statefulset::Action;
use object::access::{Access, name};
use object::{Value, json};

fn limited(limit: i64) -> World {
    let mut set = set(1);
    set.put(&["spec", "revisionHistoryLimit"], limit);
    World::of(set).settled(|_| {})
}

fn numbers(world: &World) -> Vec<i64> {
    let mut numbers: Vec<i64> =
        world.revisions.values().map(|revision| revision["revision"].as_i64().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn a_revision_holds_the_template_as_a_patch() {
    let mut set = set(1);
    set.put(&["metadata", "annotations"], json!({"kubernetes.io/change-cause": "first"}));
    let plan = World::of(set).plan();
    let [Action::ConfirmSet { .. }, Action::CreateRevision(revision)] = plan.prepare.as_slice() else {
        panic!("{plan:#?}")
    };
    let hash = name(revision).strip_prefix("web-").unwrap();
    assert_eq!(
        *revision,
        json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision",
            "metadata": {
                "name": name(revision), "namespace": "a",
                "labels": {"app": "web", "controller.kubernetes.io/hash": hash},
                "annotations": {"kubernetes.io/change-cause": "first"},
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "set-1",
                    "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "data": {"spec": {"template": {
                "$patch": "replace", "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "main", "image": "v1"}]},
            }}},
            "revision": 1,
        })
    );
}

/// The names of revisions are labels of running pods, so they must never change.
#[test]
fn the_hash_is_stable() {
    let data = json!({"spec": {"template": {"spec": {"z": 1, "a": "<&>"}, "$patch": "replace"}}});
    let text = r#"{"spec":{"template":{"$patch":"replace","spec":{"a":"\u003c\u0026\u003e","z":1}}}}0"#;
    let fnv = text.bytes().fold(2_166_136_261_u32, |hash, byte| hash.wrapping_mul(16_777_619) ^ u32::from(byte));
    let letters: String =
        fnv.to_string().chars().map(|digit| "456789bcdf".chars().nth(digit as usize - 48).unwrap()).collect();
    assert_eq!(crate::statefulset::revisions::hash(&data, 0), letters);
    assert_ne!(crate::statefulset::revisions::hash(&data, 1), letters);
    let world = limited(10);
    assert_eq!(world.status_text("updateRevision"), "web-6466b89fb");
}

#[test]
fn g01_revisions_beyond_the_limit_are_deleted_oldest_first() {
    let mut world = limited(10);
    for edit in 2..=16 {
        world.image(&format!("v{edit}"));
        world.settle();
    }
    assert_eq!(numbers(&world), (6..=16).collect::<Vec<_>>());
}

#[test]
fn g02_a_limit_of_zero_and_no_limit() {
    for (limit, want) in [(0, vec![5]), (-2, vec![1, 2, 3, 4, 5])] {
        let mut world = limited(limit);
        for edit in 2..=5 {
            world.image(&format!("v{edit}"));
            world.settle();
        }
        assert_eq!(numbers(&world), want);
    }
}

#[test]
fn g02_revisions_of_pods_are_kept() {
    let mut world = limited(0);
    world.spec(&["updateStrategy"], json!({"type": "OnDelete"}));
    for image in ["v2", "v3", "v4"] {
        world.image(image);
        world.settle();
    }
    assert_eq!(numbers(&world), [1, 4]);
}

#[test]
fn g03_a_lowered_limit_applies_at_once() {
    let mut world = limited(10);
    for edit in 2..=8 {
        world.image(&format!("v{edit}"));
        world.settle();
    }
    world.spec(&["revisionHistoryLimit"], 2);
    world.settle();
    assert_eq!(numbers(&world), [6, 7, 8]);
}

#[test]
fn g08_undo_renumbers() {
    let mut world = limited(10);
    world.image("v2");
    world.settle();
    for (image, want) in [("v1", vec![2, 3]), ("v2", vec![3, 4])] {
        world.image(image);
        world.settle();
        assert_eq!(numbers(&world), want);
    }
}

#[test]
fn g10_revisions_keep_the_annotations_they_were_created_with() {
    let mut world = limited(10);
    world.edit(|set| set.put(&["metadata", "annotations"], json!({"late": "1"})));
    world.settle();
    assert!(world.revisions.values().all(|revision| !revision.has(&["metadata", "annotations"])));
}

/// 2.4.4d: another object has the name; 8.2: its data is compared with defaults applied.
#[test]
fn a_name_collision_is_counted_and_an_equal_revision_is_reused() {
    let wanted = World::new(1).plan();
    let [Action::ConfirmSet { .. }, Action::CreateRevision(revision)] = wanted.prepare.as_slice() else {
        panic!("{wanted:#?}")
    };
    let mut foreign = revision.clone();
    foreign["metadata"]["ownerReferences"][0]["uid"] = json!("elsewhere");
    foreign["data"] = json!({"other": true});
    let mut world = World::new(1);
    world.revisions.insert(name(&foreign).to_owned(), foreign.clone());
    world.settle();
    assert_eq!((world.status("collisionCount"), world.revisions.len()), (1, 2));
    assert_ne!(world.status_text("updateRevision"), name(&foreign));
    assert!(is_idle(&world.plan()));

    foreign["data"] = revision["data"].clone();
    let mut world = World::new(1);
    world.revisions.insert(name(&foreign).to_owned(), foreign.clone());
    world.step();
    assert_eq!(world.status_text("updateRevision"), name(&foreign));
    assert_eq!(world.set.as_ref().unwrap()["status"]["collisionCount"], 0);
    world.revisions.clear();
    world.settle();
    assert_eq!(world.revisions.len(), 1, "it is created again when the other is deleted");
}

/// 2.4.4c: defaults that another server version stores differently restart nothing.
#[test]
fn an_equivalent_template_is_no_new_revision() {
    let mut world = limited(10);
    let mut same: Value = json!({
        "metadata": {"labels": {"app": "web"}, "creationTimestamp": null},
        "spec": {
            "containers": [{"name": "main", "image": "v1", "imagePullPolicy": "Always", "resources": {}}],
            "restartPolicy": "Always", "dnsPolicy": "ClusterFirst",
        },
    });
    object::pod::default_spec(&mut same["spec"]);
    world.spec(&["template"], same);
    world.settle();
    assert_eq!((world.revisions.len(), world.log.len()), (1, 0));
    world.gates = world.gates.with("StatefulSetSemanticRevisionComparison", false);
    world.settle();
    assert_eq!((world.revisions.len(), world.log.len()), (2, 2), "literally with the gate off");
}

#[test]
fn h01_how_pods_are_counted() {
    let mut world = World::new(4).settled(|_| {});
    world.advance(7_200);
    world.spec(&["minReadySeconds"], 3_600);
    world.ready("web-0", false);
    world.ready("web-1", false);
    world.ready("web-1", true);
    world.step();
    let counts = ["replicas", "readyReplicas", "availableReplicas"].map(|field| world.status(field));
    assert_eq!(counts, [4, 3, 2]);
}

#[test]
fn h01_a_terminating_pod_counts_but_not_for_its_revision() {
    let mut world = World::new(2).settled(|_| {});
    world.delete_pod("web-1");
    world.step();
    let counts = ["replicas", "readyReplicas", "availableReplicas", "currentReplicas", "updatedReplicas"];
    assert_eq!(counts.map(|field| world.status(field)), [2, 2, 2, 1, 1]);
}

#[test]
fn h03_the_moment_a_pod_becomes_available_is_known() {
    let mut world = World::new(2).settled(|_| {});
    world.advance(100);
    world.spec(&["minReadySeconds"], 5);
    for (pod, later) in [("web-0", 0), ("web-1", 2)] {
        world.advance(later);
        world.ready(pod, false);
        world.ready(pod, true);
    }
    let mut available = Vec::new();
    while let Some(next) = world.step().next {
        available.push((world.status("availableReplicas"), (next - world.now).get_seconds()));
        world.now = next;
    }
    assert_eq!(available, [(0, 3), (1, 2)]);
    assert_eq!(world.status("availableReplicas"), 2);
}

#[test]
fn the_shape_of_a_status() {
    let mut world = World::new(1);
    let own = json!([{"type": "Mine", "status": "True", "reason": "Because", "lastTransitionTime": null}]);
    world.edit(|set| set.put(&["status", "conditions"], own.clone()));
    world.step();
    let revision = world.status_text("updateRevision").to_owned();
    assert_eq!(
        world.set.as_ref().unwrap()["status"],
        json!({
            "observedGeneration": 1, "replicas": 0, "availableReplicas": 0, "collisionCount": 0,
            "currentRevision": revision, "updateRevision": revision, "conditions": own,
        })
    );
    world.settle();
    assert_eq!(
        world.set.as_ref().unwrap()["status"],
        json!({
            "observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "availableReplicas": 1, "currentReplicas": 1,
            "updatedReplicas": 1, "collisionCount": 0, "currentRevision": revision, "updateRevision": revision,
            "conditions": own,
        })
    );
    world.edit(|set| drop(set.cut(&["status", "collisionCount"])));
    assert_eq!(world.plan().status, None, "a changed collision count alone is not written");
}

/// A held-back pod is created from its own revision, even if the revision object has no template.
#[test]
fn held_back_pods_are_created_from_their_revision() {
    let mut world = World::new(1).settled(|set| {
        set.put(&["spec", "updateStrategy", "rollingUpdate", "partition"], 1);
    });
    let old = world.status_text("currentRevision").to_owned();
    world.image("v2");
    world.settle();
    world.delete_pod("web-0");
    world.settle();
    assert_eq!(world.images(), [("web-0", "v1")]);
    world.revisions.get_mut(&old).unwrap().put(&["data"], json!({}));
    world.delete_pod("web-0");
    world.bury();
    assert!(matches!(actions(&world.plan())[..], [Action::CreatePod(_)]));
}

/// A history of large templates has a bound that no limit of the set takes away; the newest revision always stays.
#[test]
fn the_history_is_bounded_in_bytes() {
    for (bytes, kept) in [(1_000, 41), (1_000_000, 17), (20_000_000, 2)] {
        let mut world = limited(i32::MAX.into());
        let note = |at: i64| format!("{at}-{}", "x".repeat(bytes));
        for at in 0..if bytes > 10_000_000 { 4 } else { 40 } {
            world.spec(&["template", "metadata", "annotations"], json!({"note": note(at)}));
            world.settle();
        }
        // The one in use, and those that fit. The last change has been made after the history was measured.
        assert!((kept..=kept + 1).contains(&world.revisions.len()), "{bytes} bytes: {}", world.revisions.len());
        let before = world.pods.len();
        world.settle();
        assert_eq!((world.pods.len(), is_idle(&world.plan())), (before, true));
    }
}
