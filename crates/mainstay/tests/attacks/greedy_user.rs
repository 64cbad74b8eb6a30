//! One user tries to block the writes, or the new watches, of all others.

use crate::clients::*;
use crate::support::{Client, Cluster, PATIENCE};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::time::Instant;

/// How many requests clients of one connection may send concurrently, at most.
const PER_CONNECTION: usize = 210;
const WATCHES_PER_CONNECTION: usize = 250;

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

/// Everything that must work during an attack; `round` names the objects.
async fn everybody_else_works(cluster: &Cluster, round: &str) {
    let admin = Client::new(&cluster.kubeconfig, &cluster.url).await;
    let kim = with_token(&cluster.kubeconfig, KIM).await;
    for at in 0..20 {
        admin.create(MAPS, &map(&format!("admin-{round}-{at}"))).await.expect("an administrator writes");
        kim.create(MAPS, &map(&format!("kim-{round}-{at}"))).await.expect("another user writes");
    }
    kim.get(MAPS).await;
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": round}});
    kim.create(LEASES, &lease).await.expect("a lease");
    let renewal = json!({"metadata": {"name": round}, "spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}});
    kim.send("PUT", &format!("{LEASES}/{round}"), &renewal).await.expect("a lease is renewed");
    // The StatefulSet controller writes the pod, scheduler and node start it, and all of them need their watches.
    let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": round}, "spec": {
        "replicas": 1, "serviceName": "s", "selector": {"matchLabels": {"app": round}},
        "template": {"metadata": {"labels": {"app": round}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let sets = "/apis/apps/v1/namespaces/default/statefulsets";
    kim.create(sets, &set).await.expect("a set");
    for token in [Some(KIM), None] {
        let client = match token {
            Some(token) => with_token(&cluster.kubeconfig, token).await,
            None => Client::new(&cluster.kubeconfig, &cluster.url).await,
        };
        let path = format!("{sets}?watch=1&fieldSelector=metadata.name%3D{round}");
        let request = http::Request::get(path).body(kube::client::Body::empty()).expect("a request");
        let watch = client.0.send(request).await.expect("a new watch");
        assert_eq!(watch.status(), 200);
        let mut body = watch.into_body();
        let mut seen = String::new();
        let ready = async {
            while !seen.contains("\"readyReplicas\":1") {
                let frame = body.frame().await.expect("the watch goes on").expect("the watch goes on");
                seen.push_str(&String::from_utf8_lossy(frame.data_ref().expect("events")));
            }
        };
        tokio::time::timeout(PATIENCE, ready).await.expect("the controllers work");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_without_a_body_stop_no_other_user() {
    let (cluster, _home) = start(&[]).await;
    let admin = Client::new(&cluster.kubeconfig, &cluster.url).await;
    let mut waiting = FuturesUnordered::new();
    // Twice as many as in the attack that was found, and more than one user may have concurrently.
    for _ in 0..12 {
        let connection = connect(&cluster.kubeconfig).await;
        for _ in 0..PER_CONNECTION {
            let mut connection = connection.clone();
            waiting.push(tokio::spawn(async move {
                // The connection task ends with the server.
                let response = connection.send_request(request("POST", MAPS, MALLORY, silent())).await.ok()?;
                Some(outcome(response).await)
            }));
        }
    }
    // The attack has begun when the first request is refused.
    let first = tokio::time::timeout(PATIENCE, waiting.next()).await.expect("a refusal");
    assert_eq!(first.expect("a request").expect("no panic").expect("an answer"), (429, Some("1".to_owned())));
    let begun = Instant::now();
    everybody_else_works(&cluster, "bodies").await;
    println!("during the attack all others worked within {:?}", begun.elapsed());
    let refused = "mainstay_requests_rejected_total{priority_level=\"ordinary\",reason=\"arriving_bodies\"}";
    assert!(metric(&admin, refused).await.expect("a figure") >= 1.0);
    // None of the waiting requests is executed: the only running request may be one that reads the metrics.
    let at_work = metric(&admin, "apiserver_current_inflight_requests{request_kind=\"mutating\"}").await;
    assert!(at_work.expect("a figure") < 20.0, "{at_work:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_of_one_user_leave_room_for_others() {
    let (cluster, _home) = start(&[]).await;
    let path = format!("{MAPS}?watch=1&resourceVersion=0&fieldSelector=metadata.name%3Dm");
    let (mut open, mut refused) = (Vec::new(), 0);
    let begun = Instant::now();
    while refused == 0 {
        let connection = connect(&cluster.kubeconfig).await;
        let asked = (0..WATCHES_PER_CONNECTION).map(|_| {
            let (mut connection, path) = (connection.clone(), path.clone());
            async move { connection.send_request(request("GET", &path, MALLORY, empty())).await.expect("an answer") }
        });
        for response in futures::future::join_all(asked).await {
            match response.status().as_u16() {
                200 => open.push(response),
                code => {
                    assert_eq!((code, outcome(response).await.1), (429, Some("1".to_owned())));
                    refused += 1;
                }
            }
        }
        assert!(open.len() < 20_000, "one user has all watches");
    }
    println!("{} watches of one user in {:?}", open.len(), begun.elapsed());
    assert_eq!(open.len(), 10_000);
    everybody_else_works(&cluster, "watches").await;
    // Watches that the attacker closes can be opened again.
    drop(open);
    let mallory = with_token(&cluster.kubeconfig, MALLORY).await;
    let deadline = Instant::now() + PATIENCE;
    while mallory.answer("GET", &format!("{path}&timeoutSeconds=1"), &Value::Null).await.0 != 200 {
        assert!(Instant::now() < deadline, "the watches are not given back");
    }
}

/// Response memory: large responses that one user does not read leave room for the responses of others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_responses_that_one_user_does_not_read_leave_room_for_others() {
    let (cluster, _home) = start(&[]).await;
    let kim = with_token(&cluster.kubeconfig, KIM).await;
    for at in 0..16 {
        let mut large = map(&format!("large-{at}"));
        large["data"] = json!({"pad": "x".repeat(1_000_000)});
        kim.create(MAPS, &large).await.expect("a large object");
    }
    let mut unread = Vec::new();
    let refused = loop {
        let mut connection = connect(&cluster.kubeconfig).await;
        let response = connection.send_request(request("GET", MAPS, MALLORY, empty())).await.expect("an answer");
        if response.status() != 200 {
            break outcome(response).await;
        }
        unread.push((connection, response));
        assert!(unread.len() < 100, "one user has all the memory");
    };
    assert_eq!(refused, (429, Some("1".to_owned())));
    println!("{} lists of 16 MB each that one user does not read", unread.len());
    assert_eq!(kim.get(MAPS).await["items"].as_array().expect("a list").len(), 17);
}
