//! What the server takes from outside itself: the time, and fresh ids. Both can be replaced, so that a run can be repeated.

use std::sync::Arc;

/// The clock.
pub trait Clock: Send + Sync {
    fn now(&self) -> jiff::Timestamp;
}

/// Where uids and the random ends of generated names come from.
pub trait Ids: Send + Sync {
    fn uid(&self) -> String;
    /// `length` characters for a generated name.
    fn suffix(&self, length: usize) -> String;
}

#[derive(Clone)]
pub struct Env {
    pub clock: Arc<dyn Clock>,
    pub ids: Arc<dyn Ids>,
}

impl Default for Env {
    fn default() -> Env {
        Env { clock: Arc::new(SystemClock), ids: Arc::new(RandomIds) }
    }
}

struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> jiff::Timestamp {
        jiff::Timestamp::now()
    }
}

struct RandomIds;

impl Ids for RandomIds {
    fn uid(&self) -> String {
        uuid::Uuid::new_v4().to_string()
    }

    fn suffix(&self, length: usize) -> String {
        // No vowels and no lookalikes, so that no suffix spells a word or is misread.
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let bytes = uuid::Uuid::new_v4().into_bytes();
        let pick = |at: usize| ALPHABET[usize::from(bytes[at % bytes.len()]) % ALPHABET.len()];
        (0..length).map(|at| char::from(pick(at))).collect()
    }
}
