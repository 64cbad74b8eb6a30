//! Slow clients: pending events of a watch stay in the store, not in a buffer.

use crate::support::*;
use serde_json::{Value, json};

/// A chunk of a watch ends with the event that reaches this size.
const PIECE_BYTES: usize = 64 * 1024;
const STREAMED: &str = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

fn padded(name: &str, pad: usize) -> Value {
    let on = if name.ends_with(['0', '5']) { "true" } else { "false" };
    json!({"metadata": {"name": name, "labels": {"on": on}}, "data": {"pad": "x".repeat(pad)}})
}

/// A world with ConfigMaps `m-0000`, `m-0001` and so on, of this size.
async fn filled(count: usize, pad: usize) -> (World, Api) {
    let world = World::new().await;
    let admin = world.admin();
    admin.delete(&format!("{CONFIG_MAPS}/kube-root-ca.crt")).await;
    for at in 0..count {
        admin.post(CONFIG_MAPS, &padded(&format!("m-{at:04}"), pad)).await.expect(201);
    }
    (world, admin)
}

/// Reads the first chunks of a watch. Returns the size of the largest.
async fn pieces(watching: &mut Watching, count: usize) -> usize {
    let mut largest = 0;
    for _ in 0..count {
        largest = watching.piece().await.max(largest);
    }
    largest
}

#[tokio::test]
async fn the_initial_list_comes_in_chunks_during_changes() {
    for (count, pad, selector) in [(1200, 300, ""), (1200, 300, "&labelSelector=on%3Dtrue"), (30, 100_000, "")] {
        let (world, admin) = filled(count, pad).await;
        let start = world.store.revision();
        let mut watching = admin.watch(&format!("{CONFIG_MAPS}?{STREAMED}{selector}")).await;
        let first = watching.piece().await;
        assert!(first > 0 && first < PIECE_BYTES + pad + 1000, "{first}");
        // Objects change meanwhile, among those that were sent and those that were not.
        let last = format!("m-{:04}", (count - 1) / 5 * 5);
        for name in ["m-0000", &last] {
            let path = format!("{CONFIG_MAPS}/{name}");
            admin.patch(&path, MERGE, &json!({"data": {"pad": "changed"}})).await.expect(200);
            admin.delete(&path).await.expect(200);
        }
        admin.post(CONFIG_MAPS, &padded("m-00005", 10)).await.expect(201);
        // The client gets the state at the start of the watch,
        for at in (0..count).filter(|at| selector.is_empty() || at % 5 == 0) {
            let event = watching.next().await;
            assert_eq!(
                (&event["type"], text(&event, "/object/metadata/name")),
                (&json!("ADDED"), format!("m-{at:04}"))
            );
            assert_eq!(event["object"]["data"]["pad"], "x".repeat(pad));
        }
        let mark = watching.next().await;
        assert_eq!(mark["object"]["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}), "{mark}");
        assert_eq!(version(&mark["object"]), start);
        // and then each later change once.
        for name in ["m-0000", &last] {
            assert_eq!(watching.word().await, format!("MODIFIED {name}"));
            assert_eq!(watching.word().await, format!("DELETED {name}"));
        }
        assert_eq!(watching.word().await, "ADDED m-00005");
        watching.quiet().await;
    }
}

#[tokio::test]
async fn no_chunk_of_the_initial_list_is_large() {
    for (count, pad, accept) in [(700, 300, "application/json"), (40, 50_000, "application/json"), (700, 300, TABLE)] {
        let (_world, admin) = filled(count, pad).await;
        let mut watching = admin.header("accept", accept).watch(&format!("{CONFIG_MAPS}?{STREAMED}")).await;
        let largest = pieces(&mut watching, 4).await;
        assert!(largest < PIECE_BYTES + pad + 1000, "{largest}");
        for _ in 0..count {
            assert_eq!(watching.next().await["type"], "ADDED");
        }
        assert_eq!(watching.next().await["type"], "BOOKMARK");
        watching.quiet().await;
    }
}

/// A client that is so slow that the initial state is compacted gets an error.
#[tokio::test]
async fn an_initial_list_that_is_compacted_before_it_is_read_is_too_old() {
    let (world, admin) = filled(30, 100_000).await;
    let mut watching = admin.watch(&format!("{CONFIG_MAPS}?{STREAMED}")).await;
    watching.piece().await;
    admin.delete(&format!("{CONFIG_MAPS}/m-0029")).await.expect(200);
    world.store.compact(world.store.revision()).await.unwrap();
    let mut told = 0;
    let end = loop {
        let event = watching.next().await;
        if event["type"] != "ADDED" {
            break event;
        }
        told += 1;
    };
    assert!((1..29).contains(&told), "{told}");
    assert_eq!((&end["type"], &end["object"]["code"]), (&json!("ERROR"), &json!(410)), "{end}");
    assert_eq!(watching.maybe().await, None);
}

#[tokio::test]
async fn no_chunk_of_past_events_is_large() {
    let (world, admin) = filled(2, 10).await;
    let from = world.store.revision();
    let mut watching = admin.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={from}")).await;
    let path = format!("{CONFIG_MAPS}/m-0001");
    // Large events that are sent one at a time, and small ones that are sent together.
    let sizes = [[100_000; 30].as_slice(), &[300; 300], &[60_000; 5]].concat();
    for (at, size) in sizes.iter().enumerate() {
        let patch = json!({"data": {"at": at.to_string(), "pad": "y".repeat(*size)}});
        admin.patch(&path, MERGE, &patch).await.expect(200);
    }
    let mut largest = 0;
    for at in 0..sizes.len() {
        largest = largest.max(if watching.has_event() { 0 } else { watching.piece().await });
        let event = watching.next().await;
        assert_eq!((&event["type"], &event["object"]["data"]["at"]), (&json!("MODIFIED"), &json!(at.to_string())));
    }
    assert!(largest < PIECE_BYTES + 101_000, "{largest}");
    watching.quiet().await;
}
