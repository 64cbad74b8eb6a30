//! A queue of keys: no key is worked on twice at once, a change during the work makes it run again, failures wait longer each time.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

const BACKOFF_FIRST: Duration = Duration::from_millis(5);
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// Shared by those who add and those who work.
pub struct Queue<K> {
    state: Mutex<State<K>>,
    news: Notify,
}

struct State<K> {
    /// Keys in line; each is in `waiting` too.
    line: VecDeque<K>,
    waiting: HashSet<K>,
    /// Keys being worked on.
    running: HashSet<K>,
    /// Keys that changed while they were being worked on.
    again: HashSet<K>,
    failures: HashMap<K, u32>,
}

impl<K: Clone + Eq + Hash + Send + 'static> Queue<K> {
    pub fn new() -> Arc<Queue<K>> {
        let state = State {
            line: VecDeque::new(),
            waiting: HashSet::new(),
            running: HashSet::new(),
            again: HashSet::new(),
            failures: HashMap::new(),
        };
        Arc::new(Queue { state: Mutex::new(state), news: Notify::new() })
    }

    /// Puts a key in line, once.
    pub fn add(&self, key: K) {
        let mut state = self.lock();
        if state.running.contains(&key) {
            state.again.insert(key);
        } else if state.waiting.insert(key.clone()) {
            state.line.push_back(key);
            drop(state);
            self.news.notify_one();
        }
    }

    /// Puts a key in line after a while.
    pub fn add_after(self: &Arc<Self>, key: K, delay: Duration) {
        let queue = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            queue.add(key);
        });
    }

    /// The next key; it is worked on until [`Queue::done`] or [`Queue::failed`]. Cancel-safe.
    pub async fn next(&self) -> K {
        loop {
            let news = self.news.notified();
            {
                let mut state = self.lock();
                if let Some(key) = state.line.pop_front() {
                    state.waiting.remove(&key);
                    state.running.insert(key.clone());
                    if !state.line.is_empty() {
                        self.news.notify_one();
                    }
                    return key;
                }
            }
            news.await;
        }
    }

    /// The work on a key is done for now.
    pub fn done(&self, key: &K) {
        self.lock().failures.remove(key);
        self.release(key);
    }

    /// The work failed: the key comes back after a while that doubles each time. Returns that while.
    pub fn failed(self: &Arc<Self>, key: &K) -> Duration {
        let failures = {
            let mut state = self.lock();
            let count = state.failures.entry(key.clone()).or_insert(0);
            *count += 1;
            *count
        };
        let delay = BACKOFF_FIRST.saturating_mul(1 << (failures - 1).min(16)).min(BACKOFF_MAX);
        self.release(key);
        self.add_after(key.clone(), delay);
        delay
    }

    /// How many keys are in line.
    pub fn depth(&self) -> usize {
        self.lock().line.len()
    }

    fn release(&self, key: &K) {
        let mut state = self.lock();
        state.running.remove(key);
        if state.again.remove(key) && state.waiting.insert(key.clone()) {
            state.line.push_back(key.clone());
            drop(state);
            self.news.notify_one();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State<K>> {
        self.state.lock().expect("no panic happens under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_is_in_line_once_and_runs_again_when_it_changed_meanwhile() {
        let queue = Queue::new();
        queue.add("a");
        queue.add("a");
        assert_eq!(queue.depth(), 1);
        assert_eq!(queue.next().await, "a");
        queue.add("a");
        assert_eq!(queue.depth(), 0, "not while it runs");
        queue.done(&"a");
        assert_eq!(queue.next().await, "a");
        queue.done(&"a");
        assert_eq!(queue.depth(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_wait_longer_each_time_and_success_forgets_them() {
        let queue = Queue::new();
        queue.add("a");
        let mut delays = Vec::new();
        for _ in 0..20 {
            let key = queue.next().await;
            delays.push(queue.failed(&key));
        }
        assert_eq!(delays[0], BACKOFF_FIRST);
        assert_eq!(delays[1], BACKOFF_FIRST * 2);
        assert_eq!(delays[19], BACKOFF_MAX);
        let key = queue.next().await;
        queue.done(&key);
        queue.add("a");
        let key = queue.next().await;
        assert_eq!(queue.failed(&key), BACKOFF_FIRST);
    }
}
