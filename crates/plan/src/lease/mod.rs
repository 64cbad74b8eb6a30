//! Leader election: which of several candidates for a Lease leads, and what each does next.
//!
//! Clocks of different machines are never compared. For a candidate, a lease is held for its duration after
//! it last *saw it change*, by its own clock. For the holder, the duration begins before it *sent* the last
//! renewal. So the holder stops before any candidate can acquire the lease, whatever the clocks of the
//! machines show. The timestamps in the lease are informational.
//!
//! `now` is the time since the process started, by a monotonic clock.

use object::access::Access;
use object::write::precise_stamp as stamp;
use object::{Value, json};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// Durations; the defaults are upstream's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long a lease is held after its last change.
    pub lasts: Duration,
    /// A holder that could not renew for this long stops leading; the rest of `lasts` is the time to stop its
    /// work.
    pub renew_within: Duration,
    /// The pause between attempts.
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        let s = Duration::from_secs;
        Timing { lasts: s(15), renew_within: s(10), retry: s(2) }
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// No process holds the lease: write [`Candidate::claim`].
    Acquire,
    /// This process holds the lease and must renew it: write [`Candidate::claim`].
    Renew,
    /// Nothing before this time.
    Wait(Duration),
    /// This process held the lease: stop everything that only the leader may do.
    Lost(Loss),
}

/// Why a lease was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It was not renewed in time.
    Late,
    /// Another process holds it, or none (empty).
    Taken(String),
}

/// A process that wants the lease.
#[derive(Clone, Debug)]
pub struct Candidate {
    me: String,
    timing: Timing,
    /// The lease as last read; `None` if there is none.
    seen: Option<Seen>,
    /// The highest leaseTransitions ever seen, also of a lease that was deleted since.
    transitions: Option<i64>,
    held: Option<Held>,
}

#[derive(Clone, Debug)]
struct Seen {
    lease: Value,
    /// When it was first seen in this version.
    since: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    /// When the last successful renewal was sent.
    renewed: Duration,
    /// When the last renewal was sent.
    tried: Duration,
}

impl Candidate {
    pub fn new(me: &str, timing: Timing) -> Candidate {
        Candidate { me: me.to_owned(), timing, seen: None, transitions: None, held: None }
    }

    /// Stores the lease as it was read, or that there is none.
    pub fn saw(&mut self, lease: Option<Value>, now: Duration) {
        let version = |lease: &Value| lease.text(&["metadata", "resourceVersion"]).to_owned();
        let same = match (&self.seen, &lease) {
            (Some(before), Some(lease)) => version(&before.lease) == version(lease),
            _ => false,
        };
        if !same {
            self.note(lease, now);
        }
    }

    /// Stores the response to an own claim that was sent at `asked`.
    pub fn wrote(&mut self, stored: Value, asked: Duration) {
        self.note(Some(stored), asked);
        self.held = Some(Held { renewed: asked, tried: asked });
    }

    fn note(&mut self, lease: Option<Value>, since: Duration) {
        if let Some(lease) = &lease {
            self.transitions = self.transitions.max(Some(lease.int(&["spec", "leaseTransitions"]).unwrap_or(0)));
        }
        self.seen = lease.map(|lease| Seen { lease, since });
    }

    /// Records that a claim sent at `asked` failed, or that its outcome is unknown.
    pub fn failed(&mut self, asked: Duration) {
        if let Some(held) = &mut self.held {
            held.tried = asked;
        }
    }

    /// Records that the leader's work has stopped.
    pub fn gave_up(&mut self) {
        self.held = None;
    }

    pub fn next(&self, now: Duration) -> Step {
        match (&self.held, &self.seen) {
            (Some(_), Some(seen)) if holder(&seen.lease) != self.me => {
                Step::Lost(Loss::Taken(holder(&seen.lease).to_owned()))
            }
            // The holder creates a deleted lease again: only one candidate can, and the others see it.
            (Some(held), _) => self.next_of_holder(*held, now),
            (None, Some(seen)) if !holder(&seen.lease).is_empty() && holder(&seen.lease) != self.me => {
                let until = seen.since + self.claimed_for(&seen.lease);
                if now >= until { Step::Acquire } else { Step::Wait(until) }
            }
            (None, _) => Step::Acquire,
        }
    }

    fn next_of_holder(&self, held: Held, now: Duration) -> Step {
        let deadline = held.renewed + self.timing.renew_within;
        let due = held.tried + self.timing.retry;
        if now >= deadline {
            Step::Lost(Loss::Late)
        } else if now >= due {
            Step::Renew
        } else {
            Step::Wait(due.min(deadline))
        }
    }

    /// Until when a renewal must have succeeded.
    pub fn renew_until(&self) -> Option<Duration> {
        self.held.map(|held| held.renewed + self.timing.renew_within)
    }

    /// Until when no other candidate can acquire the lease.
    pub fn ours_until(&self) -> Option<Duration> {
        self.held.map(|held| held.renewed + self.timing.lasts)
    }

    /// The holder, as last seen.
    pub fn holder(&self) -> &str {
        self.seen.as_ref().map_or("", |seen| holder(&seen.lease))
    }

    /// The number of changes of the holder.
    pub fn transitions(&self) -> i64 {
        self.transitions.unwrap_or(0)
    }

    /// The lease with this process as its holder, based on the version last seen. A new one has only
    /// namespace and name.
    pub fn claim(&self, place: (&str, &str), clock: jiff::Timestamp) -> Value {
        let mut claim = match &self.seen {
            Some(seen) => seen.lease.clone(),
            None => json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"namespace": place.0, "name": place.1},
            }),
        };
        // Also if the lease still names this process: writes of the term that it gave up must have another
        // number.
        if self.holder() != self.me || self.held.is_none() {
            let again = self.held.is_some() || self.transitions.is_none();
            let transitions = self.transitions().saturating_add(if again { 0 } else { 1 });
            claim.put(&["spec", "leaseTransitions"], transitions);
            claim.put(&["spec", "acquireTime"], stamp(clock));
        }
        claim.put(&["spec", "holderIdentity"], self.me.as_str());
        claim.put(&["spec", "leaseDurationSeconds"], whole_seconds(self.timing.lasts));
        claim.put(&["spec", "renewTime"], stamp(clock));
        claim
    }

    /// The lease without a holder, if this process holds it: other candidates need not wait.
    pub fn release(&self, clock: jiff::Timestamp) -> Option<Value> {
        let mut lease = self.seen.as_ref().filter(|seen| holder(&seen.lease) == self.me)?.lease.clone();
        lease.put(&["spec", "holderIdentity"], "");
        lease.put(&["spec", "leaseDurationSeconds"], 1);
        lease.put(&["spec", "renewTime"], stamp(clock));
        lease.put(&["spec", "acquireTime"], stamp(clock));
        Some(lease)
    }

    /// The pause between reads of a lease that another process holds: one to 2.2 times the usual pause. It
    /// differs by candidate and attempt, so that candidates do not all write at once.
    pub fn pause(&self, attempt: u64) -> Duration {
        let mut hasher = DefaultHasher::new();
        (&self.me, attempt).hash(&mut hasher);
        let share = (hasher.finish() % 1000) as f64 / 1000.0;
        self.timing.retry.mul_f64(1.0 + JITTER * share)
    }

    fn claimed_for(&self, lease: &Value) -> Duration {
        let seconds = lease.int(&["spec", "leaseDurationSeconds"]).and_then(|seconds| u32::try_from(seconds).ok());
        seconds.map_or(self.timing.lasts, |seconds| Duration::from_secs(seconds.into()))
    }
}

/// As upstream.
const JITTER: f64 = 1.2;

fn holder(lease: &Value) -> &str {
    lease.text(&["spec", "holderIdentity"])
}

/// Lease durations are whole seconds. Rounded up, so that candidates do not consider the lease expired before
/// its holder does.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests;
