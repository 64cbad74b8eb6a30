//! The scheduler's view of the cluster, indexed so that the cost of a change depends only on what changed.

use super::Key;
use super::facts::{ClaimUse, HostPort, Labels, Node, Pod, Requests, Standing, Wants, key};
use super::volumes::Volumes;
use object::Value;
use object::access::Access;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Owned and updated by one task; each kind of object has `apply` and `remove`.
#[derive(Debug, Default)]
pub struct Cluster {
    /// The `schedulerName` whose pods are scheduled here; empty schedules none.
    scheduler: String,
    pub(super) nodes: BTreeMap<Arc<str>, Node>,
    /// The usage of each node, including nodes that are not known yet or any more.
    pub(super) taken: HashMap<Arc<str>, Taken>,
    /// Pods that have not terminated. Sorted, so that those of a namespace are adjacent.
    pub(super) pods: BTreeMap<Key, Pod>,
    /// Pods with required anti-affinity, which pods of their namespace must respect.
    pub(super) apart: BTreeSet<Key>,
    /// Those of them that pods of other namespaces must respect, too.
    pub(super) apart_across: BTreeSet<Key>,
    pub(super) volumes: Volumes,
    pub(super) namespaces: HashMap<Arc<str>, Value>,
}

/// The total of the pods that are bound to a node or reserved for it.
#[derive(Debug, Default)]
pub struct Taken {
    pub requests: Requests,
    pub pods: BTreeSet<Key>,
    pub ports: Vec<HostPort>,
}

/// How a change of a pod affects other pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// The pod needs a node, and is new or has changed.
    pub pending: bool,
    /// The pod uses less than before, or its labels changed: other pods may fit now.
    pub gave_way: bool,
    /// The pod is on a new node, or its labels changed: pods with affinity to it may fit now.
    pub arrived: bool,
}

impl Cluster {
    pub fn new(scheduler: &str) -> Cluster {
        Cluster { scheduler: scheduler.to_owned(), ..Cluster::default() }
    }

    pub fn apply_node(&mut self, node: &Value) -> bool {
        let (name, facts) = (node.text(&["metadata", "name"]), Node::of(node));
        match self.nodes.get_mut(name) {
            Some(known) if *known == facts => false,
            Some(known) => {
                *known = facts;
                true
            }
            None => {
                self.nodes.insert(name.into(), facts);
                true
            }
        }
    }

    pub fn remove_node(&mut self, name: &str) {
        self.nodes.remove(name);
    }

    pub fn node_names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.nodes.keys()
    }

    /// The usage of a node.
    pub fn taken(&self, node: &str) -> Option<&Taken> {
        self.taken.get(node)
    }

    pub fn apply_pod(&mut self, object: &Value) -> Moved {
        let key = key(object);
        let Some(mut pod) = Pod::of(object, &self.scheduler) else { return self.remove_pod(&key) };
        let before = self.pods.get(&key);
        if pod.standing == Standing::Pending
            && let Some(before) = before.filter(|before| before.uid == pod.uid)
            && let Standing::Reserved(node) = &before.standing
        {
            // The binding was sent; this event is older.
            pod.standing = Standing::Reserved(node.clone());
        }
        let moved = Moved::between(before, Some(&pod));
        self.take_out(&key);
        self.insert(key, pod);
        moved
    }

    pub fn remove_pod(&mut self, key: &Key) -> Moved {
        let moved = Moved::between(self.pods.get(key), None);
        self.take_out(key);
        moved
    }

    fn take_out(&mut self, key: &Key) {
        let Some(pod) = self.pods.remove(key) else { return };
        self.vacate(key, &pod);
        self.apart.remove(key);
        self.apart_across.remove(key);
        self.volumes.forget_user(key, &pod.claims);
    }

    fn insert(&mut self, key: Key, pod: Pod) {
        self.occupy(&key, &pod);
        if !pod.apart.is_empty() {
            self.apart.insert(key.clone());
            let across = |term: &Value| term.has(&["namespaces"]) || term.has(&["namespaceSelector"]);
            if pod.apart.iter().any(across) {
                self.apart_across.insert(key.clone());
            }
        }
        self.volumes.note_user(&key, &pod.claims);
        self.pods.insert(key, pod);
    }

    fn occupy(&mut self, key: &Key, pod: &Pod) {
        let Some(node) = pod.standing.node() else { return };
        let taken = self.taken.entry(node.clone()).or_default();
        if taken.pods.insert(key.clone()) {
            taken.requests.add(&pod.requests);
            taken.ports.extend_from_slice(&pod.ports);
        }
    }

    fn vacate(&mut self, key: &Key, pod: &Pod) {
        let Some(node) = pod.standing.node() else { return };
        let Some(taken) = self.taken.get_mut(node) else { return };
        if taken.pods.remove(key) {
            taken.requests.subtract(&pod.requests);
            for port in &pod.ports {
                if let Some(at) = taken.ports.iter().position(|taken| taken == port) {
                    taken.ports.swap_remove(at);
                }
            }
        }
        if taken.pods.is_empty() {
            self.taken.remove(node);
        }
    }

    pub fn pod(&self, key: &Key) -> Option<&Pod> {
        self.pods.get(key)
    }

    pub fn pod_keys(&self) -> impl Iterator<Item = &Key> {
        self.pods.keys()
    }

    /// The pods of one namespace.
    pub(super) fn pods_in<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = (&'a Key, &'a Pod)> {
        let from: Key = (namespace.into(), "".into());
        self.pods.range(from..).take_while(move |(key, _)| &*key.0 == namespace)
    }

    /// The pods whose anti-affinity may exclude a pod of this namespace.
    pub(super) fn apart_from<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a Key> {
        let from: Key = (namespace.into(), "".into());
        let near = self.apart.range(from..).take_while(move |key| &*key.0 == namespace);
        near.chain(self.apart_across.iter().filter(move |key| &*key.0 != namespace))
    }

    /// Reserves resources for a pod on a node until it is bound or released.
    pub fn reserve(&mut self, key: &Key, node: &Arc<str>) {
        self.stand(key, Standing::Reserved(node.clone()));
    }

    /// Removes the reservation of a pod. Returns whether there was one.
    pub fn release(&mut self, key: &Key) -> bool {
        let reserved = matches!(self.pods.get(key), Some(Pod { standing: Standing::Reserved(_), .. }));
        if reserved {
            self.stand(key, Standing::Pending);
        }
        reserved
    }

    fn stand(&mut self, key: &Key, standing: Standing) {
        let Some(mut pod) = self.pods.remove(key) else { return };
        self.vacate(key, &pod);
        pod.standing = standing;
        self.occupy(key, &pod);
        self.pods.insert(key.clone(), pod);
    }

    pub fn apply_namespace(&mut self, namespace: &Value) {
        let labels = namespace.at(&["metadata", "labels"]).cloned().unwrap_or(Value::Null);
        self.namespaces.insert(namespace.text(&["metadata", "name"]).into(), labels);
    }

    pub fn remove_namespace(&mut self, name: &str) {
        self.namespaces.remove(name);
    }

    pub fn namespace_names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.namespaces.keys()
    }

    pub fn volumes(&self) -> &Volumes {
        &self.volumes
    }

    pub fn volumes_mut(&mut self) -> &mut Volumes {
        &mut self.volumes
    }
}

impl Moved {
    fn between(before: Option<&Pod>, after: Option<&Pod>) -> Moved {
        /// What of a pod matters to other pods.
        fn face(pod: &Pod) -> (Option<&Arc<str>>, &Labels, &Requests, bool) {
            (pod.standing.node(), &pod.labels, &pod.requests, pod.terminating)
        }
        /// What of a pod determines where it fits.
        fn asks(pod: &Pod) -> (&Option<Arc<Wants>>, &Requests, &[ClaimUse], &Labels) {
            (&pod.wants, &pod.requests, &pod.claims, &pod.labels)
        }
        let stands = |pod: &Pod| pod.standing.node().is_some();
        let changed = before.map(face) != after.map(face);
        Moved {
            pending: after.is_some_and(|pod| pod.standing == Standing::Pending) && before.map(asks) != after.map(asks),
            gave_way: changed && before.is_some_and(stands),
            arrived: changed && after.is_some_and(stands),
        }
    }
}
