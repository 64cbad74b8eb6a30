//! Permissions to read the whole store through `GET /mainstay/backup`.

use crate::support::*;
use serde_json::{Value, json};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const BACKUP: &str = "/mainstay/backup";

/// Creates a ClusterRole with one rule, and binds it to the user of the same name.
pub async fn grant(admin: &Api, user: &str, rule: Value) {
    let role = json!({"metadata": {"name": user}, "rules": [rule]});
    admin.post(&format!("{RBAC}/clusterroles"), &role).await.expect(201);
    let binding = json!({"metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}]});
    admin.post(&format!("{RBAC}/clusterrolebindings"), &binding).await.expect(201);
}

/// The attack: a user with a monitoring role for the path `*` requests the backup.
#[tokio::test]
async fn wildcards_for_paths_and_for_reading_do_not_give_the_backup() {
    let world = World::new().await;
    let admin = world.admin();
    let reads = json!(["get", "list", "watch"]);
    grant(&admin, "monitoring", json!({"nonResourceURLs": ["*"], "verbs": ["get"]})).await;
    grant(&admin, "every-path", json!({"nonResourceURLs": ["*"], "verbs": ["*"]})).await;
    grant(&admin, "named-path", json!({"nonResourceURLs": [BACKUP, "/mainstay/*"], "verbs": ["*"]})).await;
    grant(&admin, "auditor", json!({"apiGroups": ["*"], "resources": ["*"], "verbs": reads})).await;
    for user in ["monitoring", "every-path", "named-path", "auditor", "nobody"] {
        let api = world.as_user(user, &[]);
        for path in [BACKUP, "/mainstay/backup/", "/mainstay/backup//", "/mainstay/backup?x=y"] {
            let said = api.get(path).await.refused(403, "Forbidden");
            let why = format!("User {user:?} cannot backup resource \"stores\" in API group \"mainstay.dev\"");
            assert!(said.contains(&why), "{path}: {said}");
        }
        for method in ["HEAD", "POST", "PUT", "DELETE", "OPTIONS"] {
            assert_eq!(api.send(method, BACKUP, "", "").await.code, 403, "{user} {method}");
        }
        for path in ["//mainstay/backup", "/mainstay/./backup", "/mainstay/%62ackup", "/x/../mainstay/backup"] {
            let reply = api.get(path).await;
            assert!(matches!(reply.code, 403 | 404), "{user} {path}: {}", reply.code);
        }
    }
    assert_eq!(world.as_user("monitoring", &[]).get("/metrics").await.code, 200, "the rest of the paths is open");
}

#[tokio::test]
async fn the_backup_needs_its_own_right_or_all_rights() {
    let world = World::new().await;
    let admin = world.admin();
    let own = json!({"apiGroups": ["mainstay.dev"], "resources": ["stores"], "verbs": ["backup"]});
    grant(&admin, "operator", own.clone()).await;
    grant(&admin, "all-rights", json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]})).await;
    for api in [admin.clone(), world.as_user("operator", &[]), world.as_user("all-rights", &[])] {
        let reply = api.get(BACKUP).await;
        assert_eq!(reply.code, 200);
        assert!(!reply.bytes.is_empty());
        assert_eq!(api.send("POST", BACKUP, "", "").await.code, 405);
    }
    // A user without the permission cannot grant it, and it cannot be granted in a namespace.
    grant(&admin, "author", json!({"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["*"], "verbs": ["*"]}))
        .await;
    // `verbs: *` on roles includes `escalate`; without it the rules are compared.
    let role = json!({"rules": [{"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["*"],
        "verbs": ["get", "create", "update", "patch"]}]});
    admin.patch(&format!("{RBAC}/clusterroles/author"), MERGE, &role).await.expect(200);
    let stolen = json!({"metadata": {"name": "stolen"}, "rules": [own.clone()]});
    world.as_user("author", &[]).post(&format!("{RBAC}/clusterroles"), &stolen).await.refused(403, "Forbidden");
    let local = json!({"metadata": {"name": "local"}, "rules": [own]});
    admin.post(&format!("{RBAC}/namespaces/default/roles"), &local).await.expect(201);
    let binding = json!({"metadata": {"name": "local"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "local"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "local"}]});
    admin.post(&format!("{RBAC}/namespaces/default/rolebindings"), &binding).await.expect(201);
    world.as_user("local", &[]).get(BACKUP).await.refused(403, "Forbidden");
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
        "user": "operator", "resourceAttributes": {"group": "mainstay.dev", "resource": "stores", "verb": "backup"}}});
    let answer = admin.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).await.expect(201);
    assert_eq!(answer["status"]["allowed"], true, "a review answers as the server does");
}
