//! What is done at regular times by one of the servers, whichever comes first.

use super::Inner;
use super::client::Failure;
use super::commit::{compare, put, version};
use super::wire::rpc;
use crate::{Condition, Error, Operation, Revision, Txn};
use futures::{StreamExt, stream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

const STATUS_EVERY: Duration = Duration::from_secs(10);
/// Expired keys are looked for so many at a time, and so many are deleted at once: others write, too.
const EXPIRED_PER_ROUND: usize = 256;
const EXPIRED_AT_ONCE: usize = 16;

/// Asks from time to time how large etcd's files are.
pub async fn gauge(inner: Arc<Inner>) {
    loop {
        if let Ok(status) = inner.client.status().await {
            inner.space.set_exhausted(status.errors.iter().any(|alarm| alarm.contains("NOSPACE")));
            inner.disk_bytes.store(u64::try_from(status.db_size).unwrap_or(0), Ordering::Relaxed);
        }
        tokio::time::sleep(STATUS_EVERY).await;
    }
}

impl Inner {
    pub async fn compact(&self, revision: Revision) -> Result<(), Error> {
        self.memory.compact(revision)?;
        self.check_open()?;
        if revision > self.offset.0 && self.take_turn("compact").await? {
            self.client.compact(self.offset.of_etcd(revision)).await.map_err(Failure::into_error)?;
        }
        Ok(())
    }

    pub async fn expire(&self, now_s: u64) -> Result<usize, Error> {
        let mut expired = 0;
        loop {
            let due = {
                let expiry = self.expiry.lock().unwrap_or_else(PoisonError::into_inner);
                expiry.due(now_s, EXPIRED_PER_ROUND)
            };
            if due.is_empty() || (expired == 0 && !self.take_turn("expire").await?) {
                return Ok(expired);
            }
            // One transaction for each key: a watcher that resumes from a revision must find all of its events.
            let deletions = due.into_iter().map(|(key, modified)| {
                let conditions = vec![Condition { key: Arc::clone(&key), modified }];
                self.commit(Txn { conditions, operations: vec![Operation::Delete { key, last: None }] })
            });
            let mut outcomes = stream::iter(deletions).buffer_unordered(EXPIRED_AT_ONCE);
            while let Some(outcome) = outcomes.next().await {
                match outcome {
                    Ok(_) => expired += 1,
                    // It was written again, and has another end now.
                    Err(Error::Conflict { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Whether it is for us to do this now. Each turn changes a key, and only who saw its last change may take the next one: so of
    /// all who come at about the same time one does it, and when that one is gone the next one who comes does.
    async fn take_turn(&self, what: &'static str) -> Result<bool, Error> {
        self.check_open()?;
        let key = self.layout.turn(what);
        let seen = self.turns.lock().unwrap_or_else(PoisonError::into_inner).get(what).copied().unwrap_or(0);
        let request = rpc::TxnRequest {
            compare: vec![compare(self.layout.format(), self.format_revision), compare(key.clone(), seen)],
            success: vec![put(key.clone(), format!("{:016x}", self.writer).into())],
            failure: vec![version(key)],
        };
        let answer = match self.client.txn(request).await {
            Ok(answer) => answer,
            // The turn cannot be written. What is done in it makes space, and may be done by several servers at once.
            Err(Failure::NoSpace(_)) => return Ok(true),
            Err(failure) => return Err(failure.into_error()),
        };
        let now = match answer.responses.first().and_then(|response| response.response.as_ref()) {
            Some(rpc::response_op::Response::ResponseRange(range)) => range.kvs.first().map_or(0, |kv| kv.mod_revision),
            _ => answer.header.map_or(0, |header| header.revision),
        };
        self.turns.lock().unwrap_or_else(PoisonError::into_inner).insert(what, now);
        Ok(answer.succeeded)
    }
}
