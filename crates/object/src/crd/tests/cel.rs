//! Tests of CEL rules: compiled with the definition, evaluated with the objects.

use super::*;

/// A certificate resource: conditions, immutable names, rules over several fields.
pub(super) fn certificate() -> Value {
    yaml(include_str!("certificate.yaml"))
}

fn of(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "pki.example.com/v1", "kind": "Certificate", "metadata": {"name": name}, "spec": spec})
}

#[test]
fn rules_refuse_with_their_own_message() {
    let kind = kind(&certificate());
    let good = json!({"dnsNames": ["a.example.com"], "issuer": "ca"});
    let (stored, messages) = create(&kind, of("web", good));
    assert_eq!(messages, Vec::<String>::new());
    let cases: Vec<(Value, &str)> = vec![
        (
            of("a-name-that-is-much-too-long", json!({"dnsNames": [], "issuer": "ca"})),
            ": Invalid value: \"object\": the name is too long",
        ),
        (
            of("web", json!({"dnsNames": [], "issuer": "ca", "renewBefore": "48h"})),
            "spec.renewBefore: Invalid value: \"object\": certificates of ca must renew before they end",
        ),
        (
            of("web", json!({"dnsNames": ["x.org"], "issuer": "ca", "extra": ["y.org"]})),
            "spec: Forbidden: foreign names must be listed in extra",
        ),
    ];
    for (object, want) in cases {
        assert_eq!(create(&kind, object.clone()).1, [want], "{object}");
    }
    let (_, messages) = create(&kind, of("web", json!({"dnsNames": ["x.org"], "issuer": "ca", "extra": ["x.org"]})));
    assert_eq!(messages, Vec::<String>::new());
    // Transition rules compare with the stored object.
    let other_issuer = of("web", json!({"dnsNames": ["a.example.com"], "issuer": "other"}));
    assert_eq!(update(&kind, &stored, other_issuer), ["spec: Invalid value: \"object\": issuer is immutable"]);
}

#[test]
fn transition_rules_compare_items_with_the_same_key() {
    let kind = kind(&certificate());
    let spec = |keys: Value| of("web", json!({"dnsNames": [], "issuer": "ca", "keys": keys}));
    let old = create(&kind, spec(json!([{"name": "a", "size": 10}, {"name": "b", "size": 20}]))).0;
    let moved = spec(json!([{"name": "b", "size": 20}, {"name": "new", "size": 1}, {"name": "a", "size": 11}]));
    assert_eq!(update(&kind, &old, moved), Vec::<String>::new());
    let shrunk = spec(json!([{"name": "b", "size": 19}]));
    assert_eq!(
        update(&kind, &old, shrunk),
        ["spec.keys[0].size: Invalid value: \"integer\": failed rule: self >= oldSelf"]
    );
}

#[test]
fn rules_are_evaluated_only_if_the_rest_is_valid() {
    let kind = kind(&certificate());
    let (_, messages) = create(&kind, of("web", json!({"dnsNames": "x", "issuer": "ca"})));
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert_eq!(
        messages[1],
        "<nil>: Invalid value: \"null\": some validation rules were not checked because the object was invalid; correct the \
         existing errors to complete validation"
    );
}

/// Evaluates one rule on `self`, a spec of the given schema.
fn evaluate(schema: Value, rule: Value, spec: Value) -> Vec<String> {
    let mut schema = schema;
    schema["x-kubernetes-validations"] = json!([rule]);
    create(&kind(&definition_of_spec(schema)), widget(spec)).1
}

#[test]
fn cel_values_have_the_types_of_the_schema() {
    let schema = json!({"type": "object", "properties": {
        "n": {"type": "number"}, "i": {"type": "integer"}, "s": {"type": "string"}, "t": {"type": "string", "format": "date-time"},
        "b": {"type": "string", "format": "byte"}, "any": {"x-kubernetes-int-or-string": true},
        "namespace": {"type": "string"}, "a-b": {"type": "string"}, "a_b": {"type": "string"},
        "m": {"type": "object", "additionalProperties": {"type": "integer"}},
        "l": {"type": "array", "items": {"type": "integer"}},
        "q": {"type": "string"}, "o": {"type": "object", "properties": {"x": {"type": "string"}}},
    }});
    let spec = json!({
        "n": 3, "i": 3, "s": "héllo", "t": "2026-01-01T00:00:00Z", "b": "aGk=", "any": "25%", "namespace": "ns", "a-b": "dash",
        "a_b": "under", "m": {"a.b": 1, "c": 2}, "l": [3, 1, 2], "q": "1Gi", "o": {},
    });
    let holds = [
        "self.n == 3.0",
        "self.i == 3",
        "type(self.i) == int && type(self.any) == string && dyn(self.i) == 3 && bool('true')",
        "size(self.s) == 5 && self.s.size() == 5",
        "self.t < timestamp('2027-01-01T00:00:00Z')",
        "self.t.getFullYear() == 2026",
        "size(self.b) == 2",
        "self.any == '25%'",
        "self.__namespace__ == 'ns' && self.a__dash__b == 'dash' && self.a_b == 'under'",
        "'a.b' in self.m && self.m['a.b'] == 1 && self.m.all(k, self.m[k] > 0)",
        "self.l.exists(x, x == 2) && self.l.exists_one(x, x > 2) && self.l.map(x, x * 2) == [6, 2, 4]",
        "self.l.filter(x, x > 1).size() == 2 && self.l.sum() == 6 && self.l.max() == 3",
        "quantity(self.q).isGreaterThan(quantity('1G'))",
        "self.s.matches('^h.llo$') && self.s.startsWith('h')",
        "!has(self.o.x) && self.?o.?x.orValue('none') == 'none' && self.o.?x.hasValue() == false",
        "self.?s.optMap(x, x + '!').orValue('') == 'héllo!'",
        "self.?s.optMap(x, self.?q.optMap(y, x + y)).orValue(optional.none()).orValue('') == 'héllo1Gi'",
        "self.?s.optMap(x, x + '!').optMap(y, y + '?').optFlatMap(z, optional.of(z + z)).value() == 'héllo!?héllo!?'",
        "!self.o.?x.optMap(x, x).optMap(y, y).hasValue() && !self.?s.optFlatMap(x, self.o.?x).optMap(y, y).hasValue()",
        "cel.bind(total, self.l.sum(), total > 5 && total < 7)",
        "self.i > 2 ? self.n > 2.0 : false",
        "url('https://example.com:80/x').getPort() == '80'",
        "isIP('10.0.0.1') && cidr('10.0.0.0/8').containsIP('10.1.2.3')",
        "sets.contains(self.l, [1, 2])",
        "'%s-%d'.format([self.q, self.i]) == '1Gi-3'",
        "duration('1h') > duration('59m')",
    ];
    for rule in holds {
        assert_eq!(evaluate(schema.clone(), json!({"rule": rule}), spec.clone()), Vec::<String>::new(), "{rule}");
    }
    let fails = [
        ("self.o.x == 'a'", "spec: Invalid value: \"object\": no such key: x evaluating rule: self.o.x == 'a'"),
        (
            "self.i / (self.i - 3) == 1",
            "spec: Invalid value: \"object\": division by zero evaluating rule: self.i / (self.i - 3) == 1",
        ),
        ("self.i == 4", "spec: Invalid value: \"object\": failed rule: self.i == 4"),
    ];
    for (rule, want) in fails {
        assert_eq!(evaluate(schema.clone(), json!({"rule": rule}), spec.clone()), [want], "{rule}");
    }
}

/// Regression test: each link of the chain doubled the expression.
#[test]
fn long_chains_of_optional_values_are_checked_and_evaluated() {
    let schema = json!({"type": "object", "properties": {"s": {"type": "string"}}});
    // 45 links are the most that the nesting limit allows.
    for links in [5, 15, 30, 45] {
        let chain = ".optMap(x, x + '!')".repeat(links);
        let rule = json!({"rule": format!("self.?s{chain}.value() == 'a{}'", "!".repeat(links))});
        assert_eq!(evaluate(schema.clone(), rule, json!({"s": "a"})), Vec::<String>::new(), "{links}");
    }
}

#[test]
fn optional_old_self_works_without_an_old_object() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "x-kubernetes-validations": [
        {"rule": "oldSelf.hasValue() ? self.n >= oldSelf.value().n : self.n == 0", "optionalOldSelf": true,
         "message": "starts at zero and only grows"}]});
    let kind = kind(&definition_of_spec(schema));
    let want = ["spec: Invalid value: \"object\": starts at zero and only grows"];
    let (zero, messages) = create(&kind, widget(json!({"n": 0})));
    assert_eq!(messages, Vec::<String>::new());
    assert_eq!(create(&kind, widget(json!({"n": 1}))).1, want);
    let grown = widget(json!({"n": 5}));
    assert_eq!(update(&kind, &zero, grown.clone()), Vec::<String>::new());
    assert_eq!(update(&kind, &grown, widget(json!({"n": 4}))), want);
}

#[test]
fn unchanged_invalid_values_do_not_block_an_update() {
    let schema = json!({"type": "object", "properties": {
        "n": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 10"}]}, "s": {"type": "string"}}});
    let kind = kind(&definition_of_spec(schema));
    let old = widget(json!({"n": 1}));
    assert_eq!(update(&kind, &old, widget(json!({"n": 1, "s": "x"}))), Vec::<String>::new());
    assert_eq!(update(&kind, &old, widget(json!({"n": 2}))).len(), 1);
}

#[test]
fn invalid_rules_are_refused_with_their_definition() {
    let at = "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0]";
    let cases: Vec<(Value, String)> = vec![
        (json!({"rule": " "}), format!("{at}.rule: Required value: rule is not specified")),
        (
            json!({"rule": "true", "message": " "}),
            format!("{at}.message: Invalid value: \" \": message must be non-empty if specified"),
        ),
        (
            json!({"rule": "true", "message": "a\nb"}),
            format!("{at}.message: Invalid value: \"a\\nb\": message must not contain line breaks"),
        ),
        (
            json!({"rule": "true\n|| true"}),
            format!("{at}.message: Required value: message must be specified if rule contains line breaks"),
        ),
        (
            json!({"rule": "true", "reason": "Bad"}),
            format!(
                "{at}.reason: Unsupported value: \"Bad\": supported values: \"FieldValueDuplicate\", \"FieldValueForbidden\", \
                 \"FieldValueInvalid\", \"FieldValueRequired\""
            ),
        ),
        (
            json!({"rule": "true", "fieldPath": ".nope"}),
            format!("{at}.fieldPath: Invalid value: \".nope\": fieldPath must be a valid path"),
        ),
        (
            json!({"rule": "self.nope == 1"}),
            format!(
                "{at}.rule: Invalid value: \"self.nope == 1\": compilation failed: ERROR: <input>: undefined field 'nope'"
            ),
        ),
        (
            json!({"rule": "self.n.x == 1"}),
            format!(
                "{at}.rule: Invalid value: \"self.n.x == 1\": compilation failed: ERROR: <input>: type 'int' does not support \
                 field selection"
            ),
        ),
        (
            json!({"rule": "other == 1"}),
            format!(
                "{at}.rule: Invalid value: \"other == 1\": compilation failed: ERROR: <input>: undeclared reference to 'other' \
                 (in container '')"
            ),
        ),
        (
            json!({"rule": "self.l.sortBy(x, x) == []"}),
            format!(
                "{at}.rule: Invalid value: \"self.l.sortBy(x, x) == []\": compilation failed: ERROR: <input>: undeclared \
                 reference to 'sortBy' (in container '')"
            ),
        ),
        (
            json!({"rule": "self.n + 1"}),
            format!("{at}.rule: Invalid value: \"self.n + 1\": cel expression must evaluate to a bool"),
        ),
        (
            json!({"rule": "true", "messageExpression": "1 == 1"}),
            format!("{at}.messageExpression: Invalid value: \"1 == 1\": messageExpression must evaluate to a string"),
        ),
        (
            json!({"rule": "true", "optionalOldSelf": true}),
            format!("{at}.optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule"),
        ),
    ];
    for (rule, want) in cases {
        let schema = json!({"type": "object", "x-kubernetes-validations": [rule.clone()],
            "properties": {"n": {"type": "integer"}, "l": {"type": "array", "items": {"type": "integer"}}}});
        let messages = refusals(&definition_of_spec(schema));
        if rule.text(&["rule"]).contains("sortBy") {
            // The loop variable is undeclared too. Which of the two errors comes first does not matter.
            assert!(messages[0].contains("undeclared reference to"), "{messages:?}");
        } else {
            assert_eq!(messages, [want], "{rule}");
        }
    }
    let broken = json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.n >"}], "properties": {"n": {"type": "integer"}}});
    let messages = refusals(&definition_of_spec(broken));
    assert!(
        messages[0]
            .starts_with(&format!("{at}.rule: Invalid value: \"self.n >\": compilation failed: ERROR: <input>:1:")),
        "{messages:?}"
    );
}

#[test]
fn transition_rules_on_items_of_atomic_lists_are_refused() {
    let schema = json!({"type": "array", "items": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}});
    let at = "spec.validation.openAPIV3Schema.properties[spec]";
    assert_eq!(
        refusals(&definition_of_spec(schema)),
        [format!(
            "{at}.items.x-kubernetes-validations[0].rule: Invalid value: \"self == oldSelf\": oldSelf cannot be used on the \
             uncorrelatable portion of the schema within {at}"
        )]
    );
}

#[test]
fn rules_that_cost_too_much_are_refused_before_evaluation() {
    let schema = json!({"type": "object", "properties": {
        "l": {"type": "array", "items": {"type": "integer"}}, "s": {"type": "string"}, "n": {"type": "integer"}}});
    let numbers: Vec<u32> = (0..3_000).collect();
    let spec = json!({"l": numbers, "s": "a".repeat(100_000), "n": 1_000_000_000});
    let runaways = [
        "self.l.all(x, self.l.all(y, self.l.all(z, x + y + z >= 0)))",
        "self.s.replace('a', self.s).size() > 0",
        "lists.range(self.n).size() > 0",
        "[self.s].map(a, a + a).map(a, a + a).map(a, a + a).map(a, a + a).map(a, a + a).map(a, a + a).map(a, a + a).size() > 0",
        "self.l.map(x, self.s).size() > 0",
    ];
    for rule in runaways {
        let started = std::time::Instant::now();
        let messages = evaluate(schema.clone(), json!({"rule": rule, "message": "m"}), spec.clone());
        assert_eq!(messages.len(), 1, "{rule}: {messages:?}");
        assert!(messages[0].contains("call cost exceeds limit for rule: m"), "{rule}: {messages:?}");
        assert!(started.elapsed().as_secs() < 5, "{rule} took {:?}", started.elapsed());
    }
    let fine = [
        "self.l.all(x, x >= 0)",
        "self.l.all(x, x < 10 || self.l.exists(y, y == 1)) || true",
        "lists.range(10).size() == 10",
    ];
    let small = json!({"l": [1, 2, 3], "s": "a", "n": 1});
    for rule in fine {
        assert_eq!(evaluate(schema.clone(), json!({"rule": rule}), small.clone()), Vec::<String>::new(), "{rule}");
    }
    assert_eq!(evaluate(schema, json!({"rule": "self.l.all(x, x >= 0)"}), spec), Vec::<String>::new());
}

#[test]
fn too_deep_and_too_long_rules_are_refused() {
    let schema =
        |rule: String| definition_of_spec(json!({"type": "object", "x-kubernetes-validations": [{"rule": rule}]}));
    let bad = [
        format!("{}true{}", "(".repeat(5_000), ")".repeat(5_000)),
        format!("{}true", "!".repeat(5_000)),
        format!("1{} == 1", " + 1".repeat(5_000)),
        format!("{}1{} == 1", "[".repeat(5_000), "]".repeat(5_000)),
        format!("self{} == 1", ".a".repeat(5_000)),
        format!("{}true", "true ? false : ".repeat(2_000)),
        "x".repeat(100_000),
        format!("r'\\' == '' || 1{} == 1", " + 1".repeat(5_000)),
        format!("self.l{}.size() == 0", ".map(x, [x])".repeat(3_000)),
        format!("1{}", " in [1]".repeat(3_000)),
    ];
    for rule in bad {
        let messages = refusals(&schema(rule.clone()));
        assert!(!messages.is_empty(), "{}…", &rule[..20]);
    }
    let good = [
        format!("{}true{}", "(".repeat(40), ")".repeat(40)),
        format!("1{} > 1", " + 1".repeat(60)),
        format!("true{}", " && 'a.b.c.d.e.f' != 'x'".repeat(200)),
        format!("{}true", "true ? false : ".repeat(20)),
    ];
    for rule in good {
        assert_eq!(refusals(&schema(rule.clone())), Vec::<String>::new(), "{}…", &rule[..20]);
    }
}
