//! Service: defaults, fields that the server allocates, columns.

use super::check::or_none;
use super::{service_update, service_validation};
use crate::access::{Access, name};
use crate::field::Errors;
use crate::kind::{Ctx, NameRule, Rules};
use crate::table::{AGE, Column, NAME, age, column, wide};
use crate::{Value, json};

/// Whether the server must allocate a cluster IP for this service. It does so before validation, and writes the address
/// to `spec.clusterIP` and as the only element of `spec.clusterIPs`; afterwards this returns false. Headless and
/// ExternalName services get no address.
pub fn needs_cluster_ip(service: &Value) -> bool {
    has_cluster_ip(service) && service.text(&["spec", "clusterIP"]).is_empty()
}

/// Returns the indexes of the ports for which the server must allocate a `nodePort`.
pub fn missing_node_ports(service: &Value) -> Vec<usize> {
    if !has_node_ports(service) {
        return Vec::new();
    }
    let ports = service.items(&["spec", "ports"]).iter().enumerate();
    ports.filter(|(_, port)| port.int(&["nodePort"]).unwrap_or(0) == 0).map(|(index, _)| index).collect()
}

/// Whether the service has an address in the cluster: every type except ExternalName.
pub(super) fn has_cluster_ip(service: &Value) -> bool {
    matches!(service.text(&["spec", "type"]), "ClusterIP" | "NodePort" | "LoadBalancer")
}

pub(super) fn has_node_ports(service: &Value) -> bool {
    match service.text(&["spec", "type"]) {
        "NodePort" => true,
        "LoadBalancer" => {
            service.at(&["spec", "allocateLoadBalancerNodePorts"]).and_then(Value::as_bool).unwrap_or(true)
        }
        _ => false,
    }
}

pub(super) fn is_headless(service: &Value) -> bool {
    service.text(&["spec", "clusterIP"]) == "None"
}

/// Whether traffic from outside the cluster can reach the service.
pub(super) fn is_external(service: &Value) -> bool {
    match service.text(&["spec", "type"]) {
        "NodePort" | "LoadBalancer" => true,
        "ClusterIP" => !service.items(&["spec", "externalIPs"]).is_empty(),
        _ => false,
    }
}

pub(super) struct Services;

impl Rules for Services {
    fn name_rule(&self) -> NameRule {
        NameRule::ServiceLabel
    }
    fn default(&self, object: &mut Value, _ctx: &Ctx) {
        if object.at(&["spec"]).is_some_and(Value::is_object) {
            default_spec(object);
        }
    }
    fn prepare_create(&self, object: &mut Value, _ctx: &Ctx) {
        object.put(&["status"], json!({"loadBalancer": {}}));
        if object.at(&["spec"]).is_some_and(Value::is_object) {
            service_update::settle_cluster_ips(object, None);
            settle_families(object);
        }
    }
    fn prepare_update(&self, new: &mut Value, old: &Value, _ctx: &Ctx) {
        if new.at(&["spec"]).is_some_and(Value::is_object) {
            service_update::prepare(new, old);
            service_update::settle_cluster_ips(new, Some(old));
            settle_families(new);
        }
    }
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        service_validation::validate(object, errors);
    }
    fn validate_update(&self, new: &Value, old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        service_update::validate(new, old, errors);
        service_validation::validate(new, errors);
    }
    fn validate_status(&self, new: &Value, _old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        service_validation::validate_status(new, errors);
    }
    fn warnings(&self, new: &Value, _old: Option<&Value>, _ctx: &Ctx) -> Vec<String> {
        warnings(new)
    }
    fn columns(&self) -> &[Column] {
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        let selector = object.members(&["spec", "selector"]).iter();
        let selector = selector.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or("")));
        vec![
            json!(name(object)),
            json!(object.text(&["spec", "type"])),
            json!(or_none(object.text(&["spec", "clusterIP"]).to_owned())),
            json!(external_ip(object)),
            json!(ports(object)),
            json!(age(object, now)),
            json!(or_none(selector.collect::<Vec<_>>().join(","))),
        ]
    }
    fn selectable_fields(&self) -> &[&str] {
        &["spec.clusterIP", "spec.type"]
    }
}

fn default_spec(service: &mut Value) {
    service.default_to(&["spec", "sessionAffinity"], "None");
    service.default_to(&["spec", "type"], "ClusterIP");
    match service.text(&["spec", "sessionAffinity"]) {
        "None" => drop(service.cut(&["spec", "sessionAffinityConfig"])),
        "ClientIP" => {
            let seconds = ["spec", "sessionAffinityConfig", "clientIP", "timeoutSeconds"];
            if service.int(&seconds).is_none() {
                service.put(&seconds, 10_800);
            }
        }
        _ => {}
    }
    let ports = service.get_mut("spec").and_then(|spec| spec.get_mut("ports")).and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter(|port| port.is_object()) {
        port.default_to(&["protocol"], "TCP");
        let unset = match port.at(&["targetPort"]) {
            None => true,
            Some(target) => target == 0 || target == "",
        };
        if let Some(number) = port.at(&["port"]).cloned().filter(|_| unset) {
            port.put(&["targetPort"], number);
        }
    }
    if has_cluster_ip(service) {
        service.default_to(&["spec", "internalTrafficPolicy"], "Cluster");
    }
    if is_external(service) {
        service.default_to(&["spec", "externalTrafficPolicy"], "Cluster");
    }
    if service.text(&["spec", "type"]) == "LoadBalancer" {
        service.default_to(&["spec", "allocateLoadBalancerNodePorts"], true);
        default_ingress(service);
    }
}

fn default_ingress(service: &mut Value) {
    let ingress = service.get_mut("status").and_then(|status| status.get_mut("loadBalancer"));
    let ingress = ingress.and_then(|balancer| balancer.get_mut("ingress")).and_then(Value::as_array_mut);
    for point in ingress.into_iter().flatten() {
        if !point.text(&["ip"]).is_empty() {
            point.default_to(&["ipMode"], "VIP");
        }
    }
}

/// Sets the IP families. This control plane supports one family; a given cluster IP may determine which one.
fn settle_families(service: &mut Value) {
    if !has_cluster_ip(service) {
        return;
    }
    if service.items(&["spec", "ipFamilies"]).is_empty() {
        let six = service.text(&["spec", "clusterIP"]).contains(':');
        service.put(&["spec", "ipFamilies"], json!([if six { "IPv6" } else { "IPv4" }]));
    }
    let both = service.items(&["spec", "ipFamilies"]).len() > 1 || service.items(&["spec", "clusterIPs"]).len() > 1;
    service.default_to(&["spec", "ipFamilyPolicy"], if both { "RequireDualStack" } else { "SingleStack" });
}

/// Returns warnings about fields that are set but have no effect.
fn warnings(service: &Value) -> Vec<String> {
    let spec = |field: &str| service.text(&["spec", field]);
    let headless = is_headless(service);
    let ignored = [
        (headless && !spec("loadBalancerIP").is_empty(), "spec.loadBalancerIP is ignored for headless services"),
        (
            headless && !service.items(&["spec", "externalIPs"]).is_empty(),
            "spec.externalIPs is ignored for headless services",
        ),
        (headless && spec("sessionAffinity") == "ClientIP", "spec.SessionAffinity is ignored for headless services"),
        (
            spec("type") != "ExternalName" && !spec("externalName").is_empty(),
            "spec.externalName is ignored when spec.type is not \"ExternalName\"",
        ),
    ];
    ignored.into_iter().filter(|(set, _)| *set).map(|(_, text)| text.to_owned()).collect()
}

const COLUMNS: &[Column] = &[
    NAME,
    column("Type", "string", "How the service is reached"),
    column("Cluster-IP", "string", "Its address inside the cluster"),
    column("External-IP", "string", "Its addresses outside the cluster"),
    column("Port(s)", "string", "Its ports"),
    AGE,
    wide("Selector", "string", "The labels of the pods behind it"),
];

fn external_ip(service: &Value) -> String {
    let own: Vec<&str> = service.items(&["spec", "externalIPs"]).iter().filter_map(Value::as_str).collect();
    match service.text(&["spec", "type"]) {
        "ClusterIP" | "NodePort" => or_none(own.join(",")),
        "LoadBalancer" => {
            let ingress = service.items(&["status", "loadBalancer", "ingress"]).iter();
            let points = ingress.map(|point| match point.text(&["ip"]) {
                "" => point.text(&["hostname"]),
                ip => ip,
            });
            let mut all: Vec<&str> = points.filter(|point| !point.is_empty()).collect();
            all.sort_unstable();
            all.dedup();
            all.extend(own);
            if all.is_empty() { "<pending>".to_owned() } else { all.join(",") }
        }
        "ExternalName" => service.text(&["spec", "externalName"]).to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

/// `80/TCP,443:30443/TCP`.
fn ports(service: &Value) -> String {
    let ports = service.items(&["spec", "ports"]).iter().map(|port| {
        let (number, protocol) = (port.int(&["port"]).unwrap_or(0), port.text(&["protocol"]));
        match port.int(&["nodePort"]) {
            Some(node) if node > 0 => format!("{number}:{node}/{protocol}"),
            _ => format!("{number}/{protocol}"),
        }
    });
    or_none(ports.collect::<Vec<_>>().join(","))
}
