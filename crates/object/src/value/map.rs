//! Members of an object, ordered by name.
//!
//! Nearly all objects in the API have few members. These are kept in one sorted vector and searched linearly. Objects
//! with many members use a tree, so that no input makes access slow. Members that were shared ([`super::Value::share`])
//! are cloned without a copy, until one of them is changed.

use super::{Key, Value};
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, btree_map};
use std::iter::FusedIterator;
use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::{fmt, slice, vec};

/// Objects with more members than this use a tree.
const VECTOR_MAX: usize = 64;
/// Up to this many members, a linear search is the fastest.
const LINEAR_SEARCH_MAX: usize = 12;

#[derive(Clone, PartialEq, Eq)]
pub struct Map(Members);

#[derive(Clone)]
enum Members {
    /// Sorted, without duplicate names.
    Few(Vec<(Key, Value)>),
    /// Sorted members that all clones share.
    Shared(Arc<[(Key, Value)]>),
    #[expect(clippy::box_collection, reason = "a pointer keeps the common small maps at three words")]
    Many(Box<BTreeMap<Key, Value>>),
}

impl PartialEq for Members {
    fn eq(&self, other: &Members) -> bool {
        if self.is_same(other) {
            return true;
        }
        match (self.few(), other.few()) {
            (Some(one), Some(other)) => one == other,
            _ => self.len() == other.len() && self.iter().eq(other.iter()),
        }
    }
}

impl Eq for Members {}

impl Members {
    fn len(&self) -> usize {
        match self {
            Members::Few(few) => few.len(),
            Members::Shared(few) => few.len(),
            Members::Many(many) => many.len(),
        }
    }

    fn iter(&self) -> Iter<'_> {
        match self {
            Members::Few(few) => Iter::Few(few.iter()),
            Members::Shared(few) => Iter::Few(few.iter()),
            Members::Many(many) => Iter::Many(many.iter()),
        }
    }

    /// Returns the members as a slice, unless they are a tree.
    fn few(&self) -> Option<&[(Key, Value)]> {
        match self {
            Members::Few(few) => Some(few),
            Members::Shared(few) => Some(few),
            Members::Many(_) => None,
        }
    }

    /// Whether both share the same memory.
    fn is_same(&self, other: &Members) -> bool {
        matches!((self, other), (Members::Shared(one), Members::Shared(other)) if Arc::ptr_eq(one, other))
    }

    /// Makes the members exclusive, so that they can be changed. Shared members are copied.
    fn make_exclusive(&mut self) -> Exclusive<'_> {
        if let Members::Shared(shared) = self {
            *self = Members::Few(shared.to_vec());
        }
        match self {
            Members::Few(few) => Exclusive::Few(few),
            Members::Many(many) => Exclusive::Many(many),
            Members::Shared(_) => unreachable!("shared members were copied above"),
        }
    }
}

enum Exclusive<'a> {
    Few(&'a mut Vec<(Key, Value)>),
    Many(&'a mut BTreeMap<Key, Value>),
}

/// Finds the member with this name.
fn find<'a>(few: &'a [(Key, Value)], name: &str) -> Option<&'a Value> {
    if few.len() > LINEAR_SEARCH_MAX {
        return search(few, name).ok().map(|at| &few[at].1);
    }
    // Only equality matters here, so compare without ordering.
    few.iter().find(|(key, _)| same(key, name)).map(|(_, value)| value)
}

/// Returns the index of a name, or where it would be inserted.
fn search(few: &[(Key, Value)], name: &str) -> Result<usize, usize> {
    if few.len() > LINEAR_SEARCH_MAX {
        return few.binary_search_by(|(key, _)| compare(key, name));
    }
    for (at, (key, _)) in few.iter().enumerate() {
        match compare(key, name) {
            Ordering::Less => {}
            Ordering::Equal => return Ok(at),
            Ordering::Greater => return Err(at),
        }
    }
    Err(few.len())
}

/// Same for a name that is going to be set. Fast path: members usually arrive in order.
fn place(few: &[(Key, Value)], name: &str) -> Result<usize, usize> {
    match few.last() {
        Some((last, _)) if compare(last, name).is_lt() => Err(few.len()),
        _ => search(few, name),
    }
}

/// Compares two names. Usually the first bytes decide.
fn compare(key: &str, name: &str) -> Ordering {
    let first = key.as_bytes().first().cmp(&name.as_bytes().first());
    if first.is_eq() { key.cmp(name) } else { first }
}

/// Whether two names are equal. Usually the lengths or first bytes decide.
fn same(key: &str, name: &str) -> bool {
    key.len() == name.len() && key.as_bytes().first() == name.as_bytes().first() && key == name
}

impl Map {
    pub const fn new() -> Map {
        Map(Members::Few(Vec::new()))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, name: impl AsRef<str>) -> Option<&Value> {
        let name = name.as_ref();
        match &self.0 {
            Members::Few(few) => find(few, name),
            Members::Shared(few) => find(few, name),
            Members::Many(many) => many.get(name),
        }
    }

    pub fn get_mut(&mut self, name: impl AsRef<str>) -> Option<&mut Value> {
        let name = name.as_ref();
        if self.is_shared_without(name) {
            return None;
        }
        match self.0.make_exclusive() {
            Exclusive::Few(few) => search(few, name).ok().map(|at| &mut few[at].1),
            Exclusive::Many(many) => many.get_mut(name),
        }
    }

    pub fn contains_key(&self, name: impl AsRef<str>) -> bool {
        self.get(name).is_some()
    }

    /// Sets a member and returns the previous value.
    pub fn insert(&mut self, key: impl Into<Key>, value: Value) -> Option<Value> {
        let key = key.into();
        match self.0.make_exclusive() {
            Exclusive::Many(many) => many.insert(key, value),
            Exclusive::Few(few) => match place(few, &key) {
                Ok(at) => Some(std::mem::replace(&mut few[at].1, value)),
                Err(at) => {
                    few.insert(at, (key, value));
                    self.grow_beyond(VECTOR_MAX);
                    None
                }
            },
        }
    }

    pub fn remove(&mut self, name: impl AsRef<str>) -> Option<Value> {
        self.remove_entry(name).map(|(_, value)| value)
    }

    pub fn remove_entry(&mut self, name: impl AsRef<str>) -> Option<(Key, Value)> {
        let name = name.as_ref();
        if self.is_shared_without(name) {
            return None;
        }
        match self.0.make_exclusive() {
            Exclusive::Few(few) => search(few, name).ok().map(|at| few.remove(at)),
            Exclusive::Many(many) => many.remove_entry(name),
        }
    }

    pub fn entry(&mut self, key: impl Into<Key>) -> Entry<'_> {
        Entry { map: self, key: key.into() }
    }

    /// Moves all members of `other` here. They replace members of the same name.
    pub fn append(&mut self, other: &mut Map) {
        self.extend(std::mem::take(other));
    }

    pub fn clear(&mut self) {
        *self = Map::new();
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&Key, &mut Value) -> bool) {
        match self.0.make_exclusive() {
            Exclusive::Few(few) => few.retain_mut(|(key, value)| keep(key, value)),
            Exclusive::Many(many) => many.retain(|key, value| keep(key, value)),
        }
    }

    pub fn iter(&self) -> Iter<'_> {
        self.0.iter()
    }

    pub fn iter_mut(&mut self) -> IterMut<'_> {
        match self.0.make_exclusive() {
            Exclusive::Few(few) => IterMut::Few(few.iter_mut()),
            Exclusive::Many(many) => IterMut::Many(many.iter_mut()),
        }
    }

    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &Key> + ExactSizeIterator + Clone {
        self.iter().map(|(key, _)| key)
    }

    pub fn values(&self) -> impl DoubleEndedIterator<Item = &Value> + ExactSizeIterator + Clone {
        self.iter().map(|(_, value)| value)
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        self.iter_mut().map(|(_, value)| value)
    }

    pub fn into_values(self) -> impl Iterator<Item = Value> {
        self.into_iter().map(|(_, value)| value)
    }

    /// Creates a map from members in any order. For duplicate names, the last one counts.
    pub(super) fn of(mut members: Vec<(Key, Value)>) -> Map {
        if !members.is_sorted_by(|(one, _), (next, _)| one < next) {
            members.sort_by(|(one, _), (other, _)| one.cmp(other));
            // Keep the later value at the position of the earlier one.
            members.dedup_by(|later, earlier| {
                let is_same = later.0 == earlier.0;
                if is_same {
                    std::mem::swap(later, earlier);
                }
                is_same
            });
        }
        let mut map = Map(Members::Few(members));
        map.grow_beyond(VECTOR_MAX);
        map
    }

    /// Makes clones share the members, and also the objects up to `levels` levels below.
    pub(super) fn share(&mut self, levels: usize) {
        let Some(below) = levels.checked_sub(1) else { return };
        match &mut self.0 {
            Members::Shared(_) => {}
            // An empty map needs no allocation.
            Members::Few(few) if few.is_empty() => *few = Vec::new(),
            Members::Few(few) => {
                few.iter_mut().for_each(|(_, value)| value.share_down(below));
                self.0 = Members::Shared(std::mem::take(few).into());
            }
            Members::Many(many) => many.values_mut().for_each(|value| value.share_down(below)),
        }
    }

    /// Whether both maps share their members, which implies that they are equal.
    pub fn is_same(&self, other: &Map) -> bool {
        self.0.is_same(&other.0)
    }

    /// Whether the map is shared and lacks this name: then a removal changes nothing, and it can stay shared.
    fn is_shared_without(&self, name: &str) -> bool {
        matches!(&self.0, Members::Shared(few) if find(few, name).is_none())
    }

    /// Converts the members to a tree if there are more than `most`.
    fn grow_beyond(&mut self, most: usize) {
        if let Exclusive::Few(few) = self.0.make_exclusive()
            && few.len() > most
        {
            let members = std::mem::take(few);
            self.0 = Members::Many(Box::new(members.into_iter().collect()));
        }
    }
}

impl Default for Map {
    fn default() -> Map {
        Map::new()
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.debug_map().entries(self).finish()
    }
}

/// An entry of a map, which may be absent.
pub struct Entry<'a> {
    map: &'a mut Map,
    key: Key,
}

impl<'a> Entry<'a> {
    pub fn or_insert(self, value: Value) -> &'a mut Value {
        self.or_insert_with(|| value)
    }

    pub fn or_insert_with(self, make: impl FnOnce() -> Value) -> &'a mut Value {
        let Entry { map, key } = self;
        if map.len() == VECTOR_MAX && !map.contains_key(&key) {
            map.grow_beyond(VECTOR_MAX - 1);
        }
        match map.0.make_exclusive() {
            Exclusive::Many(many) => many.entry(key).or_insert_with(make),
            Exclusive::Few(few) => {
                let at = place(few, &key).unwrap_or_else(|at| {
                    few.insert(at, (key, make()));
                    at
                });
                &mut few[at].1
            }
        }
    }
}

impl<Q: Borrow<str> + ?Sized> Index<&Q> for Map {
    type Output = Value;
    /// Panics if there is no such member.
    fn index(&self, name: &Q) -> &Value {
        self.get(name.borrow()).expect("no such member")
    }
}

impl<Q: Borrow<str> + ?Sized> IndexMut<&Q> for Map {
    fn index_mut(&mut self, name: &Q) -> &mut Value {
        self.get_mut(name.borrow()).expect("no such member")
    }
}

impl<K: Into<Key>> FromIterator<(K, Value)> for Map {
    fn from_iter<I: IntoIterator<Item = (K, Value)>>(members: I) -> Map {
        Map::of(members.into_iter().map(|(key, value)| (key.into(), value)).collect())
    }
}

impl<K: Into<Key>> Extend<(K, Value)> for Map {
    fn extend<I: IntoIterator<Item = (K, Value)>>(&mut self, members: I) {
        for (key, value) in members {
            self.insert(key, value);
        }
    }
}

impl<K: Into<Key>, const N: usize> From<[(K, Value); N]> for Map {
    fn from(members: [(K, Value); N]) -> Map {
        members.into_iter().collect()
    }
}

#[derive(Clone)]
pub enum Iter<'a> {
    Few(slice::Iter<'a, (Key, Value)>),
    Many(btree_map::Iter<'a, Key, Value>),
}

pub enum IterMut<'a> {
    Few(slice::IterMut<'a, (Key, Value)>),
    Many(btree_map::IterMut<'a, Key, Value>),
}

pub enum IntoIter {
    Few(vec::IntoIter<(Key, Value)>),
    Many(btree_map::IntoIter<Key, Value>),
}

macro_rules! iterates {
    ($life:lifetime $iter:ty, $item:ty, $pair:pat => $part:expr) => {
        impl<$life> Iterator for $iter {
            type Item = $item;
            fn next(&mut self) -> Option<$item> {
                match self {
                    Self::Few(few) => few.next().map(|$pair| $part),
                    Self::Many(many) => many.next(),
                }
            }
            fn size_hint(&self) -> (usize, Option<usize>) {
                match self {
                    Self::Few(few) => few.size_hint(),
                    Self::Many(many) => many.size_hint(),
                }
            }
        }
        impl<$life> DoubleEndedIterator for $iter {
            fn next_back(&mut self) -> Option<Self::Item> {
                match self {
                    Self::Few(few) => few.next_back().map(|$pair| $part),
                    Self::Many(many) => many.next_back(),
                }
            }
        }
        impl<$life> ExactSizeIterator for $iter {}
        impl<$life> FusedIterator for $iter {}
    };
}

iterates!('a Iter<'a>, (&'a Key, &'a Value), (key, value) => (key, value));
iterates!('a IterMut<'a>, (&'a Key, &'a mut Value), (key, value) => (&*key, value));

impl Iterator for IntoIter {
    type Item = (Key, Value);
    fn next(&mut self) -> Option<(Key, Value)> {
        match self {
            IntoIter::Few(few) => few.next(),
            IntoIter::Many(many) => many.next(),
        }
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            IntoIter::Few(few) => few.size_hint(),
            IntoIter::Many(many) => many.size_hint(),
        }
    }
}

impl ExactSizeIterator for IntoIter {}

impl IntoIterator for Map {
    type Item = (Key, Value);
    type IntoIter = IntoIter;
    fn into_iter(self) -> IntoIter {
        match self.0 {
            Members::Few(few) => IntoIter::Few(few.into_iter()),
            Members::Shared(few) => IntoIter::Few(Vec::from(&*few).into_iter()),
            Members::Many(many) => IntoIter::Many(many.into_iter()),
        }
    }
}

impl<'a> IntoIterator for &'a Map {
    type Item = (&'a Key, &'a Value);
    type IntoIter = Iter<'a>;
    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Map {
    type Item = (&'a Key, &'a mut Value);
    type IntoIter = IterMut<'a>;
    fn into_iter(self) -> IterMut<'a> {
        self.iter_mut()
    }
}
