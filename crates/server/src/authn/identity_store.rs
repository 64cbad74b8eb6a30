//! The server's identity in the store. All servers of one store have the same identity, and a server on a copy of the
//! store keeps it.

use super::certs::{CertError, Identity};
use super::files::{self, FileError};
use object::access::Access;
use object::json;
use std::path::Path;
use store::{Condition, Operation, Range, Store, Txn};

/// A key outside the prefixes of objects, so that the API cannot read it.
const KEY: &str = "/mainstay/identity";

#[derive(Debug, thiserror::Error)]
pub enum IdentityStoreError {
    #[error(transparent)]
    Identity(#[from] CertError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the identity cannot be kept: {0}")]
    Store(#[from] store::Error),
}

/// Reads the identity from the store, or stores a new one if there is none. `older` is the directory in which earlier
/// versions stored it.
///
/// Renewals because of `names` or of the time are not stored, because the names differ from server to server.
pub async fn identity(
    store: &dyn Store,
    older: Option<&Path>,
    names: &[String],
    now: jiff::Timestamp,
) -> Result<Identity, IdentityStoreError> {
    loop {
        // Read this before the identity: a server stores its identity before any other object.
        let in_use = !store.list(Range { limit: 1, ..Range::default() })?.records.is_empty();
        if let Some(mut identity) = read(store)? {
            identity.renew(names, now)?;
            return Ok(identity);
        }
        let identity = match older.map(files::read).transpose()?.flatten() {
            Some(identity) => identity,
            None => {
                if in_use {
                    tracing::warn!(
                        "the store has objects, but no certificates and keys: new ones are made, \
                         and kubeconfigs and tokens of before mean nothing to this server"
                    );
                }
                Identity::make(names, now)?
            }
        };
        keep(store, &identity).await?;
    }
}

/// Reads the identity from the store, without renewing its certificates.
pub fn read(store: &dyn Store) -> Result<Option<Identity>, CertError> {
    let Some(record) = store.get(KEY) else { return Ok(None) };
    let kept = crate::object_store::parse(&record).map_err(|status| CertError::Unreadable(status.message))?;
    Identity::from_pem(kept.text(&["identity"])).map(Some)
}

/// Stores an identity if there is none. Afterwards the store has this one, or that of another server that was faster.
pub async fn keep(store: &dyn Store, identity: &Identity) -> Result<(), store::Error> {
    let value = crate::codec::encode(&json!({"identity": identity.to_pem()}));
    let txn = Txn {
        conditions: vec![Condition { key: KEY.into(), modified: 0 }],
        operations: vec![Operation::Put { key: KEY.into(), value, expires_at_s: None, memo: None }],
    };
    match store.txn(txn).await {
        Ok(_) | Err(store::Error::Conflict { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authn::serving_names;
    use std::sync::Arc;
    use store::{Options, Volatile};

    fn store() -> Arc<dyn Store> {
        Volatile::new(crate::codec::finish, Options::default())
    }

    fn now() -> jiff::Timestamp {
        jiff::Timestamp::from_second(1_800_000_000).unwrap()
    }

    #[tokio::test]
    async fn servers_of_one_store_have_one_identity_and_their_own_names() {
        let store = store();
        let names = serving_names("127.0.0.1", &[]);
        let first = identity(&*store, None, &names, now()).await.unwrap();
        assert_eq!(identity(&*store, None, &names, now()).await.unwrap(), first);
        let other = identity(&*store, None, &serving_names("10.9.8.7", &[]), now()).await.unwrap();
        assert_ne!(other.serving, first.serving);
        assert_eq!((&other.ca, &other.admin), (&first.ca, &first.admin));
        assert_eq!(other.service_account_key_pem, first.service_account_key_pem);
        assert_eq!(
            identity(&*store, None, &names, now()).await.unwrap(),
            first,
            "the other server's names are not stored"
        );
    }

    #[tokio::test]
    async fn an_identity_in_a_directory_is_taken_over() {
        let directory = tempfile::tempdir().unwrap();
        let names = serving_names("127.0.0.1", &[]);
        let older = Identity::make(&names, now()).unwrap();
        files::write_private(&directory.path().join("identity.pem"), older.to_pem().as_bytes()).unwrap();
        let store = store();
        assert_eq!(identity(&*store, Some(directory.path()), &names, now()).await.unwrap(), older);
        std::fs::write(directory.path().join("identity.pem"), "rubbish").unwrap();
        assert_eq!(identity(&*store, Some(directory.path()), &names, now()).await.unwrap(), older, "now in the store");
        let error = identity(&*self::store(), Some(directory.path()), &names, now()).await.unwrap_err().to_string();
        assert!(error.contains("identity.pem: the stored identity is unreadable: it has no ca.crt; put"), "{error}");
    }
}
