//! Create and update: names, versions, preconditions, generations, ownership.

use crate::support::*;
use serde_json::{Value, json};

#[tokio::test]
async fn creating_gives_identity_and_ignores_what_the_client_claims() {
    let world = World::new().await;
    let mut wanted = config_map("a");
    wanted["metadata"] = json!({"name": "a", "uid": "mine", "generation": 9, "creationTimestamp": "2001-01-01T00:00:00Z",
        "deletionTimestamp": "2001-01-01T00:00:00Z", "deletionGracePeriodSeconds": 5, "selfLink": "/x", "labels": {}});
    let made = world.admin().post(CONFIG_MAPS, &wanted).await.expect(201);
    let meta = &made["metadata"];
    assert_eq!(meta["namespace"], "default");
    assert_eq!(meta["creationTimestamp"], "2026-01-01T00:00:00Z");
    assert_ne!(meta["uid"], "mine");
    for absent in ["generation", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "labels"] {
        assert!(meta.get(absent).is_none(), "{absent}: {meta}");
    }
    assert_eq!(world.admin().get(&format!("{CONFIG_MAPS}/a")).await.expect(200), made);
    assert_eq!(version(&made), world.store.revision());
}

#[tokio::test]
async fn what_cannot_be_created() {
    let world = World::new().await;
    let admin = world.admin();
    admin.post(CONFIG_MAPS, &config_map("there")).await.expect(201);
    let cases = [
        (CONFIG_MAPS, config_map("there"), 409, "AlreadyExists", "configmaps \"there\" already exists"),
        (SETS, stateful_set("Bad"), 422, "Invalid", "StatefulSet.apps \"Bad\" is invalid: "),
        (
            CONFIG_MAPS,
            json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {}}),
            422,
            "Invalid",
            "ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required",
        ),
        (
            CONFIG_MAPS,
            json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "x"}}),
            400,
            "BadRequest",
            "Secret",
        ),
        (
            CONFIG_MAPS,
            json!({"kind": "ConfigMap", "apiVersion": "v2", "metadata": {"name": "x"}}),
            400,
            "BadRequest",
            "the API version in the data (v2) does not match the expected API version (v1)",
        ),
        (
            CONFIG_MAPS,
            json!({"metadata": {"name": "x", "namespace": "other"}}),
            400,
            "BadRequest",
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            CONFIG_MAPS,
            json!({"metadata": {"name": "x", "resourceVersion": "7"}}),
            400,
            "BadRequest",
            "resourceVersion should not be set on objects to be created",
        ),
        ("/api/v1/configmaps", config_map("x"), 400, "BadRequest", "an empty namespace may not be set during creation"),
        ("/api/v1/namespaces/absent/configmaps", config_map("x"), 404, "NotFound", "namespaces \"absent\" not found"),
    ];
    for (path, body, code, reason, message) in cases {
        let said = admin.post(path, &body).await.refused(code, reason);
        assert!(said.contains(message), "{path}: {said}");
    }
    let exists = admin.post(CONFIG_MAPS, &config_map("there")).await.expect(409);
    assert_eq!(exists["details"], json!({"name": "there", "kind": "configmaps"}));
}

#[tokio::test]
async fn generated_names_are_new_and_fit() {
    let world = World::new().await;
    let admin = world.admin();
    // The suffixes count up in this test: taken names are skipped.
    for taken in ["job-00000", "job-00001"] {
        admin.post(CONFIG_MAPS, &config_map(taken)).await.expect(201);
    }
    let ask = json!({"metadata": {"generateName": "job-"}});
    let made = admin.post(CONFIG_MAPS, &ask).await.expect(201);
    assert_eq!(made["metadata"]["name"], "job-00002");
    assert_eq!(made["metadata"]["generateName"], "job-");
    let long = json!({"metadata": {"generateName": "x".repeat(80)}});
    let made = admin.post(CONFIG_MAPS, &long).await.expect(201);
    assert_eq!(text(&made, "/metadata/name").len(), 63);
    // A given name takes precedence.
    let both = json!({"metadata": {"name": "own", "generateName": "job-"}});
    assert_eq!(admin.post(CONFIG_MAPS, &both).await.expect(201)["metadata"]["name"], "own");
}

#[tokio::test]
async fn a_stale_version_or_another_uid_is_a_conflict() {
    let world = World::new().await;
    let admin = world.admin();
    let path = format!("{CONFIG_MAPS}/a");
    let first = admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let mut second = first.clone();
    second["data"]["key"] = json!("two");
    let second = admin.put(&path, &second).await.expect(200);
    assert!(version(&second) > version(&first));

    let modified = "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your \
                    changes to the latest version and try again";
    let mut stale = first.clone();
    stale["data"]["key"] = json!("three");
    let refused = admin.put(&path, &stale).await;
    assert_eq!(refused.body["details"], json!({"name": "a", "kind": "configmaps"}));
    assert_eq!(refused.refused(409, "Conflict"), modified);
    let old = json!({"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}, "data": {"x": "y"}});
    assert_eq!(admin.patch(&path, MERGE, &old).await.refused(409, "Conflict"), modified);

    let mut other = second.clone();
    other["metadata"]["uid"] = json!("11111111-2222-3333-4444-555555555555");
    let said = admin.put(&path, &other).await.refused(409, "Conflict");
    let uid = text(&second, "/metadata/uid");
    assert_eq!(
        said,
        format!(
            "Operation cannot be fulfilled on configmaps \"a\": Precondition failed: UID in precondition: \
        11111111-2222-3333-4444-555555555555, UID in object meta: {uid}"
        )
    );

    // Without a version the last write wins.
    let mut blind = config_map("a");
    blind["data"]["key"] = json!("four");
    assert_eq!(admin.put(&path, &blind).await.expect(200)["data"]["key"], "four");
    let mut bad = blind.clone();
    bad["metadata"]["resourceVersion"] = json!("new");
    admin.put(&path, &bad).await.refused(422, "Invalid");
}

#[tokio::test]
async fn only_one_of_many_writers_of_a_version_wins() {
    let world = World::contended().await;
    let admin = world.admin();
    let path = format!("{CONFIG_MAPS}/a");
    let first = admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let writes = (0..20).map(|writer| {
        let (admin, path, mut mine) = (admin.clone(), path.clone(), first.clone());
        mine["data"]["key"] = json!(writer.to_string());
        async move { admin.put(&path, &mine).await.code }
    });
    let codes = futures::future::join_all(writes).await;
    assert_eq!(codes.iter().filter(|code| **code == 200).count(), 1, "{codes:?}");
    assert_eq!(codes.iter().filter(|code| **code == 409).count(), 19, "{codes:?}");
    // Patches without a version all succeed.
    let patches = (0..20).map(|writer| {
        let (admin, path) = (admin.clone(), path.clone());
        async move { admin.patch(&path, MERGE, &json!({"data": {writer.to_string(): "here"}})).await.expect(200) }
    });
    futures::future::join_all(patches).await;
    assert_eq!(admin.get(&path).await.expect(200)["data"].as_object().unwrap().len(), 21);
}

#[tokio::test]
async fn a_write_that_changes_nothing_is_not_written() {
    let world = World::new().await;
    let admin = world.admin();
    for (collection, object) in [
        (CONFIG_MAPS, config_map("a")),
        (PODS, scheduled("a")),
        (SETS, stateful_set("a")),
        (CLAIMS, claim("a", "", "1Gi")),
    ] {
        let made = admin.post(collection, &object).await.expect(201);
        let path = format!("{collection}/a");
        let before = world.store.revision();
        world.clock.advance(5);
        assert_eq!(admin.put(&path, &made).await.expect(200), made);
        assert_eq!(admin.patch(&path, MERGE, &json!({})).await.expect(200), made);
        assert_eq!(admin.patch(&path, STRATEGIC, &json!({"metadata": {"labels": null}})).await.expect(200), made);
        assert_eq!(admin.patch(&path, JSON_PATCH, &json!([])).await.expect(200), made);
        assert_eq!(world.store.revision(), before, "{path}");
    }
}

#[tokio::test]
async fn generations_count_changes_of_the_spec_only() {
    let world = World::new().await;
    let admin = world.admin();
    let made = admin.post(SETS, &stateful_set("a")).await.expect(201);
    assert_eq!(made["metadata"]["generation"], 1);
    let path = format!("{SETS}/a");
    let status = format!("{path}/status");
    let cases = [
        (&path, json!({"metadata": {"labels": {"a": "b"}}}), 1),
        (&path, json!({"status": {"replicas": 7}}), 1),
        (&status, json!({"status": {"replicas": 1, "observedGeneration": 1}}), 1),
        (&path, json!({"spec": {"replicas": 3}}), 2),
        (&path, json!({"spec": {"replicas": 3}}), 2),
        (&status, json!({"spec": {"replicas": 9}}), 2),
        (&path, json!({"metadata": {"generation": 77}}), 2),
        (&path, json!({"spec": {"template": {"metadata": {"annotations": {"x": "y"}}}}}), 3),
    ];
    for (path, patch, generation) in cases {
        let now = admin.patch(path, MERGE, &patch).await.expect(200);
        assert_eq!(now["metadata"]["generation"], generation, "{path} {patch}");
    }
    let now = admin.get(&path).await.expect(200);
    assert_eq!(now["status"]["replicas"], 1, "status is changed through its subresource alone");
    assert_eq!(now["spec"]["replicas"], 3, "and nothing else through it");
}

#[tokio::test]
async fn system_metadata_stays_as_it_is() {
    let world = World::new().await;
    let admin = world.admin();
    let made = admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let path = format!("{CONFIG_MAPS}/a");
    let cases = [
        json!({"creationTimestamp": "2001-01-01T00:00:00Z"}),
        json!({"creationTimestamp": null}),
        json!({"deletionTimestamp": "2001-01-01T00:00:00Z"}),
        json!({"deletionGracePeriodSeconds": 3}),
        json!({"generation": 5}),
        json!({"selfLink": "/x"}),
        json!({"uid": null}),
        json!({"generateName": "b-"}),
    ];
    for metadata in cases {
        let patched = admin.patch(&path, MERGE, &json!({"metadata": metadata})).await;
        assert!(patched.code == 200 || patched.code == 422, "{metadata}: {}", patched.body);
        assert_eq!(admin.get(&path).await.expect(200), made, "{metadata}");
    }
    let said = admin.patch(&path, MERGE, &json!({"metadata": {"name": "b"}})).await.refused(400, "BadRequest");
    assert!(said.contains("the name of the object (b) does not match the name on the URL (a)"), "{said}");
    let moved = admin.patch(&path, MERGE, &json!({"metadata": {"namespace": "b"}})).await;
    assert!(matches!(moved.code, 400 | 422), "{}", moved.body);
}

#[tokio::test]
async fn an_update_goes_to_the_object_it_names() {
    let world = World::new().await;
    let admin = world.admin();
    admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let path = format!("{CONFIG_MAPS}/a");
    let cases = [
        (
            path.clone(),
            config_map("b"),
            400,
            "BadRequest",
            "the name of the object (b) does not match the name on the URL (a)",
        ),
        (
            path.clone(),
            json!({"metadata": {"name": "a", "namespace": "b"}}),
            400,
            "BadRequest",
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (path.clone(), json!({"data": {}}), 400, "BadRequest", "name must be provided"),
        (format!("{CONFIG_MAPS}/absent"), config_map("absent"), 404, "NotFound", "configmaps \"absent\" not found"),
        (path.clone(), json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}}), 400, "BadRequest", "Pod"),
    ];
    for (path, body, code, reason, message) in cases {
        let said = admin.put(&path, &body).await.refused(code, reason);
        assert!(said.contains(message), "{path} {body}: {said}");
    }
    admin.put(CONFIG_MAPS, &config_map("a")).await.refused(405, "MethodNotAllowed");
    admin.post(&path, &config_map("a")).await.refused(405, "MethodNotAllowed");
    admin.send("PATCH", CONFIG_MAPS, MERGE, "{}").await.refused(405, "MethodNotAllowed");
}

#[tokio::test]
async fn a_dry_run_answers_as_if_and_changes_nothing() {
    let world = World::new().await;
    let admin = world.admin();
    let made = admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let path = format!("{CONFIG_MAPS}/a");
    admin.post(PODS, &scheduled("p")).await.expect(201);
    admin.post(SETS, &stateful_set("s")).await.expect(201);
    let before = world.store.revision();

    let would = admin.post(&format!("{CONFIG_MAPS}?dryRun=All"), &config_map("b")).await.expect(201);
    assert_eq!(would["metadata"]["name"], "b");
    assert!(!text(&would, "/metadata/uid").is_empty());
    admin.post(&format!("{CONFIG_MAPS}?dryRun=All"), &config_map("a")).await.refused(409, "AlreadyExists");
    let mut changed = made.clone();
    changed["data"]["key"] = json!("other");
    let would = admin.put(&format!("{path}?dryRun=All"), &changed).await.expect(200);
    assert_eq!(would["data"]["key"], "other");
    assert_eq!(would["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    let would = admin.patch(&format!("{path}?dryRun=All"), MERGE, &json!({"data": {"key": "new"}})).await.expect(200);
    assert_eq!(would["data"]["key"], "new");
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "b"}});
    admin.apply(&format!("{CONFIG_MAPS}/c?dryRun=All"), "me", &applied).await.expect(201);
    admin.delete(&format!("{path}?dryRun=All")).await.expect(200);
    admin.delete_with(&path, &json!({"dryRun": ["All"]})).await.expect(200);
    admin.delete(&format!("{CONFIG_MAPS}?dryRun=All")).await.expect(200);
    let marked = admin.delete(&format!("{PODS}/p?dryRun=All")).await.expect(200);
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    let scale = json!({"spec": {"replicas": 5}});
    let scaled = admin.patch(&format!("{SETS}/s/scale?dryRun=All"), MERGE, &scale).await.expect(200);
    assert_eq!(scaled["spec"]["replicas"], 5);
    let status = json!({"status": {"replicas": 5}});
    admin.patch(&format!("{SETS}/s/status?dryRun=All"), MERGE, &status).await.expect(200);
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p", "namespace": "default"}});
    admin.post(&format!("{PODS}/p/eviction?dryRun=All"), &eviction).await.expect(201);

    assert_eq!(world.store.revision(), before, "nothing was written");
    let said = admin.post(&format!("{CONFIG_MAPS}?dryRun=Some"), &config_map("z")).await.refused(422, "Invalid");
    assert_eq!(
        said,
        "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: \"Some\": supported values: \"All\""
    );
    // Invalid values of dryRun must not cause a real write.
    for word in ["all", "", "None"] {
        let options = json!({"dryRun": [word]});
        let eviction = json!({"metadata": {"name": "p"}, "deleteOptions": options});
        for refused in [
            admin.delete_with(&path, &options).await,
            admin.delete_with(CONFIG_MAPS, &options).await,
            admin.delete_with(&format!("{PODS}/p"), &json!({"dryRun": ["All", word]})).await,
            admin.post(&format!("{PODS}/p/eviction"), &eviction).await,
        ] {
            let said = refused.refused(422, "Invalid");
            let why = format!("dryRun: Unsupported value: {word:?}: supported values: \"All\"");
            assert_eq!(said, format!("DeleteOptions.meta.k8s.io \"\" is invalid: {why}"));
        }
    }
    let long = format!("{path}?fieldManager={}", "m".repeat(129));
    let said = admin.patch(&long, MERGE, &json!({})).await.refused(422, "Invalid");
    assert!(said.starts_with("PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Too long: "), "{said}");
    assert_eq!(names(&admin.get(CONFIG_MAPS).await.expect(200)), ["a"]);
}

#[tokio::test]
async fn pods_change_in_the_few_ways_they_may() {
    let world = World::new().await;
    let admin = world.admin();
    admin.post(PODS, &pod("p")).await.expect(201);
    let path = format!("{PODS}/p");
    let ok: [Value; 4] = [
        json!({"metadata": {"labels": {"a": "b"}}}),
        json!({"spec": {"containers": [{"name": "main", "image": "registry.local/app:2"}]}}),
        json!({"spec": {"activeDeadlineSeconds": 100}}),
        json!({"spec": {"tolerations": [{"key": "x", "operator": "Exists"}]}}),
    ];
    for patch in ok {
        admin.patch(&path, STRATEGIC, &patch).await.expect(200);
    }
    let bad: [Value; 3] = [
        json!({"spec": {"restartPolicy": "Never"}}),
        json!({"spec": {"nodeName": "n"}}),
        json!({"spec": {"containers": [{"name": "main", "command": ["x"]}]}}),
    ];
    for patch in bad {
        let said = admin.patch(&path, STRATEGIC, &patch).await.refused(422, "Invalid");
        assert!(said.contains("pod updates may not change fields other than"), "{patch}: {said}");
    }
    // Scheduling uses the binding subresource.
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n-1"}});
    admin.post(&format!("{path}/binding"), &binding).await.expect(201);
    let bound = admin.get(&path).await.expect(200);
    assert_eq!(bound["spec"]["nodeName"], "n-1");
    let condition = &bound["status"]["conditions"][0];
    assert_eq!((condition["type"].as_str(), condition["status"].as_str()), (Some("PodScheduled"), Some("True")));
    let said = admin.post(&format!("{path}/binding"), &binding).await.refused(409, "Conflict");
    assert_eq!(said, "Operation cannot be fulfilled on pods/binding \"p\": pod p is already assigned to node \"n-1\"");
}

/// A17: the generation counts changes of the spec only.
#[tokio::test]
async fn labels_and_status_leave_the_generation() {
    let world = World::new().await;
    let admin = world.admin();
    let made = admin.post(SETS, &stateful_set("web")).await.expect(201);
    let path = format!("{SETS}/web");
    let marked = json!({"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}});
    let marked = admin.patch(&path, MERGE, &marked).await.expect(200);
    assert_eq!(marked["metadata"]["labels"]["a"], "b");
    let status = json!({"status": {"replicas": 1}});
    let now = admin.patch(&format!("{path}/status"), MERGE, &status).await.expect(200);
    assert_eq!(now["status"]["replicas"], 1);
    for object in [marked, now] {
        assert_eq!(object["metadata"]["generation"], made["metadata"]["generation"]);
    }
}

/// A26: operations of clients that handle many sets at once.
#[tokio::test]
async fn sets_are_listed_patched_and_deleted_by_label() {
    let world = World::new().await;
    let admin = world.admin();
    for (name, tier) in [("a", "one"), ("b", "one"), ("c", "two")] {
        let mut set = stateful_set(name);
        set["metadata"]["labels"] = json!({"tier": tier});
        admin.post(SETS, &set).await.expect(201);
    }
    let selected = format!("{SETS}?labelSelector=tier%3Done");
    assert_eq!(names(&admin.get(&selected).await.expect(200)), ["a", "b"]);
    let before = admin.get(&format!("{SETS}/a")).await.expect(200);
    let container = &before["spec"]["template"]["spec"]["containers"][0]["name"];
    let patch = json!({
        "metadata": {"labels": {"patched": "yes"}},
        "spec": {"replicas": 3, "template": {"spec": {"containers": [{"name": container, "image": "next"}]}}},
    });
    let patched = admin.patch(&format!("{SETS}/a"), STRATEGIC, &patch).await.expect(200);
    assert_eq!(patched["metadata"]["labels"], json!({"tier": "one", "patched": "yes"}));
    assert_eq!((&patched["spec"]["replicas"], &patched["metadata"]["generation"]), (&json!(3), &json!(2)));
    let containers = patched["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    assert_eq!((containers.len(), &containers[0]["image"]), (1, &json!("next")));
    admin.delete(&selected).await.expect(200);
    assert_eq!(names(&admin.get(SETS).await.expect(200)), ["c"]);
}

/// A22.
#[tokio::test]
async fn scale_is_the_replicas_of_a_set() {
    let world = World::new().await;
    let admin = world.admin();
    let made = admin.post(SETS, &stateful_set("web")).await.expect(201);
    let path = format!("{SETS}/web/scale");
    let scale = admin.get(&path).await.expect(200);
    assert_eq!((scale["apiVersion"].as_str(), scale["kind"].as_str()), (Some("autoscaling/v1"), Some("Scale")));
    assert_eq!(scale["spec"]["replicas"], 2);
    assert_eq!(scale["status"]["selector"], "app=web");
    assert_eq!(scale["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    let mut wanted = scale.clone();
    wanted["spec"]["replicas"] = json!(5);
    assert_eq!(admin.put(&path, &wanted).await.expect(200)["spec"]["replicas"], 5);
    admin.put(&path, &wanted).await.refused(409, "Conflict");
    wanted["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    wanted["spec"]["replicas"] = json!(6);
    assert_eq!(admin.put(&path, &wanted).await.expect(200)["spec"]["replicas"], 6);
    let other = json!({"metadata": {"uid": "another"}, "spec": {"replicas": 7}});
    admin.patch(&path, MERGE, &other).await.refused(409, "Conflict");
    for media in [MERGE, STRATEGIC] {
        let scaled = admin.patch(&path, media, &json!({"spec": {"replicas": 1}})).await.expect(200);
        assert_eq!(scaled["spec"]["replicas"], 1);
    }
    let set = admin.get(&format!("{SETS}/web")).await.expect(200);
    assert_eq!((&set["spec"]["replicas"], &set["metadata"]["generation"]), (&json!(1), &json!(4)));
    admin.patch(&path, MERGE, &json!({"spec": {"replicas": -1}})).await.refused(422, "Invalid");
    admin.patch(&path, MERGE, &json!({"spec": {"replicas": "x"}})).await.refused(400, "BadRequest");
}
