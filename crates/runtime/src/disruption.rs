//! The disruption controller: keeps the status of PodDisruptionBudgets, by which evictions are admitted.

use crate::controllers::ControllerContext;
use kit::Clock;
use kit::api::{Api, ApiError, Resource};
use kit::descriptor::{Descriptor, Scope, allow};
use kit::discovery::Discovery;
use kit::events::{EventSubject, Events};
use kit::worker::{self, Cache, Key, Source, key};
use object::Value;
use object::access::{Access, controller, name, namespace, uid};
use plan::disruption::{self, Scale};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "disruption-controller",
    account: "disruption-controller",
    scope: Scope::Namespaces,
    rules: &[
        allow("list watch", "core", "pods"),
        allow("list watch", "apps", "statefulsets"),
        allow("get", "*", "*/scale"),
        allow("list watch", "policy", "poddisruptionbudgets"),
        allow("update", "policy", "poddisruptionbudgets/status"),
    ],
};

/// Keeps the status of all budgets until shutdown.
pub async fn run(context: ControllerContext) {
    let budgets = Resource::new("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", true);
    // Without a budget pods are not watched; there may be many.
    if !worker::wait_for_first(&context.api, &context.shutdown, &budgets).await {
        return;
    }
    let pods = Resource::new("v1", "Pod", "pods", true);
    let sets = Resource::new("apps/v1", "StatefulSet", "statefulsets", true);
    let budget_source = Source::new(budgets.clone(), |budget| vec![key(budget)]);
    let by_pod = budget_source.cache.clone();
    let pod_source = Source::new(pods.clone(), move |pod| {
        let near = by_pod.in_namespace(namespace(pod));
        near.iter().filter(|budget| disruption::selects(budget, pod)).map(|budget| key(budget)).collect()
    });
    let by_set = budget_source.cache.clone();
    let set_source =
        Source::new(sets, move |set| by_set.in_namespace(namespace(set)).iter().map(|budget| key(budget)).collect());
    let this = Arc::new(DisruptionController {
        api: context.api.clone(),
        discovery: context.discovery.clone(),
        events: context.events.clone(),
        budgets,
        pods,
        budget_cache: budget_source.cache.clone(),
        pod_cache: pod_source.cache.clone(),
        set_cache: set_source.cache.clone(),
        clock: context.clock.clone(),
    });
    worker::run(context, vec![budget_source, pod_source, set_source], 4, move |key| {
        let this = this.clone();
        async move { this.sync(key).await }
    })
    .await;
}

struct DisruptionController {
    api: Api,
    discovery: Discovery,
    events: Events,
    budgets: Resource,
    pods: Resource,
    budget_cache: Cache,
    pod_cache: Cache,
    set_cache: Cache,
    clock: Clock,
}

impl DisruptionController {
    async fn sync(&self, key: Key) -> Result<Option<Duration>, ApiError> {
        let Some(budget) = self.budget_cache.get(&key) else { return Ok(None) };
        let pods = self.pod_cache.in_namespace(&key.0);
        let pods: Vec<&Value> = pods.iter().map(AsRef::as_ref).collect();
        let scales = self.scales(&budget, &pods).await?;
        let now = (self.clock)();
        let scale = |owner: &Value| scales.get(owner.text(&["uid"])).copied().unwrap_or(Scale::None);
        let plan = disruption::plan(&budget, &pods, scale, now);
        if let Some(status) = &plan.status {
            let path = format!("{}/status", self.budgets.object(&key.0, &key.1));
            self.api.replace(&path, status).await?;
        }
        for event in &plan.events {
            self.record_event(event, &budget, &pods);
        }
        Ok(plan.next.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO)))
    }

    fn record_event(&self, event: &disruption::BudgetEvent, budget: &Value, pods: &[&Value]) {
        let pod = event.pod.as_deref().and_then(|wanted| pods.iter().find(|pod| name(pod) == wanted));
        let (resource, object) = pod.map_or((&self.budgets, budget), |pod| (&self.pods, *pod));
        let about = EventSubject { resource, namespace: namespace(object), name: name(object), uid: uid(object) };
        let kind = if event.warning { "Warning" } else { "Normal" };
        self.events.record(&about, kind, event.reason, &event.message);
    }

    /// The scale of each controller of the budget's pods, by uid.
    async fn scales(&self, budget: &Value, pods: &[&Value]) -> Result<HashMap<String, Scale>, ApiError> {
        let mut scales = HashMap::new();
        for pod in pods.iter().filter(|pod| disruption::selects(budget, pod)) {
            let Some(owner) = controller(pod) else { continue };
            let owner_uid = owner.text(&["uid"]).to_owned();
            if let Entry::Vacant(place) = scales.entry(owner_uid) {
                place.insert(self.scale(namespace(pod), owner).await?);
            }
        }
        Ok(scales)
    }

    async fn scale(&self, namespace: &str, owner: &Value) -> Result<Scale, ApiError> {
        let (api_version, kind) = (owner.text(&["apiVersion"]), owner.text(&["kind"]));
        let is_owner = |found: &Value| uid(found) == owner.text(&["uid"]);
        if (api_version, kind) == ("apps/v1", "StatefulSet") {
            let known = self.set_cache.get(&(namespace.into(), owner.text(&["name"]).into()));
            if let Some(set) = known.filter(|set| is_owner(set)) {
                return Ok(Scale::Replicas(set.int(&["spec", "replicas"]).unwrap_or(1)));
            }
            // The watch of pods may be ahead of that of sets, so the server is asked below.
        }
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let served = self.discovery.look().await?;
        let served = served.iter().find(|served| {
            &*served.resource.group == group
                && &*served.resource.kind == kind
                && served.versions.iter().any(|served| served == version)
        });
        let Some(served) = served.filter(|served| served.scales) else { return Ok(Scale::None) };
        let path = served.resource.object(namespace, owner.text(&["name"]));
        match self.api.find_if_served(&format!("{path}/scale")).await? {
            Some(scale) if is_owner(&scale) => Ok(Scale::Replicas(scale.int(&["spec", "replicas"]).unwrap_or(0))),
            _ => Ok(Scale::Gone),
        }
    }
}
