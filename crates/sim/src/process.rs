//! Client processes of a world, and the faults that apply to all requests and watches of a process.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Broken watches are opened again within this time.
const EXPIRED_TIME: Duration = Duration::from_secs(5);

/// A client process, from its start until it is killed.
#[derive(Clone)]
pub struct Process {
    pub name: &'static str,
    /// Cancelled when the process is killed.
    pub killed: CancellationToken,
    /// Cancelled, and replaced, to break the watches of the process.
    watches: Arc<Mutex<CancellationToken>>,
    /// Controllers whose watch events are held until the token is cancelled. (`tokio::sync::watch` would wake waiting
    /// tasks in an order that differs from run to run.)
    held: Arc<Mutex<Option<(Target, CancellationToken)>>>,
    /// End time, delay and target of delayed reads.
    late: Arc<Mutex<Option<(Instant, Duration, Target)>>>,
    /// Until when watches that resume get 410, each once.
    expired: Arc<Mutex<Option<ExpiredWatches>>>,
    /// Until when the process is disconnected from the server.
    disconnected_until: Arc<Mutex<Option<Instant>>>,
    /// Whether the network injects random faults into requests of this process.
    pub exposed: bool,
}

/// The part of a process that a fault applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    All,
    /// The controller with this account. Other controllers of the process are not affected.
    One(&'static str),
}

impl Target {
    /// Controllers that decide about sets, claims and volumes by their caches.
    const DECIDERS: [&'static str; 8] = [
        "statefulset-controller",
        "persistent-volume-binder",
        "csi-provisioner",
        "csi-resizer",
        "generic-garbage-collector",
        "pvc-protection-controller",
        "pv-protection-controller",
        "namespace-controller",
    ];

    /// The n-th of `DECIDERS`, modulo their number.
    pub fn nth(at: u64) -> Target {
        let at = usize::try_from(at).unwrap_or(0) % Target::DECIDERS.len();
        Target::One(Target::DECIDERS[at])
    }

    fn is(self, account: &str) -> bool {
        match self {
            Target::All => true,
            Target::One(one) => one == account,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Target::All => "of all",
            Target::One(account) => account,
        })
    }
}

struct ExpiredWatches {
    until: Instant,
    whom: Target,
    /// Watches that already got 410, by account and path. Several controllers of a process may watch the same kind.
    told: BTreeSet<(String, String)>,
}

impl Process {
    pub fn new(name: &'static str, exposed: bool) -> Process {
        Process {
            name,
            killed: CancellationToken::new(),
            watches: Arc::default(),
            held: Arc::default(),
            late: Arc::default(),
            expired: Arc::default(),
            disconnected_until: Arc::default(),
            exposed,
        }
    }

    pub fn cut_watches(&self) {
        std::mem::take(&mut *self.watches.lock().unwrap_or_else(PoisonError::into_inner)).cancel();
    }

    /// Holds watch events of these controllers until `release_watches`.
    pub fn hold_watches(&self, whom: Target) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.get_or_insert_with(|| (whom, CancellationToken::new()));
    }

    pub fn release_watches(&self) {
        if let Some((_, until)) = self.held.lock().unwrap_or_else(PoisonError::into_inner).take() {
            until.cancel();
        }
    }

    /// Waits while watch events of this account are held.
    pub async fn wait_while_held(&self, account: &str) {
        let held = || self.held.lock().unwrap_or_else(PoisonError::into_inner).clone();
        while let Some((_, until)) = held().filter(|(whom, _)| whom.is(account)) {
            until.cancelled().await;
        }
    }

    /// Breaks all watches. Those that resume get 410 and must list again.
    pub fn expire_watches(&self, whom: Target) {
        let expired = ExpiredWatches { until: Instant::now() + EXPIRED_TIME, whom, told: BTreeSet::new() };
        *self.expired.lock().unwrap_or_else(PoisonError::into_inner) = Some(expired);
        self.cut_watches();
        self.release_watches();
    }

    /// Whether this watch must get 410. Returns true once for each account and path.
    pub fn expires_now(&self, account: &str, path: &str) -> bool {
        let mut expired = self.expired.lock().unwrap_or_else(PoisonError::into_inner);
        let is_meant = |it: &&mut ExpiredWatches| Instant::now() < it.until && it.whom.is(account);
        let Some(ExpiredWatches { told, .. }) = expired.as_mut().filter(is_meant) else { return false };
        let what: Vec<&str> = path.split(['?', '&']).filter(|part| !part.starts_with("resourceVersion=")).collect();
        path.contains("resourceVersion=") && told.insert((account.to_owned(), what.join("&")))
    }

    /// Delays the responses to reads by `by`, for the same length of time.
    pub fn delay_reads(&self, by: Duration, whom: Target) {
        *self.late.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now() + by, by, whom));
    }

    /// Disconnects the process for `time`. Requests sent meanwhile arrive after that.
    pub fn disconnect(&self, time: Duration) {
        *self.disconnected_until.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + time);
    }

    /// Waits while the process is disconnected.
    pub async fn wait_while_disconnected(&self) {
        loop {
            let until = *self.disconnected_until.lock().unwrap_or_else(PoisonError::into_inner);
            match until.filter(|until| Instant::now() < *until) {
                Some(until) => tokio::time::sleep_until(until).await,
                None => return,
            }
        }
    }

    pub fn is_disconnected(&self) -> bool {
        let until = *self.disconnected_until.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() < until)
    }

    pub fn read_delay(&self, account: &str) -> Duration {
        let late = *self.late.lock().unwrap_or_else(PoisonError::into_inner);
        let is_meant = |(until, _, whom): &(Instant, Duration, Target)| Instant::now() < *until && whom.is(account);
        late.filter(is_meant).map_or(Duration::ZERO, |(_, by, _)| by)
    }

    pub fn watches(&self) -> CancellationToken {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each controller that watches the same objects gets 410 once.
    #[tokio::test]
    async fn each_watch_of_the_same_objects_gets_410_once() {
        let process = Process::new("controllers", true);
        let path = |version: u64| format!("/api/v1/pods?watch=true&resourceVersion={version}");
        assert!(!process.expires_now("one", &path(5)), "no watch is broken yet");
        process.expire_watches(Target::All);
        for account in ["one", "other"] {
            assert!(!process.expires_now(account, "/api/v1/pods?watch=true"), "{account} starts a new watch");
            assert!(process.expires_now(account, &path(5)), "{account} gets 410");
            assert!(!process.expires_now(account, &path(6)), "{account} gets 410 only once");
        }
        process.expire_watches(Target::One("one"));
        assert!(
            process.expires_now("one", &path(7)) && !process.expires_now("other", &path(7)),
            "only one account is affected"
        );
    }
}
