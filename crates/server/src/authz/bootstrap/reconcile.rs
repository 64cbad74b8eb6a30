//! Updates an existing bootstrap object without removing what users added.

use super::super::rule::{Rule, compact, missing};
use super::AUTOUPDATE;
use object::Value;
use object::access::Access;

/// The object to write so that `existing` contains all of `wanted`, or `None` if nothing is missing. Objects
/// annotated with `autoupdate: "false"`, and bindings to another role, are not changed.
pub fn reconcile(existing: &Value, wanted: &Value) -> Option<Value> {
    let left_alone = existing.text(&["metadata", "annotations", AUTOUPDATE]) == "false";
    if left_alone || existing.at(&["roleRef"]) != wanted.at(&["roleRef"]) {
        return None;
    }
    let mut merged = existing.clone();
    for field in ["labels", "annotations"] {
        for (key, value) in wanted.members(&["metadata", field]) {
            merged.put(&["metadata", field, key], value.clone());
        }
    }
    if wanted.has(&["aggregationRule"]) {
        // The rules come from the aggregation; only its selectors are updated.
        add_absent(&mut merged, wanted, &["aggregationRule", "clusterRoleSelectors"]);
    } else if wanted.has(&["rules"]) {
        add_missing_rules(&mut merged, wanted);
    }
    add_absent(&mut merged, wanted, &["subjects"]);
    (merged != *existing).then_some(merged)
}

fn add_missing_rules(merged: &mut Value, wanted: &Value) {
    let held = Rule::of_role(merged);
    let lacking = compact(missing(&held.iter().collect::<Vec<_>>(), &Rule::of_role(wanted)));
    if !lacking.is_empty() {
        let mut rules = merged.items(&["rules"]).to_vec();
        rules.extend(lacking.iter().map(Rule::to_value));
        merged.put(&["rules"], rules);
    }
}

fn add_absent(merged: &mut Value, wanted: &Value, path: &[&str]) {
    let mut items = merged.items(path).to_vec();
    let before = items.len();
    for item in wanted.items(path) {
        if !items.contains(item) {
            items.push(item.clone());
        }
    }
    if items.len() > before {
        merged.put(path, items);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{allow, cluster_binding, cluster_role, events, group, objects, user};
    use super::*;
    use object::json;

    #[test]
    fn nothing_is_written_twice() {
        for wanted in objects() {
            assert_eq!(reconcile(&wanted, &wanted), None, "{wanted}");
        }
    }

    #[test]
    fn adds_what_is_missing_and_keeps_what_was_added() {
        let wanted = cluster_role("r", &[allow("get list", "core", "pods"), events()]);
        let mut existing = cluster_role("r", &[allow("get", "core", "pods nodes")]);
        existing["metadata"]["labels"] = json!({"mine": "yes"});
        existing["metadata"]["resourceVersion"] = json!("7");
        let merged = reconcile(&existing, &wanted).unwrap();
        assert_eq!(
            merged["metadata"]["labels"],
            json!({"mine": "yes", "kubernetes.io/bootstrapping": "rbac-defaults"})
        );
        assert_eq!(merged["metadata"]["resourceVersion"], "7");
        let rules = Rule::of_role(&merged);
        assert_eq!(rules[..2], [allow("get", "core", "pods nodes"), allow("list", "core", "pods")]);
        assert_eq!(missing(&rules.iter().collect::<Vec<_>>(), &Rule::of_role(&wanted)), []);
        assert_eq!(reconcile(&merged, &wanted), None);

        existing["metadata"]["annotations"][AUTOUPDATE] = json!("false");
        assert_eq!(reconcile(&existing, &wanted), None);
    }

    #[test]
    fn bindings_gain_subjects_and_keep_another_role() {
        let wanted = cluster_binding("b", "r", vec![group("g"), user("u")]);
        let existing = cluster_binding("b", "r", vec![user("mine"), user("u")]);
        let merged = reconcile(&existing, &wanted).unwrap();
        assert_eq!(merged["subjects"], json!([user("mine"), user("u"), group("g")]));
        assert_eq!(reconcile(&merged, &wanted), None);
        let other = cluster_binding("b", "other", vec![]);
        assert_eq!(reconcile(&other, &wanted), None);
    }
}
