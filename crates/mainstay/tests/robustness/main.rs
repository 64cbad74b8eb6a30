//! The program as a process: killed at any moment, on a full disk, on damaged files, under overload.
//!
//! These runs are short. `docs/quality/robustness.md` says which variables make them long.

mod damage;
mod disk;
mod full_disk;
mod identity;
mod kills;
mod load;
mod sight;
mod storage;
#[path = "../support/mod.rs"]
mod support;
mod talk;
