//! Says why claims of a set were deleted, and warns when one is deleted while a pod uses it.

use super::StatefulSetController;
use super::informers::Scene;
use kit::api::ApiError;
use kit::cache::Key;
use kit::events::EventSubject;
use object::Value;
use object::access::{Access, controller, name, namespace, terminating, uid};
use plan::statefulset::SetEvent;
use plan::statefulset::departure::{self, Departed};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};

/// Claims that are gone and of which nothing was said yet, by set. Clones share them.
#[derive(Clone, Default)]
pub(super) struct DepartedClaims(Arc<Mutex<HashMap<Key, Vec<Departed>>>>);

impl DepartedClaims {
    /// Notes a claim that is gone. `sets` are those whose claim it is by its name; the set that owned it may be gone, too. Returns the
    /// sets to look at.
    pub fn note(&self, claim: &Value, mut sets: Vec<Key>) -> Vec<Key> {
        let owner = controller(claim).filter(|owner| owner.text(&["kind"]) == "StatefulSet");
        if let Some(owner) = owner {
            sets.push((namespace(claim).into(), owner.text(&["name"]).into()));
        }
        sets.sort();
        sets.dedup();
        for set in &sets {
            self.lock().entry(set.clone()).or_default().push(Departed::of(claim));
        }
        sets
    }

    fn take(&self, set: &Key) -> Vec<Departed> {
        self.lock().remove(set).unwrap_or_default()
    }

    fn put_back(&self, set: &Key, departed: Vec<Departed>) {
        self.lock().entry(set.clone()).or_default().extend(departed);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Vec<Departed>>> {
        self.0.lock().expect("no panic happens under this lock")
    }
}

impl StatefulSetController {
    /// Says of the claims of a set that are gone why they were deleted.
    pub(super) async fn report_deleted_objects(&self, key: &Key) -> Result<(), ApiError> {
        let all = self.informers.departed.take(key);
        if all.is_empty() {
            return Ok(());
        }
        let known_uid = self.informers.sets.cache.get(key).map(|set| uid(&set).to_owned());
        // Owners of another uid are gone.
        let depends = all.iter().any(|claim| known_uid.is_some() && claim.depends_on() == known_uid.as_deref());
        let remains = match known_uid.as_deref().filter(|_| depends) {
            Some(owner) => match self.remains(key, owner).await {
                Ok(remains) => remains,
                Err(error) => {
                    self.informers.departed.put_back(key, all);
                    return Err(error);
                }
            },
            None => false,
        };
        let mut by_cause: BTreeMap<String, Vec<&Departed>> = BTreeMap::new();
        for claim in &all {
            let set_remains = remains && claim.depends_on() == known_uid.as_deref();
            by_cause.entry(claim.why(set_remains)).or_default().push(claim);
        }
        for (why, claims) in by_cause {
            let owner = claims.iter().find_map(|claim| claim.set.as_ref().map(|(_, uid)| uid.clone()));
            let names: Vec<&str> = claims.iter().map(|claim| claim.name.as_str()).collect();
            if let Some(uid) = owner.or_else(|| known_uid.clone()) {
                let resource = &self.informers.sets.resource;
                let about = EventSubject { resource, namespace: &key.0, name: &key.1, uid: &uid };
                self.record(&about, &departure::of_set(&key.1, &key.0, &why, &names));
            }
            for claim in claims {
                let Departed { namespace, name, uid, volume, .. } = claim;
                tracing::info!(%namespace, claim = %name, %volume, set = %key.1, %why, "a claim of a StatefulSet was deleted");
                let about = EventSubject { resource: &self.informers.claims.resource, namespace, name, uid };
                self.record(&about, &claim.event(&key.1, &why));
            }
        }
        Ok(())
    }

    /// Whether the set of this uid is there, and not being deleted. The watch of sets may be later than that of claims: the server knows.
    async fn remains(&self, key: &Key, owner: &str) -> Result<bool, ApiError> {
        let is_it = |set: &Value| uid(set) == owner && !terminating(set);
        if !self.informers.sets.cache.get(key).is_some_and(|set| is_it(&set)) {
            return Ok(false);
        }
        let live = self.api.find(&self.informers.sets.resource.object(&key.0, &key.1)).await?;
        Ok(live.is_some_and(|set| is_it(&set)))
    }

    /// Warns of claims that are being deleted while pods use them, of each once.
    pub(super) async fn warn_of_deleted_claims(&self, scene: &Scene) -> Result<(), ApiError> {
        let (set, key) = (&scene.set, kit::cache::key(&scene.set));
        let found = if terminating(set) { Vec::new() } else { scene.claims_deleted_in_use() };
        let warned = |news: Option<&[(&Value, String)]>| {
            let mut all_known = self.known();
            let Some(known) = all_known.get_mut(&key) else { return HashSet::new() };
            let present: HashSet<&str> = found.iter().map(|(claim, _)| uid(claim)).collect();
            known.warned.retain(|claim| present.contains(claim.as_str()));
            known.warned.extend(news.into_iter().flatten().map(|(claim, _)| uid(claim).to_owned()));
            known.warned.clone()
        };
        let before = warned(None);
        let news: Vec<(&Value, String)> = found
            .iter()
            .filter(|(claim, _)| !before.contains(uid(claim)))
            .map(|(claim, pod)| (*claim, pod.clone()))
            .collect();
        // Claims of a set that was deleted go by policy.
        if news.is_empty() || !self.remains(&key, uid(set)).await? {
            return Ok(());
        }
        for (claim, pod) in &news {
            let [of_set, of_claim] = departure::in_use_events(set, claim, pod);
            self.record_event(set, &of_set);
            let about = EventSubject {
                resource: &self.informers.claims.resource,
                namespace: namespace(claim),
                name: name(claim),
                uid: uid(claim),
            };
            self.record(&about, &of_claim);
        }
        warned(Some(&news));
        Ok(())
    }

    fn record(&self, about: &EventSubject<'_>, event: &SetEvent) {
        self.events.record(about, if event.warning { "Warning" } else { "Normal" }, event.reason, &event.message);
    }
}
