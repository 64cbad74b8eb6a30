//! Metrics of the controllers.

use crate::state_metrics::StateMetrics;
use kit::BOUNDS_S;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;

/// The labels of a set's metrics.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct SetLabels {
    pub statefulset_namespace: String,
    pub statefulset_name: String,
    pub pod_management_policy: String,
}

/// Shared by all controllers of a process.
#[derive(Clone)]
pub struct Metrics {
    /// The metrics that every controller has.
    pub kit: kit::Metrics,
    max_unavailable: Family<SetLabels, Gauge>,
    unavailable: Family<SetLabels, Gauge>,
    set_delay: Histogram,
    pub csi: crate::csi::Metrics,
    /// The tables of the `state-metrics` controller, while it runs.
    pub(crate) state_metrics: StateMetrics,
    pub(crate) volumes: crate::binder::Figures,
    pub(crate) pod_gc: crate::podgc::Figures,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            kit: kit::Metrics::default(),
            max_unavailable: Family::default(),
            unavailable: Family::default(),
            set_delay: Histogram::new(BOUNDS_S),
            csi: crate::csi::Metrics::default(),
            state_metrics: StateMetrics::default(),
            volumes: crate::binder::Figures::default(),
            pod_gc: crate::podgc::Figures::default(),
        }
    }
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        self.volumes.register(registry);
        self.pod_gc.register(registry);
        self.kit.register(registry);
        registry.register(
            "statefulset_controller_statefulset_max_unavailable",
            "How many replicas of a StatefulSet may be unavailable during a rolling update",
            self.max_unavailable.clone(),
        );
        registry.register(
            "statefulset_controller_statefulset_unavailable_replicas",
            "How many replicas of a StatefulSet are unavailable, at its last rolling update",
            self.unavailable.clone(),
        );
        registry.register(
            "statefulset_reconcile_delay",
            "Seconds from receiving a change of a StatefulSet's spec until its status has the new observedGeneration",
            self.set_delay.clone(),
        );
        self.csi.register(registry);
        registry.register_collector(Box::new(self.state_metrics.clone()));
    }

    /// Sets the metrics of a set's update budget; a `None` keeps the last value.
    pub fn set_budget(&self, set: &SetLabels, max: Option<i64>, unavailable: Option<i64>) {
        for (figures, figure) in [(&self.max_unavailable, max), (&self.unavailable, unavailable)] {
            if let Some(figure) = figure {
                figures.get_or_create(set).set(figure);
            }
        }
    }

    pub fn set_gone(&self, set: &SetLabels) {
        self.max_unavailable.remove(set);
        self.unavailable.remove(set);
    }

    pub fn set_observed(&self, delay: Duration) {
        self.set_delay.observe(delay.as_secs_f64());
    }
}
