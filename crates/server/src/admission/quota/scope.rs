//! Decides to which objects a quota applies.

use super::usage::{CLAIMS, Countable, PODS, attributes_classes};
use object::Value;
use object::access::Access;
use object::pod::amounts;

/// Whether the object is in all scopes of the quota. A scope that is undefined for a kind excludes it.
pub fn matches(quota: &Value, countable: Countable<'_>, object: &Value) -> bool {
    let plain = quota.items(&["spec", "scopes"]).iter().map(|scope| (scope.as_str().unwrap_or(""), "Exists", &[][..]));
    let selected = quota.items(&["spec", "scopeSelector", "matchExpressions"]).iter();
    let selected =
        selected.map(|wanted| (wanted.text(&["scopeName"]), wanted.text(&["operator"]), wanted.items(&["values"])));
    plain.chain(selected).all(|(scope, operator, values)| holds(countable, object, scope, operator, values))
}

/// Whether an update can move an object into or out of a scope.
pub fn changed(countable: Countable<'_>, before: &Value, after: &Value) -> bool {
    match countable {
        CLAIMS => attributes_classes(before) != attributes_classes(after),
        PODS => {
            has_deadline(before) != has_deadline(after)
                || is_best_effort(before) != is_best_effort(after)
                || before.text(&["spec", "priorityClassName"]) != after.text(&["spec", "priorityClassName"])
        }
        _ => false,
    }
}

fn holds(countable: Countable<'_>, object: &Value, scope: &str, operator: &str, values: &[Value]) -> bool {
    let listed = |name: &str| values.iter().any(|value| value == name);
    match (countable, scope) {
        (PODS, "Terminating") => has_deadline(object),
        (PODS, "NotTerminating") => !has_deadline(object),
        (PODS, "BestEffort") => is_best_effort(object),
        (PODS, "NotBestEffort") => !is_best_effort(object),
        (PODS, "CrossNamespacePodAffinity") => crosses_namespaces(object),
        (PODS, "PriorityClass") => {
            let class = object.text(&["spec", "priorityClassName"]);
            selects(operator, (!class.is_empty()).then_some(class), listed)
        }
        (CLAIMS, "VolumeAttributesClass") => {
            let classes = attributes_classes(object);
            if classes.is_empty() {
                return selects(operator, None, listed);
            }
            classes.iter().any(|class| selects(operator, Some(class), listed))
        }
        _ => false,
    }
}

fn selects(operator: &str, value: Option<&str>, listed: impl Fn(&str) -> bool) -> bool {
    match operator {
        "In" => value.is_some_and(listed),
        "NotIn" => !value.is_some_and(listed),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}

fn has_deadline(pod: &Value) -> bool {
    pod.int(&["spec", "activeDeadlineSeconds"]).is_some_and(|seconds| seconds >= 0)
}

/// Whether no container has requests or limits of cpu or memory.
fn is_best_effort(pod: &Value) -> bool {
    let speaks = |of: &Value| {
        ["requests", "limits"].iter().any(|which| {
            let amounts = amounts::named(of, which);
            ["cpu", "memory"].iter().any(|name| amounts.get(*name).is_some_and(|amount| !amount.is_zero()))
        })
    };
    let spec = pod.at(&["spec"]).unwrap_or(&Value::Null);
    let mut containers = ["containers", "initContainers"].iter().flat_map(|list| spec.items(&[list]));
    !speaks(spec) && !containers.any(speaks)
}

/// Whether a pod's affinity refers to other namespaces.
fn crosses_namespaces(pod: &Value) -> bool {
    let crosses = |term: &Value| term.has(&["namespaceSelector"]) || !term.items(&["namespaces"]).is_empty();
    ["podAffinity", "podAntiAffinity"].iter().any(|side| {
        let path = |list| ["spec", "affinity", side, list];
        let required = pod.items(&path("requiredDuringSchedulingIgnoredDuringExecution"));
        let preferred = pod.items(&path("preferredDuringSchedulingIgnoredDuringExecution"));
        required.iter().any(crosses)
            || preferred.iter().filter_map(|weighted| weighted.at(&["podAffinityTerm"])).any(crosses)
    })
}
