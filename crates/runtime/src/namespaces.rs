//! The namespace controller: deletes the content of terminating namespaces.

use crate::controllers::ControllerContext;
use futures::{StreamExt, TryStreamExt};
use kit::Clock;
use kit::api::{Api, ApiError, Resource};
use kit::descriptor::{Descriptor, Scope, allow};
use kit::discovery::{Discovery, Served};
use kit::worker::{self, Key, Source, key};
use object::access::{Access, name, terminating, uid};
use object::{Value, json};
use plan::namespace::{Content, Remaining};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// Remaining content is checked again after half of the time waited so far, within these limits: soon at
/// first, when most objects are removed, and rarely later, when a finalizer blocks one for long.
const LOOK_AGAIN_FIRST: Duration = Duration::from_millis(20);
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(5);
/// Concurrent deletions, so that the latency to the server counts once for many.
const DELETIONS_AT_ONCE: usize = 16;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "namespace-controller",
    account: "namespace-controller",
    scope: Scope::Cluster,
    rules: &[
        allow("get watch", "core", "namespaces"),
        allow("update", "core", "namespaces/finalize namespaces/status"),
        // Any kind can be in a namespace.
        allow("list delete", "*", "*"),
    ],
};

/// Empties terminating namespaces until shutdown.
pub async fn run(context: ControllerContext) {
    let resource = Resource::new("v1", "Namespace", "namespaces", false);
    let source =
        Source::new(resource.clone(), |namespace| if terminating(namespace) { vec![key(namespace)] } else { vec![] });
    let cache = source.cache.clone();
    let controller = Arc::new(NamespaceController {
        api: context.api.clone(),
        discovery: context.discovery.clone(),
        namespaces: resource,
        waiting: Mutex::default(),
        clock: context.clock.clone(),
    });
    worker::run(context, vec![source], 4, move |key| {
        let (cache, controller) = (cache.clone(), controller.clone());
        async move {
            match cache.get(&key).filter(|namespace| terminating(namespace)) {
                Some(_) => controller.empty(&key).await,
                None => {
                    controller.waiting().remove(&key);
                    Ok(None)
                }
            }
        }
    })
    .await;
}

struct NamespaceController {
    api: Api,
    discovery: Discovery,
    namespaces: Resource,
    waiting: Mutex<HashMap<Key, Waiting>>,
    clock: Clock,
}

/// A terminating namespace whose content is not deleted yet.
#[derive(Clone)]
struct Waiting {
    uid: String,
    since: Instant,
    /// The resources of which objects were left. Nothing can be created in a terminating namespace, so the
    /// others stay empty; all are checked once more at the end.
    left: Vec<Served>,
}

impl NamespaceController {
    /// Deletes the content of a namespace, and finalizes the namespace when it is empty.
    async fn empty(&self, key: &Key) -> Result<Option<Duration>, ApiError> {
        let path = self.namespaces.object("", &key.1);
        let before = self.waiting().remove(key);
        // The namespace may be deleted and replaced by now; the content of another one must not be deleted.
        let Some(namespace) = self.api.find(&path).await?.filter(|found| terminating(found)) else { return Ok(None) };
        let before = before.filter(|before| before.uid == uid(&namespace));
        let since = before.as_ref().map_or_else(Instant::now, |before| before.since);
        let mut served = before.map(|before| before.left).unwrap_or_default();
        let mut content = self.sweep(&namespace, &served).await?;
        let mut discovery_error = None;
        if content.iter().all(Content::is_empty) {
            served = match self.discovery.look().await {
                Ok(all) => all.into_iter().filter(is_content).collect(),
                Err(error) => {
                    discovery_error = Some(error.to_string());
                    Vec::new()
                }
            };
            content = self.sweep(&namespace, &served).await?;
        }
        let plan = plan::namespace::plan(&namespace, &content, discovery_error.as_deref(), (self.clock)());
        let mut version = namespace.text(&["metadata", "resourceVersion"]).to_owned();
        if let Some(status) = plan.status {
            let stored = self.api.replace(&format!("{path}/status"), &status).await?;
            version = stored.text(&["metadata", "resourceVersion"]).to_owned();
        }
        if let Some(mut finalized) = plan.finalize {
            finalized.put(&["metadata", "resourceVersion"], version);
            self.api.replace(&format!("{path}/finalize"), &finalized).await?;
        }
        if !plan.again {
            return Ok(None);
        }
        let left = served.into_iter().zip(&content).filter(|(_, content)| !content.is_empty());
        let left = left.map(|(served, _)| served).collect();
        self.waiting().insert(key.clone(), Waiting { uid: uid(&namespace).to_owned(), since, left });
        Ok(Some((since.elapsed() / 2).clamp(LOOK_AGAIN_FIRST, LOOK_AGAIN_MAX)))
    }

    /// Deletes the objects of these resources, in the planned order; returns what is left of each.
    async fn sweep(&self, namespace: &Value, served: &[Served]) -> Result<Vec<Content>, ApiError> {
        let (of, namespace) = (namespace, name(namespace));
        let mut content = Vec::with_capacity(served.len());
        for served in served {
            content.push(self.look(served, namespace).await?);
        }
        let mut told = vec![false; served.len()];
        // A deletion may make other deletions due, such as that of the last pod; each resource is handled
        // once.
        while let Some(at) = plan::namespace::due(&content).into_iter().find(|at| !told[*at]) {
            told[at] = true;
            self.confirm(of).await?;
            let result = self.clear(&served[at], namespace, &content[at]).await;
            content[at] = self.look(&served[at], namespace).await?;
            if let Err(error) = result {
                content[at].error = Some(error.to_string());
            }
        }
        Ok(content)
    }

    /// Checks that the namespace still has this uid. Objects found before belong to it only then: it may have
    /// been deleted and created again, with content of its own.
    async fn confirm(&self, namespace: &Value) -> Result<(), ApiError> {
        let live = self.api.find(&self.namespaces.object("", name(namespace))).await?;
        match live.filter(|live| uid(live) == uid(namespace)) {
            Some(_) => Ok(()),
            None => Err(ApiError::stale(format!("namespace {} was replaced or deleted", name(namespace)))),
        }
    }

    async fn look(&self, served: &Served, namespace: &str) -> Result<Content, ApiError> {
        let Resource { group, plural, .. } = &served.resource;
        let mut content = Content { group: group.to_string(), plural: plural.to_string(), ..Content::default() };
        let note = |object: &Value| content.objects.push(Remaining::of(object));
        match self.api.each_metadata(&served.resource.collection(namespace), note).await {
            Ok(_) => {}
            // The resource is being removed, or is served in another version now: the next run finds out.
            Err(error) if error.is_not_found() => return Err(error),
            Err(error) => content.error = Some(error.to_string()),
        }
        Ok(content)
    }

    /// Deletes the objects that were found, each by its uid. A delayed deletecollection would empty the next
    /// namespace of this name.
    async fn clear(&self, served: &Served, namespace: &str, found: &Content) -> Result<(), ApiError> {
        let mut deletions = Vec::new();
        for object in found.objects.iter().filter(|object| !object.deleting) {
            deletions.push(self.delete(served.resource.object(namespace, &object.name), &object.uid));
        }
        futures::stream::iter(deletions).buffer_unordered(DELETIONS_AT_ONCE).try_collect().await
    }

    async fn delete(&self, path: String, uid: &str) -> Result<(), ApiError> {
        let options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        });
        match self.api.delete(&path, &options).await {
            // The object is deleted or replaced: the next list shows that.
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(()),
            result => result.map(drop),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<Key, Waiting>> {
        self.waiting.lock().expect("no panic happens under this lock")
    }
}

fn is_content(served: &Served) -> bool {
    served.resource.namespaced && served.can(&["list", "delete"])
}
