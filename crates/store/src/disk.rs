//! What the writer asks of a disk: to keep a batch whole or not at all, and to say which.

use crate::Revision;
use crate::export::{Rows, Snapshot};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One key's new row: `None` removes it.
pub(crate) struct Write {
    pub key: Arc<str>,
    pub row: Option<Row>,
}

/// What is kept of a key's current version. The value is as it was put, not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
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
    /// All rows as they are now, however they change while they are read.
    fn snapshot(&self) -> Result<Box<dyn Snapshot>, Fault>;
    /// Tries to become able to commit again after a refusal.
    fn recover(&mut self) -> Result<(), Fault>;
    /// The file, for log messages; empty where there is none.
    fn place(&self) -> String {
        String::new()
    }
}

/// No disk: remembers the rows, since only their finished form is in the memory that readers share.
#[derive(Default)]
pub(crate) struct NoDisk {
    rows: BTreeMap<Arc<str>, Row>,
}

struct Whole(Option<Rows>);

impl Snapshot for Whole {
    fn page(&mut self) -> Result<Rows, String> {
        Ok(self.0.take().unwrap_or_default())
    }
}

impl Disk for NoDisk {
    fn commit(&mut self, writes: &[Write], _revision: Revision) -> Result<(), Fault> {
        for write in writes {
            match &write.row {
                Some(row) => self.rows.insert(Arc::clone(&write.key), row.clone()),
                None => self.rows.remove(&write.key),
            };
        }
        Ok(())
    }

    fn stored(&self, key: &str) -> Result<Option<Bytes>, Fault> {
        Ok(self.rows.get(key).map(|row| row.value.clone()))
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, Fault> {
        let rows = self.rows.iter().map(|(key, row)| (Arc::clone(key), row.clone()));
        Ok(Box::new(Whole(Some(rows.collect()))))
    }

    fn recover(&mut self) -> Result<(), Fault> {
        Ok(())
    }
}
