//! Node and Lease.

use super::check::{self, member, or_none};
use super::resources;
use super::row;
use crate::access::{Access, name};
use crate::field::{ErrorKind, Errors, Path};
use crate::kind::{Ctx, Kind, Rules};
use crate::name::label_value;
use crate::table::{AGE, Column, NAME, age, column, wide};
use crate::{Value, json};
use std::collections::BTreeSet;

#[cfg(test)]
mod tests;

pub fn rows() -> Vec<Kind> {
    vec![
        row("", "v1", "Node", "nodes", "io.k8s.api.core.v1.Node")
            .cluster_scoped()
            .short(&["no"])
            .with_status()
            .rules(Nodes),
        row("coordination.k8s.io", "v1", "Lease", "leases", "io.k8s.api.coordination.v1.Lease").rules(Leases),
    ]
}

struct Nodes;

impl Rules for Nodes {
    fn keeps_status_on_create(&self) -> bool {
        true
    }
    fn default(&self, object: &mut Value, _ctx: &Ctx) {
        if !object.has(&["status", "allocatable"])
            && let Some(capacity) = object.at(&["status", "capacity"]).cloned()
        {
            object.put(&["status", "allocatable"], capacity);
        }
        // `podCIDR` is always the first element of `podCIDRs`.
        let first = object.items(&["spec", "podCIDRs"]).first().cloned();
        match (object.text(&["spec", "podCIDR"]).to_owned(), first) {
            (single, None) if !single.is_empty() => object.put(&["spec", "podCIDRs"], json!([single])),
            (single, Some(first)) if single.is_empty() => object.put(&["spec", "podCIDR"], first),
            _ => {}
        }
    }
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        // Upstream reports taints under this wrong path, and clients know it.
        validate_taints(object.items(&["spec", "taints"]), &Path::new("metadata.taints"), errors);
        validate_status(object, errors);
        let cidrs = object.items(&["spec", "podCIDRs"]);
        let path = Path::new("spec.podCIDRs");
        for (index, cidr) in cidrs.iter().map(|cidr| cidr.as_str().unwrap_or("")).enumerate() {
            if !check::is_cidr(cidr) {
                let why = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
                errors.invalid(&path.index(index), cidr, why);
            }
        }
        let six = cidrs.iter().filter(|cidr| cidr.as_str().unwrap_or("").contains(':')).count();
        if cidrs.len() > 2 || six > 1 || cidrs.len() - six > 1 {
            let why = "may specify no more than one CIDR for each IP family";
            errors.invalid(&path, Value::from(cidrs.to_vec()), why);
        }
    }
    fn validate_update(&self, new: &Value, old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        validate_status(new, errors);
        let set_once = [
            ("podCIDRs", "node updates may not change podCIDR except from \"\" to valid"),
            ("providerID", "node updates may not change providerID except from \"\" to valid"),
        ];
        for (field, why) in set_once {
            let at = ["spec", field];
            let unset = match old.at(&at) {
                None => true,
                Some(Value::String(text)) => text.is_empty(),
                Some(Value::Array(items)) => items.is_empty(),
                Some(_) => false,
            };
            if !unset && old.at(&at) != new.at(&at) {
                errors.forbidden(&Path::new("spec").child(field), why);
            }
        }
        validate_taints(new.items(&["spec", "taints"]), &Path::new("metadata.taints"), errors);
        if fixed_spec(new) != fixed_spec(old) {
            let why = "node updates may only change labels, taints, or capacity (or configSource, if the DynamicKubeletConfig \
                       feature gate is enabled)";
            errors.forbidden(&Path::new(""), why);
        }
    }
    fn validate_status(&self, new: &Value, _old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        validate_status(new, errors);
    }
    fn columns(&self) -> &[Column] {
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let info = |field: &str| match object.text(&["status", "nodeInfo", field]) {
            "" => json!("<unknown>"),
            text => json!(text),
        };
        vec![
            json!(name(object)),
            json!(condition(object)),
            json!(roles(object)),
            json!(age(object, now)),
            json!(object.text(&["status", "nodeInfo", "kubeletVersion"])),
            json!(address(object, "InternalIP")),
            json!(address(object, "ExternalIP")),
            info("osImage"),
            info("kernelVersion"),
            info("containerRuntimeVersion"),
        ]
    }
    fn selectable_fields(&self) -> &[&str] {
        &["spec.unschedulable"]
    }
    fn field_value(&self, object: &Value, _field: &str) -> String {
        object.flag(&["spec", "unschedulable"]).to_string()
    }
}

const COLUMNS: &[Column] = &[
    NAME,
    column("Status", "string", "The status of the node"),
    column("Roles", "string", "The roles of the node"),
    AGE,
    column("Version", "string", "The version of the node's agent"),
    wide("Internal-IP", "string", "The node's address inside the cluster"),
    wide("External-IP", "string", "The node's address outside the cluster"),
    wide("OS-Image", "string", "The node's operating system"),
    wide("Kernel-Version", "string", "The node's kernel"),
    wide("Container-Runtime", "string", "The node's container runtime"),
];

fn condition(node: &Value) -> String {
    let ready = node.items(&["status", "conditions"]).iter().find(|condition| condition.text(&["type"]) == "Ready");
    let mut words = vec![match ready.map(|condition| condition.text(&["status"])) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }];
    if node.flag(&["spec", "unschedulable"]) {
        words.push("SchedulingDisabled");
    }
    words.join(",")
}

/// Returns the node's roles from its labels: `node-role.kubernetes.io/ROLE` and `kubernetes.io/role: ROLE`.
fn roles(node: &Value) -> String {
    let mut roles = BTreeSet::new();
    for (key, value) in node.members(&["metadata", "labels"]) {
        let role = match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => role,
            None if key == "kubernetes.io/role" => value.as_str().unwrap_or(""),
            None => "",
        };
        if !role.is_empty() {
            roles.insert(role);
        }
    }
    or_none(roles.into_iter().collect::<Vec<_>>().join(","))
}

fn address(node: &Value, kind: &str) -> String {
    let found = node.items(&["status", "addresses"]).iter().find(|address| address.text(&["type"]) == kind);
    or_none(found.map_or("", |address| address.text(&["address"])).to_owned())
}

fn validate_taints(taints: &[Value], path: &Path, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, taint) in taints.iter().enumerate() {
        let path = path.index(index);
        let (key, value, effect) = (taint.text(&["key"]), taint.text(&["value"]), taint.text(&["effect"]));
        check::qualified(key, &path.child("key"), errors);
        let why = label_value(value);
        if !why.is_empty() {
            errors.invalid(&path.child("value"), value, why.join(";"));
        }
        match effect {
            "" => errors.required(&path.child("effect"), ""),
            effect => {
                let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
                check::one_of(effect, &effects, &path.child("effect"), errors);
            }
        }
        if !seen.insert((effect, key)) {
            let why = "taints must be unique by key and effect pair";
            errors.push(ErrorKind::Duplicate, &path, Some(taint.clone()), why);
        }
    }
}

fn validate_status(node: &Value, errors: &mut Errors) {
    let path = Path::new("status");
    for field in ["capacity", "allocatable"] {
        for (resource, amount) in node.members(&["status", field]) {
            resources::validate_amount(resource, amount, &path.child(field).child(resource), errors);
        }
    }
    let addresses = node.items(&["status", "addresses"]);
    for (index, address) in addresses.iter().enumerate() {
        if addresses[..index].contains(address) {
            errors.duplicate(&path.child("addresses").index(index), address.clone());
        }
    }
}

/// Returns the spec without the fields that an update may change, or that were compared separately.
fn fixed_spec(node: &Value) -> Value {
    let mut spec = member(node, "spec").clone();
    for field in ["unschedulable", "taints", "configSource", "podCIDR", "podCIDRs", "providerID"] {
        spec.cut(&[field]);
    }
    if spec.is_null() { json!({}) } else { spec }
}

struct Leases;

impl Rules for Leases {
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        let (spec, path) = (member(object, "spec"), Path::new("spec"));
        if let Some(seconds) = spec.int(&["leaseDurationSeconds"]).filter(|seconds| *seconds <= 0) {
            errors.invalid(&path.child("leaseDurationSeconds"), seconds, "must be greater than 0");
        }
        check::not_negative(spec.int(&["leaseTransitions"]), &path.child("leaseTransitions"), errors);
        let strategy = spec.text(&["strategy"]);
        if !strategy.is_empty() {
            let path = path.child("strategy");
            check::qualified(strategy, &path, errors);
            if !strategy.contains('/') {
                check::one_of(strategy, &["OldestEmulationVersion"], &path, errors);
            }
        } else if !spec.text(&["preferredHolder"]).is_empty() {
            errors.forbidden(&path.child("preferredHolder"), "may only be specified when `strategy` is defined");
        }
    }
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[NAME, column("Holder", "string", "Who holds the lease"), AGE];
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![json!(name(object)), json!(object.text(&["spec", "holderIdentity"])), json!(age(object, now))]
    }
}
