//! Which controllers there are, and running them: each with its own identity.

use crate::api::Api;
use crate::binder::{Directories, OfMachine};
use crate::csi::{self, Drivers, Endpoint};
use crate::discovery::Discovery;
use crate::metrics::Metrics;
use crate::reach::Reach;
use crate::reader::Reader;
use crate::{
    accounts, binder, disruption, endpoints, events::Events, gc, lifecycle, namespaces, podgc, protection, roles,
    statefulset, states,
};
use futures::future::BoxFuture;
use kube::Client;
use object::Gates;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What a controller is given to work with.
#[derive(Clone)]
pub struct Part {
    pub name: &'static str,
    pub api: Api,
    pub discovery: Discovery,
    pub events: Events,
    pub metrics: Metrics,
    pub shutdown: CancellationToken,
    /// The API server's CA certificate, where it is known.
    pub root_ca: Option<Arc<str>>,
    pub gates: Gates,
    pub provisioning: Provisioning,
    pub directories: Arc<dyn Directories>,
    /// The pod garbage collector keeps this many ended pods; 0 or less keeps all.
    pub terminated_pod_threshold: i64,
    pub clock: Clock,
    pub drivers: Drivers,
    /// Where it works; what is elsewhere is not followed.
    pub reach: Reach,
    pub judge: Option<Judge>,
}

/// Whoever hears of plans that break a rule, in sentences.
pub type Judge = Arc<dyn Fn(String) + Send + Sync>;

/// Which volumes are made for claims.
#[derive(Clone, Copy, Debug)]
pub struct Provisioning {
    /// Any at all.
    pub dynamic: bool,
    /// Directories of this machine (provisioner `kubernetes.io/host-path`): for tests on one machine.
    pub host_path: bool,
}

impl Default for Provisioning {
    fn default() -> Provisioning {
        Provisioning { dynamic: true, host_path: false }
    }
}

/// Tells the time: the machine's, or a test's.
pub type Clock = Arc<dyn Fn() -> jiff::Timestamp + Send + Sync>;

/// What all controllers of a process share.
#[derive(Clone)]
pub struct Setup {
    /// Which controllers to run: `*`, `*,-name`, `name,name`.
    pub list: String,
    pub metrics: Metrics,
    /// The API server's CA certificate, where it is known.
    pub root_ca: Option<Arc<str>>,
    pub gates: Gates,
    pub provisioning: Provisioning,
    /// Where the volumes of the plugin inside are: on this machine, or on a simulation's.
    pub directories: Arc<dyn Directories>,
    /// The pod garbage collector keeps this many ended pods; 0 or less keeps all.
    pub terminated_pod_threshold: i64,
    pub clock: Clock,
    /// The CSI drivers to serve.
    pub drivers: Vec<Endpoint>,
    /// What is read once for all of them, and for whoever else of the process has a clone of it.
    pub reader: Reader,
    /// The namespaces that they work in.
    pub reach: Reach,
    /// For tests: every plan for a set is judged by `plan::statefulset::invariant`. Without it none is.
    pub judge: Option<Judge>,
}

impl Setup {
    /// The default gates and the machine's clock.
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
            reader: Reader::default(),
            reach: Reach::default(),
            judge: None,
        }
    }
}

struct Controller {
    name: &'static str,
    /// The ServiceAccount in `kube-system` that it acts as.
    account: &'static str,
    span: Span,
    run: fn(Part) -> BoxFuture<'static, ()>,
}

/// What a controller's work is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Span {
    /// What is in a namespace, and volumes of its claims: it can be kept to a few of them.
    Namespaces,
    /// Something of the whole cluster, or a driver, of which there is one for all namespaces.
    Cluster,
}
use Span::{Cluster, Namespaces};

const ALL: &[Controller] = &[
    Controller {
        name: "garbage-collector-controller",
        account: "generic-garbage-collector",
        span: Cluster,
        run: |part| Box::pin(gc::run(part)),
    },
    Controller {
        name: "namespace-controller",
        account: "namespace-controller",
        span: Cluster,
        run: |part| Box::pin(namespaces::run(part)),
    },
    Controller {
        name: "serviceaccount-controller",
        account: "service-account-controller",
        span: Cluster,
        run: |part| Box::pin(accounts::run_accounts(part)),
    },
    Controller {
        name: "root-ca-certificate-publisher-controller",
        account: "root-ca-cert-publisher",
        span: Cluster,
        run: |part| Box::pin(accounts::run_root_ca(part)),
    },
    Controller {
        name: "clusterrole-aggregation-controller",
        account: "clusterrole-aggregation-controller",
        span: Cluster,
        run: |part| Box::pin(roles::run(part)),
    },
    Controller {
        name: "disruption-controller",
        account: "disruption-controller",
        span: Namespaces,
        run: |part| Box::pin(disruption::run(part)),
    },
    Controller {
        name: "endpoints-controller",
        account: "endpoint-controller",
        span: Namespaces,
        run: |part| Box::pin(endpoints::run(part)),
    },
    Controller {
        name: "node-lifecycle-controller",
        account: "node-controller",
        span: Cluster,
        run: |part| Box::pin(lifecycle::run(part)),
    },
    Controller {
        name: "pod-garbage-collector-controller",
        account: "pod-garbage-collector",
        span: Cluster,
        run: |part| Box::pin(podgc::run(part)),
    },
    Controller {
        name: "statefulset-controller",
        account: "statefulset-controller",
        span: Namespaces,
        run: |part| Box::pin(statefulset::run(part)),
    },
    Controller {
        name: "persistentvolume-binder-controller",
        account: "persistent-volume-binder",
        span: Namespaces,
        run: |part| Box::pin(binder::run(part)),
    },
    Controller {
        name: "persistentvolumeclaim-protection-controller",
        account: "pvc-protection-controller",
        span: Namespaces,
        run: |part| Box::pin(protection::run_claims(part)),
    },
    Controller {
        name: "persistentvolume-protection-controller",
        account: "pv-protection-controller",
        span: Namespaces,
        run: |part| Box::pin(protection::run_volumes(part)),
    },
    Controller {
        name: "volumeattributesclass-protection-controller",
        account: "volumeattributesclass-protection-controller",
        span: Cluster,
        run: |part| Box::pin(protection::run_classes(part)),
    },
    Controller {
        name: "csi-provisioner-controller",
        account: "csi-provisioner",
        span: Cluster,
        run: |part| Box::pin(csi::run_provisioner(part)),
    },
    Controller {
        name: "csi-resizer-controller",
        account: "csi-resizer",
        span: Cluster,
        run: |part| Box::pin(csi::run_resizer(part)),
    },
    Controller {
        name: "csi-health-monitor-controller",
        account: "csi-health-monitor",
        span: Cluster,
        run: |part| Box::pin(csi::run_monitor(part)),
    },
    Controller {
        name: "state-metrics",
        account: "state-metrics",
        span: Namespaces,
        run: |part| Box::pin(states::run(part)),
    },
];

/// The names of all controllers.
pub const NAMES: [&str; ALL.len()] = {
    let mut names = [""; ALL.len()];
    let mut at = 0;
    while at < ALL.len() {
        names[at] = ALL[at].name;
        at += 1;
    }
    names
};

const RESTART_AFTER: Duration = Duration::from_secs(1);

/// Controllers at work.
pub struct Controllers {
    setup: Setup,
    drivers: Drivers,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl Controllers {
    /// Whether `list` selects controllers that there are, and that can be kept to these namespaces; the error is one sentence.
    pub fn check(list: &str, reach: &Reach) -> Result<(), String> {
        select(list, reach).map(drop)
    }

    /// The controllers that `list` selects, each with the ServiceAccount whose rights it needs.
    pub fn accounts(list: &str, reach: &Reach) -> Result<Vec<(&'static str, &'static str)>, String> {
        let selected = select(list, reach)?;
        let chosen = ALL.iter().filter(|controller| selected.contains(&controller.name));
        Ok(chosen.map(|controller| (controller.name, controller.account)).collect())
    }

    /// Starts the controllers that the list selects; `client` makes a client that acts as a ServiceAccount of `kube-system`
    /// ([`Metrics::client`], so that missing rights are told). The error is one sentence about a bad list.
    pub fn start(setup: &Setup, client: impl Fn(&str) -> Client) -> Result<Controllers, String> {
        let selected = select(&setup.list, &setup.reach)?;
        let tasks = TaskTracker::new();
        let shutdown = CancellationToken::new();
        let drivers = Drivers::start(&setup.drivers, &setup.metrics.csi.calls, &tasks, &shutdown);
        let controllers = Controllers { setup: setup.clone(), drivers, tasks, shutdown };
        let mut voices = HashMap::new();
        for controller in ALL.iter().filter(|controller| selected.contains(&controller.name)) {
            let api = Api::sharing(client(controller.account), &setup.reader).within(&setup.reach);
            let part = controllers.part(controller.name, controller.account, api);
            voices.insert(controller.account, part.events.clone());
            controllers.tasks.spawn(keep_running(controller, part));
        }
        let (refusals, stop) = (setup.metrics.refusals(), controllers.shutdown.clone());
        controllers.tasks.spawn(async move { stop.run_until_cancelled(refusals.tell(voices)).await });
        controllers.tasks.close();
        Ok(controllers)
    }

    /// What one controller is given to work with; it stops with the others.
    pub fn part(&self, name: &'static str, account: &'static str, api: Api) -> Part {
        let Controllers { setup, drivers, tasks, shutdown } = self;
        Part {
            name,
            events: Events::start(&api, account, &setup.metrics, &setup.clock, tasks, shutdown),
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
            reach: setup.reach.clone(),
        }
    }

    /// Stops them all; when this returns, none of their tasks is left.
    pub async fn stop(self) {
        self.shutdown.cancel();
        self.tasks.wait().await;
    }
}

/// A controller that panics has a bug, but the others and its next attempt should not suffer from it.
async fn keep_running(controller: &'static Controller, part: Part) {
    loop {
        let run = tokio::spawn((controller.run)(part.clone()));
        match run.await {
            Ok(()) => return,
            Err(error) => {
                tracing::error!(controller = controller.name, %error, "a controller broke down; starting it again")
            }
        }
        tokio::select! {
            biased;
            () = part.shutdown.cancelled() => return,
            () = tokio::time::sleep(RESTART_AFTER) => {}
        }
    }
}

fn select(list: &str, reach: &Reach) -> Result<Vec<&'static str>, String> {
    let find = |name: &str| {
        let found = ALL.iter().find(|known| known.name == name);
        found.ok_or_else(|| format!("there is no controller {name:?}; there are {}", NAMES.join(", ")))
    };
    let fits = |controller: &Controller| reach.is_everywhere() || controller.span == Namespaces;
    let mut selected = Vec::new();
    let mut without = Vec::new();
    for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        match word.strip_prefix('-') {
            _ if word == "*" => selected.extend(ALL.iter().filter(|known| fits(known)).map(|known| known.name)),
            Some(name) => without.push(find(name)?.name),
            None if !fits(find(word)?) => {
                return Err(format!(
                    "{word} works on the whole cluster and cannot be kept to namespaces: leave it out of --controllers, or run it \
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
        let select = |list| select(list, &Reach::default());
        assert_eq!(select("*").unwrap(), NAMES);
        assert_eq!(select("").unwrap(), Vec::<&str>::new());
        assert_eq!(select("namespace-controller").unwrap(), ["namespace-controller"]);
        assert_eq!(select("*,-namespace-controller").unwrap().len(), NAMES.len() - 1);
        assert!(select("*,-nobody").unwrap_err().contains("there is no controller \"nobody\""));
    }

    /// Whoever sees a part of the cluster must not judge the whole: what owns, holds or uses a thing may be elsewhere.
    #[test]
    fn in_a_few_namespaces_only_those_work_that_need_not_see_the_rest() {
        let select = |list| select(list, &Reach::parse("shop").unwrap());
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
                    assert!(!few.contains(&name) && error.contains("cannot be kept to namespaces"), "{error}")
                }
            }
        }
    }
}
