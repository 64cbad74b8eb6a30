//! Validation of regular, init and ephemeral containers: names, images, ports, and fields that are not allowed.

use super::cursor::Cursor;
use super::{env, handlers, mounts, resources, security};
use crate::Value;
use crate::field::Errors;
use crate::name;
use std::collections::{BTreeMap, BTreeSet};

/// Properties of the pod that the validation of its containers needs.
pub(super) struct PodContext<'a> {
    /// Valid volumes by name.
    pub volumes: BTreeMap<&'a str, &'a Value>,
    /// Names of the pod's `resourceClaims`.
    pub claims: BTreeSet<&'a str>,
    pub grace: Option<i64>,
    pub restart_policy: &'a str,
    pub host_users: bool,
}

/// Validates all containers of a pod spec.
pub(super) fn validate(spec: &Cursor, context: &PodContext, errors: &mut Errors) {
    let regular = spec.child("containers");
    let init = spec.child("initContainers");
    validate_regular(&regular, context, errors);
    validate_init(&init, &regular, context, errors);
    validate_ephemeral(&spec.child("ephemeralContainers"), &[&regular, &init], context, errors);
}

/// Validates images in pods. Templates are not checked, so that old templates stay valid.
pub(super) fn validate_images_of_pod(containers: &Cursor, errors: &mut Errors) {
    for container in containers.items() {
        validate_image_of_pod(&container, errors);
    }
}

pub(super) fn validate_image_of_pod(container: &Cursor, errors: &mut Errors) {
    let image = container.child("image");
    if image.text().trim() != image.text() {
        image.invalid("must not have leading or trailing whitespace", errors);
    }
}

fn validate_regular(containers: &Cursor, context: &PodContext, errors: &mut Errors) {
    if containers.list().is_empty() {
        return containers.required("", errors);
    }
    let (mut names, mut ports) = (BTreeSet::new(), BTreeSet::new());
    for container in containers.items() {
        validate_common(&container, context, errors);
        validate_restart_policy(&container, errors);
        let name = container.child("name");
        if !names.insert(name.text()) {
            name.duplicate(name.text(), errors);
        }
        handlers::validate(&container, context.grace, errors);
        validate_host_ports(&container, &mut ports, errors);
    }
}

fn validate_init(containers: &Cursor, regular: &Cursor, context: &PodContext, errors: &mut Errors) {
    let mut names: BTreeSet<&str> = regular.items().map(|container| container.child("name").text()).collect();
    for container in containers.items() {
        validate_common(&container, context, errors);
        validate_restart_policy(&container, errors);
        let sidecar = container.child("restartPolicy").text() == "Always";
        let name = container.child("name");
        if !name.text().is_empty() && !names.insert(name.text()) {
            name.duplicate(name.text(), errors);
        }
        validate_host_ports(&container, &mut BTreeSet::new(), errors);
        if sidecar {
            handlers::validate(&container, context.grace, errors);
        } else {
            for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
                if container.child(field).present() {
                    container
                        .child(field)
                        .forbidden("may not be set for init containers without restartPolicy=Always", errors);
                }
            }
            let resize = container.child("resizePolicy");
            if !resize.list().is_empty() {
                resize.invalid("must not be set for init containers", errors);
            }
        }
    }
}

/// Validates ephemeral containers (for debugging), which may not have ports, probes and other parts of a workload.
fn validate_ephemeral(containers: &Cursor, others: &[&Cursor], context: &PodContext, errors: &mut Errors) {
    const DENIED: &str = "cannot be set for an Ephemeral Container";
    let targets: BTreeSet<&str> =
        others.iter().flat_map(|list| list.list()).filter_map(|c| c.get("name")?.as_str()).collect();
    let mut names = targets.clone();
    for container in containers.items() {
        validate_common(&container, context, errors);
        validate_image_of_pod(&container, errors);
        let (name, target) = (container.child("name"), container.child("targetContainerName"));
        if !names.insert(name.text()) {
            name.duplicate(name.text(), errors);
        }
        if !target.text().is_empty() && !targets.contains(target.text()) {
            target.not_found("", errors);
        }
        let workload = [
            "ports",
            "resources",
            "livenessProbe",
            "readinessProbe",
            "startupProbe",
            "lifecycle",
            "resizePolicy",
            "restartPolicy",
        ];
        for field in workload {
            if !container.child(field).is_empty() {
                container.child(field).forbidden(DENIED, errors);
            }
        }
        for mount in container.child("volumeMounts").items() {
            for field in ["subPath", "subPathExpr"] {
                if !mount.child(field).is_empty() {
                    mount.child(field).forbidden(DENIED, errors);
                }
            }
        }
    }
}

fn validate_common(container: &Cursor, context: &PodContext, errors: &mut Errors) {
    container.child("name").required_name(name::label, errors);
    container.required_members(&["image"], errors);
    container.child("terminationMessagePolicy").required_one_of(&["File", "FallbackToLogsOnError"], errors);
    validate_ports(&container.child("ports"), errors);
    env::validate(&container.child("env"), errors);
    env::validate_from(&container.child("envFrom"), errors);
    mounts::validate(container, &context.volumes, errors);
    validate_pull_policy(&container.child("imagePullPolicy"), errors);
    resources::validate(&container.child("resources"), &context.claims, errors);
    validate_resize_policy(&container.child("resizePolicy"), context.restart_policy, errors);
    security::validate_container(&container.child("securityContext"), context.host_users, errors);
}

pub(super) fn validate_pull_policy(policy: &Cursor, errors: &mut Errors) {
    policy.required_one_of(&["Always", "IfNotPresent", "Never"], errors);
}

fn validate_ports(ports: &Cursor, errors: &mut Errors) {
    let mut names = BTreeSet::new();
    for port in ports.items() {
        let (name, inner, outer) = (port.child("name"), port.child("containerPort"), port.child("hostPort"));
        let wrong = if name.text().is_empty() { Vec::new() } else { name::port_name(name.text()) };
        if wrong.is_empty() && !name.text().is_empty() && !names.insert(name.text()) {
            name.duplicate(name.text(), errors);
        }
        name.check(wrong, errors);
        if inner.int() == 0 {
            inner.required("", errors);
        } else {
            inner.between(1, 65_535, errors);
        }
        if outer.int() != 0 {
            outer.between(1, 65_535, errors);
        }
        port.child("protocol").required_one_of(&["SCTP", "TCP", "UDP"], errors);
    }
}

/// Checks that no two ports use the same host port. `taken` are the ports of containers that run at the same time.
fn validate_host_ports(container: &Cursor, taken: &mut BTreeSet<String>, errors: &mut Errors) {
    for port in container.child("ports").items() {
        let host_port = port.child("hostPort");
        if host_port.int() == 0 {
            continue;
        }
        let place = format!("{}/{}/{}", port.child("protocol").text(), port.child("hostIP").text(), host_port.int());
        if !taken.insert(place.clone()) {
            host_port.duplicate(place, errors);
        }
    }
}

fn validate_resize_policy(policies: &Cursor, restart_policy: &str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for policy in policies.items() {
        let (resource, restart) = (policy.child("resourceName").text(), policy.child("restartPolicy").text());
        if !seen.insert(resource) {
            policy.duplicate(resource, errors);
        }
        for (text, supported) in [(resource, ["cpu", "memory"]), (restart, ["NotRequired", "RestartContainer"])] {
            if text.is_empty() {
                policies.required("", errors);
            } else if !supported.contains(&text) {
                errors.not_supported(&policies.path(), text, &supported);
            }
        }
        if restart_policy == "Never" && restart != "NotRequired" {
            policies.invalid_as(restart, "must be 'NotRequired' when `restartPolicy` is 'Never'", errors);
        }
    }
}

/// Validates a container's own restart policy, and exit code rules, which need one.
fn validate_restart_policy(container: &Cursor, errors: &mut Errors) {
    let (policy, rules) = (container.child("restartPolicy"), container.child("restartPolicyRules"));
    policy.one_of(&["Always", "Never", "OnFailure"], errors);
    if !policy.present() && !rules.list().is_empty() {
        policy.required("must specify restartPolicy when restart rules are used", errors);
    }
    if rules.list().len() > 20 {
        errors.too_many(&rules.path(), rules.list().len(), 20);
    }
    for rule in rules.items() {
        rule.child("action").required_one_of(&["Restart", "RestartAllContainers"], errors);
        let codes = rule.child("exitCodes");
        if !codes.present() {
            codes.required("must be specified", errors);
            continue;
        }
        codes.child("operator").required_one_of(&["In", "NotIn"], errors);
        let values = codes.child("values");
        if values.list().len() > 255 {
            errors.too_many(&values.path(), values.list().len(), 255);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Path;
    use crate::json;

    fn errors_of(spec: Value) -> Vec<String> {
        let mut spec = spec;
        super::super::defaults::default_spec(&mut spec);
        let context = PodContext {
            volumes: BTreeMap::new(),
            claims: BTreeSet::new(),
            grace: Some(30),
            restart_policy: "Always",
            host_users: true,
        };
        let (path, mut errors) = (Path::new("spec"), Errors::default());
        validate(&Cursor::new(&spec, &path), &context, &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }
    /// Returns a spec with one container that has these members besides name and image.
    fn one(members: Value) -> Value {
        let mut container = json!({"name": "a", "image": "x"});
        for (key, value) in members.as_object().into_iter().flatten() {
            container[key] = value.clone();
        }
        json!({"containers": [container]})
    }

    #[test]
    fn invalid_containers_are_refused_with_upstreams_messages() {
        let plain = json!({"name": "a", "image": "x"});
        let cases = [
            (json!({}), vec!["spec.containers: Required value"]),
            (
                json!({"containers": [{}]}),
                vec!["spec.containers[0].name: Required value", "spec.containers[0].image: Required value"],
            ),
            (json!({"containers": [plain, plain]}), vec!["spec.containers[1].name: Duplicate value: \"a\""]),
            (
                json!({"containers": [plain], "initContainers": [plain]}),
                vec!["spec.initContainers[0].name: Duplicate value: \"a\""],
            ),
            (
                one(json!({"imagePullPolicy": "Sometimes"})),
                vec![
                    "spec.containers[0].imagePullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
                ],
            ),
            (
                one(json!({"terminationMessagePolicy": "x"})),
                vec![
                    "spec.containers[0].terminationMessagePolicy: Unsupported value: \"x\": supported values: \"File\", \"FallbackToLogsOnError\"",
                ],
            ),
            (one(json!({"ports": [{}]})), vec!["spec.containers[0].ports[0].containerPort: Required value"]),
            (
                one(json!({"ports": [{"containerPort": 70000}]})),
                vec![
                    "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
                ],
            ),
            (
                one(json!({"ports": [{"containerPort": 1, "protocol": "ICMP"}]})),
                vec![
                    "spec.containers[0].ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
                ],
            ),
            (
                one(json!({"ports": [{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]})),
                vec!["spec.containers[0].ports[1].name: Duplicate value: \"a\""],
            ),
            (
                one(json!({"ports": [{"containerPort": 1, "hostPort": 9}, {"containerPort": 2, "hostPort": 9}]})),
                vec!["spec.containers[0].ports[1].hostPort: Duplicate value: \"TCP//9\""],
            ),
            (
                one(json!({"restartPolicyRules": [{"action": "Restart"}]})),
                vec![
                    "spec.containers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used",
                    "spec.containers[0].restartPolicyRules[0].exitCodes: Required value: must be specified",
                ],
            ),
            (
                one(json!({"resizePolicy": [{"resourceName": "disk", "restartPolicy": "NotRequired"}]})),
                vec![
                    "spec.containers[0].resizePolicy: Unsupported value: \"disk\": supported values: \"cpu\", \"memory\"",
                ],
            ),
        ];
        for (spec, want) in cases {
            assert_eq!(errors_of(spec.clone()), want, "{spec}");
        }
    }

    #[test]
    fn names_must_be_labels() {
        let errors = errors_of(json!({"containers": [{"name": "A_b", "image": "x"}]}));
        assert!(
            errors[0].starts_with("spec.containers[0].name: Invalid value: \"A_b\": a lowercase RFC 1123 label"),
            "{errors:?}"
        );
    }

    #[test]
    fn among_init_containers_only_sidecars_may_have_probes() {
        let probe = json!({"tcpSocket": {"port": 1}});
        let spec = json!({"containers": [{"name": "a", "image": "x"}], "initContainers": [
            {"name": "i", "image": "x", "readinessProbe": probe},
            {"name": "s", "image": "x", "readinessProbe": probe, "restartPolicy": "Always"},
        ]});
        assert_eq!(
            errors_of(spec),
            [
                "spec.initContainers[0].readinessProbe: Forbidden: may not be set for init containers without restartPolicy=Always"
            ]
        );
    }

    #[test]
    fn ephemeral_containers_may_not_have_workload_fields() {
        let spec = json!({"containers": [{"name": "a", "image": "x"}], "ephemeralContainers": [
            {"name": "a", "image": "x", "targetContainerName": "nope", "ports": [{"containerPort": 1}]},
        ]});
        assert_eq!(
            errors_of(spec),
            [
                "spec.ephemeralContainers[0].name: Duplicate value: \"a\"",
                "spec.ephemeralContainers[0].targetContainerName: Not found: \"nope\"",
                "spec.ephemeralContainers[0].ports: Forbidden: cannot be set for an Ephemeral Container",
            ]
        );
    }
}
