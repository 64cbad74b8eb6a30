//! The endpoints controller: keeps the Endpoints of Services that select pods.

use crate::controllers::ControllerContext;
use futures::StreamExt;
use kit::api::{Api, ApiError, Resource};
use kit::cache::{Cache, Index, Key, key};
use kit::descriptor::{Descriptor, Scope, allow};
use kit::events::{EventSubject, Events};
use kit::watcher::{self, Event};
use kit::worker::{self, ReconcileResult, Source};
use object::access::{Access, name, namespace, uid};
use object::{Value, json};
use plan::endpoints::{self, Absent, Step};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

const WORKERS: usize = 4;
/// Endpoints are written as a whole, so large ones are written less often: changes within this time per
/// address are combined.
const COALESCE_PER_ADDRESS: Duration = Duration::from_millis(1);
const COALESCE_MAX: Duration = Duration::from_secs(1);

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "endpoints-controller",
    account: "endpoint-controller",
    scope: Scope::Namespaces,
    rules: &[
        allow("list watch", "core", "pods services"),
        allow("list watch create update delete", "core", "endpoints"),
    ],
};

/// Keeps the Endpoints until shutdown.
pub async fn run(context: ControllerContext) {
    let services = Resource::new("v1", "Service", "services", true);
    // Without a Service that selects pods, pods and Endpoints are not watched. Left-over Endpoints are then
    // deleted when the first such Service is created.
    if !wait_for_first(&context, &services).await {
        return;
    }
    let pods = Resource::new("v1", "Pod", "pods", true);
    let endpoints = Resource::new("v1", "Endpoints", "endpoints", true);
    let deleted = Deleted::default();
    let noted = deleted.clone();
    let service_source = Source::with_changed(services, move |changed| {
        let service = changed.after.as_ref().or(changed.before.as_ref());
        let keys: Vec<Key> = service.map(|service| key(service)).into_iter().collect();
        for key in &keys {
            match changed.after {
                Some(_) => drop(noted.lock().remove(key)),
                None => drop(noted.lock().insert(key.clone())),
            }
        }
        keys
    });
    let index_keys = |service: &Value| {
        let found_by = endpoints::service_key(service);
        found_by.map(|found_by| (namespace(service).into(), found_by.into())).into_iter().collect()
    };
    let services_by_pair = service_source.cache.index(index_keys);
    let pod_source = Source::changing(pods, move |before, after| {
        if !endpoints::matters(before, after) {
            return Vec::new();
        }
        before.into_iter().chain(after).flat_map(|pod| services_of(&services_by_pair, pod)).collect()
    });
    let pods_by_pair = pod_source.cache.index(|pod| pair_keys(pod).collect());
    let endpoints_source = Source::changing(endpoints.clone(), |before, after| {
        // A user may change or delete them. An own write queues a key, too, but changes nothing.
        let mut keys: Vec<Key> = before.into_iter().chain(after).map(key).collect();
        keys.dedup();
        keys
    });
    let controller = Arc::new(EndpointsController {
        api: context.api.clone(),
        events: context.events.clone(),
        endpoints,
        service_cache: service_source.cache.clone(),
        endpoints_cache: endpoints_source.cache.clone(),
        pods_by_pair,
        deleted,
    });
    worker::run(context, vec![service_source, pod_source, endpoints_source], WORKERS, move |key| {
        let controller = controller.clone();
        async move { controller.sync(key).await }
    })
    .await;
}

/// Waits for the first Service with a selector. Returns false at shutdown.
async fn wait_for_first(context: &ControllerContext, services: &Resource) -> bool {
    let mut changes = Box::pin(watcher::objects(&context.api, services, None));
    loop {
        tokio::select! {
            biased;
            () = context.shutdown.cancelled() => return false,
            change = changes.next() => match change {
                Some(Event::Apply(service)) if endpoints::selector(&service).is_some() => return true,
                Some(_) => {}
                None => return false,
            },
        }
    }
}

fn pair_keys(pod: &Value) -> impl Iterator<Item = Key> {
    endpoints::pod_keys(pod).map(|pair| (namespace(pod).into(), pair.into()))
}

/// Returns the Services that select a pod, found by an index on label pairs instead of a scan.
fn services_of(services_by_pair: &Index, pod: &Value) -> Vec<Key> {
    let found = pair_keys(pod).flat_map(|pair| services_by_pair.get(&pair));
    found.filter(|service| endpoints::selects(service, pod)).map(|service| key(&service)).collect()
}

/// The Services that were deleted and whose Endpoints may still exist.
#[derive(Clone, Default)]
struct Deleted(Arc<Mutex<HashSet<Key>>>);

impl Deleted {
    fn lock(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.0.lock().expect("no panic happens under this lock")
    }
}

struct EndpointsController {
    api: Api,
    events: Events,
    endpoints: Resource,
    service_cache: Cache,
    endpoints_cache: Cache,
    pods_by_pair: Index,
    deleted: Deleted,
}

impl EndpointsController {
    async fn sync(&self, key: Key) -> Result<ReconcileResult, ApiError> {
        let service = self.service_cache.get(&key);
        let current = self.endpoints_cache.get(&key);
        let absent = if self.deleted.lock().contains(&key) { Absent::Deleted } else { Absent::Unknown };
        let pods = service.as_deref().map(|service| self.pods_of(&key, service)).unwrap_or_default();
        let pods: Vec<&Value> = pods.iter().map(AsRef::as_ref).collect();
        let step = endpoints::plan(service.as_deref().ok_or(absent), &pods, current.as_deref());
        if step != Step::Nothing {
            self.carry_out(&key, step, current.as_deref()).await?;
        }
        if service.is_none() {
            self.deleted.lock().remove(&key);
        }
        let addresses = u32::try_from(pods.len()).unwrap_or(u32::MAX);
        Ok(ReconcileResult {
            requeue_after: None,
            coalesce: COALESCE_PER_ADDRESS.saturating_mul(addresses).min(COALESCE_MAX),
        })
    }

    /// The pods with one label pair of the Service's selector; the planner compares the others.
    fn pods_of(&self, key: &Key, service: &Value) -> Vec<Arc<Value>> {
        let pair = endpoints::service_key(service);
        pair.map(|pair| self.pods_by_pair.get(&(key.0.clone(), pair.into()))).unwrap_or_default()
    }

    async fn carry_out(&self, key: &Key, step: Step, current: Option<&Value>) -> Result<(), ApiError> {
        let path = self.endpoints.object(&key.0, &key.1);
        let (wanted, reason, result) = match step {
            Step::Nothing => return Ok(()),
            Step::Create(wanted) => {
                let result = self.api.create(&self.endpoints.collection(&key.0), &wanted).await;
                (wanted, "FailedToCreateEndpoint", result)
            }
            Step::Update(wanted) => {
                let result = self.api.replace(&path, &wanted).await;
                (wanted, "FailedToUpdateEndpoint", result)
            }
            Step::Delete => return self.delete(key, &path, current).await,
        };
        match result {
            Ok(stored) => {
                self.endpoints_cache.wrote(stored);
                Ok(())
            }
            // The Service is deleted with its namespace, and nothing can be created there until then.
            Err(error) if error.is_namespace_ending() => Ok(()),
            Err(error) => {
                if error.is_refusal() && !error.is_stale() {
                    self.record_event(&wanted, reason, &error);
                }
                Err(error)
            }
        }
    }

    async fn delete(&self, key: &Key, path: &str, current: Option<&Value>) -> Result<(), ApiError> {
        let Some(current) = current else { return Ok(()) };
        let version = current.text(&["metadata", "resourceVersion"]);
        let options = json!({"preconditions": {"uid": uid(current), "resourceVersion": version}});
        match self.api.delete(path, &options).await {
            Ok(answer) => self.endpoints_cache.deleted(key, uid(current), answer),
            Err(error) if error.is_absent() => self.endpoints_cache.gone(key, uid(current)),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn record_event(&self, endpoints: &Value, reason: &'static str, error: &ApiError) {
        let (space, named) = (namespace(endpoints), name(endpoints));
        let about = EventSubject { resource: &self.endpoints, namespace: space, name: named, uid: uid(endpoints) };
        let verb = if reason == "FailedToCreateEndpoint" { "create" } else { "update" };
        let message = format!("Endpoints {space}/{named}: failed to {verb}: {}", error.message());
        self.events.record(&about, "Warning", reason, &message);
    }
}
