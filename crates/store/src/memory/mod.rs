//! The store in memory: every live key, the recent past, and who waits for what. All backends read from here.
//!
//! One lock guards it all. Readers hold it only to clone pointers; the one publisher holds it to link a batch in. Values are
//! freed after the lock is released.

mod log;
mod topics;

use crate::{Error, Event, Next, Page, Range, Record, Revision, Watcher};
use log::Log;
use std::collections::{BTreeMap, HashSet};
use std::ops::{Bound, RangeBounds};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::sync::Notify;
use topics::Topics;

/// How much of the past to keep. The log forgets its oldest revisions by itself when it exceeds either bound.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub events_max: usize,
    /// Counts the values that only the past keeps alive.
    pub bytes_max: usize,
}

impl Default for Bounds {
    /// The past of a busy minute, and less memory than the live objects of a cluster busy enough to need it.
    fn default() -> Bounds {
        Bounds { events_max: 100_000, bytes_max: 32 << 20 }
    }
}

/// What one committed transaction changed: events that all carry its revision.
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
    /// A memory whose past begins now: `records` in the order of their keys, as they are at `revision`.
    pub fn new(revision: Revision, records: impl IntoIterator<Item = Record>, bounds: Bounds) -> Memory {
        let live: BTreeMap<_, _> =
            records.into_iter().map(|record| (Arc::clone(&record.key), Arc::new(record))).collect();
        assert!(live.values().all(|record| record.modified <= revision), "a record is newer than the store");
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

    /// Makes changes visible, all at once and in order, and wakes the watchers of the keys they touch.
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
        // Each once, in the order of the changes: where a run is to be repeated, addresses must not decide who wakes first.
        let mut seen = HashSet::with_capacity(woken.len());
        for wake in woken.iter().filter(|wake| seen.insert(Arc::as_ptr(wake))) {
            wake.notify_waiters();
        }
    }

    /// Replaces everything by `records` as they are at `revision`, which is not before the current one. What happened in between is
    /// not known, so the past begins now and every watcher has missed something.
    pub fn reset(&self, revision: Revision, records: impl IntoIterator<Item = Record>) {
        let mut woken = Vec::new();
        let forgotten = {
            let mut state = self.write();
            let state = &mut *state;
            assert!(revision >= state.revision, "revision {revision} after {}", state.revision);
            let mut live = BTreeMap::new();
            for record in records {
                assert!(record.modified <= revision, "a record is newer than the store");
                // What did not change stays the same record, with what readers derived from it.
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

    /// Forgets what only readers before `revision` could ask for.
    pub fn compact(&self, revision: Revision) -> Result<(), Error> {
        // Long pasts are forgotten in steps, so that no reader waits for the whole.
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

    /// Ends all watchers once they have read what there is.
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
        // A panic under the lock means a broken invariant: to serve on would be to serve lies.
        self.state.read().expect("the memory is whole")
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().expect("the memory is whole")
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

    /// As [`State::page_now`], but keys that changed after `at` show what they were before the first such change.
    ///
    /// Costs a step for each event since then. Who asks for the past usually asks for the next page of a list just begun.
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
            assert!(unbroken, "the event of {} does not follow its last version", event.key);
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

/// A watcher: a position, and a share in the topic of its prefix.
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
                // Made before the look, so that an event between the look and the wait still wakes.
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
        // What it did not read may have been forgotten: then `next` says so.
        let seen_all = topic.newest().max(topic.floor()) <= self.position;
        if seen_all { state.revision } else { self.position }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.memory.write().topics.leave(&self.prefix);
    }
}

/// A page of the first `limit` records.
fn page<'a>(mut records: impl Iterator<Item = &'a Arc<Record>>, limit: usize, revision: Revision) -> Page {
    // Whoever reads a long list page by page must not pay for the whole of it with each page.
    const COUNTED_MAX: usize = 10_000;
    let limit = if limit == 0 { usize::MAX } else { limit };
    let page: Vec<_> = records.by_ref().take(limit).cloned().collect();
    let counted = records.take(COUNTED_MAX + 1).count();
    let remaining = (counted <= COUNTED_MAX).then_some(counted as u64);
    Page { records: page, revision, more: counted > 0, remaining }
}

/// The keys of a range whose prefix ends before `end`.
fn keys<'a>(range: Range<'a>, end: Option<&'a str>) -> (Bound<&'a str>, Bound<&'a str>) {
    let upper = end.map_or(Bound::Unbounded, Bound::Excluded);
    match range.after {
        // Nothing is after the end; an inverted range would be a panic.
        Some(after) if end.is_some_and(|end| after >= end) => {
            (Bound::Included(range.prefix), Bound::Excluded(range.prefix))
        }
        Some(after) if after >= range.prefix => (Bound::Excluded(after), upper),
        _ => (Bound::Included(range.prefix), upper),
    }
}

/// The first text after all texts with this prefix; `None` where no text is.
fn after_prefix(prefix: &str) -> Option<String> {
    let mut end = prefix.to_owned();
    while let Some(last) = end.pop() {
        // Text sorts by code point; surrogates are none.
        let next = if last == '\u{D7FF}' { Some('\u{E000}') } else { char::from_u32(last as u32 + 1) };
        if let Some(next) = next {
            end.push(next);
            return Some(end);
        }
    }
    None
}
