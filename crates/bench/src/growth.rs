//! `mainstay bench --growth`: the same work at several sizes. What it costs for each pod and object shall not depend on how many there are.

use crate::follow::Follow;
use crate::kubelet::{SCHEDULER, World};
use crate::load::{JSON, Load, MERGE};
use crate::pairs;
use crate::progress::Progress;
use crate::report::{Report, latencies, quantile_ms};
use crate::session::{self, Session, Stops};
use crate::sets::{Sets, Shape};
use crate::usage::Usage;
use crate::{BenchArgs, Program};
use anyhow::{Context, Result};
use bytes::Bytes;
use hdrhistogram::Histogram;
use http::Method;
use object::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const SIZES: [usize; 3] = [100, 1_000, 10_000];
/// So many objects of one kind for each set of the size: 100,000 at the largest.
const OBJECTS_PER_SET: usize = 10;
/// Small sizes are measured several times, until as many pods have been as at the largest, or so many.
const PODS_ENOUGH: usize = 1_000;
const GETS: usize = 2_000;
/// No more than the smallest size has, so that a page is as large at each.
const PAGE: usize = 100;
const PAGES: usize = 200;
const CHANGES: usize = 200;
/// Memory is looked at when nothing moves any more.
const SETTLE: Duration = Duration::from_secs(2);

/// Each size has servers of its own where they are ours, so that no size pays for another.
pub async fn run(
    args: &BenchArgs,
    program: &Arc<dyn Program>,
    progress: &Progress,
    stops: &Stops,
    report: &mut Report,
) -> Result<()> {
    let sizes = if args.sizes.is_empty() { SIZES.to_vec() } else { args.sizes.clone() };
    let enough = sizes.last().map_or(PODS_ENOUGH, |largest| PODS_ENOUGH.min(*largest));
    for size in sizes {
        let rounds = enough.div_ceil(size);
        let work = async |session: &mut Session, report: &mut Report| pods(&session.load, size, rounds, report).await;
        session::run(args, program, progress, stops, report, work).await?;
        let work = async |session: &mut Session, report: &mut Report| memory(&session.load, size, report).await;
        session::run(args, program, progress, stops, report, work).await?;
        let work = async |session: &mut Session, report: &mut Report| objects(session, size, report).await;
        session::run(args, program, progress, stops, report, work).await?;
    }
    Ok(())
}

/// What a piece of work costs: time of the wall, and of the server's processors where it tells.
struct Meter {
    wall_ms: f64,
    cpu_ms: Option<f64>,
}

impl Meter {
    fn zero() -> Meter {
        Meter { wall_ms: 0.0, cpu_ms: Some(0.0) }
    }

    async fn add<T>(&mut self, load: &Load, work: impl Future<Output = Result<T>>) -> Result<T> {
        let before = Usage::ask(&load.target).await?.cpu_ms();
        let started = Instant::now();
        let done = work.await?;
        self.wall_ms += started.elapsed().as_secs_f64() * 1e3;
        let after = Usage::ask(&load.target).await?.cpu_ms();
        self.cpu_ms = match (self.cpu_ms, before, after) {
            (Some(sum), Ok(before), Ok(after)) => Some(sum + after - before),
            _ => None,
        };
        Ok(done)
    }

    fn tell(&self, report: &mut Report, [wall, cpu]: [&'static str; 2], size: usize, count: usize) {
        report.point(wall, "ms", size, self.wall_ms / count as f64);
        match self.cpu_ms {
            Some(cpu_ms) => report.point(cpu, "ms", size, cpu_ms / count as f64),
            None => report.leave_out(
                "processor time",
                "the server does not tell its process_cpu_seconds_total at /metrics to this user",
            ),
        }
    }
}

/// Sets of one pod with a claim.
async fn pods(load: &Load, size: usize, rounds: usize, report: &mut Report) -> Result<()> {
    let (mut created, mut rolled, mut deleted) = (Meter::zero(), Meter::zero(), Meter::zero());
    let sets = Sets::new(load, Shape { sets: size, replicas: 1, parallel: false, claims: true }).await?;
    for round in 0..rounds {
        let before = Usage::ask(&load.target).await?.memory_mb();
        created.add(load, sets.create()).await?;
        if round == 0 {
            tokio::time::sleep(SETTLE).await;
            if let (Ok(before), Ok(after)) = (before, Usage::ask(&load.target).await?.memory_mb()) {
                report.point("memory per pod of a set with a claim", "KB", size, (after - before) * 1e3 / size as f64);
            }
            reads(load, "pods", size, report).await?;
        }
        rolled.add(load, sets.roll()).await?;
        deleted.add(load, sets.delete()).await?;
        sets.drop_claims().await?;
    }
    let pods = rounds * size;
    created.tell(report, ["pod created to ready: wall", "pod created to ready: server's processor"], size, pods);
    rolled.tell(report, ["pod rolled: wall", "pod rolled: server's processor"], size, pods);
    deleted.tell(
        report,
        ["pod deleted with its set: wall", "pod deleted with its set: server's processor"],
        size,
        pods,
    );
    Ok(())
}

/// How long a page of a list takes, and a change until a watcher hears of it.
async fn reads(load: &Load, plural: &'static str, size: usize, report: &mut Report) -> Result<()> {
    let path = load.core(plural);
    let mut connection = load.target.connect().await?;
    let (_, answer) = connection.answer(Method::GET, &format!("{path}?limit={CHANGES}"), "", Bytes::new()).await?;
    let list: Value = serde_json::from_slice(&answer)?;
    let items = list["items"].as_array().into_iter().flatten();
    let names: Vec<&str> = items.filter_map(|item| item["metadata"]["name"].as_str()).collect();
    let page = format!("{path}?limit={PAGE}");
    load.progress.begin("pages of a list", 0);
    let (_, pages) = load
        .each(1, PAGES, move |connection, _| {
            let page = page.clone();
            Box::pin(async move { connection.call(Method::GET, &page, "", Bytes::new()).await })
        })
        .await?;
    load.progress.begin("changes until a watcher hears", CHANGES);
    let changes = watched_changes(load, &path, &names).await?;
    let [page, half, most] = match plural {
        "pods" => ["pods: page of 100, p50", "pods: change until a watcher hears, p50", "pods: the same, p99"],
        _ => ["objects: page of 100, p50", "objects: change until a watcher hears, p50", "objects: the same, p99"],
    };
    report.point(page, "ms", size, quantile_ms(&pages, 0.5));
    report.point(half, "ms", size, quantile_ms(&changes, 0.5));
    report.point(most, "ms", size, quantile_ms(&changes, 0.99));
    Ok(())
}

/// Changes one object after the other; each time a watcher of the collection hears of it before the next.
async fn watched_changes(load: &Load, path: &str, names: &[&str]) -> Result<Histogram<u64>> {
    let mut follow = Follow::start(&load.target, path).await?;
    let mut connection = load.target.connect().await?;
    let mut latency = latencies();
    for at in 0..CHANGES {
        let name = *names.get(at % names.len().max(1)).context("there is nothing to change")?;
        let patch = json!({"metadata": {"annotations": {"bench": at.to_string()}}}).to_string();
        let url = format!("{path}/{name}");
        let started = Instant::now();
        let heard = async {
            while follow.next().await?.object.metadata.name != name {}
            anyhow::Ok(started.elapsed())
        };
        let written = connection.call(Method::PATCH, &url, MERGE, patch.into());
        let (took, _) = tokio::try_join!(heard, written)?;
        latency.saturating_record(u64::try_from(took.as_micros())?);
        load.progress.done(at + 1);
    }
    Ok(latency)
}

/// Pods, claims and volumes, so many of each: what the server needs for them, against what they are as JSON.
async fn memory(load: &Load, size: usize, report: &mut Report) -> Result<()> {
    let Ok(idle_mb) = Usage::ask(&load.target).await?.memory_mb() else {
        report
            .leave_out("memory", "the server does not tell its process_resident_memory_bytes at /metrics to this user");
        return Ok(());
    };
    let world = World::start(load).await?;
    pairs::bind_static(load, size).await?;
    load.progress.begin("pods of bound claims", size);
    let pods = load.core("pods");
    load.each(load.clients, size, move |connection, at| {
        let (path, pod) = (pods.clone(), pod(at));
        Box::pin(async move { connection.call(Method::POST, &path, JSON, pod.to_string().into()).await })
    })
    .await?;
    world.made_ready(size).await?;
    load.progress.begin("memory at rest", 0);
    tokio::time::sleep(SETTLE).await;
    let resident_mb = Usage::ask(&load.target).await?.memory_mb()?;
    let claims = load.core("persistentvolumeclaims");
    let volumes = format!("{}?labelSelector=bench%3D{}", pairs::VOLUMES, load.namespace);
    let mut json_mb = 0.0;
    for path in [&*load.core("pods"), &*claims, &volumes] {
        json_mb += load.target.connect().await?.call(Method::GET, path, "", Bytes::new()).await? as f64 / 1e6;
    }
    report.total("pods, claims and volumes: resident memory", "MB", size, resident_mb);
    report.total("pods, claims and volumes: their JSON", "MB", size, json_mb);
    report.total("pods, claims and volumes: memory to JSON", "×", size, resident_mb / json_mb);
    report.point("the same above idle", "×", size, (resident_mb - idle_mb) / json_mb);
    Ok(())
}

fn pod(at: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": format!("pod-{at:05}"), "labels": {"app": "bench"}},
        "spec": {
            "schedulerName": SCHEDULER,
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main", "image": "bench", "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": format!("pair-{at:05}")}}],
        },
    })
}

/// Many objects of one kind, of about 1 KB.
async fn objects(session: &mut Session, size: usize, report: &mut Report) -> Result<()> {
    let load = &session.load;
    let count = size * OBJECTS_PER_SET;
    let idle_mb = Usage::ask(&load.target).await?.memory_mb();
    let mut created = Meter::zero();
    created.add(load, load.create_objects(count)).await?;
    created.tell(report, ["object created: wall", "object created: server's processor"], size, count);
    tokio::time::sleep(SETTLE).await;
    let resident_mb = Usage::ask(&load.target).await?.memory_mb();
    let started = Instant::now();
    let bytes = load.target.connect().await?.call(Method::GET, &load.core("configmaps"), "", Bytes::new()).await?;
    report.point("objects: all in one list, each", "µs", size, started.elapsed().as_secs_f64() * 1e6 / count as f64);
    if let (Ok(idle_mb), Ok(resident_mb)) = (idle_mb, resident_mb) {
        report.point("objects: memory above idle to JSON", "×", size, (resident_mb - idle_mb) * 1e6 / bytes as f64);
    }
    let (_, gets) = load.get_objects(count, GETS).await?;
    report.point("objects: get, p50", "ms", size, quantile_ms(&gets, 0.5));
    reads(load, "configmaps", size, report).await?;
    if session.cannot_restart().is_none() {
        session.load.progress.begin("restart", 0);
        let (_, started_in) = session.restart().await?;
        report.total("restart until ready", "ms", size, started_in.as_secs_f64() * 1e3);
    }
    Ok(())
}
