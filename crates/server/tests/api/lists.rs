//! Lists: pages of one snapshot, versions, selectors, and response forms.

use crate::support::*;
use serde_json::{Value, json};
use std::io::Read;
use std::sync::atomic::Ordering;

async fn fill(admin: &Api, count: usize) {
    for at in 0..count {
        let mut object = config_map(&format!("m-{at:02}"));
        object["metadata"]["labels"] = json!({"parity": if at % 2 == 0 { "even" } else { "odd" }});
        admin.post(CONFIG_MAPS, &object).await.expect(201);
    }
    admin.delete(&format!("{CONFIG_MAPS}/kube-root-ca.crt")).await;
}

#[tokio::test]
async fn pages_show_one_snapshot_whatever_is_written_meanwhile() {
    let world = World::new().await;
    let admin = world.admin();
    fill(&admin, 10).await;
    let first = admin.get(&format!("{CONFIG_MAPS}?limit=4")).await.expect(200);
    assert_eq!(names(&first), ["m-00", "m-01", "m-02", "m-03"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 6);
    assert_eq!(first["kind"], "ConfigMapList");
    let snapshot = text(&first, "/metadata/resourceVersion");

    admin.delete(&format!("{CONFIG_MAPS}/m-05")).await.expect(200);
    admin.post(CONFIG_MAPS, &config_map("m-04a")).await.expect(201);
    admin.patch(&format!("{CONFIG_MAPS}/m-06"), MERGE, &json!({"data": {"key": "changed"}})).await.expect(200);

    let next = format!("{CONFIG_MAPS}?limit=4&continue={}", text(&first, "/metadata/continue"));
    let second = admin.get(&next).await.expect(200);
    assert_eq!(names(&second), ["m-04", "m-05", "m-06", "m-07"]);
    assert_eq!(second["items"][2]["data"]["key"], "value");
    assert_eq!(text(&second, "/metadata/resourceVersion"), snapshot);
    assert_eq!(second["metadata"]["remainingItemCount"], 2);
    let next = format!("{CONFIG_MAPS}?limit=4&continue={}", text(&second, "/metadata/continue"));
    let third = admin.get(&next).await.expect(200);
    assert_eq!(names(&third), ["m-08", "m-09"]);
    assert!(third["metadata"].get("continue").is_none(), "{}", third["metadata"]);
    assert!(third["metadata"].get("remainingItemCount").is_none(), "{}", third["metadata"]);

    // The last page has no continue token.
    let all = admin.get(&format!("{CONFIG_MAPS}?limit=10")).await.expect(200);
    assert!(all["metadata"].get("continue").is_none(), "{}", all["metadata"]);
    // With a selector the remaining count is unknown, but pages are full.
    let odd = admin.get(&format!("{CONFIG_MAPS}?limit=2&labelSelector=parity%3Dodd")).await.expect(200);
    assert_eq!(names(&odd), ["m-01", "m-03"]);
    assert!(odd["metadata"].get("remainingItemCount").is_none());
    assert!(odd["metadata"].get("continue").is_some());
}

/// A page of 500 large objects would be encoded, sent and read as a whole, which informers avoid by pages.
#[tokio::test]
async fn a_page_of_large_objects_ends_before_its_limit() {
    let world = World::new().await;
    let admin = world.admin();
    fill(&admin, 8).await;
    for at in 0..6 {
        let data = json!({"key": "x".repeat(900_000)});
        admin.patch(&format!("{CONFIG_MAPS}/m-{at:02}"), MERGE, &json!({"data": data})).await.expect(200);
    }
    for selector in ["", "&labelSelector=parity"] {
        let first = admin.get(&format!("{CONFIG_MAPS}?limit=500{selector}")).await.expect(200);
        assert_eq!(names(&first), ["m-00", "m-01", "m-02", "m-03", "m-04"], "as many as exceed 4 MiB");
        let remaining = if selector.is_empty() { json!(3) } else { Value::Null };
        assert_eq!(first["metadata"]["remainingItemCount"], remaining);
        let next = format!("{CONFIG_MAPS}?limit=500{selector}&continue={}", text(&first, "/metadata/continue"));
        let rest = admin.get(&next).await.expect(200);
        assert_eq!(names(&rest), ["m-05", "m-06", "m-07"]);
        assert!(rest["metadata"].get("continue").is_none(), "{}", rest["metadata"]);
    }
    assert_eq!(names(&admin.get(CONFIG_MAPS).await.expect(200)).len(), 8, "a list without a limit is whole");
}

#[tokio::test]
async fn pages_across_namespaces_and_under_writers_add_up() {
    let world = World::new().await;
    let admin = world.admin();
    for namespace in ["a", "b", "c"] {
        world.namespace(namespace).await;
        for at in 0..7 {
            let path = format!("/api/v1/namespaces/{namespace}/secrets");
            admin.post(&path, &json!({"metadata": {"name": format!("s-{at}")}})).await.expect(201);
        }
    }
    let whole = admin.get("/api/v1/secrets").await.expect(200);
    let writer = {
        let admin = admin.clone();
        tokio::spawn(async move {
            for at in 0..50 {
                let path = "/api/v1/namespaces/b/secrets";
                admin.post(path, &json!({"metadata": {"name": format!("new-{at}")}})).await.expect(201);
                admin.delete(&format!("{path}/s-{at}")).await;
                tokio::task::yield_now().await;
            }
        })
    };
    let mut seen: Vec<Value> = Vec::new();
    let mut next = "/api/v1/secrets?limit=2".to_owned();
    loop {
        let page = admin.get(&next).await.expect(200);
        seen.extend(page["items"].as_array().unwrap().iter().cloned());
        tokio::task::yield_now().await;
        match page["metadata"].get("continue") {
            Some(token) => next = format!("/api/v1/secrets?limit=2&continue={}", token.as_str().unwrap()),
            None => break,
        }
    }
    writer.await.unwrap();
    assert_eq!(seen, *whole["items"].as_array().unwrap());
}

/// Few of many objects match: the pages together are complete for every page size, with few store lists per page.
#[tokio::test]
async fn selective_pages_add_up_and_take_few_rounds() {
    let store = Polite::new();
    let world = World::with(store.clone(), identity()).await;
    let admin = world.admin();
    let count = 1800;
    for at in 0..count {
        let mut object = config_map(&format!("m-{at:04}"));
        object["metadata"]["labels"] = json!({"of-7": (at % 7).to_string(), "at": at.to_string()});
        admin.post(CONFIG_MAPS, &object).await.expect(201);
    }
    let lists = || store.lists.load(Ordering::Relaxed);
    let selectors = ["of-7=3", "of-7 in (0,1,2,3,4,5)", "at in (0,499,500,501,1499,1500,1799)", "at=1798", "none=1"];
    for selector in selectors {
        let selector = selector.replace(' ', "%20").replace('=', "%3D");
        let whole = names(&admin.get(&format!("{CONFIG_MAPS}?labelSelector={selector}")).await.expect(200));
        for limit in [1, 2, 7, 257, 500, 700, 2000] {
            if whole.len() / limit > 100 {
                continue;
            }
            let (mut seen, mut next) = (Vec::new(), String::new());
            loop {
                let before = lists();
                let path = format!("{CONFIG_MAPS}?labelSelector={selector}&limit={limit}{next}");
                let page = admin.get(&path).await.expect(200);
                // Rounds of 500, 1000 and the rest.
                assert!(lists() - before <= 3, "{path}: {} rounds", lists() - before);
                let token = text(&page, "/metadata/continue");
                let found = names(&page);
                assert!(found.len() <= limit && (found.len() == limit || token.is_empty()), "{path}");
                seen.extend(found);
                if token.is_empty() {
                    break;
                }
                next = format!("&continue={token}");
            }
            assert_eq!(seen, whole, "{selector} by {limit}");
        }
    }
}

#[tokio::test]
async fn versions_of_a_list() {
    let world = World::new().await;
    let admin = world.admin();
    fill(&admin, 4).await;
    let old = admin.get(CONFIG_MAPS).await.expect(200);
    let then = version(&old);
    admin.delete(&format!("{CONFIG_MAPS}/m-00")).await.expect(200);
    let now = version(&admin.get(CONFIG_MAPS).await.expect(200));
    let future = now + 1000;
    let four = || vec!["m-00", "m-01", "m-02", "m-03"];
    let three = || vec!["m-01", "m-02", "m-03"];
    let cases: [(String, Vec<&str>, Option<u64>); 9] = [
        (String::new(), three(), Some(now)),
        ("resourceVersion=0".into(), three(), None),
        ("resourceVersion=0&resourceVersionMatch=NotOlderThan".into(), three(), None),
        (format!("resourceVersion={then}"), three(), None),
        (format!("resourceVersion={then}&resourceVersionMatch=NotOlderThan"), three(), None),
        (format!("resourceVersion={then}&resourceVersionMatch=Exact"), four(), Some(then)),
        (format!("resourceVersion={then}&limit=9"), four(), Some(then)),
        (format!("resourceVersion={then}&limit=9&resourceVersionMatch=Exact"), four(), Some(then)),
        (format!("resourceVersion={then}&limit=2&resourceVersionMatch=NotOlderThan"), vec!["m-01", "m-02"], None),
    ];
    for (query, want, revision) in cases {
        let list = admin.get(&format!("{CONFIG_MAPS}?{query}")).await.expect(200);
        assert_eq!(names(&list), want, "{query}");
        match revision {
            Some(revision) => assert_eq!(version(&list), revision, "{query}"),
            None => assert!(version(&list) >= then, "{query}"),
        }
    }
    let bad = [
        ("resourceVersionMatch=Exact".to_owned(), 422, "Invalid"),
        ("resourceVersionMatch=Some&resourceVersion=1".to_owned(), 422, "Invalid"),
        ("resourceVersion=0&resourceVersionMatch=Exact".to_owned(), 422, "Invalid"),
        ("resourceVersion=abc".to_owned(), 422, "Invalid"),
        (format!("resourceVersion={future}"), 504, "Timeout"),
        (format!("resourceVersion={future}&resourceVersionMatch=Exact"), 504, "Timeout"),
        ("limit=-1".to_owned(), 400, "BadRequest"),
        ("limit=many".to_owned(), 400, "BadRequest"),
        ("continue=nonsense".to_owned(), 400, "BadRequest"),
        ("sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned(), 422, "Invalid"),
    ];
    for (query, code, reason) in bad {
        let reply = admin.get(&format!("{CONFIG_MAPS}?{query}")).await;
        assert_eq!(reply.code, code, "{query}: {}", reply.body);
        reply.refused(code, reason);
    }
    let page = admin.get(&format!("{CONFIG_MAPS}?limit=1")).await.expect(200);
    let token = text(&page, "/metadata/continue");
    admin.get(&format!("{CONFIG_MAPS}?continue={token}&resourceVersion={then}")).await.refused(400, "BadRequest");
    admin
        .get(&format!("{CONFIG_MAPS}?continue={token}&resourceVersion={then}&resourceVersionMatch=Exact"))
        .await
        .refused(422, "Invalid");
    let large = admin.get(&format!("{CONFIG_MAPS}/m-01?resourceVersion={future}")).await;
    assert_eq!(large.body["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    let said = large.refused(504, "Timeout");
    assert_eq!(said, format!("Timeout: Too large resource version: {future}, current: {now}"));
}

#[tokio::test]
async fn compacted_revisions_are_gone() {
    let world = World::new().await;
    let admin = world.admin();
    fill(&admin, 4).await;
    let page = admin.get(&format!("{CONFIG_MAPS}?limit=2")).await.expect(200);
    let then = version(&page);
    admin.delete(&format!("{CONFIG_MAPS}/m-00")).await.expect(200);
    admin.delete(&format!("{CONFIG_MAPS}/m-01")).await.expect(200);
    world.store.compact(world.store.revision()).await.unwrap();
    let said = admin.get(&format!("{CONFIG_MAPS}?resourceVersion={then}&resourceVersionMatch=Exact")).await;
    said.refused(410, "Expired");
    let token = text(&page, "/metadata/continue");
    let gone = admin.get(&format!("{CONFIG_MAPS}?limit=2&continue={token}")).await;
    let fresh = text(&gone.body, "/metadata/continue");
    let said = gone.refused(410, "Expired");
    assert!(
        said.starts_with("The provided continue parameter is too old to display a consistent list result."),
        "{said}"
    );
    // The token in the error continues at the same key in the current state.
    assert!(!fresh.is_empty(), "a 410 offers an inconsistent continuation");
    let rest = admin.get(&format!("{CONFIG_MAPS}?limit=9&continue={fresh}")).await.expect(200);
    assert_eq!(names(&rest), ["m-02", "m-03"]);
    assert_eq!(version(&rest), world.store.revision());
}

#[tokio::test]
async fn selectors_choose() {
    let world = World::new().await;
    let admin = world.admin();
    for (name, labels) in [("a", json!({"app": "web", "tier": "1"})), ("b", json!({"app": "db"})), ("c", json!({}))] {
        let mut object = if name == "a" { scheduled(name) } else { pod(name) };
        object["metadata"]["labels"] = labels;
        admin.post(PODS, &object).await.expect(201);
    }
    admin
        .patch(&format!("{PODS}/b/status"), MERGE, &json!({"status": {"phase": "Running", "podIP": "10.0.0.9"}}))
        .await
        .expect(200);
    let cases = [
        ("labelSelector=app", "a b"),
        ("labelSelector=!app", "c"),
        ("labelSelector=app%3Dweb", "a"),
        ("labelSelector=app%3D%3Dweb", "a"),
        ("labelSelector=app!%3Dweb", "b c"),
        ("labelSelector=app+in+(web,db)", "a b"),
        ("labelSelector=app+notin+(web)", "b c"),
        ("labelSelector=app%3Dweb,tier", "a"),
        ("labelSelector=tier%3E0", "a"),
        ("labelSelector=", "a b c"),
        ("fieldSelector=metadata.name%3Da", "a"),
        ("fieldSelector=metadata.name!%3Da", "b c"),
        ("fieldSelector=metadata.namespace%3Ddefault", "a b c"),
        ("fieldSelector=spec.nodeName%3Dnode-1", "a"),
        ("fieldSelector=spec.nodeName%3D", "b c"),
        ("fieldSelector=status.phase%3DPending", "a c"),
        ("fieldSelector=status.phase!%3DPending,spec.nodeName%3D", "b"),
        ("fieldSelector=status.podIP%3D10.0.0.9", "b"),
        ("fieldSelector=spec.restartPolicy%3DAlways", "a b c"),
        ("fieldSelector=spec.serviceAccountName%3Ddefault", "a b c"),
        ("fieldSelector=metadata.name%3Da&labelSelector=app%3Ddb", ""),
    ];
    for (query, want) in cases {
        let list = admin.get(&format!("{PODS}?{query}")).await.expect(200);
        assert_eq!(names(&list).join(" "), want, "{query}");
        let everywhere = admin.get(&format!("/api/v1/pods?{query}")).await.expect(200);
        assert_eq!(names(&everywhere).join(" "), want, "everywhere: {query}");
    }
    let bad = [
        "labelSelector=a%3D%3D%3Db",
        "labelSelector=,",
        "labelSelector=app+in+(",
        "labelSelector=-x",
        "labelSelector=a%3Eb",
        "fieldSelector=spec.color%3Dred",
        "fieldSelector=a",
        "fieldSelector=metadata.labels%3Dx",
    ];
    for query in bad {
        for path in [PODS.to_owned(), format!("{PODS}?watch=1")] {
            let sign = if path.contains('?') { '&' } else { '?' };
            admin.get(&format!("{path}{sign}{query}")).await.refused(400, "BadRequest");
        }
        admin.delete(&format!("{PODS}?{query}")).await.refused(400, "BadRequest");
    }
    let said = admin.get(&format!("{PODS}?fieldSelector=spec.color%3Dred")).await.refused(400, "BadRequest");
    assert!(said.contains("field label not supported: spec.color"), "{said}");
}

#[tokio::test]
async fn tables_and_metadata_alone() {
    let world = World::new().await;
    let admin = world.admin();
    admin.post(PODS, &scheduled("p")).await.expect(201);
    world.clock.advance(125);
    let tables = admin.header("accept", TABLE);
    let table = tables.get(PODS).await.expect(200);
    assert_eq!((text(&table, "/kind").as_str(), text(&table, "/apiVersion").as_str()), ("Table", "meta.k8s.io/v1"));
    assert_eq!(table["metadata"]["resourceVersion"], world.store.revision().to_string());
    let columns: Vec<String> =
        table["columnDefinitions"].as_array().unwrap().iter().map(|column| text(column, "/name")).collect();
    assert_eq!(
        columns,
        ["Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Nominated Node", "Readiness Gates"]
    );
    let row = &table["rows"][0];
    assert_eq!(
        row["cells"].as_array().unwrap()[..5],
        [json!("p"), json!("0/1"), json!("Pending"), json!("0"), json!("2m5s")]
    );
    assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(row["object"]["metadata"]["name"], "p");
    for (include, kind) in [("None", ""), ("Metadata", "PartialObjectMetadata"), ("Object", "Pod")] {
        let table = tables.get(&format!("{PODS}?includeObject={include}")).await.expect(200);
        assert_eq!(text(&table, "/rows/0/object/kind"), kind);
    }
    tables.get(&format!("{PODS}?includeObject=All")).await.refused(400, "BadRequest");
    assert_eq!(tables.get(&format!("{PODS}/p")).await.expect(200)["rows"][0]["cells"][0], "p");
    // Tables have pages as lists have, and an error is a Status.
    admin.post(PODS, &scheduled("q")).await.expect(201);
    let page = tables.get(&format!("{PODS}?limit=1")).await.expect(200);
    assert_eq!(page["rows"].as_array().unwrap().len(), 1);
    assert!(
        page["metadata"]["continue"].is_string() && page["metadata"]["remainingItemCount"] == 1,
        "{}",
        page["metadata"]
    );
    tables.get(&format!("{PODS}/none")).await.refused(404, "NotFound");

    let partial = admin.header("accept", METADATA);
    let one = partial.get(&format!("{PODS}/p")).await.expect(200);
    assert_eq!(one["kind"], "PartialObjectMetadata");
    assert!(one.get("spec").is_none());
    let list = admin.header("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io");
    let list = list.get(PODS).await.expect(200);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(names(&list), ["p", "q"]);
    assert!(list["items"][0].get("spec").is_none());
}

#[tokio::test]
async fn every_kind_has_a_table() {
    let world = World::new().await;
    let tables = world.admin().header("accept", TABLE);
    for kind in world.running.server.registry.kinds().iter().filter(|kind| kind.stored) {
        let root = if kind.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", kind.group) };
        let table = tables.get(&format!("{root}/{}/{}", kind.version, kind.plural)).await.expect(200);
        assert_eq!(table["kind"], "Table");
        let columns = table["columnDefinitions"].as_array().unwrap();
        assert_eq!(
            columns[0]["name"],
            if kind.kind == "Event" && kind.group.is_empty() {
                "Last Seen"
            } else {
                columns[0]["name"].as_str().unwrap()
            }
        );
        for row in table["rows"].as_array().unwrap() {
            assert_eq!(row["cells"].as_array().unwrap().len(), columns.len(), "{kind:?}");
        }
    }
}

#[tokio::test]
async fn forms_and_languages_of_requests_and_answers() {
    let world = World::new().await;
    let admin = world.admin();
    let accepts = [
        ("application/json", 200),
        ("*/*", 200),
        ("application/*", 200),
        ("application/vnd.kubernetes.protobuf, application/json", 200),
        ("application/vnd.kubernetes.protobuf", 406),
        ("text/html", 406),
        ("application/json;as=Table;v=v9;g=meta.k8s.io", 406),
        ("application/json;as=Table;v=v9;g=meta.k8s.io, application/json", 200),
        ("application/json;as=Elephant;v=v1;g=meta.k8s.io", 406),
    ];
    for (accept, code) in accepts {
        for path in [PODS.to_owned(), "/api/v1/namespaces/default".to_owned()] {
            let reply = admin.header("accept", accept).get(&path).await;
            assert_eq!(reply.code, code, "{accept} {path}: {}", reply.body);
            assert_eq!(reply.headers["content-type"], "application/json");
        }
    }
    admin.header("accept", "text/html").get(PODS).await.refused(406, "NotAcceptable");
    // A request with an unacceptable response form changes nothing.
    let before = world.store.revision();
    admin.header("accept", "text/html").post(CONFIG_MAPS, &config_map("z")).await.refused(406, "NotAcceptable");
    assert_eq!(world.store.revision(), before);

    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: why\ndata:\n  a: 'yes'\n";
    let made = admin.send("POST", CONFIG_MAPS, "application/yaml", yaml).await.expect(201);
    assert_eq!(made["data"]["a"], "yes");
    for media in ["text/plain", "application/xml", "application/x-www-form-urlencoded"] {
        admin.send("POST", CONFIG_MAPS, media, "{}").await.refused(415, "UnsupportedMediaType");
    }
    for media in ["application/json", "", "text/plain"] {
        admin.send("PATCH", &format!("{CONFIG_MAPS}/why"), media, "{}").await.refused(415, "UnsupportedMediaType");
    }
}

#[tokio::test]
async fn large_responses_are_compressed_for_clients_that_accept_it() {
    let world = World::new().await;
    let admin = world.admin();
    let mut large = config_map("large");
    large["data"]["key"] = json!("x".repeat(200_000));
    admin.post(CONFIG_MAPS, &large).await.expect(201);
    let plain = admin.get(CONFIG_MAPS).await;
    assert!(plain.headers.get("content-encoding").is_none());
    let packed = admin.header("accept-encoding", "gzip").get(CONFIG_MAPS).await;
    assert_eq!(packed.headers["content-encoding"], "gzip");
    assert!(packed.bytes.len() < 10_000);
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&packed.bytes[..]).read_to_end(&mut unpacked).unwrap();
    assert_eq!(unpacked, plain.bytes);
    let refused = admin.header("accept-encoding", "gzip;q=0").get(CONFIG_MAPS).await;
    assert!(refused.headers.get("content-encoding").is_none());
    let small = admin.header("accept-encoding", "gzip").get("/api/v1/namespaces/default").await;
    assert!(small.headers.get("content-encoding").is_none());
}
