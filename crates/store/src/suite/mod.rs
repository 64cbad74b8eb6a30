//! The guarantees of a store, as named checks that any backend must pass. A check panics if its guarantee is broken.
//!
//! A check uses only keys under its own prefix, and only revisions that it got from the store, so several checks can
//! share one store.

mod crash;
mod members;
mod watching;
mod writing;

pub use crash::{Crashable, End, Image};
pub use members::{Members, directory};

use crate::{BoxFuture, Committed, Condition, Error, Event, Next, Operation, Record, Revision, Store, Txn, Watcher};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

pub type Check = fn(Arc<dyn Store>) -> BoxFuture<'static, ()>;

macro_rules! guarantees {
    ($($module:ident :: $name:ident),* $(,)?) => {
        /// All guarantees by name. The store must have been opened with [`finish`].
        pub const GUARANTEES: &[(&str, Check)] = &[$((stringify!($name), |store| Box::pin($module::$name(store)))),*];
    };
}

guarantees![
    watching::ordered,
    watching::unique,
    watching::atomic,
    watching::reliable,
    watching::resumable,
    watching::unbroken_by_compaction,
    watching::quiet_watchers_never_fall_behind,
    watching::progress_without_events,
    watching::no_progress_over_compacted_events,
    watching::prefixes_are_exact,
    watching::deletions_show_the_last_value,
    writing::linearizable,
    writing::all_or_nothing,
    writing::no_change_no_revision,
    writing::last_operation_of_a_key_wins,
    writing::finished_once,
    writing::lists_are_snapshots,
    writing::pages_are_whole,
    writing::future_revisions_are_refused,
    writing::expired_keys_are_deleted,
    writing::exports_are_snapshots,
    writing::closed_stores_end,
];

/// Appends the revision to the value, so that checks can see which revision finished it and how often.
pub fn finish(stored: &Bytes, revision: Revision) -> Bytes {
    [stored, format!("@{revision}").as_bytes()].concat().into()
}

/// Longer than any response takes. A check that waits longer has found a lost response.
const PATIENCE: Duration = Duration::from_secs(20);

fn put(key: &str, value: &str) -> Operation {
    Operation::Put {
        key: Arc::from(key),
        value: Bytes::copy_from_slice(value.as_bytes()),
        expires_at_s: None,
        memo: None,
    }
}

fn delete(key: &str) -> Operation {
    Operation::Delete { key: Arc::from(key), last: None }
}

fn when(key: &str, modified: Revision) -> Condition {
    Condition { key: Arc::from(key), modified }
}

fn always(operations: Vec<Operation>) -> Txn {
    Txn { conditions: Vec::new(), operations }
}

async fn write(store: &dyn Store, operations: Vec<Operation>) -> Committed {
    let committed = tokio::time::timeout(PATIENCE, store.txn(always(operations))).await;
    committed.expect("the write got no outcome").expect("a write without conditions failed")
}

async fn put_one(store: &dyn Store, key: &str, value: &str) -> Arc<Record> {
    let mut committed = write(store, vec![put(key, value)]).await;
    assert_eq!(committed.records.len(), 1, "one put, one record");
    committed.records.remove(0)
}

fn watch(store: &dyn Store, prefix: &str, after: Revision) -> Box<dyn Watcher> {
    store.watch(prefix, after).expect("cannot watch a readable revision")
}

async fn next(watcher: &mut dyn Watcher, events_max: usize) -> Next {
    tokio::time::timeout(PATIENCE, watcher.next(events_max)).await.expect("the watcher got no event in time")
}

/// Reads the next `count` events, in portions of `events_max`.
async fn read(watcher: &mut dyn Watcher, count: usize, events_max: usize) -> Vec<Arc<Event>> {
    let mut all = Vec::new();
    while all.len() < count {
        match next(watcher, events_max).await {
            Next::Events { events, revision } => {
                assert!(events.iter().all(|event| event.revision <= revision), "no event is after the progress");
                assert_eq!(watcher.position().min(revision), revision, "the position follows the progress");
                all.extend(events);
            }
            other => panic!("expected {} more events, got {other:?}", count - all.len()),
        }
    }
    assert_eq!(all.len(), count, "no event too many");
    all
}

fn keys(records: &[Arc<Record>]) -> Vec<&str> {
    records.iter().map(|record| &*record.key).collect()
}

fn describe(event: &Event) -> (Revision, String, Option<Bytes>) {
    (event.revision, event.key.to_string(), event.current.as_ref().map(|record| record.value.clone()))
}

fn compacted(outcome: Result<impl Sized, Error>) -> Option<Revision> {
    match outcome {
        Err(Error::Compacted { oldest, .. }) => Some(oldest),
        _ => None,
    }
}
