//! A server that asks who lets owners wait: Kubernetes' admission plugin OwnerReferencesPermissionEnforcement, which ours does not have.

use http::{Request, Response};
use kube::client::Body;
use object::access::{Access, name};
use object::{Status, Value, json};
use server::Local;

/// The request as it came, and what such a server answers instead of doing it: who lets an object hold up the deletion of its owner must
/// be allowed to write the owner's finalizers.
pub async fn enforce(server: &Local, request: Request<Body>) -> (Request<Body>, Option<Response<server::Body>>) {
    let (head, body) = request.into_parts();
    let bytes = body.collect_bytes().await.expect("a body of this process");
    let written: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let mut refusal = None;
    let owners = written.items(&["metadata", "ownerReferences"]).iter();
    for owner in owners.filter(|owner| owner.flag(&["blockOwnerDeletion"])) {
        if !may_finalize(server, owner).await {
            let why = "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: , <nil>";
            let message = format!("\"{}\" is forbidden: {why}", name(&written));
            refusal = Some(server::app::status_response(&Status::new(403, "Forbidden", message)));
        }
    }
    (Request::from_parts(head, Body::from(bytes)), refusal)
}

/// Whether who asks may write the finalizers of an owner.
async fn may_finalize(server: &Local, owner: &Value) -> bool {
    let attributes = json!({
        "verb": "update", "group": owner.text(&["apiVersion"]).split_once('/').map_or("", |(group, _)| group),
        "resource": format!("{}s", owner.text(&["kind"]).to_lowercase()), "subresource": "finalizers",
        "namespace": "default", "name": owner.text(&["name"]),
    });
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    });
    let asked = Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews");
    let asked = asked.header("content-type", "application/json").body(review.to_string().into_bytes());
    let client = kube::Client::new(server.clone(), "default");
    let review: Value = client.request(asked.expect("a request")).await.expect("all may ask what they may");
    review.flag(&["status", "allowed"])
}
