//! A client of a server that may be killed at any moment.

use bytes::{Buf, BytesMut};
use http_body_util::BodyExt;
use kube::config::Kubeconfig;
use serde_json::Value;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The outcome of a request.
#[derive(Debug)]
pub enum Answer {
    Done(Value),
    /// The server refused: code and reason.
    Refused(u16, String),
    /// No response: the outcome is unknown.
    None,
}

pub async fn connect(kubeconfig: &Path) -> kube::Client {
    connect_by(Kubeconfig::read_from(kubeconfig).expect("a kubeconfig")).await
}

pub async fn connect_by(kubeconfig: Kubeconfig) -> kube::Client {
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.expect("a config");
    // Do not retry: the test checks each response.
    config.default_retry = false;
    kube::Client::try_from(config).expect("a client")
}

pub async fn ask(client: &kube::Client, method: &str, path: &str, body: Option<&Value>) -> Answer {
    let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let bytes = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
    let request = http::Request::builder().method(method).uri(path).header("content-type", media).body(bytes);
    match client.request::<Value>(request.expect("a request")).await {
        Ok(value) => Answer::Done(value),
        Err(kube::Error::Api(status)) => Answer::Refused(status.code, status.message),
        Err(_) => Answer::None,
    }
}

/// The response to a request that must succeed.
pub async fn done(client: &kube::Client, method: &str, path: &str, body: Option<&Value>) -> Value {
    match ask(client, method, path, body).await {
        Answer::Done(value) => value,
        other => panic!("{method} {path}: {other:?}"),
    }
}

pub fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).expect("a resourceVersion")
}

/// The lines of a watch.
pub struct Lines {
    body: kube::client::Body,
    unread: BytesMut,
}

impl Lines {
    /// Opens a watch; the error is the code of the response, or 0 without a response.
    pub async fn open(client: &kube::Client, path: &str) -> Result<Lines, u16> {
        let request = http::Request::get(path).body(kube::client::Body::empty()).expect("a request");
        let response = client.send(request).await.map_err(|_| 0u16)?;
        match response.status().as_u16() {
            200 => Ok(Lines { body: response.into_body(), unread: BytesMut::new() }),
            code => Err(code),
        }
    }

    /// The next event, or `None` when the server is down.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line = self.unread.split_to(end);
                self.unread.advance(1);
                return Some(serde_json::from_slice(&line).expect("a line is an event"));
            }
            let frame = self.body.frame().await?.ok()?;
            if let Some(data) = frame.data_ref() {
                self.unread.extend_from_slice(data);
            }
        }
    }
}

/// Random numbers from a seed that is printed, so that a run can be repeated.
pub struct Dice(AtomicU64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        println!("seed {seed}");
        Dice(AtomicU64::new(seed.wrapping_mul(2).wrapping_add(1)))
    }

    pub fn below(&self, end: u64) -> u64 {
        let mut mix = self.0.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        mix = (mix ^ (mix >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mix = (mix ^ (mix >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mix ^ (mix >> 31)) % end
    }
}

/// A number from an environment variable.
pub fn setting(name: &str, usual: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} must be a whole number, not {text:?}")),
        Err(_) => usual,
    }
}
