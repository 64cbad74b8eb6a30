//! Defaults of pods and pod templates.

use super::resources;
use crate::access::Access;
use crate::kinds::volumes::default_claim_spec;
use crate::{Value, json};

const FILE_MODE: i64 = 0o644;

/// Applies the defaults of a pod: those of its spec, and those that apply only to pods, not to templates.
pub fn default_pod(pod: &mut Value) {
    let spec = pod.entry(&["spec"]);
    default_spec(spec);
    for list in ["containers", "initContainers"] {
        for container in elements(spec, list) {
            requests_from_limits(container);
        }
    }
    resources::default_pod_level(spec);
    if !spec.has(&["enableServiceLinks"]) {
        spec.put(&["enableServiceLinks"], true);
    }
    if spec.flag(&["hostNetwork"]) {
        for list in ["containers", "initContainers"] {
            elements(spec, list).for_each(host_ports);
        }
    }
    pod_ips(pod);
}

/// Applies the defaults of a pod spec, in a pod or a template.
pub fn default_spec(spec: &mut Value) {
    spec.default_to(&["dnsPolicy"], "ClusterFirst");
    spec.default_to(&["restartPolicy"], "Always");
    spec.default_to(&["schedulerName"], "default-scheduler");
    if !spec.has(&["securityContext"]) {
        spec.put(&["securityContext"], json!({}));
    }
    if !spec.has(&["terminationGracePeriodSeconds"]) {
        spec.put(&["terminationGracePeriodSeconds"], 30);
    }
    service_account(spec);
    elements(spec, "volumes").for_each(volume);
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        elements(spec, list).for_each(container);
    }
    for lists in [&["overhead"][..], &["resources", "limits"], &["resources", "requests"]] {
        resources::round_up(spec, lists);
    }
}

/// The objects in a list. Other values are left for validation.
fn elements<'a>(object: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    object.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten().filter(|element| element.is_object())
}

/// Returns the member if it is an object.
fn object<'a>(parent: &'a mut Value, name: &str) -> Option<&'a mut Value> {
    parent.get_mut(name).filter(|member| member.is_object())
}

/// `serviceAccount` is the deprecated name of `serviceAccountName`. Both always have the same value.
fn service_account(spec: &mut Value) {
    let newer = spec.text(&["serviceAccountName"]);
    let name = if newer.is_empty() { spec.text(&["serviceAccount"]) } else { newer }.to_owned();
    if !name.is_empty() {
        spec.put(&["serviceAccountName"], name.as_str());
        spec.put(&["serviceAccount"], name);
    }
}

fn container(container: &mut Value) {
    let policy = pull_policy(container.text(&["image"]));
    container.default_to(&["imagePullPolicy"], policy);
    container.default_to(&["terminationMessagePath"], "/dev/termination-log");
    container.default_to(&["terminationMessagePolicy"], "File");
    // Always serialized, even if empty.
    if !container.has(&["resources"]) {
        container.put(&["resources"], json!({}));
    }
    for port in elements(container, "ports") {
        port.default_to(&["protocol"], "TCP");
    }
    for variable in elements(container, "env") {
        if let Some(source) = object(variable, "valueFrom") {
            value_source(source);
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = object(container, name) {
            default_probe(probe);
        }
    }
    if let Some(lifecycle) = object(container, "lifecycle") {
        for hook in ["postStart", "preStop"] {
            if let Some(handler) = object(lifecycle, hook) {
                http_get(handler);
            }
        }
    }
    for list in ["limits", "requests"] {
        resources::round_up(container, &["resources", list]);
    }
}

/// Returns `Always` for the tag `:latest` (or without tag and digest), else `IfNotPresent`.
fn pull_policy(image: &str) -> &'static str {
    let (name, digest) = image.split_once('@').map_or((image, ""), |(name, digest)| (name, digest));
    let last = name.rsplit('/').next().unwrap_or(name);
    let tag = last.split_once(':').map_or("", |(_, tag)| tag);
    let latest = tag == "latest" || (tag.is_empty() && digest.is_empty() && !image.is_empty());
    if latest { "Always" } else { "IfNotPresent" }
}

fn value_source(source: &mut Value) {
    if let Some(field) = object(source, "fieldRef") {
        field.default_to(&["apiVersion"], "v1");
    }
    if let Some(field) = object(source, "resourceFieldRef") {
        field.default_to(&["divisor"], "0");
    }
}

fn default_probe(probe: &mut Value) {
    for (field, value) in
        [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
    {
        if probe.int(&[field]).unwrap_or(0) == 0 {
            probe.put(&[field], value);
        }
    }
    http_get(probe);
    if let Some(grpc) = object(probe, "grpc") {
        grpc.default_to(&["service"], "");
    }
}

fn http_get(handler: &mut Value) {
    if let Some(get) = object(handler, "httpGet") {
        get.default_to(&["path"], "/");
        get.default_to(&["scheme"], "HTTP");
    }
}

fn requests_from_limits(container: &mut Value) {
    let limits = container.members(&["resources", "limits"]).clone();
    for (name, limit) in limits {
        if !container.has(&["resources", "requests", &name]) {
            container.put(&["resources", "requests", &name], limit);
        }
    }
}

fn host_ports(container: &mut Value) {
    for port in elements(container, "ports") {
        if port.int(&["hostPort"]).unwrap_or(0) == 0
            && let Some(number) = port.int(&["containerPort"])
        {
            port.put(&["hostPort"], number);
        }
    }
}

/// `podIP` is always the first of `podIPs`. If they differ, `podIP` takes precedence.
fn pod_ips(pod: &mut Value) {
    let single = pod.text(&["status", "podIP"]).to_owned();
    let first = pod.items(&["status", "podIPs"]).first().map(|ip| ip.text(&["ip"]).to_owned()).unwrap_or_default();
    if single.is_empty() && !first.is_empty() {
        pod.put(&["status", "podIP"], first);
    } else if single != first {
        pod.put(&["status", "podIPs"], json!([{"ip": single}]));
    }
}

fn volume(volume: &mut Value) {
    let sourceless =
        volume.as_object().is_some_and(|members| members.iter().all(|(name, value)| name == "name" || value.is_null()));
    if sourceless {
        volume.put(&["emptyDir"], json!({}));
    }
    for name in ["secret", "configMap", "downwardAPI", "projected"] {
        if let Some(source) = object(volume, name) {
            if !source.has(&["defaultMode"]) {
                source.put(&["defaultMode"], FILE_MODE);
            }
            elements(source, "items").for_each(value_source);
            elements(source, "sources").for_each(projection);
        }
    }
    if let Some(source) = object(volume, "hostPath") {
        source.default_to(&["type"], "");
    }
    if let Some(source) = object(volume, "image") {
        let policy = pull_policy(source.text(&["reference"]));
        source.default_to(&["pullPolicy"], policy);
    }
    if let Some(template) = object(volume, "ephemeral").and_then(|source| object(source, "volumeClaimTemplate")) {
        default_claim_spec(template.entry(&["spec"]));
    }
    older_sources(volume);
}

fn projection(source: &mut Value) {
    if let Some(token) = object(source, "serviceAccountToken")
        && !token.has(&["expirationSeconds"])
    {
        token.put(&["expirationSeconds"], 3600);
    }
    if let Some(downward) = object(source, "downwardAPI") {
        elements(downward, "items").for_each(value_source);
    }
}

/// Defaults of volume sources from before CSI.
fn older_sources(volume: &mut Value) {
    let texts: &[(&str, &[(&str, &str)])] = &[
        ("iscsi", &[("iscsiInterface", "default")]),
        ("rbd", &[("pool", "rbd"), ("user", "admin"), ("keyring", "/etc/ceph/keyring")]),
        ("azureDisk", &[("cachingMode", "ReadWrite"), ("kind", "Shared"), ("fsType", "ext4")]),
        ("scaleIO", &[("storageMode", "ThinProvisioned"), ("fsType", "xfs")]),
    ];
    for (name, fields) in texts {
        if let Some(source) = object(volume, name) {
            for (field, value) in *fields {
                source.default_to(&[field], *value);
            }
        }
    }
    if let Some(disk) = object(volume, "azureDisk")
        && !disk.has(&["readOnly"])
    {
        disk.put(&["readOnly"], false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaulted(mut pod: Value) -> Value {
        default_pod(&mut pod);
        pod
    }

    #[test]
    fn a_minimal_pod_gets_all_defaults() {
        let pod = defaulted(json!({"spec": {"containers": [{"name": "a", "image": "nginx"}]}}));
        assert_eq!(
            pod,
            json!({"spec": {
                "containers": [{
                    "name": "a", "image": "nginx", "imagePullPolicy": "Always", "resources": {},
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                }],
                "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "restartPolicy": "Always",
                "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30,
            }})
        );
    }

    #[test]
    fn pull_policy_follows_the_tag() {
        let cases = [
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("nginx:1.25", "IfNotPresent"),
            ("reg:5000/nginx", "Always"),
            ("reg:5000/nginx:1", "IfNotPresent"),
            ("nginx@sha256:0123", "IfNotPresent"),
            ("", "IfNotPresent"),
        ];
        for (image, want) in cases {
            assert_eq!(pull_policy(image), want, "{image}");
        }
    }

    /// Returns a container with these members, defaulted in a pod with these spec members.
    fn container_of(spec: Value, members: Value) -> Value {
        let mut pod = json!({"spec": spec});
        pod.put(&["spec", "containers"], json!([members]));
        defaulted(pod)["spec"]["containers"][0].clone()
    }

    #[test]
    fn container_fields_get_defaults() {
        let c = container_of(
            json!({"hostNetwork": true}),
            json!({
                "name": "a", "image": "x:1", "ports": [{"containerPort": 80}],
                "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "livenessProbe": {"httpGet": {"port": 80}}, "readinessProbe": {"grpc": {"port": 1}, "periodSeconds": 5},
                "lifecycle": {"preStop": {"httpGet": {"port": 80}}},
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}},
            }),
        );
        assert_eq!(c["ports"][0], json!({"containerPort": 80, "protocol": "TCP", "hostPort": 80}));
        assert_eq!(c["env"][0]["valueFrom"]["fieldRef"]["apiVersion"], "v1");
        assert_eq!(
            c["livenessProbe"],
            json!({"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10,
                   "successThreshold": 1, "failureThreshold": 3})
        );
        assert_eq!(c["readinessProbe"]["grpc"], json!({"port": 1, "service": ""}));
        assert_eq!(c["readinessProbe"]["periodSeconds"], 5);
        assert_eq!(c["lifecycle"]["preStop"]["httpGet"]["path"], "/");
        assert_eq!(c["resources"]["requests"], json!({"cpu": "500m", "memory": "1Gi"}));
    }

    #[test]
    fn volume_sources_get_defaults() {
        let pod = defaulted(json!({"spec": {"volumes": [
            {"name": "a"},
            {"name": "b", "secret": {"secretName": "s"}},
            {"name": "c", "hostPath": {"path": "/x"}},
            {"name": "d", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
            {"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}},
            {"name": "f", "rbd": {"monitors": ["m"], "image": "i"}},
            {"name": "g", "downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        ]}}));
        let volumes = &pod["spec"]["volumes"];
        assert_eq!(volumes[0], json!({"name": "a", "emptyDir": {}}));
        assert_eq!(volumes[1]["secret"]["defaultMode"], 420);
        assert_eq!(volumes[2]["hostPath"]["type"], "");
        assert_eq!(volumes[3]["projected"]["defaultMode"], 420);
        assert_eq!(volumes[3]["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"], 3600);
        assert_eq!(volumes[4]["ephemeral"]["volumeClaimTemplate"]["spec"]["volumeMode"], "Filesystem");
        assert_eq!(volumes[5]["rbd"]["keyring"], "/etc/ceph/keyring");
        assert_eq!(volumes[6]["downwardAPI"]["items"][0]["fieldRef"]["apiVersion"], "v1");
    }

    #[test]
    fn templates_do_not_get_pod_only_defaults() {
        let mut spec = json!({"hostNetwork": true, "serviceAccount": "robot", "containers": [
            {"name": "a", "image": "x", "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "1"}}}]});
        default_spec(&mut spec);
        assert!(!spec.has(&["enableServiceLinks"]));
        assert!(spec["containers"][0]["ports"][0].get("hostPort").is_none());
        assert!(spec["containers"][0]["resources"].get("requests").is_none());
        assert_eq!(spec["serviceAccountName"], "robot");
    }

    #[test]
    fn pod_ip_and_pod_ips_are_made_equal() {
        let cases = [
            (json!({"podIP": "10.0.0.1"}), json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]})),
            (json!({"podIPs": [{"ip": "10.0.0.2"}]}), json!({"podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}]})),
            (
                json!({"podIP": "10.0.0.3", "podIPs": [{"ip": "10.0.0.4"}]}),
                json!({"podIP": "10.0.0.3", "podIPs": [{"ip": "10.0.0.3"}]}),
            ),
        ];
        for (status, want) in cases {
            assert_eq!(defaulted(json!({"status": status}))["status"], want);
        }
    }
}
