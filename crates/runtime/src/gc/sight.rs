//! Making sure that nobody is overlooked: before an owner is let go of, all that lives beside it is read.
//!
//! Watches tell of changes in order for each resource, but not across resources: an owner's deletion may be heard of before the
//! creation of a dependent that came first. Whoever lets go of the owner then would lose the dependent.

use super::Collector;
use super::watch::is_followed;
use crate::api::ApiError;
use object::Value;
use object::access::{Access, uid};
use plan::gc::{Place, Uid};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

/// Looks that are being taken or used, by namespace: owners that go together share one.
#[derive(Default)]
pub(super) struct Sights {
    by_namespace: Mutex<HashMap<Arc<str>, Slot>>,
}

type Slot = Arc<tokio::sync::Mutex<Weak<Sight>>>;

/// The namespaces above which those not in use are forgotten.
const SLOTS_MAX: usize = 64;

/// Who depended on whom in a namespace at `version` (the oldest of the lists that this was read from).
struct Sight {
    version: u64,
    dependents: HashMap<Uid, Vec<Uid>>,
}

impl Sights {
    fn slot(&self, namespace: &Arc<str>) -> Slot {
        let mut slots = self.by_namespace.lock().expect("no panic happens under this lock");
        if slots.len() >= SLOTS_MAX {
            slots.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        slots.entry(namespace.clone()).or_default().clone()
    }
}

impl Collector {
    /// Whether the graph shows every dependent that the owner had when it was at `version`.
    pub(super) async fn has_seen_dependents(&self, owner: &Place, uid: &Uid, version: &str) -> Result<bool, ApiError> {
        let slot = self.sights.slot(&owner.namespace);
        let mut slot = slot.lock().await;
        // A version that is no number cannot be compared: then only a look from now on will do.
        let wanted = version.parse::<u64>().unwrap_or(u64::MAX);
        let sight = match slot.upgrade().filter(|sight| sight.version >= wanted) {
            Some(sight) => sight,
            None => {
                let sight = Arc::new(self.look_around(&owner.namespace).await?);
                *slot = Arc::downgrade(&sight);
                sight
            }
        };
        drop(slot);
        let graph = self.graph();
        let mut dependents = sight.dependents.get(uid).into_iter().flatten();
        Ok(dependents.all(|dependent| graph.has_heard_of(uid, dependent)))
    }

    /// Reads everything that can depend on something in a namespace (`""`: on something cluster-scoped).
    async fn look_around(&self, namespace: &str) -> Result<Sight, ApiError> {
        // Also kinds that came a moment ago and are not followed yet: what is unheard of holds the owner until they are.
        let served = self.discovery.look().await?;
        let resources = served.iter().filter(|served| is_followed(served)).map(|served| &served.resource);
        let mut sight = Sight { version: u64::MAX, dependents: HashMap::new() };
        for resource in resources.filter(|resource| resource.namespaced || namespace.is_empty()) {
            let note = |object: &Value| {
                for owner in object.items(&["metadata", "ownerReferences"]) {
                    sight.dependents.entry(owner.text(&["uid"]).into()).or_default().push(uid(object).into());
                }
            };
            match self.api.each_metadata(&resource.collection(namespace), note).await {
                Ok(version) => sight.version = sight.version.min(version.parse().unwrap_or(0)),
                // Also when the kind is not served so any more: its objects may still be there. The next look finds out.
                Err(error) => return Err(error),
            }
        }
        Ok(sight)
    }
}
