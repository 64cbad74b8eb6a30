//! The disruption controller: keeps each PodDisruptionBudget's status, which evictions are judged by.

use crate::api::{Api, ApiError, Resource};
use crate::controllers::Part;
use crate::events::{About, Events};
use crate::worker::{self, Cache, Key, Source, key};
use object::Value;
use object::access::{Access, name, namespace, uid};
use plan::disruption::{self, Scale};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

pub async fn run(part: Part) {
    let budgets = Resource::new("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", true);
    let budget_source = Source::new(budgets.clone(), |budget| vec![key(budget)]);
    let budget_cache = budget_source.cache.clone();
    let by_pod = budget_cache.clone();
    let pod_source = Source::new(Resource::new("v1", "Pod", "pods", true), move |pod| {
        let near = by_pod.in_namespace(namespace(pod));
        near.iter().filter(|budget| disruption::selects(budget, pod)).map(|budget| key(budget)).collect()
    });
    let by_set = budget_cache.clone();
    let set_source = Source::new(Resource::new("apps/v1", "StatefulSet", "statefulsets", true), move |set| {
        by_set.in_namespace(namespace(set)).iter().map(|budget| key(budget)).collect()
    });
    let control = Arc::new(Control {
        api: part.api.clone(),
        events: part.events.clone(),
        budgets,
        budget_cache,
        pod_cache: pod_source.cache.clone(),
    });
    worker::run(part, vec![budget_source, pod_source, set_source], 4, move |key| {
        let control = control.clone();
        async move { control.sync(key).await }
    })
    .await;
}

struct Control {
    api: Api,
    events: Events,
    budgets: Resource,
    budget_cache: Cache,
    pod_cache: Cache,
}

impl Control {
    async fn sync(&self, key: Key) -> Result<Option<Duration>, ApiError> {
        let Some(budget) = self.budget_cache.get(&key) else { return Ok(None) };
        let pods = self.pod_cache.in_namespace(&key.0);
        let pods: Vec<&Value> = pods.iter().map(AsRef::as_ref).collect();
        let scales = self.scales(&budget, &pods).await?;
        let now = jiff::Timestamp::now();
        let scale = |owner: &Value| scales.get(owner.text(&["uid"])).copied().unwrap_or(Scale::None);
        let plan = disruption::plan(&budget, &pods, scale, now);
        if let Some(status) = &plan.status {
            let path = format!("{}/status", self.budgets.object(&key.0, &key.1));
            self.api.replace(&path, status).await?;
        }
        for event in &plan.events {
            let about = About {
                resource: &self.budgets,
                namespace: namespace(&budget),
                name: name(&budget),
                uid: uid(&budget),
            };
            let kind = if event.warning { "Warning" } else { "Normal" };
            self.events.say(&about, kind, event.reason, &event.message).await;
        }
        Ok(plan.next.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO)))
    }

    /// The scale of each controller of the budget's pods, by uid.
    async fn scales(&self, budget: &Value, pods: &[&Value]) -> Result<HashMap<String, Scale>, ApiError> {
        let mut scales = HashMap::new();
        for pod in pods.iter().filter(|pod| disruption::selects(budget, pod)) {
            let Some(owner) = disruption::controller(pod) else { continue };
            let owner_uid = owner.text(&["uid"]).to_owned();
            if let Entry::Vacant(place) = scales.entry(owner_uid) {
                place.insert(self.scale(namespace(pod), owner).await?);
            }
        }
        Ok(scales)
    }

    async fn scale(&self, namespace: &str, owner: &Value) -> Result<Scale, ApiError> {
        if (owner.text(&["apiVersion"]), owner.text(&["kind"])) != ("apps/v1", "StatefulSet") {
            return Ok(Scale::None);
        }
        let sets = Resource::new("apps/v1", "StatefulSet", "statefulsets", true);
        match self.api.find(&sets.object(namespace, owner.text(&["name"]))).await? {
            Some(set) if uid(&set) == owner.text(&["uid"]) => {
                Ok(Scale::Replicas(set.int(&["spec", "replicas"]).unwrap_or(1)))
            }
            _ => Ok(Scale::Gone),
        }
    }
}
