//! kubectl deletes objects and waits: delete with cascades and grace, wait, namespaces, drain.

mod support;

use serde_json::json;
use support::{Kubectl, kubectl};

/// A pod on a node, so that its deletion waits for the kubelet.
fn placed_pod(kubectl: &Kubectl, name: &str) {
    kubectl.create(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {name}}}}}\n\
         spec: {{nodeName: somewhere, containers: [{{name: c, image: 'nginx:1'}}]}}\n"
    ));
}

fn uid(kubectl: &Kubectl, what: &str) -> String {
    kubectl.object(what)["metadata"]["uid"].as_str().expect("every object has a uid").to_owned()
}

/// An owner and a dependent of it.
fn family(kubectl: &Kubectl, owner: &str, block: bool) {
    kubectl.ok(&format!("create configmap {owner}"));
    let uid = uid(kubectl, &format!("cm/{owner}"));
    kubectl.create(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {owner}-child\n  ownerReferences:\n  \
         - {{apiVersion: v1, kind: ConfigMap, name: {owner}, uid: {uid}, blockOwnerDeletion: {block}}}\n"
    ));
}

#[test]
fn delete_by_name_selector_file_and_all() {
    let Some(kubectl) = kubectl() else { return };
    for name in ["a", "b", "c", "d"] {
        kubectl.ok(&format!("create configmap {name}"));
    }
    kubectl.ok("label cm b c group=x");
    assert!(kubectl.ok("delete cm a").starts_with("configmap \"a\" deleted"));
    assert_eq!(kubectl.ok("delete cm -l group=x").matches("deleted").count(), 2);
    let error = kubectl.fails("delete cm a");
    assert_eq!(error, "Error from server (NotFound): configmaps \"a\" not found");
    kubectl.prints("delete cm a --ignore-not-found", "");
    let dry = kubectl.ok("delete cm d --dry-run=server");
    assert!(dry.contains("(server dry run)"), "{dry}");
    kubectl.prints("get cm d -o name", "configmap/d");
    let file = kubectl.ok_with("delete -f -", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: d}\n");
    assert!(file.starts_with("configmap \"d\" deleted"), "{file}");
    kubectl.ok("create secret generic s");
    assert_eq!(kubectl.ok("delete secrets --all").matches("deleted").count(), 1);
}

#[test]
fn background_deletion_deletes_dependents_afterwards() {
    let Some(kubectl) = kubectl() else { return };
    family(&kubectl, "parent", true);
    kubectl.ok("delete cm parent");
    kubectl.ok("wait --for=delete cm/parent-child --timeout=30s");
}

#[test]
fn foreground_deletion_deletes_dependents_first() {
    let Some(kubectl) = kubectl() else { return };
    family(&kubectl, "parent", true);
    kubectl.ok(r#"patch cm parent-child --type=merge -p '{"metadata":{"finalizers":["example.com/hold"]}}'"#);
    kubectl.ok("delete cm parent --cascade=foreground --wait=false");
    let parent = kubectl.object("cm/parent");
    assert_eq!(parent["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    assert!(parent["metadata"]["deletionTimestamp"].is_string());
    kubectl.ok("wait cm/parent-child --for=jsonpath={.metadata.deletionTimestamp} --timeout=30s");
    kubectl.prints("get cm parent -o name", "configmap/parent");
    kubectl.ok(r#"patch cm parent-child --type=merge -p '{"metadata":{"finalizers":null}}'"#);
    kubectl.ok("wait --for=delete cm/parent cm/parent-child --timeout=30s");
}

#[test]
fn orphaning_keeps_dependents_without_their_owner() {
    let Some(kubectl) = kubectl() else { return };
    family(&kubectl, "parent", false);
    kubectl.ok("delete cm parent --cascade=orphan");
    kubectl.ok("wait --for=delete cm/parent --timeout=30s");
    let child = kubectl.object("cm/parent-child");
    assert!(child["metadata"].get("ownerReferences").is_none(), "{child}");
    assert!(child["metadata"].get("deletionTimestamp").is_none(), "{child}");
}

#[test]
fn deletion_of_a_running_pod_is_graceful() {
    let Some(kubectl) = kubectl() else { return };
    placed_pod(&kubectl, "slow");
    let said = kubectl.ok("delete pod slow --wait=false");
    assert!(said.starts_with("pod \"slow\" deleted"), "{said}");
    let pod = kubectl.object("pod/slow");
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 30);
    assert!(kubectl.ok("get pod slow --no-headers").contains("Terminating"));
    // A shorter grace period is accepted, a longer one is not.
    kubectl.ok("delete pod slow --wait=false --grace-period=5");
    assert_eq!(kubectl.object("pod/slow")["metadata"]["deletionGracePeriodSeconds"], 5);
    kubectl.ok("delete pod slow --wait=false --grace-period=20");
    assert_eq!(kubectl.object("pod/slow")["metadata"]["deletionGracePeriodSeconds"], 5);
    let forced = kubectl.run("delete pod slow --force --grace-period=0");
    assert!(forced.err.contains("Immediate deletion does not wait"), "{forced}");
    assert!(forced.succeeded().contains("force deleted"));
    assert!(kubectl.fails("get pod slow").contains("not found"));
    // No kubelet runs an unscheduled pod: it is deleted at once.
    kubectl.ok("run unplaced --image=nginx:1");
    kubectl.ok("delete pod unplaced");
    assert!(kubectl.fails("get pod unplaced").contains("not found"));
}

#[test]
fn delete_waits_for_finalizers() {
    let Some(kubectl) = kubectl() else { return };
    kubectl.create("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: held, finalizers: [example.com/hold]}\n");
    let mut deletion = kubectl.start("delete cm held");
    deletion.line_with(&["configmap \"held\" deleted"]);
    kubectl.ok("wait cm/held --for=jsonpath={.metadata.deletionTimestamp} --timeout=30s");
    let error = kubectl.fails("delete cm held --timeout=1s");
    assert!(error.contains("timed out waiting for the condition"), "{error}");
    let error = kubectl.fails(
        r#"patch cm held --type=merge -p '{"metadata":{"finalizers":["example.com/hold","example.com/more"]}}'"#,
    );
    assert!(error.contains("no new finalizers can be added if the object is being deleted"), "{error}");
    kubectl.ok(r#"patch cm held --type=json -p '[{"op":"remove","path":"/metadata/finalizers"}]'"#);
    let (status, _) = deletion.finish();
    assert!(status.success());
}

#[test]
fn wait_for_conditions_fields_and_deletions() {
    let Some(kubectl) = kubectl() else { return };
    placed_pod(&kubectl, "slow");
    let error = kubectl.fails("wait pod/slow --for=condition=Ready --timeout=1s");
    assert!(error.contains("timed out waiting for the condition on pods/slow"), "{error}");
    let mut ready = kubectl.start("wait pod/slow --for=condition=Ready --timeout=60s");
    let mut phase = kubectl.start("wait pod/slow --for=jsonpath={.status.phase}=Running --timeout=60s");
    let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    kubectl.ok(&format!("patch pod slow --subresource=status -p '{status}'"));
    ready.line_with(&["pod/slow condition met"]);
    phase.line_with(&["pod/slow condition met"]);
    assert!(kubectl.ok("get pod slow --no-headers").contains("Running"));
    kubectl.prints("wait pod -l app=slow --for=condition=Ready --timeout=30s", "pod/slow condition met");
    let gone = kubectl.start("wait --for=delete pod/slow --timeout=60s");
    kubectl.ok("delete pod slow --force --grace-period=0");
    let (status, lines) = gone.finish();
    assert!(status.success(), "{lines:?}");
    let error = kubectl.fails("wait pod/nobody --for=condition=Ready --timeout=1s");
    assert!(error.contains("pods \"nobody\" not found"), "{error}");
}

#[test]
fn a_namespace_is_deleted_with_its_content() {
    let Some(kubectl) = kubectl() else { return };
    let name = kubectl.namespace().to_owned();
    kubectl.ok("create configmap inside");
    kubectl.create("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: held, finalizers: [example.com/hold]}\n");
    placed_pod(&kubectl, "inside");
    kubectl.ok(&format!("delete namespace {name} --wait=false"));
    let line = kubectl.ok(&format!("get namespace {name} --no-headers"));
    assert!(line.contains("Terminating"), "{line}");
    let error = kubectl.fails("create configmap late");
    let expected = format!(
        "configmaps \"late\" is forbidden: unable to create new content in namespace {name} because it is being terminated"
    );
    assert!(error.contains(&expected), "{error}");
    // Pods are deleted first: the rest waits until the last one has stopped.
    kubectl.ok("wait pod/inside --for=jsonpath={.metadata.deletionTimestamp} --timeout=30s");
    kubectl.ok(&format!("wait namespace/{name} --for=condition=NamespaceContentRemaining --timeout=30s"));
    kubectl.ok("delete pod inside --force --grace-period=0");
    kubectl.ok("wait --for=delete cm/inside --timeout=30s");
    kubectl.ok(&format!("wait namespace/{name} --for=condition=NamespaceFinalizersRemaining --timeout=30s"));
    kubectl.ok(r#"patch cm held --type=merge -p '{"metadata":{"finalizers":null}}'"#);
    kubectl.ok(&format!("wait --for=delete namespace/{name} --timeout=30s"));
    let error = kubectl.fails("create configmap too-late");
    assert!(error.contains(&format!("namespaces \"{name}\" not found")), "{error}");
}

/// V1, V5: admission protects new claims and volumes; while a finalizer keeps them, get and describe show Terminating.
#[test]
fn claims_and_volumes_are_protected_and_shown_as_terminating() {
    let Some(kubectl) = kubectl() else { return };
    let volume = format!("volume-{}", kubectl.namespace());
    kubectl.create(&format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: data, finalizers: [example.com/hold]}}\nspec:\n  \
         accessModes: [ReadWriteOnce]\n  storageClassName: ''\n  resources: {{requests: {{storage: 1Gi}}}}\n---\n\
         apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {volume}, finalizers: [example.com/hold]}}\nspec:\n  \
         accessModes: [ReadWriteOnce]\n  capacity: {{storage: 1Gi}}\n  csi: {{driver: d.example.com, volumeHandle: h}}\n"
    ));
    for (what, protection) in [
        ("pvc/data".to_owned(), "kubernetes.io/pvc-protection"),
        (format!("pv/{volume}"), "kubernetes.io/pv-protection"),
    ] {
        let finalizers = kubectl.object(&what)["metadata"]["finalizers"].clone();
        assert_eq!(finalizers, json!(["example.com/hold", protection]), "{what}");
        kubectl.ok(&format!("delete {what} --wait=false"));
        let line = kubectl.ok(&format!("get {what} --no-headers"));
        assert!(line.contains("Terminating"), "{line}");
        let text = kubectl.ok(&format!("describe {what}"));
        assert!(text.contains("Terminating (lasts"), "{text}");
    }
}

#[test]
fn cordon_taint_and_drain_respect_budgets() {
    let Some(kubectl) = kubectl() else { return };
    let node = format!("node-{}", kubectl.namespace());
    kubectl.create(&format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {node}}}\n"));
    kubectl.prints(&format!("cordon {node}"), &format!("node/{node} cordoned"));
    assert!(kubectl.ok(&format!("get node {node}")).contains("SchedulingDisabled"));
    kubectl.prints(&format!("uncordon {node}"), &format!("node/{node} uncordoned"));
    kubectl.prints(&format!("taint node {node} a=b:NoSchedule"), &format!("node/{node} tainted"));
    kubectl.create(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: guarded, labels: {{app: guarded}}}}\n\
         spec: {{nodeName: {node}, terminationGracePeriodSeconds: 0, containers: [{{name: c, image: 'nginx:1'}}]}}\n"
    ));
    kubectl.ok(r#"patch pod guarded --subresource=status -p '{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}'"#);
    kubectl.ok("create pdb guard --selector=app=guarded --min-available=1");
    kubectl.ok("wait pdb/guard --for=jsonpath={.status.currentHealthy}=1 --timeout=30s");
    let drain = format!("drain {node} --force --pod-selector=app=guarded");
    let said = kubectl.run(&format!("{drain} --timeout=2s"));
    assert!(!said.status.success(), "{said}");
    assert!(said.err.contains("Cannot evict pod as it would violate the pod's disruption budget."), "{said}");
    kubectl.ok("delete pdb guard");
    let drained = kubectl.ok(&format!("{drain} --timeout=60s"));
    assert!(drained.contains("pod/guarded evicted") && drained.contains("drained"), "{drained}");
    kubectl.ok(&format!("delete node {node}"));
}
