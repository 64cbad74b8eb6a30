//! The watch caches that the scheduler and all kubelets share.

use crate::addresses::Addresses;
use crate::scheduling_queue::SchedulingQueue;
use futures::StreamExt;
use kit::api::{Api, ApiError, Resource};
use kit::queue::Queue;
use kit::watcher::{self, Event};
use kit::{Metrics, Relist};
use object::Value;
use object::access::{Access, name, terminating, uid};
use plan::kubelet::{self, PodEvent, expand};
use plan::schedule::{Cluster, Key, Moved, key};
use std::collections::{BTreeSet, HashMap};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{Notify, watch};

/// Shared by the watches, the scheduler and the kubelets.
pub struct Informers {
    state: Mutex<State>,
    /// Pods of simulated nodes to reconcile.
    pub pods: Queue<Key>,
    /// Simulated nodes to reconcile.
    pub nodes: Queue<Arc<str>>,
    /// Claims that wait for a node to expand their file system, and for which there may be a node now.
    pub claims: Queue<Key>,
    /// Notified when the scheduler may have work.
    pub scheduling: Notify,
    /// Notified when a pod's volumes are mounted.
    pub mounting: Notify,
    /// The CSI drivers of the nodes, by name.
    drivers: Vec<Arc<str>>,
    /// Number of watches whose first list is not complete.
    unfilled: watch::Sender<usize>,
}

pub struct State {
    pub cluster: Cluster,
    pub queue: SchedulingQueue,
    /// The simulated nodes, by name.
    pub hosts: HashMap<Arc<str>, SimulatedNode>,
    /// The pods that are bound to them.
    pub local: HashMap<Key, BoundPod>,
    pub addresses: Addresses,
    /// The claims that wait for a node to expand their file system.
    pub expanding: HashMap<Key, Arc<Value>>,
    /// The PersistentVolumes of the nodes' CSI drivers, by name: driver and volume handle.
    handles: HashMap<Arc<str>, (Arc<str>, Arc<str>)>,
}

/// A volume that a pod of a running node has mounted.
pub struct MountedVolume {
    pub claim: Key,
    pub driver: Arc<str>,
    pub handle: Arc<str>,
}

/// A simulated node.
#[derive(Default)]
pub struct SimulatedNode {
    pub number: usize,
    /// The Node object as last received.
    pub node: Option<Arc<Value>>,
    /// Whether the annotation of the Node says that it is down. A Node that is deleted while it is down keeps
    /// this set: the machine is switched off and does not register again.
    pub down: bool,
}

/// A pod that is bound to a simulated node.
pub struct BoundPod {
    pub uid: Box<str>,
    pub node: Arc<str>,
    /// The newest version received; older ones are ignored.
    version: u64,
    /// The pod, as long as the kubelet has something to do for it.
    pub object: Option<Arc<Value>>,
    pub address: Option<Ipv4Addr>,
    pub volumes: Mounts,
    /// Whether the driver was asked if it has the data of the pod's volumes.
    pub volumes_checked: bool,
    /// Whether it waits for its claims.
    pub held: bool,
    /// Number of failed lookups of the Secrets and ConfigMaps that it waits for.
    pub config_attempts: u32,
    /// Warnings already recorded for this pod, to suppress repeats.
    pub reported: Vec<PodEvent>,
}

/// The state of a pod's volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounts {
    Waiting,
    Mounted,
    /// Unmounted for good, whatever older events of the pod still arrive.
    Unmounted,
}

/// The watched resources.
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

impl Informers {
    pub fn new(scheduler: &str, nodes: &[Arc<str>], drivers: Vec<Arc<str>>, metrics: &Metrics) -> Informers {
        let hosts = nodes.iter().enumerate();
        let hosts =
            hosts.map(|(number, name)| (name.clone(), SimulatedNode { number, ..SimulatedNode::default() })).collect();
        let state = State {
            cluster: Cluster::new(scheduler),
            queue: SchedulingQueue::new(),
            hosts,
            local: HashMap::new(),
            addresses: Addresses::new(nodes.len()),
            expanding: HashMap::new(),
            handles: HashMap::new(),
        };
        Informers {
            state: Mutex::new(state),
            pods: Queue::new(metrics.queue("kubelet")),
            nodes: Queue::new(metrics.queue("node-registration")),
            claims: Queue::new(metrics.queue("node-expansion")),
            scheduling: Notify::new(),
            mounting: Notify::new(),
            drivers,
            unfilled: watch::Sender::new(Watched::ALL.len()),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic happens under this lock")
    }

    /// Waits until all caches hold their first complete list.
    pub async fn filled(&self) {
        // Fails only if the watching tasks are gone; then the caller is being stopped, too.
        let _ = self.unfilled.subscribe().wait_for(|count| *count == 0).await;
    }

    /// Watches one resource for ever.
    pub async fn watch(&self, api: Api, watched: Watched) {
        let mut changes = Box::pin(watcher::objects(&api, &watched.resource(), None));
        let mut relist = Relist::default();
        let mut filled = false;
        while let Some(change) = changes.next().await {
            match change {
                Event::Init => relist.begin(),
                Event::Apply(object) => {
                    relist.applied(&key(&object));
                    self.apply(watched, object);
                }
                Event::Delete(object) => self.delete(watched, &key(&object)),
                Event::InitDone => {
                    let known = self.lock().keys(watched);
                    for key in relist.missing(&known) {
                        self.delete(watched, &key);
                    }
                    if !std::mem::replace(&mut filled, true) {
                        self.unfilled.send_modify(|count| *count -= 1);
                    }
                }
            }
        }
    }

    fn apply(&self, watched: Watched, object: Arc<Value>) {
        let mut state = self.lock();
        match watched {
            Watched::Pods => {
                let key = key(&object);
                if state.is_another(&key, uid(&object)) {
                    self.delete_pod(&mut state, &key);
                }
                let moved = state.cluster.apply_pod(&object);
                self.apply_bound_pod(&mut state, object);
                state.pod_moved(&key, moved);
            }
            Watched::Nodes => self.apply_node(&mut state, object),
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
                self.apply_volume(&mut state, &object);
                if state.cluster.volumes_mut().apply_volume(&object) {
                    state.queue.retry(|helps| helps.volumes);
                }
            }
            Watched::Classes => {
                state.cluster.volumes_mut().apply_class(&object);
                state.queue.retry(|helps| helps.volumes);
            }
            Watched::Namespaces => {
                state.cluster.apply_namespace(&object);
                state.queue.retry(|helps| helps.arriving || helps.leaving);
            }
        }
        drop(state);
        self.scheduling.notify_one();
    }

    fn delete(&self, watched: Watched, key: &Key) {
        let mut state = self.lock();
        match watched {
            Watched::Pods => self.delete_pod(&mut state, key),
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
                state.handles.remove(&key.1);
                state.cluster.volumes_mut().remove_volume(&key.1);
                state.queue.retry(|helps| helps.volumes);
            }
            Watched::Classes => state.cluster.volumes_mut().remove_class(&key.1),
            Watched::Namespaces => state.cluster.remove_namespace(&key.1),
        }
        drop(state);
        self.scheduling.notify_one();
    }

    /// Keeps the handle of a volume of the nodes' drivers: usage is asked for by handle.
    fn apply_volume(&self, state: &mut State, volume: &Value) {
        let driver = volume.text(&["spec", "csi", "driver"]);
        if let Some(driver) = self.drivers.iter().find(|known| ***known == *driver) {
            let handle = volume.text(&["spec", "csi", "volumeHandle"]).into();
            state.handles.insert(name(volume).into(), (driver.clone(), handle));
        }
    }

    fn delete_pod(&self, state: &mut State, key: &Key) {
        let moved = state.cluster.remove_pod(key);
        if let Some(address) = state.local.remove(key).and_then(|local| local.address) {
            state.addresses.take_back(address);
        }
        state.pod_moved(key, moved);
    }

    fn claim_changed(&self, state: &mut State, claim: &Key, changed: bool) {
        let State { cluster, queue, local, .. } = &mut *state;
        for pod in cluster.volumes().users(claim) {
            match local.get(pod) {
                Some(local) if local.held => self.pods.add(pod.clone()),
                Some(_) => {}
                None if changed => queue.add(pod, cluster.pod(pod)),
                None => {}
            }
        }
    }

    fn apply_node(&self, state: &mut State, node: Arc<Value>) {
        if state.cluster.apply_node(&node) {
            state.queue.retry(|helps| helps.nodes);
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

    /// A node is up again: queues all its pods.
    fn revive(&self, state: &State, node: &Arc<str>) {
        for (key, _) in state.local.iter().filter(|(_, local)| local.node == *node) {
            self.pods.add(key.clone());
        }
        self.nodes.add(node.clone());
    }

    /// Stores a pod that is bound to a simulated node.
    fn apply_bound_pod(&self, state: &mut State, pod: Arc<Value>) {
        let Some((node, _)) = state.hosts.get_key_value(pod.text(&["spec", "nodeName"])) else {
            return;
        };
        let (node, key) = (node.clone(), key(&pod));
        let version = version(&pod);
        let had: Option<Ipv4Addr> = pod.text(&["status", "podIP"]).parse().ok();
        let had = had.filter(|_| !pod.flag(&["spec", "hostNetwork"]));
        let local = state.local.entry(key.clone()).or_insert_with(|| BoundPod {
            uid: uid(&pod).into(),
            node: node.clone(),
            version: 0,
            object: None,
            address: None,
            volumes: Mounts::Waiting,
            volumes_checked: false,
            held: false,
            config_attempts: 0,
            reported: Vec::new(),
        });
        if version < local.version {
            return;
        }
        if let Some(address) = had.filter(|address| local.address != Some(*address)) {
            state.addresses.note(address);
            local.address = Some(address);
        }
        let started = pod.text(&["status", "phase"]) == "Running" && local.volumes == Mounts::Waiting;
        if started {
            local.volumes = Mounts::Mounted;
        }
        (local.version, local.object) = (version, Some(pod));
        if started {
            state.mounted(&key, &self.claims);
            self.mounting.notify_one();
        }
        self.pods.add(key);
    }
}

impl State {
    /// Whether the known pod of this name has another uid: it was deleted between a watch and a new list, so
    /// no deletion event arrived.
    fn is_another(&self, key: &Key, uid: &str) -> bool {
        self.cluster.pod(key).is_some_and(|known| *known.uid != *uid)
            || self.local.get(key).is_some_and(|known| *known.uid != *uid)
    }

    /// Queues a changed pod for scheduling, and pods that the change may make schedulable.
    fn pod_moved(&mut self, key: &Key, moved: Moved) {
        let pod = self.cluster.pod(key);
        if moved.pending {
            self.queue.add(key, pod);
        } else if pod.is_none_or(|pod| pod.wants.is_none()) {
            self.queue.forget(key);
        }
        self.queue.retry(|helps| (helps.leaving && moved.gave_way) || (helps.arriving && moved.arrived));
    }

    /// Stores the response to a write, unless a newer version was received since.
    pub fn written(&mut self, key: &Key, pod: Arc<Value>) {
        let version = version(&pod);
        if let Some(local) = self.local.get_mut(key)
            && *local.uid == *uid(&pod)
            && version >= local.version
        {
            (local.version, local.object) = (version, Some(pod));
        }
    }

    /// A pod has mounted its volumes: queues those that wait for an expansion.
    fn mounted(&self, key: &Key, claims: &Queue<Key>) {
        if self.expanding.is_empty() {
            return;
        }
        let used = self.cluster.pod(key).into_iter().flat_map(|pod| &pod.claims);
        for claim in used.map(|used| (key.0.clone(), used.name.clone())).filter(|it| self.expanding.contains_key(it)) {
            claims.add(claim);
        }
    }

    /// The volumes of the nodes' drivers that pods of running nodes have mounted.
    pub fn mounted_volumes(&self) -> Vec<MountedVolume> {
        let is_up = |node: &Arc<str>| self.hosts.get(node).is_some_and(|host| !host.down);
        let pods = self.local.iter().filter(|(_, local)| local.volumes == Mounts::Mounted && is_up(&local.node));
        let uses = pods.filter_map(|(key, _)| Some((key, self.cluster.pod(key)?)));
        let claims = uses.flat_map(|(key, pod)| pod.claims.iter().map(|used| (key.0.clone(), used.name.clone())));
        let volume = |claim: Key| {
            let (driver, handle) = self.handles.get(&self.cluster.volumes().claim(&claim)?.volume)?.clone();
            Some(MountedVolume { claim, driver, handle })
        };
        claims.filter_map(volume).collect()
    }

    /// A pod is about to be deleted, and its volumes are unmounted.
    pub fn mark_unmounted(&mut self, key: &Key, uid: &str) {
        if let Some(local) = self.local.get_mut(key).filter(|local| *local.uid == *uid) {
            local.volumes = Mounts::Unmounted;
        }
    }

    /// Nothing more is to be done for a pod in this version. There may be many such pods, so the object is
    /// dropped.
    pub fn mark_settled(&mut self, key: &Key, pod: &Value) {
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

/// Checks with the server that a claim exists, is not terminating and satisfies `is_so`: the cache may be
/// stale.
pub async fn confirm_claim(api: &Api, claim: Key, is_so: impl Fn(&Value) -> bool) -> Result<(), ApiError> {
    let live = api.find(&Watched::Claims.resource().object(&claim.0, &claim.1)).await?;
    match live.filter(|live| !terminating(live) && is_so(live)) {
        Some(_) => Ok(()),
        None => Err(ApiError::stale(format!("claim {} was replaced, changed or deleted", claim.1))),
    }
}

/// Versions are increasing numbers on every Kubernetes API server.
fn version(object: &Value) -> u64 {
    object.text(&["metadata", "resourceVersion"]).parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduling_queue::Work;
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

    /// Found by `anything` 9133 of the simulation: the pod was replaced while no watch was open, and the list
    /// showed only its successor.
    #[test]
    fn a_pod_with_a_new_uid_replaces_the_known_one() {
        for first_node in ["", "n"] {
            let informers = Informers::new("s", &["n".into()], Vec::new(), &Metrics::default());
            informers.apply(Watched::Pods, pod("first", first_node));
            let key: Key = ("default".into(), "p".into());
            if first_node.is_empty() {
                let mut state = informers.lock();
                assert_eq!(state.queue.next(Instant::now()), Some(Work::Schedule(key.clone())));
                state.queue.done(&key);
            }
            assert_eq!(informers.lock().local.len(), usize::from(!first_node.is_empty()));
            informers.apply(Watched::Pods, pod("second", ""));
            let mut state = informers.lock();
            assert_eq!(state.queue.next(Instant::now()), Some(Work::Schedule(key)), "{first_node:?}");
            assert!(state.local.is_empty());
        }
    }
    /// Found by `grown_on_nodes` 14003966 of the simulation: a volume was expanded on behalf of a pod that
    /// its node had deleted, because the deletion event had not arrived yet.
    #[test]
    fn a_deleted_pod_stays_unmounted_when_older_events_arrive() {
        let informers = Informers::new("s", &["n".into()], Vec::new(), &Metrics::default());
        let key: Key = ("default".into(), "p".into());
        let volumes = || informers.lock().local[&key].volumes;
        let mut running = pod("u", "n").as_ref().clone();
        running["status"] = json!({"phase": "Running"});
        let running = Arc::new(running);
        informers.apply(Watched::Pods, pod("u", "n"));
        assert_eq!(volumes(), Mounts::Waiting);
        informers.apply(Watched::Pods, running.clone());
        assert_eq!(volumes(), Mounts::Mounted);
        informers.lock().mark_unmounted(&key, "another");
        assert_eq!(volumes(), Mounts::Mounted);
        informers.lock().mark_unmounted(&key, "u");
        informers.apply(Watched::Pods, running);
        assert_eq!(volumes(), Mounts::Unmounted);
    }
}
