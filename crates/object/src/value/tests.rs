use super::*;
use crate::json;
use crate::patch::arbitrary_json;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

type Json = serde_json::Value;

fn many(count: usize) -> Map {
    (0..count).rev().map(|at| (format!("k{at:04}"), Value::from(at))).collect()
}

#[test]
fn the_json_macro_accepts_json_syntax() {
    let (name, nothing, list) = ("n", None::<i32>, vec!["a", "b"]);
    let made = json!({
        "null": null, "list": [null, true, {"a": [1, -2, 2.5]}, [], {}, name], name: nothing, "names": list,
        (format!("{name}-{}", 1)): BTreeMap::from([("z", 1), ("a", 2)]), "copy": json!([1]), "sum": 1 + 2,
    });
    let text = r#"{"copy":[1],"list":[null,true,{"a":[1,-2,2.5]},[],{},"n"],"n":null,"n-1":{"a":2,"z":1},"names":["a","b"],"null":null,"sum":3}"#;
    assert_eq!(made.to_string(), text);
    assert_eq!(text.parse::<Value>().unwrap(), made);
    assert_eq!((json!(null), json!([]), json!({})), (NULL, Value::Array(vec![]), Value::Object(Map::new())));
}

#[test]
fn members_are_sorted_and_the_last_duplicate_counts() {
    let read: Value = serde_json::from_str(r#"{"b": 1, "a": 2, "b": 3, "metadata": 4, "b": 5}"#).unwrap();
    assert_eq!(read.to_string(), r#"{"a":2,"b":5,"metadata":4}"#);
    assert!(serde_json::from_str::<Value>(r#"{"a": "#).is_err());
}

#[test]
fn maps_with_many_members_behave_like_small_ones() {
    for (count, is_shared) in [1, 12, 13, 63, 64, 65, 500].into_iter().flat_map(|count| [(count, false), (count, true)])
    {
        let mut map = many(count);
        if is_shared {
            map.share(1);
        }
        assert_eq!(map.len(), count);
        assert!(map.keys().is_sorted());
        for at in 0..count {
            assert_eq!(map.get(format!("k{at:04}")), Some(&Value::from(at)), "{at} of {count}");
        }
        assert_eq!((map.get("k"), map.get("z"), map.contains_key("k0000")), (None, None, true));
        let mut one_by_one = Map::new();
        (0..count).for_each(|at| assert_eq!(one_by_one.insert(format!("k{at:04}"), at.into()), None));
        let mut by_entries = Map::new();
        (0..count).rev().for_each(|at| drop(by_entries.entry(format!("k{at:04}")).or_insert(at.into()).clone()));
        assert_eq!((&map, &map), (&one_by_one, &by_entries));
        assert_eq!(map.insert("k0000", NULL), Some(0.into()));
        assert_eq!(*map.entry("k0000").or_insert(1.into()), NULL);
        assert_ne!(map, one_by_one);
        map.values_mut().for_each(|value| *value = 7.into());
        map.retain(|key, value| *value == 7 && !key.ends_with('1'));
        assert_eq!(map.len(), count - (0..count).filter(|at| at % 10 == 1).count());
        assert_eq!(map.remove("k0000"), Some(7.into()));
        assert_eq!(map.remove("k0000"), None);
        assert_eq!(map.iter().rev().count(), map.clone().into_iter().count());
    }
    // A map that was large once equals one that never was.
    let (mut shrunk, small) = (many(200), many(3));
    shrunk.retain(|key, _| small.contains_key(key));
    assert_eq!(shrunk, small);
    assert_eq!(small, shrunk);
}

#[test]
fn absent_members_read_as_null_and_are_created_by_writing() {
    let mut value = json!({"list": [1, {"a": "x"}]});
    assert_eq!(value["absent"]["deeper"][3], NULL);
    assert_eq!(value["list"][1]["a"], "x");
    value["made"]["here"] = true.into();
    value["list"][0] = "y".into();
    assert_eq!(value, json!({"list": ["y", {"a": "x"}], "made": {"here": true}}));
    assert_eq!(value.pointer("/list/1/a"), Some(&json!("x")));
    assert_eq!(json!({"a/b": {"~": 1}}).pointer("/a~1b/~0"), Some(&json!(1)));
    assert_eq!((value.pointer("list"), value.pointer("/list/01"), value.pointer("/list/+1")), (None, None, None));
    *value.pointer_mut("/list/1").unwrap() = NULL;
    assert_eq!(value["list"].take(), json!(["y", null]));
}

#[test]
fn json_bytes_is_the_length_of_the_json_text() {
    for value in
        [NULL, json!({}), json!({"a": [1, -2.5, "\u{1}\"é", {"b": null, "c": [true]}], "d": "x".repeat(5_000)})]
    {
        assert_eq!(value.json_bytes(), value.to_string().len());
    }
}

#[test]
fn small_objects_are_small() {
    assert_eq!((size_of::<Value>(), size_of::<Map>(), size_of::<(Key, Value)>()), (32, 24, 48));
}

#[test]
fn clones_share_members_until_they_are_changed() {
    let mut first =
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {"list": [{"x": 1}, {"y": {"z": 2}}]}, "none": {}});
    let before = first.clone();
    assert!(!first.is_same(&before), "values are shared only after share()");
    first.share();
    assert_eq!(first, before);
    let mut second = first.clone();
    assert!(second.is_same(&first));
    // Removing an absent member keeps the value shared.
    assert!(second.get_mut("absent").is_none() && second.as_object_mut().unwrap().remove("absent").is_none());
    assert!(second.is_same(&first));
    second["spec"]["list"][1]["y"]["z"] = 3.into();
    assert_eq!(first, before, "a change must not affect other clones");
    assert_ne!(first, second);
    assert!(!second["spec"].is_same(&first["spec"]));
    assert!(
        second["metadata"].is_same(&first["metadata"]) && second["spec"]["list"][0].is_same(&first["spec"]["list"][0])
    );
    second.share();
    assert!(second["metadata"].is_same(&first["metadata"]), "shared members stay shared");
    second["spec"]["list"][1]["y"]["z"] = 2.into();
    assert_eq!(first, second, "equal, but not shared");
}

#[test]
fn adding_an_entry_beyond_the_limit_converts_shared_members_to_a_tree() {
    let mut map = many(64);
    map.share(1);
    let other = map.clone();
    map.entry("new").or_insert(NULL);
    assert_eq!((map.len(), other.len()), (65, 64));
    assert!(map.keys().is_sorted());
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Choice {
    Plain,
    One(i32),
    Two(i32, String),
    Named { flag: bool },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Sample {
    choices: Vec<Choice>,
    numbers: BTreeMap<String, f64>,
    option: Option<Box<Sample>>,
    letter: char,
    pair: (u8, i64),
}

#[test]
fn types_become_values_and_back() {
    let inner = Sample { choices: vec![], numbers: BTreeMap::new(), option: None, letter: 'x', pair: (1, i64::MIN) };
    let sample = Sample {
        choices: vec![Choice::Plain, Choice::One(1), Choice::Two(2, "b".into()), Choice::Named { flag: true }],
        numbers: BTreeMap::from([("7".to_owned(), 0.5)]),
        option: Some(Box::new(inner)),
        letter: 'ß',
        pair: (255, -1),
    };
    let value = to_value(&sample).unwrap();
    assert_eq!(Json::from(value.clone()), serde_json::to_value(&sample).unwrap());
    assert_eq!(from_value::<Sample>(&value).unwrap(), sample);
    assert!(from_value::<Sample>(&json!({"choices": 1})).is_err());
    assert!(from_value::<Choice>(&json!({"Two": [1]})).is_err());
    assert!(from_value::<Choice>(&json!({"One": 1, "Two": 2})).is_err());
    assert!(to_value(&BTreeMap::from([(vec![1], 1)])).is_err());
    assert_eq!(json!(f64::NAN), NULL);
    assert_eq!(json!(BTreeMap::from([(7, 0.5)])), json!({"7": 0.5}));
}

proptest! {
    /// Reading, writing, comparing and merging give the same results as with `serde_json`.
    #[test]
    fn agrees_with_serde_json(one in arbitrary_json(), other in arbitrary_json()) {
        let (ours, theirs) = (one.to_string(), Json::from(one.clone()));
        prop_assert_eq!(&ours, &theirs.to_string());
        prop_assert_eq!(&serde_json::from_str::<Value>(&ours).unwrap(), &one);
        prop_assert_eq!(format!("{one:#}"), format!("{theirs:#}"));
        prop_assert_eq!(&to_value(&one).unwrap(), &one);
        prop_assert_eq!(&from_value::<Value>(&one).unwrap(), &one);
        prop_assert_eq!(&Value::from(theirs.clone()), &one);
        let their_other = Json::from(other.clone());
        prop_assert_eq!(one == other, theirs == their_other);
        let mut merged = theirs.clone();
        json_patch::merge(&mut merged, &their_other);
        prop_assert_eq!(Json::from(crate::patch::merge(&one, &other)), merged.clone());
        let mut shared = one.clone();
        shared.share();
        prop_assert_eq!(&shared, &one);
        prop_assert_eq!(Json::from(crate::patch::merge(&shared, &other)), merged);
        prop_assert_eq!(Json::from(shared), theirs);
    }
}

#[test]
fn decoded_values_have_exact_capacity_and_errors_leave_no_items_on_the_pile() {
    let text = r#"{"a":[1,[2,{"b":{},"c":[3,4,5]}]],"d":{"e":1,"f":2,"g":3,"h":4,"i":5}}"#;
    for _ in 0..3 {
        assert!(serde_json::from_str::<Value>(&text.replace("\"i\"", "")).is_err());
        assert!(serde_json::from_str::<Value>(&text.replace(",5]", ",x]")).is_err());
        let read: Value = text.parse().unwrap();
        assert_eq!(read.to_string(), text);
        let items = read.pointer("/a/1/1/c").and_then(Value::as_array).unwrap();
        assert_eq!((items.len(), items.capacity()), (3, 3));
    }
}
