//! The controllers of volumes and claims against the real server in one process.

mod binding;
mod cost;
mod namespace_scope;
mod pairs;
mod protection;
mod random;
mod reclaim;
#[path = "../controllers/world.rs"]
#[allow(dead_code, reason = "shared with other tests, which use other parts of it")]
mod world;
