//! Records Kubernetes events. A repeated event increases the count of the first one.
//!
//! Recording never delays or fails a reconcile: events are queued, and a task of its own sends them. Each
//! object has a token bucket, as in client-go, so that a loop cannot flood the server.

use crate::api::{Api, ApiError, Resource};
use crate::backoff::Backoff;
use crate::controllers::Clock;
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
    said: mpsc::Sender<Said>,
    component: &'static str,
    metrics: Metrics,
    clock: Clock,
}

/// The object of an event.
pub struct About<'a> {
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
        let (sender, said) = mpsc::channel(WAITING_MAX);
        let scribe = Scribe {
            api: api.clone(),
            component,
            metrics: metrics.clone(),
            written: HashMap::new(),
            allowances: HashMap::new(),
        };
        let shutdown = shutdown.clone();
        tasks.spawn(async move {
            let deadline = async {
                shutdown.cancelled().await;
                tokio::time::sleep(FLUSH_TIME_MAX).await;
            };
            tokio::select! {
                biased;
                () = scribe.write_down(said) => {}
                () = deadline => {}
            }
        });
        Events { said: sender, component, metrics: metrics.clone(), clock: clock.clone() }
    }

    pub fn warn(&self, resource: &Resource, place: &Place, uid: &str, reason: &'static str, message: &str) {
        let about = About { resource, namespace: &place.namespace, name: &place.name, uid };
        self.say(&about, "Warning", reason, message);
    }

    pub fn say(&self, about: &About<'_>, kind: &'static str, reason: &'static str, message: &str) {
        let said = Said {
            what: What { uid: about.uid.into(), reason, message: message.to_owned() },
            resource: about.resource.clone(),
            namespace: about.namespace.to_owned(),
            name: about.name.to_owned(),
            kind,
            at: (self.clock)(),
        };
        if self.said.try_send(said).is_err() {
            self.metrics.event_lost(self.component, Lost::Overflow);
        }
    }
}

/// An occurrence to record; the rate limit may drop it.
struct Said {
    what: What,
    resource: Resource,
    namespace: String,
    name: String,
    kind: &'static str,
    at: Timestamp,
}

impl Said {
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
struct What {
    uid: Arc<str>,
    reason: &'static str,
    message: String,
}

/// Sends the queued events.
struct Scribe {
    api: Api,
    component: &'static str,
    metrics: Metrics,
    written: HashMap<What, Written>,
    /// By the uid of the object.
    allowances: HashMap<Arc<str>, Allowance>,
}

/// A stored event and its count.
struct Written {
    path: String,
    count: u64,
}

/// The token bucket of an object.
struct Allowance {
    left: f64,
    at: Instant,
}

impl Scribe {
    async fn write_down(mut self, mut all_said: mpsc::Receiver<Said>) {
        while let Some(said) = all_said.recv().await {
            if !self.may_say(&said.what.uid) {
                self.metrics.event_lost(self.component, Lost::Limit);
                continue;
            }
            if let Err(error) = self.persist(&said).await {
                tracing::debug!(%error, event = %said.event(self.component), "Failed to record an event");
                self.metrics.event_lost(self.component, Lost::Refused);
            }
        }
    }

    fn may_say(&mut self, uid: &Arc<str>) -> bool {
        let now = Instant::now();
        if self.allowances.len() >= REMEMBERED_MAX {
            self.allowances.retain(|_, allowance| allowance.now(now) < BURST);
        }
        if self.allowances.len() >= REMEMBERED_MAX {
            self.allowances.clear();
        }
        let allowance = self.allowances.entry(uid.clone()).or_insert(Allowance { left: BURST, at: now });
        let left = allowance.now(now);
        let may = left >= 1.0;
        *allowance = Allowance { left: if may { left - 1.0 } else { left }, at: now };
        may
    }

    /// Retries a few times while the server is unavailable.
    async fn persist(&mut self, said: &Said) -> Result<(), ApiError> {
        for attempt in 1..ATTEMPTS_MAX {
            match self.write(said).await {
                Err(error) if error.code() == 0 || error.code() == 429 || error.code() >= 500 => {
                    tokio::time::sleep(BACKOFF.after(attempt - 1)).await;
                }
                result => return result,
            }
        }
        self.write(said).await
    }

    async fn write(&mut self, said: &Said) -> Result<(), ApiError> {
        if let Some(written) = self.written.get_mut(&said.what) {
            let count = written.count + 1;
            let patch = json!({"count": count, "lastTimestamp": object::write::stamp(said.at)});
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
        let namespace = said.event_namespace();
        let created = self.api.create(&events.collection(namespace), &said.event(self.component)).await?;
        if self.written.len() >= REMEMBERED_MAX {
            self.written.clear();
        }
        let path = events.object(namespace, object::access::name(&created));
        self.written.insert(said.what.clone(), Written { path, count: 1 });
        Ok(())
    }
}

impl Allowance {
    fn now(&self, now: Instant) -> f64 {
        (self.left + now.duration_since(self.at).as_secs_f64() / REFILL.as_secs_f64()).min(BURST)
    }
}

/// Replaces characters that names of some kinds may contain and names of events may not.
fn event_name(name: &str) -> String {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    name.chars().map(|c| if fits(c) { c } else { '-' }).collect::<String>().trim_matches(['-', '.']).to_owned()
}
