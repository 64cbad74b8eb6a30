//! Backoff per key. The delay grows with each failure, and no event shortens it unless what the attempt depends on has
//! changed.

use super::endpoint::DriverBackoff;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

pub struct Attempts<K> {
    state: Mutex<HashMap<K, Attempt>>,
}

struct Attempt {
    /// What the attempt depended on.
    basis: String,
    failures: u32,
    not_before: Instant,
}

impl<K: Eq + Hash + Clone> Attempts<K> {
    pub fn new() -> Attempts<K> {
        Attempts { state: Mutex::default() }
    }

    /// How long a key still has to wait. `None` also when what it depends on has changed.
    pub fn wait(&self, key: &K, basis: &str) -> Option<Duration> {
        let mut state = self.lock();
        let attempt = state.get(key)?;
        if attempt.basis != basis {
            state.remove(key);
            return None;
        }
        let left = attempt.not_before.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Records a failed attempt; returns the backoff.
    pub fn failed(&self, key: &K, basis: &str, backoff: &DriverBackoff, is_away: bool) -> Duration {
        let failures =
            self.lock().get(key).filter(|attempt| attempt.basis == basis).map_or(0, |attempt| attempt.failures);
        let wait = backoff.after(failures, is_away);
        self.rest(key, basis, failures + 1, wait);
        wait
    }

    /// Makes a key wait for the given time.
    pub fn rest(&self, key: &K, basis: &str, failures: u32, wait: Duration) {
        let attempt = Attempt { basis: basis.to_owned(), failures, not_before: Instant::now() + wait };
        self.lock().insert(key.clone(), attempt);
    }

    pub fn forget(&self, key: &K) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Attempt>> {
        self.state.lock().expect("no panic happens under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_waits_unless_what_it_depends_on_changed() {
        let attempts = Attempts::new();
        let backoff = DriverBackoff::default();
        assert_eq!(attempts.wait(&"a", "x"), None);
        assert_eq!(attempts.failed(&"a", "x", &backoff, false), Duration::from_secs(1));
        assert_eq!(attempts.failed(&"a", "x", &backoff, false), Duration::from_secs(2));
        assert_eq!(attempts.wait(&"a", "x"), Some(Duration::from_secs(2)));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(attempts.wait(&"a", "x"), None);
        assert_eq!(attempts.failed(&"a", "x", &backoff, false), Duration::from_secs(4));
        assert_eq!(attempts.wait(&"a", "y"), None, "something changed");
        assert_eq!(attempts.failed(&"a", "y", &backoff, false), Duration::from_secs(1));
        attempts.forget(&"a");
        assert_eq!(attempts.wait(&"a", "y"), None);
    }
}
