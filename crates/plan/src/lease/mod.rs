//! Who leads: one of several processes that want the same Lease, and what each does next.
//!
//! Clocks of different machines are never compared. A lease counts as held for as long as its holder claims it after it was last *seen
//! to change*, by the clock of the one who looks; and its holder counts from before it *asked* for the last renewal. So the holder
//! gives up before anyone else may begin, whatever the machines believe the time to be. The times written into the lease are for
//! people.
//!
//! `now` is the time since the process began, by a clock that only goes forward.

use object::access::Access;
use object::write::precise_stamp as stamp;
use object::{Value, json};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// Upstream's times are the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long a lease counts after its last change.
    pub lasts: Duration,
    /// A holder that could not renew for this long gives up: the rest of the lease is the time to stop everything in.
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
    /// Nobody holds it any more: write [`Candidate::claim`].
    Acquire,
    /// It is ours, and it is time to write [`Candidate::claim`] again.
    Renew,
    /// Nothing, before this time.
    Wait(Duration),
    /// It was ours: stop everything that only its holder may do.
    Lost(Loss),
}

/// How a lease was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It could not be renewed in time.
    Late,
    /// It says that somebody else holds it, or (empty) nobody.
    Taken(String),
}

/// One who wants a lease.
#[derive(Clone, Debug)]
pub struct Candidate {
    me: String,
    timing: Timing,
    /// The lease as last seen: `None` is "there is none".
    seen: Option<Seen>,
    /// The highest number of changes of hands that was ever seen, also of a lease that was removed since.
    transitions: Option<i64>,
    held: Option<Held>,
}

#[derive(Clone, Debug)]
struct Seen {
    lease: Value,
    /// When it was first seen like this.
    since: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    /// When the last successful renewal was asked for.
    renewed: Duration,
    /// When the last renewal was asked for.
    tried: Duration,
}

impl Candidate {
    pub fn new(me: &str, timing: Timing) -> Candidate {
        Candidate { me: me.to_owned(), timing, seen: None, transitions: None, held: None }
    }

    /// Takes note of the lease as it was read, or that there is none.
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

    /// Takes note of our own claim as it is stored now; `asked` is when we sent it.
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

    /// Takes note that a claim was sent at `asked` and did not succeed, or that nobody knows whether it did.
    pub fn failed(&mut self, asked: Duration) {
        if let Some(held) = &mut self.held {
            held.tried = asked;
        }
    }

    /// Takes note that nothing is done any more that only the holder may do.
    pub fn gave_up(&mut self) {
        self.held = None;
    }

    pub fn next(&self, now: Duration) -> Step {
        match (&self.held, &self.seen) {
            (Some(_), Some(seen)) if holder(&seen.lease) != self.me => {
                Step::Lost(Loss::Taken(holder(&seen.lease).to_owned()))
            }
            // A lease that somebody removed is ours to make again: only one can, and the others find out.
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

    /// Until when nobody else may think that we do not hold it.
    pub fn ours_until(&self) -> Option<Duration> {
        self.held.map(|held| held.renewed + self.timing.lasts)
    }

    /// Who holds it, as last seen.
    pub fn holder(&self) -> &str {
        self.seen.as_ref().map_or("", |seen| holder(&seen.lease))
    }

    /// How often it changed hands: grows with each new holder.
    pub fn transitions(&self) -> i64 {
        self.transitions.unwrap_or(0)
    }

    /// The lease for ourselves, in place of the one last seen: it carries that one's version. A new one has only its name.
    pub fn claim(&self, place: (&str, &str), clock: jiff::Timestamp) -> Value {
        let mut claim = match &self.seen {
            Some(seen) => seen.lease.clone(),
            None => json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"namespace": place.0, "name": place.1},
            }),
        };
        // Also where the lease still names us: what was sent in the term that we gave up is of another number.
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

    /// The lease as one that nobody holds, if it is ours: whoever sees it need not wait.
    pub fn release(&self, clock: jiff::Timestamp) -> Option<Value> {
        let mut lease = self.seen.as_ref().filter(|seen| holder(&seen.lease) == self.me)?.lease.clone();
        lease.put(&["spec", "holderIdentity"], "");
        lease.put(&["spec", "leaseDurationSeconds"], 1);
        lease.put(&["spec", "renewTime"], stamp(clock));
        lease.put(&["spec", "acquireTime"], stamp(clock));
        Some(lease)
    }

    /// How long to wait between looks at a lease that others hold: once to a bit over twice the usual pause. Different ones at
    /// different times, so that they do not come all at once.
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

/// Leases last whole seconds; others must not think that ours ends before we do.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests;
