//! Endpoints of Services: which pods receive traffic, computed as upstream's endpoints controller does.

mod subsets;

use object::access::{Access, name, namespace, terminating};
use object::{Map, Value, condition, json};

/// The value of the label [`MANAGED_BY`] on Endpoints that this controller writes.
pub const CONTROLLER: &str = "endpoint-controller";
pub const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
const LAST_CHANGE_TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";
const HEADLESS: &str = "service.kubernetes.io/headless";
/// Endpoints with this annotation are a lock of an older leader election and belong to no Service.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

/// The action for the Endpoints of one Service.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Nothing,
    Create(Value),
    /// A replacement with the resourceVersion of the Endpoints that it was computed from.
    Update(Value),
    /// Delete the Endpoints, in the version of the cache.
    Delete,
}

/// Why there is no Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The controller saw its deletion: its Endpoints are deleted, whoever wrote them.
    Deleted,
    /// It may never have existed: Endpoints that a user wrote are kept.
    Unknown,
}

/// Plans the Endpoints of a Service. `pods` may include pods that the selector does not match.
pub fn plan(service: Result<&Value, Absent>, pods: &[&Value], current: Option<&Value>) -> Step {
    let service = match (service, current) {
        (Ok(service), _) => service,
        (Err(absent), Some(current)) if goes_with_service(current, absent) => return Step::Delete,
        (Err(_), _) => return Step::Nothing,
    };
    if selector(service).is_none() || terminating(service) {
        return Step::Nothing;
    }
    let mut endpoints = current.cloned().unwrap_or_else(|| {
        json!({
            "apiVersion": "v1", "kind": "Endpoints",
            "metadata": {"namespace": namespace(service), "name": name(service)},
        })
    });
    let selected = pods.iter().copied().filter(|pod| selects(service, pod));
    let mut subsets = subsets::of(service, selected);
    let truncated = subsets::truncate(&mut subsets);
    let written: Vec<Value> = subsets.iter().map(subsets::Subset::write).collect();
    if written.is_empty() {
        endpoints.cut(&["subsets"]);
    } else {
        endpoints.put(&["subsets"], written);
    }
    endpoints.put(&["metadata", "labels"], Value::Object(labels(service)));
    annotate(&mut endpoints, truncated);
    match current {
        None => Step::Create(endpoints),
        Some(current) if *current == endpoints => Step::Nothing,
        Some(_) => Step::Update(endpoints),
    }
}

fn goes_with_service(endpoints: &Value, absent: Absent) -> bool {
    let is_lock = endpoints.has(&["metadata", "annotations", LEADER]);
    let is_ours = endpoints.text(&["metadata", "labels", MANAGED_BY]) == CONTROLLER;
    !terminating(endpoints) && !is_lock && (is_ours || absent == Absent::Deleted)
}

/// The labels of the Service, and those that mark Endpoints of this controller.
fn labels(service: &Value) -> Map {
    let mut labels = service.members(&["metadata", "labels"]).clone();
    labels.remove(HEADLESS);
    if is_headless(service) {
        labels.insert(HEADLESS, json!(""));
    }
    labels.insert(MANAGED_BY, json!(CONTROLLER));
    labels
}

fn annotate(endpoints: &mut Value, truncated: bool) {
    endpoints.cut(&["metadata", "annotations", LAST_CHANGE_TRIGGER]);
    if truncated {
        endpoints.put(&["metadata", "annotations", OVER_CAPACITY], "truncated");
    } else {
        endpoints.cut(&["metadata", "annotations", OVER_CAPACITY]);
    }
    if endpoints.members(&["metadata", "annotations"]).is_empty() {
        endpoints.cut(&["metadata", "annotations"]);
    }
}

fn is_headless(service: &Value) -> bool {
    matches!(service.text(&["spec", "clusterIP"]), "" | "None")
}

/// The selector of a Service whose Endpoints this controller writes; for other Services, users write them.
pub fn selector(service: &Value) -> Option<&Map> {
    let selector = service.members(&["spec", "selector"]);
    (!selector.is_empty() && service.text(&["spec", "type"]) != "ExternalName").then_some(selector)
}

/// Whether the Service's selector matches the pod.
pub fn selects(service: &Value, pod: &Value) -> bool {
    let labels = pod.members(&["metadata", "labels"]);
    namespace(service) == namespace(pod)
        && selector(service).is_some_and(|selector| selector.iter().all(|(key, value)| labels.get(key) == Some(value)))
}

/// The index key of a Service: one label pair of its selector, which each matching pod has.
pub fn service_key(service: &Value) -> Option<String> {
    let pairs = selector(service)?.iter();
    // The last pair in order: generic labels such as `app` sort first and match more pods.
    pairs.map(|(key, value)| pair(key, value)).max()
}

/// The index keys of a pod: all its label pairs.
pub fn pod_keys(pod: &Value) -> impl Iterator<Item = String> {
    pod.members(&["metadata", "labels"]).iter().map(|(key, value)| pair(key, value))
}

fn pair(key: &str, value: &Value) -> String {
    format!("{key}={}", value.as_str().unwrap_or_default())
}

/// Whether a change of a pod can change the Endpoints of any Service.
pub fn matters(before: Option<&Value>, after: Option<&Value>) -> bool {
    let (Some(before), Some(after)) = (before, after) else { return true };
    const PATHS: &[&[&str]] = &[
        &["metadata", "uid"],
        &["metadata", "labels"],
        &["spec", "nodeName"],
        &["spec", "hostname"],
        &["spec", "subdomain"],
        &["status", "podIPs"],
        &["status", "podIP"],
    ];
    let facts = |pod| (terminating(pod), is_over(pod), condition::is_true(pod, "Ready"));
    facts(before) != facts(after) || PATHS.iter().any(|path| before.at(path) != after.at(path))
}

/// Whether a pod has terminated; it has no address any more.
fn is_over(pod: &Value) -> bool {
    matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed")
}

#[cfg(test)]
mod tests;
