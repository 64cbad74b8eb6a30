//! Server-side apply against a model: a map whose members have values and owners.
//!
//! Each two bytes of the input are a write: who, how, which keys, which values.

use object::access::Access;
use object::apply::{Writer, apply, track};
use object::schema::builtin_type;
use object::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

const KEYS: [&str; 4] = ["a", "b", "c", "d"];
const MANAGERS: [&str; 3] = ["one", "two", "three"];
const WRITES_MAX: usize = 24;
/// The owner of all that is there when somebody first applies to what was not tracked.
pub const BEFORE_FIRST_APPLY: (&str, bool) = ("before-first-apply", false);

/// Owners are managers with how they wrote: an apply and an update of the same name are two.
pub type Owners = BTreeSet<(&'static str, bool)>;
type Members = BTreeMap<&'static str, (String, Owners)>;
type Data = BTreeMap<&'static str, String>;

/// What is expected of an object that several managers write.
pub trait Model: Clone + Debug + Default {
    type Written: Debug;
    /// A write of the whole, by a manager whose fields are tracked or by nobody.
    fn update(&mut self, manager: Option<&'static str>, written: &Self::Written);
    /// A configuration: `None` is a conflict.
    fn applied(&self, manager: &'static str, written: &Self::Written, force: bool) -> Option<Self>;
    /// Everything becomes the property of whoever was there before the first apply.
    fn give_to_those_before(&mut self);
    fn compare(&self, live: &Value);
}

/// Has an object and its model written, and compares them after each write: who and how, what, and the object that says so.
pub fn play<M: Model>(kind: &str, writes: impl Iterator<Item = (u8, M::Written, Value)>) -> String {
    let ty = builtin_type(kind);
    let (mut model, mut live, mut words) = (M::default(), None::<Value>, String::new());
    for (second, (how, written, mut object)) in writes.enumerate() {
        let manager = MANAGERS[usize::from(how & 3) % 3];
        let (updates, force) = (how & 4 != 0, how & 8 != 0);
        let now = jiff::Timestamp::from_second(i64::try_from(second).unwrap_or(0)).expect("a time");
        let writer = Writer { manager, subresource: "", api_version: "v1", now };
        let tracked = live.as_ref().is_none_or(|live| !live.items(&["metadata", "managedFields"]).is_empty());
        if updates {
            let before = live.as_ref();
            // An update of what is there keeps its managed fields.
            if let Some(fields) = before.and_then(|live| live.at(&["metadata", "managedFields"])) {
                object.put(&["metadata", "managedFields"], fields.clone());
            }
            track(&ty, before, &mut object, &writer);
            model.update(tracked.then_some(manager), &written);
            live = Some(object);
            words.push('u');
        } else {
            if !tracked {
                model.give_to_those_before();
            }
            match (apply(&ty, live.as_ref(), &object, &writer, force), model.applied(manager, &written, force)) {
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
                    panic!("no conflict where one is: {model:?} with {written:?} by {manager} makes {merged}")
                }
                (Err(status), Some(_)) => panic!("{model:?} with {written:?} by {manager}: {}", status.message),
            }
        }
        if let Some(live) = &live {
            model.compare(live);
        }
    }
    words
}

pub fn read(input: &[u8]) -> String {
    let writes = input.chunks_exact(2).take(WRITES_MAX).map(|pair| {
        let data: Data = KEYS
            .iter()
            .enumerate()
            .filter(|(at, _)| pair[1] >> at & 1 == 1)
            .map(|(at, key)| (*key, if pair[1] >> (4 + at) & 1 == 1 { "x" } else { "y" }.to_owned()))
            .collect();
        let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
        if !data.is_empty() {
            object["data"] = json!(data);
        }
        (pair[0], data, object)
    });
    play::<Members>("io.k8s.api.core.v1.ConfigMap", writes)
}

impl Model for Members {
    type Written = Data;
    fn update(&mut self, manager: Option<&'static str>, data: &Data) {
        update(self, manager, data);
    }
    fn applied(&self, manager: &'static str, data: &Data, force: bool) -> Option<Members> {
        applied(self, manager, data, force)
    }
    fn give_to_those_before(&mut self) {
        self.values_mut().for_each(|(_, owners)| *owners = Owners::from([BEFORE_FIRST_APPLY]));
    }
    fn compare(&self, live: &Value) {
        compare(live, self);
    }
}

/// A write of the whole: who changes a value owns it alone, what is left out is gone. Where nobody owns anything any more, nobody comes to
/// by an update: that is how tracking is switched off.
fn update(model: &mut Members, manager: Option<&'static str>, data: &Data) {
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
fn applied(model: &Members, manager: &'static str, data: &Data, force: bool) -> Option<Members> {
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

fn compare(live: &Value, model: &Members) {
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
