//! Cost of each call: `cargo bench -p store`.

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use std::sync::Arc;
use store::{Embedded, Next, Operation, Options, Range, Store, Txn, Volatile, Watcher};
use tokio::runtime::Runtime;

criterion_group!(benches, writes, reads, watches);
criterion_main!(benches);

fn plain(stored: &Bytes, _revision: u64) -> Bytes {
    stored.clone()
}

async fn put(store: &dyn Store, key: &str) {
    let operations =
        vec![Operation::Put { key: Arc::from(key), value: vec![b'x'; 1024].into(), expires_at_s: None, memo: None }];
    store.txn(Txn { conditions: vec![], operations }).await.expect("cannot write");
}

fn filled(runtime: &Runtime, count: usize) -> Arc<dyn Store> {
    let store = Volatile::new(plain, Options::default());
    for n in 0..count {
        runtime.block_on(put(&*store, &format!("/core/pods/ns-{}/pod-{n:06}", n % 10)));
    }
    store
}

fn writes(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("cannot start a runtime");
    let dir = tempfile::tempdir().expect("cannot create a temporary directory");
    let embedded = Embedded::open(dir.path(), plain, Options::default()).expect("cannot open the store");
    let volatile = Volatile::new(plain, Options::default());
    for (name, store, at_once) in [("volatile", &volatile, 1), ("embedded", &embedded, 1), ("embedded", &embedded, 64)]
    {
        let mut group = criterion.benchmark_group("txn");
        group.throughput(Throughput::Elements(at_once)).sample_size(20);
        group.bench_function(format!("{name}, {at_once} at once"), |bencher| {
            bencher.iter(|| {
                runtime.block_on(async {
                    let keys: Vec<_> = (0..at_once).map(|n| format!("/core/pods/ns/pod-{n}")).collect();
                    let writes: Vec<_> = keys
                        .into_iter()
                        .map(|key| {
                            let store = Arc::clone(store);
                            tokio::spawn(async move { put(&*store, &key).await })
                        })
                        .collect();
                    for write in writes {
                        write.await.expect("the writer panicked");
                    }
                });
            });
        });
    }
}

fn reads(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("cannot start a runtime");
    let store = filled(&runtime, 30_000);
    criterion.bench_function("get of 30,000", |bencher| bencher.iter(|| store.get("/core/pods/ns-5/pod-012345")));
    criterion.bench_function("list 3,000 of 30,000", |bencher| {
        bencher.iter(|| store.list(Range { prefix: "/core/pods/ns-5/", ..Range::default() }));
    });
    criterion.bench_function("list 500 of 30,000", |bencher| {
        bencher.iter(|| store.list(Range { prefix: "/core/pods/", limit: 500, ..Range::default() }));
    });
    let at = Some(store.revision() - 1_000);
    criterion.bench_function("list 500 of 30,000, 1,000 revisions ago", |bencher| {
        bencher.iter(|| store.list(Range { prefix: "/core/pods/", limit: 500, at, ..Range::default() }));
    });
    criterion.bench_function("count 30,000", |bencher| bencher.iter(|| store.count("/core/pods/")));
}

fn watches(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("cannot start a runtime");
    for (watchers, prefix) in [(20, "/core/pods/"), (5000, "/core/pods/"), (5000, "/core/secrets/")] {
        let store = filled(&runtime, 100);
        let start = store.revision();
        let watch = || store.watch(prefix, start).expect("cannot watch");
        let mut all: Vec<Box<dyn Watcher>> = (0..watchers).map(|_| watch()).collect();
        let mut group = criterion.benchmark_group("watch");
        let matching = prefix == "/core/pods/";
        let events = if matching { watchers * 100 } else { 100 };
        group.throughput(Throughput::Elements(events)).sample_size(10);
        group.bench_function(format!("100 events past {watchers} watchers of {prefix}"), |bencher| {
            bencher.iter_batched(
                || (),
                |()| {
                    runtime.block_on(async {
                        for n in 0..100 {
                            put(&*store, &format!("/core/pods/ns-0/pod-{n:06}")).await;
                        }
                        if matching {
                            for watcher in &mut all {
                                let Next::Events { events, .. } = watcher.next(1000).await else { panic!("events") };
                                assert_eq!(events.len(), 100);
                            }
                        }
                    });
                },
                BatchSize::PerIteration,
            );
        });
    }
}
