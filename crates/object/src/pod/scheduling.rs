//! Scheduling fields of a pod: node selectors, affinity, tolerations, topology spread, scheduling gates.

use super::cursor::Cursor;
use crate::Value;
use crate::field::{Errors, Path};
use crate::{meta, name};
use std::collections::BTreeSet;

/// Validates a node selector: at least one term. A node must match one of the terms. Also used for the node affinity of
/// volumes.
pub fn validate_node_selector(selector: &Value, path: &Path, errors: &mut Errors) {
    validate_required_terms(&Cursor::new(selector, path), errors);
}

/// Validates all scheduling fields of a spec.
pub(super) fn validate(spec: &Cursor, errors: &mut Errors) {
    let selector = spec.child("nodeSelector");
    meta::validate_labels(selector.value(), &selector.path(), errors);
    validate_affinity(&spec.child("affinity"), errors);
    for gate in spec.child("readinessGates").items() {
        let condition = gate.child("conditionType");
        condition.check(name::qualified(condition.text()), errors);
    }
    validate_gates(&spec.child("schedulingGates"), errors);
    validate_spread(&spec.child("topologySpreadConstraints"), errors);
    validate_tolerations(&spec.child("tolerations"), errors);
}

fn validate_affinity(affinity: &Cursor, errors: &mut Errors) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    let nodes = affinity.child("nodeAffinity");
    if nodes.child(REQUIRED).present() {
        validate_required_terms(&nodes.child(REQUIRED), errors);
    }
    for term in nodes.child(PREFERRED).items() {
        validate_weight(&term, errors);
        validate_term(&term.child("preference"), false, errors);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let pods = affinity.child(kind);
        for term in pods.child(REQUIRED).items() {
            validate_pod_term(&term, errors);
        }
        for term in pods.child(PREFERRED).items() {
            validate_weight(&term, errors);
            validate_pod_term(&term.child("podAffinityTerm"), errors);
        }
    }
}

fn validate_weight(term: &Cursor, errors: &mut Errors) {
    let weight = term.child("weight");
    if !(1..=100).contains(&weight.int()) {
        weight.invalid_as(weight.int(), "must be in the range 1-100", errors);
    }
}

fn validate_required_terms(selector: &Cursor, errors: &mut Errors) {
    let terms = selector.child("nodeSelectorTerms");
    if terms.list().is_empty() {
        terms.required("must have at least one node selector term", errors);
    }
    for term in terms.items() {
        validate_term(&term, true, errors);
    }
}

/// Validates a node selector term. In preferences, values are not checked: a value that no label can have only never
/// matches.
fn validate_term(term: &Cursor, check_values: bool, errors: &mut Errors) {
    for requirement in term.child("matchExpressions").items() {
        validate_expression(&requirement, check_values, errors);
    }
    for requirement in term.child("matchFields").items() {
        validate_node_field(&requirement, errors);
    }
}

fn validate_expression(requirement: &Cursor, check_values: bool, errors: &mut Errors) {
    let (operator, values, key) =
        (requirement.child("operator"), requirement.child("values"), requirement.child("key"));
    let count = values.list().len();
    match operator.text() {
        "In" | "NotIn" if count == 0 => values.required("must be specified when `operator` is 'In' or 'NotIn'", errors),
        "Exists" | "DoesNotExist" if count > 0 => {
            values.forbidden("may not be specified when `operator` is 'Exists' or 'DoesNotExist'", errors);
        }
        "Gt" | "Lt" if count != 1 => {
            values.required("must be specified single value when `operator` is 'Lt' or 'Gt'", errors)
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        _ => operator.invalid("not a valid selector operator", errors),
    }
    key.check(name::qualified(key.text()), errors);
    if check_values {
        for value in values.items() {
            value.check(name::label_value(value.text()), errors);
        }
    }
}

fn validate_node_field(requirement: &Cursor, errors: &mut Errors) {
    let (operator, values, key) =
        (requirement.child("operator"), requirement.child("values"), requirement.child("key"));
    match operator.text() {
        "In" | "NotIn" if values.list().len() != 1 => {
            values
                .required("must be only one value when `operator` is 'In' or 'NotIn' for node field selector", errors);
        }
        "In" | "NotIn" => {}
        _ => operator.invalid("not a valid selector operator", errors),
    }
    if key.text() != "metadata.name" {
        return key.invalid("not a valid field selector key", errors);
    }
    for value in values.items() {
        value.check(name::subdomain(value.text()), errors);
    }
}

fn validate_pod_term(term: &Cursor, errors: &mut Errors) {
    for name in ["labelSelector", "namespaceSelector"] {
        let selector = term.child(name);
        if selector.present() {
            meta::validate_label_selector(selector.value(), &selector.path(), errors);
        }
    }
    let singular = term.child("namespace");
    for namespace in term.child("namespaces").items() {
        for why in name::label(namespace.text()) {
            singular.invalid_as(namespace.text(), why, errors);
        }
    }
    validate_label_keys(term, errors);
    let key = term.child("topologyKey");
    if key.is_empty() {
        key.required("can not be empty", errors);
    }
    key.check(name::qualified(key.text()), errors);
}

/// Validates `matchLabelKeys` and `mismatchLabelKeys` of a pod affinity term.
fn validate_label_keys(term: &Cursor, errors: &mut Errors) {
    let (same, other, selector) =
        (term.child("matchLabelKeys"), term.child("mismatchLabelKeys"), term.child("labelSelector"));
    for keys in [&same, &other] {
        if !keys.list().is_empty() && !selector.present() {
            keys.forbidden("must not be specified when labelSelector is not set", errors);
            continue;
        }
        for key in keys.items() {
            key.check(name::qualified(key.text()), errors);
        }
    }
    for key in same.items() {
        if other.list().contains(key.value()) {
            key.invalid("exists in both matchLabelKeys and mismatchLabelKeys", errors);
        }
    }
}

/// Validates scheduling gates. The pod is not scheduled until a client has removed all of them.
fn validate_gates(gates: &Cursor, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for gate in gates.items() {
        let name = gate.child("name").text();
        for why in name::qualified(name) {
            gate.invalid_as(name, why, errors);
        }
        if !seen.insert(name) {
            gate.duplicate(name, errors);
        }
    }
}

fn validate_spread(constraints: &Cursor, errors: &mut Errors) {
    let mut later = constraints.list();
    for constraint in constraints.items() {
        later = later.get(1..).unwrap_or(&[]);
        let (skew, key, action) =
            (constraint.child("maxSkew"), constraint.child("topologyKey"), constraint.child("whenUnsatisfiable"));
        if skew.int() <= 0 {
            skew.invalid_as(skew.int(), "must be greater than zero", errors);
        }
        if key.is_empty() {
            key.required("can not be empty", errors);
        }
        if !["DoNotSchedule", "ScheduleAnyway"].contains(&action.text()) {
            action.unsupported(&["DoNotSchedule", "ScheduleAnyway"], errors);
        }
        let again = |other: &Value| {
            other.get("topologyKey") == Some(key.value()) && other.get("whenUnsatisfiable") == Some(action.value())
        };
        if later.iter().any(again) {
            let pair = format!("{{{}, {}}}", key.text(), action.text());
            constraint.child("{topologyKey, whenUnsatisfiable}").duplicate(pair, errors);
        }
        validate_min_domains(&constraint.child("minDomains"), action.text(), errors);
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            constraint.child(policy).one_of(&["Honor", "Ignore"], errors);
        }
        validate_spread_selector(&constraint, errors);
    }
}

fn validate_min_domains(domains: &Cursor, action: &str, errors: &mut Errors) {
    if !domains.present() {
        return;
    }
    if domains.int() <= 0 {
        domains.invalid("must be greater than zero", errors);
    }
    if action != "DoNotSchedule" {
        domains.invalid(format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"), errors);
    }
}

fn validate_spread_selector(constraint: &Cursor, errors: &mut Errors) {
    let (keys, selector) = (constraint.child("matchLabelKeys"), constraint.child("labelSelector"));
    if !keys.list().is_empty() && !selector.present() {
        keys.forbidden("must not be specified when labelSelector is not set", errors);
    }
    let (labels, expressions) = (selector.child("matchLabels"), selector.child("matchExpressions"));
    for key in keys.items() {
        key.check(name::qualified(key.text()), errors);
        let labelled = labels.map().is_some_and(|labels| labels.contains_key(key.text()));
        if labelled || expressions.items().any(|expression| expression.child("key").text() == key.text()) {
            key.invalid("exists in both matchLabelKeys and labelSelector", errors);
        }
    }
    if selector.present() {
        meta::validate_label_selector(selector.value(), &selector.path(), errors);
    }
}

pub(super) fn validate_tolerations(tolerations: &Cursor, errors: &mut Errors) {
    for toleration in tolerations.items() {
        let (key, operator, value, effect) = (
            toleration.child("key"),
            toleration.child("operator"),
            toleration.child("value"),
            toleration.child("effect"),
        );
        key.optional_name(name::qualified, errors);
        if key.is_empty() && operator.text() != "Exists" {
            let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            operator.invalid(why, errors);
        }
        if toleration.child("tolerationSeconds").present() && effect.text() != "NoExecute" {
            effect.invalid("effect must be 'NoExecute' when `tolerationSeconds` is set", errors);
        }
        match operator.text() {
            "" | "Equal" => {
                let wrong = name::label_value(value.text());
                if !wrong.is_empty() {
                    operator.invalid_as(value.text(), wrong.join(";"), errors);
                }
            }
            "Exists" if !value.is_empty() => {
                operator.invalid_as(value.text(), "value must be empty when `operator` is 'Exists'", errors);
            }
            "Exists" => {}
            _ => operator.unsupported(&["Equal", "Exists"], errors),
        }
        if !effect.is_empty() {
            effect.one_of(&["NoSchedule", "PreferNoSchedule", "NoExecute"], errors);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    fn errors_of(spec: Value) -> Vec<String> {
        let (path, mut errors) = (Path::new("spec"), Errors::default());
        validate(&Cursor::new(&spec, &path), &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

    fn node_terms(terms: Value) -> Value {
        json!({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}})
    }

    #[test]
    fn invalid_node_affinity_is_refused_with_upstreams_messages() {
        let at = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
        let expression = |operator: &str, values: Value| json!([{"matchExpressions": [{"key": "k", "operator": operator, "values": values}]}]);
        let field = |key: &str, operator: &str, values: Value| json!([{"matchFields": [{"key": key, "operator": operator, "values": values}]}]);
        let cases = [
            (json!([]), vec![format!("{at}: Required value: must have at least one node selector term")]),
            (
                expression("In", json!([])),
                vec![format!(
                    "{at}[0].matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'"
                )],
            ),
            (
                expression("Exists", json!(["a"])),
                vec![format!(
                    "{at}[0].matchExpressions[0].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                )],
            ),
            (
                expression("Gt", json!(["1", "2"])),
                vec![format!(
                    "{at}[0].matchExpressions[0].values: Required value: must be specified single value when `operator` is 'Lt' or 'Gt'"
                )],
            ),
            (
                expression("Like", json!(["a"])),
                vec![format!(
                    "{at}[0].matchExpressions[0].operator: Invalid value: \"Like\": not a valid selector operator"
                )],
            ),
            (
                field("metadata.name", "In", json!(["a", "b"])),
                vec![format!(
                    "{at}[0].matchFields[0].values: Required value: must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
                )],
            ),
            (
                field("spec.x", "In", json!(["a"])),
                vec![format!("{at}[0].matchFields[0].key: Invalid value: \"spec.x\": not a valid field selector key")],
            ),
            (expression("In", json!(["a", "b"])), vec![]),
        ];
        for (terms, want) in cases {
            assert_eq!(errors_of(node_terms(terms.clone())), want, "{terms}");
        }
        let weight = errors_of(json!({"affinity": {"nodeAffinity": {PREFERRED: [{"weight": 0, "preference": {}}]}}}));
        let want = "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 0: must be in the range 1-100";
        assert_eq!(weight, [want]);
    }

    #[test]
    fn invalid_pod_affinity_is_refused_with_upstreams_messages() {
        let at = "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0]";
        let term = |term: Value| errors_of(json!({"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}));
        let empty = term(json!({}));
        assert_eq!(empty[0], format!("{at}.topologyKey: Required value: can not be empty"));
        assert_eq!(
            term(json!({"topologyKey": "zone", "matchLabelKeys": ["a"]})),
            [format!("{at}.matchLabelKeys: Forbidden: must not be specified when labelSelector is not set")]
        );
        assert_eq!(
            term(
                json!({"topologyKey": "zone", "labelSelector": {}, "matchLabelKeys": ["a"], "mismatchLabelKeys": ["a"]})
            ),
            [format!(
                "{at}.matchLabelKeys[0]: Invalid value: \"a\": exists in both matchLabelKeys and mismatchLabelKeys"
            )]
        );
    }

    #[test]
    fn invalid_tolerations_are_refused_with_upstreams_messages() {
        let cases = [
            (
                json!({}),
                "spec.tolerations[0].operator: Invalid value: \"\": operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            ),
            (
                json!({"key": "a", "operator": "Exists", "value": "b"}),
                "spec.tolerations[0].operator: Invalid value: \"b\": value must be empty when `operator` is 'Exists'",
            ),
            (
                json!({"key": "a", "operator": "Like"}),
                "spec.tolerations[0].operator: Unsupported value: \"Like\": supported values: \"Equal\", \"Exists\"",
            ),
            (
                json!({"key": "a", "effect": "NoSchedule", "tolerationSeconds": 1}),
                "spec.tolerations[0].effect: Invalid value: \"NoSchedule\": effect must be 'NoExecute' when `tolerationSeconds` is set",
            ),
            (
                json!({"key": "a", "effect": "Never"}),
                "spec.tolerations[0].effect: Unsupported value: \"Never\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \"NoExecute\"",
            ),
        ];
        for (toleration, want) in cases {
            assert_eq!(errors_of(json!({"tolerations": [toleration]})), [want]);
        }
        assert_eq!(errors_of(json!({"tolerations": [{"operator": "Exists"}]})), Vec::<String>::new());
    }

    #[test]
    fn invalid_topology_spread_is_refused_with_upstreams_messages() {
        let fine = json!({"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway"});
        let with = |key: &str, value: Value| {
            let mut constraint = fine.clone();
            constraint[key] = value;
            json!([constraint])
        };
        let at = "spec.topologySpreadConstraints[0]";
        let cases = [
            (with("maxSkew", json!(0)), format!("{at}.maxSkew: Invalid value: 0: must be greater than zero")),
            (with("topologyKey", json!("")), format!("{at}.topologyKey: Required value: can not be empty")),
            (
                with("whenUnsatisfiable", json!("Cry")),
                format!(
                    "{at}.whenUnsatisfiable: Unsupported value: \"Cry\": supported values: \"DoNotSchedule\", \"ScheduleAnyway\""
                ),
            ),
            (
                with("minDomains", json!(1)),
                format!(
                    "{at}.minDomains: Invalid value: 1: can only use minDomains if whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway"
                ),
            ),
            (
                with("nodeTaintsPolicy", json!("x")),
                format!("{at}.nodeTaintsPolicy: Unsupported value: \"x\": supported values: \"Honor\", \"Ignore\""),
            ),
            (
                with("matchLabelKeys", json!(["a"])),
                format!("{at}.matchLabelKeys: Forbidden: must not be specified when labelSelector is not set"),
            ),
            (
                json!([fine, fine]),
                format!("{at}.{{topologyKey, whenUnsatisfiable}}: Duplicate value: \"{{z, ScheduleAnyway}}\""),
            ),
        ];
        for (constraints, want) in cases {
            assert_eq!(errors_of(json!({"topologySpreadConstraints": constraints})), [want]);
        }
    }

    #[test]
    fn gates_are_qualified_and_unique() {
        assert_eq!(
            errors_of(json!({"schedulingGates": [{"name": "a"}, {"name": "a"}]})),
            ["spec.schedulingGates[1]: Duplicate value: \"a\""]
        );
        assert!(
            errors_of(json!({"schedulingGates": [{"name": "-"}]}))[0]
                .starts_with("spec.schedulingGates[0]: Invalid value: \"-\": name part")
        );
        assert!(
            errors_of(json!({"readinessGates": [{"conditionType": "a b"}]}))[0]
                .starts_with("spec.readinessGates[0].conditionType: Invalid value")
        );
    }
}
