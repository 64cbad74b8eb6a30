//! A backoff per key, for operations outside of the API: other changes of the object do not shorten it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// The keys whose last attempt failed. Each has a basis: what the attempt depended on, such as the object's uid. A key with
/// another basis starts anew.
pub struct KeyedBackoff<K> {
    state: Mutex<HashMap<K, Attempt>>,
}

struct Attempt {
    basis: String,
    failures: u32,
    not_before: Instant,
}

impl<K> Default for KeyedBackoff<K> {
    fn default() -> KeyedBackoff<K> {
        KeyedBackoff { state: Mutex::default() }
    }
}

impl<K: Eq + Hash + Clone> KeyedBackoff<K> {
    /// The rest of the key's wait, unless its basis changed.
    pub fn remaining(&self, key: &K, basis: &str) -> Option<Duration> {
        let mut state = self.lock();
        let attempt = state.get(key)?;
        if attempt.basis != basis {
            state.remove(key);
            return None;
        }
        let left = attempt.not_before.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Counts a failure and returns the wait: `after` gets the number of failures before it.
    pub fn failed(&self, key: &K, basis: &str, after: impl FnOnce(u32) -> Duration) -> Duration {
        let failures =
            self.lock().get(key).filter(|attempt| attempt.basis == basis).map_or(0, |attempt| attempt.failures);
        let wait = after(failures);
        self.wait(key, basis, failures.saturating_add(1), wait);
        wait
    }

    /// The key waits this long from now.
    pub fn wait(&self, key: &K, basis: &str, failures: u32, wait: Duration) {
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
    use crate::backoff::Backoff;

    #[tokio::test(start_paused = true)]
    async fn a_key_waits_unless_its_basis_changed() {
        let backoff = Backoff { first: Duration::from_secs(1), max: Duration::from_secs(122) };
        let after = |failures| backoff.after(failures);
        let attempts = KeyedBackoff::default();
        assert_eq!(attempts.remaining(&"a", "x"), None);
        assert_eq!(attempts.failed(&"a", "x", after), Duration::from_secs(1));
        assert_eq!(attempts.failed(&"a", "x", after), Duration::from_secs(2));
        assert_eq!(attempts.remaining(&"a", "x"), Some(Duration::from_secs(2)));
        assert_eq!(attempts.remaining(&"b", "x"), None, "another key");
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(attempts.remaining(&"a", "x"), None);
        assert_eq!(attempts.failed(&"a", "x", after), Duration::from_secs(4));
        assert_eq!(attempts.remaining(&"a", "y"), None, "the basis changed");
        assert_eq!(attempts.failed(&"a", "y", after), Duration::from_secs(1));
        let last = (0..20).map(|_| attempts.failed(&"a", "y", after)).last();
        assert_eq!(last, Some(backoff.max));
        attempts.forget(&"a");
        assert_eq!(attempts.remaining(&"a", "y"), None);
    }
}
