//! What is seen of the cluster, by one set of watches for all nodes and the scheduler.

use crate::addresses::Addresses;
use crate::line::Line;
use futures::StreamExt;
use object::Value;
use object::access::{Access, name, terminating, uid};
use plan::kubelet::{self, Event, expand};
use plan::schedule::{Cluster, Key, Moved, key};
use runtime::Metrics;
use runtime::api::{Api, ApiError, Resource};
use runtime::follow::{self, Change};
use runtime::queue::Queue;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{Notify, watch};

/// Shared by the watches, the scheduler and the kubelets.
pub struct Sight {
    state: Mutex<State>,
    /// Pods of simulated nodes that are worth a look.
    pub pods: Queue<Key>,
    /// Simulated nodes that are worth a look.
    pub nodes: Queue<Arc<str>>,
    /// Claims that wait for a node to finish their expansion, and may find one now.
    pub claims: Queue<Key>,
    /// The scheduler has something to do.
    pub scheduling: Notify,
    /// How many watches have not yet heard all that there is.
    unfilled: watch::Sender<usize>,
}

pub struct State {
    pub cluster: Cluster,
    pub line: Line,
    /// The simulated nodes, by name.
    pub hosts: HashMap<Arc<str>, Host>,
    /// The pods that are bound to them.
    pub local: HashMap<Key, Local>,
    pub addresses: Addresses,
    /// The claims that wait for a node to finish their expansion.
    pub expanding: HashMap<Key, Arc<Value>>,
}

/// A simulated node.
#[derive(Default)]
pub struct Host {
    pub number: usize,
    /// The Node as last seen.
    pub node: Option<Arc<Value>>,
    /// Down by the annotation of the Node. A Node that is deleted while it is down leaves this set: the machine is switched off and
    /// does not register again.
    pub down: bool,
}

/// A pod that a simulated node looks after.
pub struct Local {
    pub uid: Box<str>,
    pub node: Arc<str>,
    /// Nothing older than this is believed.
    version: u64,
    /// The pod itself, as long as something is to be done about it.
    pub object: Option<Arc<Value>>,
    pub address: Option<Ipv4Addr>,
    pub volumes: Mounts,
    /// The driver was asked whether it has the data of the pod's volumes.
    pub volumes_checked: bool,
    /// It waits for its claims.
    pub held: bool,
    /// How often the Secrets and ConfigMaps that it waits for were looked up in vain.
    pub config_attempts: u32,
    /// What people were told of it already, and need not hear again.
    pub told: Vec<Event>,
}

/// Where a pod is with its volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounts {
    Awaited,
    Mounted,
    /// It has ended, whatever is still heard of it.
    Over,
}

/// The kinds that are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    Pods,
    Nodes,
    Claims,
    Volumes,
    Classes,
    Namespaces,
}

impl Watched {
    pub const ALL: [Watched; 6] =
        [Watched::Pods, Watched::Nodes, Watched::Claims, Watched::Volumes, Watched::Classes, Watched::Namespaces];

    pub fn resource(self) -> Resource {
        match self {
            Watched::Pods => Resource::new("v1", "Pod", "pods", true),
            Watched::Nodes => Resource::new("v1", "Node", "nodes", false),
            Watched::Claims => Resource::new("v1", "PersistentVolumeClaim", "persistentvolumeclaims", true),
            Watched::Volumes => Resource::new("v1", "PersistentVolume", "persistentvolumes", false),
            Watched::Classes => Resource::new("storage.k8s.io/v1", "StorageClass", "storageclasses", false),
            Watched::Namespaces => Resource::new("v1", "Namespace", "namespaces", false),
        }
    }
}

impl Sight {
    pub fn new(scheduler: &str, nodes: &[Arc<str>], metrics: &Metrics) -> Sight {
        let hosts = nodes.iter().enumerate();
        let hosts = hosts.map(|(number, name)| (name.clone(), Host { number, ..Host::default() })).collect();
        let state = State {
            cluster: Cluster::new(scheduler),
            line: Line::new(),
            hosts,
            local: HashMap::new(),
            addresses: Addresses::new(nodes.len()),
            expanding: HashMap::new(),
        };
        Sight {
            state: Mutex::new(state),
            pods: Queue::new(metrics.queue("kubelet")),
            nodes: Queue::new(metrics.queue("node-registration")),
            claims: Queue::new(metrics.queue("node-expansion")),
            scheduling: Notify::new(),
            unfilled: watch::Sender::new(Watched::ALL.len()),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic happens under this lock")
    }

    /// Waits until all that there is has been heard.
    pub async fn filled(&self) {
        // It fails only when those who fill are gone: then nobody waits either.
        let _ = self.unfilled.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Follows one kind for ever.
    pub async fn follow(&self, api: Api, watched: Watched) {
        let mut changes = Box::pin(follow::objects(&api, &watched.resource(), None));
        let mut fresh: Option<HashSet<Key>> = None;
        let mut filled = false;
        while let Some(change) = changes.next().await {
            match change {
                Change::Restart => fresh = Some(HashSet::new()),
                Change::Seen(object) => {
                    if let Some(fresh) = &mut fresh {
                        fresh.insert(key(&object));
                    }
                    self.seen(watched, object);
                }
                Change::Gone(object) => self.gone(watched, &key(&object)),
                Change::Ready => {
                    let fresh = fresh.take().unwrap_or_default();
                    let stale = self.lock().keys(watched).into_iter().filter(|key| !fresh.contains(key));
                    for key in stale.collect::<Vec<Key>>() {
                        self.gone(watched, &key);
                    }
                    if !std::mem::replace(&mut filled, true) {
                        self.unfilled.send_modify(|count| *count -= 1);
                    }
                }
            }
        }
    }

    fn seen(&self, watched: Watched, object: Arc<Value>) {
        let mut state = self.lock();
        match watched {
            Watched::Pods => {
                let key = key(&object);
                if state.is_another(&key, uid(&object)) {
                    self.pod_gone(&mut state, &key);
                }
                let moved = state.cluster.apply_pod(&object);
                self.look_after(&mut state, object);
                state.pod_moved(&key, moved);
            }
            Watched::Nodes => self.node_seen(&mut state, object),
            Watched::Claims => {
                let (key, changed) = (key(&object), state.cluster.volumes_mut().apply_claim(&object));
                self.claim_changed(&mut state, &key, changed);
                if expand::is_pending(&object) {
                    state.expanding.insert(key.clone(), object);
                    self.claims.add(key);
                } else {
                    state.expanding.remove(&key);
                }
            }
            Watched::Volumes => {
                if state.cluster.volumes_mut().apply_volume(&object) {
                    state.line.retry(|helps| helps.volumes);
                }
            }
            Watched::Classes => {
                state.cluster.volumes_mut().apply_class(&object);
                state.line.retry(|helps| helps.volumes);
            }
            Watched::Namespaces => {
                state.cluster.apply_namespace(&object);
                state.line.retry(|helps| helps.arriving || helps.leaving);
            }
        }
        drop(state);
        self.scheduling.notify_one();
    }

    fn gone(&self, watched: Watched, key: &Key) {
        let mut state = self.lock();
        match watched {
            Watched::Pods => self.pod_gone(&mut state, key),
            Watched::Nodes => {
                state.cluster.remove_node(&key.1);
                if let Some(host) = state.hosts.get_mut(&key.1) {
                    host.node = None;
                    self.nodes.add(key.1.clone());
                }
            }
            Watched::Claims => {
                state.cluster.volumes_mut().remove_claim(key);
                state.expanding.remove(key);
                self.claim_changed(&mut state, key, true);
            }
            Watched::Volumes => {
                state.cluster.volumes_mut().remove_volume(&key.1);
                state.line.retry(|helps| helps.volumes);
            }
            Watched::Classes => state.cluster.volumes_mut().remove_class(&key.1),
            Watched::Namespaces => state.cluster.remove_namespace(&key.1),
        }
        drop(state);
        self.scheduling.notify_one();
    }

    fn pod_gone(&self, state: &mut State, key: &Key) {
        let moved = state.cluster.remove_pod(key);
        if let Some(address) = state.local.remove(key).and_then(|local| local.address) {
            state.addresses.take_back(address);
        }
        state.pod_moved(key, moved);
    }

    fn claim_changed(&self, state: &mut State, claim: &Key, changed: bool) {
        let State { cluster, line, local, .. } = &mut *state;
        for pod in cluster.volumes().users(claim) {
            match local.get(pod) {
                Some(local) if local.held => self.pods.add(pod.clone()),
                Some(_) => {}
                None if changed => line.add(pod, cluster.pod(pod)),
                None => {}
            }
        }
    }

    fn node_seen(&self, state: &mut State, node: Arc<Value>) {
        if state.cluster.apply_node(&node) {
            state.line.retry(|helps| helps.nodes);
        }
        let Some(host) = state.hosts.get_mut(name(&node)) else { return };
        let was_down = host.down;
        // The registrar reports an annotation that cannot be parsed.
        host.down = kubelet::is_down(&node).unwrap_or(false);
        let is_down = host.down;
        let name: Arc<str> = name(&node).into();
        host.node = Some(node);
        self.nodes.add(name.clone());
        if was_down && !is_down {
            self.revive(state, &name);
        }
    }

    /// A node is up again: it looks at all its pods.
    fn revive(&self, state: &State, node: &Arc<str>) {
        for (key, _) in state.local.iter().filter(|(_, local)| local.node == *node) {
            self.pods.add(key.clone());
        }
        self.nodes.add(node.clone());
    }

    /// Takes note of a pod that is bound to a simulated node.
    fn look_after(&self, state: &mut State, pod: Arc<Value>) {
        let Some((node, _)) = state.hosts.get_key_value(pod.text(&["spec", "nodeName"])) else {
            return;
        };
        let (node, key) = (node.clone(), key(&pod));
        let version = version(&pod);
        let had: Option<Ipv4Addr> = pod.text(&["status", "podIP"]).parse().ok();
        let had = had.filter(|_| !pod.flag(&["spec", "hostNetwork"]));
        let local = state.local.entry(key.clone()).or_insert_with(|| Local {
            uid: uid(&pod).into(),
            node: node.clone(),
            version: 0,
            object: None,
            address: None,
            volumes: Mounts::Awaited,
            volumes_checked: false,
            held: false,
            config_attempts: 0,
            told: Vec::new(),
        });
        if version < local.version {
            return;
        }
        if let Some(address) = had.filter(|address| local.address != Some(*address)) {
            state.addresses.note(address);
            local.address = Some(address);
        }
        let started = pod.text(&["status", "phase"]) == "Running" && local.volumes == Mounts::Awaited;
        if started {
            local.volumes = Mounts::Mounted;
        }
        (local.version, local.object) = (version, Some(pod));
        if started {
            state.mounted(&key, &self.claims);
        }
        self.pods.add(key);
    }
}

impl State {
    /// Whether this name was another pod's, as far as is known: that one went unheard, between a watch and a new list.
    fn is_another(&self, key: &Key, uid: &str) -> bool {
        self.cluster.pod(key).is_some_and(|known| *known.uid != *uid)
            || self.local.get(key).is_some_and(|known| *known.uid != *uid)
    }

    /// Lets the scheduler look at a pod that changed, and again at those whom the change may help.
    fn pod_moved(&mut self, key: &Key, moved: Moved) {
        let pod = self.cluster.pod(key);
        if moved.pending {
            self.line.add(key, pod);
        } else if pod.is_none_or(|pod| pod.wants.is_none()) {
            self.line.forget(key);
        }
        self.line.retry(|helps| (helps.leaving && moved.gave_way) || (helps.arriving && moved.arrived));
    }

    /// Takes over what the server answered to a write, unless something newer was heard since.
    pub fn written(&mut self, key: &Key, pod: Arc<Value>) {
        let version = version(&pod);
        if let Some(local) = self.local.get_mut(key)
            && *local.uid == *uid(&pod)
            && version >= local.version
        {
            (local.version, local.object) = (version, Some(pod));
        }
    }

    /// A pod has its volumes: those of them that are to grow can.
    fn mounted(&self, key: &Key, claims: &Queue<Key>) {
        if self.expanding.is_empty() {
            return;
        }
        let used = self.cluster.pod(key).into_iter().flat_map(|pod| &pod.claims);
        for claim in used.map(|used| (key.0.clone(), used.name.clone())).filter(|it| self.expanding.contains_key(it)) {
            claims.add(claim);
        }
    }

    /// A pod is about to be removed: by then it has let go of its volumes.
    pub fn unmounted(&mut self, key: &Key, uid: &str) {
        if let Some(local) = self.local.get_mut(key).filter(|local| *local.uid == *uid) {
            local.volumes = Mounts::Over;
        }
    }

    /// Nothing more is to be done about a pod that is as it was: of such there may be many, so that it is not kept.
    pub fn settled(&mut self, key: &Key, pod: &Value) {
        if let Some(local) = self.local.get_mut(key)
            && local.version <= version(pod)
        {
            local.object = None;
        }
    }

    fn keys(&self, watched: Watched) -> Vec<Key> {
        let named = |name: &Arc<str>| (Arc::from(""), name.clone());
        match watched {
            Watched::Pods => {
                let live: BTreeSet<Key> = self.cluster.pod_keys().chain(self.local.keys()).cloned().collect();
                live.into_iter().collect()
            }
            Watched::Nodes => self.cluster.node_names().map(named).collect(),
            Watched::Claims => self.cluster.volumes().claim_keys().cloned().collect(),
            Watched::Volumes => self.cluster.volumes().volume_names().map(named).collect(),
            Watched::Classes => self.cluster.volumes().class_names().map(named).collect(),
            Watched::Namespaces => self.cluster.namespace_names().map(named).collect(),
        }
    }
}

/// Asks the server whether a claim is there to stay, and so: what was heard of it may be old.
pub async fn confirm_claim(api: &Api, claim: Key, is_so: impl Fn(&Value) -> bool) -> Result<(), ApiError> {
    let live = api.find(&Watched::Claims.resource().object(&claim.0, &claim.1)).await?;
    match live.filter(|live| !terminating(live) && is_so(live)) {
        Some(_) => Ok(()),
        None => Err(ApiError::stale(format!("the claim {} is another one, on its way out, or gone", claim.1))),
    }
}

/// Versions are numbers that grow, on our server and (by its API's promise) on every other.
fn version(object: &Value) -> u64 {
    object.text(&["metadata", "resourceVersion"]).parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Work;
    use object::json;
    use tokio::time::Instant;

    fn pod(uid: &str, node: &str) -> Arc<Value> {
        let metadata = json!({"namespace": "default", "name": "p", "uid": uid, "resourceVersion": "7"});
        let mut pod = json!({"metadata": metadata, "spec": {"schedulerName": "s", "containers": [{"name": "c"}]}});
        if !node.is_empty() {
            pod["spec"]["nodeName"] = json!(node);
        }
        Arc::new(pod)
    }

    /// `anything` 9133 of the simulation: a binding met nobody, and the pod's successor was heard of by a new list.
    #[test]
    fn a_pod_in_the_place_of_another_is_a_new_one() {
        for first_node in ["", "n"] {
            let sight = Sight::new("s", &["n".into()], &Metrics::default());
            sight.seen(Watched::Pods, pod("first", first_node));
            let key: Key = ("default".into(), "p".into());
            if first_node.is_empty() {
                let mut state = sight.lock();
                assert_eq!(state.line.next(Instant::now()), Some(Work::Decide(key.clone())));
                state.line.done(&key);
            }
            assert_eq!(sight.lock().local.len(), usize::from(!first_node.is_empty()));
            sight.seen(Watched::Pods, pod("second", ""));
            let mut state = sight.lock();
            assert_eq!(state.line.next(Instant::now()), Some(Work::Decide(key)), "{first_node:?}");
            assert!(state.local.is_empty());
        }
    }
    /// `grown_on_nodes` 14003966 of the simulation: a volume grew by a pod that its node had removed, and of whose end it had not heard yet.
    #[test]
    fn a_pod_that_was_removed_has_no_volumes_whatever_is_heard_of_it() {
        let sight = Sight::new("s", &["n".into()], &Metrics::default());
        let key: Key = ("default".into(), "p".into());
        let volumes = || sight.lock().local[&key].volumes;
        let mut running = pod("u", "n").as_ref().clone();
        running["status"] = json!({"phase": "Running"});
        let running = Arc::new(running);
        sight.seen(Watched::Pods, pod("u", "n"));
        assert_eq!(volumes(), Mounts::Awaited);
        sight.seen(Watched::Pods, running.clone());
        assert_eq!(volumes(), Mounts::Mounted);
        sight.lock().unmounted(&key, "another");
        assert_eq!(volumes(), Mounts::Mounted);
        sight.lock().unmounted(&key, "u");
        sight.seen(Watched::Pods, running);
        assert_eq!(volumes(), Mounts::Over);
    }
}
