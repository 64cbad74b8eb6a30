//! Fault points: the n-th write of a story, and the fault to inject there.

use crate::log::Log;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Account that acquires and renews the lease of the controllers.
pub const ELECTION: &str = "election";

/// A fault to inject at a fault point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Kills the controllers after the commit, before any of them gets the response.
    KillControllers,
    /// Crashes the server's machine and its disk after the commit.
    CrashServer,
    /// The disk fails during the commit, then the machine. The write is present completely or not at all.
    TornWrite,
    /// Kills the CSI driver after the commit, during its calls.
    KillDriver,
    /// Kills controllers, nodes, driver and the server with its disk together after the commit, as if `mainstay up`
    /// is killed.
    KillAll,
    /// After the commit the controllers receive no watch events for some seconds and act on their old caches.
    StaleView,
    /// Like `StaleView`, for one controller only.
    StaleOne,
    /// Like `StaleView`, and then the watches break and cannot resume, so the controllers must list again.
    MissedEvent,
    /// Like `MissedEvent`, for one controller only.
    MissedOne,
    /// Responses to reads after the commit are delayed, so the controllers act on the state at the time of the
    /// request.
    LateRead,
    /// Like `LateRead`, for one controller only.
    LateReadOne,
    /// Disconnects the leading controllers for longer than a lease. Their requests arrive after that.
    CutOff,
    /// The controllers' write fails with a conflict (409).
    Conflict,
    /// The controllers' write fails with an internal error (500).
    Refusal,
    /// The controllers' write is committed, but its response is lost.
    LostAnswer,
    /// The controllers' write arrives twice, and they get the second response.
    Duplicate,
    /// The controllers see a broken connection, and their write arrives later.
    LateWrite,
    /// A driver call about a volume fails with an internal error.
    FailedCall,
    /// The driver performs the call, and the connection breaks before its response.
    LostCall,
}

impl Fault {
    pub const ALL: [Fault; 19] = [
        Fault::KillControllers,
        Fault::CrashServer,
        Fault::TornWrite,
        Fault::KillDriver,
        Fault::KillAll,
        Fault::StaleView,
        Fault::StaleOne,
        Fault::MissedEvent,
        Fault::MissedOne,
        Fault::LateRead,
        Fault::LateReadOne,
        Fault::CutOff,
        Fault::Conflict,
        Fault::Refusal,
        Fault::LostAnswer,
        Fault::Duplicate,
        Fault::LateWrite,
        Fault::FailedCall,
        Fault::LostCall,
    ];

    /// Whether the fault applies to a request of a controller. Other faults apply to commits of any writer.
    pub fn is_for_requests(self) -> bool {
        use Fault::{Conflict, Duplicate, LateWrite, LostAnswer, Refusal};
        matches!(self, Conflict | Refusal | LostAnswer | Duplicate | LateWrite)
    }

    /// Whether the fault applies to a driver call.
    pub fn is_for_calls(self) -> bool {
        matches!(self, Fault::FailedCall | Fault::LostCall)
    }

    /// Whether the story may end in another state. A creation that arrives after the object was deleted creates it
    /// again, and no precondition can prevent that. The rules still apply.
    pub fn changes_final_state(self) -> bool {
        self == Fault::LateWrite
    }

    /// How long a component may act on the old value of a spec after one such fault: the time without events or
    /// connection, and a short time to react.
    pub fn echo(self) -> Duration {
        use Fault::{CutOff, LateRead, LateReadOne, LateWrite, MissedEvent, MissedOne, StaleOne, StaleView};
        Duration::from_secs(match self {
            CutOff => 40,
            StaleView | StaleOne | MissedEvent | MissedOne | LateRead | LateReadOne | LateWrite => 20,
            _ => 10,
        })
    }

    /// Whether no progress is possible with this fault at every write: no write succeeds, or its sender never gets a
    /// response.
    pub fn prevents_progress(self) -> bool {
        self.is_for_requests() || self.is_for_calls() || self == Fault::TornWrite
    }

    pub fn name(self) -> &'static str {
        match self {
            Fault::KillControllers => "kill-controllers",
            Fault::CrashServer => "crash-server",
            Fault::TornWrite => "torn-write",
            Fault::KillDriver => "kill-driver",
            Fault::KillAll => "kill-all",
            Fault::StaleView => "stale-view",
            Fault::StaleOne => "stale-one",
            Fault::MissedEvent => "missed-event",
            Fault::MissedOne => "missed-one",
            Fault::LateRead => "late-read",
            Fault::LateReadOne => "late-read-one",
            Fault::CutOff => "cut-off",
            Fault::Conflict => "conflict",
            Fault::Refusal => "refusal",
            Fault::LostAnswer => "lost-answer",
            Fault::Duplicate => "duplicate",
            Fault::LateWrite => "late-write",
            Fault::FailedCall => "failed-call",
            Fault::LostCall => "lost-call",
        }
    }

    pub fn parse(text: &str) -> Option<Fault> {
        Fault::ALL.into_iter().find(|fault| fault.name() == text)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where to inject a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// At the n-th write, counted from 1.
    At(u64),
    /// At every n-th write of the controllers, until the story ends.
    Every(u64),
}

type FaultHandler = Box<dyn Fn(Fault) + Send>;

/// Counts writes and driver calls, and decides when to inject a fault.
pub struct FaultPoints {
    state: Mutex<State>,
    act: Mutex<Option<FaultHandler>>,
    log: Log,
}

/// Number of fault points of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PointCounts {
    pub commits: u64,
    /// Write requests of controllers.
    pub requests: u64,
    /// Driver calls about volumes.
    pub calls: u64,
}

impl PointCounts {
    /// Number of places where this fault can be injected.
    pub fn of(self, fault: Fault) -> u64 {
        match fault {
            fault if fault.is_for_requests() => self.requests,
            fault if fault.is_for_calls() => self.calls,
            _ => self.commits,
        }
    }
}

/// Driver calls that change volumes.
const CALLS: [&str; 4] = ["CreateVolume", "DeleteVolume", "ControllerExpandVolume", "ControllerModifyVolume"];

#[derive(Default)]
struct State {
    counting: bool,
    commits: u64,
    /// Commits by controllers.
    controllers_commits: u64,
    /// Attempts of controllers to commit. Counted for repeated torn writes only.
    attempts: u64,
    requests: u64,
    /// Driver calls about volumes.
    calls: u64,
    /// Description of the last write or request.
    last: String,
    armed: Option<(Trigger, Fault)>,
    /// The story is over. Lease renewals never end, so they no longer count.
    is_over: bool,
}

impl State {
    fn counts(&self, who: &str) -> bool {
        self.counting && !(self.is_over && who == ELECTION)
    }
}

impl FaultPoints {
    pub fn new(log: Log) -> FaultPoints {
        FaultPoints { state: Mutex::default(), act: Mutex::default(), log }
    }

    /// Sets the function that performs faults of the world.
    pub fn on_fault(&self, act: impl Fn(Fault) + Send + 'static) {
        *self.act.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(act));
    }

    /// Starts to count, with an optional fault to inject.
    pub fn begin(&self, armed: Option<(Trigger, Fault)>) {
        let mut state = self.state();
        state.counting = true;
        state.armed = armed;
    }

    /// Stops to inject faults.
    pub fn disarm(&self) {
        let mut state = self.state();
        state.armed = None;
        state.is_over = true;
    }

    /// Number of fault points since `begin`.
    pub fn counted(&self) -> PointCounts {
        let State { commits, requests, calls, .. } = *self.state();
        PointCounts { commits, requests, calls }
    }

    /// Description of the last write or request.
    pub fn last(&self) -> String {
        self.state().last.clone()
    }

    /// Call before these keys are committed.
    pub fn committing(&self, who: &str, keys: &[&str]) {
        let coming = keys.iter().filter(|key| counts(who, key)).count() as u64;
        let mut state = self.state();
        let is_now = match state.armed {
            Some((Trigger::At(at), Fault::TornWrite)) => (state.commits + 1..=state.commits + coming).contains(&at),
            // Count attempts here: a torn write that left no commit would otherwise be torn again forever.
            Some((Trigger::Every(nth), Fault::TornWrite)) if state.counting && is_controller(who) && coming > 0 => {
                state.attempts += 1;
                state.attempts.is_multiple_of(nth)
            }
            _ => false,
        };
        if !state.counting || !is_now {
            return;
        }
        state.armed = state.armed.filter(|(when, _)| matches!(when, Trigger::Every(_)));
        drop(state);
        self.log.fault(Fault::TornWrite.name(), format!("in the commit of {} by {who}", keys.join(" ")));
        self.act(Fault::TornWrite);
    }

    pub fn committed(&self, who: &str, key: &str) {
        if !counts(who, key) {
            return;
        }
        let fault = {
            let mut state = self.state();
            if !state.counts(who) {
                return;
            }
            state.commits += 1;
            state.last = format!("{key} by {who}");
            let is_own = is_controller(who);
            state.controllers_commits += u64::from(is_own);
            let is_other = |fault: Fault| fault.is_for_requests() || fault.is_for_calls() || fault == Fault::TornWrite;
            match state.armed.filter(|(_, fault)| !is_other(*fault)) {
                Some((Trigger::At(at), fault)) if at == state.commits => {
                    state.armed = None;
                    Some(fault)
                }
                Some((Trigger::Every(nth), fault)) if is_own && state.controllers_commits.is_multiple_of(nth) => {
                    Some(fault)
                }
                _ => None,
            }
        };
        if let Some(fault) = fault {
            self.log.fault(fault.name(), format!("after the commit of {key} by {who}"));
            self.act(fault);
        }
    }

    /// Returns the fault to inject into this write request, if one is due.
    pub fn fault_for_request(&self, who: &str, path: &str) -> Option<Fault> {
        if !is_controller(who) || !counts(who, path) {
            return None;
        }
        let mut state = self.state();
        if !state.counts(who) {
            return None;
        }
        state.requests += 1;
        state.last = format!("a request for {path} by {who}");
        match state.armed.filter(|(_, fault)| fault.is_for_requests()) {
            Some((Trigger::At(at), fault)) if at == state.requests => {
                state.armed = None;
                Some(fault)
            }
            Some((Trigger::Every(nth), fault)) if state.requests.is_multiple_of(nth) => Some(fault),
            _ => None,
        }
    }

    /// Returns the fault to inject into this driver call, if one is due.
    pub fn fault_for_call(&self, call: &str, subject: &str) -> Option<Fault> {
        let mut state = self.state();
        if !state.counting || !CALLS.contains(&call) {
            return None;
        }
        state.calls += 1;
        state.last = format!("a call {call} about {subject}");
        let (when, fault) = state.armed.filter(|(_, fault)| fault.is_for_calls())?;
        let is_now = match when {
            Trigger::At(at) => at == state.calls,
            Trigger::Every(nth) => state.calls.is_multiple_of(nth),
        };
        if !is_now {
            return None;
        }
        state.armed = state.armed.filter(|(when, _)| matches!(when, Trigger::Every(_)));
        drop(state);
        self.log.fault(fault.name(), format!("{call} about {subject}"));
        Some(fault)
    }

    pub fn disk_failed(&self) {
        self.log.fault("disk-failed", "in the middle of a commit");
        self.act(Fault::CrashServer);
    }

    fn act(&self, fault: Fault) {
        if let Some(act) = &*self.act.lock().unwrap_or_else(PoisonError::into_inner) {
            act(fault);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Events and heartbeats do not count, because nothing depends on them. Writes of controllers to nodes count, and so
/// does the lease of the leader.
fn counts(who: &str, key_or_path: &str) -> bool {
    let tells = ["/events/", "/events?"].iter().any(|part| key_or_path.contains(part));
    let beats = key_or_path.contains("/leases/") && who != ELECTION;
    let is_node = key_or_path.contains("/nodes/") && !is_controller(who);
    !tells && !beats && !is_node && !key_or_path.ends_with("/events")
}

/// Controllers have accounts without a `system:` prefix. Nodes and users are not controllers.
pub fn is_controller(who: &str) -> bool {
    !(who.starts_with("system:") || who == crate::commit_checker::OPERATOR || who == "server")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::VirtualClock;

    /// Writes of the leader lease are fault points until the story ends; heartbeats of nodes never are.
    #[test]
    fn writes_of_the_leader_lease_count_until_the_story_ends() {
        const LEASE: &str = "/coordination.k8s.io/leases/kube-system/mainstay-controllers";
        const HEARTBEAT: &str = "/coordination.k8s.io/leases/kube-node-lease/node-1";
        let counted = crate::run::on_own_thread(1, || async {
            let points = FaultPoints::new(Log::new(VirtualClock::start()));
            points.begin(None);
            points.committed(ELECTION, LEASE);
            points.committed("system:node:node-1", HEARTBEAT);
            points.fault_for_request(
                ELECTION,
                "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/mainstay-controllers",
            );
            let meanwhile = points.counted();
            points.disarm();
            points.committed(ELECTION, LEASE);
            (meanwhile, points.counted())
        });
        let once = PointCounts { commits: 1, requests: 1, calls: 0 };
        assert_eq!(counted, (once, once));
    }
}
