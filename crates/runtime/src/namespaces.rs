//! The namespace controller: empties terminating namespaces.

use crate::api::{Api, ApiError, Resource};
use crate::controllers::Part;
use crate::worker::{self, Source, key};
use object::Value;
use object::access::{Access, name, terminating};
use plan::namespace::{Content, Remaining};
use serde_json::json;
use std::time::Duration;

/// While content is on its way out, look again after this long; most of it goes at once.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

pub async fn run(part: Part) {
    let resource = Resource::new("v1", "Namespace", "namespaces", false);
    let source =
        Source::new(resource.clone(), |namespace| if terminating(namespace) { vec![key(namespace)] } else { vec![] });
    let cache = source.cache.clone();
    let api = part.api.clone();
    worker::run(part, vec![source], 4, move |key| {
        let (cache, api, resource) = (cache.clone(), api.clone(), resource.clone());
        async move {
            match cache.get(&key) {
                Some(namespace) if terminating(&namespace) => empty(&api, &resource, name(&namespace)).await,
                _ => Ok(None),
            }
        }
    })
    .await;
}

async fn empty(api: &Api, namespaces: &Resource, name: &str) -> Result<Option<Duration>, ApiError> {
    let path = namespaces.object("", name);
    let Some(namespace) = api.find(&path).await? else { return Ok(None) };
    let (resources, discovery_error) = match api.discover().await {
        Ok(found) => (found, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let resources: Vec<Resource> = resources.into_iter().filter(|resource| resource.namespaced).collect();
    let mut content = Vec::with_capacity(resources.len());
    for resource in &resources {
        content.push(look(api, resource, name).await);
    }
    let plan = plan::namespace::plan(&namespace, &content, discovery_error.as_deref(), jiff::Timestamp::now());
    for at in &plan.delete {
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
        match api.delete(&resources[*at].collection(name), &options).await {
            Ok(_) => {}
            Err(error) if error.is_not_found() || error.code() == 405 => {}
            Err(error) => tracing::debug!(%error, namespace = name, resource = %resources[*at].plural, "cannot empty"),
        }
    }
    let mut version = namespace.text(&["metadata", "resourceVersion"]).to_owned();
    if let Some(status) = plan.status {
        let stored = api.replace(&format!("{path}/status"), &status).await?;
        version = stored.text(&["metadata", "resourceVersion"]).to_owned();
    }
    if let Some(mut finalized) = plan.finalize {
        finalized.put(&["metadata", "resourceVersion"], version);
        api.replace(&format!("{path}/finalize"), &finalized).await?;
        return Ok(None);
    }
    Ok((plan.remaining > 0 || !plan.delete.is_empty()).then_some(if plan.delete.is_empty() {
        LOOK_AGAIN
    } else {
        Duration::ZERO
    }))
}

async fn look(api: &Api, resource: &Resource, namespace: &str) -> Content {
    let mut content =
        Content { group: resource.group.to_string(), plural: resource.plural.to_string(), ..Content::default() };
    match api.metadata(&resource.collection(namespace)).await {
        Ok(list) => content.objects = list.items(&["items"]).iter().map(|item: &Value| Remaining::of(item)).collect(),
        Err(error) if error.is_not_found() || error.code() == 405 => {}
        Err(error) => content.error = Some(error.to_string()),
    }
    content
}
