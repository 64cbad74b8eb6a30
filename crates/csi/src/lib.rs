//! The Container Storage Interface (CSI): its messages, a client for any driver, and the directory driver.
//!
//! This crate must never know Kubernetes objects. It knows volumes, nodes and calls.
//!
//! Begin with [`client`] for calls to a driver, and with [`directory`] for the driver whose volumes are directories.

pub mod client;
pub mod code;
pub mod directory;
mod endpoint;

pub use client::{About, Driver, Failure, Metrics, Settings, is_driver_name};
pub use directory::DirectoryDriver;
pub use endpoint::{BadEndpoint, Endpoint};
pub use tonic::Code;

/// The messages and services of package `csi.v1`, generated from `proto/csi.proto`.
#[allow(clippy::all, missing_docs)]
pub mod v1 {
    include!("../generated/csi.v1.rs");
}
