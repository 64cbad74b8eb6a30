//! The pod garbage collector: deletes pods that no kubelet will delete, and detaches the volumes of lost
//! nodes. `plan::podgc` decides which.
//!
//! A work key is a node (`""`, name), a pod that was never scheduled (namespace, name), or [`ENDED`] for the threshold of ended pods.

mod figures;

pub use figures::Figures;

use crate::controllers::ControllerContext;
use futures::StreamExt;
use jiff::SignedDuration;
use kit::Clock;
use kit::api::{Api, ApiError, Resource};
use kit::cache::{Cache, Index, Key, key};
use kit::descriptor::{Descriptor, Scope, allow};
use kit::worker::{self, ReconcileResult, Source};
use object::access::{Access, name, namespace, terminating, uid};
use object::{Value, json};
use plan::podgc::{self, NodeState, Reason, Step};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

const WORKERS: usize = 4;
/// Pods that are deleted concurrently.
const AT_ONCE: usize = 16;
/// Finished pods are counted at most this often.
const COUNT_EVERY: Duration = Duration::from_secs(20);
/// If cache and API server disagree about a node, it is checked again after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "pod-garbage-collector-controller",
    account: "pod-garbage-collector",
    scope: Scope::Cluster,
    rules: &[
        allow("list watch delete", "core", "pods"),
        allow("patch", "core", "pods/status"),
        allow("get list watch", "core", "nodes"),
        // To detach the volumes of lost nodes once no pod uses them.
        allow("list watch delete", "storage.k8s.io", "volumeattachments"),
        allow("get", "core", "persistentvolumes"),
    ],
};

/// Collects pods until shutdown.
pub async fn run(context: ControllerContext) {
    let resources = Resources::default();
    let nodes = Source::changing(resources.nodes.clone(), |before, after| {
        let is_lost_or_found = NodeState::of(before) != NodeState::of(after);
        let node = after.or(before).filter(|_| is_lost_or_found);
        node.map(key).into_iter().collect()
    });
    let known = nodes.cache.clone();
    let pods = Source::changing(resources.pods.clone(), move |before, after| keys_of_pod(&known, before, after));
    let known = nodes.cache.clone();
    let attachments = Source::new(resources.attachments.clone(), move |attachment| {
        key_of_lost_node(&known, attachment.text(&["spec", "nodeName"])).into_iter().collect()
    });
    let on_node = |object: &Value| match object.text(&["spec", "nodeName"]) {
        "" => Vec::new(),
        node => vec![node_key(node)],
    };
    let controller = Arc::new(PodCollector {
        api: context.api.clone(),
        clock: context.clock.clone(),
        threshold: context.terminated_pod_threshold,
        figures: context.metrics.pod_gc.clone(),
        pods_on: pods.cache.index(on_node),
        ended: pods.cache.index(|pod| if podgc::has_ended(pod) { vec![ended_key()] } else { Vec::new() }),
        attached_to: attachments.cache.index(on_node),
        pods: pods.cache.clone(),
        nodes: nodes.cache.clone(),
        attachments: attachments.cache.clone(),
        resources,
        missing: Mutex::default(),
    });
    worker::run(context, vec![nodes, pods, attachments], WORKERS, move |key| {
        let controller = controller.clone();
        async move { controller.sync(&key).await }
    })
    .await;
}

struct Resources {
    pods: Resource,
    nodes: Resource,
    volumes: Resource,
    attachments: Resource,
}

impl Default for Resources {
    fn default() -> Resources {
        Resources {
            pods: Resource::new("v1", "Pod", "pods", true),
            nodes: Resource::new("v1", "Node", "nodes", false),
            volumes: Resource::new("v1", "PersistentVolume", "persistentvolumes", false),
            attachments: Resource::new("storage.k8s.io/v1", "VolumeAttachment", "volumeattachments", false),
        }
    }
}

fn node_key(name: &str) -> Key {
    ("".into(), name.into())
}

/// The key of the threshold; no node has an empty name.
fn ended_key() -> Key {
    Key::default()
}

fn key_of_lost_node(nodes: &Cache, node: &str) -> Option<Key> {
    let key = node_key(node);
    (!node.is_empty() && NodeState::of(nodes.get(&key).as_deref()).is_lost()).then_some(key)
}

/// The keys that a change of a pod concerns. Pods of healthy nodes, which are most pods, concern none.
fn keys_of_pod(nodes: &Cache, before: Option<&Value>, after: Option<&Value>) -> Vec<Key> {
    let Some(pod) = after.or(before) else { return Vec::new() };
    let mut keys: Vec<Key> = key_of_lost_node(nodes, pod.text(&["spec", "nodeName"])).into_iter().collect();
    let Some(pod) = after else { return keys };
    if podgc::is_collectable(pod, Reason::Unscheduled) {
        keys.push(key(pod));
    }
    if podgc::has_ended(pod) && !before.is_some_and(podgc::has_ended) {
        keys.push(ended_key());
    }
    keys
}

struct PodCollector {
    api: Api,
    clock: Clock,
    threshold: i64,
    figures: Figures,
    resources: Resources,
    pods: Cache,
    nodes: Cache,
    attachments: Cache,
    /// Pods by node.
    pods_on: Index,
    /// Pods in phase Succeeded or Failed.
    ended: Index,
    /// VolumeAttachments by node.
    attached_to: Index,
    /// Since when the cache has no Node of a name that pods or attachments use.
    missing: Mutex<HashMap<Key, Instant>>,
}

impl PodCollector {
    async fn sync(&self, key: &Key) -> Result<ReconcileResult, ApiError> {
        if *key == ended_key() {
            self.remove_surplus().await?;
            return Ok(ReconcileResult { requeue_after: None, coalesce: COUNT_EVERY });
        }
        if !key.0.is_empty() {
            let pod = self.pods.get(key).filter(|pod| podgc::is_collectable(pod, Reason::Unscheduled));
            self.remove_all(pod.into_iter().collect(), Reason::Unscheduled).await?;
            return Ok(None.into());
        }
        self.node(key).await.map(ReconcileResult::from)
    }

    async fn node(&self, key: &Key) -> Result<Option<Duration>, ApiError> {
        let cached = NodeState::of(self.nodes.get(key).as_deref());
        // Read before the Node is confirmed to be lost: a pod that is bound later runs on a new Node of that name.
        let (pods, attachments) = match cached.is_lost() {
            true => (self.pods_on.get(key), self.attached_to.get(key)),
            false => (Vec::new(), Vec::new()),
        };
        if pods.is_empty() && attachments.is_empty() {
            self.missing().remove(key);
            return Ok(None);
        }
        match podgc::step(cached, self.missing_for(key, cached)) {
            Step::Nothing => return Ok(None),
            Step::Wait(wait) => return Ok(Some(Duration::try_from(wait).unwrap_or(Duration::ZERO))),
            Step::Confirm => {}
        }
        let collectable = |reason| move |pod: &Arc<Value>| podgc::is_collectable(pod, reason);
        let live = self.api.find_promptly(&self.resources.nodes.object("", &key.1)).await?;
        let live = NodeState::of(live.as_deref());
        let Some(reason) = podgc::confirmed(cached, live) else {
            self.missing().remove(key);
            return Ok(Some(LOOK_AGAIN));
        };
        let pods: Vec<Arc<Value>> = pods.into_iter().filter(collectable(reason)).collect();
        self.remove_all(pods, reason).await?;
        if !attachments.is_empty() {
            self.detach(&key.1, attachments, reason).await?;
        }
        Ok(None)
    }

    /// How long the cache has had no such Node. Uses the monotonic clock, because the wall clock may jump.
    fn missing_for(&self, key: &Key, cached: NodeState) -> SignedDuration {
        let mut missing = self.missing();
        if cached != NodeState::Gone {
            missing.remove(key);
            return SignedDuration::ZERO;
        }
        let since = *missing.entry(key.clone()).or_insert_with(Instant::now);
        SignedDuration::try_from(since.elapsed()).unwrap_or(SignedDuration::MAX)
    }

    async fn remove_surplus(&self) -> Result<(), ApiError> {
        let pods = self.ended.get(&ended_key());
        let seen: Vec<&Value> = pods.iter().map(AsRef::as_ref).collect();
        let surplus = podgc::surplus(&seen, self.threshold);
        let surplus = surplus.into_iter().filter_map(|pod| self.pods.get(&key(pod))).collect();
        self.remove_all(surplus, Reason::Terminated).await
    }

    /// Removes pods. All are tried, and the first error is returned.
    async fn remove_all(&self, pods: Vec<Arc<Value>>, reason: Reason) -> Result<(), ApiError> {
        let removals = pods.into_iter().map(|pod| async move {
            let result = self.remove(&pod, reason).await;
            self.figures.removed(namespace(&pod), reason, result.is_err());
            result
        });
        let results: Vec<_> = futures::stream::iter(removals).buffer_unordered(AT_ONCE).collect().await;
        results.into_iter().collect()
    }

    async fn remove(&self, pod: &Value, reason: Reason) -> Result<(), ApiError> {
        let (key, path) = (key(pod), self.resources.pods.object(namespace(pod), name(pod)));
        tracing::info!(namespace = %key.0, pod = %key.1, reason = reason.label(), "Force deleting a pod");
        if let Some(status) = podgc::final_status(pod, reason, (self.clock)()) {
            // The precondition keeps a late patch from ending a pod whose node has reported since.
            let version = pod.text(&["metadata", "resourceVersion"]);
            let patch = json!({"metadata": {"uid": uid(pod), "resourceVersion": version}, "status": status});
            match self.api.strategic(&format!("{path}/status"), &patch).await {
                Ok(pod) => self.pods.wrote(pod),
                Err(error) => return unless_replaced(error),
            }
        }
        let options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": {"uid": uid(pod)},
        });
        match self.api.delete(&path, &options).await {
            Ok(answer) => self.pods.deleted(&key, uid(pod), answer),
            Err(error) => return unless_replaced(error),
        }
        Ok(())
    }

    /// Deletes the attachments of a lost node whose volumes no pod there uses, so that the volumes can be attached to other nodes.
    async fn detach(&self, node: &str, attachments: Vec<Arc<Value>>, reason: Reason) -> Result<(), ApiError> {
        let pods = self.live_pods(node).await?;
        let pods: Vec<&Value> = pods.iter().map(AsRef::as_ref).collect();
        for attachment in attachments.iter().filter(|attachment| !terminating(attachment)) {
            let volume = match attachment.text(&["spec", "source", "persistentVolumeName"]) {
                "" => None,
                volume => self.api.find_promptly(&self.resources.volumes.object("", volume)).await?,
            };
            if !podgc::may_detach(volume.as_deref(), &pods) {
                continue;
            }
            let path = self.resources.attachments.object("", name(attachment));
            let options = json!({
                "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid(attachment)},
            });
            tracing::info!(node, attachment = name(attachment), reason = reason.label(), "Force detaching a volume");
            match self.api.delete(&path, &options).await {
                Ok(answer) => self.attachments.deleted(&key(attachment), uid(attachment), answer),
                Err(error) => unless_replaced(error)?,
            }
            self.figures.detached(reason);
        }
        Ok(())
    }

    /// The pods of a node as the API server has them now.
    async fn live_pods(&self, node: &str) -> Result<Vec<Arc<Value>>, ApiError> {
        let (path, selector) = (self.resources.pods.collection(""), format!("&fieldSelector=spec.nodeName%3D{node}"));
        let (mut pods, mut token) = (Vec::new(), String::new());
        loop {
            let page = self.api.page(&path, &selector, &token, |text, decoded| decoded.object(text)).await?;
            pods.extend(page.items);
            match page.next {
                Some(next) => token = next,
                None => return Ok(pods),
            }
        }
    }

    fn missing(&self) -> MutexGuard<'_, HashMap<Key, Instant>> {
        self.missing.lock().expect("no panic happens under this lock")
    }
}

/// An object that is deleted or replaced needs no deletion; the watch reports either.
fn unless_replaced(error: ApiError) -> Result<(), ApiError> {
    if error.is_stale() { Ok(()) } else { Err(error) }
}
