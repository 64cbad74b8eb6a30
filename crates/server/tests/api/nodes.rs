//! Permissions of one node's credential: full access to its own node, none to others.

use crate::support::*;
use serde_json::{Value, json};

const NODES: &str = "/api/v1/nodes";
const CSI_NODES: &str = "/apis/storage.k8s.io/v1/csinodes";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const READY: [(&str, &str); 2] = [("type", "Ready"), ("status", "True")];

fn leases(namespace: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
}

fn node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
}

fn lease(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"holderIdentity": name, "leaseDurationSeconds": 40}})
}

fn csi_node(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"drivers": []}})
}

fn pod_on(name: &str, node: &str) -> Value {
    let mut pod = pod(name);
    pod["spec"]["nodeName"] = json!(node);
    pod
}

fn ready() -> Value {
    json!({"status": {"conditions": [Value::Object(READY.map(|(key, value)| (key.to_owned(), json!(value))).into_iter().collect())]}})
}

fn claim(name: &str) -> Value {
    json!({"metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
}

/// A world with the nodes `a` and `b`, a pod on each and the controllers' Lease. Returns also clients of node `a`.
async fn world_of_two() -> (World, Api, Api) {
    let world = World::new().await;
    let admin = world.admin();
    for name in ["a", "b"] {
        admin.post(NODES, &node(name)).await.expect(201);
        admin.post(CSI_NODES, &csi_node(name)).await.expect(201);
        admin.post(&leases("kube-node-lease"), &lease(name)).await.expect(201);
        admin.post(PODS, &pod_on(&format!("on-{name}"), name)).await.expect(201);
    }
    admin.post(CLAIMS, &claim("data")).await.expect(201);
    admin.post(&leases("kube-system"), &lease("mainstay-controllers")).await.expect(201);
    let a = world.as_user("system:node:a", &["system:nodes"]);
    (world, admin, a)
}

/// A standard kubelet with a certificate from an administrator needs no other permissions for this.
#[tokio::test]
async fn a_node_registers_and_keeps_what_is_its_own() {
    let world = World::new().await;
    let (admin, a) = (world.admin(), world.as_user("system:node:a", &["system:nodes"]));
    a.post(NODES, &node("a")).await.expect(201);
    let own = format!("{NODES}/a");
    a.get(&own).await.expect(200);
    a.get(&format!("{NODES}?fieldSelector=metadata.name%3Da")).await.expect(200);
    a.patch(&own, STRATEGIC, &json!({"metadata": {"labels": {"kubernetes.io/hostname": "a"}}})).await.expect(200);
    a.patch(&format!("{own}/status"), STRATEGIC, &ready()).await.expect(200);
    let mut whole = a.get(&own).await.expect(200);
    whole["metadata"]["annotations"] = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
    a.put(&own, &whole).await.expect(200);
    a.post(&leases("kube-node-lease"), &lease("a")).await.expect(201);
    let own_lease = format!("{}/a", leases("kube-node-lease"));
    let mut held = a.get(&own_lease).await.expect(200);
    held["spec"]["leaseDurationSeconds"] = json!(41);
    a.put(&own_lease, &held).await.expect(200);
    a.post(CSI_NODES, &csi_node("a")).await.expect(201);
    admin.post(PODS, &pod_on("here", "a")).await.expect(201);
    let pods = a.get("/api/v1/pods?fieldSelector=spec.nodeName%3Da").await.expect(200);
    assert_eq!(names(&pods), ["here"]);
    let here = format!("{PODS}/here");
    a.get(&here).await.expect(200);
    a.patch(&format!("{here}/status"), STRATEGIC, &json!({"status": {"phase": "Running"}})).await.expect(200);
    let mut mirror = pod_on("etcd-a", "a");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    // The role `system:node`, bound to one node by an administrator, adds access to referenced objects.
    let bound = json!({"metadata": {"name": "node-a"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "system:node:a"}]});
    admin.post(&format!("{RBAC}/clusterrolebindings"), &bound).await.expect(201);
    a.post(PODS, &mirror).await.expect(201);
    a.delete_with(&here, &json!({"gracePeriodSeconds": 0})).await.expect(200);
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "namespace": "default", "name": "x"},
        "reason": "Started", "type": "Normal"});
    a.post("/api/v1/namespaces/default/events", &event).await.expect(201);
}

/// The attack: the credential of node `a` is used for node `b`, pods of other nodes, a claim and the controllers'
/// Lease.
#[tokio::test]
async fn a_node_changes_nothing_of_others() {
    let (world, admin, a) = world_of_two().await;
    let nameless = world.as_user("jane", &["system:nodes"]);
    let other_lease = format!("{}/b", leases("kube-node-lease"));
    let controllers = format!("{}/mainstay-controllers", leases("kube-system"));
    let patches = [
        (format!("{NODES}/b"), json!({"spec": {"unschedulable": true}})),
        (format!("{NODES}/b/status"), ready()),
        (format!("{PODS}/on-b/status"), json!({"status": {"phase": "Failed"}})),
        (format!("{PODS}/on-b"), json!({"metadata": {"labels": {"app": "x"}}})),
        (format!("{PODS}/on-a"), json!({"metadata": {"labels": {"app": "x"}}})),
        (format!("{CLAIMS}/data/status"), json!({"status": {"phase": "Lost"}})),
        (other_lease.clone(), json!({"spec": {"holderIdentity": "a"}})),
        (controllers.clone(), json!({"spec": {"holderIdentity": "a"}})),
        (format!("{CSI_NODES}/b"), json!({"metadata": {"labels": {"x": "y"}}})),
    ];
    for user in [&a, &nameless] {
        for (path, patch) in &patches {
            user.patch(path, MERGE, patch).await.refused(403, "Forbidden");
        }
        for path in [format!("{NODES}/b"), format!("{PODS}/on-b"), other_lease.clone(), controllers.clone()] {
            user.delete(&path).await.refused(403, "Forbidden");
        }
        for (path, object) in [
            (NODES.to_owned(), node("c")),
            (CSI_NODES.to_owned(), csi_node("c")),
            (leases("kube-node-lease"), lease("c")),
            (leases("kube-system"), lease("a")),
            (leases("default"), lease("a")),
            (PODS.to_owned(), pod_on("c", "b")),
            (format!("{PODS}/on-b/eviction"), json!({"metadata": {"name": "on-b"}})),
            (format!("{PODS}/on-b/binding"), json!({"target": {"kind": "Node", "name": "a"}})),
        ] {
            user.post(&path, &object).await.refused(403, "Forbidden");
        }
        for path in ["/api/v1/pods", NODES, "/api/v1/pods?fieldSelector=spec.nodeName%3Db", "/api/v1/secrets"] {
            user.get(path).await.refused(403, "Forbidden");
        }
        user.delete(PODS).await.refused(403, "Forbidden");
    }
    for (path, version_before) in [(format!("{NODES}/b"), "Node"), (format!("{PODS}/on-b"), "Pod")] {
        let object = admin.get(&path).await.expect(200);
        assert_eq!(object["kind"], version_before, "{path} is still there");
        assert!(object["spec"].get("unschedulable").is_none(), "{object}");
    }
    assert_eq!(admin.get(&controllers).await.expect(200)["spec"]["holderIdentity"], "mainstay-controllers");
}

/// A node with too broad roles still cannot write other nodes' objects.
#[tokio::test]
async fn a_node_with_all_verbs_is_still_kept_to_its_own() {
    let (_world, admin, a) = world_of_two().await;
    let role = json!({"metadata": {"name": "broad"}, "rules": [{"apiGroups": ["*"], "verbs": ["*"],
        "resources": ["nodes", "nodes/status", "pods", "pods/status", "pods/eviction", "leases", "csinodes"]}]});
    admin.post(&format!("{RBAC}/clusterroles"), &role).await.expect(201);
    let bound = json!({"metadata": {"name": "broad"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "broad"},
        "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:nodes"}]});
    admin.post(&format!("{RBAC}/clusterrolebindings"), &bound).await.expect(201);
    let why = "spec.nodeName set to itself";
    let said = a.patch(&format!("{PODS}/on-b/status"), MERGE, &json!({"status": {"phase": "Failed"}})).await;
    assert!(said.refused(403, "Forbidden").contains(why));
    assert!(a.delete(&format!("{PODS}/on-b")).await.refused(403, "Forbidden").contains(why));
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "on-b"}});
    assert!(a.post(&format!("{PODS}/on-b/eviction"), &eviction).await.refused(403, "Forbidden").contains(why));
    assert!(a.post(PODS, &pod_on("c", "a")).await.refused(403, "Forbidden").contains("mirror pods"));
    a.delete(PODS).await.refused(403, "Forbidden");
    for (path, patch) in [
        (format!("{NODES}/b"), json!({"spec": {"unschedulable": true}})),
        (format!("{}/mainstay-controllers", leases("kube-system")), json!({"spec": {"holderIdentity": "a"}})),
        (format!("{}/b", leases("kube-node-lease")), json!({"spec": {"holderIdentity": "a"}})),
        (format!("{CSI_NODES}/b"), json!({"metadata": {"labels": {"x": "y"}}})),
    ] {
        let said = a.patch(&path, MERGE, &patch).await.refused(403, "Forbidden");
        assert!(said.contains("of its own name"), "{path}: {said}");
    }
    let taints = json!({"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}});
    a.patch(&format!("{NODES}/a"), MERGE, &taints).await.refused(403, "Forbidden");
    admin.patch(&format!("{NODES}/a"), MERGE, &taints).await.expect(200);
    a.patch(&format!("{NODES}/a/status"), STRATEGIC, &ready()).await.expect(200);
}

/// Selectors of Services, StatefulSets and pods match on the labels of pods and nodes.
#[tokio::test]
async fn a_node_changes_no_labels_that_others_rely_on() {
    let (world, admin, a) = world_of_two().await;
    admin.patch(&format!("{PODS}/on-a"), MERGE, &json!({"metadata": {"labels": {"app": "web"}}})).await.expect(200);
    let status = format!("{PODS}/on-a/status");
    for labels in [json!({"app": "database"}), json!({"app": null}), json!({"other": "x"})] {
        let said = a.patch(&status, STRATEGIC, &json!({"metadata": {"labels": labels}})).await;
        assert!(said.refused(403, "Forbidden").contains("labels through pod status"));
    }
    let running = json!({"metadata": {"labels": {"app": "web"}}, "status": {"phase": "Running"}});
    a.patch(&status, STRATEGIC, &running).await.expect(200);
    let own = format!("{NODES}/a");
    for label in [
        "node-role.kubernetes.io/control-plane",
        "node-restriction.kubernetes.io/tier",
        "team.node-restriction.kubernetes.io/tier",
        "topology.k8s.io/x",
        "kubernetes.io/other",
    ] {
        let said = a.patch(&own, MERGE, &json!({"metadata": {"labels": {label: "x"}}})).await;
        assert!(said.refused(403, "Forbidden").contains(label), "{label}");
        admin.patch(&own, MERGE, &json!({"metadata": {"labels": {label: "x"}}})).await.expect(200);
        // A node cannot remove a label that an administrator set, neither in the object nor in its status.
        for path in [own.clone(), format!("{own}/status")] {
            a.patch(&path, MERGE, &json!({"metadata": {"labels": {label: null}}})).await.refused(403, "Forbidden");
        }
    }
    let reported = json!({"kubernetes.io/hostname": "a", "topology.kubernetes.io/zone": "z", "node.kubernetes.io/x": "y",
        "kubelet.kubernetes.io/x": "y", "example.com/x": "y", "plain": "x"});
    a.patch(&own, MERGE, &json!({"metadata": {"labels": reported}})).await.expect(200);
    let mut new = node("c");
    new["metadata"]["labels"] = json!({"node-restriction.kubernetes.io/tier": "x"});
    let c = world.as_user("system:node:c", &["system:nodes"]);
    c.post(NODES, &new).await.refused(403, "Forbidden");
}

/// An older version gave the group `system:nodes` the permissions of all simulated nodes. The next start removes
/// them, unless an annotation keeps them.
#[tokio::test]
async fn the_rights_of_the_group_go_with_an_upgrade() {
    for (autoupdate, kept) in [("true", false), ("false", true)] {
        let world = World::new().await;
        let admin = world.admin();
        let meta = json!({"name": "mainstay:simulated-node",
            "annotations": {"rbac.authorization.kubernetes.io/autoupdate": autoupdate}});
        let rules = json!([{"apiGroups": [""], "resources": ["persistentvolumeclaims/status"], "verbs": ["patch"]}]);
        let role = json!({"metadata": meta, "rules": rules});
        admin.post(&format!("{RBAC}/clusterroles"), &role).await.expect(201);
        let bound = json!({"metadata": meta,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "mainstay:simulated-node"},
            "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:nodes"}]});
        admin.post(&format!("{RBAC}/clusterrolebindings"), &bound).await.expect(201);
        admin.post(CLAIMS, &claim("data")).await.expect(201);
        let again = World::with(world.store.clone(), identity()).await;
        let reply = again
            .as_user("system:node:a", &["system:nodes"])
            .patch(&format!("{CLAIMS}/data/status"), MERGE, &json!({"status": {"phase": "Lost"}}))
            .await;
        assert_eq!(reply.code, if kept { 200 } else { 403 }, "autoupdate: {autoupdate}");
        let role = again.admin().get(&format!("{RBAC}/clusterroles/mainstay:simulated-node")).await;
        assert_eq!(role.code, if kept { 200 } else { 404 }, "autoupdate: {autoupdate}");
    }
}
