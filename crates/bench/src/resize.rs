//! All claims of a set grown in place, by a change of its claim template (KEP-4650).

use crate::follow::Change;
use crate::kubelet::World;
use crate::load::{JSON, Load, MERGE};
use crate::pairs::{self, Awaited};
use crate::report::Report;
use crate::sets::{self, claim_template};
use anyhow::{Context, Result};
use bytes::Bytes;
use http::Method;
use object::{Value, json};
use std::collections::HashSet;
use std::time::Instant;

/// Grows the claims of two sets: one replica after the other, and all at once.
pub async fn run(load: &Load, driver: &str, claims: usize, report: &mut Report) -> Result<()> {
    if !pairs::make_class(load, driver).await? {
        report.leave_out("growing claims in place", pairs::no_driver(driver));
        return Ok(());
    }
    for (name, unavailable, what) in [("one-by-one", json!(1), "one by one"), ("together", json!("100%"), "together")] {
        let Some(rate) = grow(load, name, unavailable, claims).await? else {
            report.leave_out(
                "growing claims in place",
                "the server does not keep a set's spec.volumeClaimUpdatePolicy (KEP-4650)",
            );
            return Ok(());
        };
        let detail = format!("a set of {claims}: its claim template grows, until every claim has the new size");
        report.figure(format!("claims grown in place, {what}"), rate, "/s", detail);
    }
    Ok(())
}

/// How many claims grow in a second; nothing where the server cannot do it.
async fn grow(load: &Load, name: &str, unavailable: Value, claims: usize) -> Result<Option<f64>> {
    load.progress.begin("a set whose claims grow", claims);
    let world = World::start(load).await?;
    let class = pairs::class(load);
    let mut set = sets::set(name, claims, true);
    set["spec"]["volumeClaimUpdatePolicy"] = json!("InPlace");
    set["spec"]["updateStrategy"] = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable}});
    set["spec"]["volumeClaimTemplates"] = json!([claim_template(&class, "1Gi")]);
    let mut connection = load.target.connect().await?;
    let collection = sets::collection(load);
    let path = format!("{collection}/{name}");
    connection.call(Method::POST, &collection, JSON, set.to_string().into()).await?;
    let (_, answer) = connection.answer(Method::GET, &path, "", Bytes::new()).await?;
    let kept: Value = serde_json::from_slice(&answer)?;
    let able = kept["spec"]["volumeClaimUpdatePolicy"] == "InPlace";
    let mut rate = None;
    if able {
        let replicas = i64::try_from(claims)?;
        let ready = move |set: &super::kubelet::Summary| set.observed && set.ready == replicas;
        world.sets(1, ready).await.context("the set whose claims are to grow did not get ready")?;
        bound(load, claims).await?;
        load.progress.begin("claims grown in place", claims);
        let is_grown = |change: &Change| change.object.status["capacity"]["storage"] == "2Gi";
        let grown = Awaited::start(load, &load.core("persistentvolumeclaims"), claims, is_grown).await?;
        let started = Instant::now();
        let patch = json!({"spec": {"volumeClaimTemplates": [claim_template(&class, "2Gi")]}});
        connection.call(Method::PATCH, &path, MERGE, patch.to_string().into()).await?;
        grown.end("the claims did not grow in ten minutes").await?;
        rate = Some(claims as f64 / started.elapsed().as_secs_f64());
    }
    // The pods go with it, and the next set finds everything as this one did.
    load.progress.begin("the set whose claims grew, deleted", 0);
    connection.call(Method::DELETE, &path, "", Bytes::new()).await?;
    world.sets(0, |_| true).await?;
    world.no_pods().await?;
    pairs::drop_claims(load).await?;
    Ok(rate)
}

/// Waits until all claims have volumes: only such grow.
async fn bound(load: &Load, claims: usize) -> Result<()> {
    let path = load.core("persistentvolumeclaims");
    let mut connection = load.target.connect().await?;
    let (_, answer) = connection.answer(Method::GET, &path, "", Bytes::new()).await?;
    let list: Value = serde_json::from_slice(&answer)?;
    let items = list["items"].as_array().into_iter().flatten();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or("0");
    let already: HashSet<String> = items
        .filter(|claim| claim["status"]["phase"] == "Bound")
        .filter_map(|claim| claim["metadata"]["uid"].as_str().map(str::to_owned))
        .collect();
    let left = claims.saturating_sub(already.len());
    let is_bound = move |change: &Change| {
        change.object.status["phase"] == "Bound" && !already.contains(&change.object.metadata.uid)
    };
    let rest = Awaited::start_at(load, &path, version, left, is_bound).await?;
    rest.end("the claims of the set were not bound in ten minutes").await
}
