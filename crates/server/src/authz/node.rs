//! Permissions of nodes, by node name: a node may write its own Node, renew its lease, and read, update and delete
//! the pods bound to it.
//!
//! A node is a user `system:node:NAME` in the group `system:nodes`. As upstream, the group has no RBAC permissions.
//! Facts that are not in the request line, such as the name of a created object, are checked at the write
//! (`admission::nodes`).

use crate::attributes::{Attributes, User};

const GROUP: &str = "system:nodes";
const PREFIX: &str = "system:node:";
/// The namespace of node leases.
pub const LEASES: &str = "kube-node-lease";

/// The user's node name. `None` for a user outside the group, empty for a user in the group without a node name.
pub fn identity(user: &User) -> Option<&str> {
    let is_in_group = user.groups.iter().any(|group| group == GROUP);
    is_in_group.then(|| user.name.strip_prefix(PREFIX).unwrap_or_default())
}

/// Whether the node `name` may send this request. `node_of` returns the node of a stored pod, by namespace and name.
pub fn allows(name: &str, asked: &Attributes, node_of: impl Fn(&str, &str) -> Option<String>) -> bool {
    let Attributes { verb, group, resource, subresource, namespace, .. } = asked;
    if name.is_empty() {
        return false;
    }
    let is_own = asked.name == name;
    // The name of a new object is in the body, which is not read yet.
    let keeps = |verb: &str| verb == "create" || (is_own && matches!(verb, "get" | "update" | "patch" | "delete"));
    let is_here = || node_of(namespace, &asked.name).is_some_and(|node| node == name);
    match (group.as_str(), resource.as_str(), subresource.as_str(), verb.as_str()) {
        ("", "nodes", "", "create") => true,
        ("", "nodes", "", "get" | "list" | "watch" | "update" | "patch") => is_own,
        ("", "nodes", "status", "get" | "update" | "patch") => is_own,
        ("coordination.k8s.io", "leases", "", verb) => namespace == LEASES && keeps(verb),
        ("storage.k8s.io", "csinodes", "", verb) => keeps(verb),
        ("", "pods", "", "list" | "watch") => asked.selected_node == name,
        ("", "pods", "", "get" | "delete") => is_here(),
        ("", "pods", "status", "get" | "update" | "patch") => is_here(),
        // Both are public. A kubelet needs Services for the environment variables of containers.
        ("", "services", "", "get" | "list" | "watch") => true,
        ("storage.k8s.io", "csidrivers", "", "get" | "list" | "watch") => true,
        ("" | "events.k8s.io", "events", "", "create" | "update" | "patch") => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, group: &str) -> User {
        User { name: name.to_owned(), groups: vec![group.to_owned()], ..User::default() }
    }

    #[test]
    fn a_node_is_a_user_of_the_group_with_a_node_s_name() {
        assert_eq!(identity(&user("system:node:a", GROUP)), Some("a"));
        assert_eq!(identity(&user("jane", GROUP)), Some(""));
        assert_eq!(identity(&user("system:node:a", "system:authenticated")), None);
    }

    #[test]
    fn a_node_does_what_is_its_own_and_nothing_else() {
        // Verb, group, resource, namespace, name, selected node, and whether node `a` is allowed.
        let cases = [
            ("create", "", "nodes", "", "", "", true),
            ("patch", "", "nodes", "", "a", "", true),
            ("patch", "", "nodes/status", "", "a", "", true),
            ("watch", "", "nodes", "", "a", "", true),
            ("watch", "", "nodes", "", "", "", false),
            ("patch", "", "nodes", "", "b", "", false),
            ("patch", "", "nodes/status", "", "b", "", false),
            ("delete", "", "nodes", "", "a", "", false),
            ("create", "coordination.k8s.io", "leases", LEASES, "", "", true),
            ("patch", "coordination.k8s.io", "leases", LEASES, "a", "", true),
            ("patch", "coordination.k8s.io", "leases", LEASES, "b", "", false),
            ("list", "coordination.k8s.io", "leases", LEASES, "", "", false),
            ("create", "coordination.k8s.io", "leases", "kube-system", "", "", false),
            ("update", "coordination.k8s.io", "leases", "kube-system", "a", "", false),
            ("update", "coordination.k8s.io", "leases", "kube-system", "mainstay-controllers", "", false),
            ("create", "storage.k8s.io", "csinodes", "", "", "", true),
            ("delete", "storage.k8s.io", "csinodes", "", "b", "", false),
            ("list", "", "pods", "", "", "a", true),
            ("list", "", "pods", "", "", "", false),
            ("watch", "", "pods", "", "", "b", false),
            ("get", "", "pods", "default", "here", "", true),
            ("get", "", "pods", "default", "elsewhere", "", false),
            ("get", "", "pods", "default", "absent", "", false),
            ("delete", "", "pods", "default", "here", "", true),
            ("delete", "", "pods", "default", "elsewhere", "", false),
            ("deletecollection", "", "pods", "default", "", "a", false),
            ("patch", "", "pods/status", "default", "here", "", true),
            ("patch", "", "pods/status", "default", "elsewhere", "", false),
            ("patch", "", "pods", "default", "here", "", false),
            ("create", "", "pods/binding", "default", "here", "", false),
            ("patch", "", "persistentvolumeclaims/status", "default", "data", "", false),
            ("get", "", "secrets", "default", "s", "", false),
            ("create", "", "serviceaccounts/token", "default", "s", "", false),
            ("create", "", "events", "default", "", "", true),
        ];
        let node_of = |_: &str, pod: &str| match pod {
            "here" => Some("a".to_owned()),
            "elsewhere" => Some("b".to_owned()),
            _ => None,
        };
        for (verb, group, resource, namespace, name, selected_node, allowed) in cases {
            let (plural, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let asked = Attributes {
                verb: verb.to_owned(),
                group: group.to_owned(),
                resource: plural.to_owned(),
                subresource: subresource.to_owned(),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                selected_node: selected_node.to_owned(),
                ..Attributes::default()
            };
            assert_eq!(allows("a", &asked, node_of), allowed, "{verb} {resource} {namespace}/{name}");
            assert!(!allows("", &asked, node_of), "a user without a node's name: {verb} {resource}");
        }
    }
}
