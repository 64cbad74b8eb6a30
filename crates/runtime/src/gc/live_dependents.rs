//! Checks that no dependent is missed: before an owner's finalizer is removed, all objects of its namespace
//! are listed.
//!
//! Watches deliver changes in order per resource, but not across resources: the deletion of an owner may
//! arrive before the creation of a dependent that happened earlier. If the owner were finalized then, the
//! dependent would be missed.

use super::Collector;
use super::watch::is_watched;
use kit::api::ApiError;
use object::Value;
use object::access::{Access, uid};
use plan::gc::{Place, Uid};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

/// The listings that are in use, by namespace: owners that are deleted together share one.
#[derive(Default)]
pub(super) struct Listings {
    by_namespace: Mutex<HashMap<Arc<str>, Slot>>,
}

type Slot = Arc<tokio::sync::Mutex<Weak<Listing>>>;

/// Above this number of namespaces, unused ones are removed.
const SLOTS_MAX: usize = 64;

/// The dependents of each owner in a namespace at `version`, the oldest of the lists that they were read
/// from.
struct Listing {
    version: u64,
    dependents: HashMap<Uid, Vec<Uid>>,
}

impl Listings {
    fn slot(&self, namespace: &Arc<str>) -> Slot {
        let mut slots = self.by_namespace.lock().expect("no panic happens under this lock");
        if slots.len() >= SLOTS_MAX {
            slots.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        slots.entry(namespace.clone()).or_default().clone()
    }
}

impl Collector {
    /// Whether the graph has every dependent that the owner had at `version`.
    pub(super) async fn has_seen_dependents(&self, owner: &Place, uid: &Uid, version: &str) -> Result<bool, ApiError> {
        let slot = self.listings.slot(&owner.namespace);
        let mut slot = slot.lock().await;
        // A version that is not a number cannot be compared: then only a new listing will do.
        let wanted = version.parse::<u64>().unwrap_or(u64::MAX);
        let listing = match slot.upgrade().filter(|listing| listing.version >= wanted) {
            Some(listing) => listing,
            None => {
                let listing = Arc::new(self.list_dependents(&owner.namespace).await?);
                *slot = Arc::downgrade(&listing);
                listing
            }
        };
        drop(slot);
        let graph = self.graph();
        let mut dependents = listing.dependents.get(uid).into_iter().flatten();
        Ok(dependents.all(|dependent| graph.has_heard_of(uid, dependent)))
    }

    /// Lists everything that can depend on an object of a namespace (`""`: of a cluster-scoped object).
    async fn list_dependents(&self, namespace: &str) -> Result<Listing, ApiError> {
        // Includes kinds that were added a moment ago and are not watched yet: their objects keep the owner
        // until they are.
        let served = self.discovery.look().await?;
        let resources = served.iter().filter(|served| is_watched(served)).map(|served| &served.resource);
        let mut listing = Listing { version: u64::MAX, dependents: HashMap::new() };
        for resource in resources.filter(|resource| resource.namespaced || namespace.is_empty()) {
            let note = |object: &Value| {
                for owner in object.items(&["metadata", "ownerReferences"]) {
                    listing.dependents.entry(owner.text(&["uid"]).into()).or_default().push(uid(object).into());
                }
            };
            match self.api.each_metadata(&resource.collection(namespace), note).await {
                Ok(version) => listing.version = listing.version.min(version.parse().unwrap_or(0)),
                // Also if the kind is no longer served in this version: its objects may still exist. The next
                // listing finds out.
                Err(error) => return Err(error),
            }
        }
        Ok(listing)
    }
}
