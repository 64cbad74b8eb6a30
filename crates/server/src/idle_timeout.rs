//! Idle timeouts of connections.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// Time until the first request of a connection.
const FIRST_REQUEST_TIME_MAX: Duration = Duration::from_secs(15);
/// How long a connection may be idle between requests. (HTTP/1.1 connections may be idle as long as headers may
/// take.)
const IDLE_TIME_MAX: Duration = Duration::from_secs(5 * 60);

pub struct IdleTimeout(Mutex<State>);

struct State {
    open: usize,
    asked: bool,
    /// The end of the last request, or the start of the connection.
    since: Instant,
}

/// A request that is being handled.
pub struct ActiveRequest(Arc<IdleTimeout>);

impl IdleTimeout {
    pub fn new() -> Arc<IdleTimeout> {
        Arc::new(IdleTimeout(Mutex::new(State { open: 0, asked: false, since: Instant::now() })))
    }

    pub fn begin(self: &Arc<IdleTimeout>) -> ActiveRequest {
        let mut used = self.state();
        used.open += 1;
        used.asked = true;
        drop(used);
        ActiveRequest(self.clone())
    }

    /// Whether the connection has had a request.
    pub fn asked(&self) -> bool {
        self.state().asked
    }

    /// Waits until the connection has been idle for too long.
    pub async fn idle(&self) {
        loop {
            let now = Instant::now();
            let until = {
                let used = self.state();
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic happens under this lock")
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let mut used = self.0.state();
        used.open -= 1;
        used.since = Instant::now();
    }
}
