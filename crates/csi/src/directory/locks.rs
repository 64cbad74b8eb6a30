//! Locks by key: operations on one volume run one after the other, operations on different volumes concurrently.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// A held lock. Several readers of one key (copies of a volume) may hold it together.
#[derive(Debug, Default)]
pub struct Locks {
    held: Arc<Held>,
}

type Held = Mutex<HashMap<Arc<str>, Arc<RwLock<()>>>>;

impl Locks {
    /// Waits for the lock, first come, first served. Dropping the future stops waiting. The guard may move to another
    /// thread.
    pub async fn exclusive(&self, key: &str) -> Guard {
        let mut guard = self.guard(key);
        guard.hold = Some(Hold::Exclusive(self.lock(key).write_owned().await));
        guard
    }

    pub async fn shared(&self, key: &str) -> Guard {
        let mut guard = self.guard(key);
        guard.hold = Some(Hold::Shared(self.lock(key).read_owned().await));
        guard
    }

    /// Also removes the entry of a caller that stopped waiting.
    fn guard(&self, key: &str) -> Guard {
        Guard { key: key.into(), hold: None, held: Arc::clone(&self.held) }
    }

    fn lock(&self, key: &str) -> Arc<RwLock<()>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = held.get(key) {
            return Arc::clone(lock);
        }
        Arc::clone(held.entry(key.into()).or_default())
    }
}

#[derive(Debug)]
pub struct Guard {
    key: Arc<str>,
    hold: Option<Hold>,
    held: Arc<Held>,
}

#[derive(Debug)]
#[allow(dead_code)] // Held, not read.
enum Hold {
    Shared(OwnedRwLockReadGuard<()>),
    Exclusive(OwnedRwLockWriteGuard<()>),
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        self.hold = None;
        // No caller can take the lock while the map is locked: an entry that only the map holds can be removed.
        if held.get(&self.key).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            held.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    /// Polls once.
    fn now<F: Future + ?Sized>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[tokio::test]
    async fn operations_on_one_key_wait_and_no_entry_is_left() {
        let locks = Locks::default();
        let first = locks.exclusive("a").await;
        let mut second = Box::pin(locks.exclusive("a"));
        assert!(now(second.as_mut()).is_none());
        drop(locks.exclusive("b").await);
        drop(first);
        drop(second.await);
        // A caller that stops waiting leaves no entry either.
        let first = locks.exclusive("c").await;
        let mut third = Box::pin(locks.exclusive("c"));
        assert!(now(third.as_mut()).is_none());
        drop(first);
        drop(third);
        let (one, other) = (locks.shared("a").await, locks.shared("a").await);
        let mut writer = Box::pin(locks.exclusive("a"));
        assert!(now(writer.as_mut()).is_none());
        drop((one, other));
        drop(writer.await);
        assert!(locks.held.lock().unwrap().is_empty());
    }
}
