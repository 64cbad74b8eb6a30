//! Resource names and amounts (`cpu`, `requests.storage`, `example.com/gpu`): which names exist, and where they are
//! allowed.

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

/// Resources that are counted, so amounts must be whole numbers.
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

/// Whether the resource has no domain, or one of kubernetes.io.
fn is_native(resource: &str) -> bool {
    !resource.contains('/') || resource.contains("kubernetes.io/")
}

fn is_extended(resource: &str) -> bool {
    !is_native(resource)
        && !resource.starts_with("requests.")
        && name::qualified(&format!("requests.{resource}")).is_empty()
}

/// Whether the limit may be greater than the request.
pub(crate) fn may_overcommit(resource: &str) -> bool {
    is_native(resource) && !is_huge_page(resource)
}

/// Validates any resource name.
pub(crate) fn validate_name(resource: &str, path: &Path, errors: &mut Errors) {
    let why = name::qualified(resource);
    if !why.is_empty() {
        check::invalid_for_each(why, path, resource, errors);
    } else if !resource.contains('/') && !is_standard(resource) {
        errors.invalid(path, resource, "must be a standard resource type or fully qualified");
    }
}

/// Validates the name of a resource that a container may request.
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

/// Validates the name of a resource that a quota may limit.
pub(crate) fn validate_quota_name(resource: &str, path: &Path, errors: &mut Errors) {
    validate_name(resource, path, errors);
    if !resource.contains('/') && !is_quota(resource) {
        errors.invalid(path, resource, "must be a standard resource for quota");
    }
}

/// Validates an amount: not negative, and a whole number for counted resources.
pub(crate) fn validate_amount(resource: &str, amount: &Value, path: &Path, errors: &mut Errors) {
    check::quantity_not_negative(amount, path, errors);
    let counted = COUNTED.contains(&resource) || is_extended(resource);
    if counted && Quantity::of(amount).is_some_and(|amount| !amount.is_whole()) {
        errors.invalid(path, amount.clone(), "must be an integer");
    }
}
