//! A store in this process: readers share the memory, and all writes go through one writer.

use crate::disk::{Disk, NoDisk};
use crate::expiry::Expiry;
use crate::export::{self, Export};
use crate::memory::{Bounds, Memory};
use crate::queue::{PreviousBatch, Queue};
use crate::writer::{Answer, Health, Request, Shared, Writer};
use crate::{BoxFuture, Committed, Condition, Error, Finish, Operation, Page, Range, Record, Revision, Store, Txn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    pub bounds: Bounds,
    /// Run the writer in the caller's thread, one transaction at a time. For simulations, which must not depend on
    /// threads.
    pub inline: bool,
}

/// A store without durability.
pub struct Volatile;

impl Volatile {
    #[allow(clippy::new_ret_no_self)] // A store is only ever used through its trait.
    pub fn new(finish: Finish, options: Options) -> Arc<dyn Store> {
        let memory = Memory::new(FIRST_REVISION, [], options.bounds);
        // Nothing is synced, so there is nothing to share in a batch, and a queue would only add delay.
        let options = Options { inline: true, ..options };
        let disk = Box::new(NoDisk::default());
        Arc::new(Local::new(memory, Expiry::default(), disk, Arc::default(), finish, options))
    }
}

/// The revision of a new store.
pub(crate) const FIRST_REVISION: Revision = 1;

/// How often the writer checks, after a refused write, whether writes are possible again.
const RECOVERY_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of expired keys deleted per round: less than a batch, so that the queue has room for other writes.
const EXPIRED_PER_ROUND: usize = 256;

pub(crate) const CLOSED: &str = "the store is closed";

pub(crate) struct Local {
    shared: Arc<Shared>,
    writer: WriterAccess,
    disk_bytes: Arc<AtomicU64>,
}

/// How requests reach the writer.
enum WriterAccess {
    Queue { queue: Arc<Queue>, thread: Mutex<Option<JoinHandle<()>>> },
    Inline(Mutex<Option<Writer>>),
}

impl Local {
    pub fn new(
        memory: Memory,
        expiry: Expiry,
        disk: Box<dyn Disk>,
        disk_bytes: Arc<AtomicU64>,
        finish: Finish,
        options: Options,
    ) -> Local {
        let shared = Arc::new(Shared::new(Arc::new(memory), expiry));
        let writer = Writer { shared: Arc::clone(&shared), finish, disk };
        let writer = if options.inline { WriterAccess::Inline(Mutex::new(Some(writer))) } else { start(writer) };
        Local { shared, writer, disk_bytes }
    }

    /// Submits a transaction to the writer. The outcome arrives through the receiver.
    async fn submit(&self, txn: Txn) -> Result<oneshot::Receiver<Answer>, Error> {
        let (answer, receiver) = oneshot::channel();
        self.send(Request::Txn { txn, answer }).await?;
        Ok(receiver)
    }

    async fn send(&self, request: Request) -> Result<(), Error> {
        match &self.writer {
            WriterAccess::Queue { queue, .. } => {
                queue.push(request).await.map_err(|_closed| Error::Unavailable(CLOSED.to_owned()))?;
            }
            WriterAccess::Inline(writer) => {
                let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(writer) = writer.as_mut() else { return Err(Error::Unavailable(CLOSED.to_owned())) };
                guarded(writer, |writer| writer.serve(vec![request]));
            }
        }
        Ok(())
    }

    fn stop(&self) {
        self.shared.memory.close();
        match &self.writer {
            WriterAccess::Queue { queue, thread } => {
                queue.close();
                let thread = thread.lock().unwrap_or_else(PoisonError::into_inner).take();
                // The writer's panics are caught by `guarded`, so the thread has no result to report.
                drop(thread.map(JoinHandle::join));
            }
            WriterAccess::Inline(writer) => drop(writer.lock().unwrap_or_else(PoisonError::into_inner).take()),
        }
        self.shared.end(CLOSED.to_owned());
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.stop();
    }
}

fn start(mut writer: Writer) -> WriterAccess {
    let queue = Arc::new(Queue::default());
    let inbox = Arc::clone(&queue);
    let run = move || {
        let mut last = PreviousBatch::default();
        loop {
            let patience = matches!(writer.shared.health(), Health::Refused(_)).then_some(RECOVERY_INTERVAL);
            let Some(batch) = inbox.pop(patience, last) else { break };
            let (requests, start) = (batch.len(), Instant::now());
            match requests {
                0 => guarded(&mut writer, Writer::recover),
                _ => guarded(&mut writer, |writer| writer.serve(batch)),
            }
            last = PreviousBatch { requests, took: start.elapsed() };
        }
    };
    let thread = std::thread::Builder::new().name("store-writer".to_owned()).spawn(run);
    let thread = thread.expect("cannot start the writer thread");
    WriterAccess::Queue { queue, thread: Mutex::new(Some(thread)) }
}

/// Runs `work` and catches a panic of the writer. After a panic the store takes no more writes; reads stay correct, and
/// pending writes get an unknown outcome.
fn guarded(writer: &mut Writer, work: impl FnOnce(&mut Writer)) {
    let shared = Arc::clone(&writer.shared);
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(writer))) {
        shared.end(format!("the writer failed: {}", panic_text(&*panic)));
    }
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given")
}

async fn wait(answer: oneshot::Receiver<Answer>) -> Answer {
    answer
        .await
        .unwrap_or_else(|_dropped| Err(Error::Unknown("the writer stopped before it reported an outcome".to_owned())))
}

impl Store for Local {
    fn get(&self, key: &str) -> Option<Arc<Record>> {
        self.shared.memory.get(key)
    }

    fn list(&self, range: Range<'_>) -> Result<Page, Error> {
        self.shared.memory.list(range)
    }

    fn count(&self, prefix: &str) -> u64 {
        self.shared.memory.count(prefix)
    }

    fn revision(&self) -> Revision {
        self.shared.memory.revision()
    }

    fn oldest(&self) -> Revision {
        self.shared.memory.oldest()
    }

    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<Committed, Error>> {
        Box::pin(async move { wait(self.submit(txn).await?).await })
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn crate::Watcher>, Error> {
        self.shared.memory.watch(prefix, after)
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), Error>> {
        // History is kept only in memory.
        Box::pin(async move { self.shared.memory.compact(revision) })
    }

    fn expire(&self, now_s: u64) -> BoxFuture<'_, Result<usize, Error>> {
        Box::pin(async move {
            let mut expired = 0;
            loop {
                let due = {
                    let expiry = self.shared.expiry.lock().unwrap_or_else(PoisonError::into_inner);
                    expiry.due(now_s, EXPIRED_PER_ROUND)
                };
                if due.is_empty() {
                    return Ok(expired);
                }
                // Each key gets its own transaction and revision, so that a watch that resumes from a revision misses
                // no event.
                let mut answers = Vec::with_capacity(due.len());
                for (key, modified) in due {
                    let conditions = vec![Condition { key: Arc::clone(&key), modified }];
                    let operations = vec![Operation::Delete { key, last: None }];
                    answers.push(self.submit(Txn { conditions, operations }).await?);
                }
                for answer in answers {
                    match wait(answer).await {
                        Ok(_) => expired += 1,
                        // The key was written again since, with another expiry time or none.
                        Err(Error::Conflict { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
        })
    }

    fn export(&self) -> BoxFuture<'_, Result<Export, Error>> {
        Box::pin(async move {
            let (answer, receiver) = oneshot::channel();
            self.send(Request::Export(answer)).await?;
            let stopped = |_dropped| Error::Unavailable("the writer stopped before it reported an outcome".to_owned());
            let (revision, snapshot) = receiver.await.map_err(stopped)??;
            Ok(Export { revision, pages: export::stream(snapshot) })
        })
    }

    fn healthy(&self) -> Result<(), Error> {
        match self.shared.health() {
            Health::Good => Ok(()),
            Health::Refused(reason) | Health::Final(reason) => Err(Error::Unavailable(reason)),
        }
    }

    fn disk_bytes(&self) -> u64 {
        self.disk_bytes.load(Ordering::Relaxed)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        // Blocks until the batch in progress is done: at most one sync.
        Box::pin(async move { self.stop() })
    }
}
