//! ClusterIPs and node ports of Services. Each is a key in the store, written in the Service's transaction, so two
//! Services can never have the same. The kind's own rules decide what an update keeps and drops; this module compares
//! the outcome.

use crate::admission::{AtomicWrites, Verb, Write};
use crate::env::Ids;
use crate::object_store::Reader;
use object::access::{Access, name, namespace};
use object::{Errors, Path, Status, Value, json};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;

const NETWORK: u32 = u32::from_be_bytes([10, 96, 0, 0]);
const NETWORK_TEXT: &str = "10.96.0.0/16";
/// The first and the last address of hosts.
const ADDRESSES: std::ops::RangeInclusive<u32> = NETWORK + 1..=NETWORK + 0xfffe;
/// Lower addresses are reserved for Services that request one explicitly, while others are free.
const ADDRESSES_PICKED_FROM: u32 = NETWORK + 257;
const PORTS: std::ops::RangeInclusive<u32> = 30_000..=32_767;
const PORTS_PICKED_FROM: u32 = 30_086;

/// Sets addresses and ports, claims new ones and releases unused ones.
pub fn allocate(
    reader: &Reader,
    ids: &dyn Ids,
    write: &mut Write<'_>,
    together: &mut AtomicWrites,
) -> Result<(), Status> {
    if !is_service(write) {
        return Ok(());
    }
    let before = write.old.filter(|_| write.verb != Verb::Create).map(keys).unwrap_or_default();
    let mut after = BTreeSet::new();
    if write.verb != Verb::Delete {
        let mut errors = Errors::default();
        let mut filling = Filling { reader, ids, held: &before, taken: BTreeSet::new(), errors: &mut errors };
        filling.fill(write.object)?;
        if !errors.is_empty() {
            return Err(Status::invalid("", "Service", write.name, &errors));
        }
        after = keys(write.object);
    }
    let owner = json!({"metadata": {"name": write.name, "namespace": write.namespace}});
    for key in after.difference(&before) {
        together.require(key, None);
        together.put(key, &owner);
    }
    for key in before.difference(&after) {
        let held = reader.get(key)?;
        if held.is_some_and(|(holder, _)| name(&holder) == write.name && namespace(&holder) == write.namespace) {
            together.delete(key);
        }
    }
    Ok(())
}

fn is_service(write: &Write<'_>) -> bool {
    write.subresource.is_empty() && write.kind.group.is_empty() && write.kind.plural == "services"
}

fn is_unset(service: &Value, field: &str) -> bool {
    match service.at(&["spec", field]) {
        None => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(value) => value.as_i64() == Some(0),
    }
}

fn protocol(port: &Value) -> &str {
    match port.text(&["protocol"]) {
        "" => "TCP",
        protocol => protocol,
    }
}

fn node_port(port: &Value) -> Option<i64> {
    port.int(&["nodePort"]).filter(|number| *number != 0)
}

/// What a Service needs, by its type.
#[derive(Clone, Copy)]
struct Needs {
    address: bool,
    node_ports: bool,
    health_port: bool,
}

impl Needs {
    fn of(service: &Value) -> Needs {
        let kind = service.text(&["spec", "type"]);
        let balanced = kind == "LoadBalancer";
        let allocates = service.at(&["spec", "allocateLoadBalancerNodePorts"]).and_then(Value::as_bool).unwrap_or(true);
        Needs {
            address: kind != "ExternalName",
            node_ports: kind == "NodePort" || (balanced && allocates),
            health_port: balanced && service.text(&["spec", "externalTrafficPolicy"]) == "Local",
        }
    }
}

/// The keys of all addresses and ports of a Service.
fn keys(service: &Value) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let address = service.text(&["spec", "clusterIP"]);
    if let Some(address) = address.parse::<Ipv4Addr>().ok().map(u32::from).filter(|ip| ADDRESSES.contains(ip)) {
        keys.insert(address_key(address));
    }
    let ports = service.items(&["spec", "ports"]).iter().filter_map(node_port);
    for port in ports.chain(service.int(&["spec", "healthCheckNodePort"])) {
        if let Some(port) = u32::try_from(port).ok().filter(|port| PORTS.contains(port)) {
            keys.insert(port_key(port));
        }
    }
    keys
}

fn address_key(address: u32) -> String {
    format!("/mainstay/service-ips/{}", Ipv4Addr::from(address))
}

fn port_key(port: u32) -> String {
    format!("/mainstay/node-ports/{port}")
}

struct Filling<'a> {
    reader: &'a Reader,
    ids: &'a dyn Ids,
    /// Keys that the Service holds already.
    held: &'a BTreeSet<String>,
    /// Keys that the Service claims now.
    taken: BTreeSet<String>,
    errors: &'a mut Errors,
}

impl Filling<'_> {
    fn fill(&mut self, service: &mut Value) -> Result<(), Status> {
        let needs = Needs::of(service);
        if needs.address {
            self.fill_address(service)?;
        }
        if needs.node_ports {
            self.fill_ports(service)?;
        }
        if needs.health_port {
            let path = Path::new("spec.healthCheckNodePort");
            match service.int(&["spec", "healthCheckNodePort"]).filter(|port| *port != 0) {
                Some(port) => self.claim_port(&path, port),
                None => {
                    let port = self.pick_port(&path)?;
                    service.put(&["spec", "healthCheckNodePort"], port);
                }
            }
        }
        Ok(())
    }

    fn fill_address(&mut self, service: &mut Value) -> Result<(), Status> {
        if is_unset(service, "clusterIP")
            && let Some(first) = service.items(&["spec", "clusterIPs"]).first().cloned()
        {
            service.put(&["spec", "clusterIP"], first);
        }
        match service.text(&["spec", "clusterIP"]).to_owned().as_str() {
            "None" => {}
            "" => {
                let address = self.pick(ADDRESSES, ADDRESSES_PICKED_FROM, address_key);
                let address =
                    address.ok_or_else(|| Status::internal("failed to allocate a serviceIP: range is full"))?;
                service.put(&["spec", "clusterIP"], Ipv4Addr::from(address).to_string());
            }
            given => self.claim_address(given),
        }
        let address = service.text(&["spec", "clusterIP"]).to_owned();
        if is_unset(service, "clusterIPs") {
            service.put(&["spec", "clusterIPs"], json!([address]));
        }
        Ok(())
    }

    fn claim_address(&mut self, given: &str) {
        let path = Path::new("spec.clusterIPs");
        let inside = given.parse::<Ipv4Addr>().ok().map(u32::from).filter(|ip| ADDRESSES.contains(ip));
        let why = match inside {
            None => {
                format!("the provided IP ({given}) is not in the valid range. The range of valid IPs is {NETWORK_TEXT}")
            }
            Some(address) if self.is_free(&address_key(address)) => return,
            Some(_) => "provided IP is already allocated".to_owned(),
        };
        self.errors.invalid(&path, json!([given]), format!("failed to allocate IP {given}: {why}"));
    }

    fn fill_ports(&mut self, service: &mut Value) -> Result<(), Status> {
        let path = Path::new("spec.ports");
        let Some(Value::Array(ports)) = service.get_mut("spec").and_then(|spec| spec.get_mut("ports")) else {
            return Ok(());
        };
        // Requested ports first, so that none of them is picked for another port.
        let mut given: BTreeSet<(i64, String)> = BTreeSet::new();
        for (at, port) in ports.iter().enumerate() {
            let Some(number) = node_port(port) else { continue };
            let path = path.index(at).child("nodePort");
            if !given.insert((number, protocol(port).to_owned())) {
                self.errors.duplicate(&path, number);
            } else if !self.taken.contains(&port_key(u32::try_from(number).unwrap_or(0))) {
                self.claim_port(&path, number);
            }
        }
        for at in 0..ports.len() {
            if node_port(&ports[at]).is_some() {
                continue;
            }
            // The same port with another protocol gets the same node port.
            let twin =
                ports.iter().filter(|other| other.int(&["port"]) == ports[at].int(&["port"])).find_map(node_port);
            let own = twin.map(|number| (number, protocol(&ports[at]).to_owned())).filter(|own| !given.contains(own));
            let number = match own {
                Some((number, _)) => number,
                None => self.pick_port(&path.index(at).child("nodePort"))?,
            };
            given.insert((number, protocol(&ports[at]).to_owned()));
            ports[at].put(&["nodePort"], number);
        }
        Ok(())
    }

    fn claim_port(&mut self, path: &Path, number: i64) {
        let inside = u32::try_from(number).ok().filter(|port| PORTS.contains(port));
        let why = match inside {
            None => "provided port is not in the valid range. The range of valid ports is 30000-32767",
            Some(port) if self.is_free(&port_key(port)) => return,
            Some(_) => "provided port is already allocated",
        };
        self.errors.invalid(path, number, why);
    }

    fn pick_port(&mut self, path: &Path) -> Result<i64, Status> {
        let picked = self.pick(PORTS, PORTS_PICKED_FROM, port_key);
        let full = || Status::internal(format!("{path}: failed to allocate a nodePort: range is full"));
        picked.map(i64::from).ok_or_else(full)
    }

    /// Whether the Service may have the key. If so, it claims the key.
    fn is_free(&mut self, key: &str) -> bool {
        let free = self.held.contains(key) || self.reader.store.get(key).is_none();
        free && self.taken.insert(key.to_owned())
    }

    /// A free number: upwards from a random start, then from the beginning of the range, then from the reserved part.
    fn pick(&mut self, all: std::ops::RangeInclusive<u32>, from: u32, key: fn(u32) -> String) -> Option<u32> {
        let (first, last) = (*all.start(), *all.end());
        let start = from + random(self.ids) % (last - from + 1);
        let order = (start..=last).chain(from..start).chain(first..from);
        let mut order = order.filter(|number| !self.held.contains(&key(*number)));
        let mut picked = None;
        for number in &mut order {
            if self.reader.store.get(&key(number)).is_none() && !self.taken.contains(&key(number)) {
                picked = Some(number);
                break;
            }
        }
        let number = picked?;
        self.taken.insert(key(number));
        Some(number)
    }
}

fn random(ids: &dyn Ids) -> u32 {
    ids.uid().bytes().fold(2_166_136_261, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619))
}

#[cfg(test)]
mod tests;
