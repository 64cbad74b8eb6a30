//! Fills a new store with rows of another store, the counterpart of [`crate::Export`].

use crate::etcd::{self, Config};
use crate::{OpenError, Revision, Rows, embedded};
use std::path::Path;

/// A new store that is being filled. It can be opened only after [`Filling::finish`].
pub struct Filling(Draft);

enum Draft {
    Embedded(Box<embedded::NewStore>),
    Etcd(Box<etcd::NewStore>),
}

impl Filling {
    /// Begins a new embedded store in `dir`. Rows keep their revisions. The store's own revision begins at `revision`.
    pub fn embedded(dir: &Path, revision: Revision) -> Result<Filling, OpenError> {
        Ok(Filling(Draft::Embedded(Box::new(embedded::NewStore::begin(dir, revision)?))))
    }

    /// Begins a new store in etcd. All rows get new revisions, greater than `revision`.
    pub async fn etcd(config: &Config, revision: Revision) -> Result<Filling, OpenError> {
        Ok(Filling(Draft::Etcd(Box::new(etcd::NewStore::begin(config, revision).await?))))
    }

    pub async fn add(&mut self, rows: Rows) -> Result<(), OpenError> {
        match &mut self.0 {
            Draft::Embedded(store) => store.add(rows),
            Draft::Etcd(store) => store.add(rows).await,
        }
    }

    /// Makes the store complete, so that it can be opened.
    pub async fn finish(self) -> Result<(), OpenError> {
        match self.0 {
            Draft::Embedded(store) => store.finish(),
            Draft::Etcd(store) => store.finish().await,
        }
    }
}
