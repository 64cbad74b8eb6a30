//! Claim templates that change in place: scenarios P, contract T3 to T10.

use super::world::{World, actions, is_idle, set};
use crate::statefulset::{Action, Held, SetPlan};
use object::access::{Access, name, uid};
use object::{Value, condition, json};

pub const LABEL: &[&str] = &["metadata", "labels", "controller-revision-hash"];

/// A settled set whose claims are updated in place.
pub fn in_place(replicas: i64, change: impl FnOnce(&mut Value)) -> World {
    let mut set = set(replicas);
    set.put(&["spec", "volumeClaimUpdatePolicy"], "InPlace");
    set["spec"]["volumeClaimTemplates"][0].put(&["spec", "resources", "requests", "storage"], "10Gi");
    change(&mut set);
    let mut world = World::of(set);
    world.gates = world.gates.with("StatefulSetRecreateStrategy", true);
    world.settled(|_| {})
}

pub fn parallel(set: &mut Value) {
    set.put(&["spec", "podManagementPolicy"], "Parallel");
}

pub fn budget(max: i64) -> impl FnOnce(&mut Value) {
    move |set| set.put(&["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"], max)
}

/// The claims that a plan applies, those it creates (`+`), the pods it deletes (`-`) and relabels (`=`).
pub fn moves(plan: &SetPlan) -> Vec<String> {
    let moves = actions(plan).into_iter().filter_map(|action| match action {
        Action::ApplyClaim { patch, .. } => Some(name(patch).to_owned()),
        Action::CreateClaim { claim, .. } => Some(format!("+{}", name(claim))),
        Action::DeletePod { pod, .. } => Some(format!("-{pod}")),
        Action::LabelPod { pod, labels, .. } if labels[0].0 == LABEL[2] => Some(format!("={pod}")),
        _ => None,
    });
    moves.collect()
}

pub fn none() -> Vec<String> {
    Vec::new()
}

impl World {
    pub fn grow(&mut self, size: &str) {
        self.edit_template(|template| template.put(&["spec", "resources", "requests", "storage"], size));
    }

    /// The volume of one claim becomes what this asks for.
    pub fn provide(&mut self, claim: &str) {
        self.edit_claim(claim, |claim| {
            let mut status = json!({"phase": "Bound"});
            if let Some(requests) = claim.at(&["spec", "resources", "requests"]) {
                status.put(&["capacity"], requests.clone());
            }
            if let Some(class) = claim.at(&["spec", "volumeAttributesClassName"]) {
                status.put(&["currentVolumeAttributesClassName"], class.clone());
            }
            claim.put(&["status"], status);
        });
    }

    pub fn sizes(&self) -> Vec<&str> {
        self.claims.values().map(|claim| claim.text(&["spec", "resources", "requests", "storage"])).collect()
    }

    /// Whether the claim is at the update revision.
    pub fn is_new(&self, claim: &str) -> bool {
        self.claims[claim].text(LABEL) == self.status_text("updateRevision")
    }

    pub fn uids(&self) -> Vec<String> {
        self.pods.values().map(|pod| uid(pod).to_owned()).collect()
    }

    /// `status reason: message` of the condition about claims.
    pub fn claims_said(&self) -> String {
        let said = condition::get(self.set.as_ref().unwrap(), "VolumeClaimsUpdated");
        said.map(|it| format!("{} {}: {}", it.text(&["status"]), it.text(&["reason"]), it.text(&["message"])))
            .unwrap_or_default()
    }

    fn is_whole(&self) -> bool {
        let update = self.status_text("updateRevision");
        self.status_text("currentRevision") == update
            && self.pods.values().chain(self.claims.values()).all(|it| it.text(LABEL) == update)
    }
}

/// P02, T3.
#[test]
fn p02_t3_with_on_claim_delete_only_new_claims_have_the_new_template() {
    let mut world = World::new(3).settled(|_| {});
    let (uids, revision) = (world.uids(), world.status_text("updateRevision").to_owned());
    world.grow("20Gi");
    world.settle();
    assert_eq!((world.sizes(), world.uids()), (vec!["1Gi"; 3], uids));
    assert_eq!((world.status_text("updateRevision"), world.revisions.len()), (revision.as_str(), 1));
    world.scale(4);
    world.settle();
    assert_eq!(world.sizes(), ["1Gi", "1Gi", "1Gi", "20Gi"]);
    assert!(world.claims.values().all(|claim| claim.text(LABEL).is_empty()), "no labels either");
    assert_eq!((world.applied.len(), world.claims_said().as_str()), (0, ""));
}

/// P08, P09, T4, T5, T6: one replica after the other, from the highest ordinal, without a restart.
#[test]
fn p08_p09_t6_claims_grow_from_the_top_and_nothing_restarts() {
    let mut world = in_place(3, |_| {});
    let (uids, old) = (world.uids(), world.status_text("updateRevision").to_owned());
    world.grow("20Gi");
    for ordinal in (0..3).rev() {
        let (claim, pod) = (format!("data-web-{ordinal}"), format!("web-{ordinal}"));
        let plan = world.step();
        assert_eq!(moves(&plan).last(), Some(&claim), "{plan:#?}");
        let plan = world.step();
        assert!(moves(&plan).is_empty(), "it waits: {plan:#?}");
        assert_eq!(
            plan.held.first(),
            Some(&Held::ClaimNotReady {
                pod: pod.clone(),
                claim: claim.clone(),
                reason: "ClaimResizing",
                why: "its capacity is 10Gi and must become 20Gi".to_owned(),
            })
        );
        assert!(world.claims_said().starts_with(&format!("False ClaimResizing: claim {claim} of pod {pod}: ")));
        assert_eq!(world.status("updatedReplicas"), 2 - ordinal);
        world.provide(&claim);
    }
    assert_eq!(moves(&world.step()), ["=web-0"]);
    world.settle();
    assert_eq!((world.sizes(), world.uids()), (vec!["20Gi"; 3], uids));
    assert_eq!(world.applied, ["data-web-2", "data-web-1", "data-web-0"]);
    assert!(world.is_whole() && world.status_text("updateRevision") != old);
    let revision = &world.revisions[world.status_text("updateRevision")];
    let templates = &revision["data"]["spec"]["volumeClaimTemplates"];
    assert_eq!(templates[0].text(&["spec", "resources", "requests", "storage"]), "20Gi");
    assert!(world.claims_said().starts_with("True UpToDate: "));
    assert!(is_idle(&world.plan()));
}

/// P10, T6.
#[test]
fn p10_t6_claims_and_pods_change_together_claims_first() {
    let mut world = in_place(2, |_| {});
    world.grow("20Gi");
    world.image("v2");
    assert_eq!(moves(&world.step()), ["data-web-1"]);
    assert_eq!(moves(&world.step()), none(), "the pod is kept while its claim is not ready");
    world.provide("data-web-1");
    assert_eq!(moves(&world.step()), ["-web-1"]);
    assert_eq!(moves(&world.step()), none());
    world.bury();
    world.step();
    assert_eq!(moves(&world.step()), none(), "the new pod is not ready");
    world.ready("web-1", true);
    assert_eq!(moves(&world.step()), ["data-web-0"]);
    world.settle();
    assert_eq!(world.log, ["-web-1", "+web-1", "-web-0", "+web-0"]);
    assert!(world.is_whole());
}

/// With a new image alone, claims get the label first, which takes no time.
#[test]
fn an_image_alone_rolls_out_as_usual() {
    let mut world = in_place(2, |_| {});
    world.image("v2");
    world.settle();
    assert_eq!(world.log, ["-web-1", "+web-1", "-web-0", "+web-0"]);
    assert_eq!((world.sizes(), world.applied.len()), (vec!["10Gi"; 2], 2));
    assert!(world.is_whole());
}

/// P11, T5, Q13: fields that the template set are removed with it; those of others are kept.
#[test]
fn p11_t5_labels_and_annotations_follow_the_template_and_those_of_others_are_kept() {
    let mut world = in_place(2, |set| {
        set["spec"]["volumeClaimTemplates"][0].put(&["metadata", "labels"], json!({"tier": "gold", "old": "x"}));
    });
    let uids = world.uids();
    for claim in ["data-web-0", "data-web-1"] {
        world.edit_claim(claim, |claim| {
            claim.put(&["metadata", "labels", "team"], "a");
            claim.put(&["metadata", "annotations"], json!({"backup": "yes"}));
        });
    }
    world.edit_template(|template| {
        template.put(&["metadata", "labels"], json!({"tier": "silver"}));
        template.put(&["metadata", "annotations"], json!({"note": "n"}));
    });
    world.settle();
    for claim in world.claims.values() {
        let labels = json!({
            "app": "web", "tier": "silver", "team": "a", LABEL[2]: world.status_text("updateRevision"),
        });
        assert_eq!(claim["metadata"]["labels"], labels);
        assert_eq!(claim["metadata"]["annotations"], json!({"backup": "yes", "note": "n"}));
    }
    assert_eq!(world.uids(), uids);
}

/// P12, T7.
#[test]
fn p12_t7_a_class_is_awaited() {
    let mut world = in_place(2, |set| {
        set["spec"]["volumeClaimTemplates"][0].put(&["spec", "volumeAttributesClassName"], "gold");
    });
    let uids = world.uids();
    world.edit_template(|template| template.put(&["spec", "volumeAttributesClassName"], "silver"));
    assert_eq!(moves(&world.step()), ["data-web-1"]);
    world.step();
    assert!(world.claims_said().contains("class is gold and must become silver"), "{}", world.claims_said());
    world.provide("data-web-1");
    assert_eq!(moves(&world.step()), ["=web-1", "data-web-0"]);
    world.settle();
    assert!(world.is_whole() && world.uids() == uids);
}

/// T7: when a claim is ready; a claim without the label is never.
#[test]
fn t7_when_a_claim_is_ready() {
    // Template, request and capacity of the claim; its class and the current one; whether it is ready.
    let cases = [
        ("20Gi", "20Gi", "20Gi", None, None, true),
        ("20Gi", "20Gi", "10Gi", None, None, false),
        ("20Gi", "100Gi", "20Gi", None, None, true),
        ("20Gi", "15Gi", "15Gi", None, None, true),
        ("20Gi", "20480Mi", "20Gi", None, None, true),
        ("20Gi", "20Gi", "", None, None, false),
        ("20Gi", "20Gi", "20Gi", Some("a"), Some("a"), true),
        ("20Gi", "20Gi", "20Gi", Some("a"), Some("b"), false),
        ("20Gi", "20Gi", "20Gi", Some("a"), None, false),
        ("20Gi", "20Gi", "20Gi", Some(""), None, true),
    ];
    for (template, request, capacity, class, current, ready) in cases {
        let mut world = in_place(1, |_| {});
        world.grow(template);
        world.step();
        world.edit_claim("data-web-0", |claim| {
            claim.put(&["spec", "resources", "requests", "storage"], request);
            claim.put(&["status"], json!({"phase": "Bound", "capacity": {"storage": capacity}}));
            if let Some(class) = class {
                claim.put(&["spec", "volumeAttributesClassName"], class);
            }
            if let Some(current) = current {
                claim.put(&["status", "currentVolumeAttributesClassName"], current);
            }
        });
        let relabels = moves(&world.plan()) == ["=web-0"];
        assert_eq!(relabels, ready, "{template} {request} {capacity} {class:?} {current:?}");
        world.edit_claim("data-web-0", |claim| drop(claim.cut(LABEL)));
        assert_eq!(moves(&world.plan()), ["data-web-0"], "without the label the claim is not at the revision");
    }
}

/// T5, P47, Q14: the larger size, the class that the template does not name, and the other fields of a patch.
#[test]
fn t5_p47_what_is_applied() {
    let mut world = in_place(1, |set| {
        set["spec"]["volumeClaimTemplates"][0]
            .put(&["metadata", "finalizers"], json!(["example.com/a", "example.com/b"]));
        set.put(&["spec", "persistentVolumeClaimRetentionPolicy", "whenDeleted"], "Delete");
    });
    world.edit_claim("data-web-0", |claim| {
        claim.put(&["metadata", "finalizers"], json!(["kubernetes.io/pvc-protection", "example.com/b"]));
        claim.put(&["spec", "volumeAttributesClassName"], "mine");
        claim.put(&["spec", "resources", "requests", "storage"], "50Gi");
        claim.put(&["spec", "volumeName"], "v");
    });
    world.provide("data-web-0");
    world.grow("20Gi");
    let plan = world.plan();
    let found = actions(&plan);
    let [Action::ApplyClaim { patch, pod, with_pod: false, .. }] = found.as_slice() else { panic!("{plan:#?}") };
    let claim = &world.claims["data-web-0"];
    let update = plan.status.as_ref().unwrap().text(&["status", "updateRevision"]);
    assert_eq!(pod, "web-0");
    assert_eq!(
        *patch,
        json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": "data-web-0", "namespace": "a", "uid": uid(claim),
                "resourceVersion": claim.text(&["metadata", "resourceVersion"]),
                "labels": {"app": "web", LABEL[2]: update},
                "finalizers": ["example.com/b"],
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "set-1",
                    "controller": true, "blockOwnerDeletion": false,
                }],
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "volumeAttributesClassName": "mine",
                "resources": {"requests": {"storage": "50Gi"}},
            },
        })
    );
    world.settle();
    let claim = &world.claims["data-web-0"];
    assert_eq!(claim["spec"]["volumeName"], "v");
    assert_eq!(claim["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection", "example.com/b"]));
    assert_eq!(world.owners("data-web-0"), ["StatefulSet/web"]);
    world.grow("60Gi");
    world.settle();
    assert_eq!((world.sizes(), world.owners("data-web-0")), (vec!["60Gi"], vec!["StatefulSet/web".to_owned()]));
}

/// T9: all rows of the state table.
#[test]
fn t9_the_state_table() {
    // Pod and claim: missing, at the old or at the new revision; and the actions.
    let cases: [(&str, &str, &[&str]); 8] = [
        ("none", "none", &["+data-web-0", "+web-0"]),
        ("none", "old", &["data-web-0", "+web-0"]),
        ("none", "new", &["+web-0"]),
        ("old", "none", &["+data-web-0"]),
        ("old", "old", &["data-web-0"]),
        ("old", "new", &["=web-0"]),
        ("new", "none", &["+data-web-0"]),
        ("new", "old", &[]),
    ];
    for (pod, claim, want) in cases {
        let mut world = in_place(1, |_| {});
        world.grow("20Gi");
        if pod == "new" || claim == "new" {
            world.step();
            world.provide("data-web-0");
        }
        let new = world.plan().status.map(|set| set.text(&["status", "updateRevision"]).to_owned());
        let new = new.unwrap_or_else(|| world.status_text("updateRevision").to_owned());
        match pod {
            "none" => drop(world.pods.remove("web-0")),
            "new" => world.edit_pod("web-0", |pod| pod.put(LABEL, new.as_str())),
            _ => {}
        }
        match claim {
            "none" => drop(world.claims.remove("data-web-0")),
            "old" => world.edit_claim("data-web-0", |claim| claim.put(LABEL, "web-old")),
            _ => {}
        }
        let plan = world.plan();
        let mut found = moves(&plan);
        found.extend(actions(&plan).into_iter().filter_map(|action| match action {
            Action::CreatePod(pod) => Some(format!("+{}", name(pod))),
            _ => None,
        }));
        assert_eq!(found, want, "pod {pod}, claim {claim}");
    }
}

/// T10, P28, T8: below the partition a pod is created again with the claims of its own revision.
#[test]
fn p28_t8_t10_below_the_partition_nothing_changes() {
    let mut world = in_place(3, |set| set.put(&["spec", "updateStrategy", "rollingUpdate", "partition"], 2));
    let old = world.status_text("updateRevision").to_owned();
    world.grow("20Gi");
    assert_eq!(world.settle().held, [Held::Partition { ordinal: 2 }]);
    assert_eq!(world.sizes(), ["10Gi", "10Gi", "20Gi"]);
    world.delete_pod("web-0");
    world.settle();
    world.delete_pod("web-1");
    world.claims.remove("data-web-1");
    world.settle();
    for claim in ["data-web-0", "data-web-1"] {
        assert_eq!(world.claims[claim].text(LABEL), old);
        assert_eq!(world.claims[claim].text(&["spec", "resources", "requests", "storage"]), "10Gi");
    }
    assert_eq!(world.applied, ["data-web-2"]);
    assert!(
        world.claims_said().starts_with("False RollingOut: not all replicas are at revision "),
        "{}",
        world.claims_said()
    );
    world.spec(&["updateStrategy", "rollingUpdate", "partition"], 0);
    world.settle();
    assert!(world.is_whole());
    assert_eq!(world.sizes(), ["20Gi"; 3]);
}

/// P27, T8.
#[test]
fn p27_t8_on_delete_claims_follow_when_the_pod_is_deleted() {
    let mut world = in_place(2, |set| set.put(&["spec", "updateStrategy"], json!({"type": "OnDelete"})));
    world.grow("20Gi");
    assert_eq!(world.settle().held, [Held::OnDelete { pods: 2 }]);
    assert_eq!((world.sizes(), world.applied.len()), (vec!["10Gi"; 2], 0));
    world.delete_pod("web-1");
    world.bury();
    let plan = world.step();
    assert_eq!(moves(&plan), ["data-web-1"]);
    assert!(world.pods["web-1"].text(LABEL) == world.claims["data-web-1"].text(LABEL), "the pod does not wait for it");
    world.settle();
    assert_eq!(world.sizes(), ["10Gi", "20Gi"]);
}

/// Q17, T8: as many in flight as may be unavailable, from the highest ordinal.
#[test]
fn t8_max_unavailable_counts_replicas_in_flight() {
    for parallel_too in [false, true] {
        let mut world = in_place(5, |set| {
            budget(2)(set);
            if parallel_too {
                parallel(set);
            }
        });
        world.grow("20Gi");
        let plan = world.step();
        assert_eq!(moves(&plan), ["data-web-4", "data-web-3"]);
        assert_eq!(plan.held, [Held::Budget { unavailable: 2, max: 2 }]);
        assert_eq!(plan.stages.len(), 2, "after a failure of the first the second is not written");
        world.provide("data-web-3");
        assert_eq!(moves(&world.step()), ["=web-3", "data-web-2"], "the lower one may be ready first");
        assert_eq!(moves(&world.step()), none());
        world.settle();
        assert!(world.is_whole());
    }
}

/// P41 with Parallel, Q17: the unavailable replica is first, and uses the budget up.
#[test]
fn p41_with_parallel_the_unavailable_replica_is_first() {
    let mut world = in_place(3, parallel);
    world.ready("web-0", false);
    world.grow("20Gi");
    world.image("v2");
    assert_eq!(moves(&world.step()), ["data-web-0"]);
    assert_eq!(moves(&world.step()), none(), "an unavailable one waits for its claim, too");
    world.provide("data-web-0");
    assert_eq!(moves(&world.step()), ["-web-0"]);
    assert_eq!(moves(&world.step()), none());
    world.settle();
    assert!(world.is_whole());
}

/// Of several unavailable replicas, not more are begun than may be unavailable, from the highest ordinal.
#[test]
fn t8_unavailable_replicas_are_begun_one_after_the_other() {
    let mut world = in_place(3, parallel);
    ["web-0", "web-1"].iter().for_each(|pod| world.ready(pod, false));
    world.grow("20Gi");
    assert_eq!(moves(&world.step()), ["data-web-1"]);
    assert_eq!(moves(&world.step()), none());
    world.provide("data-web-1");
    assert_eq!(moves(&world.step()), ["=web-1", "data-web-0"]);
}

/// A pod whose claims are ready is not deleted while another replica uses the budget up.
#[test]
fn t8_another_one_breaks_while_a_claim_is_awaited() {
    let mut world = in_place(3, parallel);
    world.image("v2");
    world.grow("20Gi");
    assert_eq!(moves(&world.step()), ["data-web-2"]);
    world.ready("web-0", false);
    world.provide("data-web-2");
    assert_eq!(moves(&world.step()), none(), "web-2 is available, web-0 is not, and is not begun in addition");
    world.ready("web-0", true);
    assert_eq!(moves(&world.step()), ["-web-2"]);
}

/// P41 in order, Q24.
#[test]
fn p41_with_ordered_ready_an_unready_pod_stops_the_rollout() {
    let mut world = in_place(3, |_| {});
    world.ready("web-0", false);
    world.grow("20Gi");
    assert_eq!(moves(&world.step()), none());
    assert_eq!(world.plan().held, [Held::NotReady { pod: "web-0".to_owned() }]);
}

/// With the gate of the budget off: one at a time.
#[test]
fn without_a_budget_one_at_a_time() {
    let mut world = in_place(3, budget(3));
    world.gates = world.gates.with("MaxUnavailableStatefulSet", false);
    world.grow("20Gi");
    assert_eq!(moves(&world.step()), ["data-web-2"]);
    assert_eq!(moves(&world.step()), none());
    world.provide("data-web-2");
    assert_eq!(moves(&world.step()), ["=web-2", "data-web-1"]);
    world.image("v2");
    world.settle();
    assert!(world.is_whole());
}

/// P42, T8, Q23.
#[test]
fn p42_t8_claims_do_not_wait_for_min_ready_seconds() {
    for parallel_too in [false, true] {
        let mut world = in_place(3, |set| {
            set.put(&["spec", "minReadySeconds"], 600);
            if parallel_too {
                parallel(set);
            }
        });
        world.pods.keys().cloned().collect::<Vec<_>>().iter().for_each(|pod| world.ready(pod, false));
        world.pods.keys().cloned().collect::<Vec<_>>().iter().for_each(|pod| world.ready(pod, true));
        let (uids, start) = (world.uids(), world.now);
        world.grow("20Gi");
        for _ in 0..10 {
            world.step();
            world.storage();
        }
        assert_eq!((world.sizes(), world.uids(), world.now), (vec!["20Gi"; 3], uids, start));
        assert_eq!((world.status("updatedReplicas"), world.status("availableReplicas")), (3, 0));
    }
}

/// P42: nor for the one pod that has not been ready for long enough.
#[test]
fn p42_t8_a_pod_that_was_just_replaced_does_not_delay_claims() {
    for parallel_too in [false, true] {
        let mut world = in_place(3, |set| {
            set.put(&["spec", "minReadySeconds"], 600);
            if parallel_too {
                parallel(set);
            }
        });
        world.advance(1000);
        world.ready("web-0", false);
        world.ready("web-0", true);
        world.grow("20Gi");
        for _ in 0..10 {
            world.step();
            world.storage();
        }
        assert_eq!(world.applied, ["data-web-2", "data-web-1", "data-web-0"]);
        assert_eq!((world.status("updatedReplicas"), world.status("availableReplicas")), (3, 2));
    }
}

/// Q18: claims alone as in a rolling update; with a new template all claims, then all pods.
#[test]
fn t8_recreate() {
    let recreate = |set: &mut Value| set.put(&["spec", "updateStrategy"], json!({"type": "Recreate"}));
    let mut world = in_place(3, recreate);
    let uids = world.uids();
    world.grow("20Gi");
    assert_eq!(moves(&world.step()), ["data-web-2"]);
    assert_eq!(moves(&world.step()), none());
    world.settle();
    assert!(world.is_whole() && world.uids() == uids);
    world.grow("30Gi");
    world.image("v2");
    assert_eq!(moves(&world.step()), ["data-web-2", "data-web-1", "data-web-0"]);
    for claim in ["data-web-0", "data-web-1"] {
        world.provide(claim);
        assert_eq!(moves(&world.step()), none(), "all pods run until all claims are ready");
    }
    world.provide("data-web-2");
    assert_eq!(moves(&world.step()), ["-web-0", "-web-1", "-web-2"]);
    world.settle();
    assert!(world.is_whole());
}

/// P31, P32, Q27: a leftover claim is updated before its pod is created.
#[test]
fn p31_a_leftover_claim_grows_before_its_pod_is_created() {
    let mut world = in_place(3, |_| {});
    world.scale(1);
    world.settle();
    world.grow("20Gi");
    world.settle();
    assert_eq!(world.sizes(), ["20Gi", "10Gi", "10Gi"], "leftover claims wait");
    world.scale(3);
    let plan = world.step();
    let found: Vec<_> = actions(&plan);
    let [Action::ApplyClaim { with_pod: true, .. }, Action::CreatePod(_)] = found.as_slice() else {
        panic!("{plan:#?}")
    };
    world.settle();
    assert_eq!(world.sizes(), ["20Gi"; 3]);
    assert!(world.is_whole());
}

/// P33, Q10.
#[test]
fn p33_a_missing_claim_of_a_pending_pod_gets_the_update_revision() {
    for parallel_too in [false, true] {
        let mut world = in_place(2, |set| {
            if parallel_too {
                parallel(set)
            }
        });
        world.delete_pod("web-1");
        world.bury();
        world.step();
        world.claims.remove("data-web-1");
        world.grow("20Gi");
        assert_eq!(moves(&world.step()), ["+data-web-1"]);
        let claim = &world.claims["data-web-1"];
        assert_eq!(claim.text(&["spec", "resources", "requests", "storage"]), "20Gi");
        assert!(world.is_new("data-web-1"));
        world.settle();
        assert!(world.is_whole());
    }
}

/// Q22, T17: all claims of a replica are updated separately, and all must be ready.
#[test]
fn t17_several_templates() {
    let mut world = in_place(2, |set| {
        let mut logs = set["spec"]["volumeClaimTemplates"][0].clone();
        logs.put(&["metadata", "name"], "logs");
        set["spec"]["volumeClaimTemplates"].as_array_mut().unwrap().push(logs);
    });
    world.grow("20Gi");
    assert_eq!(moves(&world.step()), ["data-web-1", "logs-web-1"]);
    assert_eq!(moves(&world.step()), none());
    world.provide("data-web-1");
    assert_eq!(moves(&world.step()), ["=web-1", "data-web-0", "logs-web-0"]);
    world.settle();
    assert!(world.is_whole());
    assert_eq!(world.sizes(), ["20Gi", "20Gi", "10Gi", "10Gi"]);
}

/// Start ordinals: names and order use the ordinals.
#[test]
fn ordinals_that_do_not_start_at_zero() {
    let mut world = in_place(2, |set| set.put(&["spec", "ordinals"], json!({"start": 5})));
    world.grow("20Gi");
    world.settle();
    assert_eq!(world.applied, ["data-web-6", "data-web-5"]);
    assert!(world.is_whole());
}
