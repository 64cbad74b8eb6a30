//! StatefulSets: created, rolled, scaled to zero, deleted.

use crate::kubelet::{SCHEDULER, Summary, World};
use crate::load::{JSON, Load, MERGE};
use crate::report::Report;
use anyhow::{Context, Result};
use bytes::Bytes;
use http::Method;
use object::{Value, json};
use std::sync::Arc;
use std::time::Instant;

/// Sets of one shape.
#[derive(Clone)]
pub struct Shape {
    pub sets: usize,
    pub replicas: usize,
    pub parallel: bool,
    pub claims: bool,
}

impl Shape {
    fn order(&self) -> &'static str {
        if self.parallel { "parallel" } else { "ordered" }
    }

    /// The name of a figure about them.
    fn figure(&self, what: &str) -> String {
        let claims = if self.claims { ", claims" } else { "" };
        format!("{} sets{claims}: {what}", self.order())
    }

    fn detail(&self) -> String {
        let claims = if self.claims { "with a claim each" } else { "without claims" };
        format!("{} {} sets of {} {claims}", self.sets, self.order(), self.replicas)
    }

    fn set(&self, at: usize) -> Bytes {
        let mut set = set(&self.set_name(at), self.replicas, self.parallel);
        if self.claims {
            // Bound to nothing: this class has no volumes.
            set["spec"]["volumeClaimTemplates"] = json!([claim_template("", "1Gi")]);
        }
        Bytes::from(set.to_string())
    }

    fn set_name(&self, at: usize) -> String {
        format!("{}{}-{at:05}", self.order(), if self.claims { "-claims" } else { "" })
    }
}

/// A set whose pods wait for the bench.
pub fn set(name: &str, replicas: usize, parallel: bool) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            "podManagementPolicy": if parallel { "Parallel" } else { "OrderedReady" },
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "schedulerName": SCHEDULER,
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{"name": "main", "image": "bench"}],
                },
            },
        },
    })
}

pub fn claim_template(class: &str, size: &str) -> Value {
    json!({
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class,
            "resources": {"requests": {"storage": size}},
        },
    })
}

/// The four pieces of work for sets of one shape.
pub async fn run(load: &Load, shape: Shape, report: &mut Report) -> Result<()> {
    let sets = Sets::new(load, shape).await?;
    let (shape, pods) = (&sets.shape, sets.pods() as f64);
    let rate = |started: Instant| pods / started.elapsed().as_secs_f64();

    let started = Instant::now();
    sets.create().await?;
    report.figure(shape.figure("created to ready"), rate(started), "pods/s", shape.detail());
    let started = Instant::now();
    sets.roll().await?;
    report.figure(shape.figure("rolled"), rate(started), "pods/s", shape.detail());
    let started = Instant::now();
    sets.scale_to_zero().await?;
    report.figure(shape.figure("scaled to zero"), rate(started), "pods/s", shape.detail());
    let started = Instant::now();
    sets.delete().await?;
    let rate = shape.sets as f64 / started.elapsed().as_secs_f64();
    report.figure(shape.figure("deleted"), rate, "sets/s", shape.detail());
    sets.drop_claims().await
}

/// Sets of one shape on their way.
pub struct Sets<'a> {
    load: &'a Load,
    world: World,
    shape: Arc<Shape>,
    collection: Arc<str>,
}

impl<'a> Sets<'a> {
    pub async fn new(load: &'a Load, shape: Shape) -> Result<Sets<'a>> {
        let world = World::start(load).await?;
        Ok(Sets { load, world, shape: Arc::new(shape), collection: collection(load) })
    }

    pub fn pods(&self) -> usize {
        self.shape.sets * self.shape.replicas
    }

    /// Creates them and waits until their pods are ready.
    pub async fn create(&self) -> Result<()> {
        self.begin("created to ready");
        let (path, made) = (self.collection.clone(), self.shape.clone());
        self.load
            .each(self.clients(), self.shape.sets, move |connection, at| {
                let (path, body) = (path.clone(), made.set(at));
                Box::pin(async move { connection.call(Method::POST, &path, JSON, body).await })
            })
            .await?;
        let replicas = self.replicas();
        let ready = move |set: &Summary| set.observed && set.ready == replicas;
        self.world.sets(self.shape.sets, ready).await.context("created sets did not get ready")
    }

    /// Changes the template and waits until every pod has it.
    pub async fn roll(&self) -> Result<()> {
        self.begin("rolled");
        self.patch_all(r#"{"spec":{"template":{"metadata":{"annotations":{"bench":"rolled"}}}}}"#).await?;
        let replicas = self.replicas();
        // The second generation is the new template: what is said of the first is not about it.
        let rolled = move |set: &Summary| {
            set.generation == 2 && set.observed && set.rolled && set.ready == replicas && set.updated == replicas
        };
        self.world.sets(self.shape.sets, rolled).await.context("a rollout did not end")
    }

    async fn scale_to_zero(&self) -> Result<()> {
        self.begin("scaled to zero");
        self.patch_all(r#"{"spec":{"replicas":0}}"#).await?;
        let empty = |set: &Summary| set.generation == 3 && set.observed && set.replicas == 0;
        self.world.sets(self.shape.sets, empty).await.context("sets did not shrink")
    }

    /// Deletes them and waits until they and their pods are gone.
    pub async fn delete(&self) -> Result<()> {
        self.begin("deleted");
        let (path, gone) = (self.collection.clone(), self.shape.clone());
        self.load
            .each(self.clients(), self.shape.sets, move |connection, at| {
                let path = format!("{path}/{}", gone.set_name(at));
                Box::pin(async move { connection.call(Method::DELETE, &path, "", Bytes::new()).await })
            })
            .await?;
        self.world.sets(0, |_| true).await.context("sets did not go")?;
        self.world.no_pods().await.context("the pods of deleted sets did not go")
    }

    /// Deletes the claims that deleted sets leave behind, so that the next work starts as this one did.
    pub async fn drop_claims(&self) -> Result<()> {
        if self.shape.claims {
            crate::pairs::drop_claims(self.load).await?;
        }
        Ok(())
    }

    async fn patch_all(&self, patch: &'static str) -> Result<()> {
        let (path, named) = (self.collection.clone(), self.shape.clone());
        self.load
            .each(self.clients(), self.shape.sets, move |connection, at| {
                let path = format!("{path}/{}", named.set_name(at));
                let body = Bytes::from_static(patch.as_bytes());
                Box::pin(async move { connection.call(Method::PATCH, &path, MERGE, body).await })
            })
            .await?;
        Ok(())
    }

    fn begin(&self, what: &str) {
        self.load.progress.begin(self.shape.figure(what), self.shape.sets);
    }

    fn clients(&self) -> usize {
        self.load.clients.min(self.shape.sets)
    }

    fn replicas(&self) -> i64 {
        i64::try_from(self.shape.replicas).unwrap_or(i64::MAX)
    }
}

pub fn collection(load: &Load) -> Arc<str> {
    format!("/apis/apps/v1/namespaces/{}/statefulsets", load.namespace).into()
}
