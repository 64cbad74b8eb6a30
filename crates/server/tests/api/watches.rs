//! Watches: no event is missing or repeated, in every form.

use crate::support::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

async fn set(admin: &Api, name: &str, patch: Value) -> Value {
    admin.patch(&format!("{CONFIG_MAPS}/{name}"), MERGE, &patch).await.expect(200)
}

/// A world without ConfigMaps in the namespace `default`.
async fn world() -> (World, Api) {
    let world = World::new().await;
    let admin = world.admin();
    admin.delete(&format!("{CONFIG_MAPS}/kube-root-ca.crt")).await;
    (world, admin)
}

#[tokio::test]
async fn from_a_version_on() {
    let (world, admin) = world().await;
    let first = admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let second = set(&admin, "a", json!({"data": {"key": "2"}})).await;
    let before_delete = world.store.revision();
    admin.delete(&format!("{CONFIG_MAPS}/a")).await.expect(200);
    let mut watching = admin.watch(&format!("{CONFIG_MAPS}?watch=true&resourceVersion={}", version(&first))).await;
    assert_eq!(watching.next().await, json!({"type": "MODIFIED", "object": second}));
    let gone = watching.next().await;
    // The last state, with the revision of its deletion.
    let mut last = second.clone();
    last["metadata"]["resourceVersion"] = json!((before_delete + 1).to_string());
    assert_eq!(gone["type"], "DELETED");
    assert_eq!(gone["object"]["data"], last["data"]);
    assert_eq!(version(&gone["object"]), before_delete + 1);
    watching.quiet().await;
    admin.post(CONFIG_MAPS, &config_map("b")).await.expect(201);
    assert_eq!(watching.word().await, "ADDED b");
    // Changes of other namespaces and kinds are not included.
    world.namespace("other").await;
    admin.post("/api/v1/namespaces/other/configmaps", &config_map("c")).await.expect(201);
    admin.post("/api/v1/namespaces/default/secrets", &json!({"metadata": {"name": "s"}})).await.expect(201);
    watching.quiet().await;
    // The old watch paths still work.
    let mut old =
        admin.watch(&format!("/api/v1/watch/namespaces/default/configmaps?resourceVersion={before_delete}")).await;
    assert_eq!(old.word().await, "DELETED a");
}

#[tokio::test]
async fn without_a_version_the_initial_list_comes_first() {
    let (world, admin) = world().await;
    for name in ["a", "b"] {
        admin.post(CONFIG_MAPS, &config_map(name)).await.expect(201);
    }
    for query in ["watch=1", "watch=1&resourceVersion=0", "watch=1&resourceVersion="] {
        let mut watching = admin.watch(&format!("{CONFIG_MAPS}?{query}")).await;
        assert_eq!(watching.word().await, "ADDED a", "{query}");
        assert_eq!(watching.word().await, "ADDED b", "{query}");
        watching.quiet().await;
        set(&admin, "a", json!({"data": {"at": world.store.revision().to_string()}})).await;
        assert_eq!(watching.word().await, "MODIFIED a", "{query}");
    }
}

#[tokio::test]
async fn streaming_lists_mark_the_end_of_the_initial_list() {
    let (world, admin) = world().await;
    for name in ["a", "b"] {
        admin.post(CONFIG_MAPS, &config_map(name)).await.expect(201);
    }
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let now = world.store.revision();
    for query in [query.to_owned(), format!("{query}&resourceVersion=0"), format!("{query}&resourceVersion={now}")] {
        let mut watching = admin.watch(&format!("{CONFIG_MAPS}?{query}")).await;
        assert_eq!(watching.word().await, "ADDED a");
        assert_eq!(watching.word().await, "ADDED b");
        let end = watching.next().await;
        assert_eq!(end["type"], "BOOKMARK");
        assert_eq!(end["object"]["kind"], "ConfigMap");
        assert_eq!(end["object"]["apiVersion"], "v1");
        assert_eq!(end["object"]["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
        assert_eq!(version(&end["object"]), now);
        watching.quiet().await;
    }
    // The same as metadata and as table.
    for (accept, kind) in [(METADATA, "PartialObjectMetadata"), (TABLE, "Table")] {
        let mut watching = admin.header("accept", accept).watch(&format!("{CONFIG_MAPS}?{query}")).await;
        for _ in 0..2 {
            assert_eq!(watching.next().await["object"]["kind"], kind);
        }
        let end = watching.next().await;
        let object = if kind == "Table" { &end["object"]["rows"][0]["object"] } else { &end["object"] };
        assert_eq!(end["type"], "BOOKMARK");
        assert_eq!(object["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}), "{end}");
    }
    // Without initial events a watch starts at its version, or now.
    let quiet = "watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan";
    let mut watching = admin.watch(&format!("{CONFIG_MAPS}?{quiet}")).await;
    watching.quiet().await;
    admin.get(&format!("{CONFIG_MAPS}?watch=1&sendInitialEvents=true")).await.refused(422, "Invalid");
    let exact = format!("{CONFIG_MAPS}?watch=1&resourceVersion={now}&resourceVersionMatch=Exact");
    admin.get(&exact).await.refused(422, "Invalid");
}

#[tokio::test(start_paused = true)]
async fn bookmarks_tell_how_far_a_quiet_watch_is() {
    let (world, admin) = world().await;
    let start = world.store.revision();
    let path = format!("{CONFIG_MAPS}?watch=1&resourceVersion={start}");
    let mut with = admin.watch(&format!("{path}&allowWatchBookmarks=true")).await;
    let mut without = admin.watch(&path).await;
    admin.post("/api/v1/namespaces/default/secrets", &json!({"metadata": {"name": "s"}})).await.expect(201);
    let mark = with.next().await;
    assert_eq!(mark["type"], "BOOKMARK");
    assert_eq!(mark["object"]["metadata"]["resourceVersion"], world.store.revision().to_string());
    assert!(mark["object"]["metadata"].get("annotations").is_none());
    assert_eq!(mark["object"]["kind"], "ConfigMap");
    without.quiet().await;
    // A watch resumed from a bookmark misses no event.
    let mut resumed = admin.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={}", version(&mark["object"]))).await;
    admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    for watching in [&mut with, &mut without, &mut resumed] {
        assert_eq!(watching.word().await, "ADDED a");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_in_time_even_when_busy() {
    let (_world, admin) = world().await;
    let started = tokio::time::Instant::now();
    let mut quiet = admin.watch(&format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=7")).await;
    assert_eq!(quiet.maybe().await, None);
    assert_eq!(started.elapsed().as_secs(), 7);
    // A stream with constant events ends too.
    let mut busy = admin.watch(&format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=7")).await;
    for at in 0..100 {
        admin.post(CONFIG_MAPS, &config_map(&format!("m-{at}"))).await.expect(201);
        if busy.maybe().await.is_none() {
            assert!(at <= 8, "{at}");
            return;
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    panic!("a busy watch never ended");
}

/// A client that starts to read after the deadline gets the events before it: silence would mean that there were
/// none.
#[tokio::test(start_paused = true)]
async fn events_before_the_deadline_are_sent_to_late_readers() {
    let (world, admin) = world().await;
    let from = world.store.revision();
    admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let mut late = admin.watch(&format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=1&resourceVersion={from}")).await;
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(late.word().await, "ADDED a");
    assert_eq!(late.maybe().await, None);
}

#[tokio::test]
async fn the_timeout_of_a_watch_is_limited() {
    let (_world, admin) = world().await;
    // The largest value that can be written, the largest of upstream's type, and one that is near the clock's limit.
    for seconds in [u64::MAX, i64::MAX.cast_unsigned(), 1 << 40] {
        let mut watching = admin.watch(&format!("{CONFIG_MAPS}?watch=1&timeoutSeconds={seconds}")).await;
        watching.quiet().await;
        let name = format!("m-{seconds}");
        admin.post(CONFIG_MAPS, &config_map(&name)).await.expect(201);
        assert_eq!(watching.word().await, format!("ADDED {name}"));
        admin.delete(&format!("{CONFIG_MAPS}/{name}")).await.expect(200);
    }
}

#[tokio::test]
async fn selections_are_entered_and_left() {
    let (_world, admin) = world().await;
    let labels = |value: Value| json!({"metadata": {"labels": {"app": value}}});
    let made = admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    let from = version(&made);
    let mut by_label =
        admin.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={from}&labelSelector=app%3Dweb")).await;
    set(&admin, "a", json!({"data": {"before": "1"}})).await;
    let entered = set(&admin, "a", labels(json!("web"))).await;
    let changed = set(&admin, "a", json!({"data": {"key": "2"}})).await;
    let left = set(&admin, "a", labels(json!("db"))).await;
    set(&admin, "a", json!({"data": {"key": "3"}})).await;
    let back = set(&admin, "a", labels(json!("web"))).await;
    admin.delete(&format!("{CONFIG_MAPS}/a")).await.expect(200);
    assert_eq!(by_label.next().await, json!({"type": "ADDED", "object": entered}));
    assert_eq!(by_label.next().await, json!({"type": "MODIFIED", "object": changed}));
    // An object that leaves is sent in its last state, with the revision at which it left.
    let mut seen_last = changed.clone();
    seen_last["metadata"]["resourceVersion"] = left["metadata"]["resourceVersion"].clone();
    assert_eq!(by_label.next().await, json!({"type": "DELETED", "object": seen_last}));
    assert_eq!(by_label.next().await, json!({"type": "ADDED", "object": back}));
    assert_eq!(by_label.word().await, "DELETED a");
    by_label.quiet().await;

    // By field: pods of one node.
    admin.post(PODS, &pod("p")).await.expect(201);
    let mut by_node = admin.watch(&format!("{PODS}?watch=1&fieldSelector=spec.nodeName%3Dn-1")).await;
    by_node.quiet().await;
    let binding = json!({"target": {"kind": "Node", "name": "n-1"}});
    admin.post(&format!("{PODS}/p/binding"), &binding).await.expect(201);
    assert_eq!(by_node.word().await, "ADDED p");
    admin.patch(&format!("{PODS}/p/status"), MERGE, &json!({"status": {"phase": "Running"}})).await.expect(200);
    assert_eq!(by_node.word().await, "MODIFIED p");
    let mut not_done = admin.watch("/api/v1/pods?watch=1&fieldSelector=status.phase!%3DSucceeded").await;
    assert_eq!(not_done.word().await, "ADDED p");
    admin.patch(&format!("{PODS}/p/status"), MERGE, &json!({"status": {"phase": "Succeeded"}})).await.expect(200);
    assert_eq!(not_done.word().await, "DELETED p");
}

#[tokio::test]
async fn one_object_can_be_watched_by_name() {
    let (_world, admin) = world().await;
    for name in ["a", "b"] {
        admin.post(CONFIG_MAPS, &config_map(name)).await.expect(201);
    }
    let paths = [
        format!("{CONFIG_MAPS}/a?watch=1"),
        format!("{CONFIG_MAPS}?watch=1&fieldSelector=metadata.name%3Da"),
        "/api/v1/watch/namespaces/default/configmaps/a".to_owned(),
        "/api/v1/configmaps?watch=1&fieldSelector=metadata.name%3Da,metadata.namespace%3Ddefault".to_owned(),
    ];
    let mut watches = Vec::new();
    for path in &paths {
        watches.push(admin.watch(path).await);
    }
    set(&admin, "b", json!({"data": {"x": "y"}})).await;
    set(&admin, "a", json!({"data": {"x": "y"}})).await;
    for (path, watching) in paths.iter().zip(&mut watches) {
        assert_eq!(watching.word().await, "ADDED a", "{path}");
        assert_eq!(watching.word().await, "MODIFIED a", "{path}");
        watching.quiet().await;
    }
}

#[tokio::test]
async fn forms_of_events() {
    let (_world, admin) = world().await;
    admin.post(PODS, &pod("p")).await.expect(201);
    let mut partial = admin.header("accept", METADATA).watch(&format!("{PODS}?watch=1")).await;
    let mut table = admin.header("accept", TABLE).watch(&format!("{PODS}?watch=1")).await;
    admin.patch(&format!("{PODS}/p"), MERGE, &json!({"metadata": {"labels": {"a": "b"}}})).await.expect(200);
    admin.delete(&format!("{PODS}/p")).await.expect(200);
    for what in ["ADDED", "MODIFIED", "DELETED"] {
        let event = partial.next().await;
        assert_eq!(
            (text(&event, "/type").as_str(), text(&event, "/object/kind").as_str()),
            (what, "PartialObjectMetadata")
        );
        assert_eq!(event["object"]["metadata"]["name"], "p");
        assert!(event["object"].get("spec").is_none());
    }
    for (at, what) in ["ADDED", "MODIFIED", "DELETED"].iter().enumerate() {
        let event = table.next().await;
        assert_eq!((text(&event, "/type").as_str(), text(&event, "/object/kind").as_str()), (*what, "Table"));
        assert_eq!(event["object"]["rows"][0]["cells"][0], "p");
        let columns = event["object"]["columnDefinitions"].as_array().unwrap().len();
        assert_eq!(columns > 0, at == 0, "columns come with the first event");
    }
}

#[tokio::test]
async fn a_compacted_version_gives_an_error_event_and_ends_the_watch() {
    let (world, admin) = world().await;
    let first = admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    for at in 0..5 {
        set(&admin, "a", json!({"data": {"at": at.to_string()}})).await;
    }
    world.store.compact(world.store.revision()).await.unwrap();
    let mut watching = admin.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={}", version(&first))).await;
    let event = watching.next().await;
    assert_eq!(event["type"], "ERROR");
    assert_eq!(event["object"]["kind"], "Status");
    assert_eq!((&event["object"]["code"], &event["object"]["reason"]), (&json!(410), &json!("Expired")));
    assert!(text(&event, "/object/message").starts_with("too old resource version: "), "{event}");
    assert_eq!(watching.maybe().await, None);
    let future = world.store.revision() + 100;
    let refused = admin.get(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={future}")).await;
    assert_eq!(
        refused.refused(504, "Timeout"),
        format!("Timeout: Too large resource version: {future}, current: {}", future - 100)
    );
}

#[tokio::test]
async fn a_slow_watcher_is_ended_without_affecting_others() {
    let bounds = store::Bounds { events_max: 200, ..store::Bounds::default() };
    let options = store::Options { bounds, ..store::Options::default() };
    let world = World::with(store::Volatile::new(server::codec::finish, options), identity()).await;
    let admin = world.admin();
    let from = world.store.revision();
    let path = format!("{CONFIG_MAPS}?watch=1&resourceVersion={from}");
    let mut slow = admin.watch(&path).await;
    let mut quick = admin.watch(&path).await;
    admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    assert_eq!(slow.word().await, "ADDED a");
    assert_eq!(quick.word().await, "ADDED a");
    for at in 0..500 {
        set(&admin, "a", json!({"data": {"key": at.to_string()}})).await;
        assert_eq!(quick.next().await["object"]["data"]["key"], at.to_string());
    }
    // The events of the slow watcher were compacted: it gets an error, not a gap.
    let event = slow.next().await;
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert_eq!(slow.maybe().await, None);
}

/// A watcher that did not read while its events were compacted gets no later bookmark, because it would resume there
/// without noticing. The same applies at its deadline.
#[tokio::test(start_paused = true)]
async fn no_bookmark_skips_compacted_events() {
    let (world, admin) = world().await;
    for (timeout_s, silent_s) in [(100, 101), (1000, 61)] {
        admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
        let query = format!("watch=1&allowWatchBookmarks=true&timeoutSeconds={timeout_s}");
        let mut slow = admin.watch(&format!("{CONFIG_MAPS}?{query}&resourceVersion={}", world.store.revision())).await;
        slow.quiet().await;
        admin.delete(&format!("{CONFIG_MAPS}/a")).await.expect(200);
        admin
            .post("/api/v1/namespaces/default/secrets", &json!({"metadata": {"generateName": "s-"}}))
            .await
            .expect(201);
        world.store.compact(world.store.revision()).await.unwrap();
        tokio::time::advance(Duration::from_secs(silent_s)).await;
        let event = slow.next().await;
        assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)), "{event}");
        assert_eq!(slow.maybe().await, None);
    }
}

/// One write may change two quotas, which then have the same version. A watch that resumes at this version gets the
/// other one. It may get the first one again.
#[tokio::test]
async fn a_watch_goes_on_between_two_quotas_of_one_version() {
    let (world, admin) = world().await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    for name in ["q-1", "q-2"] {
        let quota = json!({"metadata": {"name": name}, "spec": {"hard": {"count/configmaps": "9"}}});
        admin.post(quotas, &quota).await.expect(201);
    }
    let from = world.store.revision();
    admin.post(CONFIG_MAPS, &config_map("a")).await.expect(201);
    for forgotten in [false, true] {
        if forgotten {
            world.store.compact(world.store.revision()).await.unwrap();
        }
        let mut at = from + 1;
        if !forgotten {
            let mut cut = admin.watch(&format!("{quotas}?watch=1&resourceVersion={from}")).await;
            at = version(&cut.next().await["object"]);
        }
        for path in [quotas, "/api/v1/resourcequotas"] {
            let mut resumed = admin.watch(&format!("{path}?watch=1&resourceVersion={at}")).await;
            let mut told = [resumed.next().await, resumed.next().await].map(|event| {
                assert_eq!(event["object"]["status"]["used"]["count/configmaps"], "1", "{event}");
                format!("{} {}", text(&event, "/type"), text(&event, "/object/metadata/name"))
            });
            told.sort();
            assert_eq!(told, ["MODIFIED q-1", "MODIFIED q-2"]);
            resumed.quiet().await;
        }
    }
    // If a version belongs to one quota only, nothing is repeated.
    let patch = json!({"metadata": {"labels": {"a": "b"}}});
    let alone = admin.patch(&format!("{quotas}/q-1"), MERGE, &patch).await.expect(200);
    let mut watching = admin.watch(&format!("{quotas}?watch=1&resourceVersion={}", version(&alone))).await;
    watching.quiet().await;
    admin.post(CONFIG_MAPS, &config_map("b")).await.expect(201);
    for _ in 0..2 {
        assert_eq!(watching.next().await["object"]["status"]["used"]["count/configmaps"], "2");
    }
    watching.quiet().await;
}

#[tokio::test]
async fn both_views_of_events_are_the_same_objects() {
    let (_world, admin) = world().await;
    let core = "/api/v1/namespaces/default/events";
    let newer = "/apis/events.k8s.io/v1/namespaces/default/events";
    let mut core_watch = admin.watch(&format!("{core}?watch=1")).await;
    let mut newer_watch = admin.watch(&format!("{newer}?watch=1")).await;
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "Started", "message": "it runs", "type": "Normal", "count": 2,
        "source": {"component": "kubelet", "host": "n"}, "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z"});
    admin.post(core, &event).await.expect(201);
    let seen = core_watch.next().await;
    assert_eq!((&seen["type"], &seen["object"]["apiVersion"]), (&json!("ADDED"), &json!("v1")));
    assert_eq!(seen["object"]["involvedObject"]["name"], "p");
    let seen = newer_watch.next().await["object"].clone();
    assert_eq!(seen["apiVersion"], "events.k8s.io/v1");
    assert_eq!(
        (&seen["regarding"]["name"], &seen["note"], &seen["deprecatedCount"]),
        (&json!("p"), &json!("it runs"), &json!(2))
    );
    assert_eq!(admin.get(&format!("{newer}/e")).await.expect(200), seen);
    // The object can be changed in the other API version right after its write.
    let label = json!({"metadata": {"labels": {"seen": "yes"}}});
    let patched = admin.patch(&format!("{newer}/e"), MERGE, &label).await.expect(200);
    assert_eq!((&patched["apiVersion"], &patched["note"]), (&json!("events.k8s.io/v1"), &json!("it runs")));
    assert_eq!(admin.get(&format!("{core}/e")).await.expect(200)["metadata"]["labels"], label["metadata"]["labels"]);
    assert_eq!((core_watch.word().await, newer_watch.word().await), ("MODIFIED e".to_owned(), "MODIFIED e".to_owned()));

    let newer_event = json!({"metadata": {"name": "f"}, "regarding": {"kind": "Pod", "name": "q", "namespace": "default"},
        "reason": "Pulled", "note": "an image", "type": "Normal", "action": "Pulling", "reportingController": "x.io/kubelet",
        "reportingInstance": "n", "eventTime": "2026-01-01T00:00:00.000000Z"});
    admin.post(newer, &newer_event).await.expect(201);
    assert_eq!(newer_watch.word().await, "ADDED f");
    let seen = core_watch.next().await["object"].clone();
    assert_eq!((&seen["involvedObject"]["name"], &seen["message"]), (&json!("q"), &json!("an image")));
    let chosen = admin.get(&format!("{core}?fieldSelector=involvedObject.name%3Dq")).await.expect(200);
    assert_eq!(names(&chosen), ["f"]);
    let chosen = admin.get(&format!("{newer}?fieldSelector=regarding.name%3Dp")).await.expect(200);
    assert_eq!(names(&chosen), ["e"]);
    // Each API version selects by its own fields, in any order of requests.
    for (view, fields, wanted) in [
        (newer, "type=Normal", &["e", "f"][..]),
        (newer, "type=Warning", &[]),
        (newer, "reportingController=x.io/kubelet", &["f"]),
        (core, "source=kubelet,type=Normal", &["e"]),
        (core, "reportingComponent=x.io/kubelet", &["f"]),
    ] {
        let selector = fields.replace('=', "%3D").replace('/', "%2F");
        let chosen = admin.get(&format!("{view}?fieldSelector={selector}")).await.expect(200);
        assert_eq!(names(&chosen), wanted, "{view} {fields}");
    }
    admin.delete(&format!("{newer}/e")).await.expect(200);
    let gone = core_watch.next().await;
    assert_eq!((&gone["type"], &gone["object"]["apiVersion"]), (&json!("DELETED"), &json!("v1")));
}

/// The state of a watcher: name to resourceVersion, updated by events, with checks for impossible events.
#[derive(Default)]
struct Known {
    objects: BTreeMap<String, u64>,
    at: u64,
}

impl Known {
    fn apply(&mut self, event: &Value) {
        let (name, at) = (text(event, "/object/metadata/name"), version(&event["object"]));
        let what = text(event, "/type");
        if what == "BOOKMARK" {
            assert!(at >= self.at);
            self.at = at;
            return;
        }
        assert!(at > self.at, "{what} {name} at {at} after {}: twice or out of order", self.at);
        self.at = at;
        let was = self.objects.contains_key(&name);
        match what.as_str() {
            "ADDED" => assert!(!was, "{name} was added twice"),
            "MODIFIED" | "DELETED" => assert!(was, "{what} of {name}, which nobody added"),
            other => panic!("{other}: {event}"),
        }
        match what.as_str() {
            "DELETED" => drop(self.objects.remove(&name)),
            _ => drop(self.objects.insert(name, at)),
        }
    }
}

/// Several writers, and several watchers that disconnect and resume at their last version. At the end all watchers
/// have the same state.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn under_many_writers_nothing_is_missed_and_nothing_comes_twice() {
    const WRITERS: usize = 4;
    const STEPS: usize = 120;
    let (world, admin) = world().await;
    let start = world.store.revision();
    let watchers: Vec<_> = (0..4_usize)
        .map(|watcher| {
            let admin = admin.clone();
            // Every second watcher uses a selector.
            let selector = if watcher % 2 == 0 { "" } else { "&labelSelector=on%3Dtrue" };
            tokio::spawn(async move {
                let mut known = Known { at: start, ..Known::default() };
                let mut resumes = 0;
                'again: loop {
                    let path = format!("{CONFIG_MAPS}?watch=1&resourceVersion={}{selector}", known.at);
                    let mut watching = admin.watch(&path).await;
                    for _ in 0..(7 + watcher * 13) {
                        let event = tokio::time::timeout(Duration::from_secs(20), watching.next()).await.unwrap();
                        known.apply(&event);
                        if event["object"]["metadata"]["name"] == "zz-end" && event["type"] == "ADDED" {
                            break 'again;
                        }
                    }
                    resumes += 1;
                }
                (known.objects, resumes, selector)
            })
        })
        .collect();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let admin = admin.clone();
            tokio::spawn(async move {
                for step in 0..STEPS {
                    // Names are shared, so that writers conflict.
                    let name = format!("m-{}", (step * 7 + writer) % 10);
                    let path = format!("{CONFIG_MAPS}/{name}");
                    let on = ((step + writer) % 3 != 0).to_string();
                    match (step + writer) % 5 {
                        0 => drop(admin.delete(&path).await),
                        1 | 2 => drop(
                            admin.post(CONFIG_MAPS, &json!({"metadata": {"name": name, "labels": {"on": on}}})).await,
                        ),
                        _ => {
                            let patch =
                                json!({"metadata": {"labels": {"on": on}}, "data": {"by": format!("{writer}-{step}")}});
                            admin.patch(&path, MERGE, &patch).await;
                        }
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    admin.post(CONFIG_MAPS, &json!({"metadata": {"name": "zz-end", "labels": {"on": "true"}}})).await.expect(201);
    for watcher in watchers {
        let (objects, resumes, selector) = watcher.await.unwrap();
        assert!(resumes > 0);
        let list = admin.get(&format!("{CONFIG_MAPS}?{}", selector.trim_start_matches('&'))).await.expect(200);
        let want: BTreeMap<String, u64> = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| (text(item, "/metadata/name"), version(item)))
            .collect();
        assert_eq!(objects, want);
    }
}
