//! StorageClass, CSIDriver, CSINode, VolumeAttachment, VolumeAttributesClass, CSIStorageCapacity.

use super::check;
use super::row;
use crate::access::{Access, name};
use crate::field::{Errors, Path};
use crate::kind::Kind;
use crate::{Map, Value};

mod attachment;
mod class;
mod driver;

#[cfg(test)]
mod tests;

pub use class::{effective_default_class, is_default_class};
pub(in crate::kinds) use driver::validate_token_seconds;

const GROUP: &str = "storage.k8s.io";

pub fn rows() -> Vec<Kind> {
    vec![
        row(GROUP, "v1", "StorageClass", "storageclasses", "io.k8s.api.storage.v1.StorageClass")
            .cluster_scoped()
            .short(&["sc"])
            .rules(class::StorageClasses),
        row(
            GROUP,
            "v1",
            "VolumeAttributesClass",
            "volumeattributesclasses",
            "io.k8s.api.storage.v1.VolumeAttributesClass",
        )
        .cluster_scoped()
        .short(&["vac"])
        .rules(class::AttributesClasses),
        row(GROUP, "v1", "CSIDriver", "csidrivers", "io.k8s.api.storage.v1.CSIDriver")
            .cluster_scoped()
            .rules(driver::Drivers),
        row(GROUP, "v1", "CSINode", "csinodes", "io.k8s.api.storage.v1.CSINode").cluster_scoped().rules(driver::Nodes),
        row(GROUP, "v1", "CSIStorageCapacity", "csistoragecapacities", "io.k8s.api.storage.v1.CSIStorageCapacity")
            .rules(driver::Capacities),
        row(GROUP, "v1", "VolumeAttachment", "volumeattachments", "io.k8s.api.storage.v1.VolumeAttachment")
            .cluster_scoped()
            .with_status()
            .rules(attachment::Attachments),
    ]
}

const PARAMETERS_MAX: usize = 512;
const PARAMETERS_BYTES_MAX: usize = 256 * 1024;

/// Validates the parameters that a class passes to its driver.
fn validate_parameters(parameters: &Map, path: &Path, errors: &mut Errors) {
    if parameters.len() > PARAMETERS_MAX {
        errors.too_long(path, PARAMETERS_MAX);
        return;
    }
    if parameters.contains_key("") {
        errors.invalid(path, "", "field can not be empty.");
    }
    let bytes: usize = parameters.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if bytes > PARAMETERS_BYTES_MAX {
        errors.too_long(path, PARAMETERS_BYTES_MAX);
    }
}

/// Reports `updates to FIELD are forbidden.` if the field changed.
fn forbid_change(new: &Value, old: &Value, field: &str, errors: &mut Errors) {
    let set = |object: &Value| {
        let value = object.at(&[field]).cloned();
        value.filter(|value| !value.as_object().is_some_and(Map::is_empty))
    };
    if set(new) != set(old) {
        errors.forbidden(&Path::new(field), format!("updates to {field} are forbidden."));
    }
}
