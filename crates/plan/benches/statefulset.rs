//! Measures the plan of a settled StatefulSet, which every event of its pods and claims requests. `cargo
//! bench -p plan --bench statefulset`

mod world;

use criterion::{Criterion, criterion_group, criterion_main};
use object::access::Access;
use object::json;
use std::hint::black_box;
use world::World;

fn benches(criterion: &mut Criterion) {
    for (label, replicas, policy) in
        [("5 replicas in order", 5, "OrderedReady"), ("1,000 replicas in parallel", 1_000, "Parallel")]
    {
        let world = World::settled(replicas, policy);
        criterion.bench_function(&format!("settled, {label}"), |bencher| bencher.iter(|| black_box(world.plan())));
    }
    let mut rolled = World::settled(1_000, "Parallel");
    rolled.set.put(&["spec", "template", "metadata", "annotations"], json!({"restartedAt": "now"}));
    criterion.bench_function("a new template, 1,000 replicas in parallel", |bencher| {
        bencher.iter(|| black_box(rolled.plan()))
    });
}

criterion_group!(all, benches);
criterion_main!(all);
