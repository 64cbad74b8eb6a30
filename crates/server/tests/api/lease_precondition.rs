//! Writes that are valid only while a Lease is held.

use crate::support::*;
use serde_json::{Value, json};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

fn lease(holder: &str, term: i64) -> Value {
    json!({"metadata": {"name": "l", "namespace": "kube-system"},
        "spec": {"holderIdentity": holder, "leaseTransitions": term, "leaseDurationSeconds": 15}})
}

fn in_term(api: &Api, holder: &str, term: i64) -> Api {
    api.header("mainstay-lease", &format!("kube-system/l {term} {holder}"))
}

#[tokio::test]
async fn writes_of_a_term_that_is_over_are_refused() {
    let world = World::new().await;
    let admin = world.admin();
    let first = in_term(&admin, "a", 0);
    first.post(CONFIG_MAPS, &config_map("early")).await.refused(409, "Conflict");
    admin.post(LEASES, &lease("a", 0)).await.expect(201);
    first.post(CONFIG_MAPS, &config_map("x")).await.expect(201);
    let path = format!("{CONFIG_MAPS}/x");
    first.patch(&path, MERGE, &json!({"data": {"a": "b"}})).await.expect(200);

    admin.put(&format!("{LEASES}/l"), &lease("b", 1)).await.expect(200);
    let second = in_term(&admin, "b", 1);
    let refused = [
        first.post(CONFIG_MAPS, &config_map("y")).await,
        first.put(&path, &config_map("x")).await,
        first.patch(&path, MERGE, &json!({"data": {"a": "c"}})).await,
        first
            .apply(
                &format!("{path}?force=true"),
                "m",
                &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"a": "d"}}),
            )
            .await,
        first.delete(&path).await,
        first.send("DELETE", CONFIG_MAPS, "", Vec::new()).await,
        in_term(&admin, "b", 0).delete(&path).await,
        in_term(&admin, "a", 1).delete(&path).await,
    ];
    for reply in refused {
        assert!(reply.refused(409, "Conflict").contains("is over, so this write of it does not count"));
    }
    assert_eq!(first.get(&path).await.expect(200)["data"]["a"], "b", "reading is free, and nothing was changed");
    second.delete(&path).await.expect(200);
    let bad = admin.header("mainstay-lease", "who knows").post(CONFIG_MAPS, &config_map("z")).await;
    bad.refused(400, "BadRequest");
}

/// A write that was checked during the term and commits after it is refused too.
#[tokio::test]
async fn a_term_that_ends_between_judging_and_writing_refuses() {
    let world = World::contended().await;
    let admin = world.admin();
    admin.post(LEASES, &lease("a", 0)).await.expect(201);
    let (lease_path, taken) = (format!("{LEASES}/l"), lease("b", 1));
    let (late, map) = (in_term(&admin, "a", 0), config_map("x"));
    let (took, wrote) = tokio::join!(biased; admin.put(&lease_path, &taken), late.post(CONFIG_MAPS, &map));
    took.expect(200);
    wrote.refused(409, "Conflict");
    admin.get(&format!("{CONFIG_MAPS}/x")).await.refused(404, "NotFound");
}

/// Renewals of the lease do not conflict with writes.
#[tokio::test]
async fn renewals_do_not_refuse_writes() {
    let world = World::contended().await;
    let admin = world.admin();
    admin.post(LEASES, &lease("a", 0)).await.expect(201);
    let (lease_path, renewed) = (format!("{LEASES}/l"), json!({"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}));
    let (writer, map) = (in_term(&admin, "a", 0), config_map("x"));
    let (renewal, wrote) =
        tokio::join!(biased; admin.patch(&lease_path, MERGE, &renewed), writer.post(CONFIG_MAPS, &map));
    renewal.expect(200);
    wrote.expect(201);
}

/// A user of one namespace must not find out Leases and their holders of another: every guess gets the same response.
#[tokio::test]
async fn the_header_answers_no_guesses_about_leases_of_others() {
    let world = World::new().await;
    let admin = world.admin();
    admin.post(LEASES, &lease("a", 3)).await.expect(201);
    grant(&admin, "writer", json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "delete"]}]))
        .await;
    let jane = world.outside().header("authorization", "Bearer sesame-open-please");
    let map = config_map("x");
    for value in ["kube-system/l 3 a", "kube-system/l 3 b", "kube-system/l 2 a", "kube-system/absent 3 a"] {
        let guess = jane.header("mainstay-lease", value);
        for reply in [guess.post(CONFIG_MAPS, &map).await, guess.delete(&format!("{CONFIG_MAPS}/absent")).await] {
            let said = reply.refused(403, "Forbidden");
            let name = value.split([' ', '/']).nth(1).unwrap();
            assert_eq!(
                said,
                format!(
                    "leases.coordination.k8s.io {name:?} is forbidden: User \"jane\" cannot get resource \"leases\" in API group \
                     \"coordination.k8s.io\" in the namespace \"kube-system\""
                )
            );
        }
    }
    admin.get(&format!("{CONFIG_MAPS}/x")).await.refused(404, "NotFound");

    // A user with permission for the Lease can use the header, as a controller does.
    for verb in ["get", "update"] {
        let rule = json!([{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["l"], "verbs": [verb]}]);
        grant(&admin, verb, rule).await;
        let guess = |value: &str| jane.header("mainstay-lease", value);
        guess("kube-system/l 3 b").post(CONFIG_MAPS, &map).await.refused(409, "Conflict");
        guess("kube-system/l 3 a").post(CONFIG_MAPS, &map).await.expect(201);
        guess("kube-system/l 3 a").delete(&format!("{CONFIG_MAPS}/x")).await.expect(200);
        guess("kube-system/absent 3 a").post(CONFIG_MAPS, &map).await.refused(403, "Forbidden");
        admin.delete(&format!("{RBAC}/clusterrolebindings/{verb}")).await.expect(200);
    }
}

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

/// Grants these permissions to jane in the whole cluster.
async fn grant(admin: &Api, name: &str, rules: Value) {
    admin.post(&format!("{RBAC}/clusterroles"), &json!({"metadata": {"name": name}, "rules": rules})).await.expect(201);
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "User", "name": "jane"}],
    });
    admin.post(&format!("{RBAC}/clusterrolebindings"), &binding).await.expect(201);
}
