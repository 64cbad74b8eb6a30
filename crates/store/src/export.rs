//! Export of all rows at one revision, in their stored form. Backups and copies are made from it.

use crate::{Error, Revision, Row, format};
use futures::stream::BoxStream;
use std::sync::Arc;

/// Keys with their rows, in the order of the keys.
pub type Rows = Vec<(Arc<str>, Row)>;

pub struct Export {
    pub revision: Revision,
    /// The rows in pages. No page is empty.
    pub pages: BoxStream<'static, Result<Rows, Error>>,
}

/// Number and checksum of rows, independent of their revisions: a copy in another store has the same sum.
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

/// A snapshot that is read with blocking calls.
pub(crate) trait Snapshot: Send {
    /// Returns the next rows. An empty page is the end.
    fn page(&mut self) -> Result<Rows, String>;
}

/// Streams a snapshot. Each page is read on a thread that may block.
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
