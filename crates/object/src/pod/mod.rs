//! Pod specs and pod templates: defaults, validation and warnings, for every kind that contains one.

pub mod amounts;
mod annotations;
mod containers;
mod cursor;
mod defaults;
mod env;
mod handlers;
mod mounts;
mod network;
mod older_volumes;
mod paths;
mod print;
mod resources;
mod scheduling;
mod security;
mod status;
mod update;
mod volumes;
mod warnings;
mod windows;

pub(crate) use cursor::Cursor;
pub use defaults::{default_pod, default_spec};
pub use print::{COLUMNS, cells};
pub use resources::qos_class;
pub use scheduling::validate_node_selector;
pub use status::validate_status;
pub use update::validate_update;
pub use warnings::{claim_warnings, pod_warnings, template_warnings};

use crate::Value;
use crate::access::Access;
use crate::field::{Errors, Path};
use crate::{meta, name};
use containers::PodContext;
use std::collections::BTreeSet;

static NOTHING: Value = Value::Null;

/// Validates a new pod, except for its metadata.
pub fn validate_create(pod: &Value, errors: &mut Errors) {
    validate_pod(pod, errors);
    let path = Path::new("spec");
    let spec = Cursor::new(pod.at(&["spec"]).unwrap_or(&NOTHING), &path);
    if !spec.child("ephemeralContainers").list().is_empty() {
        spec.child("ephemeralContainers").forbidden("cannot be set on create", errors);
    }
    if !spec.child("nodeName").is_empty() && !spec.child("schedulingGates").list().is_empty() {
        spec.child("nodeName").forbidden("cannot be set until all schedulingGates have been cleared", errors);
    }
    annotations::validate_profiles_match(pod.at(&["metadata", "annotations"]).unwrap_or(&NOTHING), &spec, errors);
}

/// Validates the rules that hold for a pod at any time.
fn validate_pod(pod: &Value, errors: &mut Errors) {
    let (path, annotations_path) = (Path::new("spec"), Path::new("metadata.annotations"));
    let value = pod.at(&["spec"]).unwrap_or(&NOTHING);
    annotations::validate(
        &Cursor::new(pod.at(&["metadata", "annotations"]).unwrap_or(&NOTHING), &annotations_path),
        value,
        errors,
    );
    validate_spec(value, Some(pod.text(&["metadata", "name"])), &path, errors);
    let spec = Cursor::new(value, &path);
    if spec.child("serviceAccountName").is_empty() {
        forbid_tokens(&spec, errors);
    }
    for list in ["containers", "initContainers"] {
        containers::validate_images_of_pod(&spec.child(list), errors);
    }
}

/// A pod without a service account cannot have projected service account tokens.
fn forbid_tokens(spec: &Cursor, errors: &mut Errors) {
    for volume in spec.child("volumes").items() {
        for source in volume.child("projected").child("sources").items() {
            if source.child("serviceAccountToken").present() {
                let why = "must not be specified when serviceAccountName is not set";
                source.child("serviceAccountToken").forbidden(why, errors);
            }
        }
    }
}

/// Validates a pod template, including its metadata.
pub fn validate_template(template: &Value, path: &Path, errors: &mut Errors) {
    let root = Cursor::new(template, path);
    // Upstream's paths omit `metadata` here.
    meta::validate_labels(template.at(&["metadata", "labels"]).unwrap_or(&NOTHING), &path.child("labels"), errors);
    let (annotations, at) = (template.at(&["metadata", "annotations"]).unwrap_or(&NOTHING), path.child("annotations"));
    let annotations = Cursor::new(annotations, &at);
    meta::validate_annotations(annotations.value(), &at, errors);
    annotations::validate(&annotations, root.child("spec").value(), errors);
    let spec = root.child("spec");
    validate_spec(spec.value(), None, &spec.path(), errors);
    annotations::validate_profiles_match(annotations.value(), &spec, errors);
    if !spec.child("ephemeralContainers").list().is_empty() {
        spec.child("ephemeralContainers").forbidden("ephemeral containers not allowed in pod template", errors);
    }
}

/// Validates a pod spec. `pod` is the pod's name, `None` in a template.
pub fn validate_spec(spec: &Value, pod: Option<&str>, path: &Path, errors: &mut Errors) {
    let root = Cursor::new(spec, path);
    let grace = root.child("terminationGracePeriodSeconds");
    if !grace.present() {
        grace.required("", errors);
    }
    let host_users = root.child("hostUsers");
    let claims = root.child("resourceClaims");
    let context = PodContext {
        volumes: volumes::validate(&root.child("volumes"), pod, errors),
        claims: claims.list().iter().map(|claim| claim.text(&["name"])).filter(|name| !name.is_empty()).collect(),
        grace: grace.value().as_i64(),
        restart_policy: spec.text(&["restartPolicy"]),
        host_users: !host_users.present() || host_users.flag(),
    };
    validate_resource_claims(&claims, errors);
    containers::validate(&root, &context, errors);
    resources::validate_pod_level(&root, errors);
    root.child("restartPolicy").required_one_of(&["Always", "OnFailure", "Never"], errors);
    network::validate(&root, pod.is_some(), errors);
    scheduling::validate(&root, errors);
    security::validate(&root, errors);
    for field in ["serviceAccountName", "nodeName", "priorityClassName"] {
        root.child(field).optional_name(name::subdomain, errors);
    }
    let deadline = root.child("activeDeadlineSeconds");
    if deadline.present() {
        deadline.between(1, i64::from(i32::MAX), errors);
    }
    let runtime = root.child("runtimeClassName");
    if runtime.present() {
        runtime.check(name::subdomain(runtime.text()), errors);
    }
    if root.child("preemptionPolicy").present() {
        root.child("preemptionPolicy").required_one_of(&["PreemptLowerPriority", "Never"], errors);
    }
    resources::validate_overhead(&root.child("overhead"), errors);
}

fn validate_resource_claims(claims: &Cursor, errors: &mut Errors) {
    let mut names = BTreeSet::new();
    for claim in claims.items() {
        let (name, direct, template) =
            (claim.child("name"), claim.child("resourceClaimName"), claim.child("resourceClaimTemplateName"));
        if !name.is_empty() && !names.insert(name.text()) {
            name.duplicate(name.text(), errors);
        } else {
            name.required_name(name::label, errors);
        }
        match (direct.present(), template.present()) {
            (true, true) => {
                claim.invalid(
                    "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
                    errors,
                );
            }
            (false, false) => {
                claim.invalid("must specify one of: `resourceClaimName`, `resourceClaimTemplateName`", errors);
            }
            _ => {}
        }
        for reference in [direct, template] {
            if reference.present() {
                reference.check(name::subdomain(reference.text()), errors);
            }
        }
    }
}

#[cfg(test)]
mod tests;
