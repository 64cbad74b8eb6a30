//! A thin HTTPS client: one connection for each simulated client, nothing between it and the socket that could be measured instead.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use kube::Config;
use kube::client::ConfigExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// The server to measure, or several that are one: connections are spread over them.
#[derive(Clone)]
pub struct Target {
    servers: Vec<http::uri::Authority>,
    next: Arc<AtomicUsize>,
    tls: TlsConnector,
    token: Option<String>,
}

impl Target {
    pub fn new(config: &Config) -> Result<Target> {
        let server = config.cluster_url.authority().context("the kubeconfig's server has no host")?.clone();
        let mut tls = config.rustls_client_config()?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let token = token(&config.auth_info)?;
        Ok(Target { servers: vec![server], next: Arc::default(), tls: TlsConnector::from(Arc::new(tls)), token })
    }

    /// The same with more servers, which know the same clients.
    pub fn and(mut self, servers: &[http::Uri]) -> Target {
        self.servers.extend(servers.iter().filter_map(|url| url.authority().cloned()));
        self
    }

    pub async fn connect(&self) -> Result<Connection> {
        let server = &self.servers[self.next.fetch_add(1, Ordering::Relaxed) % self.servers.len()];
        let host = server.host().trim_matches(['[', ']']);
        let stream = TcpStream::connect((host, server.port_u16().unwrap_or(443))).await?;
        stream.set_nodelay(true)?;
        let name = rustls::pki_types::ServerName::try_from(host.to_owned())?;
        let stream = self.tls.connect(name, stream).await?;
        let (sender, connection) = http1::Builder::new().max_buf_size(1 << 20).handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended");
            }
        });
        Ok(Connection { sender, host: server.host().to_owned(), token: self.token.clone() })
    }
}

/// The bearer token of a kubeconfig's user, if it has one. Client certificates are in the TLS settings already.
fn token(user: &kube::config::AuthInfo) -> Result<Option<String>> {
    if user.exec.is_some() || user.auth_provider.is_some() {
        bail!("the kubeconfig's user logs in by another program; give one with a client certificate or a token");
    }
    if let Some(file) = &user.token_file {
        let text = std::fs::read_to_string(file).with_context(|| format!("cannot read the token in {file}"))?;
        return Ok(Some(text.trim().to_owned()));
    }
    // Written out, for the token itself does not show.
    Ok(object::value::to_value(&user)?["token"].as_str().map(str::to_owned))
}

/// One connection; one request at a time.
pub struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    host: String,
    token: Option<String>,
}

impl Connection {
    async fn send(&mut self, method: Method, path: &str, media: &str, body: Bytes) -> Result<http::Response<Incoming>> {
        self.sender.ready().await?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::HOST, &self.host)
            .header(http::header::USER_AGENT, "mainstay-bench")
            .header(http::header::ACCEPT, "application/json");
        if !body.is_empty() {
            request = request.header(http::header::CONTENT_TYPE, media);
        }
        if let Some(token) = &self.token {
            request = request.header(http::header::AUTHORIZATION, format!("Bearer {token}"));
        }
        Ok(self.sender.send_request(request.body(Full::new(body))?).await?)
    }

    /// A request whose whole answer is read; an error unless it is a success.
    pub async fn call(&mut self, method: Method, path: &str, media: &str, body: Bytes) -> Result<usize> {
        let (code, bytes) = self.answer(method.clone(), path, media, body).await?;
        if !code.is_success() {
            bail!("{method} {path}: {code}: {}", String::from_utf8_lossy(&bytes[..bytes.len().min(300)]));
        }
        Ok(bytes.len())
    }

    pub async fn answer(
        &mut self,
        method: Method,
        path: &str,
        media: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes)> {
        let response = self.send(method, path, media, body).await?;
        let code = response.status();
        let bytes = response.into_body().collect().await?.to_bytes();
        Ok((code, bytes))
    }

    /// A watch: the body as it comes.
    pub async fn watch(&mut self, path: &str) -> Result<Incoming> {
        let response = self.send(Method::GET, path, "", Bytes::new()).await?;
        if !response.status().is_success() {
            bail!("GET {path}: {}", response.status());
        }
        Ok(response.into_body())
    }
}
