//! The server's sources of time and random ids. Both can be replaced, so that a simulated run can be repeated.

use std::sync::Arc;

/// Source of the current time.
pub trait Clock: Send + Sync {
    fn now(&self) -> jiff::Timestamp;
}

/// Source of uids and of the random suffixes of generated names.
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
        // No vowels and no similar characters, so that a suffix spells no word and is not misread.
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let bytes = uuid::Uuid::new_v4().into_bytes();
        let pick = |at: usize| ALPHABET[usize::from(bytes[at % bytes.len()]) % ALPHABET.len()];
        (0..length).map(|at| char::from(pick(at))).collect()
    }
}
