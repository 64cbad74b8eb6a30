//! Usage of mounted volumes, under the names of a kubelet's metrics (`kubelet_volume_stats_*`).

use crate::informers::Informers;
use futures::future::BoxFuture;
use plan::schedule::Key;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// As a kubelet's `volumeStatsAggPeriod`.
const COLLECT_EVERY: Duration = Duration::from_mins(1);
/// Volumes that are mounted within this time of one another are collected together.
const COLLECT_AFTER_MOUNT: Duration = Duration::from_secs(1);

/// A CSI driver that is registered on all simulated nodes.
#[derive(Clone)]
pub struct Driver {
    pub name: String,
    pub probe: Probe,
}

/// Returns the usage of the volume with this handle, or `None` if the driver does not know it.
pub type Probe = Arc<dyn Fn(String) -> BoxFuture<'static, Option<Usage>> + Send + Sync>;

/// What a driver answers to NodeGetVolumeStats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// `None` for a volume whose data cannot be read.
    pub bytes: Option<Bytes>,
    /// The volume condition.
    pub is_abnormal: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    pub capacity: i64,
    pub available: i64,
    pub used: i64,
}

/// The usage of each claim whose volume is mounted. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct VolumeStats {
    claims: Arc<Mutex<BTreeMap<Key, Usage>>>,
}

impl VolumeStats {
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(self.clone()));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Usage>> {
        self.claims.lock().expect("no panic happens under this lock")
    }
}

/// Asks the drivers for the usage of mounted volumes.
pub struct StatsCollector {
    pub informers: Arc<Informers>,
    pub drivers: Vec<Driver>,
    pub stats: VolumeStats,
}

impl StatsCollector {
    /// Collects until it is dropped; then the metrics vanish, because another process may run the nodes.
    pub async fn work(self) {
        let _shown = Shown(self.stats.clone());
        self.informers.filled().await;
        let mut due = Instant::now();
        loop {
            let is_due = due <= Instant::now();
            if is_due {
                due = Instant::now() + COLLECT_EVERY;
            }
            self.collect(is_due).await;
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(due) => {}
                () = self.informers.mounting.notified() => tokio::time::sleep(COLLECT_AFTER_MOUNT).await,
            }
        }
    }

    /// Asks for all volumes, or for those alone that have no usage yet.
    async fn collect(&self, all: bool) {
        let mounted = self.informers.lock().mounted_volumes();
        let claims: BTreeSet<&Key> = mounted.iter().map(|volume| &volume.claim).collect();
        self.stats.lock().retain(|claim, _| claims.contains(claim));
        for volume in &mounted {
            if !all && self.stats.lock().contains_key(&volume.claim) {
                continue;
            }
            let Some(driver) = self.drivers.iter().find(|driver| *driver.name == *volume.driver) else { continue };
            let usage = (driver.probe)(volume.handle.to_string()).await;
            let mut stats = self.stats.lock();
            match usage {
                Some(usage) => drop(stats.insert(volume.claim.clone(), usage)),
                None => drop(stats.remove(&volume.claim)),
            }
        }
    }
}

/// Shows the metrics until it is dropped.
struct Shown(VolumeStats);

impl Drop for Shown {
    fn drop(&mut self) {
        self.0.lock().clear();
    }
}

/// A metric: its name, its help text and its value.
type Figure = (&'static str, &'static str, fn(&Usage) -> Option<i64>);

const FIGURES: [Figure; 4] = [
    ("capacity_bytes", "Capacity in bytes of the volume", |usage| Some(usage.bytes?.capacity)),
    ("available_bytes", "Number of available bytes in the volume", |usage| Some(usage.bytes?.available)),
    ("used_bytes", "Number of used bytes in the volume", |usage| Some(usage.bytes?.used)),
    ("health_status_abnormal", "1 if the driver reports the volume as unhealthy, otherwise 0", |usage| {
        Some(i64::from(usage.is_abnormal))
    }),
];

impl Collector for VolumeStats {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let claims = self.lock();
        for (name, help, value) in FIGURES {
            let name = format!("kubelet_volume_stats_{name}");
            let mut metric = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
            for ((namespace, claim), usage) in &*claims {
                if let Some(value) = value(usage) {
                    let labels = [("namespace", &**namespace), ("persistentvolumeclaim", &**claim)];
                    metric.encode_family(&labels)?.encode_gauge(&value)?;
                }
            }
        }
        Ok(())
    }
}
