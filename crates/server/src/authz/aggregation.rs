//! Aggregated ClusterRoles: their rules are those of the roles that their selectors match.

use object::access::{self, Access};
use object::selector::LabelSelector;
use object::{Map, Value};

/// The rules that `role` should have. `None` if it is not aggregated or already has them.
pub fn aggregate<'a>(role: &Value, all: impl IntoIterator<Item = &'a Value>) -> Option<Vec<Value>> {
    let selectors = role.at(&["aggregationRule"])?.items(&["clusterRoleSelectors"]);
    let mut others: Vec<&Value> = all.into_iter().filter(|other| access::name(other) != access::name(role)).collect();
    others.sort_by_key(|other| access::name(other));
    let mut rules: Vec<Value> = Vec::new();
    for selector in selectors {
        // Invalid selectors are refused on write; if one is stored anyway, it matches nothing.
        let Ok(selector) = LabelSelector::from_object(selector) else { continue };
        for other in others.iter().filter(|other| selector.matches(labels(other))) {
            for rule in other.items(&["rules"]) {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
    }
    (rules != role.items(&["rules"])).then_some(rules)
}

fn labels(object: &Value) -> &Map {
    object.members(&["metadata", "labels"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::json;

    fn role(name: &str, label: &str, verbs: &[&str]) -> Value {
        let rules: Vec<Value> = verbs.iter().map(|verb| json!({"verbs": [verb]})).collect();
        json!({"metadata": {"name": name, "labels": {label: "true"}}, "rules": rules})
    }

    #[test]
    fn gathers_in_the_order_of_names_without_itself_and_without_repeats() {
        let mut target = json!({
            "metadata": {"name": "edit", "labels": {"to-edit": "true"}},
            "aggregationRule": {"clusterRoleSelectors": [
                {"matchLabels": {"to-edit": "true"}},
                {"matchExpressions": [{"key": "too", "operator": "Exists"}]},
            ]},
            "rules": [{"verbs": ["stale"]}],
        });
        let all = [
            role("z", "to-edit", &["get", "list"]),
            role("a", "to-edit", &["watch", "get"]),
            role("c", "too", &["list", "create"]),
            role("d", "other", &["delete"]),
            target.clone(),
        ];
        let rules = aggregate(&target, &all).unwrap();
        let verbs: Vec<&str> = rules.iter().map(|rule| rule["verbs"][0].as_str().unwrap()).collect();
        assert_eq!(verbs, ["watch", "get", "list", "create"]);
        target["rules"] = json!(rules);
        assert_eq!(aggregate(&target, &all), None, "the role already has the rules");
        assert_eq!(aggregate(&all[0], &all), None, "a role without aggregation is unchanged");
    }
}
