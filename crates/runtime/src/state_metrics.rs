//! The state of StatefulSets, claims and PVs as metrics, under the names of kube-state-metrics.
//!
//! Only the shown fields of each object are kept, and samples are encoded only when metrics are scraped.

use crate::controllers::ControllerContext;
use futures::StreamExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kit::api::Resource;
use kit::descriptor::{Descriptor, Scope, allow};
use kit::watcher::{self, Event, Slim};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt::{Debug, Error};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::task::JoinSet;
use volumes::{Claim, PhaseStatus, Volume, VolumeSpec};

mod volumes;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "state-metrics",
    account: "state-metrics",
    scope: Scope::Namespaces,
    rules: &[
        allow("list watch", "apps", "statefulsets"),
        allow("list watch", "core", "persistentvolumeclaims persistentvolumes"),
    ],
};

/// Keeps the tables until shutdown. They are removed then, because another process may show them from now on.
pub async fn run(context: ControllerContext) {
    let states = context.metrics.state_metrics.clone();
    *states.lock() = Some(Tables::default());
    let _shown = Shown(states.clone());
    let sets = Resource::new("apps/v1", "StatefulSet", "statefulsets", true);
    let claims = Resource::new("v1", "PersistentVolumeClaim", "persistentvolumeclaims", true);
    let volumes = Resource::new("v1", "PersistentVolume", "persistentvolumes", false);
    let mut tasks = JoinSet::new();
    tasks.spawn(keep(context.clone(), sets, states.clone(), |tables| &mut tables.sets, Set::of));
    tasks.spawn(keep(context.clone(), claims, states.clone(), |tables| &mut tables.claims, Claim::of));
    let scope = context.scope.clone();
    tasks.spawn(keep(
        context.clone(),
        volumes,
        states,
        |tables| &mut tables.volumes,
        move |volume: Slim<VolumeSpec, PhaseStatus>| {
            let is_ours = volume.spec.claim_ref.as_ref().is_none_or(|claim| scope.covers(&claim.namespace));
            is_ours.then(|| Volume::of(volume))
        },
    ));
    tokio::select! {
        biased;
        () = context.shutdown.cancelled() => {}
        // These tasks never return, so one has panicked; the panic is passed on to the caller, which restarts
        // the controller.
        Some(Err(error)) = tasks.join_next() => std::panic::resume_unwind(error.into_panic()),
    }
    tasks.shutdown().await;
}

/// The tables of all objects; `None` while the controller does not run. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct StateMetrics {
    tables: Arc<Mutex<Option<Tables>>>,
}

impl StateMetrics {
    fn lock(&self) -> MutexGuard<'_, Option<Tables>> {
        self.tables.lock().expect("no panic happens under this lock")
    }
}

/// Removes the tables when it is dropped.
struct Shown(StateMetrics);

impl Drop for Shown {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

#[derive(Debug, Default)]
struct Tables {
    sets: Table<Set>,
    claims: Table<Claim>,
    /// `None` for a PV whose claim is in a namespace that is not covered.
    volumes: Table<Option<Volume>>,
}

/// Watches a resource into its table.
async fn keep<Spec, Status, Row>(
    context: ControllerContext,
    resource: Resource,
    states: StateMetrics,
    table: fn(&mut Tables) -> &mut Table<Row>,
    row: impl Fn(Slim<Spec, Status>) -> Row,
) where
    Spec: DeserializeOwned + Default + Clone + Debug + Send + 'static,
    Status: DeserializeOwned + Default + Clone + Debug + Send + 'static,
{
    let mut changes = Box::pin(watcher::slim(&context.api, &resource));
    while let Some(change) = changes.next().await {
        if let Some(tables) = states.lock().as_mut() {
            table(tables).apply(change, &row);
        }
    }
}

/// One row per object, by namespace and name.
#[derive(Debug)]
struct Table<Row> {
    rows: Rows<Row>,
    /// The rows of a list that is being received; they replace `rows` when it is complete.
    fresh: Option<Rows<Row>>,
}

type Rows<Row> = BTreeMap<Box<str>, BTreeMap<Box<str>, Row>>;

impl<Row> Default for Table<Row> {
    fn default() -> Table<Row> {
        Table { rows: Rows::new(), fresh: None }
    }
}

impl<Row> Table<Row> {
    fn apply<Spec, Status>(&mut self, change: Event<Slim<Spec, Status>>, row: impl Fn(Slim<Spec, Status>) -> Row) {
        match change {
            Event::Init => self.fresh = Some(Rows::new()),
            Event::Apply(mut object) => {
                let (namespace, name) = take_key(&mut object.metadata);
                let rows = self.fresh.as_mut().unwrap_or(&mut self.rows);
                rows.entry(namespace.into()).or_default().insert(name.into(), row(object));
            }
            Event::Delete(mut object) => {
                let (namespace, name) = take_key(&mut object.metadata);
                if let Some(rows) = self.rows.get_mut(namespace.as_str()) {
                    rows.remove(name.as_str());
                    if rows.is_empty() {
                        self.rows.remove(namespace.as_str());
                    }
                }
            }
            Event::InitDone => self.rows = self.fresh.take().unwrap_or_default(),
        }
    }

    fn each(&self) -> impl Iterator<Item = (&str, &str, &Row)> {
        self.rows.iter().flat_map(|(namespace, rows)| rows.iter().map(move |(name, row)| (&**namespace, &**name, row)))
    }
}

fn take_key(metadata: &mut ObjectMeta) -> (String, String) {
    (metadata.namespace.take().unwrap_or_default(), metadata.name.take().unwrap_or_default())
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SetSpec {
    replicas: Option<i64>,
    ordinals: Option<Ordinals>,
    persistent_volume_claim_retention_policy: Option<Policy>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Ordinals {
    #[serde(default)]
    start: i64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Policy {
    when_deleted: String,
    when_scaled: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SetStatus {
    replicas: i64,
    current_replicas: i64,
    ready_replicas: i64,
    available_replicas: i64,
    updated_replicas: i64,
    observed_generation: Option<i64>,
}

/// The fields of a StatefulSet that metrics show.
#[derive(Debug)]
struct Set {
    /// In seconds since 1970.
    created: i64,
    generation: Option<i64>,
    replicas: i64,
    start: Option<i64>,
    /// `whenDeleted`, `whenScaled`.
    policy: Option<[&'static str; 2]>,
    status: SetStatus,
}

impl Set {
    fn of(set: Slim<SetSpec, SetStatus>) -> Set {
        let policy = set.spec.persistent_volume_claim_retention_policy;
        Set {
            created: set.metadata.creation_timestamp.map_or(0, |time| time.0.as_second()),
            generation: set.metadata.generation,
            replicas: set.spec.replicas.unwrap_or(1),
            start: set.spec.ordinals.map(|ordinals| ordinals.start),
            policy: policy.map(|policy| [&policy.when_deleted, &policy.when_scaled].map(|what| policy_name(what))),
            status: set.status,
        }
    }
}

/// Returns one of the known values, so that no text need be kept.
fn policy_name(what: &str) -> &'static str {
    match what {
        "" | "Retain" => "Retain",
        "Delete" => "Delete",
        _ => "Unknown",
    }
}

impl Collector for StateMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), Error> {
        let tables = self.lock();
        let Some(tables) = tables.as_ref() else { return Ok(()) };
        encode_sets(&tables.sets, &mut encoder)?;
        encode_policies(&tables.sets, &mut encoder)?;
        volumes::encode_claims(&tables.claims, &mut encoder)?;
        volumes::encode_volumes(&tables.volumes, &mut encoder)
    }
}

/// A metric of a set: its name, its help and how its value is read.
type SetFigure = (&'static str, &'static str, fn(&Set) -> Option<i64>);

const SET_FIGURES: [SetFigure; 10] = [
    ("created", "Creation time of the set, in seconds since 1970", |set| Some(set.created)),
    ("metadata_generation", "The generation of the set's desired state", |set| set.generation),
    ("status_observed_generation", "The generation that the controller has seen", |set| set.status.observed_generation),
    ("replicas", "Desired number of pods of the set", |set| Some(set.replicas)),
    ("ordinals_start", "First ordinal of the set, if it is specified", |set| set.start),
    ("status_replicas", "Pods of the set", |set| Some(set.status.replicas)),
    ("status_replicas_current", "Pods of the set's current revision", |set| Some(set.status.current_replicas)),
    ("status_replicas_updated", "Pods of the set's update revision", |set| Some(set.status.updated_replicas)),
    ("status_replicas_ready", "Pods of the set that are ready", |set| Some(set.status.ready_replicas)),
    ("status_replicas_available", "Pods of the set that were ready for minReadySeconds", |set| {
        Some(set.status.available_replicas)
    }),
];

fn encode_sets(sets: &Table<Set>, encoder: &mut DescriptorEncoder) -> Result<(), Error> {
    for (name, help, value) in SET_FIGURES {
        let name = format!("kube_statefulset_{name}");
        let mut metric = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
        for (namespace, name, set) in sets.each() {
            if let Some(value) = value(set) {
                metric.encode_family(&[("namespace", namespace), ("statefulset", name)])?.encode_gauge(&value)?;
            }
        }
    }
    Ok(())
}

fn encode_policies(sets: &Table<Set>, encoder: &mut DescriptorEncoder) -> Result<(), Error> {
    // The spelling of kube-state-metrics, and that of KEP-1847.
    for spelling in ["persistentvolumeclaim", "persistent_volume_claim"] {
        let name = format!("kube_statefulset_{spelling}_retention_policy");
        let help = "Retention policy of the set's claims";
        let mut metric = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
        for (namespace, name, set) in sets.each() {
            let Some([when_deleted, when_scaled]) = set.policy else { continue };
            let labels = [
                ("namespace", namespace),
                ("statefulset", name),
                ("when_deleted", when_deleted),
                ("when_scaled", when_scaled),
            ];
            metric.encode_family(&labels)?.encode_gauge(&1_i64)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
