//! Claims stay while a pod uses them, and say whether one does.

use super::{patch, trim_claim, trimmed_metadata};
use crate::api::{Api, ApiError, Resource};
use crate::cache::{Cache, Index, Key, key};
use crate::controllers::{Clock, Part};
use crate::worker::{self, Source};
use futures::StreamExt;
use object::access::{Access, namespace};
use object::{Gates, Value, json};
use plan::protect::{self, ClaimStep};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

const WORKERS: usize = 4;
/// Requests at once about the claims of a namespace.
const AT_ONCE: usize = 16;

/// Keeps the finalizer and the condition of claims, until the part stops.
///
/// The claims of a namespace are worked on together: the pods of a namespace are listed once for all of them.
pub async fn run(part: Part) {
    let pods = Resource::new("v1", "Pod", "pods", true);
    let claims = Resource::new("v1", "PersistentVolumeClaim", "persistentvolumeclaims", true);
    let woken = Woken::default();
    let by_claim = woken.clone();
    let claim_source = Source::new(claims.clone(), move |claim| vec![by_claim.add(key(claim))]).trimmed(trim_claim);
    let by_pod = woken.clone();
    let pod_source = Source::new(pods.clone(), move |pod| {
        let keys = protect::claims_of(pod).map(|claim| (namespace(pod).into(), claim.into()));
        keys.map(|key| by_pod.add(key)).collect()
    });
    let pod_source = pod_source.trimmed(trim_pod);
    let pods_of = pod_source
        .cache
        .index(|pod| protect::claims_of(pod).map(|claim| (namespace(pod).into(), claim.into())).collect());
    let control = Arc::new(Control {
        api: part.api.clone(),
        gates: part.gates.clone(),
        clock: part.clock.clone(),
        claims,
        pods,
        claim_cache: claim_source.cache.clone(),
        pods_of,
        woken,
    });
    worker::run(part, vec![claim_source, pod_source], WORKERS, move |key| {
        let control = control.clone();
        async move { control.attend(&key.0).await.map(|()| None) }
    })
    .await;
}

/// What is read of a pod: who it is, which claims it names, where it is, and whether it still runs.
fn trim_pod(pod: &mut Value) {
    let volumes: Vec<Value> = pod.items(&["spec", "volumes"]).iter().filter_map(protect::trimmed_volume).collect();
    let states = pod.items(&["status", "containerStatuses"]).iter();
    let states: Vec<Value> = states.map(|status| json!({"state": status.at(&["state"])})).collect();
    *pod = json!({
        "metadata": trimmed_metadata(pod),
        "spec": {"nodeName": pod.cut(&["spec", "nodeName"]), "volumes": volumes},
        "status": {"phase": pod.cut(&["status", "phase"]), "containerStatuses": states},
    });
}

/// The claims that something happened to, by namespace.
#[derive(Clone, Default)]
struct Woken(Arc<Mutex<HashMap<Arc<str>, HashSet<Key>>>>);

impl Woken {
    /// Notes a claim; answers the key of its namespace.
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

struct Control {
    api: Api,
    gates: Gates,
    clock: Clock,
    claims: Resource,
    pods: Resource,
    claim_cache: Cache,
    /// By claim.
    pods_of: Index,
    woken: Woken,
}

/// A claim and the request about it.
struct Request {
    key: Key,
    claim: Arc<Value>,
    step: ClaimStep,
}

impl Control {
    /// Works on the claims of a namespace that something happened to. Those that fail come back.
    async fn attend(&self, namespace: &str) -> Result<(), ApiError> {
        let woken = self.woken.take(namespace);
        let requests = woken.into_iter().filter_map(|key| {
            let claim = self.claim_cache.get(&key)?;
            let step = self.plan(&key, &claim);
            Some(Request { key, claim, step })
        });
        let (mut releases, others): (Vec<Request>, Vec<Request>) =
            requests.partition(|request| matches!(request.step, ClaimStep::Release(_)));
        let mut result = self.send_all(others).await;
        if !releases.is_empty() {
            match self.fresh_pods(namespace).await {
                Ok(pods) => {
                    // Where the list shows a pod that the cache does not, that pod will be heard of, and wake the claim.
                    releases.retain(|Request { key, claim, .. }| {
                        !pods.get(&*key.1).is_some_and(|pods| pods.iter().any(|pod| protect::holds(pod, claim)))
                    });
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

    /// The pods of a namespace as the server has them now, by the claims that they name.
    async fn fresh_pods(&self, namespace: &str) -> Result<HashMap<String, Vec<Value>>, ApiError> {
        let mut by_claim: HashMap<String, Vec<Value>> = HashMap::new();
        let note = |pod: &Value| {
            let mut pod = pod.clone();
            trim_pod(&mut pod);
            for claim in protect::claims_of(&pod) {
                by_claim.entry(claim).or_default().push(pod.clone());
            }
        };
        self.api.each(&self.pods.collection(namespace), note).await?;
        Ok(by_claim)
    }

    /// Sends some requests at once. Claims whose request fails are noted again.
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
