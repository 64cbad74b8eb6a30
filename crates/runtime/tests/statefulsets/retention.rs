//! Claims are retained or deleted by policy (KEP-1847).

use crate::sets::*;
use crate::world::*;
use object::access::{Access, name, terminating, uid};
use object::{Gates, Value, json};

fn policy(when_deleted: &str, when_scaled: &str) -> Value {
    json!({"persistentVolumeClaimRetentionPolicy": {"whenDeleted": when_deleted, "whenScaled": when_scaled}})
}

fn kept(replicas: i64, when_deleted: &str, when_scaled: &str) -> Value {
    with(web_with_claims(replicas), policy(when_deleted, when_scaled))
}

fn owners(object: &Value) -> Vec<Value> {
    object.items(&["metadata", "ownerReferences"]).to_vec()
}

async fn until_owners(world: &World, claim: &str, wanted: &[Value]) {
    let place = crate::world::claim("default", claim);
    world.until_is(&place, &format!("{claim} has {wanted:?}"), |claim| owners(claim) == wanted).await;
}

async fn claim_uids(world: &World) -> Vec<String> {
    let claims = world.get(CLAIMS).await.expect("a list");
    claims.items(&["items"]).iter().map(|claim| uid(claim).to_owned()).collect()
}

// R1: the possible values, the defaults, and that the policy can be changed.
#[tokio::test(flavor = "multi_thread")]
async fn r1_the_policy_has_defaults_and_can_be_changed() {
    let world = World::bare().await;
    let set = world.create(web_with_claims(0)).await;
    let field = "persistentVolumeClaimRetentionPolicy";
    assert_eq!(set["spec"][field], policy("Retain", "Retain")[field]);
    let half = with(web_with_claims(0), json!({field: {"whenDeleted": "Delete"}}));
    world.delete(&set, "").await;
    let half = world.create(half).await;
    assert_eq!(half["spec"][field], policy("Delete", "Retain")[field]);
    let changed = world.change(&half, policy("Retain", "Delete")).await;
    assert_eq!(changed["spec"][field], policy("Retain", "Delete")[field]);
    for bad in [policy("Keep", "Retain"), policy("Retain", "delete")] {
        let patch = json!({"spec": bad});
        let (code, answer) = world.send("PATCH", &path(&half), "application/merge-patch+json", Some(&patch)).await;
        assert_eq!(code, 422, "{answer}");
    }
    world.stop().await;
}

// R2, I01: with Retain no claim is changed, and scaling up uses it again.
#[tokio::test(flavor = "multi_thread")]
async fn r2_retained_claims_are_never_changed() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(kept(3, "Retain", "Retain")).await;
    world.until_done(&set).await;
    let before = claim_uids(&world).await;
    let set = world.change(&set, json!({"replicas": 1})).await;
    world.until_done(&set).await;
    let set = world.change(&set, json!({"replicas": 3})).await;
    world.until_done(&set).await;
    world.delete(&set, "Background").await;
    world.until_gone(&set).await;
    world.until_pods(&[]).await;
    world.quiet().await;
    assert_eq!(claim_uids(&world).await, before);
    for moment in world.history().await {
        assert!(moment.claims.values().all(|claim| owners(claim).is_empty() && !terminating(claim)));
    }
    world.stop().await;
}

// R3, R7, I02, I03: with whenDeleted=Delete a claim is owned by the set from its creation, scaling does not
// change it, and it is deleted with the set.
#[tokio::test(flavor = "multi_thread")]
async fn r3_claims_deleted_with_the_set_are_owned_by_it_from_their_creation() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(kept(3, "Delete", "Retain")).await;
    world.until_done(&set).await;
    let before = claim_uids(&world).await;
    let set = world.change(&set, json!({"replicas": 1})).await;
    world.until_done(&set).await;
    assert_eq!(claim_uids(&world).await, before);
    let set = world.change(&set, json!({"replicas": 3})).await;
    world.until_done(&set).await;
    assert_eq!(claim_uids(&world).await, before);
    for moment in world.history().await {
        for claim in moment.claims.values() {
            // R7: controller, and not blocking.
            assert_eq!(owners(claim), [controlling(&set, false)]);
        }
    }
    // Protection keeps a claim until the pod that runs on a node is removed (V2).
    world.delete(&set, "Background").await;
    world.until_claims(&[]).await;
    world.until_pods(&[]).await;
    world.stop().await;
}

// R4, R12, I04: with whenScaled=Delete the claims of condemned pods are deleted with them, and no others.
#[tokio::test(flavor = "multi_thread")]
async fn r4_claims_are_deleted_with_replicas_that_are_scaled_away() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(kept(3, "Retain", "Delete")).await;
    world.until_done(&set).await;
    let stays = world.claim("data-web-0").await;
    let set = world.change(&set, json!({"replicas": 1})).await;
    world.until_claims(&["data-web-0"]).await;
    world.until_done(&set).await;
    assert_eq!(uid(&world.claim("data-web-0").await), uid(&stays));
    let mut pods = std::collections::BTreeMap::new();
    for moment in world.history().await {
        for (name, pod) in &moment.pods {
            pods.insert(name.clone(), uid(pod).to_owned());
        }
        assert!(owners(&moment.claims.get("data-web-0").cloned().unwrap_or_default()).is_empty());
        // R12: no condemned pod is deleted before it owns its claims.
        for ordinal in 1..3 {
            let (pod, claim) = (format!("web-{ordinal}"), format!("data-web-{ordinal}"));
            if let (Some(was), None, Some(claim)) = (pods.get(&pod), moment.pods.get(&pod), moment.claims.get(&claim)) {
                let owner = json!({
                    "apiVersion": "v1", "kind": "Pod", "name": pod, "uid": was,
                    "controller": true, "blockOwnerDeletion": false,
                });
                assert_eq!(owners(claim), [owner]);
            }
        }
    }
    world.stop().await;
}

// R4, I06: only scaling deletes a claim with its pod.
#[tokio::test(flavor = "multi_thread")]
async fn r4_no_other_deletion_of_a_pod_deletes_its_claim() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(kept(2, "Retain", "Delete")).await;
    let set = world.until_done(&set).await;
    let before = claim_uids(&world).await;
    // Deleted by a user.
    let pod = world.the_pod("web-1").await;
    world.delete(&pod, "").await;
    world.until_is(&crate::world::pod("default", "web-1"), "another", |now| uid(now) != uid(&pod)).await;
    world.until_done(&set).await;
    // Evicted.
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web-1", "namespace": "default"}});
    let (code, _) = world.send("POST", &format!("{PODS}/web-1/eviction"), "application/json", Some(&eviction)).await;
    assert_eq!(code, 200);
    // Failed.
    let pod = world.the_pod("web-0").await;
    world.set_status(&pod, json!({"phase": "Failed"})).await;
    world.until_gone(&pod).await;
    world.until_done(&set).await;
    // Replaced by a rollout, and deleted under OnDelete.
    let set = world.set_image(&set, "y").await;
    let set = world.until_done(&set).await;
    world.change(&set, json!({"updateStrategy": {"type": "OnDelete", "rollingUpdate": null}})).await;
    let set = world.set_image(&set, "z").await;
    // A pod that is deleted before the controller has received the new template is created at the old
    // revision.
    world.until_is(&set, "seen", |set| set["status"]["observedGeneration"] == set["metadata"]["generation"]).await;
    for pod in ["web-0", "web-1"] {
        world.delete(&world.the_pod(pod).await, "").await;
    }
    world.until_done(&set).await;
    assert_eq!(claim_uids(&world).await, before);
    for moment in world.history().await {
        assert!(moment.claims.values().all(|claim| owners(claim).is_empty() && !terminating(claim)));
    }
    world.stop().await;
}

// R5, I05: both policies, and one owner at a time.
#[tokio::test(flavor = "multi_thread")]
async fn r5_both_policies_together() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(kept(3, "Delete", "Delete")).await;
    world.until_done(&set).await;
    let set = world.change(&set, json!({"replicas": 2})).await;
    world.until_claims(&["data-web-0", "data-web-1"]).await;
    until_owners(&world, "data-web-0", &[controlling(&set, false)]).await;
    world.delete(&set, "Background").await;
    world.until_claims(&[]).await;
    for moment in world.history().await {
        assert!(moment.claims.values().all(|claim| owners(claim).len() == 1), "one at a time: {moment:?}");
    }
    world.stop().await;
}

// R6, I23: claims that users created beforehand are treated alike; claims that no template names are not
// changed.
#[tokio::test(flavor = "multi_thread")]
async fn r6_claims_by_the_naming_scheme_are_treated_alike_and_others_never_changed() {
    let (world, _kubelet) = World::lively().await;
    let made = world.create(claim("default", "data-web-1")).await;
    let shared = world.create(claim("default", "shared")).await;
    let other = world.create(claim("default", "log-web-0")).await;
    let mut set = kept(2, "Delete", "Delete");
    let volume = json!([{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}]);
    set["spec"]["template"]["spec"]["volumes"] = volume;
    let set = world.create(set).await;
    world.until_done(&set).await;
    until_owners(&world, "data-web-1", &[controlling(&set, false)]).await;
    assert_eq!(uid(&world.claim("data-web-1").await), uid(&made));
    let set = world.change(&set, json!({"replicas": 1})).await;
    world.until_gone(&made).await;
    world.delete(&set, "Background").await;
    world.until_claims(&["log-web-0", "shared"]).await;
    for untouched in [shared, other] {
        assert_eq!(owners(&world.now(&untouched).await.expect("there")), [] as [Value; 0]);
    }
    world.stop().await;
}

// R7, I13, I14: an older reference becomes a controlling one; references of users are kept.
#[tokio::test(flavor = "multi_thread")]
async fn r7_references_are_upgraded_and_those_of_users_kept() {
    let (world, _kubelet) = World::lively().await;
    let user = world.create(config_map("default", "user")).await;
    let set = world.create(kept(1, "Delete", "Retain")).await;
    world.until_done(&set).await;
    let claim = world.claim("data-web-0").await;
    let mut older = controlling(&set, true);
    older["controller"] = json!(false);
    let foreign = reference(&user, false);
    world.merge(&claim, json!({"metadata": {"ownerReferences": [older, foreign]}})).await;
    let wanted = [foreign.clone(), controlling(&set, false)];
    until_owners(&world, "data-web-0", &wanted).await;
    world.delete(&set, "Background").await;
    world.until_gone(&set).await;
    world.settle().await;
    assert!(world.now(&claim).await.is_some(), "while the other owner exists");
    world.delete(&user, "Background").await;
    world.until_gone(&claim).await;
    world.stop().await;
}

// R8, I11, I16: another controller's claim is not changed, and that is reported.
#[tokio::test(flavor = "multi_thread")]
async fn r8_another_controller_on_a_claim_wins() {
    let (world, _kubelet) = World::lively().await;
    let other = world.create(config_map("default", "other")).await;
    let set = world.create(kept(3, "Delete", "Delete")).await;
    world.until_done(&set).await;
    let claim = world.claim("data-web-1").await;
    let foreign = controlling(&other, false);
    // Only one owner reference may be the controller, so the set's must be changed to add another.
    let mut ours = controlling(&set, false);
    ours["controller"] = json!(false);
    world.merge(&claim, json!({"metadata": {"ownerReferences": [foreign, ours]}})).await;
    until_owners(&world, "data-web-1", std::slice::from_ref(&foreign)).await;
    world.until_told(&set, "ConflictingController", "PersistentVolumeClaim data-web-1 has a conflicting").await;
    let set = world.change(&set, json!({"replicas": 0})).await;
    world.until_claims(&["data-web-1"]).await;
    world.until_done(&set).await;
    assert_eq!(owners(&world.now(&claim).await.expect("stays")), [foreign]);
    world.stop().await;
}

// R9: the new pod waits until the old one's claim is removed; then both are created.
#[tokio::test(flavor = "multi_thread")]
async fn r9_a_replica_waits_for_the_claim_of_its_predecessor() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(kept(2, "Retain", "Delete")).await;
    world.until_done(&set).await;
    let claim = world.claim("data-web-1").await;
    let held = json!({"metadata": {"finalizers": ["kubernetes.io/pvc-protection", "example.com/held"]}});
    world.merge(&claim, held).await;
    world.change(&set, json!({"replicas": 1})).await;
    world.until_is(&claim, "goes", terminating).await;
    world.until_pods(&["web-0"]).await;
    let set = world.change(&set, json!({"replicas": 2})).await;
    world.quiet().await;
    assert_eq!(world.pods().await, ["web-0"]);
    world.merge(&claim, json!({"metadata": {"finalizers": null}})).await;
    world.until_gone(&claim).await;
    world.until_done(&set).await;
    assert_ne!(uid(&world.claim("data-web-1").await), uid(&claim));
    world.stop().await;
}

// R11, I07, I08: a change of the policy reaches every claim of the naming scheme, also those without a pod,
// and restarts nothing.
#[tokio::test(flavor = "multi_thread")]
async fn r11_policy_changes_reach_all_claims() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(kept(3, "Retain", "Retain")).await;
    world.until_done(&set).await;
    let set = world.change(&set, json!({"replicas": 2})).await;
    world.until_done(&set).await;
    let pod = world.the_pod("web-0").await;
    for (when_deleted, wanted) in [("Delete", vec![controlling(&set, false)]), ("Retain", vec![])] {
        world.change(&set, policy(when_deleted, "Retain")).await;
        for claim in ["data-web-0", "data-web-1", "data-web-2"] {
            until_owners(&world, claim, &wanted).await;
        }
    }
    assert!(world.now(&pod).await.is_some());
    world.delete(&set, "Background").await;
    world.until_gone(&set).await;
    world.until_pods(&[]).await;
    world.settle().await;
    assert_eq!(world.claims().await.len(), 3);
    world.stop().await;
}

// R11: in the middle of a scale-down, in both directions.
#[tokio::test(flavor = "multi_thread")]
async fn r11_the_policy_may_change_in_the_middle_of_a_scale_down() {
    for (before, after) in [("Delete", "Retain"), ("Retain", "Delete")] {
        let (world, _kubelet) = World::lively().await;
        let set = world.create(kept(3, "Retain", before)).await;
        world.until_done(&set).await;
        // A finalizer keeps the last pod, so the scale-down is blocked.
        let last = world.the_pod("web-2").await;
        world.merge(&last, json!({"metadata": {"finalizers": ["example.com/held"]}})).await;
        world.change(&set, json!({"replicas": 1})).await;
        world.until_is(&last, "goes", terminating).await;
        let set = world.change(&set, policy("Retain", after)).await;
        let wanted = |pod: &Value| {
            let mut owner = controlling(pod, false);
            owner["apiVersion"] = json!("v1");
            owner["kind"] = json!("Pod");
            if after == "Delete" { vec![owner] } else { vec![] }
        };
        if after == "Retain" {
            until_owners(&world, "data-web-2", &wanted(&last)).await;
        } else {
            world.quiet().await;
        }
        world.merge(&last, json!({"metadata": {"finalizers": null}})).await;
        world.until_done(&set).await;
        if after == "Retain" {
            world.settle().await;
            assert_eq!(world.claims().await, ["data-web-0", "data-web-1", "data-web-2"]);
        } else {
            world
                .until("claims of later pods go", || async {
                    (!world.claims().await.contains(&"data-web-1".to_owned())).then_some(())
                })
                .await;
        }
        world.stop().await;
    }
}

// R12: created and deleted at once, in every way: nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn r12_a_set_created_and_deleted_at_once_leaks_nothing() {
    let (world, _kubelet) = World::lively().await;
    for round in 0..6 {
        let set = world.create(with(kept(3, "Delete", "Retain"), json!({"podManagementPolicy": "Parallel"}))).await;
        if round % 3 == 1 {
            world.until_pod("web-0").await;
        }
        if round % 3 == 2 {
            world.until_done(&set).await;
        }
        world.delete(&set, if round % 2 == 0 { "Background" } else { "Foreground" }).await;
        world.until_gone(&set).await;
        world.until_pods(&[]).await;
        world.until_claims(&[]).await;
    }
    world.stop().await;
}

// Digest 8.5: upstream deadlocks here, because the pod waits for its claim and the claim for its pod.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreground_deletion_in_the_middle_of_a_scale_down_completes() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(kept(3, "Delete", "Delete")).await;
    world.until_done(&set).await;
    let last = world.the_pod("web-2").await;
    world.merge(&last, json!({"metadata": {"finalizers": ["example.com/held"]}})).await;
    world.change(&set, json!({"replicas": 1})).await;
    world.until_is(&last, "goes", terminating).await;
    world.delete(&set, "Foreground").await;
    world.merge(&last, json!({"metadata": {"finalizers": null}})).await;
    world.until_gone(&set).await;
    world.until_pods(&[]).await;
    world.until_claims(&[]).await;
    world.stop().await;
}

// I15: a claim of an earlier set of this name is not changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_an_earlier_set_of_this_name_is_not_changed() {
    // Without a collector, which would delete it.
    let world = World::with(SETS).await;
    let mut earlier = web(0);
    earlier["metadata"]["uid"] = json!("an-earlier-one");
    let mut stale = claim("default", "data-web-0");
    stale["metadata"]["ownerReferences"] = json!([controlling(&earlier, false)]);
    let stale = world.create(stale).await;
    world.create(kept(1, "Retain", "Retain")).await;
    world.quiet().await;
    assert_eq!(world.now(&stale).await.as_ref(), Some(&stale));
    // A pod that used the claim would keep it, and could not start: it is created when the claim is removed.
    world.until_pods(&[]).await;
    world.delete(&stale, "").await;
    world.merge(&stale, json!({"metadata": {"finalizers": null}})).await;
    world.until_pods(&["web-0"]).await;
    let anew = world.get("/api/v1/namespaces/default/persistentvolumeclaims/data-web-0").await.expect("its claim");
    assert_ne!(anew["metadata"]["uid"], stale["metadata"]["uid"]);
    world.stop().await;
}

// I20, I21: the claim of a pod that was released for a moment is still deleted when the pod is scaled away.
#[tokio::test(flavor = "multi_thread")]
async fn the_claim_of_a_readopted_pod_is_deleted_with_it() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(kept(3, "Retain", "Delete")).await;
    world.until_done(&set).await;
    let pod = world.the_pod("web-2").await;
    world.merge(&pod, json!({"metadata": {"ownerReferences": null}})).await;
    world.change(&set, json!({"replicas": 1})).await;
    world.until_claims(&["data-web-0"]).await;
    world.until_pods(&["web-0"]).await;
    world.stop().await;
}

// R13: the permissions of the role, and that the controller needs them.
#[tokio::test(flavor = "multi_thread")]
async fn r13_the_role_has_the_rights_that_are_needed() {
    let mut world = World::bare().await;
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "system:controller:statefulset-controller"},
    });
    let role = world.now(&role).await.expect("its role");
    let verbs = |resource: &str| -> Vec<String> {
        let rules = role.items(&["rules"]).iter();
        let rules = rules.filter(|rule| rule.items(&["resources"]).iter().any(|known| known == resource));
        let mut verbs: Vec<String> =
            rules.flat_map(|rule| rule.items(&["verbs"])).filter_map(Value::as_str).map(str::to_owned).collect();
        verbs.sort();
        verbs
    };
    // "delete" is for API servers with OwnerReferencesPermissionEnforcement: they demand it of a client that writes owner references.
    assert_eq!(verbs("persistentvolumeclaims"), ["create", "delete", "get", "list", "patch", "watch"]);
    assert_eq!(verbs("pods"), ["create", "delete", "list", "patch", "watch"]);
    assert_eq!(verbs("controllerrevisions"), ["create", "delete", "list", "patch", "watch"]);
    assert_eq!(verbs("statefulsets"), ["get", "list", "watch"]);
    assert_eq!(verbs("statefulsets/status"), ["update"]);
    assert_eq!(verbs("statefulsets/finalizers"), ["update"]);
    assert_eq!(role.items(&["rules"]).len(), 7, "and events: {role}");
    world.start(ALL);
    let _kubelet = crate::kubelet::Kubelet::start(&world);
    let set = world.create(kept(2, "Retain", "Delete")).await;
    world.until_done(&set).await;
    world.delete(&world.the_pod("web-0").await, "").await;
    let set = world.change(&set, policy("Delete", "Delete")).await;
    let set = world.set_image(&set, "y").await;
    world.until_done(&set).await;
    world
        .merge(
            &world.the_pod("web-0").await,
            json!({"metadata": {"labels": {"statefulset.kubernetes.io/pod-name": "x"}}}),
        )
        .await;
    let set = world.change(&set, json!({"replicas": 1, "revisionHistoryLimit": 0})).await;
    world.until_claims(&["data-web-0"]).await;
    let set = world.set_image(&set, "x").await;
    world.until_done(&set).await;
    assert!(world.requests.refused().is_empty(), "{:?}", world.requests.refused());
    world.stop().await;
}

// R14: with the server's gate off, the field is dropped, unless it is stored already.
#[tokio::test(flavor = "multi_thread")]
async fn r14_a_server_with_the_gate_off_drops_the_field_unless_it_is_stored() {
    let off = Gates::default().with("StatefulSetAutoDeletePVC", false);
    let mut world = World::bare().await;
    let stored = world.create(kept(0, "Delete", "Delete")).await;
    world.restart_server(off).await;
    let field = ["spec", "persistentVolumeClaimRetentionPolicy"];
    let mut new = kept(0, "Delete", "Delete");
    new["metadata"]["name"] = json!("new");
    assert!(!world.create(new).await.has(&field));
    let again = world.merge(&stored, json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert_eq!(again.at(&field), stored.at(&field), "the stored field is kept");
    world.stop().await;
}

// R14: with the controllers' gate off, claims are handled as with Retain; with it on again, their owner
// references are added.
#[tokio::test(flavor = "multi_thread")]
async fn r14_controllers_with_the_gate_off_retain() {
    let off = Gates::default().with("StatefulSetAutoDeletePVC", false);
    let (mut world, _kubelet) = World::lively().await;
    let set = world.create(kept(3, "Delete", "Delete")).await;
    world.until_done(&set).await;
    world.stop_controllers().await;
    world.setup.gates = off;
    world.start(ALL);
    for claim in ["data-web-0", "data-web-1", "data-web-2"] {
        until_owners(&world, claim, &[]).await;
    }
    let set = world.change(&set, json!({"replicas": 2})).await;
    world.until_done(&set).await;
    world.stop_controllers().await;
    world.setup.gates = Gates::default();
    world.start(ALL);
    for claim in ["data-web-0", "data-web-1", "data-web-2"] {
        until_owners(&world, claim, &[controlling(&set, false)]).await;
    }
    world.delete(&set, "Background").await;
    world.until_claims(&[]).await;
    world.stop().await;
}

// R14: turned off in the middle of a scale-down and of a deletion: no claim is deleted that would not be
// deleted without it.
#[tokio::test(flavor = "multi_thread")]
async fn r14_turning_the_gate_off_in_a_scale_down_deletes_no_wrong_claim() {
    let off = Gates::default().with("StatefulSetAutoDeletePVC", false);
    let (mut world, _kubelet) = World::lively().await;
    let set = world.create(kept(3, "Delete", "Delete")).await;
    world.until_done(&set).await;
    let last = world.the_pod("web-2").await;
    world.merge(&last, json!({"metadata": {"finalizers": ["example.com/held"]}})).await;
    world.change(&set, json!({"replicas": 1})).await;
    world.until_is(&last, "goes", terminating).await;
    world.stop_controllers().await;
    world.setup.gates = off;
    world.start(ALL);
    for claim in ["data-web-0", "data-web-1", "data-web-2"] {
        until_owners(&world, claim, &[]).await;
    }
    world.merge(&last, json!({"metadata": {"finalizers": null}})).await;
    world.until_pods(&["web-0"]).await;
    world.delete(&set, "Background").await;
    world.until_gone(&set).await;
    world.until_pods(&[]).await;
    world.settle().await;
    assert_eq!(world.claims().await, ["data-web-0", "data-web-1", "data-web-2"]);
    assert!(world.history().await.iter().all(|moment| !moment.claims.values().any(terminating)));
    world.stop().await;
}

// R14: turned on in the middle of a scale-down and of a deletion: only claims covered by the policy are
// deleted.
#[tokio::test(flavor = "multi_thread")]
async fn r14_turning_the_gate_on_in_the_middle_applies_the_policy() {
    let off = Gates::default().with("StatefulSetAutoDeletePVC", false);
    for (when_deleted, when_scaled) in [("Retain", "Delete"), ("Delete", "Retain")] {
        let mut world = World::bare().await;
        world.setup.gates = off.clone();
        world.start(ALL);
        let _kubelet = crate::kubelet::Kubelet::start(&world);
        let set = world.create(kept(3, when_deleted, when_scaled)).await;
        world.until_done(&set).await;
        let last = world.the_pod("web-2").await;
        world.merge(&last, json!({"metadata": {"finalizers": ["example.com/held"]}})).await;
        if when_scaled == "Delete" {
            world.change(&set, json!({"replicas": 2})).await;
        } else {
            world.delete(&set, "Foreground").await;
        }
        world.until_is(&last, "goes", terminating).await;
        world.stop_controllers().await;
        world.setup.gates = Gates::default();
        world.start(ALL);
        if when_scaled == "Delete" {
            world.quiet().await;
            world.merge(&last, json!({"metadata": {"finalizers": null}})).await;
            world.until_gone(&last).await;
            world.settle().await;
            let claims = world.claims().await;
            assert!(claims.starts_with(&["data-web-0".to_owned(), "data-web-1".to_owned()]), "{claims:?}");
        } else {
            world
                .until("the claims are the set's", || async {
                    let claims = world.get(CLAIMS).await.expect("a list");
                    let left = claims.items(&["items"]).iter().filter(|claim| !terminating(claim));
                    left.into_iter().all(|claim| owners(claim) == [controlling(&set, false)]).then_some(())
                })
                .await;
            world.merge(&last, json!({"metadata": {"finalizers": null}})).await;
            world.until_gone(&set).await;
            world.until_claims(&[]).await;
        }
        world.stop().await;
    }
}

// R15: an unavailable server causes no error, and everything completes when it is available again.
#[tokio::test(start_paused = true)]
async fn r15_an_unavailable_server_only_delays() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(kept(3, "Delete", "Delete")).await;
    world.until_done(&set).await;
    world.faults.refuse(Some(503));
    world.faults.cut_watches();
    let set = world.change(&set, json!({"replicas": 1})).await;
    tokio::time::sleep(std::time::Duration::from_secs(90)).await;
    assert_eq!(world.claims().await.len(), 3);
    world.faults.refuse(None);
    // The longest backoff.
    let pause = std::time::Duration::from_secs(60);
    tokio::time::sleep(pause).await;
    world.until_claims(&["data-web-0"]).await;
    world.until_done(&set).await;
    world.faults.refuse(Some(503));
    world.faults.cut_watches();
    world.delete(&set, "Foreground").await;
    tokio::time::sleep(std::time::Duration::from_secs(90)).await;
    assert_eq!((world.pods().await.len(), world.claims().await.len()), (1, 1));
    world.faults.refuse(None);
    tokio::time::sleep(pause).await;
    world.until_gone(&set).await;
    world.until_claims(&[]).await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminating_claim_blocks_its_pod_and_not_the_set() {
    let world = World::with(SETS).await;
    let leaving = world.create(held(claim("default", "data-web-1"))).await;
    world.delete(&leaving, "").await;
    world.quiet().await;
    let set = world.create(with(web_with_claims(3), json!({"podManagementPolicy": "Parallel"}))).await;
    world.until_pods(&["web-0", "web-2"]).await;
    world.until_told(&set, "FailedCreate", "pvc data-web-1 is being deleted").await;
    world.quiet().await;
    assert_eq!(world.pods().await, ["web-0", "web-2"]);
    world.merge(&leaving, json!({"metadata": {"finalizers": null}})).await;
    world.until_pods(&["web-0", "web-1", "web-2"]).await;
    assert_eq!(name(&world.claim("data-web-1").await), "data-web-1");
    world.stop().await;
}

async fn told(world: &World, about: &Value, reason: &str) -> String {
    world.until_event(about, reason).await.text(&["message"]).to_owned()
}

// Issue 20: a claim that goes leaves a trace that says why, on itself and on its set.
#[tokio::test(flavor = "multi_thread")]
async fn each_deleted_claim_and_its_set_says_why() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(kept(2, "Delete", "Delete")).await;
    world.until_done(&set).await;
    let [first, second] = ["data-web-0", "data-web-1"].map(|name| crate::world::claim("default", name));
    let (first, second) = (world.now(&first).await.unwrap(), world.now(&second).await.unwrap());
    let set = world.change(&set, json!({"replicas": 1})).await;
    let scaled = "whenScaled is Delete and Pod web-1 was scaled away";
    for object in [&second, &set] {
        let message = told(&world, object, "ClaimDeleted").await;
        assert!(message.contains(scaled) && message.starts_with(object.text(&["kind"])), "{message}");
    }
    world.delete(&set, "Background").await;
    let message = told(&world, &first, "ClaimDeleted").await;
    assert!(message.contains("whenDeleted is Delete and the set was deleted"), "{message}");
    world.stop().await;
}

// Issue 20: a claim that is deleted under its pod is worth a warning on the set, one that goes by policy is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_deleted_in_use_warns_on_its_set() {
    let (world, _kubelet) = World::lively().await;
    let set = world.create(kept(1, "Delete", "Delete")).await;
    world.until_done(&set).await;
    let claim = world.now(&crate::world::claim("default", "data-web-0")).await.unwrap();
    world.merge(&claim, json!({"metadata": {"finalizers": ["example.com/held"]}})).await;
    world.delete(&claim, "").await;
    for object in [&set, &claim] {
        let event = world.until_event(object, "ClaimDeletedInUse").await;
        let message = event.text(&["message"]);
        assert!(event["type"] == "Warning" && message.starts_with(object.text(&["kind"])), "{event}");
        assert!(message.contains("Pod web-0"), "{message}");
    }
    world.stop().await;
}
