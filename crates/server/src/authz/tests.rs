//! Tests of the authorizer with a real store: up to date, exact messages, no way around it.

use super::reviews::{local_subject_access, self_subject_access, self_subject_rules, subject_access};
use super::{Authorizer, bootstrap, forbidden};
use crate::attributes::{Attributes, User};
use crate::authn::testing::{delete, put, store};
use object::access::{name, namespace};
use object::{Status, Value, json};
use std::sync::Arc;
use store::Store;

const PREFIX: &str = "/rbac.authorization.k8s.io";

struct World {
    store: Arc<dyn Store>,
    authorizer: Authorizer,
}

impl World {
    fn new() -> World {
        let store = store();
        World { authorizer: Authorizer::new(store.clone()), store }
    }

    fn bootstrapped() -> World {
        let world = World::new();
        for object in bootstrap::objects() {
            world.put(&object);
        }
        world
    }

    fn put(&self, object: &Value) {
        put(&self.store, &key(object), object);
    }

    fn delete(&self, object: &Value) {
        delete(&self.store, &key(object));
    }

    fn escalates(&self, user: &User, object: &Value, old: Option<&Value>) -> Result<(), Status> {
        self.authorizer.check_grant(user, object["kind"].as_str().unwrap(), object, old)
    }
}

fn key(object: &Value) -> String {
    let plural = format!("{}s", object["kind"].as_str().unwrap().to_lowercase());
    match namespace(object) {
        "" => format!("{PREFIX}/{plural}/{}", name(object)),
        namespace => format!("{PREFIX}/{plural}/{namespace}/{}", name(object)),
    }
}

/// A role with one rule `(verbs, resources)` of the core group; a ClusterRole if `namespace` is empty.
fn role(namespace: &str, name: &str, verbs: &[&str], resources: &[&str]) -> Value {
    let rules = json!([{"verbs": verbs, "apiGroups": [""], "resources": resources}]);
    let kind = if namespace.is_empty() { "ClusterRole" } else { "Role" };
    let mut role = json!({"kind": kind, "metadata": {"name": name}, "rules": rules});
    if !namespace.is_empty() {
        role["metadata"]["namespace"] = json!(namespace);
    }
    role
}

fn binding(namespace: &str, name: &str, role: (&str, &str), subjects: Value) -> Value {
    let kind = if namespace.is_empty() { "ClusterRoleBinding" } else { "RoleBinding" };
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": role.0, "name": role.1});
    let mut binding = json!({"kind": kind, "metadata": {"name": name}, "roleRef": role, "subjects": subjects});
    if !namespace.is_empty() {
        binding["metadata"]["namespace"] = json!(namespace);
    }
    binding
}

fn to_user(name: &str) -> Value {
    json!([{"kind": "User", "name": name}])
}

fn user(name: &str, groups: &[&str]) -> User {
    User { name: name.to_owned(), groups: groups.iter().map(|&group| group.to_owned()).collect(), ..User::default() }
}

fn asks(verb: &str, resource: &str, namespace: &str) -> Attributes {
    Attributes {
        verb: verb.to_owned(),
        resource: resource.to_owned(),
        namespace: namespace.to_owned(),
        ..Attributes::default()
    }
}

#[test]
fn a_change_applies_to_the_next_check() {
    let world = World::new();
    let jane = user("jane", &[]);
    let question = asks("list", "pods", "a");
    let reader = role("a", "reader", &["list"], &["pods"]);
    let bound = binding("a", "read", ("Role", "reader"), to_user("jane"));
    assert!(!world.authorizer.allows(&jane, &question));
    world.put(&bound);
    assert_eq!(
        world.authorizer.check(&jane, &question).unwrap_err().message,
        "pods is forbidden: User \"jane\" cannot list resource \"pods\" in API group \"\" in the namespace \"a\": \
         RBAC: role.rbac.authorization.k8s.io \"reader\" not found"
    );
    world.put(&reader);
    let decision = world.authorizer.authorize(&jane, &question);
    assert!(decision.allowed);
    assert_eq!(decision.reason, "RBAC: allowed by RoleBinding \"read/a\" of Role \"reader\" to User \"jane\"");
    assert!(!world.authorizer.allows(&jane, &asks("list", "pods", "b")), "only in its namespace");
    assert!(!world.authorizer.allows(&jane, &asks("list", "pods", "")), "not everywhere");
    // Other keys change only the revision.
    put(&world.store, "/core/pods/a/x", &json!({}));
    assert!(world.authorizer.allows(&jane, &question));
    world.put(&binding("a", "read", ("Role", "reader"), to_user("joe")));
    assert!(!world.authorizer.allows(&jane, &question));
    assert!(world.authorizer.allows(&user("joe", &[]), &question));
    world.delete(&bound);
    assert!(!world.authorizer.allows(&user("joe", &[]), &question));
}

#[test]
fn subjects_are_users_groups_and_accounts() {
    let world = World::new();
    world.put(&role("", "reader", &["get"], &["nodes"]));
    let subjects = json!([
        {"kind": "Group", "name": "dev"},
        {"kind": "ServiceAccount", "name": "web", "namespace": "ns"},
        {"kind": "ServiceAccount", "name": "lost"},
        {"kind": "Robot", "name": "r2"},
    ]);
    world.put(&binding("", "read", ("ClusterRole", "reader"), subjects));
    let reason = |user: User| world.authorizer.authorize(&user, &asks("get", "nodes", "")).reason;
    let allowed = "RBAC: allowed by ClusterRoleBinding \"read\" of ClusterRole \"reader\" to";
    assert_eq!(reason(user("x", &["ops", "dev"])), format!("{allowed} Group \"dev\""));
    assert_eq!(reason(user("system:serviceaccount:ns:web", &[])), format!("{allowed} ServiceAccount \"web/ns\""));
    for stranger in ["system:serviceaccount:other:web", "dev", "r2", "web", "system:serviceaccount::lost", ""] {
        assert_eq!(reason(user(stranger, &[])), "", "{stranger}");
    }
    assert!(world.authorizer.allows(&user("x", &["system:masters"]), &asks("any", "thing", "")));
}

#[test]
fn roles_are_read_again_after_compaction() {
    let world = World::new();
    let jane = user("jane", &[]);
    assert!(!world.authorizer.allows(&jane, &asks("get", "pods", "")));
    world.put(&role("", "reader", &["get"], &["pods"]));
    world.put(&binding("", "read", ("ClusterRole", "reader"), to_user("jane")));
    put(&world.store, "/core/pods/a/x", &json!({}));
    futures::executor::block_on(world.store.compact(world.store.revision())).unwrap();
    assert!(world.authorizer.allows(&jane, &asks("get", "pods", "")));
    world.delete(&role("", "reader", &[], &[]));
    assert!(!world.authorizer.allows(&jane, &asks("get", "pods", "")));
}

#[test]
fn a_damaged_role_grants_nothing() {
    let world = World::new();
    world.put(&role("", "reader", &["get"], &["pods"]));
    world.put(&binding("", "read", ("ClusterRole", "reader"), to_user("jane")));
    assert!(world.authorizer.allows(&user("jane", &[]), &asks("get", "pods", "")));
    put(&world.store, &format!("{PREFIX}/clusterroles/reader"), &json!("no object"));
    assert!(!world.authorizer.allows(&user("jane", &[]), &asks("get", "pods", "")));
}

/// After any sequence of changes, an updated index equals one that is built from the final state.
#[test]
fn following_equals_rebuilding() {
    let names = ["a", "b"];
    let world = World::new();
    // A linear congruential generator, so that each run is the same.
    let mut seed = 7_u64;
    let mut pick = |choices: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % choices
    };
    for step in 0..600 {
        let namespace = ["", "x", "y"][pick(3)];
        let (name, other) = (names[pick(2)], names[pick(2)]);
        let role_kind = if namespace.is_empty() { "ClusterRole" } else { ["ClusterRole", "Role"][pick(2)] };
        let subject_kind = ["User", "Group"][pick(2)];
        let subjects = json!([
            {"kind": subject_kind, "name": names[pick(2)]},
            {"kind": "Group", "name": names[pick(2)]},
        ]);
        let object = if pick(2) == 0 {
            role(namespace, name, &[["get", "list"][pick(2)]], &["pods"])
        } else {
            binding(namespace, name, (role_kind, other), subjects)
        };
        if pick(3) == 0 {
            world.delete(&object)
        } else {
            world.put(&object)
        }
        let rebuilt = Authorizer::new(world.store.clone());
        for asking in [user("a", &[]), user("b", &["a"]), user("c", &["b", "a"])] {
            for namespace in ["", "x", "y"] {
                for verb in ["get", "list"] {
                    let question = asks(verb, "pods", namespace);
                    let followed = world.authorizer.allows(&asking, &question);
                    assert_eq!(followed, rebuilt.allows(&asking, &question), "step {step}: {asking:?} {question:?}");
                }
            }
        }
    }
}

#[test]
fn a_user_cannot_write_a_role_with_more_permissions() {
    let world = World::bootstrapped();
    let jane = user("jane", &["dev", "system:authenticated"]);
    world.put(&binding("a", "jane-edits", ("ClusterRole", "edit"), to_user("jane")));
    let wanted = role("a", "r", &["get", "list", "bind"], &["pods", "nodes"]);
    let refused = world.escalates(&jane, &wanted, None).unwrap_err();
    assert_eq!(
        refused.message,
        "roles.rbac.authorization.k8s.io \"r\" is forbidden: user \"jane\" (groups=[\"dev\" \"system:authenticated\"]) is \
         attempting to grant RBAC permissions not currently held:\n\
         {APIGroups:[\"\"], Resources:[\"nodes\"], Verbs:[\"get\" \"list\" \"bind\"]}\n\
         {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"bind\"]}"
    );
    let modest = role("a", "r", &["get", "list"], &["pods", "secrets"]);
    assert_eq!(world.escalates(&jane, &modest, None), Ok(()));
    // Permissions in one namespace do not count in another or in the cluster.
    assert!(world.escalates(&jane, &role("b", "r", &["get"], &["pods"]), None).is_err());
    assert!(world.escalates(&jane, &role("", "r", &["get"], &["pods"]), None).is_err());
    assert_eq!(world.escalates(&user("x", &["system:masters"]), &wanted, None), Ok(()));

    // The same check applies to updates, unless they only remove finalizers.
    let mut going = wanted.clone();
    going["metadata"]["finalizers"] = json!([]);
    assert_eq!(world.escalates(&jane, &going, Some(&wanted)), Ok(()));
    going["metadata"]["labels"] = json!({"a": "b"});
    assert!(world.escalates(&jane, &going, Some(&wanted)).is_err());

    let escalate = json!([{"verbs": ["escalate"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"]}]);
    let mut escalator = role("a", "escalator", &[], &[]);
    escalator["rules"] = escalate;
    world.put(&escalator);
    world.put(&binding("a", "jane-escalates", ("Role", "escalator"), to_user("jane")));
    assert_eq!(world.escalates(&jane, &wanted, None), Ok(()));
}

#[test]
fn a_user_cannot_bind_a_role_with_more_permissions() {
    let world = World::bootstrapped();
    let jane = user("jane", &[]);
    world.put(&binding("a", "jane-edits", ("ClusterRole", "edit"), to_user("jane")));
    let bind = |namespace: &str, role: (&str, &str)| {
        world.escalates(&jane, &binding(namespace, "b", role, to_user("joe")), None).map_err(|status| status.code)
    };
    assert_eq!(bind("a", ("ClusterRole", "view")), Ok(()));
    assert_eq!(bind("a", ("ClusterRole", "edit")), Ok(()));
    assert_eq!(bind("a", ("ClusterRole", "admin")), Err(403));
    assert_eq!(bind("a", ("ClusterRole", "cluster-admin")), Err(403));
    assert_eq!(bind("b", ("ClusterRole", "view")), Err(403));
    assert_eq!(bind("", ("ClusterRole", "view")), Err(403));
    assert_eq!(bind("a", ("Role", "absent")), Err(404));

    let mut binder = role("a", "binder", &[], &[]);
    let rule = json!({"verbs": ["bind"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"]});
    binder["rules"] = json!([rule]);
    binder["rules"][0]["resourceNames"] = json!(["admin"]);
    world.put(&binder);
    world.put(&binding("a", "jane-binds", ("Role", "binder"), to_user("jane")));
    assert_eq!(bind("a", ("ClusterRole", "admin")), Ok(()));
    assert_eq!(bind("a", ("ClusterRole", "cluster-admin")), Err(403));
    assert_eq!(bind("", ("ClusterRole", "admin")), Err(403));
}

#[test]
fn only_a_user_with_all_permissions_writes_an_aggregated_role() {
    let world = World::bootstrapped();
    let mut gathering = role("", "sum", &[], &[]);
    gathering["rules"] = json!([]);
    gathering["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]});
    let jane = user("jane", &[]);
    let refused = world.escalates(&jane, &gathering, None).unwrap_err();
    assert_eq!(
        refused.message,
        "clusterroles.rbac.authorization.k8s.io \"sum\" is forbidden: \
         must have cluster-admin privileges to use the aggregationRule"
    );
    let mut plain = gathering.clone();
    plain.as_object_mut().unwrap().remove("aggregationRule");
    assert_eq!(world.escalates(&jane, &plain, None), Ok(()), "it grants nothing");
    assert!(world.escalates(&jane, &plain, Some(&gathering)).is_err());
    world.put(&binding("", "jane-rules", ("ClusterRole", "cluster-admin"), to_user("jane")));
    assert_eq!(world.escalates(&jane, &gathering, None), Ok(()));
    // As the role of the controller that aggregates roles.
    let escalating = json!({"kind": "ClusterRole", "metadata": {"name": "escalating"}, "rules": [
        {"verbs": ["list", "watch", "patch", "escalate"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"]},
    ]});
    world.put(&escalating);
    world.put(&binding("", "controller-escalates", ("ClusterRole", "escalating"), to_user("controller")));
    let controller = user("controller", &[]);
    assert_eq!(world.escalates(&controller, &gathering, Some(&plain)), Ok(()));
}

#[test]
fn access_reviews_answer_as_the_authorizer_does() {
    let world = World::bootstrapped();
    world.put(&binding("a", "jane-views", ("ClusterRole", "view"), to_user("jane")));
    let jane = user("jane", &["system:authenticated"]);
    let spec = |namespace: &str| json!({"verb": "list", "resource": "pods", "namespace": namespace});
    let own = |namespace: &str| {
        let review = json!({"spec": {"resourceAttributes": spec(namespace)}});
        self_subject_access(&world.authorizer, review, &jane).unwrap()["status"].clone()
    };
    let reason = "RBAC: allowed by RoleBinding \"jane-views/a\" of ClusterRole \"view\" to User \"jane\"";
    assert_eq!(own("a"), json!({"allowed": true, "reason": reason}));
    assert_eq!(own("b"), json!({"allowed": false}));

    let theirs = json!({"spec": {"user": "jane", "nonResourceAttributes": {"verb": "get", "path": "/apis"}}});
    assert_eq!(subject_access(&world.authorizer, theirs.clone()).unwrap()["status"]["allowed"], false);
    let mut grouped = theirs;
    grouped["spec"]["groups"] = json!(["system:authenticated"]);
    assert_eq!(subject_access(&world.authorizer, grouped).unwrap()["status"]["allowed"], true);

    let local = json!({"spec": {"user": "jane", "resourceAttributes": spec("a")}});
    assert_eq!(local_subject_access(&world.authorizer, local.clone(), "a").unwrap()["status"]["allowed"], true);
    assert_eq!(local_subject_access(&world.authorizer, local, "b").unwrap_err().code, 400);

    let wrong = [
        (
            json!({}),
            "SubjectAccessReview.authorization.k8s.io \"\" is invalid: [spec.user: Invalid value: \"\": at least one of \
          user or group must be specified, spec.resourceAttributes: Invalid value: null: exactly one of \
          nonResourceAttributes or resourceAttributes must be specified]",
        ),
        (
            json!({"user": "x", "resourceAttributes": {}, "nonResourceAttributes": {}}),
            "SubjectAccessReview.authorization.k8s.io \"\" is invalid: spec.nonResourceAttributes: Invalid value: {}: \
             cannot be specified in combination with resourceAttributes",
        ),
    ];
    for (spec, message) in wrong {
        let status = subject_access(&world.authorizer, json!({"spec": spec})).unwrap_err();
        assert_eq!((status.code, status.message.as_str()), (422, message));
    }
}

#[test]
fn rules_reviews_list_what_holds_in_the_namespace() {
    let world = World::new();
    world.put(&role("a", "r", &["get"], &["pods"]));
    world.put(&binding("a", "b", ("Role", "r"), to_user("jane")));
    world.put(&binding("a", "dangling", ("Role", "gone"), to_user("jane")));
    let jane = user("jane", &[]);
    let review = |namespace: &str| {
        self_subject_rules(&world.authorizer, json!({"spec": {"namespace": namespace}}), &jane)
            .map(|review| review["status"].clone())
    };
    let rules = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]);
    let lost = "role.rbac.authorization.k8s.io \"gone\" not found";
    assert_eq!(
        review("a").unwrap(),
        json!({"resourceRules": rules, "nonResourceRules": [], "incomplete": false, "evaluationError": lost})
    );
    assert_eq!(review("b").unwrap(), json!({"resourceRules": [], "nonResourceRules": [], "incomplete": false}));
    assert_eq!(review("").unwrap_err().message, "no namespace on request");
}

#[test]
fn refusals_are_worded_as_upstreams() {
    let jane = user("jane", &[]);
    let message = |asked: &Attributes, reason: &str| forbidden(&jane, asked, reason).message;
    assert_eq!(
        message(&asks("list", "pods", "default"), ""),
        "pods is forbidden: User \"jane\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\""
    );
    assert_eq!(
        message(&asks("list", "pods", ""), "why"),
        "pods is forbidden: User \"jane\" cannot list resource \"pods\" in API group \"\" at the cluster scope: why"
    );
    let scale = Attributes {
        group: "apps".to_owned(),
        subresource: "scale".to_owned(),
        name: "web".to_owned(),
        ..asks("update", "statefulsets", "ns")
    };
    let status = forbidden(&jane, &scale, "");
    assert_eq!(
        status.message,
        "statefulsets.apps \"web\" is forbidden: User \"jane\" cannot update resource \"statefulsets/scale\" \
         in API group \"apps\" in the namespace \"ns\""
    );
    assert_eq!((status.code, status.reason), (403, "Forbidden"));
    let path = Attributes { verb: "get".to_owned(), path: "/metrics".to_owned(), ..Attributes::default() };
    assert_eq!(message(&path, ""), "forbidden: User \"jane\" cannot get path \"/metrics\"");
}
