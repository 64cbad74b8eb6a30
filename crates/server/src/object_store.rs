//! Reads stored objects inside the server, without HTTP.

use object::{Kind, Value};
use std::sync::Arc;
use store::{Range, Record, Store};

/// Store key of an object: `/apps/statefulsets/default/web`, `/core/nodes/a`.
pub fn key(kind: &Kind, namespace: &str, name: &str) -> String {
    if kind.namespaced { format!("/{}/{namespace}/{name}", kind.storage) } else { format!("/{}/{name}", kind.storage) }
}

/// Key prefix of a kind's objects, in one namespace or, with `""`, in all.
pub fn prefix(kind: &Kind, namespace: &str) -> String {
    if kind.namespaced && !namespace.is_empty() {
        format!("/{}/{namespace}/", kind.storage)
    } else {
        format!("/{}/", kind.storage)
    }
}

/// Decodes a record. Stored bytes are always valid unless the store is damaged, so this returns an error instead of
/// skipping the object.
pub fn parse(record: &Record) -> Result<Value, object::Status> {
    object::value::from_bytes(&record.value)
        .map_err(|error| object::Status::internal(format!("stored object {} is unreadable: {error}", record.key)))
}

/// Reads objects by storage path (`core/resourcequotas`) for admission and authorization.
#[derive(Clone)]
pub struct Reader {
    pub store: Arc<dyn Store>,
}

impl Reader {
    /// One object by its key, such as `/core/namespaces/default`.
    pub fn get(&self, key: &str) -> Result<Option<(Value, Arc<Record>)>, object::Status> {
        self.store.get(key).map(|record| parse(&record).map(|value| (value, record))).transpose()
    }

    /// All objects under a prefix, such as `/core/resourcequotas/default/`.
    pub fn list(&self, prefix: &str) -> Result<Vec<(Value, Arc<Record>)>, object::Status> {
        let page = self
            .store
            .list(Range { prefix, ..Range::default() })
            .map_err(|error| object::Status::internal(error.to_string()))?;
        page.records.into_iter().map(|record| parse(&record).map(|value| (value, record))).collect()
    }
}
