//! A busy leader is frozen for longer than its lease, and resumes while another process leads.

use crate::support::{Cluster, Kubectl, Place, kubectl_on};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::suite::Members;

/// How many nodes the first process simulates. The second one has only one node, so only the first reports pods on the
/// others.
const NODES: &str = "60";
const FIRST_NODE: &str = "simulated-0";
const REPLICAS: usize = 500;
/// The first process is frozen when this many pods run.
const RUNNING: usize = 40;

fn set() -> String {
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "many"},
        "spec": {"serviceName": "many", "replicas": REPLICAS, "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "many"}}, "template": {
                "metadata": {"labels": {"app": "many"}}, "spec": {"containers": [{"name": "main", "image": "x"}]}}},
    })
    .to_string()
}

/// What only the first process writes: the status of its leases, and of the pods on its nodes.
fn written_by_first(kubectl: &Kubectl) -> BTreeMap<String, String> {
    let text = |object: &Value, path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
    let items = |list: Value| list["items"].as_array().expect("a list").clone();
    let leases = items(kubectl.value("get leases -n kube-node-lease -o json")).into_iter();
    let leases = leases.filter(|lease| text(lease, "/metadata/name") != FIRST_NODE);
    let leases = leases.map(|lease| (text(&lease, "/metadata/name"), text(&lease, "/metadata/resourceVersion")));
    let pods = items(kubectl.value("get pods -l app=many -o json")).into_iter();
    let pods = pods.filter(|pod| !["", FIRST_NODE].contains(&&*text(pod, "/spec/nodeName")));
    let pods = pods.map(|pod| (text(&pod, "/metadata/name"), text(&pod, "/status/phase")));
    leases.chain(pods).collect()
}

/// The simulated nodes and the scheduler of a stale leader write nothing. They had an unfenced client, and hundreds of
/// their writes were committed after the term.
#[test]
fn the_nodes_of_a_frozen_leader_write_nothing_after_its_term() {
    let Some(members) = Members::start(1) else { return };
    let url = members.url();
    let first = Cluster::start_with(Place::Etcd(&url), &["--no-builtin-storage", "--nodes", NODES]);
    first.line_with(&["Leading"]);
    let second = Arc::new(Cluster::start_with(Place::Etcd(&url), &["--no-builtin-storage", "--nodes", "1"]));
    let Some(kubectl) = kubectl_on(&second) else { return };
    second.line_with(&["Standing by"]);
    kubectl.until("get nodes -o name", |names| names.lines().count().to_string() == NODES);
    kubectl.create(&set());
    let running = "get pods --field-selector=status.phase=Running -o name";
    kubectl.until(running, |names| names.lines().count() >= RUNNING);
    first.pause();
    second.line_with(&["Leading"]);
    // The second leader works: it binds pods to nodes of the first process, where they stay pending.
    kubectl.until("get pods -o name", |names| names.lines().count() == REPLICAS);
    kubectl.until("get pods --field-selector=spec.nodeName= -o name", str::is_empty);
    let before = written_by_first(&kubectl);
    let pending = before.values().filter(|phase| *phase == "Pending").count();
    assert!(pending > RUNNING, "{pending} pods wait for the nodes of the first process");
    first.resume();
    first.line_with(&["the lease was lost"]);
    // Everything that it ran has stopped when it stands by, or when it ends because it could not stop in time.
    drop(first.line_or_end(&["Standing by"]));
    let after = written_by_first(&kubectl);
    let changed: Vec<_> = after.iter().filter(|(name, state)| before.get(*name) != Some(state)).collect();
    assert!(changed.is_empty(), "{} objects were written by a stale leader: {changed:?}", changed.len());
}
