//! What the scheduler stores of pods and nodes: a few hundred bytes per pod, however large its object is.

use super::Key;
use super::taint::{Effect, Taint};
use object::access::{Access, name, namespace, terminating, uid};
use object::pod::amounts::{self, Amounts};
use object::quantity::Quantity;
use object::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Amounts of resources; i128, so that sums cannot overflow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    pub cpu_milli: i128,
    pub memory: i128,
    pub ephemeral_storage: i128,
    /// Extended resources and huge pages, by name.
    pub others: BTreeMap<Box<str>, i128>,
}

impl Requests {
    pub fn of_pod(pod: &Value) -> Requests {
        Requests::of(&amounts::of_pod(pod, "requests"))
    }

    fn of(amounts: &Amounts) -> Requests {
        let mut requests = Requests::default();
        for (name, amount) in amounts {
            match name.as_str() {
                "cpu" => requests.cpu_milli = amount.ceil_milli().into(),
                "memory" => requests.memory = amount.ceil().into(),
                "ephemeral-storage" => requests.ephemeral_storage = amount.ceil().into(),
                "pods" => {}
                other => {
                    requests.others.insert(other.into(), amount.ceil().into());
                }
            }
        }
        requests
    }

    pub fn add(&mut self, more: &Requests) {
        self.change(more, 1);
    }

    pub fn subtract(&mut self, less: &Requests) {
        self.change(less, -1);
    }

    fn change(&mut self, by: &Requests, sign: i128) {
        self.cpu_milli += sign * by.cpu_milli;
        self.memory += sign * by.memory;
        self.ephemeral_storage += sign * by.ephemeral_storage;
        for (name, amount) in &by.others {
            *self.others.entry(name.clone()).or_default() += sign * amount;
        }
    }

    /// The resources of which `wanted` does not fit next to `used`. A request of 0 always fits.
    pub fn lacking<'a>(&self, used: &Requests, wanted: &'a Requests) -> Vec<&'a str> {
        let mut lacking = Vec::new();
        let mut check = |name: &'a str, have: i128, used: i128, wanted: i128| {
            if wanted > 0 && used + wanted > have {
                lacking.push(name);
            }
        };
        check("cpu", self.cpu_milli, used.cpu_milli, wanted.cpu_milli);
        check("memory", self.memory, used.memory, wanted.memory);
        check("ephemeral-storage", self.ephemeral_storage, used.ephemeral_storage, wanted.ephemeral_storage);
        let of = |list: &Requests, name: &str| list.others.get(name).copied().unwrap_or(0);
        for (name, wanted) in &wanted.others {
            check(name, of(self, name), of(used, name), *wanted);
        }
        lacking
    }
}

/// Packed labels: alternating keys and values, each terminated by a line feed, which neither can contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels(Box<str>);

impl Labels {
    pub fn of(labels: &Map) -> Labels {
        let mut packed = String::new();
        for (key, value) in labels {
            packed.push_str(key);
            packed.push('\n');
            packed.push_str(value.as_str().unwrap_or(""));
            packed.push('\n');
        }
        Labels(packed.into())
    }

    pub fn get(&self, wanted: &str) -> Option<&str> {
        let mut words = self.0.split_terminator('\n');
        while let (Some(key), Some(value)) = (words.next(), words.next()) {
            if key == wanted {
                return Some(value);
            }
        }
        None
    }
}

/// A host port of a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    pub port: i64,
    pub protocol: Box<str>,
    /// Empty means every address.
    pub address: Box<str>,
}

impl HostPort {
    pub fn meets(&self, other: &HostPort) -> bool {
        let everywhere = self.address.is_empty() || other.address.is_empty();
        self.port == other.port && self.protocol == other.protocol && (everywhere || self.address == other.address)
    }
}

fn host_ports(pod: &Value) -> Vec<HostPort> {
    let containers = ["containers", "initContainers"].iter().flat_map(|list| {
        let sidecars_only = *list == "initContainers";
        pod.items(&["spec", list])
            .iter()
            .filter(move |container| !sidecars_only || container.text(&["restartPolicy"]) == "Always")
    });
    containers
        .flat_map(|container| container.items(&["ports"]))
        .filter_map(|port| {
            let number = port.int(&["hostPort"]).filter(|number| *number > 0)?;
            let protocol = if port.text(&["protocol"]).is_empty() { "TCP" } else { port.text(&["protocol"]) };
            let address = if port.text(&["hostIP"]) == "0.0.0.0" { "" } else { port.text(&["hostIP"]) };
            Some(HostPort { port: number, protocol: protocol.into(), address: address.into() })
        })
        .collect()
}

/// A claim that a pod uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimUse {
    pub name: Arc<str>,
    /// It is created for this pod and deleted with it.
    pub ephemeral: bool,
}

/// The claims that a pod's volumes use.
pub fn claims_of(pod: &Value) -> Vec<ClaimUse> {
    let uses = pod.items(&["spec", "volumes"]).iter().filter_map(|volume| {
        let claimed = volume.text(&["persistentVolumeClaim", "claimName"]);
        if !claimed.is_empty() {
            return Some(ClaimUse { name: claimed.into(), ephemeral: false });
        }
        let own = format!("{}-{}", name(pod), volume.text(&["name"]));
        volume.has(&["ephemeral"]).then(|| ClaimUse { name: own.into(), ephemeral: true })
    });
    let mut seen = BTreeSet::new();
    uses.filter(|used| seen.insert(used.name.clone())).collect()
}

/// Whether and where a pod is scheduled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has no node, and belongs to another scheduler or is terminating.
    Elsewhere,
    /// It waits for a node.
    Pending,
    /// A node was chosen and its resources are reserved, but the pod is not bound yet.
    Reserved(Arc<str>),
    Bound(Arc<str>),
}

impl Standing {
    pub fn node(&self) -> Option<&Arc<str>> {
        match self {
            Standing::Reserved(node) | Standing::Bound(node) => Some(node),
            Standing::Elsewhere | Standing::Pending => None,
        }
    }
}

/// A pod that uses or requests resources.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    pub uid: Box<str>,
    pub standing: Standing,
    pub requests: Requests,
    pub labels: Labels,
    pub ports: Box<[HostPort]>,
    pub claims: Box<[ClaimUse]>,
    pub terminating: bool,
    /// The required terms of its anti-affinity, which other pods must respect, too.
    pub apart: Box<[Value]>,
    /// Its requirements, while it has no node.
    pub wants: Option<Arc<Wants>>,
    /// Its scheduling condition, while it has no node.
    pub said: Option<Box<Said>>,
}

/// Reason and message of the condition `PodScheduled`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub reason: String,
    pub message: String,
}

/// The requirements of a pending pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Wants {
    pub priority: i64,
    pub gated: bool,
    /// `nodeSelector`, `affinity`, `tolerations` and `topologySpreadConstraints` of its spec.
    pub spec: Value,
}

impl Pod {
    /// Reads a pod; `None` if it has terminated and uses nothing any more. `ours` is the `schedulerName` to
    /// schedule.
    pub fn of(pod: &Value, ours: &str) -> Option<Pod> {
        if matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed") {
            return None;
        }
        let node = pod.text(&["spec", "nodeName"]);
        let scheduler = match pod.text(&["spec", "schedulerName"]) {
            "" => "default-scheduler",
            named => named,
        };
        let standing = match node {
            "" if scheduler == ours && !terminating(pod) => Standing::Pending,
            "" => Standing::Elsewhere,
            node => Standing::Bound(node.into()),
        };
        Some(Pod {
            uid: uid(pod).into(),
            wants: (standing == Standing::Pending).then(|| Arc::new(Wants::of(pod))),
            said: (standing == Standing::Pending).then(|| Said::of(pod)).flatten(),
            standing,
            requests: Requests::of_pod(pod),
            labels: Labels::of(pod.members(&["metadata", "labels"])),
            ports: host_ports(pod).into(),
            claims: claims_of(pod).into(),
            terminating: terminating(pod),
            apart: pod
                .items(&["spec", "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution"])
                .into(),
        })
    }
}

impl Said {
    fn of(pod: &Value) -> Option<Box<Said>> {
        let said = object::condition::get(pod, "PodScheduled")?;
        let (reason, message) = (said.text(&["reason"]).to_owned(), said.text(&["message"]).to_owned());
        Some(Box::new(Said { reason, message }))
    }
}

impl Wants {
    fn of(pod: &Value) -> Wants {
        let fields = ["nodeSelector", "affinity", "tolerations", "topologySpreadConstraints"];
        let kept = fields.iter().filter_map(|field| Some(((*field).to_owned(), pod.at(&["spec", field])?.clone())));
        Wants {
            priority: pod.int(&["spec", "priority"]).unwrap_or(0),
            gated: !pod.items(&["spec", "schedulingGates"]).is_empty(),
            spec: Value::Object(kept.collect()),
        }
    }
}

/// `namespace/name` of an object.
pub fn key(object: &Value) -> Key {
    (namespace(object).into(), name(object).into())
}

/// The scheduler's view of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Its labels, as a JSON object.
    pub labels: Value,
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    pub allocatable: Requests,
    pub pods_max: i128,
}

impl Node {
    pub fn of(node: &Value) -> Node {
        let allocatable = node.members(&["status", "allocatable"]).iter();
        let allocatable: Amounts =
            allocatable.filter_map(|(name, value)| Some((name.to_string(), Quantity::of(value)?))).collect();
        Node {
            labels: node.at(&["metadata", "labels"]).cloned().unwrap_or_else(|| json!({})),
            taints: node.items(&["spec", "taints"]).iter().map(Taint::of).collect(),
            unschedulable: node.flag(&["spec", "unschedulable"]),
            pods_max: allocatable.get("pods").map_or(0, |pods| pods.ceil().into()),
            allocatable: Requests::of(&allocatable),
        }
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).and_then(Value::as_str)
    }

    /// The taints that exclude pods which do not tolerate them.
    pub fn hard_taints(&self) -> impl Iterator<Item = &Taint> {
        self.taints.iter().filter(|taint| matches!(taint.effect, Effect::NoSchedule | Effect::NoExecute))
    }
}
