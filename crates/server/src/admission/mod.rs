//! Admission: the last word on a write. `mutate` completes an object before it is validated; `judge` refuses after that, and
//! says what must be written in the same transaction for the write to stay true.
//!
//! Every step is a function over a [`Write`] and what is stored. Whatever a judgement relies on becomes a condition of the
//! transaction, so nothing is decided on a state that is no longer there: such a write is tried again from the start.

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
use crate::definitions;
use crate::env::Ids;
use crate::reader::Reader;
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

/// One write on its way to the store.
pub struct Write<'a> {
    pub verb: Verb,
    pub kind: &'a Arc<Kind>,
    /// `""` for the object itself.
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub user: &'a User,
    pub dry_run: bool,
    pub now: jiff::Timestamp,
    pub gates: &'a object::Gates,
    /// The object as it is to be stored; admission may change it on create and update.
    pub object: &'a mut Value,
    /// The stored object; for a removal the one that goes.
    pub old: Option<&'a Value>,
    pub warnings: &'a mut Vec<String>,
}

impl Write<'_> {
    /// Whether this is about the object itself of a built-in kind.
    fn is(&self, verb: Verb, group: &str, plural: &str) -> bool {
        self.verb == verb && self.subresource.is_empty() && self.concerns(group, plural)
    }

    fn concerns(&self, group: &str, plural: &str) -> bool {
        self.kind.group == group && self.kind.plural == plural
    }

    /// 403 about this object.
    fn forbidden(&self, why: impl std::fmt::Display) -> Status {
        Status::forbidden(&self.kind.group, &self.kind.plural, self.name, why).denied_by_admission()
    }
}

/// What must happen together with a write for it to stay true, such as a quota's new usage: joined to the write's transaction.
/// When a condition here fails, the whole write is tried again from the start.
#[derive(Debug, Default)]
pub struct Together {
    pub txn: Txn,
}

impl Together {
    /// The write holds only while `key` is at this version (`None` = absent).
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

/// Judges and completes writes.
pub struct Admission {
    pub reader: Reader,
    pub ids: Arc<dyn Ids>,
    /// The certificate (PEM) that every namespace's `kube-root-ca.crt` shows; empty = none is made.
    pub root_ca: String,
    /// The usage of some quota was not written with the deletion that changed it.
    pub recount_quotas: tokio::sync::Notify,
}

impl Admission {
    pub fn new(reader: Reader, ids: Arc<dyn Ids>) -> Admission {
        Admission { reader, ids, root_ca: String::new(), recount_quotas: tokio::sync::Notify::new() }
    }

    /// Changes the object (defaults that need other objects). Runs before validation; running it again changes nothing more.
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

    /// Refuses, and says what must be written together. Runs after validation, quota last. `Delete` is a removal: the object is
    /// gone afterwards, whatever request let go of it.
    pub fn judge(&self, write: &mut Write<'_>) -> Result<Together, Status> {
        self.judge_marking(write)?;
        let mut together = Together::default();
        namespace::bind(&self.reader, self.ids.as_ref(), &self.root_ca, write, &mut together)?;
        limits::check(&self.reader, write)?;
        resize::check(&self.reader, write)?;
        claim_growth::warn(&self.reader, write)?;
        service_ip::allocate(&self.reader, self.ids.as_ref(), write, &mut together)?;
        definitions::establish(&self.reader, write, &mut together)?;
        quota::charge(&self.reader, write, &mut together)?;
        Ok(together)
    }

    /// Refuses a DELETE, also one that only marks the object as terminating, and what a node may not write.
    pub fn judge_marking(&self, write: &mut Write<'_>) -> Result<Together, Status> {
        nodes::restrict(write)?;
        namespace::check_deletion(write)?;
        Ok(Together::default())
    }
}
