//! Keys with values and revisions: get, list, transact, watch, compact. One trait, several backends, and one test suite
//! of named guarantees for all of them.
//!
//! This crate must never know Kubernetes: keys are text, values are bytes.
//!
//! All reads are answered from memory. A write is acknowledged only when it is durable and visible to every later read.
//!
//! Begin with the trait [`Store`], then [`memory`] for reads and watches, and `writer` for commits. `docs/design/store.md` and
//! `docs/design/etcd.md` specify what is stored.

pub mod backup;
mod disk;
mod embedded;
pub mod etcd;
mod expiry;
mod export;
mod fill;
mod format;
mod local;
mod mark;
mod medium;
pub mod memory;
mod open;
mod queue;
pub mod regular_file;
#[cfg(feature = "suite")]
pub mod suite;
mod verify;
mod writer;

pub use disk::Row;
pub use embedded::Embedded;
pub use etcd::Etcd;
pub use export::{Export, Rows, Sum};
pub use fill::Filling;
pub use local::{Options, Volatile};
pub use medium::Medium;
pub use memory::Bounds;
pub use open::OpenError;

use bytes::Bytes;
use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

/// One counter orders all writes. An empty store is at revision 1. Each transaction that changes anything adds one.
pub type Revision = u64;

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One version of one key.
#[derive(Debug)]
pub struct Record {
    pub key: Arc<str>,
    /// The value that readers get: the stored value after [`Finish`].
    pub value: Bytes,
    pub created: Revision,
    pub modified: Revision,
    /// Cache for data that readers derive from the value, computed at most once per version.
    pub memo: OnceLock<Memo>,
}

/// Data that readers derive from a value.
pub type Memo = Arc<dyn Any + Send + Sync>;

/// Converts a stored value into the value that readers get. It is called once per version, with the revision that wrote
/// the value. The server inserts the resourceVersion into the object's bytes here, so that one encoding serves all
/// readers.
pub type Finish = fn(stored: &Bytes, revision: Revision) -> Bytes;

/// A transaction: if all conditions hold, all operations happen at one revision; otherwise nothing happens. If several
/// operations name one key, the last one counts. Deleting an absent key changes nothing.
///
/// All events of a transaction have the same revision. A client that resumes a watch by revision could miss the second
/// of two events, so a transaction should change at most one key per resource kind, or the watch must repeat such a
/// revision.
#[derive(Clone, Debug, Default)]
pub struct Txn {
    pub conditions: Vec<Condition>,
    pub operations: Vec<Operation>,
}

#[derive(Clone, Debug)]
pub struct Condition {
    pub key: Arc<str>,
    /// The revision that must have written the key's current version; 0 means that the key must be absent.
    pub modified: Revision,
}

#[derive(Clone, Debug)]
pub enum Operation {
    Put {
        key: Arc<str>,
        value: Bytes,
        /// Unix seconds after which the store may delete the key itself.
        expires_at_s: Option<u64>,
        /// Derived data of the value, if the writer already has it. It is not stored.
        memo: Option<Memo>,
    },
    /// `last` is the value that watchers get for the deleted key (finished with the deleting revision). `None` means
    /// the stored value.
    Delete { key: Arc<str>, last: Option<Bytes> },
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A condition does not hold. `current` is the key's current version.
    #[error("the key {key} is not at the expected revision")]
    Conflict { key: Arc<str>, current: Option<Arc<Record>> },
    /// The requested revision is older than the history that is kept.
    #[error("revision {asked} was compacted; the oldest readable is {oldest}")]
    Compacted { asked: Revision, oldest: Revision },
    /// The requested revision does not exist yet.
    #[error("revision {asked} is in the future; the newest is {newest}")]
    Future { asked: Revision, newest: Revision },
    /// Nothing was written or confirmed, and nothing will be until the cause is removed.
    #[error("the store does not take writes: {0}")]
    Unavailable(String),
    /// Nothing was written, because the backend is out of space. A transaction that only deletes may succeed.
    #[error("the store does not take writes: {0}")]
    OutOfSpace(String),
    /// Nothing was written, and a retry will fail too: the transaction is larger than the backend accepts.
    #[error("the write is too large for the store: {0}")]
    TooLarge(String),
    /// It is unknown whether the write happened.
    #[error("the outcome of the write is unknown: {0}")]
    Unknown(String),
}

/// Result of a committed transaction: its revision, and the new version of each key that it put, in order.
#[derive(Debug)]
pub struct Committed {
    pub revision: Revision,
    pub records: Vec<Arc<Record>>,
}

/// One page of a list.
#[derive(Debug)]
pub struct Page {
    pub records: Vec<Arc<Record>>,
    /// The revision at which the page was read.
    pub revision: Revision,
    /// Whether more keys follow the last one of this page.
    pub more: bool,
    /// Number of keys that follow, if the backend can count them cheaply.
    pub remaining: Option<u64>,
}

/// The keys to list: those with `prefix`, after `after` (exclusive), at most `limit` (0 = all), at revision `at`
/// (`None` = the newest).
#[derive(Clone, Copy, Debug, Default)]
pub struct Range<'a> {
    pub prefix: &'a str,
    pub after: Option<&'a str>,
    pub limit: usize,
    pub at: Option<Revision>,
}

/// A change of one key. `current` is `None` for a deletion, `previous` is `None` for a creation.
#[derive(Debug)]
pub struct Event {
    pub revision: Revision,
    pub key: Arc<str>,
    pub current: Option<Arc<Record>>,
    pub previous: Option<Arc<Record>>,
    /// For a deletion: the value that watchers get, finished with the deleting revision.
    pub last: Option<Bytes>,
}

/// Result of [`Watcher::next`].
#[derive(Debug)]
pub enum Next {
    /// All matching events up to `revision`, in order. May be empty; then only the position advanced.
    Events { events: Vec<Arc<Event>>, revision: Revision },
    /// Events that this watcher has not read were compacted. The client must relist.
    Compacted { oldest: Revision },
    /// The store closed.
    Closed,
}

/// A watch with its own position. The store keeps no buffer per watcher, so a slow watcher costs nothing and only falls
/// behind.
pub trait Watcher: Send {
    /// Waits for the next events of the watched prefix. Returns about `events_max` events: a revision is never split.
    /// Cancel-safe.
    ///
    /// Invariant for every backend: while this call waits, all events up to the store's current `revision()` were
    /// delivered. Authorization and the kind table rely on it to decide by the newest state.
    fn next(&mut self, events_max: usize) -> BoxFuture<'_, Next>;
    /// The revision up to which this watcher has delivered all its events. It also advances with changes of other
    /// prefixes, so that an idle watch can report progress (bookmarks).
    fn position(&self) -> Revision;
}

/// A store.
pub trait Store: Send + Sync {
    fn get(&self, key: &str) -> Option<Arc<Record>>;
    fn list(&self, range: Range<'_>) -> Result<Page, Error>;
    /// Number of keys with this prefix now.
    fn count(&self, prefix: &str) -> u64;
    /// The newest revision that readers see.
    fn revision(&self) -> Revision;
    /// The oldest revision at which lists and watches can start.
    fn oldest(&self) -> Revision;
    /// Waits until reads on this server see every write that any server acknowledged before this call. A store in one
    /// process needs no wait.
    fn barrier(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }
    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<Committed, Error>>;
    /// Watches keys with `prefix` for events after revision `after`.
    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watcher>, Error>;
    /// Discards history that only readers before `revision` need. A `revision` that was compacted already changes
    /// nothing.
    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), Error>>;
    /// Deletes the keys whose expiry time has passed, each in its own transaction. Returns their number.
    fn expire(&self, now_s: u64) -> BoxFuture<'_, Result<usize, Error>>;
    /// Returns all rows at the current revision for backups and copies. Writes continue meanwhile.
    fn export(&self) -> BoxFuture<'_, Result<Export, Error>>;
    /// Whether writes are possible now; the error says why not.
    fn healthy(&self) -> Result<(), Error>;
    /// Advice for the operator if the backend is reachable but out of space; `None` otherwise.
    fn out_of_space(&self) -> Option<String> {
        None
    }
    /// Size on disk in bytes, for metrics; 0 without a disk.
    fn disk_bytes(&self) -> u64;
    /// Stops accepting writes, ends the watchers and releases the files.
    fn close(&self) -> BoxFuture<'_, ()>;
}
