//! Limits how fast a controller may create objects for one owner. A small owner (a StatefulSet, later a Job
//! or a ReplicaSet) can ask for objects of any number and size: created at full speed, they fill the server's
//! memory within seconds.
//!
//! Each owner and each namespace has a token bucket of bytes. It starts full, so that normal owners never
//! wait. Created objects take from it; it refills with time, and when objects of the owner are deleted. A
//! [`Grant`] reserves a part of both buckets for one plan. Requests of all owners that are sent concurrently
//! share [`Growth::in_flight`].

use kit::cache::Key;
use plan::allowance::{Allowance, Written};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// Limits of one owner. A pod and its claim take about 4 KB.
const OWNER: Rate = Rate { burst_bytes: 32 << 20, bytes_per_second: 1 << 20 };
/// Limits of all owners of a namespace together.
const NAMESPACE: Rate = Rate { burst_bytes: 128 << 20, bytes_per_second: 4 << 20 };
/// A bucket with less than this grants nothing: many small plans would cost more than the objects.
const GRANT_BYTES_MIN: i64 = 256 << 10;

/// Concurrent requests of one plan,
const PLAN_REQUESTS_MAX: usize = 256;
/// and their bytes. A larger request is sent alone.
const PLAN_BYTES_MAX: usize = 2 << 20;
/// Bytes of all concurrent requests, of all plans.
const IN_FLIGHT_BYTES_MAX: usize = 16 << 20;

#[derive(Clone, Copy)]
struct Rate {
    burst_bytes: i64,
    bytes_per_second: i64,
}

/// The buckets of a controller.
pub struct Growth {
    buckets: Mutex<Buckets>,
    in_flight: Semaphore,
}

#[derive(Default)]
struct Buckets {
    owners: HashMap<Key, Bucket>,
    namespaces: HashMap<Arc<str>, Bucket>,
    /// The number of buckets after full ones were last removed.
    swept: usize,
}

struct Bucket {
    rate: Rate,
    /// Bytes that may be created. Negative after an object that was larger than what was left.
    bytes: i64,
    filled_at: Instant,
    /// The owner's objects at its last grant, and those created since.
    objects: usize,
    /// The mean size of the created objects, for the credit when objects are deleted.
    mean_bytes: usize,
}

impl Bucket {
    fn new(rate: Rate, now: Instant) -> Bucket {
        Bucket { rate, bytes: rate.burst_bytes, filled_at: now, objects: 0, mean_bytes: 0 }
    }

    fn fill(&mut self, now: Instant) {
        let milliseconds = i64::try_from(now.duration_since(self.filled_at).as_millis()).unwrap_or(i64::MAX);
        let bytes = milliseconds.saturating_mul(self.rate.bytes_per_second) / 1000;
        // Time that has not yielded a whole byte yet still counts.
        if bytes > 0 {
            self.filled_at = now;
            self.add(bytes);
        }
    }

    fn add(&mut self, bytes: i64) {
        self.bytes = self.bytes.saturating_add(bytes).min(self.rate.burst_bytes);
    }

    fn is_full(&self) -> bool {
        self.bytes >= self.rate.burst_bytes
    }

    /// How long until there is enough for a grant.
    fn wait(&self) -> Duration {
        let missing_bytes = u64::try_from(GRANT_BYTES_MIN.saturating_sub(self.bytes)).unwrap_or(0);
        Duration::from_millis(missing_bytes.saturating_mul(1000) / self.rate.bytes_per_second.unsigned_abs() + 1)
    }
}

impl Default for Growth {
    fn default() -> Growth {
        Growth { buckets: Mutex::default(), in_flight: Semaphore::new(IN_FLIGHT_BYTES_MAX) }
    }
}

impl Growth {
    /// Reserves what one plan of an owner may create. `objects` is the number that it has now: fewer than
    /// before are credited, so that replacing objects costs nothing.
    pub fn grant(&self, owner: &Key, objects: usize) -> Grant<'_> {
        let now = Instant::now();
        let mut buckets = self.lock();
        buckets.sweep(now);
        let Buckets { owners, namespaces, .. } = &mut *buckets;
        let own = owners.entry(owner.clone()).or_insert_with(|| Bucket::new(OWNER, now));
        let common = namespaces.entry(owner.0.clone()).or_insert_with(|| Bucket::new(NAMESPACE, now));
        let freed_bytes = signed(own.objects.saturating_sub(objects).saturating_mul(own.mean_bytes));
        own.objects = objects;
        for bucket in [&mut *own, &mut *common] {
            bucket.fill(now);
            bucket.add(freed_bytes);
        }
        let available = own.bytes.min(common.bytes);
        let available = if available < GRANT_BYTES_MIN { 0 } else { usize::try_from(available).unwrap_or(0) };
        let allowance = Allowance::of_bytes(available);
        own.bytes -= signed(allowance.bytes);
        common.bytes -= signed(allowance.bytes);
        let wait = own.wait().max(common.wait());
        Grant {
            growth: self,
            owner: owner.clone(),
            allowance,
            wait,
            created: AtomicUsize::new(0),
            planned: Written::default(),
        }
    }

    /// Waits until this many more bytes may be sent. Cancel-safe.
    pub async fn in_flight(&self, bytes: usize) -> SemaphorePermit<'_> {
        let permits = u32::try_from(bytes.min(IN_FLIGHT_BYTES_MAX)).expect("the limit is within 32 bits");
        self.in_flight.acquire_many(permits).await.expect("the semaphore is never closed")
    }

    fn lock(&self) -> MutexGuard<'_, Buckets> {
        self.buckets.lock().expect("no panic happens under this lock")
    }
}

impl Buckets {
    /// Removes full buckets, when there are many. An owner that is deleted and created again keeps a bucket
    /// that it has emptied.
    fn sweep(&mut self, now: Instant) {
        const FEW: usize = 1024;
        if self.owners.len() + self.namespaces.len() <= FEW.max(2 * self.swept) {
            return;
        }
        let is_used = |bucket: &mut Bucket| {
            bucket.fill(now);
            !bucket.is_full()
        };
        self.owners.retain(|_, bucket| is_used(bucket));
        self.namespaces.retain(|_, bucket| is_used(bucket));
        self.swept = self.owners.len() + self.namespaces.len();
    }
}

/// What one plan may create. What it has not created when it is dropped is returned to the buckets.
pub struct Grant<'g> {
    growth: &'g Growth,
    owner: Key,
    pub allowance: Allowance,
    /// After this time a grant is possible again.
    pub wait: Duration,
    /// Number of objects that were created.
    created: AtomicUsize,
    planned: Written,
}

impl Grant<'_> {
    /// Sets what the plan for this grant is going to create.
    pub fn plan(&mut self, written: Written) {
        self.planned = written;
    }

    /// Counts a created object of the plan.
    pub fn created(&self) {
        self.created.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the buckets, and not the limit of one plan, have limited the plan.
    pub fn limits(&self) -> bool {
        self.planned.withheld && self.allowance != Allowance::MAX
    }

    /// How many lanes, of steps with `requests` requests each, may run concurrently (at most `max`), and the
    /// bytes of their requests together.
    pub fn lanes(&self, requests: usize, max: usize) -> (usize, usize) {
        let bytes = self.planned.largest_bytes.saturating_mul(requests);
        let by_bytes = PLAN_BYTES_MAX.checked_div(bytes).unwrap_or(max);
        let lanes = (PLAN_REQUESTS_MAX / requests.max(1)).min(by_bytes).clamp(1, max);
        (lanes, lanes.saturating_mul(bytes))
    }
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        let mut buckets = self.growth.lock();
        let created = *self.created.get_mut();
        let mean_bytes = self.planned.bytes.checked_div(self.planned.objects).unwrap_or(0);
        let spent_bytes = mean_bytes.saturating_mul(created);
        // Negative if the last object was larger than what was left.
        let unspent_bytes = signed(self.allowance.bytes) - signed(spent_bytes);
        if let Some(own) = buckets.owners.get_mut(&self.owner) {
            own.objects += created;
            if created > 0 {
                own.mean_bytes = mean_bytes;
            }
            own.add(unspent_bytes);
        }
        if let Some(common) = buckets.namespaces.get_mut(&self.owner.0) {
            common.add(unspent_bytes);
        }
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: &str) -> Key {
        ("a".into(), name.into())
    }

    /// Creates as much as is granted, in objects of this size; returns their number.
    fn create(growth: &Growth, owner: &Key, existing: usize, bytes: usize) -> usize {
        let mut grant = growth.grant(owner, existing);
        let objects = if grant.allowance.bytes == 0 { 0 } else { grant.allowance.bytes.div_ceil(bytes) };
        grant.plan(Written { objects, bytes: objects * bytes, largest_bytes: bytes, withheld: true });
        (0..objects).for_each(|_| grant.created());
        objects
    }

    fn create_all(growth: &Growth, owner: &Key, bytes: usize) -> usize {
        let mut objects = 0;
        loop {
            match create(growth, owner, objects, bytes) {
                0 => return objects,
                more => objects += more,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_owner_creates_its_burst_and_then_continues_at_its_rate() {
        let (growth, huge, other) = (Growth::default(), owner("huge"), owner("other"));
        let burst = create_all(&growth, &huge, 1 << 20);
        assert_eq!(burst, 32);
        assert!(create(&growth, &other, 0, 4 << 10) > 0, "other owners have buckets of their own");
        let wait = growth.grant(&huge, burst).wait;
        assert_eq!(wait, Duration::from_millis(251));
        tokio::time::advance(wait).await;
        assert_eq!(create(&growth, &huge, burst, 3 << 20), 1, "one object is always created");
        let wait = growth.grant(&huge, burst + 1).wait;
        assert_eq!(wait.as_secs(), 3, "its bytes delay the next grant");
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(growth.grant(&huge, 0).allowance, Allowance::MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_not_created_and_bytes_deleted_are_credited() {
        let (growth, owner) = (Growth::default(), owner("web"));
        for _ in 0..100 {
            let mut refused = growth.grant(&owner, 0);
            refused.plan(Written { objects: 4, bytes: 4 << 20, largest_bytes: 1 << 20, withheld: true });
        }
        for _ in 0..100 {
            assert_eq!(create(&growth, &owner, 0, 64 << 10), 64, "the objects of the last round are deleted");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn owners_share_the_bucket_of_their_namespace() {
        let growth = Growth::default();
        let total: usize = (0..10).map(|at| create_all(&growth, &owner(&format!("huge-{at}")), 1 << 20)).sum();
        assert!((127..=132).contains(&total), "{total} MiB");
        assert!(growth.grant(&("b".into(), "web".into()), 0).allowance == Allowance::MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn full_buckets_are_removed() {
        let growth = Growth::default();
        for at in 0..5_000 {
            create(&growth, &owner(&format!("set-{at}")), 0, 4 << 20);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        let count = growth.lock().owners.len();
        assert!(count <= 2_000, "{count} buckets");
    }

    #[test]
    fn large_requests_are_sent_one_at_a_time_and_small_ones_together() {
        let growth = Growth::default();
        let mut grant = growth.grant(&owner("web"), 0);
        assert_eq!(grant.lanes(1, 64), (64, 0));
        for (largest_bytes, requests, lanes) in [(2_000, 2, 64), (2_000, 16, 16), (10_000, 16, 13), (2_500_000, 1, 1)] {
            grant.plan(Written { largest_bytes, ..Written::default() });
            assert_eq!(grant.lanes(requests, 64), (lanes, lanes * requests * largest_bytes));
        }
    }
}
