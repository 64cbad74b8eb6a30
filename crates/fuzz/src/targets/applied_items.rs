//! Compares server-side apply with a model: a list whose items are identified by name, with members that have values
//! and owners.
//!
//! Each three bytes of the input are one write: manager and operation, and for each of three items its presence and
//! its members.

use super::applied::{BEFORE_FIRST_APPLY, Model, Owners, run_writes};
use object::access::{Access, name};
use object::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

const ITEMS: [&str; 3] = ["a", "b", "c"];
const MEMBERS: [&str; 2] = ["image", "workingDir"];
const WRITES_MAX: usize = 16;

/// The written items, with the members of each.
type Written = BTreeMap<&'static str, BTreeMap<&'static str, &'static str>>;

/// The owners of an item, of its name and of each of its members.
#[derive(Clone, Debug, Default, PartialEq)]
struct Item {
    owners: Owners,
    of_name: Owners,
    members: BTreeMap<&'static str, (&'static str, Owners)>,
}

type Items = BTreeMap<&'static str, Item>;

pub fn read(input: &[u8]) -> String {
    let writes = input.chunks_exact(3).take(WRITES_MAX).map(|write| {
        let written = written(u16::from_le_bytes([write[1], write[2]]));
        let object = pod(&written);
        (write[0], written, object)
    });
    run_writes::<Items>("io.k8s.api.core.v1.Pod", writes)
}

impl Model for Items {
    type Written = Written;
    fn update(&mut self, manager: Option<&'static str>, written: &Written) {
        update(self, manager, written);
    }
    fn applied(&self, manager: &'static str, written: &Written, force: bool) -> Option<Items> {
        applied(self, manager, written, force)
    }
    fn own_untracked(&mut self) {
        self.values_mut().for_each(|item| item.all().for_each(|owners| *owners = [BEFORE_FIRST_APPLY].into()));
    }
    fn compare(&self, live: &Value) {
        compare(live, self);
    }
}

/// Decodes five bits per item: presence, and two bits for each member.
fn written(bits: u16) -> Written {
    let mut written = Written::new();
    for (at, item) in ITEMS.into_iter().enumerate() {
        let bits = bits >> (5 * at);
        if bits & 1 == 0 {
            continue;
        }
        let values = MEMBERS.into_iter().enumerate().filter_map(|(at, member)| {
            let value = [None, Some("x"), Some("y"), None][usize::from(bits >> (1 + 2 * at)) & 3]?;
            Some((member, value))
        });
        written.insert(item, values.collect());
    }
    written
}

fn pod(written: &Written) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}});
    let items: Vec<Value> = written
        .iter()
        .map(|(item, members)| {
            let mut container = json!(members);
            container["name"] = json!(item);
            container
        })
        .collect();
    if !items.is_empty() {
        pod.put(&["spec", "containers"], items);
    }
    pod
}

impl Item {
    fn new(owner: Option<(&'static str, bool)>) -> Item {
        let owners: Owners = owner.into_iter().collect();
        Item { owners: owners.clone(), of_name: owners, members: BTreeMap::new() }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Owners> {
        [&mut self.owners, &mut self.of_name].into_iter().chain(self.members.values_mut().map(|(_, owners)| owners))
    }
}

/// Replaces the whole list. An added item or changed value is owned by the writer alone, and omitted items are
/// removed.
fn update(model: &mut Items, manager: Option<&'static str>, written: &Written) {
    let me = manager.map(|manager| (manager, false));
    model.retain(|item, _| written.contains_key(item));
    for (item, members) in written {
        let item = model.entry(item).or_insert_with(|| Item::new(me));
        item.members.retain(|member, _| members.contains_key(member));
        for (member, value) in members {
            if item.members.get(member).is_none_or(|(held, _)| held != value) {
                item.members.insert(member, (value, me.into_iter().collect()));
            }
        }
    }
}

/// Applies a configuration. Returns `None` on a conflict. Items that the manager omits are removed if they have no
/// other owner. A removed item loses all its members, as upstream: a manager that changed only a member does not own
/// the item.
fn applied(model: &Items, manager: &'static str, written: &Written, force: bool) -> Option<Items> {
    let mut after = model.clone();
    let me = (manager, true);
    for (item, members) in written {
        let item = after.entry(item).or_default();
        item.owners.insert(me);
        item.of_name.insert(me);
        for (member, value) in members {
            match item.members.get_mut(member) {
                None => drop(item.members.insert(member, (value, [me].into()))),
                Some((held, owners)) if held == value => drop(owners.insert(me)),
                Some((held, owners)) => {
                    if !force && owners.iter().any(|owner| *owner != me) {
                        return None;
                    }
                    (*held, *owners) = (value, [me].into());
                }
            }
        }
    }
    after.retain(|name, item| {
        let members = written.get(name);
        item.members.retain(|member, (_, owners)| {
            let is_named = members.is_some_and(|members| members.contains_key(member));
            is_named || !owners.remove(&me) || !owners.is_empty()
        });
        if members.is_some() || !item.owners.remove(&me) {
            return true;
        }
        item.of_name.remove(&me);
        !item.owners.is_empty()
    });
    Some(after)
}

fn compare(live: &Value, model: &Items) {
    let found: Written = live
        .items(&["spec", "containers"])
        .iter()
        .map(|item| {
            let of =
                |words: &[&'static str], text: &str| *words.iter().find(|word| **word == text).expect("one of ours");
            let members = MEMBERS.into_iter().filter(|member| item.has(&[member]));
            let members = members.map(|member| (member, of(&["x", "y"], item.text(&[member])))).collect();
            (of(&ITEMS, name_of(item)), members)
        })
        .collect();
    let expected: Written = model
        .iter()
        .map(|(item, it)| (*item, it.members.iter().map(|(member, (value, _))| (*member, *value)).collect()))
        .collect();
    assert_eq!(found, expected, "{model:?} is {live}");
    assert_eq!(live.items(&["spec", "containers"]).len(), expected.len(), "an item occurs twice: {live}");
    let entries = live.items(&["metadata", "managedFields"]);
    if entries.is_empty() {
        return;
    }
    for (item, it) in model {
        let owners = |member: &str| -> BTreeSet<(String, bool)> {
            let key = format!("k:{{\"name\":\"{item}\"}}");
            let owns = |entry: &&Value| entry.has(&["fieldsV1", "f:spec", "f:containers", &key, member]);
            let owner = |entry: &Value| (entry.text(&["manager"]).to_owned(), entry.text(&["operation"]) == "Apply");
            entries.iter().filter(owns).map(owner).collect()
        };
        let expected = [(".".to_owned(), &it.owners), ("f:name".to_owned(), &it.of_name)].into_iter();
        let of_members = it.members.iter().map(|(member, (_, owners))| (format!("f:{member}"), owners));
        for (member, expected) in expected.chain(of_members) {
            let expected: BTreeSet<(String, bool)> =
                expected.iter().map(|(name, how)| ((*name).to_owned(), *how)).collect();
            assert_eq!(owners(&member), expected, "owners of {member} of {item} of {}", name(live));
        }
    }
}

fn name_of(item: &Value) -> &str {
    item.text(&["name"])
}
