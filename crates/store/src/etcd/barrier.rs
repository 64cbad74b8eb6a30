//! The barrier: makes reads show every write that any server acknowledged before. One request to etcd's majority serves
//! all callers that wait at the same time.
//!
//! Every transaction also writes the key `head`. So if a read asks etcd for the version of `head`, no write that was
//! acknowledged before has a greater revision. When the memory shows that revision, the read may continue. `docs/design/etcd.md`
//! covers deletions without `head`.

use super::Inner;
use super::wire::rpc;
use crate::local::CLOSED;
use crate::writer::Health;
use crate::{Error, Revision};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Notify, watch};

pub struct Barrier {
    asked: AtomicU64,
    wake: Notify,
    answered: watch::Sender<Round>,
}

/// One response of etcd. It serves all callers that asked before the request was sent.
#[derive(Clone)]
struct Round {
    asked: u64,
    newest: Result<Newest, String>,
}

/// The newest state of etcd, as far as the barrier needs it.
#[derive(Clone, Copy)]
struct Newest {
    /// The revision of the newest transaction that wrote `head`.
    head: Revision,
    /// Only if transactions without `head` are possible after it: the number of keys, and the revision at which they
    /// were counted.
    count: Option<(u64, Revision)>,
}

impl Default for Barrier {
    fn default() -> Barrier {
        let answered = watch::Sender::new(Round { asked: 0, newest: Ok(Newest { head: 0, count: None }) });
        Barrier { asked: AtomicU64::new(0), wake: Notify::new(), answered }
    }
}

/// Sends a request to etcd when a caller waits, and at each heartbeat to detect whether etcd is reachable.
pub async fn run(inner: Arc<Inner>) {
    let barrier = &inner.barrier;
    loop {
        let asked = barrier.asked.load(Ordering::SeqCst);
        if asked == barrier.answered.borrow().asked {
            // Woken up or timed out: in both cases it is time for the next request.
            drop(tokio::time::timeout(inner.client.timing.heartbeat, barrier.wake.notified()).await);
        }
        let asked = barrier.asked.load(Ordering::SeqCst);
        let newest = inner.newest().await;
        match &newest {
            Ok(_) => inner.set_health(Health::Good),
            Err(why) => inner.set_health(Health::Refused(why.clone())),
        }
        barrier.answered.send_replace(Round { asked, newest });
    }
}

impl Inner {
    pub async fn barrier(&self) -> Result<(), Error> {
        self.check_open()?;
        let mut answered = self.barrier.answered.subscribe();
        let mine = self.barrier.asked.fetch_add(1, Ordering::SeqCst) + 1;
        self.barrier.wake.notify_one();
        let wait = async {
            let round = answered.wait_for(|round| round.asked >= mine).await;
            round.map(|round| round.clone())
        };
        let round = tokio::select! {
            biased;
            round = tokio::time::timeout(self.client.timing.patience, wait) => round,
            () = self.closing.cancelled() => return Err(Error::Unavailable(CLOSED.to_owned())),
        };
        match round {
            Ok(Ok(Round { newest: Ok(newest), .. })) => self.show_newest(newest).await,
            Ok(Ok(Round { newest: Err(why), .. })) => Err(Error::Unavailable(why)),
            _ => Err(Error::Unavailable("etcd does not respond".to_owned())),
        }
    }

    /// Waits until reads show this state.
    async fn show_newest(&self, newest: Newest) -> Result<(), Error> {
        self.show(newest.head).await?;
        self.show_when(|| self.has(newest)).await
    }

    /// Whether the memory has this state or a later one. Only deletions can follow the newest `head` without writing
    /// it, so the memory has all of them when it has no more keys than etcd.
    fn has(&self, newest: Newest) -> bool {
        let revision = self.memory.revision();
        let has_deletions = |(count, at)| revision > at || self.memory.count("") <= count;
        revision >= newest.head && newest.count.is_none_or(has_deletions)
    }

    /// Asks etcd's majority for its newest state. Also detects a replaced store and an etcd that was restored to an
    /// older revision.
    async fn newest(&self) -> Result<Newest, String> {
        let known = self.memory.revision();
        let (from, to) = self.layout.marks();
        let request = rpc::RangeRequest { key: from, range_end: to, keys_only: true, ..Default::default() };
        let answer = self.client.range(request).await.map_err(|failure| failure.to_string())?;
        let modified = |key: &[u8]| answer.kvs.iter().find(|kv| kv.key == key).map_or(0, |kv| kv.mod_revision);
        if modified(&self.layout.format()) != self.format_revision {
            self.end(super::commit::REPLACED);
        }
        let at = answer.header.as_ref().map_or(0, |header| self.offset.revision(header.revision));
        if at < known {
            self.end("etcd was restored to an older revision");
        }
        let now = answer.header.as_ref().map_or(0, |header| header.revision);
        let guarded = answer.kvs.iter().any(|kv| kv.key == self.layout.guard());
        self.space.set_guarded(guarded);
        let count = if guarded { None } else { Some((self.keys(now).await?, at)) };
        let newest = Newest { head: self.offset.revision(modified(&self.layout.head())), count };
        if self.has(newest) {
            self.complete.fetch_max(now, Ordering::AcqRel);
        }
        match self.health() {
            Health::Final(why) => Err(why),
            _ => Ok(newest),
        }
    }

    /// Number of keys of this store at this revision of etcd.
    async fn keys(&self, revision: i64) -> Result<u64, String> {
        let (key, range_end) = self.layout.data();
        let request = rpc::RangeRequest { key, range_end, revision, count_only: true, ..Default::default() };
        let answer = self.client.range(request).await.map_err(|failure| failure.to_string())?;
        Ok(u64::try_from(answer.count).unwrap_or(0))
    }
}
