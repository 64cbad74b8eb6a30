//! Keeps CSIStorageCapacity objects: what each driver has left.

use super::drivers::{Drivers, Known};
use super::metrics::Metrics;
use super::provisioner::Sight;
use crate::controllers::ControllerContext;
use kit::api::{Api, ApiError, Resource};
use object::Value;
use object::access::{Access, name};
use plan::csi::capacity::{self, Want};
use plan::csi::topology::Cluster;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// Others may use the storage too.
const EVERY: Duration = Duration::from_secs(60);
/// Many volumes may come and go at once.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);
/// Where the objects are: their place does not matter to the scheduler.
const NAMESPACE: &str = "kube-system";

pub struct Capacities {
    api: Api,
    drivers: Drivers,
    metrics: Metrics,
    refreshed: Mutex<Option<Instant>>,
    objects: Resource,
    csi_drivers: Resource,
}

impl Capacities {
    pub fn new(context: &ControllerContext) -> Capacities {
        Capacities {
            api: context.api.clone(),
            drivers: context.drivers.clone(),
            metrics: context.metrics.csi.clone(),
            refreshed: Mutex::default(),
            objects: Resource::new("storage.k8s.io/v1", "CSIStorageCapacity", "csistoragecapacities", true),
            csi_drivers: Resource::new("storage.k8s.io/v1", "CSIDriver", "csidrivers", false),
        }
    }

    /// Brings all objects up to date; returns when to do so again.
    pub async fn refresh(&self, sight: &Sight) -> Result<Option<Duration>, ApiError> {
        let able: Vec<Known> = self.drivers.all().into_iter().filter(|known| known.driver.can.get_capacity).collect();
        if able.is_empty() {
            return Ok(None);
        }
        let before = self.refreshed.lock().expect("no panic happens under this lock").replace(Instant::now());
        if let Some(elapsed) = before.map(|before| before.elapsed()).filter(|elapsed| *elapsed < AT_MOST_EVERY) {
            *self.refreshed.lock().expect("no panic happens under this lock") = before;
            return Ok(Some(AT_MOST_EVERY - elapsed));
        }
        let existing = self.api.get(&self.objects.collection(NAMESPACE)).await?;
        let (mut wanted, mut current, mut obsolete) = (0, 0, 0);
        for known in able {
            let wants = self.wants(&known, sight).await?;
            for object in capacity::obsolete(&known.driver.name, existing.items(&["items"]), &wants) {
                obsolete += 1;
                self.remove(object).await?;
            }
            wanted += i64::try_from(wants.len()).unwrap_or(i64::MAX);
            for want in &wants {
                current += i64::from(self.keep(want, &known, existing.items(&["items"])).await?);
            }
        }
        self.metrics.capacities_wanted.set(wanted);
        self.metrics.capacities_current.set(current);
        self.metrics.capacities_obsolete.set(obsolete);
        Ok(Some(EVERY))
    }

    async fn wants(&self, known: &Known, sight: &Sight) -> Result<Vec<Want>, ApiError> {
        let csi_driver = self.api.find(&self.csi_drivers.object("", &known.driver.name)).await?;
        let (classes, nodes, csi_nodes) = (sight.classes.all(), sight.nodes.all(), sight.csi_nodes.all());
        let [classes, nodes, csi_nodes] =
            [&classes, &nodes, &csi_nodes].map(|all| all.iter().map(AsRef::as_ref).collect::<Vec<&Value>>());
        let cluster = Cluster { nodes: &nodes, csi_nodes: &csi_nodes };
        Ok(capacity::wants(&known.driver, csi_driver.as_deref(), &classes, &cluster))
    }

    /// Whether there is an object for a figure now. A driver that does not answer leaves the old figure.
    async fn keep(&self, want: &Want, known: &Known, existing: &[Value]) -> Result<bool, ApiError> {
        let object_name = capacity::object_name(want, &known.driver.name);
        let old = existing.iter().find(|object| name(object) == object_name);
        let available = match known.remote.capacity(want).await {
            Ok(available) => available,
            Err(failure) => {
                tracing::warn!(driver = known.driver.name, class = want.class, %failure, "the capacity is not known");
                return Ok(old.is_some());
            }
        };
        let mut object = capacity::object(want, &known.driver.name, NAMESPACE, available);
        match old {
            None => drop(self.api.create(&self.objects.collection(NAMESPACE), &object).await?),
            Some(old) if capacity::is_current(old, &object) => {}
            Some(old) => {
                object.put(&["metadata", "resourceVersion"], old.text(&["metadata", "resourceVersion"]));
                self.api.replace(&self.objects.object(NAMESPACE, &object_name), &object).await?;
            }
        }
        Ok(true)
    }

    async fn remove(&self, object: &Value) -> Result<(), ApiError> {
        match self.api.delete(&self.objects.object(NAMESPACE, name(object)), &object::json!({})).await {
            Err(error) if error.is_absent() => Ok(()),
            result => result.map(drop),
        }
    }
}
