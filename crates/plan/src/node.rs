//! The objects of simulated nodes: Node, CSINode and Lease, and when they are updated.

use jiff::{SignedDuration, Timestamp};
use object::access::{Access, uid};
use object::quantity::Quantity;
use object::write::stamp;
use object::{Value, condition, json};
use std::collections::BTreeMap;
use std::time::Duration;

pub use object::access::SIMULATED;
/// The namespace of the nodes' leases.
pub const LEASES: &str = "kube-node-lease";
pub const LEASE_SECONDS: i64 = 40;
pub const RENEW_EVERY: Duration = Duration::from_secs(10);
const REPORT_EVERY: SignedDuration = SignedDuration::from_mins(5);
const ZONES: [&str; 3] = ["zone-a", "zone-b", "zone-c"];

/// The properties of a simulated node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    pub name: String,
    /// The index of the node; it determines the zone.
    pub number: usize,
    pub address: String,
    /// `amd64`, `arm64`.
    pub architecture: &'static str,
    pub capacity: BTreeMap<String, String>,
    /// Entries of `spec.taints`.
    pub taints: Vec<Value>,
    /// The CSI drivers that are registered on this node, by name. Their ID of the node is its name.
    pub drivers: Vec<String>,
}

impl Machine {
    /// The Node to register.
    pub fn node(&self, now: Timestamp) -> Value {
        let mut node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": self.name, "labels": self.labels(),
                "annotations": {SIMULATED: "true", "node.alpha.kubernetes.io/ttl": "0"},
            },
            "spec": {},
            "status": self.status(),
        });
        if !self.taints.is_empty() {
            node["spec"]["taints"] = json!(self.taints);
        }
        self.report(&mut node, now);
        node
    }

    fn labels(&self) -> Value {
        json!({
            "kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": self.architecture,
            "topology.kubernetes.io/region": "simulated",
            "topology.kubernetes.io/zone": ZONES[self.number % ZONES.len()],
            SIMULATED: "true",
        })
    }

    /// The status without conditions.
    fn status(&self) -> Value {
        let id = format!("simulated-{}", self.name);
        json!({
            "capacity": self.capacity, "allocatable": self.capacity,
            "addresses": [{"type": "InternalIP", "address": self.address}, {"type": "Hostname", "address": self.name}],
            "nodeInfo": {
                "machineID": id, "systemUUID": id, "bootID": id, "kernelVersion": "simulated", "osImage": "simulated",
                "containerRuntimeVersion": "simulated://0", "kubeletVersion": "mainstay-simulated", "kubeProxyVersion": "",
                "operatingSystem": "linux", "architecture": self.architecture,
            },
        })
    }

    /// Sets the conditions of a healthy node, with the time of this report.
    fn report(&self, node: &mut Value, now: Timestamp) {
        let healthy = [
            ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            ("Ready", "True", "KubeletReady", "simulated kubelet is posting ready status"),
        ];
        for (kind, status, reason, message) in healthy {
            let wanted = json!({
                "type": kind, "status": status, "reason": reason, "message": message, "lastHeartbeatTime": stamp(now),
            });
            condition::set(node, &["status", "conditions"], wanted, now);
        }
    }

    /// A merge patch with the labels and the annotation that a registered Node lacks or that differ. Other
    /// labels and annotations belong to the user.
    pub fn missing_metadata(&self, node: &Value) -> Option<Value> {
        let wanted = [("labels", self.labels()), ("annotations", json!({SIMULATED: "true"}))];
        let mut metadata = object::Map::new();
        for (field, wanted) in wanted {
            let have = node.members(&["metadata", field]);
            let missing = wanted.members(&[]).iter().filter(|(key, value)| have.get(*key) != Some(*value));
            let missing: object::Map = missing.map(|(key, value)| (key.clone(), value.clone())).collect();
            if !missing.is_empty() {
                metadata.insert(field.to_owned(), Value::Object(missing));
            }
        }
        (!metadata.is_empty()).then(|| json!({"metadata": metadata}))
    }

    /// A strategic merge patch of the node's status, if it differs or the last report is too old.
    pub fn correction(&self, node: &Value, now: Timestamp) -> Option<Value> {
        let mut wanted = json!({"status": {"conditions": node.items(&["status", "conditions"])}});
        self.report(&mut wanted, now);
        let same = |kind: &str| {
            let part = |node: &Value| {
                condition::get(node, kind).map(|it| (it["status"].clone(), it["reason"].clone(), it["message"].clone()))
            };
            part(node) == part(&wanted)
        };
        let healthy = wanted.items(&["status", "conditions"]).iter().all(|it| same(it.text(&["type"])));
        let own = self.status();
        let own = own.members(&[]).iter().filter(|(field, value)| !holds(&node["status"][*field], value));
        for (field, value) in own {
            wanted["status"][field] = value.clone();
        }
        let reported: Option<Timestamp> =
            condition::get(node, "Ready").and_then(|ready| ready.text(&["lastHeartbeatTime"]).parse().ok());
        let is_old = reported.is_none_or(|reported| now.duration_since(reported) >= REPORT_EVERY);
        let as_it_should_be = healthy && !is_old && wanted.members(&["status"]).len() == 1;
        (!as_it_should_be).then_some(wanted)
    }

    /// The CSINode to create. It lists the drivers of this node, as a kubelet does after their registration.
    pub fn csi_node(&self, node: &Value) -> Value {
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
            "metadata": {"name": self.name, "ownerReferences": [owner(node)]},
            "spec": {"drivers": self.drivers.iter().map(|driver| self.csi_node_driver(driver)).collect::<Vec<_>>()},
        })
    }

    /// The driver's volumes are reachable from every node, and their number is not limited: no topology keys, no `allocatable`.
    fn csi_node_driver(&self, driver: &str) -> Value {
        json!({"name": driver, "nodeID": self.name, "topologyKeys": []})
    }

    /// A merge patch for an existing CSINode: the owner is the current Node, and the drivers of this node are listed. Entries of
    /// other drivers stay. The patch fails with a conflict if the CSINode has changed since.
    pub fn csi_node_correction(&self, csi_node: &Value, node: &Value) -> Option<Value> {
        let owners = json!([owner(node)]);
        let is_owned = csi_node["metadata"]["ownerReferences"] == owners;
        let listed = csi_node.items(&["spec", "drivers"]);
        let is_missing = |driver: &&String| !listed.iter().any(|entry| entry["name"] == ***driver);
        let missing: Vec<Value> =
            self.drivers.iter().filter(is_missing).map(|driver| self.csi_node_driver(driver)).collect();
        if is_owned && missing.is_empty() {
            return None;
        }
        let drivers: Vec<Value> = listed.iter().cloned().chain(missing).collect();
        Some(json!({
            "metadata": {
                "uid": uid(csi_node), "resourceVersion": csi_node.text(&["metadata", "resourceVersion"]),
                "ownerReferences": owners,
            },
            "spec": {"drivers": drivers},
        }))
    }

    /// The lease whose renewal is the node's heartbeat.
    pub fn lease(&self, node: &Value, now: Timestamp) -> Value {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": self.name, "namespace": LEASES, "ownerReferences": [owner(node)]},
            "spec": {"holderIdentity": self.name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": micros(now)},
        })
    }
}

/// A renewal of the lease, as a merge patch.
pub fn renewal(now: Timestamp) -> Value {
    json!({"spec": {"renewTime": micros(now)}})
}

fn owner(node: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "name": node.text(&["metadata", "name"]), "uid": uid(node)})
}

/// RFC 3339 with microseconds, as in Leases.
fn micros(now: Timestamp) -> String {
    format!("{now:.6}")
}

/// Whether `have` contains everything in `wanted`; other members belong to the user.
fn holds(have: &Value, wanted: &Value) -> bool {
    match (have, wanted) {
        (Value::Object(have), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| have.get(key).is_some_and(|have| holds(have, value)))
        }
        // Quantities are compared by value.
        _ => have == wanted || Quantity::of(wanted).is_some_and(|wanted| Quantity::of(have) == Some(wanted)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        let capacity = [("cpu", "8"), ("memory", "16Gi"), ("pods", "110")];
        Machine {
            name: "simulated-0".to_owned(),
            number: 4,
            address: "10.127.0.1".to_owned(),
            architecture: "amd64",
            capacity: capacity.map(|(name, amount)| (name.to_owned(), amount.to_owned())).into(),
            taints: Vec::new(),
            drivers: vec!["directory.example.com".to_owned()],
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_fresh_node_needs_no_correction_until_its_report_is_old() {
        let (machine, node) = (machine(), machine().node(at(0)));
        assert_eq!(node["metadata"]["labels"]["topology.kubernetes.io/zone"], "zone-b");
        assert_eq!(machine.missing_metadata(&node), None);
        assert_eq!(machine.correction(&node, at(299)), None);
        let again = machine.correction(&node, at(300)).unwrap();
        assert_eq!(again["status"]["conditions"][3]["lastHeartbeatTime"], "1970-01-01T00:05:00Z");
        assert_eq!(again["status"]["conditions"][3]["lastTransitionTime"], "1970-01-01T00:00:00Z");
        assert_eq!(again.members(&["status"]).len(), 1, "{again}");
    }

    #[test]
    fn changed_fields_are_corrected_and_added_fields_are_kept() {
        let (machine, mut node) = (machine(), machine().node(at(0)));
        node["status"]["capacity"]["example.com/gpu"] = json!("2");
        node["status"]["capacity"]["cpu"] = json!("8000m");
        node["metadata"]["labels"]["mine"] = json!("yes");
        assert_eq!((machine.correction(&node, at(1)), machine.missing_metadata(&node)), (None, None));
        node["status"]["conditions"][3]["status"] = json!("Unknown");
        node["status"]["capacity"]["cpu"] = json!("1");
        node["metadata"]["labels"].cut(&["kubernetes.io/os"]);
        let correction = machine.correction(&node, at(1)).unwrap();
        assert_eq!(correction["status"]["conditions"][3]["status"], "True");
        assert_eq!(correction["status"]["capacity"]["cpu"], "8");
        assert!(!correction["status"].has(&["allocatable"]), "{correction}");
        assert_eq!(
            machine.missing_metadata(&node),
            Some(json!({"metadata": {"labels": {"kubernetes.io/os": "linux"}}}))
        );
    }

    #[test]
    fn an_existing_csi_node_gets_its_owner_and_missing_drivers_and_keeps_others() {
        let (machine, mut node) = (machine(), machine().node(at(0)));
        node["metadata"]["uid"] = json!("u");
        let mut csi_node = machine.csi_node(&node);
        assert_eq!(
            csi_node["spec"]["drivers"],
            json!([{"name": "directory.example.com", "nodeID": "simulated-0", "topologyKeys": []}])
        );
        assert_eq!(machine.csi_node_correction(&csi_node, &node), None);

        let own = csi_node["spec"]["drivers"][0].clone();
        let other = json!({"name": "other.example.com", "nodeID": "x", "topologyKeys": ["zone"]});
        csi_node["spec"]["drivers"] = json!([other]);
        let patch = machine.csi_node_correction(&csi_node, &node).unwrap();
        assert_eq!(patch["spec"]["drivers"], json!([other, own]));

        // The Node was deleted and has registered again.
        let csi_node = machine.csi_node(&node);
        node["metadata"]["uid"] = json!("v");
        let patch = machine.csi_node_correction(&csi_node, &node).unwrap();
        assert_eq!(patch["metadata"]["ownerReferences"][0]["uid"], "v");
        assert_eq!(patch["spec"], csi_node["spec"]);
    }
}
