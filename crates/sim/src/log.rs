//! Log of one run, with virtual timestamps.

use crate::time::VirtualClock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Clones share one log.
#[derive(Clone)]
pub struct Log {
    clock: VirtualClock,
    state: Arc<Mutex<LogState>>,
}

#[derive(Default)]
struct LogState {
    lines: Vec<String>,
    counts: BTreeMap<&'static str, u64>,
    /// Violated rules.
    violations: Vec<String>,
}

impl Log {
    pub fn new(clock: VirtualClock) -> Log {
        Log { clock, state: Arc::default() }
    }

    pub fn record(&self, line: impl AsRef<str>) {
        let at = self.clock.elapsed_ms();
        self.state().lines.push(format!("{:>5}.{:03} {}", at / 1000, at % 1000, line.as_ref()));
    }

    /// Adds a line that is useful only in replays.
    pub fn record_detail(&self, line: impl FnOnce() -> String) {
        self.record(line());
    }

    /// Logs a fault and counts it by name.
    pub fn fault(&self, what: &'static str, line: impl AsRef<str>) {
        self.record(format!("FAULT {what}: {}", line.as_ref()));
        *self.state().counts.entry(what).or_default() += 1;
    }

    pub fn violation(&self, rule: String) {
        self.record(format!("BROKEN {rule}"));
        self.state().violations.push(rule);
    }

    pub fn has_no_violations(&self) -> bool {
        self.state().violations.is_empty()
    }

    pub fn lines(&self) -> Vec<String> {
        self.state().lines.clone()
    }

    pub fn faults(&self) -> BTreeMap<&'static str, u64> {
        self.state().counts.clone()
    }

    pub fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }

    fn state(&self) -> MutexGuard<'_, LogState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
