//! Roles for users and for components, as in upstream clusters.

use super::{
    ALL, READ, WRITE, allow, allow_named, allow_paths, cluster_binding, cluster_role, events, group, object, user,
};
use crate::authz::{GROUP, MASTERS, Rule};
use object::{Value, json};

const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";

pub fn objects() -> Vec<Value> {
    let mut objects = everyone();
    objects.extend(people());
    objects.extend(components());
    objects.extend(leader_election());
    objects
}

/// Roles of every client, or of every authenticated client.
fn everyone() -> Vec<Value> {
    let public = "/healthz /livez /readyz /version /version/";
    let discovery = "/healthz /livez /readyz /version /version/ /openapi /openapi/* /api /api/* /apis /apis/*";
    let monitoring = "/metrics /metrics/slis /healthz /healthz/* /livez /livez/* /readyz /readyz/*";
    let issuer =
        "/.well-known/openid-configuration /.well-known/openid-configuration/ /openid/v1/jwks /openid/v1/jwks/";
    let self_reviews = [
        allow("create", "authorization.k8s.io", "selfsubjectaccessreviews selfsubjectrulesreviews"),
        allow("create", "authentication.k8s.io", "selfsubjectreviews"),
    ];
    let bound = |name: &str, rules: &[Rule], groups: &[&str]| {
        [cluster_role(name, rules), cluster_binding(name, name, groups.iter().map(|name| group(name)).collect())]
    };
    [
        bound("cluster-admin", &[allow(ALL, ALL, ALL), allow_paths(ALL, ALL)], &[MASTERS]),
        bound("system:public-info-viewer", &[allow_paths("get", public)], &[AUTHENTICATED, UNAUTHENTICATED]),
        bound("system:discovery", &[allow_paths("get", discovery)], &[AUTHENTICATED]),
        bound("system:basic-user", &self_reviews, &[AUTHENTICATED]),
        bound("system:monitoring", &[allow_paths("get", monitoring)], &["system:monitoring"]),
        bound("system:service-account-issuer-discovery", &[allow_paths("get", issuer)], &["system:serviceaccounts"]),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Roles for users of a namespace: `view` is part of `edit`, and `edit` of `admin`. Labelled roles add rules to each.
fn people() -> Vec<Value> {
    vec![
        aggregated("admin", "admin", None),
        aggregated("edit", "edit", Some("admin")),
        aggregated("view", "view", Some("edit")),
        part("system:aggregate-to-admin", "admin", &admin_rules()),
        part("system:aggregate-to-edit", "edit", &edit_rules()),
        part("system:aggregate-to-view", "view", &view_rules()),
    ]
}

fn aggregation_label(target: &str) -> String {
    format!("rbac.authorization.k8s.io/aggregate-to-{target}")
}

/// A role that aggregates rules labelled for `from`, and is itself labelled for `to`.
fn aggregated(name: &str, from: &str, to: Option<&str>) -> Value {
    let mut role = object("ClusterRole", name);
    role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {aggregation_label(from): "true"}}]});
    if let Some(to) = to {
        role["metadata"]["labels"][aggregation_label(to)] = json!("true");
    }
    role
}

fn part(name: &str, to: &str, rules: &[Rule]) -> Value {
    let mut role = cluster_role(name, rules);
    role["metadata"]["labels"][aggregation_label(to)] = json!("true");
    role
}

fn admin_rules() -> Vec<Rule> {
    vec![
        allow("create", "authorization.k8s.io", "localsubjectaccessreviews"),
        allow(&format!("{READ} {WRITE}"), GROUP, "roles rolebindings"),
    ]
}

// `edit` and `view` include upstream kinds that Mainstay does not serve, such as Deployments, because charts create
// roles for them, and an editor of a namespace must be able to install these charts.

fn edit_rules() -> Vec<Rule> {
    let apps = "statefulsets statefulsets/scale daemonsets deployments deployments/scale deployments/rollback \
                replicasets replicasets/scale";
    vec![
        // Reading these gives the power to act with them, so `view` does not include them.
        allow(READ, "core", "pods/attach pods/exec pods/portforward pods/proxy secrets services/proxy"),
        allow("impersonate", "core", "serviceaccounts"),
        allow(WRITE, "core", "pods pods/attach pods/exec pods/portforward pods/proxy"),
        allow("create", "core", "pods/eviction serviceaccounts/token"),
        allow(
            WRITE,
            "core",
            "configmaps events persistentvolumeclaims replicationcontrollers replicationcontrollers/scale secrets \
             serviceaccounts services services/proxy",
        ),
        allow(WRITE, "apps", apps),
        allow(WRITE, "autoscaling", "horizontalpodautoscalers"),
        allow(WRITE, "batch", "cronjobs jobs"),
        allow(WRITE, "policy", "poddisruptionbudgets"),
        allow(WRITE, "networking.k8s.io", "ingresses networkpolicies"),
        allow(&format!("{READ} {WRITE}"), "coordination.k8s.io", "leases"),
    ]
}

fn view_rules() -> Vec<Rule> {
    let apps = "controllerrevisions statefulsets statefulsets/scale statefulsets/status daemonsets daemonsets/status \
                deployments deployments/scale deployments/status replicasets replicasets/scale replicasets/status";
    vec![
        allow(
            READ,
            "core",
            "configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods replicationcontrollers \
             replicationcontrollers/scale serviceaccounts services services/status",
        ),
        // Allows to read only the namespace of the binding.
        allow(
            READ,
            "core",
            "bindings events limitranges namespaces namespaces/status pods/log pods/status \
             replicationcontrollers/status resourcequotas resourcequotas/status",
        ),
        allow(READ, "events.k8s.io", "events"),
        allow(READ, "discovery.k8s.io", "endpointslices"),
        allow(READ, "apps", apps),
        allow(READ, "autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status"),
        allow(READ, "batch", "cronjobs cronjobs/status jobs jobs/status"),
        allow(READ, "policy", "poddisruptionbudgets poddisruptionbudgets/status"),
        allow(READ, "networking.k8s.io", "ingresses ingresses/status networkpolicies"),
    ]
}

/// Roles for components: schedulers, controller managers, nodes, provisioners.
fn components() -> Vec<Value> {
    let scheduler = || vec![user("system:kube-scheduler")];
    vec![
        cluster_role("system:auth-delegator", &[delegated_reviews()[0].clone(), delegated_reviews()[1].clone()]),
        cluster_role("system:persistent-volume-provisioner", &provisioner_rules()),
        cluster_role("system:kube-scheduler", &scheduler_rules()),
        cluster_binding("system:kube-scheduler", "system:kube-scheduler", scheduler()),
        cluster_role("system:volume-scheduler", &volume_scheduler_rules()),
        cluster_binding("system:volume-scheduler", "system:volume-scheduler", scheduler()),
        cluster_role("system:kube-controller-manager", &controller_manager_rules()),
        cluster_binding(
            "system:kube-controller-manager",
            "system:kube-controller-manager",
            vec![user("system:kube-controller-manager")],
        ),
        cluster_role("system:node-proxier", &proxier_rules()),
        cluster_binding("system:node-proxier", "system:node-proxier", vec![user("system:kube-proxy")]),
        // Without subjects, as upstream: nodes have permissions by name (`authz::node`). An administrator grants the
        // rest, such as Secrets, by binding this role to the user of one node.
        cluster_role("system:node", &kubelet_rules()),
        cluster_binding("system:node", "system:node", Vec::new()),
    ]
}

fn delegated_reviews() -> [Rule; 2] {
    [
        allow("create", "authentication.k8s.io", "tokenreviews"),
        allow("create", "authorization.k8s.io", "subjectaccessreviews"),
    ]
}

fn provisioner_rules() -> Vec<Rule> {
    vec![
        allow("get list watch create delete", "core", "persistentvolumes"),
        allow("get list watch update", "core", "persistentvolumeclaims"),
        allow(READ, "storage.k8s.io", "storageclasses"),
        allow("watch", "core", "events"),
        events(),
    ]
}

fn scheduler_rules() -> Vec<Rule> {
    let mut rules = vec![
        events(),
        allow("create", "coordination.k8s.io", "leases"),
        allow_named("get update", "coordination.k8s.io", "leases", "kube-scheduler"),
        allow(READ, "core", "namespaces nodes replicationcontrollers services"),
        allow("get list watch delete", "core", "pods"),
        allow("create", "core", "bindings pods/binding"),
        allow("update patch", "core", "pods/status"),
        allow(READ, "apps", "replicasets statefulsets"),
        allow(READ, "policy", "poddisruptionbudgets"),
        allow("get list watch update", "core", "persistentvolumeclaims persistentvolumes"),
        allow(READ, "storage.k8s.io", "csidrivers csinodes csistoragecapacities storageclasses volumeattachments"),
    ];
    rules.extend(delegated_reviews());
    rules
}

fn volume_scheduler_rules() -> Vec<Rule> {
    vec![
        allow("get list watch update patch", "core", "persistentvolumes persistentvolumeclaims"),
        allow(READ, "storage.k8s.io", "storageclasses"),
    ]
}

fn controller_manager_rules() -> Vec<Rule> {
    let mut rules = vec![
        events(),
        allow("create", "coordination.k8s.io", "leases"),
        allow_named(
            "get update patch",
            "coordination.k8s.io",
            "leases",
            "kube-controller-manager mainstay-controllers",
        ),
        // Maintains caches for all controllers, and creates their tokens.
        allow("list watch", ALL, ALL),
        allow("get create", "core", "serviceaccounts"),
        allow("create", "core", "serviceaccounts/token"),
    ];
    rules.extend(delegated_reviews());
    rules
}

fn proxier_rules() -> Vec<Rule> {
    vec![
        allow("list watch", "core", "endpoints services"),
        allow(READ, "core", "nodes"),
        allow("list watch", "discovery.k8s.io", "endpointslices"),
        events(),
    ]
}

fn kubelet_rules() -> Vec<Rule> {
    let mut rules = vec![
        allow("get list watch create update patch delete", "core", "nodes"),
        allow("update patch", "core", "nodes/status pods/status"),
        allow("get list watch create delete", "core", "pods"),
        allow("create", "core", "pods/eviction serviceaccounts/token"),
        allow(READ, "core", "configmaps secrets services"),
        allow("get", "core", "endpoints persistentvolumeclaims persistentvolumes"),
        allow("get update patch", "core", "persistentvolumeclaims/status"),
        allow("get create update patch delete", "coordination.k8s.io", "leases"),
        allow("get", "storage.k8s.io", "volumeattachments"),
        allow(READ, "storage.k8s.io", "csidrivers"),
        allow("get create update patch delete", "storage.k8s.io", "csinodes"),
        events(),
    ];
    rules.extend(delegated_reviews());
    rules
}

/// The Leases of components that may run more than once at a time.
fn leader_election() -> [Value; 2] {
    let name = "mainstay:leader-election";
    let mut role = object("Role", name);
    role["metadata"]["namespace"] = json!("kube-system");
    role["rules"] = json!([allow("get list watch create update patch", "coordination.k8s.io", "leases").to_value()]);
    let mut binding = object("RoleBinding", name);
    binding["metadata"]["namespace"] = json!("kube-system");
    binding["roleRef"] = json!({"apiGroup": GROUP, "kind": "Role", "name": name});
    binding["subjects"] = json!([user("system:kube-controller-manager")]);
    [role, binding]
}
