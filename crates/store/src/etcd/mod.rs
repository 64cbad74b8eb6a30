//! The store of several servers: etcd keeps it, and each server holds it in memory as etcd's watch tells it. `ETCD.md` describes
//! the keys and argues what holds across servers.

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
pub(crate) use fill::Drafted;

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

/// A store that several processes share.
pub struct Etcd {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    layout: Layout,
    finish: Finish,
    offset: Offset,
    /// The revision that wrote the key `format`. Every transaction is conditioned on it: who was left behind by a newer format,
    /// or by a restore, writes nothing more.
    format_revision: i64,
    /// Who we are among those who write here.
    writer: u64,
    numbers: AtomicU64,
    memory: Arc<Memory>,
    expiry: Mutex<Expiry>,
    /// The revision up to which the memory shows everything.
    shown: watch::Sender<Revision>,
    /// A revision of etcd up to which the memory lacks nothing, though the newest change of ours may be older: others use etcd, too, and
    /// may have its old revisions forgotten.
    complete: AtomicI64,
    /// Our own writes that the watch has not told yet, by their number.
    pending: Mutex<HashMap<u64, oneshot::Sender<Told>>>,
    barrier: Barrier,
    health: Mutex<Health>,
    space: space::Space,
    turns: Mutex<HashMap<&'static str, i64>>,
    disk_bytes: AtomicU64,
    closing: CancellationToken,
}

/// What the watch tells of a write of our own.
enum Told {
    /// It happened, at this revision: the new version of each key it put, in order.
    Committed(Revision, Vec<Arc<Record>>),
    /// The memory was made anew; what happened in between was not told one by one.
    Missed,
}

impl Etcd {
    /// Opens the store, or makes one where there is none. When this returns, it shows everything that was written before.
    pub async fn open(config: &Config, finish: Finish, options: Options) -> Result<Arc<dyn Store>, OpenError> {
        let client = Client::new(config).map_err(OpenError::Refused)?;
        client.login().await.map_err(opening)?;
        let layout = Layout::new(&config.prefix);
        let (format, format_revision) = settle_format(&client, &layout).await?;
        let loaded = feed::load(&client, &layout, format.offset, finish).await.map_err(opening)?;
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

/// Reads the format, or writes ours where nothing is there yet.
async fn settle_format(client: &Client, layout: &Layout) -> Result<(Format, i64), OpenError> {
    let ours = Format { version: FORMAT_VERSION, offset: Offset(0) };
    let (from, to) = layout.all();
    let first = client.range(rpc::RangeRequest { key: from, range_end: to, limit: 1, ..Default::default() });
    let first = first.await.map_err(opening)?;
    let nothing = first.kvs.is_empty();
    if nothing {
        let request = rpc::TxnRequest {
            compare: vec![commit::compare(layout.format(), 0)],
            success: vec![commit::put(layout.format(), ours.encode())],
            failure: Vec::new(),
        };
        // Whether this or another server's came first, the answer is read below.
        match client.txn(request).await {
            Ok(_) | Err(Failure::Unknown(_)) => {}
            Err(failure) => return Err(opening(failure)),
        }
    }
    let read = client.range(rpc::RangeRequest { key: layout.format(), ..Default::default() }).await.map_err(opening)?;
    let Some(kv) = read.kvs.into_iter().next() else {
        if nothing {
            return Err(OpenError::Unreachable("etcd did not take the first write".to_owned()));
        }
        return Err(OpenError::NotOurs);
    };
    let format = Format::decode(&kv.value).ok_or_else(|| OpenError::Damaged("its format is not named".to_owned()))?;
    if format.version > FORMAT_VERSION {
        return Err(OpenError::Newer { found: format.version, known: FORMAT_VERSION });
    }
    Ok((format, kv.mod_revision))
}

fn opening(failure: Failure) -> OpenError {
    match failure {
        Failure::Denied(why) => OpenError::Refused(why),
        other => OpenError::Unreachable(other.to_string()),
    }
}

impl Inner {
    fn health(&self) -> Health {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes how the last question went. What is final stays.
    fn set_health(&self, health: Health) {
        let mut now = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*now, Health::Final(_)) || *now == health {
            return;
        }
        match &health {
            Health::Good => tracing::info!("etcd answers again"),
            Health::Refused(why) | Health::Final(why) => tracing::error!(why, "etcd cannot be used"),
        }
        *now = health;
    }

    /// Nothing here is true any more: only a restart helps.
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

    /// The revision that the memory shows, and the newest of etcd at which that is the whole state.
    fn known(&self) -> (Revision, i64) {
        // In this order: what is complete is never ahead of a memory that is looked at later, unless nothing of ours is in between.
        let complete = self.complete.load(Ordering::Acquire);
        let revision = self.memory.revision();
        (revision, self.offset.of_etcd(revision).max(complete))
    }

    /// Waits until reads show this revision.
    async fn show(&self, revision: Revision) -> Result<(), Error> {
        let mut shown = self.shown.subscribe();
        self.wait(shown.wait_for(|shown| *shown >= revision)).await
    }

    /// Waits until reads show a state of which this holds.
    async fn show_when(&self, holds: impl Fn() -> bool) -> Result<(), Error> {
        let mut shown = self.shown.subscribe();
        self.wait(shown.wait_for(|_| holds())).await
    }

    async fn wait<T>(&self, shown: impl Future<Output = Result<T, watch::error::RecvError>>) -> Result<(), Error> {
        let seen = tokio::time::timeout(self.client.timing.patience, shown);
        match seen.await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Error::Unavailable("etcd's watch does not tell what is new".to_owned())),
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
        // Who stops waiting gives up on the answer, not on the write: what follows from it must still be noted.
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
            // What anybody acknowledged before is in it.
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
