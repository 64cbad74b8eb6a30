//! Invariants of a cluster. A [`Checker`] gets each committed change and who made it, and returns violations
//! as sentences. It shares no code with the decisions that it checks. Its cost is proportional to the change.

mod claims;
mod endpoints;
mod nodes;
mod replicas;
mod sets;
#[cfg(test)]
mod tests;
mod volumes;

use endpoints::Addresses;
use jiff::{SignedDuration, Timestamp};
use object::access::{Access, name, namespace, uid};
use object::{Gates, Value};
use sets::Sets;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use volumes::Volumes;

pub use volumes::handle;

/// Who made a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who<'a> {
    /// A person, who may do anything.
    User,
    /// A component of the control plane, by the name of its ServiceAccount.
    Part(&'a str),
}

impl Who<'_> {
    /// The ServiceAccount of the StatefulSet controller.
    pub const SETS: &'static str = "statefulset-controller";
    /// The ServiceAccount of the garbage collector.
    pub const COLLECTOR: &'static str = "generic-garbage-collector";
    pub const NAMESPACES: &'static str = "namespace-controller";

    fn is(self, part: &str) -> bool {
        self == Who::Part(part)
    }

    fn text(self) -> String {
        match self {
            Who::User => "a user".to_owned(),
            Who::Part(part) => part.to_owned(),
        }
    }
}

/// One change of one object.
#[derive(Clone, Debug)]
pub struct Change<'a> {
    pub who: Who<'a>,
    pub now: Timestamp,
    /// `None` for a creation.
    pub before: Option<Arc<Value>>,
    /// `None` for a removal.
    pub after: Option<Arc<Value>>,
}

impl Change<'_> {
    fn object(&self) -> Option<&Value> {
        self.after.as_deref().or(self.before.as_deref())
    }

    /// Whether this change sets the deletionTimestamp, or removes an object without one.
    fn condemns(&self) -> bool {
        let terminating = |object: &Value| object.has(&["metadata", "deletionTimestamp"]);
        let was = self.before.as_deref().is_none_or(terminating);
        !was && self.after.as_deref().is_none_or(terminating)
    }

    fn removes(&self) -> Option<&Value> {
        if self.after.is_some() { None } else { self.before.as_deref() }
    }
}

/// Kind, namespace and name.
type Key = (String, String, String);

/// The kinds with invariants; changes of others need not be passed in.
pub const KINDS: [&str; 10] = [
    "ConfigMap",
    "Endpoints",
    "Namespace",
    "Node",
    "Pod",
    "PersistentVolumeClaim",
    "PersistentVolume",
    "Service",
    "StatefulSet",
    "VolumeAttachment",
];

/// The default of [`Checker::set_echo`], for tests without a bound on delays.
const ECHO: SignedDuration = SignedDuration::from_secs(120);

/// The gate that makes controllers honour reclaim policies in any order of deletion.
const HONOURS: &str = "HonorPVReclaimPolicy";

/// Has the current objects of [`KINDS`] and the parts of their history that invariants need.
pub struct Checker {
    objects: BTreeMap<Key, Arc<Value>>,
    addresses: Addresses,
    sets: Sets,
    volumes: Volumes,
    nodes: nodes::Nodes,
    /// When each pod got its node, by uid, as a count of changes.
    placed: BTreeMap<String, u64>,
    /// When each claim's deletion began, by uid, as a count of changes.
    condemned: BTreeMap<String, u64>,
    /// When each pod's deletion began, by uid.
    pods_told: BTreeMap<String, Timestamp>,
    /// Claims that were created when their set was already terminating, by uid.
    stillborn: BTreeSet<String>,
    changes: u64,
    /// The time of the last change.
    now: Timestamp,
    /// The feature gates of the controllers.
    gates: Gates,
    /// How long a former state still justifies an action.
    echo: SignedDuration,
    /// Whether the provisioner, which may be another process, honours reclaim policies.
    drivers_honour: bool,
}

impl Checker {
    pub fn new(gates: Gates) -> Checker {
        Checker {
            objects: BTreeMap::new(),
            addresses: Addresses::default(),
            sets: Sets::default(),
            volumes: Volumes::default(),
            nodes: nodes::Nodes::default(),
            placed: BTreeMap::new(),
            condemned: BTreeMap::new(),
            pods_told: BTreeMap::new(),
            stillborn: BTreeSet::new(),
            changes: 0,
            now: Timestamp::UNIX_EPOCH,
            drivers_honour: gates.on(HONOURS),
            gates,
            echo: ECHO,
        }
    }

    /// Sets how long a former state still justifies an action: after this time every component has received
    /// the change.
    pub fn set_echo(&mut self, echo: SignedDuration) {
        self.echo = echo;
    }

    /// States that held at or after this time still count.
    fn since(&self, now: Timestamp) -> Timestamp {
        now.checked_sub(self.echo).unwrap_or(Timestamp::MIN)
    }

    /// Changes the feature gates of the controllers; they change what policies mean.
    pub fn set_gates(&mut self, gates: Gates, now: Timestamp) {
        let provisioner = gates.clone();
        self.set_gates_apart(gates, &provisioner, now);
    }

    /// Changes the gates of the controllers and, separately, those of the provisioner.
    pub fn set_gates_apart(&mut self, gates: Gates, provisioner: &Gates, now: Timestamp) {
        let before = [true, false].map(|is_inside| self.honours(is_inside));
        self.gates = gates;
        self.drivers_honour = provisioner.on(HONOURS);
        for (is_inside, honoured) in [true, false].into_iter().zip(before) {
            if self.honours(is_inside) != honoured {
                self.honours_turned(is_inside, now);
            }
        }
        let sets: Vec<Arc<Value>> = self.all("StatefulSet").cloned().collect();
        for set in sets {
            self.sets.see(&set, Who::Part(""), &self.gates, now);
        }
    }

    /// Whether reclaim policies are honoured: the binder does this for its built-in plugin, the provisioner
    /// for drivers.
    fn honours(&self, is_inside: bool) -> bool {
        if is_inside { self.gates.on(HONOURS) } else { self.drivers_honour }
    }

    /// Treats these sets (namespace, name) as slices of one: the same ordinal must not run in two of them.
    pub fn join(&mut self, sets: &[(&str, &str)]) {
        self.sets.join(sets);
    }

    /// Whether any sets are treated as slices of one.
    pub fn has_joined(&self) -> bool {
        self.sets.has_joined()
    }

    /// Applies a change; returns a sentence for every invariant that it violates.
    pub fn see(&mut self, change: &Change<'_>) -> Vec<String> {
        let Some(object) = change.object() else { return Vec::new() };
        let kind = object.text(&["kind"]).to_owned();
        if !KINDS.contains(&kind.as_str()) {
            return Vec::new();
        }
        self.changes += 1;
        self.now = change.now;
        let key = (kind.clone(), namespace(object).to_owned(), name(object).to_owned());
        match &change.after {
            Some(after) => drop(self.objects.insert(key, Arc::clone(after))),
            None => drop(self.objects.remove(&key)),
        }
        match kind.as_str() {
            "Pod" => {
                change.after.iter().for_each(|pod| self.addresses.see_pod(pod));
                self.pod(change)
            }
            "Endpoints" => change.after.as_deref().map(|it| self.addresses.judge(it)).unwrap_or_default(),
            "PersistentVolumeClaim" => self.claim(change),
            "PersistentVolume" => self.volume(change),
            "Node" => {
                self.node(change);
                Vec::new()
            }
            "VolumeAttachment" => self.attachment(change).into_iter().collect(),
            "StatefulSet" => {
                self.set(change);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn set(&mut self, change: &Change<'_>) {
        match (&change.after, &change.before) {
            (Some(set), _) => self.sets.see(set, change.who, &self.gates, change.now),
            (None, Some(set)) => self.sets.gone(set, change.who, change.now),
            (None, None) => {}
        }
    }

    /// All objects of a kind, by namespace and name.
    pub fn all(&self, kind: &str) -> impl Iterator<Item = &Arc<Value>> {
        let from = (kind.to_owned(), String::new(), String::new());
        let kind = kind.to_owned();
        self.objects.range(from..).take_while(move |(key, _)| key.0 == kind).map(|(_, object)| object)
    }

    pub fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<&Arc<Value>> {
        self.objects.get(&(kind.to_owned(), namespace.to_owned(), name.to_owned()))
    }

    /// The object of this name, if it has this uid.
    fn same(&self, kind: &str, namespace: &str, name: &str, wanted_uid: &str) -> Option<&Arc<Value>> {
        self.get(kind, namespace, name).filter(|object| uid(object) == wanted_uid)
    }

    fn namespace_ends(&self, name: &str) -> bool {
        self.get("Namespace", "", name).is_none_or(|it| it.has(&["metadata", "deletionTimestamp"]))
    }
}

/// Parses a quantity.
fn bytes(object: &Value, path: &[&str]) -> Option<object::quantity::Quantity> {
    object.text(path).parse().ok()
}
