//! Records Kubernetes events. A repeated event increases the count of the first one.
//!
//! Recording never delays or fails a reconcile: events are queued, and a task of its own sends them. Each
//! object has a token bucket, as in client-go, so that a loop cannot flood the server.

use crate::api::{Api, ApiError, Resource};
use crate::backoff::Backoff;
use crate::clock::Clock;
use crate::metrics::{Lost, Metrics};
use jiff::Timestamp;
use object::{Value, json};
use plan::gc::Place;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Capacity of the queue. Events are sent one after the other, so under load they are late instead of slowing
/// down the controllers.
const WAITING_MAX: usize = 8192;
/// How many different events and objects are remembered; beyond that, the memory is cleared.
const REMEMBERED_MAX: usize = 4096;
/// Size of the token bucket of each object.
const BURST: f64 = 25.0;
/// Time after which an object gets another token.
const REFILL: Duration = Duration::from_secs(300);
/// Attempts to send an event while the server is unavailable, with doubling backoff.
const ATTEMPTS_MAX: u32 = 5;
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(500), max: Duration::from_secs(30) };
/// After shutdown, queued events are still sent for this long.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(2);

/// Records events as one controller.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<Occurrence>,
    component: &'static str,
    metrics: Metrics,
    clock: Clock,
}

/// The object of an event.
pub struct EventSubject<'a> {
    pub resource: &'a Resource,
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
}

impl Events {
    /// Starts the task that sends the events, among `tasks`. It ends when all clones of the recorder are
    /// dropped, and at most [`FLUSH_TIME_MAX`] after the shutdown.
    pub fn start(
        api: &Api,
        component: &'static str,
        metrics: &Metrics,
        clock: &Clock,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> Events {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let worker = Sender {
            api: api.clone(),
            component,
            metrics: metrics.clone(),
            written: HashMap::new(),
            buckets: HashMap::new(),
        };
        let shutdown = shutdown.clone();
        tasks.spawn(async move {
            let deadline = async {
                shutdown.cancelled().await;
                tokio::time::sleep(FLUSH_TIME_MAX).await;
            };
            tokio::select! {
                biased;
                () = worker.run(receiver) => {}
                () = deadline => {}
            }
        });
        Events { queue: sender, component, metrics: metrics.clone(), clock: clock.clone() }
    }

    pub fn warn(&self, resource: &Resource, place: &Place, uid: &str, reason: &'static str, message: &str) {
        let about = EventSubject { resource, namespace: &place.namespace, name: &place.name, uid };
        self.record(&about, "Warning", reason, message);
    }

    pub fn record(&self, about: &EventSubject<'_>, kind: &'static str, reason: &'static str, message: &str) {
        let occurrence = Occurrence {
            what: EventKey { uid: about.uid.into(), reason, message: message.to_owned() },
            resource: about.resource.clone(),
            namespace: about.namespace.to_owned(),
            name: about.name.to_owned(),
            kind,
            at: (self.clock)(),
        };
        if self.queue.try_send(occurrence).is_err() {
            self.metrics.event_lost(self.component, Lost::Overflow);
        }
    }
}

/// An occurrence to record; the rate limit may drop it.
struct Occurrence {
    what: EventKey,
    resource: Resource,
    namespace: String,
    name: String,
    kind: &'static str,
    at: Timestamp,
}

impl Occurrence {
    /// Events about cluster-scoped objects are in namespace `default`.
    fn event_namespace(&self) -> &str {
        if self.namespace.is_empty() { "default" } else { &self.namespace }
    }

    fn event(&self, component: &str) -> Value {
        let now = object::write::stamp(self.at);
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": format!("{}.", event_name(&self.name)), "namespace": self.event_namespace()},
            "involvedObject": {
                "apiVersion": self.resource.api_version(),
                "kind": &*self.resource.kind,
                "namespace": &*self.namespace,
                "name": &*self.name,
                "uid": &*self.what.uid,
            },
            "type": self.kind,
            "reason": self.what.reason,
            "message": &*self.what.message,
            "count": 1,
            "firstTimestamp": &*now,
            "lastTimestamp": &*now,
            "source": {"component": component},
            "reportingComponent": component,
            "reportingInstance": "",
        })
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct EventKey {
    uid: Arc<str>,
    reason: &'static str,
    message: String,
}

/// Sends the queued events.
struct Sender {
    api: Api,
    component: &'static str,
    metrics: Metrics,
    written: HashMap<EventKey, StoredEvent>,
    /// By the uid of the object.
    buckets: HashMap<Arc<str>, TokenBucket>,
}

/// A stored event and its count.
struct StoredEvent {
    path: String,
    count: u64,
}

/// The token bucket of an object.
struct TokenBucket {
    left: f64,
    at: Instant,
}

impl Sender {
    async fn run(mut self, mut queue: mpsc::Receiver<Occurrence>) {
        while let Some(occurrence) = queue.recv().await {
            if !self.take_token(&occurrence.what.uid) {
                self.metrics.event_lost(self.component, Lost::Limit);
                continue;
            }
            if let Err(error) = self.send_with_retries(&occurrence).await {
                tracing::debug!(%error, event = %occurrence.event(self.component), "Failed to record an event");
                self.metrics.event_lost(self.component, Lost::Refused);
            }
        }
    }

    fn take_token(&mut self, uid: &Arc<str>) -> bool {
        let now = Instant::now();
        if self.buckets.len() >= REMEMBERED_MAX {
            self.buckets.retain(|_, bucket| bucket.now(now) < BURST);
        }
        if self.buckets.len() >= REMEMBERED_MAX {
            self.buckets.clear();
        }
        let bucket = self.buckets.entry(uid.clone()).or_insert(TokenBucket { left: BURST, at: now });
        let left = bucket.now(now);
        let may = left >= 1.0;
        *bucket = TokenBucket { left: if may { left - 1.0 } else { left }, at: now };
        may
    }

    /// Retries a few times while the server is unavailable.
    async fn send_with_retries(&mut self, occurrence: &Occurrence) -> Result<(), ApiError> {
        for attempt in 1..ATTEMPTS_MAX {
            match self.write(occurrence).await {
                Err(error) if error.code() == 0 || error.code() == 429 || error.code() >= 500 => {
                    tokio::time::sleep(BACKOFF.after(attempt - 1)).await;
                }
                result => return result,
            }
        }
        self.write(occurrence).await
    }

    async fn write(&mut self, occurrence: &Occurrence) -> Result<(), ApiError> {
        if let Some(written) = self.written.get_mut(&occurrence.what) {
            let count = written.count + 1;
            let patch = json!({"count": count, "lastTimestamp": object::write::stamp(occurrence.at)});
            match self.api.merge(&written.path, &patch).await {
                Ok(_) => {
                    written.count = count;
                    return Ok(());
                }
                // The stored event has expired: create a new one.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let events = Resource::new("v1", "Event", "events", true);
        let namespace = occurrence.event_namespace();
        let created = self.api.create(&events.collection(namespace), &occurrence.event(self.component)).await?;
        if self.written.len() >= REMEMBERED_MAX {
            self.written.clear();
        }
        let path = events.object(namespace, object::access::name(&created));
        self.written.insert(occurrence.what.clone(), StoredEvent { path, count: 1 });
        Ok(())
    }
}

impl TokenBucket {
    fn now(&self, now: Instant) -> f64 {
        (self.left + now.duration_since(self.at).as_secs_f64() / REFILL.as_secs_f64()).min(BURST)
    }
}

/// Replaces characters that names of some kinds may contain and names of events may not.
fn event_name(name: &str) -> String {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    name.chars().map(|c| if fits(c) { c } else { '-' }).collect::<String>().trim_matches(['-', '.']).to_owned()
}
