//! Simulated nodes: pods are placed, run, and end, but nothing is executed.
//!
//! One scheduler places pods, and the kubelets of all nodes share one set of watches, queues and workers, so that a thousand nodes cost
//! little more than one. What they decide is in `plan` (`schedule`, `kubelet`, `node`); here it is seen, queued and written.
//!
//! This crate must never know the store or the HTTP server: it is a client like any other.

mod addresses;
mod kubelet;
mod line;
mod register;
mod scheduler;
mod sight;
mod voice;

use kube::Client;
use kubelet::Kubelets;
use object::Value;
use object::quantity::Quantity;
use plan::node::Machine;
use register::Registrar;
use runtime::Clock;
use runtime::api::Api;
use scheduler::Scheduler;
use sight::{Sight, Watched};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use voice::Voice;

/// How many pods are looked after at once: as many writes as share one sync to disk well.
const KUBELET_WORKERS: usize = 64;
const NODE_WORKERS: usize = 8;
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
        }
    }
}

impl Setup {
    /// Whether there are addresses for so many nodes and pods; the error is one sentence.
    pub fn check(&self) -> Result<(), String> {
        if self.count > addresses::NODES_MAX {
            return Err(format!("there are addresses for {} simulated nodes, not for {}", addresses::NODES_MAX, self.count));
        }
        let most = addresses::pods_max(self.count);
        let pods = self.capacity.get("pods").and_then(|pods| pods.parse::<Quantity>().ok()).unwrap_or(Quantity::ZERO);
        if pods > Quantity::from_int(most) {
            return Err(format!(
                "{} simulated nodes have addresses for {most} pods each, not for {pods}",
                self.count
            ));
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
    tasks: JoinSet<()>,
    shutdown: CancellationToken,
    registered: watch::Receiver<usize>,
    count: usize,
}

impl Nodes {
    /// Starts the nodes and, unless it is to place none, the scheduler. `client` makes the client of each.
    pub fn start(setup: &Setup, client: impl Fn(Identity<'_>) -> Client) -> Nodes {
        let names: Vec<Arc<str>> = (0..setup.count).map(|number| format!("{}{number}", setup.prefix).into()).collect();
        let sight = Arc::new(Sight::new(&setup.scheduler, &names));
        let machines: HashMap<Arc<str>, Machine> =
            names.iter().enumerate().map(|(number, name)| (name.clone(), machine(setup, number, name))).collect();
        let apis: Arc<HashMap<Arc<str>, Api>> =
            Arc::new(names.iter().map(|name| (name.clone(), Api::new(client(Identity::Node(name))))).collect());
        let scheduler = (!setup.scheduler.is_empty()).then(|| client(Identity::Scheduler));
        let first = names.first().and_then(|name| apis.get(name));
        let Some(watching) = scheduler.clone().or_else(|| first.map(|api| api.client.clone())) else {
            return Nodes::none();
        };
        let (registered, seen) = watch::channel(0);
        let mut nodes =
            Nodes { tasks: JoinSet::new(), shutdown: CancellationToken::new(), registered: seen, count: setup.count };
        for watched in Watched::ALL {
            let (sight, client) = (sight.clone(), watching.clone());
            nodes.spawn(async move { sight.follow(client, watched).await });
        }
        if let Some(client) = scheduler {
            let voice = Voice::new(Api::new(client.clone()), "default-scheduler");
            let (sight, clock) = (sight.clone(), setup.clock.clone());
            nodes.spawn(Scheduler { sight, api: Api::new(client), voice, clock }.run());
        }
        if let Some(first) = first {
            let voice = Voice::new(first.clone(), "kubelet");
            nodes.run_kubelets(setup, &sight, &apis, &voice);
            nodes.run_registrar(setup, sight, machines, apis.clone(), voice, registered);
        }
        nodes
    }

    fn none() -> Nodes {
        let (_, registered) = watch::channel(0);
        Nodes { tasks: JoinSet::new(), shutdown: CancellationToken::new(), registered, count: 0 }
    }

    fn run_kubelets(&mut self, setup: &Setup, sight: &Arc<Sight>, apis: &Arc<HashMap<Arc<str>, Api>>, voice: &Voice) {
        let kubelets =
            Kubelets { sight: sight.clone(), apis: apis.clone(), voice: voice.clone(), clock: setup.clock.clone() };
        for _ in 0..KUBELET_WORKERS {
            let kubelets = kubelets.clone();
            self.spawn(async move {
                kubelets.sight.filled().await;
                kubelets.work().await;
            });
        }
    }

    fn run_registrar(
        &mut self,
        setup: &Setup,
        sight: Arc<Sight>,
        machines: HashMap<Arc<str>, Machine>,
        apis: Arc<HashMap<Arc<str>, Api>>,
        voice: Voice,
        registered: watch::Sender<usize>,
    ) {
        machines.keys().for_each(|name| sight.nodes.add(name.clone()));
        let registrar = Registrar {
            sight,
            machines: Arc::new(machines),
            apis,
            voice,
            clock: setup.clock.clone(),
            beats: Arc::default(),
            registered: Arc::new(registered),
        };
        for _ in 0..NODE_WORKERS.min(setup.count) {
            self.spawn(registrar.clone().work());
        }
    }

    fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = task => {}
            }
        });
    }

    /// Waits until every node has registered once.
    pub async fn registered(&mut self) {
        let count = self.count;
        // It fails only when nobody registers any more.
        let _ = self.registered.wait_for(|registered| *registered >= count).await;
    }

    /// Stops them all; when this returns, none of their tasks is left.
    pub async fn stop(mut self) {
        self.shutdown.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a part of the simulated nodes had broken down");
            }
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
