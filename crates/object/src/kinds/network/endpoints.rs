//! Endpoints.

use super::PROTOCOLS;
use super::check::{self, or_none};
use super::service_validation::validate_port_number;
use crate::access::{Access, name};
use crate::field::{Errors, Path};
use crate::kind::{Ctx, Rules};
use crate::table::{AGE, Column, NAME, age, column};
use crate::{Value, json};
use std::collections::BTreeMap;

pub(super) struct EndpointSets;

impl Rules for EndpointSets {
    fn default(&self, object: &mut Value, _ctx: &Ctx) {
        for subset in object.get_mut("subsets").and_then(Value::as_array_mut).into_iter().flatten() {
            for port in subset.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
                if port.is_object() {
                    port.default_to(&["protocol"], "TCP");
                }
            }
        }
    }
    fn validate_create(&self, object: &Value, _ctx: &Ctx, errors: &mut Errors) {
        validate(object, &BTreeMap::new(), errors);
    }
    fn validate_update(&self, new: &Value, old: &Value, _ctx: &Ctx, errors: &mut Errors) {
        validate(new, &nodes_by_ip(old), errors);
    }
    fn columns(&self) -> &[Column] {
        const COLUMNS: &[Column] = &[NAME, column("Endpoints", "string", "The addresses behind the service"), AGE];
        COLUMNS
    }
    fn cells(&self, object: &Value, now: jiff::Timestamp) -> Vec<Value> {
        vec![json!(name(object)), json!(shown(object)), json!(age(object, now))]
    }
}

const SHOWN_MAX: usize = 3;

/// Returns the first few addresses: `10.0.0.1:80,10.0.0.2:80 + 7 more...`.
fn shown(endpoints: &Value) -> String {
    let mut all = Vec::new();
    for subset in endpoints.items(&["subsets"]) {
        let ips = || subset.items(&["addresses"]).iter().map(|address| address.text(&["ip"]));
        if subset.items(&["ports"]).is_empty() {
            all.extend(ips().map(str::to_owned));
        }
        for port in subset.items(&["ports"]) {
            let number = port.int(&["port"]).unwrap_or(0);
            all.extend(
                ips().map(|ip| if ip.contains(':') { format!("[{ip}]:{number}") } else { format!("{ip}:{number}") }),
            );
        }
    }
    let first = all.iter().take(SHOWN_MAX).cloned().collect::<Vec<_>>().join(",");
    match all.len().checked_sub(SHOWN_MAX) {
        Some(more) if more > 0 => format!("{first} + {more} more..."),
        _ => or_none(first),
    }
}

fn addresses(subset: &Value) -> impl Iterator<Item = (&'static str, usize, &Value)> {
    ["addresses", "notReadyAddresses"]
        .into_iter()
        .flat_map(|list| subset.items(&[list]).iter().enumerate().map(move |(index, address)| (list, index, address)))
}

fn nodes_by_ip(endpoints: &Value) -> BTreeMap<&str, &str> {
    let all = endpoints.items(&["subsets"]).iter().flat_map(addresses);
    let with_node = all.filter(|(_, _, address)| address.has(&["nodeName"]));
    with_node.map(|(_, _, address)| (address.text(&["ip"]), address.text(&["nodeName"]))).collect()
}

fn validate(endpoints: &Value, nodes: &BTreeMap<&str, &str>, errors: &mut Errors) {
    let path = Path::new("subsets");
    for (index, subset) in endpoints.items(&["subsets"]).iter().enumerate() {
        let path = path.index(index);
        if addresses(subset).next().is_none() {
            errors.required(&path, "must specify `addresses` or `notReadyAddresses`");
        }
        for (list, index, address) in addresses(subset) {
            validate_address(address, nodes, &path.child(list).index(index), errors);
        }
        let ports = subset.items(&["ports"]);
        for (index, port) in ports.iter().enumerate() {
            validate_port(port, ports.len() > 1, &path.child("ports").index(index), errors);
        }
    }
}

fn validate_address(address: &Value, nodes: &BTreeMap<&str, &str>, path: &Path, errors: &mut Errors) {
    let ip = address.text(&["ip"]);
    check::ip_not_special(ip, &path.child("ip"), errors);
    let host = address.text(&["hostname"]);
    if !host.is_empty() {
        check::label(host, &path.child("hostname"), errors);
    }
    if let Some(node) = address.at(&["nodeName"]).and_then(Value::as_str) {
        let path = path.child("nodeName");
        check::subdomain(node, &path, errors);
        if nodes.get(ip).is_some_and(|before| *before != node) {
            errors.forbidden(&path, format!("Cannot change NodeName for {ip} to {node}"));
        }
    }
}

fn validate_port(port: &Value, needs_name: bool, path: &Path, errors: &mut Errors) {
    match port.text(&["name"]) {
        "" if needs_name => errors.required(&path.child("name"), ""),
        "" => {}
        name => check::label(name, &path.child("name"), errors),
    }
    validate_port_number(port.int(&["port"]).unwrap_or(0), &path.child("port"), errors);
    match port.text(&["protocol"]) {
        "" => errors.required(&path.child("protocol"), ""),
        protocol => check::one_of(protocol, PROTOCOLS, &path.child("protocol"), errors),
    }
}
