//! The objects of one resource, from the watch or from responses to the controller's own writes, whichever is
//! newer.
//!
//! Watches lag behind. A controller that decides by a cache older than its own writes repeats them. So each
//! response to a write is stored at once ([`Cache::wrote`], [`Cache::deleted`]), and older watch events for
//! the object are ignored. Versions are compared as numbers, which they are on every Kubernetes API server;
//! an object whose version is not a number is always stored.

use crate::watcher::Event;
use object::Value;
use object::access::{Access, controller, name, namespace, terminating, uid};
use std::any::Any;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// `namespace/name`; cluster-scoped objects have an empty namespace.
pub type Key = (Arc<str>, Arc<str>);

pub fn key(object: &Value) -> Key {
    (shared(namespace(object)), name(object).into())
}

/// Returns a shared copy of the namespace. Consecutive objects mostly have the same one, so the last is
/// cached.
pub fn shared(namespace: &str) -> Arc<str> {
    thread_local!(static LAST: RefCell<Arc<str>> = RefCell::new("".into()));
    LAST.with_borrow_mut(|last| {
        if **last != *namespace {
            *last = namespace.into();
        }
        last.clone()
    })
}

/// An index function: by the uid of the controller. Objects without a controller are indexed by their
/// namespace and an empty uid.
pub fn by_controller(object: &Value) -> Vec<Key> {
    match controller(object) {
        Some(owner) => vec![controlled_by(owner.text(&["uid"]))],
        None => vec![uncontrolled_in(namespace(object))],
    }
}

/// The key under which [`by_controller`] finds the objects that a controller of this uid owns.
pub fn controlled_by(uid: &str) -> Key {
    ("".into(), uid.into())
}

/// The key under which [`by_controller`] finds the objects of a namespace that have no controller.
pub fn uncontrolled_in(namespace: &str) -> Key {
    (namespace.into(), "".into())
}

/// Whether the objects differ in more than the resourceVersion.
pub fn differs(before: Option<&Value>, after: Option<&Value>) -> bool {
    let (Some(Value::Object(before)), Some(Value::Object(after))) = (before, after) else { return true };
    let same = |(name, value): (&object::value::Key, &Value)| match after.get(name) {
        Some(other) if name == "metadata" => !metadata_differs(value, other),
        other => other == Some(value),
    };
    before.len() != after.len() || !before.iter().all(same)
}

fn metadata_differs(before: &Value, after: &Value) -> bool {
    let [before, after] = [before, after]
        .map(|metadata| metadata.as_object().into_iter().flatten().filter(|(member, _)| *member != "resourceVersion"));
    !before.eq(after)
}

/// Whether the values at any of these paths differ.
pub fn differs_at(before: Option<&Value>, after: Option<&Value>, paths: &[&[&str]]) -> bool {
    let (Some(before), Some(after)) = (before, after) else { return true };
    paths.iter().any(|path| before.at(path) != after.at(path))
}

/// A cache of objects by namespace and name. Clones share the content.
#[derive(Clone, Default)]
pub struct Cache {
    shared: Arc<Shared>,
}

/// A value computed once from each version of an object.
type View = Arc<dyn Any + Send + Sync>;

/// Finds the objects of a cache by the keys that an index function computes; always consistent with the
/// cache.
#[derive(Clone)]
pub struct Index {
    cache: Cache,
    at: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified when an own write is stored that the watch has not confirmed.
    unconfirmed: Notify,
}

/// Own writes that no watch event confirms within this time are checked by a request.
const CONFIRM_AFTER: Duration = Duration::from_secs(5);
/// Below this number, expired entries of `deleted` are not searched for.
const DELETED_FEW: usize = 1024;
/// The longest time a request can take.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(600);

impl Cache {
    /// Computes a view of each object when it is stored, so that readers need not compute it again and again.
    pub fn viewed<T: Send + Sync + 'static>(self, view: fn(Arc<Value>) -> T) -> Cache {
        self.lock().view = Some(Box::new(move |object| Arc::new(view(object.clone()))));
        self
    }

    /// Adds an index. Call it before the cache is filled.
    pub fn index(&self, keys: impl Fn(&Value) -> Vec<Key> + Send + Sync + 'static) -> Index {
        let mut state = self.lock();
        assert!(state.objects.is_empty(), "indexes are added before the cache is filled");
        state.indexes.push(Found { keys: Box::new(keys), pairs: BTreeMap::new() });
        Index { cache: self.clone(), at: state.indexes.len() - 1 }
    }

    pub fn get(&self, key: &Key) -> Option<Arc<Value>> {
        self.lock().objects.get(key).map(|entry| entry.object.clone())
    }
    pub fn all(&self) -> Vec<Arc<Value>> {
        self.lock().objects.values().map(|entry| entry.object.clone()).collect()
    }
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<Value>> {
        self.beginning(namespace, "")
    }
    /// The objects of a namespace whose names begin with `prefix`.
    pub fn beginning(&self, namespace: &str, prefix: &str) -> Vec<Arc<Value>> {
        let from: Key = (namespace.into(), prefix.into());
        self.lock()
            .objects
            .range(from..)
            .take_while(|(key, _)| &*key.0 == namespace && key.1.starts_with(prefix))
            .map(|(_, entry)| entry.object.clone())
            .collect()
    }
    /// The objects that any of these indexes of this cache finds, each once, in the order of their keys.
    pub fn find(&self, by: &[(&Index, &Key)]) -> Vec<Arc<Value>> {
        self.lock().find(by).into_iter().map(|item| item.object.clone()).collect()
    }
    /// Like [`Cache::find`], but returns the views that [`Cache::viewed`] computes.
    pub fn find_views<T: Send + Sync + 'static>(&self, by: &[(&Index, &Key)]) -> Vec<Arc<T>> {
        let state = self.lock();
        let views = state.find(by).into_iter().filter_map(|item| item.view.clone());
        views.map(|view| view.downcast().expect("the cache computes views of this type")).collect()
    }
    pub fn len(&self) -> usize {
        self.lock().objects.len()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Stores the response to an own write.
    pub fn wrote(&self, object: impl Into<Arc<Value>>) {
        self.change(|state, changes| state.write(object.into(), changes));
        self.shared.unconfirmed.notify_one();
    }

    /// Like [`Cache::wrote`], without calling the listener: the caller has handled the change itself.
    pub fn wrote_as_known(&self, object: impl Into<Arc<Value>>) {
        self.lock().write(object.into(), &mut Vec::new());
        self.shared.unconfirmed.notify_one();
    }

    /// Stores the response to an own deletion: the terminating object, its last state, or a Status.
    pub fn deleted(&self, key: &Key, uid: &str, answer: impl Into<Arc<Value>>) {
        let answer = answer.into();
        if !is_final(&answer) {
            return self.wrote(answer);
        }
        let is_it = object::access::uid(&answer) == uid;
        self.remove_deleted(key, uid, is_it.then_some(&answer));
    }

    /// Removes the object of this uid, which certainly does not exist any more.
    pub fn gone(&self, key: &Key, uid: &str) {
        self.remove_deleted(key, uid, None);
    }

    fn remove_deleted(&self, key: &Key, uid: &str, last: Option<&Arc<Value>>) {
        self.change(|state, changes| {
            state.remember_deleted(uid);
            let was = state.objects.get(key).filter(|entry| object::access::uid(&entry.object) == uid);
            if let Some(version) = was.and_then(|entry| entry.version) {
                state.floors.insert(key.clone(), version);
            }
            state.remove(key, uid, last, changes);
        });
    }

    /// Applies a watch event.
    pub fn apply(&self, event: Event<Arc<Value>>) {
        match event {
            Event::Init => self.lock().restart(),
            Event::Apply(object) => self.change(|state, changes| state.watch_apply(object, changes)),
            Event::Delete(object) => self.change(|state, changes| state.watch_delete(&object, changes)),
            Event::InitDone => self.change(State::complete),
        }
    }

    /// Sets the listener for changes. It is called after the change and may read the cache.
    pub fn listen(&self, listener: impl Fn(&Changed) + Send + Sync + 'static) {
        self.lock().listener = Some(Arc::new(listener));
    }
    pub fn stop_listening(&self) {
        self.lock().listener = None;
    }

    /// Waits until own writes have been unconfirmed for a while, and returns them. Cancel-safe.
    pub async fn unconfirmed_writes(&self) -> Vec<(u64, Key)> {
        while self.lock().unconfirmed.is_empty() {
            self.shared.unconfirmed.notified().await;
        }
        tokio::time::sleep(CONFIRM_AFTER).await;
        self.lock().unconfirmed.iter().cloned().collect()
    }

    /// Resolves an unconfirmed write with what the server has now.
    pub fn settle(&self, write: (u64, Key), found: Option<Arc<Value>>) {
        let (version, key) = write;
        let is_absent = found.is_none();
        self.change(|state, changes| {
            state.unconfirmed.remove(&(version, key.clone()));
            let entry = state.objects.get(&key).filter(|entry| entry.unconfirmed && entry.version == Some(version));
            if is_absent && entry.is_some() {
                state.take(&key, None, changes);
            }
        });
        found.into_iter().for_each(|object| self.wrote(object));
    }

    fn change(&self, change: impl FnOnce(&mut State, &mut Vec<Changed>)) {
        let mut changes = Vec::new();
        let listener = {
            let mut state = self.lock();
            change(&mut state, &mut changes);
            state.listener.clone()
        };
        if let Some(listener) = listener {
            changes.iter().for_each(|changed| listener(changed));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().expect("no panic happens under this lock")
    }
}

impl Index {
    pub fn get(&self, key: &Key) -> Vec<Arc<Value>> {
        self.cache.find(&[(self, key)])
    }

    /// The first object that `accept` accepts, in key order, from this key on and with the same first part.
    pub fn first_from(&self, key: &Key, accept: impl Fn(&Value) -> bool) -> Option<Arc<Value>> {
        let state = self.cache.lock();
        let from = (key.clone(), Key::default());
        let mut pairs = state.indexes[self.at].pairs.range(from..).take_while(|((found, _), _)| found.0 == key.0);
        pairs.find(|(_, item)| accept(&item.object)).map(|(_, item)| item.object.clone())
    }
}

type Listener = Arc<dyn Fn(&Changed) + Send + Sync>;

/// An object before and after a change.
#[derive(Clone, Debug)]
pub struct Changed {
    pub before: Option<Arc<Value>>,
    pub after: Option<Arc<Value>>,
    /// The object was deleted and its last state is unknown: it may have been changed after the state in
    /// `before`.
    pub last_state_unknown: bool,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<Key, Entry>,
    indexes: Vec<Found>,
    view: Option<Box<dyn Fn(&Arc<Value>) -> View + Send + Sync>>,
    listener: Option<Listener>,
    /// The watch has delivered all events up to this version.
    watched_version: u64,
    /// Own writes that neither the watch nor a request has confirmed, by version.
    unconfirmed: BTreeSet<(u64, Key)>,
    /// The uids of objects that this process deleted, with the time; the watch may still deliver older events
    /// of them.
    deleted_uids: HashMap<String, Instant>,
    /// At this number of entries, those too old to matter are removed.
    deleted_max: usize,
    /// Per name, the last known version of an object that this process deleted. Watch events below it are
    /// about older objects.
    floors: HashMap<Key, u64>,
    listing: Option<Listing>,
}

struct Entry {
    object: Arc<Value>,
    version: Option<u64>,
    /// Written by this process, and not confirmed by the watch yet.
    unconfirmed: bool,
}

struct Found {
    keys: Box<dyn Fn(&Value) -> Vec<Key> + Send + Sync>,
    /// The objects, by index key and own key.
    pairs: BTreeMap<(Key, Key), Item>,
}

#[derive(Clone)]
struct Item {
    object: Arc<Value>,
    view: Option<View>,
}

impl Found {
    /// The objects with this index key and their own keys, in the order of the latter.
    fn by<'a, 'k>(&'a self, key: &'k Key) -> impl Iterator<Item = (&'a Key, &'a Item)> + use<'a, 'k> {
        let from = (key.clone(), Key::default());
        let pairs = self.pairs.range(from..).take_while(move |((found, _), _)| found == key);
        pairs.map(|((_, own), item)| (own, item))
    }
}

/// A list that is being received.
#[derive(Default)]
struct Listing {
    seen: HashSet<Key>,
    newest: u64,
}

impl State {
    fn find(&self, by: &[(&Index, &Key)]) -> Vec<&Item> {
        let mut found: Vec<(&Key, &Item)> = Vec::new();
        for (index, key) in by {
            let (before, more) = (found.len(), self.indexes[index.at].by(key));
            found.extend(more);
            // Usually all indexes find the same objects; then the keys need not be compared.
            let (known, new) = found.split_at(before);
            if known.len() == new.len()
                && known.iter().zip(new).all(|((_, a), (_, b))| Arc::ptr_eq(&a.object, &b.object))
            {
                found.truncate(before);
            } else if before > 0 {
                found.sort_by_key(|(key, _)| *key);
                found.dedup_by_key(|(key, _)| *key);
            }
        }
        found.into_iter().map(|(_, item)| item).collect()
    }

    fn write(&mut self, object: Arc<Value>, changes: &mut Vec<Changed>) {
        let (key, version) = (key(&object), version(&object));
        let before = self.objects.get(&key).and_then(|entry| entry.version);
        let is_old =
            version.is_some_and(|version| version <= self.watched_version || before.is_some_and(|old| old >= version));
        // The watch has delivered this version or a newer one already.
        if is_old || self.deleted_uids.contains_key(uid(&object)) {
            return;
        }
        if let Some(version) = version {
            self.unconfirmed.insert((version, key.clone()));
        }
        self.put(key, Entry { object, version, unconfirmed: version.is_some() }, changes);
    }

    fn watch_apply(&mut self, object: Arc<Value>, changes: &mut Vec<Changed>) {
        let (key, version) = (key(&object), version(&object));
        let is_past = self.floors.get(&key).is_some_and(|floor| version < Some(*floor));
        if !is_past && !self.deleted_uids.contains_key(uid(&object)) {
            if let Some(listing) = &mut self.listing {
                listing.seen.insert(key.clone());
            }
            match self.objects.get_mut(&key) {
                Some(entry) if entry.unconfirmed && entry.version > version => {}
                // Nothing new: the watch confirms an own write, or a list contains a known version.
                Some(entry)
                    if let Some(version) = version
                        && entry.version == Some(version) =>
                {
                    entry.unconfirmed = false;
                    self.unconfirmed.remove(&(version, key));
                }
                _ => self.put(key, Entry { object, version, unconfirmed: false }, changes),
            }
        }
        self.advance(version, changes);
    }

    /// Remembers a deleted uid. The watch usually removes it again, unless it delivered the deletion before
    /// the response arrived.
    fn remember_deleted(&mut self, uid: &str) {
        if self.deleted_uids.len() >= self.deleted_max.max(DELETED_FEW) {
            self.forget_deleted();
            self.deleted_max = 2 * self.deleted_uids.len();
        }
        self.deleted_uids.insert(uid.to_owned(), Instant::now());
    }

    fn forget_deleted(&mut self) {
        self.deleted_uids.retain(|_, at| at.elapsed() < ANSWER_TIME_MAX);
    }

    fn watch_delete(&mut self, object: &Arc<Value>, changes: &mut Vec<Changed>) {
        if self.deleted_uids.remove(uid(object)).is_none() {
            self.remove(&key(object), uid(object), Some(object), changes);
        }
        self.advance(version(object), changes);
    }

    /// Prepares for a new list. It contains every earlier write, in that version or a newer one.
    fn restart(&mut self) {
        self.objects.values_mut().for_each(|entry| entry.unconfirmed = false);
        self.unconfirmed.clear();
        self.floors.clear();
        // The list does not contain these, but a response to an earlier write may still arrive.
        self.forget_deleted();
        self.listing = Some(Listing::default());
    }

    fn complete(&mut self, changes: &mut Vec<Changed>) {
        let Some(Listing { seen, newest }) = self.listing.take() else { return };
        self.watched_version = self.watched_version.max(newest);
        self.give_up_before(newest.saturating_add(1), changes);
        let unseen = self.objects.iter().filter(|(key, entry)| !entry.unconfirmed && !seen.contains(*key));
        for key in unseen.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.take(&key, None, changes);
        }
    }

    /// Watch events arrive in order: an unconfirmed write older than this event was deleted since. Lists are
    /// not ordered by version.
    fn advance(&mut self, version: Option<u64>, changes: &mut Vec<Changed>) {
        let Some(version) = version else { return };
        if let Some(listing) = &mut self.listing {
            listing.newest = listing.newest.max(version);
        } else {
            self.watched_version = self.watched_version.max(version);
            self.floors.retain(|_, floor| *floor > version);
            self.give_up_before(version, changes);
        }
    }

    fn give_up_before(&mut self, version: u64, changes: &mut Vec<Changed>) {
        while self.unconfirmed.first().is_some_and(|(written, _)| *written < version) {
            let Some((written, key)) = self.unconfirmed.pop_first() else { return };
            if self.objects.get(&key).is_some_and(|entry| entry.unconfirmed && entry.version == Some(written)) {
                self.take(&key, None, changes);
            }
        }
    }

    fn remove(&mut self, key: &Key, of_uid: &str, last: Option<&Arc<Value>>, changes: &mut Vec<Changed>) {
        // Another object may have this name by now.
        if self.objects.get(key).is_some_and(|entry| uid(&entry.object) == of_uid) {
            self.take(key, last, changes);
        }
    }

    fn put(&mut self, key: Key, entry: Entry, changes: &mut Vec<Changed>) {
        let after = entry.object.clone();
        let before = self.objects.insert(key.clone(), entry).map(|entry| entry.object);
        self.reindex(&key, before.as_ref(), Some(&after));
        changes.push(Changed { before, after: Some(after), last_state_unknown: false });
    }

    /// Removes an object. Its last state, if the server sent one, is reported before the deletion.
    fn take(&mut self, key: &Key, last: Option<&Arc<Value>>, changes: &mut Vec<Changed>) {
        let Some(entry) = self.objects.remove(key) else { return };
        self.reindex(key, Some(&entry.object), None);
        let mut before = entry.object;
        if let Some(last) = last.filter(|last| differs(Some(&before), Some(last))) {
            changes.push(Changed { before: Some(before), after: Some(last.clone()), last_state_unknown: false });
            before = last.clone();
        }
        changes.push(Changed { before: Some(before), after: None, last_state_unknown: last.is_none() });
    }

    fn reindex(&mut self, key: &Key, before: Option<&Arc<Value>>, after: Option<&Arc<Value>>) {
        let view = self.view.as_ref().zip(after).map(|(view, object)| view(object));
        for index in &mut self.indexes {
            for found in before.map(|object| (index.keys)(object)).unwrap_or_default() {
                index.pairs.remove(&(found, key.clone()));
            }
            if let Some(object) = after {
                let keys = (index.keys)(object).into_iter();
                let item = Item { object: object.clone(), view: view.clone() };
                index.pairs.extend(keys.map(|found| ((found, key.clone()), item.clone())));
            }
        }
    }
}

fn version(object: &Value) -> Option<u64> {
    object.text(&["metadata", "resourceVersion"]).parse().ok()
}

/// Whether this response to a deletion means that the object is removed, rather than waiting for finalizers
/// or a grace period.
fn is_final(answer: &Value) -> bool {
    let is_object = !uid(answer).is_empty();
    let waits = !answer.items(&["metadata", "finalizers"]).is_empty()
        || answer.int(&["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0) > 0;
    !(is_object && terminating(answer) && waits)
}

#[cfg(test)]
mod tests;
