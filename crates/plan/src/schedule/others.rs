//! Rules between pods: affinity, anti-affinity and topology spread.

use super::Key;
use super::cluster::Cluster;
use super::facts::{Labels, Node, Pod, Wants};
use super::selector::suits;
use super::why::Reason;
use object::Value;
use object::access::Access;
use object::selector::{LabelSelector, Operator, Requirement};
use std::collections::{BTreeMap, BTreeSet};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
/// More pods than any cluster has.
const FAR_AWAY: i64 = 1 << 32;
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// The constraints that other pods put on where a pod can be.
#[derive(Debug, Default)]
pub struct Neighbours {
    /// Required affinity: the pod must be in one of these domains of each topology.
    near: Vec<(String, BTreeSet<String>)>,
    /// Required anti-affinity: the pod must not be in any of these domains.
    apart: Vec<(String, BTreeSet<String>)>,
    /// The same, from the anti-affinity of other pods.
    others_apart: Vec<(String, BTreeSet<String>)>,
    spread: Vec<Spread>,
    /// Preferred affinity and anti-affinity: weights of domains per topology.
    liked: Vec<(String, BTreeMap<String, i64>)>,
    /// Spread constraints with ScheduleAnyway.
    evened: Vec<Spread>,
}

#[derive(Debug)]
struct Spread {
    topology: String,
    /// The number of matching pods in each domain.
    counts: BTreeMap<String, i64>,
    least: i64,
    skew_max: i64,
    /// 1 if the pod itself matches.
    own: i64,
}

impl Neighbours {
    pub fn of(cluster: &Cluster, key: &Key, pod: &Pod, wants: &Wants) -> Neighbours {
        let spec = &wants.spec;
        let (spread, evened) = (spreads(cluster, key, pod, spec, true), spreads(cluster, key, pod, spec, false));
        let mut neighbours = Neighbours { spread, evened, ..Neighbours::default() };
        for (kind, sign) in [("podAffinity", 1), ("podAntiAffinity", -1)] {
            for preference in spec.items(&["affinity", kind, PREFERRED]) {
                let weight = sign * preference.int(&["weight"]).unwrap_or(0);
                let term = Term::of(preference.at(&["podAffinityTerm"]).unwrap_or(&Value::Null), &key.0, &pod.labels);
                let mut liked = BTreeMap::new();
                each_match(cluster, &term, key, |domain| *liked.entry(domain.to_owned()).or_default() += weight);
                neighbours.liked.push((term.topology, liked));
            }
        }
        for term in spec.items(&["affinity", "podAffinity", REQUIRED]) {
            let term = Term::of(term, &key.0, &pod.labels);
            let domains = domains(cluster, &term, key);
            // The first pod of a group with affinity to itself has no other pod to be near.
            if !domains.is_empty() || !term.takes(cluster, key, &pod.labels) {
                neighbours.near.push((term.topology, domains));
            } else {
                neighbours.near.push((term.topology.clone(), all_domains(cluster, &term.topology)));
            }
        }
        for term in spec.items(&["affinity", "podAntiAffinity", REQUIRED]) {
            let term = Term::of(term, &key.0, &pod.labels);
            let domains = domains(cluster, &term, key);
            neighbours.apart.push((term.topology, domains));
        }
        neighbours.heed_others(cluster, key, pod);
        neighbours
    }

    fn heed_others(&mut self, cluster: &Cluster, key: &Key, pod: &Pod) {
        for other_key in cluster.apart_from(&key.0).filter(|other| *other != key) {
            let Some(other) = cluster.pods.get(other_key) else { continue };
            let Some(node) = other.standing.node().and_then(|node| cluster.nodes.get(node)) else { continue };
            for term in &other.apart {
                let term = Term::of(term, &other_key.0, &other.labels);
                if let Some(domain) = node.label(&term.topology)
                    && term.takes(cluster, key, &pod.labels)
                {
                    self.others_apart.push((term.topology.clone(), BTreeSet::from([domain.to_owned()])));
                }
            }
        }
    }

    /// The sum of the weights of preferred affinity and anti-affinity for a node.
    pub fn liking(&self, node: &Node) -> i64 {
        let liking = |(topology, liked): &(String, BTreeMap<String, i64>)| {
            node.label(topology).and_then(|domain| liked.get(domain)).copied().unwrap_or(0)
        };
        self.liked.iter().map(liking).sum()
    }

    /// The number of matching pods in the node's domains, for spread constraints with ScheduleAnyway.
    pub fn crowd(&self, node: &Node) -> i64 {
        let there = |spread: &Spread| {
            let domain = node.label(&spread.topology);
            // A node without the topology label ranks last.
            domain.map_or(FAR_AWAY, |domain| spread.counts.get(domain).copied().unwrap_or(0))
        };
        self.evened.iter().map(there).sum()
    }

    /// Why the node does not fit.
    pub fn judge(&self, node: &Node) -> Option<Reason> {
        for spread in &self.spread {
            let Some(domain) = node.label(&spread.topology) else { return Some(Reason::SpreadLabel) };
            let there = spread.counts.get(domain).copied().unwrap_or(0);
            if there + spread.own - spread.least > spread.skew_max {
                return Some(Reason::Spread);
            }
        }
        let within = |(topology, domains): &(String, BTreeSet<String>)| {
            node.label(topology).is_some_and(|domain| domains.contains(domain))
        };
        if !self.near.iter().all(within) {
            Some(Reason::NearOthers)
        } else if self.apart.iter().any(within) {
            Some(Reason::ApartFromOthers)
        } else if self.others_apart.iter().any(within) {
            Some(Reason::OthersApart)
        } else {
            None
        }
    }
}

/// A term of affinity or anti-affinity.
struct Term<'a> {
    topology: String,
    selector: LabelSelector,
    /// Requirements from `matchLabelKeys` and `mismatchLabelKeys`.
    keys: Vec<Requirement>,
    namespaces: Vec<&'a str>,
    namespace_selector: Option<LabelSelector>,
    own_namespace: &'a str,
}

impl<'a> Term<'a> {
    fn of(term: &'a Value, own_namespace: &'a str, own: &Labels) -> Term<'a> {
        let read = |selector: &Value| LabelSelector::from_object(selector).unwrap_or_else(|_| LabelSelector::nothing());
        Term {
            topology: term.text(&["topologyKey"]).to_owned(),
            selector: read(term.at(&["labelSelector"]).unwrap_or(&Value::Null)),
            keys: match_keys(term, own),
            namespaces: term.items(&["namespaces"]).iter().filter_map(Value::as_str).collect(),
            namespace_selector: term.at(&["namespaceSelector"]).map(read),
            own_namespace,
        }
    }

    fn takes(&self, cluster: &Cluster, key: &Key, labels: &Labels) -> bool {
        self.takes_namespace(cluster, &key.0) && self.takes_labels(labels)
    }

    fn takes_labels(&self, labels: &Labels) -> bool {
        self.selector.takes(|key| labels.get(key))
            && self.keys.iter().all(|wanted| wanted.takes(labels.get(&wanted.key)))
    }

    fn takes_namespace(&self, cluster: &Cluster, namespace: &str) -> bool {
        match &self.namespace_selector {
            None if self.namespaces.is_empty() => namespace == self.own_namespace,
            _ if self.namespaces.contains(&namespace) => true,
            None => false,
            Some(selector) => {
                let labels = cluster.namespaces.get(namespace).unwrap_or(&Value::Null);
                selector.takes(|key| labels.get(key).and_then(Value::as_str))
            }
        }
    }
}

fn match_keys(term: &Value, own: &Labels) -> Vec<Requirement> {
    let keys = [("matchLabelKeys", Operator::In), ("mismatchLabelKeys", Operator::NotIn)];
    let listed = keys.iter().flat_map(|(list, operator)| term.items(&[list]).iter().map(move |key| (key, *operator)));
    listed
        .filter_map(|(key, operator)| {
            let key = key.as_str()?;
            Some(Requirement { key: key.to_owned(), operator, values: vec![own.get(key)?.to_owned()] })
        })
        .collect()
}

/// The domains with a pod that the term matches.
fn domains(cluster: &Cluster, term: &Term<'_>, but: &Key) -> BTreeSet<String> {
    let mut domains = BTreeSet::new();
    each_match(cluster, term, but, |domain| {
        if !domains.contains(domain) {
            domains.insert(domain.to_owned());
        }
    });
    domains
}

/// Visits the domain of every scheduled pod that the term matches.
fn each_match(cluster: &Cluster, term: &Term<'_>, but: &Key, mut visit: impl FnMut(&str)) {
    let mut look = |(key, pod): (&Key, &Pod)| {
        if key != but
            && let Some(node) = pod.standing.node().and_then(|node| cluster.nodes.get(node))
            && let Some(domain) = node.label(&term.topology)
            && term.takes(cluster, key, &pod.labels)
        {
            visit(domain);
        }
    };
    if term.namespace_selector.is_some() {
        cluster.pods.iter().for_each(look);
    } else if term.namespaces.is_empty() {
        cluster.pods_in(term.own_namespace).for_each(look);
    } else {
        term.namespaces.iter().flat_map(|namespace| cluster.pods_in(namespace)).for_each(&mut look);
    }
}

fn all_domains(cluster: &Cluster, topology: &str) -> BTreeSet<String> {
    cluster.nodes.values().filter_map(|node| node.label(topology)).map(str::to_owned).collect()
}

/// The hard constraints (DoNotSchedule), or the soft ones (ScheduleAnyway).
fn spreads(cluster: &Cluster, key: &Key, pod: &Pod, spec: &Value, hard: bool) -> Vec<Spread> {
    let constraints = spec.items(&["topologySpreadConstraints"]).iter();
    let is_hard = |constraint: &Value| constraint.text(&["whenUnsatisfiable"]) != "ScheduleAnyway";
    let chosen: Vec<&Value> = constraints.filter(|constraint| is_hard(constraint) == hard).collect();
    let topologies: Vec<&str> = chosen.iter().map(|constraint| constraint.text(&["topologyKey"])).collect();
    chosen.iter().map(|constraint| spread(cluster, key, pod, spec, constraint, &topologies)).collect()
}

fn spread(cluster: &Cluster, key: &Key, pod: &Pod, spec: &Value, constraint: &Value, topologies: &[&str]) -> Spread {
    let topology = constraint.text(&["topologyKey"]);
    let term = Term::of(constraint, &key.0, &pod.labels);
    let honours_affinity = constraint.text(&["nodeAffinityPolicy"]) != "Ignore";
    let honours_taints = constraint.text(&["nodeTaintsPolicy"]) == "Honor";
    let tolerations = spec.items(&["tolerations"]);
    // Only nodes that the pod is eligible for count as domains.
    let eligible = |name: &str, node: &Node| {
        topologies.iter().all(|topology| node.label(topology).is_some())
            && (!honours_affinity || suits(spec, name, node))
            && (!honours_taints || node.hard_taints().all(|taint| taint.is_tolerated(tolerations)))
    };
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    let mut eligible_nodes: BTreeSet<&str> = BTreeSet::new();
    for (name, node) in cluster.nodes.iter().filter(|(name, node)| eligible(name, node)) {
        counts.entry(node.label(topology).unwrap_or("").to_owned()).or_default();
        eligible_nodes.insert(name);
    }
    for (other_key, other) in cluster.pods_in(&key.0).filter(|(other, pod)| *other != key && !pod.terminating) {
        if let Some(name) = other.standing.node().filter(|name| eligible_nodes.contains(&***name))
            && term.takes_labels(&other.labels)
            && let Some(domain) = cluster.nodes.get(name).and_then(|node| node.label(topology))
        {
            debug_assert_eq!(other_key.0, key.0, "spreading counts pods of one namespace");
            *counts.entry(domain.to_owned()).or_default() += 1;
        }
    }
    let domains = i64::try_from(counts.len()).unwrap_or(i64::MAX);
    let too_few = constraint.int(&["minDomains"]).is_some_and(|least| domains < least);
    Spread {
        topology: topology.to_owned(),
        least: if too_few { 0 } else { counts.values().copied().min().unwrap_or(0) },
        counts,
        skew_max: constraint.int(&["maxSkew"]).unwrap_or(1),
        own: i64::from(term.takes_labels(&pod.labels)),
    }
}
