//! The node lifecycle controller: marks nodes that stop reporting, and deletes their pods when the
//! tolerations have expired.
//!
//! Pods are deleted with their grace period and never by force: a pod on an unreachable node may still run,
//! and a StatefulSet must not run it twice.

use crate::controllers::ControllerContext;
use futures::StreamExt;
use jiff::Timestamp;
use kit::api::{Api, ApiError, Resource};
use kit::backoff::DelayQueue;
use kit::descriptor::{Descriptor, Scope, allow};
use kit::events::{EventSubject, Events};
use kit::watcher::{self, Event};
use kit::worker::{self, Cache, Key, Source, key};
use kit::{Clock, Relist};
use object::access::{Access, name, namespace, uid};
use object::{Value, json};
use plan::lifecycle::{self, Trouble};
use plan::node::LEASES;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

const RETRY_MAX: Duration = Duration::from_secs(10);

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "node-lifecycle-controller",
    account: "node-controller",
    scope: Scope::Cluster,
    rules: &[
        allow("list watch patch", "core", "nodes"),
        allow("list watch", "coordination.k8s.io", "leases"),
        allow("list watch delete", "core", "pods"),
        allow("patch", "core", "nodes/status pods/status"),
    ],
};

/// Reconciles all nodes until shutdown.
pub async fn run(context: ControllerContext) {
    let nodes = Source::new(nodes(), |node| vec![key(node)]);
    let leases = Resource::new("coordination.k8s.io/v1", "Lease", "leases", true);
    let leases =
        Source::new(leases, |lease| vec![("".into(), name(lease).into())]).only(format!("metadata.namespace={LEASES}"));
    let this = Arc::new(NodeLifecycleController {
        api: context.api.clone(),
        events: context.events.clone(),
        clock: context.clock.clone(),
        nodes: nodes.cache.clone(),
        leases: leases.cache.clone(),
        heartbeats: Mutex::default(),
        pod_watches: Mutex::default(),
    });
    worker::run(context, vec![nodes, leases], 4, move |key| {
        let this = this.clone();
        async move { this.sync(key).await }
    })
    .await;
}

fn nodes() -> Resource {
    Resource::new("v1", "Node", "nodes", false)
}

fn pods() -> Resource {
    Resource::new("v1", "Pod", "pods", true)
}

struct NodeLifecycleController {
    api: Api,
    events: Events,
    clock: Clock,
    nodes: Cache,
    leases: Cache,
    /// The last heartbeat of each node, and when it arrived.
    heartbeats: Mutex<HashMap<Key, Heartbeat>>,
    pod_watches: Mutex<PodWatches>,
}

struct Heartbeat {
    said: [String; 2],
    /// By the monotonic clock: a wall clock that jumps must neither make all nodes lost nor hide that one is.
    at: Instant,
}

/// The tasks that handle the pods of unhealthy nodes. Pods of healthy nodes are not watched.
#[derive(Default)]
struct PodWatches {
    tasks: JoinSet<()>,
    open: HashMap<Key, (watch::Sender<Trouble>, AbortHandle)>,
}

impl NodeLifecycleController {
    async fn sync(&self, key: Key) -> Result<Option<Duration>, ApiError> {
        let Some(node) = self.nodes.get(&key) else {
            lock(&self.heartbeats).remove(&key);
            self.update_pod_watch(&key, None);
            return Ok(None);
        };
        let now = (self.clock)();
        let plan = lifecycle::node(&node, self.heard(&key, &node, now), now);
        let path = nodes().object("", &key.1);
        if let Some(status) = &plan.status {
            let patch = json!({"metadata": {"uid": uid(&node)}, "status": status});
            self.nodes.wrote(self.api.strategic(&format!("{path}/status"), &patch).await?);
            if plan.lost {
                let about = EventSubject { resource: &nodes(), namespace: "", name: &key.1, uid: uid(&node) };
                let message = format!("Node {} status is now: NodeNotReady", key.1);
                self.events.record(&about, "Normal", "NodeNotReady", &message);
            }
            // The taints depend on the new status of the node.
            return Ok(Some(Duration::ZERO));
        }
        if let Some(taints) = &plan.taints {
            let version = node.text(&["metadata", "resourceVersion"]);
            let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
            self.nodes.wrote(self.api.merge(&path, &patch).await?);
            return Ok(Some(Duration::ZERO));
        }
        self.update_pod_watch(&key, Some(&node));
        Ok(plan.next.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO)))
    }

    /// When the node last renewed its lease or reported its status, by the local clock: the node's clock may
    /// be wrong.
    fn heard(&self, key: &Key, node: &Value, now: Timestamp) -> Timestamp {
        let lease = self.leases.get(&(LEASES.into(), key.1.clone()));
        let renewed = lease.map(|lease| lease.text(&["spec", "renewTime"]).to_owned()).unwrap_or_default();
        let ready = object::condition::get(node, "Ready");
        let reported = ready.map(|ready| ready.text(&["lastHeartbeatTime"]).to_owned()).unwrap_or_default();
        let said = [renewed, reported];
        let mut heartbeats = lock(&self.heartbeats);
        let heartbeat =
            heartbeats.entry(key.clone()).or_insert_with(|| Heartbeat { said: said.clone(), at: Instant::now() });
        if heartbeat.said != said {
            *heartbeat = Heartbeat { said, at: Instant::now() };
        }
        now.checked_sub(heartbeat.at.elapsed()).unwrap_or(Timestamp::MIN)
    }

    /// Starts, updates or stops the task that handles the pods of an unhealthy node.
    fn update_pod_watch(&self, key: &Key, node: Option<&Value>) {
        let mut pod_watches = lock(&self.pod_watches);
        while let Some(ended) = pod_watches.tasks.try_join_next() {
            if let Err(error) = ended
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        }
        let before = pod_watches.open.get(key).map(|(trouble, _)| trouble.borrow().clone());
        let trouble = node.and_then(|node| Trouble::of(node, before.as_ref(), (self.clock)()));
        match (trouble, pod_watches.open.get(key)) {
            (Some(trouble), Some((open, _))) => {
                open.send_if_modified(|known| {
                    let changed = *known != trouble;
                    *known = trouble;
                    changed
                });
            }
            (Some(trouble), None) => {
                let (sender, told) = watch::channel(trouble);
                let pod_watch = PodWatch {
                    api: self.api.clone(),
                    events: self.events.clone(),
                    clock: self.clock.clone(),
                    trouble: told,
                    pods: HashMap::new(),
                    due: DelayQueue::new(RETRY_MAX),
                };
                let handle = pod_watches.tasks.spawn(pod_watch.watch(key.1.clone()));
                pod_watches.open.insert(key.clone(), (sender, handle));
            }
            (None, Some((_, handle))) => {
                handle.abort();
                pod_watches.open.remove(key);
            }
            (None, None) => {}
        }
    }
}

/// Handles the pods of one unhealthy node.
struct PodWatch {
    api: Api,
    events: Events,
    clock: Clock,
    trouble: watch::Receiver<Trouble>,
    pods: HashMap<Key, Arc<Value>>,
    due: DelayQueue<Key>,
}

impl PodWatch {
    async fn watch(mut self, node: Arc<str>) {
        let mut changes = Box::pin(watcher::objects(&self.api, &pods(), Some(&format!("spec.nodeName={node}"))));
        let mut relist = Relist::default();
        loop {
            let wake_at = self.due.next_at();
            let wait = async {
                match wake_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                change = changes.next() => match change {
                    Some(change) => self.apply(change, &mut relist).await,
                    None => return,
                },
                told = self.trouble.changed() => {
                    if told.is_err() {
                        return;
                    }
                    for key in self.pods.keys().cloned().collect::<Vec<Key>>() {
                        self.reconcile_pod(&key).await;
                    }
                }
                () = wait => {
                    for key in self.due.take_due(Instant::now()) {
                        self.reconcile_pod(&key).await;
                    }
                }
            }
        }
    }

    async fn apply(&mut self, change: Event<Arc<Value>>, relist: &mut Relist<Key>) {
        match change {
            Event::Init => relist.begin(),
            Event::Apply(pod) => {
                let key = key(&pod);
                relist.applied(&key);
                self.pods.insert(key.clone(), pod);
                self.reconcile_pod(&key).await;
            }
            Event::Delete(pod) => self.forget(&key(&pod)),
            Event::InitDone => {
                relist.missing(self.pods.keys()).iter().for_each(|key| self.forget(key));
            }
        }
    }

    fn forget(&mut self, key: &Key) {
        self.pods.remove(key);
        self.due.forget(key);
    }

    async fn reconcile_pod(&mut self, key: &Key) {
        let Some(pod) = self.pods.get(key) else { return };
        let now = (self.clock)();
        let verdict = lifecycle::pod(pod, &self.trouble.borrow(), now);
        self.due.cancel(key);
        let mut result = Ok(());
        if verdict.unready {
            result = self.mark_unready(pod, now).await;
        }
        match verdict.evict {
            Some(at) if at <= now && result.is_ok() => result = self.evict(pod, now).await,
            Some(at) => {
                let wait = Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO);
                self.due.wait_until(key.clone(), Instant::now() + wait);
            }
            None => {}
        }
        match result {
            Ok(()) => {}
            // The pod is deleted or replaced, which the watch will report.
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => {
                let delay = self.due.wait_after_failure(key, Instant::now());
                tracing::warn!(namespace = %key.0, pod = %key.1, %error, ?delay, "Failed to handle a pod of a lost node; retrying");
            }
        }
    }

    async fn mark_unready(&self, pod: &Value, now: Timestamp) -> Result<(), ApiError> {
        self.set_condition(pod, json!({"type": "Ready", "status": "False"}), now).await?;
        self.record_event(pod, "Warning", "NodeNotReady", "Node is not ready");
        Ok(())
    }

    async fn evict(&self, pod: &Value, now: Timestamp) -> Result<(), ApiError> {
        let target = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
            "message": "Taint manager: deleting due to NoExecute taint",
        });
        self.set_condition(pod, target, now).await?;
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid(pod)}});
        self.api.delete(&pods().object(namespace(pod), name(pod)), &options).await?;
        let message = format!("Marking for deletion Pod {}/{}", namespace(pod), name(pod));
        self.record_event(pod, "Normal", "TaintManagerEviction", &message);
        Ok(())
    }

    async fn set_condition(&self, pod: &Value, mut condition: Value, now: Timestamp) -> Result<(), ApiError> {
        condition["lastTransitionTime"] = json!(object::write::stamp(now));
        let patch = json!({"metadata": {"uid": uid(pod)}, "status": {"conditions": [condition]}});
        self.api.strategic(&format!("{}/status", pods().object(namespace(pod), name(pod))), &patch).await?;
        Ok(())
    }

    fn record_event(&self, pod: &Value, kind: &'static str, reason: &'static str, message: &str) {
        let about = EventSubject { resource: &pods(), namespace: namespace(pod), name: name(pod), uid: uid(pod) };
        self.events.record(&about, kind, reason, message);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic happens under this lock")
}
