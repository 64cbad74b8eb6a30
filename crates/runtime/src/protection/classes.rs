//! Protects VolumeAttributesClasses that a PV or a claim uses.

use super::patch;
use crate::controllers::ControllerContext;
use crate::csi::{claims, volumes};
use kit::api::{Api, ApiError, Resource};
use kit::descriptor::{Descriptor, Scope, allow};
use kit::worker::{self, Key, Source, key};
use object::Value;
use object::access::terminating;
use plan::protect;
use std::sync::Arc;
use std::time::Duration;

const WORKERS: usize = 2;
/// A class used by an object that the cache does not have is checked again after this time.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "volumeattributesclass-protection-controller",
    account: "volumeattributesclass-protection-controller",
    scope: Scope::Cluster,
    rules: &[
        allow("list watch patch", "storage.k8s.io", "volumeattributesclasses"),
        allow("list watch", "core", "persistentvolumeclaims persistentvolumes"),
    ],
};

/// Keeps the finalizer of VolumeAttributesClasses, until shutdown.
pub async fn run(context: ControllerContext) {
    let classes = Resource::new("storage.k8s.io/v1", "VolumeAttributesClass", "volumeattributesclasses", false);
    if !worker::wait_for_first(&context.api, &context.shutdown, &classes).await {
        return;
    }
    let source = Source::new(classes.clone(), |class| vec![key(class)]);
    let named = |name: &str| -> Key { ("".into(), name.into()) };
    let volumes = Source::new(volumes(), move |volume| {
        protect::attributes_class_of_volume(volume).map(named).into_iter().collect()
    });
    let claims = Source::new(claims(), move |claim| protect::attributes_classes_of_claim(claim).map(named).collect());
    let volumes_of =
        volumes.cache.index(move |volume| protect::attributes_class_of_volume(volume).map(named).into_iter().collect());
    let claims_of = claims.cache.index(move |claim| protect::attributes_classes_of_claim(claim).map(named).collect());
    let (cache, api) = (source.cache.clone(), context.api.clone());
    worker::run(context, vec![source, volumes, claims], WORKERS, move |key| {
        let is_named = !volumes_of.get(&key).is_empty() || !claims_of.get(&key).is_empty();
        let class = cache.get(&key);
        let wanted = class.as_ref().and_then(|class| protect::attributes_class(class, is_named));
        let is_released = wanted.is_some() && class.is_some_and(|class| terminating(&class));
        let (cache, api, path) = (cache.clone(), api.clone(), classes.object("", &key.1));
        async move {
            let Some(wanted) = wanted else { return Ok(None) };
            // The caches of claims and PVs may be stale.
            if is_released && is_named_now(&api, &key.1).await? {
                return Ok(Some(LOOK_AGAIN));
            }
            patch(&api, &path, &wanted, &cache, &key).await?;
            Ok(None)
        }
    })
    .await;
}

/// Whether a claim or a PV uses a class, as the server says now.
async fn is_named_now(api: &Api, class: &str) -> Result<bool, ApiError> {
    let mut is_named = false;
    let of_claim = |claim: &Arc<Value>| is_named |= protect::attributes_classes_of_claim(claim).any(|it| it == class);
    api.each(&claims().collection(""), of_claim).await?;
    let of_volume = |volume: &Arc<Value>| is_named |= protect::attributes_class_of_volume(volume) == Some(class);
    api.each(&volumes().collection(""), of_volume).await?;
    Ok(is_named)
}
