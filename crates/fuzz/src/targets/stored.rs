//! Damaged files of the store. Each four bytes of the input are a position and a change, in the store's file or in
//! its mark file. An extra byte means that the process was killed before, and not stopped.
//!
//! The store must open with its content, or be refused with one sentence. Only if the mark file is damaged too, it
//! may open with the state before the last commit, as a whole (`crates/store/FORMAT.md`).

use crate::Reader;
use bytes::Bytes;
use std::sync::Arc;
use store::suite::{Crashable, Image, finish};
use store::{Embedded, Operation, Options, Range, Store, Txn};

const INLINE: Options = Options { inline: true, bounds: store::Bounds { events_max: 100, bytes_max: 1 << 20 } };
const COMMITS: u32 = 60;
/// Later commits, of which only the marks are kept.
const COMMITS_LATER: u32 = 4;
const CHANGES_MAX: usize = 16;
const MARK_BYTES: usize = 16;

type Contents = (u64, Vec<(String, Bytes, u64)>);

/// The files to damage, and the content after each of the last two commits.
struct StoreFiles {
    stopped: Image,
    killed: Image,
    last: Contents,
    before: Contents,
    /// The marks of all commits with their revisions, including later commits.
    marks: Vec<(u64, Vec<u8>)>,
}

pub fn start() -> Box<dyn Reader> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let truth = runtime.block_on(whole());
    Box::new(move |input: &[u8]| read(&truth, input))
}

async fn whole() -> StoreFiles {
    let disk = Crashable::default();
    let store = Embedded::open_on(Arc::new(disk.clone()), finish, INLINE).expect("a store");
    let (mut before, mut last, mut marks) = ((0, Vec::new()), (0, Vec::new()), Vec::new());
    for at in 0..COMMITS {
        commit(&*store, at).await;
        // Deleting a missing key is not a commit.
        if store.revision() > last.0 {
            before = std::mem::replace(&mut last, contents(&*store));
            marks.push((store.revision(), disk.kill().note));
        }
    }
    let killed = disk.kill();
    drop(store);
    let stopped = disk.kill();
    let disk = Crashable::from_image(stopped.clone());
    let store = Embedded::open_on(Arc::new(disk.clone()), finish, INLINE).expect("the same store");
    for at in COMMITS..COMMITS + COMMITS_LATER {
        commit(&*store, at).await;
        marks.push((store.revision(), disk.kill().note));
    }
    assert!(marks.iter().all(|(_, mark)| mark.len() == MARK_BYTES), "each commit leaves a mark");
    StoreFiles { stopped, killed, last, before, marks }
}

async fn commit(store: &dyn Store, at: u32) {
    let key: Arc<str> = format!("/key/{}", at * 7 % 25).into();
    let value = Bytes::from(format!("{at}-").repeat(usize::try_from(at * at).unwrap_or(0) % 3000 + 1));
    let operation = match at % 5 {
        4 => Operation::Delete { key, last: None },
        _ => Operation::Put { key, value, expires_at_s: at.is_multiple_of(7).then_some(9), memo: None },
    };
    store.txn(Txn { conditions: vec![], operations: vec![operation] }).await.expect("it is written");
}

fn contents(store: &dyn Store) -> Contents {
    let records = store.list(Range::default()).expect("a list").records;
    let rows = records.iter().map(|record| (record.key.to_string(), record.value.clone(), record.modified));
    (store.revision(), rows.collect())
}

fn read(truth: &StoreFiles, input: &[u8]) -> String {
    let changes = input.chunks_exact(4);
    let was_killed = !changes.remainder().is_empty();
    let image = if was_killed { &truth.killed } else { &truth.stopped };
    let used = image.bytes.iter().rposition(|byte| *byte != 0).expect("something is in it");
    let mut damaged = image.clone();
    for change in changes.take(CHANGES_MAX) {
        if change[2] & 0x10 == 0 {
            change_file(&mut damaged.bytes, used, change);
        } else {
            change_mark(&mut damaged.note, &truth.marks, change);
        }
    }
    let is_same = damaged.bytes == image.bytes;
    // Any other mark has a wrong checksum and cannot be read.
    let written = |(revision, mark): &(u64, Vec<u8>)| damaged.note.starts_with(mark).then_some(*revision);
    let noted = truth.marks.iter().find_map(written);
    match Embedded::open_on(Arc::new(Crashable::from_image(damaged)), finish, INLINE) {
        Ok(store) => {
            let found = contents(&*store);
            assert!(
                noted.is_none_or(|noted| noted <= found.0),
                "the mark has revision {noted:?}, the store serves {}",
                found.0
            );
            assert!(found == truth.last || found == truth.before, "the store serves other content");
            if found == truth.last { "the last commit" } else { "the commit before the last" }.to_owned()
        }
        Err(error) => {
            let is_ahead = noted.is_some_and(|noted| noted > truth.last.0);
            assert!(!is_same || is_ahead, "an undamaged store is refused: {error}");
            error.to_string()
        }
    }
}

fn change_file(bytes: &mut Vec<u8>, used: usize, change: &[u8]) {
    let place = usize::from(u16::from_le_bytes([change[0], change[1]]));
    // Small positions change the header, which needs enough changes too.
    let at = if change[2] & 0x80 == 0 { place % 512 } else { (place * 97 + usize::from(change[3])) % (used + 1) };
    match (bytes.get_mut(at), change[2] & 3) {
        (Some(byte), 0) => *byte ^= 1 << (change[3] & 7),
        (Some(byte), 1) => *byte = change[3],
        (Some(_), 2) => {
            let sector = at / 512 * 512;
            let end = (sector + 512).min(bytes.len());
            bytes[sector..end].fill(0);
        }
        (Some(_), _) if at > 0 => bytes.truncate(at),
        _ => {}
    }
}

/// Flips bits, changes bytes, truncates the mark (at length 0 it is missing), or replaces it by the mark of another
/// commit, even of a later one.
fn change_mark(mark: &mut Vec<u8>, marks: &[(u64, Vec<u8>)], change: &[u8]) {
    let place = usize::from(change[0]);
    match (mark.get_mut(place % MARK_BYTES), change[2] & 3) {
        (Some(byte), 0) => *byte ^= 1 << (change[3] & 7),
        (Some(byte), 1) => *byte = change[3],
        (_, 2) => mark.resize(place % (2 * MARK_BYTES), change[3]),
        (_, 3) => mark.clone_from(&marks[place % marks.len()].1),
        _ => {}
    }
}
