//! Names and amounts of resources (`cpu`, `requests.storage`, `example.com/gpu`): which exist, where they may stand.

use super::check;
use crate::Value;
use crate::field::{Errors, Path};
use crate::name;
use crate::quantity::Quantity;

const QUOTA: &[&str] = &[
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
];

/// Those that are counted, so that halves make no sense.
const COUNTED: &[&str] = &[
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

fn is_huge_page(resource: &str) -> bool {
    resource.starts_with("hugepages-")
}

pub(crate) fn is_quota(resource: &str) -> bool {
    QUOTA.contains(&resource) || is_huge_page(resource) || resource.starts_with("requests.hugepages-")
}

fn is_standard(resource: &str) -> bool {
    resource == "storage" || is_quota(resource)
}

/// Without a domain, or in the system's own.
fn is_native(resource: &str) -> bool {
    !resource.contains('/') || resource.contains("kubernetes.io/")
}

fn is_extended(resource: &str) -> bool {
    !is_native(resource)
        && !resource.starts_with("requests.")
        && name::qualified(&format!("requests.{resource}")).is_empty()
}

/// Whether limits may exceed requests.
pub(crate) fn may_overcommit(resource: &str) -> bool {
    is_native(resource) && !is_huge_page(resource)
}

/// Any resource name.
pub(crate) fn validate_name(resource: &str, path: &Path, errors: &mut Errors) {
    let why = name::qualified(resource);
    if !why.is_empty() {
        check::invalid_for_each(why, path, resource, errors);
    } else if !resource.contains('/') && !is_standard(resource) {
        errors.invalid(path, resource, "must be a standard resource type or fully qualified");
    }
}

/// A name that a container may ask for.
pub(crate) fn validate_container_name(resource: &str, path: &Path, errors: &mut Errors) {
    validate_name(resource, path, errors);
    if !resource.contains('/') {
        if !matches!(resource, "cpu" | "memory" | "ephemeral-storage") && !is_huge_page(resource) {
            errors.invalid(path, resource, "must be a standard resource for containers");
        }
    } else if !is_native(resource) && !is_extended(resource) {
        errors.invalid(path, resource, "doesn't follow extended resource name standard");
    }
}

/// A name that a quota may limit.
pub(crate) fn validate_quota_name(resource: &str, path: &Path, errors: &mut Errors) {
    validate_name(resource, path, errors);
    if !resource.contains('/') && !is_quota(resource) {
        errors.invalid(path, resource, "must be a standard resource for quota");
    }
}

/// An amount: not negative, and whole where the resource is counted.
pub(crate) fn validate_amount(resource: &str, amount: &Value, path: &Path, errors: &mut Errors) {
    check::quantity_not_negative(amount, path, errors);
    let counted = COUNTED.contains(&resource) || is_extended(resource);
    if counted && Quantity::of(amount).is_some_and(|amount| !amount.is_whole()) {
        errors.invalid(path, amount.clone(), "must be an integer");
    }
}
