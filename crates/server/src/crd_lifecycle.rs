//! Lifecycle of CustomResourceDefinitions: they are established in the transaction that writes them, and their
//! objects are deleted before they are removed.

use crate::admission::{self, AtomicWrites, Write};
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

pub const PREFIX: &str = "/apiextensions.k8s.io/customresourcedefinitions/";
const EPOCH: &str = "/mainstay/definitions-epoch";
const AGENT: &str = "mainstay-apiserver";
const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Interval of checks while objects with finalizers are terminating.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

fn is_definition(kind: &Kind) -> bool {
    kind.group == "apiextensions.k8s.io" && kind.plural == "customresourcedefinitions"
}

/// Sets the status of a definition in its own transaction, so that its kind is served when the write is answered.
/// Only one definition may have a name: each transaction that accepts names has the definitions epoch, read before
/// the other definitions, as a condition.
pub fn establish(reader: &Reader, write: &mut Write<'_>, together: &mut AtomicWrites) -> Result<(), Status> {
    if !is_definition(write.kind) || write.verb == admission::Verb::Delete {
        return Ok(());
    }
    let epoch = reader.store.get(EPOCH);
    let mut others: Vec<Value> = reader.list(PREFIX)?.into_iter().map(|(other, _)| other).collect();
    others.retain(|other| name(other) != name(write.object));
    crd::establish(write.object, &others, write.now);
    let names = ["status", "acceptedNames"];
    if write.old.and_then(|old| old.at(&names)) != write.object.at(&names) {
        together.require(EPOCH, epoch.as_ref());
        together.put(EPOCH, &json!({"metadata": {}}));
    }
    Ok(())
}

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

/// Store key of the definition of a custom kind.
pub fn key_of(kind: &Kind) -> String {
    format!("{PREFIX}{}.{}", kind.plural, kind.group)
}

/// Refuses to create objects of a definition that is terminating or was deleted, even if another one has its name.
/// The returned record must be unchanged at the commit.
pub fn check_create(reader: &Reader, kind: &Kind) -> Result<Option<Arc<Record>>, Status> {
    let Some(edition) = &kind.edition else { return Ok(None) };
    let (definition, record) = reader.get(&key_of(kind))?.ok_or_else(Status::no_such_path)?;
    let now = crd::edition(&definition);
    if now.uid != edition.uid {
        return Err(Status::no_such_path());
    }
    if let Some(why) = crd::refuses_create(&definition) {
        return Err(Status::new(405, "MethodNotAllowed", why));
    }
    if now != *edition {
        let why = "the definition of this kind changed while the object was being created; try again";
        return Err(Status::too_many_requests(why, 1));
    }
    Ok(Some(record))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::testing::{World, denied};

    fn definition(uid: &str, generation: i64) -> Value {
        json!({"metadata": {"name": "things.x.io", "uid": uid, "generation": generation},
            "spec": {"group": "x.io", "scope": "Cluster", "names": {"plural": "things", "kind": "Thing"},
                "versions": [{"name": "v1", "served": true, "storage": true}]},
            "status": {"acceptedNames": {"plural": "things", "kind": "Thing"},
                "conditions": [{"type": "Established", "status": "True"}]}})
    }

    #[test]
    fn objects_are_created_only_with_the_definition_of_their_kind() {
        let mut world = World::new();
        let kind = crd::kinds_of(&definition("u-1", 1)).remove(0);
        let check = |world: &World| check_create(&world.admission.reader, &kind);
        assert_eq!(denied(check(&world)).code, 404);
        let key = key_of(&kind);
        world.store(&key, definition("u-1", 1));
        assert_eq!(&*check(&world).unwrap().unwrap().key, key);
        world.store(&key, definition("u-1", 2));
        assert_eq!(denied(check(&world)).code, 429);
        world.store(&key, definition("u-2", 1));
        assert_eq!(denied(check(&world)).code, 404);
        let mut going = definition("u-1", 2);
        going.put(&["metadata", "deletionTimestamp"], "2026-01-01T00:00:00Z");
        world.store(&key, going);
        assert_eq!(denied(check(&world)).code, 405);
    }
}
