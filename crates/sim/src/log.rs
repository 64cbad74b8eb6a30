//! Log of one run, with virtual timestamps.

use crate::time::VirtualClock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Clones share one log.
#[derive(Clone)]
pub struct Log {
    clock: VirtualClock,
    pages: Arc<Mutex<Pages>>,
}

#[derive(Default)]
struct Pages {
    lines: Vec<String>,
    counts: BTreeMap<&'static str, u64>,
    /// Violated rules.
    broken: Vec<String>,
}

impl Log {
    pub fn new(clock: VirtualClock) -> Log {
        Log { clock, pages: Arc::default() }
    }

    pub fn say(&self, line: impl AsRef<str>) {
        let at = self.clock.elapsed_ms();
        self.pages().lines.push(format!("{:>5}.{:03} {}", at / 1000, at % 1000, line.as_ref()));
    }

    /// Adds a line that is useful only in replays.
    pub fn detail(&self, line: impl FnOnce() -> String) {
        self.say(line());
    }

    /// Logs a fault and counts it by name.
    pub fn fault(&self, what: &'static str, line: impl AsRef<str>) {
        self.say(format!("FAULT {what}: {}", line.as_ref()));
        *self.pages().counts.entry(what).or_default() += 1;
    }

    pub fn broken(&self, rule: String) {
        self.say(format!("BROKEN {rule}"));
        self.pages().broken.push(rule);
    }

    pub fn is_whole(&self) -> bool {
        self.pages().broken.is_empty()
    }

    pub fn lines(&self) -> Vec<String> {
        self.pages().lines.clone()
    }

    pub fn faults(&self) -> BTreeMap<&'static str, u64> {
        self.pages().counts.clone()
    }

    pub fn all_broken(&self) -> Vec<String> {
        self.pages().broken.clone()
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
