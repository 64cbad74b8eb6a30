//! ClusterRole aggregation: copies the rules of matching ClusterRoles into the roles that aggregate them.

use crate::controllers::ControllerContext;
use kit::api::Resource;
use kit::descriptor::{Descriptor, Scope, allow};
use kit::worker::{self, Cache, Source, key};
use object::Value;
use plan::aggregate;

const MANAGER: &str = "clusterrole-aggregation-controller";

pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "clusterrole-aggregation-controller",
    account: "clusterrole-aggregation-controller",
    scope: Scope::Cluster,
    rules: &[
        // It copies rules that others wrote, and could hold them all: hence `escalate`.
        allow("list watch patch escalate", "rbac.authorization.k8s.io", "clusterroles"),
    ],
};

/// Keeps the rules of aggregated roles up to date, until shutdown.
pub async fn run(context: ControllerContext) {
    let roles = Resource::new("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", false);
    let cache = Cache::default();
    let woken = cache.clone();
    let wakes = move |changed: &Value| {
        let aggregators = aggregate::aggregators(changed, &woken.all());
        aggregators.into_iter().map(|name| ("".into(), name.into())).chain([key(changed)]).collect()
    };
    let source = Source::new(roles.clone(), wakes).into(cache.clone());
    let api = context.api.clone();
    worker::run(context, vec![source], 2, move |key| {
        let (cache, api, roles) = (cache.clone(), api.clone(), roles.clone());
        async move {
            let Some(role) = cache.get(&key) else { return Ok(None) };
            if let Some(rules) = aggregate::rules(&role, &cache.all()) {
                api.apply(&roles.object("", &key.1), MANAGER, &aggregate::apply(&role, rules)).await?;
            }
            Ok(None)
        }
    })
    .await;
}
