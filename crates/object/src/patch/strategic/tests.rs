use super::*;
use crate::json;
use crate::schema::builtin_type;

fn run(kind: &str, document: Value, patch: Value) -> Result<Value, (u16, String)> {
    apply(&builtin_type(kind), &document, &patch).map_err(|status| (status.code, status.message))
}

fn pod(document: Value, patch: Value) -> Value {
    run("io.k8s.api.core.v1.Pod", document, patch).unwrap()
}

fn refused(document: Value, patch: Value) -> (u16, String) {
    run("io.k8s.api.core.v1.Pod", document, patch).unwrap_err()
}

/// A pod with these containers and an image for each.
fn containers(names: &[&str]) -> Value {
    let list: Vec<Value> = names.iter().map(|name| json!({"name": name, "image": format!("{name}:1")})).collect();
    json!({"spec": {"containers": list}})
}

fn names(pod: &Value) -> Vec<&str> {
    pod["spec"]["containers"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect()
}

#[test]
fn maps_merge_and_null_deletes() {
    let document = json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"nodeName": "n"}});
    let patch = json!({"metadata": {"labels": {"a": null, "c": "3"}, "annotations": {"x": "y", "z": null}}});
    assert_eq!(
        pod(document, patch),
        json!({"metadata": {"labels": {"b": "2", "c": "3"}, "annotations": {"x": "y"}}, "spec": {"nodeName": "n"}})
    );
}

#[test]
fn set_image_changes_one_container() {
    let patch = json!({"spec": {"$setElementOrder/containers": [{"name": "a"}, {"name": "b"}],
                               "containers": [{"name": "b", "image": "b:2"}]}});
    let patched = pod(containers(&["a", "b"]), patch);
    assert_eq!(patched["spec"]["containers"], json!([{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:2"}]));
    assert!(patched["spec"].get("$setElementOrder/containers").is_none());
}

#[test]
fn list_elements_are_deleted_by_key_or_all_replaced() {
    let delete =
        json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}, {"name": "absent", "$patch": "delete"}]}});
    assert_eq!(names(&pod(containers(&["a", "b"]), delete)), ["b"]);
    let replace = json!({"spec": {"containers": [{"$patch": "replace"}, {"name": "z", "image": "z"}]}});
    assert_eq!(pod(containers(&["a", "b"]), replace), json!({"spec": {"containers": [{"name": "z", "image": "z"}]}}));
    let merge = json!({"spec": {"containers": [{"$patch": "merge", "name": "a", "image": "a:9"}]}});
    assert_eq!(pod(containers(&["a"]), merge)["spec"]["containers"], json!([{"name": "a", "image": "a:9"}]));
}

#[test]
fn maps_are_replaced_or_emptied_by_directive() {
    let undo =
        json!({"spec": {"template": {"$patch": "replace", "spec": {"containers": [{"name": "b", "image": null}]}}}});
    let set =
        json!({"spec": {"replicas": 3, "template": {"metadata": {"labels": {"a": "1"}}, "spec": {"nodeName": "n"}}}});
    assert_eq!(
        run("io.k8s.api.apps.v1.StatefulSet", set.clone(), undo).unwrap(),
        json!({"spec": {"replicas": 3, "template": {"spec": {"containers": [{"name": "b"}]}}}})
    );
    let delete = json!({"spec": {"template": {"metadata": {"labels": {"$patch": "delete"}}}}});
    let emptied = run("io.k8s.api.apps.v1.StatefulSet", set, delete).unwrap();
    assert_eq!(emptied["spec"]["template"]["metadata"], json!({"labels": {}}));
}

#[test]
fn the_element_order_includes_elements_that_only_the_server_has() {
    let order = |ids: &[&str]| ids.iter().map(|id| json!({"name": id})).collect::<Value>();
    let reorder = json!({"spec": {"$setElementOrder/containers": order(&["c", "a"])}});
    assert_eq!(names(&pod(containers(&["a", "sidecar", "c"]), reorder)), ["sidecar", "c", "a"]);
    let add = json!({"spec": {"$setElementOrder/containers": order(&["new", "b"]),
                             "containers": [{"name": "new", "image": "n"}, {"name": "gone", "$patch": "delete"}]}});
    assert_eq!(names(&pod(containers(&["gone", "b", "sidecar"]), add)), ["new", "b", "sidecar"]);
}

#[test]
fn scalar_lists_are_merged_deleted_from_and_ordered() {
    let document = json!({"metadata": {"finalizers": ["a", "b", "c"]}});
    let remove = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["b", "absent"]}});
    assert_eq!(pod(document.clone(), remove)["metadata"]["finalizers"], json!(["a", "c"]));
    let unite = json!({"metadata": {"finalizers": ["b", "d", "d"]}});
    assert_eq!(pod(document.clone(), unite)["metadata"]["finalizers"], json!(["a", "b", "d", "c"]));
    let order = json!({"metadata": {"$setElementOrder/finalizers": ["d", "a"], "finalizers": ["d"],
                                   "$deleteFromPrimitiveList/finalizers": ["c"]}});
    assert_eq!(pod(document, order)["metadata"]["finalizers"], json!(["d", "a", "b"]));
    let first = json!({"metadata": {"$setElementOrder/finalizers": ["x"], "finalizers": ["x"]}});
    assert_eq!(pod(json!({}), first), json!({"metadata": {"finalizers": ["x"]}}));
}

/// As upstream, which deletes after merging and ordering.
#[test]
fn a_scalar_that_is_both_added_and_deleted_is_deleted() {
    let patch = json!({"metadata": {"$setElementOrder/finalizers": ["d", "a"], "finalizers": ["d", "a"],
                                   "$deleteFromPrimitiveList/finalizers": ["d", "b"]}});
    for before in [json!({"finalizers": ["b", "d"]}), json!({})] {
        let patched = pod(json!({"metadata": before}), patch.clone());
        assert_eq!(patched, json!({"metadata": {"finalizers": ["a"]}}));
    }
}

#[test]
fn owner_references_are_deleted_by_uid() {
    let document = json!({"metadata": {"ownerReferences": [{"uid": "1", "name": "a"}, {"uid": "2", "name": "b"}]}});
    let patch = json!({"metadata": {"uid": "u", "ownerReferences": [{"$patch": "delete", "uid": "1"}]}});
    assert_eq!(pod(document, patch), json!({"metadata": {"uid": "u", "ownerReferences": [{"uid": "2", "name": "b"}]}}));
}

#[test]
fn retain_keys_remove_the_other_members_of_a_union() {
    let document = json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]}});
    let patch =
        json!({"spec": {"volumes": [{"$retainKeys": ["name", "hostPath"], "name": "v", "hostPath": {"path": "/"}}]}});
    assert_eq!(
        pod(document.clone(), patch)["spec"]["volumes"],
        json!([{"name": "v", "hostPath": {"path": "/"}}, {"name": "w", "emptyDir": {}}])
    );
    let stray = json!({"spec": {"volumes": [{"$retainKeys": ["name"], "name": "v", "hostPath": {}}]}});
    assert_eq!(refused(document, stray), (400, "invalid patch format of retainKeys".to_owned()));
}

#[test]
fn lists_without_a_strategy_are_replaced() {
    let document = json!({"spec": {"tolerations": [{"key": "a"}], "containers": [{"name": "c", "args": ["1", "2"]}]}});
    let patch =
        json!({"spec": {"tolerations": [{"key": "b", "value": null}], "containers": [{"name": "c", "args": ["3"]}]}});
    assert_eq!(
        pod(document, patch),
        json!({"spec": {"tolerations": [{"key": "b"}], "containers": [{"name": "c", "args": ["3"]}]}})
    );
}

#[test]
fn new_values_contain_no_directives() {
    let patch = json!({"spec": {
        "$retainKeys": ["volumes", "securityContext", "affinity"],
        "volumes": [{"name": "v", "emptyDir": {"$patch": "delete"}}, {"$patch": "replace"}, {"name": "x", "$patch": "delete"}],
        "securityContext": {"$patch": "replace", "runAsUser": 1, "fsGroup": null},
        "affinity": {"$patch": "delete"}}});
    assert_eq!(
        pod(json!({}), patch),
        json!({"spec": {"volumes": [{"name": "v"}], "securityContext": {"runAsUser": 1}}})
    );
}

#[test]
fn invalid_patches_are_refused_with_one_sentence() {
    let document = || json!({"metadata": {"finalizers": ["a"]}, "spec": {"containers": [{"name": "a"}]}});
    let cases = [
        (json!({"spec": {"containers": [{"image": "x"}]}}), 422, "does not contain declared merge key: name"),
        (json!({"spec": {"containers": [{"$patch": "delete"}]}}), 422, "does not contain declared merge key: name"),
        (json!({"spec": {"containers": [{"name": "a", "$patch": "frob"}]}}), 400, "unknown patch type: \"frob\""),
        (json!({"spec": {"$patch": 1}}), 400, "unknown patch type: 1"),
        (json!({"spec": {"$frob": 1}}), 400, "unknown directive \"$frob\""),
        (json!({"spec": {"containers": ["x"]}}), 422, "list element types are not identical"),
        (json!({"spec": {"containers": [["x"]]}}), 422, "lists of lists are not supported"),
        (json!({"metadata": {"$deleteFromPrimitiveList/finalizers": "a"}}), 400, "primitive list"),
        (json!({"metadata": {"$setElementOrder/finalizers": "a"}}), 400, "setElementOrder list"),
        (json!({"spec": {"$setElementOrder/containers": ["a"]}}), 400, "setElementOrder list"),
        (
            json!({"metadata": {"$setElementOrder/finalizers": ["a"], "finalizers": ["b"]}}),
            422,
            "The order in patch list doesn't match $setElementOrder list",
        ),
        (json!([]), 400, "must be an object"),
    ];
    for (patch, code, words) in cases {
        let (found, message) = refused(document(), patch.clone());
        assert_eq!(found, code, "{patch}: {message}");
        assert!(message.contains(words), "{patch}: {message}");
    }
}

#[test]
fn declared_fields_that_look_like_directives_are_fields() {
    let path = ["spec", "versions"];
    let schema = json!({"openAPIV3Schema": {"properties": {"a": {"$ref": "x"}}}});
    let patch = json!({"spec": {path[1]: [{"name": "v1", "schema": schema}]}});
    let kind = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition";
    assert_eq!(run(kind, json!({}), patch.clone()).unwrap(), patch);
}

#[test]
fn a_service_account_merges_its_secrets_and_replaces_its_pull_secrets() {
    let account = json!({"secrets": [{"name": "a"}], "imagePullSecrets": [{"name": "p"}]});
    let patch = json!({"secrets": [{"name": "b"}], "imagePullSecrets": [{"name": "q"}]});
    assert_eq!(
        run("io.k8s.api.core.v1.ServiceAccount", account, patch).unwrap(),
        json!({"secrets": [{"name": "b"}, {"name": "a"}], "imagePullSecrets": [{"name": "q"}]})
    );
}
