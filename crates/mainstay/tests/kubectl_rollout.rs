//! kubectl rollout on StatefulSets, without the StatefulSet controller: the test does its writes where they are needed.

mod support;

use serde_json::json;
use support::Kubectl;

/// A server without StatefulSet controller: only this test writes revisions and status.
fn set(kubectl: &Kubectl, image: &str) {
    kubectl.ok_with(
        "apply -f -",
        &format!(
            "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: web}}\nspec:\n  serviceName: web\n  replicas: 2\n  \
             selector: {{matchLabels: {{app: web}}}}\n  template:\n    metadata: {{labels: {{app: web}}}}\n    \
             spec: {{containers: [{{name: web, image: '{image}', env: [{{name: IMAGE, value: '{image}'}}]}}]}}\n"
        ),
    );
}

/// The data of a revision: a patch that replaces the template.
fn revision(kubectl: &Kubectl, number: u32) {
    let set = kubectl.object("sts/web");
    let mut template = set["spec"]["template"].clone();
    template["$patch"] = json!("replace");
    let revision = json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": format!("web-{number}"),
            "labels": {"app": "web"},
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": set["metadata"]["uid"],
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "revision": number,
        "data": {"spec": {"template": template}},
    });
    kubectl.create(&revision.to_string());
}

fn status(kubectl: &Kubectl, status: serde_json::Value) {
    let patch = json!({"status": status});
    kubectl.ok(&format!("patch sts web --subresource=status --type=merge -p '{patch}'"));
}

fn without_controller() -> Option<Kubectl> {
    let cluster = support::Cluster::start_with(
        support::Place::InMemory,
        &["--controllers=garbage-collector-controller,namespace-controller,serviceaccount-controller"],
    );
    support::kubectl_on(&std::sync::Arc::new(cluster))
}

#[test]
fn history_and_undo_read_controller_revisions() {
    let Some(kubectl) = without_controller() else { return };
    set(&kubectl, "nginx:1");
    revision(&kubectl, 1);
    set(&kubectl, "nginx:2");
    revision(&kubectl, 2);
    let history = kubectl.ok("rollout history statefulset/web");
    let lines: Vec<&str> = history.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(lines[0], "statefulset.apps/web");
    assert!(lines[1].starts_with("REVISION") && lines[1].ends_with("CHANGE-CAUSE"), "{history}");
    assert!(lines[2].starts_with('1') && lines[3].starts_with('2'), "{history}");
    let first = kubectl.ok("rollout history sts/web --revision=1");
    assert!(first.contains("nginx:1") && !first.contains("nginx:2"), "{first}");
    let error = kubectl.fails("rollout history sts/web --revision=9");
    assert!(error.contains("unable to find the specified revision"), "{error}");

    kubectl.prints("rollout undo sts/web --to-revision=1", "statefulset.apps/web rolled back");
    let object = kubectl.object("sts/web");
    let container = &object["spec"]["template"]["spec"]["containers"][0];
    assert_eq!((&container["image"], &container["env"][0]["value"]), (&json!("nginx:1"), &json!("nginx:1")));
    assert_eq!(object["spec"]["replicas"], 2, "undo changes the template only");
    kubectl.prints(
        "rollout undo sts/web --to-revision=2 --dry-run=server",
        "statefulset.apps/web rolled back (server dry run)",
    );
    kubectl.prints("get sts web -o jsonpath={..image}", "nginx:1");
    let error = kubectl.fails("rollout undo sts/web --to-revision=9");
    assert!(error.contains("unable to find specified revision 9 in history"), "{error}");
}

#[test]
fn restart_marks_the_template() {
    let Some(kubectl) = without_controller() else { return };
    set(&kubectl, "nginx:1");
    let generation = kubectl.object("sts/web")["metadata"]["generation"].as_i64();
    kubectl.prints("rollout restart statefulset web", "statefulset.apps/web restarted");
    let object = kubectl.object("sts/web");
    assert!(object["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"].is_string());
    assert_eq!(object["metadata"]["generation"].as_i64(), generation.map(|number| number + 1));
    let error = kubectl.fails("rollout pause sts/web");
    assert!(error.contains("pausing is not supported"), "{error}");
}

#[test]
fn status_follows_the_rollout_to_its_end() {
    let Some(kubectl) = without_controller() else { return };
    set(&kubectl, "nginx:1");
    let mut rollout = kubectl.start("rollout status sts/web --timeout=60s");
    rollout.line_with(&["Waiting for statefulset spec update to be observed"]);
    let counts = |ready: u32, current: &str| {
        json!({
            "observedGeneration": 1, "replicas": 2, "readyReplicas": ready, "availableReplicas": ready,
            "currentReplicas": 2, "updatedReplicas": 2, "currentRevision": current, "updateRevision": "web-1",
        })
    };
    status(&kubectl, counts(1, "web-1"));
    rollout.line_with(&["Waiting for 1 pods to be ready"]);
    status(&kubectl, counts(2, "web-1"));
    rollout.line_with(&["roll out complete: 2 new pods have been updated"]);
    let (ended, lines) = rollout.finish();
    assert!(ended.success(), "{lines:?}");
    assert!(kubectl.ok("get sts web --no-headers").contains("2/2"));
    set(&kubectl, "nginx:2");
    let error = kubectl.run("rollout status sts/web --timeout=1s");
    assert!(!error.status.success() && error.err.contains("timed out waiting for the condition"), "{error}");
    let once = kubectl.ok("rollout status sts/web --watch=false");
    assert!(once.contains("Waiting for statefulset spec update to be observed"), "{once}");
}
