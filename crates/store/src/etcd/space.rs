//! What is known of etcd's space: whether it has any left, and whether deletions were made without writing `head`.

use std::sync::atomic::{AtomicBool, Ordering};

/// What an operator does about it.
pub const ADVICE: &str = "delete objects that are not needed, run etcdctl defrag on each member, then etcdctl alarm disarm; \
                          a larger --quota-backend-bytes of etcd helps, too";

#[derive(Default)]
pub struct Space {
    exhausted: AtomicBool,
    guarded: AtomicBool,
}

impl Space {
    pub fn is_exhausted(&self) -> bool {
        self.exhausted.load(Ordering::Relaxed)
    }

    /// Says so in the log when it changes.
    pub fn set_exhausted(&self, exhausted: bool) {
        match (self.exhausted.swap(exhausted, Ordering::Relaxed), exhausted) {
            (false, true) => tracing::error!(advice = ADVICE, "etcd has no space left: only deletions are possible"),
            (true, false) => tracing::info!("etcd has space again"),
            _ => {}
        }
    }

    /// Whether the key `guard` is present, as far as this server knows. Writing it once too often does no harm.
    pub fn is_guarded(&self) -> bool {
        self.guarded.load(Ordering::Relaxed)
    }

    pub fn set_guarded(&self, guarded: bool) {
        self.guarded.store(guarded, Ordering::Relaxed);
    }
}
