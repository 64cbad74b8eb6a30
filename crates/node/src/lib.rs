//! Simulated nodes: pods are scheduled, reported as running and terminated, but no container is executed.
//!
//! One scheduler places pods. The kubelets of all nodes share one set of watches, queues and workers, so that a thousand nodes cost
//! little more than one. `plan` decides (`schedule`, `kubelet`, `node`); this crate watches, queues and writes.
//!
//! This crate must never know the store or the HTTP server: it is an API client like any other.
//!
//! Begin with `scheduler` for the scheduling of pods, and with `kubelet` for the status of pods on a node.

mod addresses;
mod event_recorder;
mod informers;
mod kubelet;
mod registrar;
pub mod rights;
mod scheduler;
mod scheduling_queue;
mod volume_expansion;
mod volume_stats;

use event_recorder::EventRecorder;
use futures::future::BoxFuture;
use informers::{Informers, Watched};
use kit::api::Api;
use kit::decode_cache::DecodeCache;
use kit::events::Events;
use kit::{Clock, Metrics};
use kube::Client;
use kubelet::Kubelets;
use object::Value;
use object::quantity::Quantity;
use plan::node::Machine;
use registrar::Registrar;
use scheduler::Scheduler;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use volume_expansion::VolumeExpansions;
use volume_stats::StatsCollector;

pub use rights::bootstrap_objects;
pub use volume_stats::{Bytes, Driver, Probe, Usage, VolumeStats};

/// Number of pods reconciled concurrently: about as many writes as one group commit holds.
const KUBELET_WORKERS: usize = 64;
const NODE_WORKERS: usize = 8;
const RESTART_AFTER: Duration = Duration::from_secs(1);
/// More pods per node than any test runs.
const PODS_PLENTY: i64 = 100_000;

/// The simulated nodes to run.
#[derive(Clone)]
pub struct Setup {
    pub count: usize,
    /// Names are this prefix and a number.
    pub prefix: String,
    /// Capacity of each node.
    pub capacity: BTreeMap<String, String>,
    /// Entries of each node's `spec.taints`.
    pub taints: Vec<Value>,
    /// Pods with this `schedulerName` are scheduled; empty disables the scheduler.
    pub scheduler: String,
    pub clock: Clock,
    pub metrics: Metrics,
    /// Decodes each object once for all of them and for other users of a clone in this process.
    pub decoded: DecodeCache,
    /// The CSI drivers that are registered on every node.
    pub drivers: Vec<Driver>,
    /// Where the usage of their volumes is published.
    pub volume_stats: VolumeStats,
    /// The storage of a CSI driver in this process: asked before a pod starts on a volume. Without it the claim's
    /// condition decides alone.
    pub volume_data: Option<Arc<dyn VolumeData>>,
}

/// The storage behind volumes, for nodes that mount nothing themselves.
pub trait VolumeData: Send + Sync {
    /// Why a volume cannot be mounted, if it is of this storage's driver: its data may be missing.
    fn problem(&self, driver: String, handle: String) -> BoxFuture<'static, Option<String>>;
}

impl Setup {
    /// Large nodes that accept every pod, and the machine's clock.
    pub fn new(count: usize) -> Setup {
        let pods = addresses::pods_max(count).min(PODS_PLENTY).to_string();
        let capacity = [("cpu", "1000"), ("memory", "4Ti"), ("ephemeral-storage", "16Ti"), ("pods", &pods)];
        Setup {
            count,
            prefix: "simulated-".to_owned(),
            capacity: capacity.map(|(name, amount)| (name.to_owned(), amount.to_owned())).into(),
            taints: Vec::new(),
            scheduler: "default-scheduler".to_owned(),
            clock: Arc::new(jiff::Timestamp::now),
            metrics: Metrics::default(),
            decoded: DecodeCache::default(),
            drivers: Vec::new(),
            volume_stats: VolumeStats::default(),
            volume_data: None,
        }
    }
}

impl Setup {
    /// The names of the nodes.
    pub fn names(&self) -> Vec<String> {
        (0..self.count).map(|number| format!("{}{number}", self.prefix)).collect()
    }

    /// Checks that the address ranges suffice for these nodes and pods; the error is one sentence.
    pub fn check(&self) -> Result<(), String> {
        if self.count > addresses::NODES_MAX {
            return Err(format!(
                "at most {} simulated nodes have addresses; {} were requested",
                addresses::NODES_MAX,
                self.count
            ));
        }
        let most = addresses::pods_max(self.count);
        let pods = self.capacity.get("pods").and_then(|pods| pods.parse::<Quantity>().ok()).unwrap_or(Quantity::ZERO);
        if pods > Quantity::from_int(most) {
            return Err(format!(
                "with {} simulated nodes, each has addresses for {most} pods; {pods} were requested",
                self.count
            ));
        }
        Ok(())
    }
}

/// As whom a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity<'a> {
    Scheduler,
    /// The node of this name.
    Node(&'a str),
}

/// The running simulated nodes.
pub struct Nodes {
    supervisor: JoinHandle<()>,
    shutdown: CancellationToken,
    registered: watch::Receiver<usize>,
    count: usize,
}

impl Nodes {
    /// Starts the nodes and, unless it is disabled, the scheduler. `client` returns a client for each
    /// identity.
    pub fn start(setup: &Setup, client: impl Fn(Identity<'_>) -> Client) -> Nodes {
        let names: Vec<Arc<str>> = setup.names().into_iter().map(Arc::from).collect();
        let apis = names
            .iter()
            .map(|name| (name.clone(), Api::sharing(client(Identity::Node(name)), &setup.decoded)))
            .collect();
        let scheduler = (!setup.scheduler.is_empty() && setup.count > 0)
            .then(|| Api::sharing(client(Identity::Scheduler), &setup.decoded));
        let (registered, seen) = watch::channel(0);
        let shutdown = CancellationToken::new();
        let fleet = Fleet {
            setup: setup.clone(),
            names,
            apis: Arc::new(apis),
            scheduler,
            registered: Arc::new(registered),
            shutdown: shutdown.clone(),
        };
        Nodes { supervisor: tokio::spawn(fleet.supervise()), shutdown, registered: seen, count: setup.count }
    }

    /// Waits until every node has registered once.
    pub async fn registered(&mut self) {
        let count = self.count;
        // Fails only if the registrar is gone.
        let _ = self.registered.wait_for(|registered| *registered >= count).await;
    }

    /// Stops everything; returns when none of its tasks is left.
    pub async fn stop(self) {
        self.shutdown.cancel();
        if let Err(error) = self.supervisor.await {
            tracing::error!(%error, "Simulated nodes had panicked");
        }
    }
}

/// All nodes and the scheduler, with what they need to start and to restart.
struct Fleet {
    setup: Setup,
    names: Vec<Arc<str>>,
    apis: Arc<HashMap<Arc<str>, Api>>,
    scheduler: Option<Api>,
    registered: Arc<watch::Sender<usize>>,
    shutdown: CancellationToken,
}

impl Fleet {
    /// Runs everything until shutdown. After a panic in any task all are restarted, as after a restart of the
    /// machine.
    async fn supervise(self) {
        let Some(first) = self.names.first().and_then(|name| self.apis.get(name)) else { return };
        loop {
            let tracker = TaskTracker::new();
            let mut tasks = self.launch(first, &tracker);
            tracker.close();
            let broken = tokio::select! {
                biased;
                () = self.shutdown.cancelled() => None,
                Some(Err(error)) = tasks.join_next() => Some(error),
            };
            tasks.shutdown().await;
            let Some(error) = broken else {
                tracker.wait().await;
                return;
            };
            tracing::error!(%error, "Simulated nodes panicked; restarting them");
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => return,
                () = tokio::time::sleep(RESTART_AFTER) => {}
            }
        }
    }

    /// Starts all tasks. Those that send events end by themselves when all recorders are dropped.
    fn launch(&self, first: &Api, tracker: &TaskTracker) -> JoinSet<()> {
        let Setup { metrics, clock, drivers, .. } = &self.setup;
        let recorder = |api: &Api, component| {
            EventRecorder::new(Events::start(api, component, metrics, clock, tracker, &self.shutdown))
        };
        let informers = Arc::new(Informers::new(
            &self.setup.scheduler,
            &self.names,
            drivers.iter().map(|driver| driver.name.as_str().into()).collect(),
            metrics,
        ));
        let mut tasks = JoinSet::new();
        let watching = self.scheduler.as_ref().unwrap_or(first).clone();
        for watched in Watched::ALL {
            let (informers, api) = (informers.clone(), watching.clone());
            tasks.spawn(async move { informers.watch(api, watched).await });
        }
        if let Some(api) = &self.scheduler {
            let recorder = recorder(api, "default-scheduler");
            tasks.spawn(
                Scheduler { informers: informers.clone(), api: api.clone(), recorder, clock: clock.clone() }.run(),
            );
        }
        let recorder = recorder(first, "kubelet");
        let kubelets = Kubelets {
            informers: informers.clone(),
            apis: self.apis.clone(),
            recorder: recorder.clone(),
            clock: clock.clone(),
            volume_data: self.setup.volume_data.clone(),
        };
        for _ in 0..KUBELET_WORKERS {
            tasks.spawn(kubelets.clone().work());
        }
        tasks.spawn(
            VolumeExpansions { informers: informers.clone(), apis: self.apis.clone(), recorder: recorder.clone() }
                .work(),
        );
        if !drivers.is_empty() {
            let (drivers, stats) = (drivers.clone(), self.setup.volume_stats.clone());
            tasks.spawn(StatsCollector { informers: informers.clone(), drivers, stats }.work());
        }
        let registrar = self.registrar(informers, recorder);
        for _ in 0..NODE_WORKERS.min(self.names.len()) {
            tasks.spawn(registrar.clone().work());
        }
        tasks
    }

    fn registrar(&self, informers: Arc<Informers>, recorder: EventRecorder) -> Registrar {
        let machines = self.names.iter().enumerate();
        let machines = machines.map(|(number, name)| (name.clone(), machine(&self.setup, number, name))).collect();
        self.names.iter().for_each(|name| informers.nodes.add(name.clone()));
        Registrar {
            informers,
            machines: Arc::new(machines),
            apis: self.apis.clone(),
            recorder,
            clock: self.setup.clock.clone(),
            beats: Arc::default(),
            registered: self.registered.clone(),
        }
    }
}

fn machine(setup: &Setup, number: usize, name: &str) -> Machine {
    Machine {
        name: name.to_owned(),
        number,
        address: addresses::of_node(number).to_string(),
        architecture: if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        capacity: setup.capacity.clone(),
        taints: setup.taints.clone(),
        drivers: setup.drivers.iter().map(|driver| driver.name.clone()).collect(),
    }
}
