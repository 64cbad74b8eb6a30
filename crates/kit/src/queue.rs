//! A work queue of keys: one worker per key at a time, a change during the work runs it again, failures back
//! off.

use crate::backoff::DelayQueue;
use crate::metrics::QueueMetrics;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The longest backoff. It bounds the delay for changes that no watch reports, such as a larger quota.
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// Shared by informers and workers.
pub struct Queue<K> {
    state: Mutex<State<K>>,
    news: Notify,
    metrics: QueueMetrics,
}

struct State<K> {
    /// Queued keys and since when; each is in `waiting` too.
    queued: VecDeque<(K, Instant)>,
    waiting: HashSet<K>,
    /// Keys being worked on.
    running: HashSet<K>,
    /// Keys that changed while they were being worked on.
    changed: HashSet<K>,
    /// Keys with a backoff or a requested requeue time.
    delayed: DelayQueue<K>,
    /// Keys that are not handed out before this time, even if they change.
    coalescing: HashMap<K, Instant>,
    /// Keys queued since the metric was last updated.
    added: u64,
}

impl<K: Clone + Eq + Hash> Queue<K> {
    pub fn new(metrics: QueueMetrics) -> Queue<K> {
        let state = State {
            queued: VecDeque::new(),
            waiting: HashSet::new(),
            running: HashSet::new(),
            changed: HashSet::new(),
            delayed: DelayQueue::new(BACKOFF_MAX),
            coalescing: HashMap::new(),
            added: 0,
        };
        Queue { state: Mutex::new(state), news: Notify::new(), metrics }
    }

    /// Queues a key, unless it is queued already.
    pub fn add(&self, key: K) {
        self.change(|state| state.add(key));
    }

    /// Queues a key after a delay, unless it is queued sooner; also a key that is being worked on.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.change(|state| state.delayed.wait_at_most_until(key, Instant::now() + delay));
    }

    /// Returns the next key; it is being worked on until [`Queue::done`] or [`Queue::failed`]. Cancel-safe.
    pub async fn next(&self) -> K {
        loop {
            let wake_at = {
                let mut state = self.lock();
                let now = Instant::now();
                let taken = state.take(now);
                self.count(&mut state);
                if let Some((key, since)) = taken {
                    self.metrics.waits.observe(now.duration_since(since).as_secs_f64());
                    if !state.queued.is_empty() {
                        self.news.notify_one();
                    }
                    return key;
                }
                state.delayed.next_at()
            };
            match wake_at {
                None => self.news.notified().await,
                Some(at) => tokio::select! {
                    biased;
                    () = self.news.notified() => {}
                    () = tokio::time::sleep_until(at) => {}
                },
            }
        }
    }

    /// Ends the work on a key; it is requeued after `requeue_after`, if given.
    pub fn done(&self, key: &K, requeue_after: Option<Duration>) {
        self.change(|state| {
            state.delayed.forget_failures(key);
            if let Some(delay) = requeue_after {
                state.delayed.wait_at_most_until(key.clone(), Instant::now() + delay);
            }
            state.release(key);
        });
    }

    /// Like [`Queue::done`]; changes within `coalesce` are worked on together at its end.
    pub fn done_coalescing(&self, key: &K, coalesce: Duration, requeue_after: Option<Duration>) {
        self.lock().coalescing.insert(key.clone(), Instant::now() + coalesce);
        self.done(key, requeue_after);
    }

    /// Ends failed work: the key is requeued after a backoff that doubles each time. Returns the backoff.
    pub fn failed(&self, key: &K) -> Duration {
        self.metrics.retries.inc();
        self.change(|state| {
            let delay = state.delayed.wait_after_failure(key, Instant::now());
            state.release(key);
            delay
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut State<K>) -> T) -> T {
        let mut state = self.lock();
        let result = change(&mut state);
        self.count(&mut state);
        drop(state);
        self.news.notify_one();
        result
    }

    fn count(&self, state: &mut State<K>) {
        self.metrics.adds.inc_by(std::mem::take(&mut state.added));
        self.metrics.depth.set(i64::try_from(state.queued.len()).unwrap_or(i64::MAX));
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().expect("no panic happens under this lock")
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn add(&mut self, key: K) {
        if self.running.contains(&key) {
            self.changed.insert(key);
        } else if let Some(end) = self.coalescing.get(&key).filter(|end| **end > Instant::now()) {
            self.delayed.wait_at_most_until(key, *end);
        } else if self.waiting.insert(key.clone()) {
            self.queued.push_back((key, Instant::now()));
            self.added += 1;
        }
    }

    fn take(&mut self, now: Instant) -> Option<(K, Instant)> {
        for key in self.delayed.take_due(now) {
            self.add(key);
        }
        let (key, since) = self.queued.pop_front()?;
        self.waiting.remove(&key);
        self.running.insert(key.clone());
        self.coalescing.remove(&key);
        // This run decides anew when the key is requeued.
        self.delayed.cancel(&key);
        Some((key, since))
    }

    fn release(&mut self, key: &K) {
        self.running.remove(key);
        if self.changed.remove(key) {
            self.add(key.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> Queue<&'static str> {
        Queue::new(crate::Metrics::default().queue("test"))
    }

    #[tokio::test]
    async fn a_key_is_in_line_once_and_runs_again_when_it_changed_meanwhile() {
        let queue = queue();
        queue.add("a");
        queue.add("a");
        assert_eq!(queue.metrics.depth.get(), 1);
        assert_eq!(queue.next().await, "a");
        queue.add("a");
        assert_eq!(queue.metrics.depth.get(), 0, "not while it runs");
        queue.done(&"a", None);
        assert_eq!(queue.next().await, "a");
        queue.done(&"a", None);
        assert_eq!((queue.metrics.depth.get(), queue.metrics.adds.get(), queue.metrics.retries.get()), (0, 2, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_wait_longer_each_time_and_success_forgets_them() {
        let queue = queue();
        queue.add("a");
        let mut delays = Vec::new();
        for _ in 0..20 {
            let key = queue.next().await;
            delays.push(queue.failed(&key));
        }
        assert_eq!(delays[1], delays[0] * 2);
        assert_eq!((delays[19], queue.metrics.retries.get()), (BACKOFF_MAX, 20));
        let key = queue.next().await;
        queue.done(&key, None);
        queue.add("a");
        let key = queue.next().await;
        assert_eq!(queue.failed(&key), delays[0]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_happens_while_a_key_rests_is_worked_on_at_once_at_the_end() {
        let (queue, rest) = (queue(), Duration::from_millis(10));
        let start = Instant::now();
        queue.add("a");
        let key = queue.next().await;
        queue.add("a");
        queue.done_coalescing(&key, rest, Some(Duration::from_secs(10)));
        queue.add("a");
        queue.add("b");
        assert_eq!((queue.next().await, start.elapsed()), ("b", Duration::ZERO));
        assert_eq!((queue.next().await, start.elapsed()), ("a", rest));
        queue.done_coalescing(&"a", rest, Some(rest / 2));
        assert_eq!((queue.next().await, start.elapsed()), ("a", rest * 2), "a requeue does not shorten the pause");
        queue.done(&"a", None);
        queue.add("a");
        assert_eq!((queue.next().await, start.elapsed()), ("a", rest * 2), "no pause was requested");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_put_off_while_it_was_worked_on_comes_back() {
        let (queue, pause) = (queue(), Duration::from_secs(5));
        let start = Instant::now();
        queue.add("a");
        let key = queue.next().await;
        queue.add_after("a", pause);
        queue.done(&key, None);
        assert_eq!((queue.next().await, start.elapsed()), ("a", pause));
        queue.add_after("a", pause);
        queue.done(&key, Some(pause * 2));
        assert_eq!((queue.next().await, start.elapsed()), ("a", pause * 2), "the earlier of the two");
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_wants_to_come_back_does_so_once_however_often_it_ran() {
        let queue = queue();
        let start = Instant::now();
        for _ in 0..5 {
            queue.add("a");
            let key = queue.next().await;
            queue.done(&key, Some(Duration::from_secs(10)));
        }
        let key = queue.next().await;
        assert_eq!(start.elapsed(), Duration::from_secs(10));
        queue.done(&key, None);
        let more = tokio::time::timeout(Duration::from_secs(100), queue.next()).await;
        assert!(more.is_err(), "nothing else waits");
    }
}
