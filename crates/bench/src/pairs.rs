//! Volumes and claims: many pairs bound and released, and volumes that a driver makes and deletes.

use crate::follow::{self, Change, Follow};
use crate::load::{JSON, Load, MERGE};
use crate::report::Report;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{Method, StatusCode};
use object::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const TIME_MAX: Duration = Duration::from_secs(600);
pub const VOLUMES: &str = "/api/v1/persistentvolumes";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";

/// Binds `count` claims to as many volumes that are there already, and releases the volumes again.
pub async fn run(load: &Load, count: usize, report: &mut Report) -> Result<()> {
    let started = bind_static(load, count).await?;
    let rate = count as f64 / started.elapsed().as_secs_f64();
    report.figure("bind", rate, "/s", format!("{count} static pairs, claims created by {} clients", load.clients));

    load.progress.begin("release", count);
    let class = load.namespace.clone();
    let is_released = move |change: &Change| is_of(change, &class) && change.object.status["phase"] == "Released";
    let otherwise = "the volumes were not released in ten minutes";
    let rate = let_go(load, "pair", count, is_released, otherwise).await?;
    report.figure("release", rate, "/s", format!("{count} bound claims deleted, until their volumes are Released"));
    Ok(())
}

/// Makes volumes and then as many claims, called `pair-…`, until all are bound; gives when the first claim was made.
pub async fn bind_static(load: &Load, count: usize) -> Result<Instant> {
    load.progress.begin("volumes to bind", 0);
    // Nothing of anybody else's is taken: the class is ours alone.
    let class = load.namespace.clone();
    let made = class.clone();
    let ours = class.clone();
    let is_free = move |change: &Change| is_of(change, &ours) && change.object.status["phase"] == "Available";
    let free = Awaited::start(load, VOLUMES, count, is_free).await?;
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
    free.end("the volumes were not available in ten minutes").await?;
    load.progress.begin("bind", count);
    bind(load, "pair", &class, count).await
}

/// Lets a driver make volumes for `count` claims, and delete them when the claims go. Without that driver there is nothing to measure.
pub async fn provision(load: &Load, driver: &str, count: usize, report: &mut Report) -> Result<()> {
    if !make_class(load, driver).await? {
        report.leave_out("provisioning", no_driver(driver));
        return Ok(());
    }
    let class = class(load);
    load.progress.begin("provision", count);
    let started = bind(load, "made", &class, count).await?;
    let rate = count as f64 / started.elapsed().as_secs_f64();
    let detail = format!("{count} claims created by {} clients, volumes made by {driver}, until bound", load.clients);
    report.figure("provision", rate, "/s", detail);

    load.progress.begin("reclaim", count);
    let is_gone = move |change: &Change| change.gone && is_of(change, &class);
    let rate = let_go(load, "made", count, is_gone, "the volumes were not deleted in ten minutes").await?;
    report.figure("reclaim", rate, "/s", format!("{count} such claims deleted, until their volumes are gone"));
    Ok(())
}

pub fn no_driver(driver: &str) -> String {
    format!("the server has no CSI driver {driver} (--driver names another)")
}

/// Makes the class of volumes that a driver makes, which may grow; false where there is no such driver.
pub async fn make_class(load: &Load, driver: &str) -> Result<bool> {
    let mut connection = load.target.connect().await?;
    let path = format!("/apis/storage.k8s.io/v1/csidrivers/{driver}");
    let (code, _) = connection.answer(Method::GET, &path, "", Bytes::new()).await?;
    if code == StatusCode::NOT_FOUND {
        return Ok(false);
    }
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": class(load)},
        "provisioner": driver, "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate", "allowVolumeExpansion": true,
    });
    let (code, answer) = connection.answer(Method::POST, CLASSES, JSON, class.to_string().into()).await?;
    if !code.is_success() && code != StatusCode::CONFLICT {
        bail!("cannot make a class: {code}: {}", String::from_utf8_lossy(&answer));
    }
    Ok(true)
}

/// The class of volumes that a driver makes.
pub fn class(load: &Load) -> String {
    format!("{}-made", load.namespace)
}

fn is_of(change: &Change, class: &String) -> bool {
    change.object.spec.storage_class_name.as_ref() == Some(class)
}

/// Creates `count` claims of a class and waits until all are bound; gives when it began.
async fn bind(load: &Load, prefix: &'static str, class: &str, count: usize) -> Result<Instant> {
    let path = load.core("persistentvolumeclaims");
    let is_bound = |change: &Change| change.object.status["phase"] == "Bound";
    let bound = Awaited::start(load, &path, count, is_bound).await?;
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
    bound.end("the claims were not bound in ten minutes").await?;
    Ok(started)
}

/// Deletes `count` claims and waits until as many volumes are as wanted; gives how many that are in a second.
async fn let_go(
    load: &Load,
    prefix: &'static str,
    count: usize,
    wanted: impl Fn(&Change) -> bool + Send + 'static,
    otherwise: &'static str,
) -> Result<f64> {
    let claims = load.core("persistentvolumeclaims");
    let volumes = Awaited::start(load, VOLUMES, count, wanted).await?;
    let started = Instant::now();
    load.each(load.clients, count, move |connection, at| {
        let path = format!("{claims}/{prefix}-{at:05}");
        Box::pin(async move { connection.call(Method::DELETE, &path, "", Bytes::new()).await })
    })
    .await?;
    volumes.end(otherwise).await?;
    Ok(count as f64 / started.elapsed().as_secs_f64())
}

/// Deletes all claims of the namespace, and waits until they are gone.
pub async fn drop_claims(load: &Load) -> Result<()> {
    let path = load.core("persistentvolumeclaims");
    load.progress.begin("claims that are left", 0);
    load.target.connect().await?.call(Method::DELETE, &path, "", Bytes::new()).await?;
    until_none(load, &path, |_| true).await
}

/// A collection that is followed from now on until `count` objects of it were as wanted once.
pub struct Awaited {
    task: JoinSet<Result<()>>,
}

impl Awaited {
    pub async fn start(
        load: &Load,
        collection: &str,
        count: usize,
        wanted: impl Fn(&Change) -> bool + Send + 'static,
    ) -> Result<Awaited> {
        let version = follow::version(&load.target, collection).await?;
        Awaited::start_at(load, collection, &version, count, wanted).await
    }

    /// The same from a version on.
    pub async fn start_at(
        load: &Load,
        collection: &str,
        version: &str,
        count: usize,
        wanted: impl Fn(&Change) -> bool + Send + 'static,
    ) -> Result<Awaited> {
        let mut follow = Follow::start_at(&load.target, collection, version).await?;
        let progress = load.progress.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut seen = HashSet::new();
            while seen.len() < count {
                let change = follow.next().await?;
                if wanted(&change) {
                    seen.insert(change.object.metadata.uid);
                    progress.done(seen.len());
                }
            }
            Ok(())
        });
        Ok(Awaited { task })
    }

    pub async fn end(mut self, otherwise: &'static str) -> Result<()> {
        let ended = tokio::time::timeout(TIME_MAX, self.task.join_next()).await.context(otherwise)?;
        ended.context("nobody follows")??
    }
}

/// Waits until a collection has nothing of the kind any more.
async fn until_none(load: &Load, collection: &str, of_ours: impl Fn(&Value) -> bool) -> Result<()> {
    let started = Instant::now();
    let mut connection = load.target.connect().await?;
    loop {
        let (_, bytes) = connection.answer(Method::GET, collection, "", Bytes::new()).await?;
        let list: Value = serde_json::from_slice(&bytes)?;
        let left = list["items"].as_array().into_iter().flatten().filter(|item| of_ours(item)).count();
        if left == 0 {
            return Ok(());
        }
        if started.elapsed() > TIME_MAX {
            bail!("{left} objects of {collection} are still there; delete them by hand");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Removes what is not in the namespace, which is gone: the volumes that we made, those that a driver made, and the class.
pub async fn clean(load: &Load) -> Result<()> {
    let mut connection = load.target.connect().await?;
    let path = format!("{VOLUMES}?labelSelector=bench%3D{}", load.namespace);
    let (_, bytes) = connection.answer(Method::GET, &path, "", Bytes::new()).await?;
    let list: Value = serde_json::from_slice(&bytes)?;
    let names = list["items"].as_array().into_iter().flatten().filter_map(|item| item["metadata"]["name"].as_str());
    let paths: Arc<Vec<String>> = Arc::new(names.map(|name| format!("{VOLUMES}/{name}")).collect());
    load.each(load.clients, paths.len(), move |connection, at| {
        let paths = paths.clone();
        Box::pin(async move {
            connection.answer(Method::DELETE, &paths[at], "", Bytes::new()).await?;
            // A server whose controllers do not run would keep it for ever.
            let free = Bytes::from_static(br#"{"metadata":{"finalizers":null}}"#);
            connection.answer(Method::PATCH, &paths[at], MERGE, free).await?;
            Ok(0)
        })
    })
    .await?;
    let class = class(load);
    until_none(load, VOLUMES, |volume| volume["spec"]["storageClassName"] == class.as_str()).await?;
    connection.answer(Method::DELETE, &format!("{CLASSES}/{class}"), "", Bytes::new()).await?;
    Ok(())
}
