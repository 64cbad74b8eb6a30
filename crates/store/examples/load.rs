//! Measures the embedded store under load: `cargo run --release -p store --example load [seconds [writers KiB]]`.
//!
//! Measures durable creates and updates by clients that wait for each response, the time to open a store, and the disk
//! space after many updates. With `writers` and `KiB`, only the creates with these sizes.

use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::{Embedded, Operation, Options, Store, Txn};

#[tokio::main]
async fn main() {
    let numbers: Vec<usize> =
        std::env::args().skip(1).map(|text| text.parse().expect("arguments must be numbers")).collect();
    let span = Duration::from_secs(numbers.first().copied().unwrap_or(5) as u64);
    let root = tempfile::tempdir().expect("cannot create a temporary directory");
    if let [_, writers, kib] = numbers[..] {
        return creates(root.path(), writers, kib << 10, span).await;
    }
    opening(&root.path().join("opening")).await;
    for (writers, bytes) in [(1, 1 << 10), (16, 1 << 10), (64, 1 << 10), (16, 10 << 10), (64, 10 << 10)] {
        creates(&root.path().join(format!("{writers}-{bytes}")), writers, bytes, span).await;
    }
    churn(&root.path().join("churn"), span).await;
}

fn open(dir: &Path) -> Arc<dyn Store> {
    Embedded::open(dir, |stored, _| stored.clone(), Options::default()).expect("cannot open the store")
}

async fn put(store: &dyn Store, key: String, value: Bytes) {
    let operations = vec![Operation::Put { key: Arc::from(key), value, expires_at_s: None, memo: None }];
    store.txn(Txn { conditions: vec![], operations }).await.expect("cannot write");
}

async fn creates(dir: &Path, writers: usize, bytes: usize, span: Duration) {
    let store = open(dir);
    let start = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let value = noise(writer as u64, bytes);
                let mut latencies = Vec::new();
                while start.elapsed() < span {
                    let at = Instant::now();
                    let key = format!("/core/configmaps/ns-{writer}/object-{:08}", latencies.len());
                    put(&*store, key, value.clone()).await;
                    latencies.push(at.elapsed());
                }
                latencies
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await.expect("the writer panicked"));
    }
    report(&format!("{writers} writers of {} KiB", bytes >> 10), latencies, span);
}

fn report(what: &str, mut latencies: Vec<Duration>, span: Duration) {
    latencies.sort();
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    let rate = latencies.len() as f64 / span.as_secs_f64();
    println!("{what:24} {rate:7.0} /s, p50 {:5.2} ms, p99 {:5.2} ms, longest {:5.1} ms", at(0.5), at(0.99), at(1.0));
}

async fn opening(dir: &Path) {
    let timed = |what: &str| {
        let at = Instant::now();
        let store = open(dir);
        println!("{what:24} {:7.1} ms", at.elapsed().as_secs_f64() * 1e3);
        store
    };
    timed("create a store").close().await;
    let store = timed("open an empty store");
    let writes = (0..100_000).map(|n| {
        let store = Arc::clone(&store);
        tokio::spawn(
            async move { put(&*store, format!("/core/pods/ns-{}/pod-{n:06}", n % 100), noise(n, 1 << 10)).await },
        )
    });
    for write in writes.collect::<Vec<_>>() {
        write.await.expect("the writer panicked");
    }
    println!("100,000 of 1 KiB         {:7} MiB on disk", store.disk_bytes() >> 20);
    store.close().await;
    timed("open it again").close().await;
}

/// 16 writers repeatedly update 2,000 keys of 1 to 3 KiB.
async fn churn(dir: &Path, span: Duration) {
    let store = open(dir);
    let start = Instant::now();
    let tasks: Vec<_> = (0..16u64)
        .map(|writer| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                while start.elapsed() < span {
                    let n = latencies.len() as u64;
                    let key = (n * 7919 + writer * 104_729) % 2000;
                    let at = Instant::now();
                    put(&*store, format!("/core/pods/ns-{}/pod-{key:06}", key % 10), noise(n, 1024 + (key as usize)))
                        .await;
                    latencies.push(at.elapsed());
                }
                latencies
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await.expect("the writer panicked"));
    }
    report("16 writers of updates", latencies, span);
    println!("4 MiB live after churn   {:7} MiB on disk", store.disk_bytes() >> 20);
}

fn noise(seed: u64, bytes: usize) -> Bytes {
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 32) as u8
    };
    (0..bytes).map(|_| next()).collect()
}
