//! Admission: the last word on a write, after the caller was authorized and before the object is validated.

use crate::attributes::User;
use crate::reader::Reader;
use object::{Kind, Status, Value};
use std::sync::Arc;

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
    pub old: Option<&'a Value>,
    pub warnings: &'a mut Vec<String>,
}

/// What must happen together with a write for it to stay true, such as a quota's new usage: joined to the write's transaction.
/// When a condition here fails, the whole write is tried again from the start.
#[derive(Default)]
pub struct Together {
    pub txn: store::Txn,
}

/// Judges and completes writes.
pub struct Admission {
    pub reader: Reader,
}

impl Admission {
    /// Changes the object (defaults that need other objects). Runs before validation.
    pub fn mutate(&self, _write: &mut Write<'_>) -> Result<(), Status> {
        Ok(())
    }
    /// Refuses a DELETE that only marks the object as terminating. Nothing is released yet.
    pub fn judge_marking(&self, _write: &mut Write<'_>) -> Result<Together, Status> {
        Ok(Together::default())
    }
    /// Refuses, and says what must be written together. Runs after validation, quota last.
    pub fn judge(&self, _write: &mut Write<'_>) -> Result<Together, Status> {
        Ok(Together::default())
    }
}
