use super::*;
use crate::json;
use proptest::prelude::*;

fn labels(value: Value) -> Map {
    value.as_object().cloned().unwrap_or_default()
}

#[test]
fn label_selectors_are_parsed_and_written_in_canonical_form() {
    let cases = [
        ("", ""),
        ("a=b", "a=b"),
        (" b == c , a!=d ", "a!=d,b==c"),
        ("x in (b, a,b)", "x in (a,b)"),
        ("x notin (a)", "x notin (a)"),
        ("x in (,a)", "x in (,a)"),
        ("x in (a,)", "x in (,a)"),
        ("x in ()", "x in ()"),
        ("x notin (,)", "x notin ()"),
        ("x notin (abc,,def),bar,z in (),w", "bar,w,x notin (,abc,def),z in ()"),
        ("x,!y", "x,!y"),
        ("x>1,y<2", "x>1,y<2"),
        ("a=,b", "a=,b"),
        ("in=in", "in=in"),
        ("example.com/a=b", "example.com/a=b"),
    ];
    for (text, want) in cases {
        assert_eq!(LabelSelector::parse(text).map(|s| s.to_string()), Ok(want.to_owned()), "{text:?}");
    }
}

#[test]
fn invalid_label_selectors_are_refused_with_one_sentence() {
    let cases = [
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("=a", "found '=', expected: !, identifier, or 'end of string'"),
        ("a,", "found '', expected: identifier after ','"),
        ("a=b c", "found 'c', expected: ',' or 'end of string'"),
        ("!a=b", "found '=', expected: ',' or 'end of string'"),
        ("!", "unable to parse requirement: found '', expected: identifier"),
        ("a in b", "unable to parse requirement: found 'b' expected: '('"),
        ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
        (
            "a>b",
            "unable to parse requirement: values[0]: Invalid value: \"b\": for 'Gt', 'Lt' operators, the value must be an integer",
        ),
        ("a==(", "unable to parse requirement: found '(', expected: identifier"),
    ];
    for (text, want) in cases {
        assert_eq!(LabelSelector::parse(text).unwrap_err(), want, "{text:?}");
    }
    let long = format!("a={}", "x".repeat(64));
    assert!(LabelSelector::parse(&long).unwrap_err().ends_with("must be no more than 63 characters"));
    assert!(
        LabelSelector::parse("-a")
            .unwrap_err()
            .starts_with("unable to parse requirement: <nil>: Invalid value: \"-a\"")
    );
}

#[test]
fn label_selectors_match_as_in_upstream() {
    let cases = [
        ("", json!({}), true),
        ("a=b", json!({"a": "b"}), true),
        ("a=b", json!({}), false),
        ("a!=b", json!({}), true),
        ("a!=b", json!({"a": "b"}), false),
        ("a in (b,c)", json!({"a": "c"}), true),
        ("a notin (b,c)", json!({"a": "c"}), false),
        ("a notin (b,c)", json!({}), true),
        ("a", json!({"a": ""}), true),
        ("!a", json!({"a": ""}), false),
        ("a>1", json!({"a": "2"}), true),
        ("a>1", json!({"a": "1"}), false),
        ("a<1", json!({"a": "x"}), false),
        ("a<1", json!({}), false),
        ("a=", json!({"a": ""}), true),
        ("a=b,c", json!({"a": "b"}), false),
    ];
    for (text, object, want) in cases {
        let selector = LabelSelector::parse(text).unwrap();
        assert_eq!(selector.matches(&labels(object.clone())), want, "{text:?} on {object}");
    }
}

#[test]
fn selectors_in_objects_are_parsed() {
    let selector = LabelSelector::from_object(&json!({
        "matchLabels": {"app": "web"},
        "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["b", "a"]},
            {"key": "old", "operator": "DoesNotExist"},
        ],
    }))
    .unwrap();
    assert_eq!(selector.to_string(), "app=web,!old,tier in (a,b)");
    assert!(selector.matches(&labels(json!({"app": "web", "tier": "a"}))));
    assert!(!selector.matches(&labels(json!({"app": "web", "tier": "a", "old": "x"}))));
    assert!(LabelSelector::from_object(&json!({})).unwrap().is_everything());
    assert!(!LabelSelector::from_object(&Value::Null).unwrap().matches(&Map::new()));
    let bad = json!({"matchExpressions": [{"key": "a", "operator": "Near"}]});
    assert_eq!(LabelSelector::from_object(&bad).unwrap_err(), "\"Near\" is not a valid label selector operator");
}

#[test]
fn field_selectors_are_parsed_and_matched() {
    let selector = FieldSelector::parse("metadata.name=a,status.phase!=Running,x==y\\,z\\=\\\\").unwrap();
    assert_eq!(selector.exact("metadata.name"), Some("a"));
    assert_eq!(selector.exact("status.phase"), None);
    assert_eq!(selector.exact("x"), Some("y,z=\\"));
    let object = |phase: &'static str| {
        move |field: &str| match field {
            "metadata.name" => "a".to_owned(),
            "status.phase" => phase.to_owned(),
            _ => "y,z=\\".to_owned(),
        }
    };
    assert!(selector.matches(object("Pending")));
    assert!(!selector.matches(object("Running")));
    assert_eq!(FieldSelector::parse(&selector.to_string()).unwrap(), selector);
    assert!(FieldSelector::parse(",,").unwrap().is_everything());
    let cases = [
        ("a", "invalid selector: 'a'; can't understand 'a'"),
        ("a=b\\x", "invalid field selector: invalid escape sequence: \\x"),
        ("a=b\\", "invalid field selector: invalid escape sequence: \\"),
        ("a=b=c", "invalid field selector: unescaped character in value: 61"),
    ];
    for (text, want) in cases {
        assert_eq!(FieldSelector::parse(text).unwrap_err(), want, "{text:?}");
    }
}

proptest! {
    #[test]
    fn parsing_never_panics_and_canonical_text_reads_back(text in "[a-c!=<>(), in\\\\.é/-]{0,30}") {
        if let Ok(selector) = LabelSelector::parse(&text) {
            prop_assert_eq!(LabelSelector::parse(&selector.to_string()), Ok(selector));
        }
        if let Ok(selector) = FieldSelector::parse(&text) {
            prop_assert_eq!(FieldSelector::parse(&selector.to_string()), Ok(selector));
        }
    }
}
