//! Service updates: values that are carried over, values that are dropped with the type, and immutable fields.

use super::service::{has_cluster_ip, has_node_ports, is_external};
use crate::access::Access;
use crate::field::{Errors, Path};
use crate::{Value, json};

/// Carries over allocated values that the client left out, and drops values of a type that the service no longer has.
/// Values that the client changed in the same update are kept; validation then refuses them.
pub(super) fn prepare(new: &mut Value, old: &Value) {
    carry_allocated(new, old);
    drop_with_type(new, old);
}

fn carry_allocated(new: &mut Value, old: &Value) {
    if has_cluster_ip(new) && has_cluster_ip(old) {
        carry_if_unset(new, old, "clusterIP");
        if new.text(&["spec", "clusterIP"]) == old.text(&["spec", "clusterIP"]) {
            carry_if_unset(new, old, "clusterIPs");
        }
        carry_if_unset(new, old, "ipFamilies");
        carry_if_unset(new, old, "ipFamilyPolicy");
    }
    if has_node_ports(new) && has_node_ports(old) {
        let allocated = old.items(&["spec", "ports"]).to_vec();
        let ports = new.get_mut("spec").and_then(|spec| spec.get_mut("ports")).and_then(Value::as_array_mut);
        for port in ports.into_iter().flatten().filter(|port| port.int(&["nodePort"]).unwrap_or(0) == 0) {
            let same = |old: &&Value| {
                old.at(&["port"]) == port.at(&["port"]) && old.at(&["protocol"]) == port.at(&["protocol"])
            };
            if let Some(number) = allocated.iter().find(same).and_then(|old| old.at(&["nodePort"])).cloned() {
                port.put(&["nodePort"], number);
            }
        }
    }
    if needs_health_check(new) && needs_health_check(old) {
        carry_if_unset(new, old, "healthCheckNodePort");
    }
}

fn carry_if_unset(new: &mut Value, old: &Value, field: &str) {
    let unset = match new.at(&["spec", field]) {
        None => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(value) => value == 0,
    };
    if let (true, Some(before)) = (unset, old.at(&["spec", field])) {
        new.put(&["spec", field], before.clone());
    }
}

pub(super) fn needs_health_check(service: &Value) -> bool {
    service.text(&["spec", "type"]) == "LoadBalancer" && service.text(&["spec", "externalTrafficPolicy"]) == "Local"
}

fn drop_with_type(new: &mut Value, old: &Value) {
    let balances = |service: &Value| service.text(&["spec", "type"]) == "LoadBalancer";
    let mut gone = Vec::new();
    if has_cluster_ip(old) && !has_cluster_ip(new) {
        gone.extend(["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"]);
    }
    if needs_health_check(old) && !needs_health_check(new) {
        gone.push("healthCheckNodePort");
    }
    if balances(old) && !balances(new) {
        gone.extend(["allocateLoadBalancerNodePorts", "loadBalancerClass"]);
    }
    if is_external(old) && !is_external(new) {
        gone.push("externalTrafficPolicy");
    }
    for field in gone {
        if new.at(&["spec", field]) == old.at(&["spec", field]) {
            new.cut(&["spec", field]);
        }
    }
    if has_node_ports(old) && !has_node_ports(new) && new.items(&["spec", "ports"]) == old.items(&["spec", "ports"]) {
        let ports = new.get_mut("spec").and_then(|spec| spec.get_mut("ports")).and_then(Value::as_array_mut);
        for port in ports.into_iter().flatten() {
            port.cut(&["nodePort"]);
        }
    }
}

/// `clusterIP` is always the first of `clusterIPs`. If one of them was written, the other is updated.
pub(super) fn settle_cluster_ips(service: &mut Value, old: Option<&Value>) {
    let first = service.text(&["spec", "clusterIP"]).to_owned();
    let all = service.items(&["spec", "clusterIPs"]).to_vec();
    let old_first = old.map_or("", |old| old.text(&["spec", "clusterIP"]));
    let old_all = old.map_or(&[][..], |old| old.items(&["spec", "clusterIPs"]));
    let changed_first = first != old_first;
    let changed_all = all != old_all;
    if !first.is_empty() && (all.is_empty() || (changed_first && !changed_all)) {
        service.put(&["spec", "clusterIPs"], json!([first]));
    } else if first.is_empty() && changed_first && !changed_all {
        service.cut(&["spec", "clusterIPs"]);
    }
}

pub(super) fn validate(new: &Value, old: &Value, errors: &mut Errors) {
    let path = Path::new("spec");
    let before = old.text(&["spec", "clusterIP"]);
    if has_cluster_ip(new) && has_cluster_ip(old) && !before.is_empty() && new.text(&["spec", "clusterIP"]) != before {
        let ips = Value::from(new.items(&["spec", "clusterIPs"]).to_vec());
        errors.invalid(&path.child("clusterIPs").index(0), ips, "may not change once set");
    }
    let class = ["spec", "loadBalancerClass"];
    let balanced = |service: &Value| service.text(&["spec", "type"]) == "LoadBalancer";
    if balanced(new) && balanced(old) && new.at(&class) != old.at(&class) {
        let value = new.at(&class).cloned().unwrap_or(Value::Null);
        errors.invalid(&path.child("loadBalancerClass"), value, "may not change once set");
    }
}
