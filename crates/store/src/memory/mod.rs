//! The store in memory: all current records, recent events, and the watchers of each prefix. All backends read from it.
//!
//! One lock guards everything. Readers hold it only to clone pointers, and the single publisher holds it to apply a
//! batch. Values are freed after the lock is released.

mod log;
mod topics;

use crate::{Error, Event, Next, Page, Range, Record, Revision, Watcher};
use log::Log;
use std::collections::{BTreeMap, HashSet};
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::Notify;
use topics::Topics;

/// Limits of the event log. When one is exceeded, the oldest revisions are discarded.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub events_max: usize,
    /// Counts the values that only the log keeps in memory.
    pub bytes_max: usize,
}

impl Default for Bounds {
    /// About one busy minute, and less memory than the objects of a cluster that is busy enough to fill it.
    fn default() -> Bounds {
        Bounds { events_max: 100_000, bytes_max: 32 << 20 }
    }
}

/// The changes of one committed transaction. All events have its revision.
pub struct Change {
    pub revision: Revision,
    pub events: Vec<Event>,
}

pub struct Memory {
    bounds: Bounds,
    state: RwLock<State>,
}

struct State {
    live: BTreeMap<Arc<str>, Arc<Record>>,
    log: Log,
    topics: Topics,
    revision: Revision,
    closed: bool,
}

impl Memory {
    /// Creates a memory without history from `records` as they are at `revision`.
    pub fn new(revision: Revision, records: impl IntoIterator<Item = Record>, bounds: Bounds) -> Memory {
        let live: BTreeMap<_, _> =
            records.into_iter().map(|record| (Arc::clone(&record.key), Arc::new(record))).collect();
        assert!(live.values().all(|record| record.modified <= revision), "a record is newer than the store's revision");
        let state = State { live, log: Log::new(revision), topics: Topics::default(), revision, closed: false };
        Memory { bounds, state: RwLock::new(state) }
    }

    pub fn get(&self, key: &str) -> Option<Arc<Record>> {
        self.read().live.get(key).cloned()
    }

    pub fn list(&self, range: Range<'_>) -> Result<Page, Error> {
        let state = self.read();
        let at = range.at.unwrap_or(state.revision);
        state.readable(at)?;
        Ok(if at == state.revision { state.page_now(range) } else { state.page_at(range, at) })
    }

    pub fn count(&self, prefix: &str) -> u64 {
        let end = after_prefix(prefix);
        let keys = keys(Range { prefix, ..Range::default() }, end.as_deref());
        self.read().live.range::<str, _>(keys).count() as u64
    }

    pub fn revision(&self) -> Revision {
        self.read().revision
    }

    pub fn oldest(&self) -> Revision {
        self.read().log.oldest()
    }

    /// Makes changes visible, all at once and in order, and wakes the watchers of the changed keys.
    pub fn publish(&self, changes: impl IntoIterator<Item = Change>) {
        let mut woken = Vec::new();
        let mut forgotten = Vec::new();
        {
            let mut state = self.write();
            for change in changes {
                state.apply(change, &mut woken);
            }
            while state.log.exceeds(self.bounds) {
                state.forget_oldest(&mut forgotten);
            }
        }
        // Wake each topic once, in the order of the changes. A set ordered by address would make simulated runs not
        // repeatable.
        let mut seen = HashSet::with_capacity(woken.len());
        for wake in woken.iter().filter(|wake| seen.insert(Arc::as_ptr(wake))) {
            wake.notify_waiters();
        }
    }

    /// Replaces all records by `records` as they are at `revision`, which must not be before the current one. The
    /// events in between are unknown, so the history begins here, and every watcher gets `Compacted`.
    pub fn reset(&self, revision: Revision, records: impl IntoIterator<Item = Record>) {
        let mut woken = Vec::new();
        let forgotten = {
            let mut state = self.write();
            let state = &mut *state;
            assert!(revision >= state.revision, "revision {revision} after {}", state.revision);
            let mut live = BTreeMap::new();
            for record in records {
                assert!(record.modified <= revision, "a record is newer than the store's revision");
                // An unchanged record stays the same object, with its memo.
                let same = state.live.remove(&record.key).filter(|before| before.modified == record.modified);
                let record = same.unwrap_or_else(|| Arc::new(record));
                live.insert(Arc::clone(&record.key), record);
            }
            state.topics.reset(revision, &mut woken);
            state.revision = revision;
            (std::mem::replace(&mut state.live, live), std::mem::replace(&mut state.log, Log::new(revision)))
        };
        drop(forgotten);
        for wake in woken {
            wake.notify_waiters();
        }
    }

    /// Discards history that only readers before `revision` need.
    pub fn compact(&self, revision: Revision) -> Result<(), Error> {
        // A long history is discarded in steps, so that readers wait for the lock only briefly.
        const REVISIONS_PER_STEP: usize = 512;
        loop {
            let mut forgotten = Vec::new();
            let mut state = self.write();
            if revision > state.revision {
                return Err(Error::Future { asked: revision, newest: state.revision });
            }
            for _ in 0..REVISIONS_PER_STEP {
                if !state.log.begins_at_or_before(revision) {
                    state.log.advance(revision);
                    return Ok(());
                }
                state.forget_oldest(&mut forgotten);
            }
        }
    }

    pub fn watch(self: &Arc<Self>, prefix: &str, after: Revision) -> Result<Box<dyn Watcher>, Error> {
        let mut state = self.write();
        let state = &mut *state;
        state.readable(after)?;
        let (prefix, wake) = state.topics.join(prefix, after, &state.log);
        Ok(Box::new(Reader { memory: Arc::clone(self), prefix, wake, position: after }))
    }

    /// Ends all watchers. Each first delivers the events it has not read yet.
    pub fn close(&self) {
        let wakes = {
            let mut state = self.write();
            state.closed = true;
            state.topics.wakes()
        };
        for wake in wakes {
            wake.notify_waiters();
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        // A panic under the lock may have broken an invariant, so continuing could return wrong data.
        self.state.read().expect("the lock is not poisoned")
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().expect("the lock is not poisoned")
    }
}

impl State {
    fn readable(&self, at: Revision) -> Result<(), Error> {
        let oldest = self.log.oldest();
        if at < oldest {
            return Err(Error::Compacted { asked: at, oldest });
        }
        if at > self.revision {
            return Err(Error::Future { asked: at, newest: self.revision });
        }
        Ok(())
    }

    fn page_now(&self, range: Range<'_>) -> Page {
        let end = after_prefix(range.prefix);
        let records = self.live.range::<str, _>(keys(range, end.as_deref())).map(|(_, record)| record);
        page(records, range.limit, self.revision)
    }

    /// Like [`State::page_now`], but keys that changed after `at` show the version before their first change after
    /// `at`.
    ///
    /// Costs one step per event since `at`. The usual caller reads the next page of a list that began recently.
    fn page_at(&self, range: Range<'_>, at: Revision) -> Page {
        let end = after_prefix(range.prefix);
        let keys = keys(range, end.as_deref());
        let mut changed = BTreeMap::new();
        for event in self.log.after(at).filter(|event| RangeBounds::<str>::contains(&keys, &*event.key)) {
            changed.entry(&event.key).or_insert(event.previous.as_ref());
        }
        let mut live = self.live.range::<str, _>(keys).peekable();
        let mut changed = changed.into_iter().peekable();
        let versions = std::iter::from_fn(move || {
            loop {
                let use_changed = match (live.peek(), changed.peek()) {
                    (None, None) => return None,
                    (Some(_), None) => false,
                    (None, Some(_)) => true,
                    (Some((live_key, _)), Some((changed_key, _))) => changed_key <= live_key,
                };
                if !use_changed {
                    return live.next().map(|(_, record)| record);
                }
                let (key, before) = changed.next()?;
                live.next_if(|(live_key, _)| *live_key == key);
                if before.is_some() {
                    return before;
                }
            }
        });
        page(versions, range.limit, at)
    }

    fn apply(&mut self, change: Change, woken: &mut Vec<Arc<Notify>>) {
        assert!(change.revision > self.revision, "revision {} after {}", change.revision, self.revision);
        for event in change.events {
            assert_eq!(event.revision, change.revision, "an event of another revision");
            let before = match &event.current {
                Some(record) => {
                    assert_eq!(record.modified, change.revision, "a record of another revision");
                    self.live.insert(Arc::clone(&event.key), Arc::clone(record))
                }
                None => self.live.remove(&event.key),
            };
            let unbroken = match (&before, &event.previous) {
                (None, None) => true,
                (Some(before), Some(previous)) => Arc::ptr_eq(before, previous),
                _ => false,
            };
            assert!(unbroken, "the event of {} does not name the key's last version as its previous one", event.key);
            let event = Arc::new(event);
            self.topics.push(&event, woken);
            self.log.push(event);
        }
        self.revision = change.revision;
    }

    fn forget_oldest(&mut self, forgotten: &mut Vec<Arc<Event>>) {
        let from = forgotten.len();
        self.log.pop_oldest(forgotten);
        for event in &forgotten[from..] {
            self.topics.forget(event);
        }
    }
}

/// A watcher: a position, and a share of the topic of its prefix.
struct Reader {
    memory: Arc<Memory>,
    prefix: Arc<str>,
    wake: Arc<Notify>,
    position: Revision,
}

impl Watcher for Reader {
    fn next(&mut self, events_max: usize) -> crate::BoxFuture<'_, Next> {
        Box::pin(async move {
            loop {
                // Created before the state is read, so that an event between the read and the wait still wakes this
                // watcher.
                let woken = self.wake.notified();
                let look = {
                    let state = self.memory.read();
                    let topic = state.topics.of(&self.prefix);
                    if self.position < topic.floor() {
                        return Next::Compacted { oldest: state.log.oldest() };
                    }
                    let (events, more) = topic.after(self.position, events_max.max(1));
                    let revision = match events.last() {
                        Some(last) if more => last.revision,
                        _ => state.revision,
                    };
                    if events.is_empty() && state.closed {
                        return Next::Closed;
                    }
                    (events, revision)
                };
                self.position = look.1;
                if !look.0.is_empty() {
                    return Next::Events { events: look.0, revision: look.1 };
                }
                woken.await;
            }
        })
    }

    fn position(&self) -> Revision {
        let state = self.memory.read();
        let topic = state.topics.of(&self.prefix);
        // If unread events were discarded, the position stays, and `next` returns `Compacted`.
        let seen_all = topic.newest().max(topic.floor()) <= self.position;
        if seen_all { state.revision } else { self.position }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.memory.write().topics.leave(&self.prefix);
    }
}

/// Returns a page of the first `limit` records.
fn page<'a>(mut records: impl Iterator<Item = &'a Arc<Record>>, limit: usize, revision: Revision) -> Page {
    // Counting is limited, so that reading a long list page by page does not cost the length of the list for each page.
    const COUNTED_MAX: usize = 10_000;
    let limit = if limit == 0 { usize::MAX } else { limit };
    let page: Vec<_> = records.by_ref().take(limit).cloned().collect();
    let counted = records.take(COUNTED_MAX + 1).count();
    let remaining = (counted <= COUNTED_MAX).then_some(counted as u64);
    Page { records: page, revision, more: counted > 0, remaining }
}

/// Returns the bounds of the keys of a range. `end` is the end of its prefix, from [`after_prefix`].
fn keys<'a>(range: Range<'a>, end: Option<&'a str>) -> (Bound<&'a str>, Bound<&'a str>) {
    let upper = end.map_or(Bound::Unbounded, Bound::Excluded);
    match range.after {
        // No key of the prefix is after its end. The result is an empty range, because an inverted range would panic.
        Some(after) if end.is_some_and(|end| after >= end) => {
            (Bound::Included(range.prefix), Bound::Excluded(range.prefix))
        }
        Some(after) if after >= range.prefix => (Bound::Excluded(after), upper),
        _ => (Bound::Included(range.prefix), upper),
    }
}

/// Returns the first text after all texts with this prefix, or `None` if there is none.
fn after_prefix(prefix: &str) -> Option<String> {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        // Text sorts by code point. Surrogates are not valid characters, so they are skipped.
        let next = if last == '\u{D7FF}' { Some('\u{E000}') } else { char::from_u32(last as u32 + 1) };
        if let Some(next) = next {
            end.push(next);
            return Some(end);
        }
    }
    None
}
