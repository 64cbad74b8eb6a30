//! Periodic work that only one of the servers does: expiry and compaction.

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
/// Expired keys are looked up in rounds of this size, and this many are deleted concurrently, to leave capacity for
/// other writes.
const EXPIRED_PER_ROUND: usize = 256;
const EXPIRED_AT_ONCE: usize = 16;

/// Periodically reads the size of etcd's database and its space alarm.
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
        if revision > self.offset.0 && self.claim_work("compact").await? {
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
            if due.is_empty() || (expired == 0 && !self.claim_work("expire").await?) {
                return Ok(expired);
            }
            // Each key gets its own transaction and revision, so that a watch that resumes from a revision misses no
            // event.
            let deletions = due.into_iter().map(|(key, modified)| {
                let conditions = vec![Condition { key: Arc::clone(&key), modified }];
                self.commit(Txn { conditions, operations: vec![Operation::Delete { key, last: None }] })
            });
            let mut outcomes = stream::iter(deletions).buffer_unordered(EXPIRED_AT_ONCE);
            while let Some(outcome) = outcomes.next().await {
                match outcome {
                    Ok(_) => expired += 1,
                    // The key was written again since, with another expiry time or none.
                    Err(Error::Conflict { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Tries to claim this period's work for this server. Claiming writes a key on the condition that it did not change
    /// since this server last saw it. So of several servers that try at about the same time one succeeds. If that
    /// server dies, the next attempt of another server succeeds.
    async fn claim_work(&self, what: &'static str) -> Result<bool, Error> {
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
            // The claim cannot be written. Both kinds of work free space, and several servers may do them at the same
            // time.
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
