//! Planners: pure functions from observed objects to actions. `runtime` and `node` execute them.
//!
//! This crate must never know tokio, a Kubernetes client, clocks or randomness: time is an argument, and every result is a value.
//!
//! Begin with [`statefulset`], [`bind`] or [`csi`]. [`invariant`] has the rules that tests check on every change.

pub mod aggregate;
pub mod allowance;
pub mod bind;
pub mod csi;
pub mod disruption;
pub mod endpoints;
mod finalizers;
pub mod gc;
pub mod invariant;
pub mod kubelet;
pub mod lease;
pub mod lifecycle;
pub mod namespace;
pub mod node;
pub mod podgc;
pub mod protect;
pub mod reclaim;
pub mod schedule;
pub mod statefulset;
