//! VolumeAttributesClasses stay while a volume or a claim names them.

use super::patch;
use crate::api::Resource;
use crate::controllers::Part;
use crate::worker::{self, Key, Source, key};
use plan::protect;

const WORKERS: usize = 2;

/// Keeps the finalizer of VolumeAttributesClasses, until the part stops.
pub async fn run(part: Part) {
    let classes = Resource::new("storage.k8s.io/v1", "VolumeAttributesClass", "volumeattributesclasses", false);
    if !worker::wait_for_first(&part, &classes).await {
        return;
    }
    let source = Source::new(classes.clone(), |class| vec![key(class)]);
    let named = |name: &str| -> Key { ("".into(), name.into()) };
    let volumes = Source::new(Resource::new("v1", "PersistentVolume", "persistentvolumes", false), move |volume| {
        protect::attributes_class_of_volume(volume).map(named).into_iter().collect()
    });
    let claims =
        Source::new(Resource::new("v1", "PersistentVolumeClaim", "persistentvolumeclaims", true), move |claim| {
            protect::attributes_classes_of_claim(claim).map(named).collect()
        });
    let volumes_of =
        volumes.cache.index(move |volume| protect::attributes_class_of_volume(volume).map(named).into_iter().collect());
    let claims_of = claims.cache.index(move |claim| protect::attributes_classes_of_claim(claim).map(named).collect());
    let (cache, api) = (source.cache.clone(), part.api.clone());
    worker::run(part, vec![source, volumes, claims], WORKERS, move |key| {
        let is_named = !volumes_of.get(&key).is_empty() || !claims_of.get(&key).is_empty();
        let wanted = cache.get(&key).and_then(|class| protect::attributes_class(&class, is_named));
        let (cache, api, path) = (cache.clone(), api.clone(), classes.object("", &key.1));
        async move {
            if let Some(wanted) = wanted {
                patch(&api, &path, &wanted, &cache, &key).await?;
            }
            Ok(None)
        }
    })
    .await;
}
