//! Nodes that are lost permanently: kubectl and the real program.

mod support;

use std::sync::Arc;
use support::{Cluster, Kubectl, Place, kubectl_on};

const SET: &str = "
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  serviceName: ''
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: 'nginx:1', volumeMounts: [{name: data, mountPath: /data}]}]
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: web}}}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
";

fn node_of(kubectl: &Kubectl, pod: &str) -> String {
    kubectl.ok(&format!("get pod {pod} -o jsonpath={{.spec.nodeName}}"))
}

/// Two of four machines are switched off: the Node of one is deleted, the other is declared out of service. Both
/// replicas start elsewhere with their claims. This takes 45 s, because a Node without heartbeats counts as ready for
/// that long.
#[test]
fn replicas_of_lost_nodes_start_elsewhere_with_their_claims() {
    let Some(kubectl) = kubectl_on(&Arc::new(Cluster::start_with(Place::InMemory, &["--nodes", "4"]))) else { return };
    kubectl.create(SET);
    kubectl.ok("rollout status statefulset/web --timeout=60s");
    let claims = kubectl.ok("get pvc -o jsonpath={.items[*].metadata.uid}");
    let before = kubectl.ok("get pods -o jsonpath={.items[*].metadata.uid}");
    let (deleted, tainted) = (node_of(&kubectl, "web-0"), node_of(&kubectl, "web-1"));
    assert_ne!(deleted, tainted);
    kubectl.ok(&format!("annotate node {deleted} {tainted} sim.mainstay.dev/down=true"));
    kubectl.ok("delete pod web-1 --wait=false");
    kubectl.ok(&format!("taint node {tainted} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"));
    kubectl.ok(&format!("delete node {deleted} --timeout=30s"));
    kubectl.ok(&format!("wait --for=condition=Ready=Unknown node/{tainted} --timeout=90s"));
    for uid in before.split_whitespace() {
        let is_gone = |pods: &str| !pods.contains(uid);
        kubectl.until("get pods -o jsonpath={.items[*].metadata.uid}", is_gone);
    }
    kubectl.ok("rollout status statefulset/web --timeout=60s");
    for pod in ["web-0", "web-1"] {
        let node = node_of(&kubectl, pod);
        assert!(node != deleted && node != tainted, "{pod} is on {node}");
    }
    assert_eq!(kubectl.ok("get pvc -o jsonpath={.items[*].metadata.uid}"), claims);
    let figures = kubectl.ok("get --raw /metrics");
    for reason in ["orphaned", "out-of-service"] {
        let line = format!("pod_gc_collector_force_delete_pods_total{{namespace=\"default\",reason=\"{reason}\"}} 1");
        assert!(figures.contains(&line), "{line}");
    }
    // The machine is switched on again: its Node is created, and it registers.
    kubectl.create(&format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {deleted}}}\n"));
    kubectl.ok(&format!("wait --for=condition=Ready node/{deleted} --timeout=30s"));
    kubectl.prints(&format!("get node {deleted} -o jsonpath={{.metadata.labels.mainstay\\.dev/simulated}}"), "true");
}
