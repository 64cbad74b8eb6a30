//! Copies between stores.

use crate::support::{open, place, put_by_hand, shared, text, write};
use futures::StreamExt;
use std::path::Path;
use std::sync::Arc;
use store::etcd::Config;
use store::suite::finish;
use store::{Embedded, Error, Etcd, Filling, Next, OpenError, Operation, Options, Store, Sum, Txn};

fn embedded(dir: &Path) -> Arc<dyn Store> {
    Embedded::open(dir, finish, Options::default()).unwrap()
}

async fn copy(from: &dyn Store, mut to: Filling) -> Sum {
    let mut export = from.export().await.unwrap();
    let mut sum = Sum::default();
    while let Some(page) = export.pages.next().await {
        let page = page.unwrap();
        sum.add(&page);
        to.add(page).await.unwrap();
    }
    to.finish().await.unwrap();
    sum
}

async fn sum(store: &dyn Store) -> Sum {
    let mut export = store.export().await.unwrap();
    let mut sum = Sum::default();
    while let Some(page) = export.pages.next().await {
        sum.add(&page.unwrap());
    }
    sum
}

/// From a directory into etcd and back: the copy has the same keys, values and expiry times, and never uses a revision
/// again that clients know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_are_the_same_and_their_revisions_are_later() {
    let Some(members) = shared() else { return };
    let root = tempfile::tempdir().unwrap();
    let (first, config) = (embedded(&root.path().join("first")), place(&members));
    for n in 0..2500 {
        let key = format!("/k/{n:05}").into();
        let value = "v".repeat(n % 3000).into();
        let operations =
            vec![Operation::Put { key, value, expires_at_s: n.is_multiple_of(5).then_some(n as u64), memo: None }];
        first.txn(Txn { conditions: vec![], operations }).await.unwrap();
    }
    let before = first.get("/k/00001").unwrap();
    let sent = copy(&*first, Filling::etcd(&config, first.revision()).await.unwrap()).await;
    let second = open(&config).await;
    assert_eq!((sent, sum(&*second).await), (sum(&*first).await, sent));
    assert_eq!(sent.rows, 2500);
    assert!(second.oldest() > first.revision(), "a client of the first store must relist");
    assert!(matches!(second.watch("/", first.revision()), Err(Error::Compacted { .. })));
    let stale = crate::support::swap(&*second, "/k/00001", before.modified, "x").await;
    assert!(matches!(stale, Err(Error::Conflict { .. })), "a version of the first store must conflict: {stale:?}");
    let mut watcher = second.watch("/", second.revision()).unwrap();
    let written = write(&*second, "/k/00001", "new").await.unwrap();
    let Next::Events { events, .. } = watcher.next(10).await else { panic!("events") };
    assert_eq!((events[0].revision, events.len()), (written.revision, 1));
    assert_eq!(second.expire(10).await.unwrap(), 3, "the expiry times were not copied");

    let back = root.path().join("back");
    let returned = copy(&*second, Filling::embedded(&back, second.revision()).unwrap()).await;
    let third = embedded(&back);
    assert_eq!(sum(&*third).await, returned);
    assert_eq!(third.revision(), second.revision());
    assert_eq!(text(&*third, "/k/00001").as_deref(), Some("new"));
    let (kept, known) = (third.get("/k/00002").unwrap(), second.get("/k/00002").unwrap());
    assert_eq!((kept.created, kept.modified, &kept.value), (known.created, known.modified, &known.value));
}

/// Nothing is overwritten, and an incomplete copy cannot be opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_an_empty_directory_or_prefix_is_filled() {
    let Some(members) = shared() else { return };
    let root = tempfile::tempdir().unwrap();
    let config = place(&members);
    let refused = |outcome: Result<Filling, OpenError>| outcome.err().expect("filling must be refused").to_string();
    write(&*open(&config).await, "/a", "1").await.unwrap();
    assert!(refused(Filling::etcd(&config, 1).await).contains("a store already exists in etcd://"));
    drop(embedded(root.path()));
    assert!(refused(Filling::embedded(root.path(), 1)).contains("already"));

    let half = place(&members);
    let source = embedded(&root.path().join("source"));
    write(&*source, "/a", "1").await.unwrap();
    let mut filling = Filling::etcd(&half, 5).await.unwrap();
    let page = source.export().await.unwrap().pages.next().await.unwrap().unwrap();
    filling.add(page.clone()).await.unwrap();
    let unopened = Etcd::open(&half, finish, Options::default()).await.err().unwrap();
    assert!(matches!(unopened, OpenError::NotOurs), "{unopened}");
    drop(filling);
    assert!(refused(Filling::etcd(&half, 5).await).contains("choose an empty directory"));

    let dir = root.path().join("half");
    let mut filling = Filling::embedded(&dir, 5).unwrap();
    filling.add(page.clone()).await.unwrap();
    drop(filling);
    assert!(embedded(&dir).get("/a").is_none(), "the incomplete copy was removed, so this is a new store");

    // Another program writes below the prefix while the store is filled.
    let raced = place(&members);
    let mut filling = Filling::etcd(&raced, 5).await.unwrap();
    put_by_hand(&raced, "/data/a", "x").await;
    assert!(filling.add(page).await.is_err());
    let config: &Config = &raced;
    assert!(Etcd::open(config, finish, Options::default()).await.is_err());
}
