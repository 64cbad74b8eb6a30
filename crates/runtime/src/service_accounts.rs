//! Creates what every namespace needs: the `default` ServiceAccount and the CA certificate of the API server.

use crate::controllers::ControllerContext;
use kit::api::{Api, ApiError, Resource};
use kit::descriptor::{Descriptor, Scope, allow};
use kit::worker::{self, Source, key};
use object::access::{Access, name, terminating};
use object::{Value, json};

const ACCOUNT: &str = "default";
const ROOT_CA: &str = "kube-root-ca.crt";

pub const ACCOUNTS_DESCRIPTOR: Descriptor = Descriptor {
    name: "serviceaccount-controller",
    account: "service-account-controller",
    scope: Scope::Cluster,
    rules: &[allow("list watch create", "core", "serviceaccounts"), allow("list watch", "core", "namespaces")],
};

/// Keeps a `default` ServiceAccount in every namespace.
pub async fn run_accounts(context: ControllerContext) {
    let accounts = Resource::new("v1", "ServiceAccount", "serviceaccounts", true);
    keep_in_every_namespace(
        context,
        accounts,
        ACCOUNT,
        |_| json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}),
    )
    .await;
}

pub const ROOT_CA_DESCRIPTOR: Descriptor = Descriptor {
    name: "root-ca-certificate-publisher-controller",
    account: "root-ca-cert-publisher",
    scope: Scope::Cluster,
    rules: &[allow("list watch create update", "core", "configmaps"), allow("list watch", "core", "namespaces")],
};

/// Keeps a ConfigMap with the CA certificate in every namespace, for pods to mount.
pub async fn run_root_ca(context: ControllerContext) {
    let Some(certificate) = context.root_ca.clone() else { return };
    let config_maps = Resource::new("v1", "ConfigMap", "configmaps", true);
    keep_in_every_namespace(context, config_maps, ROOT_CA, move |_| {
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
    context: ControllerContext,
    resource: Resource,
    object_name: &'static str,
    wanted: impl Fn(&str) -> Value + Clone + Send + Sync + 'static,
) {
    let namespaces =
        Source::new(Resource::new("v1", "Namespace", "namespaces", false), |namespace| vec![key(namespace)]);
    // The key is always the namespace, also when the object changed.
    let objects = Source::new(resource.clone(), |object| vec![("".into(), object::access::namespace(object).into())])
        .only(format!("metadata.name={object_name}"));
    let (namespace_cache, object_cache) = (namespaces.cache.clone(), objects.cache.clone());
    let api = context.api.clone();
    worker::run(context, vec![namespaces, objects], 4, move |key| {
        let (namespaces, objects, api, resource, wanted) =
            (namespace_cache.clone(), object_cache.clone(), api.clone(), resource.clone(), wanted.clone());
        async move {
            let Some(namespace) = namespaces.get(&key).filter(|namespace| !terminating(namespace)) else {
                return Ok(None);
            };
            let namespace = name(&namespace);
            let existing = objects.get(&(namespace.into(), object_name.into()));
            keep(&api, &resource, namespace, existing.as_deref(), wanted(namespace)).await?;
            Ok(None)
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
) -> Result<(), ApiError> {
    match existing {
        None => match api.create(&resource.collection(namespace), &wanted).await {
            // The object exists already, or the namespace is terminating or deleted: the next watch event
            // requeues this key.
            Err(error) if error.is_conflict() || error.is_not_found() || error.is_namespace_ending() => {}
            result => drop(result?),
        },
        Some(existing) if existing.at(&["data"]) != wanted.at(&["data"]) => {
            let mut repaired = existing.clone();
            repaired.put(&["data"], wanted.at(&["data"]).cloned().unwrap_or_default());
            api.replace(&resource.object(namespace, name(&wanted)), &repaired).await?;
        }
        Some(_) => {}
    }
    Ok(())
}
