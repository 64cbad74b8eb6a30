//! Every verb of every resource: a role allows exactly the verbs and resources in its rules.

use crate::backup::grant;
use crate::support::*;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// A resource or subresource that the server serves.
struct Resource {
    group: String,
    /// The name in RBAC rules: `pods`, `pods/status`.
    name: String,
    /// Path of the collection, or of the subresource of the missing object `x`.
    path: String,
    verbs: Vec<String>,
}

impl Resource {
    /// Sends a request with this verb that changes nothing, even if it is allowed.
    async fn send(&self, user: &Api, verb: &str) -> Reply {
        let path = &self.path;
        let named = if self.name.contains('/') { path.clone() } else { format!("{path}/x") };
        let body = json!({"metadata": {"name": "x"}}).to_string();
        match verb {
            "get" => user.get(&named).await,
            "list" => user.get(path).await,
            // With the permission, the server refuses this selector, so no watch stays open.
            "watch" => user.get(&format!("{path}?watch=1&fieldSelector=no.such.field%3Dx")).await,
            "create" => user.send("POST", &format!("{path}?dryRun=All"), "application/json", body).await,
            "update" => user.send("PUT", &format!("{named}?dryRun=All"), "application/json", body).await,
            "patch" => user.send("PATCH", &format!("{named}?dryRun=All"), MERGE, body).await,
            "delete" => user.delete(&format!("{named}?dryRun=All")).await,
            "deletecollection" => user.delete(&format!("{path}?dryRun=All")).await,
            other => panic!("{} has the verb {other}", self.name),
        }
    }
}

/// Whether RBAC refused the request.
fn is_refused(reply: &Reply, user: &str) -> bool {
    reply.code == 403 && text(&reply.body, "/message").contains(&format!("User \"{user}\" cannot "))
}

async fn served(admin: &Api) -> Vec<Resource> {
    let mut roots = vec![(String::new(), "/api/v1".to_owned())];
    let groups = admin.get("/apis").await.expect(200);
    for group in groups["groups"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            roots.push((text(group, "/name"), format!("/apis/{}", version["groupVersion"].as_str().unwrap())));
        }
    }
    let mut found = Vec::new();
    for (group, root) in roots {
        let list = admin.get(&root).await.expect(200);
        for resource in list["resources"].as_array().unwrap() {
            let name = text(resource, "/name");
            // Every user may review their own permissions.
            if name.starts_with("selfsubject") {
                continue;
            }
            let place = if resource["namespaced"] == true { "/namespaces/default" } else { "" };
            let path = match name.split_once('/') {
                Some((plural, sub)) => format!("{root}{place}/{plural}/x/{sub}"),
                None => format!("{root}{place}/{name}"),
            };
            let verbs = resource["verbs"].as_array().unwrap().iter().map(|verb| verb.as_str().unwrap().to_owned());
            found.push(Resource { group: group.clone(), name, path, verbs: verbs.collect() });
        }
    }
    found
}

/// A user with one verb on all resources cannot use another verb.
#[tokio::test]
async fn a_verb_on_all_resources_allows_no_other_verb() {
    let world = World::new().await;
    let admin = world.admin();
    let resources = served(&admin).await;
    let verbs: BTreeSet<&str> = resources.iter().flat_map(|resource| &resource.verbs).map(String::as_str).collect();
    let before = world.store.revision() + 2 * verbs.len() as u64;
    let mut tried = 0;
    for granted in &verbs {
        grant(&admin, granted, json!({"apiGroups": ["*"], "resources": ["*"], "verbs": [granted]})).await;
        let user = world.as_user(granted, &[]);
        for resource in &resources {
            for verb in &resource.verbs {
                let reply = resource.send(&user, verb).await;
                let is_allowed = verb == granted;
                assert_eq!(!is_refused(&reply, granted), is_allowed, "{granted}: {} {}", reply.asked, reply.body);
                tried += 1;
            }
        }
    }
    assert!(tried > 2_000, "{tried} requests");
    assert_eq!(world.store.revision(), before, "only the roles and bindings were written");
}

/// A user with all verbs on one resource cannot access its subresources, its parent or other resources.
#[tokio::test]
async fn all_verbs_on_a_resource_allow_no_other_resource() {
    let world = World::new().await;
    let admin = world.admin();
    // A rule applies to a resource of a group in all its versions.
    let mut by_right: BTreeMap<(String, String), Vec<Resource>> = BTreeMap::new();
    for resource in served(&admin).await {
        by_right.entry((resource.group.clone(), resource.name.clone())).or_default().push(resource);
    }
    let rights: Vec<_> = by_right.iter().collect();
    let mut tried = 0;
    for (at, ((group, name), granted)) in rights.iter().enumerate() {
        let user_name = format!("user-{at}");
        grant(&admin, &user_name, json!({"apiGroups": [group], "resources": [name], "verbs": ["*"]})).await;
        let user = world.as_user(&user_name, &[]);
        for resource in *granted {
            for verb in &resource.verbs {
                let reply = resource.send(&user, verb).await;
                assert!(!is_refused(&reply, &user_name), "{group}/{name}: {} {}", reply.asked, reply.body);
                tried += 1;
            }
        }
        // Resources with the same plural (subresources, the parent, the same name in another group), and every eighth other.
        let plural = |name: &str| name.split('/').next().unwrap().to_owned();
        let others = rights
            .iter()
            .enumerate()
            .filter(|(other, ((_, of), _))| *other != at && (plural(of) == plural(name) || (other + at) % 8 == 0));
        for (_, (_, others)) in others {
            for resource in *others {
                for verb in &resource.verbs {
                    let reply = resource.send(&user, verb).await;
                    assert!(is_refused(&reply, &user_name), "{group}/{name}: {} {}", reply.asked, reply.body);
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 2_000, "{tried} requests");
}
