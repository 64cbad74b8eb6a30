//! Clients of several users: ordinary ones, and connections that send what no ordinary client sends.

use crate::support::{Client, Cluster, Place};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use http::Request;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::ConfigExt;
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::net::TcpStream;

pub const MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

/// The attacking user, and one that works meanwhile. Both may edit the namespace `default`.
pub const MALLORY: &str = "token-of-mallory";
pub const KIM: &str = "token-of-kim";

pub type Body = StreamBody<BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;

/// A server that knows both users.
pub async fn start(arguments: &[&str]) -> (Cluster, TempDir) {
    start_with_files(None, arguments).await
}

/// The same, with this soft and hard limit on open files.
pub async fn start_with_files(files: Option<(u32, u32)>, arguments: &[&str]) -> (Cluster, TempDir) {
    let home = tempfile::tempdir().expect("a directory");
    let tokens = home.path().join("tokens.csv");
    std::fs::write(&tokens, format!("{MALLORY},mallory,u1\n{KIM},kim,u2\n")).expect("the tokens are written");
    let tokens = tokens.to_str().expect("a path of text").to_owned();
    let arguments = [arguments, &["--token-auth-file", &tokens]].concat();
    let cluster = tokio::task::block_in_place(|| Cluster::start_with_files(Place::InMemory, files, &arguments));
    let admin = Client::new(&cluster.kubeconfig, &cluster.url).await;
    let subject = |name: &str| json!({"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": name});
    let binding = json!({"metadata": {"name": "editors"}, "subjects": [subject("mallory"), subject("kim")],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"}});
    let leases = json!({"metadata": {"name": "leases"},
        "rules": [{"verbs": ["*"], "apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}]});
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    admin.create(&format!("{rbac}/rolebindings"), &binding).await.expect("a binding");
    admin.create(&format!("{rbac}/roles"), &leases).await.expect("a role");
    let binding = json!({"metadata": {"name": "leases"}, "subjects": [subject("kim")],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "leases"}});
    admin.create(&format!("{rbac}/rolebindings"), &binding).await.expect("a binding");
    (cluster, home)
}

async fn config(kubeconfig: &Path) -> kube::Config {
    let config = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
    let mut config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.expect("a config");
    config.auth_info = kube::config::AuthInfo::default();
    // Do not retry: the test checks the first response.
    config.default_retry = false;
    config
}

/// A client with this token.
pub async fn with_token(kubeconfig: &Path, token: &str) -> Client {
    let mut config = config(kubeconfig).await;
    config.auth_info.token = Some(token.to_owned().into());
    Client(kube::Client::try_from(config).expect("a client"))
}

/// An HTTP/2 connection without authentication yet.
pub async fn connect(kubeconfig: &Path) -> SendRequest<Body> {
    let config = config(kubeconfig).await;
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

pub fn request(method: &str, path: &str, token: &str, body: Body) -> Request<Body> {
    let builder = Request::builder().method(method).uri(format!("https://127.0.0.1{path}"));
    let builder = builder.header("authorization", format!("Bearer {token}")).header("content-type", "application/json");
    builder.body(body).expect("a request")
}

/// A body that is announced and never sent.
pub fn silent() -> Body {
    StreamBody::new(stream::pending().boxed())
}

pub fn empty() -> Body {
    StreamBody::new(stream::empty().boxed())
}

/// The value of a metric with these labels.
pub async fn metric(client: &Client, name: &str) -> Option<f64> {
    let (_, _, text) = client.answer("GET", "/metrics", &Value::Null).await;
    let text = text.as_str().expect("text").to_owned();
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// The status of a response, and its Retry-After.
pub async fn outcome(response: http::Response<Incoming>) -> (u16, Option<String>) {
    let wait = response.headers().get("retry-after").map(|value| value.to_str().expect("text").to_owned());
    let code = response.status().as_u16();
    drop(response.into_body().collect().await);
    (code, wait)
}
