//! A real store in memory and a manual clock, for unit tests of authentication and authorization.

use crate::env::{Clock, Env, Ids};
use jiff::Timestamp;
use object::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use store::{Operation, Options, Store, Txn, Volatile};

pub const NOW_S: i64 = 1_800_000_000;

pub fn store() -> Arc<dyn Store> {
    Volatile::new(|stored, _| stored.clone(), Options::default())
}

pub fn put(store: &Arc<dyn Store>, key: &str, value: &Value) {
    let value = serde_json::to_vec(value).unwrap().into();
    commit(store, Operation::Put { key: key.into(), value, expires_at_s: None, memo: None });
}

pub fn delete(store: &Arc<dyn Store>, key: &str) {
    commit(store, Operation::Delete { key: key.into(), last: None });
}

fn commit(store: &Arc<dyn Store>, operation: Operation) {
    let txn = Txn { conditions: Vec::new(), operations: vec![operation] };
    futures::executor::block_on(store.txn(txn)).unwrap();
}

/// A clock that tests advance, and ids that count up.
pub struct Bench {
    now_s: AtomicI64,
    ids: AtomicU64,
}

impl Bench {
    pub fn new() -> Arc<Bench> {
        Arc::new(Bench { now_s: AtomicI64::new(NOW_S), ids: AtomicU64::new(1) })
    }

    pub fn env(self: &Arc<Bench>) -> Env {
        Env { clock: self.clone(), ids: self.clone() }
    }

    pub fn advance(&self, seconds: i64) {
        self.now_s.fetch_add(seconds, Ordering::Relaxed);
    }
}

impl Clock for Bench {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.now_s.load(Ordering::Relaxed)).unwrap()
    }
}

impl Ids for Bench {
    fn uid(&self) -> String {
        format!("id-{}", self.ids.fetch_add(1, Ordering::Relaxed))
    }

    fn suffix(&self, length: usize) -> String {
        "x".repeat(length)
    }
}
