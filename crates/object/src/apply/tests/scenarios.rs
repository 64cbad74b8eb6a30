use super::*;

fn run(kind: &str, live: Option<&Value>, config: &Value, manager: &str, force: bool) -> Result<Value, Status> {
    let version = config["apiVersion"].as_str().unwrap_or("").to_owned();
    apply(&builtin_type(kind), live, config, &writer(manager, &version, 100), force)
}

fn applied(kind: &str, live: Option<&Value>, config: &Value, manager: &str) -> Value {
    run(kind, live, config, manager, false).unwrap()
}

fn updated(kind: &str, old: Option<&Value>, mut new: Value, manager: &str) -> Value {
    let version = new["apiVersion"].as_str().unwrap_or("").to_owned();
    track(&builtin_type(kind), old, &mut new, &writer(manager, &version, 50));
    new
}

fn stateful_set(spec: Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "web", "namespace": "default"}, "spec": spec})
}

#[test]
fn one_conflict_has_upstreams_message() {
    let live = updated(STATEFUL_SET, None, stateful_set(json!({"replicas": 1})), "kubectl-client-side-apply");
    let config = stateful_set(json!({"replicas": 3}));
    let status = run(STATEFUL_SET, Some(&live), &config, "me", false).unwrap_err();
    assert_eq!((status.code, status.reason), (409, "Conflict"));
    assert_eq!(
        status.message,
        "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using apps/v1: .spec.replicas"
    );
    let cause = &status.details.as_ref().unwrap().causes[0];
    assert_eq!(cause.reason, "FieldManagerConflict");
    assert_eq!(cause.field, ".spec.replicas");
    assert_eq!(cause.message, "conflict with \"kubectl-client-side-apply\" using apps/v1");

    let forced = run(STATEFUL_SET, Some(&live), &config, "me", true).unwrap();
    assert_eq!(forced["spec"]["replicas"], 3);
    assert_eq!(managers(&forced), ["me/Apply"]);
}

#[test]
fn several_conflicts_are_listed_by_manager() {
    let pod = |image: &str, policy: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
               "spec": {"containers": [{"name": "c", "image": image}], "restartPolicy": policy}})
    };
    let live = applied(POD, None, &pod("a", "Always"), "first");
    let mut scaled = live.clone();
    scaled["spec"]["restartPolicy"] = json!("Never");
    let live = {
        let mut new = scaled;
        let scale = Writer { subresource: "scale", ..writer("second", "v1", 60) };
        track(&builtin_type(POD), Some(&live), &mut new, &scale);
        new
    };
    let status = run(POD, Some(&live), &pod("b", "OnFailure"), "me", false).unwrap_err();
    assert_eq!(
        status.message,
        "Apply failed with 2 conflicts: conflicts with \"first\":\n- .spec.containers[name=\"c\"].image\n\
         conflicts with \"second\" with subresource \"scale\" using v1:\n- .spec.restartPolicy"
    );
    assert_eq!(status.details.unwrap().causes.len(), 2);
}

#[test]
fn equal_values_are_shared() {
    let config = config_map(json!({"a": "1"}));
    let live = applied(CONFIG_MAP, None, &config, "one");
    let live = applied(CONFIG_MAP, Some(&live), &config, "two");
    assert_eq!(fields(&live, "one", "Apply"), fields(&live, "two", "Apply"));
    // One of two owners removes the field: it stays. When the other owner removes it too, it is deleted.
    let live = applied(CONFIG_MAP, Some(&live), &config_map(json!({"x": "1"})), "one");
    assert_eq!(live["data"], json!({"a": "1", "x": "1"}));
    let live = applied(CONFIG_MAP, Some(&live), &config_map(json!({"y": "1"})), "two");
    assert_eq!(live["data"], json!({"x": "1", "y": "1"}));
    // When the last field of the map is removed, the map is removed too.
    let without_data =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "default"}});
    let live = applied(CONFIG_MAP, Some(&live), &without_data, "one");
    let live = applied(CONFIG_MAP, Some(&live), &without_data, "two");
    assert_eq!(live.get("data"), None);
    assert_eq!(live["metadata"], json!({"name": "m", "namespace": "default", "managedFields": []}));
}

#[test]
fn removed_fields_that_another_manager_changed_stay() {
    let live = applied(CONFIG_MAP, None, &config_map(json!({"a": "1", "b": "1"})), "me");
    let mut edited = live.clone();
    edited["data"]["a"] = json!("2");
    edited["data"]["theirs"] = json!("3");
    let live = updated(CONFIG_MAP, Some(&live), edited, "other");
    let live = applied(CONFIG_MAP, Some(&live), &config_map(json!({})), "me");
    assert_eq!(live["data"], json!({"a": "2", "theirs": "3"}));
    assert_eq!(fields(&live, "other", "Update"), json!({"f:data": {"f:a": {}, "f:theirs": {}}}));
}

#[test]
fn list_items_are_matched_with_key_defaults_and_kept_in_order() {
    let service = |ports: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": ports}});
    let config = service(json!([{"port": 80, "name": "http"}]));
    let live = applied(SERVICE, None, &config, "me");
    assert_eq!(
        fields(&live, "me", "Apply"),
        json!({"f:spec": {"f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}, "f:name": {}}}}})
    );
    // Defaulting added fields without a manager, and another client added a port.
    let mut defaulted = live;
    defaulted["spec"]["ports"] = json!([{"port": 80, "name": "http", "protocol": "TCP", "targetPort": 80}]);
    let mut edited = defaulted.clone();
    edited["spec"]["ports"] = json!([
        {"port": 443, "name": "tls", "protocol": "TCP"},
        {"port": 80, "name": "http", "protocol": "TCP", "targetPort": 80}
    ]);
    let live = updated(SERVICE, Some(&defaulted), edited, "other");
    let again =
        applied(SERVICE, Some(&live), &service(json!([{"port": 80, "name": "web"}, {"port": 81, "name": "b"}])), "me");
    assert_eq!(
        again["spec"]["ports"],
        json!([
            {"port": 443, "name": "tls", "protocol": "TCP"},
            {"port": 80, "name": "web", "protocol": "TCP", "targetPort": 80},
            {"port": 81, "name": "b"}
        ])
    );
    let without = applied(SERVICE, Some(&again), &service(json!([])), "me");
    assert_eq!(without["spec"]["ports"], json!([{"port": 443, "name": "tls", "protocol": "TCP"}]));
}

#[test]
fn sets_are_merged_and_atomic_values_have_one_owner() {
    let object = |finalizers: Value, selector: Value| {
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "w", "finalizers": finalizers},
               "spec": {"selector": {"matchLabels": selector}}})
    };
    let live = applied(STATEFUL_SET, None, &object(json!(["x/a"]), json!({"a": "1"})), "one");
    assert_eq!(
        fields(&live, "one", "Apply"),
        json!({"f:metadata": {"f:finalizers": {"v:\"x/a\"": {}}}, "f:spec": {"f:selector": {}}})
    );
    let status = run(STATEFUL_SET, Some(&live), &object(json!(["x/b"]), json!({"b": "1"})), "two", false).unwrap_err();
    assert!(status.message.ends_with("conflict with \"one\": .spec.selector"), "{}", status.message);
    let both = run(STATEFUL_SET, Some(&live), &object(json!(["x/b"]), json!({"b": "1"})), "two", true).unwrap();
    assert_eq!(both["metadata"]["finalizers"], json!(["x/a", "x/b"]));
    assert_eq!(both["spec"]["selector"], json!({"matchLabels": {"b": "1"}}));
    assert_eq!(fields(&both, "one", "Apply"), json!({"f:metadata": {"f:finalizers": {"v:\"x/a\"": {}}}}));
}

#[test]
fn fields_of_unmanaged_objects_belong_to_before_first_apply() {
    let live = config_map(json!({"a": "1", "b": "1"}));
    let status = run(CONFIG_MAP, Some(&live), &config_map(json!({"a": "2"})), "me", false).unwrap_err();
    assert_eq!(status.message, "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .data.a");
    let taken = run(CONFIG_MAP, Some(&live), &config_map(json!({"a": "2"})), "me", true).unwrap();
    assert_eq!(managers(&taken), ["me/Apply", "before-first-apply/Update"]);
    assert_eq!(fields(&taken, "before-first-apply", "Update"), json!({"f:data": {".": {}, "f:b": {}}}));
}

#[test]
fn kubectl_migrates_from_client_side_to_server_side_without_conflicts() {
    let annotation = "kubectl.kubernetes.io/last-applied-configuration";
    let mut object = config_map(json!({"a": "1", "b": "1"}));
    object["metadata"]["annotations"] = json!({annotation: config_map(json!({"a": "1", "b": "1"})).to_string()});
    let live = updated(CONFIG_MAP, None, object, "kubectl-client-side-apply");
    let mut edited = live.clone();
    edited["data"]["b"] = json!("2");
    let live = updated(CONFIG_MAP, Some(&live), edited, "editor");

    let status = run(CONFIG_MAP, Some(&live), &config_map(json!({"a": "9", "b": "9"})), "kubectl", false).unwrap_err();
    assert_eq!(status.message, "Apply failed with 1 conflict: conflict with \"editor\" using v1: .data.b");
    let config = config_map(json!({"a": "9"}));
    let live = applied(CONFIG_MAP, Some(&live), &config, "kubectl");
    assert_eq!(live["data"], json!({"a": "9", "b": "2"}));
    assert_eq!(live["metadata"]["annotations"][annotation], format!("{config}\n"));

    // Another manager name does not migrate, so it gets the conflict.
    assert!(run(CONFIG_MAP, Some(&live), &config_map(json!({"a": "8"})), "me", false).is_err());
}

#[test]
fn kubectls_migration_patch_of_managed_fields_goes_through_track() {
    let live = updated(CONFIG_MAP, None, config_map(json!({"a": "1", "b": "1"})), "kubectl-client-side-apply");
    let mut entry = live["metadata"]["managedFields"][0].clone();
    entry["manager"] = json!("kubectl");
    entry["operation"] = json!("Apply");
    let patch = json!([
        {"op": "replace", "path": "/metadata/managedFields", "value": [entry]},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "5"},
    ]);
    let mut base = live.clone();
    base["metadata"]["resourceVersion"] = json!("5");
    let migrated = updated(CONFIG_MAP, Some(&live), crate::patch::json(&base, &patch).unwrap(), "kubectl");
    assert_eq!(managers(&migrated), ["kubectl/Apply"]);
    let live = applied(CONFIG_MAP, Some(&migrated), &config_map(json!({"a": "2"})), "kubectl");
    assert_eq!(live["data"], json!({"a": "2"}));
}

#[test]
fn invalid_configurations_are_refused_with_one_sentence() {
    let pod = |spec: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": spec});
    let mut managed = pod(json!({}));
    managed["metadata"]["managedFields"] = json!([]);
    let typed = "failed to create typed patch object (n/p; /v1, Kind=Pod): ";
    let cases = [
        (managed, "metadata.managedFields must be nil".to_owned()),
        (
            pod(json!({"containers": [{"name": "c"}, {"name": "c"}]})),
            format!("{typed}.spec.containers: duplicate entries for key [name=\"c\"]"),
        ),
        (pod(json!({"frob": 1})), format!("{typed}.spec.frob: field not declared in schema")),
        (pod(json!({"containers": {}})), format!("{typed}.spec.containers: expected list, got map")),
        (
            pod(json!({"containers": [{"image": "x"}], "volumes": [1]})),
            format!(
                "{typed}errors:\n  .spec.containers: element 0: associative list with keys has an element that omits all key \
                 fields (and doesn't have default values for any key fields)\n  .spec.volumes: element 0: associative list with \
                 keys may not have non-map elements"
            ),
        ),
        (json!([]), "an applied configuration must be an object".to_owned()),
    ];
    for (config, message) in cases {
        let status = apply(&builtin_type(POD), None, &config, &writer("me", "v1", 1), false).unwrap_err();
        assert_eq!((status.code, status.message.as_str()), (400, message.as_str()));
    }
    let status = apply(&builtin_type(POD), None, &pod(json!({})), &writer("me", "v2", 1), false).unwrap_err();
    assert!(status.message.contains("Specified patch version: v1, expected: v2"));
}

#[test]
fn an_applier_keeps_one_entry_and_its_time_when_nothing_changes() {
    let config = config_map(json!({"a": "1"}));
    let live = applied(CONFIG_MAP, None, &config, "me");
    let later = Writer { now: jiff::Timestamp::from_second(500).unwrap(), ..writer("me", "v1", 0) };
    let again = apply(&builtin_type(CONFIG_MAP), Some(&live), &config, &later, false).unwrap();
    assert_eq!(again, live);
    let more =
        apply(&builtin_type(CONFIG_MAP), Some(&live), &config_map(json!({"a": "1", "b": "1"})), &later, false).unwrap();
    assert_eq!(managers(&more), ["me/Apply"]);
    assert_eq!(more["metadata"]["managedFields"][0]["time"], "1970-01-01T00:08:20Z");
}

#[test]
fn status_is_applied_only_through_its_subresource() {
    let live = applied(
        POD,
        None,
        &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
                                         "spec": {"nodeName": "n"}, "status": {"phase": "Failed"}}),
        "me",
    );
    assert_eq!(fields(&live, "me", "Apply"), json!({"f:spec": {"f:nodeName": {}}}));
    let status = Writer { subresource: "status", ..writer("me", "v1", 1) };
    let config = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"nodeName": "other"},
                        "status": {"phase": "Running"}});
    let live = apply(&builtin_type(POD), Some(&live), &config, &status, false).unwrap();
    let entries = live.items(&["metadata", "managedFields"]);
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[0]["fieldsV1"], json!({"f:status": {"f:phase": {}}}));
    assert_eq!(entries[0]["subresource"], "status");
}
