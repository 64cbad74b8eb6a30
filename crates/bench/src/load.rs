//! The work itself.

use crate::client::{Connection, Target};
use crate::follow;
use crate::progress::Progress;
use crate::report::{Report, latencies};
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use hdrhistogram::Histogram;
use http::Method;
use http_body_util::BodyExt;
use object::json;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

pub const JSON: &str = "application/json";
pub const MERGE: &str = "application/merge-patch+json";
const WATCHERS: usize = 20;
const LISTERS: usize = 4;
const LISTS: usize = 200;
const GETS_PER_OBJECT: usize = 5;
/// How long a namespace may take to go.
const CLEAN_TIME_MAX: Duration = Duration::from_secs(300);

pub struct Load {
    pub target: Target,
    pub clients: usize,
    pub namespace: String,
    pub progress: Progress,
}

/// The answer to come of one piece of work.
pub type Answer<'a> = std::pin::Pin<Box<dyn Future<Output = Result<usize>> + Send + 'a>>;

impl Load {
    pub fn new(target: Target, clients: usize, progress: Progress) -> Load {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("mainstay-bench-{}-{number}", std::process::id());
        Load { target, clients, namespace, progress }
    }

    /// Makes the namespace for the work.
    pub async fn begin(&self) -> Result<()> {
        let mut connection = self.target.connect().await.context("cannot connect to the server")?;
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}});
        connection.call(Method::POST, "/api/v1/namespaces", JSON, body.to_string().into()).await?;
        Ok(())
    }

    /// The path of a collection of core objects in the namespace.
    pub fn core(&self, plural: &str) -> Arc<str> {
        format!("/api/v1/namespaces/{}/{plural}", self.namespace).into()
    }

    pub async fn run(&self, objects: usize, report: &mut Report) -> Result<()> {
        let detail = |what: &str| format!("{objects} {what}, {} clients", self.clients);
        let (took, latency) = self.create_objects(objects).await?;
        report.rate("create", detail("objects of 1 KB"), took, latency);
        let (took, latency) = self.get_objects(objects, objects * GETS_PER_OBJECT).await?;
        report.rate("get", detail("objects, five times each"), took, latency);

        self.progress.begin("list", 0);
        let path = self.core("configmaps");
        let (took, latency) = self
            .each(LISTERS, LISTS, move |connection, _| {
                let path = path.clone();
                Box::pin(async move { connection.call(Method::GET, &path, "", Bytes::new()).await })
            })
            .await?;
        report.rate("list", format!("{objects} objects of 1 KB in a list, {LISTERS} clients"), took, latency);

        self.patch_with_watchers(objects, report).await?;

        self.progress.begin("delete", 0);
        let path = self.core("configmaps");
        let (took, latency) = self
            .each(self.clients, objects, move |connection, at| {
                let path = format!("{path}/{}", name(at));
                Box::pin(async move { connection.call(Method::DELETE, &path, "", Bytes::new()).await })
            })
            .await?;
        report.rate("delete", detail("objects"), took, latency);
        Ok(())
    }

    /// Makes ConfigMaps of about 1 KB.
    pub async fn create_objects(&self, count: usize) -> Result<(Duration, Histogram<u64>)> {
        self.progress.begin("create", 0);
        let path = self.core("configmaps");
        self.each(self.clients, count, move |connection, at| {
            let path = path.clone();
            Box::pin(async move { connection.call(Method::POST, &path, JSON, object(at)).await })
        })
        .await
    }

    /// Gets some of these `objects`, one after the other.
    pub async fn get_objects(&self, objects: usize, count: usize) -> Result<(Duration, Histogram<u64>)> {
        self.progress.begin("get", 0);
        let path = self.core("configmaps");
        self.each(self.clients, count, move |connection, at| {
            let path = format!("{path}/{}", name(at % objects));
            Box::pin(async move { connection.call(Method::GET, &path, "", Bytes::new()).await })
        })
        .await
    }

    async fn patch_with_watchers(&self, objects: usize, report: &mut Report) -> Result<()> {
        self.progress.begin("patch with watchers", 0);
        let collection = self.core("configmaps");
        let delivered = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let mut watchers = JoinSet::new();
        for _ in 0..WATCHERS {
            let mut connection = self.target.connect().await?;
            // From now on, without the initial state.
            let version = follow::version(&self.target, &collection).await?;
            let mut body = connection.watch(&format!("{collection}?watch=1&resourceVersion={version}")).await?;
            let (delivered, stop) = (delivered.clone(), stop.clone());
            watchers.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    match body.frame().await {
                        Some(Ok(frame)) => {
                            let lines =
                                frame.data_ref().map_or(0, |data| data.iter().filter(|byte| **byte == b'\n').count());
                            delivered.fetch_add(lines as u64, Ordering::Relaxed);
                        }
                        _ => break,
                    }
                }
            });
        }
        let (path, count) = (collection.clone(), objects * 2);
        let started = Instant::now();
        let (took, latency) = self
            .each(self.clients, count, move |connection, at| {
                let path = format!("{path}/{}", name(at % objects));
                let body = Bytes::from(format!("{{\"data\":{{\"step\":\"{at}\"}}}}"));
                Box::pin(async move { connection.call(Method::PATCH, &path, MERGE, body).await })
            })
            .await?;
        let expected = (count * WATCHERS) as u64;
        while delivered.load(Ordering::Relaxed) < expected {
            if started.elapsed() > Duration::from_secs(120) {
                bail!("watchers got {} of {expected} events in two minutes", delivered.load(Ordering::Relaxed));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let delivered_in = started.elapsed();
        stop.store(true, Ordering::Relaxed);
        watchers.abort_all();
        let detail = format!("{count} merge patches, {} clients, {WATCHERS} watchers", self.clients);
        report.rate("patch", detail.clone(), took, latency);
        report.figure("watch events delivered", expected as f64 / delivered_in.as_secs_f64(), "/s", detail);
        Ok(())
    }

    /// Does `work` for every number below `count`, shared among `clients`, each with a connection of its own.
    pub async fn each<F>(&self, clients: usize, count: usize, work: F) -> Result<(Duration, Histogram<u64>)>
    where
        F: for<'a> Fn(&'a mut Connection, usize) -> Answer<'a> + Clone + Send + Sync + 'static,
    {
        let mut connections = Vec::with_capacity(clients);
        for _ in 0..clients {
            connections.push(self.target.connect().await?);
        }
        let next = Arc::new(AtomicUsize::new(0));
        let started = Instant::now();
        let mut tasks = JoinSet::new();
        for mut connection in connections {
            let (next, work, progress) = (next.clone(), work.clone(), self.progress.clone());
            tasks.spawn(async move {
                let mut latency = latencies();
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count {
                        return anyhow::Ok(latency);
                    }
                    let asked = Instant::now();
                    work(&mut connection, at).await?;
                    progress.sent();
                    latency.saturating_record(u64::try_from(asked.elapsed().as_micros()).unwrap_or(u64::MAX));
                }
            });
        }
        let mut all = latencies();
        while let Some(done) = tasks.join_next().await {
            all.add(done??)?;
        }
        Ok((started.elapsed(), all))
    }

    /// Removes all that was made, and waits until it is gone.
    pub async fn clean(&self) -> Result<()> {
        let mut connection = self.target.connect().await?;
        let path = format!("/api/v1/namespaces/{}", self.namespace);
        connection.answer(Method::DELETE, &path, "", Bytes::new()).await?;
        let started = Instant::now();
        loop {
            let (code, _) = connection.answer(Method::GET, &path, "", Bytes::new()).await?;
            if code == http::StatusCode::NOT_FOUND {
                return Ok(());
            }
            if started.elapsed() > CLEAN_TIME_MAX {
                bail!("the namespace {} is still there; delete it by hand", self.namespace);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// The name of the object with this number.
pub fn name(at: usize) -> String {
    format!("bench-{at:06}")
}

/// A ConfigMap of about 1 KB.
fn object(at: usize) -> Bytes {
    let body = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name(at), "labels": {"app": "bench"}},
        "data": {"payload": "x".repeat(800)},
    });
    Bytes::from(body.to_string())
}
