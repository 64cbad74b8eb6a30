//! The controllers against the real server in one process, each with its own identity and its own role.

mod clusterrole_aggregation;
mod cost;
mod disruption;
mod endpoints;
mod events;
mod gc;
mod gc_custom;
mod gc_random;
mod lease;
mod namespaces;
mod rights;
mod robustness;
mod service_accounts;
mod state_metrics;
#[allow(dead_code, reason = "shared with other tests, which use other parts of it")]
mod world;
