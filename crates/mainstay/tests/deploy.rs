//! The manifests in `deploy/` say what the controllers and the nodes need, neither more nor less, and the page about them is complete.

use server::authz::Rule;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Set it to write the manifest anew, after a controller or its rights changed.
const UPDATE: &str = "UPDATE_MANIFESTS";

const BEFORE: &str = r#"# What `mainstay controllers` needs in a Kubernetes cluster: a ServiceAccount, its rights, and the rights to its Lease.
#
#   kubectl apply -f controllers.yaml
#   kubectl -n kube-system create token mainstay-controllers     # for a kubeconfig outside the cluster
#
# The rules are in blocks, one for each controller. If you leave a controller out (--controllers '*,-NAME'), cut its block.
# docs/controllers.md says more. `UPDATE_MANIFESTS=1 cargo test -p mainstay --test deploy` writes this file.
apiVersion: v1
kind: ServiceAccount
metadata:
  name: mainstay-controllers
  namespace: kube-system
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: mainstay-controllers
rules:
"#;

const AFTER: &str = r#"---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: mainstay-controllers
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: mainstay-controllers
subjects:
  - kind: ServiceAccount
    name: mainstay-controllers
    namespace: kube-system
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: mainstay-controllers
  namespace: kube-system
rules:
  - apiGroups: ["coordination.k8s.io"]
    resources: ["leases"]
    verbs: ["create"]
  - apiGroups: ["coordination.k8s.io"]
    resources: ["leases"]
    resourceNames: ["mainstay-controllers"]
    verbs: ["get", "watch", "update"]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: mainstay-controllers
  namespace: kube-system
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: mainstay-controllers
subjects:
  - kind: ServiceAccount
    name: mainstay-controllers
    namespace: kube-system
"#;

#[test]
fn the_rights_of_the_controllers_are_exactly_those_in_the_manifest() {
    let mut expected = BEFORE.to_owned();
    for controller in runtime::descriptors() {
        let rules = Rule::of_role(&controller.role());
        let _ = writeln!(expected, "  # {}", controller.name);
        rules.iter().for_each(|rule| expected.push_str(&yaml(rule)));
    }
    expected.push_str(AFTER);
    in_step("deploy/controllers.yaml", &expected);
}

const IN_NAMESPACE: &str = r#"# What `mainstay controllers --namespaces shop` needs: a ServiceAccount, rights in the namespace `shop` alone, and to the volumes of the
# cluster, which are in no namespace. Another namespace:
#
#   sed 's/shop/NAME/' namespace.yaml | kubectl apply -f -
#   kubectl -n NAME create token mainstay-controllers     # for a kubeconfig outside the cluster
#
# The Lease is in the namespace too (--lease-namespace). docs/controllers.md says more.
# `UPDATE_MANIFESTS=1 cargo test -p mainstay --test deploy` writes this file.
apiVersion: v1
kind: ServiceAccount
metadata:
  name: mainstay-controllers
  namespace: shop
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: mainstay-controllers
  namespace: shop
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: mainstay-controllers
subjects:
  - kind: ServiceAccount
    name: mainstay-controllers
    namespace: shop
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: mainstay-volumes-shop
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: mainstay-volumes
subjects:
  - kind: ServiceAccount
    name: mainstay-controllers
    namespace: shop
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: mainstay-controllers
  namespace: shop
rules:
  - apiGroups: ["coordination.k8s.io"]
    resources: ["leases"]
    verbs: ["create"]
  - apiGroups: ["coordination.k8s.io"]
    resources: ["leases"]
    resourceNames: ["mainstay-controllers"]
    verbs: ["get", "watch", "update"]
"#;

const OF_VOLUMES: &str = r#"---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: mainstay-volumes
rules:
  # Events about volumes are in `default`.
"#;

#[test]
fn the_rights_in_one_namespace_are_exactly_those_in_the_manifest() {
    let scope = kit::NamespaceScope::parse("shop").expect("a good name");
    let (mut here, mut everywhere) = (String::new(), String::new());
    for controller in runtime::Controllers::selected("*", &scope).expect("a good list") {
        let rules = Rule::of_role(&controller.role());
        for (text, of_cluster) in [(&mut here, false), (&mut everywhere, true)] {
            let parts: Vec<Rule> = rules.iter().filter_map(|rule| part_of(rule, of_cluster)).collect();
            if !parts.is_empty() {
                let _ = writeln!(text, "  # {}", controller.name);
                parts.iter().for_each(|rule| text.push_str(&yaml(rule)));
            }
        }
    }
    in_step("deploy/namespace.yaml", &format!("{IN_NAMESPACE}{here}{OF_VOLUMES}{everywhere}"));
}

/// What a rule allows of what is in no namespace, or of what is in one.
fn part_of(rule: &Rule, of_cluster: bool) -> Option<Rule> {
    let kinds = object::kind::Kinds::builtin();
    let is_of_cluster = |resource: &String| {
        let plural = resource.split('/').next().unwrap_or_default();
        plural == "events" || kinds.iter().any(|kind| kind.plural == plural && !kind.namespaced)
    };
    let resources: Vec<String> =
        rule.resources.iter().filter(|resource| is_of_cluster(resource) == of_cluster).cloned().collect();
    (!resources.is_empty()).then(|| Rule { resources, ..rule.clone() })
}

fn in_step(manifest: &str, expected: &str) {
    let path = root().join(manifest);
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, expected).expect("the manifest can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(
        found == expected,
        "{} is out of step: write it anew with {UPDATE}=1 cargo test -p mainstay --test deploy",
        path.display()
    );
}

/// The Deployment uses the account and rights of the other manifest, and asks for controllers that there are.
#[test]
fn the_deployment_fits_the_rights_and_the_program() {
    let read = |name: &str| std::fs::read_to_string(root().join("deploy").join(name)).expect("the manifest is there");
    let (deployment, rights) = (read("deployment.yaml"), read("controllers.yaml"));
    let after = |word: &str| {
        let line = deployment.lines().find_map(|line| line.trim().strip_prefix(word)).expect("the line is there");
        line.trim().to_owned()
    };
    assert!(rights.contains(&format!("name: {}\n", after("serviceAccountName:"))));
    runtime::Controllers::check(&after("- --controllers="), &kit::NamespaceScope::default()).expect("a good list");
    assert_eq!(after("replicas:"), "2");
    let port = after("- --listen=0.0.0.0:");
    assert_eq!(deployment.matches(&format!("ort: {port}")).count(), 2, "the container and the Service have the port");
    for kind in ["Deployment", "Service", "PodDisruptionBudget"] {
        assert!(deployment.contains(&format!("\nkind: {kind}\n")), "{kind}");
    }
}

const NODES: &str = r#"# What `mainstay nodes` needs in a Kubernetes cluster: a ServiceAccount and its rights.
#
#   kubectl apply -f nodes.yaml
#   kubectl -n kube-system create token mainstay-nodes     # for a kubeconfig
#
# The rules about Nodes and their Leases name the first ten nodes. For more nodes, add their names. For another --prefix:
#
#   sed 's/"simulated-/"PREFIX/g' nodes.yaml | kubectl apply -f -
#
# RBAC cannot limit the rules about pods to those on these nodes: the token can report and delete every pod, and get every Secret and
# ConfigMap by its name. Keep it as safe as an administrator's.
# docs/simulated-nodes.md says more. `UPDATE_MANIFESTS=1 cargo test -p mainstay --test deploy` writes this file.
apiVersion: v1
kind: ServiceAccount
metadata:
  name: mainstay-nodes
  namespace: kube-system
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: mainstay-nodes
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: mainstay-nodes
subjects:
  - kind: ServiceAccount
    name: mainstay-nodes
    namespace: kube-system
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: mainstay-nodes
  namespace: kube-node-lease
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: mainstay-nodes
subjects:
  - kind: ServiceAccount
    name: mainstay-nodes
    namespace: kube-system
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: mainstay-nodes
  namespace: kube-node-lease
rules:
"#;

const NODES_OF_CLUSTER: &str = r#"---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: mainstay-nodes
rules:
"#;

#[test]
fn the_rights_of_the_nodes_are_exactly_those_in_the_manifest() {
    let names: Vec<String> = (0..10).map(|number| format!("simulated-{number}")).collect();
    let lease = Rule::from_value(&node::rights::lease_rule());
    let of_verb = |verb: &str| Rule { verbs: vec![verb.to_owned()], ..lease.clone() };
    let mut expected = NODES.to_owned();
    for verb in &lease.verbs {
        // The name of an object that is created is not part of what RBAC sees.
        let names = if verb == "create" { Vec::new() } else { names.clone() };
        expected.push_str(&yaml(&Rule { names, ..of_verb(verb) }));
    }
    expected.push_str(NODES_OF_CLUSTER);
    node::rights::manifest_rules(&names).iter().for_each(|rule| expected.push_str(&yaml(&Rule::from_value(rule))));
    in_step("deploy/nodes.yaml", &expected);
}

#[test]
fn the_page_about_controllers_names_each_of_them_and_each_figure() {
    let page = std::fs::read_to_string(root().join("docs/controllers.md")).expect("there is a page");
    for name in runtime::NAMES {
        assert!(page.contains(&format!("| `{name}` |")), "docs/controllers.md does not name {name}");
    }
    let mut registry = prometheus_client::registry::Registry::default();
    runtime::Metrics::default().register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("it can be written");
    let figures = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    for figure in figures {
        assert!(page.contains(figure), "docs/controllers.md does not say what {figure} is");
    }
}

fn yaml(rule: &Rule) -> String {
    assert!(rule.urls.is_empty(), "not needed so far: {rule:?}");
    let list = |words: &[String]| words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ");
    let names = match rule.names.as_slice() {
        [] => String::new(),
        names => format!("    resourceNames: [{}]\n", list(names)),
    };
    format!(
        "  - apiGroups: [{}]\n    resources: [{}]\n{names}    verbs: [{}]\n",
        list(&rule.groups),
        list(&rule.resources),
        list(&rule.verbs)
    )
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates are two levels deep").to_owned()
}
