//! Events: what a controller tells people. The same thing said again counts up instead of piling up.
//!
//! Telling never holds up or fails the work that it is about: what is said is queued and written down by a task of its own. An object
//! that is talked about all the time is talked about less, as Kubernetes' own clients do, so that no loop floods the server.

use crate::api::{Api, ApiError, Resource};
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

/// What may wait to be written down. Events are written one after the other, so that when much happens they come later, instead of
/// slowing down what they are about.
const WAITING_MAX: usize = 8192;
/// How many different things and objects are remembered; beyond that the memory starts over.
const REMEMBERED_MAX: usize = 4096;
/// Each object may be talked about so often at once,
const BURST: f64 = 25.0;
/// and then once in this time.
const REFILL: Duration = Duration::from_secs(300);
/// A server that is out of order is tried this often, after pauses that double.
const ATTEMPTS_MAX: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// After the end, what was said before is still written down for so long.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(2);

/// Tells people, in the name of one controller.
#[derive(Clone)]
pub struct Events {
    said: mpsc::Sender<Said>,
    component: &'static str,
    metrics: Metrics,
    clock: Clock,
}

/// What an event is about.
pub struct About<'a> {
    pub resource: &'a Resource,
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
}

impl Events {
    /// Starts what writes the events down, among `tasks`: it ends when nobody is left who could say anything, and at the latest a
    /// while after the shutdown.
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

/// It becomes an event only if it is written down: what is said too often is not.
struct Said {
    what: What,
    resource: Resource,
    namespace: String,
    name: String,
    kind: &'static str,
    at: Timestamp,
}

impl Said {
    /// Events about what is in no namespace are in this one.
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

/// Writes down what is said.
struct Scribe {
    api: Api,
    component: &'static str,
    metrics: Metrics,
    written: HashMap<What, Written>,
    /// By the uid of the object.
    allowances: HashMap<Arc<str>, Allowance>,
}

/// An event that is there, and how often it was said.
struct Written {
    path: String,
    count: u64,
}

/// How often an object may still be talked about.
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
                tracing::debug!(%error, event = %said.event(self.component), "an event could not be told");
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

    /// Tries again while the server is out of order, for a while.
    async fn persist(&mut self, said: &Said) -> Result<(), ApiError> {
        let mut pause = FIRST_PAUSE;
        for _ in 1..ATTEMPTS_MAX {
            match self.write(said).await {
                Err(error) if error.code() == 0 || error.code() == 429 || error.code() >= 500 => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
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
                // The event expired meanwhile: say it anew.
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

/// Names of some kinds hold what names of events must not.
fn event_name(name: &str) -> String {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    name.chars().map(|c| if fits(c) { c } else { '-' }).collect::<String>().trim_matches(['-', '.']).to_owned()
}
