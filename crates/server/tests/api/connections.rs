//! Real connections: TLS, certificates, HTTP limits, and clients that misbehave.

use crate::support::*;
use crate::taken::ask;
use bytes::Bytes;
use futures::StreamExt;
use http_body::Frame;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use server::authn::{Identity, Pair};
use server::limits::Limits;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub async fn listening() -> (World, SocketAddr, Identity) {
    listening_with(Limits::default()).await
}

async fn listening_with(limits: Limits) -> (World, SocketAddr, Identity) {
    let now = jiff::Timestamp::now();
    let identity = Identity::make(&["localhost".to_owned()], now).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let store = store::Volatile::new(server::codec::finish, store::Options::default());
    let world = World::start_limited(store, identity.clone(), Some(listener), now.as_second(), limits).await;
    let address = world.running.address.unwrap();
    (world, address, identity)
}

pub async fn connect(address: SocketAddr, ca: &Pair, own: Option<&Pair>) -> TlsStream<TcpStream> {
    dial(address, ca, own, "").await
}

/// Like [`connect`], with a protocol for the handshake.
pub async fn dial(address: SocketAddr, ca: &Pair, own: Option<&Pair>, protocol: &str) -> TlsStream<TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.certificate_pem.as_bytes()).unwrap()).unwrap();
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => builder
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(own.certificate_pem.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(own.key_pem.as_bytes()).unwrap(),
            )
            .unwrap(),
    };
    if !protocol.is_empty() {
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    }
    let stream = TcpStream::connect(address).await.unwrap();
    TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), stream).await.unwrap()
}

/// Sends these bytes, and reads until the connection ends or the response contains what is expected.
async fn talk(stream: &mut TlsStream<TcpStream>, bytes: &[u8]) -> String {
    // The server may respond and close before it has read everything.
    let _may_fail = stream.write_all(bytes).await;
    let _may_fail = stream.flush().await;
    let mut answer = vec![0; 4096];
    let count =
        tokio::time::timeout(Duration::from_secs(10), stream.read(&mut answer)).await.expect("an answer").unwrap_or(0);
    String::from_utf8_lossy(&answer[..count]).into_owned()
}

pub fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes()
}

#[tokio::test]
async fn certificates_identify_users() {
    let (world, address, identity) = listening().await;
    let mut admin = connect(address, &identity.ca, Some(&identity.admin)).await;
    assert!(talk(&mut admin, &get("/api/v1/namespaces")).await.starts_with("HTTP/1.1 200"));
    let mut nobody = connect(address, &identity.ca, None).await;
    assert!(talk(&mut nobody, &get("/version")).await.starts_with("HTTP/1.1 200"));
    assert!(talk(&mut nobody, &get("/api/v1/namespaces")).await.starts_with("HTTP/1.1 403"));
    let kim = identity.issue_client("kim", &["ops".to_owned()], jiff::Timestamp::now()).unwrap();
    let mut kim = connect(address, &identity.ca, Some(&kim)).await;
    assert!(talk(&mut kim, &get("/api/v1/namespaces")).await.contains("User \\\"kim\\\" cannot list resource"));
    // An expired certificate is refused.
    let two_years_ago = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(2 * 365 * 24);
    let expired = identity.issue_client("jane", &["system:masters".to_owned()], two_years_ago).unwrap();
    let mut expired = connect(address, &identity.ca, Some(&expired)).await;
    let answer = talk(&mut expired, &get("/api/v1/namespaces")).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    // A certificate of another CA is refused too.
    let other = Identity::make(&["localhost".to_owned()], jiff::Timestamp::now()).unwrap();
    let mut stranger = connect(address, &identity.ca, Some(&other.admin)).await;
    let answer = talk(&mut stranger, &get("/api/v1/namespaces")).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    world.running.stop().await;
}

#[tokio::test]
async fn misbehaving_clients_do_not_affect_others() {
    let (world, address, identity) = listening().await;
    let fresh = || connect(address, &identity.ca, Some(&identity.admin));
    // Connections that send nothing, or stop in the middle.
    let silent = TcpStream::connect(address).await.unwrap();
    let half_open = fresh().await;
    let mut half_said = fresh().await;
    half_said.write_all(b"GET /version HT").await.unwrap();
    let mut half_body = fresh().await;
    half_body
        .write_all(b"POST /api/v1/namespaces HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"meta")
        .await
        .unwrap();

    let cases: [(Vec<u8>, &[&str]); 4] = [
        (b"this is no HTTP\r\n\r\n".to_vec(), &["HTTP/1.1 400", ""]),
        (format!("GET /version HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "y".repeat(200_000)).into_bytes(), &["HTTP/1.1 431", "HTTP/1.1 400", ""]),
        (format!("GET /version?{} HTTP/1.1\r\nhost: x\r\n\r\n", "y".repeat(200_000)).into_bytes(), &["HTTP/1.1 414", "HTTP/1.1 431", "HTTP/1.1 400", ""]),
        (b"POST /api/v1/namespaces HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{]".to_vec(), &["HTTP/1.1 400"]),
    ];
    for (bytes, heads) in cases {
        let answer = talk(&mut fresh().await, &bytes).await;
        assert!(
            heads.iter().any(|head| if head.is_empty() { answer.is_empty() } else { answer.starts_with(head) }),
            "{answer}"
        );
    }
    // A body with a too large announced length is refused at once.
    let mut large = fresh().await;
    let head = format!(
        "POST {CONFIG_MAPS} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 50000000\r\n\r\n"
    );
    large.write_all(head.as_bytes()).await.unwrap();
    let started = Instant::now();
    let answer = talk(&mut large, &vec![b' '; 4 * 1024 * 1024]).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert!(started.elapsed() < Duration::from_secs(5));

    let mut good = fresh().await;
    assert!(talk(&mut good, &get("/version")).await.starts_with("HTTP/1.1 200"), "the server goes on");
    let started = Instant::now();
    world.running.stop().await;
    assert!(started.elapsed() < Duration::from_secs(8), "half-open connections do not keep the server from stopping");
    drop((silent, half_open, half_said, half_body));
}

#[tokio::test]
async fn a_watch_over_a_socket_ends_with_the_server() {
    let (world, address, identity) = listening().await;
    let mut watching = connect(address, &identity.ca, Some(&identity.admin)).await;
    let answer = talk(&mut watching, &get(&format!("{CONFIG_MAPS}?watch=1"))).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("transfer-encoding: chunked"), "{answer}");
    let started = Instant::now();
    world.running.stop().await;
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    let mut rest = Vec::new();
    tokio::time::timeout(Duration::from_secs(5), watching.read_to_end(&mut rest)).await.expect("the end").ok();
    assert!(String::from_utf8_lossy(&rest).ends_with("0\r\n\r\n"), "a clean end");
}

fn post(path: &str, headers: &str, length: usize) -> Vec<u8> {
    let media = "content-type: application/json\r\n";
    format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n{media}{headers}content-length: {length}\r\n\r\n").into_bytes()
}

/// An unauthorized client is refused before its body is received, so that the body needs no memory.
#[tokio::test]
async fn refusals_do_not_wait_for_the_body() {
    let (world, address, identity) = listening().await;
    let length = 1_000_000;
    let nobody = || connect(address, &identity.ca, None);
    let bad_token = "authorization: Bearer nonsense\r\n";
    for (headers, path, code) in [
        ("", CONFIG_MAPS, "403"),
        (bad_token, CONFIG_MAPS, "401"),
        ("", "/version", "403"),
        ("", "/api/v1/pods", "403"),
    ] {
        let answer = talk(&mut nobody().await, &post(path, headers, length)).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{path}: {answer}");
    }
    // A body that is announced too large, or for which there is no slot, is refused at once too.
    let admin = || connect(address, &identity.ca, Some(&identity.admin));
    let answer = talk(&mut admin().await, &post(CONFIG_MAPS, "", 50_000_000)).await;
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("limit is 3145728"), "{answer}");
    let places = &world.running.server.limits.ordinary.writes;
    let taken = places.try_acquire(None, places.available()).unwrap();
    world.ordinary("kim").await;
    let kim = identity.issue_client("kim", &[], jiff::Timestamp::now()).unwrap();
    let mut kim = connect(address, &identity.ca, Some(&kim)).await;
    let answer = talk(&mut kim, &post(CONFIG_MAPS, "", length)).await;
    assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("retry-after: 1"), "{answer}");
    drop(taken);
    // A client that still sends its body can continue with the same connection.
    let mut stubborn = nobody().await;
    assert!(talk(&mut stubborn, &post(CONFIG_MAPS, "", length)).await.starts_with("HTTP/1.1 403"));
    stubborn.write_all(&vec![b' '; length]).await.unwrap();
    assert!(talk(&mut stubborn, &get("/version")).await.starts_with("HTTP/1.1 200"));
    world.running.stop().await;
}

/// A body is evaluated when it is complete: a definition that was deleted meanwhile accepts no objects, because the
/// next definition of its name would get them.
#[tokio::test]
async fn a_body_that_comes_after_its_definition_is_gone_creates_nothing() {
    let (world, address, identity) = listening().await;
    let admin = world.admin();
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = |scope: &str| {
        json!({"metadata": {"name": "things.x.io"}, "spec": {"group": "x.io", "scope": scope,
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}]}})
    };
    let things = "/apis/x.io/v1/namespaces/default/things";
    let body = json!({"apiVersion": "x.io/v1", "kind": "Thing", "metadata": {"name": "late"}}).to_string();
    let places = &world.running.server.limits.exempt.arriving;
    for next in [None, Some("Cluster")] {
        let made = admin.post(definitions, &definition("Namespaced")).await.expect(201);
        let mut watching = admin.watch(&format!("{definitions}?watch=1&resourceVersion={}", version(&made))).await;
        let free = places.available();
        let mut slow = connect(address, &identity.ca, Some(&identity.admin)).await;
        slow.write_all(&post(things, "", body.len())).await.unwrap();
        slow.flush().await.unwrap();
        while places.available() == free {
            tokio::task::yield_now().await;
        }
        admin.delete(&format!("{definitions}/things.x.io")).await.expect(200);
        while watching.next().await["type"] != "DELETED" {}
        if let Some(scope) = next {
            admin.post(definitions, &definition(scope)).await.expect(201);
        }
        let answer = talk(&mut slow, body.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
        assert_eq!(world.store.count("/x.io/things/"), 0);
    }
    world.running.stop().await;
}

/// The same over HTTP/2: only the refused request ends.
#[tokio::test]
async fn refusals_do_not_wait_for_the_body_in_http2_either() {
    let (world, address, identity) = listening().await;
    let stream = dial(address, &identity.ca, None, "h2").await;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let endless =
        futures::stream::repeat(Bytes::from_static(&[b' '; 1024])).map(|bytes| Ok::<_, Infallible>(Frame::data(bytes)));
    let silent = futures::stream::pending().boxed();
    for (method, body, code) in
        [("POST", endless.boxed(), 403), ("POST", silent, 403), ("GET", futures::stream::empty().boxed(), 403)]
    {
        let request = http::Request::builder().method(method).uri(format!("https://localhost{CONFIG_MAPS}"));
        let request = request.body(StreamBody::new(body)).unwrap();
        let answer =
            tokio::time::timeout(Duration::from_secs(10), sender.send_request(request)).await.expect("an answer");
        let answer = answer.unwrap();
        assert_eq!(answer.status(), code);
        let text =
            tokio::time::timeout(Duration::from_secs(10), answer.into_body().collect()).await.expect("all of it");
        let text = String::from_utf8_lossy(&text.unwrap().to_bytes()).into_owned();
        assert!(text.contains("User \\\"system:anonymous\\\" cannot"), "{text}");
    }
    drop(sender);
    connection.await.unwrap().unwrap();
    world.running.stop().await;
}

/// A client of HTTP/1 cannot read a response with too many headers, although the object was written.
#[tokio::test]
async fn an_answer_with_many_warnings_can_be_read() {
    let (world, address, identity) = listening().await;
    let stream = connect(address, &identity.ca, Some(&identity.admin)).await;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut object = config_map("warned");
    for at in 0..150 {
        object[format!("unknown{at:03}")] = json!(1);
    }
    let request =
        http::Request::post(CONFIG_MAPS).header("host", "localhost").header("content-type", "application/json");
    let answer = sender.send_request(request.body(object.to_string()).unwrap()).await.unwrap();
    assert_eq!(answer.status(), 201);
    let warnings: Vec<_> = answer.headers().get_all("warning").iter().collect();
    assert_eq!(warnings[0], "299 - \"unknown field \\\"unknown000\\\"\"");
    assert_eq!((warnings.len(), *warnings.last().unwrap()), (51, &"299 - \"and 50 more warnings\"".parse().unwrap()));
    drop((answer, sender));
    connection.await.unwrap().unwrap();
    world.running.stop().await;
}

/// The anonymous user can have permissions by a role.
#[tokio::test]
async fn anonymous_users_have_the_permissions_of_their_roles() {
    let (world, address, identity) = listening().await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let rules = json!([{"verbs": ["create"], "apiGroups": [""], "resources": ["configmaps"]}]);
    let role = json!({"metadata": {"name": "drop-box"}, "rules": rules});
    world.admin().post(&format!("{rbac}/roles"), &role).await.expect(201);
    let anonymous = json!([{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "system:anonymous"}]);
    let binding = json!({"metadata": {"name": "drop-box"}, "subjects": anonymous,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "drop-box"}});
    world.admin().post(&format!("{rbac}/rolebindings"), &binding).await.expect(201);
    let body = config_map("dropped").to_string();
    let mut nobody = connect(address, &identity.ca, None).await;
    let request = [post(CONFIG_MAPS, "", body.len()), body.into_bytes()].concat();
    assert!(talk(&mut nobody, &request).await.starts_with("HTTP/1.1 201"));
    let path = format!("{CONFIG_MAPS}/dropped");
    assert!(talk(&mut nobody, &get(&path)).await.starts_with("HTTP/1.1 403"));
    world.admin().get(&path).await.expect(200);
    world.running.stop().await;
}

/// The memory of all bodies is limited: beyond the limit clients must retry, and released memory is available again.
#[tokio::test]
async fn the_memory_of_all_bodies_is_limited() {
    let (world, address, identity) = listening().await;
    let limits = &world.running.server.limits.exempt;
    let free = limits.bodies.available();
    let taken = limits.bodies.try_acquire(None, free - 64).unwrap();
    let send = async |path: &str, pad: usize| {
        let mut admin = connect(address, &identity.ca, Some(&identity.admin)).await;
        let body = json!({"metadata": {"generateName": "m-", "annotations": {"pad": "x".repeat(pad)}}}).to_string();
        talk(&mut admin, &[post(path, "", body.len()), body.into_bytes()].concat()).await
    };
    let answer = send(CONFIG_MAPS, 200_000).await;
    assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("retry-after: 1"), "{answer}");
    assert!(send(CONFIG_MAPS, 1000).await.starts_with("HTTP/1.1 201"));
    // An announced body needs no memory; a partly received one needs memory for that part.
    let mut announced = connect(address, &identity.ca, Some(&identity.admin)).await;
    announced.write_all(&post(CONFIG_MAPS, "", 3_000_000)).await.unwrap();
    let mut partly = connect(address, &identity.ca, Some(&identity.admin)).await;
    partly.write_all(&[post(CONFIG_MAPS, "", 3_000_000), vec![b' '; 60 * 1024]].concat()).await.unwrap();
    while limits.bodies.available() > 4 {
        tokio::task::yield_now().await;
    }
    let answer = send(CONFIG_MAPS, 8000).await;
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    // Leases can still be renewed.
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    assert!(send(leases, 8000).await.starts_with("HTTP/1.1 201"));
    drop((taken, announced, partly));
    while limits.bodies.available() < free {
        tokio::task::yield_now().await;
    }
    assert!(send(CONFIG_MAPS, 200_000).await.starts_with("HTTP/1.1 201"));
    world.running.stop().await;
}

/// Advances the server's clock, and waits until all tasks that are due have started.
pub async fn later(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    // A paused clock would run ahead of the network.
    tokio::time::resume();
}

/// Whether the other side has closed this connection.
async fn has_ended(stream: &mut TlsStream<TcpStream>) -> bool {
    let mut rest = [0; 64];
    loop {
        match tokio::time::timeout(Duration::from_secs(5), stream.read(&mut rest)).await {
            Ok(Ok(0) | Err(_)) => return true,
            // The settings frame of HTTP/2.
            Ok(Ok(_)) => {}
            Err(_) => return false,
        }
    }
}

#[tokio::test]
async fn connections_without_requests_are_closed() {
    let (world, address, identity) = listening().await;
    let mut watching = connect(address, &identity.ca, Some(&identity.admin)).await;
    let answer =
        talk(&mut watching, &get(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={}", world.store.revision()))).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut silent = Vec::new();
    for (protocol, said) in
        [("", &b""[..]), ("h2", b""), ("http/1.1", b""), ("", b"PRI * HT"), ("h2", &preface[..10]), ("h2", preface)]
    {
        let mut stream = dial(address, &identity.ca, None, protocol).await;
        stream.write_all(said).await.unwrap();
        stream.flush().await.unwrap();
        // When a later connection gets a response, the server has also finished this handshake.
        silent.push((protocol, said, stream));
    }
    assert!(talk(&mut connect(address, &identity.ca, None).await, &get("/version")).await.starts_with("HTTP/1.1 200"));
    later(Duration::from_secs(16)).await;
    for (protocol, said, stream) in &mut silent {
        assert!(has_ended(stream).await, "{protocol:?} {:?}", String::from_utf8_lossy(said));
    }
    // A connection with a request stays open while the request is handled.
    later(Duration::from_secs(20 * 60)).await;
    world.admin().post(CONFIG_MAPS, &config_map("late")).await.expect(201);
    assert!(talk(&mut watching, b"").await.contains("late"));
    world.running.stop().await;
}

/// An HTTP/2 connection without requests is kept for some time and then closed gracefully; a used one stays open.
#[tokio::test]
async fn connections_that_are_no_longer_used_end_in_order() {
    let (world, address, identity) = listening().await;
    let open = async || {
        let stream = dial(address, &identity.ca, Some(&identity.admin), "h2").await;
        let (sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        (sender, tokio::spawn(connection))
    };
    let ask = async |sender: &mut SendRequest<Empty<Bytes>>, path: &str| {
        let answer = ask(sender, path).await;
        assert_eq!(answer.status(), 200);
        answer.into_body()
    };
    let (mut busy, _busy) = open().await;
    let (mut watcher, _watcher) = open().await;
    let (mut idle, idle_ends) = open().await;
    let path = format!("{CONFIG_MAPS}?watch=1&resourceVersion={}", world.store.revision());
    let mut watching = ask(&mut watcher, &path).await;
    ask(&mut idle, "/version").await.collect().await.unwrap();
    let mut waited = Duration::ZERO;
    while !idle_ends.is_finished() {
        assert!(waited < Duration::from_secs(10 * 60), "it is kept for ever");
        later(Duration::from_secs(10)).await;
        waited += Duration::from_secs(10);
        ask(&mut busy, "/version").await.collect().await.unwrap();
    }
    assert!(waited > Duration::from_secs(4 * 60), "after {waited:?} only");
    idle_ends.await.unwrap().expect("an end in order");
    world.admin().post(CONFIG_MAPS, &config_map("late")).await.expect(201);
    let event = tokio::time::timeout(Duration::from_secs(10), watching.frame()).await.expect("an event").unwrap();
    assert!(String::from_utf8_lossy(&event.unwrap().into_data().unwrap()).contains("late"));
    ask(&mut watcher, "/version").await.collect().await.unwrap();
    world.running.stop().await;
}

#[tokio::test]
async fn an_unauthenticated_connection_beyond_the_limit_closes_the_oldest() {
    let limits = Limits::default().with_open_files(Some(32));
    let (world, address, identity) = listening_with(limits).await;
    let places = world.running.server.limits.connections.clone();
    let all = places.available();
    let mut admin = connect(address, &identity.ca, Some(&identity.admin)).await;
    assert!(talk(&mut admin, &get("/version")).await.starts_with("HTTP/1.1 200"));
    let mut anonymous = Vec::new();
    for _ in 0..all + 2 {
        let mut next = connect(address, &identity.ca, None).await;
        assert!(talk(&mut next, &get("/version")).await.starts_with("HTTP/1.1 200"));
        anonymous.push(next);
    }
    for (at, connection) in anonymous.iter_mut().enumerate() {
        let answer = talk(connection, &get("/version")).await;
        assert_eq!(answer.starts_with("HTTP/1.1 200"), at >= 2, "connection {at}: {answer}");
    }
    // The authenticated connection continues, and closed connections release their slots.
    assert!(talk(&mut admin, &get("/version")).await.starts_with("HTTP/1.1 200"));
    let text = world.admin().get("/metrics").await.bytes;
    let closed = "mainstay_unauthenticated_connections_closed_total 2";
    assert!(String::from_utf8_lossy(&text).contains(closed));
    drop(anonymous);
    while places.available() < all {
        tokio::task::yield_now().await;
    }
    world.running.stop().await;
}
