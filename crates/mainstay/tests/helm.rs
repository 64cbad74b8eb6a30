//! Helm installs, upgrades, rolls back and uninstalls a chart.

mod support;

use std::process::Command;
use support::program::{self, Said};
use support::{Cluster, Place};

const TEMPLATES: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: "{{ .Release.Name }}"}
spec: {clusterIP: None, selector: {app: "{{ .Release.Name }}"}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: "{{ .Release.Name }}"}
spec:
  serviceName: "{{ .Release.Name }}"
  replicas: 0
  selector: {matchLabels: {app: "{{ .Release.Name }}"}}
  template:
    metadata: {labels: {app: "{{ .Release.Name }}"}}
    spec: {containers: [{name: db, image: "{{ .Values.image }}"}]}
"#;

/// $HELM, or helm in PATH.
fn helm() -> Option<String> {
    let helm = std::env::var("HELM").unwrap_or_else(|_| "helm".to_owned());
    match Command::new(&helm).args(["version", "--short"]).output() {
        Ok(output) if output.status.success() => Some(helm),
        _ => support::skip("no helm found"),
    }
}

#[test]
fn a_chart_is_installed_upgraded_and_uninstalled() {
    let Some(helm) = helm() else { return };
    let cluster = Cluster::start(Place::InMemory);
    std::fs::create_dir_all(cluster.path().join("chart/templates")).expect("directories can be made");
    cluster.write("chart/Chart.yaml", "apiVersion: v2\nname: db\nversion: 0.1.0\n");
    cluster.write("chart/values.yaml", "image: nginx:1\n");
    cluster.write("chart/templates/all.yaml", TEMPLATES);
    let run = |arguments: &str| -> Said {
        let mut command = Command::new(&helm);
        command.args(support::words(arguments)).current_dir(cluster.path());
        command.env("HOME", cluster.path()).env("KUBECONFIG", &cluster.kubeconfig);
        program::run(command, "")
    };
    let ok = |arguments: &str| run(arguments).succeeded();

    let installed = ok("install db chart --namespace shop --create-namespace");
    assert!(installed.contains("STATUS: deployed") && installed.contains("REVISION: 1"), "{installed}");
    let again = run("install db chart --namespace shop").failed();
    assert!(again.contains("cannot reuse a name that is still in use") || again.contains("cannot re-use"), "{again}");
    ok("upgrade db chart --namespace shop --set image=nginx:2");
    assert!(ok("get manifest db --namespace shop").contains("nginx:2"));
    ok("rollback db 1 --namespace shop");
    let history = ok("history db --namespace shop");
    assert!(history.contains("Rollback to 1"), "{history}");
    let listed = ok("list --namespace shop");
    assert!(listed.contains("deployed") && listed.contains("db-0.1.0"), "{listed}");
    let refused = run("upgrade db chart --namespace shop --set image=").failed();
    assert!(refused.contains("spec.template.spec.containers[0].image: Required value"), "{refused}");
    ok("uninstall db --namespace shop --wait --timeout 30s");
    assert!(!ok("list --namespace shop").contains("db-0.1.0"));
}
