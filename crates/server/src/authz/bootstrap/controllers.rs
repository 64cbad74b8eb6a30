//! One ClusterRole per controller with the least permissions, bound to its ServiceAccount in `kube-system`.

use super::{ALL, allow, allow_named, cluster_binding, cluster_role, object, service_account, user};
use crate::authz::{GROUP, Rule};
use object::{Value, json};

pub fn objects() -> Vec<Value> {
    let mut objects = Vec::new();
    for (name, rules) in roles() {
        let role = format!("system:controller:{name}");
        objects.push(cluster_role(&role, &rules));
        objects.push(cluster_binding(&role, &role, vec![service_account(name)]));
    }
    objects.extend(leader_election());
    objects
}

/// The permissions of the controller with this ServiceAccount of `kube-system`, on this and any other Kubernetes API
/// server.
pub fn rules(account: &str) -> Vec<Rule> {
    roles().into_iter().filter(|(name, _)| *name == account).flat_map(|(_, rules)| rules).collect()
}

fn roles() -> Vec<(&'static str, Vec<Rule>)> {
    let mut roles = cluster_roles();
    roles.extend(volume_roles());
    roles.push(("statefulset-controller", statefulset_rules()));
    roles.push(("node-controller", node_lifecycle_rules()));
    roles.push(("pod-garbage-collector", pod_garbage_collector_rules()));
    roles.push(("endpoint-controller", endpoints_rules()));
    roles.push(("state-metrics", state_metrics_rules()));
    // Every controller may create events, at least to report missing permissions.
    roles.iter_mut().for_each(|(_, rules)| rules.push(allow("create patch", "core", "events")));
    roles
}

/// Controllers of the whole cluster.
fn cluster_roles() -> Vec<(&'static str, Vec<Rule>)> {
    vec![
        // Any kind can have owners and dependents, including custom kinds.
        ("generic-garbage-collector", vec![allow("get list watch patch delete", ALL, ALL)]),
        (
            "namespace-controller",
            vec![
                allow("get watch", "core", "namespaces"),
                allow("update", "core", "namespaces/finalize namespaces/status"),
                // Any kind can have objects in a namespace.
                allow("list delete", ALL, ALL),
            ],
        ),
        (
            "service-account-controller",
            vec![allow("list watch create", "core", "serviceaccounts"), allow("list watch", "core", "namespaces")],
        ),
        (
            "root-ca-cert-publisher",
            vec![allow("list watch create update", "core", "configmaps"), allow("list watch", "core", "namespaces")],
        ),
        (
            "clusterrole-aggregation-controller",
            // The controller copies rules that others wrote and that it does not have itself: hence `escalate`.
            vec![allow("list watch patch escalate", GROUP, "clusterroles")],
        ),
        (
            "disruption-controller",
            vec![
                allow("list watch", "core", "pods"),
                allow("list watch", "apps", "statefulsets"),
                allow("get", ALL, "*/scale"),
                allow("list watch", "policy", "poddisruptionbudgets"),
                allow("update", "policy", "poddisruptionbudgets/status"),
            ],
        ),
    ]
}

fn node_lifecycle_rules() -> Vec<Rule> {
    vec![
        allow("list watch patch", "core", "nodes"),
        allow("list watch", "coordination.k8s.io", "leases"),
        allow("list watch delete", "core", "pods"),
        allow("patch", "core", "nodes/status pods/status"),
    ]
}

fn pod_garbage_collector_rules() -> Vec<Rule> {
    vec![
        allow("list watch delete", "core", "pods"),
        allow("patch", "core", "pods/status"),
        allow("get list watch", "core", "nodes"),
        // Detaches volumes of lost nodes that no pod uses any more.
        allow("list watch delete", "storage.k8s.io", "volumeattachments"),
        allow("get", "core", "persistentvolumes"),
    ]
}

fn endpoints_rules() -> Vec<Rule> {
    vec![allow("list watch", "core", "pods services"), allow("list watch create update delete", "core", "endpoints")]
}

fn statefulset_rules() -> Vec<Rule> {
    vec![
        allow("get list watch", "apps", "statefulsets"),
        allow("update", "apps", "statefulsets/status"),
        // For owner references that block the owner's deletion.
        allow("update", "apps", "statefulsets/finalizers"),
        allow("list watch create patch delete", "core", "pods"),
        allow("list watch create patch delete", "apps", "controllerrevisions"),
        // It never deletes claims: owner references tell the garbage collector which ones to delete. But on API
        // servers with the admission plugin OwnerReferencesPermissionEnforcement, only a user who may delete an
        // object may change its owner references.
        allow("get list watch create patch delete", "core", "persistentvolumeclaims"),
    ]
}

/// Counts objects by state, for metrics.
fn state_metrics_rules() -> Vec<Rule> {
    vec![
        allow("list watch", "apps", "statefulsets"),
        allow("list watch", "core", "persistentvolumeclaims persistentvolumes"),
    ]
}

/// Controllers of PVs and claims.
fn volume_roles() -> Vec<(&'static str, Vec<Rule>)> {
    vec![
        (
            "persistent-volume-binder",
            vec![
                allow("get list watch create patch delete", "core", "persistentvolumes"),
                allow("get list watch patch", "core", "persistentvolumeclaims"),
                allow("patch", "core", "persistentvolumes/status persistentvolumeclaims/status"),
                allow("get", "core", "nodes"),
                allow("list watch", "core", "pods"),
                allow("list watch", "storage.k8s.io", "storageclasses"),
            ],
        ),
        (
            "pvc-protection-controller",
            vec![
                allow("list watch patch", "core", "persistentvolumeclaims"),
                allow("patch", "core", "persistentvolumeclaims/status"),
                allow("list watch", "core", "pods"),
            ],
        ),
        ("pv-protection-controller", vec![allow("list watch patch", "core", "persistentvolumes")]),
        (
            "volumeattributesclass-protection-controller",
            vec![
                allow("list watch patch", "storage.k8s.io", "volumeattributesclasses"),
                allow("list watch", "core", "persistentvolumeclaims persistentvolumes"),
            ],
        ),
        ("csi-provisioner", csi_provisioner_rules()),
        ("csi-resizer", csi_resizer_rules()),
        (
            "csi-health-monitor",
            vec![
                allow("get list watch", "core", "persistentvolumes"),
                allow("get", "core", "persistentvolumeclaims"),
                allow("patch", "core", "persistentvolumes/status persistentvolumeclaims/status"),
            ],
        ),
    ]
}

fn csi_provisioner_rules() -> Vec<Rule> {
    vec![
        allow("get list watch create patch delete", "core", "persistentvolumes"),
        allow("patch", "core", "persistentvolumes/status"),
        allow("get list watch patch", "core", "persistentvolumeclaims"),
        allow("list watch", "core", "nodes"),
        allow("get list watch", "storage.k8s.io", "storageclasses"),
        allow("list watch", "storage.k8s.io", "csinodes volumeattachments"),
        allow("get", "storage.k8s.io", "csidrivers volumeattributesclasses"),
        allow("list create update delete", "storage.k8s.io", "csistoragecapacities"),
        // A StorageClass may refer to the driver's credentials.
        allow("get", "core", "secrets"),
        // The journal that is written before a driver is called.
        allow_named("get patch", "core", "configmaps", "mainstay-csi-journal"),
        allow("create", "core", "configmaps"),
    ]
}

fn csi_resizer_rules() -> Vec<Rule> {
    vec![
        allow("get list watch patch", "core", "persistentvolumes"),
        allow("get list watch", "core", "persistentvolumeclaims"),
        allow("patch", "core", "persistentvolumeclaims/status"),
        allow("list", "core", "pods"),
        allow("list watch", "storage.k8s.io", "volumeattributesclasses"),
        allow("get", "core", "secrets"),
    ]
}

/// Leases of controllers that may run several times.
fn leader_election() -> [Value; 2] {
    let name = "mainstay:leader-election";
    let mut role = object("Role", name);
    role["metadata"]["namespace"] = json!("kube-system");
    role["rules"] = json!([allow("get list watch create update patch", "coordination.k8s.io", "leases").to_value()]);
    let mut binding = object("RoleBinding", name);
    binding["metadata"]["namespace"] = json!("kube-system");
    binding["roleRef"] = json!({"apiGroup": GROUP, "kind": "Role", "name": name});
    binding["subjects"] = json!([user("system:kube-controller-manager"),]);
    [role, binding]
}
