//! HTTP verbs on the store: a Kubernetes API server.
//!
//! This crate must never know controllers: whatever acts on objects is a client.

pub mod admission;
pub mod attributes;
pub mod authn;
pub mod authz;
pub mod codec;
pub mod discovery;
pub mod env;
pub mod reader;
pub mod service_ip;
pub mod subresources;
