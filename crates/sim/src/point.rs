//! Exact moments: the n-th write of a story, and what goes wrong there.

use crate::log::Log;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    /// Nothing is told to the controllers for a while from the commit on: they act on what they saw before.
    StaleView,
    /// The controllers are not told of the commit, nor of what happens in the next seconds: their watches break then, and cannot go on where they were.
    MissedEvent,
    /// What the controllers read in the time from the commit on arrives late: they act on what was so when they asked.
    LateRead,
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
}

impl Strike {
    pub const ALL: [Strike; 13] = [
        Strike::KillControllers,
        Strike::CrashServer,
        Strike::TornWrite,
        Strike::KillDriver,
        Strike::StaleView,
        Strike::MissedEvent,
        Strike::LateRead,
        Strike::CutOff,
        Strike::Conflict,
        Strike::Refusal,
        Strike::LostAnswer,
        Strike::Duplicate,
        Strike::LateWrite,
    ];

    /// Whether it strikes requests of controllers; the others strike commits of anybody.
    pub fn is_for_requests(self) -> bool {
        use Strike::{Conflict, Duplicate, LateWrite, LostAnswer, Refusal};
        matches!(self, Conflict | Refusal | LostAnswer | Duplicate | LateWrite)
    }

    /// Whether the story may end differently: a creation that arrives when what it created is gone already makes it anew, and nothing in a
    /// request can prevent that. What must never happen must not happen then either.
    pub fn changes_the_end(self) -> bool {
        self == Strike::LateWrite
    }

    /// Whether nobody can get on where it strikes every write: nothing is ever done, or nobody ever knows that it is, as whoever
    /// calls a driver must.
    pub fn prevents(self) -> bool {
        self.is_for_requests() || self == Strike::TornWrite
    }

    pub fn name(self) -> &'static str {
        match self {
            Strike::KillControllers => "kill-controllers",
            Strike::CrashServer => "crash-server",
            Strike::TornWrite => "torn-write",
            Strike::KillDriver => "kill-driver",
            Strike::StaleView => "stale-view",
            Strike::MissedEvent => "missed-event",
            Strike::LateRead => "late-read",
            Strike::CutOff => "cut-off",
            Strike::Conflict => "conflict",
            Strike::Refusal => "refusal",
            Strike::LostAnswer => "lost-answer",
            Strike::Duplicate => "duplicate",
            Strike::LateWrite => "late-write",
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

#[derive(Default)]
struct State {
    counting: bool,
    commits: u64,
    /// Those of them that are of controllers.
    controllers_commits: u64,
    requests: u64,
    /// What was written, or asked for, last.
    last: String,
    armed: Option<(When, Strike)>,
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
        self.state().armed = None;
    }

    /// Commits, and write requests of controllers, since the beginning.
    pub fn counted(&self) -> (u64, u64) {
        let state = self.state();
        (state.commits, state.requests)
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
            Some((When::Every(nth), Strike::TornWrite)) => {
                is_controller(who) && coming > 0 && (state.controllers_commits + 1).is_multiple_of(nth)
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
            if !state.counting {
                return;
            }
            state.commits += 1;
            state.last = format!("{key} by {who}");
            let is_own = is_controller(who);
            state.controllers_commits += u64::from(is_own);
            match state.armed.filter(|(_, strike)| !strike.is_for_requests() && *strike != Strike::TornWrite) {
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
        if !state.counting {
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

/// What is only told or beats does not count: nothing depends on it. What controllers write to nodes does.
fn counts(who: &str, key_or_path: &str) -> bool {
    let beats = ["/events/", "/leases/", "/events?"].iter().any(|part| key_or_path.contains(part));
    let is_node = key_or_path.contains("/nodes/") && !is_controller(who);
    !beats && !is_node && !key_or_path.ends_with("/events")
}

/// Controllers are known by their accounts; nodes and people are not controllers.
pub fn is_controller(who: &str) -> bool {
    !(who.starts_with("system:") || who == crate::ledger::OPERATOR || who == "server")
}
