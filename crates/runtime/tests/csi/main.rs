//! The side controllers of CSI drivers against the real server and a real driver over gRPC, in one process.

mod bad_timing;
mod capacity;
mod cost;
mod crashes;
mod deletion;
mod expansion;
mod health;
mod interference;
mod last_state;
mod modification;
#[path = "../volumes/pairs.rs"]
#[allow(dead_code, reason = "shared with other tests, which use other parts of it")]
mod pairs;
mod policies;
mod provisioning;
mod random;
mod restored;
mod sets;
mod sockets;
mod storage;
#[path = "../controllers/world.rs"]
#[allow(dead_code, reason = "shared with other tests, which use other parts of it")]
mod world;
