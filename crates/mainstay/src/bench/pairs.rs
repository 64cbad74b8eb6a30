//! Volumes and claims: binding many pairs, and volumes that a driver makes and deletes.

use super::follow::{Change, Follow};
use super::load::{JSON, Load, MERGE};
use super::report::Report;
use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde_json::json;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

const TIME_MAX: Duration = Duration::from_secs(600);
const VOLUMES: &str = "/api/v1/persistentvolumes";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";

/// Binds `count` claims to as many volumes that are there already.
pub async fn run(load: &Load, count: usize, report: &mut Report) -> Result<()> {
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
        Box::pin(async move { connection.call(Method::POST, VOLUMES, JSON, volume.to_string().into()).await })
    })
    .await?;
    let rate = bind(load, "pair", &class, count).await?;
    report.figure("bind", rate, "/s", format!("{count} static pairs, claims created by {} clients", load.clients));
    Ok(())
}

/// Lets a driver make volumes for `count` claims, and delete them when the claims go. Without that driver there is nothing to measure.
pub async fn provision(load: &Load, driver: &str, count: usize, report: &mut Report) -> Result<()> {
    let mut connection = load.target.connect().await?;
    let path = format!("/apis/storage.k8s.io/v1/csidrivers/{driver}");
    let (code, _) = connection.answer(Method::GET, &path, "", Bytes::new()).await?;
    if code == StatusCode::NOT_FOUND {
        eprintln!("The server has no CSI driver {driver}: provisioning is left out.");
        return Ok(());
    }
    let class = class(load);
    let body = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": class},
        "provisioner": driver, "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate",
    });
    connection.call(Method::POST, CLASSES, JSON, body.to_string().into()).await?;
    let rate = bind(load, "made", &class, count).await?;
    let detail = format!("{count} claims created by {} clients, volumes made by {driver}, until bound", load.clients);
    report.figure("provision", rate, "/s", detail);

    let of_class = move |change: &Change| change.gone && change.object.spec.storage_class_name.as_ref() == Some(&class);
    let gone = follow(load, VOLUMES, count, of_class).await?;
    let claims = claims(load);
    let started = Instant::now();
    load.each(load.clients, count, move |connection, at| {
        let path = format!("{claims}/made-{at:05}");
        Box::pin(async move { connection.call(Method::DELETE, &path, "", Bytes::new()).await })
    })
    .await?;
    wait(gone, "the volumes were not deleted in ten minutes").await?;
    let rate = count as f64 / started.elapsed().as_secs_f64();
    report.figure("reclaim", rate, "/s", format!("{count} such claims deleted, until their volumes are gone"));
    Ok(())
}

/// Creates `count` claims of a class and waits until all are bound; returns how many that are in a second.
async fn bind(load: &Load, prefix: &'static str, class: &str, count: usize) -> Result<f64> {
    let path = claims(load);
    let is_bound = |change: &Change| change.object.status["phase"] == "Bound";
    let bound = follow(load, &path, count, is_bound).await?;
    let class: Arc<str> = class.into();
    let started = Instant::now();
    load.each(load.clients, count, move |connection, at| {
        let claim = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": format!("{prefix}-{at:05}")},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": &*class,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        let path = path.clone();
        Box::pin(async move { connection.call(Method::POST, &path, JSON, claim.to_string().into()).await })
    })
    .await?;
    wait(bound, "the claims were not bound in ten minutes").await?;
    Ok(count as f64 / started.elapsed().as_secs_f64())
}

/// Follows a collection from now on until `count` objects of it were as wanted once.
async fn follow(
    load: &Load,
    collection: &str,
    count: usize,
    wanted: impl Fn(&Change) -> bool + Send + 'static,
) -> Result<JoinHandle<Result<()>>> {
    let mut follow = Follow::start(&load.target, collection).await?;
    Ok(tokio::spawn(async move {
        let mut seen = HashSet::new();
        while seen.len() < count {
            let change = follow.next().await?;
            if wanted(&change) {
                seen.insert(change.object.metadata.uid);
            }
        }
        Ok(())
    }))
}

async fn wait(task: JoinHandle<Result<()>>, otherwise: &'static str) -> Result<()> {
    tokio::time::timeout(TIME_MAX, task).await.context(otherwise)??
}

fn claims(load: &Load) -> Arc<str> {
    format!("/api/v1/namespaces/{}/persistentvolumeclaims", load.namespace).into()
}

/// The class of volumes that a driver makes.
fn class(load: &Load) -> String {
    format!("{}-made", load.namespace)
}

/// Removes what is not in the namespace that goes: the volumes that we made, and the class.
pub async fn clean(load: &Load) -> Result<()> {
    let mut connection = load.target.connect().await?;
    let path = format!("{VOLUMES}?labelSelector=bench%3D{}", load.namespace);
    let (_, bytes) = connection.answer(Method::GET, &path, "", Bytes::new()).await?;
    let list: serde_json::Value = serde_json::from_slice(&bytes)?;
    for volume in list["items"].as_array().into_iter().flatten() {
        let path = format!("{VOLUMES}/{}", volume["metadata"]["name"].as_str().unwrap_or_default());
        connection.answer(Method::DELETE, &path, "", Bytes::new()).await?;
        // A server whose controllers do not run would keep it for ever.
        let free = Bytes::from_static(br#"{"metadata":{"finalizers":null}}"#);
        connection.answer(Method::PATCH, &path, MERGE, free).await?;
    }
    connection.answer(Method::DELETE, &format!("{CLASSES}/{}", class(load)), "", Bytes::new()).await?;
    Ok(())
}
