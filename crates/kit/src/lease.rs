//! Leader election by a Lease: of several processes, the holder leads. `plan::lease` decides; this module
//! sends requests and waits.

use crate::api::{Api, ApiError, Resource};
use crate::clock::Clock;
use futures::StreamExt;
use k8s_openapi::api::coordination::v1 as coordination;
use kube::api::{WatchEvent, WatchParams};
use object::access::Access;
use plan::lease::{Candidate, Step};
pub use plan::lease::{Loss, Timing};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

/// Work gets at least this long to stop, even if its lease has expired or was taken over.
const STOP_TIME_MIN: Duration = Duration::from_secs(1);
/// The pause after another candidate acquired the lease first.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A lease and the candidate for it.
#[derive(Clone)]
pub struct Election {
    pub api: Api,
    pub namespace: String,
    pub name: String,
    /// Unique for each process, also for two on the same machine.
    pub identity: String,
    pub timing: Timing,
    pub clock: Clock,
}

/// One term of leadership. The number identifies the term and only increases; writes are fenced with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    pub holder: String,
    pub number: i64,
    pub hold: Hold,
}

/// Whether a term still lasts, by the monotonic clock, which runs on while the process is frozen. A process
/// that checks this before each write sends none after a pause in which another may have acquired the lease.
#[derive(Clone, Debug)]
pub struct Hold {
    began: Instant,
    until_ms: Arc<AtomicU64>,
}

impl Hold {
    /// A hold that lasts for this long from now, for tests.
    pub fn lasting(time: Duration) -> Hold {
        let hold = Hold { began: Instant::now(), until_ms: Arc::default() };
        hold.set(Some(time));
        hold
    }

    /// Whether the lease was renewed so recently that no other process can have acquired it.
    pub fn lasts(&self) -> bool {
        self.began.elapsed() < Duration::from_millis(self.until_ms.load(Ordering::Acquire))
    }

    fn set(&self, until: Option<Duration>) {
        let until_ms = until.map_or(0, |until| u64::try_from(until.as_millis()).unwrap_or(u64::MAX));
        self.until_ms.store(until_ms, Ordering::Release);
    }
}

impl PartialEq for Hold {
    fn eq(&self, other: &Hold) -> bool {
        Arc::ptr_eq(&self.until_ms, &other.until_ms)
    }
}

impl Eq for Hold {}

/// The state of an election, for logs and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The lease was not read yet.
    Asking,
    /// Another process leads.
    StandingBy {
        holder: String,
    },
    Leading(Term),
    /// This process lost the lease; its work stops, and then it is a candidate again.
    Lost(Loss),
    /// The lease cannot be read or written.
    Unable {
        why: String,
        code: u16,
    },
}

/// The work that only the leader may do.
pub trait Work {
    /// Stops the work; nothing is done any more when this returns.
    fn stop(self) -> impl Future<Output = ()> + Send;
}

/// The work did not stop before its lease expired: the process must exit at once, because another may lead by
/// now.
#[derive(Debug, thiserror::Error)]
#[error("the leader's work did not stop before its lease expired")]
pub struct Overdue;

impl Election {
    /// Starts the work when the lease is acquired and stops it when the lease is lost, until shutdown. Then
    /// it releases the lease, so that another process can lead at once. `tell` is called with each new state.
    pub async fn lead<W: Work>(
        self,
        shutdown: CancellationToken,
        tell: impl Fn(&Standing),
        mut start: impl FnMut(&Term) -> W,
    ) -> Result<(), Overdue> {
        let candidate = Candidate::new(&self.identity, self.timing);
        let mut campaign = Campaign { candidate, began: Instant::now(), told: Standing::Asking, tell, election: self };
        loop {
            let term = tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                term = campaign.acquire() => term,
            };
            let work = start(&term);
            let hold = term.hold.clone();
            campaign.say(Standing::Leading(term));
            let lost = tokio::select! {
                biased;
                () = shutdown.cancelled() => None,
                loss = campaign.keep(&hold) => Some(loss),
            };
            if lost.is_some() {
                hold.set(None);
            }
            let is_end = lost.is_none();
            lost.into_iter().for_each(|loss| campaign.say(Standing::Lost(loss)));
            timeout_at(campaign.stop_until(), work.stop()).await.map_err(|_| Overdue)?;
            if is_end {
                campaign.release().await;
                return Ok(());
            }
            campaign.candidate.gave_up();
        }
    }

    fn resource(&self) -> Resource {
        Resource::new("coordination.k8s.io/v1", "Lease", "leases", true)
    }

    fn path(&self) -> String {
        self.resource().object(&self.namespace, &self.name)
    }

    /// Returns when a watch shows that no process holds the lease. This is only a hint: the caller reads the
    /// lease again.
    async fn freed(&self) {
        let leases: kube::Api<coordination::Lease> = kube::Api::namespaced(self.api.client.clone(), &self.namespace);
        let only = WatchParams::default().fields(&format!("metadata.name={}", self.name));
        loop {
            if let Ok(events) = leases.watch(&only, "0").await {
                let mut events = Box::pin(events);
                while let Some(Ok(event)) = events.next().await {
                    match event {
                        WatchEvent::Added(lease) | WatchEvent::Modified(lease) if is_free(&lease) => return,
                        WatchEvent::Deleted(_) => return,
                        _ => {}
                    }
                }
            }
            // Without a watch, reading the lease periodically suffices.
            tokio::time::sleep(self.timing.retry).await;
        }
    }
}

fn is_free(lease: &coordination::Lease) -> bool {
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
    holder.unwrap_or("").is_empty()
}

/// A running election.
struct Campaign<T> {
    election: Election,
    candidate: Candidate,
    began: Instant,
    /// The last reported state, to suppress repeats.
    told: Standing,
    tell: T,
}

impl<T: Fn(&Standing)> Campaign<T> {
    /// Waits until this process holds the lease.
    async fn acquire(&mut self) -> Term {
        let election = self.election.clone();
        let mut freed = Box::pin(election.freed());
        for attempt in 0.. {
            let mut wait = self.candidate.pause(attempt);
            match self.try_to_acquire().await {
                Ok(Step::Wait(until)) => {
                    self.say(Standing::StandingBy { holder: self.candidate.holder().to_owned() });
                    wait = wait.min(until.saturating_sub(self.now()));
                }
                // Acquired, or another candidate was faster.
                Ok(_) if self.candidate.ours_until().is_some() => break,
                Ok(_) => wait = LOOK_AGAIN,
                Err(error) => self.say(Standing::Unable { code: error.code(), why: error.to_string() }),
            }
            tokio::select! {
                biased;
                () = tokio::time::sleep(wait) => {}
                () = &mut freed => freed = Box::pin(election.freed()),
            }
        }
        let hold = Hold { began: self.began, until_ms: Arc::default() };
        hold.set(self.candidate.renew_until());
        Term { holder: election.identity.clone(), number: self.candidate.transitions(), hold }
    }

    async fn try_to_acquire(&mut self) -> Result<Step, Trouble> {
        self.look().await?;
        let step = self.candidate.next(self.now());
        if step == Step::Acquire {
            match self.claim().await {
                Err(trouble) if trouble.is_conflict() => {}
                result => result?,
            }
        }
        Ok(step)
    }

    /// Renews the lease until it is lost.
    async fn keep(&mut self, hold: &Hold) -> Loss {
        loop {
            hold.set(self.candidate.renew_until());
            match self.candidate.next(self.now()) {
                Step::Lost(loss) => return loss,
                Step::Wait(until) => tokio::time::sleep_until(self.began + until).await,
                Step::Renew | Step::Acquire => {
                    let deadline = self.candidate.renew_until().map_or(self.began, |until| self.began + until);
                    match timeout_at(deadline, self.renew()).await {
                        // If the deadline has passed, the next step returns `Lost`.
                        Ok(Ok(())) | Err(_) => {}
                        Ok(Err(error)) => {
                            tracing::warn!(%error, lease = %self.election.name, "Failed to renew the lease; retrying");
                        }
                    }
                }
            }
        }
    }

    async fn renew(&mut self) -> Result<(), Trouble> {
        match self.claim().await {
            // The lease was deleted or written, perhaps by this process with a lost response. Servers refuse
            // that with different codes.
            Err(Trouble::Api(ApiError::Refused { .. })) => self.look().await,
            result => result,
        }
    }

    /// Releases the lease. If that fails, the others wait until it expires.
    async fn release(&mut self) {
        let Some(lease) = self.candidate.release((self.election.clock)()) else { return };
        let path = self.election.path();
        if let Err(error) = self.answered(self.election.api.replace(&path, &lease)).await {
            tracing::warn!(%error, lease = %self.election.name, "Failed to release the lease; other candidates wait until it expires");
        }
    }

    async fn look(&mut self) -> Result<(), Trouble> {
        let path = self.election.path();
        let found = self.answered(self.election.api.find(&path)).await?;
        let now = self.now();
        self.candidate.saw(found.as_deref().cloned(), now);
        Ok(())
    }

    async fn claim(&mut self) -> Result<(), Trouble> {
        let Election { api, namespace, name, clock, .. } = &self.election;
        let claim = self.candidate.claim((namespace, name), clock());
        let asked = self.now();
        let stored = if claim.has(&["metadata", "resourceVersion"]) {
            self.answered(api.replace(&self.election.path(), &claim)).await
        } else {
            self.answered(api.create(&self.election.resource().collection(namespace), &claim)).await
        };
        match stored {
            Ok(stored) => self.candidate.wrote((*stored).clone(), asked),
            Err(trouble) => {
                self.candidate.failed(asked);
                return Err(trouble);
            }
        }
        Ok(())
    }

    /// Returns the response, if it arrives while there is time for another attempt.
    async fn answered<A>(&self, request: impl Future<Output = Result<A, ApiError>>) -> Result<A, Trouble> {
        let limit = self.election.timing.renew_within / 2;
        match timeout(limit, request).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(Trouble::NoAnswer(limit)),
        }
    }

    /// Until when the work must have stopped.
    fn stop_until(&self) -> Instant {
        let over = self.candidate.ours_until().map_or(self.began, |until| self.began + until);
        over.max(Instant::now() + STOP_TIME_MIN)
    }

    fn say(&mut self, standing: Standing) {
        if self.told != standing {
            (self.tell)(&standing);
            self.told = standing;
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

/// Why the lease could not be read or written.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("no response within {0:?}")]
    NoAnswer(Duration),
}

impl Trouble {
    fn is_conflict(&self) -> bool {
        matches!(self, Trouble::Api(error) if error.is_conflict())
    }
    fn code(&self) -> u16 {
        match self {
            Trouble::Api(error) => error.code(),
            Trouble::NoAnswer(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time goes on while a process is frozen: when it resumes, its term is over before it has read anything.
    #[tokio::test(start_paused = true)]
    async fn a_hold_ends_by_the_clock_alone() {
        let hold = Hold { began: Instant::now(), until_ms: Arc::default() };
        assert!(!hold.lasts(), "not renewed yet");
        hold.set(Some(Duration::from_secs(10)));
        tokio::time::advance(Duration::from_millis(9_999)).await;
        assert!(hold.lasts());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!hold.lasts());
        hold.set(Some(Duration::from_secs(20)));
        assert!(hold.lasts(), "it was renewed");
        hold.set(None);
        assert!(!hold.lasts(), "it was lost");
    }
}
