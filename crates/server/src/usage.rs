//! Idle timeouts of connections.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// Time until the first request of a connection.
const FIRST_REQUEST_TIME_MAX: Duration = Duration::from_secs(15);
/// How long a connection may be idle between requests. (HTTP/1.1 connections may be idle as long as headers may
/// take.)
const IDLE_TIME_MAX: Duration = Duration::from_secs(5 * 60);

pub struct Usage(Mutex<Used>);

struct Used {
    open: usize,
    asked: bool,
    /// The end of the last request, or the start of the connection.
    since: Instant,
}

/// A request that is being handled.
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

    /// Whether the connection has had a request.
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
