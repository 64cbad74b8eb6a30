//! The state after each change.

use crate::world::World;
use object::Value;
use object::access::{Access, name};
use std::collections::BTreeMap;
use store::Next;

/// The objects in `default` at one moment, by name.
#[derive(Clone, Debug, Default)]
pub struct Moment {
    pub revision: u64,
    pub pods: BTreeMap<String, Value>,
    pub claims: BTreeMap<String, Value>,
}

impl World {
    /// All moments up to now at which a pod or a claim changed.
    pub async fn history(&self) -> Vec<Moment> {
        self.history_since(self.store.oldest()).await
    }

    /// The same from a revision on at which there were none.
    pub async fn history_since(&self, revision: u64) -> Vec<Moment> {
        let mut watcher = self.store.watch("", revision).expect("nothing is forgotten");
        let Next::Events { events, .. } = watcher.next(usize::MAX).await else { panic!("something happened") };
        let mut moments = Vec::new();
        let mut now = Moment::default();
        for event in events {
            let objects = match &*event.key {
                key if key.starts_with("/core/pods/default/") => &mut now.pods,
                key if key.starts_with("/core/persistentvolumeclaims/default/") => &mut now.claims,
                _ => continue,
            };
            let bytes = event.current.as_ref().map_or_else(|| event.last.clone(), |record| Some(record.value.clone()));
            let object: Value = serde_json::from_slice(&bytes.expect("the last version")).expect("an object");
            match event.current {
                Some(_) => objects.insert(name(&object).to_owned(), object),
                None => objects.remove(name(&object)),
            };
            now.revision = event.revision;
            moments.push(now.clone());
        }
        moments
    }
}

impl Moment {
    pub fn names(&self) -> Vec<&str> {
        self.pods.keys().map(String::as_str).collect()
    }
    pub fn unready(&self) -> Vec<&str> {
        let unready = self.pods.iter().filter(|(_, pod)| !object::condition::is_true(pod, "Ready"));
        unready.map(|(name, _)| name.as_str()).collect()
    }
    /// The image of a pod.
    pub fn image(&self, pod: &str) -> Option<&str> {
        self.pods.get(pod).map(|pod| pod["spec"]["containers"][0].text(&["image"]))
    }
}
