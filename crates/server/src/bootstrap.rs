//! Objects that every cluster has from its start.

use crate::app::Server;
use crate::authz::bootstrap::{AUTOUPDATE, RETIRED};
use futures::future::try_join_all;
use http::Method;
use object::access::{Access, name, namespace};
use object::json;
use object::{Kind, Status, Value};

/// Field manager of the first objects.
const AGENT: &str = "mainstay-bootstrap";
const NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Creates missing objects and repairs the default roles, its own and `more`. Runs before the first request is served.
pub async fn run(server: &Server, more: Vec<Value>) -> Result<(), Status> {
    let namespaces =
        NAMESPACES.iter().map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    // Concurrent writes share a disk sync. Namespaces come first because the other objects need them.
    ensure_all(server, namespaces.collect()).await?;
    let mut objects = crate::authz::bootstrap::objects();
    objects.extend(more);
    objects.push(kubernetes_service());
    ensure_all(server, objects).await?;
    for (kind, name) in RETIRED {
        retire(server, kind, name).await?;
    }
    Ok(())
}

/// Deletes a role or binding of an earlier version, unless its annotation disables updates.
async fn retire(server: &Server, kind: &str, object_name: &str) -> Result<(), Status> {
    let kinds = server.registry.kinds();
    let kind = kinds
        .by_kind("rbac.authorization.k8s.io", "v1", kind)
        .ok_or_else(|| Status::internal(format!("no kind {kind} for a retired role")))?;
    let Some(record) = server.store.get(&crate::object_store::key(kind, "", object_name)) else { return Ok(()) };
    if crate::object_store::parse(&record)?.text(&["metadata", "annotations", AUTOUPDATE]) == "false" {
        return Ok(());
    }
    let path = format!("{}/{object_name}", collection_path(kind, ""));
    match server.send(AGENT, Method::DELETE, &path, &json!({})).await {
        // Another server deleted it.
        Err(status) if status.code == 404 => Ok(()),
        result => result,
    }
}

/// The Service through which workloads reach the API server.
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

async fn ensure_all(server: &Server, objects: Vec<Value>) -> Result<(), Status> {
    try_join_all(objects.iter().map(|object| ensure(server, object))).await.map(drop)
}

async fn ensure(server: &Server, wanted: &Value) -> Result<(), Status> {
    let kinds = server.registry.kinds();
    let api_version = wanted.text(&["apiVersion"]);
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kind = kinds
        .by_kind(group, version, wanted.text(&["kind"]))
        .ok_or_else(|| Status::internal(format!("no kind for the bootstrap object {wanted}")))?;
    let key = crate::object_store::key(kind, namespace(wanted), name(wanted));
    let Some(record) = server.store.get(&key) else {
        return match server.send(AGENT, Method::POST, &collection_path(kind, namespace(wanted)), wanted).await {
            // Another server created it, with everything that it needs (such as its address).
            Err(_) if server.store.get(&key).is_some() => Ok(()),
            result => result,
        };
    };
    let existing = crate::object_store::parse(&record)?;
    match crate::authz::bootstrap::reconcile(&existing, wanted) {
        Some(repaired) => {
            let path = format!("{}/{}", collection_path(kind, namespace(wanted)), name(wanted));
            match server.send(AGENT, Method::PUT, &path, &repaired).await {
                // Another server repaired it.
                Err(status) if status.code == 409 => Ok(()),
                result => result,
            }
        }
        None => Ok(()),
    }
}

fn collection_path(kind: &Kind, namespace: &str) -> String {
    let root = if kind.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", kind.group) };
    let place = if kind.namespaced { format!("/namespaces/{namespace}") } else { String::new() };
    format!("{root}/{}{place}/{}", kind.version, kind.plural)
}
