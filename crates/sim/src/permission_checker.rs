//! Permission checker: every request of a controller, a node, the scheduler or the leader election must be allowed by
//! the bootstrap role of its account and by the manifests in `deploy/`. This includes the admission plugin
//! OwnerReferencesPermissionEnforcement of other API servers.
//!
//! A request is checked when it is sent, so requests that a fault drops, and retries, are checked too.

use crate::fault_point::ELECTION;
use http::{Method, Response, StatusCode, Uri};
use object::Value;
use object::access::{self, Access};
use object::kind::Kinds;
use server::Body;
use server::attributes::Attributes;
use server::authz::{self, Rule, bootstrap};
use std::collections::BTreeMap;
use std::sync::OnceLock;

const CONTROLLERS: &str = include_str!("../../../deploy/controllers.yaml");
const NODES: &str = include_str!("../../../deploy/nodes.yaml");
const SCHEDULER: &str = "system:kube-scheduler";

/// Rules of an account, by source. Each source alone must allow each request.
type RuleSources = BTreeMap<&'static str, Vec<Rule>>;

/// Missing permissions of a request, one sentence each. Accounts that act for users are not checked.
pub fn missing_permissions(account: &str, method: &Method, uri: &Uri) -> Vec<String> {
    let Some(sources) = sources_of(account) else { return Vec::new() };
    match authz::asked(method, uri) {
        Ok(right) => missing(account, sources, &right),
        Err(status) => {
            vec![format!("{account} sent a request that cannot be parsed: {method} {uri}: {}", status.message)]
        }
    }
}

/// Missing permissions of a write of owner references. `stored` returns the stored object by its key.
pub fn missing_owner_permissions(
    account: &str,
    method: &Method,
    uri: &Uri,
    body: &[u8],
    stored: impl Fn(&str) -> Option<Value>,
) -> Vec<String> {
    let Some(sources) = sources_of(account) else { return Vec::new() };
    let written: Value = serde_json::from_slice(body).unwrap_or_default();
    let Some(owners) = written.at(&["metadata", "ownerReferences"]).map(|owners| owners.items(&[]).to_vec()) else {
        return Vec::new();
    };
    let Ok(right) = authz::asked(method, uri) else { return Vec::new() };
    if !right.subresource.is_empty() {
        return Vec::new();
    }
    let old = stored(&key_of(&right)).map(|old| old.items(&["metadata", "ownerReferences"]).to_vec());
    let mut lacking = Vec::new();
    if let Some(old) = &old
        && owners != *old
    {
        lacking.extend(missing(account, sources, &Attributes { verb: "delete".to_owned(), ..right.clone() }));
    }
    let blocks = |owner: &&Value| owner.flag(&["blockOwnerDeletion"]);
    let blocked_before = |owner: &Value| {
        let mut old = old.iter().flatten().filter(blocks);
        old.any(|known| known.text(&["uid"]) == owner.text(&["uid"]))
    };
    for owner in owners.iter().filter(blocks).filter(|owner| !blocked_before(owner)) {
        lacking.extend(missing(account, sources, &finalizing(owner, &right.namespace)));
    }
    lacking
}

/// Returns a sentence if the response is a refusal by RBAC. Other refusals, such as those of quotas, are part of a
/// story.
pub fn refused_by_rbac(account: &str, answer: &Response<Body>) -> Option<String> {
    let Body::Once(said) = answer.body() else { return None };
    if answer.status() != StatusCode::FORBIDDEN || sources_of(account).is_none() {
        return None;
    }
    let status: Value = serde_json::from_slice(said).unwrap_or_default();
    let message = status.text(&["message"]);
    let is_about_rights = message.contains("\" cannot ") || message.contains("RBAC permissions not currently held");
    is_about_rights.then(|| format!("{account}: {message}"))
}

fn missing(account: &str, sources: &RuleSources, right: &Attributes) -> Vec<String> {
    let lacking = sources.iter().filter(|(_, rules)| !rules.iter().any(|rule| rule.allows(right)));
    let Attributes { verb, group, resource, subresource, namespace, name, path, .. } = right;
    let what = format!("{verb} {group}/{resource}/{subresource} {namespace}/{name}{path}");
    lacking.map(|(source, _)| format!("{account} has no permission to {what} in {source}")).collect()
}

fn finalizing(owner: &Value, namespace: &str) -> Attributes {
    let api_version = owner.text(&["apiVersion"]);
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kinds = Kinds::builtin();
    let kind = kinds.by_kind(group, version, owner.text(&["kind"]));
    Attributes {
        verb: "update".to_owned(),
        group: group.to_owned(),
        resource: kind.map_or_else(|| owner.text(&["kind"]).to_owned(), |kind| kind.plural.to_string()),
        subresource: "finalizers".to_owned(),
        namespace: namespace.to_owned(),
        name: owner.text(&["name"]).to_owned(),
        ..Attributes::default()
    }
}

fn key_of(right: &Attributes) -> String {
    let group = if right.group.is_empty() { "core" } else { &right.group };
    let place = if right.namespace.is_empty() { String::new() } else { format!("/{}", right.namespace) };
    format!("/{group}/{}{place}/{}", right.resource, right.name)
}

/// The roles of nodes and controllers, which servers of the simulation begin with.
pub fn bootstrap_objects() -> Vec<Value> {
    [node::bootstrap_objects(), runtime::bootstrap_objects()].concat()
}

/// Returns `None` for accounts that act for users.
fn sources_of(account: &str) -> Option<&'static RuleSources> {
    static KNOWN: OnceLock<BTreeMap<String, RuleSources>> = OnceLock::new();
    let known = KNOWN.get_or_init(all_sources);
    // All nodes have the same permissions.
    known.get(if account.starts_with("system:node:") { "system:node:" } else { account })
}

fn all_sources() -> BTreeMap<String, RuleSources> {
    let objects = [bootstrap::objects(), bootstrap_objects()].concat();
    let of_everyone = || rules_of(&objects, "ClusterRole", "system:discovery");
    let with_everyone = |rules: Vec<Rule>| rules.into_iter().chain(of_everyone()).collect::<Vec<_>>();
    let mut all = BTreeMap::new();
    for controller in runtime::descriptors() {
        let by_role = rules_of(&objects, "ClusterRole", &controller.role_name());
        let by_manifest = manifest_rules(controller.name);
        let sources = [("its role", with_everyone(by_role)), ("deploy/controllers.yaml", with_everyone(by_manifest))];
        all.insert(controller.account.to_owned(), RuleSources::from(sources));
    }
    let manifest = documents(NODES);
    let by_manifest: Vec<Rule> = manifest.iter().flat_map(Rule::of_role).collect();
    let mut of_nodes = rules_of(&objects, "ClusterRole", "mainstay:simulated-nodes");
    of_nodes.extend(rules_of(&objects, "Role", "mainstay:simulated-nodes"));
    let sources = [("its role", of_nodes), ("deploy/nodes.yaml", by_manifest.clone())];
    all.insert("system:node:".to_owned(), RuleSources::from(sources));
    let mut of_scheduler = rules_of(&objects, "ClusterRole", SCHEDULER);
    of_scheduler.extend(rules_of(&objects, "ClusterRole", "system:volume-scheduler"));
    let sources = [("its role", of_scheduler), ("deploy/nodes.yaml", by_manifest)];
    all.insert(SCHEDULER.to_owned(), RuleSources::from(sources));
    let of_leader = rules_of(&documents(CONTROLLERS), "Role", "mainstay-controllers");
    all.insert(ELECTION.to_owned(), RuleSources::from([("deploy/controllers.yaml", of_leader)]));
    for (account, sources) in &all {
        assert!(
            sources.values().all(|rules| !rules.is_empty()),
            "{account} has no rules in one of {:?}",
            sources.keys()
        );
    }
    all
}

fn rules_of(objects: &[Value], kind: &str, name: &str) -> Vec<Rule> {
    let is_meant = |object: &&Value| object.text(&["kind"]) == kind && access::name(object) == name;
    objects.iter().filter(is_meant).flat_map(Rule::of_role).collect()
}

fn documents(manifest: &str) -> Vec<Value> {
    let read = |text: &str| object::decode::yaml(text.as_bytes()).expect("a manifest of ours").value;
    manifest.split("\n---\n").map(read).collect()
}

/// The rules of one controller in the manifest, which has one block per controller that users can delete.
fn manifest_rules(controller: &str) -> Vec<Rule> {
    let (_, rest) = CONTROLLERS.split_once(&format!("\n  # {controller}\n")).expect("every controller has a block");
    let ends = ["\n  # ", "\n---\n"];
    let end = ends.iter().filter_map(|end| rest.find(end)).min().expect("a block ends");
    documents(&format!("rules:\n{}\n", &rest[..end])).iter().flat_map(Rule::of_role).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::json;

    fn missing_permissions_of(account: &str, method: Method, path: &str) -> Vec<String> {
        missing_permissions(account, &method, &path.parse().expect("a path"))
    }

    #[test]
    fn roles_and_manifests_allow_exactly_the_needed_requests() {
        let claim = "/api/v1/namespaces/default/persistentvolumeclaims/data";
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/mainstay-controllers";
        let node_lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/simulated-0";
        for (account, method, path, count) in [
            ("statefulset-controller", Method::GET, claim, 0),
            ("statefulset-controller", Method::PUT, claim, 2),
            ("statefulset-controller", Method::GET, "/api/v1/namespaces/default/secrets/s", 2),
            ("statefulset-controller", Method::GET, "/apis/apps/v1", 0),
            ("pv-protection-controller", Method::DELETE, "/api/v1/persistentvolumes/v", 2),
            (ELECTION, Method::PUT, lease, 0),
            (ELECTION, Method::DELETE, lease, 1),
            ("system:node:simulated-0", Method::PATCH, node_lease, 0),
            ("system:node:simulated-0", Method::DELETE, node_lease, 2),
            (SCHEDULER, Method::DELETE, node_lease, 2),
            (crate::commit_checker::OPERATOR, Method::DELETE, claim, 0),
        ] {
            let lacking = missing_permissions_of(account, method.clone(), path);
            assert_eq!(lacking.len(), count, "{account} {method} {path}: {lacking:?}");
        }
    }

    #[test]
    fn owner_references_need_rights_to_the_object_and_to_the_owner() {
        let owner = |uid: &str, blocks: bool| json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": uid, "blockOwnerDeletion": blocks});
        let claim = "/api/v1/namespaces/default/persistentvolumeclaims/data";
        let pod = "/api/v1/namespaces/default/pods/web-0";
        let (sets, protection) = ("statefulset-controller", "pvc-protection-controller");
        for (account, path, before, after, count) in [
            (sets, claim, None, Some(owner("u", false)), 0),
            (sets, pod, None, Some(owner("u", true)), 0),
            // This account may not delete claims, according to its role and its block in the manifest.
            (protection, claim, None, Some(owner("u", false)), 2),
            (protection, claim, Some(owner("u", false)), Some(owner("u", false)), 0),
            (protection, claim, Some(owner("u", false)), None, 2),
            // This account may not update finalizers of sets either.
            (protection, claim, None, Some(owner("u", true)), 4),
            (protection, claim, Some(owner("u", true)), Some(owner("u", true)), 0),
        ] {
            let object =
                |owners: &Option<Value>| json!({"metadata": {"ownerReferences": Vec::from_iter(owners.clone())}});
            let body = object(&after).to_string();
            let uri = path.parse().expect("a path");
            let lacking =
                missing_owner_permissions(account, &Method::PATCH, &uri, body.as_bytes(), |_| Some(object(&before)));
            assert_eq!(lacking.len(), count, "{account} {before:?} {after:?}: {lacking:?}");
        }
    }

    #[test]
    fn only_rbac_refusals_count_as_missing_permissions() {
        let answer = |code: u16, message: &str| {
            server::app::status_response(&object::Status::new(code, "Forbidden", message.to_owned()))
        };
        let lacking = r#"pods is forbidden: User "u" cannot list resource "pods" in API group "" at the cluster scope"#;
        let quota = r#"pods "p" is forbidden: exceeded quota: q"#;
        let is_rbac = |code, message| refused_by_rbac("statefulset-controller", &answer(code, message)).is_some();
        assert!(is_rbac(403, lacking));
        assert!(!is_rbac(403, quota));
        assert!(!is_rbac(409, lacking));
    }
}
