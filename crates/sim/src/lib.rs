//! Simulation: the real server, store, planners and executors on one thread, with a virtual clock and injected faults
//! of the disk, the network and the processes. The same seed gives the same run.
//!
//! This crate must never use sockets, and no other crate depends on it. `plan::invariant` defines the rules;
//! `commit_checker` checks them at every commit.
//!
//! Begin with `docs/design/simulation.md`, then `world` and [`stories`].

mod campaign;
mod commit_checker;
mod directories;
mod driver;
mod entropy;
mod fault_point;
mod final_state;
mod log;
mod net;
mod permission_checker;
mod process;
mod random_faults;
mod run;
pub mod stories;
mod time;
mod watch_audit;
mod watch_checker;
mod world;

pub use campaign::{Totals, every, points, seeds, story_of};
pub use fault_point::{Fault, Trigger};
pub use run::{Outcome, RunConfig};
pub use stories::Story;
