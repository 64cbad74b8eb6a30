//! Requests and limits: names, amounts, and their relation.

use super::cursor::Cursor;
use crate::access::Access;
use crate::field::{Errors, Path};
use crate::name;
use crate::quantity::Quantity;
use crate::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

const POD_LEVEL: &[&str] = &["cpu", "hugepages-", "memory"];

/// Rounds amounts up to thousandths, the smallest unit of resources.
pub(super) fn round_up(object: &mut Value, list: &[&str]) {
    if !object.at(list).is_some_and(Value::is_object) {
        return;
    }
    let Value::Object(amounts) = object.entry(list) else { return };
    for amount in amounts.values_mut() {
        if let Some(exact) = Quantity::of(amount)
            && !exact.is_whole()
            && let Ok(rounded) = format!("{}m", exact.ceil_milli()).parse::<Quantity>()
            && rounded != exact
        {
            *amount = rounded.to_string().into();
        }
    }
}

/// Sets pod-level requests of a pod with pod-level limits: the sum of its containers' requests, else the limit.
pub(super) fn default_pod_level(spec: &mut Value) {
    let limits = spec.members(&["resources", "limits"]).clone();
    if limits.is_empty() {
        return;
    }
    let requests = container_requests(spec);
    let requests = requests.into_iter().filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory"));
    let mut wanted: Map = requests.map(|(name, amount)| (name, Value::from(amount.to_string()))).collect();
    for (name, limit) in limits {
        if is_pod_level(&name) {
            wanted.entry(name).or_insert(limit);
        }
    }
    for (name, amount) in wanted {
        if !spec.has(&["resources", "requests", &name]) {
            spec.put(&["resources", "requests", &name], amount);
        }
    }
}

/// Returns the sum of the containers' requests, or the maximum during initialization if that is greater.
pub(super) fn container_requests(spec: &Value) -> BTreeMap<String, Quantity> {
    let mut running = BTreeMap::new();
    for container in spec.items(&["containers"]) {
        add(&mut running, container);
    }
    let mut sidecars = BTreeMap::new();
    let mut peak: BTreeMap<String, Quantity> = BTreeMap::new();
    for container in spec.items(&["initContainers"]) {
        let mut during = sidecars.clone();
        add(&mut during, container);
        if container.text(&["restartPolicy"]) == "Always" {
            add(&mut running, container);
            add(&mut sidecars, container);
        }
        raise(&mut peak, during);
    }
    raise(&mut running, peak);
    running
}

fn add(total: &mut BTreeMap<String, Quantity>, container: &Value) {
    for (name, amount) in container.members(&["resources", "requests"]) {
        if let Some(amount) = Quantity::of(amount) {
            add_amount(total, name, amount);
        }
    }
}

fn raise(total: &mut BTreeMap<String, Quantity>, other: BTreeMap<String, Quantity>) {
    for (name, amount) in other {
        let most = total.entry(name).or_insert(amount);
        *most = (*most).max(amount);
    }
}

/// Validates a container's `resources`. `claims` are the names in the pod's `resourceClaims`.
pub(super) fn validate(resources: &Cursor, claims: &BTreeSet<&str>, errors: &mut Errors) {
    validate_amounts(resources, container_name, errors);
    validate_claims(&resources.child("claims"), claims, errors);
}

/// Validates the resource names and amounts of a pod's `overhead`.
pub(super) fn validate_overhead(overhead: &Cursor, errors: &mut Errors) {
    for (name, amount) in overhead.entries() {
        container_name(name, &amount, errors);
        validate_amount(name, &amount, errors);
    }
}

/// Validates a pod's own `resources`.
pub(super) fn validate_pod_level(spec: &Cursor, errors: &mut Errors) {
    let resources = spec.child("resources");
    if !resources.present() {
        return;
    }
    if resources.child("claims").present() {
        resources.child("claims").forbidden("claims cannot be set for Resources at pod-level", errors);
    }
    validate_amounts(&resources, pod_name, errors);
    let requests = resources.child("requests");
    for (name, asked) in container_requests(spec.value()) {
        let own = Quantity::of(requests.entry(&name).value()).unwrap_or(Quantity::ZERO);
        if asked > own {
            let why = format!("must be greater than or equal to aggregate container requests of {asked}");
            requests.entry(&name).invalid_as(own.to_string(), why, errors);
        }
    }
    container_limits_within(spec, &resources, errors);
}

fn container_limits_within(spec: &Cursor, resources: &Cursor, errors: &mut Errors) {
    for (index, container) in spec.value().items(&["containers"]).iter().enumerate() {
        for (name, limit) in container.members(&["resources", "limits"]) {
            let most = resources.child("limits").value().at(&[name]).and_then(Quantity::of);
            if let (Some(limit), Some(most)) = (Quantity::of(limit), most)
                && limit > most
            {
                let path = resources.path().child("containers").index(index).key(name).child("limits");
                errors.invalid(&path, limit.to_string(), format!("must be less than or equal to pod limits of {most}"));
            }
        }
    }
}

fn validate_amounts(resources: &Cursor, check_name: fn(&str, &Cursor, &mut Errors), errors: &mut Errors) {
    let (limits, requests) = (resources.child("limits"), resources.child("requests"));
    for (name, limit) in limits.entries() {
        check_name(name, &limit, errors);
        validate_amount(name, &limit, errors);
    }
    for (name, request) in requests.entries() {
        check_name(name, &request, errors);
        validate_amount(name, &request, errors);
        validate_against_limit(name, &request, (&requests, &limits), errors);
    }
    let names = || limits.map().into_iter().chain(requests.map()).flat_map(Map::keys);
    let pages = names().any(|name| is_hugepages(name));
    if pages && !names().any(|name| name == "cpu" || name == "memory") {
        resources.forbidden("HugePages require cpu or memory", errors);
    }
}

fn validate_against_limit(name: &str, request: &Cursor, (requests, limits): (&Cursor, &Cursor), errors: &mut Errors) {
    let Some(asked) = Quantity::of(request.value()) else { return };
    match Quantity::of(limits.entry(name).value()) {
        Some(most) if asked != most && !may_overcommit(name) => {
            requests.invalid_as(asked.to_string(), format!("must be equal to {name} limit of {most}"), errors);
        }
        Some(most) if asked > most => {
            requests.invalid_as(
                asked.to_string(),
                format!("must be less than or equal to {name} limit of {most}"),
                errors,
            );
        }
        None if !may_overcommit(name) => limits.required("Limit must be set for non overcommitable resources", errors),
        _ => {}
    }
}

fn validate_amount(name: &str, amount: &Cursor, errors: &mut Errors) {
    let Some(exact) = Quantity::of(amount.value()) else { return };
    if exact.is_negative() {
        amount.invalid_as(exact.to_string(), "must be greater than or equal to 0", errors);
    }
    if is_extended(name) && !exact.is_whole() {
        amount.invalid_as(exact.to_string(), "must be an integer", errors);
    }
    if let Some(size) = name.strip_prefix("hugepages-").and_then(|size| size.parse::<Quantity>().ok()) {
        let whole = size.is_positive() && !exact.is_negative() && exact.ceil() % size.ceil() == 0 && exact.is_whole();
        if !whole {
            amount.invalid_as(exact.to_string(), format!("{exact} is not positive integer multiple of {size}"), errors);
        }
    }
}

fn validate_claims(claims: &Cursor, known: &BTreeSet<&str>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for claim in claims.items() {
        let name = claim.child("name").text();
        if name.is_empty() {
            claim.required("", errors);
            continue;
        }
        if !seen.insert((name, claim.child("request").text())) {
            claim.duplicate(name, errors);
        }
        if !known.contains(name) {
            let known: Vec<&str> = known.iter().copied().collect();
            let list = if known.is_empty() { " which is empty".to_owned() } else { format!(": {}", known.join(", ")) };
            let detail = format!("must be one of the names in pod.spec.resourceClaims{list}");
            errors.push(crate::field::ErrorKind::NotFound, &claim.path(), Some(name.into()), detail);
        }
    }
}

/// Validates the name of a container's resource.
fn container_name(name: &str, at: &Cursor, errors: &mut Errors) {
    let path = at.path();
    if !resource_name(name, &path, errors) {
        return;
    }
    if !name.contains('/') {
        if !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !is_hugepages(name) {
            errors.invalid(&path, name, "must be a standard resource for containers");
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.invalid(&path, name, "doesn't follow extended resource name standard");
    }
}

fn pod_name(name: &str, at: &Cursor, errors: &mut Errors) {
    let path = at.path();
    if resource_name(name, &path, errors) && !is_pod_level(name) {
        errors.not_supported(&path, name, POD_LEVEL);
    }
}

/// Validates any resource name. Returns whether the text is a valid qualified name.
fn resource_name(name: &str, path: &Path, errors: &mut Errors) -> bool {
    let wrong = name::qualified(name);
    let readable = wrong.is_empty();
    for why in wrong {
        errors.invalid(path, name, why);
    }
    if readable && !name.contains('/') && !is_standard(name) {
        errors.invalid(path, name, "must be a standard resource type or fully qualified");
    }
    readable
}

fn is_standard(name: &str) -> bool {
    let counted = [
        "pods",
        "services",
        "replicationcontrollers",
        "resourcequotas",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
    ];
    let bare = name.strip_prefix("requests.").or_else(|| name.strip_prefix("limits.")).unwrap_or(name);
    matches!(bare, "cpu" | "memory" | "ephemeral-storage" | "storage") || is_hugepages(bare) || counted.contains(&name)
}

fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || is_hugepages(name)
}

fn is_hugepages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

fn is_extended(name: &str) -> bool {
    !is_native(name) && !name.starts_with("requests.") && name::qualified(&format!("requests.{name}")).is_empty()
}

/// Whether the limit may be greater than the request. Huge pages and extended resources cannot be overcommitted.
fn may_overcommit(name: &str) -> bool {
    is_native(name) && !is_hugepages(name)
}

/// Returns the QoS class of a pod, from its requests and limits.
pub fn qos_class(pod: &Value) -> &'static str {
    let spec = pod.at(&["spec"]).unwrap_or(&Value::Null);
    let own = spec.at(&["resources"]).unwrap_or(&Value::Null);
    let whole_pod = !own.members(&["limits"]).is_empty() || !own.members(&["requests"]).is_empty();
    let containers = spec.items(&["containers"]).iter().chain(spec.items(&["initContainers"]));
    let parts: Vec<&Value> =
        if whole_pod { vec![own] } else { containers.filter_map(|each| each.get("resources")).collect() };
    let count = spec.items(&["containers"]).len() + spec.items(&["initContainers"]).len();
    // Sums of the requests and limits, and whether every container has all limits.
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    let mut all_limited = whole_pod || parts.len() == count;
    for part in parts {
        let mut limited = 0;
        for name in ["cpu", "memory"] {
            if let Some(amount) = positive(part, "requests", name) {
                add_amount(&mut requests, name, amount);
            }
            if let Some(amount) = positive(part, "limits", name) {
                add_amount(&mut limits, name, amount);
                limited += 1;
            }
        }
        all_limited &= limited == 2;
    }
    if requests.is_empty() && limits.is_empty() {
        "BestEffort"
    } else if all_limited && requests == limits {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

fn positive(part: &Value, list: &str, name: &str) -> Option<Quantity> {
    part.at(&[list, name]).and_then(Quantity::of).filter(Quantity::is_positive)
}

fn add_amount(total: &mut BTreeMap<String, Quantity>, name: &str, amount: Quantity) {
    let sum = total.entry(name.to_owned()).or_insert(Quantity::ZERO);
    *sum = sum.plus(amount);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json;

    fn errors_of(resources: Value) -> Vec<String> {
        let (path, mut errors) = (Path::new("r"), Errors::default());
        validate(&Cursor::new(&resources, &path), &BTreeSet::from(["gpu"]), &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn invalid_amounts_and_names_are_refused_with_upstreams_messages() {
        let cases = [
            (
                json!({"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}),
                vec!["r.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1"],
            ),
            (
                json!({"limits": {"cpu": "-1"}}),
                vec!["r.limits[cpu]: Invalid value: \"-1\": must be greater than or equal to 0"],
            ),
            (
                json!({"limits": {"nope": "1"}}),
                vec![
                    "r.limits[nope]: Invalid value: \"nope\": must be a standard resource type or fully qualified",
                    "r.limits[nope]: Invalid value: \"nope\": must be a standard resource for containers",
                ],
            ),
            (
                json!({"limits": {"pods": "1"}}),
                vec!["r.limits[pods]: Invalid value: \"pods\": must be a standard resource for containers"],
            ),
            (
                json!({"limits": {"requests.example.com/gpu": "1"}}),
                vec![
                    "r.limits[requests.example.com/gpu]: Invalid value: \"requests.example.com/gpu\": doesn't follow extended resource name standard",
                ],
            ),
            (
                json!({"limits": {"example.com/gpu": "1500m"}}),
                vec!["r.limits[example.com/gpu]: Invalid value: \"1500m\": must be an integer"],
            ),
            (
                json!({"requests": {"example.com/gpu": "1"}}),
                vec!["r.limits: Required value: Limit must be set for non overcommitable resources"],
            ),
            (
                json!({"limits": {"example.com/gpu": "2"}, "requests": {"example.com/gpu": "1"}}),
                vec!["r.requests: Invalid value: \"1\": must be equal to example.com/gpu limit of 2"],
            ),
            (json!({"limits": {"hugepages-2Mi": "2Mi"}}), vec!["r: Forbidden: HugePages require cpu or memory"]),
            (
                json!({"limits": {"cpu": "1", "hugepages-2Mi": "3Mi"}}),
                vec!["r.limits[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of 2Mi"],
            ),
            (
                json!({"claims": [{"name": "x"}, {}]}),
                vec![
                    "r.claims[0]: Not found: \"x\": must be one of the names in pod.spec.resourceClaims: gpu",
                    "r.claims[1]: Required value",
                ],
            ),
            (json!({"claims": [{"name": "gpu"}, {"name": "gpu"}]}), vec!["r.claims[1]: Duplicate value: \"gpu\""]),
        ];
        for (resources, want) in cases {
            assert_eq!(errors_of(resources.clone()), want, "{resources}");
        }
        let fine = json!({"limits": {"cpu": "1", "hugepages-2Mi": "4Mi", "example.com/gpu": "1"}, "requests": {"cpu": "1", "memory": "1Gi"}});
        assert_eq!(errors_of(fine), Vec::<String>::new());
    }

    #[test]
    fn pod_level_resources_must_cover_the_containers() {
        let spec = json!({
            "resources": {"limits": {"cpu": "1", "pods": "1"}, "requests": {"cpu": "1"}, "claims": []},
            "containers": [
                {"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}},
                {"resources": {"requests": {"cpu": "1"}}},
            ],
        });
        let (path, mut errors) = (Path::new("spec"), Errors::default());
        validate_pod_level(&Cursor::new(&spec, &path), &mut errors);
        let messages: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        assert_eq!(
            messages,
            [
                "spec.resources.claims: Forbidden: claims cannot be set for Resources at pod-level",
                "spec.resources.limits[pods]: Unsupported value: \"pods\": supported values: \"cpu\", \"hugepages-\", \"memory\"",
                "spec.resources.requests[cpu]: Invalid value: \"1\": must be greater than or equal to aggregate container requests of 2",
                "spec.resources.containers[0][cpu].limits: Invalid value: \"2\": must be less than or equal to pod limits of 1",
            ]
        );
    }

    #[test]
    fn init_containers_count_with_their_maximum_and_sidecars_always() {
        let asks = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
        let mut sidecar = asks("1");
        sidecar.put(&["restartPolicy"], "Always");
        let spec = json!({"containers": [asks("1")], "initContainers": [sidecar, asks("3")]});
        assert_eq!(container_requests(&spec)["cpu"].to_string(), "4");
        let spec = json!({"containers": [asks("5")], "initContainers": [asks("3")]});
        assert_eq!(container_requests(&spec)["cpu"].to_string(), "5");
    }

    #[test]
    fn pod_level_requests_default_to_the_containers_requests_then_to_the_limits() {
        let mut spec = json!({
            "resources": {"limits": {"cpu": "4", "memory": "1Gi"}},
            "containers": [{"resources": {"requests": {"cpu": "1"}}}],
        });
        default_pod_level(&mut spec);
        assert_eq!(spec["resources"]["requests"], json!({"cpu": "1", "memory": "1Gi"}));
    }

    #[test]
    fn amounts_finer_than_a_thousandth_are_rounded_up() {
        let mut object = json!({"requests": {"cpu": "100u", "memory": "1Gi", "x": 5}});
        round_up(&mut object, &["requests"]);
        assert_eq!(object["requests"], json!({"cpu": "1m", "memory": "1Gi", "x": 5}));
    }

    #[test]
    fn the_qos_class_follows_from_requests_and_limits() {
        let both = json!({"cpu": "1", "memory": "1Gi"});
        let cases = [
            (json!([{}]), "BestEffort"),
            (json!([{"resources": {"limits": both, "requests": both}}]), "Guaranteed"),
            (json!([{"resources": {"limits": both, "requests": both}}, {}]), "Burstable"),
            (json!([{"resources": {"limits": both, "requests": {"cpu": "500m", "memory": "1Gi"}}}]), "Burstable"),
            (json!([{"resources": {"requests": {"cpu": "1"}}}]), "Burstable"),
            (json!([{"resources": {"requests": {"cpu": "0"}}}]), "BestEffort"),
            (json!([{"resources": {"requests": {"example.com/gpu": "1"}}}]), "BestEffort"),
        ];
        for (containers, want) in cases {
            assert_eq!(qos_class(&json!({"spec": {"containers": containers}})), want, "{containers}");
        }
        let whole = json!({"spec": {"resources": {"limits": both, "requests": both}, "containers": [{}]}});
        assert_eq!(qos_class(&whole), "Guaranteed");
    }
}
