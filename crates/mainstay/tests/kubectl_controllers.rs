//! `mainstay controllers` as a process next to `mainstay server`: permissions, lease, failover, metrics, and refused
//! input.

mod support;

use std::path::Path;
use std::sync::Arc;
use support::{Cluster, Controllers, Kubectl, Place, Running, kubectl_on};
use tempfile::TempDir;

const LEASE: &str = "-n kube-system get lease mainstay-controllers";

/// A server without controllers, and a kubeconfig with the permissions of the manifest.
fn server() -> Option<(Arc<Cluster>, Kubectl, Kubectl)> {
    let cluster = Arc::new(Cluster::start_server(Place::InMemory));
    let kubectl = kubectl_on(&cluster)?;
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/controllers.yaml");
    kubectl.ok(&format!("apply -f {}", manifest.display()));
    let token = kubectl.ok("-n kube-system create token mainstay-controllers");
    let account = kubectl.with_token(Some(token.trim()));
    Some((cluster, kubectl, account))
}

const DEPENDENT: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata:
  name: dependent
  ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: owner, uid: UID}]
"#;

const WEB: &str = r#"
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  replicas: 2
  ordinals: {start: 4}
  serviceName: web
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: x}]}
"#;

/// R16, O6: with the permissions of the manifest only.
#[test]
fn two_processes_share_the_work_by_a_lease() {
    let Some((cluster, kubectl, account)) = server() else { return };
    let _nodes = support::nodes(&cluster, &cluster.kubeconfig);
    let mut first = Controllers::start(&cluster, account.kubeconfig(), &[]);
    first.program.line_with(&["user", "system:serviceaccount:kube-system:mainstay-controllers"]);
    first.program.line_with(&["Leading"]);
    assert!(!first.program.said().join("\n").contains("may not"), "{:?}", first.program.said());
    assert_eq!(first.get("/readyz"), (200, "ok".to_owned()));

    // The namespace controller and the garbage collector work.
    kubectl.ok("create namespace shop");
    kubectl.ok("-n shop create configmap content");
    kubectl.ok("delete namespace shop --timeout=60s");
    kubectl.ok("create configmap owner");
    let uid = kubectl.ok("get configmap owner -o jsonpath={.metadata.uid}");
    kubectl.create(&DEPENDENT.replace("UID", &uid));
    kubectl.ok("delete configmap owner");
    kubectl.ok("wait --for=delete configmap/dependent --timeout=60s");
    // The StatefulSet controller works too.
    kubectl.create(WEB);
    kubectl.ok("rollout status statefulset web --timeout=60s");
    kubectl.prints("get pods -o jsonpath={.items[*].metadata.name}", "web-4 web-5");
    let of_web = "namespace=\"default\",statefulset=\"web\"";
    first.until_figure(&format!("kube_statefulset_status_replicas_ready{{{of_web}}} 2"));
    first.until_figure(&format!("kube_statefulset_ordinals_start{{{of_web}}} 4"));
    let (_, page) = first.get("/metrics");
    let delays = page.lines().find_map(|line| line.strip_prefix("statefulset_reconcile_delay_count "));
    assert!(delays.is_some_and(|count| count != "0"), "{page}");
    first.until_figure("leader_election_master_status{name=\"mainstay-controllers\"} 1");

    let holder = kubectl.ok(&format!("{LEASE} -o jsonpath={{.spec.holderIdentity}}"));
    assert!(kubectl.ok(LEASE).contains(&holder));
    let mut second = Controllers::start(&cluster, account.kubeconfig(), &[]);
    second.program.line_with(&["Standing by", &holder]);
    second.until_figure("leader_election_master_status{name=\"mainstay-controllers\"} 0");
    assert_eq!(second.get("/readyz"), (200, "ok".to_owned()));
    assert!(!second.get("/metrics").1.contains("kube_statefulset"), "only the leader exports metrics about objects");

    first.stop();
    second.program.line_with(&["Leading"]);
    kubectl.prints(&format!("{LEASE} -o jsonpath={{.spec.leaseTransitions}}"), "1");
    kubectl.ok("scale statefulset web --replicas=1");
    kubectl.ok("wait --for=delete pod/web-5 --timeout=60s");
    second.until_figure(&format!("kube_statefulset_replicas{{{of_web}}} 1"));
    second.stop();
    kubectl.prints(&format!("{LEASE} -o jsonpath={{.spec.holderIdentity}}"), "");
}

/// D27 of the volumes' scenarios: two processes serve one driver, with the permissions of the manifest only; the leader
/// stops while it is provisioning, and there is one volume for each claim.
#[test]
fn d27_a_driver_is_served_by_the_leader() {
    let Some((cluster, kubectl, account)) = server() else { return };
    let place = TempDir::new().expect("a temporary directory can be made");
    let (socket, volumes) = (place.path().join("csi.sock"), place.path().join("volumes"));
    let mut command = support::mainstay(place.path());
    command.args(["csi", "--name", "d27.example.com", "--socket"]).arg(&socket).arg("--dir").arg(&volumes);
    let mut driver = Running::start(command);
    driver.line_with(&["The driver is ready"]);
    let endpoint = format!("unix://{}", socket.display());
    let mut first = Controllers::start(&cluster, account.kubeconfig(), &["--csi", &endpoint]);
    first.program.line_with(&["Leading"]);
    let mut second = Controllers::start(&cluster, account.kubeconfig(), &["--csi", &endpoint]);
    second.program.line_with(&["Standing by"]);
    kubectl.create(
        "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: fast}\nprovisioner: d27.example.com\n",
    );
    let claim = |at: usize| {
        format!(
            "---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: data-{at}, labels: {{app: d27}}}}\nspec: \
             {{accessModes: [ReadWriteOnce], storageClassName: fast, resources: {{requests: {{storage: 1Gi}}}}}}\n"
        )
    };
    kubectl.create(&(0..20).map(claim).collect::<String>());
    let said = first.stop();
    assert!(!said.join("\n").contains("may not"), "{said:?}");
    second.program.line_with(&["Leading"]);
    kubectl.ok("wait --for=jsonpath={.status.phase}=Bound pvc -l app=d27 --timeout=60s");
    assert_eq!(kubectl.ok("get pv -o name").lines().count(), 20);
    second.until_figure("csi_journal_entries 0");
    kubectl.ok("delete pvc -l app=d27 --timeout=60s");
    kubectl.until("get pv -o name", |volumes| volumes.trim().is_empty());
    second.stop();
    driver.terminate();
    driver.finish();
}

#[test]
fn without_an_election_two_processes_with_different_controllers_work_side_by_side() {
    let Some((cluster, kubectl, account)) = server() else { return };
    let start = |controllers: &str| {
        let arguments = ["--leader-elect=false", "--controllers", controllers];
        let mut started = Controllers::start(&cluster, account.kubeconfig(), &arguments);
        started.program.line_with(&["The controllers run"]);
        started
    };
    let (one, two) = (start("namespace-controller"), start("*,-namespace-controller"));
    kubectl.ok("create namespace shop");
    kubectl.ok("delete namespace shop --timeout=60s");
    kubectl.fails(LEASE);
    one.stop();
    two.stop();
}

#[test]
fn missing_permissions_are_reported_and_used_once_granted() {
    let cluster = Arc::new(Cluster::start_server(Place::InMemory));
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    kubectl.ok("create serviceaccount nobody");
    let token = kubectl.ok("create token nobody");
    let account = kubectl.with_token(Some(token.trim()));
    let mut controllers =
        Controllers::start(&cluster, account.kubeconfig(), &["--controllers", "namespace-controller"]);
    controllers
        .program
        .line_with(&["mainstay: namespace-controller may not", "more: grant the permissions in deploy/"]);
    controllers.program.line_with(&[
        "mainstay: cannot use the lease kube-system/mainstay-controllers",
        "403",
        "retrying",
    ]);
    let (code, why) = controllers.get("/readyz");
    assert!(code == 503 && why.contains("cannot get resource \"leases\""), "{code} {why}");
    assert_eq!(controllers.get("/healthz"), (200, "ok".to_owned()));
    kubectl.ok("create clusterrolebinding all --clusterrole=cluster-admin --serviceaccount=default:nobody");
    controllers.program.line_with(&["Leading"]);
    kubectl.ok("create namespace shop");
    kubectl.ok("delete namespace shop --timeout=60s");
    controllers.stop();
}

#[test]
fn an_unavailable_server_is_waited_for() {
    let cluster = Arc::new(Cluster::start_server(Place::InMemory));
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    let mut config = kubectl.value("config view --raw -o json");
    config["clusters"][0]["cluster"]["server"] = serde_json::json!("https://127.0.0.1:1");
    let nowhere = cluster.write("nowhere", &config.to_string());
    let mut controllers = Controllers::start(&cluster, Path::new(&nowhere), &[]);
    controllers.program.line_with(&[
        "cannot use the API server at https://127.0.0.1:1",
        "Connection refused",
        "retrying",
    ]);
    assert_eq!(controllers.get("/readyz").0, 503);
    assert_eq!(controllers.get("/nothing").0, 404);
    let lines = controllers.stop();
    assert_eq!(lines.iter().filter(|line| line.contains("Connection refused")).count(), 1, "said once: {lines:?}");
}

#[test]
fn bad_input_gets_one_line_and_code_2() {
    let cluster = Arc::new(Cluster::start_server(Place::InMemory));
    let other = Cluster::start_server(Place::InMemory);
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    let wrong_token = kubectl.with_token(Some("nonsense"));
    let mut config = kubectl.value("config view --raw -o json");
    config["clusters"][0]["cluster"]["server"] = serde_json::json!(other.url);
    let wrong_server = cluster.write("wrong-server", &config.to_string());
    let broken = cluster.write("broken", "clusters: [");
    let empty = cluster.write("empty", "");
    let good = cluster.kubeconfig.to_str().expect("temporary paths are UTF-8");
    let token = wrong_token.kubeconfig().to_str().expect("temporary paths are UTF-8");
    for (arguments, part) in [
        (vec!["--kubeconfig", "missing"], "cannot use the kubeconfig missing: No such file"),
        (vec!["--kubeconfig", &broken], "choose another with --kubeconfig"),
        (vec!["--kubeconfig", &empty], "choose another with --kubeconfig"),
        (vec![], "give a file with --kubeconfig"),
        (vec!["--kubeconfig", token], "does not accept the credentials"),
        (vec!["--kubeconfig", &wrong_server], "use the server's own CA"),
        (vec!["--kubeconfig", good, "--controllers", "gardener"], "unknown controller \"gardener\""),
        (vec!["--kubeconfig", good, "--namespaces", "shop,My Shop"], "\"My Shop\" is not a valid name of a namespace"),
        (vec!["--kubeconfig", good, "--namespaces", ","], "--namespaces is empty"),
        (vec!["--kubeconfig", good, "--namespaces", "a", "--csi", "unix:///x"], "cannot be used with"),
        (
            vec!["--kubeconfig", good, "--namespaces", "a", "--controllers", "namespace-controller"],
            "namespace-controller needs the whole cluster and cannot be restricted to namespaces",
        ),
        (vec!["--kubeconfig", good, "--feature-gates", "Flowers=true"], "Flowers"),
        (vec!["--kubeconfig", good, "--root-ca-file", "missing"], "missing"),
        (vec!["--kubeconfig", good, "--root-ca-file", &broken], "contains no PEM certificate"),
        (vec!["--kubeconfig", good, "--leader-elect", "perhaps"], "--leader-elect"),
    ] {
        let home = TempDir::new().expect("a temporary directory can be made");
        let mut command = support::mainstay(home.path());
        command.args(["controllers", "--listen", "127.0.0.1:0"]).args(&arguments);
        let (status, lines) = Running::start(command).finish();
        assert_eq!(status.code(), Some(2), "{arguments:?}: {lines:?}");
        let said: Vec<&String> = lines.iter().filter(|line| line.starts_with("mainstay: ")).collect();
        assert!(said.len() == 1 && said[0].contains(part), "{arguments:?}: {lines:?}");
    }
}
