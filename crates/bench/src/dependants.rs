//! Garbage collection: an owner is deleted, and all that it owned goes.

use crate::follow::Change;
use crate::load::{JSON, Load};
use crate::pairs::Awaited;
use crate::report::Report;
use anyhow::{Context, Result};
use bytes::Bytes;
use http::Method;
use object::{Value, json};
use std::time::Instant;

pub async fn run(load: &Load, count: usize, report: &mut Report) -> Result<()> {
    load.progress.begin("dependants to collect", 0);
    let path = load.core("configmaps");
    let mut connection = load.target.connect().await?;
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}});
    connection.call(Method::POST, &path, JSON, owner.to_string().into()).await?;
    let (_, answer) = connection.answer(Method::GET, &format!("{path}/owner"), "", Bytes::new()).await?;
    let owner: Value = serde_json::from_slice(&answer)?;
    let uid = owner["metadata"]["uid"].as_str().context("the owner has no uid")?.to_owned();
    let made = path.clone();
    load.each(load.clients, count, move |connection, at| {
        let body = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": format!("owned-{at:06}"),
                "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}],
            },
        });
        let path = made.clone();
        Box::pin(async move { connection.call(Method::POST, &path, JSON, body.to_string().into()).await })
    })
    .await?;

    load.progress.begin("garbage collected", count);
    let is_gone = |change: &Change| change.gone && change.object.metadata.name.starts_with("owned-");
    let gone = Awaited::start(load, &path, count, is_gone).await?;
    let started = Instant::now();
    let background = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
    connection.call(Method::DELETE, &format!("{path}/owner"), JSON, background.to_string().into()).await?;
    gone.end("the dependants were not collected in ten minutes").await?;
    let rate = count as f64 / started.elapsed().as_secs_f64();
    report.figure("garbage collected", rate, "/s", format!("an owner of {count} deleted, until all it owned is gone"));
    Ok(())
}
