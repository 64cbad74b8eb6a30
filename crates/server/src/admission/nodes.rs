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
        if let Some(label) = changed_labels(write.old, write.object).find(|label| !is_label_of_nodes(label)) {
            return refuse(&format!("is not allowed to modify the label {label:?}"));
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
        // A pod becomes an endpoint of a Service or a replica of a StatefulSet by its labels.
        if matches!(write.verb, Verb::Update) && changed_labels(write.old, write.object).next().is_some() {
            return refuse("cannot update labels through pod status");
        }
    }
    Ok(())
}

/// The keys of the labels that a write adds, changes or removes.
fn changed_labels<'a>(old: Option<&'a Value>, new: &'a Value) -> impl Iterator<Item = &'a str> {
    let labels =
        |object: Option<&'a Value>| object.into_iter().flat_map(|object| object.members(&["metadata", "labels"]));
    let value =
        |object: Option<&'a Value>, key: &str| object.and_then(|object| object.at(&["metadata", "labels", key]));
    let keys = labels(old).chain(labels(Some(new))).map(|(key, _)| &**key);
    keys.filter(move |key| value(old, key) != value(Some(new), key))
}

/// Whether a node may set this label on itself. Labels in the domains of Kubernetes are reserved for administrators,
/// except those that kubelets report. Administrators use labels in `node-restriction.kubernetes.io` to choose the nodes
/// for sensitive pods.
fn is_label_of_nodes(key: &str) -> bool {
    const REPORTED: [&str; 13] = [
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "node.kubernetes.io/instance-type",
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.kubernetes.io/zone",
        "failure-domain.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
    ];
    let Some((domain, _)) = key.split_once('/') else { return true };
    let is_in = |parent: &str| domain.strip_suffix(parent).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    if is_in("kubelet.kubernetes.io") || is_in("node.kubernetes.io") || REPORTED.contains(&key) {
        return true;
    }
    !is_in("kubernetes.io") && !is_in("k8s.io")
}
