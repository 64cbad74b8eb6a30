//! PersistentVolume.

use super::check::{self, member};
use super::source::{self, SOURCES};
use super::{
    BETA_CLASS, claim_update, class_of, or_unset, short_access_modes, shown_phase, shown_quantity,
    validate_access_modes, validate_volume_mode,
};
use crate::access::{Access, name};
use crate::field::{Errors, Path};
use crate::kind::{Ctx, Rules};
use crate::meta::validate_immutable;
use crate::table::{AGE, Column, NAME, age, column, wide};
use crate::write::stamp;
use crate::{Value, json};

const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";
/// Deprecated volume types that support the mount options annotation.
const TAKES_MOUNT_OPTIONS: &[&str] = &[
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "gcePersistentDisk",
    "glusterfs",
    "iscsi",
    "nfs",
    "quobyte",
    "rbd",
    "storageos",
    "vsphereVolume",
];

pub(super) struct Volumes;

impl Rules for Volumes {
    fn default(&self, object: &mut Value, _ctx: &Ctx) {
        if let Some(spec) = object.get_mut("spec").filter(|spec| spec.is_object()) {
            spec.default_to(&["persistentVolumeReclaimPolicy"], "Retain");
            spec.default_to(&["volumeMode"], "Filesystem");
            source::default_source(spec);
        }
        object.default_to(&["status", "phase"], "Pending");
    }
    fn prepare_create(&self, object: &mut Value, ctx: &Ctx) {
        object.put(&["status"], json!({"phase": "Pending", "lastPhaseTransitionTime": stamp(ctx.now)}));
    }
    fn prepare_status(&self, new: &mut Value, old: &Value, ctx: &Ctx) {
        let time = ["status", "lastPhaseTransitionTime"];
        let phase = ["status", "phase"];
        if new.text(&phase) != old.text(&phase) {
            // The client may set the time, but only to a new value.
            if !new.has(&time) || new.at(&time) == old.at(&time) {
                new.put(&time, stamp(ctx.now));
            }
        } else if let (None, Some(before)) = (new.at(&time), old.at(&time)) {
            new.put(&time, before.clone());
        }
    }
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        validate_volume_spec(member(object, "spec"), &Path::new("spec"), errors);
        let annotated = object.has(&["metadata", "annotations", MOUNT_OPTIONS]);
        let takes = TAKES_MOUNT_OPTIONS.iter().any(|source| object.has(&["spec", source]));
        if annotated && !takes {
            let path = Path::new("metadata.annotations").child(MOUNT_OPTIONS);
            errors.forbidden(&path, "may not specify mount options for this volume type");
        }
    }
    fn validate_update(&self, new: &Value, old: &Value, ctx: &Ctx, errors: &mut Errors) {
        self.validate_create(new, ctx, errors);
        let (new, old) = (member(new, "spec"), member(old, "spec"));
        let path = Path::new("spec");
        validate_source_unchanged(new, old, &path, errors);
        validate_immutable(new.at(&["volumeMode"]), old.at(&["volumeMode"]), &path.child("volumeMode"), errors);
        if !ctx.gates.on("MutablePVNodeAffinity") {
            source::validate_node_affinity_update(new, old, &path.child("nodeAffinity"), errors);
        }
        if old.has(&["volumeAttributesClassName"]) && !new.has(&["volumeAttributesClassName"]) {
            let path = path.child("volumeAttributesClassName");
            errors.forbidden(&path, "update from non-nil value to nil is forbidden");
        }
    }
    fn warnings(&self, new: &Value, _old: Option<&Value>, _ctx: &Ctx) -> Vec<String> {
        warnings(new)
    }
    fn columns(&self) -> &[Column] {
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let claim = object.at(&["spec", "claimRef"]);
        let claim = claim.map(|claim| format!("{}/{}", claim.text(&["namespace"]), claim.text(&["name"])));
        vec![
            json!(name(object)),
            json!(shown_quantity(object, &["spec", "capacity", "storage"])),
            json!(short_access_modes(object.items(&["spec", "accessModes"]))),
            json!(object.text(&["spec", "persistentVolumeReclaimPolicy"])),
            json!(shown_phase(object)),
            json!(claim.unwrap_or_default()),
            json!(class_of(object).unwrap_or("")),
            json!(or_unset(object, &["spec", "volumeAttributesClassName"])),
            json!(object.text(&["status", "reason"])),
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
    column("Capacity", "string", "The size of the volume"),
    column("Access Modes", "string", "All the ways the volume can be mounted"),
    column("Reclaim Policy", "string", "What happens to the volume when its claim is gone"),
    column("Status", "string", "The phase of the volume"),
    column("Claim", "string", "The claim the volume is bound to"),
    column("StorageClass", "string", "The storage class of the volume"),
    column("VolumeAttributesClass", "string", "The volume attributes class of the volume"),
    column("Reason", "string", "Why the volume is in its phase"),
    AGE,
    wide("VolumeMode", "string", "What kind of volume it is"),
];

/// Validates a volume's spec. The inline volume of a VolumeAttachment uses it too.
pub(crate) fn validate_volume_spec(spec: &Value, path: &Path, errors: &mut Errors) {
    let modes = path.child("accessModes");
    if spec.items(&["accessModes"]).is_empty() {
        errors.required(&modes, "");
    }
    validate_access_modes(spec, &modes, errors);
    validate_capacity(spec, &path.child("capacity"), errors);
    let policy = spec.text(&["persistentVolumeReclaimPolicy"]);
    let policy_path = path.child("persistentVolumeReclaimPolicy");
    if !policy.is_empty() {
        check::one_of(policy, &["Delete", "Recycle", "Retain"], &policy_path, errors);
    }
    let affinity = member(spec, "nodeAffinity");
    if !affinity.is_null() {
        source::validate_node_affinity(affinity, &path.child("nodeAffinity"), errors);
    }
    source::validate_source(spec, path, errors);
    if spec.has(&["local"]) && affinity.is_null() {
        errors.required(&path.child("nodeAffinity"), "Local volume requires node affinity");
    }
    let host_path = spec.text(&["hostPath", "path"]);
    if policy == "Recycle" && !host_path.is_empty() && host_path.split('/').all(|part| part.is_empty() || part == ".") {
        errors.forbidden(&policy_path, "may not be 'recycle' for a hostPath mount of '/'");
    }
    let class = spec.text(&["storageClassName"]);
    if !class.is_empty() {
        check::subdomain(class, &path.child("storageClassName"), errors);
    }
    validate_volume_mode(spec, &path.child("volumeMode"), errors);
    if let Some(class) = spec.at(&["volumeAttributesClassName"]) {
        validate_attributes_class(class.as_str().unwrap_or(""), spec, path, errors);
    }
}

fn validate_attributes_class(class: &str, spec: &Value, path: &Path, errors: &mut Errors) {
    let class_path = path.child("volumeAttributesClassName");
    if class.is_empty() {
        errors.required(&class_path, "an empty string is disallowed");
    } else {
        check::subdomain(class, &class_path, errors);
    }
    if !spec.has(&["csi"]) {
        errors.required(&path.child("csi"), "has to be specified when using volumeAttributesClassName");
    }
}

fn validate_capacity(spec: &Value, path: &Path, errors: &mut Errors) {
    let capacity = spec.members(&["capacity"]);
    if capacity.is_empty() {
        errors.required(path, "");
        return;
    }
    if capacity.len() > 1 || !capacity.contains_key("storage") {
        errors.not_supported(path, Value::Object(capacity.clone()), &["storage"]);
    }
    for (resource, amount) in capacity {
        check::quantity_positive(amount, &path.key(resource), errors);
    }
}

/// Checks that the source did not change. Only an absent expansion secret may be added.
fn validate_source_unchanged(new: &Value, old: &Value, path: &Path, errors: &mut Errors) {
    let sources = |spec: &Value| {
        let members =
            spec.members(&[]).iter().filter(|(field, value)| SOURCES.contains(&field.as_str()) && !value.is_null());
        Value::Object(members.map(|(field, value)| (field.clone(), value.clone())).collect())
    };
    let (mut new, old) = (sources(new), sources(old));
    let secret = ["csi", "controllerExpandSecretRef"];
    if old.has(&["csi"]) && !old.has(&secret) {
        new.cut(&secret);
    }
    if !check::same("io.k8s.api.core.v1.PersistentVolumeSpec", &new, &old) {
        let why = "spec.persistentvolumesource is immutable after creation";
        let detail = format!("{why}\n{}", claim_update::differences(&new, &old));
        errors.forbidden(&path.child("persistentvolumesource"), detail);
    }
}

fn warnings(volume: &Value) -> Vec<String> {
    let affinity = member(member(volume, "spec"), "nodeAffinity");
    let mut warnings = source::node_affinity_warnings(affinity, &Path::new("spec.nodeAffinity"));
    let annotations = [
        (BETA_CLASS, "deprecated since v1.8; use \"storageClassName\" attribute instead"),
        (MOUNT_OPTIONS, "deprecated since v1.31; use \"mountOptions\" attribute instead"),
    ];
    for (key, why) in annotations {
        if volume.has(&["metadata", "annotations", key]) {
            warnings.push(format!("metadata.annotations[{key}]: {why}"));
        }
    }
    if volume.text(&["spec", "persistentVolumeReclaimPolicy"]) == "Recycle" {
        warnings.push(
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use \
             dynamic provisioning."
                .to_owned(),
        );
    }
    let removed = [
        ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
        ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
        ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
        ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
        ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
        ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ];
    for (source, why) in removed {
        if volume.has(&["spec", source]) {
            let shown = if source == "storageos" { "storageOS" } else { source };
            warnings.push(format!("spec.{shown}: {why}"));
        }
    }
    warnings
}
