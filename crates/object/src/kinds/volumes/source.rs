//! Sources of a PersistentVolume, and the nodes that can reach them.

use super::check::{self, member};
use crate::Value;
use crate::access::Access;
use crate::field::{Errors, Path};

/// All source fields of a PersistentVolume, in the order in which they are validated.
pub(super) const SOURCES: &[&str] = &[
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

/// Required text fields of each source.
const REQUIRED: &[(&str, &[&str])] = &[
    ("hostPath", &["path"]),
    ("gcePersistentDisk", &["pdName"]),
    ("awsElasticBlockStore", &["volumeID"]),
    ("glusterfs", &["endpoints", "path"]),
    ("nfs", &["server", "path"]),
    ("rbd", &["image"]),
    ("quobyte", &["registry", "volume"]),
    ("iscsi", &["targetPortal", "iqn"]),
    ("cinder", &["volumeID"]),
    ("flexVolume", &["driver"]),
    ("azureFile", &["secretName", "shareName"]),
    ("vsphereVolume", &["volumePath"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("scaleIO", &["gateway", "system", "volumeName"]),
    ("local", &["path"]),
    ("storageos", &["volumeName"]),
    ("csi", &["volumeHandle"]),
];

/// Checks that there is exactly one source, and that it is complete.
pub(super) fn validate_source(spec: &Value, path: &Path, errors: &mut Errors) {
    let mut present = SOURCES.iter().filter(|source| spec.has(&[source]));
    let Some(first) = present.next() else {
        errors.required(path, "must specify a volume type");
        return;
    };
    for another in present {
        errors.forbidden(&path.child(another), "may not specify more than 1 volume type");
    }
    let (source, path) = (member(spec, first), path.child(first));
    if *first == "csi" {
        check::csi_driver_name(source.text(&["driver"]), &path.child("driver"), errors);
    }
    let required = REQUIRED.iter().find(|(name, _)| name == first).map_or(&[][..], |(_, fields)| fields);
    for field in required {
        check::required(source.text(&[field]), &path.child(field), errors);
    }
    validate_details(first, source, &path, errors);
}

fn validate_details(name: &str, source: &Value, path: &Path, errors: &mut Errors) {
    match name {
        "hostPath" => {
            check::path_without_backsteps(source.text(&["path"]), &path.child("path"), errors);
            let kinds =
                ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
            check::one_of(source.text(&["type"]), &kinds, &path.child("type"), errors);
        }
        "local" => check::path_without_backsteps(source.text(&["path"]), &path.child("path"), errors),
        "nfs" => {
            let export = source.text(&["path"]);
            if !export.is_empty() && !export.starts_with('/') {
                errors.invalid(&path.child("path"), export, "must be an absolute path");
            }
        }
        "gcePersistentDisk" | "awsElasticBlockStore" => {
            validate_byte(source.int(&["partition"]), &path.child("partition"), errors);
        }
        "rbd" | "cephfs" if source.items(&["monitors"]).is_empty() => errors.required(&path.child("monitors"), ""),
        "iscsi" => validate_iscsi(source, path, errors),
        "fc" => validate_fibre_channel(source, path, errors),
        "flocker" => validate_flocker(source, path, errors),
        "azureFile" if source.at(&["secretNamespace"]).and_then(Value::as_str) == Some("") => {
            errors.required(&path.child("secretNamespace"), "");
        }
        "csi" => validate_csi_secrets(source, path, errors),
        _ => {}
    }
}

fn validate_byte(value: Option<i64>, path: &Path, errors: &mut Errors) {
    if let Some(value) = value.filter(|value| !(0..=255).contains(value)) {
        errors.invalid(path, value, "must be between 0 and 255, inclusive");
    }
}

fn validate_iscsi(source: &Value, path: &Path, errors: &mut Errors) {
    let iqn = source.text(&["iqn"]);
    if !iqn.is_empty() && !["iqn", "eui", "naa"].iter().any(|prefix| iqn.starts_with(prefix)) {
        errors.invalid(&path.child("iqn"), iqn, "must be valid format starting with iqn, eui, or naa");
    }
    validate_byte(source.int(&["lun"]), &path.child("lun"), errors);
    let chap = source.flag(&["chapAuthDiscovery"]) || source.flag(&["chapAuthSession"]);
    if chap && !source.has(&["secretRef"]) {
        errors.required(&path.child("secretRef"), "");
    }
}

fn validate_fibre_channel(source: &Value, path: &Path, errors: &mut Errors) {
    let (names, ids) = (source.items(&["targetWWNs"]), source.items(&["wwids"]));
    let path_names = path.child("targetWWNs");
    match (names.is_empty(), ids.is_empty()) {
        (true, true) => errors.required(&path_names, "must specify either targetWWNs or wwids, but not both"),
        (false, false) => {
            let why = "targetWWNs and wwids can not be specified simultaneously";
            errors.invalid(&path_names, Value::from(names.to_vec()), why);
        }
        (false, true) => match source.int(&["lun"]) {
            None => errors.required(&path.child("lun"), "lun is required if targetWWNs is specified"),
            lun => validate_byte(lun, &path.child("lun"), errors),
        },
        (true, false) => {}
    }
}

fn validate_flocker(source: &Value, path: &Path, errors: &mut Errors) {
    let (name, uuid) = (source.text(&["datasetName"]), source.text(&["datasetUUID"]));
    match (name.is_empty(), uuid.is_empty()) {
        (true, true) => errors.required(path, "one of datasetName and datasetUUID is required"),
        (false, false) => {
            errors.invalid(path, "resource", "datasetName and datasetUUID can not be specified simultaneously");
        }
        _ => {}
    }
    if name.contains('/') {
        errors.invalid(&path.child("datasetName"), name, "must not contain '/'");
    }
}

/// Validates secret references. Upstream does not validate the stage secret, so neither do we.
fn validate_csi_secrets(source: &Value, path: &Path, errors: &mut Errors) {
    for field in
        ["controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"]
    {
        let secret = member(source, field);
        if secret.is_null() {
            continue;
        }
        let path = path.child(field);
        check::required_subdomain(secret.text(&["name"]), &path.child("name"), errors);
        match secret.text(&["namespace"]) {
            "" => errors.required(&path.child("namespace"), ""),
            namespace => check::label(namespace, &path.child("namespace"), errors),
        }
    }
}

/// Applies defaults inside a source.
pub(super) fn default_source(spec: &mut Value) {
    let defaults: &[(&str, &[(&str, &str)])] = &[
        ("iscsi", &[("iscsiInterface", "default")]),
        ("rbd", &[("pool", "rbd"), ("user", "admin"), ("keyring", "/etc/ceph/keyring")]),
        ("azureDisk", &[("cachingMode", "ReadWrite"), ("kind", "Shared"), ("fsType", "ext4")]),
        ("scaleIO", &[("storageMode", "ThinProvisioned"), ("fsType", "xfs")]),
    ];
    for (source, fields) in defaults {
        if spec.at(&[source]).is_some_and(Value::is_object) {
            for (field, value) in *fields {
                spec.default_to(&[source, field], *value);
            }
        }
    }
    if spec.at(&["hostPath"]).is_some_and(Value::is_object) {
        spec.default_to(&["hostPath", "type"], "");
    }
    if spec.at(&["azureDisk"]).is_some_and(Value::is_object) {
        spec.default_to(&["azureDisk", "readOnly"], false);
    }
}

pub(super) fn validate_node_affinity(affinity: &Value, path: &Path, errors: &mut Errors) {
    match affinity.at(&["required"]) {
        Some(required) => validate_node_selector(required, &path.child("required"), errors),
        None => errors.required(&path.child("required"), "must specify required node constraints"),
    }
}

/// Validates a `NodeSelector`: terms with requirements on node labels and fields.
fn validate_node_selector(selector: &Value, path: &Path, errors: &mut Errors) {
    let path = path.child("nodeSelectorTerms");
    let terms = selector.items(&["nodeSelectorTerms"]);
    if terms.is_empty() {
        errors.required(&path, "must have at least one node selector term");
    }
    for (index, term) in terms.iter().enumerate() {
        let path = path.index(index);
        for (at, wanted) in term.items(&["matchExpressions"]).iter().enumerate() {
            validate_node_requirement(wanted, &path.child("matchExpressions").index(at), errors);
        }
        for (at, wanted) in term.items(&["matchFields"]).iter().enumerate() {
            validate_node_field(wanted, &path.child("matchFields").index(at), errors);
        }
    }
}

fn validate_node_requirement(wanted: &Value, path: &Path, errors: &mut Errors) {
    let values = wanted.items(&["values"]);
    let values_path = path.child("values");
    match wanted.text(&["operator"]) {
        "In" | "NotIn" if values.is_empty() => {
            errors.required(&values_path, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors.forbidden(&values_path, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
        }
        "Gt" | "Lt" if values.len() != 1 => {
            errors.required(&values_path, "must be specified single value when `operator` is 'Lt' or 'Gt'");
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
    }
    check::qualified(wanted.text(&["key"]), &path.child("key"), errors);
}

/// Validates a requirement on a node field. Only `metadata.name` is supported.
fn validate_node_field(wanted: &Value, path: &Path, errors: &mut Errors) {
    let values = wanted.items(&["values"]);
    match wanted.text(&["operator"]) {
        "In" | "NotIn" if values.len() != 1 => {
            let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            errors.required(&path.child("values"), why);
        }
        "In" | "NotIn" => {}
        other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
    }
    match wanted.text(&["key"]) {
        "metadata.name" => {
            for (index, value) in values.iter().enumerate() {
                check::subdomain(value.as_str().unwrap_or(""), &path.child("values").index(index), errors);
            }
        }
        other => errors.invalid(&path.child("key"), other, "not a valid field selector key"),
    }
}

/// Returns warnings about deprecated labels in a node affinity.
pub(super) fn node_affinity_warnings(affinity: &Value, path: &Path) -> Vec<String> {
    let path = path.child("required").child("nodeSelectorTerms");
    let mut warnings = Vec::new();
    for (index, term) in affinity.items(&["required", "nodeSelectorTerms"]).iter().enumerate() {
        for (at, wanted) in term.items(&["matchExpressions"]).iter().enumerate() {
            let path = path.index(index).child("matchExpressions").index(at).child("key");
            warnings.extend(check::renamed_label_warning(wanted.text(&["key"]), &path));
        }
    }
    warnings
}

/// Validates an update of the node affinity: it may be set once, and later only beta labels may be renamed to their
/// final names.
pub(super) fn validate_node_affinity_update(new: &Value, old: &Value, path: &Path, errors: &mut Errors) {
    let (new, old) = (member(new, "nodeAffinity"), member(old, "nodeAffinity"));
    if old.is_null() || new == old {
        return;
    }
    if renamed(new, old) {
        return;
    }
    if !check::same("io.k8s.api.core.v1.VolumeNodeAffinity", new, old) {
        errors.invalid(path, new.clone(), "field is immutable, except for updating from beta label to GA");
    }
}

/// Whether `new` equals `old` except for labels that were renamed from beta to final.
fn renamed(new: &Value, old: &Value) -> bool {
    let mut renamed = old.clone();
    let terms = |affinity: &Value| affinity.items(&["required", "nodeSelectorTerms"]).to_vec();
    let mut old_terms = terms(old);
    for (term, new_term) in old_terms.iter_mut().zip(terms(new)) {
        for list in ["matchExpressions", "matchFields"] {
            let wanted = term.get_mut(list).and_then(Value::as_array_mut);
            for (wanted, new) in wanted.into_iter().flatten().zip(new_term.items(&[list])) {
                let pair = (wanted.text(&["key"]), new.text(&["key"]));
                if check::RENAMED_LABELS.iter().any(|(old, new, _)| pair == (*old, *new)) {
                    wanted.put(&["key"], new.text(&["key"]));
                }
            }
        }
    }
    if old_terms.is_empty() {
        return false;
    }
    renamed.put(&["required", "nodeSelectorTerms"], old_terms);
    check::same("io.k8s.api.core.v1.VolumeNodeAffinity", new, &renamed)
}
