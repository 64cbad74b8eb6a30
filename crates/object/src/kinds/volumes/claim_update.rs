//! Allowed updates of a claim.

use super::BETA_CLASS;
use super::check::{self, member};
use super::claim::validate_claim_spec;
use crate::Value;
use crate::access::Access;
use crate::field::{Errors, Path};
use crate::meta::validate_immutable;
use crate::quantity::Quantity;
use crate::value::Key;

pub(super) fn validate(new: &Value, old: &Value, errors: &mut Errors) {
    validate_claim_spec(member(new, "spec"), &Path::new("spec"), errors);
    if !moves_class_from_annotation(new, old) {
        let annotation = ["metadata", "annotations", BETA_CLASS];
        let path = Path::new("metadata.annotations").child(BETA_CLASS);
        validate_immutable(new.at(&annotation), old.at(&annotation), &path, errors);
    }
    validate_spec_unchanged(new, old, errors);
    validate_size(new, old, errors);
    let mode = ["spec", "volumeMode"];
    validate_immutable(new.at(&mode), old.at(&mode), &Path::new("volumeMode"), errors);
    validate_attributes_class(new, old, errors);
}

/// Checks that the spec equals the old one except for the allowed changes.
fn validate_spec_unchanged(new: &Value, old: &Value, errors: &mut Errors) {
    let old_spec = member(old, "spec");
    let mut spec = member(new, "spec").clone();
    if !spec.is_object() {
        return;
    }
    let mut restore = |path: &[&str]| match old_spec.at(path) {
        Some(value) => spec.put(path, value.clone()),
        None => drop(spec.cut(path)),
    };
    if old_spec.text(&["volumeName"]).is_empty() {
        restore(&["volumeName"]);
    }
    if moves_class_from_annotation(new, old) || sets_class_once(new, old) {
        restore(&["storageClassName"]);
    }
    if is_bound(old) {
        restore(&["resources", "requests", "storage"]);
        restore(&["volumeAttributesClassName"]);
    }
    if !check::same("io.k8s.api.core.v1.PersistentVolumeClaimSpec", &spec, old_spec) {
        let why =
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        errors.forbidden(&Path::new("spec"), format!("{why}\n{}", differences(&spec, old_spec)));
    }
}

/// Returns the members that differ, each as `-old +new`, for the error message.
pub(super) fn differences(new: &Value, old: &Value) -> String {
    let mut keys: Vec<&Key> = old.members(&[]).keys().chain(new.members(&[]).keys()).collect();
    keys.sort();
    keys.dedup();
    let shown = |value: &Value| if value.is_null() { "nil".to_owned() } else { value.to_string() };
    let changed = keys.into_iter().filter(|key| member(new, key) != member(old, key));
    let lines =
        changed.map(|key| format!("- {key}: {}\n+ {key}: {}", shown(member(old, key)), shown(member(new, key))));
    lines.collect::<Vec<_>>().join("\n")
}

fn is_bound(claim: &Value) -> bool {
    claim.text(&["status", "phase"]) == "Bound"
}

fn annotated_class(claim: &Value) -> Option<&Value> {
    claim.at(&["metadata", "annotations", BETA_CLASS])
}

fn spec_class(claim: &Value) -> Option<&Value> {
    claim.at(&["spec", "storageClassName"])
}

/// Whether the same class moves from the beta annotation to the spec.
fn moves_class_from_annotation(new: &Value, old: &Value) -> bool {
    let before = annotated_class(old);
    before.is_some()
        && spec_class(old).is_none()
        && spec_class(new) == before
        && annotated_class(new).is_none_or(|now| Some(now) == before)
}

/// Whether a claim without a class gets one.
fn sets_class_once(new: &Value, old: &Value) -> bool {
    spec_class(old).is_none()
        && spec_class(new).is_some()
        && annotated_class(old).is_none_or(|before| Some(before) == spec_class(new))
}

/// Checks the requested size. It may shrink only to more than the current capacity: that reverts an expansion that has
/// not happened yet.
fn validate_size(new: &Value, old: &Value, errors: &mut Errors) {
    let amount = |object: &Value, path: &[&str]| object.at(path).and_then(Quantity::of).unwrap_or(Quantity::ZERO);
    let request = ["spec", "resources", "requests", "storage"];
    let (asked, before) = (amount(new, &request), amount(old, &request));
    if asked < before && asked <= amount(old, &["status", "capacity", "storage"]) {
        let path = Path::new("spec.resources.requests.storage");
        errors.forbidden(&path, "field can not be less than status.capacity");
    }
}

/// Checks the VolumeAttributesClass. Once one was applied, it can be changed but not removed.
fn validate_attributes_class(new: &Value, old: &Value, errors: &mut Errors) {
    let class = ["spec", "volumeAttributesClassName"];
    let applied = old.has(&["status", "currentVolumeAttributesClassName"]);
    if !applied || new.at(&class) == old.at(&class) {
        return;
    }
    let path = Path::new("spec.volumeAttributesClassName");
    match new.at(&class).and_then(Value::as_str) {
        None => errors.forbidden(&path, "update from non-nil value to nil is forbidden"),
        Some("") => errors.forbidden(&path, "update from non-nil value to an empty string is forbidden"),
        Some(_) => {}
    }
}
