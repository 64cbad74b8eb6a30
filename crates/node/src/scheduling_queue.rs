//! The scheduling queue: pods in order of priority, pods in backoff, and unschedulable pods with what may
//! help them.

use kit::backoff::DelayQueue;
use plan::schedule::{Helps, Key, Pod};
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;
use tokio::time::Instant;

const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// Claims are usually bound within moments; only a longer wait is reported to the user.
const REPORT_DELAY: Duration = Duration::from_millis(500);

/// After this time, unbound claims are given up and the pod is scheduled anew.
const CLAIMS_TIME_MAX: Duration = Duration::from_secs(600);

/// Higher priority first, then in order of arrival.
type Place = (Reverse<i64>, u64);

/// Each pod is in at most one state: queued, busy or waiting.
pub struct SchedulingQueue {
    queued: BTreeSet<(Place, Key)>,
    places: HashMap<Key, Place>,
    /// Pods that are being scheduled or written, with their place.
    busy: HashMap<Key, Place>,
    /// Busy pods that changed meanwhile.
    again: HashSet<Key>,
    waiting: HashMap<Key, Waiting>,
    /// Pods whose claims have a selected node, and since when.
    prepared: HashMap<Key, Instant>,
    /// Pods in backoff after a failure.
    delayed: DelayQueue<Key>,
    /// Pods with a `FailedScheduling` event to record, and when.
    reports: DelayQueue<Key>,
    came: u64,
}

struct Waiting {
    place: Place,
    helps: Helps,
    message: String,
}

/// What the scheduler does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Work {
    Schedule(Key),
    /// Record why the pod is unschedulable.
    Report(Key, String),
}

impl SchedulingQueue {
    pub fn new() -> SchedulingQueue {
        SchedulingQueue {
            queued: BTreeSet::new(),
            places: HashMap::new(),
            busy: HashMap::new(),
            again: HashSet::new(),
            waiting: HashMap::new(),
            prepared: HashMap::new(),
            delayed: DelayQueue::new(BACKOFF_MAX),
            reports: DelayQueue::new(BACKOFF_MAX),
            came: 0,
        }
    }

    /// Queues a pod, if it needs a node.
    pub fn add(&mut self, key: &Key, pod: Option<&Pod>) {
        let Some(wants) = pod.and_then(|pod| pod.wants.as_ref()) else { return };
        self.came += 1;
        let place = self.waiting.get(key).map_or((Reverse(wants.priority), self.came), |waiting| waiting.place);
        self.put(key, place);
    }

    fn put(&mut self, key: &Key, place: Place) {
        self.waiting.remove(key);
        self.delayed.cancel(key);
        if self.busy.contains_key(key) {
            self.again.insert(key.clone());
            self.places.insert(key.clone(), place);
        } else if let Some(old) = self.places.insert(key.clone(), place) {
            self.queued.remove(&(old, key.clone()));
            self.places.insert(key.clone(), old.min(place));
            self.queued.insert((old.min(place), key.clone()));
        } else {
            self.queued.insert((place, key.clone()));
        }
    }

    /// Returns the next work; a pod to decide about is busy until [`SchedulingQueue::done`] or a similar call.
    pub fn next(&mut self, now: Instant) -> Option<Work> {
        for key in self.delayed.take_due(now) {
            if let Some(Waiting { place, .. }) = self.waiting.remove(&key) {
                self.put(&key, place);
            }
        }
        if let Some((place, key)) = self.queued.pop_first() {
            self.places.remove(&key);
            self.busy.insert(key.clone(), place);
            return Some(Work::Schedule(key));
        }
        let told = self.reports.take_due(now);
        let mut told = told.into_iter();
        let next = told.by_ref().find_map(|key| {
            let message = self.waiting.get(&key)?.message.clone();
            Some(Work::Report(key, message))
        });
        // The remaining ones follow in the next calls.
        told.for_each(|key| self.reports.wait_until(key, now));
        next
    }

    pub fn next_at(&self) -> Option<Instant> {
        self.delayed.next_at().into_iter().chain(self.reports.next_at()).min()
    }

    /// Nothing is to be done for the pod until it changes.
    pub fn done(&mut self, key: &Key) {
        self.delayed.forget(key);
        self.release(key);
    }

    fn release(&mut self, key: &Key) {
        self.busy.remove(key);
        if self.again.remove(key)
            && let Some(place) = self.places.remove(key)
        {
            self.put(key, place);
        }
    }

    /// The pod is unschedulable until a change that `helps`; the reason is recorded unless its condition has
    /// it already.
    pub fn wait(&mut self, key: &Key, pod: Option<&Pod>, helps: Helps, message: &str, now: Instant) {
        self.rest(key, helps, message);
        let known = pod.and_then(|pod| pod.said.as_ref()).is_some_and(|said| said.message == message);
        if known {
            self.reports.cancel(key);
        } else {
            let soon = if helps.nodes { now } else { now + REPORT_DELAY };
            self.reports.wait_until(key.clone(), soon);
        }
        self.done(key);
    }

    fn rest(&mut self, key: &Key, helps: Helps, message: &str) {
        if let Some(place) = self.busy.get(key) {
            self.waiting.insert(key.clone(), Waiting { place: *place, helps, message: message.to_owned() });
        }
    }

    /// Scheduling failed: the pod is retried after a backoff.
    pub fn failed(&mut self, key: &Key, now: Instant) -> Duration {
        self.rest(key, Helps::default(), "");
        self.reports.cancel(key);
        let delay = self.delayed.wait_after_failure(key, now);
        self.release(key);
        delay
    }

    /// The pod's claims have a selected node; it waits until they are bound, up to [`CLAIMS_TIME_MAX`].
    pub fn await_claims(&mut self, key: &Key, now: Instant) {
        let since = *self.prepared.entry(key.clone()).or_insert(now);
        self.rest(key, Helps::default(), "");
        self.done(key);
        self.delayed.wait_until(key.clone(), since + CLAIMS_TIME_MAX);
    }

    /// Whether the pod has waited for its claims for too long.
    pub fn is_overdue(&self, key: &Key, now: Instant) -> bool {
        self.prepared.get(key).is_some_and(|since| now.duration_since(*since) >= CLAIMS_TIME_MAX)
    }

    /// Whether the pod's claims had a selected node; forgets it.
    pub fn clear_prepared(&mut self, key: &Key) -> bool {
        self.prepared.remove(key).is_some()
    }

    /// Queues the waiting pods that a change may make schedulable.
    pub fn retry(&mut self, helped: impl Fn(&Helps) -> bool) {
        let keys: Vec<(Key, Place)> = self
            .waiting
            .iter()
            .filter(|(_, waiting)| helped(&waiting.helps))
            .map(|(key, waiting)| (key.clone(), waiting.place))
            .collect();
        keys.iter().for_each(|(key, place)| self.put(key, *place));
    }

    /// The pod is deleted, or needs no node any more.
    pub fn forget(&mut self, key: &Key) {
        if let Some(place) = self.places.remove(key) {
            self.queued.remove(&(place, key.clone()));
        }
        self.again.remove(key);
        self.waiting.remove(key);
        self.prepared.remove(key);
        self.delayed.forget(key);
        self.reports.forget(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::{Value, json};
    use plan::schedule::Cluster;

    fn key(name: &str) -> Key {
        ("default".into(), name.into())
    }

    fn pod(name: &str, priority: i64) -> Value {
        json!({"metadata": {"namespace": "default", "name": name, "uid": name}, "spec": {"priority": priority}})
    }

    /// A queue, and pods that can be in it: the second has priority.
    fn world() -> (SchedulingQueue, Cluster) {
        let mut cluster = Cluster::new("default-scheduler");
        for (name, priority) in [("a", 0), ("b", 9), ("c", 0)] {
            cluster.apply_pod(&pod(name, priority));
        }
        (SchedulingQueue::new(), cluster)
    }

    fn all(line: &mut SchedulingQueue, now: Instant) -> Vec<String> {
        std::iter::from_fn(|| line.next(now))
            .map(|work| match work {
                Work::Schedule(key) => key.1.to_string(),
                Work::Report(key, message) => format!("{}: {message}", key.1),
            })
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn pods_are_queued_once_and_by_priority() {
        let (mut line, cluster) = world();
        for name in ["c", "a", "b", "c", "nobody"] {
            line.add(&key(name), cluster.pod(&key(name)));
        }
        assert_eq!(all(&mut line, Instant::now()), ["b", "c", "a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_changes_while_busy_is_scheduled_again() {
        let (mut line, cluster) = world();
        let now = Instant::now();
        line.add(&key("a"), cluster.pod(&key("a")));
        assert_eq!(all(&mut line, now), ["a"]);
        line.add(&key("a"), cluster.pod(&key("a")));
        assert_eq!(all(&mut line, now), [""; 0], "not while it is busy");
        line.done(&key("a"));
        assert_eq!(all(&mut line, now), ["a"]);
        line.done(&key("a"));
        assert_eq!(all(&mut line, now), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_pod_is_reported_and_retried_after_a_helpful_change() {
        let (mut line, cluster) = world();
        let now = Instant::now();
        let wait = |line: &mut SchedulingQueue, name: &str, helps: Helps| {
            line.add(&key(name), cluster.pod(&key(name)));
            assert_eq!(line.next(now), Some(Work::Schedule(key(name))));
            line.wait(&key(name), cluster.pod(&key(name)), helps, "no room", now);
        };
        wait(&mut line, "a", Helps { nodes: true, leaving: true, ..Helps::default() });
        wait(&mut line, "b", Helps { volumes: true, ..Helps::default() });
        assert_eq!(line.next_at(), Some(now));
        assert_eq!(all(&mut line, now), ["a: no room"], "waiting for claims is reported later");
        assert_eq!(all(&mut line, now + REPORT_DELAY), ["b: no room"]);
        line.retry(|helps| helps.arriving);
        assert_eq!(all(&mut line, now), [""; 0]);
        line.retry(|helps| helps.leaving || helps.volumes);
        assert_eq!(all(&mut line, now), ["b", "a"]);
        line.forget(&key("a"));
        line.retry(|_| true);
        assert_eq!(all(&mut line, now), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn failed_pods_keep_their_priority_and_waiting_for_claims_is_bounded() {
        let (mut line, cluster) = world();
        let now = Instant::now();
        for name in ["a", "b"] {
            line.add(&key(name), cluster.pod(&key(name)));
        }
        assert_eq!(all(&mut line, now), ["b", "a"]);
        line.failed(&key("a"), now);
        line.failed(&key("b"), now);
        assert_eq!(all(&mut line, now), [""; 0]);
        assert_eq!(all(&mut line, now + BACKOFF_MAX), ["b", "a"]);
        line.await_claims(&key("a"), now);
        assert!(!line.is_overdue(&key("a"), now));
        assert_eq!(all(&mut line, now + CLAIMS_TIME_MAX), ["a"]);
        assert!(line.is_overdue(&key("a"), now + CLAIMS_TIME_MAX));
        assert!(line.clear_prepared(&key("a")) && !line.clear_prepared(&key("a")));
    }
}
