//! A Kubernetes API server: HTTP verbs on a store, with authentication, RBAC, admission, watches and metrics.
//!
//! This crate must never know controllers: they are clients.
//!
//! Begin with [`app`], which handles one request, and with `verbs`, which has one file per verb.

pub mod admission;
pub mod app;
mod arriving;
pub mod attributes;
pub mod authn;
pub mod authz;
mod body;
mod bootstrap;
pub mod codec;
pub mod connections;
mod definitions;
pub mod discovery;
mod documents;
mod env;
pub mod exposition;
mod fence;
mod housekeeping;
mod http;
mod launch;
pub mod limits;
mod local;
pub mod metrics;
mod negotiate;
mod paths;
pub mod process;
pub mod reader;
mod recent;
mod registry;
mod render;
mod request;
mod sent;
mod service_ip;
pub mod subresources;
mod usage;
mod verbs;
pub mod version;
mod warnings;

pub use app::Server;
pub use attributes::User;
pub use body::Body;
pub use env::{Clock, Env, Ids};
pub use fence::HEADER as LEASE_HEADER;
pub use launch::{Launch, LaunchError, Running};
pub use local::Local;
pub use paths::{BACKUP_PATH, CLIENT_CERTIFICATE_PATH};
