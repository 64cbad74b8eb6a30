//! Node selectors: of pods, PVs and classes.

use super::facts::Node;
use object::Value;
use object::access::Access;
use object::selector::{Operator, Requirement};

/// Whether a `NodeSelector` matches the node. Its terms are alternatives; an empty term matches nothing.
pub fn takes(selector: &Value, name: &str, node: &Node) -> bool {
    selector.items(&["nodeSelectorTerms"]).iter().any(|term| term_takes(term, name, node))
}

/// Whether one `NodeSelectorTerm` matches the node.
pub fn term_takes(term: &Value, name: &str, node: &Node) -> bool {
    let (labels, fields) = (term.items(&["matchExpressions"]), term.items(&["matchFields"]));
    let has_field = |field: &str| (field == "metadata.name").then_some(name);
    (!labels.is_empty() || !fields.is_empty())
        && labels.iter().all(|wanted| holds(wanted, node.label(wanted.text(&["key"]))))
        && fields.iter().all(|wanted| holds(wanted, has_field(wanted.text(&["key"]))))
}

fn holds(expression: &Value, value: Option<&str>) -> bool {
    let operator = match expression.text(&["operator"]) {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "Gt" => Operator::GreaterThan,
        "Lt" => Operator::LessThan,
        _ => return false,
    };
    let values = expression.items(&["values"]).iter().filter_map(Value::as_str).map(str::to_owned).collect();
    Requirement { key: String::new(), operator, values }.takes(value)
}

/// Whether the node matches the pod's `nodeSelector` and required node affinity.
pub fn suits(spec: &Value, name: &str, node: &Node) -> bool {
    let wanted = spec.members(&["nodeSelector"]);
    let required = spec.at(&["affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"]);
    wanted.iter().all(|(key, value)| node.label(key) == value.as_str())
        && required.is_none_or(|required| takes(required, name, node))
}

/// The sum of the weights of the pod's preferred node affinity that match this node.
pub fn liking(spec: &Value, name: &str, node: &Node) -> i64 {
    let preferred = ["affinity", "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution"];
    let liked = spec.items(&preferred).iter().filter(|preference| {
        // Unlike a required term, an empty preference matches every node.
        let term = preference.at(&["preference"]).unwrap_or(&Value::Null);
        let empty = term.items(&["matchExpressions"]).is_empty() && term.items(&["matchFields"]).is_empty();
        empty || term_takes(term, name, node)
    });
    liked.map(|preference| preference.int(&["weight"]).unwrap_or(0)).fold(0, i64::saturating_add)
}

/// Whether the node is in the `allowedTopologies` of a class; an empty list allows all.
pub fn is_allowed(topologies: &[Value], node: &Node) -> bool {
    let within = |term: &Value| {
        term.items(&["matchLabelExpressions"]).iter().all(|wanted| {
            let label = node.label(wanted.text(&["key"]));
            wanted.items(&["values"]).iter().any(|value| value.as_str() == label && label.is_some())
        })
    };
    topologies.is_empty() || topologies.iter().any(within)
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::json;

    fn node() -> Node {
        Node::of(&json!({"metadata": {"name": "n", "labels": {"zone": "a", "cores": "8"}}}))
    }

    #[test]
    fn node_selectors_take_as_documented() {
        let expression =
            |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        let labels = |list: &[Value]| json!({"nodeSelectorTerms": [{"matchExpressions": list}]});
        let cases = [
            (labels(&[expression("zone", "In", &["a", "b"])]), true),
            (labels(&[expression("zone", "NotIn", &["a"])]), false),
            (labels(&[expression("rack", "NotIn", &["a"])]), true),
            (labels(&[expression("zone", "Exists", &[])]), true),
            (labels(&[expression("rack", "DoesNotExist", &[]), expression("zone", "In", &["a"])]), true),
            (labels(&[expression("cores", "Gt", &["7"])]), true),
            (labels(&[expression("cores", "Lt", &["8"])]), false),
            (labels(&[expression("zone", "Gt", &["1"])]), false),
            (labels(&[expression("zone", "Near", &["a"])]), false),
            (json!({"nodeSelectorTerms": [{}]}), false),
            (json!({"nodeSelectorTerms": []}), false),
            (json!({"nodeSelectorTerms": [{"matchFields": [expression("metadata.name", "In", &["n"])]}]}), true),
            (json!({"nodeSelectorTerms": [{"matchFields": [expression("metadata.name", "NotIn", &["n"])]}]}), false),
            (
                json!({"nodeSelectorTerms": [{"matchExpressions": [expression("zone", "In", &["b"])]},
                {"matchExpressions": [expression("zone", "In", &["a"])]}]}),
                true,
            ),
        ];
        for (selector, want) in cases {
            assert_eq!(takes(&selector, "n", &node()), want, "{selector}");
        }
    }

    #[test]
    fn classes_allow_topologies() {
        let term = |value: &str| json!({"matchLabelExpressions": [{"key": "zone", "values": [value]}]});
        assert!(is_allowed(&[], &node()));
        assert!(is_allowed(&[term("b"), term("a")], &node()));
        assert!(!is_allowed(&[term("b")], &node()));
        assert!(!is_allowed(&[json!({"matchLabelExpressions": [{"key": "rack", "values": [""]}]})], &node()));
    }
}
