//! The loop around `plan`: what is seen goes in, what is planned is done.
//!
//! This crate must never know the store or the HTTP server: it is a client like any other, of our own server or of any Kubernetes
//! API server.

mod accounts;
mod api;
mod controllers;
mod delays;
mod discovery;
mod disruption;
mod events;
mod follow;
mod gc;
mod metrics;
mod namespaces;
mod queue;
mod roles;
mod worker;

pub use controllers::{Controllers, NAMES};
pub use metrics::Metrics;
