//! A server while its etcd is down or does not respond: what clients see, and that everything resumes by itself. The
//! table is in `docs/operations/several-servers.md`.

mod support;

use futures::{AsyncBufReadExt, StreamExt, TryStreamExt};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use store::suite::Members;
use support::{Client, Cluster, PATIENCE, Place};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn config_map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"count": "0"}})
}

fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().expect("a version").to_owned()
}

/// A server, its etcd with one member, and a client; `None` if etcd is not installed.
async fn server_on_etcd() -> Option<(Members, Cluster, Client)> {
    let members = Members::start(1)?;
    let url = members.url();
    let cluster = tokio::task::spawn_blocking(move || Cluster::start_server(Place::Etcd(&url))).await.unwrap();
    let client = Client::new(&cluster.kubeconfig, &cluster.url).await;
    Some((members, cluster, client))
}

/// Checks a refusal that Kubernetes clients understand: a Status and Retry-After.
fn refused((code, headers, body): (u16, http::HeaderMap, Value), expected: &[u16]) -> String {
    assert!(expected.contains(&code), "{code} {body}");
    assert_eq!((&body["kind"], &body["code"]), (&json!("Status"), &json!(code)), "{body}");
    assert!(headers.contains_key("retry-after"), "{code} {body}");
    body["message"].as_str().expect("a message").to_owned()
}

/// Waits until the server's health is as expected.
async fn until_health(client: &Client, path: &str, expected: u16) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (code, _, body) = client.answer("GET", path, &Value::Null).await;
        if code == expected {
            return body.as_str().unwrap_or_default().to_owned();
        }
        assert!(Instant::now() < deadline, "{path} is still {code}: {body}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Watches ConfigMaps from a version on; returns the names in the events.
async fn watch(client: &Client, from: &str) -> futures::stream::BoxStream<'static, String> {
    let request = http::Request::get(format!("{MAPS}?watch=1&resourceVersion={from}")).body(Vec::new()).unwrap();
    let stream = client.0.request_stream(request).await.expect("a watch");
    let names = stream.lines().into_stream().map(|line| {
        let event: Value = serde_json::from_str(&line.expect("the watch stays open")).expect("JSON");
        event["object"]["metadata"]["name"].as_str().expect("a name").to_owned()
    });
    Box::pin(names)
}

async fn next(watch: &mut futures::stream::BoxStream<'static, String>) -> String {
    tokio::time::timeout(PATIENCE, watch.next()).await.expect("the watch tells").expect("the watch stays open")
}

/// The responses of a server whose etcd does not respond.
async fn while_away(client: &Client, known: &str) {
    let nothing = &Value::Null;
    let one = format!("{MAPS}/kept");
    let (new, changed) = (config_map("while-away"), config_map("kept"));
    // Concurrently, because each request waits for etcd for a while.
    let (get, list, create, update, delete, health) = tokio::join!(
        client.answer("GET", &one, nothing),
        client.answer("GET", MAPS, nothing),
        client.answer("POST", MAPS, &new),
        client.answer("PUT", &one, &changed),
        client.answer("DELETE", &one, nothing),
        until_health(client, "/readyz?verbose", 500),
    );
    for answer in [get, list, create, update, delete] {
        let message = refused(answer, &[503]);
        assert!(message.contains("the store cannot be reached"), "{message}");
    }
    assert!(health.contains("[-]store failed"), "{health}");
    assert!(health.contains("127.0.0.1:"), "who does not answer is said: {health}");
    for path in ["/healthz", "/livez"] {
        assert_eq!(client.answer("GET", path, nothing).await.0, 500, "{path}");
    }
    assert_eq!(client.answer("GET", "/livez?exclude=store", nothing).await.0, 200, "it need not be restarted");
    // A request that names an old enough version is answered from memory.
    let began = Instant::now();
    for path in [
        format!("{one}?resourceVersion=0"),
        format!("{MAPS}?resourceVersion=0"),
        format!("{MAPS}?resourceVersion={known}"),
    ] {
        let (code, _, body) = client.answer("GET", &path, nothing).await;
        assert_eq!(code, 200, "{path}: {body}");
        assert!(body.to_string().contains("\"kept\""), "{body}");
    }
    assert!(began.elapsed() < Duration::from_secs(2), "without asking etcd: {:?}", began.elapsed());
}

/// First frozen, then killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_etcd_is_away_clients_are_told_and_afterwards_all_goes_on() {
    let Some((mut members, cluster, client)) = server_on_etcd().await else { return };
    let kept = client.create(MAPS, &config_map("kept")).await.unwrap();
    let known = version(&client.get(MAPS).await);
    let mut running = watch(&client, &known).await;
    for away in ["frozen", "killed"] {
        match away {
            "frozen" => members.pause(0),
            _ => members.kill(0),
        }
        while_away(&client, &known).await;
        // New watches begin too, from the server's cache.
        let mut begun = watch(&client, &known).await;
        match away {
            "frozen" => members.resume(0),
            _ => members.restart(0),
        }
        until_health(&client, "/readyz", 200).await;
        client.create(MAPS, &config_map(&format!("after-{away}"))).await.unwrap();
        assert_eq!(next(&mut running).await, format!("after-{away}"), "the same watch goes on, and has missed nothing");
        assert_eq!(next(&mut begun).await, "after-frozen");
        // A 503 promises that nothing was written.
        assert_eq!(client.get(&format!("{MAPS}/kept")).await, kept);
        assert_eq!(client.answer("GET", &format!("{MAPS}/while-away"), &Value::Null).await.0, 404);
    }
    drop(cluster);
}

/// Clients keep writing while etcd freezes: each write gets a response in time. Acknowledged writes exist, those with
/// 503 do not, and those with 504 may exist or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_on_their_way_when_etcd_freezes_are_answered_honestly() {
    let Some((members, _cluster, client)) = server_on_etcd().await else { return };
    let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), tokio::sync::watch::Sender::new(0));
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let (client, stop, acknowledged) = (client.clone(), stop.clone(), acknowledged.clone());
            tokio::spawn(async move {
                let mut outcomes = BTreeMap::new();
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let name = format!("w{writer}-{n}");
                    let began = Instant::now();
                    let answer = client.answer("POST", MAPS, &config_map(&name)).await;
                    assert!(began.elapsed() < PATIENCE, "an answer comes in time");
                    let code = answer.0;
                    match code {
                        201 => acknowledged.send_modify(|count| *count += 1),
                        _ => drop(refused(answer, &[503, 504])),
                    }
                    outcomes.insert(name, code);
                }
                outcomes
            })
        })
        .collect();
    acknowledged.subscribe().wait_for(|count| *count >= 50).await.expect("the writers are there");
    members.pause(0);
    until_health(&client, "/readyz", 500).await;
    stop.store(true, Ordering::Relaxed);
    let mut outcomes = BTreeMap::new();
    for writer in writers {
        outcomes.extend(writer.await.unwrap());
    }
    members.resume(0);
    until_health(&client, "/readyz", 200).await;
    let list = client.get(MAPS).await;
    let there: Vec<&str> =
        list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect();
    let count = |wanted: u16| outcomes.values().filter(|code| **code == wanted).count();
    for (name, code) in &outcomes {
        match code {
            201 => assert!(there.contains(&name.as_str()), "{name} was acknowledged"),
            503 => assert!(!there.contains(&name.as_str()), "{name} was refused"),
            _ => {}
        }
    }
    assert!(count(503) + count(504) >= 8, "each writer was told at least once: {outcomes:?}");
}

/// etcd accepts 1.5 MiB per request. A larger object is refused in one sentence, without other effects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_that_is_too_large_for_etcd_is_refused() {
    let Some((_members, _cluster, client)) = server_on_etcd().await else { return };
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let definition = json!({"metadata": {"name": "things.x.io"}, "spec": {"group": "x.io", "scope": "Cluster",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}]}});
    client.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await.unwrap();
    let thing = |name: &str, size: usize| json!({"apiVersion": "x.io/v1", "kind": "Thing", "metadata": {"name": name}, "text": "x".repeat(size)});
    let (code, _, body) = client.answer("POST", "/apis/x.io/v1/things", &thing("large", 2 << 20)).await;
    assert_eq!(
        (code, &body["kind"], &body["reason"]),
        (413, &json!("Status"), &json!("RequestEntityTooLarge")),
        "{body}"
    );
    let message = body["message"].as_str().unwrap();
    assert!(message.starts_with("the store does not take so much at once") && !message.contains('\n'), "{message}");
    client.create("/apis/x.io/v1/things", &thing("fits", 1 << 20)).await.unwrap();
    assert_eq!(client.answer("GET", "/apis/x.io/v1/things/large", &Value::Null).await.0, 404);
    assert_eq!(client.answer("GET", "/readyz", &Value::Null).await.0, 200);
}
