//! Total resources of a pod: the sum of its containers, or the maximum during initialization if that is greater.

use crate::Value;
use crate::access::Access;
use crate::quantity::Quantity;
use std::collections::BTreeMap;

pub type Amounts = BTreeMap<String, Quantity>;

/// Returns `requests` or `limits` of one container (or of the pod itself).
pub fn named(of: &Value, which: &str) -> Amounts {
    let members = of.members(&["resources", which]).iter();
    members.filter_map(|(name, value)| Some((name.to_string(), Quantity::of(value)?))).collect()
}

/// Returns `requests` or `limits` of the whole pod.
pub fn of_pod(pod: &Value, which: &str) -> Amounts {
    let spec = pod.at(&["spec"]).unwrap_or(&Value::Null);
    let mut sum = Amounts::new();
    for container in spec.items(&["containers"]) {
        add(&mut sum, &named(container, which));
    }
    // Sidecars start in order with the init containers and keep running, so they count in every later step.
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in spec.items(&["initContainers"]) {
        let own = named(container, which);
        if container.text(&["restartPolicy"]) == "Always" {
            add(&mut sum, &own);
            add(&mut sidecars, &own);
            raise(&mut peak, &sidecars);
        } else {
            let mut step = sidecars.clone();
            add(&mut step, &own);
            raise(&mut peak, &step);
        }
    }
    raise(&mut sum, &peak);
    // Pod-level resources override the sum of the containers.
    sum.extend(named(spec, which));
    for (name, value) in spec.members(&["overhead"]) {
        if let Some(overhead) = Quantity::of(value)
            && (which == "requests" || sum.contains_key(name.as_str()))
        {
            add(&mut sum, &Amounts::from([(name.to_string(), overhead)]));
        }
    }
    sum
}

pub fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let sum = to.get(name).map_or(*amount, |old| old.plus(*amount));
        to.insert(name.clone(), sum);
    }
}

fn raise(to: &mut Amounts, at_least: &Amounts) {
    for (name, amount) in at_least {
        let most = to.get(name).map_or(*amount, |old| *old.max(amount));
        to.insert(name.clone(), most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    #[test]
    fn a_pod_needs_the_sum_of_its_containers_or_its_largest_init_step() {
        let container = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
        let sidecar = |cpu: &str| json!({"restartPolicy": "Always", "resources": {"requests": {"cpu": cpu}}});
        let cases = [
            (json!({"containers": [container("1"), container("500m")]}), "1500m"),
            (json!({"containers": [container("1")], "initContainers": [container("3"), container("2")]}), "3"),
            (json!({"containers": [container("1")], "initContainers": [sidecar("1"), container("3")]}), "4"),
            (json!({"containers": [container("1")], "initContainers": [container("1"), sidecar("2")]}), "3"),
            (json!({"containers": [container("1")], "overhead": {"cpu": "250m"}}), "1250m"),
            (json!({"containers": [container("1")], "resources": {"requests": {"cpu": "4"}}}), "4"),
        ];
        for (spec, want) in cases {
            let got = of_pod(&json!({"spec": spec}), "requests");
            assert_eq!(got["cpu"].to_string(), want, "{spec}");
        }
        let limits = of_pod(&json!({"spec": {"containers": [{}], "overhead": {"cpu": "1"}}}), "limits");
        assert!(limits.is_empty(), "limits must stay empty");
    }
}
