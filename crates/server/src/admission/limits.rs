//! LimitRanges: defaults for containers, and limits for containers, pods and claims.

use super::{Verb, Write};
use crate::object_store::Reader;
use object::access::{Access, terminating};
use object::pod::amounts::{self, Amounts};
use object::quantity::Quantity;
use object::{Status, Value};

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// Sets missing requests and limits of the containers of a new pod.
pub fn default(reader: &Reader, write: &mut Write<'_>) -> Result<(), Status> {
    if !write.is(Verb::Create, "", "pods") {
        return Ok(());
    }
    for item in items(reader, write.namespace)?.iter().filter(|item| item.text(&["type"]) == "Container") {
        let mut set = Vec::new();
        for (list, what) in [("containers", "container"), ("initContainers", "init container")] {
            let Some(Value::Array(containers)) = write.object.get_mut("spec").and_then(|spec| spec.get_mut(list))
            else {
                continue;
            };
            for container in containers {
                fill(container, item, what, &mut set);
            }
        }
        if !set.is_empty() {
            let text = format!("LimitRanger plugin set: {}", set.join("; "));
            write.object.put(&["metadata", "annotations", ANNOTATION], text);
        }
    }
    Ok(())
}

/// Refuses pods and claims outside the limits.
pub fn check(reader: &Reader, write: &Write<'_>) -> Result<(), Status> {
    let claims = ("", "persistentvolumeclaims");
    let pod = write.is(Verb::Create, "", "pods");
    let claim = write.is(Verb::Create, claims.0, claims.1) || write.is(Verb::Update, claims.0, claims.1);
    // A terminating object may violate limits that were added later.
    if (!pod && !claim) || terminating(write.object) {
        return Ok(());
    }
    let mut wrong: Vec<String> = Vec::new();
    for item in items(reader, write.namespace)? {
        match item.text(&["type"]) {
            "Container" if pod => {
                for list in ["containers", "initContainers"] {
                    for container in write.object.items(&["spec", list]) {
                        let requests = amounts::named(container, "requests");
                        let limits = amounts::named(container, "limits");
                        Bounds { item: &item, what: "Container" }.check(&requests, &limits, &mut wrong);
                    }
                }
            }
            "Pod" if pod => {
                let requests = amounts::of_pod(write.object, "requests");
                let limits = amounts::of_pod(write.object, "limits");
                Bounds { item: &item, what: "Pod" }.check(&requests, &limits, &mut wrong);
            }
            "PersistentVolumeClaim" if claim => {
                let spec = write.object.at(&["spec"]).unwrap_or(&Value::Null);
                let requests = amounts::named(spec, "requests");
                Bounds { item: &item, what: "PersistentVolumeClaim" }.check_requests(&requests, &mut wrong);
            }
            _ => {}
        }
    }
    wrong.dedup();
    match wrong.as_slice() {
        [] => Ok(()),
        [one] => Err(write.forbidden(one)),
        several => Err(write.forbidden(format!("[{}]", several.join(", ")))),
    }
}

fn items(reader: &Reader, namespace: &str) -> Result<Vec<Value>, Status> {
    let ranges = reader.list(&format!("/core/limitranges/{namespace}/"))?;
    Ok(ranges.iter().flat_map(|(range, _)| range.items(&["spec", "limits"])).cloned().collect())
}

fn fill(container: &mut Value, item: &Value, what: &str, set: &mut Vec<String>) {
    for (which, source, word) in [("requests", "defaultRequest", "request"), ("limits", "default", "limit")] {
        let mut added: Vec<&str> = Vec::new();
        for (resource, amount) in item.members(&[source]) {
            if !container.has(&["resources", which, resource]) {
                container.put(&["resources", which, resource], amount.clone());
                added.push(resource);
            }
        }
        if !added.is_empty() {
            added.sort_unstable();
            set.push(format!("{} {word} for {what} {}", added.join(", "), container.text(&["name"])));
        }
    }
}

/// One item of a LimitRange, and the name of its type for messages.
struct Bounds<'a> {
    item: &'a Value,
    what: &'static str,
}

impl Bounds<'_> {
    fn check(&self, requests: &Amounts, limits: &Amounts, wrong: &mut Vec<String>) {
        let what = self.what;
        for (resource, least) in pairs(self.item, "min") {
            let head = format!("minimum {resource} usage per {what} is {least}");
            match (requests.get(&resource), limits.get(&resource)) {
                (None, _) => wrong.push(format!("{head}.  No request is specified")),
                (Some(request), _) if *request < least => wrong.push(format!("{head}, but request is {request}")),
                (_, Some(limit)) if *limit < least => wrong.push(format!("{head}, but limit is {limit}")),
                _ => {}
            }
        }
        for (resource, most) in pairs(self.item, "max") {
            let head = format!("maximum {resource} usage per {what} is {most}");
            match (requests.get(&resource), limits.get(&resource)) {
                (_, None) => wrong.push(format!("{head}.  No limit is specified")),
                (_, Some(limit)) if *limit > most => wrong.push(format!("{head}, but limit is {limit}")),
                (Some(request), _) if *request > most => wrong.push(format!("{head}, but request is {request}")),
                _ => {}
            }
        }
        for (resource, most) in pairs(self.item, "maxLimitRequestRatio") {
            self.check_ratio(&resource, most, requests.get(&resource), limits.get(&resource), wrong);
        }
    }

    /// Checks a claim, which has only requests.
    fn check_requests(&self, requests: &Amounts, wrong: &mut Vec<String>) {
        let what = self.what;
        for (bound, word, source) in [(true, "minimum", "min"), (false, "maximum", "max")] {
            for (resource, enforced) in pairs(self.item, source) {
                let head = format!("{word} {resource} usage per {what} is {enforced}");
                match requests.get(&resource) {
                    None => wrong.push(format!("{head}.  No request is specified")),
                    Some(request) if (bound && *request < enforced) || (!bound && *request > enforced) => {
                        wrong.push(format!("{head}, but request is {request}"));
                    }
                    Some(_) => {}
                }
            }
        }
    }

    fn check_ratio(
        &self,
        resource: &str,
        most: Quantity,
        request: Option<&Quantity>,
        limit: Option<&Quantity>,
        wrong: &mut Vec<String>,
    ) {
        let head = format!("{resource} max limit to request ratio per {} is {most}, but", self.what);
        let Some(request) = request.filter(|request| !request.is_zero()) else {
            wrong.push(format!("{head} no request is specified or request is 0"));
            return;
        };
        let Some(limit) = limit.filter(|limit| !limit.is_zero()) else {
            wrong.push(format!("{head} no limit is specified or limit is 0"));
            return;
        };
        let number = |quantity: &Quantity| quantity.ceil_milli() as f64;
        let ratio = number(limit) / number(request);
        if ratio > number(&most) / 1000.0 {
            wrong.push(format!("{head} provided ratio is {ratio:.6}"));
        }
    }
}

fn pairs(item: &Value, which: &str) -> Vec<(String, Quantity)> {
    let members = item.members(&[which]).iter();
    members.filter_map(|(resource, value)| Some((resource.to_string(), Quantity::of(value)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{World, denied};
    use super::*;
    use object::json;

    fn world(limits: Value) -> World {
        let mut world = World::with_namespace("a");
        world.store("/core/limitranges/a/l", json!({"metadata": {"name": "l"}, "spec": {"limits": limits}}));
        world
    }

    fn pod(resources: Value) -> Value {
        json!({
            "metadata": {"name": "p", "namespace": "a"},
            "spec": {"automountServiceAccountToken": false, "containers": [{"name": "c", "resources": resources}]},
        })
    }

    #[test]
    fn containers_get_what_they_lack_and_an_annotation_says_so() {
        let mut world = world(json!([{
            "type": "Container",
            "default": {"cpu": "1", "memory": "1Gi"},
            "defaultRequest": {"cpu": "100m", "memory": "1Gi"},
        }]));
        let got = world.mutate("pods", pod(json!({"requests": {"cpu": "500m"}}))).unwrap();
        assert_eq!(
            got["spec"]["containers"][0]["resources"],
            json!({"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}})
        );
        assert_eq!(
            got["metadata"]["annotations"][ANNOTATION],
            "LimitRanger plugin set: memory request for container c; cpu, memory limit for container c"
        );
        let full = pod(json!({"requests": {"cpu": "1", "memory": "1"}, "limits": {"cpu": "1", "memory": "1"}}));
        assert!(!world.mutate("pods", full).unwrap().has(&["metadata", "annotations"]));
    }

    #[test]
    fn limit_violations_have_upstreams_messages() {
        let resources = |request: &str, limit: &str| {
            let mut resources = json!({});
            for (which, amount) in [("requests", request), ("limits", limit)] {
                if !amount.is_empty() {
                    resources.put(&[which, "cpu"], amount);
                }
            }
            resources
        };
        let min = json!([{"type": "Container", "min": {"cpu": "100m"}}]);
        let max = json!([{"type": "Container", "max": {"cpu": "1"}}]);
        let ratio = json!([{"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}}]);
        let pods = json!([{"type": "Pod", "max": {"cpu": "1"}}]);
        let cases = [
            (&min, "100m", "", ""),
            (&min, "50m", "", "minimum cpu usage per Container is 100m, but request is 50m"),
            (&min, "", "", "minimum cpu usage per Container is 100m.  No request is specified"),
            (&min, "100m", "50m", "minimum cpu usage per Container is 100m, but limit is 50m"),
            (&max, "1", "1", ""),
            (&max, "1", "2", "maximum cpu usage per Container is 1, but limit is 2"),
            (&max, "1", "", "maximum cpu usage per Container is 1.  No limit is specified"),
            (&max, "2", "1", "maximum cpu usage per Container is 1, but request is 2"),
            (&ratio, "1", "2", ""),
            (&ratio, "1", "3", "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000"),
            (
                &ratio,
                "1",
                "",
                "cpu max limit to request ratio per Container is 2, but no limit is specified or limit is 0",
            ),
            (
                &ratio,
                "",
                "1",
                "cpu max limit to request ratio per Container is 2, but no request is specified or request is 0",
            ),
            (&pods, "1", "2", "maximum cpu usage per Pod is 1, but limit is 2"),
        ];
        for (limits, request, limit, want) in cases {
            let result = world(limits.clone()).create("pods", pod(resources(request, limit)));
            if want.is_empty() {
                assert!(result.is_ok(), "{limits} {request} {limit}");
            } else {
                let refused = denied(result);
                assert_eq!((refused.code, refused.message), (403, format!("pods \"p\" is forbidden: {want}")));
            }
        }
    }

    #[test]
    fn several_violations_are_listed_in_brackets() {
        let mut world = world(json!([{"type": "Container", "min": {"cpu": "1", "memory": "1"}}]));
        assert_eq!(
            denied(world.create("pods", pod(json!({})))).message,
            "pods \"p\" is forbidden: [minimum cpu usage per Container is 1.  No request is specified, \
             minimum memory usage per Container is 1.  No request is specified]"
        );
    }

    #[test]
    fn claims_are_bounded_on_create_and_update() {
        let mut world =
            world(json!([{"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "4Gi"}}]));
        let claim = |size: &str| {
            json!({
                "metadata": {"name": "c", "namespace": "a"},
                "spec": {"resources": {"requests": {"storage": size}}},
            })
        };
        assert!(world.create("persistentvolumeclaims", claim("1Gi")).is_ok());
        assert_eq!(
            denied(world.create("persistentvolumeclaims", claim("512Mi"))).message,
            "persistentvolumeclaims \"c\" is forbidden: minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 512Mi"
        );
        let refused = denied(world.update("persistentvolumeclaims", &claim("8Gi"), claim("8Gi")));
        assert!(
            refused.message.ends_with("maximum storage usage per PersistentVolumeClaim is 4Gi, but request is 8Gi")
        );
    }
}
