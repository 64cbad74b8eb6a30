//! An API server with the admission plugin OwnerReferencesPermissionEnforcement of Kubernetes, which Mainstay
//! does not have.

use http::{Method, Request, Response};
use kube::client::Body;
use object::access::{Access, name};
use object::{Status, Value, json};
use server::Local;
use server::attributes::Attributes;

/// Returns the request, and the response of such a server if it refuses the request. A user who changes the
/// owner references of an object must be allowed to delete the object. A user who lets an object block the
/// deletion of its owner must be allowed to update the owner's finalizers.
pub async fn enforce(server: &Local, request: Request<Body>) -> (Request<Body>, Option<Response<server::Body>>) {
    let (head, body) = request.into_parts();
    let bytes = body.collect_bytes().await.expect("a body of this process");
    let written: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let mut why = None;
    if let Some(owners) = written.at(&["metadata", "ownerReferences"]) {
        let asked = server::authz::asked(&head.method, &head.uri).expect("a request of a controller can be read");
        let changes = head.method == Method::PATCH && asked.subresource.is_empty();
        if changes && !may(server, Attributes { verb: "delete".to_owned(), ..asked.clone() }).await {
            why = Some("cannot set an ownerRef on a resource you can't delete: , <nil>");
        }
        for owner in owners.items(&[]).iter().filter(|owner| owner.flag(&["blockOwnerDeletion"])) {
            if !may(server, finalizing(owner, &asked.namespace)).await {
                why = Some(
                    "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: , <nil>",
                );
            }
        }
        let of = if asked.group.is_empty() { String::new() } else { format!(".{}", asked.group) };
        let subject = format!("{}{of} \"{}\"", asked.resource, name(&written));
        let refusal = why.map(|why| Status::new(403, "Forbidden", format!("{subject} is forbidden: {why}")));
        let refusal = refusal.map(|status| server::app::status_response(&status));
        return (Request::from_parts(head, Body::from(bytes)), refusal);
    }
    (Request::from_parts(head, Body::from(bytes)), None)
}

/// The permission to update the finalizers of an owner.
fn finalizing(owner: &Value, namespace: &str) -> Attributes {
    Attributes {
        verb: "update".to_owned(),
        group: owner.text(&["apiVersion"]).split_once('/').map_or("", |(group, _)| group).to_owned(),
        resource: format!("{}s", owner.text(&["kind"]).to_lowercase()),
        subresource: "finalizers".to_owned(),
        namespace: namespace.to_owned(),
        name: owner.text(&["name"]).to_owned(),
        ..Attributes::default()
    }
}

/// Whether the sender of the request has a permission.
async fn may(server: &Local, right: Attributes) -> bool {
    let attributes = json!({
        "verb": right.verb, "group": right.group, "resource": right.resource, "subresource": right.subresource,
        "namespace": right.namespace, "name": right.name,
    });
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    });
    let asked = Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews");
    let asked = asked.header("content-type", "application/json").body(review.to_string().into_bytes());
    let client = kube::Client::new(server.clone(), "default");
    let review: Value = client.request(asked.expect("a request")).await.expect("every user may ask for its rights");
    review.flag(&["status", "allowed"])
}
