//! Admission of CustomResourceDefinitions, and of the objects of their kinds.

use super::{AtomicWrites, Verb, Write};
use crate::object_store::Reader;
use object::access::{Access, name};
use object::{Kind, Status, Value, crd, json};
use std::sync::Arc;
use store::Record;

pub const PREFIX: &str = "/apiextensions.k8s.io/customresourcedefinitions/";
const EPOCH: &str = "/mainstay/definitions-epoch";

pub fn is_definition(kind: &Kind) -> bool {
    kind.group == "apiextensions.k8s.io" && kind.plural == "customresourcedefinitions"
}

/// Sets the status of a definition in its own transaction, so that its kind is served when the write is answered.
/// Only one definition may have a name: each transaction that accepts names has the definitions epoch, read before
/// the other definitions, as a condition.
pub fn establish(reader: &Reader, write: &mut Write<'_>, together: &mut AtomicWrites) -> Result<(), Status> {
    if !is_definition(write.kind) || write.verb == Verb::Delete {
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
