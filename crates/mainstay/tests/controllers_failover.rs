//! Two processes of controllers on one server: one works at a time, whatever happens to them.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Cluster, Kubectl, Place, Running, kubectl_on, mainstay};

const SET: &str = r#"
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: NAME}
spec:
  serviceName: NAME
  replicas: 1
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec: {containers: [{name: main, image: x}]}
"#;

/// A lease of 3 s.
const QUICK: [&str; 6] = [
    "--leader-elect-lease-duration",
    "3s",
    "--leader-elect-renew-deadline",
    "2s",
    "--leader-elect-retry-period",
    "500ms",
];

fn controllers(cluster: &Cluster, lease: &str, more: &[&str]) -> Running {
    let mut command = mainstay(cluster.path());
    command.args(["controllers", "--listen", "127.0.0.1:0", "--lease-name", lease, "--kubeconfig"]);
    command.arg(&cluster.kubeconfig).args(more);
    Running::start(command)
}

fn create(kubectl: &Kubectl, name: &str) {
    kubectl.ok_with("create -f -", &SET.replace("NAME", name));
}

fn pods(kubectl: &Kubectl, set: &str) -> String {
    kubectl.ok(&format!("get pods -l app={set} -o name"))
}

/// A clean stop releases the lease at once, long before it would expire.
#[test]
fn a_clean_stop_hands_over_at_once() {
    let cluster = Arc::new(Cluster::start_server(Place::InMemory));
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    let mut first = controllers(&cluster, "handover", &[]);
    first.line_with(&["Leading"]);
    let mut second = controllers(&cluster, "handover", &[]);
    second.line_with(&["Standing by"]);
    let start = Instant::now();
    first.terminate();
    second.line_with(&["Leading"]);
    assert!(start.elapsed() < Duration::from_secs(8), "the lease lasts 15 s: {:?}", start.elapsed());
    create(&kubectl, "after");
    kubectl.until("get pods -l app=after -o name", |pods| pods.contains("pod/after-0"));
}

/// After a crash another process leads within the lease time. A leader that was frozen for longer than its lease writes
/// nothing when it resumes, even if no other write conflicts; it takes part in the election again.
#[test]
fn a_crashed_leader_is_replaced_and_a_frozen_one_is_fenced() {
    let cluster = Arc::new(Cluster::start_server(Place::InMemory));
    let Some(kubectl) = kubectl_on(&cluster) else { return };
    let mut first = controllers(&cluster, "quick", &QUICK);
    first.line_with(&["Leading"]);
    let mut second = controllers(&cluster, "quick", &QUICK);
    second.line_with(&["Standing by"]);
    let mut third = controllers(&cluster, "quick", &QUICK);
    third.line_with(&["Standing by"]);
    let start = Instant::now();
    first.kill();
    // Either of the two may be next.
    let holder = kubectl.until("get lease quick -n kube-system -o jsonpath={.spec.holderIdentity}", |holder| {
        is(&second, holder) || is(&third, holder)
    });
    let (mut leader, mut other) = if is(&second, &holder) { (second, third) } else { (third, second) };
    leader.line_with(&["Leading"]);
    assert!(start.elapsed() < Duration::from_secs(8), "the lease lasts 3 s: {:?}", start.elapsed());
    create(&kubectl, "one");
    kubectl.until("get pods -l app=one -o name", |pods| pods.contains("pod/one-0"));

    leader.pause();
    other.line_with(&["Leading"]);
    // No other process works on this set: whatever happens to it now is done by the process that resumes.
    other.pause();
    create(&kubectl, "two");
    leader.resume();
    leader.line_with(&["the lease", "controllers stop"]);
    assert_eq!(pods(&kubectl, "two"), "", "the old leader wrote after its term");
    // It waits until the new leader's lease expires, and then leads again, in a new term.
    leader.line_with(&["Leading"]);
    kubectl.until("get pods -l app=two -o name", |pods| pods.contains("pod/two-0"));
    other.resume();
    other.line_with(&["the lease", "controllers stop"]);
    let terms = kubectl.ok("get lease quick -n kube-system -o jsonpath={.spec.leaseTransitions}");
    assert_eq!(terms, "3", "four terms");
}

/// Whether a holder of the lease is this process, by the identity that it printed.
fn is(process: &Running, holder: &str) -> bool {
    !holder.is_empty() && process.said().iter().any(|line| line.contains("lease") && line.ends_with(holder))
}
