//! Measures the binder's plan for one claim, by the number of free PVs. `cargo bench -p plan --bench bind`

mod world;

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use world::Shelves;

fn benches(criterion: &mut Criterion) {
    for (label, count) in [("100", 100), ("10,000", 10_000)] {
        let shelves = Shelves::filled(count);
        criterion.bench_function(&format!("a claim among {label} free volumes"), |bencher| {
            bencher.iter(|| black_box(shelves.plan()));
        });
    }
}

criterion_group!(all, benches);
criterion_main!(all);
