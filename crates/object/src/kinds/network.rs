//! Service and Endpoints.

use super::check;
use super::row;
use crate::kind::Kind;

mod endpoints;
mod service;
mod service_update;
mod service_validation;

#[cfg(test)]
mod tests;

pub use service::{missing_node_ports, needs_cluster_ip};

pub fn rows() -> Vec<Kind> {
    vec![
        row("", "v1", "Service", "services", "io.k8s.api.core.v1.Service")
            .short(&["svc"])
            .category("all")
            .with_status()
            .rules(service::Services),
        row("", "v1", "Endpoints", "endpoints", "io.k8s.api.core.v1.Endpoints")
            .short(&["ep"])
            .rules(endpoints::EndpointSets),
    ]
}

const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
