//! Claim templates updated in place, through the API: T1 to T10, T13 to T15, T17.

use crate::sets::*;
use crate::storage::*;
use crate::world::*;
use object::access::{Access, name, uid};
use object::{Value, json};

fn with_class(mut set: Value, class: &str) -> Value {
    set["spec"]["volumeClaimTemplates"][0]["spec"]["volumeAttributesClassName"] = json!(class);
    set
}

/// The controller's entry in the managed fields.
fn managed(claim: &Value) -> Option<&Value> {
    let entries = claim.items(&["metadata", "managedFields"]).iter();
    let ours = |it: &&Value| it.text(&["manager"]) == SETS && it.text(&["operation"]) == "Apply";
    entries.clone().find(ours)
}

/// T1, T2.
#[tokio::test(start_paused = true)]
async fn t1_t2_the_policy_and_what_may_change() {
    let world = World::bare().await;
    let set = world.create(web_with_claims(1)).await;
    assert_eq!(set["spec"]["volumeClaimUpdatePolicy"], "OnClaimDelete");
    let try_change = async |spec: Value| {
        let (code, answer) =
            world.send("PATCH", &path(&set), "application/merge-patch+json", Some(&json!({"spec": spec}))).await;
        (code, answer.text(&["message"]).to_owned())
    };
    let (code, message) = try_change(json!({"volumeClaimUpdatePolicy": "foo"})).await;
    assert_eq!(code, 422);
    assert!(message.contains("supported values: \"InPlace\", \"OnClaimDelete\""), "{message}");
    let template = |change: &dyn Fn(&mut Value)| {
        let mut template = set["spec"]["volumeClaimTemplates"][0].clone();
        change(&mut template);
        json!({"volumeClaimTemplates": [template]})
    };
    let refused: [(&dyn Fn(&mut Value), &str); 3] = [
        (
            &|it| it["spec"]["resources"]["requests"]["storage"] = json!("512Mi"),
            "field can not be less than previous value",
        ),
        (&|it| it["spec"]["storageClassName"] = json!("other"), "spec.storageClassName"),
        (&|it| it["metadata"]["labels"] = json!({"a": "not a label!"}), "metadata.labels"),
    ];
    for (change, why) in refused {
        let (code, message) = try_change(template(change)).await;
        assert!(code == 422 && message.contains(why), "{code} {message}");
    }
    for policy in ["InPlace", "OnClaimDelete"] {
        assert_eq!(try_change(json!({"volumeClaimUpdatePolicy": policy})).await.0, 200);
    }
    let all = template(&|it| {
        it["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
        it["spec"]["volumeAttributesClassName"] = json!("silver");
        it["metadata"]["labels"] = json!({"a": "b"});
        it["metadata"]["annotations"] = json!({"c": "d"});
    });
    assert_eq!(try_change(all).await.0, 200);
    world.stop().await;
}

/// T3.
#[tokio::test(start_paused = true)]
async fn t3_on_claim_delete_does_not_change_existing_claims() {
    let set = with(in_place(2), json!({"volumeClaimUpdatePolicy": "OnClaimDelete"}));
    let (world, _kubelet, _storage, set) = World::settled(set).await;
    let (uids, claim) = (world.pod_uids().await, world.claim("data-web-1").await);
    world.grow(&set, "20Gi").await;
    let set = world.change(&set, json!({"replicas": 3})).await;
    let done = world.until_done(&set).await;
    assert_eq!(world.size("data-web-2").await, "20Gi");
    assert_eq!(world.claim("data-web-1").await, claim);
    assert_eq!(world.pod_uids().await[..2], uids);
    assert_eq!((revision_of(&world.claim("data-web-2").await), world.names(REVISIONS).await.len()), ("", 1));
    assert!(!done.has(&["status", "conditions"]));
    world.stop().await;
}

/// T4, T5, T6, T13, T14, T18: one replica after the other, from the highest ordinal, each when the previous
/// volume has grown.
#[tokio::test(start_paused = true)]
async fn t4_t5_t6_t13_t14_claims_grow_one_after_the_other() {
    let (world, _kubelet, storage, set) = World::settled(in_place(3)).await;
    let old = set.text(&["status", "updateRevision"]).to_owned();
    let uids = world.pod_uids().await;
    storage.leave(&["data-web-0", "data-web-1", "data-web-2"]);
    world.applies().await;
    let set = world.grow(&set, "20Gi").await;
    for ordinal in (0..3).rev() {
        let claim = world.until_size(&format!("data-web-{ordinal}"), "20Gi").await;
        assert!(revision_of(&claim) != old && managed(&claim).is_some());
        let waits = |set: &Value| {
            let said = object::condition::get(set, "VolumeClaimsUpdated");
            said.is_some_and(|it| {
                it.text(&["reason"]) == "ClaimResizing" && it.text(&["message"]).contains(name(&claim))
            })
        };
        let seen = world.until_is(&set, "it says what it waits for", waits).await;
        assert_eq!(seen.int(&["status", "updatedReplicas"]).unwrap_or(0), 2 - ordinal);
        assert_ne!(seen["status"]["currentRevision"], seen["status"]["updateRevision"]);
        world.quiet().await;
        for below in 0..ordinal {
            assert_eq!(world.size(&format!("data-web-{below}")).await, "10Gi", "below {ordinal}");
        }
        world.provide(&format!("data-web-{ordinal}")).await;
    }
    let done = world.until_done(&set).await;
    assert_eq!(world.pod_uids().await, uids, "nothing restarts");
    assert_eq!(world.applies().await, ["data-web-2", "data-web-1", "data-web-0"], "each once");
    let update = done.text(&["status", "updateRevision"]);
    let revision = world.get(&format!("{REVISIONS}/{update}")).await.expect("the revision");
    let templates = &revision["data"]["spec"]["volumeClaimTemplates"];
    assert_eq!(templates[0]["spec"]["resources"]["requests"]["storage"], "20Gi");
    assert!(object::condition::is_true(&done, "VolumeClaimsUpdated"));
    for ordinal in 0..3 {
        let message = format!("Update Claim data-web-{ordinal} Pod web-{ordinal} in StatefulSet web success");
        world.until_told(&set, "SuccessfulUpdate", &message).await;
        assert_eq!(revision_of(&world.the_pod(&format!("web-{ordinal}")).await), update);
    }
    world.stop().await;
}

/// T5: fields of others are kept, those of the template are removed with it; nothing becomes smaller.
#[tokio::test(start_paused = true)]
async fn t5_only_fields_of_the_template_are_written() {
    let mut set = in_place(2);
    set["spec"]["volumeClaimTemplates"][0]["metadata"]["labels"] = json!({"tier": "gold", "old": "x"});
    set["spec"]["persistentVolumeClaimRetentionPolicy"] = json!({"whenDeleted": "Delete", "whenScaled": "Retain"});
    let (world, _kubelet, _storage, set) = World::settled(set).await;
    let claim = world.claim("data-web-1").await;
    assert_eq!(claim["metadata"]["ownerReferences"][0]["uid"], set["metadata"]["uid"], "from the creation on");
    world
        .merge(
            &claim,
            json!({
                "metadata": {"labels": {"team": "a"}, "annotations": {"backup": "yes"}},
                "spec": {"resources": {"requests": {"storage": "50Gi"}}},
            }),
        )
        .await;
    let set = world
        .change_template(&set, |template| {
            template["metadata"]["labels"] = json!({"tier": "silver"});
            template["metadata"]["annotations"] = json!({"note": "n"});
            template["spec"]["resources"]["requests"]["storage"] = json!("20Gi");
        })
        .await;
    let done = world.until_done(&set).await;
    let claim = world.claim("data-web-1").await;
    let labels = json!({
        "app": "web", "tier": "silver", "team": "a", "controller-revision-hash": done["status"]["updateRevision"],
    });
    assert_eq!(claim["metadata"]["labels"], labels);
    assert_eq!(claim["metadata"]["annotations"]["note"], "n");
    assert_eq!(claim["metadata"]["annotations"]["backup"], "yes");
    assert_eq!(claim["metadata"]["ownerReferences"][0]["uid"], set["metadata"]["uid"]);
    assert_eq!(claim["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    assert_eq!((world.size("data-web-0").await, world.size("data-web-1").await), ("20Gi".into(), "50Gi".into()));
    world.stop().await;
}

/// T6: also with a new image: claims first, then the pod.
#[tokio::test(start_paused = true)]
async fn t6_a_pod_is_deleted_when_its_claims_are_ready() {
    let (world, _kubelet, storage, set) = World::settled(in_place(2)).await;
    let pod = world.the_pod("web-1").await;
    storage.leave(&["data-web-0", "data-web-1"]);
    let mut spec = json!({"template": {"spec": {"containers": [{"name": "main", "image": "y"}]}}});
    let mut templates = set["spec"]["volumeClaimTemplates"].clone();
    templates[0]["spec"]["resources"]["requests"]["storage"] = json!("20Gi");
    spec["volumeClaimTemplates"] = templates;
    let set = world.change(&set, spec).await;
    world.until_size("data-web-1", "20Gi").await;
    world.quiet().await;
    assert_eq!(uid(&world.the_pod("web-1").await), uid(&pod), "it runs while its claim is not ready");
    world.provide("data-web-1").await;
    world.until_size("data-web-0", "20Gi").await;
    assert_ne!(uid(&world.the_pod("web-1").await), uid(&pod));
    world.provide("data-web-0").await;
    world.until_done(&set).await;
    world.stop().await;
}

/// T7, T17: the rollout waits for a class, which is undone by the older revision as kubectl does it.
#[tokio::test(start_paused = true)]
async fn t7_t17_a_class_changes_and_is_undone() {
    let (world, _kubelet, storage, set) = World::settled(with_class(in_place(2), "gold")).await;
    let first = set.text(&["status", "updateRevision"]).to_owned();
    let uids = world.pod_uids().await;
    storage.leave(&["data-web-1"]);
    let set = world.change_template(&set, |it| it["spec"]["volumeAttributesClassName"] = json!("silver")).await;
    let said = |set: &Value| {
        object::condition::get(set, "VolumeClaimsUpdated").is_some_and(|it| it.text(&["reason"]) == "ClaimModifying")
    };
    world.until_is(&set, "it waits for the class", said).await;
    assert_eq!(world.claim("data-web-0").await["spec"]["volumeAttributesClassName"], "gold");
    storage.resume();
    world.provide("data-web-1").await;
    let set = world.until_done(&set).await;
    assert_eq!(world.claim("data-web-0").await["spec"]["volumeAttributesClassName"], "silver");
    let revision = world.get(&format!("{REVISIONS}/{first}")).await.expect("history");
    let patch = "application/strategic-merge-patch+json";
    let (code, set) = world.send("PATCH", &path(&set), patch, Some(&revision["data"])).await;
    assert_eq!(code, 200, "{set}");
    let done = world.until_done(&set).await;
    assert_eq!(done["status"]["updateRevision"], first.as_str(), "the older one again");
    assert_eq!(world.names(REVISIONS).await.len(), 2);
    for claim in ["data-web-0", "data-web-1"] {
        assert_eq!(world.claim(claim).await["spec"]["volumeAttributesClassName"], "gold");
    }
    assert_eq!(world.pod_uids().await, uids);
    world.stop().await;
}

/// T17: several templates; an undo to a smaller size is refused.
#[tokio::test(start_paused = true)]
async fn t17_several_templates_and_no_way_back_from_a_size() {
    let mut set = in_place(2);
    let mut logs = set["spec"]["volumeClaimTemplates"][0].clone();
    logs["metadata"]["name"] = json!("logs");
    set["spec"]["volumeClaimTemplates"].as_array_mut().unwrap().push(logs);
    let (world, _kubelet, storage, set) = World::settled(set).await;
    let first = set.text(&["status", "updateRevision"]).to_owned();
    storage.leave(&["data-web-1"]);
    world.applies().await;
    let set = world.grow(&set, "20Gi").await;
    let data = world.until_size("data-web-1", "20Gi").await;
    world
        .until_is(&claim("default", "logs-web-1"), "labelled too", |logs| revision_of(logs) == revision_of(&data))
        .await;
    world.quiet().await;
    assert_eq!(revision_of(&world.the_pod("web-1").await), first, "one of its claims is not ready");
    world.provide("data-web-1").await;
    world.until_done(&set).await;
    let mut applies = world.applies().await;
    applies.sort();
    assert_eq!(applies, ["data-web-0", "data-web-1", "logs-web-0", "logs-web-1"]);
    assert_eq!(world.size("logs-web-0").await, "10Gi");
    let revision = world.get(&format!("{REVISIONS}/{first}")).await.expect("history");
    let patch = "application/strategic-merge-patch+json";
    let (code, answer) = world.send("PATCH", &path(&set), patch, Some(&revision["data"])).await;
    assert_eq!(code, 422);
    assert!(answer.text(&["message"]).contains("field can not be less than previous value"), "{answer}");
    world.stop().await;
}

/// T8, T10: a partition; below it pods are created again with claims of their own revision.
#[tokio::test(start_paused = true)]
async fn t8_t10_a_partition_applies_to_claims() {
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 2}});
    let set = with(in_place(3), json!({"updateStrategy": strategy}));
    let (world, _kubelet, _storage, set) = World::settled(set).await;
    let old = set.text(&["status", "updateRevision"]).to_owned();
    let set = world.grow(&set, "20Gi").await;
    world.until_size("data-web-2", "20Gi").await;
    world.until_is(&set, "web-2 is done", |set| set["status"]["updatedReplicas"] == 1).await;
    let lost = world.the_pod("web-0").await;
    let claim = world.claim("data-web-0").await;
    world.delete(&claim, "").await;
    world.delete(&lost, "").await;
    world.until_gone(&lost).await;
    world.until_pod("web-0").await;
    world.until_is(&set, "web-0 is back", |set| set["status"]["readyReplicas"] == 3).await;
    assert_eq!(revision_of(&world.the_pod("web-0").await), old);
    let made = world.claim("data-web-0").await;
    assert_ne!(uid(&made), uid(&claim));
    assert_eq!((world.size("data-web-0").await.as_str(), revision_of(&made)), ("10Gi", old.as_str()));
    assert_eq!(world.size("data-web-1").await, "10Gi");
    let set = world.change(&set, json!({"updateStrategy": {"rollingUpdate": {"partition": 0}}})).await;
    world.until_done(&set).await;
    assert_eq!((world.size("data-web-0").await, world.size("data-web-1").await), ("20Gi".into(), "20Gi".into()));
    world.stop().await;
}

/// T8: OnDelete.
#[tokio::test(start_paused = true)]
async fn t8_on_delete_claims_follow_their_pods() {
    let set = with(in_place(2), json!({"updateStrategy": {"type": "OnDelete"}}));
    let (world, _kubelet, _storage, set) = World::settled(set).await;
    let set = world.grow(&set, "20Gi").await;
    world.until_is(&set, "seen", |set| set["status"]["observedGeneration"] == set["metadata"]["generation"]).await;
    world.quiet().await;
    assert_eq!(world.size("data-web-1").await, "10Gi");
    world.delete(&world.the_pod("web-1").await, "").await;
    let claim = world.until_size("data-web-1", "20Gi").await;
    world.until_revision("web-1", revision_of(&claim)).await;
    assert_eq!(world.size("data-web-0").await, "10Gi");
    world.stop().await;
}

/// T8: two at once if two may be unavailable.
#[tokio::test(start_paused = true)]
async fn t8_max_unavailable_applies_to_claims() {
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}});
    let set = with(in_place(4), json!({"updateStrategy": strategy, "podManagementPolicy": "Parallel"}));
    let (world, _kubelet, storage, set) = World::settled(set).await;
    storage.leave(&["data-web-2", "data-web-3"]);
    let set = world.grow(&set, "20Gi").await;
    world.until_size("data-web-3", "20Gi").await;
    world.until_size("data-web-2", "20Gi").await;
    world.quiet().await;
    assert_eq!(world.size("data-web-1").await, "10Gi");
    world.provide("data-web-2").await;
    world.until_size("data-web-1", "20Gi").await;
    world.until_size("data-web-0", "20Gi").await;
    world.provide("data-web-3").await;
    world.until_done(&set).await;
    world.stop().await;
}

/// T9, T10: a leftover claim is updated before its pod is created, and a missing one is created.
#[tokio::test(start_paused = true)]
async fn t9_t10_claims_of_new_pods_have_their_revision() {
    let (world, _kubelet, _storage, set) = World::settled(in_place(3)).await;
    let set = world.change(&set, json!({"replicas": 1})).await;
    world.until_done(&set).await;
    let set = world.grow(&set, "20Gi").await;
    world.until_done(&set).await;
    assert_eq!(world.size("data-web-2").await, "10Gi", "leftover claims wait");
    world.delete(&world.claim("data-web-2").await, "").await;
    let set = world.change(&set, json!({"replicas": 3})).await;
    let done = world.until_done(&set).await;
    for claim in ["data-web-1", "data-web-2"] {
        assert_eq!(world.size(claim).await, "20Gi");
        assert_eq!(revision_of(&world.claim(claim).await), done.text(&["status", "updateRevision"]));
    }
    world.stop().await;
}

/// T15. The role may delete claims only because the admission plugin OwnerReferencesPermissionEnforcement demands that
/// right of a client that writes owner references.
#[tokio::test(start_paused = true)]
async fn t15_the_controller_deletes_no_claim() {
    let (world, _kubelet, _storage, set) = World::settled(in_place(3)).await;
    let set = world.grow(&set, "20Gi").await;
    world.until_done(&set).await;
    let policy = json!({"replicas": 1, "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"}});
    let set = world.change(&set, policy).await;
    world.until_done(&set).await;
    let sent = world.requests.take().await;
    let deleted: Vec<&str> = sent
        .iter()
        .filter(|sent| sent.method == "DELETE" && sent.account.contains("statefulset-controller"))
        .map(|sent| sent.path.as_str())
        .collect();
    assert!(deleted.iter().any(|path| path.contains("/pods/web-2")), "{deleted:?}");
    assert!(!deleted.iter().any(|path| path.contains("/persistentvolumeclaims")), "{deleted:?}");
    world.stop().await;
}

/// A template may name its class in the old annotation: it takes effect from the creation on, and the claim
/// still follows its template.
#[tokio::test(start_paused = true)]
async fn t9_a_class_named_by_annotation_is_used() {
    let (world, _kubelet) = World::lively().await;
    let mut set = in_place(1);
    let annotation = "volume.beta.kubernetes.io/storage-class";
    let template = &mut set["spec"]["volumeClaimTemplates"][0];
    template["metadata"]["annotations"] = json!({annotation: "gold", "note": "a"});
    template["spec"].as_object_mut().expect("a spec").remove("storageClassName");
    let set = world.create(set).await;
    world.until_done(&set).await;
    let claim = world.claim("data-web-0").await;
    assert_eq!(claim["metadata"]["annotations"][annotation], "gold");
    assert_eq!(claim["metadata"]["annotations"]["note"], "a");
    assert!(!claim.has(&["spec", "storageClassName"]), "no other class: {claim}");
    world.stop().await;
}
