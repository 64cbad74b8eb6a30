//! CSIStorageCapacity objects: the free capacity of a driver per class and topology segment, for the scheduler.

use super::Driver;
use super::provision::string_map;
use super::topology::{self, Cluster, Segment};
use object::access::{Access, name};
use object::quantity::Quantity;
use object::{Value, json};
use std::collections::BTreeMap;

const DRIVER_LABEL: &str = "csi.storage.k8s.io/drivername";
const MANAGER_LABEL: &str = "csi.storage.k8s.io/managed-by";
/// The standard sidecar uses this name too, so that its objects are adopted.
const MANAGER: &str = "external-provisioner";

/// A wanted object: call GetCapacity with these parameters for this segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    pub class: String,
    pub parameters: BTreeMap<String, String>,
    /// Empty = everywhere.
    pub place: Segment,
}

/// A driver's response to GetCapacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Available {
    pub bytes: i64,
    pub largest_bytes: Option<i64>,
}

/// The objects wanted for a driver. A scheduler reads capacity only for classes with `WaitForFirstConsumer`, and only
/// if the CSIDriver object enables it.
pub fn wants(driver: &Driver, csi_driver: Option<&Value>, classes: &[&Value], cluster: &Cluster) -> Vec<Want> {
    let asked = csi_driver.is_some_and(|object| object.flag(&["spec", "storageCapacity"]));
    if !asked || !driver.can.get_capacity {
        return Vec::new();
    }
    let places = if driver.can.topology { topology::all(driver, cluster) } else { vec![Segment::new()] };
    let is_due = |class: &&&Value| {
        class.text(&["provisioner"]) == driver.name && class.text(&["volumeBindingMode"]) == "WaitForFirstConsumer"
    };
    let mut wants = Vec::new();
    for class in classes.iter().filter(is_due) {
        wants.extend(places.iter().map(|place| Want {
            class: name(class).to_owned(),
            parameters: string_map(class, &["parameters"]),
            place: place.clone(),
        }));
    }
    wants
}

/// The object with this capacity.
pub fn object(want: &Want, driver: &str, namespace: &str, available: Available) -> Value {
    let size = |bytes: i64| Quantity::from_bytes(bytes.max(0)).to_string();
    let mut object = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIStorageCapacity",
        "metadata": {
            "name": object_name(want, driver),
            "namespace": namespace,
            "labels": {DRIVER_LABEL: driver, MANAGER_LABEL: MANAGER},
        },
        "storageClassName": want.class,
        "nodeTopology": {"matchLabels": want.place},
        "capacity": size(available.bytes),
    });
    if let Some(largest) = available.largest_bytes {
        object.put(&["maximumVolumeSize"], size(largest));
    }
    object
}

/// Whether the existing object has this capacity.
pub fn is_current(existing: &Value, object: &Value) -> bool {
    let size = |object: &Value, field: &str| object.at(&[field]).and_then(Quantity::of);
    ["capacity", "maximumVolumeSize"].iter().all(|field| size(existing, field) == size(object, field))
}

/// The objects of a driver that are not wanted any more.
pub fn obsolete<'a>(driver: &str, existing: impl IntoIterator<Item = &'a Value>, wants: &[Want]) -> Vec<&'a Value> {
    let is_ours = |object: &Value| {
        let labels = ["metadata", "labels"];
        object.text(&[labels[0], labels[1], DRIVER_LABEL]) == driver
            && object.text(&[labels[0], labels[1], MANAGER_LABEL]) == MANAGER
    };
    let is_wanted = |object: &Value| wants.iter().any(|want| object_name(want, driver) == name(object));
    existing.into_iter().filter(|object| is_ours(object) && !is_wanted(object)).collect()
}

/// A name derived from driver, class and segment, so that a restart creates no second object.
pub fn object_name(want: &Want, driver: &str) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let place = want.place.iter().flat_map(|(key, value)| [key.as_str(), value.as_str()]);
    for word in [driver, want.class.as_str()].into_iter().chain(place) {
        for byte in word.bytes().chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("csisc-{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::Abilities;

    fn driver(topology: bool) -> Driver {
        let can = Abilities { get_capacity: true, topology, ..Abilities::default() };
        Driver { name: "d".to_owned(), can, ..Driver::default() }
    }

    fn class(name: &str, provisioner: &str, mode: &str) -> Value {
        json!({"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode, "parameters": {"a": "b"}})
    }

    #[test]
    fn one_object_per_waiting_class_and_segment() {
        let classes = [
            class("w", "d", "WaitForFirstConsumer"),
            class("i", "d", "Immediate"),
            class("o", "other", "WaitForFirstConsumer"),
        ];
        let classes: Vec<&Value> = classes.iter().collect();
        let asks = json!({"spec": {"storageCapacity": true}});
        let nodes = ["a", "b"].map(|zone| json!({"metadata": {"name": zone, "labels": {"zone": zone}}}));
        let csi_nodes = ["a", "b"].map(
            |zone| json!({"metadata": {"name": zone}, "spec": {"drivers": [{"name": "d", "topologyKeys": ["zone"]}]}}),
        );
        let (nodes, csi_nodes): (Vec<&Value>, Vec<&Value>) = (nodes.iter().collect(), csi_nodes.iter().collect());
        let cluster = Cluster { nodes: &nodes, csi_nodes: &csi_nodes };
        let everywhere = wants(&driver(false), Some(&asks), &classes, &cluster);
        assert_eq!(everywhere.iter().map(|want| want.class.as_str()).collect::<Vec<_>>(), ["w"]);
        assert_eq!(everywhere[0].parameters["a"], "b");
        let placed = wants(&driver(true), Some(&asks), &classes, &cluster);
        assert_eq!(placed.iter().map(|want| want.place["zone"].as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(wants(&driver(false), Some(&json!({})), &classes, &cluster), []);
        assert_eq!(wants(&Driver::default(), Some(&asks), &classes, &cluster), []);
    }

    #[test]
    fn objects_are_updated_and_deleted_when_obsolete() {
        let want = Want { class: "w".to_owned(), parameters: BTreeMap::new(), place: Segment::new() };
        let other = Want { class: "x".to_owned(), ..want.clone() };
        let five = object(&want, "d", "n", Available { bytes: 5 << 30, largest_bytes: Some(1 << 30) });
        assert_eq!((&five["capacity"], &five["maximumVolumeSize"]), (&json!("5Gi"), &json!("1Gi")));
        let same = object(&want, "d", "n", Available { bytes: 5 << 30, largest_bytes: Some(1 << 30) });
        let less = object(&want, "d", "n", Available { bytes: 4 << 30, largest_bytes: Some(1 << 30) });
        assert!(is_current(&five, &same) && !is_current(&five, &less));
        assert_eq!(name(&five), name(&less));
        let old = object(&other, "d", "n", Available { bytes: 0, largest_bytes: None });
        let foreign = object(&other, "e", "n", Available { bytes: 0, largest_bytes: None });
        let found = obsolete("d", [&five, &old, &foreign], std::slice::from_ref(&want));
        assert_eq!(found, [&old]);
    }
}
