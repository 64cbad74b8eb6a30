//! Metrics of the server.

use crate::exposition::Format;
use crate::process::Process;
use crate::request::Verb;
use object::Kind;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::Store;

/// Upper bounds of the latency histogram, in seconds.
const BOUNDS_S: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Request {
    verb: &'static str,
    group: String,
    resource: String,
    code: u16,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Latency {
    verb: &'static str,
    group: String,
    resource: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Resource {
    group: String,
    resource: String,
}

pub use crate::process::resident_bytes;

pub struct Metrics {
    registry: Mutex<Registry>,
    store: Arc<dyn Store>,
    requests: Family<Request, Counter>,
    latency: Family<Latency, Histogram>,
    watches: Family<Resource, Gauge>,
    connections_closed: Counter,
    revision: Gauge,
    oldest: Gauge,
    disk_bytes: Gauge,
    out_of_space: Gauge,
    objects: Family<Resource, Gauge>,
}

impl Metrics {
    pub fn new(store: Arc<dyn Store>) -> Metrics {
        let mut registry = Registry::default();
        let requests = Family::<Request, Counter>::default();
        registry.register("apiserver_request", "Requests by verb, resource and HTTP code", requests.clone());
        let latency = Family::<Latency, Histogram>::new_with_constructor(|| Histogram::new(BOUNDS_S));
        registry.register(
            "apiserver_request_duration_seconds",
            "Time to respond to a request, without watches",
            latency.clone(),
        );
        let watches = Family::<Resource, Gauge>::default();
        registry.register("apiserver_longrunning_requests", "Open watches by resource", watches.clone());
        let connections_closed = Counter::default();
        registry.register(
            "mainstay_unauthenticated_connections_closed",
            "Unauthenticated connections closed to make room for new ones",
            connections_closed.clone(),
        );
        let revision = Gauge::default();
        registry.register("mainstay_store_revision", "Newest revision of the store", revision.clone());
        let oldest = Gauge::default();
        registry.register(
            "mainstay_store_oldest_revision",
            "Oldest revision that lists and watches may request",
            oldest.clone(),
        );
        let disk_bytes = Gauge::default();
        registry.register("apiserver_storage_size_bytes", "Size of the store on disk", disk_bytes.clone());
        let out_of_space = Gauge::default();
        registry.register(
            "mainstay_store_out_of_space",
            "1 while the store has no space for writes",
            out_of_space.clone(),
        );
        let objects = Family::<Resource, Gauge>::default();
        registry.register("apiserver_storage_objects", "Stored objects by resource", objects.clone());
        registry.register_collector(Box::new(Process));
        let registry = Mutex::new(registry);
        Metrics {
            registry,
            store,
            requests,
            latency,
            watches,
            connections_closed,
            revision,
            oldest,
            disk_bytes,
            out_of_space,
            objects,
        }
    }

    /// Lets another component of the process register its metrics.
    pub fn extend(&self, register: impl FnOnce(&mut Registry)) {
        register(&mut self.registry.lock().expect("no panic happens under this lock"));
    }

    pub fn observe(&self, label: RequestLabel, code: u16, took: Duration) {
        let RequestLabel { verb, group, resource, user: _ } = label;
        if verb != "watch" {
            let latency = Latency { verb, group: group.clone(), resource: resource.clone() };
            self.latency.get_or_create(&latency).observe(took.as_secs_f64());
        }
        self.requests.get_or_create(&Request { verb, group, resource, code }).inc();
    }

    pub fn watch_opened(&self, kind: &Kind) -> OpenWatch {
        let resource = Resource { group: kind.group.to_string(), resource: kind.plural.to_string() };
        let gauge = self.watches.get_or_create(&resource).clone();
        gauge.inc();
        OpenWatch(gauge)
    }

    pub fn connections_closed(&self, count: u64) {
        self.connections_closed.inc_by(count);
    }

    /// The metrics page for Prometheus.
    pub fn page(&self, kinds: &object::Kinds, format: Format) -> Result<String, std::fmt::Error> {
        let as_gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.revision.set(as_gauge(self.store.revision()));
        self.oldest.set(as_gauge(self.store.oldest()));
        self.disk_bytes.set(as_gauge(self.store.disk_bytes()));
        self.out_of_space.set(i64::from(self.store.out_of_space().is_some()));
        for kind in kinds.iter().filter(|kind| kind.stored) {
            let resource = Resource { group: kind.group.to_string(), resource: kind.plural.to_string() };
            let count = self.store.count(&crate::object_store::prefix(kind, ""));
            self.objects.get_or_create(&resource).set(as_gauge(count));
        }
        format.write(&self.registry.lock().expect("no panic happens under this lock"))
    }
}

/// Counts an open watch until it is dropped.
pub struct OpenWatch(Gauge);

impl Drop for OpenWatch {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Labels of a request's metrics and log line.
pub struct RequestLabel {
    verb: &'static str,
    group: String,
    resource: String,
    /// Empty before authentication, and when request logging is off.
    user: String,
}

impl RequestLabel {
    pub fn new(method: &http::Method) -> RequestLabel {
        let verb = match method.as_str() {
            "GET" => "get",
            "POST" => "create",
            "PUT" => "update",
            "PATCH" => "patch",
            "DELETE" => "delete",
            _ => "other",
        };
        RequestLabel { verb, group: String::new(), resource: String::new(), user: String::new() }
    }
    pub fn resource(&mut self, group: &str, resource: &str) {
        self.group = group.to_owned();
        self.resource = resource.to_owned();
    }
    pub fn user(&mut self, name: &str) {
        // Used only in the request log.
        if tracing::enabled!(target: "server::requests", tracing::Level::DEBUG) {
            self.user = name.to_owned();
        }
    }
    /// Writes one line of the request log.
    pub fn log(&self, path: &str, code: u16, duration: Duration) {
        let duration_ms = duration.as_secs_f64() * 1000.0;
        tracing::debug!(target: "server::requests", verb = self.verb, path, user = self.user, code, duration_ms, "request");
    }
    pub fn verb(&mut self, verb: Verb) {
        self.verb = verb.as_str();
    }
}
