//! Protects claims in use by a finalizer, and sets the condition `Unused`.

use super::patch;
use crate::controllers::ControllerContext;
use futures::StreamExt;
use kit::Clock;
use kit::api::{Api, ApiError, Resource};
use kit::cache::{Cache, Index, Key, key};
use kit::descriptor::{Descriptor, Scope, allow};
use kit::queue::Queue;
use kit::worker::{self, Source};
use object::access::namespace;
use object::{Gates, Value};
use plan::protect::{self, ClaimStep};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const WORKERS: usize = 4;
/// Concurrent requests for the claims of a namespace.
const AT_ONCE: usize = 16;
/// A claim that was just bound is often used soon after: the condition `Unused` is set only after this time.
const SETTLE: Duration = Duration::from_secs(1);
/// A claim that a pod uses which the cache does not have is checked again after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "persistentvolumeclaim-protection-controller",
    account: "pvc-protection-controller",
    scope: Scope::Namespaces,
    rules: &[
        allow("list watch patch", "core", "persistentvolumeclaims"),
        allow("patch", "core", "persistentvolumeclaims/status"),
        allow("list watch", "core", "pods"),
    ],
};

/// Keeps the finalizer and the condition of claims, until shutdown.
///
/// The claims of a namespace are reconciled together, because the pods of the namespace are listed once for
/// all of them. So a work key is a namespace, or a claim whose [`SETTLE`] time has passed.
pub async fn run(context: ControllerContext) {
    let pods = Resource::new("v1", "Pod", "pods", true);
    let claims = Resource::new("v1", "PersistentVolumeClaim", "persistentvolumeclaims", true);
    let queue = Arc::new(Queue::new(context.metrics.kit.queue(context.name)));
    let woken = Woken::default();
    let by_claim = woken.clone();
    let claim_source = Source::new(claims.clone(), move |claim| vec![by_claim.add(key(claim))]);
    let by_pod = woken.clone();
    let pod_source = Source::new(pods.clone(), move |pod| {
        let keys = protect::claims_of(pod).map(|claim| (namespace(pod).into(), claim.into()));
        keys.map(|key| by_pod.add(key)).collect()
    });
    let pods_of = pod_source
        .cache
        .index(|pod| protect::claims_of(pod).map(|claim| (namespace(pod).into(), claim.into())).collect());
    let controller = Arc::new(ClaimProtection {
        api: context.api.clone(),
        gates: context.gates.clone(),
        clock: context.clock.clone(),
        claims,
        pods,
        claim_cache: claim_source.cache.clone(),
        pods_of,
        woken,
        queue: queue.clone(),
    });
    worker::run_with(context, queue, vec![claim_source, pod_source], WORKERS, move |key| {
        let controller = controller.clone();
        async move {
            let result = match &*key.1 {
                "" => controller.attend(&key.0, controller.woken.take(&key.0), Patience::Some).await,
                _ => controller.attend(&key.0, HashSet::from([key.clone()]), Patience::None).await,
            };
            result.map(|()| None)
        }
    })
    .await;
}

/// The claims to reconcile, by namespace.
#[derive(Clone, Default)]
struct Woken(Arc<Mutex<HashMap<Arc<str>, HashSet<Key>>>>);

impl Woken {
    /// Adds a claim; returns the work key of its namespace.
    fn add(&self, claim: Key) -> Key {
        let namespace = claim.0.clone();
        self.lock().entry(namespace.clone()).or_default().insert(claim);
        (namespace, "".into())
    }

    fn take(&self, namespace: &str) -> HashSet<Key> {
        self.lock().remove(namespace).unwrap_or_default()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Arc<str>, HashSet<Key>>> {
        self.0.lock().expect("no panic happens under this lock")
    }
}

struct ClaimProtection {
    api: Api,
    gates: Gates,
    clock: Clock,
    claims: Resource,
    pods: Resource,
    claim_cache: Cache,
    /// By claim.
    pods_of: Index,
    woken: Woken,
    queue: Arc<Queue<Key>>,
}

/// Whether claims without the condition get the [`SETTLE`] time first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Some,
    None,
}

/// A claim and the request to send for it.
struct Request {
    key: Key,
    claim: Arc<Value>,
    step: ClaimStep,
}

impl ClaimProtection {
    /// Reconciles the queued claims of a namespace. Claims that fail are queued again.
    async fn attend(&self, namespace: &str, woken: HashSet<Key>, patience: Patience) -> Result<(), ApiError> {
        let requests = woken.into_iter().filter_map(|key| {
            let claim = self.claim_cache.get(&key)?;
            let step = self.plan(&key, &claim);
            if patience == Patience::Some && protect::is_unsettled(&claim, &step) {
                self.queue.add_after(key, SETTLE);
                return None;
            }
            Some(Request { key, claim, step })
        });
        let (mut releases, others): (Vec<Request>, Vec<Request>) =
            requests.partition(|request| matches!(request.step, ClaimStep::Release(_)));
        let mut result = self.send_all(others).await;
        if !releases.is_empty() {
            match self.fresh_pods(namespace).await {
                Ok(pods) => {
                    // If the list has a pod that the cache lacks, its watch event queues the claim; unless
                    // the pod is deleted before, without an event.
                    let is_held = |request: &mut Request| {
                        let pods = pods.get(&*request.key.1).map(Vec::as_slice).unwrap_or_default();
                        pods.iter().any(|pod| protect::holds(pod, &request.claim))
                    };
                    for Request { key, .. } in releases.extract_if(.., is_held) {
                        self.queue.add_after(key, LOOK_AGAIN);
                    }
                    result = result.and(self.send_all(releases).await);
                }
                Err(error) => {
                    releases.into_iter().for_each(|request| drop(self.woken.add(request.key)));
                    result = result.and(Err(error));
                }
            }
        }
        result
    }

    fn plan(&self, key: &Key, claim: &Value) -> ClaimStep {
        let pods = self.pods_of.get(key);
        let pods: Vec<&Value> = pods.iter().map(AsRef::as_ref).collect();
        protect::claim(claim, &pods, &self.gates, (self.clock)())
    }

    /// The pods of a namespace as the server has them now, by the claims that they use.
    async fn fresh_pods(&self, namespace: &str) -> Result<HashMap<String, Vec<Arc<Value>>>, ApiError> {
        let mut by_claim: HashMap<String, Vec<Arc<Value>>> = HashMap::new();
        let note = |pod: &Arc<Value>| {
            for claim in protect::claims_of(pod) {
                by_claim.entry(claim).or_default().push(pod.clone());
            }
        };
        self.api.each(&self.pods.collection(namespace), note).await?;
        Ok(by_claim)
    }

    /// Sends requests concurrently. Claims whose request fails are queued again.
    async fn send_all(&self, requests: Vec<Request>) -> Result<(), ApiError> {
        let sent = requests.into_iter().map(|Request { key, step, .. }| async move {
            let result = self.send(&key, step).await;
            if result.is_err() {
                self.woken.add(key);
            }
            result
        });
        let results: Vec<_> = futures::stream::iter(sent).buffer_unordered(AT_ONCE).collect().await;
        results.into_iter().collect()
    }

    async fn send(&self, key: &Key, step: ClaimStep) -> Result<(), ApiError> {
        let mut path = self.claims.object(&key.0, &key.1);
        let wanted = match step {
            ClaimStep::Nothing => return Ok(()),
            ClaimStep::Protect(wanted) | ClaimStep::Release(wanted) => wanted,
            ClaimStep::Condition(wanted) => {
                path.push_str("/status");
                wanted
            }
        };
        patch(&self.api, &path, &wanted, &self.claim_cache, key).await
    }
}
