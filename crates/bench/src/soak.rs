//! `mainstay bench --soak SECONDS`: the same things are made, changed and deleted over and over, with watchers that come and go, and the
//! server's memory and disk are looked at. Nothing is left over in the long run, so both must reach a plateau.

use crate::client::{Connection, Target};
use crate::follow::{self, Follow};
use crate::load::{JSON, Load, MERGE};
use crate::plateau::{DISK, Kind, MEMORY};
use crate::report::Report;
use crate::usage::Usage;
use anyhow::{Result, bail};
use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use object::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Objects that are there at most at a time.
const OBJECTS: u64 = 2000;
/// Each has ten pods and five volumes in a life of eight seconds.
const SETS: u64 = 40;
const WATCHERS: usize = 20;
const SAMPLES: u32 = 120;
/// What has to fill up is full after a part of such a time, so that slow growth can be told from it.
const LONG: Duration = Duration::from_secs(600);

/// What the server says of itself.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Duration,
    memory_mb: f64,
    disk_mb: f64,
}

pub async fn run(load: &Load, time: Duration, report: &mut Report) -> Result<()> {
    let end = Instant::now() + time;
    let writes = Arc::new(AtomicU64::new(0));
    let mut churn = JoinSet::new();
    for client in 0..load.clients {
        churn.spawn(objects(load.target.connect().await?, load.namespace.clone(), client as u64, end, writes.clone()));
    }
    churn.spawn(sets(load.target.connect().await?, load.namespace.clone(), end, writes.clone()));
    for at in 0..WATCHERS {
        churn.spawn(watch(load.target.clone(), load.namespace.clone(), at as u64, end));
    }
    let (pods, volumes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    for (collection, count) in [(load.core("pods"), &pods), ("/api/v1/persistentvolumes".into(), &volumes)] {
        churn.spawn(count_gone(load.target.clone(), collection, end, count.clone()));
    }
    let samples = sample(&load.target, time, end).await?;
    while let Some(done) = churn.join_next().await {
        done??;
    }
    let rate = writes.load(Ordering::Relaxed) as f64 / time.as_secs_f64();
    report.figure(
        "soak: writes",
        rate,
        "/s",
        format!("{} s, {} clients, sets and watchers", time.as_secs(), load.clients),
    );
    for (what, count) in [("soak: pods that came and went", pods), ("soak: volumes that came and went", volumes)] {
        report.figure(what, count.load(Ordering::Relaxed) as f64 / time.as_secs_f64(), "/s", "");
    }
    let is_long = time >= LONG;
    let memory = plateau(MEMORY, &samples, |sample| sample.memory_mb, is_long, report);
    let disk = plateau(DISK, &samples, |sample| sample.disk_mb, is_long, report);
    memory.and(disk)
}

fn plateau(kind: Kind, samples: &[Sample], of: fn(&Sample) -> f64, is_long: bool, report: &mut Report) -> Result<()> {
    let seen = kind.look(&samples.iter().map(of).collect::<Vec<f64>>())?;
    let [first, middle, last] = seen.most_mb;
    let detail = format!(
        "{}: the most in each third {first:.0}, {middle:.0}, {last:.0}; low-water marks rose by {:.1} after the first{}",
        kind.name,
        seen.rise_mb,
        if is_long { "" } else { ", which is judged from ten minutes on" }
    );
    let name = if kind.name == "memory" { "soak: memory in the end" } else { "soak: disk in the end" };
    report.figure(name, last, "MB", detail);
    kind.judge(&seen, is_long)
}

async fn sample(target: &Target, time: Duration, end: Instant) -> Result<Vec<Sample>> {
    let begun = Instant::now();
    let mut samples = Vec::new();
    while Instant::now() < end {
        let usage = Usage::ask(target).await?;
        let sample = Sample { at: begun.elapsed(), memory_mb: usage.memory_mb()?, disk_mb: usage.disk_mb()? };
        eprintln!(
            "  {:>6.0} s {:>8.1} MB memory {:>8.1} MB disk",
            sample.at.as_secs_f64(),
            sample.memory_mb,
            sample.disk_mb
        );
        samples.push(sample);
        tokio::time::sleep((time / SAMPLES).min(end.saturating_duration_since(Instant::now()))).await;
    }
    Ok(samples)
}

/// Numbers that look random, the same in every run.
fn dice(client: u64, step: u64) -> u64 {
    let mut mix = (client << 40 ^ step).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mix = (mix ^ (mix >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mix ^ (mix >> 27)
}

/// Makes, changes and deletes objects; whether one is there is left to chance, so some of it is refused.
async fn objects(
    mut connection: Connection,
    namespace: String,
    client: u64,
    end: Instant,
    writes: Arc<AtomicU64>,
) -> Result<()> {
    let collection = format!("/api/v1/namespaces/{namespace}/configmaps");
    for step in 0.. {
        if Instant::now() >= end {
            break;
        }
        let dice = dice(client, step);
        let name = format!("soak-{}", dice % OBJECTS);
        let payload = "x".repeat(usize::try_from(dice >> 20 & 2047)?);
        let path = format!("{collection}/{name}");
        let (code, answer) = match dice >> 40 & 3 {
            0 => connection.answer(Method::DELETE, &path, "", Bytes::new()).await?,
            1 => {
                let patch = json!({"data": {"payload": payload}}).to_string();
                connection.answer(Method::PATCH, &path, MERGE, patch.into()).await?
            }
            _ => {
                let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"payload": payload}});
                connection.answer(Method::POST, &collection, JSON, object.to_string().into()).await?
            }
        };
        if !(code.is_success() || matches!(code.as_u16(), 404 | 409 | 429)) {
            bail!("{path}: {code}: {}", String::from_utf8_lossy(&answer[..answer.len().min(300)]));
        }
        writes.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Takes sets through their lives, one step each second. What is told of them would be kept for an hour and hide everything else, so it is
/// deleted.
async fn sets(mut connection: Connection, namespace: String, end: Instant, writes: Arc<AtomicU64>) -> Result<()> {
    let collection = format!("/apis/apps/v1/namespaces/{namespace}/statefulsets");
    let events = format!("/api/v1/namespaces/{namespace}/events");
    for step in 0u64.. {
        for at in 0..SETS {
            let name = format!("soak-{at}");
            let path = format!("{collection}/{name}");
            let patch = |spec: object::Value| Bytes::from(json!({"spec": spec}).to_string());
            let (method, path, media, body) = match (step + at) % 8 {
                0 => (Method::POST, collection.clone(), JSON, set(&name)),
                2 => (Method::PATCH, path, MERGE, patch(json!({"replicas": 5}))),
                4 => {
                    let rolled = json!({"template": {"metadata": {"annotations": {"step": step.to_string()}}}});
                    (Method::PATCH, path, MERGE, patch(rolled))
                }
                5 => (Method::PATCH, path, MERGE, patch(json!({"replicas": 1}))),
                6 => (Method::DELETE, path, JSON, Bytes::new()),
                _ => continue,
            };
            let (code, answer) = connection.answer(method, &path, media, body).await?;
            if !(code.is_success() || matches!(code.as_u16(), 404 | 409 | 429)) {
                bail!("{path}: {code}: {}", String::from_utf8_lossy(&answer[..answer.len().min(300)]));
            }
            writes.fetch_add(1, Ordering::Relaxed);
        }
        if step % 8 == 7 {
            connection.call(Method::DELETE, &events, JSON, Bytes::new()).await?;
        }
        if Instant::now() >= end {
            break;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

fn set(name: &str) -> Bytes {
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name},
        "spec": {
            "replicas": 3, "serviceName": name, "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": name}},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Delete"},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "main", "image": "soak"}]},
            },
            "volumeClaimTemplates": [{
                "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
            }],
        },
    });
    Bytes::from(set.to_string())
}

/// Watches for a few seconds, goes, and comes again.
async fn watch(target: Target, namespace: String, at: u64, end: Instant) -> Result<()> {
    let collection = format!("/api/v1/namespaces/{namespace}/configmaps");
    for step in 0.. {
        if Instant::now() >= end {
            break;
        }
        let mut connection = target.connect().await?;
        let version = follow::version(&target, &collection).await?;
        let mut body = connection.watch(&format!("{collection}?watch=1&resourceVersion={version}")).await?;
        let stay =
            Duration::from_millis(500 + dice(at, step) % 5000).min(end.saturating_duration_since(Instant::now()));
        let reading = async { while let Some(Ok(_)) = body.frame().await {} };
        // It is not read to its end: that is the point.
        drop(tokio::time::timeout(stay, reading).await);
    }
    Ok(())
}

/// Counts what goes. Where the watch ends or cannot keep up another one goes on: it is for a figure, not for a promise.
async fn count_gone(target: Target, collection: Arc<str>, end: Instant, count: Arc<AtomicU64>) -> Result<()> {
    let counting = async {
        loop {
            let mut follow = Follow::start(&target, &collection).await?;
            while let Ok(change) = follow.next().await {
                count.fetch_add(u64::from(change.gone), Ordering::Relaxed);
            }
        }
    };
    tokio::time::timeout_at(end.into(), counting).await.unwrap_or(Ok(()))
}
