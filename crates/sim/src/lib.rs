//! Simulation: the real server, store, planners and executors on one thread, with a virtual clock and injected faults
//! of the disk, the network and the processes. The same seed gives the same run.
//!
//! This crate must never use sockets, and no other crate depends on it. `plan::invariant` defines the rules;
//! `commit_checker` checks them at every commit.
//!
//! Begin with `docs/design/simulation.md`, then `world` and [`stories`].

mod audit;
mod campaign;
mod directories;
mod driver;
mod end;
mod entropy;
mod ledger;
mod log;
mod net;
mod onlooker;
mod point;
mod rights;
mod run;
pub mod stories;
mod storm;
mod time;
mod world;

pub use campaign::{Tally, every, points, seeds, story_of};
pub use point::{Strike, When};
pub use run::{Outcome, Plan};
pub use stories::Story;
