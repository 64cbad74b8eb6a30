//! Metrics that all controllers have: work queue, reconciles, caches, lost events, refused requests.

use crate::refusals::Refusals;
use bytes::Bytes;
use http::{Request, Response};
use kube::client::Body;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Controller {
    name: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Cached {
    name: &'static str,
    resource: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct LostEvent {
    name: &'static str,
    why: Lost,
}

/// Why an event was not stored.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelValue)]
pub enum Lost {
    /// The queue of events was full.
    Overflow,
    /// The rate limit of the object was exceeded.
    Limit,
    /// The server refused it or was unavailable.
    Refused,
}

/// Shared by all controllers of a process.
#[derive(Clone)]
pub struct Metrics {
    depth: Family<Controller, Gauge>,
    adds: Family<Controller, Counter>,
    retries: Family<Controller, Counter>,
    waits: Family<Controller, Histogram>,
    works: Family<Controller, Histogram>,
    duration: Family<Controller, Histogram>,
    errors: Family<Controller, Counter>,
    cached: Family<Cached, Gauge>,
    lost_events: Family<LostEvent, Counter>,
    refusals: Refusals,
}

/// The metrics of one controller's queue.
#[derive(Clone)]
pub struct QueueMetrics {
    pub depth: Gauge,
    pub adds: Counter,
    pub retries: Counter,
    /// How long keys were queued.
    pub waits: Histogram,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let seconds: fn() -> Histogram = || Histogram::new(BOUNDS_S);
        Metrics {
            depth: Family::default(),
            adds: Family::default(),
            retries: Family::default(),
            waits: Family::new_with_constructor(seconds),
            works: Family::new_with_constructor(seconds),
            duration: Family::new_with_constructor(seconds),
            errors: Family::default(),
            cached: Family::default(),
            lost_events: Family::default(),
            refusals: Refusals::default(),
        }
    }
}

/// Bounds of the buckets of a histogram of durations, in seconds.
pub const BOUNDS_S: [f64; 11] = [0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0];

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register("workqueue_depth", "Number of keys in a controller's queue", self.depth.clone());
        registry.register("workqueue_adds", "Keys that were added to a controller's queue", self.adds.clone());
        registry.register("workqueue_retries", "Keys that were retried after a failure", self.retries.clone());
        registry.register("workqueue_queue_duration_seconds", "Time that keys were queued", self.waits.clone());
        registry.register("workqueue_work_duration_seconds", "Duration of the work on a key", self.works.clone());
        registry.register("reconcile_duration_seconds", "Duration of one reconcile", self.duration.clone());
        registry.register("reconcile_errors", "Reconciles that failed and are retried", self.errors.clone());
        registry.register("controller_cache_objects", "Objects in a controller's caches", self.cached.clone());
        registry.register("controller_events_lost", "Events that were not stored, by reason", self.lost_events.clone());
        self.refusals.register(registry);
    }

    /// Returns a client for the controller that acts as this ServiceAccount. Refusals for lack of a
    /// permission are counted and reported.
    pub fn client<S, B>(&self, account: &str, service: S) -> kube::Client
    where
        S: tower::Service<Request<Body>, Response = Response<B>> + Send + 'static,
        S::Future: Send,
        S::Error: Into<tower::BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<tower::BoxError>,
    {
        self.refusals.client(account, service)
    }

    /// Like [`Metrics::client`], around an existing client.
    pub fn client_of(&self, account: &str, client: kube::Client) -> kube::Client {
        let send = move |request| {
            let client = client.clone();
            async move { client.send(request).await }
        };
        self.client(account, tower::service_fn(send))
    }

    /// The missing permissions that the clients of [`Metrics::client`] record.
    pub fn refusals(&self) -> Refusals {
        self.refusals.clone()
    }

    pub fn queue(&self, name: &'static str) -> QueueMetrics {
        let labels = Controller { name };
        QueueMetrics {
            depth: self.depth.get_or_create(&labels).clone(),
            adds: self.adds.get_or_create(&labels).clone(),
            retries: self.retries.get_or_create(&labels).clone(),
            waits: self.waits.get_or_create(&labels).clone(),
        }
    }

    pub fn reconciled(&self, name: &'static str, took: Duration, failed: bool) {
        let labels = Controller { name };
        self.works.get_or_create(&labels).observe(took.as_secs_f64());
        self.duration.get_or_create(&labels).observe(took.as_secs_f64());
        if failed {
            self.errors.get_or_create(&labels).inc();
        }
    }

    /// The number of objects of a resource in a controller's cache.
    pub fn cached(&self, name: &'static str, resource: &str) -> Gauge {
        self.cached.get_or_create(&Cached { name, resource: resource.to_owned() }).clone()
    }

    pub fn event_lost(&self, name: &'static str, why: Lost) {
        self.lost_events.get_or_create(&LostEvent { name, why }).inc();
    }
}
