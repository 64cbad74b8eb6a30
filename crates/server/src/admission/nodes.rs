//! A node may write only its own Node and the pods bound to it, whatever roles it has: the part of upstream's
//! NodeRestriction that is about which objects a node writes.

use super::{Verb, Write};
use crate::authz::node::{self, LEASES};
use object::access::Access;
use object::{Status, Value};

/// Annotation of mirror pods, which a kubelet creates for pods of its own manifests.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Refuses a node's write to other objects. Evaluates the stored object and makes it a condition of the transaction,
/// because a pod may be replaced after the request was authorized.
pub fn restrict(write: &Write<'_>) -> Result<(), Status> {
    let Some(name) = node::identity(write.user) else { return Ok(()) };
    let is_own = !name.is_empty() && write.name == name;
    let refuse = |why: &str| Err(write.forbidden(format!("node {name:?} {why}")));
    if write.concerns("", "nodes") {
        if !is_own {
            return refuse("can only write the Node of its own name");
        }
        let taints = |object: &Value| object.at(&["spec", "taints"]).cloned();
        let is_new = write.old.is_none();
        if !is_new && write.old.and_then(taints) != taints(write.object) {
            return refuse("is not allowed to modify taints");
        }
    }
    if write.concerns("coordination.k8s.io", "leases") && !(is_own && write.namespace == LEASES) {
        return refuse("can only write the Lease of its own name in the namespace \"kube-node-lease\"");
    }
    if write.concerns("storage.k8s.io", "csinodes") && !is_own {
        return refuse("can only write the CSINode of its own name");
    }
    if write.concerns("", "pods") {
        let is_here = |pod: &Value| !name.is_empty() && pod.text(&["spec", "nodeName"]) == name;
        let is_allowed = match write.verb {
            Verb::Create => write.object.has(&["metadata", "annotations", MIRROR]) && is_here(write.object),
            Verb::Update | Verb::Delete => write.old.is_some_and(is_here),
        };
        if !is_allowed {
            return refuse("can only create mirror pods, and only write pods with spec.nodeName set to itself");
        }
    }
    Ok(())
}
