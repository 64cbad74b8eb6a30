//! Volumes stay while they are bound.

use super::patch;
use crate::api::Resource;
use crate::controllers::Part;
use crate::worker::{self, Source, key};
use plan::protect;

const WORKERS: usize = 8;

/// Keeps the finalizer of volumes, until the part stops.
pub async fn run(part: Part) {
    let volumes = Resource::new("v1", "PersistentVolume", "persistentvolumes", false);
    let wakes = |volume: &_| if protect::volume(volume).is_some() { vec![key(volume)] } else { vec![] };
    let source = Source::new(volumes.clone(), wakes);
    let (cache, api) = (source.cache.clone(), part.api.clone());
    worker::run(part, vec![source], WORKERS, move |key| {
        let (cache, api, path) = (cache.clone(), api.clone(), volumes.object("", &key.1));
        async move {
            if let Some(wanted) = cache.get(&key).and_then(|volume| protect::volume(&volume)) {
                patch(&api, &path, &wanted, &cache, &key).await?;
            }
            Ok(None)
        }
    })
    .await;
}
