//! The controllers: informers around the planners of `plan`, and the executors that send their actions. `kit` has what they share.
//!
//! This crate must never know the store or the HTTP server: it is a client of any Kubernetes API server.
//!
//! Begin with `controllers` for the list of controllers and with `kit::worker` for their common loop.

mod binder;
mod clusterrole_aggregation;
mod controllers;
pub mod csi;
mod disruption;
mod endpoints;
mod gc;
pub mod growth;
mod lifecycle;
mod metrics;
mod namespaces;
mod podgc;
mod protection;
mod service_accounts;
mod state_metrics;
mod statefulset;

pub use binder::{Directories, Work};
pub use controllers::{ControllerContext, Controllers, NAMES, Provisioning, Setup, bootstrap_objects, descriptors};
pub use metrics::Metrics;
pub use plan::podgc::TERMINATED_THRESHOLD as TERMINATED_POD_THRESHOLD;
pub use plan::reclaim::from_backup as volume_from_backup;
