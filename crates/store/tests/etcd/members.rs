//! An etcd that loses members.

use crate::support::{PATIENCE, impatient, open, place, text, until, write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use store::suite::Members;
use store::{Error, Next};

/// While members are killed and restarted one after the other, no acknowledged write is lost, and a watcher misses and
/// repeats nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledged_write_is_lost_when_members_are_killed() {
    let Some(mut members) = Members::start(3) else { return };
    let config = impatient(&place(&members));
    let store = until("a leader is elected", async || Some(open(&config).await)).await;
    let mut watcher = store.watch("/k/", store.revision()).unwrap();
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (store, stop, count) = (Arc::clone(&store), Arc::clone(&stop), Arc::clone(&count));
            tokio::spawn(async move {
                let (mut acknowledged, mut refused) = (Vec::new(), 0);
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let key = format!("/k/{writer}/{n:05}");
                    match write(&*store, &key, "v").await {
                        Ok(committed) => {
                            acknowledged.push((committed.revision, key));
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(Error::Unavailable(_) | Error::Unknown(_)) => refused += 1,
                        Err(error) => panic!("{error}"),
                    }
                }
                (acknowledged, refused)
            })
        })
        .collect();
    // Each writer has a write in progress when a member is killed. It may take a while until such a write fails.
    let more = async || {
        let wanted = count.load(Ordering::Relaxed) + 20;
        until("the writers make progress", async || (count.load(Ordering::Relaxed) >= wanted).then_some(())).await;
    };
    for number in [0, 1, 2] {
        more().await;
        members.kill(number);
        until("two members accept writes", async || write(&*store, "/probe", "x").await.ok()).await;
        more().await;
        members.restart(number);
        until("three members accept writes", async || write(&*store, "/probe", "x").await.ok()).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut acknowledged = Vec::new();
    for writer in writers {
        acknowledged.extend(writer.await.unwrap().0);
    }
    acknowledged.sort();
    assert!(acknowledged.len() >= 120, "{} writes", acknowledged.len());
    let end = until("the cluster accepts writes", async || write(&*store, "/k/end", "").await.ok()).await.revision;

    let mut seen = Vec::new();
    while seen.last().is_none_or(|(revision, _)| *revision < end) {
        let outcome =
            tokio::time::timeout(PATIENCE, watcher.next(1000)).await.expect("the watcher got no event in time");
        let Next::Events { events, .. } = outcome else { panic!("{outcome:?}") };
        seen.extend(events.iter().map(|event| (event.revision, event.key.to_string())));
    }
    assert!(seen.is_sorted_by(|one, other| one.0 < other.0), "in order, none twice");
    for write in &acknowledged {
        assert!(seen.binary_search(write).is_ok(), "the watcher missed {write:?}");
    }
    let other = open(&config).await;
    for (revision, key) in &acknowledged {
        let found = other.get(key).unwrap_or_else(|| panic!("{key} of {revision} is lost"));
        assert_eq!(found.modified, *revision);
    }
}

/// Without a majority, nothing is written or confirmed, and reads from memory continue. When there is a majority again,
/// everything resumes without help.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_nothing_is_confirmed() {
    let Some(mut members) = Members::start(3) else { return };
    let config = impatient(&place(&members));
    let store = open(&config).await;
    write(&*store, "/a", "1").await.unwrap();
    members.kill(0);
    members.pause(1);
    until("the store reports that it is unhealthy", async || store.healthy().err()).await;
    assert!(matches!(store.barrier().await, Err(Error::Unavailable(_))));
    // The outcome of this write is unknown. It may happen at any later time, so it uses a key of its own.
    assert!(write(&*store, "/b", "2").await.is_err());
    assert!(store.get("/a").is_some());
    members.resume(1);
    until("two of three members accept writes", async || write(&*store, "/a", "3").await.ok()).await;
    until("the store reports that it is healthy", async || store.healthy().ok()).await;
    store.barrier().await.unwrap();
    assert_eq!(text(&*store, "/a").as_deref(), Some("3"));
}

/// If no member listens, a write certainly did not happen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_without_any_member_certainly_did_not_happen() {
    let Some(mut members) = Members::start(1) else { return };
    let config = impatient(&place(&members));
    let store = open(&config).await;
    write(&*store, "/a", "1").await.unwrap();
    members.kill(0);
    let absent = until("the connection is closed", async || match write(&*store, "/a", "2").await {
        Err(Error::Unavailable(why)) => Some(why),
        _ => None,
    });
    assert!(absent.await.contains("refused"));
    members.restart(0);
    until("writes succeed again without help", async || write(&*store, "/a", "3").await.ok()).await;
    assert_eq!(text(&*store, "/a").as_deref(), Some("3"));
}
