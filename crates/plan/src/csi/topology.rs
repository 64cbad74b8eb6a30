//! Topology: the segments that a driver is offered for a volume, and the node affinity of the created PV.

use super::{Driver, SELECTED_NODE, annotation};
use object::access::{Access, name};
use object::{Value, json};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A topology segment: labels and their values.
pub type Segment = BTreeMap<String, String>;

/// The segments offered to a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    pub requisite: Vec<Segment>,
    /// The same segments, best first.
    pub preferred: Vec<Segment>,
}

/// The nodes and their CSINode objects.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cluster<'a> {
    pub nodes: &'a [&'a Value],
    /// CSINode objects.
    pub csi_nodes: &'a [&'a Value],
}

/// Why no segment can be offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// Temporary: retry.
    Passing(String),
    /// The selected node cannot be used: another one must be selected.
    Reschedule(String),
}

/// The segments to offer for a claim. `None` if the driver's volumes are reachable from everywhere.
pub fn offer(claim: &Value, class: &Value, driver: &Driver, cluster: &Cluster) -> Result<Option<Offer>, Obstacle> {
    if !driver.can.topology {
        return Ok(None);
    }
    let allowed = allowed(class);
    let waits = class.text(&["volumeBindingMode"]) == "WaitForFirstConsumer";
    let selected = annotation(claim, SELECTED_NODE);
    if waits && !selected.is_empty() {
        let segment = segment_of_selected(selected, driver, cluster)?;
        return for_selected(segment, allowed, driver, cluster).map(Some);
    }
    let requisite = if !allowed.is_empty() {
        allowed
    } else if driver.options.immediate_topology {
        aggregated(&keys_anywhere(driver, cluster)?, driver, cluster)?
    } else {
        return Ok(None);
    };
    let first = spread(name(claim), requisite.len());
    Ok(Some(Offer { preferred: rotated(&requisite, first), requisite }))
}

/// The node affinity of a volume that is reachable from these segments; `None` if from everywhere.
pub fn affinity(places: &[Segment]) -> Option<Value> {
    let term = |place: &Segment| {
        let wanted = place.iter().map(|(key, value)| json!({"key": key, "operator": "In", "values": [value]}));
        json!({"matchExpressions": wanted.collect::<Vec<_>>()})
    };
    let terms: Vec<Value> = places.iter().filter(|place| !place.is_empty()).map(term).collect();
    (!terms.is_empty()).then(|| json!({"required": {"nodeSelectorTerms": terms}}))
}

/// All segments of the cluster with the driver, sorted.
pub fn all(driver: &Driver, cluster: &Cluster) -> Vec<Segment> {
    let mut places = BTreeSet::new();
    for csi_node in cluster.csi_nodes {
        let keys = keys_on(csi_node, driver);
        let node = cluster.nodes.iter().find(|node| name(node) == name(csi_node));
        places.extend(node.and_then(|node| segment(node, &keys)).filter(|place| !place.is_empty()));
    }
    places.into_iter().collect()
}

fn for_selected(
    segment: Segment,
    allowed: Vec<Segment>,
    driver: &Driver,
    cluster: &Cluster,
) -> Result<Offer, Obstacle> {
    let fits = |place: &Segment| place.iter().all(|(key, value)| segment.get(key) == Some(value));
    if !allowed.is_empty() && !allowed.iter().any(fits) {
        return Err(Obstacle::Passing(format!("selected node's topology {segment:?} is not in allowed topologies")));
    }
    if driver.options.strict_topology {
        return Ok(Offer { requisite: vec![segment.clone()], preferred: vec![segment] });
    }
    let requisite = if allowed.is_empty() {
        let keys: Vec<String> = segment.keys().cloned().collect();
        aggregated(&keys, driver, cluster)?
    } else {
        allowed
    };
    let first = requisite.iter().position(fits).unwrap_or(0);
    Ok(Offer { preferred: rotated(&requisite, first), requisite })
}

fn segment_of_selected(selected: &str, driver: &Driver, cluster: &Cluster) -> Result<Segment, Obstacle> {
    let Some(csi_node) = cluster.csi_nodes.iter().find(|node| name(node) == selected) else {
        return Err(Obstacle::Reschedule(format!("error getting CSINode for selected node \"{selected}\": not found")));
    };
    let Some(node) = cluster.nodes.iter().find(|node| name(node) == selected) else {
        return Err(Obstacle::Passing(format!("error getting selected node \"{selected}\": not found")));
    };
    let keys = keys_on(csi_node, driver);
    if keys.is_empty() {
        return Err(Obstacle::Passing(format!("no topology key found on CSINode {selected}")));
    }
    segment(node, &keys)
        .ok_or_else(|| Obstacle::Passing(format!("topology labels from selected node {selected} not found: {keys:?}")))
}

/// The topology keys of the driver, from the first node that has any.
fn keys_anywhere(driver: &Driver, cluster: &Cluster) -> Result<Vec<String>, Obstacle> {
    let mut found = cluster.csi_nodes.iter().map(|node| keys_on(node, driver)).filter(|keys| !keys.is_empty());
    found.next().ok_or_else(|| Obstacle::Passing("no available topology found".to_owned()))
}

/// The distinct segments of the nodes with these keys.
fn aggregated(keys: &[String], driver: &Driver, cluster: &Cluster) -> Result<Vec<Segment>, Obstacle> {
    let runs = |node: &Value| {
        cluster.csi_nodes.iter().any(|csi_node| {
            name(csi_node) == name(node) && keys_on(csi_node, driver).iter().any(|key| keys.contains(key))
        })
    };
    let places: BTreeSet<Segment> =
        cluster.nodes.iter().filter(|node| runs(node)).filter_map(|node| segment(node, keys)).collect();
    if places.is_empty() {
        return Err(Obstacle::Passing("no available topology found".to_owned()));
    }
    Ok(places.into_iter().collect())
}

fn keys_on(csi_node: &Value, driver: &Driver) -> Vec<String> {
    let found = csi_node.items(&["spec", "drivers"]).iter().find(|entry| entry.text(&["name"]) == driver.name);
    found.map(|entry| super::texts(entry.items(&["topologyKeys"]))).unwrap_or_default()
}

/// The node's values of these labels; `None` if it lacks one.
fn segment(node: &Value, keys: &[String]) -> Option<Segment> {
    let labels = node.members(&["metadata", "labels"]);
    keys.iter().map(|key| Some((key.clone(), labels.get(key)?.as_str()?.to_owned()))).collect()
}

/// The class's allowed topologies: one segment per combination of values, sorted and distinct.
fn allowed(class: &Value) -> Vec<Segment> {
    let mut places = BTreeSet::new();
    for term in class.items(&["allowedTopologies"]) {
        let mut combined = vec![Segment::new()];
        for wanted in term.items(&["matchLabelExpressions"]) {
            let key = wanted.text(&["key"]);
            let values = super::texts(wanted.items(&["values"]));
            let with = |place: &Segment| {
                let place = place.clone();
                values.iter().map(move |value| {
                    let mut place = place.clone();
                    place.insert(key.to_owned(), value.clone());
                    place
                })
            };
            combined = combined.iter().flat_map(with).collect();
        }
        places.extend(combined.into_iter().filter(|place| !place.is_empty()));
    }
    places.into_iter().collect()
}

fn rotated(places: &[Segment], first: usize) -> Vec<Segment> {
    let mut rotated = places.to_vec();
    rotated.rotate_left(first.min(places.len()));
    rotated
}

/// The index of the preferred segment: spread by claim name. Claims of a StatefulSet rotate by ordinal, and the claims
/// of one pod get the same segment: of `data-web-3` only `web` and 3 count.
fn spread(claim: &str, places: usize) -> usize {
    let Ok(count) = u64::try_from(places) else { return 0 };
    if count == 0 {
        return 0;
    }
    let ordinal = claim.rsplit_once('-').and_then(|(rest, last)| Some((rest, last.parse::<u32>().ok()?)));
    let (hashed, index) = match ordinal {
        Some((rest, ordinal)) => (rest.rsplit_once('-').map_or(rest, |(_, set)| set), ordinal),
        None => (claim, 0),
    };
    let start = u64::from(fnv1(hashed)).wrapping_add(u64::from(index)) % count;
    usize::try_from(start).unwrap_or(0)
}

/// FNV-1 with 32 bits, as upstream: clusters that migrate keep their distribution.
fn fnv1(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash: u32, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::{Abilities, Options};

    const ZONE: &str = "topology.example.com/zone";

    fn driver() -> Driver {
        Driver {
            name: "d.example.com".to_owned(),
            can: Abilities { topology: true, ..Abilities::default() },
            options: Options::default(),
        }
    }

    fn node(zone: &str) -> Value {
        json!({"metadata": {"name": format!("node-{zone}"), "labels": {ZONE: zone, "other": "x"}}})
    }

    fn csi_node(zone: &str) -> Value {
        let drivers =
            json!([{"name": "other", "topologyKeys": ["other"]}, {"name": "d.example.com", "topologyKeys": [ZONE]}]);
        json!({"metadata": {"name": format!("node-{zone}")}, "spec": {"drivers": drivers}})
    }

    fn place(zone: &str) -> Segment {
        Segment::from([(ZONE.to_owned(), zone.to_owned())])
    }

    fn zones(places: &[Segment]) -> String {
        places.iter().map(|place| place[ZONE].as_str()).collect::<Vec<_>>().join(" ")
    }

    fn claim(name: &str, selected: &str) -> Value {
        json!({"metadata": {"name": name, "annotations": {SELECTED_NODE: selected}}})
    }

    fn class(waits: bool, allowed: &[&str]) -> Value {
        let mode = if waits { "WaitForFirstConsumer" } else { "Immediate" };
        let mut class = json!({"volumeBindingMode": mode});
        if !allowed.is_empty() {
            class["allowedTopologies"] = json!([{"matchLabelExpressions": [{"key": ZONE, "values": allowed}]}]);
        }
        class
    }

    fn offered(claim: &Value, class: &Value, driver: &Driver) -> Result<Option<(String, String)>, Obstacle> {
        let (nodes, csi_nodes) = (["c", "a", "b"].map(node), ["b", "c", "a"].map(csi_node));
        let (nodes, csi_nodes): (Vec<&Value>, Vec<&Value>) = (nodes.iter().collect(), csi_nodes.iter().collect());
        let found = offer(claim, class, driver, &Cluster { nodes: &nodes, csi_nodes: &csi_nodes })?;
        Ok(found.map(|offer| (zones(&offer.requisite), zones(&offer.preferred))))
    }

    #[test]
    fn the_table_of_offers() {
        let strict = Driver { options: Options { strict_topology: true, ..Options::default() }, ..driver() };
        let narrow = Driver { options: Options { immediate_topology: false, ..Options::default() }, ..driver() };
        let pair = |requisite: &str, preferred: &str| Ok(Some((requisite.to_owned(), preferred.to_owned())));
        let cases = [
            (claim("x", "node-b"), class(true, &[]), &strict, pair("b", "b")),
            (claim("x", "node-b"), class(true, &["c", "b"]), &strict, pair("b", "b")),
            (claim("x", "node-b"), class(true, &[]), &driver(), pair("a b c", "b c a")),
            (claim("x", "node-c"), class(true, &["c", "b"]), &driver(), pair("b c", "c b")),
            (claim("x", ""), class(false, &[]), &narrow, Ok(None)),
            (claim("x", ""), class(false, &[]), &Driver::default(), Ok(None)),
        ];
        for (claim, class, driver, want) in cases {
            assert_eq!(offered(&claim, &class, driver), want, "{claim} {class} {:?}", driver.options);
        }
        let wrong = offered(&claim("x", "node-a"), &class(true, &["b"]), &driver());
        assert!(matches!(wrong, Err(Obstacle::Passing(why)) if why.contains("allowed topologies")));
    }

    /// D26
    #[test]
    fn claims_of_a_set_rotate_and_claims_of_one_pod_get_the_same_segment() {
        let first = |name: &str| {
            let (requisite, preferred) = offered(&claim(name, ""), &class(false, &[]), &driver()).unwrap().unwrap();
            assert_eq!(requisite, "a b c");
            preferred[..1].to_owned()
        };
        let round: BTreeSet<String> = ["data-web-0", "data-web-1", "data-web-2"].map(first).into();
        assert_eq!(round.len(), 3);
        assert_eq!(first("data-web-0"), first("logs-web-0"));
        assert_eq!(first("data-web-0"), first("data-web-3"));
        // 32-bit FNV-1, not FNV-1a.
        assert_eq!((fnv1(""), fnv1("a"), fnv1("foobar")), (0x811c_9dc5, 0x050c_5d7e, 0x31f0_b262));
    }

    /// C11
    #[test]
    fn a_missing_selected_node_is_rescheduled() {
        let (nodes, csi_nodes) = ([node("a")], [csi_node("a"), csi_node("b")]);
        let (nodes, csi_nodes): (Vec<&Value>, Vec<&Value>) = (nodes.iter().collect(), csi_nodes.iter().collect());
        let cluster = Cluster { nodes: &nodes, csi_nodes: &csi_nodes };
        let gone = offer(&claim("x", "node-z"), &class(true, &[]), &driver(), &cluster);
        assert!(matches!(gone, Err(Obstacle::Reschedule(_))));
        let half_gone = offer(&claim("x", "node-b"), &class(true, &[]), &driver(), &cluster);
        assert!(matches!(half_gone, Err(Obstacle::Passing(_))));
        let nowhere = offer(&claim("x", ""), &class(false, &[]), &driver(), &Cluster::default());
        assert!(matches!(nowhere, Err(Obstacle::Passing(_))));
    }

    #[test]
    fn affinity_has_one_term_per_segment() {
        assert_eq!(affinity(&[]), None);
        assert_eq!(affinity(&[Segment::new()]), None);
        let found = affinity(&[place("a"), place("b")]).unwrap();
        let terms = found.items(&["required", "nodeSelectorTerms"]);
        assert_eq!(terms[1]["matchExpressions"], json!([{"key": ZONE, "operator": "In", "values": ["b"]}]));
        assert_eq!(terms.len(), 2);
    }
}
