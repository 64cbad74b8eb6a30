//! `kill -9` at random moments: every acknowledged write survives, and no revision is used twice.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use store::suite::finish;
use store::{Embedded, Operation, Options, Range, Revision, Txn};

const DIR: &str = "STORE_KILL_TEST_DIR";
const WRITERS: usize = 8;

/// Not a test by itself: it runs in the child process that is killed. It reports that it opens the store, and each
/// acknowledged write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_process_that_is_killed() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    say("opening");
    let store = Embedded::open(Path::new(&dir), finish, Options::default()).unwrap();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for n in 0u64.. {
                    let key: Arc<str> = Arc::from(format!("/{writer}/{}", n % 20));
                    let value = Bytes::from(format!("{:>1$}", std::process::id(), 10 + (n as usize * 97) % 3000));
                    let operations =
                        vec![Operation::Put { key: Arc::clone(&key), value, expires_at_s: None, memo: None }];
                    let committed = store.txn(Txn { conditions: vec![], operations }).await.unwrap();
                    say(&format!("wrote {key} {}", committed.revision));
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
}

/// Writes a line with one call, so that it is neither split nor buffered.
fn say(line: &str) {
    let line = format!("\nvictim: {line}\n");
    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
}

#[test]
fn acknowledged_writes_survive_a_kill_at_any_moment() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("store");
    // Everything acknowledged in all rounds: the newest revision of each key, and the key of each revision.
    let mut newest: BTreeMap<String, Revision> = BTreeMap::new();
    let mut written: BTreeMap<Revision, String> = BTreeMap::new();
    // Number of lines to read before the kill: while opening, early, late.
    for lines in [1, 1, 2, 3, 5, 9, 1, 40, 150, 77, 333, 2, 600, 1] {
        for line in run_and_kill(&dir, lines) {
            let mut words = line.split(' ');
            if words.next() != Some("wrote") {
                continue;
            }
            let key = words.next().unwrap().to_owned();
            let revision: Revision = words.next().unwrap().parse().unwrap();
            assert!(written.insert(revision, key.clone()).is_none(), "revision {revision} was used twice");
            let newest = newest.entry(key).or_default();
            *newest = revision.max(*newest);
        }
        check(&dir, &newest, &written);
    }
    assert!(written.len() > 1000, "the child wrote only {} times", written.len());
}

fn run_and_kill(dir: &Path, lines: usize) -> Vec<String> {
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process_that_is_killed", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(victim.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap)
        .filter_map(|line| line.strip_prefix("victim: ").map(str::to_owned));
    let mut seen: Vec<_> = said.by_ref().take(lines).collect();
    assert_eq!(seen.len(), lines, "the child ended before it was killed");
    victim.kill().unwrap();
    // Lines written before the kill count too. The last one may be incomplete.
    seen.extend(said.filter(|line| line.split(' ').count() == 3));
    victim.wait().unwrap();
    seen
}

fn check(dir: &Path, newest: &BTreeMap<String, Revision>, written: &BTreeMap<Revision, String>) {
    let store = Embedded::open(dir, finish, Options::default()).unwrap();
    for (key, revision) in newest {
        let record = store.get(key).unwrap_or_else(|| panic!("{key} of {revision} is lost"));
        assert!(record.modified >= *revision, "{key} fell back from {revision} to {}", record.modified);
    }
    let last = written.last_key_value().map_or(1, |(revision, _)| *revision);
    assert!(store.revision() >= last, "the store fell back from {last} to {}", store.revision());
    for record in store.list(Range::default()).unwrap().records {
        if let Some(key) = written.get(&record.modified) {
            assert_eq!(**key, *record.key, "revision {} wrote another key", record.modified);
        }
    }
}
