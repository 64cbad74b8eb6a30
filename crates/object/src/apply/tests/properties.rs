use super::*;
use crate::Map;
use crate::apply::compare::diff;
use crate::patch::arbitrary_json;
use proptest::prelude::*;

/// A pod with a map, list maps, nested list items, a set, an atomic list and scalars.
fn pod() -> impl Strategy<Value = Value> {
    pod_with(0)
}

fn pod_with(containers_min: usize) -> impl Strategy<Value = Value> {
    let containers = prop::sample::subsequence(vec!["a", "b", "c"], containers_min..=3).prop_shuffle();
    let names = || prop::sample::subsequence(vec!["a", "b", "c"], 0..=3).prop_shuffle();
    let labels = prop::option::of(prop::collection::btree_map("[a-c]", "[xy]", 0..3));
    let policy = prop::option::of(prop::sample::select(vec!["Always", "Never"]));
    (labels, containers, names(), prop::collection::vec("[xy]", 3), names(), policy).prop_map(
        |(labels, containers, finalizers, images, tolerations, policy)| {
            let containers: Vec<Value> = containers
                .iter()
                .zip(&images)
                .enumerate()
                .map(|(at, (name, image))| json!({"name": name, "image": image, "ports": [{"containerPort": at}]}))
                .collect();
            let mut object = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers},
            });
            if let Some(labels) = labels {
                object["metadata"]["labels"] = json!(labels);
            }
            if !finalizers.is_empty() {
                object["metadata"]["finalizers"] = json!(finalizers);
            }
            if !tolerations.is_empty() {
                let list: Vec<Value> = tolerations.iter().map(|key| json!({"key": key})).collect();
                object["spec"]["tolerations"] = json!(list);
            }
            if let Some(policy) = policy {
                object["spec"]["restartPolicy"] = json!(policy);
            }
            object
        },
    )
}

/// Writes by a few managers: an update, or an apply with or without force.
fn writes() -> impl Strategy<Value = Vec<(Value, &'static str, u8)>> {
    let manager = prop::sample::select(vec!["one", "two", "three"]);
    prop::collection::vec((pod(), manager, 0u8..3), 1..6)
}

fn at<'a>(manager: &'a str, second: usize) -> Writer<'a> {
    writer(manager, "v1", i64::try_from(second).unwrap())
}

/// All paths of the object.
fn everything(object: &Value) -> Set {
    diff(&builtin_type(POD), None, object, Scope::Object).touched
}

fn sets(object: &Value) -> Vec<Set> {
    let entries = object.items(&["metadata", "managedFields"]).iter();
    entries.map(|entry| Set::parse(&entry["fieldsV1"]).unwrap()).collect()
}

fn union(sets: &[Set]) -> Set {
    let mut all = Set::default();
    sets.iter().for_each(|set| all.unite(set.clone()));
    all
}

fn is_within(inner: &Set, outer: &Set) -> bool {
    let mut rest = inner.clone();
    rest.subtract(outer);
    rest.is_empty()
}

/// Changes to an object's metadata that decoding and storing make.
fn stored(mut object: Value) -> Value {
    for field in ["labels", "finalizers"] {
        let empty = object.members(&["metadata", field]).is_empty() && object.items(&["metadata", field]).is_empty();
        if empty {
            object["metadata"].cut(&[field]);
        }
    }
    object
}

proptest! {
    #[test]
    fn updates_own_exactly_the_objects_paths_and_each_path_once(history in writes()) {
        let ty = builtin_type(POD);
        let mut live: Option<Value> = None;
        for (second, (object, manager, _)) in history.into_iter().enumerate() {
            let mut new = stored(object);
            track(&ty, live.as_ref(), &mut new, &at(manager, second));
            let sets = sets(&new);
            let tracked = live.as_ref().is_none_or(|old| old.has(&["metadata", "managedFields"]));
            if tracked {
                prop_assert_eq!(union(&sets), everything(&new));
                let count: usize = sets.iter().map(|set| set.paths().len()).sum();
                prop_assert_eq!(count, union(&sets).paths().len(), "a path has two owners");
                let changed = diff(&ty, live.as_ref(), &new, Scope::Object).touched;
                let own = Set::parse(&fields(&new, manager, "Update")).unwrap_or_default();
                prop_assert!(is_within(&changed, &own));
            }
            live = Some(new);
        }
    }

    #[test]
    fn entries_stay_canonical_and_sorted_and_name_only_existing_paths(history in writes()) {
        let ty = builtin_type(POD);
        let mut live: Option<Value> = None;
        for (second, (object, manager, how)) in history.into_iter().enumerate() {
            let object = stored(object);
            let next = match how {
                0 => {
                    let mut new = object;
                    track(&ty, live.as_ref(), &mut new, &at(manager, second));
                    Some(new)
                }
                how => match apply(&ty, live.as_ref(), &object, &at(manager, second), how == 1) {
                    Ok(applied) => Some(applied),
                    Err(status) => {
                        prop_assert_eq!((status.code, how), (409, 2));
                        None
                    }
                },
            };
            let Some(next) = next else { continue };
            for set in sets(&next) {
                prop_assert!(!set.is_empty());
                prop_assert!(is_within(&set, &everything(&next)), "{:?}\n{next}", set.paths());
            }
            let entries = next.items(&["metadata", "managedFields"]);
            for entry in entries {
                let canonical = Value::Object(Set::parse(&entry["fieldsV1"]).unwrap().0);
                prop_assert_eq!(&entry["fieldsV1"], &canonical);
            }
            let ranks: Vec<_> = entries.iter().map(|entry| (entry.text(&["operation"]), entry.text(&["time"]))).collect();
            prop_assert!(ranks.is_sorted());
            live = Some(next);
        }
    }

    #[test]
    fn applying_twice_equals_applying_once(live in pod(), config in pod()) {
        let ty = builtin_type(POD);
        let mut live = stored(live);
        track(&ty, None, &mut live, &at("other", 1));
        let once = apply(&ty, Some(&live), &config, &at("me", 2), true).unwrap();
        prop_assert_eq!(&apply(&ty, Some(&once), &config, &at("me", 3), false).unwrap(), &once);
        // The applied fields have the applied values and belong to this manager.
        let changed = diff(&ty, Some(&once), &merge::merge(&ty, &once, &config), Scope::Object);
        prop_assert!(changed.is_empty());
        let first = apply(&ty, None, &config, &at("me", 2), false).unwrap();
        prop_assert_eq!(&apply(&ty, Some(&first), &config, &at("me", 3), false).unwrap(), &first);
    }

    #[test]
    fn managers_of_disjoint_fields_never_conflict(config in pod_with(1), order in any::<bool>()) {
        let ty = builtin_type(POD);
        let with = |keep: fn(&str) -> bool| {
            let mut object = config.clone();
            if let Some(spec) = object["spec"].as_object_mut() {
                spec.retain(|key, _| keep(key));
            }
            object["metadata"] = json!({"name": "p"});
            object
        };
        let mut parts = [(with(|key| key == "containers"), "one"), (with(|key| key != "containers"), "two")];
        if order {
            parts.reverse();
        }
        let mut live = None;
        for (part, manager) in parts.iter().chain(&parts) {
            live = Some(apply(&ty, live.as_ref(), part, &at(manager, 1), false).unwrap());
        }
        let live = live.unwrap();
        prop_assert_eq!(&live["spec"], &config["spec"]);
        // Each manager removes its fields. The fields of the other manager stay.
        let nothing = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}});
        let live = apply(&ty, Some(&live), &nothing, &at("one", 2), false).unwrap();
        let rest = with(|key| key != "containers");
        prop_assert_eq!(live.members(&["spec"]), rest.members(&["spec"]));
    }

    #[test]
    fn a_conflict_always_names_a_field_of_another_manager_that_would_change(live in pod(), config in pod()) {
        let ty = builtin_type(POD);
        let mut live = stored(live);
        track(&ty, None, &mut live, &at("other", 1));
        let changes = diff(&ty, Some(&live), &merge::merge(&ty, &live, &config), Scope::Object).touched;
        let expected = changes.intersection(&union(&sets(&live)));
        match apply(&ty, Some(&live), &config, &at("me", 2), false) {
            Ok(_) => prop_assert!(expected.is_empty()),
            Err(status) => {
                let fields: Vec<String> = status.details.unwrap().causes.into_iter().map(|cause| cause.field).collect();
                prop_assert_eq!(fields, expected.paths());
            }
        }
    }

    #[test]
    fn arbitrary_json_never_panics(old in arbitrary_json(), new in arbitrary_json(), config in arbitrary_json(), status in any::<bool>()) {
        let ty = builtin_type(POD);
        let writer = Writer { subresource: if status { "status" } else { "" }, ..at("me", 1) };
        let mut tracked = new.clone();
        track(&ty, Some(&old), &mut tracked, &writer);
        track(&ty, None, &mut tracked, &writer);
        let mut members: Map = config.as_object().cloned().unwrap_or_default();
        members.insert("apiVersion".to_owned(), json!("v1"));
        let config = Value::Object(members);
        let _ = apply(&ty, Some(&new), &config, &writer, true);
        let _ = apply(&ty, Some(&tracked), &config, &writer, false);
        let _ = apply(&ty, None, &config, &writer, false);
    }
}
