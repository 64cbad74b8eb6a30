//! Real connections: TLS, certificates, limits of HTTP, and clients that misbehave.

use crate::support::*;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use server::authn::{Identity, Pair};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

async fn listening() -> (World, SocketAddr, Identity) {
    let now = jiff::Timestamp::now();
    let identity = Identity::make(&["localhost".to_owned()], now).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let store = store::Volatile::new(server::codec::finish, store::Options::default());
    let world = World::start(store, identity.clone(), Some(listener), now.as_second()).await;
    let address = world.running.address.unwrap();
    (world, address, identity)
}

async fn connect(address: SocketAddr, ca: &Pair, own: Option<&Pair>) -> TlsStream<TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.certificate_pem.as_bytes()).unwrap()).unwrap();
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => builder
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(own.certificate_pem.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(own.key_pem.as_bytes()).unwrap(),
            )
            .unwrap(),
    };
    let stream = TcpStream::connect(address).await.unwrap();
    TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), stream).await.unwrap()
}

/// Sends these bytes and reads until the other side is done or the answer has this much.
async fn talk(stream: &mut TlsStream<TcpStream>, bytes: &[u8]) -> String {
    // The server may answer and close before it has read everything.
    let _may_fail = stream.write_all(bytes).await;
    let _may_fail = stream.flush().await;
    let mut answer = vec![0; 4096];
    let count =
        tokio::time::timeout(Duration::from_secs(10), stream.read(&mut answer)).await.expect("an answer").unwrap_or(0);
    String::from_utf8_lossy(&answer[..count]).into_owned()
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").into_bytes()
}

#[tokio::test]
async fn certificates_tell_who_calls() {
    let (world, address, identity) = listening().await;
    let mut admin = connect(address, &identity.ca, Some(&identity.admin)).await;
    assert!(talk(&mut admin, &get("/api/v1/namespaces")).await.starts_with("HTTP/1.1 200"));
    let mut nobody = connect(address, &identity.ca, None).await;
    assert!(talk(&mut nobody, &get("/version")).await.starts_with("HTTP/1.1 200"));
    assert!(talk(&mut nobody, &get("/api/v1/namespaces")).await.starts_with("HTTP/1.1 403"));
    let kim = identity.issue_client("kim", &["ops".to_owned()], jiff::Timestamp::now()).unwrap();
    let mut kim = connect(address, &identity.ca, Some(&kim)).await;
    assert!(talk(&mut kim, &get("/api/v1/namespaces")).await.contains("User \\\"kim\\\" cannot list resource"));
    // Yesterday's certificate proves nothing any more,
    let two_years_ago = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(2 * 365 * 24);
    let expired = identity.issue_client("jane", &["system:masters".to_owned()], two_years_ago).unwrap();
    let mut expired = connect(address, &identity.ca, Some(&expired)).await;
    let answer = talk(&mut expired, &get("/api/v1/namespaces")).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    // and one of another CA never did.
    let other = Identity::make(&["localhost".to_owned()], jiff::Timestamp::now()).unwrap();
    let mut stranger = connect(address, &identity.ca, Some(&other.admin)).await;
    let answer = talk(&mut stranger, &get("/api/v1/namespaces")).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    world.running.stop().await;
}

#[tokio::test]
async fn clients_that_misbehave_hurt_only_themselves() {
    let (world, address, identity) = listening().await;
    let fresh = || connect(address, &identity.ca, Some(&identity.admin));
    // Connections that say nothing, or stop in the middle.
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
    // A body that is announced too large is refused without waiting for it.
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
