//! Whether etcd is out of space, and whether transactions may have deleted keys without writing `head`.

use std::sync::atomic::{AtomicBool, Ordering};

/// Advice for the operator when etcd is out of space.
pub const ADVICE: &str = "delete objects that are not needed, run etcdctl compact --physical with the newest revision \
                          and etcdctl defrag on each member, then etcdctl alarm disarm; a larger --quota-backend-bytes \
                          of etcd also helps";

#[derive(Default)]
pub struct Space {
    exhausted: AtomicBool,
    guarded: AtomicBool,
}

impl Space {
    pub fn is_exhausted(&self) -> bool {
        self.exhausted.load(Ordering::Relaxed)
    }

    /// Logs each change.
    pub fn set_exhausted(&self, exhausted: bool) {
        match (self.exhausted.swap(exhausted, Ordering::Relaxed), exhausted) {
            (false, true) => tracing::error!(advice = ADVICE, "etcd has no space left; only deletions are possible"),
            (true, false) => tracing::info!("etcd has space again"),
            _ => {}
        }
    }

    /// Whether the key `guard` is present, as far as this server knows. Writing it once too often is harmless.
    pub fn is_guarded(&self) -> bool {
        self.guarded.load(Ordering::Relaxed)
    }

    pub fn set_guarded(&self, guarded: bool) {
        self.guarded.store(guarded, Ordering::Relaxed);
    }
}
