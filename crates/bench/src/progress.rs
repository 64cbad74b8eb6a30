//! What is under way, for whoever waits: a line that is written over on a terminal, now and then a new one elsewhere.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const LIVE: Duration = Duration::from_millis(200);
const ELSEWHERE: Duration = Duration::from_secs(10);
/// To the start of the line, and empties it.
const ERASE: &str = "\r\x1b[K";

/// Clones share it.
#[derive(Clone)]
pub struct Progress {
    shared: Arc<Shared>,
}

struct Shared {
    what: Mutex<String>,
    sent: AtomicUsize,
    done: AtomicUsize,
    total: AtomicUsize,
    is_terminal: bool,
}

impl Default for Progress {
    fn default() -> Progress {
        let shared = Shared {
            what: Mutex::default(),
            sent: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            total: AtomicUsize::new(0),
            is_terminal: std::io::stderr().is_terminal(),
        };
        Progress { shared: Arc::new(shared) }
    }
}

impl Progress {
    /// Shows it from now on, until the work ends.
    pub async fn show(&self) {
        let pause = if self.shared.is_terminal { LIVE } else { ELSEWHERE };
        loop {
            tokio::time::sleep(pause).await;
            self.shared.draw();
        }
    }

    /// A piece of work begins that is done when `total` things are.
    pub fn begin(&self, what: impl Into<String>, total: usize) {
        let mut now = self.shared.lock();
        *now = what.into();
        self.shared.sent.store(0, Ordering::Relaxed);
        self.shared.done.store(0, Ordering::Relaxed);
        self.shared.total.store(total, Ordering::Relaxed);
    }

    /// One more request was answered.
    pub fn sent(&self) {
        self.shared.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// So many things are as they shall be.
    pub fn done(&self, count: usize) {
        self.shared.done.store(count, Ordering::Relaxed);
    }

    /// Writes a line that stays.
    pub fn say(&self, line: &str) {
        let mut what = self.shared.lock();
        what.clear();
        self.shared.erase();
        eprintln!("{line}");
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, String> {
        self.what.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw(&self) {
        let what = self.lock();
        if what.is_empty() {
            return;
        }
        let [sent, done, total] = [&self.sent, &self.done, &self.total].map(|count| count.load(Ordering::Relaxed));
        let line = match (done, total) {
            (0, 0) => format!("  {what}: {sent} requests"),
            _ => format!("  {what}: {sent} requests, {done} of {total} done"),
        };
        if self.is_terminal {
            self.erase();
            eprint!("{line}");
            // If nobody can see it, nothing is lost.
            drop(std::io::stderr().flush());
        } else {
            eprintln!("{line}");
        }
    }

    fn erase(&self) {
        if self.is_terminal {
            eprint!("{ERASE}");
        }
    }
}
