//! Groups the addresses and ports of pods into subsets: each has the addresses that share the same set of
//! ports.

use super::{is_headless, is_over};
use object::access::{Access, name, namespace, terminating, uid};
use object::{Value, condition, json};
use std::collections::BTreeMap;

/// The limit of addresses in one Endpoints object. The rest is left out, and an annotation says so.
const ADDRESSES_MAX: usize = 1000;

/// A port of an Endpoints subset. The order of the fields is the order of ports within a subset.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Port {
    name: String,
    port: i64,
    protocol: String,
    app_protocol: Option<String>,
}

/// An address and whether it is ready.
#[derive(Clone, Debug)]
struct Address {
    ip: String,
    ready: bool,
    value: Value,
}

/// Addresses that have the same ports.
pub(super) struct Subset {
    ports: Vec<Port>,
    ready: Vec<Value>,
    not_ready: Vec<Value>,
}

impl Subset {
    pub(super) fn write(&self) -> Value {
        let mut subset = json!({});
        for (member, addresses) in [("addresses", &self.ready), ("notReadyAddresses", &self.not_ready)] {
            if !addresses.is_empty() {
                subset.put(&[member], addresses.clone());
            }
        }
        if !self.ports.is_empty() {
            subset.put(&["ports"], self.ports.iter().map(write_port).collect::<Vec<Value>>());
        }
        subset
    }
}

fn write_port(port: &Port) -> Value {
    let mut written = json!({"port": port.port, "protocol": port.protocol});
    if !port.name.is_empty() {
        written.put(&["name"], port.name.as_str());
    }
    if let Some(protocol) = &port.app_protocol {
        written.put(&["appProtocol"], protocol.as_str());
    }
    written
}

/// The subsets of a Service: addresses sorted by text, subsets by ports.
pub(super) fn of<'a>(service: &Value, pods: impl Iterator<Item = &'a Value>) -> Vec<Subset> {
    let mut pods: Vec<(Address, &Value)> = pods.filter_map(|pod| Some((address(service, pod)?, pod))).collect();
    pods.sort_by(|(a, pod_a), (b, pod_b)| (&a.ip, uid(pod_a)).cmp(&(&b.ip, uid(pod_b))));
    // The addresses that have each port. A headless Service without ports has addresses only.
    let mut by_port: BTreeMap<Option<Port>, Vec<usize>> = BTreeMap::new();
    let service_ports = service.items(&["spec", "ports"]);
    for (at, (_, pod)) in pods.iter().enumerate() {
        if service_ports.is_empty() && is_headless(service) {
            by_port.entry(None).or_default().push(at);
        }
        for port in service_ports.iter().filter_map(|port| pod_port(port, pod)) {
            let having = by_port.entry(Some(port)).or_default();
            if having.last() != Some(&at) {
                having.push(at);
            }
        }
    }
    let mut by_addresses: BTreeMap<Vec<usize>, Vec<Port>> = BTreeMap::new();
    for (port, having) in by_port {
        by_addresses.entry(having).or_default().extend(port);
    }
    let mut subsets: Vec<Subset> = by_addresses
        .into_iter()
        .map(|(having, ports)| {
            let those = |ready: bool| {
                let addresses = having.iter().map(|at| &pods[*at].0).filter(|address| address.ready == ready);
                addresses.map(|address| address.value.clone()).collect()
            };
            Subset { ports, ready: those(true), not_ready: those(false) }
        })
        .collect();
    subsets.sort_by(|a, b| a.ports.cmp(&b.ports));
    subsets
}

/// The address of a pod for clients of the Service; `None` if it has none, or has terminated.
fn address(service: &Value, pod: &Value) -> Option<Address> {
    let publishes_all = service.at(&["spec", "publishNotReadyAddresses"]).is_some_and(|set| *set == true);
    if is_over(pod) || (terminating(pod) && !publishes_all) {
        return None;
    }
    let ip = ip_of_family(service, pod)?;
    let mut value = json!({
        "ip": ip,
        "targetRef": {"kind": "Pod", "namespace": namespace(pod), "name": name(pod), "uid": uid(pod)},
    });
    let (node, hostname) = (pod.text(&["spec", "nodeName"]), pod.text(&["spec", "hostname"]));
    if !node.is_empty() {
        value.put(&["nodeName"], node);
    }
    if !hostname.is_empty() && pod.text(&["spec", "subdomain"]) == name(service) {
        value.put(&["hostname"], hostname);
    }
    let ready = publishes_all || condition::is_true(pod, "Ready");
    Some(Address { ip: ip.to_owned(), ready, value })
}

/// The pod's first address of the Service's first IP family.
fn ip_of_family<'a>(service: &Value, pod: &'a Value) -> Option<&'a str> {
    let cluster_ip = service.text(&["spec", "clusterIP"]);
    let wants_ipv6 = match service.items(&["spec", "ipFamilies"]).first().and_then(Value::as_str) {
        Some(family) => family == "IPv6",
        None if !super::is_headless(service) => cluster_ip.contains(':'),
        None => pod.text(&["status", "podIP"]).contains(':'),
    };
    let listed = pod.items(&["status", "podIPs"]).iter().map(|entry| entry.text(&["ip"]));
    let mut all = listed.chain([pod.text(&["status", "podIP"])]);
    all.find(|ip| !ip.is_empty() && ip.contains(':') == wants_ipv6)
}

/// The port of the pod for a port of the Service; `None` if no container has a port of that name.
fn pod_port(service_port: &Value, pod: &Value) -> Option<Port> {
    let protocol = match service_port.text(&["protocol"]) {
        "" => "TCP",
        protocol => protocol,
    };
    let number = match service_port.at(&["targetPort"]) {
        Some(Value::String(named)) => named_port(pod, named, protocol)?,
        Some(target) => target.as_i64()?,
        None => service_port.int(&["port"])?,
    };
    Some(Port {
        name: service_port.text(&["name"]).to_owned(),
        port: number,
        protocol: protocol.to_owned(),
        app_protocol: service_port.at(&["appProtocol"]).and_then(Value::as_str).map(str::to_owned),
    })
}

/// A named port of a container, or of a sidecar container.
fn named_port(pod: &Value, named: &str, protocol: &str) -> Option<i64> {
    let sidecars = pod.items(&["spec", "initContainers"]).iter();
    let sidecars = sidecars.filter(|container| container.text(&["restartPolicy"]) == "Always");
    let containers = pod.items(&["spec", "containers"]).iter().chain(sidecars);
    let mut ports = containers.flat_map(|container| container.items(&["ports"]));
    let has_protocol = |port: &Value| match port.text(&["protocol"]) {
        "" => protocol == "TCP",
        said => said == protocol,
    };
    ports.find(|port| port.text(&["name"]) == named && has_protocol(port))?.int(&["containerPort"])
}

/// Truncates the subsets to the limit: first not-ready addresses, each subset in proportion. Returns whether
/// any were left out.
pub(super) fn truncate(subsets: &mut [Subset]) -> bool {
    let count = |list: fn(&Subset) -> &Vec<Value>, subsets: &[Subset]| subsets.iter().map(|set| list(set).len()).sum();
    let ready: usize = count(|subset| &subset.ready, subsets);
    let not_ready: usize = count(|subset| &subset.not_ready, subsets);
    if ready + not_ready <= ADDRESSES_MAX {
        return false;
    }
    let too_many_ready = ready > ADDRESSES_MAX;
    let (room, total) = if too_many_ready { (ADDRESSES_MAX, ready) } else { (ADDRESSES_MAX - ready, not_ready) };
    let mut left = room;
    for subset in subsets {
        let list = if too_many_ready {
            subset.not_ready.clear();
            &mut subset.ready
        } else {
            &mut subset.not_ready
        };
        let share = (list.len() * room).div_ceil(total);
        list.truncate(share.min(left));
        left -= list.len();
    }
    true
}
