//! What writers and lists may rely on.

use super::*;
use crate::Range;

/// Writes are linearizable: of all writers that saw a version, one replaces it. An acknowledged write is visible.
pub(super) async fn linearizable(store: Arc<dyn Store>) {
    const WRITERS: usize = 8;
    const ROUNDS: usize = 25;
    let key = "/linearizable";
    let count = |record: &Record| -> usize {
        let text = std::str::from_utf8(&record.value).expect("the value is not text");
        text.split('@').next().and_then(|number| number.parse().ok()).expect("the value is not a number")
    };
    put_one(&*store, key, "0").await;
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let mut seen = store.get(key).expect("the key is missing");
                for _ in 0..ROUNDS {
                    loop {
                        let next = (count(&seen) + 1).to_string();
                        let txn = Txn { conditions: vec![when(key, seen.modified)], operations: vec![put(key, &next)] };
                        match store.txn(txn).await {
                            Ok(committed) => {
                                let visible = store.get(key).expect("the key is missing");
                                assert!(visible.modified >= committed.revision, "an acknowledged write is visible");
                                assert!(store.revision() >= committed.revision);
                                seen = Arc::clone(&committed.records[0]);
                                break;
                            }
                            Err(Error::Conflict { current, .. }) => {
                                let current = current.expect("the conflict has no current version");
                                assert!(current.modified > seen.modified, "a conflict shows a newer version");
                                seen = current;
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.expect("the writer panicked");
    }
    assert_eq!(count(&store.get(key).expect("the key is missing")), WRITERS * ROUNDS, "no increment was lost");
}

/// All operations happen at one revision if all conditions hold; otherwise none happens.
pub(super) async fn all_or_nothing(store: Arc<dyn Store>) {
    let (a, b) = ("/all/a", "/all/b");
    let first = put_one(&*store, a, "1").await;
    assert_eq!((first.created, first.modified), (first.modified, store.revision()));
    let before = store.revision();
    let txn = |conditions| Txn { conditions, operations: vec![put(a, "2"), put(b, "2")] };
    for conditions in
        [vec![when(a, 0)], vec![when(a, first.modified + 1)], vec![when(a, first.modified), when(b, first.modified)]]
    {
        let refused = store.txn(txn(conditions)).await;
        assert!(matches!(refused, Err(Error::Conflict { .. })), "{refused:?}");
    }
    assert_eq!((store.revision(), store.get(b).is_none()), (before, true), "nothing happened");

    let committed = store
        .txn(txn(vec![when(a, first.modified), when(b, 0)]))
        .await
        .expect("all conditions hold, but the write failed");
    assert!(committed.revision > before);
    assert_eq!(keys(&committed.records), [a, b]);
    assert!(committed.records.iter().all(|record| record.modified == committed.revision));
    assert_eq!(committed.records[0].created, first.created, "an update keeps the creation revision");
    let again = write(&*store, vec![delete(a), put(b, "3")]).await;
    assert_eq!(keys(&again.records), [b]);
    assert!(store.get(a).is_none());
    let recreated = put_one(&*store, a, "4").await;
    assert_eq!(recreated.created, recreated.modified, "a deleted key gets a new creation revision");
}

/// A transaction that changes nothing gets no revision and produces no event.
pub(super) async fn no_change_no_revision(store: Arc<dyn Store>) {
    let before = store.revision();
    let mut watcher = watch(&*store, "/none/", before);
    assert_eq!(write(&*store, vec![]).await.revision, before);
    assert_eq!(write(&*store, vec![delete("/none/a"), delete("/none/b")]).await.revision, before);
    assert_eq!(store.revision(), before);
    let record = put_one(&*store, "/none/a", "").await;
    assert_eq!(read(&mut *watcher, 1, 10).await[0].revision, record.modified);
}

/// If a transaction names a key twice, the last operation counts, and there is one event.
pub(super) async fn last_operation_of_a_key_wins(store: Arc<dyn Store>) {
    let key = "/twice/a";
    let mut watcher = watch(&*store, "/twice/", store.revision());
    let committed = write(&*store, vec![put(key, "1"), delete(key), put(key, "2")]).await;
    assert_eq!(committed.records.len(), 1);
    assert_eq!(committed.records[0].value, format!("2@{}", committed.revision));
    write(&*store, vec![put(key, "3"), delete(key)]).await;
    assert!(store.get(key).is_none());
    let events = read(&mut *watcher, 2, 10).await;
    assert!(events[0].current.is_some() && events[1].current.is_none());
}

/// Readers see the stored value finished exactly once, with the revision that wrote it.
pub(super) async fn finished_once(store: Arc<dyn Store>) {
    let mut watcher = watch(&*store, "/finished/", store.revision());
    let record = put_one(&*store, "/finished/a", "v").await;
    put_one(&*store, "/finished/b", "w").await;
    let expected = Bytes::from(format!("v@{}", record.modified));
    assert_eq!(record.value, expected);
    assert_eq!(store.get("/finished/a").expect("the key is missing").value, expected);
    let page = store.list(Range { prefix: "/finished/", ..Range::default() }).expect("cannot list");
    assert_eq!(page.records[0].value, expected);
    let events = read(&mut *watcher, 2, 10).await;
    assert_eq!(events[0].current.as_ref().expect("the event has no record").value, expected);
}

/// A list at a revision shows the state of that revision, while writes continue.
pub(super) async fn lists_are_snapshots(store: Arc<dyn Store>) {
    let prefix = "/snapshots/";
    for n in 0..10 {
        put_one(&*store, &format!("/snapshots/{n}"), "old").await;
    }
    let then = store.list(Range { prefix, ..Range::default() }).expect("cannot list");
    for n in 0..10 {
        let key = format!("/snapshots/{n}");
        let operation = if n % 2 == 0 { delete(&key) } else { put(&key, "new") };
        write(&*store, vec![operation, put(&format!("/snapshots/{n}-new"), "")]).await;
        let again = store.list(Range { prefix, at: Some(then.revision), ..Range::default() }).expect("cannot list");
        assert_eq!((again.revision, again.remaining), (then.revision, then.remaining));
        assert_eq!(keys(&again.records), keys(&then.records));
        assert!(again.records.iter().zip(&then.records).all(|(one, other)| Arc::ptr_eq(one, other)));
    }
    let now = store.list(Range { prefix, ..Range::default() }).expect("cannot list");
    assert_eq!(now.records.len(), 15);
}

/// Pages follow each other without gap or overlap, and report how many keys remain.
pub(super) async fn pages_are_whole(store: Arc<dyn Store>) {
    let prefix = "/pages/";
    for n in 0..11 {
        put_one(&*store, &format!("/pages/{n:02}"), "").await;
    }
    put_one(&*store, "/pages0", "beside").await;
    let at = store.revision();
    for limit in 1..13 {
        let mut got = Vec::new();
        loop {
            let after = got.last().map(|record: &Arc<Record>| record.key.to_string());
            let range = Range { prefix, after: after.as_deref(), limit, at: Some(at) };
            let page = store.list(range).expect("cannot list");
            assert!(page.records.len() <= limit);
            got.extend(page.records);
            if let Some(remaining) = page.remaining {
                assert_eq!((remaining as usize, page.more), (11 - got.len(), got.len() < 11));
            }
            if !page.more {
                break;
            }
        }
        assert_eq!(got.len(), 11);
        assert!(got.is_sorted_by(|one, other| one.key < other.key));
        // A key that is created between two pages is not in the second page.
        put_one(&*store, &format!("/pages/{limit:02}-later"), "").await;
    }
    for after in ["/pages/~", "/pages0", "/zzz"] {
        let page = store.list(Range { prefix, after: Some(after), ..Range::default() }).expect("cannot list");
        assert_eq!((page.records.len(), page.more), (0, false), "nothing is after {after}");
    }
}

/// Revisions that do not exist yet are refused.
pub(super) async fn future_revisions_are_refused(store: Arc<dyn Store>) {
    let future = store.revision() + 1_000_000;
    assert!(matches!(store.watch("/", future), Err(Error::Future { .. })));
    assert!(matches!(store.list(Range { at: Some(future), ..Range::default() }), Err(Error::Future { .. })));
    assert!(matches!(store.compact(future).await, Err(Error::Future { .. })));
}

/// A key is deleted when its last expiry time has passed, and not before.
pub(super) async fn expired_keys_are_deleted(store: Arc<dyn Store>) {
    let put_until = |key: String, until| Operation::Put {
        key: Arc::from(key),
        value: Bytes::from_static(b"v"),
        expires_at_s: Some(until),
        memo: None,
    };
    let mut watcher = watch(&*store, "/expired/", store.revision());
    for n in 0..600 {
        write(&*store, vec![put_until(format!("/expired/{n:03}"), 1000 + n)]).await;
    }
    write(&*store, vec![put_until("/expired/000".to_owned(), 5000)]).await;
    put_one(&*store, "/expired/001", "does not expire").await;
    write(&*store, vec![delete("/expired/002")]).await;
    assert_eq!(store.expire(999).await.expect("cannot expire"), 0);
    assert_eq!(store.expire(1599).await.expect("cannot expire"), 597);
    assert_eq!(store.count("/expired/"), 2);
    assert_eq!(store.expire(u64::MAX).await.expect("cannot expire"), 1);
    assert!(store.get("/expired/001").is_some());
    let events = read(&mut *watcher, 603 + 598, 1000).await;
    let last = events.last().expect("no events");
    assert_eq!(
        last.last,
        Some(Bytes::from(format!("v@{}", last.revision))),
        "the stored value, finished with the deleting revision"
    );
    assert!(
        events.is_sorted_by(|one, other| one.revision < other.revision),
        "each deletion has its own revision, so that a watcher can resume after it"
    );
}

/// An export shows the rows at one revision, whatever is written while it is read.
pub(super) async fn exports_are_snapshots(store: Arc<dyn Store>) {
    let prefix = "/exported/";
    for page in 0..21 {
        let mut operations: Vec<_> =
            (0..100).map(|n| put(&format!("/exported/{:04}", page * 100 + n), "old")).collect();
        operations.push(put("/exported-not", ""));
        write(&*store, operations).await;
    }
    let until =
        Operation::Put { key: Arc::from("/exported/0007"), value: "until".into(), expires_at_s: Some(7), memo: None };
    write(&*store, vec![until, delete("/exported/0003")]).await;
    let mut export = store.export().await.expect("cannot export");
    let then = store.list(Range { prefix, at: Some(export.revision), ..Range::default() }).expect("cannot list");
    let mut rows = Vec::new();
    for page in 0.. {
        for n in 0..20 {
            let key = format!("/exported/{:04}", (page * 700 + n * 31) % 2100);
            let operation = if n % 3 == 0 { delete(&key) } else { put(&key, "new") };
            write(&*store, vec![operation]).await;
        }
        match futures::StreamExt::next(&mut export.pages).await {
            Some(page) => rows.extend(page.expect("cannot read the page")),
            None => break,
        }
    }
    assert!(rows.is_sorted_by(|one, other| one.0 < other.0), "in order");
    rows.retain(|(key, _)| key.starts_with(prefix));
    assert_eq!((rows.len(), then.records.len()), (2099, 2099));
    for ((key, row), record) in rows.iter().zip(&then.records) {
        assert_eq!((key, row.created, row.modified), (&record.key, record.created, record.modified));
        assert_eq!(finish(&row.value, row.modified), record.value, "the value as it was put");
        assert_eq!(row.expires_at_s, (&**key == "/exported/0007").then_some(7));
    }
}

/// A closed store refuses writes, ends its watchers, and still answers reads.
pub(super) async fn closed_stores_end(store: Arc<dyn Store>) {
    let mut watcher = watch(&*store, "/closed/", store.revision());
    put_one(&*store, "/closed/a", "").await;
    let waiting = {
        let mut watcher = watch(&*store, "/closed/never", store.revision());
        tokio::spawn(async move { next(&mut *watcher, 1).await })
    };
    tokio::task::yield_now().await;
    store.close().await;
    read(&mut *watcher, 1, 10).await;
    assert!(matches!(next(&mut *watcher, 10).await, Next::Closed));
    assert!(matches!(waiting.await.expect("the waiting watcher panicked"), Next::Closed));
    assert!(matches!(store.txn(always(vec![put("/closed/b", "")])).await, Err(Error::Unavailable(_))));
    assert!(matches!(store.healthy(), Err(Error::Unavailable(_))));
    assert!(store.get("/closed/a").is_some());
    store.close().await;
}
