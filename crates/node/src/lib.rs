//! Simulated nodes: pods are placed, run and end, but nothing is executed.
//!
//! One scheduler places pods. The kubelets of all nodes share one set of watches, queues and workers, so that a thousand nodes cost
//! little more than one. `plan` decides (`schedule`, `kubelet`, `node`); this crate watches, queues and writes.
//!
//! This crate must never know the store or the HTTP server: it is a client like any other.
//!
//! Begin with `scheduler` for the placement of pods, and with `kubelet` for what happens to them on a node.

mod addresses;
mod expansion;
mod kubelet;
mod line;
mod register;
mod scheduler;
mod sight;
mod voice;

use expansion::Expansions;
use futures::future::BoxFuture;
use kube::Client;
use kubelet::Kubelets;
use object::Value;
use object::quantity::Quantity;
use plan::node::Machine;
use register::Registrar;
use runtime::api::Api;
use runtime::events::Events;
use runtime::reader::Reader;
use runtime::{Clock, Metrics};
use scheduler::Scheduler;
use sight::{Sight, Watched};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use voice::Voice;

/// How many pods are looked after at once: as many writes as share one sync to disk well.
const KUBELET_WORKERS: usize = 64;
const NODE_WORKERS: usize = 8;
const RESTART_AFTER: Duration = Duration::from_secs(1);
/// As many pods as nobody tries to run on one node.
const PODS_PLENTY: i64 = 100_000;

/// Which nodes there are, and what they do.
#[derive(Clone)]
pub struct Setup {
    pub count: usize,
    /// Names are this and a number.
    pub prefix: String,
    /// What each node has.
    pub capacity: BTreeMap<String, String>,
    /// Entries of each node's `spec.taints`.
    pub taints: Vec<Value>,
    /// Pods with this `schedulerName` are placed; empty places none.
    pub scheduler: String,
    pub clock: Clock,
    pub metrics: Metrics,
    /// What is read once for all of them, and for whoever else of the process has a clone of it.
    pub reader: Reader,
    /// The storage of a CSI driver in this process: asked before a pod starts on a volume. Without it the claim's condition decides alone.
    pub volume_data: Option<Arc<dyn VolumeData>>,
}

/// The storage behind volumes, for nodes that mount nothing themselves.
pub trait VolumeData: Send + Sync {
    /// Why a volume cannot be mounted, if it is of this storage's driver: its data may be missing.
    fn problem(&self, driver: String, handle: String) -> BoxFuture<'static, Option<String>>;
}

impl Setup {
    /// Large nodes that take all comers, and the machine's clock.
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
            reader: Reader::default(),
            volume_data: None,
        }
    }
}

impl Setup {
    /// Whether there are addresses for so many nodes and pods; the error is one sentence.
    pub fn check(&self) -> Result<(), String> {
        if self.count > addresses::NODES_MAX {
            return Err(format!(
                "there are addresses for {} simulated nodes, not for {}",
                addresses::NODES_MAX,
                self.count
            ));
        }
        let most = addresses::pods_max(self.count);
        let pods = self.capacity.get("pods").and_then(|pods| pods.parse::<Quantity>().ok()).unwrap_or(Quantity::ZERO);
        if pods > Quantity::from_int(most) {
            return Err(format!("{} simulated nodes have addresses for {most} pods each, not for {pods}", self.count));
        }
        Ok(())
    }
}

/// Who asks the server for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity<'a> {
    Scheduler,
    /// The node of this name.
    Node(&'a str),
}

/// Simulated nodes at work.
pub struct Nodes {
    supervisor: JoinHandle<()>,
    shutdown: CancellationToken,
    registered: watch::Receiver<usize>,
    count: usize,
}

impl Nodes {
    /// Starts the nodes and, unless it is to place none, the scheduler. `client` makes the client of each.
    pub fn start(setup: &Setup, client: impl Fn(Identity<'_>) -> Client) -> Nodes {
        let names: Vec<Arc<str>> = (0..setup.count).map(|number| format!("{}{number}", setup.prefix).into()).collect();
        let apis = names
            .iter()
            .map(|name| (name.clone(), Api::sharing(client(Identity::Node(name)), &setup.reader)))
            .collect();
        let scheduler = (!setup.scheduler.is_empty() && setup.count > 0)
            .then(|| Api::sharing(client(Identity::Scheduler), &setup.reader));
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
        // It fails only when nobody registers any more.
        let _ = self.registered.wait_for(|registered| *registered >= count).await;
    }

    /// Stops them all; when this returns, none of their tasks is left.
    pub async fn stop(self) {
        self.shutdown.cancel();
        if let Err(error) = self.supervisor.await {
            tracing::error!(%error, "the simulated nodes had broken down");
        }
    }
}

/// All nodes and the scheduler, with what they need to start, and to start again.
struct Fleet {
    setup: Setup,
    names: Vec<Arc<str>>,
    apis: Arc<HashMap<Arc<str>, Api>>,
    scheduler: Option<Api>,
    registered: Arc<watch::Sender<usize>>,
    shutdown: CancellationToken,
}

impl Fleet {
    /// Runs everything until shutdown. A part that panics has a bug; all start anew, as after a restart of the machine.
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
            tracing::error!(%error, "the simulated nodes broke down; starting them again");
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => return,
                () = tokio::time::sleep(RESTART_AFTER) => {}
            }
        }
    }

    /// Starts all tasks; those that write events down end by themselves when nobody has anything to say.
    fn launch(&self, first: &Api, tracker: &TaskTracker) -> JoinSet<()> {
        let Setup { metrics, clock, .. } = &self.setup;
        let voice =
            |api: &Api, component| Voice::new(Events::start(api, component, metrics, clock, tracker, &self.shutdown));
        let sight = Arc::new(Sight::new(&self.setup.scheduler, &self.names, metrics));
        let mut tasks = JoinSet::new();
        let watching = self.scheduler.as_ref().unwrap_or(first).clone();
        for watched in Watched::ALL {
            let (sight, api) = (sight.clone(), watching.clone());
            tasks.spawn(async move { sight.follow(api, watched).await });
        }
        if let Some(api) = &self.scheduler {
            let voice = voice(api, "default-scheduler");
            tasks.spawn(Scheduler { sight: sight.clone(), api: api.clone(), voice, clock: clock.clone() }.run());
        }
        let voice = voice(first, "kubelet");
        let kubelets = Kubelets {
            sight: sight.clone(),
            apis: self.apis.clone(),
            voice: voice.clone(),
            clock: clock.clone(),
            volume_data: self.setup.volume_data.clone(),
        };
        for _ in 0..KUBELET_WORKERS {
            tasks.spawn(kubelets.clone().work());
        }
        tasks.spawn(Expansions { sight: sight.clone(), apis: self.apis.clone(), voice: voice.clone() }.work());
        let registrar = self.registrar(sight, voice);
        for _ in 0..NODE_WORKERS.min(self.names.len()) {
            tasks.spawn(registrar.clone().work());
        }
        tasks
    }

    fn registrar(&self, sight: Arc<Sight>, voice: Voice) -> Registrar {
        let machines = self.names.iter().enumerate();
        let machines = machines.map(|(number, name)| (name.clone(), machine(&self.setup, number, name))).collect();
        self.names.iter().for_each(|name| sight.nodes.add(name.clone()));
        Registrar {
            sight,
            machines: Arc::new(machines),
            apis: self.apis.clone(),
            voice,
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
    }
}
