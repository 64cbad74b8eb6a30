//! Compares server-side apply with a model: a map whose members have values and owners.
//!
//! Each two bytes of the input are one write: manager, operation, keys and values.

use object::access::Access;
use object::apply::{Writer, apply, track};
use object::schema::builtin_type;
use object::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

const KEYS: [&str; 4] = ["a", "b", "c", "d"];
const MANAGERS: [&str; 3] = ["one", "two", "three"];
const WRITES_MAX: usize = 24;
/// The owner that untracked fields get at the first apply.
pub const BEFORE_FIRST_APPLY: (&str, bool) = ("before-first-apply", false);

/// An owner is a manager and its operation (apply or not): the same name with apply and update gives two owners.
pub type Owners = BTreeSet<(&'static str, bool)>;
type Members = BTreeMap<&'static str, (String, Owners)>;
type Data = BTreeMap<&'static str, String>;

/// Expected state of an object that several managers write.
pub trait Model: Clone + Debug + Default {
    type Written: Debug;
    /// Replaces the object. Without a manager the write is not tracked.
    fn update(&mut self, manager: Option<&'static str>, written: &Self::Written);
    /// Applies a configuration. Returns `None` on a conflict.
    fn applied(&self, manager: &'static str, written: &Self::Written, force: bool) -> Option<Self>;
    /// Makes `BEFORE_FIRST_APPLY` the owner of all fields.
    fn own_untracked(&mut self);
    fn compare(&self, live: &Value);
}

/// Performs the writes on an object and on its model, and compares both after each write. A write is two bytes
/// (manager and operation), the data, and the object that contains the data.
pub fn run_writes<M: Model>(kind: &str, writes: impl Iterator<Item = (u8, M::Written, Value)>) -> String {
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
            // An update must send the managed fields that are stored.
            if let Some(fields) = before.and_then(|live| live.at(&["metadata", "managedFields"])) {
                object.put(&["metadata", "managedFields"], fields.clone());
            }
            track(&ty, before, &mut object, &writer);
            model.update(tracked.then_some(manager), &written);
            live = Some(object);
            words.push('u');
        } else {
            if !tracked {
                model.own_untracked();
            }
            match (apply(&ty, live.as_ref(), &object, &writer, force), model.applied(manager, &written, force)) {
                (Ok(merged), Some(after)) => {
                    let again =
                        apply(&ty, Some(&merged), &object, &writer, false).expect("a repeated apply has no conflict");
                    assert_eq!(again, merged, "applying twice changes something");
                    (live, model) = (Some(merged), after);
                    words.push('a');
                }
                (Err(status), None) => {
                    assert_eq!(status.code, 409, "{}", status.message);
                    words.push('c');
                }
                (Ok(merged), None) => {
                    panic!("a conflict is missing: {model:?} with {written:?} by {manager} gives {merged}")
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
    run_writes::<Members>("io.k8s.api.core.v1.ConfigMap", writes)
}

impl Model for Members {
    type Written = Data;
    fn update(&mut self, manager: Option<&'static str>, data: &Data) {
        update(self, manager, data);
    }
    fn applied(&self, manager: &'static str, data: &Data, force: bool) -> Option<Members> {
        applied(self, manager, data, force)
    }
    fn own_untracked(&mut self) {
        self.values_mut().for_each(|(_, owners)| *owners = Owners::from([BEFORE_FIRST_APPLY]));
    }
    fn compare(&self, live: &Value) {
        compare(live, self);
    }
}

/// Replaces the whole map. A changed value is owned by the writer alone, and omitted keys are removed. If no field
/// has an owner, an update adds none, because tracking is off.
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

/// Applies a configuration. Returns `None` on a conflict. Keys that the manager omits are removed if they have no
/// other owner.
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
        assert_eq!(owners.get(key).cloned().unwrap_or_default(), expected, "owners of {key} of {live}");
    }
}
