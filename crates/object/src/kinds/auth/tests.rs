use super::super::testing::*;
use super::*;
use crate::json;

#[test]
fn access_reviews_need_one_question_and_a_subject() {
    let review = |kind: &str, spec: Value| {
        refused(&format!("{AUTHORIZATION}/{kind}"), json!({"metadata": {"namespace": "d"}, "spec": spec}))
    };
    let (resource, other) = (json!({"verb": "get", "namespace": "d"}), json!({"path": "/x"}));
    let cases = [
        ("SelfSubjectAccessReview", json!({"resourceAttributes": resource}), "[]"),
        (
            "SelfSubjectAccessReview",
            json!({}),
            "spec.resourceAttributes: Required value: exactly one of nonResourceAttributes or resourceAttributes must be specified",
        ),
        (
            "SelfSubjectAccessReview",
            json!({"resourceAttributes": resource, "nonResourceAttributes": other}),
            "spec.nonResourceAttributes: Invalid value: {\"path\":\"/x\"}: cannot be specified in combination with resourceAttributes",
        ),
        (
            "SubjectAccessReview",
            json!({"resourceAttributes": resource}),
            "spec.user: Required value: at least one of user or group must be specified",
        ),
        ("SubjectAccessReview", json!({"resourceAttributes": resource, "groups": ["g"]}), "[]"),
        (
            "LocalSubjectAccessReview",
            json!({"resourceAttributes": {"namespace": "e"}, "user": "u"}),
            "spec.resourceAttributes.namespace: Invalid value: \"e\": must match metadata.namespace",
        ),
        (
            "LocalSubjectAccessReview",
            json!({"nonResourceAttributes": other, "user": "u"}),
            "spec.nonResourceAttributes: Invalid value: {\"path\":\"/x\"}: disallowed on this kind of request",
        ),
        (
            "SelfSubjectAccessReview",
            json!({"resourceAttributes": {"labelSelector": {}}}),
            "spec.resourceAttributes.labelSelector.requirements: Required value: when spec.resourceAttributes.labelSelector is specified, requirements or rawSelector is required",
        ),
        (
            "SelfSubjectAccessReview",
            json!({"resourceAttributes": {"fieldSelector": {"requirements": [{"key": "a", "operator": "In"}]}}}),
            "spec.resourceAttributes.fieldSelector.requirements[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
        ),
    ];
    for (kind, spec, want) in cases {
        assert_eq!(review(kind, spec), want);
    }
}

#[test]
fn reviews_are_answered_not_stored() {
    for kind in rows() {
        assert!(!kind.stored, "{kind:?}");
        assert_eq!(kind.namespaced, kind.kind == "LocalSubjectAccessReview");
    }
}

#[test]
fn tokens_are_valid_for_ten_minutes_or_longer() {
    let mut request = json!({});
    default_token_request(&mut request);
    assert_eq!(request["spec"]["expirationSeconds"], 3600);
    let message = |seconds: i64| {
        let mut errors = Errors::default();
        validate_token_request(&json!({"spec": {"expirationSeconds": seconds}}), &mut errors);
        errors.message()
    };
    assert_eq!(message(3600), "[]");
    assert_eq!(
        message(599),
        "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes"
    );
    assert_eq!(
        message((1 << 32) + 1),
        "spec.expirationSeconds: Invalid value: 4294967297: may not specify a duration larger than 2^32 seconds"
    );
}
