//! Refuses creation in missing and terminating namespaces, and deletion of some namespaces.

use super::{AtomicWrites, Verb, Write};
use crate::env::Ids;
use crate::object_store::Reader;
use object::access::{Access, terminating};
use object::{Status, Value, json, write};
use std::sync::Arc;
use store::Record;

const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Refuses creation in a missing or terminating namespace.
pub fn check(reader: &Reader, write: &Write<'_>) -> Result<(), Status> {
    if write.verb == Verb::Create && write.kind.namespaced { find(reader, write).map(drop) } else { Ok(()) }
}

pub fn check_deletion(write: &Write<'_>) -> Result<(), Status> {
    if write.is(Verb::Delete, "", "namespaces") && IMMORTAL.contains(&write.name) {
        return Err(write.forbidden("this namespace may not be deleted"));
    }
    Ok(())
}

/// Makes the state of the namespace a condition of a creation, so that nothing is created in a namespace that starts
/// to terminate. A new namespace gets its default objects in the same transaction.
pub fn bind(
    reader: &Reader,
    ids: &dyn Ids,
    root_ca: &str,
    write: &Write<'_>,
    together: &mut AtomicWrites,
) -> Result<(), Status> {
    if write.verb == Verb::Create && write.kind.namespaced {
        let record = find(reader, write)?;
        together.require(&record.key, Some(&record));
    }
    if write.is(Verb::Create, "", "namespaces") {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount"});
        furnish(reader, ids, write, "serviceaccounts", "default", account, together);
        if !root_ca.is_empty() {
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"ca.crt": root_ca}});
            furnish(reader, ids, write, "configmaps", super::service_account::ROOT_CA, map, together);
        }
    }
    Ok(())
}

fn find(reader: &Reader, write: &Write<'_>) -> Result<Arc<Record>, Status> {
    let key = format!("/core/namespaces/{}", write.namespace);
    let record = reader.store.get(&key).ok_or_else(|| Status::not_found("", "namespaces", write.namespace))?;
    if may_be_ending(&record) && is_ending(&crate::object_store::parse(&record)?) {
        let name = write.namespace;
        let why = format!("unable to create new content in namespace {name} because it is being terminated");
        let refused = Status::forbidden(&write.kind.group, &write.kind.plural, write.name, why);
        return Err(refused.with_cause(
            "NamespaceTerminating",
            format!("namespace {name} is being terminated"),
            "metadata.namespace",
        ));
    }
    Ok(record)
}

fn is_ending(namespace: &Value) -> bool {
    terminating(namespace) || namespace.text(&["status", "phase"]) == "Terminating"
}

/// False is certain; true needs a check. Avoids parsing the namespace for each creation.
fn may_be_ending(namespace: &Record) -> bool {
    let Ok(text) = std::str::from_utf8(&namespace.value) else { return true };
    text.contains("deletionTimestamp") || text.contains("Terminating")
}

/// Creates an object in a new namespace, unless one of that name is left over.
fn furnish(
    reader: &Reader,
    ids: &dyn Ids,
    write: &Write<'_>,
    plural: &str,
    name: &str,
    mut object: Value,
    together: &mut AtomicWrites,
) {
    let key = format!("/core/{plural}/{}/{name}", write.name);
    if reader.store.get(&key).is_some() {
        return;
    }
    object.put(
        &["metadata"],
        json!({
            "name": name,
            "namespace": write.name,
            "uid": ids.uid(),
            "creationTimestamp": write::stamp(write.now),
        }),
    );
    together.require(&key, None);
    together.put(&key, &object);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{World, denied};
    use super::*;

    fn namespaces() -> World {
        let mut world = World::new();
        world.store("/core/namespaces/a", json!({"metadata": {"name": "a"}}));
        let going = json!({"metadata": {"name": "b", "deletionTimestamp": "2024-01-01T00:00:00Z"}});
        world.store("/core/namespaces/b", going);
        world
    }

    #[test]
    fn creation_needs_a_living_namespace() {
        let mut world = namespaces();
        let secret = |namespace: &str| json!({"metadata": {"name": "s", "namespace": namespace}});
        assert!(world.create("secrets", secret("a")).is_ok());
        let missing = denied(world.create("secrets", secret("x")));
        assert_eq!((missing.code, missing.message.as_str()), (404, "namespaces \"x\" not found"));
        let going = denied(world.create("secrets", secret("b")));
        assert_eq!(going.code, 403);
        assert_eq!(
            going.message,
            "secrets \"s\" is forbidden: unable to create new content in namespace b because it is being terminated"
        );
        let cause = &going.details.unwrap().causes[0];
        assert_eq!((cause.reason.as_str(), cause.field.as_str()), ("NamespaceTerminating", "metadata.namespace"));
        assert_eq!(cause.message, "namespace b is being terminated");
    }

    #[test]
    fn a_creation_fails_when_its_namespace_starts_to_terminate() {
        let mut world = namespaces();
        let (object, together) =
            world.validate("secrets", json!({"metadata": {"name": "s", "namespace": "a"}})).unwrap();
        world.store(
            "/core/namespaces/a",
            json!({"metadata": {"name": "a", "deletionTimestamp": "2024-01-01T00:00:00Z"}}),
        );
        assert!(!world.commit("secrets", &object, together));
    }

    #[test]
    fn some_namespaces_cannot_be_deleted() {
        let mut world = World::new();
        for name in ["default", "kube-system", "kube-public"] {
            let refused = denied(world.remove("namespaces", json!({"metadata": {"name": name}})));
            assert_eq!(refused.message, format!("namespaces {name:?} is forbidden: this namespace may not be deleted"));
        }
        assert!(world.remove("namespaces", json!({"metadata": {"name": "kube-node-lease"}})).is_ok());
    }

    #[test]
    fn a_new_namespace_comes_with_its_default_account() {
        let mut world = World::new();
        world.admission.root_ca = "PEM".to_owned();
        world.create("namespaces", json!({"metadata": {"name": "new"}})).unwrap();
        let account = world.get("/core/serviceaccounts/new/default").unwrap();
        assert_eq!(account["metadata"]["namespace"], "new");
        assert!(!account.text(&["metadata", "uid"]).is_empty());
        assert_eq!(world.get("/core/configmaps/new/kube-root-ca.crt").unwrap()["data"]["ca.crt"], "PEM");
    }
}
