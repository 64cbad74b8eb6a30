//! StorageClass and VolumeAttributesClass.

use super::{check, forbid_change, name, validate_parameters};
use crate::access::Access;
use crate::field::{Errors, Path};
use crate::kind::{Ctx, Rules};
use crate::meta::{invalid_for_each, validate_immutable};
use crate::name::qualified;
use crate::table::{AGE, Column, NAME, age, column};
use crate::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Whether a class is marked as the default one.
pub fn is_default_class(class: &Value) -> bool {
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"]
        .iter()
        .any(|key| class.text(&["metadata", "annotations", key]) == "true")
}

/// Returns the name of the effective default class: the newest of those marked as default, or the first by name among
/// equally old ones.
pub fn effective_default_class<'a>(classes: impl IntoIterator<Item = &'a Value>) -> Option<&'a str> {
    let marked = classes.into_iter().filter(|class| is_default_class(class));
    let created = |class: &Value| class.text(&["metadata", "creationTimestamp"]).parse::<jiff::Timestamp>().ok();
    let newest = marked.min_by(|a, b| created(b).cmp(&created(a)).then_with(|| name(a).cmp(name(b))))?;
    Some(name(newest))
}

pub(super) struct StorageClasses;

impl Rules for StorageClasses {
    fn default(&self, object: &mut Value, _ctx: &Ctx) {
        object.default_to(&["reclaimPolicy"], "Delete");
        object.default_to(&["volumeBindingMode"], "Immediate");
    }
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        let (provisioner, path) = (object.text(&["provisioner"]), Path::new("provisioner"));
        if provisioner.is_empty() {
            errors.required(&path, "");
        } else {
            invalid_for_each(qualified(&provisioner.to_lowercase()), &path, provisioner, errors);
        }
        validate_parameters(object.members(&["parameters"]), &Path::new("parameters"), errors);
        let policy = object.text(&["reclaimPolicy"]);
        if !policy.is_empty() {
            check::one_of(policy, &["Delete", "Retain"], &Path::new("reclaimPolicy"), errors);
        }
        let (mode, path) = (object.text(&["volumeBindingMode"]), Path::new("volumeBindingMode"));
        match mode {
            "" => errors.required(&path, ""),
            mode => check::one_of(mode, &["Immediate", "WaitForFirstConsumer"], &path, errors),
        }
        validate_topologies(object.items(&["allowedTopologies"]), &Path::new("allowedTopologies"), errors);
    }
    fn validate_update(&self, new: &Value, old: &Value, ctx: &Ctx, errors: &mut Errors) {
        self.validate_create(new, ctx, errors);
        for field in ["parameters", "provisioner", "reclaimPolicy"] {
            forbid_change(new, old, field, errors);
        }
        let mode = ["volumeBindingMode"];
        validate_immutable(new.at(&mode), old.at(&mode), &Path::new("volumeBindingMode"), errors);
    }
    fn warnings(&self, new: &Value, _old: Option<&Value>, _ctx: &Ctx) -> Vec<String> {
        let mut warnings = Vec::new();
        for (index, term) in new.items(&["allowedTopologies"]).iter().enumerate() {
            for (at, wanted) in term.items(&["matchLabelExpressions"]).iter().enumerate() {
                let path =
                    Path::new("allowedTopologies").index(index).child("matchLabelExpressions").index(at).child("key");
                warnings.extend(check::renamed_label_warning(wanted.text(&["key"]), &path));
            }
        }
        warnings
    }
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            NAME,
            column("Provisioner", "string", "Who makes the volumes"),
            column("ReclaimPolicy", "string", "What happens to a volume when its claim is gone"),
            column("VolumeBindingMode", "string", "When volumes are made and bound"),
            column("AllowVolumeExpansion", "string", "Whether volumes can grow"),
            AGE,
        ];
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let or = |field: &str, default: &str| match object.text(&[field]) {
            "" => json!(default),
            text => json!(text),
        };
        vec![
            json!(name(object)),
            json!(object.text(&["provisioner"])),
            or("reclaimPolicy", "Delete"),
            or("volumeBindingMode", "Immediate"),
            json!(object.flag(&["allowVolumeExpansion"])),
            json!(age(object, now)),
        ]
    }
    fn list_cells(&self, objects: &[&Value], now: jiff::Timestamp) -> Vec<Vec<Value>> {
        let default = effective_default_class(objects.iter().copied());
        let row = |class: &&Value| {
            let mut cells = self.cells(class, now);
            if default == Some(name(class)) {
                cells[0] = json!(format!("{} (default)", name(class)));
            }
            cells
        };
        objects.iter().map(row).collect()
    }
}

fn validate_topologies(terms: &[Value], path: &Path, errors: &mut Errors) {
    let mut seen: Vec<BTreeMap<&str, BTreeSet<String>>> = Vec::new();
    for (index, term) in terms.iter().enumerate() {
        let path = path.index(index).child("matchLabelExpressions");
        let mut labels: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for (index, wanted) in term.items(&["matchLabelExpressions"]).iter().enumerate() {
            let path = path.index(index);
            let key = wanted.text(&["key"]);
            let values = wanted.items(&["values"]);
            if values.is_empty() {
                errors.required(&path.child("values"), "");
            }
            let mut distinct = BTreeSet::new();
            for (index, value) in values.iter().enumerate() {
                if !distinct.insert(value.to_string()) {
                    errors.duplicate(&path.child("values").index(index), value.clone());
                }
            }
            check::qualified(key, &path.child("key"), errors);
            if labels.insert(key, distinct).is_some() {
                errors.duplicate(&path.child("key"), key);
            }
        }
        if seen.contains(&labels) {
            errors.duplicate(&path, "");
        }
        seen.push(labels);
    }
}

pub(super) struct AttributesClasses;

impl Rules for AttributesClasses {
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        check::csi_driver_name(object.text(&["driverName"]), &Path::new("driverName"), errors);
        let (parameters, path) = (object.members(&["parameters"]), Path::new("parameters"));
        if parameters.is_empty() {
            errors.required(&path, "must contain at least one key/value pair");
        }
        validate_parameters(parameters, &path, errors);
    }
    fn validate_update(&self, new: &Value, old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        for field in ["driverName", "parameters"] {
            forbid_change(new, old, field, errors);
        }
    }
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[NAME, column("DriverName", "string", "The CSI driver it is for"), AGE];
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![json!(name(object)), json!(object.text(&["driverName"])), json!(age(object, now))]
    }
}
