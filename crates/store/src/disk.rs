//! The interface between the writer and the disk: a batch is stored completely or not at all, and the result says
//! which.

use crate::Revision;
use crate::export::{Rows, Snapshot};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The new row of one key; `None` deletes the key.
pub(crate) struct Write {
    pub key: Arc<str>,
    pub row: Option<Row>,
}

/// The stored form of a key's current version. The value is as it was put, before [`crate::Finish`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub created: Revision,
    pub modified: Revision,
    pub expires_at_s: Option<u64>,
    pub value: Bytes,
}

/// Why a batch was not committed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Nothing was stored. A later batch may succeed, for example when a full disk has space again.
    Refused(String),
    /// It is unknown what was stored. The disk takes no more writes, because their base is unknown.
    Final(String),
}

pub(crate) trait Disk: Send {
    /// Stores all of `writes` and the resulting revision. When it returns `Ok`, they survive a crash.
    fn commit(&mut self, writes: &[Write], revision: Revision) -> Result<(), Fault>;
    /// Returns the stored value of a key.
    fn stored(&self, key: &str) -> Result<Option<Bytes>, Fault>;
    /// Returns all rows as they are now. Later writes do not change the snapshot.
    fn snapshot(&self) -> Result<Box<dyn Snapshot>, Fault>;
    /// Tries to make commits possible again after [`Fault::Refused`].
    fn recover(&mut self) -> Result<(), Fault>;
    /// The file, for log messages; empty where there is none.
    fn place(&self) -> String {
        String::new()
    }
}

/// In place of a disk for a store without durability. It keeps the stored rows, because the memory that readers share
/// has only the finished values.
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
