//! The brain: pure functions from what is seen to what to do.
//!
//! This crate must never know tokio, a Kubernetes client, clocks or randomness: time comes in as an argument, and every answer
//! is a value that somebody else carries out.

pub mod aggregate;
pub mod bind;
pub mod csi;
pub mod disruption;
mod finalizers;
pub mod gc;
pub mod invariant;
pub mod kubelet;
pub mod lease;
pub mod lifecycle;
pub mod namespace;
pub mod node;
pub mod protect;
pub mod reclaim;
pub mod schedule;
pub mod statefulset;
