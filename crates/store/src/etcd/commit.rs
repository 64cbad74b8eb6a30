//! Transactions: one of ours is one of etcd's, acknowledged when the watch has told it back.

use super::client::Failure;
use super::layout::{self, encode_row};
use super::wire::{layout::Farewell, layout::Head, rpc};
use super::{Inner, Told};
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
/// How often to start over because a key that we delete without a condition changed meanwhile.
const ATTEMPTS_MAX: usize = 100;

/// A transaction as it is sent.
struct Plan<'a> {
    conditions: &'a [Condition],
    /// What is relied on beside the caller's conditions: the version of each key that is deleted.
    guards: Vec<Condition>,
    operations: Vec<&'a Operation>,
    farewells: Vec<Farewell>,
}

impl Plan<'_> {
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
            let Some(plan) = self.plan(&txn).await? else { continue };
            if plan.operations.is_empty() && plan.conditions.is_empty() && plan.guards.is_empty() {
                return Ok(Committed { revision: self.memory.revision(), records: Vec::new() });
            }
            if let Some(committed) = self.send(&plan).await? {
                return Ok(committed);
            }
        }
        Err(Error::Unavailable("others change the same keys all the time".to_owned()))
    }

    /// A condition that cannot hold any more: the memory is past the version that it names. (It may be behind in other ways, which
    /// only etcd can tell.)
    fn known_conflict(&self, conditions: &[Condition]) -> Option<Error> {
        let revision = self.memory.revision();
        conditions.iter().find_map(|condition| {
            let past = condition.modified > 0 && condition.modified <= revision;
            let current = self.memory.get(&condition.key);
            let differs = current.as_ref().map_or(0, |record| record.modified) != condition.modified;
            (past && differs).then(|| Error::Conflict { key: Arc::clone(&condition.key), current })
        })
    }

    /// What to send; `None` where the memory was behind and it must be looked at again.
    async fn plan<'a>(&self, txn: &'a Txn) -> Result<Option<Plan<'a>>, Error> {
        let mut seen = HashSet::new();
        let last_of_each = txn.operations.iter().rev().filter(|operation| seen.insert(layout::key(operation)));
        let mut operations: Vec<_> = last_of_each.collect();
        operations.reverse();
        let mut plan =
            Plan { conditions: &txn.conditions, guards: Vec::new(), operations: Vec::new(), farewells: Vec::new() };
        for operation in operations {
            let Operation::Delete { key, last } = operation else {
                plan.operations.push(operation);
                continue;
            };
            let current = self.memory.get(key);
            let modified = current.map_or(0, |record| record.modified);
            plan.guards.push(Condition { key: Arc::clone(key), modified });
            if modified == 0 {
                continue;
            }
            plan.operations.push(operation);
            let value = match last {
                Some(last) => last.clone(),
                None => match self.stored(key, modified).await? {
                    Some(value) => value,
                    None => return Ok(None),
                },
            };
            plan.farewells.push(Farewell { key: key.to_string(), value });
        }
        Ok(Some(plan))
    }

    /// The stored value of a key at this version; `None` where it has another one now, which the memory then shows.
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

    /// Sends a plan; `None` where a guard did not hold.
    async fn send(&self, plan: &Plan<'_>) -> Result<Option<Committed>, Error> {
        let mut waiting = Waiting::new(self);
        let answer = match self.client.txn(self.request(plan, Some(waiting.number))).await {
            Ok(answer) => answer,
            Err(Failure::Unknown(why)) if !plan.operations.is_empty() => {
                return match waiting.told().await {
                    // It did happen, and the watch shows at which revision.
                    Some(Told::Committed(revision, records)) => Ok(Some(Committed { revision, records })),
                    _ => Err(Error::Unknown(why)),
                };
            }
            Err(Failure::NoSpace(why)) => {
                self.space.set_exhausted(true);
                return if plan.only_deletes() { self.send_deletions(plan).await } else { Err(Error::OutOfSpace(why)) };
            }
            Err(failure) => return Err(failure.into_error()),
        };
        let revision = answer.header.as_ref().map_or(0, |header| self.offset.revision(header.revision));
        if !answer.succeeded {
            return self.lost(plan, &answer).await.map(|()| None);
        }
        if plan.operations.is_empty() {
            return Ok(Some(Committed { revision: self.memory.revision(), records: Vec::new() }));
        }
        self.space.set_exhausted(false);
        match waiting.told().await {
            Some(Told::Committed(revision, records)) => Ok(Some(Committed { revision, records })),
            Some(Told::Missed) => {
                self.show(revision).await.map_err(|_| unseen(revision))?;
                Ok(Some(Committed { revision, records: self.rebuilt(plan, revision) }))
            }
            None => Err(unseen(revision)),
        }
    }

    /// Sends deletions alone, the only thing that etcd accepts when it has no space left. Watchers see the versions before.
    async fn send_deletions(&self, plan: &Plan<'_>) -> Result<Option<Committed>, Error> {
        let answer = match self.client.txn(self.request(plan, None)).await {
            Ok(answer) => answer,
            // Nothing in etcd names this write, so nothing tells later whether it happened.
            Err(Failure::Unknown(why)) => return Err(Error::Unknown(why)),
            Err(failure) => return Err(failure.into_error()),
        };
        if !answer.succeeded {
            return self.lost(plan, &answer).await.map(|()| None);
        }
        self.space.set_guarded(false);
        let revision = answer.header.as_ref().map_or(0, |header| self.offset.revision(header.revision));
        self.show(revision).await.map_err(|_| unseen(revision))?;
        Ok(Some(Committed { revision, records: Vec::new() }))
    }

    /// `number`: of this write, which `head` then names; `None` deletes without writing anything.
    fn request(&self, plan: &Plan<'_>, number: Option<u64>) -> rpc::TxnRequest {
        let conditions = || plan.conditions.iter().chain(&plan.guards);
        let mut compare = vec![compare(self.layout.format(), self.format_revision)];
        compare.extend(conditions().map(|condition| {
            self::compare(self.layout.of_key(&condition.key), self.offset.compared(condition.modified))
        }));
        let mut success: Vec<_> = plan.operations.iter().map(|operation| self.operation(operation)).collect();
        match number {
            _ if success.is_empty() => {}
            Some(number) => {
                let head = Head { writer: self.writer, number, farewells: plan.farewells.clone() };
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

    /// Says which condition did not hold, once the memory shows what did instead; nothing where it was only a guard.
    async fn lost(&self, plan: &Plan<'_>, answer: &rpc::TxnResponse) -> Result<(), Error> {
        let mut versions = answer.responses.iter().map(|response| match &response.response {
            Some(rpc::response_op::Response::ResponseRange(range)) => range.kvs.first().map_or(0, |kv| kv.mod_revision),
            _ => 0,
        });
        if versions.next() != Some(self.format_revision) {
            self.end(REPLACED);
            return self.check_open();
        }
        self.show(self.offset.revision(versions.next().unwrap_or(0))).await?;
        for (condition, version) in plan.conditions.iter().zip(versions) {
            if version != self.offset.compared(condition.modified) {
                let current = self.memory.get(&condition.key);
                return Err(Error::Conflict { key: Arc::clone(&condition.key), current });
            }
        }
        Ok(())
    }

    /// The versions that a plan made, where nobody told them.
    fn rebuilt(&self, plan: &Plan<'_>, revision: Revision) -> Vec<Arc<Record>> {
        let puts = plan.operations.iter().filter_map(|operation| match operation {
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

fn unseen(revision: Revision) -> Error {
    Error::Unknown(format!("etcd wrote it at revision {revision}, but has not told this server yet"))
}

/// A write of ours that the watch will tell; forgotten when nobody waits any more.
struct Waiting<'a> {
    inner: &'a Inner,
    number: u64,
    told: oneshot::Receiver<Told>,
}

impl<'a> Waiting<'a> {
    fn new(inner: &'a Inner) -> Waiting<'a> {
        let number = inner.numbers.fetch_add(1, Ordering::Relaxed);
        let (tell, told) = oneshot::channel();
        inner.pending.lock().unwrap_or_else(PoisonError::into_inner).insert(number, tell);
        Waiting { inner, number, told }
    }

    async fn told(&mut self) -> Option<Told> {
        let patience = self.inner.client.timing.patience;
        tokio::time::timeout(patience, &mut self.told).await.ok()?.ok()
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

/// Asks for the version of a key.
pub fn version(key: Bytes) -> rpc::RequestOp {
    let range = rpc::RangeRequest { key, keys_only: true, ..Default::default() };
    rpc::RequestOp { request: Some(Request::RequestRange(range)) }
}
