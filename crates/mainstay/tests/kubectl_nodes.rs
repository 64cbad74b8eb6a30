//! Simulated nodes as people meet them: kubectl and the real program.

mod support;

use std::path::Path;
use std::sync::Arc;
use support::{Cluster, Kubectl, Place, Running, kubectl_on};
use tempfile::TempDir;

/// Two small nodes, of their own because the tests cordon, taint and drain them.
fn two_nodes() -> Option<Kubectl> {
    let arguments = ["--nodes", "2", "--node-capacity", "cpu=2,memory=4Gi"];
    kubectl_on(&Arc::new(Cluster::start_with(Place::InMemory, &arguments)))
}

/// A pod that does as these annotations say.
fn pod(name: &str, annotations: &[(&str, &str)]) -> String {
    let notes: Vec<String> =
        annotations.iter().map(|(key, value)| format!("sim.mainstay.dev/{key}: '{value}'")).collect();
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {name}}}, annotations: {{{}}}}}\nspec:\n  \
         terminationGracePeriodSeconds: 1\n  containers: [{{name: main, image: 'nginx:1', resources: {{requests: {{cpu: 500m}}}}}}]\n",
        notes.join(", ")
    )
}

/// The columns of a pod.
fn row(kubectl: &Kubectl, name: &str) -> Vec<String> {
    kubectl.ok(&format!("get pod {name} --no-headers")).split_whitespace().map(str::to_owned).collect()
}

#[test]
fn nodes_are_there_at_once_and_run_pods() {
    let Some(kubectl) = two_nodes() else { return };
    let table = kubectl.ok("get nodes");
    for name in ["simulated-0", "simulated-1"] {
        let line = table.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in\n{table}"));
        assert!(line.contains("Ready") && line.contains("mainstay-simulated"), "{line}");
    }
    kubectl.prints("get nodes -l mainstay.dev/simulated=true -o name", "node/simulated-0\nnode/simulated-1");
    kubectl.ok("run web --image=nginx:1 --grace-period=1");
    kubectl.ok("wait --for=condition=Ready pod/web --timeout=30s");
    assert_eq!(row(&kubectl, "web")[..4], ["web", "1/1", "Running", "0"]);
    let wide = kubectl.ok("get pod web -o wide --no-headers");
    assert!(wide.contains("10.128.0.") && wide.contains("simulated-0"), "{wide}");
    let described = kubectl.ok("describe pod web");
    assert!(described.contains("Node:             simulated-0/10.127.0.1"), "{described}");
    for word in ["Scheduled", "Successfully assigned default/web to simulated-0", "Started container web"] {
        kubectl.until("events --for pod/web", |out| out.contains(word));
    }
    let node = kubectl.ok("describe node simulated-0");
    for part in ["KubeletReady", "Non-terminated Pods:          (1 in total)", "default", "web"] {
        assert!(node.contains(part), "describe node lacks {part}:\n{node}");
    }
    kubectl.ok("delete pod web --timeout=30s");
    kubectl.prints("get pods -o name", "");
}

#[test]
fn nodes_are_cordoned_tainted_and_drained() {
    let Some(kubectl) = two_nodes() else { return };
    kubectl.ok("cordon simulated-0");
    kubectl.create(&pod("first", &[]));
    kubectl.ok("wait --for=condition=Ready pod/first --timeout=30s");
    kubectl.prints("get pod first -o jsonpath={.spec.nodeName}", "simulated-1");
    kubectl.ok("taint nodes simulated-1 dedicated=db:NoSchedule");
    kubectl.create(&pod("second", &[]));
    let why = "0/2 nodes are available: 1 node(s) had untolerated taint {dedicated: db}, 1 node(s) were unschedulable.";
    kubectl.until("describe pod second", |out| out.contains(why) && out.contains("FailedScheduling"));
    kubectl.ok("uncordon simulated-0");
    kubectl.ok("wait --for=condition=Ready pod/second --timeout=30s");
    // Drained, it is empty; a taint that nothing tolerates does the same.
    kubectl.ok("drain simulated-0 --force --timeout=30s");
    kubectl.prints("get pods -o name", "pod/first");
    assert!(kubectl.ok("get node simulated-0").contains("Ready,SchedulingDisabled"));
    kubectl.ok("taint nodes simulated-1 gone=yes:NoExecute");
    kubectl.ok("wait --for=delete pod/first --timeout=30s");
}

#[test]
fn what_does_not_fit_waits_and_says_so() {
    let Some(kubectl) = two_nodes() else { return };
    let names: Vec<String> = (0..9).map(|at| format!("p-{at}")).collect();
    kubectl.create(&names.iter().map(|name| pod(name, &[])).collect::<String>());
    kubectl.until("get events", |out| out.contains("0/2 nodes are available: 2 Insufficient cpu."));
    let pending = kubectl.ok("get pods --field-selector=status.phase=Pending -o name");
    assert_eq!(pending.lines().count(), 1, "{pending}");
    kubectl.ok("delete pod -l app=p-0");
    kubectl.ok("wait --for=condition=Ready pods --all --timeout=30s");
}

#[test]
fn pods_misbehave_on_demand() {
    let Some(kubectl) = two_nodes() else { return };
    kubectl.create(
        &[
            pod("unready", &[("ready", "false")]),
            pod("crashing", &[("crash-after", "0s"), ("exit-code", "3")]),
            pod("imageless", &[("image-pull", "error")]),
            pod("evicted", &[("evict-after", "0s")]),
            pod("failed", &[("fail-after", "0s"), ("exit-reason", "Broken")]),
            pod("done", &[("succeed-after", "0s")]),
            pod("stuck", &[("terminate-after", "never")]),
            pod("wrong", &[("ready", "perhaps")]),
        ]
        .concat(),
    );
    for (name, words) in [
        ("unready", "0/1 Running"),
        ("crashing", "0/1 CrashLoopBackOff 1"),
        ("imageless", "0/1 ImagePullBackOff"),
        ("evicted", "0/1 Evicted"),
        ("failed", "0/1 Broken"),
        ("done", "0/1 Completed"),
        ("stuck", "1/1 Running"),
        ("wrong", "1/1 Running"),
    ] {
        let is_so = |out: &str| out.split_whitespace().skip(1).collect::<Vec<_>>().join(" ").starts_with(words);
        kubectl.until(&format!("get pod {name} --no-headers"), is_so);
    }
    let wanted = "\"perhaps\", but must be \"true\", \"false\" or a duration like \"30s\"; it is ignored";
    kubectl.until("events --for pod/wrong", |out| out.contains(wanted));
    kubectl.ok("annotate pod unready sim.mainstay.dev/ready=true --overwrite");
    kubectl.ok("wait --for=condition=Ready pod/unready --timeout=30s");
    kubectl.ok("annotate pod crashing sim.mainstay.dev/crash-after-");
    kubectl.ok("wait --for=condition=Ready pod/crashing --timeout=30s");
    kubectl.ok("delete pod stuck --wait=false");
    assert_eq!(row(&kubectl, "stuck")[2], "Terminating");
    kubectl.ok("annotate pod stuck sim.mainstay.dev/terminate-after-");
    kubectl.ok("wait --for=delete pod/stuck --timeout=30s");
}

/// Whoever asks for what would have to be executed is told at once that nothing is, and is not left waiting.
#[test]
fn what_is_not_executed_is_refused_in_one_sentence() {
    let Some(kubectl) = two_nodes() else { return };
    kubectl.create(&pod("web", &[]));
    kubectl.ok("wait --for=condition=Ready pod/web --timeout=30s");
    let simulated = "pod web runs on the simulated node simulated-0, which executes nothing: ";
    for (arguments, what) in [
        ("logs web", "there are no logs"),
        ("exec web -- true", "no command can be run in it"),
        ("exec -it web -- sh", "no command can be run in it"),
        ("attach web", "there is no process to attach to"),
        ("port-forward web 18080:80", "no port can be forwarded to it"),
        ("cp web:/etc/hostname hostname", "no command can be run in it"),
        ("get --raw /api/v1/namespaces/default/pods/web/proxy/", "nothing in it answers requests"),
        ("get --raw /api/v1/namespaces/default/pods/http:web:80/proxy/a/b", "nothing in it answers requests"),
    ] {
        let started = std::time::Instant::now();
        let said = kubectl.fails(arguments);
        assert!(said.contains(&format!("{simulated}{what}")), "kubectl {arguments}: {said}");
        assert!(started.elapsed().as_secs() < 10, "kubectl {arguments} took {:?}", started.elapsed());
    }
    // kubectl repeats a followed log for 20 s after every error: its log is the sentence.
    for arguments in ["logs -f web", "logs -f -l app=web"] {
        let started = std::time::Instant::now();
        kubectl.prints(arguments, &format!("{simulated}there are no logs"));
        assert!(started.elapsed().as_secs() < 10, "kubectl {arguments} took {:?}", started.elapsed());
    }
    let said = kubectl.fails("logs web -c other");
    assert!(said.contains("container other is not valid for pod web"), "{said}");
    let said = kubectl.fails("get --raw /api/v1/nodes/simulated-0/proxy/healthz");
    assert!(said.contains("node simulated-0 is simulated: there is no kubelet that answers requests"), "{said}");
    kubectl.ok("create service clusterip web --tcp=80");
    let said = kubectl.fails("get --raw /api/v1/namespaces/default/services/web:80/proxy/");
    assert!(said.contains("service web: Mainstay does not proxy requests to services"), "{said}");
    assert!(kubectl.fails("top pods").contains("Metrics API not available"));
    // A pod that no node has says nothing yet, as upstream; one on a real node is not reached either.
    kubectl.create(&pod("waits", &[]).replace("spec:", "spec:\n  schedulerName: nobody"));
    kubectl.prints("logs waits", "");
    assert!(kubectl.fails("exec waits -- true").contains("pod waits does not have a host assigned"));
    kubectl.create("apiVersion: v1\nkind: Node\nmetadata: {name: real}\n");
    kubectl.create(&pod("far", &[]).replace("spec:", "spec:\n  nodeName: real"));
    let said = kubectl.fails("logs far");
    assert!(said.contains("pod far runs on the node real: Mainstay does not forward logs to kubelets"), "{said}");
    assert!(kubectl.fails("logs nothing").contains("pods \"nothing\" not found"));
}

/// As with a kubelet: a missing ConfigMap of a volume and a missing Secret of a variable hold a pod until they are there.
#[test]
fn missing_secrets_and_config_maps_hold_pods() {
    let Some(kubectl) = two_nodes() else { return };
    kubectl.create(
        "
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - {name: main, image: 'nginx:1', envFrom: [{secretRef: {name: password}}], volumeMounts: [{name: settings, mountPath: /etc/settings}]}
  volumes: [{name: settings, configMap: {name: settings}}]
",
    );
    kubectl.until("get pod web --no-headers", |out| out.contains("ContainerCreating"));
    let why = "MountVolume.SetUp failed for volume \"settings\" : configmap \"settings\" not found";
    kubectl.until("events --for pod/web", |out| out.contains("FailedMount") && out.contains(why));
    kubectl.ok("create configmap settings --from-literal=a=b");
    kubectl.until("get pod web --no-headers", |out| out.contains("CreateContainerConfigError"));
    kubectl.until("events --for pod/web", |out| out.contains("Error: secret \"password\" not found"));
    kubectl.ok("create secret generic password --from-literal=text=x");
    kubectl.ok("wait --for=condition=Ready pod/web --timeout=30s");
}

fn nodes(cluster: &Cluster, kubeconfig: &Path, arguments: &[&str]) -> Running {
    let mut command = support::mainstay(cluster.path());
    command.arg("nodes").arg("--kubeconfig").arg(kubeconfig).args(arguments);
    Running::start(command)
}

/// The nodes alone, beside a server that has none, with the rights of the manifest.
#[test]
fn nodes_serve_any_api_server() {
    let cluster = Arc::new(Cluster::start_with(Place::InMemory, &["--nodes", "0"]));
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/nodes.yaml");
    let manifest = std::fs::read_to_string(manifest).expect("the manifest is there");
    // What the manifest says to do for another prefix.
    kubectl.ok_with("apply -f -", &manifest.replace("\"simulated-", "\"sim-"));
    let token = kubectl.ok("-n kube-system create token mainstay-nodes");
    let account = kubectl.with_token(Some(token.trim()));
    kubectl.create(&pod("early", &[]));
    let mut program = nodes(
        &cluster,
        account.kubeconfig(),
        &["--count", "3", "--prefix", "sim-", "--taint", "only=here:PreferNoSchedule"],
    );
    program.line_with(&["user", "system:serviceaccount:kube-system:mainstay-nodes"]);
    program.line_with(&["nodes", "sim-0 to sim-2"]);
    program.line_with(&["The nodes run"]);
    kubectl.prints("get nodes -o name", "node/sim-0\nnode/sim-1\nnode/sim-2");
    kubectl.prints("get node sim-0 -o jsonpath={.spec.taints[0].key}", "only");
    kubectl.ok("wait --for=condition=Ready pod/early --timeout=30s");
    kubectl.until("events --for pod/early", |out| out.contains("Started container main"));
    kubectl.ok("delete pod early --timeout=30s");
    // A Node that somebody deletes comes back.
    kubectl.ok("delete node sim-1");
    kubectl.until("get nodes", |out| out.contains("sim-1"));
    program.terminate();
    let (status, lines) = program.finish();
    assert_eq!(status.code(), Some(0), "{lines:?}");
    assert!(!lines.join("\n").contains("WARN"), "{lines:?}");
}

#[test]
fn bad_arguments_get_one_line_and_code_2() {
    let home = TempDir::new().expect("a temporary directory can be made");
    for (arguments, part) in [
        (vec!["nodes", "--kubeconfig", "missing"], "missing"),
        (vec!["nodes", "--count", "some"], "--count"),
        (vec!["nodes", "--count", "99999999"], "at most 65534 simulated nodes have addresses"),
        (vec!["nodes", "--prefix", "No Way"], "--prefix \"No Way\""),
        (vec!["nodes", "--taint", "x"], "taint \"x\" is not of the form"),
        (vec!["nodes", "--node-capacity", "cpu=lots"], "\"lots\" is no amount"),
        (vec!["up", "--in-memory", "--node-capacity", "cpu"], "is not of the form resource=amount"),
        (vec!["up", "--in-memory", "--nodes", "many"], "--nodes"),
    ] {
        let mut command = support::mainstay(home.path());
        command.args(&arguments);
        let (status, lines) = Running::start(command).finish();
        assert_eq!(status.code(), Some(2), "{arguments:?}: {lines:?}");
        assert!(
            lines.len() == 1 && lines[0].starts_with("mainstay: ") && lines[0].contains(part),
            "{arguments:?}: {lines:?}"
        );
    }
}
