//! Figures about controllers.

use crate::states::States;
use prometheus_client::encoding::EncodeLabelSet;
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

/// Shared by all controllers of a process.
#[derive(Clone)]
pub struct Metrics {
    depth: Family<Controller, Gauge>,
    duration: Family<Controller, Histogram>,
    errors: Family<Controller, Counter>,
    cached: Family<Cached, Gauge>,
    /// What is said of objects, where a part keeps count of them.
    pub(crate) states: States,
}

impl Default for Metrics {
    fn default() -> Metrics {
        const BOUNDS_S: [f64; 10] = [0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0];
        Metrics {
            depth: Family::default(),
            duration: Family::new_with_constructor(|| Histogram::new(BOUNDS_S)),
            errors: Family::default(),
            cached: Family::default(),
            states: States::default(),
        }
    }
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        registry.register("workqueue_depth", "Keys that wait in a controller's queue", self.depth.clone());
        registry.register("reconcile_duration_seconds", "Time a controller takes for one key", self.duration.clone());
        registry.register("reconcile_errors", "Reconciliations that failed and come back", self.errors.clone());
        registry.register("controller_cache_objects", "Objects that a controller remembers", self.cached.clone());
        registry.register_collector(Box::new(self.states.clone()));
    }
    pub fn depth(&self, name: &'static str, depth: usize) {
        self.depth.get_or_create(&Controller { name }).set(i64::try_from(depth).unwrap_or(i64::MAX));
    }
    /// How many objects of a resource a controller remembers.
    pub fn cached(&self, name: &'static str, resource: &str) -> Gauge {
        self.cached.get_or_create(&Cached { name, resource: resource.to_owned() }).clone()
    }
    pub fn reconciled(&self, name: &'static str, took: Duration, failed: bool) {
        self.duration.get_or_create(&Controller { name }).observe(took.as_secs_f64());
        if failed {
            self.errors.get_or_create(&Controller { name }).inc();
        }
    }
}
