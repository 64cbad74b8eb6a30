//! Test helper: a real store, and writes that pass admission as in the server.

use super::{Admission, AtomicWrites, Verb, Write};
use crate::attributes::User;
use crate::codec;
use crate::env::Env;
use crate::object_store::{self, Reader};
use futures::executor::block_on;
use object::access::{Access, name, namespace, uid};
use object::{Gates, Kind, Kinds, Status, Value, json};
use std::sync::{Arc, LazyLock};
use store::{Condition, Operation, Store, Txn};

pub struct World {
    pub store: Arc<dyn Store>,
    pub admission: Admission,
    /// Warnings of the last admission step.
    pub warnings: Vec<String>,
}

/// Returns the refusal; panics if there is none.
pub fn denied<T>(result: Result<T, Status>) -> Status {
    match result {
        Ok(_) => panic!("the write must be refused"),
        Err(status) => status,
    }
}

pub fn kind(plural: &str) -> Arc<Kind> {
    static KINDS: LazyLock<Kinds> = LazyLock::new(Kinds::builtin);
    let found = KINDS.iter().find(|kind| kind.plural == plural);
    found.unwrap_or_else(|| panic!("no kind {plural}")).clone()
}

impl World {
    pub fn new() -> World {
        let store = store::Volatile::new(codec::finish, store::Options::default());
        let reader = Reader { store: store.clone() };
        World { admission: Admission::new(reader, Env::default().ids), store, warnings: Vec::new() }
    }

    /// A world with one namespace and its default service account.
    pub fn with_namespace(namespace: &str) -> World {
        let mut world = World::new();
        world.create("namespaces", json!({"metadata": {"name": namespace}})).unwrap();
        world
    }

    /// Stores an object without admission.
    pub fn store(&mut self, key: &str, object: Value) {
        let operation =
            Operation::Put { key: key.into(), value: codec::encode(&object), expires_at_s: None, memo: None };
        block_on(self.store.txn(Txn { conditions: vec![], operations: vec![operation] })).unwrap();
    }

    pub fn get(&self, key: &str) -> Option<Value> {
        self.admission.reader.get(key).unwrap().map(|(object, _)| object)
    }

    pub fn count(&self, prefix: &str) -> u64 {
        self.store.count(prefix)
    }

    pub fn mutate(&mut self, plural: &'static str, object: Value) -> Result<Value, Status> {
        let mut object = object;
        self.run(plural, Verb::Create, "", &mut object, None, |admission, write| admission.mutate(write))?;
        Ok(object)
    }

    /// The object as a creation would store it, and the writes that admission adds.
    pub fn validate(&mut self, plural: &'static str, object: Value) -> Result<(Value, AtomicWrites), Status> {
        let mut object = self.mutate(plural, object)?;
        let together =
            self.run(plural, Verb::Create, "", &mut object, None, |admission, write| admission.validate(write))?;
        Ok((object, together))
    }

    /// Commits a creation. Returns false if a condition failed.
    pub fn commit(&mut self, plural: &'static str, object: &Value, together: AtomicWrites) -> bool {
        let key = object_store::key(&kind(plural), namespace(object), name(object));
        let put =
            Operation::Put { key: key.as_str().into(), value: codec::encode(object), expires_at_s: None, memo: None };
        self.transact(&key, put, together)
    }

    pub fn create(&mut self, plural: &'static str, object: Value) -> Result<Value, Status> {
        let (object, together) = self.validate(plural, object)?;
        assert!(self.commit(plural, &object, together), "there is no other writer");
        Ok(object)
    }

    pub fn update(&mut self, plural: &'static str, old: &Value, new: Value) -> Result<Value, Status> {
        self.update_sub(plural, "", old, new)
    }

    pub fn update_sub(
        &mut self,
        plural: &'static str,
        subresource: &str,
        old: &Value,
        new: Value,
    ) -> Result<Value, Status> {
        let mut new = new;
        self.run(plural, Verb::Update, subresource, &mut new, Some(old), |admission, write| admission.mutate(write))?;
        let together = self.run(plural, Verb::Update, subresource, &mut new, Some(old), |admission, write| {
            admission.validate(write)
        })?;
        // As in the server, a write without changes is not stored.
        if new != *old || !together.txn.operations.is_empty() {
            assert!(self.commit(plural, &new, together), "there is no other writer");
        }
        Ok(new)
    }

    pub fn remove(&mut self, plural: &'static str, object: Value) -> Result<(), Status> {
        let old = object.clone();
        let mut object = object;
        let together =
            self.run(plural, Verb::Delete, "", &mut object, Some(&old), |admission, write| admission.validate(write))?;
        let key = object_store::key(&kind(plural), namespace(&old), name(&old));
        let delete = Operation::Delete { key: key.as_str().into(), last: None };
        assert!(self.transact(&key, delete, together), "there is no other writer");
        Ok(())
    }

    fn transact(&mut self, key: &str, operation: Operation, together: AtomicWrites) -> bool {
        let mut txn = together.txn;
        let modified = self.store.get(key).map_or(0, |record| record.modified);
        txn.conditions.push(Condition { key: key.into(), modified });
        txn.operations.push(operation);
        match block_on(self.store.txn(txn)) {
            Ok(_) => true,
            Err(store::Error::Conflict { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    }

    fn run<T>(
        &mut self,
        plural: &'static str,
        verb: Verb,
        subresource: &str,
        object: &mut Value,
        old: Option<&Value>,
        step: impl FnOnce(&Admission, &mut Write<'_>) -> Result<T, Status>,
    ) -> Result<T, Status> {
        if uid(object).is_empty() {
            object.put(&["metadata", "uid"], self.admission.ids.uid());
        }
        let (object_name, object_namespace) = (name(object).to_owned(), namespace(object).to_owned());
        self.warnings.clear();
        let mut write = Write {
            verb,
            kind: &kind(plural),
            subresource,
            namespace: &object_namespace,
            name: &object_name,
            user: &User::default(),
            dry_run: false,
            now: jiff::Timestamp::UNIX_EPOCH,
            gates: &Gates::default(),
            object,
            old,
            warnings: &mut self.warnings,
        };
        step(&self.admission, &mut write)
    }
}
