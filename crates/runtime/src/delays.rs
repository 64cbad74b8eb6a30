//! Keys that wait until a time, and the backoff of keys that failed.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;
use tokio::time::Instant;

const BACKOFF_FIRST: Duration = Duration::from_millis(5);

/// Each key waits at most once; the last call decides until when.
pub struct Delays<K> {
    /// The number makes keys of the same instant distinct.
    due: BTreeMap<(Instant, u64), K>,
    waiting: HashMap<K, (Instant, u64)>,
    failures: HashMap<K, u32>,
    backoff_max: Duration,
    issued: u64,
}

impl<K: Clone + Eq + Hash> Delays<K> {
    pub fn new(backoff_max: Duration) -> Delays<K> {
        Delays { due: BTreeMap::new(), waiting: HashMap::new(), failures: HashMap::new(), backoff_max, issued: 0 }
    }

    /// The key becomes due at `at`.
    pub fn wait_until(&mut self, key: K, at: Instant) {
        self.cancel(&key);
        self.issued += 1;
        self.due.insert((at, self.issued), key.clone());
        self.waiting.insert(key, (at, self.issued));
    }

    /// The key becomes due at `at`, unless it is due earlier already.
    pub fn wait_at_most_until(&mut self, key: K, at: Instant) {
        if self.waiting.get(&key).is_none_or(|(known, _)| *known > at) {
            self.wait_until(key, at);
        }
    }

    /// Schedules the key after a backoff that doubles with each failure. Returns the backoff.
    pub fn wait_after_failure(&mut self, key: &K, now: Instant) -> Duration {
        let failures = self.failures.entry(key.clone()).or_insert(0);
        let delay = BACKOFF_FIRST.saturating_mul(1 << (*failures).min(20)).min(self.backoff_max);
        *failures = failures.saturating_add(1);
        self.wait_until(key.clone(), now + delay);
        delay
    }

    /// Cancels the wait of the key; its failures still count.
    pub fn cancel(&mut self, key: &K) {
        if let Some(place) = self.waiting.remove(key) {
            self.due.remove(&place);
        }
    }

    /// Cancels the wait of the key and forgets its failures.
    pub fn forget(&mut self, key: &K) {
        self.cancel(key);
        self.forget_failures(key);
    }

    /// Forgets the failures of the key; if it waits, it keeps waiting.
    pub fn forget_failures(&mut self, key: &K) {
        self.failures.remove(key);
    }

    /// Removes and returns the keys that are due.
    pub fn take_due(&mut self, now: Instant) -> Vec<K> {
        let mut taken = Vec::new();
        while let Some(entry) = self.due.first_entry().filter(|entry| entry.key().0 <= now) {
            let key = entry.remove();
            self.waiting.remove(&key);
            taken.push(key);
        }
        taken
    }

    /// Removes and returns all waiting keys, due or not.
    pub fn take_all(&mut self) -> Vec<K> {
        self.waiting.clear();
        std::mem::take(&mut self.due).into_values().collect()
    }

    /// When the next key becomes due.
    pub fn next_at(&self) -> Option<Instant> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_waits_once_and_failures_double_its_wait() {
        let now = Instant::now();
        let mut delays = Delays::new(Duration::from_secs(1));
        delays.wait_until("a", now + Duration::from_secs(9));
        delays.wait_until("a", now + Duration::from_secs(3));
        delays.wait_until("b", now + Duration::from_secs(5));
        delays.wait_at_most_until("b", now + Duration::from_secs(3));
        delays.wait_at_most_until("b", now + Duration::from_secs(7));
        assert_eq!(delays.take_due(now), [] as [&str; 0]);
        assert_eq!(delays.take_due(now + Duration::from_secs(3)), ["a", "b"]);
        assert_eq!(delays.next_at(), None);

        let waits: Vec<Duration> = (0..12).map(|_| delays.wait_after_failure(&"a", now)).collect();
        assert_eq!(waits[..3], [BACKOFF_FIRST, BACKOFF_FIRST * 2, BACKOFF_FIRST * 4]);
        assert_eq!(waits[11], Duration::from_secs(1));
        delays.cancel(&"a");
        assert_eq!((delays.next_at(), delays.wait_after_failure(&"a", now)), (None, Duration::from_secs(1)));
        delays.forget(&"a");
        assert_eq!((delays.next_at(), delays.wait_after_failure(&"a", now)), (None, BACKOFF_FIRST));
        assert_eq!(delays.take_all(), ["a"]);
        assert_eq!(delays.next_at(), None);
    }
}
