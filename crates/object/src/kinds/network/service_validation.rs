//! Validation of Services.

use super::PROTOCOLS;
use super::check::{self, member};
use super::service::{has_cluster_ip, is_external, is_headless};
use super::service_update::needs_health_check;
use crate::access::Access;
use crate::field::{Errors, Path};
use crate::meta::{invalid_for_each, validate_labels};
use crate::name::{label, port_name, port_number};
use crate::{Value, json};
use std::collections::BTreeSet;

/// The kubelet listens on this port; a load balancer must not expose it.
const KUBELET_PORT: i64 = 10_250;
const AFFINITY_SECONDS_MAX: i64 = 86_400;

pub(super) fn validate(service: &Value, errors: &mut Errors) {
    let (spec, path) = (member(service, "spec"), Path::new("spec"));
    validate_type(service, spec, &path, errors);
    validate_ports(service, spec, &path.child("ports"), errors);
    validate_labels(member(spec, "selector"), &path.child("selector"), errors);
    validate_affinity(spec, &path, errors);
    validate_families(service, spec, &path, errors);
    for (index, ip) in spec.items(&["externalIPs"]).iter().enumerate() {
        check::ip_not_special(ip.as_str().unwrap_or(""), &path.child("externalIPs").index(index), errors);
    }
    validate_balancer(spec, &path, errors);
    validate_traffic(service, spec, &path, errors);
}

fn validate_type(service: &Value, spec: &Value, path: &Path, errors: &mut Errors) {
    let kind = spec.text(&["type"]);
    match kind {
        "LoadBalancer" => {
            for (index, _) in numbered(spec).filter(|(_, number)| *number == KUBELET_PORT) {
                let why = format!("may not expose port {KUBELET_PORT} externally since it is used by kubelet");
                errors.invalid(&path.child("ports").index(index), KUBELET_PORT, why);
            }
        }
        "ExternalName" => {
            if !spec.items(&["clusterIPs"]).is_empty() || !spec.text(&["clusterIP"]).is_empty() {
                errors.forbidden(&path.child("clusterIPs"), "may not be set for ExternalName services");
            }
            let target = spec.text(&["externalName"]);
            match target.strip_suffix('.').unwrap_or(target) {
                "" => errors.required(&path.child("externalName"), ""),
                target => check::subdomain(target, &path.child("externalName"), errors),
            }
        }
        "" => errors.required(&path.child("type"), ""),
        _ => {
            let kinds = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
            check::one_of(kind, &kinds, &path.child("type"), errors);
        }
    }
    if is_headless(service) && matches!(kind, "LoadBalancer" | "NodePort") {
        let why = format!("may not be set to 'None' for {kind} services");
        errors.invalid(&path.child("clusterIPs").index(0), "None", why);
    }
}

fn numbered(spec: &Value) -> impl Iterator<Item = (usize, i64)> + '_ {
    spec.items(&["ports"]).iter().enumerate().map(|(index, port)| (index, port.int(&["port"]).unwrap_or(0)))
}

fn validate_ports(service: &Value, spec: &Value, path: &Path, errors: &mut Errors) {
    let ports = spec.items(&["ports"]);
    let kind = spec.text(&["type"]);
    if ports.is_empty() && !is_headless(service) && kind != "ExternalName" {
        errors.required(path, "");
    }
    let (mut names, mut numbers, mut node_ports) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (index, port) in ports.iter().enumerate() {
        let path = path.index(index);
        validate_port(port, ports.len() > 1, &path, errors);
        let (name, protocol) = (port.text(&["name"]), port.text(&["protocol"]));
        if !name.is_empty() && !names.insert(name) {
            errors.duplicate(&path.child("name"), name);
        }
        let node_port = port.int(&["nodePort"]).unwrap_or(0);
        if node_port != 0 {
            if kind == "ClusterIP" {
                errors.forbidden(&path.child("nodePort"), "may not be used when `type` is 'ClusterIP'");
            }
            if !node_ports.insert((protocol, node_port)) {
                errors.duplicate(&path.child("nodePort"), node_port);
            }
        }
        let number = port.int(&["port"]).unwrap_or(0);
        if !numbers.insert((protocol, number)) {
            errors.duplicate(&path, json!({"port": number, "protocol": protocol}));
        }
    }
}

fn validate_port(port: &Value, needs_name: bool, path: &Path, errors: &mut Errors) {
    match port.text(&["name"]) {
        "" if needs_name => errors.required(&path.child("name"), ""),
        "" => {}
        name => invalid_for_each(label(name), &path.child("name"), name, errors),
    }
    validate_port_number(port.int(&["port"]).unwrap_or(0), &path.child("port"), errors);
    match port.text(&["protocol"]) {
        "" => errors.required(&path.child("protocol"), ""),
        protocol => check::one_of(protocol, PROTOCOLS, &path.child("protocol"), errors),
    }
    match member(port, "targetPort") {
        Value::String(name) => invalid_for_each(port_name(name), &path.child("targetPort"), name, errors),
        number => validate_port_number(number.as_i64().unwrap_or(0), &path.child("targetPort"), errors),
    }
    if let Some(protocol) = port.at(&["appProtocol"]) {
        check::qualified(protocol.as_str().unwrap_or(""), &path.child("appProtocol"), errors);
    }
}

pub(super) fn validate_port_number(number: i64, path: &Path, errors: &mut Errors) {
    for why in port_number(number) {
        errors.invalid(path, number, why);
    }
}

fn validate_affinity(spec: &Value, path: &Path, errors: &mut Errors) {
    let config_path = path.child("sessionAffinityConfig");
    let affinity = spec.text(&["sessionAffinity"]);
    match affinity {
        "" => errors.required(&path.child("sessionAffinity"), ""),
        "None" => {
            if spec.has(&["sessionAffinityConfig"]) {
                errors.forbidden(&config_path, "must not be set when session affinity is None");
            }
        }
        "ClientIP" => match spec.int(&["sessionAffinityConfig", "clientIP", "timeoutSeconds"]) {
            None => errors.required(&config_path, "when session affinity type is ClientIP"),
            Some(seconds) if !(1..=AFFINITY_SECONDS_MAX).contains(&seconds) => {
                let why = format!("must be greater than 0 and less than {AFFINITY_SECONDS_MAX}");
                errors.invalid(&config_path.child("clientIP").child("timeoutSeconds"), seconds, why);
            }
            Some(_) => {}
        },
        other => check::one_of(other, &["ClientIP", "None"], &path.child("sessionAffinity"), errors),
    }
}

fn validate_families(service: &Value, spec: &Value, path: &Path, errors: &mut Errors) {
    const NOT_EXTERNAL: &str = "may not be set for ExternalName services";
    let families = spec.items(&["ipFamilies"]);
    let policy = spec.text(&["ipFamilyPolicy"]);
    if !has_cluster_ip(service) && spec.text(&["type"]) == "ExternalName" {
        if !families.is_empty() {
            errors.forbidden(&path.child("ipFamilies"), NOT_EXTERNAL);
        }
        if !policy.is_empty() {
            errors.forbidden(&path.child("ipFamilyPolicy"), NOT_EXTERNAL);
        }
        return;
    }
    for (index, family) in families.iter().enumerate() {
        let path = path.child("ipFamilies").index(index);
        check::one_of(family.as_str().unwrap_or(""), &["IPv4", "IPv6"], &path, errors);
        if families[..index].contains(family) {
            errors.duplicate(&path, family.clone());
        }
    }
    if !policy.is_empty() {
        let policies = ["PreferDualStack", "RequireDualStack", "SingleStack"];
        check::one_of(policy, &policies, &path.child("ipFamilyPolicy"), errors);
    }
    validate_cluster_ips(spec, &path.child("clusterIPs"), errors);
}

fn validate_cluster_ips(spec: &Value, path: &Path, errors: &mut Errors) {
    let (first, all) = (spec.text(&["clusterIP"]), spec.items(&["clusterIPs"]));
    let shown = || Value::from(all.to_vec());
    if all.len() > 2 {
        errors.invalid(path, shown(), "may only hold up to 2 values");
    }
    if !all.is_empty() && all[0] != first {
        errors.invalid(path, shown(), "first value must match `clusterIP`");
    }
    for (index, ip) in all.iter().map(|ip| ip.as_str().unwrap_or("")).enumerate() {
        if ip == "None" {
            if all.len() > 1 {
                errors.invalid(&path.index(index), ip, "'None' must be the first and only value");
            }
        } else {
            check::ip(ip, &path.index(index), errors);
        }
    }
}

fn validate_balancer(spec: &Value, path: &Path, errors: &mut Errors) {
    const ONLY: &str = "may only be used when `type` is 'LoadBalancer'";
    let balances = spec.text(&["type"]) == "LoadBalancer";
    let ranges = spec.items(&["loadBalancerSourceRanges"]);
    let ranges_path = path.child("LoadBalancerSourceRanges");
    if !ranges.is_empty() && !balances {
        errors.forbidden(&ranges_path, ONLY);
    }
    for (index, range) in ranges.iter().map(|range| range.as_str().unwrap_or("")).enumerate() {
        if !check::is_cidr(range.trim()) {
            let why = "must be a list of IP ranges. For example, 10.240.0.0/24,10.250.0.0/24 ";
            errors.invalid(&ranges_path.index(index), range, why);
        }
    }
    match (balances, spec.has(&["allocateLoadBalancerNodePorts"])) {
        (true, false) => errors.required(&path.child("allocateLoadBalancerNodePorts"), ""),
        (false, true) => errors.forbidden(&path.child("allocateLoadBalancerNodePorts"), ONLY),
        _ => {}
    }
    if let Some(class) = spec.at(&["loadBalancerClass"]) {
        if balances {
            check::qualified(class.as_str().unwrap_or(""), &path.child("loadBalancerClass"), errors);
        } else {
            errors.forbidden(&path.child("loadBalancerClass"), ONLY);
        }
    }
}

fn validate_traffic(service: &Value, spec: &Value, path: &Path, errors: &mut Errors) {
    let policies = ["Cluster", "Local"];
    let external_path = path.child("externalTrafficPolicy");
    match (is_external(service), spec.text(&["externalTrafficPolicy"])) {
        (true, "") => errors.required(&external_path, ""),
        (true, policy) => check::one_of(policy, &policies, &external_path, errors),
        (false, "") => {}
        (false, policy) => {
            errors.invalid(&external_path, policy, "may only be set for externally-accessible services");
        }
    }
    let check_port = spec.int(&["healthCheckNodePort"]).unwrap_or(0);
    if check_port != 0 && !needs_health_check(service) {
        let why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        errors.invalid(&path.child("healthCheckNodePort"), check_port, why);
    }
    match spec.text(&["internalTrafficPolicy"]) {
        "" if has_cluster_ip(service) => errors.required(&path.child("internalTrafficPolicy"), ""),
        "" => {}
        policy => check::one_of(policy, &policies, &path.child("internalTrafficPolicy"), errors),
    }
    if let Some(distribution) = spec.at(&["trafficDistribution"]) {
        let known = ["PreferClose", "PreferSameNode", "PreferSameZone"];
        check::one_of(distribution.as_str().unwrap_or(""), &known, &path.child("trafficDistribution"), errors);
    }
}

pub(super) fn validate_status(service: &Value, errors: &mut Errors) {
    let path = Path::new("status.loadBalancer.ingress");
    let ingress = service.items(&["status", "loadBalancer", "ingress"]);
    if !ingress.is_empty() && service.text(&["spec", "type"]) != "LoadBalancer" {
        errors.forbidden(&path, "may only be used when `spec.type` is \"LoadBalancer\"");
        return;
    }
    for (index, point) in ingress.iter().enumerate() {
        let path = path.index(index);
        let (ip, host) = (point.text(&["ip"]), point.text(&["hostname"]));
        if !ip.is_empty() {
            check::ip(ip, &path.child("ip"), errors);
        }
        match (ip.is_empty(), point.text(&["ipMode"])) {
            (_, "") => {}
            (true, _) => errors.forbidden(&path.child("ipMode"), "may not be specified when `ip` is not set"),
            (false, mode) => check::one_of(mode, &["Proxy", "VIP"], &path.child("ipMode"), errors),
        }
        if !host.is_empty() {
            check::subdomain(host, &path.child("hostname"), errors);
            if host.parse::<std::net::IpAddr>().is_ok() {
                errors.invalid(&path.child("hostname"), host, "must be a DNS name, not an IP address");
            }
        }
    }
}
