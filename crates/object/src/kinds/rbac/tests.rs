use super::super::testing::*;
use super::*;

fn role(kind: &str, rule: Value) -> String {
    refused(&format!("{GROUP}/{kind}"), json!({"metadata": {"name": "system:a"}, "rules": [rule]}))
}

#[test]
fn the_rules_of_roles_are_validated() {
    let ok = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
    assert_eq!(role("Role", ok.clone()), "[]");
    assert_eq!(role("ClusterRole", json!({"verbs": ["get"], "nonResourceURLs": ["/x"]})), "[]");
    let cases = [
        (
            "Role",
            json!({"apiGroups": [""], "resources": ["pods"]}),
            "rules[0].verbs: Required value: verbs must contain at least one value",
        ),
        (
            "Role",
            json!({"verbs": ["get"], "resources": ["pods"]}),
            "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
        ),
        (
            "Role",
            json!({"verbs": ["get"], "apiGroups": [""]}),
            "rules[0].resources: Required value: resource rules must supply at least one resource",
        ),
        (
            "Role",
            json!({"verbs": ["get"], "nonResourceURLs": ["/x"]}),
            "rules[0].nonResourceURLs: Invalid value: [\"/x\"]: namespaced rules cannot apply to non-resource URLs",
        ),
        (
            "ClusterRole",
            json!({"verbs": ["get"], "nonResourceURLs": ["/x"], "resources": ["pods"]}),
            "rules[0].nonResourceURLs: Invalid value: [\"/x\"]: rules cannot apply to both regular resources and non-resource URLs",
        ),
    ];
    for (kind, rule, want) in cases {
        assert_eq!(role(kind, rule), want);
    }
    let aggregated = json!({"metadata": {"name": "a"}, "aggregationRule": {}});
    assert_eq!(
        refused(&format!("{GROUP}/ClusterRole"), aggregated),
        "aggregationRule.clusterRoleSelectors: Required value: at least one clusterRoleSelector required if aggregationRule is non-nil"
    );
    let object = stored(&format!("{GROUP}/Role"), json!({"metadata": {"name": "a", "namespace": "d"}, "rules": [ok]}));
    assert_eq!(shown(&format!("{GROUP}/Role"), &object), "a | 2026-11-15T12:00:00Z");
    assert_eq!(kind(&format!("{GROUP}/Role")).rules.name_rule(), NameRule::PathSegment);
}

#[test]
fn bindings_default_api_groups_and_their_role_is_immutable() {
    let binding = format!("{GROUP}/RoleBinding");
    let old = stored(
        &binding,
        json!({"metadata": {"name": "a", "namespace": "d"}, "roleRef": {"kind": "Role", "name": "r"}, "subjects": [
            {"kind": "User", "name": "u"}, {"kind": "Group", "name": "g"}, {"kind": "ServiceAccount", "name": "s", "namespace": "n"}]}),
    );
    assert_eq!(old["roleRef"]["apiGroup"], GROUP);
    assert_eq!(old["subjects"][0]["apiGroup"], GROUP);
    assert!(!old["subjects"][2].has(&["apiGroup"]));
    assert_eq!(headers(&binding), "Name | Role | Age | Users* | Groups* | ServiceAccounts*");
    assert_eq!(shown(&binding, &old), "a | Role/r | 0s | u | g | n/s");
    let got = change_refused(&binding, &old, |new| new["roleRef"]["name"] = json!("q"));
    assert!(got.starts_with("roleRef: Invalid value: {") && got.ends_with(": cannot change roleRef"), "{got}");
}

#[test]
fn invalid_bindings_are_refused_with_upstreams_messages() {
    let binding = |kind: &str, role: Value, subject: Value| {
        refused(&format!("{GROUP}/{kind}"), json!({"metadata": {"name": "a"}, "roleRef": role, "subjects": [subject]}))
    };
    let (user, role) = (json!({"kind": "User", "name": "u"}), json!({"kind": "ClusterRole", "name": "r"}));
    let cases = [
        (
            "ClusterRoleBinding",
            json!({"kind": "Role", "name": "r"}),
            user.clone(),
            "roleRef.kind: Unsupported value: \"Role\": supported values: \"ClusterRole\"",
        ),
        (
            "RoleBinding",
            json!({"kind": "X", "name": "r"}),
            user.clone(),
            "roleRef.kind: Unsupported value: \"X\": supported values: \"Role\", \"ClusterRole\"",
        ),
        ("RoleBinding", json!({"kind": "Role"}), user.clone(), "roleRef.name: Required value"),
        (
            "RoleBinding",
            json!({"kind": "Role", "name": "a/b"}),
            user.clone(),
            "roleRef.name: Invalid value: \"a/b\": may not contain '/'",
        ),
        (
            "RoleBinding",
            json!({"kind": "Role", "name": "r", "apiGroup": "x"}),
            user,
            "roleRef.apiGroup: Unsupported value: \"x\": supported values: \"rbac.authorization.k8s.io\"",
        ),
        ("RoleBinding", role.clone(), json!({"kind": "User"}), "subjects[0].name: Required value"),
        (
            "RoleBinding",
            role.clone(),
            json!({"kind": "X", "name": "u"}),
            "subjects[0].kind: Unsupported value: \"X\": supported values: \"ServiceAccount\", \"User\", \"Group\"",
        ),
        (
            "ClusterRoleBinding",
            role.clone(),
            json!({"kind": "ServiceAccount", "name": "s"}),
            "subjects[0].namespace: Required value",
        ),
        (
            "RoleBinding",
            role.clone(),
            json!({"kind": "ServiceAccount", "name": "s", "apiGroup": "x"}),
            "subjects[0].apiGroup: Unsupported value: \"x\": supported values: \"\"",
        ),
        (
            "RoleBinding",
            role,
            json!({"kind": "Group", "name": "s", "apiGroup": "x"}),
            "subjects[0].apiGroup: Unsupported value: \"x\": supported values: \"rbac.authorization.k8s.io\"",
        ),
    ];
    for (kind, role, subject, want) in cases {
        assert_eq!(binding(kind, role, subject), want);
    }
}
