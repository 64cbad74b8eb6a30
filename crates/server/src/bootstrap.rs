//! The objects that every cluster has from its first moment on.

use crate::app::{Caller, Server};
use crate::attributes::User;
use bytes::Bytes;
use futures::future::try_join_all;
use http::{Method, Request};
use http_body_util::BodyExt;
use object::access::{Access, name, namespace};
use object::{Kind, Status, Value};
use serde_json::json;
use std::sync::Arc;

const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Creates what is missing and repairs the default roles. Runs before the first request is served.
pub async fn run(server: &Server) -> Result<(), Status> {
    let caller = Caller::Inside(Arc::new(User::apiserver()));
    let namespaces =
        NAMESPACES.iter().map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    // Writes of one wave share a disk sync; namespaces come first because the others live in them.
    ensure_all(server, &caller, namespaces.collect()).await?;
    let mut objects = crate::authz::bootstrap::objects();
    objects.push(kubernetes_service());
    ensure_all(server, &caller, objects).await
}

/// The API server as workloads find it.
fn kubernetes_service() -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "kubernetes",
            "namespace": "default",
            "labels": {"component": "apiserver", "provider": "kubernetes"},
        },
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}]},
    })
}

async fn ensure_all(server: &Server, caller: &Caller, objects: Vec<Value>) -> Result<(), Status> {
    try_join_all(objects.iter().map(|object| ensure(server, caller, object))).await.map(drop)
}

async fn ensure(server: &Server, caller: &Caller, wanted: &Value) -> Result<(), Status> {
    let kinds = server.registry.kinds();
    let api_version = wanted.text(&["apiVersion"]);
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kind = kinds
        .by_kind(group, version, wanted.text(&["kind"]))
        .ok_or_else(|| Status::internal(format!("no kind for the bootstrap object {wanted}")))?;
    let key = crate::reader::key(kind, namespace(wanted), name(wanted));
    let Some(record) = server.store.get(&key) else {
        return match send(server, caller, Method::POST, &collection_path(kind, namespace(wanted)), wanted).await {
            // Another server was faster.
            Err(status) if status.code == 409 => Ok(()),
            result => result,
        };
    };
    let existing = crate::reader::parse(&record)?;
    match crate::authz::bootstrap::reconcile(&existing, wanted) {
        Some(repaired) => {
            let path = format!("{}/{}", collection_path(kind, namespace(wanted)), name(wanted));
            send(server, caller, Method::PUT, &path, &repaired).await
        }
        None => Ok(()),
    }
}

fn collection_path(kind: &Kind, namespace: &str) -> String {
    let root = if kind.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", kind.group) };
    let place = if kind.namespaced { format!("/namespaces/{namespace}") } else { String::new() };
    format!("{root}/{}{place}/{}", kind.version, kind.plural)
}

async fn send(server: &Server, caller: &Caller, method: Method, path: &str, object: &Value) -> Result<(), Status> {
    let request = Request::builder()
        .method(method)
        .uri(path.replace(':', "%3A"))
        .header(http::header::CONTENT_TYPE, "application/json")
        .header(http::header::USER_AGENT, "mainstay-bootstrap")
        .body(crate::render::to_bytes(object))
        .map_err(Status::internal)?;
    let response = server.handle(request, caller).await;
    let code = response.status().as_u16();
    if code < 300 {
        return Ok(());
    }
    let body: Bytes = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let status: Value = serde_json::from_slice(&body).unwrap_or_default();
    Err(Status::new(code, "InternalError", format!("bootstrap of {path}: {}", status.text(&["message"]))))
}
