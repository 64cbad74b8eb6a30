//! The roles and bindings of a new cluster, and the update of older ones.

mod reconcile;
mod roles;

use super::aggregate;
use super::rule::Rule;
use object::{Value, json};

pub use reconcile::reconcile;

pub const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";

/// Objects of earlier versions that granted too much, as kind and name, the binding before its role. They gave every
/// node the permissions of all simulated nodes.
pub const RETIRED: [(&str, &str); 2] =
    [("ClusterRoleBinding", "mainstay:simulated-node"), ("ClusterRole", "mainstay:simulated-node")];

const READ: &str = "get list watch";
const WRITE: &str = "create update patch delete deletecollection";
const ALL: &str = "*";

/// The server's own bootstrap objects: ClusterRoles, ClusterRoleBindings, and the few Roles and RoleBindings of `kube-system`.
/// Those of controllers come from outside ([`crate::Launch::bootstrap`]). Aggregated roles come with their rules, so that they
/// count before any controller runs.
pub fn objects() -> Vec<Value> {
    let mut objects = roles::objects();
    fill_in_aggregated(&mut objects);
    objects
}

/// Aggregated roles may select each other, so repeat until nothing changes.
fn fill_in_aggregated(objects: &mut [Value]) {
    let mut changed = true;
    while changed {
        changed = false;
        for at in 0..objects.len() {
            let all = objects.iter().filter(|object| object["kind"] == "ClusterRole");
            if let Some(rules) = aggregate(&objects[at], all) {
                objects[at]["rules"] = json!(rules);
                changed = true;
            }
        }
    }
}

/// A rule for resources. Lists are separated by spaces; `core` is the empty group.
fn allow(verbs: &str, groups: &str, resources: &str) -> Rule {
    let group = |group: String| if group == "core" { String::new() } else { group };
    Rule {
        verbs: words(verbs),
        groups: words(groups).into_iter().map(group).collect(),
        resources: words(resources),
        ..Rule::default()
    }
}

fn allow_named(verbs: &str, groups: &str, resources: &str, names: &str) -> Rule {
    Rule { names: words(names), ..allow(verbs, groups, resources) }
}

/// A rule for URL paths.
fn allow_paths(verbs: &str, paths: &str) -> Rule {
    Rule { verbs: words(verbs), urls: words(paths), ..Rule::default() }
}

/// Permission to create and update events.
fn events() -> Rule {
    allow("create update patch", "core events.k8s.io", "events")
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn object(kind: &str, name: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
            "annotations": {AUTOUPDATE: "true"},
        },
    })
}

fn cluster_role(name: &str, rules: &[Rule]) -> Value {
    let mut role = object("ClusterRole", name);
    role["rules"] = rules.iter().map(Rule::to_value).collect();
    role
}

fn cluster_binding(name: &str, role: &str, subjects: Vec<Value>) -> Value {
    let mut binding = object("ClusterRoleBinding", name);
    binding["roleRef"] = json!({"apiGroup": super::GROUP, "kind": "ClusterRole", "name": role});
    if !subjects.is_empty() {
        binding["subjects"] = json!(subjects);
    }
    binding
}

fn user(name: &str) -> Value {
    json!({"kind": "User", "apiGroup": super::GROUP, "name": name})
}

fn group(name: &str) -> Value {
    json!({"kind": "Group", "apiGroup": super::GROUP, "name": name})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::{Attributes, User};
    use crate::authz::index::{Index, PREFIX};
    use object::access::{self, Access};
    use std::collections::BTreeSet;

    fn key(object: &Value) -> String {
        let plural = format!("{}s", object.text(&["kind"]).to_lowercase());
        let namespace = access::namespace(object);
        let slash = if namespace.is_empty() { "" } else { "/" };
        format!("{PREFIX}{plural}/{namespace}{slash}{}", access::name(object))
    }

    fn index() -> Index {
        let mut index = Index::default();
        for object in objects() {
            index.apply(&key(&object), Some(&object));
        }
        index
    }

    #[test]
    fn every_object_is_whole_and_every_binding_names_a_role() {
        let objects = objects();
        let keys: BTreeSet<String> = objects.iter().map(key).collect();
        assert_eq!(keys.len(), objects.len(), "names are unique");
        for object in &objects {
            let name = access::name(object);
            assert_eq!(object.text(&["metadata", "labels", "kubernetes.io/bootstrapping"]), "rbac-defaults", "{name}");
            if object.text(&["kind"]).ends_with("Binding") {
                let role = format!("{}s", object.text(&["roleRef", "kind"]).to_lowercase());
                let namespace = access::namespace(object);
                let place = if role == "roles" { format!("{role}/{namespace}") } else { role };
                let wanted = format!("{PREFIX}{place}/{}", object.text(&["roleRef", "name"]));
                assert!(keys.contains(&wanted), "{name} names {wanted}");
                continue;
            }
            let rules = Rule::of_role(object);
            assert!(!rules.is_empty(), "{name} allows something");
            for rule in rules {
                assert_eq!(Rule::from_value(&rule.to_value()), rule);
                assert!(!rule.verbs.is_empty(), "{name}: {rule:?}");
                let (resource, path) = (!rule.resources.is_empty() && !rule.groups.is_empty(), !rule.urls.is_empty());
                assert!(resource ^ path, "{name}: {rule:?} is for resources or for paths");
                for list in [&rule.verbs, &rule.groups, &rule.resources, &rule.names, &rule.urls] {
                    assert_eq!(list.iter().collect::<BTreeSet<_>>().len(), list.len(), "{name} repeats: {rule:?}");
                }
            }
        }
    }

    #[test]
    fn permissions_of_the_bootstrap_roles() {
        let index = index();
        let account = |name: &str| User {
            name: crate::authn::service_account_name("kube-system", name),
            groups: vec!["system:serviceaccounts".to_owned(), "system:authenticated".to_owned()],
            ..User::default()
        };
        let anonymous = User::anonymous();
        let jane = User { name: "jane".to_owned(), groups: vec!["system:authenticated".to_owned()], ..User::default() };
        let node = User { groups: vec!["system:nodes".to_owned()], ..User::default() };
        let cases = [
            (&anonymous, "get /healthz", true),
            (&anonymous, "get /version", true),
            (&anonymous, "get /livez", true),
            (&anonymous, "get /readyz", true),
            (&anonymous, "get /apis", false),
            (&anonymous, "get /metrics", false),
            (&anonymous, "get /openapi/v2", false),
            (&anonymous, "post /healthz", false),
            (&anonymous, "create authorization.k8s.io selfsubjectaccessreviews", false),
            (&jane, "get /apis/apps/v1", true),
            (&jane, "get /openapi/v3/api/v1", true),
            (&jane, "get /metrics", false),
            (&jane, "create authorization.k8s.io selfsubjectaccessreviews", true),
            (&jane, "list core pods", false),
            (&account("default"), "get /openid/v1/jwks", true),
            // Nodes have permissions by name, not through a role of their group.
            (&node, "patch core nodes/status", false),
            (&node, "patch core pods/status", false),
            (&node, "delete core pods", false),
            (&node, "patch core persistentvolumeclaims/status", false),
            (&node, "create coordination.k8s.io leases", false),
        ];
        for (user, text, allowed) in cases {
            let words: Vec<&str> = text.split(' ').collect();
            let mut asked = Attributes { verb: words[0].to_owned(), ..Attributes::default() };
            match words.as_slice() {
                [_, path] => asked.path = (*path).to_owned(),
                [_, group, resource] => {
                    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                    asked.group = if *group == "core" { String::new() } else { (*group).to_owned() };
                    asked.resource = resource.to_owned();
                    asked.subresource = subresource.to_owned();
                }
                _ => panic!("{text}"),
            }
            assert_eq!(index.grant(user, &asked).is_some(), allowed, "{} {text}", user.name);
        }
    }

    #[test]
    fn view_is_within_edit_is_within_admin_and_none_reads_secrets_below_edit() {
        let objects = objects();
        let rules = |name: &str| {
            let role = objects.iter().find(|object| access::name(object) == name && object["kind"] == "ClusterRole");
            Rule::of_role(role.unwrap())
        };
        let (view, edit, admin) = (rules("view"), rules("edit"), rules("admin"));
        let missing = |held: &[Rule], wanted: &[Rule]| {
            super::super::rule::missing(&held.iter().collect::<Vec<_>>(), wanted).len()
        };
        assert_eq!(missing(&edit, &view), 0);
        assert_eq!(missing(&admin, &edit), 0);
        let secrets = [allow("get", "core", "secrets")];
        assert_eq!(missing(&view, &secrets), 1);
        assert_eq!(missing(&edit, &secrets), 0);
        let bind = [allow("create", "rbac.authorization.k8s.io", "rolebindings")];
        assert_eq!(missing(&edit, &bind), 1);
        assert_eq!(missing(&admin, &bind), 0);
    }
}
