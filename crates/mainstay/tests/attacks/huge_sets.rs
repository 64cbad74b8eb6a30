//! A StatefulSet whose spec requests far more than its own size: the server's memory stays bounded, other users are
//! served, and the set can be deleted, also after a restart.

use crate::support::{Client, Cluster, PATIENCE, Place, Trouble};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The limit of the program's memory at any time. Idle it needs about 65 MB (debug build).
const MEMORY_MAX_MB: u64 = 300;
/// Another user's set is ready, and the huge one deleted, within this time. (Debug build on a busy machine; usually
/// about 1 s.)
const PROMPT: Duration = Duration::from_secs(30);

fn set(name: &str, replicas: i64) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name},
        "spec": {
            "podManagementPolicy": "Parallel", "replicas": replicas, "serviceName": name,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "main", "image": "none"}]},
            },
        },
    })
}

/// 2^31 - 1 replicas with 250 claims of 9 KB each: a replica takes 2.2 MB.
fn many_claims() -> Value {
    let template = |at| {
        json!({
            "metadata": {"name": format!("c{at}"), "annotations": {"note": "x".repeat(9_000)}},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
        })
    };
    let mut set = set("huge", i32::MAX.into());
    set["spec"]["volumeClaimTemplates"] = (0..250).map(template).collect();
    set
}

/// 2^31 - 1 replicas with one value of 2.5 MB.
fn large_pods() -> Value {
    let mut set = set("huge", i32::MAX.into());
    set["spec"]["template"]["spec"]["containers"][0]["env"] = json!([{"name": "X", "value": "x".repeat(2_500_000)}]);
    set
}

fn sets(namespace: &str) -> String {
    format!("/apis/apps/v1/namespaces/{namespace}/statefulsets")
}

/// The number of objects in a collection.
async fn count(client: &Client, collection: &str) -> u64 {
    let page = client.get(&format!("{collection}?limit=1")).await;
    let first = page["items"].as_array().expect("a list").len() as u64;
    first + page["metadata"]["remainingItemCount"].as_u64().unwrap_or(0)
}

async fn until<F: Future<Output = bool>>(what: &str, patience: Duration, mut holds: impl FnMut() -> F) {
    let deadline = Instant::now() + patience;
    while !holds().await {
        assert!(Instant::now() < deadline, "not within {patience:?}: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The peak memory of the program so far.
fn check_memory(cluster: &Cluster, when: &str) {
    let status = std::fs::read_to_string(format!("/proc/{}/status", cluster.id())).expect("the program runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(kib / 1024 < MEMORY_MAX_MB, "{when} the program took {} MB", kib / 1024);
}

async fn start(data: &TempDir) -> (Cluster, Client) {
    let cluster = tokio::task::block_in_place(|| Cluster::start(Place::Directory(data.path())));
    let client = Client::new(&cluster.kubeconfig, &cluster.url).await;
    (cluster, client)
}

/// Another user creates a set of three in a namespace of their own and waits until it is ready.
async fn serves_others(client: &Client, namespace: &str) {
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    client.create("/api/v1/namespaces", &body).await.expect("the namespace is created");
    client.create(&sets(namespace), &set("small", 3)).await.expect("the set is created");
    let path = format!("{}/small", sets(namespace));
    until("another user's set is ready", PROMPT, async || client.get(&path).await["status"]["readyReplicas"] == 3)
        .await;
}

async fn delete_huge(client: &Client) {
    let path = format!("{}/huge", sets("default"));
    client.send("DELETE", &path, &Value::Null).await.expect("the set is deleted");
    let is_gone = async || matches!(client.send("GET", &path, &Value::Null).await, Err(Trouble::Refused(404, _)));
    until("the huge set is gone", PROMPT, is_gone).await;
}

/// The set is created, reconciled for a while, survives a restart, and is deleted.
async fn attack(huge: Value, grows: &str, to: u64) {
    let data = TempDir::new().expect("a directory");
    let (cluster, client) = start(&data).await;
    client.create(&sets("default"), &huge).await.expect("the set is created");
    until("the set grows", 2 * PATIENCE, async || count(&client, grows).await >= to).await;
    serves_others(&client, "before").await;
    check_memory(&cluster, "before the restart");
    tokio::task::block_in_place(|| cluster.crash());

    let (cluster, client) = start(&data).await;
    serves_others(&client, "after").await;
    until("the set grows on", 2 * PATIENCE, async || count(&client, grows).await >= to + to / 2).await;
    check_memory(&cluster, "after the restart");
    delete_huge(&client).await;
    check_memory(&cluster, "after the deletion");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_of_huge_replicas_does_not_fill_the_memory() {
    attack(many_claims(), "/api/v1/namespaces/default/persistentvolumeclaims", 800).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_of_huge_pods_does_not_fill_the_memory() {
    attack(large_pods(), "/api/v1/namespaces/default/pods", 6).await;
}

/// With a quota of three claims, the set gets three claims and tries to create only a few more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_stops_a_set_at_once() {
    let data = TempDir::new().expect("a directory");
    let (cluster, client) = start(&data).await;
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"},
        "spec": {"hard": {"pods": "3", "persistentvolumeclaims": "3"}},
    });
    client.create("/api/v1/namespaces/default/resourcequotas", &quota).await.expect("the quota is created");
    client.create(&sets("default"), &many_claims()).await.expect("the set is created");
    let refused = async || {
        let events = client.get("/api/v1/namespaces/default/events?fieldSelector=reason%3DFailedCreate").await;
        let events = events["items"].as_array().expect("a list").clone();
        events.iter().map(|event| event["count"].as_u64().unwrap_or(1)).sum::<u64>()
    };
    until("the set is refused", PROMPT, async || refused().await > 0).await;
    serves_others(&client, "others").await;
    assert_eq!(count(&client, "/api/v1/namespaces/default/persistentvolumeclaims").await, 3);
    assert_eq!(count(&client, "/api/v1/namespaces/default/pods").await, 0);
    // Each attempt tries one claim, or a few; the backoff between attempts doubles.
    let refused = refused().await;
    assert!(refused < 200, "{refused} refusals");
    delete_huge(&client).await;
    check_memory(&cluster, "with a quota");
}

/// Each small change to a set with a large template adds a revision as large as the template, and the set keeps them
/// all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_of_large_revisions_does_not_fill_the_memory() {
    let data = TempDir::new().expect("a directory");
    let (cluster, client) = start(&data).await;
    let mut huge = large_pods();
    huge["spec"]["replicas"] = json!(0);
    huge["spec"]["revisionHistoryLimit"] = json!(i32::MAX);
    client.create(&sets("default"), &huge).await.expect("the set is created");
    let (path, revisions) =
        (format!("{}/huge", sets("default")), "/apis/apps/v1/namespaces/default/controllerrevisions");
    for change in 0..60_u64 {
        let patch =
            json!([{"op": "add", "path": "/spec/template/metadata/annotations", "value": {"n": change.to_string()}}]);
        let request = http::Request::patch(&path).header("content-type", "application/json-patch+json");
        let request = request.body(patch.to_string().into_bytes()).expect("a request");
        client.0.request::<Value>(request).await.expect("the set is changed");
        let observed = async || client.get(&path).await["status"]["observedGeneration"].as_u64() >= Some(change + 2);
        until("the change is observed", PROMPT, observed).await;
    }
    let kept = count(&client, revisions).await;
    assert!((2..10).contains(&kept), "{kept} revisions of 2.5 MB");
    serves_others(&client, "others").await;
    check_memory(&cluster, "with a history of 60 changes");
}
