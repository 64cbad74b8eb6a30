//! The ServiceAccount of the simulated nodes, and its role. The scheduler has upstream's role `system:kube-scheduler`.

use kit::descriptor::{Rule, allow, bootstrap_binding, bootstrap_role, service_account};
use object::{Value, json};

/// The ServiceAccount in `kube-system` that simulated nodes act as. Those of `mainstay up` are one user, because they are one
/// process.
pub const ACCOUNT: &str = "mainstay-nodes";
/// The name of its roles and bindings on a Mainstay server.
const ROLE: &str = "mainstay:simulated-nodes";
/// The namespace of the Leases of nodes.
const LEASES: &str = "kube-node-lease";

/// What simulated nodes do: report themselves, run pods, expand their volumes. They see what the scheduler watches. They look up
/// the Secrets and ConfigMaps that a pod refers to by name, because missing ones hold the pod.
const RULES: &[Rule] = &[
    allow("create", "core", "nodes"),
    allow("get patch", "core", "nodes"),
    allow("patch", "core", "nodes/status"),
    allow("patch", "core", "pods/status persistentvolumeclaims/status"),
    allow("get delete", "core", "pods"),
    allow("get", "core", "persistentvolumeclaims configmaps secrets"),
    allow("create", "storage.k8s.io", "csinodes"),
    allow("get patch", "storage.k8s.io", "csinodes"),
    allow("create update patch", "core events.k8s.io", "events"),
];

/// The Leases of nodes, in their namespace.
const LEASE_RULE: Rule = allow("create patch", "coordination.k8s.io", "leases");

/// The part of the scheduler in `mainstay nodes`, which is one user for scheduler and nodes.
const SCHEDULER_RULES: &[Rule] = &[
    allow("list watch", "core", "namespaces nodes persistentvolumeclaims persistentvolumes pods"),
    allow("list watch", "storage.k8s.io", "storageclasses"),
    allow("create", "core", "pods/binding"),
    allow("get patch", "core", "persistentvolumeclaims"),
    allow("patch", "core", "persistentvolumes"),
];

/// The roles of the simulated nodes and their bindings, for a server that runs together with them.
pub fn bootstrap_objects() -> Vec<Value> {
    let rules = RULES.iter().map(Rule::to_value).collect();
    vec![
        bootstrap_role("ClusterRole", ROLE, None, rules),
        bootstrap_binding("ClusterRole", ROLE, None, service_account(ACCOUNT)),
        bootstrap_role("Role", ROLE, Some(LEASES), vec![LEASE_RULE.to_value()]),
        bootstrap_binding("Role", ROLE, Some(LEASES), service_account(ACCOUNT)),
    ]
}

/// The rules of `mainstay nodes` as one user with the nodes of these names, for its manifest. Rules name the nodes where they can.
pub fn manifest_rules(names: &[String]) -> Vec<Value> {
    let of_nodes = ["nodes", "nodes/status", "csinodes"];
    let mut rules: Vec<Value> = SCHEDULER_RULES.iter().map(Rule::to_value).collect();
    for rule in RULES {
        let can_be_named = of_nodes.contains(&rule.resources) && !rule.verbs.contains("create");
        let mut value = rule.to_value();
        if can_be_named && !names.is_empty() {
            value["resourceNames"] = json!(names);
        }
        rules.push(value);
    }
    rules
}

/// The rule for the Leases of nodes, for the manifest.
pub fn lease_rule() -> Value {
    LEASE_RULE.to_value()
}
