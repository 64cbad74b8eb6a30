//! The Container Storage Interface: its messages, a client for any driver, and a driver of our own whose volumes are directories.
//!
//! This crate must never know Kubernetes' objects, StatefulSets least of all: it speaks of volumes, nodes and calls.

pub mod client;
pub mod code;
pub mod directory;
mod endpoint;

pub use client::{
    About, CreateFailure, Driver, ExpandFailure, Failure, Metrics, ModifyFailure, Settings, is_driver_name,
};
pub use directory::DirectoryDriver;
pub use endpoint::{BadEndpoint, Endpoint};
pub use tonic::Code;

/// The messages and services of package `csi.v1`, generated from `proto/csi.proto`.
#[allow(clippy::all, missing_docs)]
pub mod v1 {
    tonic::include_proto!("csi.v1");
}
