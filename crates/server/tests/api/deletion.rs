//! Delete: preconditions, finalizers, grace, cascades, collections.

use crate::support::*;
use serde_json::json;

#[tokio::test]
async fn an_object_without_finalizers_is_removed_at_once() {
    let world = World::new().await;
    let admin = world.admin();
    let made = admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let path = format!("{CONFIG_MAPS}/a");
    let gone = admin.delete(&path).await.expect(200);
    assert_eq!(
        gone,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}})
    );
    assert_eq!(admin.get(&path).await.refused(404, "NotFound"), "configmaps \"a\" not found");
    assert_eq!(admin.delete(&path).await.refused(404, "NotFound"), "configmaps \"a\" not found");
}

#[tokio::test]
async fn preconditions_protect_against_deleting_another() {
    let world = World::new().await;
    let admin = world.admin();
    let made = admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let path = format!("{CONFIG_MAPS}/a");
    let (uid, revision) = (text(&made, "/metadata/uid"), text(&made, "/metadata/resourceVersion"));
    let other = json!({"preconditions": {"uid": "other"}});
    assert_eq!(
        admin.delete_with(&path, &other).await.refused(409, "Conflict"),
        format!(
            "Operation cannot be fulfilled on configmaps \"a\": Precondition failed: UID in precondition: other, UID in \
            object meta: {uid}"
        )
    );
    let older = json!({"preconditions": {"resourceVersion": "1"}});
    assert_eq!(
        admin.delete_with(&path, &older).await.refused(409, "Conflict"),
        format!(
            "Operation cannot be fulfilled on configmaps \"a\": Precondition failed: ResourceVersion in precondition: 1, \
            ResourceVersion in object meta: {revision}"
        )
    );
    for bad in
        [json!({"propagationPolicy": "Sideways"}), json!({"orphanDependents": true, "propagationPolicy": "Orphan"})]
    {
        admin.delete_with(&path, &bad).await.refused(422, "Invalid");
    }
    for bad in [json!({"gracePeriodSeconds": "soon"}), json!({"kind": "Pod", "apiVersion": "v1"}), json!([])] {
        admin.delete_with(&path, &bad).await.refused(400, "BadRequest");
    }
    admin.delete_with(&path, &json!({"preconditions": {"uid": uid, "resourceVersion": revision}})).await.expect(200);
}

#[tokio::test]
async fn finalizers_hold_an_object_and_the_last_one_lets_it_go() {
    let world = World::new().await;
    let admin = world.admin();
    let mut object = config_map("a");
    object["metadata"]["finalizers"] = json!(["x.io/one", "x.io/two"]);
    admin.post(CONFIG_MAPS, &object).await.expect(201);
    let path = format!("{CONFIG_MAPS}/a");
    let marked = admin.delete(&path).await.expect(200);
    assert_eq!(marked["kind"], "ConfigMap");
    assert_eq!(marked["metadata"]["deletionTimestamp"], "2026-01-01T00:00:00Z");
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 0);
    world.clock.advance(10);
    let again = admin.delete(&path).await.expect(200);
    assert_eq!(again, marked, "a second delete changes nothing");
    // An object with a deletionTimestamp can be changed, but no finalizer can be added.
    let said =
        admin.patch(&path, MERGE, &json!({"metadata": {"finalizers": ["x.io/one", "x.io/two", "x.io/new"]}})).await;
    let said = said.refused(422, "Invalid");
    assert!(
        said.contains(
            "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, \
        found new finalizers []string{\"x.io/new\"}"
        ),
        "{said}"
    );
    admin.patch(&path, MERGE, &json!({"metadata": {"deletionTimestamp": null}, "data": {"a": "b"}})).await.expect(200);
    let one = admin.patch(&path, MERGE, &json!({"metadata": {"finalizers": ["x.io/two"]}})).await.expect(200);
    assert_eq!(one["metadata"]["deletionTimestamp"], "2026-01-01T00:00:00Z");
    let mut watching = admin.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={}", version(&one))).await;
    let last = admin.patch(&path, MERGE, &json!({"metadata": {"finalizers": null}})).await.expect(200);
    assert!(last["metadata"].get("finalizers").is_none());
    admin.get(&path).await.refused(404, "NotFound");
    let event = watching.next().await;
    assert_eq!(event["type"], "DELETED");
    assert_eq!(version(&event["object"]), world.store.revision());
    assert_eq!(event["object"]["data"]["a"], "b");
}

#[tokio::test]
async fn pods_are_given_time() {
    let world = World::new().await;
    let admin = world.admin();
    let path = format!("{PODS}/p");
    // (options of the first delete, of the second, what remains: grace period and deadline)
    let cases = [
        (json!({}), None, Some((30, "2026-01-01T00:00:30Z"))),
        (json!({"gracePeriodSeconds": 60}), None, Some((60, "2026-01-01T00:01:00Z"))),
        (json!({"gracePeriodSeconds": 60}), Some(json!({})), Some((60, "2026-01-01T00:01:00Z"))),
        (
            json!({"gracePeriodSeconds": 60}),
            Some(json!({"gracePeriodSeconds": 90})),
            Some((60, "2026-01-01T00:01:00Z")),
        ),
        (json!({"gracePeriodSeconds": 60}), Some(json!({"gracePeriodSeconds": 5})), Some((5, "2026-01-01T00:00:05Z"))),
        (json!({"gracePeriodSeconds": 60}), Some(json!({"gracePeriodSeconds": 0})), None),
        (json!({"gracePeriodSeconds": 0}), None, None),
        (json!({"gracePeriodSeconds": -5}), None, Some((1, "2026-01-01T00:00:01Z"))),
    ];
    for (first, second, left) in cases {
        let made = admin.post(PODS, &scheduled("p")).await.expect(201);
        let generation = made["metadata"]["generation"].as_i64().unwrap();
        let marked = admin.delete_with(&path, &first).await.expect(200);
        assert_eq!(marked["kind"], "Pod");
        if let Some(second) = &second {
            admin.delete_with(&path, second).await.expect(200);
        }
        let now = admin.get(&path).await;
        let Some((grace, deadline)) = left else {
            now.refused(404, "NotFound");
            continue;
        };
        let now = now.expect(200);
        assert_eq!(now["metadata"]["deletionGracePeriodSeconds"], grace, "{first} {second:?}");
        assert_eq!(now["metadata"]["deletionTimestamp"], deadline, "{first} {second:?}");
        assert_eq!(now["metadata"]["generation"], generation + 1, "{first} {second:?}");
        admin.delete_with(&path, &json!({"gracePeriodSeconds": 0})).await.expect(200);
        admin.get(&path).await.refused(404, "NotFound");
    }
}

#[tokio::test]
async fn pods_that_never_ran_or_are_done_go_at_once() {
    let world = World::new().await;
    let admin = world.admin();
    admin.post(PODS, &pod("unscheduled")).await.expect(201);
    admin.delete(&format!("{PODS}/unscheduled")).await.expect(200);
    admin.get(&format!("{PODS}/unscheduled")).await.refused(404, "NotFound");
    for phase in ["Succeeded", "Failed"] {
        admin.post(PODS, &scheduled("done")).await.expect(201);
        admin.patch(&format!("{PODS}/done/status"), MERGE, &json!({"status": {"phase": phase}})).await.expect(200);
        admin.delete(&format!("{PODS}/done")).await.expect(200);
        admin.get(&format!("{PODS}/done")).await.refused(404, "NotFound");
    }
    // A forced delete also waits for finalizers, and removing them then removes the object.
    let mut held = scheduled("held");
    held["metadata"]["finalizers"] = json!(["x.io/y"]);
    admin.post(PODS, &held).await.expect(201);
    let path = format!("{PODS}/held");
    let marked = admin.delete(&format!("{path}?gracePeriodSeconds=0")).await.expect(200);
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 0);
    admin.patch(&path, MERGE, &json!({"metadata": {"finalizers": []}})).await.expect(200);
    admin.get(&path).await.refused(404, "NotFound");
    // During the grace period, removing the last finalizer does not remove the pod.
    admin.post(PODS, &held).await.expect(201);
    admin.delete(&path).await.expect(200);
    admin.patch(&path, MERGE, &json!({"metadata": {"finalizers": []}})).await.expect(200);
    assert_eq!(admin.get(&path).await.expect(200)["metadata"]["deletionGracePeriodSeconds"], 30);
}

#[tokio::test]
async fn cascades_are_remembered_as_finalizers() {
    let world = World::new().await;
    let admin = world.admin();
    let path = format!("{SETS}/s");
    let cases = [
        ("propagationPolicy=Orphan", json!(["orphan"])),
        ("propagationPolicy=Foreground", json!(["foregroundDeletion"])),
        ("orphanDependents=true", json!(["orphan"])),
    ];
    for (query, finalizers) in cases {
        let made = admin.post(SETS, &stateful_set("s")).await.expect(201);
        let marked = admin.delete(&format!("{path}?{query}")).await.expect(200);
        assert_eq!(marked["metadata"]["finalizers"], finalizers, "{query}");
        assert_eq!(marked["metadata"]["generation"], made["metadata"]["generation"].as_i64().unwrap() + 1);
        admin.delete(&format!("{path}?propagationPolicy=Background")).await.expect(200);
        admin.get(&path).await.refused(404, "NotFound");
    }
    admin.post(SETS, &stateful_set("s")).await.expect(201);
    let gone = admin.delete_with(&path, &json!({"propagationPolicy": "Background"})).await.expect(200);
    assert_eq!(gone["status"], "Success");
}

#[tokio::test]
async fn a_collection_is_deleted_by_selection() {
    let world = World::new().await;
    let admin = world.admin();
    world.namespace("other").await;
    for (name, label) in [("a", "x"), ("b", "y"), ("c", "x")] {
        let mut object = config_map(name);
        object["metadata"]["labels"] = json!({"l": label});
        admin.post(CONFIG_MAPS, &object).await.expect(201);
        admin.post("/api/v1/namespaces/other/configmaps", &object).await.expect(201);
    }
    let mut held = config_map("held");
    held["metadata"]["finalizers"] = json!(["x.io/y"]);
    admin.post(CONFIG_MAPS, &held).await.expect(201);
    let deleted = admin.delete(&format!("{CONFIG_MAPS}?labelSelector=l%3Dx")).await.expect(200);
    assert_eq!(names(&deleted), ["a", "c"]);
    assert_eq!(names(&admin.get(CONFIG_MAPS).await.expect(200)), ["b", "held"]);
    admin.delete(&format!("{CONFIG_MAPS}?fieldSelector=metadata.name%3Db")).await.expect(200);
    assert_eq!(names(&admin.get(CONFIG_MAPS).await.expect(200)), ["held"]);
    admin.delete(CONFIG_MAPS).await.expect(200);
    let left = admin.get(CONFIG_MAPS).await.expect(200);
    assert_eq!(left["items"][0]["metadata"]["deletionTimestamp"], "2026-01-01T00:00:00Z");
    assert_eq!(names(&admin.get("/api/v1/namespaces/other/configmaps").await.expect(200)), ["a", "b", "c"]);
    // With a limit, the objects of one page are deleted.
    admin.delete("/api/v1/namespaces/other/configmaps/kube-root-ca.crt").await;
    let deleted = admin.delete("/api/v1/namespaces/other/configmaps?limit=2").await.expect(200);
    assert_eq!(names(&deleted), ["a", "b"]);
    assert_eq!(names(&admin.get("/api/v1/namespaces/other/configmaps").await.expect(200)), ["c"]);
}

#[tokio::test]
async fn a_terminating_namespace_takes_nothing_new() {
    let world = World::new().await;
    let admin = world.admin();
    world.namespace("gone").await;
    let path = "/api/v1/namespaces/gone";
    let maps = format!("{path}/configmaps");
    admin.post(&maps, &config_map("a")).await.expect(201);
    let marked = admin.delete(path).await.expect(200);
    assert_eq!(marked["status"]["phase"], "Terminating");
    assert_eq!(marked["spec"]["finalizers"], json!(["kubernetes"]));
    let refused = admin.post(&maps, &config_map("b")).await;
    assert_eq!(refused.body["details"]["causes"][0]["reason"], "NamespaceTerminating");
    let said = refused.refused(403, "Forbidden");
    assert_eq!(
        said,
        "configmaps \"b\" is forbidden: unable to create new content in namespace gone because it is being terminated"
    );
    admin.patch(&format!("{maps}/a"), MERGE, &json!({"data": {"still": "changes"}})).await.expect(200);
    // When its content is deleted, the controller removes the finalizer.
    let mut emptied = admin.get(path).await.expect(200);
    emptied["spec"]["finalizers"] = json!([]);
    admin.put(&format!("{path}/finalize"), &emptied).await.expect(200);
    admin.get(path).await.refused(404, "NotFound");
    let said = admin.delete("/api/v1/namespaces/default").await.refused(403, "Forbidden");
    assert_eq!(said, "namespaces \"default\" is forbidden: this namespace may not be deleted");
}

#[tokio::test]
async fn evictions_respect_budgets() {
    let world = World::new().await;
    let admin = world.admin();
    for name in ["a", "b"] {
        let mut object = scheduled(name);
        object["metadata"]["labels"] = json!({"app": "db"});
        admin.post(PODS, &object).await.expect(201);
        let ready = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        admin.patch(&format!("{PODS}/{name}/status"), MERGE, &ready).await.expect(200);
    }
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget =
        json!({"metadata": {"name": "db"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "db"}}}});
    let made = admin.post(budgets, &budget).await.expect(201);
    let counts = json!({"status": {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2,
        "observedGeneration": made["metadata"]["generation"]}});
    admin.patch(&format!("{budgets}/db/status"), MERGE, &counts).await.expect(200);
    let evict = |name: &str| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    admin.post(&format!("{PODS}/a/eviction"), &evict("a")).await.expect(201);
    assert_eq!(admin.get(&format!("{PODS}/a")).await.expect(200)["metadata"]["deletionGracePeriodSeconds"], 30);
    let now = admin.get(&format!("{budgets}/db")).await.expect(200);
    assert_eq!(now["status"]["disruptionsAllowed"], 0);
    assert!(now["status"]["disruptedPods"]["a"].is_string(), "{now}");
    let refused = admin.post(&format!("{PODS}/b/eviction"), &evict("b")).await;
    assert_eq!(refused.body["details"]["causes"][0]["reason"], "DisruptionBudget");
    let said = refused.refused(429, "TooManyRequests");
    assert_eq!(said, "Cannot evict pod as it would violate the pod's disruption budget.");
}
