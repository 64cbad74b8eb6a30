//! An etcd that is out of space accepts deletions and nothing else.

use crate::support::*;
use std::sync::Arc;
use store::suite::{Members, finish};
use store::{Condition, Error, Etcd, Next, Operation, Options, Store, Txn};

async fn fill(store: &dyn Store) -> usize {
    let large = "x".repeat(10_000);
    for count in 0..1000 {
        match write(store, &format!("/a/{count:03}"), &large).await {
            Ok(_) => {}
            Err(Error::OutOfSpace(why)) => {
                assert!(why.contains("etcdctl defrag"), "{why}");
                return count;
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("etcd did not run out of space")
}

fn delete(key: &str, modified: u64) -> Txn {
    let conditions = vec![Condition { key: key.into(), modified }];
    Txn { conditions, operations: vec![Operation::Delete { key: key.into(), last: None }] }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletions_are_the_way_out_of_a_full_etcd() {
    let Some(members) = Members::start_with(1, &["--quota-backend-bytes", "262144"]) else { return };
    let config = place(&members);
    let (near, far) = (open(&config).await, open(&config).await);
    let old = Operation::Put { key: "/expired".into(), value: "x".into(), expires_at_s: Some(1), memo: None };
    near.txn(Txn { conditions: vec![], operations: vec![old] }).await.unwrap();
    let count = fill(&*near).await;
    assert!(near.out_of_space().is_some_and(|why| why.contains("alarm disarm")), "{:?}", near.out_of_space());
    near.barrier().await.expect("reads must continue");
    // Without this, the second server may still be behind, and the watch would also return the writes.
    far.barrier().await.expect("reads must continue");
    let begun = far.revision();
    let mut watcher = far.watch("/a/", begun).unwrap();

    // Conditions are still checked, and a transaction that also puts is refused.
    let key = "/a/000";
    let modified = near.get(key).unwrap().modified;
    let conflict = near.txn(delete(key, modified + 1)).await;
    assert!(matches!(&conflict, Err(Error::Conflict { key: of, .. }) if &**of == key), "{conflict:?}");
    let mut both = delete(key, modified);
    both.operations.push(put("/b", "x"));
    assert!(matches!(near.txn(both).await, Err(Error::OutOfSpace(_))));

    // After a barrier, every server shows each deletion immediately.
    let mut newest = begun;
    for at in 0..count - 1 {
        let key = format!("/a/{at:03}");
        let (writer, reader) = if at % 2 == 0 { (&near, &far) } else { (&far, &near) };
        let modified = writer.get(&key).unwrap().modified;
        let done = writer.txn(delete(&key, modified)).await.unwrap();
        assert!(done.revision > newest && done.records.is_empty());
        newest = done.revision;
        reader.barrier().await.unwrap();
        assert!(reader.get(&key).is_none() && reader.revision() >= newest, "{key}");
        let Next::Events { events, .. } = watcher.next(1).await else { panic!("the watch ended") };
        let seen: Vec<_> = events.iter().map(|event| (&*event.key, event.revision, event.current.is_none())).collect();
        assert_eq!(seen, [(&*key, newest, true)]);
    }
    assert_eq!(near.expire(10).await.unwrap(), 1, "expired keys are still deleted");
    near.compact(newest).await.unwrap();

    // A server that starts now has the same content.
    let late = Etcd::open(&config, finish, Options::default()).await.unwrap();
    late.barrier().await.unwrap();
    assert_eq!((late.count(""), late.revision() >= newest), (1, true));

    members.make_space(0);
    let written = write(&*near, "/after", "x").await.unwrap();
    assert!(near.out_of_space().is_none());
    for store in [&far, &late] {
        store.barrier().await.unwrap();
        assert_eq!(text(&**store, "/after").as_deref(), Some("x"));
    }
    // Now deletions show their given last value again.
    let last = Operation::Delete { key: "/after".into(), last: Some("last state".into()) };
    let conditions = vec![Condition { key: "/after".into(), modified: written.revision }];
    let mut watcher = far.watch("/after", written.revision).unwrap();
    near.txn(Txn { conditions, operations: vec![last] }).await.unwrap();
    let Next::Events { events, .. } = watcher.next(1).await else { panic!("the watch ended") };
    let said = String::from_utf8(events[0].last.clone().unwrap().to_vec()).unwrap();
    assert!(said.starts_with("last state"), "{said}");
    for store in [near, far, late] {
        Arc::clone(&store).close().await;
    }
}
