//! The pod garbage collector's metrics, under upstream's names.

use plan::podgc::Reason;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

#[derive(Clone, Default, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Removal {
    namespace: String,
    reason: &'static str,
}

#[derive(Clone, Default, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Detachment {
    reason: &'static str,
}

/// Clones share the counters.
#[derive(Clone, Default)]
pub struct Figures {
    removals: Family<Removal, Counter>,
    errors: Family<Removal, Counter>,
    detachments: Family<Detachment, Counter>,
}

impl Figures {
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "pod_gc_collector_force_delete_pods",
            "Pods that the pod garbage collector tried to delete by force, by reason",
            self.removals.clone(),
        );
        registry.register(
            "pod_gc_collector_force_delete_pod_errors",
            "Attempts of the pod garbage collector to delete a pod that failed, by reason",
            self.errors.clone(),
        );
        registry.register(
            "attachdetach_controller_forced_detaches",
            "VolumeAttachments that were deleted because their node is lost, by reason",
            self.detachments.clone(),
        );
    }

    /// See `crate::Metrics::with_samples`.
    pub(crate) fn add_samples(&self) {
        for family in [&self.removals, &self.errors] {
            drop(family.get_or_create(&Removal::default()));
        }
        drop(self.detachments.get_or_create(&Detachment::default()));
    }

    pub fn removed(&self, namespace: &str, reason: Reason, failed: bool) {
        let labels = Removal { namespace: namespace.to_owned(), reason: reason.label() };
        self.removals.get_or_create(&labels).inc();
        if failed {
            self.errors.get_or_create(&labels).inc();
        }
    }

    pub fn detached(&self, reason: Reason) {
        self.detachments.get_or_create(&Detachment { reason: reason.label() }).inc();
    }
}
