//! Guards of the hot paths (decision 16): what they allocate, request and write, counted on one thread
//! through the real server. Counts are the same on every machine, so that a limit can be close to today's
//! figure.
//!
//! A guard that fails names the figure and its limit. If the change is worth the cost, set the limit in
//! `limits.rs` a tenth above the new figure, and give the reason in the commit. If a figure fell, lower its
//! limit: `cargo test -p runtime --test guards -- --nocapture` prints all figures.

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
