//! The only writer: takes a batch of transactions, decides each one in order, commits the batch with one sync, makes it
//! visible, and answers all of it.
//!
//! This order is a guarantee: nothing is visible before it is durable, and nothing is acknowledged before it is
//! visible.

use crate::disk::{Disk, Fault, Row, Write};
use crate::expiry::Expiry;
use crate::export::Snapshot;
use crate::memory::{Change, Memory};
use crate::{Committed, Error, Event, Finish, Operation, Record, Revision, Txn};
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::sync::oneshot;

pub(crate) type Answer = Result<Committed, Error>;

/// A snapshot and its revision.
pub(crate) type Exported = Result<(Revision, Box<dyn Snapshot>), Error>;

pub(crate) enum Request {
    Txn { txn: Txn, answer: oneshot::Sender<Answer> },
    Export(oneshot::Sender<Exported>),
}

/// State shared by readers and the writer.
pub(crate) struct Shared {
    pub memory: Arc<Memory>,
    pub expiry: Mutex<Expiry>,
    pub health: Mutex<Health>,
}

/// Whether writes are possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Good,
    /// The last batch was refused; the next one may succeed.
    Refused(String),
    /// No write will ever be accepted again.
    Final(String),
}

impl Shared {
    pub fn new(memory: Arc<Memory>, expiry: Expiry) -> Shared {
        Shared { memory, expiry: Mutex::new(expiry), health: Mutex::new(Health::Good) }
    }

    pub fn health(&self) -> Health {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_health(&self, health: Health) {
        *self.health.lock().unwrap_or_else(PoisonError::into_inner) = health;
    }

    /// Ends writing permanently. The first reason is kept.
    pub fn end(&self, reason: String) {
        let mut health = self.health.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*health, Health::Final(_)) {
            *health = Health::Final(reason);
        }
    }
}

pub(crate) struct Writer {
    pub shared: Arc<Shared>,
    pub finish: Finish,
    pub disk: Box<dyn Disk>,
}

impl Writer {
    pub fn serve(&mut self, batch: Vec<Request>) {
        if let Health::Final(reason) = self.shared.health() {
            for request in batch {
                match request {
                    Request::Txn { answer: to, .. } => answer(to, Err(Error::Unavailable(reason.clone()))),
                    Request::Export(to) => drop(to.send(Err(Error::Unavailable(reason.clone())))),
                }
            }
            return;
        }
        let mut staged = Staged::new(&self.shared.memory, &*self.disk, self.finish);
        let mut decided = Vec::with_capacity(batch.len());
        for request in batch {
            match request {
                Request::Txn { txn, answer } => decided.push((answer, staged.decide(txn))),
                // Nothing of this batch is committed yet, so the snapshot matches the visible revision.
                Request::Export(to) => drop(to.send(export(&self.shared.memory, &*self.disk))),
            }
        }
        let Staged { writes, changes, revision, .. } = staged;
        if !writes.is_empty()
            && let Err(fault) = self.disk.commit(&writes, revision)
        {
            self.refuse(decided, fault);
            return;
        }
        self.show(writes, changes);
        for (to, outcome) in decided {
            answer(to, outcome);
        }
    }

    /// Tries to recover after a refused write. Called while the queue is empty.
    pub fn recover(&mut self) {
        match self.disk.recover() {
            Ok(()) => self.shared.set_health(Health::Good),
            Err(Fault::Refused(reason)) => self.shared.set_health(Health::Refused(reason)),
            Err(Fault::Final(reason)) => self.shared.end(reason),
        }
    }

    fn show(&self, writes: Vec<Write>, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        {
            let mut expiry = self.shared.expiry.lock().expect("the expiry lock is not poisoned");
            for write in &writes {
                let expires_at_s = write.row.as_ref().and_then(|row| row.expires_at_s);
                expiry.set(&write.key, expires_at_s, write.row.as_ref().map_or(0, |row| row.modified));
            }
        }
        self.shared.memory.publish(changes);
        self.shared.set_health(Health::Good);
    }

    /// Answers a batch that was not committed. Transactions that would have written get the failure. Conflicts were
    /// found against transactions of the same batch that did not happen, so they get the failure too.
    fn refuse(&self, decided: Vec<(oneshot::Sender<Answer>, Answer)>, fault: Fault) {
        let (reason, known) = match fault {
            Fault::Refused(reason) => {
                self.shared.set_health(Health::Refused(reason.clone()));
                (reason, true)
            }
            Fault::Final(reason) => {
                self.shared.end(reason.clone());
                (reason, false)
            }
        };
        tracing::error!(reason, store = self.disk.place(), "cannot commit a batch of writes");
        for (to, outcome) in decided {
            let wrote = outcome.is_ok();
            let error =
                if known || !wrote { Error::Unavailable(reason.clone()) } else { Error::Unknown(reason.clone()) };
            answer(to, Err(error));
        }
    }
}

fn export(memory: &Memory, disk: &dyn Disk) -> Exported {
    match disk.snapshot() {
        Ok(snapshot) => Ok((memory.revision(), snapshot)),
        Err(Fault::Refused(reason) | Fault::Final(reason)) => Err(Error::Unavailable(reason)),
    }
}

fn answer(to: oneshot::Sender<Answer>, outcome: Answer) {
    // A closed receiver means that the caller no longer waits for the outcome. The write is not undone.
    drop(to.send(outcome));
}

/// The batch as decided so far. Each transaction sees the ones before it.
struct Staged<'a> {
    memory: &'a Memory,
    disk: &'a dyn Disk,
    finish: Finish,
    revision: Revision,
    now: HashMap<Arc<str>, Now>,
    writes: Vec<Write>,
    changes: Vec<Change>,
}

/// The state of a key after the transactions decided so far.
struct Now {
    record: Option<Arc<Record>>,
    stored: Option<Bytes>,
}

impl<'a> Staged<'a> {
    fn new(memory: &'a Memory, disk: &'a dyn Disk, finish: Finish) -> Staged<'a> {
        let revision = memory.revision();
        Staged { memory, disk, finish, revision, now: HashMap::new(), writes: Vec::new(), changes: Vec::new() }
    }

    fn decide(&mut self, txn: Txn) -> Answer {
        for condition in &txn.conditions {
            let current = self.current(&condition.key);
            if current.as_ref().map_or(0, |record| record.modified) != condition.modified {
                return Err(Error::Conflict { key: Arc::clone(&condition.key), current });
            }
        }
        let operations = self.effective(txn.operations);
        if operations.is_empty() {
            return Ok(Committed { revision: self.revision, records: Vec::new() });
        }
        let lasts = self.lasts(&operations)?;
        let revision = self.revision + 1;
        let mut records = Vec::new();
        let mut events = Vec::with_capacity(operations.len());
        for (operation, last) in operations.into_iter().zip(lasts) {
            let event = self.event(operation, last, revision);
            records.extend(event.current.clone());
            events.push(event);
        }
        self.revision = revision;
        self.changes.push(Change { revision, events });
        Ok(Committed { revision, records })
    }

    /// Returns the operations that change something: the last one per key, and no deletion of an absent key.
    fn effective(&self, mut operations: Vec<Operation>) -> Vec<Operation> {
        if operations.len() > 1 {
            let mut seen = HashSet::new();
            operations.reverse();
            operations.retain(|operation| seen.insert(Arc::clone(key(operation))));
            operations.reverse();
        }
        operations.retain(|operation| match operation {
            Operation::Put { .. } => true,
            Operation::Delete { key, .. } => self.current(key).is_some(),
        });
        operations
    }

    /// Returns the value that watchers get for each deletion. This can fail, so it runs before anything is staged.
    fn lasts(&self, operations: &[Operation]) -> Result<Vec<Option<Bytes>>, Error> {
        operations
            .iter()
            .map(|operation| match operation {
                Operation::Put { .. } => Ok(None),
                Operation::Delete { last: Some(last), .. } => Ok(Some(last.clone())),
                Operation::Delete { key, last: None } => match self.now.get(key) {
                    Some(now) => Ok(now.stored.clone()),
                    None => self.disk.stored(key).map_err(|fault| match fault {
                        Fault::Refused(reason) | Fault::Final(reason) => Error::Unavailable(reason),
                    }),
                },
            })
            .collect()
    }

    fn event(&mut self, operation: Operation, last: Option<Bytes>, revision: Revision) -> Event {
        let previous = self.current(key(&operation));
        // All versions of a key share one allocation of its text.
        let key = previous.as_ref().map_or_else(|| Arc::clone(key(&operation)), |record| Arc::clone(&record.key));
        let created = previous.as_ref().map_or(revision, |record| record.created);
        let (record, row) = match operation {
            Operation::Put { value, expires_at_s, memo, .. } => {
                let finished = (self.finish)(&value, revision);
                let mut record = record(Arc::clone(&key), finished, created, revision);
                record.memo = memo.map(OnceLock::from).unwrap_or_default();
                (Some(Arc::new(record)), Some(Row { created, modified: revision, expires_at_s, value }))
            }
            Operation::Delete { .. } => (None, None),
        };
        let stored = row.as_ref().map(|row| row.value.clone());
        self.now.insert(Arc::clone(&key), Now { record: record.clone(), stored });
        self.writes.push(Write { key: Arc::clone(&key), row });
        let last = last.map(|last| (self.finish)(&last, revision));
        Event { revision, key, current: record, previous, last }
    }

    fn current(&self, key: &str) -> Option<Arc<Record>> {
        match self.now.get(key) {
            Some(now) => now.record.clone(),
            None => self.memory.get(key),
        }
    }
}

pub(crate) fn record(key: Arc<str>, value: Bytes, created: Revision, modified: Revision) -> Record {
    Record { key, value, created, modified, memo: OnceLock::new() }
}

fn key(operation: &Operation) -> &Arc<str> {
    match operation {
        Operation::Put { key, .. } | Operation::Delete { key, .. } => key,
    }
}
