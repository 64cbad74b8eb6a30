//! Property tests of the patches.

use super::*;
use crate::schema::builtin_type;
use crate::{Map, json};
use proptest::prelude::*;

/// Any JSON, with many keys that patches treat specially.
pub(crate) fn arbitrary_json() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        prop::sample::select(vec![
            "metadata",
            "spec",
            "status",
            "containers",
            "volumes",
            "finalizers",
            "ownerReferences",
            "labels",
            "name",
            "uid",
            "ports",
            "containerPort",
            "template",
            "managedFields",
            "annotations",
            "$patch",
            "$retainKeys",
            "$setElementOrder/containers",
            "$setElementOrder/finalizers",
            "$deleteFromPrimitiveList/finalizers",
            "$odd",
            "op",
            "path",
            "value",
            "from",
        ])
        .prop_map(str::to_owned),
        "[a-c]",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3i64..3).prop_map(Value::from),
        prop::sample::select(vec![
            "a", "b", "delete", "replace", "merge", "add", "move", "copy", "/a", "/spec/-", "/0", ""
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// A pod-like document: a map, a list by key, a list of scalars, an atomic list.
fn document() -> impl Strategy<Value = Value> {
    let names = || prop::sample::subsequence(vec!["a", "b", "c", "d"], 0..=4).prop_shuffle();
    let labels = prop::collection::btree_map("[a-d]", "[x-z]", 0..4);
    (labels, names(), names(), prop::collection::vec("[x-z]", 8), names()).prop_map(
        |(labels, containers, finalizers, images, tolerations)| {
            let containers: Vec<Value> = containers
                .iter()
                .zip(&images)
                .map(|(name, image)| json!({"name": name, "image": image, "args": [image, image]}))
                .collect();
            let tolerations: Vec<Value> = tolerations.iter().map(|key| json!({"key": key})).collect();
            json!({
                "metadata": {"labels": labels, "finalizers": finalizers},
                "spec": {"containers": containers, "tolerations": tolerations},
            })
        },
    )
}

/// Returns the merge patch that changes `from` to `to`. Neither contains nulls.
fn merge_diff(from: &Value, to: &Value) -> Value {
    let (Value::Object(from), Value::Object(to)) = (from, to) else { return to.clone() };
    let mut patch = Map::new();
    for key in from.keys().filter(|key| !to.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, new) in to {
        match from.get(key) {
            Some(old) if old == new => {}
            Some(old) => drop(patch.insert(key.clone(), merge_diff(old, new))),
            None => drop(patch.insert(key.clone(), new.clone())),
        }
    }
    Value::Object(patch)
}

/// Returns the strategic patch for the documents above, as kubectl would write it: list elements by key, deletions by
/// directive, and the order of all elements.
fn strategic_diff(from: &Value, to: &Value) -> Value {
    let mut patch = merge_diff(from, to);
    let list =
        |document: &Value, group: &str, name: &str| document[group][name].as_array().cloned().unwrap_or_default();
    let (old, new) = (list(from, "spec", "containers"), list(to, "spec", "containers"));
    let by_name = |items: &[Value], name: &Value| items.iter().find(|item| item["name"] == *name).cloned();
    let mut changed: Vec<Value> = new
        .iter()
        .filter(|item| by_name(&old, &item["name"]).as_ref() != Some(*item))
        .map(|item| json!({"name": item["name"], "image": item["image"], "args": item["args"]}))
        .collect();
    let gone = old.iter().filter(|item| by_name(&new, &item["name"]).is_none());
    changed.extend(gone.map(|item| json!({"name": item["name"], "$patch": "delete"})));
    let order: Vec<Value> = new.iter().map(|item| json!({"name": item["name"]})).collect();
    patch["spec"]["containers"] = Value::Array(changed);
    patch["spec"]["$setElementOrder/containers"] = Value::Array(order);

    let (old, new) = (list(from, "metadata", "finalizers"), list(to, "metadata", "finalizers"));
    let minus = |a: &[Value], b: &[Value]| a.iter().filter(|item| !b.contains(item)).cloned().collect::<Vec<_>>();
    patch["metadata"]["finalizers"] = Value::Array(minus(&new, &old));
    patch["metadata"]["$deleteFromPrimitiveList/finalizers"] = Value::Array(minus(&old, &new));
    patch["metadata"]["$setElementOrder/finalizers"] = Value::Array(new);
    patch
}

proptest! {
    #[test]
    fn a_merge_patch_gives_the_target_and_is_idempotent(from in document(), to in document()) {
        let patch = merge_diff(&from, &to);
        let once = merge(&from, &patch);
        prop_assert_eq!(&once, &to);
        prop_assert_eq!(merge(&once, &patch), to);
    }

    #[test]
    fn a_strategic_patch_gives_the_target_and_is_idempotent(from in document(), to in document()) {
        let pod = builtin_type("io.k8s.api.core.v1.Pod");
        let patch = strategic_diff(&from, &to);
        let once = strategic(&pod, &from, &patch).unwrap();
        prop_assert_eq!(&once, &to, "{}", patch);
        prop_assert_eq!(strategic(&pod, &once, &patch).unwrap(), to);
    }

    #[test]
    fn a_json_patch_gives_the_target(from in document(), to in document()) {
        let patch = crate::value::to_value(&json_patch::diff(&from.clone().into(), &to.clone().into())).unwrap();
        prop_assert_eq!(json(&from, &patch).unwrap(), to);
    }

    #[test]
    fn arbitrary_documents_and_patches_never_panic(document in arbitrary_json(), patch in arbitrary_json()) {
        let pod = builtin_type("io.k8s.api.core.v1.Pod");
        let _ = json(&document, &patch);
        let _ = merge(&document, &patch);
        if let Ok(patched) = strategic(&pod, &document, &patch) {
            prop_assert!(patched.is_object());
        }
    }
}
