//! What the writer asks of a disk: to keep a batch whole or not at all, and to say which.

use crate::Revision;
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;

/// One key's new row: `None` removes it.
pub(crate) struct Write {
    pub key: Arc<str>,
    pub row: Option<Row>,
}

/// What is kept of a key's current version. The value is as it was put, not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub created: Revision,
    pub modified: Revision,
    pub expires_at_s: Option<u64>,
    pub value: Bytes,
}

/// Why a batch was not kept.
#[derive(Debug)]
pub(crate) enum Fault {
    /// None of it was kept, and a later batch may be: the disk is full, for example.
    Refused(String),
    /// Nobody knows what was kept. The disk takes nothing more: to write on would be to build on sand.
    Final(String),
}

pub(crate) trait Disk: Send {
    /// Keeps all of `writes` and the revision they lead to. On return they survive a crash.
    fn commit(&mut self, writes: &[Write], revision: Revision) -> Result<(), Fault>;
    /// The stored value of a key.
    fn stored(&self, key: &str) -> Result<Option<Bytes>, Fault>;
    /// Tries to become able to commit again after a refusal.
    fn recover(&mut self) -> Result<(), Fault>;
}

/// No disk: remembers the stored values, since only their finished form is in the memory that readers share.
#[derive(Default)]
pub(crate) struct NoDisk {
    stored: HashMap<Arc<str>, Bytes>,
}

impl Disk for NoDisk {
    fn commit(&mut self, writes: &[Write], _revision: Revision) -> Result<(), Fault> {
        for write in writes {
            match &write.row {
                Some(row) => self.stored.insert(Arc::clone(&write.key), row.value.clone()),
                None => self.stored.remove(&write.key),
            };
        }
        Ok(())
    }

    fn stored(&self, key: &str) -> Result<Option<Bytes>, Fault> {
        Ok(self.stored.get(key).cloned())
    }

    fn recover(&mut self) -> Result<(), Fault> {
        Ok(())
    }
}
