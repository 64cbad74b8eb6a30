//! Durability: what survives restarts, crashes at any sync, full and failing disks, and damage.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use store::suite::{Crashable, Image, finish};
use store::{Embedded, Error, OpenError, Operation, Options, Range, Record, Revision, Store, Txn};

const INLINE: Options = Options { inline: true, bounds: store::Bounds { events_max: 1000, bytes_max: 1 << 20 } };

/// Number of syncs that redb needs for one commit.
const SYNCS_PER_COMMIT: usize = 1;

/// The part of the file in which redb names its commits: two slots, and which of them is current.
const HEADER_BYTES: usize = 320;

fn put(key: &str, value: impl Into<Bytes>) -> Operation {
    Operation::Put { key: Arc::from(key), value: value.into(), expires_at_s: None, memo: None }
}

fn delete(key: &str) -> Operation {
    Operation::Delete { key: Arc::from(key), last: None }
}

async fn write(store: &dyn Store, operations: Vec<Operation>) -> Result<Revision, Error> {
    store.txn(Txn { conditions: vec![], operations }).await.map(|committed| committed.revision)
}

type Contents = Vec<(String, Bytes, Revision, Revision)>;

fn contents(store: &dyn Store) -> Contents {
    let describe =
        |record: &Arc<Record>| (record.key.to_string(), record.value.clone(), record.created, record.modified);
    store.list(Range::default()).unwrap().records.iter().map(describe).collect()
}

fn open(dir: &Path) -> Result<Arc<dyn Store>, OpenError> {
    Embedded::open(dir, finish, Options::default())
}

fn refusal(outcome: Result<Arc<dyn Store>, OpenError>) -> String {
    outcome.err().expect("the store opened, but must be refused").to_string()
}

fn text(number: usize, length: usize) -> Vec<u8> {
    format!("{number}-").bytes().cycle().take(length).collect()
}

/// Writes of all kinds, some with values of several pages.
async fn work(store: &dyn Store, steps: std::ops::Range<usize>) -> Result<(), Error> {
    for n in steps {
        let key = format!("/key/{}", n * 7 % 40);
        let length = if n % 11 == 0 { 9000 } else { 50 + n };
        let operations = match n % 5 {
            4 => vec![delete(&key)],
            3 => vec![put(&key, text(n, length)), put("/both", text(n, 10))],
            _ => vec![put(&key, text(n, length))],
        };
        write(store, operations).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_restart_keeps_everything_but_the_past() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    assert_eq!((store.revision(), store.oldest()), (1, 1));
    work(&*store, 0..200).await.unwrap();
    let expiring = Operation::Put { key: Arc::from("/key/x"), value: Bytes::new(), expires_at_s: Some(77), memo: None };
    write(&*store, vec![expiring]).await.unwrap();
    let (before, revision) = (contents(&*store), store.revision());
    assert!(store.disk_bytes() > 0);
    store.close().await;

    let store = open(dir.path()).unwrap();
    assert_eq!((contents(&*store), store.revision(), store.oldest()), (before, revision, revision));
    assert!(matches!(store.watch("", revision - 1), Err(Error::Compacted { .. })));
    assert!(store.watch("", revision).is_ok());
    assert_eq!(store.expire(76).await.unwrap(), 0);
    assert_eq!(store.expire(77).await.unwrap(), 1);
    assert_eq!(write(&*store, vec![put("/new", "")]).await.unwrap(), revision + 2, "no revision is used again");
}

/// The revision of the last key's deletion is not used again either.
#[tokio::test]
async fn an_emptied_store_keeps_its_revision() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    write(&*store, vec![put("/a", "")]).await.unwrap();
    let revision = write(&*store, vec![delete("/a")]).await.unwrap();
    drop(store);
    assert_eq!(open(dir.path()).unwrap().revision(), revision);
}

/// A crash at any sync or after any answer, with any of the unsynced sectors lost: every acknowledged write is present.
/// At most the batch in progress is present too, and then completely.
#[tokio::test]
async fn a_crash_at_any_moment_loses_nothing_acknowledged() {
    for seed in 1..4 {
        let disk = Crashable::default();
        let store = Embedded::open_on(Arc::new(disk.clone()), finish, INLINE).unwrap();
        disk.record_crashes(seed * 7919);
        // State of the store when this many crash images had been taken.
        let mut acknowledged = vec![(disk.crashes(), store.revision(), contents(&*store))];
        for n in 0..60 {
            work(&*store, n..n + 1).await.unwrap();
            let now = (store.revision(), contents(&*store));
            let image = disk.crash(seed * 104_729 + n as u64);
            let newest = Image { note: disk.kill().note, ..image.clone() };
            for image in [image, newest] {
                let crashed = Embedded::open_on(Arc::new(Crashable::from_image(image)), finish, INLINE).unwrap();
                assert_eq!((crashed.revision(), contents(&*crashed)), now, "a crash right after the answer");
            }
            acknowledged.push((disk.crashes(), now.0, now.1));
        }
        assert!(disk.crashes() as Revision >= store.revision() - acknowledged[0].1, "each write is synced");
        drop(store);
        for crash in 0..disk.crashes() {
            let after = acknowledged.partition_point(|(images, ..)| *images <= crash);
            let image = Crashable::from_image(disk.crash_image(crash));
            let store = Embedded::open_on(Arc::new(image), finish, INLINE)
                .unwrap_or_else(|error| panic!("seed {seed}, crash {crash}: {error}"));
            let found = (store.revision(), contents(&*store));
            let acceptable = [after.saturating_sub(1), after.min(acknowledged.len() - 1)];
            let held = acceptable.iter().any(|at| (acknowledged[*at].1, &acknowledged[*at].2) == (found.0, &found.1));
            assert!(held, "seed {seed}, crash {crash}: revision {} is neither before nor after", found.0);
            write(&*store, vec![put("/after", "")]).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_full_disk_refuses_and_recovers() {
    for room in 0..24 {
        let disk = Crashable::default();
        let store = Embedded::open_on(Arc::new(disk.clone()), finish, INLINE).unwrap();
        work(&*store, 0..20).await.unwrap();
        disk.set_room(Some(room));
        let mut before = (store.revision(), contents(&*store));
        let refused = loop {
            match write(&*store, vec![put("/big", text(room, 20_000)), put("/count", text(room, 8))]).await {
                Ok(_) => before = (store.revision(), contents(&*store)),
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::Unavailable(_)), "room {room}: {refused}");
        assert!(store.healthy().is_err());
        assert_eq!((store.revision(), contents(&*store)), before, "nothing happened");
        assert!(write(&*store, vec![put("/big", text(1, 200_000))]).await.is_err());

        disk.set_room(None);
        write(&*store, vec![put("/small", "")]).await.unwrap();
        store.healthy().unwrap();
        let after = (store.revision(), contents(&*store));
        drop(store);
        let store = Embedded::open_on(Arc::new(Crashable::from_image(disk.bytes())), finish, INLINE).unwrap();
        assert_eq!((store.revision(), contents(&*store)), after, "room {room}");
    }
}

/// The writer itself detects that the disk has space again.
#[tokio::test]
async fn health_returns_without_a_write() {
    let disk = Crashable::default();
    let store = Embedded::open_on(Arc::new(disk.clone()), finish, Options::default()).unwrap();
    disk.set_stuck(true);
    for _ in 0..3 {
        assert!(matches!(write(&*store, vec![put("/a", "")]).await, Err(Error::Unavailable(_))));
        assert!(store.healthy().is_err());
    }
    disk.set_stuck(false);
    let healed = async {
        while store.healthy().is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), healed).await.expect("the store did not become healthy");
    write(&*store, vec![put("/a", "")]).await.unwrap();
}

#[tokio::test]
async fn a_failed_sync_is_final() {
    for syncs in 0..3 {
        let disk = Crashable::default();
        let store = Embedded::open_on(Arc::new(disk.clone()), finish, INLINE).unwrap();
        disk.fail_sync_after(syncs);
        let mut acknowledged = store.revision();
        let failed = loop {
            match write(&*store, vec![put("/a", "v")]).await {
                Ok(revision) => acknowledged = revision,
                Err(error) => break error,
            }
        };
        assert!(matches!(failed, Error::Unknown(_)), "{failed}");
        assert_eq!(store.revision(), acknowledged, "a write that may not be durable must stay invisible");
        for _ in 0..3 {
            assert!(matches!(write(&*store, vec![put("/a", "w")]).await, Err(Error::Unavailable(_))));
        }
        assert!(store.healthy().is_err());
        drop(store);
        // The disk has at least everything that was acknowledged.
        let store = Embedded::open_on(Arc::new(Crashable::from_image(disk.bytes())), finish, INLINE).unwrap();
        assert!(store.revision() >= acknowledged);
    }
}

/// On Linux, data that a sync could not write stays in the page cache as if it were written, even for the next process.
/// What that process shows must be on the disk.
#[tokio::test]
async fn cached_data_of_a_failed_sync_is_not_treated_as_durable() {
    for syncs in 0..4 {
        let disk = Crashable::default();
        let store = Embedded::open_on(Arc::new(disk.clone()), finish, INLINE).unwrap();
        work(&*store, 0..30).await.unwrap();
        disk.fail_one_sync_after(syncs);
        let mut acknowledged = (store.revision(), contents(&*store));
        while write(&*store, vec![put("/a", text(syncs, 9000)), put("/key/7", "v")]).await.is_ok() {
            acknowledged = (store.revision(), contents(&*store));
        }
        drop(store);
        let store = Embedded::open_on(Arc::new(disk.clone()), finish, INLINE).unwrap();
        let shown = (store.revision(), contents(&*store));
        assert_eq!(shown, acknowledged);
        for seed in 0..10 {
            let crashed = Embedded::open_on(Arc::new(Crashable::from_image(disk.crash(seed))), finish, INLINE);
            let crashed = crashed.unwrap_or_else(|error| panic!("a sync that failed after {syncs}: {error}"));
            assert_eq!((crashed.revision(), contents(&*crashed)), shown, "a sync that failed after {syncs}");
        }
        // Writing continues from there.
        work(&*store, 30..40).await.unwrap();
        let shown = contents(&*store);
        let crashed = Embedded::open_on(Arc::new(Crashable::from_image(disk.crash(1))), finish, INLINE).unwrap();
        assert_eq!(contents(&*crashed), shown);
    }
}

/// Protects a performance figure (decision 16): a commit needs one sync, and all writes that wait for the disk share
/// the next commit.
#[tokio::test]
async fn writes_that_wait_for_the_disk_share_the_next_sync() {
    let disk = Crashable::default();
    let store = Embedded::open_on(Arc::new(disk.clone()), finish, Options::default()).unwrap();
    let key = |n: usize| format!("/key/{n}");
    write(&*store, vec![put(&key(0), text(0, 1000))]).await.unwrap();
    let (before, notes) = (disk.syncs(), disk.notes());
    disk.hold_syncs(true);
    let first = tokio::spawn({
        let store = store.clone();
        async move { write(&*store, vec![put("/first", text(1, 1000))]).await }
    });
    tokio::task::yield_now().await;
    // The writer is committing the first write and waits for the disk.
    disk.wait_for_syncs(before + 1);
    let mut others: Vec<_> = (1..64).map(|n| Box::pin(write(&*store, vec![put(&key(n), text(n, 1000))]))).collect();
    for other in &mut others {
        // Queued, but not answered.
        assert!(futures::poll!(other).is_pending());
    }
    disk.hold_syncs(false);
    first.await.unwrap().unwrap();
    for other in others {
        other.await.unwrap();
    }
    assert_eq!(
        disk.syncs() - before,
        2 * SYNCS_PER_COMMIT,
        "expected one commit for the first write and one for all others"
    );
    assert_eq!(disk.notes() - notes, 2, "the mark is written once per commit, not per transaction");
}

#[tokio::test]
async fn a_second_process_is_refused_and_told_the_first_ones_id() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path()).unwrap();
    assert_eq!(
        refusal(open(dir.path())),
        format!("another process ({}) uses the store in {}", std::process::id(), dir.path().display())
    );
    store.close().await;
    open(dir.path()).unwrap();
}

#[tokio::test]
async fn files_are_private() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("deep/er");
    let store = open(&dir).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    let files: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 3);
    assert!(files.iter().all(|file| mode(file) == 0o600), "{files:?}");
    drop(store);
}

#[test]
fn a_newer_format_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).unwrap());
    {
        let database = redb::Database::open(dir.path().join("store.redb")).unwrap();
        let txn = database.begin_write().unwrap();
        let meta = redb::TableDefinition::<&str, &[u8]>::new("meta");
        txn.open_table(meta).unwrap().insert("format", 2u32.to_le_bytes().as_slice()).unwrap();
        txn.commit().unwrap();
    }
    let refused = refusal(open(dir.path()));
    assert_eq!(refused, "the store was written by a newer version (format 2; this one reads up to 1)");
}

/// Missing and stale rows are detected, even if each remaining row is intact.
#[tokio::test]
async fn missing_and_stale_rows_are_detected() {
    use redb::ReadableTable;
    let dir = tempfile::tempdir().unwrap();
    let records = redb::TableDefinition::<&str, &[u8]>::new("records");
    type Rows<'a> = redb::Table<'a, &'static str, &'static [u8]>;
    let tamper = |change: &dyn Fn(&mut Rows<'_>)| {
        let database = redb::Database::open(dir.path().join("store.redb")).unwrap();
        let txn = database.begin_write().unwrap();
        change(&mut txn.open_table(records).unwrap());
        txn.commit().unwrap();
    };
    let store = open(dir.path()).unwrap();
    write(&*store, vec![put("/a", "1"), put("/b", "1")]).await.unwrap();
    drop(store);
    let stale = std::cell::RefCell::new(Vec::new());
    tamper(&|table| *stale.borrow_mut() = table.get("/a").unwrap().unwrap().value().to_vec());
    let store = open(dir.path()).unwrap();
    write(&*store, vec![put("/a", "2")]).await.unwrap();
    drop(store);

    let good = std::cell::RefCell::new(Vec::new());
    tamper(&|table| {
        *good.borrow_mut() = table.get("/a").unwrap().unwrap().value().to_vec();
        table.insert("/a", stale.borrow().as_slice()).unwrap();
    });
    assert_eq!(refusal(open(dir.path())), "the store is damaged: its rows do not match its last commit");
    tamper(&|table| drop(table.remove("/a").unwrap()));
    assert_eq!(refusal(open(dir.path())), "the store is damaged: its rows do not match its last commit");
    tamper(&|table| drop(table.insert("/a", good.borrow().as_slice()).unwrap()));
    assert_eq!(open(dir.path()).unwrap().get("/a").unwrap().value, "2@3");
}

/// Writes to a store and closes it. Returns its state, its file, and the position of the last byte that is not zero.
async fn stopped(steps: std::ops::Range<usize>) -> ((u64, Contents), Vec<u8>, usize) {
    let disk = Crashable::default();
    let store = Embedded::open_on(Arc::new(disk.clone()), finish, INLINE).unwrap();
    work(&*store, steps).await.unwrap();
    let truth = (store.revision(), contents(&*store));
    drop(store);
    let image = disk.bytes();
    let used = image.iter().rposition(|byte| *byte != 0).unwrap();
    (truth, image, used)
}

/// A lost sector is detected, or changes nothing, even when the store closes.
#[tokio::test]
async fn a_lost_sector_is_never_served() {
    let (truth, image, used) = stopped(0..40).await;
    let mut noticed = 0;
    for sector in 0..=used / 512 {
        for filling in [0, 0xff] {
            let mut damaged = image.clone();
            damaged[sector * 512..][..512].fill(filling);
            match Embedded::open_on(Arc::new(Crashable::from_image(damaged)), finish, INLINE) {
                Ok(store) => assert!((store.revision(), contents(&*store)) == truth, "sector {sector}"),
                Err(_) => noticed += 1,
            }
        }
    }
    assert!(noticed > 40, "only {noticed} damaged files were detected");
}

/// A flipped bit or a truncated file is detected, or changes nothing: wrong data is never served. The same holds after
/// further writes.
#[tokio::test]
async fn damage_is_never_served() {
    let (truth, image, used) = stopped(0..120).await;
    let (mut noticed, mut harmless) = (0, 0);
    let mut random: u64 = 88_172_645_463_325_252;
    let mut roll = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 16) as usize % below
    };
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for n in 0..240 {
        let mut damaged = image.clone();
        match n % 8 {
            0 => damaged.truncate(roll(image.len())),
            // The header is small, and gets as many attempts as the rest.
            1 | 2 => damaged[roll(512)] ^= 1 << roll(8),
            _ => damaged[roll(used)] ^= 1 << roll(8),
        }
        let disk = Crashable::from_image(damaged);
        let Ok(store) = Embedded::open_on(Arc::new(disk.clone()), finish, INLINE) else {
            noticed += 1;
            continue;
        };
        if disk.bytes().len() != image.len() && truth.0 != store.revision() && contents(&*store).is_empty() {
            // `open_on` treats an empty medium as a new store. (`open` refuses an empty file in a directory.)
            continue;
        }
        assert!((store.revision(), contents(&*store)) == truth, "try {n}: wrong data was served");
        harmless += 1;
        // Further writes may fail, but what they leave is correct or refused.
        let wrote = work(&*store, 120..135).await;
        let after = (store.revision(), contents(&*store));
        drop(store);
        if let Ok(store) = Embedded::open_on(Arc::new(Crashable::from_image(disk.bytes())), finish, INLINE) {
            assert!(wrote.is_err() || (store.revision(), contents(&*store)) == after, "try {n}: damage spread");
        }
    }
    std::panic::set_hook(previous);
    assert!(noticed > 40 && harmless > 20, "{noticed} detected, {harmless} harmless");
}

/// To redb a damaged last commit looks like one that a kill interrupted, and it falls back to the commit before. Every
/// acknowledged write is present, or the store is refused.
#[tokio::test]
async fn a_damaged_last_commit_is_not_treated_as_an_unfinished_one() {
    let disk = Crashable::default();
    let store = Embedded::open_on(Arc::new(disk.clone()), finish, INLINE).unwrap();
    work(&*store, 0..40).await.unwrap();
    let before = disk.bytes();
    write(&*store, vec![put("/key/7", text(7, 6000)), put("/new", "v"), delete("/both")]).await.unwrap();
    let (truth, killed) = ((store.revision(), contents(&*store)), disk.kill());
    let opened = |bit: usize| {
        let mut image = killed.clone();
        image.bytes[bit / 8] ^= 1 << (bit % 8);
        let store = Embedded::open_on(Arc::new(Crashable::from_image(image)), finish, INLINE)?;
        Ok::<_, OpenError>((store.revision(), contents(&*store)) == truth)
    };
    // Each bit of the header, and one bit in every 41 bytes of what the last commit wrote elsewhere.
    let pages = (HEADER_BYTES..killed.bytes.len()).filter(|at| before.get(*at) != killed.bytes.get(*at));
    let bits: Vec<_> = (0..HEADER_BYTES * 8).chain(pages.step_by(41).map(|at| at * 8 + at % 8)).collect();
    assert!(bits.len() > HEADER_BYTES * 8 + 100, "{} bits", bits.len());
    let (mut refused, mut saved) = (0, 0);
    for bit in bits {
        match opened(bit) {
            Ok(same) => assert!(same, "bit {bit}: the previous state is served"),
            Err(error) => {
                let said = error.to_string();
                assert!(said.starts_with("the store is damaged: "), "bit {bit}: {said}");
                refused += 1;
                saved += usize::from(said.contains("were acknowledged"));
            }
        }
    }
    println!("{refused} refused, {saved} of them because of the mark");
    assert!(refused > 100 && saved > 50, "{refused} refused, {saved} of them because of the mark");
}

/// A mark counts only if it is ahead of the store. A mark that is missing, torn, behind, or from an earlier store has
/// no effect.
#[tokio::test]
async fn a_store_behind_its_mark_is_refused_until_the_mark_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let (file, mark) = (dir.path().join("store.redb"), dir.path().join("store.mark"));
    let store = open(dir.path()).unwrap();
    let older = write(&*store, vec![put("/a", "1")]).await.unwrap();
    let (old_file, old_mark) = (std::fs::read(&file).unwrap(), std::fs::read(&mark).unwrap());
    let newer = write(&*store, vec![put("/a", "2")]).await.unwrap();
    drop(store);
    let (new_file, new_mark) = (std::fs::read(&file).unwrap(), std::fs::read(&mark).unwrap());
    let revision_with = |bytes: &[u8], noted: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        std::fs::write(&mark, noted).unwrap();
        open(dir.path()).map(|store| store.revision())
    };
    let refused = revision_with(&old_file, &new_mark).unwrap_err().to_string();
    let expected = format!(
        "the store is damaged: writes up to revision {newer} were acknowledged, but it is at revision {older}; restore a backup \
         with `mainstay store restore`, or delete store.mark beside it to continue with the older state"
    );
    assert_eq!(refused, expected);
    assert_eq!(std::fs::read(&file).unwrap(), old_file, "a refused store must not be changed");
    let torn = [&new_mark[..6], &old_mark[6..10]].concat();
    for noted in [&old_mark[..], b"", &torn, &[0; 16], &[0xff; 4000]] {
        assert_eq!(revision_with(&old_file, noted).unwrap(), older, "{noted:?}");
        assert_eq!(revision_with(&new_file, noted).unwrap(), newer, "{noted:?}");
    }

    std::fs::write(&mark, &new_mark).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(
        refusal(open(dir.path())).contains("were acknowledged, but the store is missing; restore"),
        "no new store may be created"
    );
    // A store that is filled from other rows is a new store, and may be at an earlier revision.
    store::Filling::embedded(dir.path(), older).unwrap().finish().await.unwrap();
    assert_eq!(open(dir.path()).unwrap().revision(), older);
}

/// A kill between the sync and the mark leaves a commit that nobody saw. It becomes visible when the store opens, so it
/// is marked then.
#[tokio::test]
async fn opening_a_store_marks_its_revision_after_the_sync() {
    let disk = Crashable::default();
    let store = Embedded::open_on(Arc::new(disk.clone()), finish, INLINE).unwrap();
    write(&*store, vec![put("/a", "1")]).await.unwrap();
    let killed = disk.kill();
    let unmarked = || Crashable::from_image(killed.bytes.clone());
    let failing = unmarked();
    failing.fail_sync_after(0);
    refusal(Embedded::open_on(Arc::new(failing.clone()), finish, INLINE));
    assert_eq!(failing.notes(), 0, "a revision that may not be on disk must not be marked");
    let disk = unmarked();
    let _store = Embedded::open_on(Arc::new(disk.clone()), finish, INLINE).unwrap();
    assert_eq!(disk.kill().note, killed.note);
}

/// The mark helps only in rare cases, so a failure to write it is not fatal.
#[tokio::test]
async fn a_mark_that_cannot_be_written_does_not_stop_the_store() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("store.mark")).unwrap();
    let store = open(dir.path()).unwrap();
    let revision = write(&*store, vec![put("/a", "1")]).await.unwrap();
    store.healthy().unwrap();
    drop(store);
    assert_eq!(open(dir.path()).unwrap().revision(), revision);
}

#[test]
fn damaged_files_are_reported_as_damaged() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).unwrap());
    let path = dir.path().join("store.redb");
    std::fs::write(&path, b"").unwrap();
    assert_eq!(refusal(open(dir.path())), "the store is damaged: its file is empty");
    std::fs::write(&path, b"not a database, but long enough to be read as one: ".repeat(100)).unwrap();
    let refused = refusal(open(dir.path()));
    assert!(refused.starts_with("the store is damaged: "), "{refused}");
}

/// A crash while a store is created leaves a file that is never opened as a store.
#[test]
fn a_half_created_store_is_created_again() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("store.redb.new"), b"half a file").unwrap();
    assert_eq!(open(dir.path()).unwrap().revision(), 1);
}

#[tokio::test]
async fn churn_does_not_grow_the_disk() {
    let disk = Crashable::default();
    let store = Embedded::open_on(Arc::new(disk.clone()), finish, INLINE).unwrap();
    let mut sizes = BTreeMap::new();
    for round in 0..40 {
        for n in 0..50 {
            write(&*store, vec![put(&format!("/key/{n}"), text(round, 2000 + n * 13 + round))]).await.unwrap();
        }
        sizes.insert(round, store.disk_bytes());
    }
    let live: u64 = contents(&*store).iter().map(|(key, value, ..)| (key.len() + value.len()) as u64).sum();
    assert!(sizes[&39] <= sizes[&5].max(4 * live), "{live} live bytes: {sizes:?}");
}
