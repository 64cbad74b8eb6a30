//! StatefulSets: kubectl, the real program, simulated nodes.

mod support;

use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use support::{Cluster, Kubectl, Place, program};

/// A set with a claim for each replica, and volumes for them of a class that only this namespace uses.
fn set(kubectl: &Kubectl, replicas: usize, more: &str) -> String {
    let class = format!("disks-{}", kubectl.namespace());
    format!(
        "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: web}}\nspec:\n  serviceName: web\n  replicas: {replicas}\n  {more}\n  \
         selector: {{matchLabels: {{app: web}}}}\n  template:\n    metadata: {{labels: {{app: web}}}}\n    spec:\n      containers:\n      \
         - {{name: web, image: 'nginx:1', volumeMounts: [{{name: data, mountPath: /data}}]}}\n  volumeClaimTemplates:\n  \
         - metadata: {{name: data}}\n    spec: {{accessModes: [ReadWriteOnce], storageClassName: {class}, resources: {{requests: {{storage: 1Gi}}}}}}\n"
    )
}

fn volumes(kubectl: &Kubectl, count: usize) {
    let space = kubectl.namespace();
    let volume = |at: usize| {
        format!(
            "---\napiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {space}-{at}}}\nspec: {{capacity: {{storage: 1Gi}}, \
             accessModes: [ReadWriteOnce], persistentVolumeReclaimPolicy: Retain, storageClassName: disks-{space}, \
             hostPath: {{path: /tmp/mainstay-test}}}}\n"
        )
    };
    kubectl.create(&(0..count).map(volume).collect::<String>());
}

fn started(replicas: usize, more: &str) -> Option<Kubectl> {
    let kubectl = support::kubectl()?;
    volumes(&kubectl, replicas);
    kubectl.ok_with("apply -f -", &set(&kubectl, replicas, more));
    kubectl.ok("rollout status sts/web --timeout=60s");
    Some(kubectl)
}

fn names(kubectl: &Kubectl, what: &str) -> Vec<String> {
    let list = kubectl.value(&format!("get {what} -o json"));
    list["items"].as_array().into_iter().flatten().map(|item| text(&item["metadata"]["name"])).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn uids(kubectl: &Kubectl, what: &str) -> BTreeSet<String> {
    let list = kubectl.value(&format!("get {what} -o json"));
    list["items"].as_array().into_iter().flatten().map(|item| text(&item["metadata"]["uid"])).collect()
}

#[test]
fn rollout_history_undo_and_restart_work() {
    let Some(kubectl) = started(3, "") else { return };
    let out = kubectl.ok("get sts web --no-headers");
    assert_eq!(out.split_whitespace().take(2).collect::<Vec<_>>(), ["web", "3/3"]);
    assert_eq!(names(&kubectl, "pods"), ["web-0", "web-1", "web-2"]);
    assert_eq!(names(&kubectl, "pvc"), ["data-web-0", "data-web-1", "data-web-2"]);
    let claims = uids(&kubectl, "pvc");

    kubectl.ok("set image sts/web web=nginx:2");
    let said = kubectl.ok("rollout status sts/web --timeout=60s");
    assert!(said.contains("partitioned roll out complete: 3 new pods have been updated..."), "{said}");
    let history = kubectl.ok("rollout history sts/web");
    let numbers: Vec<&str> = history.lines().skip(2).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(numbers, ["1", "2"], "{history}");

    kubectl.ok("rollout undo sts/web");
    kubectl.ok("rollout status sts/web --timeout=60s");
    let image = "get pods -o jsonpath={.items[*].spec.containers[0].image}";
    kubectl.prints(image, "nginx:1 nginx:1 nginx:1");
    // The older revision is reused as the newest one.
    assert_eq!(names(&kubectl, "controllerrevisions").len(), 2);
    let missing = kubectl.fails("rollout undo sts/web --to-revision=1000000");
    assert!(missing.contains("unable to find specified revision 1000000 in history"), "{missing}");

    let before = uids(&kubectl, "pods");
    kubectl.ok("rollout restart sts/web");
    kubectl.ok("rollout status sts/web --timeout=60s");
    assert!(before.is_disjoint(&uids(&kubectl, "pods")), "all pods are new");
    assert_eq!(claims, uids(&kubectl, "pvc"), "all claims are the same");

    let described = kubectl.ok("describe sts web");
    for words in ["3 desired | 3 total", "3 Running / 0 Waiting / 0 Succeeded / 0 Failed", "SuccessfulCreate"] {
        assert!(described.contains(words), "{words} is missing:\n{described}");
    }
}

#[test]
fn orphaned_pods_are_adopted_by_a_new_set() {
    let Some(kubectl) = started(2, "") else { return };
    let pods = uids(&kubectl, "pods");
    kubectl.ok("delete sts web --cascade=orphan");
    assert_eq!(uids(&kubectl, "pods"), pods);
    kubectl.ok_with("apply -f -", &set(&kubectl, 2, ""));
    kubectl.ok("rollout status sts/web --timeout=60s");
    assert_eq!(uids(&kubectl, "pods"), pods, "adopted, not replaced");
    let owners = kubectl.ok("get pods -o jsonpath={.items[*].metadata.ownerReferences[0].uid}");
    let set = text(&kubectl.object("sts/web")["metadata"]["uid"]);
    assert_eq!(owners.trim(), format!("{set} {set}"));
}

/// R4: the claims of replicas that are scaled down are deleted, the others are kept. R3: all are deleted with the set.
#[test]
fn r3_r4_claims_are_deleted_as_the_policy_says() {
    let policy = "persistentVolumeClaimRetentionPolicy: {whenScaled: Delete, whenDeleted: Delete}";
    let Some(kubectl) = started(3, policy) else { return };
    kubectl.ok("scale sts web --replicas=1");
    kubectl.ok("wait --for=delete pvc/data-web-2 pvc/data-web-1 --timeout=60s");
    assert_eq!(names(&kubectl, "pvc"), ["data-web-0"]);
    // A pod that a user deletes keeps its claim.
    let claims = uids(&kubectl, "pvc");
    delete_and_wait_for_the_next(&kubectl, "web-0");
    kubectl.ok("rollout status sts/web --timeout=60s");
    assert_eq!(uids(&kubectl, "pvc"), claims);
    kubectl.ok("delete sts web");
    kubectl.ok("wait --for=delete pvc/data-web-0 pod/web-0 --timeout=60s");
}

/// R2: without a policy claims are kept.
#[test]
fn r2_claims_are_kept_by_default_and_used_again() {
    let Some(kubectl) = started(2, "") else { return };
    let claims = uids(&kubectl, "pvc");
    kubectl.ok("scale sts web --replicas=0");
    kubectl.ok("wait --for=delete pod/web-0 pod/web-1 --timeout=60s");
    kubectl.ok("scale sts web --replicas=2");
    kubectl.ok("rollout status sts/web --timeout=60s");
    assert_eq!(uids(&kubectl, "pvc"), claims);
    kubectl.ok("delete sts web");
    assert_eq!(uids(&kubectl, "pvc"), claims);
}

/// O1 and O2: the ordinals start where the set says, and move with it.
#[test]
fn o1_o2_ordinals_start_anywhere() {
    let Some(kubectl) = support::kubectl() else { return };
    volumes(&kubectl, 4);
    kubectl.ok_with("apply -f -", &set(&kubectl, 2, "ordinals: {start: 4}"));
    kubectl.ok("rollout status sts/web --timeout=60s");
    assert_eq!(names(&kubectl, "pods"), ["web-4", "web-5"]);
    assert_eq!(names(&kubectl, "pvc"), ["data-web-4", "data-web-5"]);
    kubectl.ok("patch sts web --type=merge -p '{\"spec\":{\"ordinals\":{\"start\":6}}}'");
    kubectl.ok("wait --for=delete pod/web-4 pod/web-5 --timeout=60s");
    kubectl.ok("rollout status sts/web --timeout=60s");
    assert_eq!(names(&kubectl, "pods"), ["web-6", "web-7"]);
}

#[test]
fn a_foreign_pod_with_a_replicas_name_is_reported() {
    let Some(kubectl) = support::kubectl() else { return };
    kubectl.ok("run web-1 --image=nginx:1");
    volumes(&kubectl, 3);
    kubectl.ok_with("apply -f -", &set(&kubectl, 3, "podManagementPolicy: Parallel"));
    kubectl.ok("wait --for=create pod/web-2 --timeout=60s");
    let wait = "wait --for=jsonpath={.reason}=FailedCreate event --field-selector=reason=FailedCreate --timeout=60s";
    kubectl.ok("wait --for=condition=Ready pod/web-0 pod/web-2 --timeout=60s");
    kubectl.ok(wait);
    let told = kubectl.ok("get events --field-selector=reason=FailedCreate -o jsonpath={.items[0].message}");
    assert!(told.contains("web-1") && told.contains("already exists") && told.contains("delete that pod"), "{told}");
    delete_and_wait_for_the_next(&kubectl, "web-1");
    kubectl.ok("rollout status sts/web --timeout=60s");
}

/// kubectl itself may wait for ever here: if the next pod of that name is created too soon, kubectl takes it for the
/// deleted one.
fn delete_and_wait_for_the_next(kubectl: &Kubectl, pod: &str) {
    let uid = || kubectl.run(&format!("get pod {pod} -o jsonpath={{.metadata.uid}}")).out;
    let before = uid();
    kubectl.ok(&format!("delete pod {pod} --wait=false"));
    let started = std::time::Instant::now();
    while uid().is_empty() || uid() == before {
        assert!(started.elapsed() < support::PATIENCE, "{pod} does not come back");
    }
}

#[test]
fn a_name_too_long_for_its_pods_is_warned_about() {
    let Some(kubectl) = support::kubectl() else { return };
    let name = "a".repeat(60);
    let said = kubectl
        .run_with("create -f -", &set(&kubectl, 0, "").replace("name: web}\nspec", &format!("name: {name}}}\nspec")));
    assert!(said.err.contains("Warning: metadata.name") && said.err.contains("too long"), "{said:?}");
}

/// O4: the documented example, unchanged: no ordinal runs twice, every replica keeps its volume.
#[test]
fn o4_a_slice_moves_to_another_namespace() {
    let cluster = Arc::new(Cluster::start_with(Place::InMemory, &[]));
    let Some(kubectl) = support::kubectl_on(&cluster) else { return };
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/slice-migration");
    let file = |name: &str| example.join(name).display().to_string();
    kubectl.ok(&format!("apply -f {} -f {}", file("volumes.yaml"), file("app.yaml")));
    kubectl.ok("-n shared rollout status sts my-app --timeout=60s");
    let bound = |namespace: &str, ordinal: usize| {
        kubectl.ok(&format!("-n {namespace} get pvc data-my-app-{ordinal} -o jsonpath={{.spec.volumeName}}"))
    };
    let volumes: Vec<String> = (0..5).map(|ordinal| bound("shared", ordinal)).collect();
    for left in (0..5).rev() {
        let said = program::run(script(&kubectl, &example.join("move.sh")), "");
        said.succeeded();
        let pods = |namespace: &str| names(&kubectl, &format!("-n {namespace} pods"));
        let expected = |range: std::ops::Range<usize>| range.map(|at| format!("my-app-{at}")).collect::<Vec<_>>();
        assert_eq!(pods("shared"), expected(0..left));
        assert_eq!(pods("app-team"), expected(left..5));
        assert_eq!(bound("app-team", left), volumes[left]);
    }
    let over = program::run(script(&kubectl, &example.join("move.sh")), "").failed();
    assert!(over.contains("All replicas have moved."), "{over}");
}

/// A script that calls `kubectl`, which is the kubectl of the test.
fn script(kubectl: &Kubectl, path: &Path) -> Command {
    let programs: PathBuf = kubectl.cluster.path().join("bin");
    std::fs::create_dir_all(&programs).expect("the temporary directory can be written");
    let link = programs.join("kubectl");
    if !link.exists() {
        std::os::unix::fs::symlink(kubectl.program(), &link).expect("a link can be made");
    }
    let mut command = Command::new("bash");
    let path_variable = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    command.arg(path).env("PATH", path_variable).env("KUBECONFIG", kubectl.kubeconfig());
    command.env("HOME", kubectl.cluster.path());
    command
}
