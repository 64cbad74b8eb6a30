//! The manifests in `deploy/`, applied by kubectl, and the program with the tokens of their accounts: no client here
//! has more permissions than the manifests grant.

mod support;

use k8s_openapi::api::apps::v1::Deployment;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::{Cluster, Controllers, Kubectl, Place, Running, kubectl_on, nodes};
use tempfile::TempDir;

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// The same server with the token of an account.
fn account(kubectl: &Kubectl, namespace: &str, name: &str) -> Kubectl {
    let token = kubectl.ok(&format!("-n {namespace} create token {name}"));
    // The file is named by the namespace.
    kubectl.in_namespace(&format!("{namespace}-{name}")).with_token(Some(token.trim()))
}

const SET: &str = r#"
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 2
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      containers: [{name: main, image: x, volumeMounts: [{name: data, mountPath: /data}]}]
  volumeClaimTemplates:
    - metadata: {name: data}
      spec: {accessModes: [ReadWriteOnce], storageClassName: CLASS, resources: {requests: {storage: 1Gi}}}
"#;

/// All of `deploy/` at once. Our own server has no Deployments; the test creates the pods of the Deployment instead.
#[test]
fn all_of_deploy_applies_and_its_accounts_can_do_their_work() {
    let cluster = Arc::new(Cluster::start_server(Place::InMemory));
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    kubectl.ok("create namespace shop");
    let said = kubectl.run(&format!("apply -f {}", deploy().display()));
    let complaints: Vec<&str> = said.err.lines().filter(|line| !line.starts_with("ensure CRDs")).collect();
    assert!(complaints.len() == 1 && complaints[0].contains("no matches for kind \"Deployment\""), "{said}");
    for made in
        ["clusterrole.rbac.authorization.k8s.io/mainstay-nodes", "poddisruptionbudget.policy/mainstay-controllers"]
    {
        assert!(said.out.contains(&format!("{made} created")), "{said}");
    }
    let deployment = std::fs::read_to_string(deploy().join("deployment.yaml")).expect("the manifest is there");
    let deployment = cluster.write("deployment.yaml", deployment.split("\n---\n").next().expect("the first of them"));
    // kubectl only parses the YAML; it does not need the server for that.
    let deployment = kubectl.value(&format!("patch --local -f {deployment} --type=merge -p {{}} -o json"));
    let typed: Deployment = serde_json::from_value(deployment.clone()).expect("a Deployment");
    let again = serde_json::to_value(&typed).expect("it can be written");
    assert_eq!(again["spec"], deployment["spec"], "every field of it is one of a Deployment's");
    let template = &deployment["spec"]["template"];
    let mut pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"]});
    pod["metadata"]["name"] = json!("as-deployed");
    kubectl.ok_with("create -n kube-system --validate=strict -f -", &pod.to_string());
    kubectl.ok("delete pod -n kube-system as-deployed --force --grace-period=0");

    let place = TempDir::new().expect("a temporary directory can be made");
    let socket = place.path().join("csi.sock");
    let mut command = support::mainstay(place.path());
    command.args(["csi", "--name", "deploy.example.com", "--socket"]).arg(&socket);
    command.arg("--dir").arg(place.path().join("volumes"));
    let mut driver = Running::start(command);
    driver.line_with(&["The driver is ready"]);
    let fast = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "fast"},
        "provisioner": "deploy.example.com", "allowVolumeExpansion": true});
    kubectl.create(&fast.to_string());
    let of_nodes = account(&kubectl, "kube-system", "mainstay-nodes");
    let _nodes = nodes(&cluster, of_nodes.kubeconfig());
    let of_controllers = account(&kubectl, "kube-system", "mainstay-controllers");
    let endpoint = format!("unix://{}", socket.display());
    let mut controllers = Controllers::start(&cluster, of_controllers.kubeconfig(), &["--csi", &endpoint]);
    controllers.program.line_with(&["user", "system:serviceaccount:kube-system:mainstay-controllers"]);
    controllers.program.line_with(&["Leading"]);
    the_life_of_a_set(&kubectl);
    assert!(
        !controllers.get("/metrics").1.contains("controller_requests_forbidden_total{"),
        "no permission was missing"
    );
    let said = controllers.stop();
    assert!(!said.join("\n").contains("may not"), "{said:?}");
}

/// The features in the table of `docs/operations/install.md`, one after the other.
fn the_life_of_a_set(kubectl: &Kubectl) {
    let mut set = kubectl.value_with("create --dry-run=client -o json -f -", &SET.replace("CLASS", "fast"));
    let more = json!({"replicas": 3, "ordinals": {"start": 4}, "podManagementPolicy": "Parallel",
        "persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete", "whenDeleted": "Delete"},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2, "partition": 5}},
        "volumeClaimUpdatePolicy": "InPlace"});
    more.as_object().expect("fields").iter().for_each(|(field, value)| set["spec"][field] = value.clone());
    let apply = |set: &Value| {
        kubectl.ok_with("apply -f -", &set.to_string());
        kubectl.ok("rollout status statefulset db --timeout=60s");
    };
    apply(&set);
    kubectl.prints("get pods -o jsonpath={.items[*].metadata.name}", "db-4 db-5 db-6");
    // The partition is an ordinal.
    set["spec"]["template"]["spec"]["containers"][0]["image"] = json!("y");
    apply(&set);
    kubectl.prints("get pods -o jsonpath={.items[*].spec.containers[0].image}", "x y y");
    // Claims are expanded in place.
    set["spec"]["updateStrategy"]["rollingUpdate"]["partition"] = json!(0);
    set["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
    apply(&set);
    kubectl.ok("wait --for=condition=VolumeClaimsUpdated statefulset/db --timeout=60s");
    kubectl.prints("get pvc -o jsonpath={.items[*].status.capacity.storage}", "2Gi 2Gi 2Gi");
    // Claims are deleted with their replicas and with their set; volumes are deleted with their claims.
    kubectl.ok("scale statefulset db --replicas=1");
    kubectl.until("get pvc -o name", |claims| claims.trim() == "persistentvolumeclaim/data-db-4");
    kubectl.ok("delete statefulset db --timeout=60s");
    kubectl.until("get pvc,pv -o name", |left| left.trim().is_empty());
}

/// A volume of a directory, for a claim of class `local`.
fn volume(name: &str, directory: &Path, claim: Option<Value>) -> String {
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
            "persistentVolumeReclaimPolicy": "Delete", "hostPath": {"path": directory}},
    });
    if let Some(claim) = claim {
        volume["spec"]["claimRef"] = claim;
    }
    volume.to_string()
}

/// With the manifest for one namespace: sets in it get pods, claims and volumes, and volumes are reclaimed; nothing
/// else changes.
#[test]
fn one_namespace_opts_in() {
    let cluster = Arc::new(Cluster::start_server(Place::InMemory));
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    let (shop, other) = (kubectl.in_namespace("shop"), kubectl.in_namespace("other"));
    kubectl.ok("create namespace shop");
    kubectl.ok("create namespace other");
    kubectl.ok(&format!("apply -f {}", deploy().join("namespace.yaml").display()));
    let scratch = TempDir::with_prefix_in("mainstay-", "/tmp").expect("a temporary directory can be made");
    let directory = |name: &str| {
        let path = scratch.path().join(name);
        std::fs::create_dir(&path).expect("it is new");
        path
    };

    // In the other namespace: a set that no controller reconciles, and a claim with its volume.
    other.create(&SET.replace("CLASS", "local"));
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "theirs",
        "annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"accessModes": ["ReadWriteOnce"],
        "storageClassName": "local", "volumeName": "theirs", "resources": {"requests": {"storage": "1Gi"}}}});
    other.create(&claim.to_string());
    let uid = other.ok("get pvc theirs -o jsonpath={.metadata.uid}");
    let theirs = directory("theirs");
    kubectl.create(&volume("theirs", &theirs, Some(json!({"namespace": "other", "name": "theirs", "uid": uid}))));
    kubectl.ok("patch pv theirs --subresource=status --type=merge -p {\"status\":{\"phase\":\"Bound\"}}");
    other.ok("patch pvc theirs --subresource=status --type=merge -p {\"status\":{\"phase\":\"Bound\"}}");
    let everything = || {
        let versions = "-o jsonpath={range.items[*]}{.kind}/{.metadata.name}={.metadata.resourceVersion},{end}";
        let here = other.ok(&format!("get statefulsets,pods,pvc,controllerrevisions,events {versions}"));
        format!("{here} {}", kubectl.ok(&format!("get pv --field-selector=metadata.name=theirs {versions}")))
    };

    let _nodes = nodes(&cluster, &cluster.kubeconfig);
    let by = account(&kubectl, "shop", "mainstay-controllers");
    let arguments = ["--namespaces", "shop", "--lease-namespace", "shop"];
    let mut controllers = Controllers::start(&cluster, by.kubeconfig(), &arguments);
    controllers.program.line_with(&["only in", "shop"]);
    controllers.program.line_with(&["Leading"]);
    let before = everything();
    assert!(before.contains("StatefulSet/db=") && before.contains("PersistentVolume/theirs="), "{before}");
    for name in ["one", "two"] {
        kubectl.create(&volume(name, &directory(name), None));
    }
    shop.create(&SET.replace("CLASS", "local"));
    shop.ok("rollout status statefulset db --timeout=60s");
    controllers.until_figure("kube_statefulset_replicas{namespace=\"shop\",statefulset=\"db\"} 2");
    assert!(!controllers.get("/metrics").1.contains("namespace=\"other\""));
    assert_eq!(everything(), before);

    // A claim of the other namespace is deleted, and one of ours.
    other.ok("delete pvc theirs --wait=false");
    other.ok("patch pvc theirs --type=merge -p {\"metadata\":{\"finalizers\":null}}");
    let before = everything();
    assert!(!before.contains("PersistentVolumeClaim/theirs"), "{before}");
    // No garbage collector runs, so the pods are deleted before their set.
    shop.ok("scale statefulset db --replicas=0");
    shop.ok("wait --for=delete pod/db-0 --timeout=60s");
    shop.ok("delete pvc --all --timeout=60s");
    kubectl.until("get pv -o name", |volumes| volumes.trim() == "persistentvolume/theirs");
    assert!(
        !controllers.get("/metrics").1.contains("controller_requests_forbidden_total{"),
        "no permission was missing"
    );
    let said = controllers.stop();
    assert!(!said.join("\n").contains("may not"), "{said:?}");
    assert_eq!(everything(), before);
    assert!(theirs.exists() && !scratch.path().join("one").exists() && !scratch.path().join("two").exists());
}
