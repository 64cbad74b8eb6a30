//! Seeded worlds on one thread: the real server, store, planners and executors, with a virtual clock, a disk that crashes, a network
//! that misbehaves, and parts that die at any moment. The same seed is the same run.
//!
//! This crate must never know sockets. What must hold is `plan::invariant`; here it is asked of every committed write.

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
mod run;
pub mod stories;
mod storm;
mod time;
mod world;

pub use campaign::{Tally, every, points, seeds, story_of};
pub use point::{Strike, When};
pub use run::{Outcome, Plan};
pub use stories::Story;
