//! Virtual time and seeded ids: tokio's paused clock, and uids and name suffixes from the seed.

use crate::entropy::Rng;
use jiff::{SignedDuration, Timestamp};
use server::{Clock, Env, Ids};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Instant;

/// Start time of every world: 2026-01-01T00:00:00Z.
const START_S: i64 = 1_767_225_600;

#[derive(Clone, Copy)]
pub struct VirtualClock {
    start: Instant,
}

impl VirtualClock {
    pub fn start() -> VirtualClock {
        VirtualClock { start: Instant::now() }
    }

    /// Virtual time since the start of the world.
    pub fn elapsed_ms(&self) -> u128 {
        self.start.elapsed().as_millis()
    }

    pub fn env(self, rng: Rng) -> Env {
        Env { clock: Arc::new(self), ids: Arc::new(SeededIds(Mutex::new(rng))) }
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        let passed = SignedDuration::try_from(self.start.elapsed()).unwrap_or(SignedDuration::MAX);
        let begin = Timestamp::from_second(START_S).unwrap_or(Timestamp::UNIX_EPOCH);
        begin.checked_add(passed).unwrap_or(Timestamp::MAX)
    }
}

struct SeededIds(Mutex<Rng>);

impl SeededIds {
    fn draw(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).next()
    }
}

impl Ids for SeededIds {
    fn uid(&self) -> String {
        let (high, low) = (self.draw(), self.draw());
        let (a, b, c) = (high >> 32, (high >> 16) & 0xffff, high & 0xfff);
        format!("{a:08x}-{b:04x}-4{c:03x}-{:04x}-{:012x}", 0x8000 | (low >> 50), low & 0xffff_ffff_ffff)
    }

    fn suffix(&self, length: usize) -> String {
        const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let letter = |_| char::from(ALPHABET[self.draw() as usize % ALPHABET.len()]);
        (0..length).map(letter).collect()
    }
}
