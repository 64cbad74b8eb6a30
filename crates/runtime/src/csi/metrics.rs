//! Metrics about CSI volumes, with the names that the sidecars use.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;

#[derive(Clone, Default, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Provisioned {
    class: String,
    source: &'static str,
}

#[derive(Clone, Default, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Deleted {
    class: String,
}

#[derive(Clone, Default, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Changed {
    driver_name: String,
    grpc_status_code: String,
}

#[derive(Clone, Default, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfDriver {
    driver_name: String,
}

/// Shared by all drivers of a process.
#[derive(Clone)]
pub struct Metrics {
    /// Passed to the CSI client, which measures each call.
    pub calls: csi::Metrics,
    provisions: Family<Provisioned, Counter>,
    provision_failures: Family<Provisioned, Counter>,
    provision_seconds: Family<Provisioned, Histogram>,
    deletions: Family<Deleted, Counter>,
    deletion_failures: Family<Deleted, Counter>,
    deletion_seconds: Family<Deleted, Histogram>,
    expand_failures: Family<Changed, Counter>,
    modify_failures: Family<Changed, Counter>,
    pub capacities_wanted: Gauge,
    pub capacities_current: Gauge,
    pub capacities_obsolete: Gauge,
    /// The number of journal entries.
    pub open: Gauge,
    volumes_data_missing: Family<OfDriver, Gauge>,
}

/// The default buckets of the sidecars' client library.
const BOUNDS_S: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            calls: csi::Metrics::default(),
            provisions: Family::default(),
            provision_failures: Family::default(),
            provision_seconds: Family::new_with_constructor(|| Histogram::new(BOUNDS_S)),
            deletions: Family::default(),
            deletion_failures: Family::default(),
            deletion_seconds: Family::new_with_constructor(|| Histogram::new(BOUNDS_S)),
            expand_failures: Family::default(),
            modify_failures: Family::default(),
            capacities_wanted: Gauge::default(),
            capacities_current: Gauge::default(),
            capacities_obsolete: Gauge::default(),
            open: Gauge::default(),
            volumes_data_missing: Family::default(),
        }
    }
}

impl Metrics {
    pub fn register(&self, registry: &mut Registry) {
        self.calls.register(registry);
        // The sidecars prefix each of these names with `controller_`; KEP-2644 does not. Both are exported.
        for prefix in ["controller_", ""] {
            let mut counter = |name: &str, help: &str, family: &Family<Provisioned, Counter>| {
                registry.register(format!("{prefix}persistentvolumeclaim_{name}"), help, family.clone());
            };
            counter("provision", "Volumes provisioned", &self.provisions);
            counter("provision_failed", "Attempts to provision a volume that failed", &self.provision_failures);
            let name = format!("{prefix}persistentvolumeclaim_provision_duration_seconds");
            registry.register(
                name,
                "Seconds from the first attempt until the volume is provisioned",
                self.provision_seconds.clone(),
            );
            let mut counter = |name: &str, help: &str, family: &Family<Deleted, Counter>| {
                registry.register(format!("{prefix}persistentvolume_{name}"), help, family.clone());
            };
            counter("delete", "Volumes deleted", &self.deletions);
            counter("delete_failed", "Attempts to delete a volume that failed", &self.deletion_failures);
            let name = format!("{prefix}persistentvolume_delete_duration_seconds");
            registry.register(name, "Seconds that the deletion of a volume took", self.deletion_seconds.clone());
        }
        let help = "Attempts to expand a volume that failed";
        registry.register("controller_expand_volume_errors", help, self.expand_failures.clone());
        let help = "Attempts to modify a volume that failed";
        registry.register("controller_modify_volume_errors", help, self.modify_failures.clone());
        let help = "Volumes whose data is missing at their driver";
        registry.register("csi_volumes_data_missing", help, self.volumes_data_missing.clone());
        for (name, help, gauge) in [
            ("csistoragecapacities_desired_goal", "Capacity objects that should exist", &self.capacities_wanted),
            (
                "csistoragecapacities_desired_current",
                "Capacity objects that exist and are current",
                &self.capacities_current,
            ),
            ("csistoragecapacities_obsolete", "Capacity objects that must be deleted", &self.capacities_obsolete),
            ("csi_journal_entries", "Calls to CSI drivers whose outcome is not known yet", &self.open),
        ] {
            registry.register(name, help, gauge.clone());
        }
    }

    /// See `crate::Metrics::with_samples`.
    pub(crate) fn add_samples(&self) {
        self.calls.add_samples();
        for family in [&self.provisions, &self.provision_failures] {
            drop(family.get_or_create(&Provisioned::default()));
        }
        drop(self.provision_seconds.get_or_create(&Provisioned::default()));
        for family in [&self.deletions, &self.deletion_failures] {
            drop(family.get_or_create(&Deleted::default()));
        }
        drop(self.deletion_seconds.get_or_create(&Deleted::default()));
        for family in [&self.expand_failures, &self.modify_failures] {
            drop(family.get_or_create(&Changed::default()));
        }
        drop(self.volumes_data_missing.get_or_create(&OfDriver::default()));
    }

    /// `took`: the time since the first attempt.
    pub fn provisioned(&self, class: &str, is_copy: bool, took: Duration) {
        let labels = labels(class, is_copy);
        self.provisions.get_or_create(&labels).inc();
        self.provision_seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }

    pub fn provision_failed(&self, class: &str, is_copy: bool) {
        self.provision_failures.get_or_create(&labels(class, is_copy)).inc();
    }

    pub fn deleted(&self, class: &str, took: Duration) {
        let labels = Deleted { class: class.to_owned() };
        self.deletions.get_or_create(&labels).inc();
        self.deletion_seconds.get_or_create(&labels).observe(took.as_secs_f64());
    }

    pub fn deletion_failed(&self, class: &str) {
        self.deletion_failures.get_or_create(&Deleted { class: class.to_owned() }).inc();
    }

    pub fn data_missing(&self, driver: &str, volumes: usize) {
        let labels = OfDriver { driver_name: driver.to_owned() };
        self.volumes_data_missing.get_or_create(&labels).set(i64::try_from(volumes).unwrap_or(i64::MAX));
    }

    pub fn expansion_failed(&self, driver: &str, failure: &plan::csi::Failure) {
        self.expand_failures.get_or_create(&changed(driver, failure)).inc();
    }

    pub fn modification_failed(&self, driver: &str, failure: &plan::csi::Failure) {
        self.modify_failures.get_or_create(&changed(driver, failure)).inc();
    }
}

fn labels(class: &str, is_copy: bool) -> Provisioned {
    Provisioned { class: class.to_owned(), source: if is_copy { "PersistentVolumeClaim" } else { "" } }
}

fn changed(driver: &str, failure: &plan::csi::Failure) -> Changed {
    Changed { driver_name: driver.to_owned(), grpc_status_code: failure.code.to_string() }
}
