//! Making a store of rows from elsewhere: the other half of [`crate::Export`].

use crate::etcd::{self, Config};
use crate::{OpenError, Revision, Rows, embedded};
use std::path::Path;

/// A new store that is being filled. Until it is finished, nobody can open it.
pub struct Filling(Draft);

enum Draft {
    Embedded(Box<embedded::Drafted>),
    Etcd(Box<etcd::Drafted>),
}

impl Filling {
    /// A new embedded store in `dir`. Rows keep their revisions; the store itself begins at `revision`.
    pub fn embedded(dir: &Path, revision: Revision) -> Result<Filling, OpenError> {
        Ok(Filling(Draft::Embedded(Box::new(embedded::Drafted::begin(dir, revision)?))))
    }

    /// A new store in etcd. Rows get new revisions, all after `revision`.
    pub async fn etcd(config: &Config, revision: Revision) -> Result<Filling, OpenError> {
        Ok(Filling(Draft::Etcd(Box::new(etcd::Drafted::begin(config, revision).await?))))
    }

    pub async fn add(&mut self, rows: Rows) -> Result<(), OpenError> {
        match &mut self.0 {
            Draft::Embedded(store) => store.add(rows),
            Draft::Etcd(store) => store.add(rows).await,
        }
    }

    /// From now on it is a store.
    pub async fn finish(self) -> Result<(), OpenError> {
        match self.0 {
            Draft::Embedded(store) => store.finish(),
            Draft::Etcd(store) => store.finish().await,
        }
    }
}
