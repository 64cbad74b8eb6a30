//! `mainstay bench --soak SECONDS`: the same things are made, changed and deleted over and over, with watchers that come and go, and the
//! server's memory and disk are looked at. Nothing is left over in the long run, so both must reach a plateau.

use super::client::{Connection, Target};
use super::follow;
use super::load::{JSON, Load, MERGE};
use super::report::Report;
use super::usage::Usage;
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
const SETS: u64 = 10;
const WATCHERS: usize = 20;
const SAMPLES: u32 = 60;
/// A sample may be so much above what was seen before: pages of memory and of files come in lots.
const TOLERANCE: f64 = 1.1;
const TOLERANCE_MB: f64 = 16.0;

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
    let memory = plateau("memory", &samples, |sample| sample.memory_mb, report);
    let disk = plateau("disk", &samples, |sample| sample.disk_mb, report);
    memory.and(disk)
}

fn plateau(what: &'static str, samples: &[Sample], of: fn(&Sample) -> f64, report: &mut Report) -> Result<()> {
    let thirds = thirds(&samples.iter().map(of).collect::<Vec<f64>>())?;
    let [first, middle, last] = thirds;
    let detail = format!("{what}: the most in each third {first:.0}, {middle:.0}, {last:.0}");
    report.figure(
        if what == "memory" { "soak: memory in the end" } else { "soak: disk in the end" },
        last,
        "MB",
        detail,
    );
    judge(what, thirds)
}

/// The most in each third of the time.
fn thirds(samples_mb: &[f64]) -> Result<[f64; 3]> {
    let third = samples_mb.len() / 3;
    if third == 0 {
        bail!("the soak was too short to say anything: give it more seconds");
    }
    let most = |samples: &[f64]| samples.iter().copied().fold(0.0, f64::max);
    Ok([&samples_mb[..third], &samples_mb[third..2 * third], &samples_mb[2 * third..]].map(most))
}

/// The last third of the time may not go beyond the second: the first is for what has to fill up.
fn judge(what: &str, [_, middle, last]: [f64; 3]) -> Result<()> {
    if last > middle * TOLERANCE + TOLERANCE_MB {
        bail!(
            "the {what} still grows: {middle:.0} MB at most in the second third of the time, {last:.0} MB in the last"
        );
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of sixty samples, each made from the part of the time that is over.
    fn said(megabytes: fn(f64) -> f64) -> String {
        let samples: Vec<f64> = (0..SAMPLES).map(|at| megabytes(f64::from(at) / f64::from(SAMPLES))).collect();
        thirds(&samples)
            .and_then(|thirds| judge("memory", thirds))
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default()
    }

    #[test]
    fn a_plateau_is_one_and_growth_is_none() {
        let plateaus: [(&str, fn(f64) -> f64); 6] = [
            ("flat", |_| 200.0),
            ("a spike while it fills up", |time| if time < 0.3 { 900.0 } else { 200.0 }),
            ("filling up until half of the time", |time| 400.0 * time.min(0.5)),
            ("waves", |time| 200.0 + 100.0 * (40.0 * time).sin()),
            ("falling", |time| 500.0 - 400.0 * time),
            ("a little, in lots", |time| if time < 0.9 { 20.0 } else { 36.0 }),
        ];
        for (what, megabytes) in plateaus {
            assert_eq!(said(megabytes), "", "{what}");
        }
        let growths: [(&str, fn(f64) -> f64); 4] = [
            ("steadily", |time| 100.0 + 300.0 * time),
            ("faster and faster", |time| 50.0 * (3.0 * time).exp()),
            ("at the very end", |time| if time < 0.98 { 200.0 } else { 240.0 }),
            ("after a spike", |time| if time < 0.1 { 900.0 } else { 600.0 * time }),
        ];
        for (what, megabytes) in growths {
            assert!(said(megabytes).starts_with("the memory still grows: "), "{what}: {}", said(megabytes));
        }
    }

    #[test]
    fn too_few_samples_say_nothing() {
        assert!(thirds(&[1.0, 1.0]).unwrap_err().to_string().contains("too short"));
        assert_eq!(thirds(&[3.0, 2.0, 1.0, 4.0]).unwrap(), [3.0, 2.0, 4.0]);
    }
}
