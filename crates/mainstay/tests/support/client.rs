//! A client that uses paths and JSON.

use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;
use std::path::Path;

/// A client of one server.
#[derive(Clone)]
pub struct Client(pub kube::Client);

#[derive(Debug)]
pub enum Trouble {
    /// The server refused.
    Refused(u16, String),
    /// The outcome is unknown.
    Broken,
}

impl Client {
    /// The server at `url` with the administrator's kubeconfig of a server, perhaps another one.
    pub async fn new(kubeconfig: &Path, url: &str) -> Client {
        let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        config.cluster_url = url.parse().unwrap();
        // Do not retry: the test checks each response.
        config.default_retry = false;
        Client(kube::Client::try_from(config).unwrap())
    }

    pub async fn send(&self, method: &str, path: &str, body: &Value) -> Result<Value, Trouble> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = http::Request::builder().method(method).uri(path).header("content-type", "application/json");
        match self.0.request(request.body(body).unwrap()).await {
            Ok(answer) => Ok(answer),
            Err(kube::Error::Api(status)) => Err(Trouble::Refused(status.code, status.message.clone())),
            Err(_) => Err(Trouble::Broken),
        }
    }

    pub async fn get(&self, path: &str) -> Value {
        self.send("GET", path, &Value::Null).await.unwrap()
    }

    pub async fn create(&self, path: &str, body: &Value) -> Result<Value, Trouble> {
        self.send("POST", path, body).await
    }

    /// The raw response of the server: code, headers and body.
    pub async fn answer(&self, method: &str, path: &str, body: &Value) -> (u16, http::HeaderMap, Value) {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = http::Request::builder().method(method).uri(path).header("content-type", "application/json");
        let answer = self.0.send(request.body(kube::client::Body::from(body)).unwrap()).await.expect("an answer");
        let (parts, body) = answer.into_parts();
        let text = body.collect_bytes().await.expect("all of it");
        // Health checks respond with plain text.
        let body = serde_json::from_slice(&text).unwrap_or_else(|_| String::from_utf8_lossy(&text).into());
        (parts.status.as_u16(), parts.headers, body)
    }
}
