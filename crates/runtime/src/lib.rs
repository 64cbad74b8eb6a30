//! The controllers: informers, caches and work queues around the planners of `plan`, and the executors that send their actions.
//!
//! This crate must never know the store or the HTTP server: it is a client of any Kubernetes API server.
//!
//! Begin with `controllers` for the list of controllers, with [`worker`] for their common loop, and with [`cache`] for what they see.

pub mod api;
pub mod backoff;
mod binder;
pub mod cache;
mod clusterrole_aggregation;
mod controllers;
pub mod csi;
pub mod decode_cache;
mod discovery;
mod disruption;
mod endpoints;
pub mod events;
pub mod fenced_client;
mod gc;
pub mod growth;
pub mod lease;
mod lifecycle;
mod metrics;
mod namespace_scope;
mod namespaces;
mod podgc;
mod protection;
pub mod queue;
mod refusals;
mod service_accounts;
mod state_metrics;
mod statefulset;
mod strip_managed_fields;
pub mod watcher;
pub mod worker;

pub use binder::{Directories, Work};
pub use controllers::{Clock, ControllerContext, Controllers, NAMES, Provisioning, Setup};
pub use discovery::Discovery;
pub use metrics::Metrics;
pub use namespace_scope::NamespaceScope;
pub use plan::podgc::TERMINATED_THRESHOLD as TERMINATED_POD_THRESHOLD;
pub use plan::reclaim::from_backup as volume_from_backup;
