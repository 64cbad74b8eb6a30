use super::*;

fn tracked(kind: &str, old: Option<&Value>, mut new: Value, writer: &Writer) -> Value {
    track(&builtin_type(kind), old, &mut new, writer);
    new
}

#[test]
fn a_creator_owns_the_fields_it_set_in_upstreams_form() {
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "web", "namespace": "default", "uid": "u", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z",
                     "labels": {"app": "web"}},
        "spec": {
            "replicas": 2, "serviceName": "web", "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": "i", "resources": {}, "ports": [{"containerPort": 80}],
                                         "resources": {"requests": {"cpu": "1"}}}],
                         "securityContext": {}, "restartPolicy": "Always"}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
        },
        "status": {"replicas": 0},
    });
    let created = tracked(STATEFUL_SET, None, set, &writer("kubectl-create", "apps/v1", 10));
    let entry = &created["metadata"]["managedFields"][0];
    assert_eq!(
        *entry,
        json!({
            "manager": "kubectl-create", "operation": "Update", "apiVersion": "apps/v1", "time": "1970-01-01T00:00:10Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
                "f:spec": {
                    "f:replicas": {}, "f:serviceName": {}, "f:selector": {},
                    "f:template": {
                        "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
                        "f:spec": {
                            "f:containers": {"k:{\"name\":\"c\"}": {
                                ".": {}, "f:name": {}, "f:image": {},
                                "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}},
                                "f:resources": {".": {}, "f:requests": {".": {}, "f:cpu": {}}},
                            }},
                            "f:securityContext": {}, "f:restartPolicy": {},
                        }},
                    "f:updateStrategy": {"f:type": {}, "f:rollingUpdate": {".": {}, "f:partition": {}}},
                },
            },
        })
    );
}

#[test]
fn a_change_moves_ownership_and_a_removal_ends_it() {
    let old = tracked(CONFIG_MAP, None, config_map(json!({"a": "1", "b": "1"})), &writer("one", "v1", 1));
    let mut new = old.clone();
    new["data"] = json!({"a": "2", "c": "1"});
    let new = tracked(CONFIG_MAP, Some(&old), new, &writer("two", "v1", 2));
    assert_eq!(fields(&new, "one", "Update"), json!({"f:data": {}}));
    assert_eq!(fields(&new, "two", "Update"), json!({"f:data": {"f:a": {}, "f:c": {}}}));

    // All fields of one manager get a new owner, so its entry is removed.
    let mut next = new.clone();
    next.cut(&["data"]);
    let next = tracked(CONFIG_MAP, Some(&new), next, &writer("three", "v1", 3));
    assert_eq!(next["metadata"].get("managedFields"), None);
}

#[test]
fn nothing_changes_when_nothing_changed() {
    let old = tracked(CONFIG_MAP, None, config_map(json!({"a": "1"})), &writer("one", "v1", 1));
    let mut new = old.clone();
    new["metadata"]["resourceVersion"] = json!("77");
    new["metadata"].cut(&["managedFields"]);
    let new = tracked(CONFIG_MAP, Some(&old), new, &writer("two", "v1", 2));
    assert_eq!(new["metadata"]["managedFields"], old["metadata"]["managedFields"]);
}

#[test]
fn entries_are_told_apart_by_operation_version_and_subresource() {
    let pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}});
    let old = tracked(POD, None, pod, &writer("kubelet", "v1", 1));
    let mut new = old.clone();
    new["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
    let status = Writer { subresource: "status", ..writer("kubelet", "v1", 2) };
    let new = tracked(POD, Some(&old), new, &status);
    let entries = new.items(&["metadata", "managedFields"]);
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[1]["subresource"], "status");
    assert_eq!(
        entries[1]["fieldsV1"],
        json!({"f:status": {"f:phase": {}, "f:conditions": {".": {}, "k:{\"type\":\"Ready\"}": {".": {}, "f:type": {}, "f:status": {}}}}})
    );
    // An ordinary write that resets the status does not own the status.
    let mut reset = new.clone();
    reset["status"] = json!({"phase": "Pending"});
    reset["metadata"]["labels"] = json!({"a": "b"});
    let reset = tracked(POD, Some(&new), reset, &writer("kubectl", "v1", 3));
    assert_eq!(fields(&reset, "kubectl", "Update"), json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}}}));
}

#[test]
fn clients_can_clear_and_replace_managed_fields_but_not_damage_them() {
    let old = tracked(CONFIG_MAP, None, config_map(json!({"a": "1"})), &writer("one", "v1", 1));
    let kept = &old["metadata"]["managedFields"];
    let write = |sent: Value| {
        let mut new = old.clone();
        new["metadata"]["managedFields"] = sent;
        tracked(CONFIG_MAP, Some(&old), new, &writer("two", "v1", 2))["metadata"].get("managedFields").cloned()
    };
    for reset in [json!([]), json!([{}])] {
        assert_eq!(write(reset), None);
    }
    let entry = |operation: &str, fields: Value| {
        json!([{"manager": "m", "operation": operation, "apiVersion": "v1", "time": "2026-01-01T02:00:00+02:00",
                "fieldsType": "FieldsV1", "fieldsV1": fields}])
    };
    for bad in [
        json!(null),
        json!("x"),
        json!([1]),
        entry("Frob", json!({})),
        entry("Update", json!({"spec": {}})),
        entry("Update", json!({"f:spec": 1})),
        json!([{"manager": "m", "operation": "Apply", "apiVersion": "v1", "fieldsType": "V2", "fieldsV1": {}}]),
        json!([{"manager": "m", "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": {}}]),
    ] {
        assert_eq!(write(bad.clone()).as_ref(), Some(kept), "{bad}");
    }
    let replaced = write(entry("Apply", json!({"f:data": {".": {}, "f:a": {".": {}}}}))).unwrap();
    assert_eq!(replaced[0]["fieldsV1"], json!({"f:data": {".": {}, "f:a": {}}}));
    assert_eq!(replaced[0]["time"], "2026-01-01T00:00:00Z");

    // Managed fields cannot be written through a subresource.
    let mut new = old.clone();
    new["metadata"]["managedFields"] = json!([]);
    let status = Writer { subresource: "status", ..writer("two", "v1", 2) };
    assert_eq!(tracked(CONFIG_MAP, Some(&old), new, &status)["metadata"]["managedFields"], *kept);
}

#[test]
fn an_object_with_cleared_managed_fields_is_not_tracked_until_the_next_apply() {
    let bare = config_map(json!({"a": "1"}));
    let mut new = bare.clone();
    new["data"]["a"] = json!("2");
    assert_eq!(tracked(CONFIG_MAP, Some(&bare), new, &writer("one", "v1", 1))["metadata"].get("managedFields"), None);
}

#[test]
fn old_updates_are_merged_and_entries_are_sorted() {
    let mut object = tracked(CONFIG_MAP, None, config_map(json!({"k0": "0"})), &writer("m00", "v1", 0));
    for step in 1..=12 {
        let mut new = object.clone();
        new["data"][format!("k{step}")] = json!("x");
        let manager = format!("m{step:02}");
        object = tracked(CONFIG_MAP, Some(&object), new, &writer(&manager, "v1", step));
    }
    let names = managers(&object);
    assert_eq!(names.len(), 10);
    assert_eq!(names[0], "ancient-changes/Update");
    assert_eq!(names[9], "m12/Update");
    assert_eq!(
        fields(&object, "ancient-changes", "Update"),
        json!({"f:data": {".": {}, "f:k0": {}, "f:k1": {}, "f:k2": {}, "f:k3": {}}})
    );
    assert_eq!(object["metadata"]["managedFields"][0]["time"], "1970-01-01T00:00:03Z");
}

#[test]
fn many_updates_within_one_second_are_merged_into_one_entry() {
    let mut object = tracked(CONFIG_MAP, None, config_map(json!({"k": "0"})), &writer("zz", "v1", 0));
    for step in 0..40 {
        let mut new = object.clone();
        new["data"][format!("k{step}")] = json!("x");
        let manager = format!("a{step:02}");
        object = tracked(CONFIG_MAP, Some(&object), new, &writer(&manager, "v1", 0));
    }
    let names = managers(&object);
    assert!(names.len() <= 10, "{names:?}");
    assert_eq!(names.iter().filter(|name| *name == "ancient-changes/Update").count(), 1, "{names:?}");
}
