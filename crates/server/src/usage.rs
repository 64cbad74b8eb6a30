//! How a connection is used: one that asks for nothing is not kept for ever.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// Clients connect when they have something to ask.
const FIRST_REQUEST_TIME_MAX: Duration = Duration::from_secs(15);
/// How long a client may keep a connection for its next request. (HTTP/1.1 connections are kept for as long as headers may take.)
const IDLE_TIME_MAX: Duration = Duration::from_secs(5 * 60);

pub struct Usage(Mutex<Used>);

struct Used {
    open: usize,
    asked: bool,
    /// When the last request ended, or the connection began.
    since: Instant,
}

/// A request that is being answered.
pub struct Open(Arc<Usage>);

impl Usage {
    pub fn new() -> Arc<Usage> {
        Arc::new(Usage(Mutex::new(Used { open: 0, asked: false, since: Instant::now() })))
    }

    pub fn begin(self: &Arc<Usage>) -> Open {
        let mut used = self.used();
        used.open += 1;
        used.asked = true;
        drop(used);
        Open(self.clone())
    }

    /// Whether there ever was a request.
    pub fn asked(&self) -> bool {
        self.used().asked
    }

    /// Waits until the connection has been idle for too long.
    pub async fn idle(&self) {
        loop {
            let now = Instant::now();
            let until = {
                let used = self.used();
                match (used.open, used.asked) {
                    (0, false) => used.since + FIRST_REQUEST_TIME_MAX,
                    (0, true) => used.since + IDLE_TIME_MAX,
                    _ => now + IDLE_TIME_MAX,
                }
            };
            if until <= now {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.0.lock().expect("no panic happens under this lock")
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut used = self.0.used();
        used.open -= 1;
        used.since = Instant::now();
    }
}
