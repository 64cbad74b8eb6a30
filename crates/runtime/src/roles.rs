//! ClusterRole aggregation: roles that are made of others follow them.

use crate::api::Resource;
use crate::controllers::Part;
use crate::worker::{self, Source, key};
use object::Value;
use plan::aggregate;

const MANAGER: &str = "clusterrole-aggregation-controller";

pub async fn run(part: Part) {
    let roles = Resource::new("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", false);
    let cache = worker::Cache::default();
    let woken = cache.clone();
    let mut source = Source::new(roles.clone(), move |changed| {
        let all: Vec<Value> = woken.all().iter().map(|role| Value::clone(role)).collect();
        let aggregators = aggregate::aggregators(changed, &all).into_iter().map(|name| ("".into(), name.into()));
        aggregators.chain([key(changed)]).collect()
    });
    source.cache = cache.clone();
    let api = part.api.clone();
    worker::run(part, vec![source], 2, move |key| {
        let (cache, api, roles) = (cache.clone(), api.clone(), roles.clone());
        async move {
            let Some(role) = cache.get(&key) else { return Ok(None) };
            let all: Vec<Value> = cache.all().iter().map(|role| Value::clone(role)).collect();
            if let Some(rules) = aggregate::rules(&role, &all) {
                let path = roles.object("", &key.1);
                api.apply(&path, MANAGER, &aggregate::apply(&role, rules)).await?;
            }
            Ok(None)
        }
    })
    .await;
}
