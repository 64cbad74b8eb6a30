//! Volumes and claims: binding many pairs.

use super::follow::Follow;
use super::load::{JSON, Load, MERGE};
use super::report::Report;
use anyhow::{Context, Result};
use bytes::Bytes;
use http::Method;
use serde_json::json;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TIME_MAX: Duration = Duration::from_secs(600);

/// Binds `count` claims to as many volumes that are there already.
pub async fn run(load: &Load, count: usize, report: &mut Report) -> Result<()> {
    let volumes = "/api/v1/persistentvolumes";
    // Nothing of anybody else's is taken: the class is ours alone.
    let class = load.namespace.clone();
    let made = class.clone();
    load.each(load.clients, count, move |connection, at| {
        let volume = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": format!("{made}-{at:05}"), "labels": {"bench": made}},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": made,
                "hostPath": {"path": "/nonexistent"},
            },
        });
        Box::pin(async move { connection.call(Method::POST, volumes, JSON, volume.to_string().into()).await })
    })
    .await?;

    let claims: Arc<str> = format!("/api/v1/namespaces/{}/persistentvolumeclaims", load.namespace).into();
    let mut follow = Follow::start(&load.target, &claims).await?;
    let bound = tokio::spawn(async move {
        let mut bound = HashSet::new();
        while bound.len() < count {
            let change = follow.next().await?;
            if change.object.status["phase"] == "Bound" {
                bound.insert(change.object.metadata.name);
            }
        }
        anyhow::Ok(())
    });
    let (path, class) = (claims.clone(), load.namespace.clone());
    let started = Instant::now();
    load.each(load.clients, count, move |connection, at| {
        let claim = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": format!("pair-{at:05}")},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": class,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        let path = path.clone();
        Box::pin(async move { connection.call(Method::POST, &path, JSON, claim.to_string().into()).await })
    })
    .await?;
    tokio::time::timeout(TIME_MAX, bound).await.context("the claims were not bound in ten minutes")???;
    let rate = count as f64 / started.elapsed().as_secs_f64();
    report.figure("bind", rate, "/s", format!("{count} static pairs, claims created by {} clients", load.clients));
    Ok(())
}

/// Removes the volumes: they are not in the namespace that goes.
pub async fn clean(load: &Load) -> Result<()> {
    let mut connection = load.target.connect().await?;
    let path = format!("/api/v1/persistentvolumes?labelSelector=bench%3D{}", load.namespace);
    let (_, bytes) = connection.answer(Method::GET, &path, "", Bytes::new()).await?;
    let list: serde_json::Value = serde_json::from_slice(&bytes)?;
    for volume in list["items"].as_array().into_iter().flatten() {
        let path = format!("/api/v1/persistentvolumes/{}", volume["metadata"]["name"].as_str().unwrap_or_default());
        connection.answer(Method::DELETE, &path, "", Bytes::new()).await?;
        // A server whose controllers do not run would keep it for ever.
        let free = Bytes::from_static(br#"{"metadata":{"finalizers":null}}"#);
        connection.answer(Method::PATCH, &path, MERGE, free).await?;
    }
    Ok(())
}
