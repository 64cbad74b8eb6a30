//! Warnings about pod specs that are valid but probably not intended.

use super::NOTHING;
use super::annotations::APP_ARMOR_PREFIX;
use super::cursor::Cursor;
use super::security::CONTAINER_LISTS;
use crate::Value;
use crate::field::Path;
use crate::name;
use crate::quantity::Quantity;
use std::collections::BTreeSet;

const NODE_LABELS: &[(&str, &str)] = &[
    ("beta.kubernetes.io/arch", "deprecated since v1.14; use \"kubernetes.io/arch\" instead"),
    ("beta.kubernetes.io/os", "deprecated since v1.14; use \"kubernetes.io/os\" instead"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "deprecated since v1.17; use \"topology.kubernetes.io/region\" instead",
    ),
    ("failure-domain.beta.kubernetes.io/zone", "deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"),
    ("beta.kubernetes.io/instance-type", "deprecated since v1.17; use \"node.kubernetes.io/instance-type\" instead"),
    ("app.kubernetes.io/created-by", "deprecated since v1.9"),
    ("scheduler.alpha.kubernetes.io/preferAvoidPods", "deprecated since v1.22; use Taints and Tolerations instead"),
    ("node-role.kubernetes.io/master", "use \"node-role.kubernetes.io/control-plane\" instead"),
];
const ANNOTATIONS: &[(&str, &str)] = &[
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    ("security.alpha.kubernetes.io/sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
    ("security.alpha.kubernetes.io/unsafe-sysctls", "non-functional in v1.11+; use the \"sysctls\" field instead"),
];
const VOLUMES: &[(&str, &str)] = &[
    ("photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "deprecated in v1.28, non-functional in v1.31+"),
];
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const NULL_SELECTOR: &str = "a null labelSelector results in matching no pod";

/// Returns warnings about a pod.
pub fn pod_warnings(pod: &Value) -> Vec<String> {
    let path = Path::default();
    warnings(&Cursor::new(pod, &path), false)
}

/// Returns warnings about a pod template at `path`.
pub fn template_warnings(template: &Value, path: &Path) -> Vec<String> {
    warnings(&Cursor::new(template, path), true)
}

type Warnings<'a> = &'a mut Vec<String>;

fn warnings(root: &Cursor, in_template: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    let (spec, metadata) = (root.child("spec"), root.child("metadata"));
    let annotations = metadata.child("annotations");
    warn_about_placement(&spec, &mut warnings);
    for (key, why) in ANNOTATIONS {
        if annotations.entry(key).present() {
            add(&annotations.entry(key), why, &mut warnings);
        }
    }
    warn_about_volumes(&spec.child("volumes"), &mut warnings);
    warn_about_repeats(&spec.child("hostAliases"), "ip", &mut warnings);
    warn_about_repeats(&spec.child("imagePullSecrets"), "name", &mut warnings);
    for secret in spec.child("imagePullSecrets").items() {
        if secret.child("name").is_empty() {
            add(&secret.child("name"), "invalid empty name \"\"", &mut warnings);
        }
    }
    warn_about_fractions(&spec.child("overhead"), &["memory", "ephemeral-storage"], &mut warnings);
    warn_about_seccomp(&annotations, "seccomp.security.alpha.kubernetes.io/pod", &spec, &mut warnings);
    let pod_armor = spec.child("securityContext").child("appArmorProfile").present();
    for list in CONTAINER_LISTS {
        for container in spec.child(list).items() {
            warn_about_container(&container, &annotations, &mut warnings);
            if in_template && !pod_armor {
                warn_about_app_armor(&container, &annotations, &mut warnings);
            }
        }
    }
    warn_about_ports(&spec, &mut warnings);
    let grace = spec.child("terminationGracePeriodSeconds");
    if grace.int() < 0 {
        add(&grace, "must be >= 0; negative values are invalid and will be treated as 1", &mut warnings);
    }
    warn_about_selectors(&spec.child("affinity"), &mut warnings);
    warnings
}

fn add(at: &Cursor, what: &str, warnings: Warnings) {
    warnings.push(format!("{}: {what}", at.path()));
}

fn node_label(key: &str) -> Option<&'static str> {
    NODE_LABELS.iter().find(|(label, _)| *label == key).map(|(_, why)| *why)
}

fn warn_about_placement(spec: &Cursor, warnings: Warnings) {
    for (key, entry) in spec.child("nodeSelector").entries() {
        if let Some(why) = node_label(key) {
            add(&entry, why, warnings);
        }
    }
    let affinity = spec.child("affinity");
    let nodes = affinity.child("nodeAffinity");
    let required = nodes.child(REQUIRED);
    for term in required.child("nodeSelectorTerms").items() {
        warn_about_term(&term, false, warnings);
    }
    for term in nodes.child(PREFERRED).items() {
        warn_about_term(&term.child("preference"), true, warnings);
    }
    for constraint in spec.child("topologySpreadConstraints").items() {
        let key = constraint.child("topologyKey");
        if let Some(why) = node_label(key.text()) {
            add(&key, &format!("{} is {why}", key.text()), warnings);
        }
        if !constraint.child("labelSelector").present() {
            add(&constraint.child("labelSelector"), NULL_SELECTOR, warnings);
        }
    }
}

fn warn_about_term(term: &Cursor, check_values: bool, warnings: Warnings) {
    for expression in term.child("matchExpressions").items() {
        let key = expression.child("key");
        if let Some(why) = node_label(key.text()) {
            add(&key, &format!("{} is {why}", key.text()), warnings);
        }
        if check_values {
            for value in expression.child("values").items() {
                for why in name::label_value(value.text()) {
                    add(&value, &format!("{} is invalid, {why}", value.text()), warnings);
                }
            }
        }
    }
}

fn warn_about_volumes(volumes: &Cursor, warnings: Warnings) {
    for volume in volumes.items() {
        for (kind, why) in VOLUMES {
            if volume.child(kind).present() {
                add(&volume.child(kind), why, warnings);
            }
        }
        let template = volume.child("ephemeral");
        let template = template.child("volumeClaimTemplate");
        let spec = template.child("spec");
        let resources = spec.child("resources");
        for list in ["limits", "requests"] {
            warn_about_fractions(&resources.child(list), &["storage"], warnings);
        }
    }
}

fn warn_about_fractions(amounts: &Cursor, names: &[&str], warnings: Warnings) {
    for name in names {
        let amount = amounts.entry(name);
        if let Some(exact) = Quantity::of(amount.value()).filter(|exact| !exact.is_whole()) {
            add(&amount, &format!("fractional byte value \"{exact}\" is invalid, must be an integer"), warnings);
        }
    }
}

fn warn_about_repeats(list: &Cursor, field: &str, warnings: Warnings) {
    let mut seen = BTreeSet::new();
    for element in list.items() {
        let text = element.child(field).text();
        if !seen.insert(text) {
            add(&element.child(field), &format!("duplicate {field} {text:?}"), warnings);
        }
    }
}

fn warn_about_seccomp(annotations: &Cursor, key: &str, holder: &Cursor, warnings: Warnings) {
    let in_field = holder.child("securityContext").child("seccompProfile").present();
    if annotations.entry(key).present() && !in_field {
        add(&annotations.entry(key), "non-functional in v1.27+; use the \"seccompProfile\" field instead", warnings);
    }
}

fn warn_about_app_armor(container: &Cursor, annotations: &Cursor, warnings: Warnings) {
    let key = format!("{APP_ARMOR_PREFIX}{}", container.child("name").text());
    let in_field = container.child("securityContext").child("appArmorProfile").present();
    if annotations.entry(&key).present() && !in_field {
        add(&annotations.entry(&key), "deprecated since v1.30; use the \"appArmorProfile\" field instead", warnings);
    }
}

fn warn_about_container(container: &Cursor, annotations: &Cursor, warnings: Warnings) {
    let key = format!("container.seccomp.security.alpha.kubernetes.io/{}", container.child("name").text());
    warn_about_seccomp(annotations, &key, container, warnings);
    let resources = container.child("resources");
    for name in ["memory", "ephemeral-storage"] {
        for list in ["limits", "requests"] {
            warn_about_fractions(&resources.child(list), &[name], warnings);
        }
    }
    let mut seen = BTreeSet::new();
    for variable in container.child("env").items() {
        let (name, value) = (variable.child("name").text(), variable.child("value").text());
        // Extending the earlier value is intended: PATH="$(PATH):/more".
        let own = format!("$({name})");
        let builds_on = !variable.child("valueFrom").present() && value != own && value.contains(&own);
        if !seen.insert(name) && !builds_on {
            let why = format!("hides previous definition of {name:?}, which may be dropped when using apply");
            add(&variable, &why, warnings);
        }
    }
}

fn warn_about_ports(spec: &Cursor, warnings: Warnings) {
    struct Port {
        key: (i64, String),
        ip: String,
        host: i64,
        path: String,
    }
    let mut earlier: Vec<Port> = Vec::new();
    for list in CONTAINER_LISTS {
        for container in spec.child(list).items() {
            for port in container.child("ports").items() {
                let path = port.path().to_string();
                let (ip, host) = (port.child("hostIP").text().to_owned(), port.child("hostPort").int());
                if !ip.is_empty() && host == 0 {
                    warnings.push(format!("{path}: hostIP set without hostPort: {}", port.value()));
                }
                let key = (port.child("containerPort").int(), port.child("protocol").text().to_owned());
                for other in earlier.iter().filter(|other| other.key == key) {
                    let kind = if ip == other.ip && host == other.host {
                        "duplicate"
                    } else if host == 0 || other.host == 0 {
                        "overlapping"
                    } else if host == other.host && ip.is_empty() != other.ip.is_empty() {
                        "dangerously ambiguous"
                    } else {
                        continue;
                    };
                    warnings.push(format!("{path}: {kind} port definition with {}", other.path));
                }
                earlier.push(Port { key, ip, host, path });
            }
        }
    }
}

fn warn_about_selectors(affinity: &Cursor, warnings: Warnings) {
    for kind in ["podAffinity", "podAntiAffinity"] {
        let pods = affinity.child(kind);
        for term in pods.child(REQUIRED).items() {
            if !term.child("labelSelector").present() {
                add(&term.child("labelSelector"), NULL_SELECTOR, warnings);
            }
        }
        for weighted in pods.child(PREFERRED).items() {
            let term = weighted.child("podAffinityTerm");
            if !term.child("labelSelector").present() {
                add(&term.child("labelSelector"), NULL_SELECTOR, warnings);
            }
        }
    }
}

/// Returns warnings about a claim's storage request, with paths under `path`.
pub fn claim_warnings(claim_spec: Option<&Value>, path: &Path) -> Vec<String> {
    let mut warnings = Vec::new();
    let spec = Cursor::new(claim_spec.unwrap_or(&NOTHING), path);
    let resources = spec.child("resources");
    for list in ["limits", "requests"] {
        warn_about_fractions(&resources.child(list), &["storage"], &mut warnings);
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    #[test]
    fn each_warning_has_upstreams_message() {
        let spec = |spec: Value| json!({"spec": spec});
        let one = |container: Value| json!({"spec": {"containers": [container]}});
        let cases = [
            (
                spec(json!({"nodeSelector": {"beta.kubernetes.io/os": "linux"}})),
                "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
            ),
            (
                spec(json!({"topologySpreadConstraints": [{"topologyKey": "zone"}]})),
                "spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod",
            ),
            (
                json!({"metadata": {"annotations": {"scheduler.alpha.kubernetes.io/critical-pod": ""}}}),
                "metadata.annotations[scheduler.alpha.kubernetes.io/critical-pod]: non-functional in v1.16+; use the \"priorityClassName\" field instead",
            ),
            (
                spec(json!({"volumes": [{"name": "a", "rbd": {}}]})),
                "spec.volumes[0].rbd: deprecated in v1.28, non-functional in v1.31+",
            ),
            (
                spec(json!({"hostAliases": [{"ip": "::1"}, {"ip": "::1"}]})),
                "spec.hostAliases[1].ip: duplicate ip \"::1\"",
            ),
            (
                spec(json!({"imagePullSecrets": [{"name": ""}]})),
                "spec.imagePullSecrets[0].name: invalid empty name \"\"",
            ),
            (
                one(json!({"resources": {"requests": {"memory": "1500m"}}})),
                "spec.containers[0].resources.requests[memory]: fractional byte value \"1500m\" is invalid, must be an integer",
            ),
            (
                one(json!({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]})),
                "spec.containers[0].env[1]: hides previous definition of \"A\", which may be dropped when using apply",
            ),
            (
                one(
                    json!({"ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "TCP"}]}),
                ),
                "spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]",
            ),
            (
                one(json!({"ports": [{"containerPort": 80, "hostPort": 80}, {"containerPort": 80}]})),
                "spec.containers[0].ports[1]: overlapping port definition with spec.containers[0].ports[0]",
            ),
            (
                spec(json!({"terminationGracePeriodSeconds": -1})),
                "spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1",
            ),
            (
                spec(json!({"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": "z"}]}}})),
                "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].labelSelector: a null labelSelector results in matching no pod",
            ),
        ];
        for (pod, want) in cases {
            assert_eq!(pod_warnings(&pod), [want], "{pod}");
        }
        let builds_on = one(json!({"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}]}));
        assert_eq!(pod_warnings(&builds_on), Vec::<String>::new());
    }

    #[test]
    fn warnings_about_templates_have_the_templates_path() {
        let template = json!({"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/a": "unconfined"}},
            "spec": {"containers": [{"name": "a"}]}});
        assert_eq!(
            template_warnings(&template, &Path::new("spec.template")),
            [
                "spec.template.metadata.annotations[container.apparmor.security.beta.kubernetes.io/a]: deprecated since v1.30; use the \"appArmorProfile\" field instead"
            ]
        );
    }
}
