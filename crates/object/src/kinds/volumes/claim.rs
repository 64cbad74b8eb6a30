//! PersistentVolumeClaim: defaults, data sources, creation, status, columns. `claim_update` has the rules for updates.

use super::check::{self, member};
use super::{
    BETA_CLASS, claim_update, class_of, or_unset, short_access_modes, shown_phase, shown_quantity,
    validate_access_modes, validate_volume_mode,
};
use crate::access::{Access, name};
use crate::field::{Errors, Path};
use crate::kind::{Ctx, Rules};
use crate::meta;
use crate::name;
use crate::quantity::Quantity;
use crate::table::{AGE, Column, NAME, age, column, wide};
use crate::{Map, Value, json};

/// Applies defaults to a claim's spec. Claim templates and ephemeral volumes use it too.
pub fn default_claim_spec(spec: &mut Value) {
    if spec.is_object() {
        spec.default_to(&["volumeMode"], "Filesystem");
    }
}

/// Validates a claim's spec. Claim templates and ephemeral volumes use it too.
pub fn validate_claim_spec(spec: &Value, path: &Path, errors: &mut Errors) {
    let modes = path.child("accessModes");
    if spec.items(&["accessModes"]).is_empty() {
        errors.required(&modes, "at least 1 access mode is required");
    }
    meta::validate_label_selector(member(spec, "selector"), &path.child("selector"), errors);
    validate_access_modes(spec, &modes, errors);
    let storage = path.child("resources").key("storage");
    match spec.at(&["resources", "requests", "storage"]) {
        None => errors.required(&storage, ""),
        Some(request) => check::quantity_positive(request, &storage, errors),
    }
    for field in ["storageClassName", "volumeAttributesClassName"] {
        let class = spec.text(&[field]);
        if !class.is_empty() {
            check::subdomain(class, &path.child(field), errors);
        }
    }
    validate_volume_mode(spec, &path.child("volumeMode"), errors);
    validate_data_sources(spec, path, errors);
}

fn validate_data_sources(spec: &Value, path: &Path, errors: &mut Errors) {
    let (source, reference) = (spec.at(&["dataSource"]), spec.at(&["dataSourceRef"]));
    if let Some(source) = source {
        validate_data_source(source, &path.child("dataSource"), errors);
    }
    let Some(reference) = reference else { return };
    let reference_path = path.child("dataSourceRef");
    validate_data_source(reference, &reference_path, errors);
    let namespace = reference.text(&["namespace"]);
    if !namespace.is_empty() {
        check::label(namespace, &reference_path.child("namespace"), errors);
    }
    let shown = path.child("dataSource");
    match source {
        Some(_) if !namespace.is_empty() => {
            errors.invalid(path, shown.as_str(), "may not be specified when dataSourceRef.namespace is specified");
        }
        Some(source) if !same_source(source, reference) => {
            errors.invalid(path, shown.as_str(), "must match dataSourceRef");
        }
        _ => {}
    }
}

fn validate_data_source(source: &Value, path: &Path, errors: &mut Errors) {
    for field in ["name", "kind"] {
        check::required(source.text(&[field]), &path.child(field), errors);
    }
    let (group, kind) = (source.text(&["apiGroup"]), source.text(&["kind"]));
    if group.is_empty() && kind != "PersistentVolumeClaim" {
        errors.invalid(path, kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup");
    }
    if !group.is_empty() {
        check::subdomain(group, &path.child("apiGroup"), errors);
    }
}

fn same_source(a: &Value, b: &Value) -> bool {
    ["apiGroup", "kind", "name"].iter().all(|field| a.text(&[field]) == b.text(&[field]))
}

/// Makes `dataSource` and `dataSourceRef` agree. Drops a `dataSource` of a kind that this older field never allowed,
/// and a reference to another namespace while its feature gate is off, unless the old object had them.
pub fn normalize_data_sources(spec: &mut Value, old: Option<&Value>, ctx: &Ctx) {
    if !spec.is_object() {
        return;
    }
    let elsewhere = !spec.text(&["dataSourceRef", "namespace"]).is_empty();
    let was_elsewhere = old.is_some_and(|old| !old.text(&["dataSourceRef", "namespace"]).is_empty());
    if elsewhere && !was_elsewhere && !ctx.gates.on("CrossNamespaceVolumeDataSource") {
        spec.cut(&["dataSourceRef"]);
    }
    let had_source = old.is_some_and(|old| old.has(&["dataSource"]) || old.has(&["dataSourceRef"]));
    if let Some(source) = spec.at(&["dataSource"])
        && !spec.has(&["dataSourceRef"])
        && !had_source
    {
        let allowed = matches!(
            (source.text(&["apiGroup"]), source.text(&["kind"])),
            ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")
        );
        if !allowed {
            spec.cut(&["dataSource"]);
        }
    }
    match (spec.at(&["dataSource"]).cloned(), spec.at(&["dataSourceRef"]).cloned()) {
        (Some(source), None) => spec.put(&["dataSourceRef"], source),
        (None, Some(mut reference)) if reference.text(&["namespace"]).is_empty() => {
            reference.cut(&["namespace"]);
            spec.put(&["dataSource"], reference);
        }
        _ => {}
    }
}

pub(super) struct Claims;

impl Rules for Claims {
    fn default(&self, object: &mut Value, _ctx: &Ctx) {
        if let Some(spec) = object.get_mut("spec") {
            default_claim_spec(spec);
        }
        object.default_to(&["status", "phase"], "Pending");
    }
    fn prepare_create(&self, object: &mut Value, ctx: &Ctx) {
        object.put(&["status"], json!({"phase": "Pending"}));
        if let Some(spec) = object.get_mut("spec") {
            normalize_data_sources(spec, None, ctx);
        }
    }
    fn prepare_update(&self, new: &mut Value, old: &Value, ctx: &Ctx) {
        if let Some(spec) = new.get_mut("spec") {
            normalize_data_sources(spec, Some(member(old, "spec")), ctx);
        }
    }
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        validate_claim_spec(member(object, "spec"), &Path::new("spec"), errors);
    }
    fn validate_update(&self, new: &Value, old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        claim_update::validate(new, old, errors);
    }
    fn validate_status(&self, new: &Value, _old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        validate_status(new, errors);
    }
    fn warnings(&self, new: &Value, old: Option<&Value>, _ctx: &Ctx) -> Vec<String> {
        let mut warnings = Vec::new();
        let annotation = ["metadata", "annotations", BETA_CLASS];
        if new.has(&annotation) && !old.is_some_and(|old| old.has(&annotation)) {
            warnings.push(format!(
                "metadata.annotations[{BETA_CLASS}]: deprecated since v1.8; use \"storageClassName\" attribute instead"
            ));
        }
        if let Some(request) = new.at(&["spec", "resources", "requests", "storage"])
            && Quantity::of(request).is_some_and(|request| !request.is_whole())
        {
            warnings.push(format!(
                "spec.resources.requests[storage]: fractional byte value {request} is invalid, must be an integer"
            ));
        }
        warnings
    }
    fn columns(&self) -> &[Column] {
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let volume = object.text(&["spec", "volumeName"]);
        let (capacity, modes) = if volume.is_empty() {
            (String::new(), String::new())
        } else {
            (
                shown_quantity(object, &["status", "capacity", "storage"]),
                short_access_modes(object.items(&["status", "accessModes"])),
            )
        };
        vec![
            json!(name(object)),
            json!(shown_phase(object)),
            json!(volume),
            json!(capacity),
            json!(modes),
            json!(class_of(object).unwrap_or("")),
            json!(or_unset(object, &["spec", "volumeAttributesClassName"])),
            json!(age(object, now)),
            json!(or_unset(object, &["spec", "volumeMode"])),
        ]
    }
    fn selectable_fields(&self) -> &[&str] {
        &["name"]
    }
    fn field_value(&self, object: &Value, _field: &str) -> String {
        name(object).to_owned()
    }
}

const COLUMNS: &[Column] = &[
    NAME,
    column("Status", "string", "The phase of the claim"),
    column("Volume", "string", "The volume the claim is bound to"),
    column("Capacity", "string", "The actual size of the underlying volume"),
    column("Access Modes", "string", "The actual access modes of the underlying volume"),
    column("StorageClass", "string", "The storage class the claim asks for"),
    column("VolumeAttributesClass", "string", "The volume attributes class the claim asks for"),
    AGE,
    wide("VolumeMode", "string", "What kind of volume the claim asks for"),
];

const RESIZE_STATUSES: &[&str] = &[
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizePending",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
];

fn validate_status(new: &Value, errors: &mut Errors) {
    let path = Path::new("status");
    if new.items(&["spec", "accessModes"]).is_empty() {
        errors.required(&Path::new("Spec.accessModes"), "");
    }
    validate_quantities(new.members(&["status", "capacity"]), &path.child("capacity"), errors);
    let statuses = path.child("allocatedResourceStatus");
    for (resource, status) in new.members(&["status", "allocatedResourceStatuses"]) {
        validate_resource_key(resource, &statuses, errors);
        check::one_of(status.as_str().unwrap_or(""), RESIZE_STATUSES, &statuses.key(resource), errors);
    }
    let allocated = path.child("allocatedResources");
    for resource in new.members(&["status", "allocatedResources"]).keys() {
        validate_resource_key(resource, &allocated, errors);
    }
    validate_quantities(new.members(&["status", "allocatedResources"]), &allocated, errors);
}

fn validate_quantities(amounts: &Map, path: &Path, errors: &mut Errors) {
    for (resource, amount) in amounts {
        if Quantity::of(amount).is_some_and(|amount| amount.is_negative()) {
            errors.invalid(&path.key(resource), amount.clone(), "must be a valid resource quantity");
        }
    }
}

/// Validates a resource name: `storage`, or a name with a domain.
fn validate_resource_key(resource: &str, path: &Path, errors: &mut Errors) {
    let why = name::qualified(resource);
    if !why.is_empty() {
        check::invalid_for_each(why, path, resource, errors);
    } else if resource != "storage" && (!resource.contains('/') || resource.contains("kubernetes.io/")) {
        errors.not_supported(path, resource, &["storage"]);
    }
}
