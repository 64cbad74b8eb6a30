//! Guards of the hot paths (decision 16): what they allocate, ask and write, counted on one thread through the real server. Counts are
//! the same on every machine, so that a limit can be close to today's figure.
//!
//! A guard that fails says which figure went over which limit. Where that is the price of something worth it, set the limit in
//! `limits.rs` a tenth above the new figure, and say in the commit why. Where a figure fell, bring its limit down with it:
//! `cargo test -p runtime --test guards -- --nocapture` prints all of them.

mod api;
mod controllers;
mod count;
mod growth;
mod limits;
mod planners;
#[path = "../../../plan/benches/world/mod.rs"]
mod worlds;

#[path = "../statefulsets/kubelet.rs"]
#[allow(dead_code, reason = "shared with other tests, which use other parts of it")]
mod kubelet;
#[path = "../statefulsets/sets.rs"]
#[allow(dead_code, reason = "shared with other tests, which use other parts of it")]
mod sets;
#[path = "../controllers/world.rs"]
#[allow(dead_code, reason = "shared with other tests, which use other parts of it")]
mod world;

#[global_allocator]
static ALLOCATOR: count::Counting = count::Counting;
