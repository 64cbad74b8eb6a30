//! A store that several servers share. etcd keeps it, and each server holds all of it in memory, updated by a watch.
//! `docs/design/etcd.md` specifies the keys and explains what is guaranteed across servers.

mod barrier;
mod client;
mod commit;
mod config;
mod feed;
mod fill;
mod housekeeping;
mod layout;
mod space;
mod wire;

pub use config::{Config, DEFAULT_PREFIX, Timing, Tls, User};
pub(crate) use fill::NewStore;

use crate::expiry::Expiry;
use crate::local::CLOSED;
use crate::memory::Memory;
use crate::writer::Health;
use crate::{
    BoxFuture, Committed, Error, Export, Finish, OpenError, Options, Page, Range, Record, Revision, Store, Txn, Watcher,
};
use barrier::Barrier;
use client::{Client, Failure};
use layout::{FORMAT_VERSION, Format, Layout, Offset};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use wire::rpc;

/// A store in etcd.
pub struct Etcd {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    layout: Layout,
    finish: Finish,
    offset: Offset,
    /// The `mod_revision` of the key `format`. Every transaction compares it, so a server can no longer write after a
    /// newer version or a restore replaced `format`.
    format_revision: i64,
    /// Random id of this server among the writers of the store.
    writer: u64,
    numbers: AtomicU64,
    memory: Arc<Memory>,
    expiry: Mutex<Expiry>,
    /// The revision up to which the memory shows all changes.
    shown: watch::Sender<Revision>,
    /// A revision of etcd up to which the memory has all changes of this store. It may be greater than the revision of
    /// the last such change, because other programs write to etcd too, and may compact its history.
    complete: AtomicI64,
    /// Writes of this server that the watch has not reported yet, by their number.
    pending: Mutex<HashMap<u64, oneshot::Sender<WatchReport>>>,
    barrier: Barrier,
    health: Mutex<Health>,
    space: space::Space,
    turns: Mutex<HashMap<&'static str, i64>>,
    disk_bytes: AtomicU64,
    closing: CancellationToken,
}

/// What the watch reports for a write of this server.
enum WatchReport {
    /// The write was committed at this revision. The records are the new versions of the keys it put, in order.
    Committed(Revision, Vec<Arc<Record>>),
    /// All keys were read again, so this write was not reported individually.
    Missed,
}

impl Etcd {
    /// Opens the store, or creates one. When it returns, reads show everything that was written before.
    pub async fn open(config: &Config, finish: Finish, options: Options) -> Result<Arc<dyn Store>, OpenError> {
        let client = Client::new(config).map_err(OpenError::Refused)?;
        client.login().await.map_err(open_error)?;
        let layout = Layout::new(&config.prefix);
        let (format, format_revision) = read_or_create_format(&client, &layout).await?;
        let loaded = feed::load(&client, &layout, format.offset, finish).await.map_err(open_error)?;
        let memory = Arc::new(Memory::new(loaded.revision, loaded.records, options.bounds));
        let inner = Arc::new(Inner {
            client,
            layout,
            finish,
            offset: format.offset,
            format_revision,
            writer: uuid::Uuid::new_v4().as_u64_pair().0,
            numbers: AtomicU64::new(0),
            shown: watch::Sender::new(loaded.revision),
            complete: AtomicI64::new(0),
            memory,
            expiry: Mutex::new(loaded.expiry),
            pending: Mutex::default(),
            barrier: Barrier::default(),
            health: Mutex::new(Health::Good),
            space: space::Space::default(),
            turns: Mutex::default(),
            disk_bytes: AtomicU64::new(0),
            closing: CancellationToken::new(),
        });
        let tasks: [BoxFuture<'static, ()>; 3] = [
            Box::pin(feed::follow(Arc::clone(&inner))),
            Box::pin(barrier::run(Arc::clone(&inner))),
            Box::pin(housekeeping::gauge(Arc::clone(&inner))),
        ];
        for task in tasks {
            let closing = inner.closing.clone();
            tokio::spawn(async move { closing.run_until_cancelled(task).await });
        }
        Ok(Arc::new(Etcd { inner }))
    }
}

/// Reads the key `format`. Writes it first if the prefix has no keys.
async fn read_or_create_format(client: &Client, layout: &Layout) -> Result<(Format, i64), OpenError> {
    let ours = Format { version: FORMAT_VERSION, offset: Offset(0) };
    let (from, to) = layout.all();
    let first = client.range(rpc::RangeRequest { key: from, range_end: to, limit: 1, ..Default::default() });
    let first = first.await.map_err(open_error)?;
    let nothing = first.kvs.is_empty();
    if nothing {
        let request = rpc::TxnRequest {
            compare: vec![commit::compare(layout.format(), 0)],
            success: vec![commit::put(layout.format(), ours.encode())],
            failure: Vec::new(),
        };
        // Another server may have written it first. The value that won is read below.
        match client.txn(request).await {
            Ok(_) | Err(Failure::Unknown(_)) => {}
            Err(failure) => return Err(open_error(failure)),
        }
    }
    let read =
        client.range(rpc::RangeRequest { key: layout.format(), ..Default::default() }).await.map_err(open_error)?;
    let Some(kv) = read.kvs.into_iter().next() else {
        if nothing {
            return Err(OpenError::Unreachable("etcd did not accept the first write".to_owned()));
        }
        return Err(OpenError::NotOurs);
    };
    let format =
        Format::decode(&kv.value).ok_or_else(|| OpenError::Damaged("its format version is missing".to_owned()))?;
    if format.version > FORMAT_VERSION {
        return Err(OpenError::Newer { found: format.version, known: FORMAT_VERSION });
    }
    Ok((format, kv.mod_revision))
}

fn open_error(failure: Failure) -> OpenError {
    match failure {
        Failure::Denied(why) => OpenError::Refused(why),
        other => OpenError::Unreachable(other.to_string()),
    }
}

impl Inner {
    fn health(&self) -> Health {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records the result of the last request and logs changes. `Health::Final` is never replaced.
    fn set_health(&self, health: Health) {
        let mut now = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*now, Health::Final(_)) || *now == health {
            return;
        }
        match &health {
            Health::Good => tracing::info!("etcd responds again"),
            Health::Refused(why) | Health::Final(why) => tracing::error!(why, "etcd cannot be used"),
        }
        *now = health;
    }

    /// Stops all use of the store: the memory is no longer valid. Only a restart helps.
    fn end(&self, why: &str) {
        self.set_health(Health::Final(format!("{why}; restart this server")));
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.closing.is_cancelled() {
            return Err(Error::Unavailable(CLOSED.to_owned()));
        }
        match self.health() {
            Health::Final(why) => Err(Error::Unavailable(why)),
            _ => Ok(()),
        }
    }

    /// Returns the revision that the memory shows, and the newest revision of etcd at which the memory is complete.
    fn known(&self) -> (Revision, i64) {
        // Keep this order: `complete` was valid for a memory at or before the one that is read next, so the pair is
        // consistent.
        let complete = self.complete.load(Ordering::Acquire);
        let revision = self.memory.revision();
        (revision, self.offset.of_etcd(revision).max(complete))
    }

    /// Waits until reads show this revision.
    async fn show(&self, revision: Revision) -> Result<(), Error> {
        let mut shown = self.shown.subscribe();
        self.wait(shown.wait_for(|shown| *shown >= revision)).await
    }

    /// Waits until `holds` returns true for the state that reads show.
    async fn show_when(&self, holds: impl Fn() -> bool) -> Result<(), Error> {
        let mut shown = self.shown.subscribe();
        self.wait(shown.wait_for(|_| holds())).await
    }

    async fn wait<T>(&self, shown: impl Future<Output = Result<T, watch::error::RecvError>>) -> Result<(), Error> {
        let seen = tokio::time::timeout(self.client.timing.patience, shown);
        match seen.await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Error::Unavailable("etcd's watch is too far behind".to_owned())),
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.inner.closing.cancel();
    }
}

impl Store for Etcd {
    fn get(&self, key: &str) -> Option<Arc<Record>> {
        self.inner.memory.get(key)
    }

    fn list(&self, range: Range<'_>) -> Result<Page, Error> {
        self.inner.memory.list(range)
    }

    fn count(&self, prefix: &str) -> u64 {
        self.inner.memory.count(prefix)
    }

    fn revision(&self) -> Revision {
        self.inner.memory.revision()
    }

    fn oldest(&self) -> Revision {
        self.inner.memory.oldest()
    }

    fn barrier(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.inner.barrier())
    }

    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<Committed, Error>> {
        // Runs as its own task: if the caller stops waiting, the write and its bookkeeping must still complete.
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let written = tokio::spawn(async move { inner.commit(txn).await }).await;
            written.unwrap_or_else(|stopped| Err(Error::Unknown(format!("the writer stopped: {stopped}"))))
        })
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watcher>, Error> {
        self.inner.memory.watch(prefix, after)
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.inner.compact(revision))
    }

    fn expire(&self, now_s: u64) -> BoxFuture<'_, Result<usize, Error>> {
        Box::pin(self.inner.expire(now_s))
    }

    fn export(&self) -> BoxFuture<'_, Result<Export, Error>> {
        Box::pin(async move {
            // The barrier makes the export contain every write that any server acknowledged before.
            self.inner.barrier().await?;
            Ok(fill::export(Arc::clone(&self.inner)))
        })
    }

    fn healthy(&self) -> Result<(), Error> {
        self.inner.check_open()?;
        match self.inner.health() {
            Health::Good => Ok(()),
            Health::Refused(why) | Health::Final(why) => Err(Error::Unavailable(why)),
        }
    }

    fn out_of_space(&self) -> Option<String> {
        self.inner.space.is_exhausted().then(|| format!("etcd has no space left; {}", space::ADVICE))
    }

    fn disk_bytes(&self) -> u64 {
        self.inner.disk_bytes.load(Ordering::Relaxed)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.inner.closing.cancel();
            self.inner.memory.close();
        })
    }
}
