//! Figures about volumes and claims, under the names that Kubernetes' controller manager gives them.

use kit::cache::{Key, key};
use object::Value;
use object::access::{Access, uid};
use object::kinds::volumes::class_of;
use plan::bind::{PROVISIONED_BY, is_bound};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Made {
    plugin_name: String,
    volume_mode: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfClass {
    storage_class: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfNamespace {
    namespace: String,
    storage_class: String,
    volume_attributes_class: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Operation {
    plugin_name: String,
    operation_name: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OwnOperation {
    volume_plugin: &'static str,
    operation_name: &'static str,
    status: &'static str,
    migrated: &'static str,
}

/// Shared by all who count.
#[derive(Clone)]
pub struct Figures {
    volumes: Family<Made, Gauge>,
    bound_volumes: Family<OfClass, Gauge>,
    unbound_volumes: Family<OfClass, Gauge>,
    bound_claims: Family<OfNamespace, Gauge>,
    unbound_claims: Family<OfNamespace, Gauge>,
    operations: Family<Operation, Histogram>,
    errors: Family<Operation, Counter>,
    /// The same under an older name. That name ends like no counter's, hence a gauge.
    older_errors: Family<Operation, Gauge>,
    own_operations: Family<OwnOperation, Histogram>,
    binds: Histogram,
    retroactive: Counter,
    retroactive_errors: Counter,
    started: Arc<Mutex<Started>>,
}

/// What is not over yet.
#[derive(Default)]
struct Started {
    /// Claims that are not bound: since when they are known, and who was asked to make a volume since when.
    claims: HashMap<Key, Unbound>,
    /// Volumes that are being deleted: by whom, since when.
    deletions: HashMap<Key, (String, Instant)>,
}

struct Unbound {
    uid: String,
    seen: Instant,
    asked: Option<(String, Instant)>,
}

impl Default for Figures {
    fn default() -> Figures {
        let seconds: fn() -> Histogram = || {
            Histogram::new([
                0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0,
            ])
        };
        Figures {
            volumes: Family::default(),
            bound_volumes: Family::default(),
            unbound_volumes: Family::default(),
            bound_claims: Family::default(),
            unbound_claims: Family::default(),
            operations: Family::new_with_constructor(seconds),
            errors: Family::default(),
            older_errors: Family::default(),
            own_operations: Family::new_with_constructor(seconds),
            binds: seconds(),
            retroactive: Counter::default(),
            retroactive_errors: Counter::default(),
            started: Arc::default(),
        }
    }
}

impl Figures {
    pub fn register(&self, registry: &mut Registry) {
        let volumes = "pv_collector_total_pv_count";
        registry.register(volumes, "Volumes, by what makes them and their mode", self.volumes.clone());
        registry.register("pv_collector_bound_pv_count", "Bound volumes of a class", self.bound_volumes.clone());
        let unbound = "pv_collector_unbound_pv_count";
        registry.register(unbound, "Volumes of a class that are not bound", self.unbound_volumes.clone());
        registry.register("pv_collector_bound_pvc_count", "Bound claims", self.bound_claims.clone());
        registry.register("pv_collector_unbound_pvc_count", "Claims that are not bound", self.unbound_claims.clone());
        registry.register(
            "volume_operation_total_seconds",
            "Seconds from a volume being asked for until its claim is bound (provision), and from a volume being reclaimed until it \
             is gone (delete)",
            self.operations.clone(),
        );
        let help = "Operations on volumes that failed";
        registry.register("volume_operation_errors", help, self.errors.clone());
        registry.register("volume_operation_total_errors", help, self.older_errors.clone());
        let help = "Seconds that operations of our own plugins took";
        registry.register("storage_operation_duration_seconds", help, self.own_operations.clone());
        registry.register(
            "persistentvolumeclaim_bind_duration_seconds",
            "Seconds from a claim being seen until it is bound",
            self.binds.clone(),
        );
        let help = "Claims that were to get the default class after their creation";
        registry.register("retroactive_storageclass", help, self.retroactive.clone());
        let help = "Claims that did not get the default class although they should";
        registry.register("retroactive_storageclass_errors", help, self.retroactive_errors.clone());
    }

    /// Counting begins anew: whoever counted before is gone.
    pub fn start_over(&self) {
        self.volumes.clear();
        self.bound_volumes.clear();
        self.unbound_volumes.clear();
        self.bound_claims.clear();
        self.unbound_claims.clear();
        *self.started() = Started::default();
    }

    pub fn volume_changed(&self, before: Option<&Value>, after: Option<&Value>) {
        let counted = |volume: &Value| {
            let made =
                Made { plugin_name: plugin(volume), volume_mode: volume.text(&["spec", "volumeMode"]).to_owned() };
            let class = OfClass { storage_class: class_of(volume).unwrap_or("").to_owned() };
            (made, class, volume.text(&["status", "phase"]) == "Bound")
        };
        let (before, after) = (before.map(counted), after.map(counted));
        if before == after {
            return;
        }
        // One at a time: what is counted down to nothing is removed.
        let _counting = self.started();
        for (counted, step) in [(before, -1), (after, 1)] {
            let Some((made, class, is_bound)) = counted else { continue };
            let of_class = if is_bound { &self.bound_volumes } else { &self.unbound_volumes };
            count(&self.volumes, &made, step);
            count(of_class, &class, step);
        }
    }

    pub fn claim_changed(&self, before: Option<&Value>, after: Option<&Value>) {
        let counted = |claim: &Value| {
            let labels = OfNamespace {
                namespace: claim.text(&["metadata", "namespace"]).to_owned(),
                storage_class: class_of(claim).unwrap_or("").to_owned(),
                volume_attributes_class: claim.text(&["spec", "volumeAttributesClassName"]).to_owned(),
            };
            (labels, claim.text(&["status", "phase"]) == "Bound")
        };
        let (before, after) = (before.map(counted), after.map(counted));
        if before == after {
            return;
        }
        let _counting = self.started();
        for (counted, step) in [(before, -1), (after, 1)] {
            let Some((labels, is_bound)) = counted else { continue };
            count(if is_bound { &self.bound_claims } else { &self.unbound_claims }, &labels, step);
        }
    }

    /// A claim has its turn: the clock runs while it is not bound.
    pub fn claim_seen(&self, claim: &Value) {
        let mut started = self.started();
        let key = key(claim);
        if is_bound(claim) {
            started.claims.remove(&key);
            return;
        }
        let known = started.claims.get(&key).is_some_and(|known| known.uid == uid(claim));
        if !known {
            started.claims.insert(key, Unbound { uid: uid(claim).to_owned(), seen: Instant::now(), asked: None });
        }
    }

    pub fn asked_for_volume(&self, claim: &Value, provisioner: &str) {
        if let Some(unbound) = self.started().claims.get_mut(&key(claim)) {
            unbound.asked.get_or_insert_with(|| (provisioner.to_owned(), Instant::now()));
        }
    }

    pub fn claim_bound(&self, claim: &Value) {
        let Some(unbound) = self.started().claims.remove(&key(claim)) else { return };
        self.binds.observe(unbound.seen.elapsed().as_secs_f64());
        if let Some((plugin_name, since)) = unbound.asked {
            let operation = Operation { plugin_name, operation_name: "provision" };
            self.operations.get_or_create(&operation).observe(since.elapsed().as_secs_f64());
        }
    }

    pub fn claim_gone(&self, key: &Key) {
        self.started().claims.remove(key);
    }

    pub fn deletion_begins(&self, volume: &Value, plugin_name: String) {
        self.started().deletions.entry(key(volume)).or_insert_with(|| (plugin_name, Instant::now()));
    }

    pub fn volume_gone(&self, key: &Key) {
        let Some((plugin_name, since)) = self.started().deletions.remove(key) else { return };
        let operation = Operation { plugin_name, operation_name: "delete" };
        self.operations.get_or_create(&operation).observe(since.elapsed().as_secs_f64());
    }

    /// One of our own plugins did something, or failed to.
    pub fn own_operation(&self, name: &'static str, took: Duration, succeeded: bool) {
        let status = if succeeded { "success" } else { "fail-unknown" };
        let plugin = plan::reclaim::HOST_PATH;
        let labels = OwnOperation { volume_plugin: plugin, operation_name: name, status, migrated: "false" };
        self.own_operations.get_or_create(&labels).observe(took.as_secs_f64());
        if !succeeded {
            let operation_name = name.strip_prefix("volume_").unwrap_or(name);
            let labels = Operation { plugin_name: plugin.to_owned(), operation_name };
            self.errors.get_or_create(&labels).inc();
            self.older_errors.get_or_create(&labels).inc();
        }
    }

    pub fn assigned_default(&self, succeeded: bool) {
        self.retroactive.inc();
        if !succeeded {
            self.retroactive_errors.inc();
        }
    }

    fn started(&self) -> MutexGuard<'_, Started> {
        self.started.lock().expect("no panic happens under this lock")
    }
}

/// A label that nobody bears any more goes: namespaces and classes come and go.
fn count<L: Clone + std::hash::Hash + Eq>(family: &Family<L, Gauge>, labels: &L, step: i64) {
    let left = family.get_or_create(labels).inc_by(step) + step;
    if left == 0 {
        family.remove(labels);
    }
}

/// What makes and deletes a volume: who made it, or else its source.
fn plugin(volume: &Value) -> String {
    let by = volume.text(&["metadata", "annotations", PROVISIONED_BY]);
    if !by.is_empty() {
        return by.to_owned();
    }
    let driver = volume.text(&["spec", "csi", "driver"]);
    if !driver.is_empty() {
        return format!("kubernetes.io/csi:{driver}");
    }
    let sources =
        [("hostPath", plan::reclaim::HOST_PATH), ("nfs", "kubernetes.io/nfs"), ("local", "kubernetes.io/local-volume")];
    let found = sources.iter().find(|(source, _)| volume.has(&["spec", source]));
    found.map_or("N/A", |(_, plugin)| plugin).to_owned()
}
