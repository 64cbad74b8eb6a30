//! Reads that show what any server acknowledged: one question to etcd's majority, shared by all who ask at the same time.
//!
//! Every transaction also writes the key `head`. Its newest version, asked for after a read came in, therefore names a revision that
//! no earlier acknowledged write is after. Once the memory shows that revision, the read may go on.

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

/// One answer of etcd, good for everybody who asked before the question was sent.
#[derive(Clone)]
struct Round {
    asked: u64,
    newest: Result<Newest, String>,
}

/// The newest state of etcd, as far as the memory needs to know it.
#[derive(Clone, Copy)]
struct Newest {
    /// The revision of the newest transaction that wrote `head`.
    head: Revision,
    /// Where transactions may have come after it: the number of keys, and the revision at which there were so many.
    count: Option<(u64, Revision)>,
}

impl Default for Barrier {
    fn default() -> Barrier {
        let answered = watch::Sender::new(Round { asked: 0, newest: Ok(Newest { head: 0, count: None }) });
        Barrier { asked: AtomicU64::new(0), wake: Notify::new(), answered }
    }
}

/// Asks whenever somebody waits, and now and then to see whether etcd is there.
pub async fn run(inner: Arc<Inner>) {
    let barrier = &inner.barrier;
    loop {
        let asked = barrier.asked.load(Ordering::SeqCst);
        if asked == barrier.answered.borrow().asked {
            // Either way it is time to ask.
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
            _ => Err(Error::Unavailable("etcd does not answer".to_owned())),
        }
    }

    /// Waits until reads show this state.
    async fn show_newest(&self, newest: Newest) -> Result<(), Error> {
        self.show(newest.head).await?;
        self.show_when(|| self.has(newest)).await
    }

    /// Whether the memory has this state, or a later one. Since the newest `head` there were only deletions, so the number of keys tells
    /// how many of them the memory has seen.
    fn has(&self, newest: Newest) -> bool {
        let revision = self.memory.revision();
        let has_deletions = |(count, at)| revision > at || self.memory.count("") <= count;
        revision >= newest.head && newest.count.is_none_or(has_deletions)
    }

    /// The newest state, by etcd's majority.
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
            self.end("etcd went back to an older revision");
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

    /// The number of keys at this revision of etcd.
    async fn keys(&self, revision: i64) -> Result<u64, String> {
        let (key, range_end) = self.layout.data();
        let request = rpc::RangeRequest { key, range_end, revision, count_only: true, ..Default::default() };
        let answer = self.client.range(request).await.map_err(|failure| failure.to_string())?;
        Ok(u64::try_from(answer.count).unwrap_or(0))
    }
}
