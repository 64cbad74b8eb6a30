//! Validation of a pod's status updates.

use super::cursor::Cursor;
use super::{NOTHING, annotations, paths};
use crate::Value;
use crate::access::Access;
use crate::field::{Errors, Path};
use crate::name;
use std::collections::BTreeSet;

/// Validates a write to `/status`.
pub fn validate_status(new: &Value, old: &Value, errors: &mut Errors) {
    let (root, annotations_path, conditions) =
        (Path::new("status"), Path::new("metadata.annotations"), Path::new("metadata.conditions"));
    let annotations = Cursor::new(new.at(&["metadata", "annotations"]).unwrap_or(&NOTHING), &annotations_path);
    annotations::validate_update(&annotations, old.at(&["metadata", "annotations"]).unwrap_or(&NOTHING), errors);
    let spec = new.at(&["spec"]).unwrap_or(&NOTHING);
    annotations::validate(&annotations, spec, errors);
    let status = Cursor::new(new.at(&["status"]).unwrap_or(&NOTHING), &root);
    let old_status = old.at(&["status"]).unwrap_or(&NOTHING);
    // Upstream reports conditions under `metadata`.
    validate_conditions(&Cursor::new(status.child("conditions").value(), &conditions), errors);
    if spec.text(&["nodeName"]) != old.text(&["spec", "nodeName"]) {
        status.child("nodeName").forbidden("may not be changed directly", errors);
    }
    let nominated = status.child("nominatedNodeName");
    if nominated.text() != old_status.text(&["nominatedNodeName"]) {
        nominated.optional_name(name::subdomain, errors);
    }
    if status.child("qosClass").text() != old_status.text(&["qosClass"]) {
        status.child("qosClass").invalid("field is immutable", errors);
    }
    validate_containers(&status, old, errors);
    validate_addresses(&status, errors);
}

fn validate_conditions(conditions: &Cursor, errors: &mut Errors) {
    for condition in conditions.items() {
        let kind = condition.child("type").text();
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            for why in name::qualified(kind) {
                condition.child("Type").invalid_as(kind, why, errors);
            }
        }
    }
}

/// A container that terminated, and must not be restarted, cannot run again.
fn validate_containers(status: &Cursor, old: &Value, errors: &mut Errors) {
    let policy = old.text(&["spec", "restartPolicy"]);
    let sidecar = |name: &str| {
        let named = |container: &&Value| container.text(&["name"]) == name;
        old.items(&["spec", "initContainers"])
            .iter()
            .find(named)
            .is_some_and(|c| c.text(&["restartPolicy"]) == "Always")
    };
    let lists =
        [("containerStatuses", policy), ("initContainerStatuses", policy), ("ephemeralContainerStatuses", "Never")];
    for (list, policy) in lists {
        if policy == "Always" {
            continue;
        }
        let statuses = status.child(list);
        for (index, was) in old.items(&["status", list]).iter().enumerate() {
            let (name, code) = (was.text(&["name"]), was.int(&["state", "terminated", "exitCode"]));
            let may_restart = !was.has(&["state", "terminated"])
                || (code.unwrap_or(0) != 0 && policy == "OnFailure")
                || (list == "initContainerStatuses" && sidecar(name));
            let revived = |now: &Value| now.text(&["name"]) == name && !now.has(&["state", "terminated"]);
            if !may_restart && statuses.list().iter().any(revived) {
                let path = statuses.path().index(index).child("state");
                errors.forbidden(&path, "may not be transitioned to non-terminated state");
            }
        }
    }
}

fn validate_addresses(status: &Cursor, errors: &mut Errors) {
    let hosts = status.child("hostIPs");
    if let Some(first) = hosts.items().next() {
        let ip = first.child("ip");
        if ip.text() != status.child("hostIP").text() {
            ip.invalid("must be equal to `hostIP`", errors);
        }
    }
    for list in ["podIPs", "hostIPs"] {
        validate_family(&status.child(list), errors);
    }
}

/// Checks that there is at most one address per IP family.
fn validate_family(list: &Cursor, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for address in list.items() {
        let (ip, path) = (address.child("ip"), address.path());
        paths::ip(&Cursor::new(ip.value(), &path), errors);
        if !seen.insert(ip.text()) {
            address.duplicate(address.value().clone(), errors);
        }
    }
    let count = list.list().len();
    let newer = list.items().filter(|address| address.child("ip").text().contains(':')).count();
    if count > 1 && (count != 2 || newer != 1) {
        list.invalid("may specify no more than one IP for each IP family", errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    fn errors_of(new: Value, old: Value) -> Vec<String> {
        let mut errors = Errors::default();
        validate_status(&new, &old, &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn invalid_status_writes_are_refused_with_upstreams_messages() {
        let status = |status: Value| json!({"spec": {"restartPolicy": "Never"}, "status": status});
        let ended = json!([{"name": "a", "state": {"terminated": {"exitCode": 1}}}]);
        let running = json!([{"name": "a", "state": {"running": {}}}]);
        let cases = [
            (
                status(json!({"qosClass": "Guaranteed"})),
                status(json!({"qosClass": "BestEffort"})),
                vec!["status.qosClass: Invalid value: \"Guaranteed\": field is immutable"],
            ),
            (
                status(json!({"containerStatuses": running})),
                status(json!({"containerStatuses": ended})),
                vec!["status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"],
            ),
            (
                json!({"spec": {"restartPolicy": "OnFailure"}, "status": {"containerStatuses": running}}),
                json!({"spec": {"restartPolicy": "OnFailure"}, "status": {"containerStatuses": ended}}),
                vec![],
            ),
            (
                status(json!({"podIPs": [{"ip": "x"}]})),
                status(json!({})),
                vec![
                    "status.podIPs[0]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
                ],
            ),
            (
                status(json!({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]})),
                status(json!({})),
                vec![
                    "status.podIPs: Invalid value: [{\"ip\":\"10.0.0.1\"},{\"ip\":\"10.0.0.2\"}]: may specify no more than one IP for each IP family",
                ],
            ),
            (
                status(json!({"hostIP": "10.0.0.1", "hostIPs": [{"ip": "10.0.0.2"}]})),
                status(json!({})),
                vec!["status.hostIPs[0].ip: Invalid value: \"10.0.0.2\": must be equal to `hostIP`"],
            ),
            (status(json!({"podIPs": [{"ip": "10.0.0.1"}, {"ip": "::1"}]})), status(json!({})), vec![]),
        ];
        for (new, old, want) in cases {
            assert_eq!(errors_of(new.clone(), old), want, "{new}");
        }
    }
}
