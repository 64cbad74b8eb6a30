//! What a watcher may rely on.

use super::*;

/// Events arrive in the order of their revisions, and in the same order for every watcher.
pub(super) async fn ordered(store: Arc<dyn Store>) {
    let start = store.revision();
    let mut watchers: Vec<_> = (0..4).map(|_| watch(&*store, "/ordered/", start)).collect();
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for n in 0..25 {
                    put_one(&*store, &format!("/ordered/{writer}"), &n.to_string()).await;
                }
            })
        })
        .collect();
    let mut seen = Vec::new();
    for (number, watcher) in watchers.iter_mut().enumerate() {
        let events = read(&mut **watcher, 200, number + 1).await;
        assert!(events.is_sorted_by(|one, other| one.revision < other.revision), "in order");
        seen.push(events.iter().map(|event| describe(event)).collect::<Vec<_>>());
    }
    assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "the same to all");
    for writer in writers {
        writer.await.expect("the writer panicked");
    }
}

/// No event is delivered twice, even if the watch stops and resumes from its position.
pub(super) async fn unique(store: Arc<dyn Store>) {
    let mut position = store.revision();
    let mut seen = std::collections::HashSet::new();
    for round in 0..30 {
        let mut watcher = watch(&*store, "/unique/", position);
        for n in 0..3 {
            put_one(&*store, &format!("/unique/{n}"), &round.to_string()).await;
        }
        for event in read(&mut *watcher, 3, 2).await {
            assert!(seen.insert((event.revision, event.key.clone())), "{} came twice", event.key);
        }
        position = watcher.position();
    }
    assert_eq!(seen.len(), 90);
}

/// All events of a transaction arrive together, even if a watcher asks for fewer.
pub(super) async fn atomic(store: Arc<dyn Store>) {
    let mut watcher = watch(&*store, "/atomic/", store.revision());
    for round in 0..10 {
        let operations = (0..5).map(|n| put(&format!("/atomic/{n}"), &round.to_string())).collect();
        let committed = write(&*store, operations).await;
        let Next::Events { events, revision } = next(&mut *watcher, 1).await else { panic!("events") };
        assert_eq!(events.len(), 5, "whole");
        assert!(events.iter().all(|event| event.revision == committed.revision));
        assert_eq!(revision, committed.revision);
    }
}

/// Each event names the previous version of its key, so a missing event would be detected. None is missing while many
/// clients write.
pub(super) async fn reliable(store: Arc<dyn Store>) {
    let mut watcher = watch(&*store, "/reliable/", store.revision());
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for n in 0..30 {
                    let key = format!("/reliable/{}", (writer + n) % 5);
                    let operation = if n % 7 == 3 { delete(&key) } else { put(&key, &n.to_string()) };
                    write(&*store, vec![operation]).await;
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.expect("the writer panicked");
    }
    let end = put_one(&*store, "/reliable/end", "").await.modified;
    let mut last = std::collections::HashMap::new();
    loop {
        let Next::Events { events, .. } = next(&mut *watcher, 9).await else { panic!("events") };
        for event in &events {
            let before = last.insert(event.key.clone(), event.current.as_ref().map(|record| record.modified));
            let previous = event.previous.as_ref().map(|record| record.modified);
            assert_eq!(previous, before.flatten(), "the version before {} was seen", event.key);
        }
        if events.last().is_some_and(|event| event.revision == end) {
            break;
        }
    }
    for (key, modified) in last {
        assert_eq!(
            store.get(&key).map(|record| record.modified),
            modified,
            "the last event of {key} is not its current version"
        );
    }
}

/// A new watcher from any earlier revision gets exactly the later events.
pub(super) async fn resumable(store: Arc<dyn Store>) {
    let start = store.revision();
    let mut all = Vec::new();
    for n in 0..20 {
        let operations = vec![put(&format!("/resumable/{}", n % 3), &n.to_string()), put("/resumable-not", "")];
        all.push(write(&*store, operations).await.revision);
    }
    for (index, after) in std::iter::once(&start).chain(&all).enumerate() {
        let mut watcher = watch(&*store, "/resumable/", *after);
        let rest = read(&mut *watcher, all.len() - index, 4).await;
        assert_eq!(rest.iter().map(|event| event.revision).collect::<Vec<_>>(), all[index..], "after {after}");
    }
}

/// A compaction does not disturb a watcher that keeps up: it misses and repeats nothing. A watcher that is behind the
/// compaction gets `Compacted`.
pub(super) async fn unbroken_by_compaction(store: Arc<dyn Store>) {
    let prefix = "/unbroken/";
    let start = store.revision();
    let mut idle = watch(&*store, prefix, start);
    let mut current = watch(&*store, prefix, start);
    let mut revisions = Vec::new();
    for n in 0..8 {
        revisions.push(put_one(&*store, &format!("/unbroken/{}", n % 2), &n.to_string()).await.modified);
    }
    read(&mut *current, 8, 100).await;
    let at = revisions[4];
    let mut at_boundary = watch(&*store, prefix, at);
    store.compact(at).await.expect("cannot compact a past revision");
    assert_eq!(store.oldest(), at);
    store.compact(revisions[2]).await.expect("compacting an older revision again must succeed");
    assert_eq!(store.oldest(), at);

    revisions.push(put_one(&*store, "/unbroken/0", "after").await.modified);
    let news = read(&mut *current, 1, 100).await;
    assert_eq!(news[0].revision, revisions[8], "exactly the event after the compaction");
    let rest = read(&mut *at_boundary, 4, 1).await;
    assert_eq!(rest.iter().map(|event| event.revision).collect::<Vec<_>>(), revisions[5..]);
    let mut resumed = watch(&*store, prefix, at);
    let rest = read(&mut *resumed, 4, 100).await;
    assert_eq!(rest.iter().map(|event| event.revision).collect::<Vec<_>>(), revisions[5..]);

    assert!(
        matches!(next(&mut *idle, 100).await, Next::Compacted { oldest } if oldest == at),
        "events that it had not read were compacted"
    );
    assert_eq!(compacted(store.watch(prefix, revisions[3])), Some(at));
    assert_eq!(compacted(store.list(crate::Range { prefix, at: Some(revisions[3]), ..Default::default() })), Some(at));
    let page = store
        .list(crate::Range { prefix, at: Some(at), ..Default::default() })
        .expect("cannot list at the oldest revision");
    let modified: Vec<_> = page.records.iter().map(|record| record.modified).collect();
    assert_eq!(modified, [revisions[4], revisions[3]], "as it was at the oldest revision");
}

/// A watcher without events does not fall behind, whatever is compacted.
pub(super) async fn quiet_watchers_never_fall_behind(store: Arc<dyn Store>) {
    let mut watcher = watch(&*store, "/quiet/", store.revision());
    for n in 0..10 {
        let revision = put_one(&*store, "/loud/", &n.to_string()).await.modified;
        store.compact(revision).await.expect("cannot compact");
    }
    let record = put_one(&*store, "/quiet/a", "").await;
    let events = read(&mut *watcher, 1, 100).await;
    assert_eq!(events[0].revision, record.modified);
}

/// A watcher's position advances with changes of other prefixes.
pub(super) async fn progress_without_events(store: Arc<dyn Store>) {
    let watcher = watch(&*store, "/progress/", store.revision());
    let other = put_one(&*store, "/progress-not", "").await.modified;
    assert_eq!(watcher.position(), other, "all up to there was seen: there was nothing");
    let own = put_one(&*store, "/progress/a", "").await.modified;
    assert!(watcher.position() < own, "an event that was not read was not seen");
}

/// A watcher's position never passes events that it has not read, even if they are compacted; the watcher gets
/// `Compacted`.
pub(super) async fn no_progress_over_compacted_events(store: Arc<dyn Store>) {
    let start = store.revision();
    let mut watcher = watch(&*store, "/forgotten/", start);
    for n in 0..3 {
        put_one(&*store, "/forgotten/a", &n.to_string()).await;
    }
    let other = put_one(&*store, "/forgotten-not", "").await.modified;
    store.compact(other).await.expect("cannot compact");
    assert!(watcher.position() <= start, "events that were not read were not seen");
    assert!(
        matches!(next(&mut *watcher, 100).await, Next::Compacted { .. }),
        "events that it had not read were compacted"
    );
}

/// A watcher gets exactly the keys with its prefix.
pub(super) async fn prefixes_are_exact(store: Arc<dyn Store>) {
    let names = ["", "/p", "/p/", "/p/a", "/p/a/", "/p/a/x", "/p/ab", "/p/b/", "/p/é/", "/p/é/ü", "/q/"];
    let start = store.revision();
    let mut watchers: Vec<_> = names.iter().map(|prefix| watch(&*store, prefix, start)).collect();
    for key in &names[1..] {
        put_one(&*store, key, "").await;
    }
    for (prefix, watcher) in names.iter().zip(&mut watchers) {
        let expected: Vec<_> = names[1..].iter().filter(|key| key.starts_with(prefix)).collect();
        let events = read(&mut **watcher, expected.len(), 100).await;
        let got: Vec<_> = events.iter().map(|event| &*event.key).collect();
        assert!(expected.iter().eq(got.iter().collect::<Vec<_>>().iter()), "{prefix}: {got:?}");
        assert_eq!(store.count(prefix), expected.len() as u64, "{prefix}");
    }
}

/// A deletion shows the given last value, or else the stored value, finished with the deleting revision.
pub(super) async fn deletions_show_the_last_value(store: Arc<dyn Store>) {
    let mut watcher = watch(&*store, "/deleted/", store.revision());
    put_one(&*store, "/deleted/a", "a").await;
    put_one(&*store, "/deleted/b", "b").await;
    let last = Some(Bytes::from_static(b"last state"));
    let first = write(&*store, vec![Operation::Delete { key: Arc::from("/deleted/a"), last }]).await.revision;
    let second = write(&*store, vec![delete("/deleted/b")]).await.revision;
    let events = read(&mut *watcher, 4, 100).await;
    let last = |event: &Event| event.last.clone().expect("a deletion has no last value");
    assert_eq!(last(&events[2]), format!("last state@{first}"));
    assert_eq!(last(&events[3]), format!("b@{second}"));
    assert!(events[2..].iter().all(|event| event.current.is_none() && event.previous.is_some()));
    assert!(events[..2].iter().all(|event| event.last.is_none() && event.previous.is_none()));
}
