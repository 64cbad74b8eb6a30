//! Exponential backoff, and a queue of keys that wait until a time.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::Duration;
use tokio::time::Instant;

/// The first backoff of a key that failed.
const KEY_FIRST: Duration = Duration::from_millis(5);

/// A backoff that begins with `first` and doubles with each failure, up to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub first: Duration,
    pub max: Duration,
}

impl Backoff {
    /// The wait after a failure, by the number of failures before it.
    pub fn after(self, failures_before: u32) -> Duration {
        self.first.saturating_mul(1 << failures_before.min(20)).min(self.max)
    }
}

/// Keys with the time until which they wait. Each key waits at most once; the last call decides until when.
pub struct DelayQueue<K> {
    /// The number makes keys of the same instant distinct.
    due: BTreeMap<(Instant, u64), K>,
    waiting: HashMap<K, (Instant, u64)>,
    failures: HashMap<K, u32>,
    backoff: Backoff,
    issued: u64,
}

impl<K: Clone + Eq + Hash> DelayQueue<K> {
    /// `max` is the longest backoff of a key that failed.
    pub fn new(max: Duration) -> DelayQueue<K> {
        let backoff = Backoff { first: KEY_FIRST, max };
        DelayQueue { due: BTreeMap::new(), waiting: HashMap::new(), failures: HashMap::new(), backoff, issued: 0 }
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
        let delay = self.backoff.after(*failures);
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
        let mut queue = DelayQueue::new(Duration::from_secs(1));
        queue.wait_until("a", now + Duration::from_secs(9));
        queue.wait_until("a", now + Duration::from_secs(3));
        queue.wait_until("b", now + Duration::from_secs(5));
        queue.wait_at_most_until("b", now + Duration::from_secs(3));
        queue.wait_at_most_until("b", now + Duration::from_secs(7));
        assert_eq!(queue.take_due(now), [] as [&str; 0]);
        assert_eq!(queue.take_due(now + Duration::from_secs(3)), ["a", "b"]);
        assert_eq!(queue.next_at(), None);

        let waits: Vec<Duration> = (0..12).map(|_| queue.wait_after_failure(&"a", now)).collect();
        assert_eq!(waits[..3], [KEY_FIRST, KEY_FIRST * 2, KEY_FIRST * 4]);
        assert_eq!(waits[11], Duration::from_secs(1));
        queue.cancel(&"a");
        assert_eq!((queue.next_at(), queue.wait_after_failure(&"a", now)), (None, Duration::from_secs(1)));
        queue.forget(&"a");
        assert_eq!((queue.next_at(), queue.wait_after_failure(&"a", now)), (None, KEY_FIRST));
        assert_eq!(queue.take_all(), ["a"]);
        assert_eq!(queue.next_at(), None);
    }
}
