//! `mainstay up` for its user: output, persistent state, stopping, refused input.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Instant;
use support::{Cluster, PATIENCE, Place, Running, kubectl_on};
use tempfile::TempDir;

/// Runs the program with bad arguments.
fn refused(arguments: &[&str]) -> (Option<i32>, Vec<String>) {
    let home = TempDir::new().expect("a temporary directory can be made");
    let mut command = support::mainstay(home.path());
    command.args(arguments);
    let (status, lines) = Running::start(command).finish();
    (status.code(), lines)
}

#[test]
fn state_outlives_a_clean_stop_and_a_crash() {
    let data = TempDir::new().expect("a temporary directory can be made");
    let start = || Arc::new(Cluster::start(Place::Directory(data.path())));
    let end = |cluster: Arc<Cluster>| Arc::into_inner(cluster).expect("nobody else holds it");

    let cluster = start();
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    kubectl.ok("create configmap kept --from-literal=a=1");
    let before = kubectl.object("cm/kept");
    let token = kubectl.ok("create token default");
    let old_kubeconfig = std::fs::read(&cluster.kubeconfig).expect("there is a kubeconfig");
    drop(kubectl);
    let (code, lines) = end(cluster).stop();
    assert_eq!(code, Some(0), "{lines:?}");

    let cluster = start();
    let kubectl = kubectl_on(&cluster).expect("it was there before");
    assert_eq!(kubectl.object("cm/kept"), before);
    kubectl.ok("create configmap later --from-literal=a=2");
    // The certificates are the same too: an older kubeconfig and token still work (except for the port).
    let holder = kubectl.with_token(Some(token.trim()));
    holder.ok("auth whoami");
    let certificate = |text: &[u8]| {
        let text = String::from_utf8_lossy(text).into_owned();
        text.lines().find(|line| line.contains("certificate-authority-data")).map(str::to_owned)
    };
    let new_kubeconfig = std::fs::read(&cluster.kubeconfig).expect("there is a kubeconfig");
    assert_eq!(certificate(&new_kubeconfig), certificate(&old_kubeconfig));
    drop((kubectl, holder));
    end(cluster).crash();

    let cluster = start();
    let kubectl = kubectl_on(&cluster).expect("it was there before");
    kubectl.prints("get cm kept later -o jsonpath={.items[*].data.a}", "1 2");
}

#[test]
fn files_are_private() {
    let data = TempDir::new().expect("a temporary directory can be made");
    let cluster = Cluster::start(Place::Directory(data.path()));
    let mut open = vec![data.path().to_owned()];
    let mut found = vec![cluster.kubeconfig];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory).expect("the data directory can be read") {
            let path = entry.expect("its entries too").path();
            if path.is_dir() { open.push(path) } else { found.push(path) }
        }
    }
    assert!(found.len() > 2, "{found:?}");
    for path in found {
        let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
        let secret = path.extension().is_none_or(|extension| extension != "crt");
        assert!(!secret || mode & 0o077 == 0, "{} has mode {mode:o}", path.display());
    }
}

#[test]
fn two_servers_do_not_share_a_data_directory() {
    let data = TempDir::new().expect("a temporary directory can be made");
    let first = Cluster::start(Place::Directory(data.path()));
    let path = data.path().to_str().expect("temporary paths are UTF-8");
    let (code, lines) = refused(&["up", "--listen", "127.0.0.1:0", "--data-dir", path]);
    let pid = format!("process {}", first.pid());
    let kubeconfig = first.kubeconfig.display().to_string();
    let names_the_first = |(code, lines): (Option<i32>, Vec<String>)| {
        assert_eq!((code, lines.len()), (Some(2), 1), "one clear line: {lines:?}");
        for part in [pid.as_str(), path, &first.url, &kubeconfig] {
            assert!(lines[0].contains(part), "{part}: {lines:?}");
        }
    };
    names_the_first((code, lines));
    // The same port too, which a second start without arguments meets first.
    let port = first.url.trim_start_matches("https://");
    names_the_first(refused(&["server", "--listen", port, "--data-dir", path]));
    let (code, lines) = refused(&["up", "--listen", port, "--in-memory"]);
    assert_eq!((code, lines.len()), (Some(2), 1), "{lines:?}");
    assert!(lines[0].contains(&format!("{pid} (mainstay up) uses that address")), "{lines:?}");
    first.stop();
    assert!(!data.path().join("running.json").exists(), "a clean stop removes the record");
}

/// The output for a new user, and for a returning one.
#[test]
fn a_start_prints_the_state_and_the_next_commands() {
    let data = TempDir::new().expect("a temporary directory can be made");
    let start = |arguments: &[&str]| {
        let home = TempDir::new().expect("a temporary directory can be made");
        let mut command = support::mainstay(home.path());
        command.args(arguments).args(["--listen", "127.0.0.1:0", "--data-dir"]).arg(data.path());
        let mut program = Running::start(command);
        program.line_with(&["Ctrl-C"]);
        let text = program.said().join("\n");
        program.terminate();
        let (status, lines) = program.finish();
        assert!(status.success(), "{lines:?}");
        text
    };
    let said = start(&["server"]);
    assert!(said.contains("controllers none:") && said.contains("mainstay controllers"), "{said}");
    let said = start(&["up"]);
    for part in [
        "no container is run",
        "standard (default)",
        "no StatefulSets, pods or claims yet",
        "example | kubectl apply -f -",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }

    let cluster = Arc::new(Cluster::start(Place::Directory(data.path())));
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    let mut example = support::mainstay(data.path());
    example.arg("example");
    let manifest = support::program::run(example, "").succeeded();
    kubectl.create(&manifest);
    kubectl.ok("rollout status sts web --timeout=60s");
    drop(kubectl);
    Arc::into_inner(cluster).expect("nobody else holds it").stop();
    let said = start(&["up", "--nodes", "0"]);
    for part in
        ["1 StatefulSet, 3 pods, 3 claims, 3 volumes", "nodes       none of its own", "persistentvolumeclaims -A"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("unhealthy"), "{said}");
}

/// Lasting trouble is reported once, with its reason, and so is its end.
#[test]
fn trouble_is_reported_once() {
    let home = TempDir::new().expect("a temporary directory can be made");
    let mut command = support::mainstay(home.path());
    command
        .args(["up", "--listen", "127.0.0.1:0", "--report-stuck-after", "1s", "--data-dir"])
        .arg(home.path().join("data"));
    let mut program = Running::start(command);
    program.line_with(&["Ctrl-C"]);
    let Some(kubectl) = support::kubectl_by(home.path(), &home.path().join("data/kubeconfig")) else { return };
    let set = |name: &str, selector: &str| {
        format!(
            "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: {name}}}\nspec:\n  replicas: 2\n  serviceName: x\n  \
             selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata: {{labels: {{app: {name}}}}}\n    \
             spec: {{containers: [{{name: main, image: x}}], nodeSelector: {selector}}}\n"
        )
    };
    kubectl("create -f -", &set("well", "{}"));
    kubectl("create -f -", &set("stuck", "{a: b}"));
    program.line_with(&[
        "StatefulSet default/stuck makes no progress: 0 of 2 replicas are ready; pod stuck-0: Unschedulable: 0/1 nodes",
    ]);
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: lost}\n";
    kubectl("create -f -", node);
    program.line_with(&["Node lost is not ready (Ready=Unknown"]);
    kubectl("delete node lost", "");
    kubectl("patch sts stuck -p {\"spec\":{\"template\":{\"spec\":{\"nodeSelector\":null}}}}", "");
    kubectl("delete pod stuck-0 --force --grace-period=0", "");
    program.line_with(&["StatefulSet default/stuck is complete: 2 of 2 replicas are ready"]);
    program.terminate();
    let (status, lines) = program.finish();
    assert!(status.success(), "{lines:?}");
    for (part, times) in [("makes no progress", 1), ("default/well", 0), ("Node lost", 1)] {
        assert_eq!(lines.iter().filter(|line| line.contains(part)).count(), times, "{part}: {lines:?}");
    }
}

/// Destroyed data is reported once, and the log has the user and the policy.
#[test]
fn destroyed_data_is_reported_with_reason_and_user() {
    let home = TempDir::new().expect("a temporary directory can be made");
    let mut command = support::mainstay(home.path());
    command.args(["up", "--listen", "127.0.0.1:0", "--log-level", "info", "--data-dir"]).arg(home.path().join("data"));
    let mut program = Running::start(command);
    program.line_with(&["Ctrl-C"]);
    let Some(kubectl) = support::kubectl_by(home.path(), &home.path().join("data/kubeconfig")) else { return };
    let set = "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: web}\nspec:\n  replicas: 1\n  serviceName: x\n  \
               persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete}\n  selector: {matchLabels: {app: web}}\n  \
               template:\n    metadata: {labels: {app: web}}\n    spec: {containers: [{name: main, image: x, volumeMounts: \
               [{name: data, mountPath: /data}]}]}\n  volumeClaimTemplates:\n  - metadata: {name: data}\n    spec: {accessModes: \
               [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}\n";
    kubectl("create -f -", set);
    kubectl("wait --for=jsonpath={.status.readyReplicas}=1 sts/web --timeout=60s", "");
    kubectl("delete sts web", "");
    let told = "VolumeDataDeleted: PersistentVolume pvc-";
    program.line_with(&[told, "because its reclaim policy is Delete", "PersistentVolumeClaim default/data-web-0"]);
    program.terminate();
    let (status, lines) = program.finish();
    assert!(status.success(), "{lines:?}");
    let count = |parts: &[&str]| lines.iter().filter(|line| parts.iter().all(|part| line.contains(part))).count();
    for parts in [
        &[told][..],
        &["deletion requested", "kubernetes-admin", "StatefulSet", "web"],
        &["deletion requested", "generic-garbage-collector", "PersistentVolumeClaim", "data-web-0"],
        &["a claim of a StatefulSet was deleted", "data-web-0", "whenDeleted is Delete"],
        &["deleted the data of a volume", "data-web-0"],
    ] {
        assert_eq!(count(parts), 1, "{parts:?}: {lines:?}");
    }
}

/// A server on all addresses prints them, and which of them its certificate does not name.
#[test]
fn a_server_on_all_addresses_prints_addresses_and_names() {
    let home = TempDir::new().expect("a temporary directory can be made");
    let mut command = support::mainstay(home.path());
    let file = home.path().join("kubeconfig");
    command.args([
        "server",
        "--in-memory",
        "--listen",
        "0.0.0.0:0",
        "--tls-san",
        "api.example.org,192.0.2.7",
        "--kubeconfig",
    ]);
    command.arg(&file);
    let mut program = Running::start(command);
    program.line_with(&["API", "https://127.0.0.1:"]);
    program.line_with(&["listens on", "port", "127.0.0.1"]);
    let names = program.line_with(&["certificate", "localhost", "127.0.0.1", "api.example.org, 192.0.2.7"]);
    program.line_with(&["Ctrl-C"]);
    // Clients find each of these names in the certificate, and no other.
    let Some(kubectl) = support::kubectl_by(home.path(), &file) else { return };
    for name in names.trim_start().trim_start_matches("certificate").split(',') {
        kubectl(&format!("--tls-server-name={} get --raw /version", name.trim()), "");
    }
    let mut command = std::process::Command::new(std::env::var_os("KUBECTL").unwrap_or_else(|| "kubectl".into()));
    command.env("HOME", home.path()).env("KUBECONFIG", &file);
    command.args(["--tls-server-name=other.example.org", "get", "--raw", "/version"]);
    let error = support::program::run(command, "").failed();
    assert!(error.contains("other.example.org"), "{error}");
}

#[test]
fn bad_arguments_get_one_line_and_code_2() {
    let cluster = Cluster::start(Place::InMemory);
    let taken = cluster.url.trim_start_matches("https://").to_owned();
    for (arguments, part) in [
        (vec!["up", "--listen", "nowhere"], "--listen"),
        (vec!["up", "--in-memory", "--listen", &taken], "choose another address with --listen"),
        (vec!["up", "--in-memory", "--data-dir", "x"], "cannot be used with"),
        (vec!["up", "--in-memory", "--controllers", "gardener"], "unknown controller \"gardener\""),
        (vec!["up", "--in-memory", "--feature-gates", "Flowers=true"], "Flowers"),
        (vec!["up", "--in-memory", "--token-auth-file", "missing"], "missing"),
        (vec!["up", "--data-dir", "/dev/null/here"], "--data-dir"),
        (vec!["up", "--colour"], "--colour"),
        (vec!["down"], "down"),
    ] {
        let mut arguments = arguments;
        if !arguments.contains(&"--listen") && arguments[0] == "up" {
            arguments.extend(["--listen", "127.0.0.1:0"]);
        }
        let (code, lines) = refused(&arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {lines:?}");
        assert!(
            lines.len() == 1 && lines[0].starts_with("mainstay: ") && lines[0].contains(part),
            "{arguments:?}: {lines:?}"
        );
    }
}

#[test]
fn static_tokens_let_their_users_in() {
    let directory = TempDir::new().expect("a temporary directory can be made");
    let file = directory.path().join("tokens.csv");
    std::fs::write(&file, "s3cret,jane,7,\"system:masters\"\nother,joe,8\n").expect("it can be written");
    let path = file.to_str().expect("temporary paths are UTF-8");
    let cluster = Arc::new(Cluster::start_with(Place::InMemory, &["--token-auth-file", path]));
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    let jane = kubectl.with_token(Some("s3cret"));
    assert_eq!(jane.value("auth whoami -o json")["status"]["userInfo"]["username"], "jane");
    jane.ok("get pods");
    let error = kubectl.with_token(Some("other")).fails("get pods");
    assert!(error.contains("User \"joe\" cannot list resource \"pods\""), "{error}");
}

/// R16, O6: on the metrics page of the API server, each metric once.
#[test]
fn object_metrics_are_on_the_servers_metrics_page() {
    let cluster = Arc::new(Cluster::start(Place::InMemory));
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    kubectl.create(
        r#"
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  replicas: 0
  serviceName: web
  persistentVolumeClaimRetentionPolicy: {whenScaled: Delete}
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: x}]}
"#,
    );
    let of_web = "namespace=\"default\",statefulset=\"web\"";
    let policy = "kube_statefulset_persistentvolumeclaim_retention_policy";
    let line = format!("{policy}{{{of_web},when_deleted=\"Retain\",when_scaled=\"Delete\"}} 1");
    // Metrics follow asynchronously, so poll them.
    let deadline = Instant::now() + PATIENCE;
    let page = loop {
        let page = kubectl.ok("get --raw /metrics");
        if page.contains(&line) {
            break page;
        }
        assert!(Instant::now() < deadline, "no {line} in\n{page}");
    };
    for name in [policy, "kube_statefulset_replicas", "kube_persistentvolume_status_phase", "workqueue_depth"] {
        let kind = format!("# TYPE {name} gauge");
        assert_eq!(page.lines().filter(|line| *line == kind).count(), 1, "{name} in\n{page}");
    }
}
