//! Overload: a thousand watchers, one that does not read, and more requests than two cores can answer.

use crate::support::{Cluster, PATIENCE, Place, Running, mainstay};
use crate::talk::*;
use bytes::Bytes;
use futures::future::join_all;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::ConfigExt;
use serde_json::json;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
/// An ordinary user with all permissions: requests of administrators are not limited.
const LOADER: &str = "loader";
const WATCHERS: usize = 1000;
const PER_CONNECTION: usize = 100;
const CHANGES: usize = 50;

/// One connection that carries many requests concurrently.
async fn wide(kubeconfig: &Path) -> SendRequest<Full<Bytes>> {
    let config = kube::config::Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.expect("a config");
    let mut tls = config.rustls_client_config().expect("TLS");
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let port = config.cluster_url.port_u16().expect("a port");
    let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
    let name = rustls::pki_types::ServerName::try_from("127.0.0.1").expect("an address");
    let stream = tokio_rustls::TlsConnector::from(Arc::new(tls)).connect(name, stream).await.expect("TLS");
    let builder = http2::Builder::new(TokioExecutor::new());
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.expect("HTTP/2");
    // The connection task ends with the server.
    tokio::spawn(async move { drop(connection.await) });
    sender
}

async fn get(sender: &mut SendRequest<Full<Bytes>>, path: &str) -> http::Response<Incoming> {
    let request = Request::get(format!("https://127.0.0.1{path}")).header("impersonate-user", LOADER);
    let request = request.body(Full::default()).expect("a request");
    sender.send_request(request).await.expect("an answer")
}

async fn start() -> (Cluster, kube::Client) {
    let cluster = tokio::task::block_in_place(|| Cluster::start(Place::InMemory));
    let client = connect(&cluster.kubeconfig).await;
    let_loader_in(&client).await;
    (cluster, client)
}

async fn let_loader_in(client: &kube::Client) {
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": LOADER},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": LOADER}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    done(client, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", Some(&binding)).await;
}

fn map(name: &str, pad: usize) -> serde_json::Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"pad": "x".repeat(pad)}})
}

async fn resident_bytes(client: &kube::Client) -> f64 {
    let text =
        client.request_text(Request::get("/metrics").body(Vec::new()).expect("a request")).await.expect("metrics");
    let line = text.lines().find(|line| line.starts_with("process_resident_memory_bytes ")).expect("a figure");
    line.split(' ').nth(1).and_then(|figure| figure.parse().ok()).expect("a number")
}

/// Counts the changes in a watch until all have arrived.
async fn count_changes(mut body: Incoming, wanted: usize) -> usize {
    let mut count = 0;
    while count < wanted {
        let frame = body.frame().await.expect("the watch goes on").expect("the watch goes on");
        // Each change is a line, in any number of chunks.
        count += frame.data_ref().map_or(0, |data| data.iter().filter(|byte| **byte == b'\n').count());
    }
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_watchers_hear_everything_though_one_does_not_read() {
    let (cluster, client) = start().await;
    let object = done(&client, "POST", MAPS, Some(&map("m", 10))).await;
    let large = done(&client, "POST", MAPS, Some(&map("large", 10))).await;
    let all = format!("{MAPS}?watch=1&resourceVersion={}", version(&large));
    let one = format!("{MAPS}?watch=1&resourceVersion={}&fieldSelector=metadata.name%3Dm", version(&object));
    let mut slow_connection = wide(&cluster.kubeconfig).await;
    let slow = get(&mut slow_connection, &all).await.into_body();
    let mut watches = Vec::new();
    for _ in 0..WATCHERS / PER_CONNECTION {
        let mut connection = wide(&cluster.kubeconfig).await;
        for _ in 0..PER_CONNECTION {
            let response = get(&mut connection, &one).await;
            assert_eq!(response.status(), 200);
            watches.push(tokio::spawn(count_changes(response.into_body(), CHANGES)));
        }
    }
    let before = resident_bytes(&client).await;
    for at in 0..CHANGES {
        done(&client, "PATCH", &format!("{MAPS}/m"), Some(&json!({"data": {"at": at.to_string()}}))).await;
        // More than all buffers can hold, for the watcher that does not read.
        let patch = json!({"data": {"at": at.to_string(), "pad": "y".repeat(500_000)}});
        done(&client, "PATCH", &format!("{MAPS}/large"), Some(&patch)).await;
    }
    let heard = tokio::time::timeout(PATIENCE, join_all(watches)).await.expect("all hear in time");
    assert!(heard.iter().all(|count| *count.as_ref().expect("no panic") == CHANGES));
    let grown = resident_bytes(&client).await - before;
    println!("{WATCHERS} watchers heard {CHANGES} changes each; {:.0} MiB more resident", grown / 1048576.0);
    // The server keeps the changes once for a while, and nothing per watcher.
    assert!(grown < 200e6, "{grown} bytes more");
    // A slow watcher has missed nothing either.
    let late = tokio::time::timeout(PATIENCE, count_changes(slow, 2 * CHANGES)).await.expect("it catches up");
    assert_eq!(late, 2 * CHANGES);
}

/// The reads of the load, and the lease that must be renewed meanwhile.
async fn store_maps_and_lease(client: &kube::Client, count: usize) {
    let writes = (0..count).map(|at| {
        let (client, map) = (client.clone(), map(&format!("m{at}"), 1000));
        async move { done(&client, "POST", MAPS, Some(&map)).await }
    });
    join_all(writes).await;
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
    done(client, "POST", LEASE, Some(&lease)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_and_leases_go_on_under_more_load_than_there_are_cores() {
    let (cluster, client) = start().await;
    store_maps_and_lease(&client, 500).await;
    let (stop, answered, shed) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut load = Vec::new();
    for _ in 0..4 {
        let connection = wide(&cluster.kubeconfig).await;
        for _ in 0..100 {
            let (mut connection, stop, answered, shed) =
                (connection.clone(), stop.clone(), answered.clone(), shed.clone());
            load.push(tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let response = get(&mut connection, MAPS).await;
                    match response.status().as_u16() {
                        200 => answered.fetch_add(1, Ordering::Relaxed),
                        429 => {
                            assert!(response.headers().contains_key("retry-after"));
                            shed.fetch_add(1, Ordering::Relaxed)
                        }
                        code => panic!("{code}"),
                    };
                    drop(response.into_body().collect().await);
                }
            }));
        }
    }
    // First the load begins, then the test measures.
    let deadline = Instant::now() + PATIENCE;
    while answered.load(Ordering::Relaxed) < 100 {
        assert!(Instant::now() < deadline, "nothing is answered");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut slowest = Duration::ZERO;
    let begun = Instant::now();
    let mut renewed = 0;
    while begun.elapsed() < Duration::from_secs(setting("MAINSTAY_TEST_LOAD_SECONDS", 4)) {
        let started = Instant::now();
        let health = Request::get("/readyz").body(Vec::new()).expect("a request");
        assert_eq!(client.request_text(health).await.expect("healthy"), "ok");
        let renewal = json!({"spec": {"renewTime": jiff::Timestamp::now().to_string()}});
        done(&client, "PATCH", &format!("{LEASE}/l"), Some(&renewal)).await;
        renewed += 1;
        slowest = slowest.max(started.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stop.store(true, Ordering::Relaxed);
    for task in load {
        task.await.expect("no panic");
    }
    let (answered, shed) = (answered.load(Ordering::Relaxed), shed.load(Ordering::Relaxed));
    println!(
        "400 clients at once: {answered} lists, {shed} shed; {renewed} leases renewed, the slowest with health in {slowest:?}"
    );
    // A lease expires after 10 s.
    assert!(slowest < Duration::from_secs(8), "{slowest:?}");
}

/// With room for two writers, 64 write concurrently: most are told to retry, and exactly those have written nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_that_are_too_many_are_told_when_to_come_back() {
    const WRITERS: usize = 64;
    // No other client writes: the one controller has nothing to do.
    let alone = ["--controllers", "statefulset-controller", "--nodes", "0", "--no-builtin-storage"];
    let arguments = [&alone[..], &["--max-mutating-requests-inflight", "2"]].concat();
    let directory = tempfile::tempdir().expect("a directory");
    let place = Place::Directory(directory.path());
    let cluster = tokio::task::block_in_place(|| Cluster::start_with(place, &arguments));
    let client = connect(&cluster.kubeconfig).await;
    let_loader_in(&client).await;
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}});
    done(&client, "POST", LEASE, Some(&lease)).await;
    let (stop, shed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let (mut connection, stop, shed) = (wide(&cluster.kubeconfig).await, stop.clone(), shed.clone());
        writers.push(tokio::spawn(async move {
            let (mut written, mut refused) = (Vec::new(), Vec::new());
            for at in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let name = format!("m{writer}-{at}");
                let body = Full::from(map(&name, 100).to_string());
                let request = Request::post(format!("https://127.0.0.1{MAPS}"))
                    .header("content-type", "application/json")
                    .header("impersonate-user", LOADER);
                let response =
                    connection.send_request(request.body(body).expect("a request")).await.expect("an answer");
                match response.status().as_u16() {
                    201 => written.push(name),
                    429 => {
                        assert_eq!(response.headers()["retry-after"], "1");
                        shed.fetch_add(1, Ordering::Relaxed);
                        refused.push(name);
                    }
                    code => panic!("{code}"),
                }
                drop(response.into_body().collect().await);
            }
            (written, refused)
        }));
    }
    // Health checks and leases work while other requests are refused.
    let deadline = Instant::now() + PATIENCE;
    let mut renewed = 0;
    while shed.load(Ordering::Relaxed) < 200 || renewed < 20 {
        assert!(Instant::now() < deadline, "{} were told to come back", shed.load(Ordering::Relaxed));
        let health = Request::get("/readyz").body(Vec::new()).expect("a request");
        assert_eq!(client.request_text(health).await.expect("healthy"), "ok");
        let renewal = json!({"spec": {"renewTime": jiff::Timestamp::now().to_string()}});
        done(&client, "PATCH", &format!("{LEASE}/l"), Some(&renewal)).await;
        renewed += 1;
    }
    stop.store(true, Ordering::Relaxed);
    let (mut written, mut refused) = (HashSet::new(), 0);
    for writer in writers {
        let (wrote, was_refused) = writer.await.expect("no panic");
        written.extend(wrote);
        refused += was_refused.len();
    }
    let list = done(&client, "GET", MAPS, None).await;
    let there = list["items"].as_array().expect("a list").iter().filter_map(|map| map["metadata"]["name"].as_str());
    let there: HashSet<String> = there.filter(|name| name.starts_with('m')).map(str::to_owned).collect();
    println!("{WRITERS} writers: {} written, {refused} told to come back, {renewed} leases renewed", written.len());
    let differ: Vec<_> = there.symmetric_difference(&written).collect();
    assert!(differ.is_empty(), "what was acknowledged is there, what was refused is not: {differ:?}");
    done(&client, "POST", MAPS, Some(&map("after", 10))).await;
}

/// With room for one reader, 32 read concurrently: refused readers are told to retry, and the others get the whole
/// list. Health checks and leases work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_are_too_many_are_told_when_to_come_back() {
    const READERS: usize = 32;
    const STORED: usize = 500;
    let home = tempfile::tempdir().expect("a directory");
    let kubeconfig = home.path().join("kubeconfig");
    let mut command = mainstay(home.path());
    // A read occupies its place while it is executed, so at most as many run as there are threads.
    command.env("TOKIO_WORKER_THREADS", "4").args(["up", "--in-memory", "--listen", "127.0.0.1:0", "--kubeconfig"]);
    command.arg(&kubeconfig).args(["--nodes", "0", "--no-builtin-storage", "--max-requests-inflight", "1"]);
    // No other client reads for long: the one controller has nothing to do.
    command.args(["--controllers", "statefulset-controller"]);
    let mut program = Running::start(command);
    tokio::task::block_in_place(|| program.line_with(&["Ctrl-C"]));
    let client = connect(&kubeconfig).await;
    let_loader_in(&client).await;
    store_maps_and_lease(&client, STORED).await;
    let (stop, answered, shed) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let mut connection = wide(&kubeconfig).await;
        let (stop, answered, shed) = (stop.clone(), answered.clone(), shed.clone());
        readers.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let response = get(&mut connection, MAPS).await;
                let (code, again) = (response.status().as_u16(), response.headers().get("retry-after").cloned());
                let body = response.into_body().collect().await.expect("an answer").to_bytes();
                match code {
                    200 => {
                        assert!(body.len() > STORED * 1000, "a list of {} bytes", body.len());
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    429 => {
                        assert_eq!(again.expect("Retry-After"), "1");
                        shed.fetch_add(1, Ordering::Relaxed);
                    }
                    code => panic!("{code}"),
                }
            }
        }));
    }
    let begun = Instant::now();
    let (mut renewed, mut slowest) = (0, Duration::ZERO);
    let count = |of: &AtomicUsize| of.load(Ordering::Relaxed);
    while count(&shed) < 200 || count(&answered) < 50 || renewed < 20 {
        let (shed, answered) = (count(&shed), count(&answered));
        assert!(begun.elapsed() < PATIENCE, "{answered} answered, {shed} told to come back, {renewed} leases");
        let started = Instant::now();
        for path in ["/healthz", "/readyz"] {
            let health = Request::get(path).body(Vec::new()).expect("a request");
            assert_eq!(client.request_text(health).await.expect("healthy"), "ok");
        }
        // Renewing a lease reads it first.
        done(&client, "GET", &format!("{LEASE}/l"), None).await;
        let renewal = json!({"spec": {"renewTime": jiff::Timestamp::now().to_string()}});
        done(&client, "PATCH", &format!("{LEASE}/l"), Some(&renewal)).await;
        renewed += 1;
        slowest = slowest.max(started.elapsed());
    }
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.await.expect("no panic");
    }
    let (answered, shed) = (count(&answered), count(&shed));
    println!(
        "{READERS} readers: {answered} lists, {shed} told to come back; {renewed} leases renewed, the slowest with health in {slowest:?}"
    );
    // A lease expires after 10 s.
    assert!(slowest < Duration::from_secs(8), "{slowest:?}");
    // Afterwards there is room again, except for a moment in which the controller reads.
    while let Answer::Refused(429, _) = ask(&client, "GET", &format!("{MAPS}/m0"), None).await {
        assert!(begun.elapsed() < 2 * PATIENCE, "there is no room");
    }
}
