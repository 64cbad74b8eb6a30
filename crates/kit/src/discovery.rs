//! Which resources an API server serves; read again only if its ETag changed.

use crate::api::{Api, ApiError, Resource};
use object::Value;
use object::access::Access;
use std::sync::{Arc, Mutex};

/// Accepts one aggregated document, or what older servers answer.
const ACCEPT: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                      application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";

/// A resource and its verbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// In its group's preferred version among those that serve it.
    pub resource: Resource,
    /// All versions that serve it.
    pub versions: Vec<String>,
    pub verbs: Vec<String>,
    /// Whether it has a `scale` subresource.
    pub scales: bool,
}

impl Served {
    pub fn can(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|verb| self.verbs.iter().any(|has| has == verb))
    }
}

/// Discovery of one server. Clones share the cached documents.
#[derive(Clone)]
pub struct Discovery {
    api: Api,
    known: Arc<Mutex<[Root; 2]>>,
}

/// The last document of one of the two roots (`/api`, `/apis`).
#[derive(Clone, Default)]
struct Root {
    etag: String,
    served: Arc<Vec<Served>>,
}

impl Discovery {
    pub fn new(api: Api) -> Discovery {
        Discovery { api, known: Arc::default() }
    }

    /// All resources that are served now.
    pub async fn look(&self) -> Result<Vec<Served>, ApiError> {
        let core = self.read_root(0, "/api").await?;
        let named = self.read_root(1, "/apis").await?;
        Ok(core.iter().chain(named.iter()).cloned().collect())
    }

    async fn read_root(&self, at: usize, root: &str) -> Result<Arc<Vec<Served>>, ApiError> {
        let known = self.lock()[at].clone();
        let Some(document) = self.api.document(root, ACCEPT, &known.etag).await? else { return Ok(known.served) };
        let fresh = if document.value.text(&["kind"]) == "APIGroupDiscoveryList" {
            Root { etag: document.etag, served: Arc::new(aggregated(&document.value, &known.served)) }
        } else {
            // The documents below this one can change while its ETag stays, so it is not cached.
            Root { etag: String::new(), served: Arc::new(self.plain(root, &document.value).await?) }
        };
        self.lock()[at] = fresh.clone();
        Ok(fresh.served)
    }

    /// Reads servers without aggregated discovery: one document per group version.
    async fn plain(&self, root: &str, document: &Value) -> Result<Vec<Served>, ApiError> {
        let mut served = Vec::new();
        let core: Vec<String> =
            document.items(&["versions"]).iter().filter_map(Value::as_str).map(str::to_owned).collect();
        let groups = document.items(&["groups"]).iter().map(|group| {
            let preferred = group.text(&["preferredVersion", "groupVersion"]);
            let others = group.items(&["versions"]).iter().map(|version| version.text(&["groupVersion"]));
            let others = others.filter(|other| *other != preferred);
            std::iter::once(preferred).chain(others).map(str::to_owned).collect()
        });
        for versions in std::iter::once(core).chain(groups) {
            let mut group = Vec::new();
            for version in versions {
                // A version that was removed between the two requests has no resources.
                let Some(list) = self.api.find_if_served(&format!("{root}/{version}")).await? else { continue };
                let resources = list.items(&["resources"]);
                for resource in resources.iter().filter(|resource| !resource.text(&["name"]).contains('/')) {
                    let scale = format!("{}/scale", resource.text(&["name"]));
                    let scales = resources.iter().any(|other| other.text(&["name"]) == scale);
                    let (kind, plural) = (resource.text(&["kind"]), resource.text(&["name"]));
                    let found = Resource::new(&version, kind, plural, resource.flag(&["namespaced"]));
                    add(&mut group, found, resource.items(&["verbs"]), scales);
                }
            }
            served.append(&mut group);
        }
        Ok(served)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, [Root; 2]> {
        self.known.lock().expect("no panic happens under this lock")
    }
}

/// Reads an aggregated document. Groups marked `Stale`, whose server does not respond, keep the resources of
/// `before`.
fn aggregated(document: &Value, before: &[Served]) -> Vec<Served> {
    let mut served = Vec::new();
    for group in document.items(&["items"]) {
        let group_name = group.text(&["metadata", "name"]);
        let versions = group.items(&["versions"]);
        if versions.iter().any(|version| version.text(&["freshness"]) == "Stale") {
            served.extend(before.iter().filter(|known| &*known.resource.group == group_name).cloned());
            continue;
        }
        let mut found = Vec::new();
        for version in versions {
            let version_name = version.text(&["version"]);
            let api_version =
                if group_name.is_empty() { version_name.to_owned() } else { format!("{group_name}/{version_name}") };
            for resource in version.items(&["resources"]) {
                let (kind, plural) = (resource.text(&["responseKind", "kind"]), resource.text(&["resource"]));
                let subresources = resource.items(&["subresources"]);
                let scales = subresources.iter().any(|subresource| subresource.text(&["subresource"]) == "scale");
                let namespaced = resource.text(&["scope"]) == "Namespaced";
                let resource_found = Resource::new(&api_version, kind, plural, namespaced);
                add(&mut found, resource_found, resource.items(&["verbs"]), scales);
            }
        }
        served.append(&mut found);
    }
    served
}

/// Versions are in order of preference: the first that has a resource describes it.
fn add(group: &mut Vec<Served>, resource: Resource, verbs: &[Value], scales: bool) {
    let version = resource.version.to_string();
    if let Some(known) = group.iter_mut().find(|known| known.resource.plural == resource.plural) {
        known.versions.push(version);
        return;
    }
    let verbs = verbs.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    group.push(Served { resource, versions: vec![version], verbs, scales });
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::json;

    fn document(freshness: &str) -> Value {
        let resource = |plural: &str, kind: &str, scope: &str| {
            json!({
                "resource": plural, "responseKind": {"group": "x.io", "kind": kind}, "scope": scope, "verbs": ["get", "list"],
                "subresources": [{"subresource": "scale"}],
            })
        };
        json!({"kind": "APIGroupDiscoveryList", "items": [{
            "metadata": {"name": "x.io"},
            "versions": [
                {"version": "v2", "freshness": freshness, "resources": [resource("gears", "Gear", "Namespaced")]},
                {"version": "v1", "resources": [resource("gears", "Gear", "Namespaced"), resource("old", "Old", "Cluster")]},
            ],
        }]})
    }

    #[test]
    fn each_resource_is_found_once_in_the_first_version_that_has_it() {
        let served = aggregated(&document("Current"), &[]);
        let said: Vec<_> = served
            .iter()
            .map(|found| (found.resource.api_version(), &*found.resource.plural, found.resource.namespaced))
            .collect();
        assert_eq!(said, [("x.io/v2".to_owned(), "gears", true), ("x.io/v1".to_owned(), "old", false)]);
        assert_eq!(served[0].versions, ["v2", "v1"]);
        assert!(served[0].scales && served[0].can(&["get", "list"]) && !served[0].can(&["get", "delete"]));
    }

    #[test]
    fn a_group_whose_server_is_away_is_not_gone() {
        let before = aggregated(&document("Current"), &[]);
        assert_eq!(aggregated(&document("Stale"), &before), before);
    }
}
