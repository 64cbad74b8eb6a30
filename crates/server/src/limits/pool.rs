//! A limited number of units (requests, watches, KiB of memory) that users share.
//!
//! One user may hold at most as many units as remain free. So one greedy user gets at most half of a pool, two get a
//! third each, and a user that holds nothing is admitted while any unit is free. All service accounts of one
//! namespace together may hold twice the free units, so a user who creates more accounts does not get a larger share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;

/// A pool is crowded when less than one `CROWDED_PART`th of its units is free. The rest is then for users that hold
/// little. Without this, ten greedy users could use up the pool, each with half of what is free.
const CROWDED_PART: usize = 8;
/// In a crowded pool, a user may hold one `CROWDED_SHARE`th of the free units.
const CROWDED_SHARE: usize = 64;

/// The user whose share a request uses.
#[derive(Clone, Debug)]
pub struct Flow {
    user: Arc<str>,
    /// The group of all service accounts of a namespace, if the user is one of them.
    namespace: Option<Arc<str>>,
}

impl Flow {
    pub fn of(user: &str) -> Flow {
        let account = user.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
        let namespace = account.map(|(namespace, _)| format!("system:serviceaccounts:{namespace}").into());
        Flow { user: user.into(), namespace }
    }

    /// The keys to count, each with the multiple of the free units that it may hold.
    fn limits(&self) -> impl Iterator<Item = (&Arc<str>, usize)> {
        std::iter::once((&self.user, 1)).chain(self.namespace.as_ref().map(|group| (group, 2)))
    }
}

pub struct Pool {
    size: usize,
    state: Mutex<State>,
    released: Notify,
}

#[derive(Default)]
struct State {
    used: usize,
    /// Used units by user and by namespace of service accounts, without zeros.
    flows: HashMap<Arc<str>, usize>,
}

impl Pool {
    pub fn new(size: usize) -> Arc<Pool> {
        Arc::new(Pool { size, state: Mutex::default(), released: Notify::new() })
    }

    pub fn size(&self) -> usize {
        self.size
    }

    pub fn in_use(&self) -> usize {
        self.state().used
    }

    pub fn available(&self) -> usize {
        self.size - self.in_use()
    }

    /// Whether one more unit would be granted. Without a flow, only the pool's size counts.
    pub fn would_admit(&self, flow: Option<&Flow>) -> bool {
        self.state().admits(self.size, flow, 1)
    }

    pub fn try_acquire(self: &Arc<Pool>, flow: Option<&Flow>, count: usize) -> Option<Permit> {
        self.take(flow, count).then(|| Permit { pool: self.clone(), flow: flow.cloned(), count })
    }

    /// Waits until the units are free.
    pub async fn acquire(self: &Arc<Pool>, flow: Option<&Flow>, count: usize) -> Permit {
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            // From here on, every release wakes this task.
            released.as_mut().enable();
            if let Some(permit) = self.try_acquire(flow, count) {
                return permit;
            }
            released.await;
        }
    }

    fn take(&self, flow: Option<&Flow>, count: usize) -> bool {
        let mut state = self.state();
        if !state.admits(self.size, flow, count) {
            return false;
        }
        state.used += count;
        for (key, _) in flow.iter().flat_map(|flow| flow.limits()) {
            match state.flows.get_mut(key) {
                Some(used) => *used += count,
                None => _ = state.flows.insert(key.clone(), count),
            }
        }
        true
    }

    fn release(&self, flow: Option<&Flow>, count: usize) {
        let mut state = self.state();
        state.used -= count;
        for (key, _) in flow.iter().flat_map(|flow| flow.limits()) {
            if let Some(used) = state.flows.get_mut(key) {
                *used -= count;
                if *used == 0 {
                    state.flows.remove(key);
                }
            }
        }
        drop(state);
        self.released.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic happens under this lock")
    }
}

impl State {
    fn admits(&self, size: usize, flow: Option<&Flow>, count: usize) -> bool {
        let Some(free) = size.checked_sub(self.used + count) else { return false };
        let is_crowded = free < size / CROWDED_PART;
        flow.iter().flat_map(|flow| flow.limits()).all(|(key, times)| match self.flows.get(key) {
            // A user's first request is admitted while any unit is free.
            None => true,
            Some(used) if is_crowded => used + count <= free / CROWDED_SHARE,
            Some(used) => used + count <= free.saturating_mul(times),
        })
    }
}

/// Units of a pool, released when dropped.
pub struct Permit {
    pool: Arc<Pool>,
    flow: Option<Flow>,
    count: usize,
}

impl Permit {
    pub fn count(&self) -> usize {
        self.count
    }

    /// Acquires more units. Returns false, without a change, if there are not enough.
    pub fn grow(&mut self, count: usize) -> bool {
        let taken = self.pool.take(self.flow.as_ref(), count);
        if taken {
            self.count += count;
        }
        taken
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.pool.release(self.flow.as_ref(), self.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Acquires single units for a user until the pool refuses.
    fn greedy(pool: &Arc<Pool>, user: &str) -> Vec<Permit> {
        let flow = Flow::of(user);
        std::iter::from_fn(|| pool.try_acquire(Some(&flow), 1)).collect()
    }

    #[test]
    fn greedy_users_leave_as_much_as_each_of_them_holds() {
        let pool = Pool::new(1024);
        let mut held = vec![greedy(&pool, "a")];
        assert_eq!((held[0].len(), pool.available()), (512, 512));
        held.push(greedy(&pool, "b"));
        assert_eq!(held[1].len(), 256);
        // A new user of a crowded pool is still admitted: an eighth is reserved for users that hold little.
        held.extend((0..100).map(|at| greedy(&pool, &format!("u{at}"))));
        assert!(held.iter().all(|held| !held.is_empty()));
        assert!(pool.would_admit(None), "{}", pool.available());
        held.clear();
        assert_eq!(pool.available(), 1024);
        assert!(pool.state().flows.is_empty(), "users that hold nothing are forgotten");
    }

    #[test]
    fn accounts_of_one_namespace_have_a_share_together() {
        let pool = Pool::new(900);
        let held: Vec<_> = (0..500).map(|at| greedy(&pool, &format!("system:serviceaccount:team:a{at}"))).collect();
        let count: usize = held.iter().map(Vec::len).sum();
        assert_eq!((count, pool.available()), (600, 300));
        assert!(held[499].is_empty(), "one more account gives no more units");
        assert_eq!(greedy(&pool, "system:serviceaccount:other:a").len(), 150);
    }

    #[test]
    fn one_large_request_is_admitted_alone() {
        let pool = Pool::new(100);
        let flow = Flow::of("a");
        let large = pool.try_acquire(Some(&flow), 90).expect("it is the first");
        assert!(pool.try_acquire(Some(&flow), 1).is_none());
        assert!(pool.try_acquire(Some(&Flow::of("b")), 10).is_some());
        drop(large);
        assert!(pool.try_acquire(Some(&flow), 101).is_none(), "no request is larger than the pool");
    }

    #[test]
    fn growth_is_within_the_share() {
        let pool = Pool::new(100);
        let mut body = pool.try_acquire(Some(&Flow::of("a")), 30).expect("it is the first");
        assert!(body.grow(20) && !body.grow(1), "half of the pool");
        assert_eq!((body.count(), pool.in_use()), (50, 50));
        drop(body);
        assert_eq!(pool.in_use(), 0);
    }

    #[tokio::test]
    async fn waiting_requests_are_served_when_units_are_released() {
        let pool = Pool::new(10);
        let held = pool.try_acquire(None, 8).expect("the pool is empty");
        let waiting = tokio::spawn({
            let pool = pool.clone();
            async move { pool.acquire(Some(&Flow::of("a")), 5).await.count() }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(held);
        assert_eq!(waiting.await.expect("no panic"), 5);
    }
}
