//! The list of controllers, how they are selected, and how each is run under its own ServiceAccount.

use crate::binder::{Directories, OfMachine};
use crate::csi::{self, Drivers, Endpoint};
use crate::metrics::Metrics;
use crate::{
    binder, clusterrole_aggregation, disruption, endpoints, gc, lifecycle, namespaces, podgc, protection,
    service_accounts, state_metrics, statefulset,
};
use futures::future::BoxFuture;
use kit::api::Api;
use kit::decode_cache::DecodeCache;
use kit::descriptor::{Descriptor, Scope};
use kit::discovery::Discovery;
use kit::events::Events;
use kit::{Clock, NamespaceScope, lease, worker};
use kube::Client;
use object::{Gates, Value};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What every controller gets when it is started.
#[derive(Clone)]
pub struct ControllerContext {
    pub name: &'static str,
    pub api: Api,
    pub discovery: Discovery,
    pub events: Events,
    pub metrics: Metrics,
    pub shutdown: CancellationToken,
    /// The API server's CA certificate, if it is known.
    pub root_ca: Option<Arc<str>>,
    pub gates: Gates,
    pub provisioning: Provisioning,
    pub directories: Arc<dyn Directories>,
    /// Number of finished pods that the pod garbage collector keeps; 0 or less keeps all.
    pub terminated_pod_threshold: i64,
    pub clock: Clock,
    pub drivers: Drivers,
    /// The namespaces it works in; objects elsewhere are not watched.
    pub scope: NamespaceScope,
    pub judge: Option<Judge>,
}

impl From<ControllerContext> for worker::Context {
    fn from(context: ControllerContext) -> worker::Context {
        let ControllerContext { name, api, metrics, shutdown, .. } = context;
        worker::Context { name, api, metrics: metrics.kit, shutdown }
    }
}

/// Receives a sentence for each plan that breaks an invariant.
pub type Judge = Arc<dyn Fn(String) + Send + Sync>;

/// Which volumes are provisioned for claims.
#[derive(Clone, Copy, Debug)]
pub struct Provisioning {
    /// Whether volumes are provisioned at all.
    pub dynamic: bool,
    /// Provision directories of this machine (provisioner `kubernetes.io/host-path`): for tests on one
    /// machine.
    pub host_path: bool,
}

impl Default for Provisioning {
    fn default() -> Provisioning {
        Provisioning { dynamic: true, host_path: false }
    }
}

/// What all controllers of a process share.
#[derive(Clone)]
pub struct Setup {
    /// The controllers to run: `*`, `*,-name`, `name,name`.
    pub list: String,
    pub metrics: Metrics,
    /// The API server's CA certificate, if it is known.
    pub root_ca: Option<Arc<str>>,
    pub gates: Gates,
    pub provisioning: Provisioning,
    /// Where the built-in host-path provisioner keeps volumes: on this machine, or in a simulation.
    pub directories: Arc<dyn Directories>,
    /// Number of finished pods that the pod garbage collector keeps; 0 or less keeps all.
    pub terminated_pod_threshold: i64,
    pub clock: Clock,
    /// The CSI drivers to serve.
    pub drivers: Vec<Endpoint>,
    /// Decodes each object once for all controllers and for other users of a clone in this process.
    pub decoded: DecodeCache,
    /// The namespaces that the controllers work in.
    pub scope: NamespaceScope,
    /// For tests: checks every StatefulSet plan with `plan::statefulset::invariant`. `None` checks none.
    pub judge: Option<Judge>,
}

impl Setup {
    /// Returns a setup with the default feature gates and the machine's clock.
    pub fn new(list: &str) -> Setup {
        Setup {
            list: list.to_owned(),
            metrics: Metrics::default(),
            root_ca: None,
            gates: Gates::default(),
            provisioning: Provisioning::default(),
            directories: Arc::new(OfMachine),
            terminated_pod_threshold: plan::podgc::TERMINATED_THRESHOLD,
            clock: Arc::new(jiff::Timestamp::now),
            drivers: Vec::new(),
            decoded: DecodeCache::default(),
            scope: NamespaceScope::default(),
            judge: None,
        }
    }
}

struct Controller {
    descriptor: Descriptor,
    run: fn(ControllerContext) -> BoxFuture<'static, ()>,
}

const fn controller(descriptor: Descriptor, run: fn(ControllerContext) -> BoxFuture<'static, ()>) -> Controller {
    Controller { descriptor, run }
}

const COUNT: usize = 18;
const ALL: [Controller; COUNT] = [
    controller(gc::DESCRIPTOR, |context| Box::pin(gc::run(context))),
    controller(namespaces::DESCRIPTOR, |context| Box::pin(namespaces::run(context))),
    controller(service_accounts::ACCOUNTS_DESCRIPTOR, |context| Box::pin(service_accounts::run_accounts(context))),
    controller(service_accounts::ROOT_CA_DESCRIPTOR, |context| Box::pin(service_accounts::run_root_ca(context))),
    controller(clusterrole_aggregation::DESCRIPTOR, |context| Box::pin(clusterrole_aggregation::run(context))),
    controller(disruption::DESCRIPTOR, |context| Box::pin(disruption::run(context))),
    controller(endpoints::DESCRIPTOR, |context| Box::pin(endpoints::run(context))),
    controller(lifecycle::DESCRIPTOR, |context| Box::pin(lifecycle::run(context))),
    controller(podgc::DESCRIPTOR, |context| Box::pin(podgc::run(context))),
    controller(statefulset::DESCRIPTOR, |context| Box::pin(statefulset::run(context))),
    controller(binder::DESCRIPTOR, |context| Box::pin(binder::run(context))),
    controller(protection::CLAIMS_DESCRIPTOR, |context| Box::pin(protection::run_claims(context))),
    controller(protection::VOLUMES_DESCRIPTOR, |context| Box::pin(protection::run_volumes(context))),
    controller(protection::CLASSES_DESCRIPTOR, |context| Box::pin(protection::run_classes(context))),
    controller(csi::PROVISIONER_DESCRIPTOR, |context| Box::pin(csi::run_provisioner(context))),
    controller(csi::RESIZER_DESCRIPTOR, |context| Box::pin(csi::run_resizer(context))),
    controller(csi::MONITOR_DESCRIPTOR, |context| Box::pin(csi::run_monitor(context))),
    controller(state_metrics::DESCRIPTOR, |context| Box::pin(state_metrics::run(context))),
];

/// The descriptors of all controllers.
pub fn descriptors() -> impl Iterator<Item = Descriptor> {
    ALL.iter().map(|controller| controller.descriptor)
}

/// The role of each controller and its binding, for a server that runs together with the controllers.
pub fn bootstrap_objects() -> Vec<Value> {
    descriptors().flat_map(|descriptor| descriptor.bootstrap_objects()).collect()
}

/// The names of all controllers.
pub const NAMES: [&str; COUNT] = {
    let mut names = [""; COUNT];
    let mut at = 0;
    while at < COUNT {
        names[at] = ALL[at].descriptor.name;
        at += 1;
    }
    names
};

const RESTART_AFTER: Duration = Duration::from_secs(1);

/// The running controllers.
pub struct Controllers {
    setup: Setup,
    drivers: Drivers,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl Controllers {
    /// Checks that `list` names existing controllers that can be restricted to these namespaces; the error is
    /// one sentence.
    pub fn check(list: &str, scope: &NamespaceScope) -> Result<(), String> {
        select(list, scope).map(drop)
    }

    /// Returns the controllers that `list` selects.
    pub fn selected(list: &str, scope: &NamespaceScope) -> Result<Vec<Descriptor>, String> {
        let selected = select(list, scope)?;
        Ok(descriptors().filter(|descriptor| selected.contains(&descriptor.name)).collect())
    }

    /// Starts the controllers that the list selects. `client` returns a client that acts as a ServiceAccount
    /// of `kube-system`; build it with [`kit::Metrics::client`] so that missing permissions are reported. The
    /// error is one sentence about an invalid list.
    pub fn start(setup: &Setup, client: impl Fn(&str) -> Client) -> Result<Controllers, String> {
        let selected = select(&setup.list, &setup.scope)?;
        let tasks = TaskTracker::new();
        let shutdown = CancellationToken::new();
        let drivers = Drivers::start(&setup.drivers, &setup.metrics.csi.calls, &tasks, &shutdown);
        let controllers = Controllers { setup: setup.clone(), drivers, tasks, shutdown };
        let mut recorders = HashMap::new();
        for controller in ALL.iter().filter(|controller| selected.contains(&controller.descriptor.name)) {
            let Descriptor { name, account, .. } = controller.descriptor;
            let api = Api::sharing(client(account), &setup.decoded).within(&setup.scope);
            let context = controllers.context(name, account, api);
            recorders.insert(account, context.events.clone());
            controllers.tasks.spawn(keep_running(controller, context));
        }
        let (refusals, stop) = (setup.metrics.kit.refusals(), controllers.shutdown.clone());
        controllers.tasks.spawn(async move { stop.run_until_cancelled(refusals.report(recorders)).await });
        controllers.tasks.close();
        Ok(controllers)
    }

    /// Builds what one controller gets; it shares the shutdown token with the others.
    pub fn context(&self, name: &'static str, account: &'static str, api: Api) -> ControllerContext {
        let Controllers { setup, drivers, tasks, shutdown } = self;
        ControllerContext {
            name,
            events: Events::start(&api, account, &setup.metrics.kit, &setup.clock, tasks, shutdown),
            discovery: Discovery::new(api.clone()),
            api,
            metrics: setup.metrics.clone(),
            shutdown: shutdown.clone(),
            root_ca: setup.root_ca.clone(),
            gates: setup.gates.clone(),
            provisioning: setup.provisioning,
            directories: setup.directories.clone(),
            terminated_pod_threshold: setup.terminated_pod_threshold,
            clock: setup.clock.clone(),
            judge: setup.judge.clone(),
            drivers: drivers.clone(),
            scope: setup.scope.clone(),
        }
    }

    /// Stops all controllers; returns when none of their tasks is left.
    pub async fn stop(self) {
        self.shutdown.cancel();
        self.tasks.wait().await;
    }
}

impl lease::Work for Controllers {
    fn stop(self) -> impl Future<Output = ()> + Send {
        Controllers::stop(self)
    }
}

/// Runs a controller and restarts it after a panic: a bug in one controller must not stop the others.
async fn keep_running(controller: &'static Controller, context: ControllerContext) {
    loop {
        let run = tokio::spawn((controller.run)(context.clone()));
        match run.await {
            Ok(()) => return,
            Err(error) => {
                tracing::error!(controller = controller.descriptor.name, %error, "Controller panicked; restarting it")
            }
        }
        tokio::select! {
            biased;
            () = context.shutdown.cancelled() => return,
            () = tokio::time::sleep(RESTART_AFTER) => {}
        }
    }
}

fn select(list: &str, scope: &NamespaceScope) -> Result<Vec<&'static str>, String> {
    let find = |name: &str| {
        let found = descriptors().find(|known| known.name == name);
        found.ok_or_else(|| format!("unknown controller {name:?}; known controllers are {}", NAMES.join(", ")))
    };
    let fits = |controller: &Descriptor| scope.is_everywhere() || controller.scope == Scope::Namespaces;
    let mut selected = Vec::new();
    let mut without = Vec::new();
    for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        match word.strip_prefix('-') {
            _ if word == "*" => selected.extend(descriptors().filter(fits).map(|known| known.name)),
            Some(name) => without.push(find(name)?.name),
            None if !fits(&find(word)?) => {
                return Err(format!(
                    "{word} needs the whole cluster and cannot be restricted to namespaces: remove it from --controllers, or run it \
                     in a process without --namespaces"
                ));
            }
            None => selected.push(find(word)?.name),
        }
    }
    selected.retain(|name| !without.contains(name));
    Ok(selected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_select_as_documented() {
        let select = |list| select(list, &NamespaceScope::default());
        assert_eq!(select("*").unwrap(), NAMES);
        assert_eq!(select("").unwrap(), Vec::<&str>::new());
        assert_eq!(select("namespace-controller").unwrap(), ["namespace-controller"]);
        assert_eq!(select("*,-namespace-controller").unwrap().len(), NAMES.len() - 1);
        assert!(select("*,-nobody").unwrap_err().contains("unknown controller \"nobody\""));
    }

    /// A cluster-scoped controller that sees a part of the cluster would act on wrong conclusions: an owner
    /// or a user of an object may be elsewhere.
    #[test]
    fn in_a_few_namespaces_only_those_work_that_need_not_see_the_rest() {
        let select = |list| select(list, &NamespaceScope::parse("shop").unwrap());
        let few = [
            "disruption-controller",
            "endpoints-controller",
            "statefulset-controller",
            "persistentvolume-binder-controller",
            "persistentvolumeclaim-protection-controller",
            "persistentvolume-protection-controller",
            "state-metrics",
        ];
        assert_eq!(select("*").unwrap(), few);
        assert_eq!(select("*,-garbage-collector-controller").unwrap(), few);
        for name in NAMES {
            match select(name) {
                Ok(_) => assert!(few.contains(&name), "{name}"),
                Err(error) => {
                    assert!(!few.contains(&name) && error.contains("cannot be restricted to namespaces"), "{error}")
                }
            }
        }
    }
}
