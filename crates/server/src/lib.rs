//! A Kubernetes API server: HTTP verbs on a store, with authentication, RBAC, admission, watches and metrics.
//!
//! This crate must not depend on controllers: they are clients.
//!
//! Begin with [`app`], which handles one request, and with `verbs`, which has one file per verb.

pub mod admission;
pub mod app;
pub mod attributes;
pub mod authn;
pub mod authz;
mod body;
mod bootstrap;
pub mod codec;
pub mod connections;
mod crd_lifecycle;
pub mod discovery;
mod discovery_cache;
mod env;
pub mod exposition;
mod housekeeping;
mod http;
mod idle_timeout;
mod launch;
mod lease_precondition;
pub mod limits;
mod local;
pub mod metrics;
mod negotiate;
pub mod object_store;
mod paths;
pub mod process;
mod registry;
mod render;
mod request;
mod request_body;
mod response_body;
mod service_ip;
pub mod subresources;
mod verbs;
pub mod version;
mod warnings;
mod write_cache;

pub use app::Server;
pub use attributes::User;
pub use body::Body;
pub use env::{Clock, Env, Ids};
pub use launch::{Launch, LaunchError, Running};
pub use lease_precondition::HEADER as LEASE_HEADER;
pub use local::Local;
pub use paths::{BACKUP_PATH, CLIENT_CERTIFICATE_PATH};
