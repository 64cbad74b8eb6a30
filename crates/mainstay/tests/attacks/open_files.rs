//! A client opens more connections than the server may have open files.

use crate::clients::*;
use crate::support::{Client, Cluster, PATIENCE};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// The limit of open files in the attack that was found, and its connections.
const FILES: u32 = 1024;
const CONNECTIONS: usize = 1_100;
/// How long a probe of a kubelet or a load balancer waits.
const PROBE_TIME_MAX: Duration = Duration::from_secs(5);

/// The limit of open files of this test, which has as many connections as the attacker.
fn raise_own_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("the soft limit can be raised");
}

async fn idle(cluster: &Cluster) -> TcpStream {
    let address = cluster.url.trim_start_matches("https://");
    TcpStream::connect(address).await.expect("a connection")
}

/// Everything that must work: probes and users on new connections, and the store.
async fn everybody_else_works(cluster: &Cluster, round: &str) {
    for at in 0..5 {
        let probe = with_token(&cluster.kubeconfig, "").await;
        let probe = tokio::time::timeout(PROBE_TIME_MAX, probe.answer("GET", "/healthz", &Value::Null));
        assert_eq!(probe.await.expect("the probe is answered in time").0, 200);
        let admin = Client::new(&cluster.kubeconfig, &cluster.url).await;
        let kim = with_token(&cluster.kubeconfig, KIM).await;
        for (client, name) in [(admin, "admin"), (kim, "kim")] {
            let map =
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("{name}-{round}-{at}")}});
            client.create(MAPS, &map).await.expect("a write");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_keep_no_client_out() {
    raise_own_limit();
    let (cluster, _home) = start_with_files(Some((256, FILES)), &[]).await;
    let admin = Client::new(&cluster.kubeconfig, &cluster.url).await;
    assert_eq!(metric(&admin, "process_max_fds").await, Some(f64::from(FILES)), "the soft limit was raised");
    let mut authenticated = connect(&cluster.kubeconfig).await;
    let get = || request("GET", MAPS, KIM, empty());
    assert_eq!(outcome(authenticated.send_request(get()).await.expect("an answer")).await.0, 200);

    let mut plain = Vec::new();
    for _ in 0..CONNECTIONS {
        plain.push(idle(&cluster).await);
    }
    everybody_else_works(&cluster, "plain").await;
    // A connection is still unauthenticated after the TLS handshake.
    let mut encrypted = Vec::new();
    for _ in 0..CONNECTIONS {
        encrypted.push(connect(&cluster.kubeconfig).await);
    }
    everybody_else_works(&cluster, "encrypted").await;

    let closed = metric(&admin, "mainstay_unauthenticated_connections_closed_total").await;
    assert!(closed.expect("a figure") >= 1_000.0, "{closed:?}");
    let oldest = tokio::time::timeout(PATIENCE, plain[0].read(&mut [0; 1])).await.expect("it was closed");
    assert!(matches!(oldest, Ok(0) | Err(_)), "{oldest:?}");
    let answer = authenticated.send_request(get()).await.expect("the connection of a user stays open");
    assert_eq!(outcome(answer).await.0, 200);
    let open = metric(&admin, "process_open_fds").await.expect("a figure");
    assert!(open <= f64::from(FILES) * 0.75, "{open} files are open: some are reserved for the store");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_one_user_keep_no_client_out() {
    raise_own_limit();
    let (cluster, _home) = start_with_files(Some((FILES, FILES)), &[]).await;
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut connection = connect(&cluster.kubeconfig).await;
        // The server may have closed this connection for the next one already.
        if let Ok(answer) = connection.send_request(request("GET", MAPS, MALLORY, empty())).await {
            assert_eq!(outcome(answer).await.0, 200);
        }
        held.push(connection);
    }
    everybody_else_works(&cluster, "user").await;
    let admin = Client::new(&cluster.kubeconfig, &cluster.url).await;
    let open = metric(&admin, "process_open_fds").await.expect("a figure");
    assert!(open <= f64::from(FILES) * 0.75, "{open} files are open: some are reserved for the store");
}
