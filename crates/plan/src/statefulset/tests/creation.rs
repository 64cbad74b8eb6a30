//! Identity, creation, healing, adoption: scenarios B, C and D.

use super::world::{Fate, World, actions, is_idle, set};
use super::{leaving, not_ready};
use crate::allowance::Allowance;
use crate::statefulset::{Action, Held};
use object::access::{Access, name};
use object::{Value, json};

fn parallel(replicas: i64) -> World {
    let mut set = set(replicas);
    set.put(&["spec", "podManagementPolicy"], "Parallel");
    World::of(set)
}

#[test]
fn b01_one_after_the_other_each_when_the_one_before_is_ready() {
    let mut world = World::new(3);
    for ordinal in 0..3 {
        let plan = world.step();
        assert_eq!(world.log.last().unwrap(), &format!("+web-{ordinal}"));
        assert_eq!(plan.held, [not_ready(&format!("web-{ordinal}"))]);
        world.step();
        assert_eq!(world.pods.len(), ordinal + 1, "no further pod before it is ready");
        world.ready(&format!("web-{ordinal}"), true);
    }
    assert!(is_idle(&world.settle()));
    for field in ["replicas", "readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"] {
        assert_eq!(world.status(field), 3, "{field}");
    }
    assert_eq!(world.status("observedGeneration"), 1);
    assert_eq!(world.status_text("currentRevision"), world.status_text("updateRevision"));
    assert_eq!(world.revisions.keys().collect::<Vec<_>>(), [world.status_text("updateRevision")]);
}

/// O1: labels, hostname and claim have the ordinal, too.
#[test]
fn b02_a_pod_has_its_identity_and_the_fields_of_the_template() {
    let mut set = set(1);
    set.put(&["spec", "ordinals", "start"], 7);
    set.put(
        &["spec", "template", "metadata"],
        json!({
            "labels": {"app": "web", "controller-revision-hash": "mine"}, "annotations": {"a": "b"},
            "finalizers": ["example.com/f"], "name": "ignored",
        }),
    );
    let template = &["spec", "template", "spec"];
    set.put(&[template, &["hostname"][..]].concat(), "garbage");
    set.put(&[template, &["subdomain"][..]].concat(), "garbage");
    set.put(
        &[template, &["volumes"][..]].concat(),
        json!([{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]),
    );
    let plan = World::of(set).plan();
    let [Action::ConfirmSet { .. }, Action::CreateRevision(revision)] = plan.prepare.as_slice() else {
        panic!("{plan:#?}")
    };
    let Some(Action::CreatePod(pod)) = actions(&plan).last().copied() else { panic!("{plan:#?}") };
    assert_eq!(
        *pod,
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "web-7", "generateName": "web-", "namespace": "a",
                "labels": {
                    "app": "web", "statefulset.kubernetes.io/pod-name": "web-7", "apps.kubernetes.io/pod-index": "7",
                    "controller-revision-hash": name(revision),
                },
                "annotations": {"a": "b"}, "finalizers": ["example.com/f"],
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "set-1",
                    "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": {
                "containers": [{"name": "main", "image": "v1"}], "hostname": "web-7", "subdomain": "web",
                "volumes": [
                    {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-7"}}, {"name": "tmp", "emptyDir": {}},
                ],
            },
        })
    );
}

#[test]
fn b02_without_a_service_there_is_no_subdomain() {
    let mut set = set(1);
    set.put(&["spec", "serviceName"], "");
    set.put(&["spec", "template", "spec", "subdomain"], "garbage");
    let mut world = World::of(set);
    world.step();
    assert!(!world.pods["web-0"].has(&["spec", "subdomain"]));
}

#[test]
fn b03_claims_come_before_their_pod() {
    let mut world = World::new(1);
    let plan = world.step();
    let lane = &plan.stages[0].lanes[0];
    assert!(matches!(&lane[0][..], [Action::CreateClaim { claim, pod, with_pod: true, applied: false }]
        if name(claim) == "data-web-0" && pod == "web-0"));
    assert!(matches!(&lane[1][..], [Action::CreatePod(_)]));
    assert_eq!(
        world.told(),
        [
            "SuccessfulCreate: Create Claim data-web-0 Pod web-0 in StatefulSet web success",
            "SuccessfulCreate: Create Pod web-0 in StatefulSet web successful",
        ]
    );
}

/// Several templates: all claims are attempted before the pod. Of two with one name the later is used.
#[test]
fn b03_several_claims_and_one_name_twice() {
    let claim = |name: &str, size: &str| json!({"metadata": {"name": name}, "spec": {"resources": {"requests": {"storage": size}}}});
    let mut world = World::new(1);
    world.spec(&["volumeClaimTemplates"], json!([claim("log", "1Gi"), claim("data", "1Gi"), claim("log", "2Gi")]));
    let plan = world.step();
    assert_eq!(plan.stages[0].lanes[0].iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(world.claim_names(), ["data-web-0", "log-web-0"]);
    assert_eq!(world.claims["log-web-0"]["spec"]["resources"]["requests"]["storage"], "2Gi");
    assert_eq!(world.pods["web-0"].items(&["spec", "volumes"]).len(), 2);
    world.settle();
    world.delete_pod("web-0");
    world.bury();
    world.delete_claim("log-web-0");
    world.edit_claim("data-web-0", |claim| claim.put(&["metadata", "finalizers"], json!(["example.com/hold"])));
    world.delete_claim("data-web-0");
    let held = Held::ClaimLeaving { pod: "web-0".to_owned(), claim: "data-web-0".to_owned() };
    assert_eq!((world.step().held, world.claims.len()), (vec![held], 1), "nothing is created while one is terminating");
}

#[test]
fn b04_labels_of_claims_are_the_templates_under_the_selectors() {
    let cases = [
        (json!({"test": "test", "own": "1"}), json!({"test": "foo", "own": "1", "app": "web"})),
        (Value::Null, json!({"test": "foo", "app": "web"})),
    ];
    for (labels, want) in cases {
        let mut set = set(1);
        set["spec"]["selector"]["matchLabels"]["test"] = json!("foo");
        set["spec"]["selector"]["matchExpressions"] = json!([{"key": "app", "operator": "Exists"}]);
        set["spec"]["template"]["metadata"]["labels"]["test"] = json!("foo");
        set["spec"]["volumeClaimTemplates"][0]["metadata"]["labels"] = labels;
        let mut world = World::of(set);
        world.step();
        let claim = &world.claims["data-web-0"];
        assert_eq!(claim["metadata"]["labels"], want);
        assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "1Gi");
        assert!(!claim.has(&["status"]) && !claim.has(&["metadata", "ownerReferences"]));
    }
}

#[test]
fn b06_parallel_creates_all_at_once() {
    let mut world = parallel(5);
    let plan = world.step();
    assert_eq!(world.log, ["+web-0", "+web-1", "+web-2", "+web-3", "+web-4"]);
    assert_eq!(plan.stages.iter().map(|stage| stage.lanes.len()).collect::<Vec<_>>(), [1, 2, 2], "a slow start");
}

#[test]
fn b07_created_pods_are_counted_after_a_failure() {
    let mut world = parallel(4);
    world.spec(&["volumeClaimTemplates"], json!([]));
    // The revision, then web-0, then web-1; web-2 is refused, and nothing after its stage is attempted.
    world.step_with(Fate { fail: Some(3), ..Fate::default() });
    assert_eq!(world.log, ["+web-0", "+web-1"]);
    assert_eq!(world.told().last().unwrap(), "FailedCreate: Create Pod web-2 in StatefulSet web failed error: boom");
    world.step_with(Fate { fail: Some(0), ..Fate::default() });
    assert_eq!((world.status("replicas"), world.pods.len()), (2, 2), "the status is written even so");
    world.step();
    assert_eq!(world.pods.len(), 4);
}

#[test]
fn b08_without_its_claim_there_is_no_pod_and_two_warnings() {
    let mut world = World::new(1);
    world.step_with(Fate { fail: Some(1), ..Fate::default() });
    assert_eq!(world.pods.len(), 0);
    assert_eq!(
        world.told(),
        [
            "FailedCreate: Create Claim data-web-0 for Pod web-0 in StatefulSet web failed error: boom",
            "FailedCreate: Create Pod web-0 in StatefulSet web failed error: failed to create PVC data-web-0: boom",
        ]
    );
    world.step();
    assert_eq!(world.pod_names(), ["web-0"]);
}

#[test]
fn b10_the_next_one_waits_until_the_one_before_is_available() {
    let mut world = World::new(2);
    world.spec(&["minReadySeconds"], 30);
    world.step();
    world.ready("web-0", true);
    let plan = world.step();
    assert_eq!((world.status("readyReplicas"), world.status("availableReplicas")), (1, 0));
    assert_eq!(plan.next.unwrap().to_string(), "2026-01-01T00:00:30Z");
    assert_eq!(plan.held, [not_ready("web-0")]);
    world.advance(29);
    assert_eq!(actions(&world.plan()).len(), 0);
    world.advance(1);
    assert_eq!(world.step().next, None);
    assert_eq!(world.log, ["+web-0", "+web-1"]);
    assert_eq!(world.status("availableReplicas"), 1);
}

#[test]
fn b12_a_thousand_in_batches_of_five_hundred_at_most() {
    let mut world = parallel(1_000);
    let plan = world.step();
    let makes = |action: &&Action| matches!(action, Action::CreatePod(_));
    let sizes: Vec<usize> = plan.stages.iter().map(|stage| stage.actions().filter(makes).count()).collect();
    assert_eq!(sizes, [1, 2, 4, 8, 16, 32, 64, 0, 128, 0, 256, 0, 489], "with confirmations in between");
    assert_eq!(world.pods.len(), 1_000);
    let plan = parallel(2_147_483_647).plan();
    let asks = actions(&plan).iter().filter(|action| matches!(action, Action::ConfirmSet { .. })).count();
    assert_eq!((actions(&plan).len() - asks, asks), (plan.written.objects, 6), "one plan is bounded");
    assert!(plan.written.withheld && plan.written.objects <= Allowance::MAX.objects);
    assert!(plan.stages.iter().all(|stage| stage.lanes.len() <= 500));
    assert_eq!(plan.held, [Held::Many { missing: 2_147_483_647 }]);
}

#[test]
fn b13_a_set_without_replicas_has_a_revision() {
    let mut world = World::new(0);
    world.settle();
    assert_eq!((world.pods.len(), world.revisions.len()), (0, 1));
    assert_eq!(world.status_text("currentRevision"), world.status_text("updateRevision"));
    world.image("v2");
    world.settle();
    assert_eq!(world.revisions.len(), 2);
    assert_eq!(world.status_text("currentRevision"), world.status_text("updateRevision"), "promoted at once");
}

#[test]
fn c01_a_deleted_pod_comes_back_with_its_claim() {
    let mut world = World::new(2).settled(|_| {});
    let (pod, claim) = (world.pods["web-1"]["metadata"]["uid"].clone(), world.claims["data-web-1"].clone());
    world.delete_pod("web-1");
    assert_eq!(world.step().held, [leaving("web-1")]);
    world.settle();
    assert_ne!(world.pods["web-1"]["metadata"]["uid"], pod);
    assert_eq!(world.claims["data-web-1"], claim);
}

#[test]
fn c02_a_terminated_pod_is_replaced() {
    for phase in ["Failed", "Succeeded"] {
        for mut world in [World::new(3), parallel(3)] {
            world.settle();
            world.log.clear();
            world.fail("web-1", phase);
            world.step();
            assert_eq!(world.log, ["-web-1"]);
            world.settle();
            assert_eq!(world.log, ["-web-1", "+web-1"]);
        }
    }
}

#[test]
fn c03_a_terminated_pod_is_deleted_once() {
    let mut world = World::new(1).settled(|_| {});
    world.edit_pod("web-0", |pod| pod.put(&["metadata", "finalizers"], json!(["example.com/hold"])));
    world.fail("web-0", "Failed");
    world.settle();
    assert_eq!(world.log, ["-web-0"]);
    world.edit_pod("web-0", |pod| drop(pod.cut(&["metadata", "finalizers"])));
    world.settle();
    assert_eq!(world.log, ["-web-0", "+web-0"]);
}

#[test]
fn c04_no_pod_is_created_while_a_lower_one_terminates() {
    let mut world = World::new(1).settled(|_| {});
    world.edit_pod("web-0", |pod| pod.put(&["metadata", "finalizers"], json!(["example.com/hold"])));
    world.delete_pod("web-0");
    world.scale(3);
    assert_eq!(world.settle().held, [leaving("web-0")]);
    assert_eq!(world.log.len(), 0);
    world.edit_pod("web-0", |pod| drop(pod.cut(&["metadata", "finalizers"])));
    world.settle();
    assert_eq!(world.log, ["+web-0", "+web-1", "+web-2"]);
}

#[test]
fn c07_the_name_label_is_put_back_and_c08_the_index_only_with_it() {
    let labels = &["metadata", "labels"];
    let mut world = World::new(1).settled(|_| {});
    world.edit_pod("web-0", |pod| drop(pod.cut(&[labels, &["apps.kubernetes.io/pod-index"][..]].concat())));
    assert!(is_idle(&world.plan()));
    world.edit_pod("web-0", |pod| drop(pod.cut(&[labels, &["statefulset.kubernetes.io/pod-name"][..]].concat())));
    world.settle();
    assert_eq!(world.pods["web-0"]["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"], "web-0");
    assert_eq!(world.pods["web-0"]["metadata"]["labels"]["apps.kubernetes.io/pod-index"], "0");
    assert_eq!(world.told(), ["SuccessfulUpdate: Update Pod web-0 in StatefulSet web successful"]);
}

#[test]
fn c09_the_claim_of_a_pending_pod_is_created_again() {
    for mut world in [World::new(1), parallel(1)] {
        world.step();
        world.delete_claim("data-web-0");
        assert_eq!(world.claims.len(), 0);
        world.step();
        assert_eq!(world.claim_names(), ["data-web-0"]);
        assert_eq!(
            world.told().last().unwrap(),
            "SuccessfulCreate: Create Claim data-web-0 Pod web-0 in StatefulSet web success"
        );
    }
}

#[test]
fn c11_a_failed_creation_is_tried_again() {
    let mut world = World::new(1);
    world.step_with(Fate { fail: Some(2), ..Fate::default() });
    assert_eq!(world.told().last().unwrap(), "FailedCreate: Create Pod web-0 in StatefulSet web failed error: boom");
    world.settle();
    assert_eq!(world.pod_names(), ["web-0"]);
}

#[test]
fn d01_a_pod_without_owner_is_adopted_after_a_confirmation() {
    let mut world = World::new(2).settled(|_| {});
    world.edit_pod("web-0", |pod| drop(pod.cut(&["metadata", "ownerReferences"])));
    let plan = world.step();
    assert!(
        matches!(&plan.prepare[..], [Action::ConfirmSet { uid, .. }, Action::AdoptPod { pod, .. }] if uid == "set-1" && pod == "web-0")
    );
    assert_eq!(world.pods["web-0"]["metadata"]["ownerReferences"], json!([world.reference()]));
    assert_eq!(world.log.len(), 0, "it counts as the set's in the same plan");
    assert!(is_idle(&world.settle()));
    world.edit_pod("web-0", |pod| {
        pod.cut(&["metadata", "ownerReferences"]);
        pod.cut(&["metadata", "labels", "statefulset.kubernetes.io/pod-name"]);
    });
    world.settle();
    assert_eq!(
        world.told(),
        ["SuccessfulUpdate: Update Pod web-0 in StatefulSet web successful"],
        "labels are restored after the adoption"
    );
}

#[test]
fn d02_a_pod_that_lost_its_labels_is_released_and_keeps_its_name() {
    let mut world = World::new(3).settled(|_| {});
    let labels = world.pods["web-0"]["metadata"]["labels"].clone();
    world.edit_pod("web-0", |pod| drop(pod.cut(&["metadata", "labels"])));
    let plan = world.step();
    assert!(matches!(&plan.prepare[..], [Action::ReleasePod { pod, .. }] if pod == "web-0"));
    assert_eq!(plan.held, [Held::NameTaken { pod: "web-0".to_owned(), by: "nobody".to_owned() }]);
    assert_eq!(
        world.told(),
        [
            "FailedCreate: Create Pod web-0 in StatefulSet web failed error: pod web-0 already exists and its labels do not match \
         the selector app=web: delete that pod, or label it so that the set can adopt it",
        ]
    );
    world.edit_pod("web-0", |pod| pod.put(&["metadata", "labels"], labels));
    world.settle();
    assert_eq!(world.pods["web-0"]["metadata"]["ownerReferences"], json!([world.reference()]));
}

#[test]
fn d03_pods_of_other_names_or_labels_are_ignored() {
    let mut world = World::new(1).settled(|_| {});
    for (pod, labels) in [
        ("xweb-4", json!({"app": "web"})),
        ("web-3", json!({})),
        ("web-01", json!({"app": "web"})),
        ("web-x", json!({"app": "web"})),
        ("web-99999999999", json!({"app": "web"})),
    ] {
        world.put_pod(pod, labels, json!([]));
    }
    assert!(is_idle(&world.plan()));
    assert_eq!(world.status("replicas"), 1);
}

/// Beyond upstream: an event reports it, and with Parallel no other pod waits for it.
#[test]
fn d04_a_pod_of_another_controller_has_the_name() {
    let job =
        json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "import", "uid": "elsewhere", "controller": true}]);
    for (mut world, created) in [(World::new(3), vec!["+web-0"]), (parallel(3), vec!["+web-0", "+web-2"])] {
        world.put_pod("web-1", json!({"app": "web"}), job.clone());
        let stranger = world.pods["web-1"].clone();
        let held = world.settle().held;
        assert_eq!(held, [Held::NameTaken { pod: "web-1".to_owned(), by: "Job/import".to_owned() }]);
        assert_eq!(world.log, created);
        assert_eq!(world.pods["web-1"]["metadata"], stranger["metadata"]);
        let told = "FailedCreate: Create Pod web-1 in StatefulSet web failed error: pod web-1 already exists and belongs to \
                    Job/import: delete that pod to free its name";
        assert!(world.told().iter().any(|event| event == told), "{:?}", world.told());
        world.delete_pod("web-1");
        world.settle();
        assert_eq!(world.status("readyReplicas"), 3);
    }
}

#[test]
fn d04_a_terminating_pod_of_another_owner_is_waited_for() {
    let mut world = World::new(1);
    world.put_pod("web-0", json!({"app": "web"}), json!([]));
    world.delete_pod("web-0");
    assert_eq!(world.plan().held, [leaving("web-0")]);
    assert_eq!((world.plan().events, world.plan().prepare.len()), (vec![], 1), "a terminating pod is not adopted");
}

#[test]
fn d08_revisions_without_owner_are_adopted() {
    let mut world = World::new(1).settled(|_| {});
    world.revisions.values_mut().for_each(|revision| drop(revision.cut(&["metadata", "ownerReferences"])));
    let plan = world.step();
    assert!(matches!(&plan.prepare[..], [Action::ConfirmSet { .. }, Action::AdoptRevision { .. }]));
    assert!(
        world.revisions.values().all(|revision| revision["metadata"]["ownerReferences"] == json!([world.reference()]))
    );
    assert!(is_idle(&world.settle()));
}

#[test]
fn d09_an_adopted_pod_without_its_volume_is_reported() {
    let mut world = World::new(2);
    world.put_pod("web-0", json!({"app": "web", "statefulset.kubernetes.io/pod-name": "web-0"}), json!([]));
    let last = world.settle();
    let [Held::Unfit { pod, .. }] = last.held.as_slice() else { panic!("{:?}", last.held) };
    assert_eq!((pod.as_str(), world.log.len()), ("web-0", 0), "with OrderedReady nothing follows");
    assert_eq!(
        last.events[0].message,
        "Update Pod web-0 in StatefulSet web failed error: it does not mount the claim \
        data-web-0, and the volumes of a pod are immutable: delete the pod, so that it is created again"
    );
}

/// A set that is being deleted adopts, creates and releases nothing.
#[test]
fn a_terminating_set_does_not_change_its_pods() {
    let mut world = World::new(3).settled(|_| {});
    world.edit(|set| set.put(&["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z"));
    world.edit_pod("web-0", |pod| drop(pod.cut(&["metadata", "ownerReferences"])));
    world.edit_pod("web-1", |pod| drop(pod.cut(&["metadata", "labels"])));
    world.fail("web-2", "Failed");
    world.image("v2");
    let plan = world.step();
    assert_eq!(plan.held, [Held::Deleting]);
    assert!(plan.prepare.is_empty() && plan.stages.is_empty() && plan.cleanup.is_empty());
    assert_eq!((world.status("replicas"), world.status("observedGeneration")), (1, 2), "but its status is kept");
}

#[test]
fn a_selector_that_cannot_be_read_stops_everything() {
    let mut set = set(1);
    set.put(&["spec", "selector"], json!({"matchExpressions": [{"key": "a", "operator": "Like"}]}));
    let plan = World::of(set).plan();
    assert!(is_idle(&plan));
    assert!(matches!(&plan.held[..], [Held::Unusable { why }] if why.starts_with("spec.selector cannot be read")));
}
