//! Several servers that share one etcd.

use crate::support::{PATIENCE, Road, Traffic, impatient, open, place, put, shared, swap, text, until, write};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use store::suite::Members;
use store::{Error, Next, Operation, Range, Revision, Txn, Watcher};

async fn next(watcher: &mut dyn Watcher) -> Next {
    tokio::time::timeout(PATIENCE, watcher.next(100)).await.expect("the watcher got no event in time")
}

/// After its barrier, each server shows every write that any other server acknowledged. No other wait is needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_barrier_shows_what_any_server_acknowledged() {
    let Some(members) = shared() else { return };
    let config = place(&members);
    let servers = [open(&config).await, open(&config).await, open(&config).await];
    for round in 0..200 {
        let (writer, reader) = (&servers[round % 3], &servers[(round + 1) % 3]);
        let revision = write(&**writer, "/a", &round.to_string()).await.unwrap().revision;
        reader.barrier().await.unwrap();
        assert_eq!(text(&**reader, "/a"), Some(round.to_string()));
        assert!(reader.revision() >= revision);
        // A revision that another server returned is not in the future here, for lists and watches.
        assert!(reader.list(Range { prefix: "/", at: Some(revision), ..Range::default() }).is_ok());
        assert!(reader.watch("/", revision).is_ok());
    }
}

/// Of all writers that saw a version, on any server, exactly one replaces it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn optimistic_writes_hold_across_servers() {
    const ROUNDS: usize = 40;
    let Some(members) = shared() else { return };
    let config = place(&members);
    let first = open(&config).await;
    write(&*first, "/count", "0").await.unwrap();
    let servers = [first, open(&config).await, open(&config).await];
    let writers: Vec<_> = servers
        .iter()
        .cloned()
        .map(|store| {
            tokio::spawn(async move {
                let mut seen = store.get("/count").unwrap();
                for _ in 0..ROUNDS {
                    loop {
                        let value = std::str::from_utf8(&seen.value).unwrap().split('@').next().unwrap().to_owned();
                        let value = (value.parse::<usize>().unwrap() + 1).to_string();
                        match swap(&*store, "/count", seen.modified, &value).await {
                            Ok(committed) => {
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
        writer.await.unwrap();
    }
    for store in &servers {
        store.barrier().await.unwrap();
        assert_eq!(text(&**store, "/count"), Some((3 * ROUNDS).to_string()), "no increment was lost");
    }
}

/// A name is given only once across servers. The loser gets a conflict even if its server had not seen the winner's
/// write yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_unique_across_servers() {
    let Some(members) = shared() else { return };
    let config = place(&members);
    let servers = [open(&config).await, open(&config).await];
    for round in 0..50 {
        let key = format!("/name/{round}");
        let (one, other) = tokio::join!(swap(&*servers[0], &key, 0, "one"), swap(&*servers[1], &key, 0, "other"));
        assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
        let lost = one.and(other).unwrap_err();
        assert!(matches!(lost, Error::Conflict { current: Some(_), .. }), "{lost:?}");
    }
}

/// A deletion without conditions deletes the key's newest version in etcd, even if its server has not seen that
/// version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletions_see_what_other_servers_wrote() {
    let Some(members) = shared() else { return };
    let config = place(&members);
    let servers = [open(&config).await, open(&config).await];
    let mut watcher = servers[0].watch("/d/", servers[0].revision()).unwrap();
    for round in 0..60 {
        let (writer, other) = (&servers[round % 2], &servers[(round + 1) % 2]);
        let (key, value) = (format!("/d/{}", round % 3), round.to_string());
        write(&**writer, &key, &value).await.unwrap();
        let operations = vec![Operation::Delete { key: Arc::from(&*key), last: None }];
        let deleted = other.txn(Txn { conditions: vec![], operations }).await.unwrap().revision;
        assert!(other.get(&key).is_none());
        writer.barrier().await.unwrap();
        assert!(writer.get(&key).is_none(), "round {round}: the key must be deleted");
        let mut events = Vec::new();
        while events.len() < 2 {
            let Next::Events { events: more, .. } = next(&mut *watcher).await else { panic!("events") };
            events.extend(more);
        }
        let last = events[1].last.clone().expect("a deletion has no last value");
        assert_eq!(last, format!("{value}@{deleted}"), "the deletion must show the deleted version");
    }
}

/// The same when the server certainly has not seen the key: its memory has nothing to delete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_this_server_has_not_seen_yet_is_deleted() {
    let Some(members) = shared() else { return };
    let config = place(&members);
    let road = Road::to(&config).await;
    let (near, far) = (open(&config).await, open(&road.through(&config)).await);
    road.set(Traffic::OneWay);
    write(&*near, "/d/a", "1").await.unwrap();
    assert!(far.get("/d/a").is_none(), "the watch is blocked");
    let operations = vec![Operation::Delete { key: "/d/a".into(), last: None }];
    let deletion = far.txn(Txn { conditions: vec![], operations });
    let (deleted, ()) = tokio::join!(biased; deletion, async { road.set(Traffic::Open) });
    deleted.unwrap();
    near.barrier().await.unwrap();
    assert_eq!(text(&*near, "/d/a"), None, "the acknowledged deletion must be visible");
}

/// Watchers of a deletion see the version that was deleted, even while other servers keep writing the key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_shows_the_version_that_it_deleted() {
    let Some(members) = shared() else { return };
    let config = place(&members);
    let servers = [open(&config).await, open(&config).await];
    let mut watcher = servers[0].watch("/d/", servers[0].revision()).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (store, stop) = (Arc::clone(&servers[0]), Arc::clone(&stop));
        tokio::spawn(async move {
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                write(&*store, "/d/a", &n.to_string()).await.unwrap();
            }
            write(&*store, "/d/end", "").await.unwrap();
        })
    };
    let mut deleted = 0;
    while deleted < 15 {
        let operations = vec![Operation::Delete { key: "/d/a".into(), last: None }];
        match servers[1].txn(Txn { conditions: vec![], operations }).await {
            Ok(_) => deleted += 1,
            // The other writers were faster in every attempt.
            Err(Error::Unavailable(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    stop.store(true, Ordering::Relaxed);
    writer.await.unwrap();
    let value = |text: &[u8]| std::str::from_utf8(text).unwrap().split('@').next().unwrap().to_owned();
    loop {
        let Next::Events { events, .. } = next(&mut *watcher).await else { panic!("events") };
        for event in &events {
            if let (Some(last), Some(previous)) = (&event.last, &event.previous) {
                assert_eq!(value(last), value(&previous.value), "at {}", event.revision);
            }
        }
        if events.iter().any(|event| &*event.key == "/d/end") {
            break;
        }
    }
}

/// A watcher that read up to a revision on one server gets exactly the rest from another server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_resumes_at_another_server() {
    let Some(members) = shared() else { return };
    let config = place(&members);
    let servers = [open(&config).await, open(&config).await, open(&config).await];
    let writer = {
        let servers = servers.clone();
        tokio::spawn(async move {
            let mut written = BTreeMap::new();
            for n in 0..150 {
                let store = &servers[n % 3];
                let gone = n % 5 == 4;
                let key = if n == 149 { "/w/end".to_owned() } else { format!("/w/{}", (n - usize::from(gone)) % 7) };
                let committed = if gone && n < 149 {
                    store.barrier().await.unwrap();
                    let last = Some("gone".into());
                    let operations = vec![Operation::Delete { key: Arc::from(&*key), last }];
                    store.txn(Txn { conditions: vec![], operations }).await.unwrap()
                } else {
                    write(&**store, &key, &n.to_string()).await.unwrap()
                };
                written.insert(committed.revision, key);
            }
            written
        })
    };
    let mut seen: Vec<(Revision, String)> = Vec::new();
    // The last server was opened last, so its history is the shortest.
    let mut position = servers[2].oldest();
    for store in servers.iter().cycle() {
        if seen.last().is_some_and(|(_, key)| key == "/w/end") {
            break;
        }
        store.barrier().await.unwrap();
        let mut watcher = store.watch("/w/", position).expect("a revision from another server is readable here");
        let Next::Events { events, revision } = next(&mut *watcher).await else { panic!("events") };
        seen.extend(events.iter().map(|event| (event.revision, event.key.to_string())));
        position = revision;
    }
    let written: Vec<_> = writer.await.unwrap().into_iter().collect();
    assert_eq!(seen, written, "events were missed or repeated");
}

/// A key expires once, on whichever server is first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_expire_once() {
    let Some(members) = shared() else { return };
    let config = place(&members);
    let servers = [open(&config).await, open(&config).await];
    for n in 0..20 {
        let key = format!("/e/{n}").into();
        let operations = vec![Operation::Put { key, value: "v".into(), expires_at_s: Some(100), memo: None }];
        servers[n % 2].txn(Txn { conditions: vec![], operations }).await.unwrap();
    }
    for store in &servers {
        store.barrier().await.unwrap();
    }
    let mut watcher = servers[0].watch("/e/", servers[0].revision()).unwrap();
    // Both servers try at the same time: one does all the work, and the other does none.
    let (one, other) = tokio::join!(servers[0].expire(100), servers[1].expire(100));
    let mut done = [one.unwrap(), other.unwrap()];
    done.sort_unstable();
    assert_eq!(done, [0, 20]);
    servers[0].barrier().await.unwrap();
    let mut gone = 0;
    while gone < 20 {
        let Next::Events { events, .. } = next(&mut *watcher).await else { panic!("events") };
        assert!(events.iter().all(|event| event.current.is_none() && event.last.is_some()));
        gone += events.len();
    }
    assert_eq!((gone, servers[0].count("/e/"), servers[1].expire(100).await.unwrap()), (20, 0, 0));
}

/// A server that was disconnected until etcd compacted what it missed shows the newest state again without help. Its
/// watchers get `Compacted`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_missed_compacted_revisions_reads_everything_again() {
    let Some(members) = Members::start(1) else { return };
    let config = impatient(&place(&members));
    let road = Road::to(&config).await;
    let (near, far) = (open(&config).await, open(&road.through(&config)).await);
    for key in ["/x/kept", "/x/changed", "/x/deleted"] {
        write(&*near, key, "old").await.unwrap();
    }
    far.barrier().await.unwrap();
    let kept = far.get("/x/kept").unwrap();
    let before = far.revision();
    let mut watcher = far.watch("/x/", before).unwrap();
    let mut quiet = far.watch("/quiet/", before).unwrap();

    road.set(Traffic::Cut);
    write(&*near, "/x/changed", "new").await.unwrap();
    let operations = vec![Operation::Delete { key: "/x/deleted".into(), last: None }, put("/x/added", "new")];
    near.txn(Txn { conditions: vec![], operations }).await.unwrap();
    near.compact(near.revision()).await.unwrap();
    let refused = far.barrier().await.unwrap_err();
    assert!(matches!(refused, Error::Unavailable(_)), "{refused:?}");
    assert!(far.healthy().is_err());
    assert_eq!(text(&*far, "/x/changed").as_deref(), Some("old"), "reads continue from memory");
    road.set(Traffic::Open);

    until("the server is connected again", async || far.barrier().await.ok()).await;
    assert_eq!(text(&*far, "/x/changed").as_deref(), Some("new"));
    assert_eq!(text(&*far, "/x/added").as_deref(), Some("new"));
    assert!(far.get("/x/deleted").is_none());
    assert!(Arc::ptr_eq(&kept, &far.get("/x/kept").unwrap()), "what did not change is the same record");
    assert!(matches!(next(&mut *watcher).await, Next::Compacted { .. }));
    assert!(matches!(next(&mut *quiet).await, Next::Compacted { .. }), "it may have missed an event");
    assert!(matches!(far.watch("/x/", before), Err(Error::Compacted { .. })));
    assert!(far.healthy().is_ok());

    let mut watcher = far.watch("/x/", far.revision()).unwrap();
    let written = write(&*far, "/x/changed", "newer").await.unwrap().revision;
    let Next::Events { events, .. } = next(&mut *watcher).await else { panic!("events") };
    assert_eq!(events.iter().map(|event| event.revision).collect::<Vec<_>>(), [written]);
}

/// A write whose response was lost is found in the watch, so its outcome is known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_whose_response_is_lost_is_found_in_the_watch() {
    let Some(members) = shared() else { return };
    let config = place(&members);
    let road = Road::to(&config).await;
    let (near, far) = (open(&config).await, open(&road.through(&config)).await);
    for round in 0..5 {
        road.set(Traffic::OneWay);
        let key = format!("/lost/{round}");
        let sent = {
            let (far, key) = (Arc::clone(&far), key.clone());
            tokio::spawn(async move { write(&*far, &key, "v").await })
        };
        until("the write happens", async || near.get(&key)).await;
        road.cut().await;
        road.set(Traffic::Open);
        let committed = sent.await.unwrap().expect("the watch did not report the write");
        assert_eq!(committed.revision, near.get(&key).unwrap().modified);
        assert_eq!(committed.records[0].value, near.get(&key).unwrap().value);
        assert_eq!(text(&*far, &key).as_deref(), Some("v"), "and it is visible here");
    }
}

/// If etcd does not respond, the outcome of a write that was sent is unknown. When etcd responds again, everything
/// resumes without help.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_etcd_leaves_writes_unknown() {
    let Some(members) = shared() else { return };
    let config = impatient(&place(&members));
    let road = Road::to(&config).await;
    let far = open(&road.through(&config)).await;
    write(&*far, "/a", "1").await.unwrap();

    road.set(Traffic::OneWay);
    let silent = write(&*far, "/a", "2").await.unwrap_err();
    assert!(matches!(silent, Error::Unknown(_)), "{silent:?}");
    until("the store reports that it is unhealthy", async || far.healthy().err()).await;
    assert!(matches!(far.barrier().await, Err(Error::Unavailable(_))), "a read cannot be confirmed");
    assert!(far.get("/a").is_some(), "reads continue from memory");

    road.set(Traffic::Open);
    until("writes succeed again without help", async || write(&*far, "/a", "4").await.ok()).await;
    until("the store reports that it is healthy", async || far.healthy().ok()).await;
    assert_eq!(text(&*far, "/a").as_deref(), Some("4"));
}

/// Other programs use the same etcd and compact its history. A store without changes meanwhile misses nothing: its
/// watchers continue, and it can be exported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_changes_survives_a_compaction_by_another_program() {
    let Some(members) = Members::start(1) else { return };
    let config = impatient(&place(&members));
    let road = Road::to(&config).await;
    let quiet = open(&road.through(&config)).await;
    let written = write(&*quiet, "/a", "1").await.unwrap().revision;
    let mut watcher = quiet.watch("/a", written).unwrap();
    let others = open(&place(&members)).await;
    for n in 0..5 {
        write(&*others, "/loud", &n.to_string()).await.unwrap();
    }
    // The barrier asks etcd for its newest state, so the store learns etcd's current revision.
    quiet.barrier().await.unwrap();
    others.compact(others.revision()).await.unwrap();
    let mut export = quiet.export().await.unwrap();
    assert_eq!(futures::StreamExt::next(&mut export.pages).await.unwrap().unwrap().len(), 1);
    road.set(Traffic::Cut);
    until("the store reports that it is unhealthy", async || quiet.healthy().err()).await;
    road.set(Traffic::Open);
    until("the server is connected again", async || quiet.barrier().await.ok()).await;
    assert_eq!(quiet.revision(), written, "nothing happened here");
    let again = write(&*quiet, "/a", "2").await.unwrap().revision;
    let Next::Events { events, .. } = next(&mut *watcher).await else { panic!("events") };
    assert_eq!(events.iter().map(|event| event.revision).collect::<Vec<_>>(), [again]);
}
