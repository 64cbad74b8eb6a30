//! Lifecycle of CustomResourceDefinitions: their objects are deleted before they are removed. Admission establishes
//! them in the transaction that writes them.

use crate::admission::custom_resources::{PREFIX, is_definition};
use crate::app::Server;
use crate::attributes::User;
use crate::object_store::Reader;
use crate::request::{Query, ResourceRequest, Verb};
use crate::verbs::{self, Call};
use bytes::Bytes;
use http::{HeaderMap, Method};
use object::access::{Access, name, terminating};
use object::crd::{self, Cleanup};
use object::{Kind, Status, Value, json};
use std::sync::Arc;
use std::time::Duration;
use store::{Next, Record};
use tokio_util::sync::CancellationToken;

const AGENT: &str = "mainstay-apiserver";
const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Interval of checks while objects with finalizers are terminating.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Marks a deleted definition, which stays until its objects are deleted.
pub fn mark_deleted(kind: &Kind, definition: &mut Value, now: jiff::Timestamp) {
    if is_definition(kind) {
        crd::mark_deleted(definition, now);
    }
}

/// Deletes the objects of deleted definitions, and accepts names of definitions that had a conflict with them.
pub async fn run(server: Arc<Server>, shutdown: CancellationToken) {
    let reader = Reader { store: server.store.clone() };
    let mut watcher = None;
    let mut again = None;
    loop {
        if watcher.is_none() {
            watcher = server.store.watch(PREFIX, server.store.revision()).ok();
            again = Some(Duration::ZERO);
        }
        let Some(following) = &mut watcher else { return };
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            next = following.next(64) => match next {
                Next::Events { events, .. } if events.is_empty() => continue,
                Next::Events { .. } => {}
                Next::Compacted { .. } => { watcher = None; continue; }
                Next::Closed => return,
            },
            () = tokio::time::sleep(again.unwrap_or(Duration::MAX)), if again.is_some() => {}
        }
        again = match look(&server, &reader).await {
            Ok(true) => Some(LOOK_AGAIN),
            Ok(false) => None,
            Err(error) => {
                tracing::warn!(%error, "cannot finish a CustomResourceDefinition; trying again");
                Some(LOOK_AGAIN * 4)
            }
        };
    }
}

/// Reconciles all definitions. Returns whether some need another check.
async fn look(server: &Server, reader: &Reader) -> Result<bool, Status> {
    let mut pending = false;
    let definitions = reader.list(PREFIX)?;
    for (definition, record) in &definitions {
        let left = objects_left(server, definition);
        match crd::cleanup(definition, left) {
            Cleanup::Nothing => re_establish(server, &definitions, definition).await?,
            Cleanup::DeleteObjects => {
                pending = true;
                delete_objects(server, definition).await?;
            }
            Cleanup::Finish => {
                let mut finished = definition.clone();
                crd::finish(&mut finished, server.env.clock.now());
                finished.put(&["metadata", "resourceVersion"], record.modified.to_string());
                let finalizers = finished.at(&["metadata", "finalizers"]).cloned().unwrap_or_else(|| json!([]));
                let patch =
                    json!({"metadata": {"finalizers": finalizers, "resourceVersion": record.modified.to_string()}});
                let path = format!("{PATH}/{}", name(definition));
                send(server, Method::PATCH, &path, &patch).await?;
            }
        }
    }
    Ok(pending)
}

fn storage_prefix(definition: &Value) -> String {
    format!("/{}/{}/", definition.text(&["spec", "group"]), definition.text(&["spec", "names", "plural"]))
}

fn objects_left(server: &Server, definition: &Value) -> usize {
    if !crd::owns_objects(definition) {
        return 0;
    }
    usize::try_from(server.store.count(&storage_prefix(definition))).unwrap_or(usize::MAX)
}

/// Deletes the objects through their stored version, because no version may be served any more.
async fn delete_objects(server: &Server, definition: &Value) -> Result<(), Status> {
    let Some(kind) = crd::stored_kind_of(definition).map(Arc::new) else { return Ok(()) };
    let target = ResourceRequest {
        verb: Verb::DeleteCollection,
        group: kind.group.to_string(),
        version: kind.version.to_string(),
        namespace: String::new(),
        plural: kind.plural.to_string(),
        name: String::new(),
        subresource: String::new(),
    };
    let call = Call {
        server,
        kinds: server.registry.kinds(),
        kind,
        target,
        query: Query::default(),
        headers: &HeaderMap::new(),
        body: Bytes::new(),
        class: server.limits.classify(&User::apiserver(), true),
        user: User::apiserver(),
        now: server.env.clock.now(),
    };
    Box::pin(verbs::answer(&call)).await.map(drop)
}

/// Accepts names that another definition has released.
async fn re_establish(server: &Server, all: &[(Value, Arc<Record>)], definition: &Value) -> Result<(), Status> {
    if terminating(definition) {
        return Ok(());
    }
    let others: Vec<Value> =
        all.iter().map(|(other, _)| other.clone()).filter(|other| name(other) != name(definition)).collect();
    let mut settled = definition.clone();
    if !crd::establish(&mut settled, &others, server.env.clock.now()) {
        return Ok(());
    }
    let path = format!("{PATH}/{}/status", name(definition));
    match send(server, Method::PUT, &path, &settled).await {
        // The definition changed; that event triggers another check.
        Err(status) if status.code == 409 || status.code == 404 => Ok(()),
        result => result,
    }
}

async fn send(server: &Server, method: Method, path: &str, body: &Value) -> Result<(), Status> {
    match server.send(AGENT, method, path, body).await {
        // Already deleted, as intended.
        Err(status) if status.code == 404 => Ok(()),
        result => result,
    }
}
