//! The roles and bindings that a fresh server of `mainstay up` has: those of the server, of the nodes and of the controllers.

use object::Value;
use object::access::{Access, name, namespace};
use server::attributes::Attributes;
use server::authz::Rule;
use std::collections::BTreeSet;
use std::path::Path;

/// Set it to write the fixture anew, after a role changed.
const UPDATE: &str = "UPDATE_MANIFESTS";

fn objects() -> Vec<Value> {
    [server::authz::bootstrap::objects(), node::bootstrap_objects(), runtime::bootstrap_objects()].concat()
}

fn key(object: &Value) -> String {
    format!("{} {}/{}", object.text(&["kind"]), namespace(object), name(object))
}

/// A server adds missing rules to the roles of an existing cluster, but it never removes one: a change of a role must be meant.
#[test]
fn the_bootstrap_objects_are_those_in_the_fixture() {
    let mut objects = objects();
    objects.sort_by_key(key);
    let lines = objects.iter().map(|object| serde_json::to_string(object).expect("JSON") + "\n");
    let text: String = lines.collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bootstrap.jsonl");
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, &text).expect("the fixture can be written");
    }
    let expected = std::fs::read_to_string(&path).expect("the fixture");
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (now, before) = (lines(&text), lines(&expected));
    let differences: Vec<_> = now.symmetric_difference(&before).collect();
    assert!(text == expected, "{UPDATE}=1 cargo test -p mainstay --test bootstrap writes them anew: {differences:#?}");
}

#[test]
fn every_bootstrap_object_is_complete_and_every_binding_names_a_role() {
    let objects = objects();
    let keys: BTreeSet<String> = objects.iter().map(key).collect();
    assert_eq!(keys.len(), objects.len(), "names are unique");
    for object in &objects {
        let key = key(object);
        assert_eq!(object.text(&["metadata", "labels", "kubernetes.io/bootstrapping"]), "rbac-defaults", "{key}");
        assert_eq!(object.text(&["metadata", "annotations", server::authz::bootstrap::AUTOUPDATE]), "true", "{key}");
        if let Some(kind) = object.text(&["kind"]).strip_suffix("Binding") {
            assert_eq!(object.text(&["roleRef", "kind"]), kind, "{key}");
            let role = format!("{kind} {}/{}", namespace(object), object.text(&["roleRef", "name"]));
            assert!(keys.contains(&role), "{key} names {role}");
        } else {
            let rules = Rule::of_role(object);
            assert!(!rules.is_empty() && rules.iter().all(|rule| !rule.verbs.is_empty()), "{key}");
        }
    }
}

#[test]
fn roles_of_controllers_and_nodes_allow_what_they_need_and_no_more() {
    let objects = objects();
    for (role, verb, group, resource, allowed) in [
        ("system:controller:statefulset-controller", "patch", "", "persistentvolumeclaims", true),
        ("system:controller:statefulset-controller", "get", "", "secrets", false),
        ("system:controller:statefulset-controller", "create", "apps", "statefulsets", false),
        ("system:controller:pv-protection-controller", "patch", "", "persistentvolumes", true),
        ("system:controller:pv-protection-controller", "delete", "", "persistentvolumes", false),
        (
            "system:controller:clusterrole-aggregation-controller",
            "escalate",
            "rbac.authorization.k8s.io",
            "clusterroles",
            true,
        ),
        ("system:controller:namespace-controller", "delete", "example.com", "widgets", true),
        ("system:controller:generic-garbage-collector", "create", "", "pods", false),
        ("mainstay:simulated-nodes", "patch", "", "nodes/status", true),
        // A pod waits for the Secrets that it names; the account reads them by name and cannot list them.
        ("mainstay:simulated-nodes", "get", "", "secrets", true),
        ("mainstay:simulated-nodes", "list", "", "secrets", false),
        ("mainstay:simulated-nodes", "patch", "coordination.k8s.io", "leases", false),
    ] {
        let found = objects.iter().find(|object| object["kind"] == "ClusterRole" && name(object) == role);
        let rules = Rule::of_role(found.expect("the role"));
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let asked = Attributes {
            verb: verb.to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            ..Attributes::default()
        };
        assert_eq!(rules.iter().any(|rule| rule.allows(&asked)), allowed, "{role} {verb} {group}/{resource}");
    }
}
