//! Server-side apply against a model: a map whose members have values and owners.
//!
//! Each two bytes of the input are a write: who, how, which keys, which values.

use object::access::Access;
use object::apply::{Writer, apply, track};
use object::schema::builtin_type;
use object::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

const KEYS: [&str; 4] = ["a", "b", "c", "d"];
pub const MANAGERS: [&str; 3] = ["one", "two", "three"];
const WRITES_MAX: usize = 24;
/// The owner of all that is there when somebody first applies to what was not tracked.
pub const BEFORE_FIRST_APPLY: (&str, bool) = ("before-first-apply", false);

/// Owners are managers with how they wrote: an apply and an update of the same name are two.
pub type Owners = BTreeSet<(&'static str, bool)>;
type Model = BTreeMap<&'static str, (String, Owners)>;

pub fn read(input: &[u8]) -> String {
    let ty = builtin_type("io.k8s.api.core.v1.ConfigMap");
    let mut model = Model::new();
    let mut live: Option<Value> = None;
    let mut words = String::new();
    for (second, pair) in input.chunks_exact(2).take(WRITES_MAX).enumerate() {
        let manager = MANAGERS[usize::from(pair[0] & 3) % 3];
        let (updates, force) = (pair[0] & 4 != 0, pair[0] & 8 != 0);
        let data: BTreeMap<&'static str, String> = KEYS
            .iter()
            .enumerate()
            .filter(|(at, _)| pair[1] >> at & 1 == 1)
            .map(|(at, key)| (*key, if pair[1] >> (4 + at) & 1 == 1 { "x" } else { "y" }.to_owned()))
            .collect();
        let now = jiff::Timestamp::from_second(i64::try_from(second).unwrap_or(0)).expect("a time");
        let writer = Writer { manager, subresource: "", api_version: "v1", now };
        let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
        if !data.is_empty() {
            object["data"] = json!(data);
        }
        let tracked = live.as_ref().is_none_or(|live| !live.items(&["metadata", "managedFields"]).is_empty());
        if updates {
            let before = live.as_ref();
            // An update of what is there keeps its managed fields.
            if let Some(fields) = before.and_then(|live| live.at(&["metadata", "managedFields"])) {
                object.put(&["metadata", "managedFields"], fields.clone());
            }
            track(&ty, before, &mut object, &writer);
            update(&mut model, tracked.then_some(manager), &data);
            live = Some(object);
            words.push('u');
        } else {
            if !tracked {
                model.values_mut().for_each(|(_, owners)| *owners = Owners::from([BEFORE_FIRST_APPLY]));
            }
            let expected = applied(&model, manager, &data, force);
            match (apply(&ty, live.as_ref(), &object, &writer, force), expected) {
                (Ok(merged), Some(after)) => {
                    let again =
                        apply(&ty, Some(&merged), &object, &writer, false).expect("the same again is no conflict");
                    assert_eq!(again, merged, "applying twice changes something");
                    (live, model) = (Some(merged), after);
                    words.push('a');
                }
                (Err(status), None) => {
                    assert_eq!(status.code, 409, "{}", status.message);
                    words.push('c');
                }
                (Ok(merged), None) => {
                    panic!("no conflict where one is: {model:?} with {data:?} by {manager} makes {merged}")
                }
                (Err(status), Some(_)) => panic!("{model:?} with {data:?} by {manager}: {}", status.message),
            }
        }
        compare(live.as_ref(), &model);
    }
    words
}

/// A write of the whole: who changes a value owns it alone, what is left out is gone. Where nobody owns anything any more, nobody comes to
/// by an update: that is how tracking is switched off.
fn update(model: &mut Model, manager: Option<&'static str>, data: &BTreeMap<&'static str, String>) {
    model.retain(|key, _| data.contains_key(key));
    for (key, value) in data {
        match model.get_mut(key) {
            Some((held, _)) if held == value => {}
            place => {
                let owners = manager.map(|manager| (manager, false)).into_iter().collect();
                let new = (value.clone(), owners);
                match place {
                    Some(place) => *place = new,
                    None => drop(model.insert(key, new)),
                }
            }
        }
    }
}

/// A configuration: `None` is a conflict. What its manager no longer names, and nobody else owns, goes.
fn applied(model: &Model, manager: &'static str, data: &BTreeMap<&'static str, String>, force: bool) -> Option<Model> {
    let mut after = model.clone();
    let me = (manager, true);
    for (key, value) in data {
        match after.get_mut(key) {
            None => drop(after.insert(key, (value.clone(), Owners::from([me])))),
            Some((held, owners)) if held == value => drop(owners.insert(me)),
            Some((held, owners)) => {
                if !force && owners.iter().any(|owner| *owner != me) {
                    return None;
                }
                *held = value.clone();
                *owners = Owners::from([me]);
            }
        }
    }
    after.retain(|key, (_, owners)| {
        if !data.contains_key(key) && owners.remove(&me) {
            return !owners.is_empty();
        }
        true
    });
    Some(after)
}

fn compare(live: Option<&Value>, model: &Model) {
    let Some(live) = live else { return };
    let data: Map = model.iter().map(|(key, (value, _))| ((*key).to_owned(), json!(value))).collect();
    assert_eq!(live.members(&["data"]), &data, "{model:?}");
    let mut owners: BTreeMap<&str, BTreeSet<(String, bool)>> = BTreeMap::new();
    for entry in live.items(&["metadata", "managedFields"]) {
        for key in KEYS {
            if entry.has(&["fieldsV1", "f:data", &format!("f:{key}")]) {
                let owner = (entry.text(&["manager"]).to_owned(), entry.text(&["operation"]) == "Apply");
                owners.entry(key).or_default().insert(owner);
            }
        }
    }
    let tracked = !live.items(&["metadata", "managedFields"]).is_empty();
    for (key, (_, expected)) in model.iter().filter(|_| tracked) {
        let expected: BTreeSet<(String, bool)> =
            expected.iter().map(|(name, how)| ((*name).to_owned(), *how)).collect();
        assert_eq!(owners.get(key).cloned().unwrap_or_default(), expected, "who owns {key} of {live}");
    }
}
