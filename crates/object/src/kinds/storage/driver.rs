//! CSIDriver, CSINode and CSIStorageCapacity: what CSI drivers report.

use super::{check, name};
use crate::access::Access;
use crate::field::{Errors, Path};
use crate::kind::{Ctx, Rules};
use crate::meta::{validate_immutable, validate_label_selector};
use crate::table::{AGE, Column, NAME, age, column};
use crate::{Value, json};
use check::member;
use std::collections::BTreeSet;

pub(super) struct Drivers;

impl Rules for Drivers {
    fn default(&self, object: &mut Value, _ctx: &Ctx) {
        let Some(spec) = object.get_mut("spec").filter(|spec| spec.is_object()) else { return };
        spec.default_to(&["attachRequired"], true);
        for field in ["podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"] {
            spec.default_to(&[field], false);
        }
        spec.default_to(&["fsGroupPolicy"], "ReadWriteOnceWithFSType");
        if spec.items(&["volumeLifecycleModes"]).is_empty() {
            spec.put(&["volumeLifecycleModes"], json!(["Persistent"]));
        }
    }
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        check::csi_driver_name(name(object), &Path::new("metadata.name"), errors);
        validate_driver_spec(member(object, "spec"), &Path::new("spec"), errors);
    }
    fn validate_update(&self, new: &Value, old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        let path = Path::new("spec");
        for (field, shown) in [("attachRequired", "attachedRequired"), ("volumeLifecycleModes", "volumeLifecycleModes")]
        {
            let at = ["spec", field];
            validate_immutable(new.at(&at), old.at(&at), &path.child(shown), errors);
        }
        validate_driver_spec(member(new, "spec"), &path, errors);
    }
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            NAME,
            column("AttachRequired", "boolean", "Whether volumes are attached before they are mounted"),
            column("PodInfoOnMount", "boolean", "Whether the driver wants to know the pod"),
            column("StorageCapacity", "boolean", "Whether the driver reports its capacity"),
            column("TokenRequests", "string", "The audiences of the tokens that the driver wants"),
            column("RequiresRepublish", "boolean", "Whether volumes are published again and again"),
            column("Modes", "string", "The lifecycles of volumes that the driver supports"),
            AGE,
        ];
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let flag = |field: &str| json!(object.flag(&["spec", field]));
        let texts = |items: &[Value], none: &str| {
            let texts: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            if items.is_empty() { none.to_owned() } else { texts.join(",") }
        };
        let audiences: Vec<Value> =
            object.items(&["spec", "tokenRequests"]).iter().map(|request| json!(request.text(&["audience"]))).collect();
        let attach = object.at(&["spec", "attachRequired"]).and_then(Value::as_bool).unwrap_or(true);
        vec![
            json!(name(object)),
            json!(attach),
            flag("podInfoOnMount"),
            flag("storageCapacity"),
            json!(texts(&audiences, "<unset>")),
            flag("requiresRepublish"),
            json!(texts(object.items(&["spec", "volumeLifecycleModes"]), "<none>")),
            json!(age(object, now)),
        ]
    }
}

fn validate_driver_spec(spec: &Value, path: &Path, errors: &mut Errors) {
    for field in ["attachRequired", "podInfoOnMount", "storageCapacity"] {
        if !spec.has(&[field]) {
            errors.required(&path.child(field), "");
        }
    }
    let policies = ["File", "None", "ReadWriteOnceWithFSType"];
    match spec.text(&["fsGroupPolicy"]) {
        "" => errors.required(&path.child("fsGroupPolicy"), ""),
        policy => check::one_of(policy, &policies, &path.child("fsGroupPolicy"), errors),
    }
    let mut audiences = BTreeSet::new();
    for (index, request) in spec.items(&["tokenRequests"]).iter().enumerate() {
        let path = path.child("tokenRequests").index(index);
        let audience = request.text(&["audience"]);
        if !audiences.insert(audience) {
            errors.duplicate(&path.child("audience"), audience);
        }
        validate_token_seconds(request.int(&["expirationSeconds"]), &path.child("expirationSeconds"), errors);
    }
    for (index, mode) in spec.items(&["volumeLifecycleModes"]).iter().enumerate() {
        let path = path.child("volumeLifecycleModes").index(index);
        check::one_of(mode.as_str().unwrap_or(""), &["Ephemeral", "Persistent"], &path, errors);
    }
    if let Some(seconds) = spec.int(&["nodeAllocatableUpdatePeriodSeconds"]).filter(|seconds| *seconds < 10) {
        let path = path.child("nodeAllocatableUpdatePeriodSeconds");
        errors.invalid(&path, seconds, "must be greater than or equal to 10 seconds");
    }
}

/// Validates the lifetime of a token.
pub(in crate::kinds) fn validate_token_seconds(seconds: Option<i64>, path: &Path, errors: &mut Errors) {
    match seconds {
        Some(seconds) if seconds < 600 => {
            errors.invalid(path, seconds, "may not specify a duration less than 10 minutes");
        }
        Some(seconds) if seconds > 1 << 32 => {
            errors.invalid(path, seconds, "may not specify a duration larger than 2^32 seconds");
        }
        _ => {}
    }
}

pub(super) struct Nodes;

impl Rules for Nodes {
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        let path = Path::new("spec.drivers");
        let mut names = BTreeSet::new();
        for (index, driver) in object.items(&["spec", "drivers"]).iter().enumerate() {
            let path = path.index(index);
            let driver_name = driver.text(&["name"]);
            check::csi_driver_name(driver_name, &path.child("name"), errors);
            if !names.insert(driver_name) {
                errors.duplicate(&path.child("name"), driver_name);
            }
            validate_node_driver(driver, &path, errors);
        }
    }
    /// The entry of a registered driver cannot change, except for `allocatable`. Entries can be added and removed.
    fn validate_update(&self, new: &Value, old: &Value, ctx: &Ctx, errors: &mut Errors) {
        self.validate_create(new, ctx, errors);
        let frozen = |driver: &Value| {
            let mut driver = driver.clone();
            driver.cut(&["allocatable"]);
            driver
        };
        for driver in new.items(&["spec", "drivers"]) {
            let before =
                old.items(&["spec", "drivers"]).iter().find(|old| old.text(&["name"]) == driver.text(&["name"]));
            if before.is_some_and(|before| frozen(before) != frozen(driver)) {
                errors.invalid(&Path::new("CSINodeDriver"), driver.clone(), "field is immutable");
            }
        }
    }
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[NAME, column("Drivers", "integer", "How many drivers run on the node"), AGE];
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![json!(name(object)), json!(object.items(&["spec", "drivers"]).len()), json!(age(object, now))]
    }
}

const NODE_ID_MAX: usize = 256;

fn validate_node_driver(driver: &Value, path: &Path, errors: &mut Errors) {
    let id = driver.text(&["nodeID"]);
    if id.is_empty() {
        errors.required(&path.child("nodeID"), "");
    } else if id.len() > NODE_ID_MAX {
        errors.invalid(&path.child("nodeID"), id, format!("must be {NODE_ID_MAX} characters or less"));
    }
    let count = path.child("allocatable").child("count");
    check::not_negative(driver.int(&["allocatable", "count"]), &count, errors);
    let mut keys = BTreeSet::new();
    for key in driver.items(&["topologyKeys"]).iter().map(|key| key.as_str().unwrap_or("")) {
        if key.is_empty() {
            errors.required(path, "");
            continue;
        }
        if !keys.insert(key) {
            errors.duplicate(&path.child("topologyKeys"), key);
        }
        check::qualified(key, &path.child("topologyKeys"), errors);
    }
}

pub(super) struct Capacities;

impl Rules for Capacities {
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        check::subdomain(object.text(&["storageClassName"]), &Path::new("storageClassName"), errors);
        validate_label_selector(member(object, "nodeTopology"), &Path::new("nodeTopology"), errors);
        for field in ["capacity", "maximumVolumeSize"] {
            check::quantity_not_negative(member(object, field), &Path::new(field), errors);
        }
    }
    fn validate_update(&self, new: &Value, old: &Value, ctx: &Ctx, errors: &mut Errors) {
        for field in ["nodeTopology", "storageClassName"] {
            validate_immutable(new.at(&[field]), old.at(&[field]), &Path::new(field), errors);
        }
        self.validate_create(new, ctx, errors);
    }
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[
            NAME,
            column("StorageClassName", "string", "The class the capacity is of"),
            column("Capacity", "string", "How much can be provisioned"),
            AGE,
        ];
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let capacity = match object.text(&["capacity"]) {
            "" => "<unset>",
            capacity => capacity,
        };
        vec![json!(name(object)), json!(object.text(&["storageClassName"])), json!(capacity), json!(age(object, now))]
    }
}
