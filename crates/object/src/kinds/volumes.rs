//! PersistentVolume and PersistentVolumeClaim.

use super::check;
use super::row;
use crate::Value;
use crate::access::{Access, terminating};
use crate::field::{Errors, Path};
use crate::kind::Kind;

mod claim;
mod claim_update;
mod source;
mod volume;

#[cfg(test)]
mod tests;

pub use claim::{default_claim_spec, normalize_data_sources, validate_claim_spec};
pub(crate) use volume::validate_volume_spec;

/// The storage class in this annotation takes precedence over the spec.
pub const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

pub fn rows() -> Vec<Kind> {
    vec![
        row("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", "io.k8s.api.core.v1.PersistentVolumeClaim")
            .short(&["pvc"])
            .with_status()
            .rules(claim::Claims),
        row("", "v1", "PersistentVolume", "persistentvolumes", "io.k8s.api.core.v1.PersistentVolume")
            .cluster_scoped()
            .short(&["pv"])
            .with_status()
            .rules(volume::Volumes),
    ]
}

/// Returns the storage class of a claim or volume: from the beta annotation, else from the spec; `None` if there is
/// none.
pub fn class_of(object: &Value) -> Option<&str> {
    let annotation = object.at(&["metadata", "annotations", BETA_CLASS]);
    annotation.or_else(|| object.at(&["spec", "storageClassName"])).and_then(Value::as_str)
}

const ACCESS_MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

fn validate_access_modes(spec: &Value, path: &Path, errors: &mut Errors) {
    let modes = spec.items(&["accessModes"]);
    for mode in modes {
        check::one_of(mode.as_str().unwrap_or(""), ACCESS_MODES, path, errors);
    }
    if modes.len() > 1 && modes.iter().any(|mode| mode == "ReadWriteOncePod") {
        errors.forbidden(path, "may not use ReadWriteOncePod with other access modes");
    }
}

fn validate_volume_mode(spec: &Value, path: &Path, errors: &mut Errors) {
    if let Some(mode) = spec.at(&["volumeMode"]) {
        check::one_of(mode.as_str().unwrap_or(""), &["Block", "Filesystem"], path, errors);
    }
}

/// Returns the short access modes `RWO,ROX,RWX,RWOP`, always in this order.
fn short_access_modes(modes: &[Value]) -> String {
    let known =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    let shown = known.iter().filter(|(mode, _)| modes.iter().any(|have| have == mode));
    shown.map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

fn shown_phase(object: &Value) -> &str {
    if terminating(object) { "Terminating" } else { object.text(&["status", "phase"]) }
}

/// Returns the text at `path`, or `<unset>`.
fn or_unset<'a>(object: &'a Value, path: &[&str]) -> &'a str {
    object.at(path).and_then(Value::as_str).unwrap_or("<unset>")
}

/// Formats a quantity for a cell. An absent one is `0`, as a zero quantity prints.
fn shown_quantity(object: &Value, path: &[&str]) -> String {
    match object.at(path) {
        Some(Value::String(text)) => text.to_string(),
        Some(value) => value.to_string(),
        None => "0".to_owned(),
    }
}
