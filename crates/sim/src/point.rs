//! Exact moments: the n-th write of a story, and what goes wrong there.

use crate::log::Log;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Who takes and renews the lease by which controllers lead.
pub const ELECTION: &str = "election";

/// What goes wrong at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strike {
    /// The controllers are killed after the write is committed, before anybody hears of it.
    KillControllers,
    /// The machine of the server and its disk crash after the commit.
    CrashServer,
    /// The disk fails in the middle of the commit, and the machine with it: it is there as a whole, or not at all.
    TornWrite,
    /// The CSI driver is killed after the commit, in the middle of its calls.
    KillDriver,
    /// Controllers, nodes, driver and the server with its disk crash together after the commit, as `mainstay up` does.
    KillAll,
    /// Nothing is told to the controllers for a while from the commit on: they act on what they saw before.
    StaleView,
    /// The same for one controller, while the others hear everything.
    StaleOne,
    /// The controllers are not told of the commit, nor of what happens in the next seconds: their watches break then, and cannot go on where they were.
    MissedEvent,
    /// The same for one controller.
    MissedOne,
    /// What the controllers read in the time from the commit on arrives late: they act on what was so when they asked.
    LateRead,
    /// What one of them reads does.
    LateReadOne,
    /// The controllers that work are cut off from the server for longer than a lease lasts; what they have sent arrives then.
    CutOff,
    /// The controllers' write is refused with a conflict.
    Conflict,
    /// The controllers' write fails with an internal error.
    Refusal,
    /// The controllers' write is done, but they never hear of it.
    LostAnswer,
    /// The controllers' write arrives twice, and they hear the answer to the second one.
    Duplicate,
    /// The controllers hear that the connection broke; their write arrives later all the same.
    LateWrite,
    /// The driver's call about a volume fails with an internal error.
    FailedCall,
    /// The driver does what it is asked to, and the connection breaks before its answer.
    LostCall,
}

impl Strike {
    pub const ALL: [Strike; 19] = [
        Strike::KillControllers,
        Strike::CrashServer,
        Strike::TornWrite,
        Strike::KillDriver,
        Strike::KillAll,
        Strike::StaleView,
        Strike::StaleOne,
        Strike::MissedEvent,
        Strike::MissedOne,
        Strike::LateRead,
        Strike::LateReadOne,
        Strike::CutOff,
        Strike::Conflict,
        Strike::Refusal,
        Strike::LostAnswer,
        Strike::Duplicate,
        Strike::LateWrite,
        Strike::FailedCall,
        Strike::LostCall,
    ];

    /// Whether it strikes requests of controllers; the others strike commits of anybody.
    pub fn is_for_requests(self) -> bool {
        use Strike::{Conflict, Duplicate, LateWrite, LostAnswer, Refusal};
        matches!(self, Conflict | Refusal | LostAnswer | Duplicate | LateWrite)
    }

    /// Whether it strikes calls of the driver.
    pub fn is_for_calls(self) -> bool {
        matches!(self, Strike::FailedCall | Strike::LostCall)
    }

    /// Whether the story may end differently: a creation that arrives when what it created is gone already makes it anew, and nothing in a
    /// request can prevent that. What must never happen must not happen then either.
    pub fn changes_the_end(self) -> bool {
        self == Strike::LateWrite
    }

    /// How long, at one such strike, somebody may act on what was said before: as long as nobody hears, or is reached, and then a moment.
    pub fn echo(self) -> Duration {
        use Strike::{CutOff, LateRead, LateReadOne, LateWrite, MissedEvent, MissedOne, StaleOne, StaleView};
        Duration::from_secs(match self {
            CutOff => 40,
            StaleView | StaleOne | MissedEvent | MissedOne | LateRead | LateReadOne | LateWrite => 20,
            _ => 10,
        })
    }

    /// Whether nobody can get on where it strikes every write: nothing is ever done, or nobody ever knows that it is, as whoever
    /// calls a driver must.
    pub fn prevents(self) -> bool {
        self.is_for_requests() || self.is_for_calls() || self == Strike::TornWrite
    }

    pub fn name(self) -> &'static str {
        match self {
            Strike::KillControllers => "kill-controllers",
            Strike::CrashServer => "crash-server",
            Strike::TornWrite => "torn-write",
            Strike::KillDriver => "kill-driver",
            Strike::KillAll => "kill-all",
            Strike::StaleView => "stale-view",
            Strike::StaleOne => "stale-one",
            Strike::MissedEvent => "missed-event",
            Strike::MissedOne => "missed-one",
            Strike::LateRead => "late-read",
            Strike::LateReadOne => "late-read-one",
            Strike::CutOff => "cut-off",
            Strike::Conflict => "conflict",
            Strike::Refusal => "refusal",
            Strike::LostAnswer => "lost-answer",
            Strike::Duplicate => "duplicate",
            Strike::LateWrite => "late-write",
            Strike::FailedCall => "failed-call",
            Strike::LostCall => "lost-call",
        }
    }

    pub fn parse(text: &str) -> Option<Strike> {
        Strike::ALL.into_iter().find(|strike| strike.name() == text)
    }
}

impl fmt::Display for Strike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// When to strike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At this write, counted from 1.
    At(u64),
    /// At every so many-th write of the controllers, over and over.
    Every(u64),
}

type Act = Box<dyn Fn(Strike) + Send>;

/// Counts writes and says when it is time.
pub struct Points {
    state: Mutex<State>,
    act: Mutex<Option<Act>>,
    log: Log,
}

/// What there was of each kind of point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub commits: u64,
    /// Write requests of controllers.
    pub requests: u64,
    /// Calls of the driver about volumes.
    pub calls: u64,
}

impl Counted {
    /// How often a strike could come.
    pub fn of(self, strike: Strike) -> u64 {
        match strike {
            strike if strike.is_for_requests() => self.requests,
            strike if strike.is_for_calls() => self.calls,
            _ => self.commits,
        }
    }
}

/// The calls that change what a driver has.
const CALLS: [&str; 4] = ["CreateVolume", "DeleteVolume", "ControllerExpandVolume", "ControllerModifyVolume"];

#[derive(Default)]
struct State {
    counting: bool,
    commits: u64,
    /// Those of them that are of controllers.
    controllers_commits: u64,
    /// How often controllers were about to write, where that is struck.
    attempts: u64,
    requests: u64,
    /// Calls of the driver about volumes.
    calls: u64,
    /// What was written, or asked for, last.
    last: String,
    armed: Option<(When, Strike)>,
    /// The story is told: leases are renewed for ever, and do not count any more.
    told: bool,
}

impl State {
    fn counts(&self, who: &str) -> bool {
        self.counting && !(self.told && who == ELECTION)
    }
}

impl Points {
    pub fn new(log: Log) -> Points {
        Points { state: Mutex::default(), act: Mutex::default(), log }
    }

    /// Who does what is to be done.
    pub fn on_strike(&self, act: impl Fn(Strike) + Send + 'static) {
        *self.act.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(act));
    }

    /// Counts from here on.
    pub fn begin(&self, armed: Option<(When, Strike)>) {
        let mut state = self.state();
        state.counting = true;
        state.armed = armed;
    }

    /// Nothing strikes any more.
    pub fn disarm(&self) {
        let mut state = self.state();
        state.armed = None;
        state.told = true;
    }

    /// Since the beginning.
    pub fn counted(&self) -> Counted {
        let State { commits, requests, calls, .. } = *self.state();
        Counted { commits, requests, calls }
    }

    /// The last of these, in words.
    pub fn last(&self) -> String {
        self.state().last.clone()
    }

    /// These keys are about to be committed.
    pub fn committing(&self, who: &str, keys: &[&str]) {
        let coming = keys.iter().filter(|key| counts(who, key)).count() as u64;
        let mut state = self.state();
        let is_now = match state.armed {
            Some((When::At(at), Strike::TornWrite)) => (state.commits + 1..=state.commits + coming).contains(&at),
            // Attempts count here: what was torn and is not there would else be torn again for ever.
            Some((When::Every(nth), Strike::TornWrite)) if state.counting && is_controller(who) && coming > 0 => {
                state.attempts += 1;
                state.attempts.is_multiple_of(nth)
            }
            _ => false,
        };
        if !state.counting || !is_now {
            return;
        }
        state.armed = state.armed.filter(|(when, _)| matches!(when, When::Every(_)));
        drop(state);
        self.log.fault(Strike::TornWrite.name(), format!("in the commit of {} by {who}", keys.join(" ")));
        self.act(Strike::TornWrite);
    }

    pub fn committed(&self, who: &str, key: &str) {
        if !counts(who, key) {
            return;
        }
        let strike = {
            let mut state = self.state();
            if !state.counts(who) {
                return;
            }
            state.commits += 1;
            state.last = format!("{key} by {who}");
            let is_own = is_controller(who);
            state.controllers_commits += u64::from(is_own);
            let is_other =
                |strike: Strike| strike.is_for_requests() || strike.is_for_calls() || strike == Strike::TornWrite;
            match state.armed.filter(|(_, strike)| !is_other(*strike)) {
                Some((When::At(at), strike)) if at == state.commits => {
                    state.armed = None;
                    Some(strike)
                }
                Some((When::Every(nth), strike)) if is_own && state.controllers_commits.is_multiple_of(nth) => {
                    Some(strike)
                }
                _ => None,
            }
        };
        if let Some(strike) = strike {
            self.log.fault(strike.name(), format!("after the commit of {key} by {who}"));
            self.act(strike);
        }
    }

    /// Whether this write request of a controller meets with something.
    pub fn requested(&self, who: &str, path: &str) -> Option<Strike> {
        if !is_controller(who) || !counts(who, path) {
            return None;
        }
        let mut state = self.state();
        if !state.counts(who) {
            return None;
        }
        state.requests += 1;
        state.last = format!("a request for {path} by {who}");
        match state.armed.filter(|(_, strike)| strike.is_for_requests()) {
            Some((When::At(at), strike)) if at == state.requests => {
                state.armed = None;
                Some(strike)
            }
            Some((When::Every(nth), strike)) if state.requests.is_multiple_of(nth) => Some(strike),
            _ => None,
        }
    }

    /// Whether this call of the driver meets with something.
    pub fn called(&self, call: &str, subject: &str) -> Option<Strike> {
        let mut state = self.state();
        if !state.counting || !CALLS.contains(&call) {
            return None;
        }
        state.calls += 1;
        state.last = format!("a call {call} about {subject}");
        let (when, strike) = state.armed.filter(|(_, strike)| strike.is_for_calls())?;
        let is_now = match when {
            When::At(at) => at == state.calls,
            When::Every(nth) => state.calls.is_multiple_of(nth),
        };
        if !is_now {
            return None;
        }
        state.armed = state.armed.filter(|(when, _)| matches!(when, When::Every(_)));
        drop(state);
        self.log.fault(strike.name(), format!("{call} about {subject}"));
        Some(strike)
    }

    pub fn disk_failed(&self) {
        self.log.fault("disk-failed", "in the middle of a commit");
        self.act(Strike::CrashServer);
    }

    fn act(&self, strike: Strike) {
        if let Some(act) = &*self.act.lock().unwrap_or_else(PoisonError::into_inner) {
            act(strike);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is only told or beats does not count: nothing depends on it. What controllers write to nodes does, and so does the lease that they lead by.
fn counts(who: &str, key_or_path: &str) -> bool {
    let tells = ["/events/", "/events?"].iter().any(|part| key_or_path.contains(part));
    let beats = key_or_path.contains("/leases/") && who != ELECTION;
    let is_node = key_or_path.contains("/nodes/") && !is_controller(who);
    !tells && !beats && !is_node && !key_or_path.ends_with("/events")
}

/// Controllers are known by their accounts; nodes and people are not controllers.
pub fn is_controller(who: &str) -> bool {
    !(who.starts_with("system:") || who == crate::ledger::OPERATOR || who == "server")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::VirtualClock;

    /// Who leads is decided by a lease: its writes are struck like any others as long as the story lasts, and heartbeats of nodes never are.
    #[test]
    fn writes_of_the_lease_count_until_the_story_is_told() {
        const LEASE: &str = "/coordination.k8s.io/leases/kube-system/mainstay-controllers";
        const HEARTBEAT: &str = "/coordination.k8s.io/leases/kube-node-lease/node-1";
        let counted = crate::run::on_own_thread(1, || async {
            let points = Points::new(Log::new(VirtualClock::start()));
            points.begin(None);
            points.committed(ELECTION, LEASE);
            points.committed("system:node:node-1", HEARTBEAT);
            points
                .requested(ELECTION, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/mainstay-controllers");
            let meanwhile = points.counted();
            points.disarm();
            points.committed(ELECTION, LEASE);
            (meanwhile, points.counted())
        });
        let once = Counted { commits: 1, requests: 1, calls: 0 };
        assert_eq!(counted, (once, once));
    }
}
