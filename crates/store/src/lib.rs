//! Revisioned keys and bytes: get, list, transact, watch, compact. One trait, several backends, one suite of named guarantees.
//!
//! This crate must never know Kubernetes: keys are text, values are bytes.
//!
//! All reads are answered from memory. A write is acknowledged only when it is durable and visible to every later read.
//!
//! Begin with the trait [`Store`], with [`memory`] for reads and watches, and with `writer` for commits. `FORMAT.md` and `ETCD.md` specify
//! what is stored.

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

/// One counter orders all writes. The empty store is at revision 1; a transaction that changes anything adds one.
pub type Revision = u64;

pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One version of one key.
#[derive(Debug)]
pub struct Record {
    pub key: Arc<str>,
    /// What readers see: the stored value after the store's [`Finish`].
    pub value: Bytes,
    pub created: Revision,
    pub modified: Revision,
    /// Room for what readers derive from the value, worked out at most once for each version.
    pub memo: OnceLock<Memo>,
}

/// What readers derive from a value.
pub type Memo = Arc<dyn Any + Send + Sync>;

/// Turns a stored value into what readers see, once, given the revision that wrote it. (The server writes the revision into the
/// object's bytes here, so that one encoding serves every reader.)
pub type Finish = fn(stored: &Bytes, revision: Revision) -> Bytes;

/// A transaction: all operations happen, at one revision, if all conditions hold; otherwise nothing happens. Of several
/// operations on one key the last one counts; to delete what is not there changes nothing.
///
/// Events of one revision cannot be told apart by it. Clients that resume by revision want one key of a kind in a transaction,
/// or to be told of such a revision again.
#[derive(Clone, Debug, Default)]
pub struct Txn {
    pub conditions: Vec<Condition>,
    pub operations: Vec<Operation>,
}

#[derive(Clone, Debug)]
pub struct Condition {
    pub key: Arc<str>,
    /// The revision that must have written the key's current version; 0 = the key must be absent.
    pub modified: Revision,
}

#[derive(Clone, Debug)]
pub enum Operation {
    Put {
        key: Arc<str>,
        value: Bytes,
        /// Unix seconds after which the store may delete the key by itself.
        expires_at_s: Option<u64>,
        /// What readers would derive from the value, where the writer knows it already. It is not stored.
        memo: Option<Memo>,
    },
    /// `last` is the value that watchers see as the deleted one (finished with the deleting revision); `None` shows the stored one.
    Delete { key: Arc<str>, last: Option<Bytes> },
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A condition did not hold; the current version is here.
    #[error("the key {key} is not at the expected revision")]
    Conflict { key: Arc<str>, current: Option<Arc<Record>> },
    /// The asked revision is older than what is kept.
    #[error("revision {asked} was compacted; the oldest readable is {oldest}")]
    Compacted { asked: Revision, oldest: Revision },
    /// The asked revision has not happened yet.
    #[error("revision {asked} is in the future; the newest is {newest}")]
    Future { asked: Revision, newest: Revision },
    /// Nothing was written or confirmed, and nothing will be until the cause is cured.
    #[error("the store does not take writes: {0}")]
    Unavailable(String),
    /// Nothing was written, because the backend has no space left. A transaction that only deletes may succeed.
    #[error("the store does not take writes: {0}")]
    OutOfSpace(String),
    /// Nothing was written, and nothing ever will be: the backend does not take so much at once.
    #[error("the store does not take so much at once: {0}")]
    TooLarge(String),
    /// Nobody can say whether this write happened.
    #[error("the outcome of the write is unknown: {0}")]
    Unknown(String),
}

/// What a committed transaction did: its revision, and the new version of each key it put, in order.
#[derive(Debug)]
pub struct Committed {
    pub revision: Revision,
    pub records: Vec<Arc<Record>>,
}

/// A page of a list.
#[derive(Debug)]
pub struct Page {
    pub records: Vec<Arc<Record>>,
    /// The revision that the page shows.
    pub revision: Revision,
    /// Whether keys follow after the last one here.
    pub more: bool,
    /// How many keys follow, where the backend knows it cheaply.
    pub remaining: Option<u64>,
}

/// Which keys to list: those with `prefix`, after `after` (exclusive), at most `limit` (0 = all), as they were at revision `at`
/// (`None` = now).
#[derive(Clone, Copy, Debug, Default)]
pub struct Range<'a> {
    pub prefix: &'a str,
    pub after: Option<&'a str>,
    pub limit: usize,
    pub at: Option<Revision>,
}

/// A change of one key. `current` is `None` for a deletion; `previous` is `None` for a creation.
#[derive(Debug)]
pub struct Event {
    pub revision: Revision,
    pub key: Arc<str>,
    pub current: Option<Arc<Record>>,
    pub previous: Option<Arc<Record>>,
    /// For a deletion: what watchers see, finished with the deleting revision.
    pub last: Option<Bytes>,
}

/// What a watcher reads next.
#[derive(Debug)]
pub enum Next {
    /// All matching events up to `revision`, in order. May be empty: then only the progress is news.
    Events { events: Vec<Arc<Event>>, revision: Revision },
    /// The watcher fell behind what is kept: it must list again.
    Compacted { oldest: Revision },
    /// The store closed.
    Closed,
}

/// A reader of changes with a position of its own: the store holds no buffer for it, so a slow one costs nothing and falls behind.
pub trait Watcher: Send {
    /// Waits for the next events with the watcher's prefix; at most `events_max` at once, but always all of a revision.
    /// Cancel-safe. While it waits, everything up to the store's `revision()` of that moment has been delivered: authorization and
    /// the kind table rely on this to judge by the newest state, on every backend.
    fn next(&mut self, events_max: usize) -> BoxFuture<'_, Next>;
    /// The revision up to which this watcher has seen everything: moves on with changes that are not its own, too, so a watcher
    /// that waits in vain can tell its reader how far it is.
    fn position(&self) -> Revision;
}

/// The store.
pub trait Store: Send + Sync {
    fn get(&self, key: &str) -> Option<Arc<Record>>;
    fn list(&self, range: Range<'_>) -> Result<Page, Error>;
    /// How many keys have this prefix now.
    fn count(&self, prefix: &str) -> u64;
    /// The newest revision that readers see.
    fn revision(&self) -> Revision;
    /// The oldest revision that lists and watches may ask for.
    fn oldest(&self) -> Revision;
    /// Waits until reads here show every write that anybody acknowledged before this call. Where all writes go through this
    /// process, they do.
    fn barrier(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(std::future::ready(Ok(())))
    }
    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<Committed, Error>>;
    /// Watches keys with `prefix` for events after revision `after`.
    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watcher>, Error>;
    /// Forgets versions that nobody at or after `revision` can see. What is forgotten already stays so.
    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), Error>>;
    /// Deletes the keys whose time has come, each in a transaction of its own; returns how many.
    fn expire(&self, now_s: u64) -> BoxFuture<'_, Result<usize, Error>>;
    /// Everything as it is now, while others write on. For backups and copies.
    fn export(&self) -> BoxFuture<'_, Result<Export, Error>>;
    /// Whether writes are possible now; the error says why not.
    fn healthy(&self) -> Result<(), Error>;
    /// What to do where the backend is known to have no space left, though it can be reached; `None` otherwise.
    fn out_of_space(&self) -> Option<String> {
        None
    }
    /// Bytes on disk, for metrics; 0 where there is none.
    fn disk_bytes(&self) -> u64;
    /// Stops taking writes and releases files. Watchers end.
    fn close(&self) -> BoxFuture<'_, ()>;
}
