//! Simulated nodes against the real server in one process: each node and the scheduler with its own identity and role.

mod cost;
mod faults;
mod fleet;
mod lifecycle;
mod loss;
mod placing;
mod registration;
mod running;
mod volume_stats;
#[path = "../../../runtime/tests/controllers/world.rs"]
#[allow(dead_code, reason = "shared with other tests, which use other parts of it")]
mod world;
