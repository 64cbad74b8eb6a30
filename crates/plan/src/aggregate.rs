//! Aggregated ClusterRoles: a role with an `aggregationRule` has the rules of the roles that it selects.

use object::access::{Access, name};
use object::selector::LabelSelector;
use object::{Value, json};
use std::borrow::Borrow;

/// Returns the rules that `role` must have, given all ClusterRoles; `None` if it has them already or does not
/// aggregate. An invalid selector selects nothing; admission has validated it.
pub fn rules<V: Borrow<Value>>(role: &Value, all: &[V]) -> Option<Vec<Value>> {
    role.at(&["aggregationRule"])?;
    let mut sorted: Vec<&Value> = all.iter().map(Borrow::borrow).filter(|other| name(other) != name(role)).collect();
    sorted.sort_by_key(|other| name(other));
    let mut rules: Vec<Value> = Vec::new();
    for selector in role.items(&["aggregationRule", "clusterRoleSelectors"]) {
        let selector = LabelSelector::from_object(selector).unwrap_or_else(|_| LabelSelector::nothing());
        let selected = sorted.iter().filter(|other| selector.matches(other.members(&["metadata", "labels"])));
        for rule in selected.flat_map(|other| other.items(&["rules"])) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    (rules != role.items(&["rules"])).then_some(rules)
}

/// The server-side apply that sets these rules (field manager `clusterrole-aggregation-controller`, forced).
pub fn apply(role: &Value, rules: Vec<Value>) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name(role)},
        "rules": rules,
    })
}

/// The names of the roles that aggregate `changed`, before or after its change.
pub fn aggregators<V: Borrow<Value>>(changed: &Value, all: &[V]) -> Vec<String> {
    let labels = changed.members(&["metadata", "labels"]);
    let selects = |role: &&Value| {
        role.items(&["aggregationRule", "clusterRoleSelectors"])
            .iter()
            .any(|selector| LabelSelector::from_object(selector).is_ok_and(|selector| selector.matches(labels)))
    };
    all.iter().map(Borrow::borrow).filter(selects).map(|role| name(role).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(role_name: &str, label: &str, verb: &str) -> Value {
        json!({
            "metadata": {"name": role_name, "labels": {"to": label}},
            "rules": [{"verbs": [verb]}],
        })
    }

    fn aggregate(label: &str) -> Value {
        json!({
            "metadata": {"name": "sum", "labels": {"to": label}},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": label}}, {"matchLabels": {"to": "more"}}]},
        })
    }

    #[test]
    fn rules_are_in_order_of_selector_and_name_and_without_duplicates() {
        let sum = aggregate("view");
        let mut itself = sum.clone();
        itself.put(&["rules"], json!([{"verbs": ["stale"]}]));
        let all = [
            role("z", "view", "list"),
            role("a", "view", "get"),
            role("b", "view", "get"),
            role("m", "more", "watch"),
            role("n", "other", "delete"),
            itself.clone(),
        ];
        let want = vec![json!({"verbs": ["get"]}), json!({"verbs": ["list"]}), json!({"verbs": ["watch"]})];
        assert_eq!(rules(&itself, &all), Some(want.clone()));
        let mut settled = sum;
        settled.put(&["rules"], want);
        assert_eq!(rules(&settled, &all), None);
        assert_eq!(rules(&all[0], &all), None, "a plain role keeps its rules");
        assert_eq!(aggregators(&all[3], &all), ["sum"]);
        assert_eq!(aggregators(&all[4], &all), [] as [&str; 0]);
    }

    #[test]
    fn a_role_that_selects_nothing_loses_its_rules() {
        let mut sum = aggregate("nothing");
        sum.put(&["rules"], json!([{"verbs": ["get"]}]));
        assert_eq!(rules::<Value>(&sum, &[]), Some(Vec::new()));
    }
}
