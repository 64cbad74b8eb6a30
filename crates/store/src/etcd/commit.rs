//! Transactions: each is one transaction of etcd, and is acknowledged when the watch has returned it.

use super::client::Failure;
use super::layout::{self, encode_row};
use super::wire::{layout::Head, layout::LastValue, rpc};
use super::{Inner, WatchReport};
use crate::writer::record;
use crate::{Committed, Condition, Error, Operation, Record, Revision, Txn};
use bytes::Bytes;
use prost::Message;
use rpc::request_op::Request;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use tokio::sync::oneshot;

pub const REPLACED: &str = "the store was replaced or upgraded by another program";
/// How many times a transaction is retried because a key that it deletes without a condition was changed at the same
/// time.
const ATTEMPTS_MAX: usize = 100;

/// A transaction as it is sent to etcd.
struct PreparedTxn<'a> {
    conditions: &'a [Condition],
    /// Further conditions, beside the caller's: the version of each key that is deleted.
    guards: Vec<Condition>,
    operations: Vec<&'a Operation>,
    last_values: Vec<LastValue>,
}

impl PreparedTxn<'_> {
    fn only_deletes(&self) -> bool {
        !self.operations.is_empty() && self.operations.iter().all(|of| matches!(of, Operation::Delete { .. }))
    }
}

impl Inner {
    pub async fn commit(&self, txn: Txn) -> Result<Committed, Error> {
        for _ in 0..ATTEMPTS_MAX {
            self.check_open()?;
            if let Some(conflict) = self.known_conflict(&txn.conditions) {
                return Err(conflict);
            }
            let Some(prepared) = self.prepare(&txn).await? else { continue };
            if prepared.operations.is_empty() && prepared.conditions.is_empty() && prepared.guards.is_empty() {
                return Ok(Committed { revision: self.memory.revision(), records: Vec::new() });
            }
            if let Some(committed) = self.send(&prepared).await? {
                return Ok(committed);
            }
        }
        Err(Error::Unavailable("other writers kept changing the same keys".to_owned()))
    }

    /// Returns a conflict if a condition certainly fails: the memory is at or after the revision that the condition
    /// names, and has another version of the key. Only etcd can decide about other conditions.
    fn known_conflict(&self, conditions: &[Condition]) -> Option<Error> {
        let revision = self.memory.revision();
        conditions.iter().find_map(|condition| {
            let past = condition.modified > 0 && condition.modified <= revision;
            let current = self.memory.get(&condition.key);
            let differs = current.as_ref().map_or(0, |record| record.modified) != condition.modified;
            (past && differs).then(|| Error::Conflict { key: Arc::clone(&condition.key), current })
        })
    }

    /// Prepares the transaction. Returns `None` if the memory was stale; then the caller prepares it again.
    async fn prepare<'a>(&self, txn: &'a Txn) -> Result<Option<PreparedTxn<'a>>, Error> {
        let mut seen = HashSet::new();
        let last_of_each = txn.operations.iter().rev().filter(|operation| seen.insert(layout::key(operation)));
        let mut operations: Vec<_> = last_of_each.collect();
        operations.reverse();
        let mut prepared = PreparedTxn {
            conditions: &txn.conditions,
            guards: Vec::new(),
            operations: Vec::new(),
            last_values: Vec::new(),
        };
        for operation in operations {
            let Operation::Delete { key, last } = operation else {
                prepared.operations.push(operation);
                continue;
            };
            let current = self.memory.get(key);
            let modified = current.map_or(0, |record| record.modified);
            prepared.guards.push(Condition { key: Arc::clone(key), modified });
            if modified == 0 {
                continue;
            }
            prepared.operations.push(operation);
            let value = match last {
                Some(last) => last.clone(),
                None => match self.stored(key, modified).await? {
                    Some(value) => value,
                    None => return Ok(None),
                },
            };
            prepared.last_values.push(LastValue { key: key.to_string(), value });
        }
        Ok(Some(prepared))
    }

    /// Reads the stored value of a key at this version. Returns `None` if the key has another version now; the memory
    /// then shows that version.
    async fn stored(&self, key: &str, modified: Revision) -> Result<Option<Bytes>, Error> {
        let request = rpc::RangeRequest { key: self.layout.of_key(key), ..Default::default() };
        let answer = self.client.range(request).await.map_err(Failure::into_error)?;
        let kv = answer.kvs.into_iter().next().filter(|kv| self.offset.revision(kv.mod_revision) == modified);
        match kv.and_then(|kv| layout::decode_row(kv.value)) {
            Some(row) => Ok(Some(row.value)),
            None => {
                self.barrier().await?;
                Ok(None)
            }
        }
    }

    /// Sends a prepared transaction. Returns `None` if one of the guards failed.
    async fn send(&self, prepared: &PreparedTxn<'_>) -> Result<Option<Committed>, Error> {
        let mut waiting = Waiting::new(self);
        let answer = match self.client.txn(self.request(prepared, Some(waiting.number))).await {
            Ok(answer) => answer,
            Err(Failure::Unknown(why)) if !prepared.operations.is_empty() => {
                return match waiting.reported().await {
                    // It was committed, and the watch reported its revision.
                    Some(WatchReport::Committed(revision, records)) => Ok(Some(Committed { revision, records })),
                    _ => Err(Error::Unknown(why)),
                };
            }
            Err(Failure::NoSpace(why)) => {
                self.space.set_exhausted(true);
                return if prepared.only_deletes() {
                    self.send_deletions(prepared).await
                } else {
                    Err(Error::OutOfSpace(why))
                };
            }
            Err(failure) => return Err(failure.into_error()),
        };
        let revision = answer.header.as_ref().map_or(0, |header| self.offset.revision(header.revision));
        if !answer.succeeded {
            return self.failed_comparison(prepared, &answer).await.map(|()| None);
        }
        if prepared.operations.is_empty() {
            return Ok(Some(Committed { revision: self.memory.revision(), records: Vec::new() }));
        }
        self.space.set_exhausted(false);
        match waiting.reported().await {
            Some(WatchReport::Committed(revision, records)) => Ok(Some(Committed { revision, records })),
            Some(WatchReport::Missed) => {
                self.show(revision).await.map_err(|_| not_visible_yet(revision))?;
                Ok(Some(Committed { revision, records: self.rebuild_records(prepared, revision) }))
            }
            None => Err(not_visible_yet(revision)),
        }
    }

    /// Sends a transaction that only deletes, without writing `head`: etcd accepts nothing else when it is out of
    /// space. Watchers see the last stored versions.
    async fn send_deletions(&self, prepared: &PreparedTxn<'_>) -> Result<Option<Committed>, Error> {
        let answer = match self.client.txn(self.request(prepared, None)).await {
            Ok(answer) => answer,
            // No `head` identifies this write, so its outcome cannot be found out later.
            Err(Failure::Unknown(why)) => return Err(Error::Unknown(why)),
            Err(failure) => return Err(failure.into_error()),
        };
        if !answer.succeeded {
            return self.failed_comparison(prepared, &answer).await.map(|()| None);
        }
        self.space.set_guarded(false);
        let revision = answer.header.as_ref().map_or(0, |header| self.offset.revision(header.revision));
        self.show(revision).await.map_err(|_| not_visible_yet(revision))?;
        Ok(Some(Committed { revision, records: Vec::new() }))
    }

    /// Builds the request. `number` identifies the write in `head`; with `None` the request only deletes.
    fn request(&self, prepared: &PreparedTxn<'_>, number: Option<u64>) -> rpc::TxnRequest {
        let conditions = || prepared.conditions.iter().chain(&prepared.guards);
        let mut compare = vec![compare(self.layout.format(), self.format_revision)];
        compare.extend(conditions().map(|condition| {
            self::compare(self.layout.of_key(&condition.key), self.offset.compared(condition.modified))
        }));
        let mut success: Vec<_> = prepared.operations.iter().map(|operation| self.operation(operation)).collect();
        match number {
            _ if success.is_empty() => {}
            Some(number) => {
                let head = Head { writer: self.writer, number, last_values: prepared.last_values.clone() };
                success.push(put(self.layout.head(), head.encode_to_vec().into()));
                if !self.space.is_guarded() {
                    success.push(put(self.layout.guard(), Bytes::new()));
                }
            }
            None => success.push(delete(self.layout.guard())),
        }
        let mut failure = vec![version(self.layout.format()), version(self.layout.head())];
        failure.extend(conditions().map(|condition| version(self.layout.of_key(&condition.key))));
        rpc::TxnRequest { compare, success, failure }
    }

    fn operation(&self, operation: &Operation) -> rpc::RequestOp {
        match operation {
            Operation::Put { key, value, expires_at_s, .. } => {
                put(self.layout.of_key(key), encode_row(value, *expires_at_s))
            }
            Operation::Delete { key, .. } => delete(self.layout.of_key(key)),
        }
    }

    /// Handles failed comparisons: waits until the memory shows the newer versions, then returns the conflict. Returns
    /// `Ok` if only a guard failed.
    async fn failed_comparison(&self, prepared: &PreparedTxn<'_>, answer: &rpc::TxnResponse) -> Result<(), Error> {
        let mut versions = answer.responses.iter().map(|response| match &response.response {
            Some(rpc::response_op::Response::ResponseRange(range)) => range.kvs.first().map_or(0, |kv| kv.mod_revision),
            _ => 0,
        });
        if versions.next() != Some(self.format_revision) {
            self.end(REPLACED);
            return self.check_open();
        }
        self.show(self.offset.revision(versions.next().unwrap_or(0))).await?;
        for (condition, version) in prepared.conditions.iter().zip(versions) {
            if version != self.offset.compared(condition.modified) {
                let current = self.memory.get(&condition.key);
                return Err(Error::Conflict { key: Arc::clone(&condition.key), current });
            }
        }
        Ok(())
    }

    /// Rebuilds the records that a transaction put, because the watch did not report this revision in detail.
    fn rebuild_records(&self, prepared: &PreparedTxn<'_>, revision: Revision) -> Vec<Arc<Record>> {
        let puts = prepared.operations.iter().filter_map(|operation| match operation {
            Operation::Put { key, value, .. } => Some((key, value)),
            Operation::Delete { .. } => None,
        });
        puts.map(|(key, value)| {
            let current = self.memory.get(key);
            match current {
                Some(current) if current.modified == revision => current,
                current => {
                    let created = current.map_or(revision, |current| current.created.min(revision));
                    Arc::new(record(Arc::clone(key), (self.finish)(value, revision), created, revision))
                }
            }
        })
        .collect()
    }
}

fn not_visible_yet(revision: Revision) -> Error {
    Error::Unknown(format!(
        "etcd committed it at revision {revision}, but the watch has not returned it to this server yet"
    ))
}

/// A write of this server that waits for the watch to report it. Dropping it removes it from `pending`.
struct Waiting<'a> {
    inner: &'a Inner,
    number: u64,
    reported: oneshot::Receiver<WatchReport>,
}

impl<'a> Waiting<'a> {
    fn new(inner: &'a Inner) -> Waiting<'a> {
        let number = inner.numbers.fetch_add(1, Ordering::Relaxed);
        let (sender, reported) = oneshot::channel();
        inner.pending.lock().unwrap_or_else(PoisonError::into_inner).insert(number, sender);
        Waiting { inner, number, reported }
    }

    async fn reported(&mut self) -> Option<WatchReport> {
        let patience = self.inner.client.timing.patience;
        tokio::time::timeout(patience, &mut self.reported).await.ok()?.ok()
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.inner.pending.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}

pub fn compare(key: Bytes, mod_revision: i64) -> rpc::Compare {
    rpc::Compare {
        result: rpc::compare::CompareResult::Equal.into(),
        target: rpc::compare::CompareTarget::Mod.into(),
        key,
        target_union: Some(rpc::compare::TargetUnion::ModRevision(mod_revision)),
    }
}

pub fn put(key: Bytes, value: Bytes) -> rpc::RequestOp {
    rpc::RequestOp { request: Some(Request::RequestPut(rpc::PutRequest { key, value })) }
}

fn delete(key: Bytes) -> rpc::RequestOp {
    let delete = rpc::DeleteRangeRequest { key, range_end: Bytes::new() };
    rpc::RequestOp { request: Some(Request::RequestDeleteRange(delete)) }
}

/// A read of a key's version.
pub fn version(key: Bytes) -> rpc::RequestOp {
    let range = rpc::RangeRequest { key, keys_only: true, ..Default::default() };
    rpc::RequestOp { request: Some(Request::RequestRange(range)) }
}
