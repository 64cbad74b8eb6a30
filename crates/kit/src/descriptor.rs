//! What is known of a controller apart from its code: name, ServiceAccount, role and scope.
//!
//! Each descriptor is a constant next to the `run` of its controller. Made from descriptors: the list of controllers, the bootstrap
//! roles of the server, the manifests in `deploy/`, and the lists that the tests of rights use.

use object::{Value, json};

/// The annotation that lets a server update a bootstrap object when it starts.
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const GROUP: &str = "rbac.authorization.k8s.io";

/// One controller.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// The name in `--controllers`, in metrics and in logs.
    pub name: &'static str,
    /// The ServiceAccount in `kube-system` that it runs as.
    pub account: &'static str,
    pub scope: Scope,
    /// The rules of its role, without those that every controller has.
    pub rules: &'static [Rule],
}

/// Whether a controller can be restricted to some namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// It needs only namespaced objects and the PVs of their claims, so it can be restricted.
    Namespaces,
    /// It needs cluster-scoped objects, or serves a CSI driver, which exists once for all namespaces.
    Cluster,
}

/// A rule of a role. Lists are separated by blanks; `core` is the group without a name, `*` means all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub verbs: &'static str,
    pub groups: &'static str,
    pub resources: &'static str,
    /// The names of objects; empty allows all.
    pub names: &'static str,
}

/// A controller that lacks another permission can at least record an event about it.
const EVENTS: Rule = allow("create patch", "core", "events");

/// A rule for all objects of these resources.
pub const fn allow(verbs: &'static str, groups: &'static str, resources: &'static str) -> Rule {
    Rule { verbs, groups, resources, names: "" }
}

impl Rule {
    /// The rule as a PolicyRule.
    pub fn to_value(&self) -> Value {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<String>>();
        let groups: Vec<String> =
            words(self.groups).into_iter().map(|group| if group == "core" { String::new() } else { group }).collect();
        let mut rule = json!({"verbs": words(self.verbs), "apiGroups": groups, "resources": words(self.resources)});
        if !self.names.is_empty() {
            rule["resourceNames"] = json!(words(self.names));
        }
        rule
    }
}

impl Descriptor {
    pub fn role_name(&self) -> String {
        format!("system:controller:{}", self.account)
    }

    /// The ClusterRole with exactly the permissions that the controller needs, here and on any other Kubernetes API server.
    pub fn role(&self) -> Value {
        let rules = self.rules.iter().chain([&EVENTS]).map(Rule::to_value);
        bootstrap_role("ClusterRole", &self.role_name(), None, rules.collect())
    }

    /// The role, and its binding to the ServiceAccount.
    pub fn bootstrap_objects(&self) -> [Value; 2] {
        let name = self.role_name();
        [self.role(), bootstrap_binding("ClusterRole", &name, None, service_account(self.account))]
    }
}

/// A Role or ClusterRole that a server creates when it starts first.
pub fn bootstrap_role(kind: &str, name: &str, namespace: Option<&str>, rules: Vec<Value>) -> Value {
    let mut role = bootstrap_object(kind, name, namespace);
    role["rules"] = json!(rules);
    role
}

/// The binding of a Role or ClusterRole to one subject, under the name of the role.
pub fn bootstrap_binding(role_kind: &str, role: &str, namespace: Option<&str>, subject: Value) -> Value {
    let mut binding = bootstrap_object(&format!("{role_kind}Binding"), role, namespace);
    binding["roleRef"] = json!({"apiGroup": GROUP, "kind": role_kind, "name": role});
    binding["subjects"] = json!([subject]);
    binding
}

/// A ServiceAccount of `kube-system` as the subject of a binding.
pub fn service_account(name: &str) -> Value {
    json!({"kind": "ServiceAccount", "namespace": "kube-system", "name": name})
}

fn bootstrap_object(kind: &str, name: &str, namespace: Option<&str>) -> Value {
    let mut object = json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": kind,
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
            "annotations": {AUTOUPDATE: "true"},
        },
    });
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = json!(namespace);
    }
    object
}
