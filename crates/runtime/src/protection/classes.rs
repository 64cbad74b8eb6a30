//! VolumeAttributesClasses stay while a volume or a claim names them.

use super::{trim_claim, trim_volume, trimmed_metadata};
use crate::api::Resource;
use crate::controllers::Part;
use crate::worker::{self, Key, Source, key};
use object::access::Access;
use object::{Value, json};
use plan::protect;

const WORKERS: usize = 2;

/// Keeps the finalizer of VolumeAttributesClasses, until the part stops.
pub async fn run(part: Part) {
    let classes = Resource::new("storage.k8s.io/v1", "VolumeAttributesClass", "volumeattributesclasses", false);
    if !worker::wait_for_first(&part, &classes).await {
        return;
    }
    let source = Source::new(classes.clone(), |class| vec![key(class)])
        .trimmed(|class| *class = json!({"metadata": trimmed_metadata(class)}));
    let named = |name: &str| -> Key { ("".into(), name.into()) };
    let volumes = Source::new(Resource::new("v1", "PersistentVolume", "persistentvolumes", false), move |volume| {
        protect::attributes_class_of_volume(volume).map(named).into_iter().collect()
    });
    let claims =
        Source::new(Resource::new("v1", "PersistentVolumeClaim", "persistentvolumeclaims", true), move |claim| {
            protect::attributes_classes_of_claim(claim).map(named).collect()
        });
    let (volumes, claims) = (volumes.trimmed(trim_volume), claims.trimmed(trim_claim));
    let (class_cache, volume_cache, claim_cache) = (source.cache.clone(), volumes.cache.clone(), claims.cache.clone());
    let api = part.api.clone();
    worker::run(part, vec![source, volumes, claims], WORKERS, move |key| {
        let class = class_cache.get(&key);
        let named = |class: &Value| {
            let name = class.text(&["metadata", "name"]);
            volume_cache.all().iter().any(|volume| protect::attributes_class_of_volume(volume) == Some(name))
                || claim_cache
                    .all()
                    .iter()
                    .any(|claim| protect::attributes_classes_of_claim(claim).any(|named| named == name))
        };
        let patch = class.and_then(|class| protect::attributes_class(&class, named(&class)));
        let (api, path) = (api.clone(), classes.object("", &key.1));
        async move {
            if let Some(patch) = patch {
                api.merge_if_there(&path, &patch).await?;
            }
            Ok(None)
        }
    })
    .await;
}
