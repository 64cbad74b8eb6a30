//! Allowed updates of a pod: very few, because its containers may already run.

use super::cursor::Cursor;
use super::{NOTHING, annotations, containers, scheduling, validate_pod};
use crate::access::Access;
use crate::field::{Errors, Path};
use crate::schema;
use crate::value::Key;
use crate::{Value, json};

const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
    `spec.tolerations` (only additions to existing tolerations),\
    `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
/// Maximum number of differences in the error message.
const SHOWN_MAX: usize = 10;

/// Validates a pod's update, except for the general rules of metadata.
pub fn validate_update(new: &Value, old: &Value, errors: &mut Errors) {
    validate_pod(new, errors);
    let (path, annotations_path) = (Path::new("spec"), Path::new("metadata.annotations"));
    let annotations = Cursor::new(new.at(&["metadata", "annotations"]).unwrap_or(&NOTHING), &annotations_path);
    annotations::validate_update(&annotations, old.at(&["metadata", "annotations"]).unwrap_or(&NOTHING), errors);
    let (new, old) = (new.at(&["spec"]).unwrap_or(&NOTHING), old.at(&["spec"]).unwrap_or(&NOTHING));
    let spec = Cursor::new(new, &path);
    for list in ["containers", "initContainers"] {
        if !same_containers(&spec.child(list), old.items(&[list]), errors) {
            return;
        }
    }
    if !validate_deadline(&spec.child("activeDeadlineSeconds"), old.int(&["activeDeadlineSeconds"]), errors) {
        return;
    }
    validate_tolerations(&spec.child("tolerations"), old.items(&["tolerations"]), errors);
    validate_gates(&spec.child("schedulingGates"), old.items(&["schedulingGates"]), errors);
    validate_rest(&spec, old, errors);
}

/// Checks the containers: none may be added or removed, and only images may change. Returns whether the caller can
/// compare further.
fn same_containers(new: &Cursor, old: &[Value], errors: &mut Errors) -> bool {
    if new.list().len() != old.len() {
        new.forbidden("pod updates may not add or remove containers", errors);
        return false;
    }
    for container in new.items() {
        container.required_members(&["image"], errors);
        containers::validate_image_of_pod(&container, errors);
    }
    true
}

/// Checks the active deadline: it may be set, and later only be shortened.
fn validate_deadline(new: &Cursor, old: Option<i64>, errors: &mut Errors) -> bool {
    let before = errors.count();
    match (new.value().as_i64(), old) {
        (Some(_), _) if !(0..=i64::from(i32::MAX)).contains(&new.int()) => new.between(0, i64::from(i32::MAX), errors),
        (Some(new_value), Some(old)) if old < new_value => {
            new.invalid("must be less than or equal to previous value", errors)
        }
        (None, Some(_)) => {
            new.invalid_as(Value::Null, "must not update from a positive integer to nil value", errors);
            return true;
        }
        _ => {}
    }
    errors.count() == before
}

fn validate_tolerations(new: &Cursor, old: &[Value], errors: &mut Errors) {
    let without_seconds = |toleration: &Value| {
        let mut toleration = toleration.clone();
        toleration.cut(&["tolerationSeconds"]);
        toleration
    };
    let kept: Vec<Value> = new.list().iter().map(without_seconds).collect();
    if !old.iter().all(|toleration| kept.contains(&without_seconds(toleration))) {
        return new.forbidden("existing toleration can not be modified except its tolerationSeconds", errors);
    }
    scheduling::validate_tolerations(new, errors);
}

fn validate_gates(new: &Cursor, old: &[Value], errors: &mut Errors) {
    for gate in new.items() {
        let name = gate.child("name");
        if !old.iter().any(|gate| gate.text(&["name"]) == name.text()) {
            let why = format!("only deletion is allowed, but found new scheduling gate '{}'", name.text());
            name.forbidden(&why, errors);
        }
    }
}

/// Checks that all fields without a rule of their own are semantically unchanged.
fn validate_rest(spec: &Cursor, old: &Value, errors: &mut Errors) {
    let same = schema::builtin_type("io.k8s.api.core.v1.PodSpec");
    if same.same(spec.value(), old) {
        return;
    }
    let mut rest = spec.value().clone();
    for list in ["containers", "initContainers"] {
        restore_images(&mut rest, old, list);
    }
    for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        restore(&mut rest, old, field);
    }
    let grace = "terminationGracePeriodSeconds";
    if old.int(&[grace]).is_some_and(|grace| grace < 0) && rest.int(&[grace]) == Some(1) {
        restore(&mut rest, old, grace);
    }
    if !old.items(&["schedulingGates"]).is_empty() {
        allow_narrowing(spec, old, &mut rest, errors);
    }
    if !same.same(&rest, old) {
        let mut shown = Vec::new();
        differences("spec", &rest, old, &mut shown);
        shown.truncate(SHOWN_MAX);
        let why = format!("pod updates may not change fields other than {UPDATABLE}\n{}", shown.join("\n"));
        spec.forbidden(&why, errors);
    }
}

fn restore(rest: &mut Value, old: &Value, field: &str) {
    match old.at(&[field]) {
        Some(value) => rest.put(&[field], value.clone()),
        None => drop(rest.cut(&[field])),
    }
}

fn restore_images(rest: &mut Value, old: &Value, list: &str) {
    let containers = rest.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
    for (container, old) in containers.zip(old.items(&[list])) {
        if container.is_object() {
            restore(container, old, "image");
        }
    }
}

/// Handles a pod with scheduling gates: its node selector and affinity may still be narrowed.
fn allow_narrowing(spec: &Cursor, old: &Value, rest: &mut Value, errors: &mut Errors) {
    let selector = spec.child("nodeSelector");
    let kept = |(key, value): (&Key, &Value)| selector.value().get(key) == Some(value);
    if !old.members(&["nodeSelector"]).iter().all(kept) {
        selector.invalid("only additions to spec.nodeSelector are allowed (no mutations or deletions)", errors);
    }
    restore(rest, old, "nodeSelector");
    let affinity = spec.child("affinity");
    let nodes = affinity.child("nodeAffinity");
    validate_node_affinity(&nodes, old.at(&["affinity", "nodeAffinity"]).unwrap_or(&NOTHING), errors);
    match old.at(&["affinity", "nodeAffinity"]) {
        Some(nodes) => rest.put(&["affinity", "nodeAffinity"], nodes.clone()),
        None => drop(rest.cut(&["affinity", "nodeAffinity"])),
    }
    if !old.has(&["affinity"]) && rest.members(&["affinity"]).is_empty() {
        rest.cut(&["affinity"]);
    }
}

fn validate_node_affinity(new: &Cursor, old: &Value, errors: &mut Errors) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    let required = new.child(REQUIRED);
    let terms = required.child("nodeSelectorTerms");
    let old_terms = old.items(&[REQUIRED, "nodeSelectorTerms"]);
    if !old_terms.is_empty() && old_terms.len() != terms.list().len() {
        let shown = if terms.present() { terms.value().clone() } else { json!([]) };
        return terms.invalid_as(
            shown,
            "no additions/deletions to non-empty NodeSelectorTerms list are allowed",
            errors,
        );
    }
    for (term, old) in terms.items().zip(old_terms) {
        if !only_adds(term.value(), old) {
            term.invalid("only additions are allowed (no mutations or deletions)", errors);
        }
    }
}

fn only_adds(new: &Value, old: &Value) -> bool {
    let lists = ["matchExpressions", "matchFields"];
    let empty = |term: &Value| lists.iter().all(|list| term.items(&[list]).is_empty());
    // A term without requirements matches no node; adding requirements to it would widen it.
    (!empty(old) || empty(new)) && lists.iter().all(|list| new.items(&[list]).starts_with(old.items(&[list])))
}

/// Collects lines that describe the differences, for the error message.
fn differences(path: &str, new: &Value, old: &Value, lines: &mut Vec<String>) {
    match (new, old) {
        _ if new == old => {}
        (Value::Object(new), Value::Object(old)) => {
            let keys: std::collections::BTreeSet<&Key> = new.keys().chain(old.keys()).collect();
            for key in keys {
                let path = format!("{path}.{key}");
                differences(&path, new.get(key).unwrap_or(&NOTHING), old.get(key).unwrap_or(&NOTHING), lines);
            }
        }
        (Value::Array(new), Value::Array(old)) if new.len() == old.len() => {
            for (index, (new, old)) in new.iter().zip(old).enumerate() {
                differences(&format!("{path}[{index}]"), new, old, lines);
            }
        }
        _ => lines.push(format!("  {path}: {old} -> {new}")),
    }
}
