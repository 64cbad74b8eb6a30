//! Compares storage engines as the store uses them: one writer thread, group commit, one sync for each group.
//!
//! cargo run --release -p store --example engines

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

type Row = (String, Vec<u8>);

trait Engine: Send {
    fn open(dir: &Path) -> Self
    where
        Self: Sized;
    fn commit(&mut self, rows: &[Row]);
    fn load(&self) -> (usize, usize);
}

struct Redb(redb::Database);
const TABLE: redb::TableDefinition<'static, &str, &[u8]> = redb::TableDefinition::new("records");

impl Engine for Redb {
    fn open(dir: &Path) -> Redb {
        std::fs::create_dir_all(dir).unwrap();
        Redb(redb::Builder::new().set_cache_size(16 << 20).create(dir.join("store.redb")).unwrap())
    }
    fn commit(&mut self, rows: &[Row]) {
        let txn = self.0.begin_write().unwrap();
        {
            let mut table = txn.open_table(TABLE).unwrap();
            for (key, value) in rows {
                table.insert(key.as_str(), value.as_slice()).unwrap();
            }
        }
        txn.commit().unwrap();
    }
    fn load(&self) -> (usize, usize) {
        use redb::{ReadableDatabase, ReadableTable};
        let txn = self.0.begin_read().unwrap();
        let Ok(table) = txn.open_table(TABLE) else { return (0, 0) };
        let (mut count, mut bytes) = (0, 0);
        for row in table.iter().unwrap() {
            let (key, value) = row.unwrap();
            count += 1;
            bytes += key.value().len() + value.value().len();
        }
        (count, bytes)
    }
}

struct Fjall(fjall::Database, fjall::Keyspace);

impl Engine for Fjall {
    fn open(dir: &Path) -> Fjall {
        let db = fjall::Database::builder(dir)
            .cache_size(16 << 20)
            .max_journaling_size(64 << 20)
            .worker_threads(1)
            .open()
            .unwrap();
        let keys =
            db.keyspace("records", || fjall::KeyspaceCreateOptions::default().max_memtable_size(16 << 20)).unwrap();
        Fjall(db, keys)
    }
    fn commit(&mut self, rows: &[Row]) {
        let mut batch = self.0.batch().durability(Some(fjall::PersistMode::SyncData));
        for (key, value) in rows {
            batch.insert(&self.1, key.as_str(), value.as_slice());
        }
        batch.commit().unwrap();
    }
    fn load(&self) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        for guard in self.1.iter() {
            let (key, value) = guard.into_inner().unwrap();
            count += 1;
            bytes += key.len() + value.len();
        }
        (count, bytes)
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x as u8
        })
        .collect()
}

fn writers<E: Engine + 'static>(dir: &Path, name: &str, clients: usize, size: usize, span: Duration) {
    let mut engine = E::open(dir);
    let (queue, inbox) = mpsc::channel::<(Row, mpsc::SyncSender<()>)>();
    let writer = std::thread::spawn(move || {
        let (mut syncs, mut rows_all) = (0u64, 0u64);
        while let Ok(first) = inbox.recv() {
            let mut batch = vec![first];
            while batch.len() < 512
                && let Ok(next) = inbox.try_recv()
            {
                batch.push(next);
            }
            let (rows, acks): (Vec<Row>, Vec<_>) = batch.into_iter().unzip();
            engine.commit(&rows);
            syncs += 1;
            rows_all += rows.len() as u64;
            for ack in acks {
                ack.send(()).unwrap();
            }
        }
        (syncs, rows_all)
    });
    let start = Instant::now();
    let threads: Vec<_> = (0..clients)
        .map(|client| {
            let queue = queue.clone();
            std::thread::spawn(move || {
                let mut latencies = Vec::new();
                let mut n = 0u64;
                let value = noise(client as u64 + 1, size);
                while start.elapsed() < span {
                    let (ack, done) = mpsc::sync_channel(1);
                    let key = format!("/core/configmaps/ns-{client}/object-{n:08}");
                    let at = Instant::now();
                    queue.send(((key, value.clone()), ack)).unwrap();
                    done.recv().unwrap();
                    latencies.push(at.elapsed());
                    n += 1;
                }
                latencies
            })
        })
        .collect();
    drop(queue);
    let mut all: Vec<Duration> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
    let (syncs, rows) = writer.join().unwrap();
    all.sort();
    let at = |q: f64| all[((all.len() - 1) as f64 * q) as usize].as_secs_f64() * 1e3;
    println!(
        "{name:6} {clients:3} writers {size:6} B: {:7.0}/s  p50 {:6.2} ms  p99 {:6.2} ms  max {:6.1} ms  rows per sync {:.1}  disk/live {:.2}",
        all.len() as f64 / span.as_secs_f64(),
        at(0.5),
        at(0.99),
        at(1.0),
        rows as f64 / syncs as f64,
        disk(dir) as f64 / (rows as f64 * (size + 40) as f64)
    );
}

fn disk(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let meta = entry.metadata().unwrap();
            if meta.is_dir() { disk(&entry.path()) } else { meta.blocks() * 512 }
        })
        .sum()
}

fn opening<E: Engine>(root: &Path, name: &str) {
    let at = Instant::now();
    let empty = E::open(&root.join("empty"));
    println!("{name:6} creates an empty store in {:?}", at.elapsed());
    drop(empty);
    let at = Instant::now();
    let empty = E::open(&root.join("empty"));
    println!("{name:6} opens an empty store in {:?}", at.elapsed());
    drop(empty);

    let dir = root.join("full");
    let mut engine = E::open(&dir);
    for batch in 0..1000u64 {
        let rows: Vec<Row> =
            (0..100u64).map(|n| (format!("/core/pods/ns-{n}/pod-{batch:06}"), noise(batch * 100 + n, 1024))).collect();
        engine.commit(&rows);
    }
    println!("{name:6} 100k x 1 KB: {} MB on disk", disk(&dir) >> 20);
    // What a kill -9 leaves: the files as they are now, copied while the engine still runs.
    let crashed = root.join("crashed");
    copy(&dir, &crashed);
    drop(engine);
    for (what, dir) in [("after a clean close", &dir), ("after a kill", &crashed)] {
        let at = Instant::now();
        let engine = E::open(dir);
        let opened = at.elapsed();
        let (count, bytes) = engine.load();
        println!(
            "{name:6} opens 100k {what} in {opened:?}, with load {:?} ({count} rows, {} MB)",
            at.elapsed(),
            bytes >> 20
        );
        assert_eq!(count, 100_000);
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.metadata().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn churn<E: Engine>(root: &Path, name: &str) {
    let dir = root.join("churn");
    let mut engine = E::open(&dir);
    let mut most = 0;
    let at = Instant::now();
    // 2,000 keys of about 2 KB (4 MB live), each rewritten 200 times: 800 MB of updates in groups of 20.
    for batch in 0..20_000u64 {
        let rows: Vec<Row> = (0..20u64)
            .map(|n| {
                let key = batch.wrapping_mul(7919).wrapping_add(n * 104_729) % 2000;
                (format!("/core/pods/ns-{}/pod-{key:06}", key % 10), noise(batch + n, 1024 + (key as usize % 2048)))
            })
            .collect();
        engine.commit(&rows);
        if batch % 500 == 0 {
            most = most.max(disk(&dir));
        }
    }
    println!(
        "{name:6} churn: 4 MB live, 800 MB written in {:?}: at most {} MB on disk, {} MB at the end",
        at.elapsed(),
        most >> 20,
        disk(&dir) >> 20
    );
}

fn all<E: Engine + 'static>(root: &Path, name: &str) {
    opening::<E>(root, name);
    for (clients, size) in [(1, 1024), (16, 1024), (64, 1024), (16, 10 * 1024), (64, 10 * 1024)] {
        writers::<E>(&root.join(format!("w{clients}-{size}")), name, clients, size, Duration::from_secs(5));
    }
    churn::<E>(root, name);
}

fn main() {
    for round in 0..2 {
        println!("round {round}");
        let root = tempfile::tempdir().unwrap();
        all::<Redb>(&root.path().join("redb"), "redb");
        all::<Fjall>(&root.path().join("fjall"), "fjall");
    }
}
