//! A client that speaks paths and JSON.

use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;
use std::path::Path;

/// One server as a client sees it.
#[derive(Clone)]
pub struct Client(pub kube::Client);

#[derive(Debug)]
pub enum Trouble {
    /// The server said no.
    Refused(u16, String),
    /// Nobody can say what became of it.
    Broken,
}

impl Client {
    /// The server at `url` with the administrator's kubeconfig of (perhaps another) server.
    pub async fn new(kubeconfig: &Path, url: &str) -> Client {
        let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        config.cluster_url = url.parse().unwrap();
        // What the server says is what is looked at, not what comes of asking again.
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

    /// What the server answers, as it is: the code, the headers and the body.
    pub async fn answer(&self, method: &str, path: &str, body: &Value) -> (u16, http::HeaderMap, Value) {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = http::Request::builder().method(method).uri(path).header("content-type", "application/json");
        let answer = self.0.send(request.body(kube::client::Body::from(body)).unwrap()).await.expect("an answer");
        let (parts, body) = answer.into_parts();
        let text = body.collect_bytes().await.expect("all of it");
        // Health is told as plain text.
        let body = serde_json::from_slice(&text).unwrap_or_else(|_| String::from_utf8_lossy(&text).into());
        (parts.status.as_u16(), parts.headers, body)
    }
}
