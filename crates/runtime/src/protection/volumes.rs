//! Protects bound PVs by a finalizer.

use super::patch;
use crate::controllers::ControllerContext;
use kit::api::Resource;
use kit::descriptor::{Descriptor, Scope, allow};
use kit::worker::{self, Source, key};
use object::Value;
use plan::protect;

const WORKERS: usize = 8;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "persistentvolume-protection-controller",
    account: "pv-protection-controller",
    scope: Scope::Namespaces,
    rules: &[allow("list watch patch", "core", "persistentvolumes")],
};

/// Keeps the finalizer of PVs, until shutdown.
pub async fn run(context: ControllerContext) {
    let volumes = Resource::new("v1", "PersistentVolume", "persistentvolumes", false);
    let scope = context.scope.clone();
    let wanted = move |volume: &Value| protect::volume(volume).filter(|_| scope.covers_volume(volume));
    let wakes = wanted.clone();
    let source =
        Source::new(volumes.clone(), move |volume| if wakes(volume).is_some() { vec![key(volume)] } else { vec![] });
    let (cache, api) = (source.cache.clone(), context.api.clone());
    worker::run(context, vec![source], WORKERS, move |key| {
        let (cache, api, path) = (cache.clone(), api.clone(), volumes.object("", &key.1));
        let wanted = cache.get(&key).and_then(|volume| wanted(&volume));
        async move {
            if let Some(wanted) = wanted {
                patch(&api, &path, &wanted, &cache, &key).await?;
            }
            Ok(None)
        }
    })
    .await;
}
