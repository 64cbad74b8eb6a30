//! Admission. `mutate` completes an object before validation. `validate` runs after validation: it refuses the write,
//! or returns further writes that belong to the same transaction.
//!
//! Every step is a function of a [`Write`] and of stored objects. Each object that a decision depends on becomes a
//! condition of the transaction, so a decision on an outdated state fails at commit, and the write is retried from
//! the start.

mod claim_growth;
mod limits;
mod namespace;
mod nodes;
mod priority;
mod protection;
pub mod quota;
mod resize;
mod service_account;
mod storage_class;
#[cfg(test)]
pub(crate) mod testing;
mod tolerations;

use crate::attributes::User;
use crate::crd_lifecycle;
use crate::env::Ids;
use crate::object_store::Reader;
use crate::service_ip;
use object::{Kind, Status, Value};
use std::sync::Arc;
use store::{Condition, Operation, Record, Txn};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Create,
    Update,
    Delete,
}

/// One write that is being processed.
pub struct Write<'a> {
    pub verb: Verb,
    pub kind: &'a Arc<Kind>,
    /// Empty for the object itself.
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub user: &'a User,
    pub dry_run: bool,
    pub now: jiff::Timestamp,
    pub gates: &'a object::Gates,
    /// The object to store. Admission may change it on create and update.
    pub object: &'a mut Value,
    /// The stored object; on removal the one to remove.
    pub old: Option<&'a Value>,
    pub warnings: &'a mut Vec<String>,
}

impl Write<'_> {
    /// Whether this writes the object itself of this kind.
    fn is(&self, verb: Verb, group: &str, plural: &str) -> bool {
        self.verb == verb && self.subresource.is_empty() && self.concerns(group, plural)
    }

    fn concerns(&self, group: &str, plural: &str) -> bool {
        self.kind.group == group && self.kind.plural == plural
    }

    /// A 403 for this object.
    fn forbidden(&self, why: impl std::fmt::Display) -> Status {
        Status::forbidden(&self.kind.group, &self.kind.plural, self.name, why).denied_by_admission()
    }
}

/// Writes and conditions that must be committed in the same transaction, such as the new usage of a quota. If a
/// condition fails, the whole write is retried from the start.
#[derive(Debug, Default)]
pub struct AtomicWrites {
    pub txn: Txn,
}

impl AtomicWrites {
    /// Adds the condition that `key` has this version (`None`: does not exist).
    pub fn require(&mut self, key: &str, record: Option<&Arc<Record>>) {
        let modified = record.map_or(0, |record| record.modified);
        self.txn.conditions.push(Condition { key: key.into(), modified });
    }

    pub fn put(&mut self, key: &str, object: &Value) {
        let value = crate::codec::encode(object);
        self.txn.operations.push(Operation::Put { key: key.into(), value, expires_at_s: None, memo: None });
    }

    pub fn delete(&mut self, key: &str) {
        self.txn.operations.push(Operation::Delete { key: key.into(), last: None });
    }
}

/// Admission of all kinds.
pub struct Admission {
    pub reader: Reader,
    pub ids: Arc<dyn Ids>,
    /// The CA certificate (PEM) for the ConfigMap `kube-root-ca.crt` of each namespace. Empty: no ConfigMap is
    /// created.
    pub root_ca: String,
    /// Notified when a deletion was committed without updating the usage of its quotas.
    pub recount_quotas: tokio::sync::Notify,
}

impl Admission {
    pub fn new(reader: Reader, ids: Arc<dyn Ids>) -> Admission {
        Admission { reader, ids, root_ca: String::new(), recount_quotas: tokio::sync::Notify::new() }
    }

    /// Sets defaults that depend on other objects. Runs before validation. Idempotent.
    pub fn mutate(&self, write: &mut Write<'_>) -> Result<(), Status> {
        namespace::check(&self.reader, write)?;
        limits::default(&self.reader, write)?;
        service_account::complete(&self.reader, self.ids.as_ref(), write)?;
        tolerations::default(write);
        priority::settle(write)?;
        protection::add_finalizers(write);
        storage_class::default(&self.reader, write)?;
        Ok(())
    }

    /// Refuses the write, or returns the writes that must be committed with it. Runs after validation; quotas come
    /// last. The verb `Delete` means that the object is removed, by whatever request.
    pub fn validate(&self, write: &mut Write<'_>) -> Result<AtomicWrites, Status> {
        self.validate_deletion(write)?;
        let mut together = AtomicWrites::default();
        namespace::bind(&self.reader, self.ids.as_ref(), &self.root_ca, write, &mut together)?;
        limits::check(&self.reader, write)?;
        resize::check(&self.reader, write)?;
        claim_growth::warn(&self.reader, write)?;
        service_ip::allocate(&self.reader, self.ids.as_ref(), write, &mut together)?;
        crd_lifecycle::establish(&self.reader, write, &mut together)?;
        quota::charge(&self.reader, write, &mut together)?;
        Ok(together)
    }

    /// Refuses a DELETE, also one that only sets the deletionTimestamp, and writes that a node must not send.
    pub fn validate_deletion(&self, write: &mut Write<'_>) -> Result<AtomicWrites, Status> {
        nodes::restrict(write)?;
        namespace::check_deletion(write)?;
        Ok(AtomicWrites::default())
    }
}
