//! Metrics about calls to drivers, with the names that the sidecars use.

use crate::code;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;
use tonic::Code;

#[derive(Clone, Default, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Labels {
    driver_name: String,
    method_name: &'static str,
    grpc_status_code: &'static str,
}

/// Shared by all drivers of a process.
#[derive(Clone, Debug)]
pub struct Metrics {
    operations: Family<Labels, Histogram, fn() -> Histogram>,
}

/// The buckets that the sidecars use.
const BOUNDS_S: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics { operations: Family::new_with_constructor(|| Histogram::new(BOUNDS_S)) }
    }
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        let help = "Container Storage Interface operation duration with gRPC error code status total";
        registry.register("csi_sidecar_operations_seconds", help, self.operations.clone());
    }

    /// Gives each family a sample without label values: families without samples are not encoded.
    pub fn add_samples(&self) {
        drop(self.operations.get_or_create(&Labels::default()));
    }

    /// The first call to a driver asks for its name; its label is then empty.
    pub(super) fn called(&self, driver: Option<&str>, method_name: &'static str, code: Code, took: Duration) {
        let driver_name = driver.unwrap_or("unknown-driver").to_owned();
        let labels = Labels { driver_name, method_name, grpc_status_code: code::name(code) };
        self.operations.get_or_create(&labels).observe(took.as_secs_f64());
    }
}
