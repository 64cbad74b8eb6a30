//! What every namespace has: the `default` ServiceAccount, and the CA certificate of the API server.

use crate::api::{Api, ApiError, Resource};
use crate::controllers::Part;
use crate::worker::{self, Source, key};
use object::access::{Access, name, terminating};
use object::{Value, json};
use std::time::Duration;

const ACCOUNT: &str = "default";
const ROOT_CA: &str = "kube-root-ca.crt";

/// Keeps a `default` ServiceAccount in every namespace.
pub async fn run_accounts(part: Part) {
    let accounts = Resource::new("v1", "ServiceAccount", "serviceaccounts", true);
    keep_in_every_namespace(
        part,
        accounts,
        ACCOUNT,
        |_| json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}),
    )
    .await;
}

/// Keeps the CA certificate in every namespace, for pods to find.
pub async fn run_root_ca(part: Part) {
    let Some(certificate) = part.root_ca.clone() else { return };
    let config_maps = Resource::new("v1", "ConfigMap", "configmaps", true);
    keep_in_every_namespace(part, config_maps, ROOT_CA, move |_| {
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": ROOT_CA,
                "annotations": {"kubernetes.io/description": "The certificate that proves to pods that they talk to the API server."},
            },
            "data": {"ca.crt": &*certificate},
        })
    })
    .await;
}

async fn keep_in_every_namespace(
    part: Part,
    resource: Resource,
    object_name: &'static str,
    wanted: impl Fn(&str) -> Value + Clone + Send + Sync + 'static,
) {
    let namespaces =
        Source::new(Resource::new("v1", "Namespace", "namespaces", false), |namespace| vec![key(namespace)]);
    let objects = Source::new(resource.clone(), move |object| {
        // The namespace is the key here, whatever woke it.
        if name(object) == object_name { vec![("".into(), object::access::namespace(object).into())] } else { vec![] }
    });
    let (namespace_cache, object_cache) = (namespaces.cache.clone(), objects.cache.clone());
    let api = part.api.clone();
    worker::run(part, vec![namespaces, objects], 4, move |key| {
        let (namespaces, objects, api, resource, wanted) =
            (namespace_cache.clone(), object_cache.clone(), api.clone(), resource.clone(), wanted.clone());
        async move {
            let Some(namespace) = namespaces.get(&key).filter(|namespace| !terminating(namespace)) else {
                return Ok(None);
            };
            let namespace = name(&namespace);
            let existing = objects.get(&(namespace.into(), object_name.into()));
            keep(&api, &resource, namespace, existing.as_deref(), wanted(namespace)).await
        }
    })
    .await;
}

async fn keep(
    api: &Api,
    resource: &Resource,
    namespace: &str,
    existing: Option<&Value>,
    wanted: Value,
) -> Result<Option<Duration>, ApiError> {
    match existing {
        None => match api.create(&resource.collection(namespace), &wanted).await {
            // Already there, or the namespace is on its way out: the next change wakes this key again.
            Err(error) if matches!(error.code(), 403 | 404 | 409) => {}
            result => drop(result?),
        },
        Some(existing) if existing.at(&["data"]) != wanted.at(&["data"]) => {
            let path = resource.object(namespace, name(&wanted));
            api.merge(&path, &json!({"data": wanted.at(&["data"])})).await?;
        }
        Some(_) => {}
    }
    Ok(None)
}
