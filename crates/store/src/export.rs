//! Everything at one revision, as it is kept: what backups and copies are made of.

use crate::{Error, Revision, Row, format};
use futures::stream::BoxStream;
use std::sync::Arc;

/// Keys and their rows, in order.
pub type Rows = Vec<(Arc<str>, Row)>;

pub struct Export {
    pub revision: Revision,
    /// In pages; none is empty.
    pub pages: BoxStream<'static, Result<Rows, Error>>,
}

/// How many rows there are and what they say, whatever their revisions: a copy in another store has the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    pub rows: u64,
    pub checksum: u64,
}

impl Sum {
    pub fn add(&mut self, rows: &Rows) {
        let mut bytes = Vec::new();
        for (key, row) in rows {
            let timeless = Row { created: 0, modified: 0, ..row.clone() };
            self.rows += 1;
            self.checksum = self.checksum.wrapping_add(format::encode(key, &timeless, &mut bytes));
        }
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} keys, checksum {:016x}", self.rows, self.checksum)
    }
}

/// A reader of a snapshot that blocks while it reads.
pub(crate) trait Snapshot: Send {
    /// The next rows; none at the end.
    fn page(&mut self) -> Result<Rows, String>;
}

/// Reads a snapshot on threads that may block.
pub(crate) fn stream(snapshot: Box<dyn Snapshot>) -> BoxStream<'static, Result<Rows, Error>> {
    let next = |mut snapshot: Box<dyn Snapshot>| async move {
        let read = tokio::task::spawn_blocking(move || {
            let page = snapshot.page();
            (page, snapshot)
        });
        match read.await {
            Ok((Ok(page), _)) if page.is_empty() => Ok(None),
            Ok((Ok(page), snapshot)) => Ok(Some((page, snapshot))),
            Ok((Err(why), _)) => Err(Error::Unavailable(why)),
            Err(stopped) => Err(Error::Unavailable(stopped.to_string())),
        }
    };
    Box::pin(futures::stream::try_unfold(snapshot, next))
}
