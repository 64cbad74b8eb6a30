//! What controllers share: API client, watcher, caches, work queue, event recorder, leader election and metrics.
//!
//! This crate knows no single controller, and it must never know the store or the HTTP server: it is a client of any Kubernetes API
//! server. The controllers are in `runtime`, the scheduler and the kubelets in `node`.
//!
//! Begin with [`worker`] for the common loop of controllers, with [`cache`] for what they see, and with [`api`] for how they write.

pub mod api;
pub mod backoff;
pub mod cache;
mod clock;
pub mod decode_cache;
pub mod descriptor;
pub mod discovery;
pub mod events;
pub mod fenced_client;
mod keyed_backoff;
pub mod lease;
mod metrics;
mod namespace_scope;
pub mod queue;
mod refusals;
mod relist;
mod strip_managed_fields;
pub mod watcher;
pub mod worker;

pub use clock::{Clock, steady};
pub use keyed_backoff::KeyedBackoff;
pub use metrics::{BOUNDS_S, Lost, Metrics, QueueMetrics};
pub use namespace_scope::NamespaceScope;
pub use relist::Relist;
