//! kubectl declares the desired state: apply (client-side and server-side), diff, edit, replace, patch, and the small
//! setters.

mod support;

use serde_json::json;
use support::{Kubectl, kubectl};

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

fn config(data: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: settings\ndata: {data}\n")
}

fn set(image: &str, replicas: u32) -> String {
    format!(
        "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: web}}\nspec:\n  serviceName: web\n  replicas: {replicas}\n  \
         selector: {{matchLabels: {{app: web}}}}\n  template:\n    metadata: {{labels: {{app: web}}}}\n    \
         spec: {{containers: [{{name: web, image: '{image}'}}]}}\n"
    )
}

/// A pod with named containers; the image of the second one is given.
fn pod_with_sidecar(image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: pair}}\nspec:\n  containers:\n  - {{name: main, image: 'nginx:1'}}\n  \
         - {{name: side, image: '{image}'}}\n"
    )
}

#[test]
fn client_side_apply_creates_updates_and_keeps_other_fields() {
    let Some(kubectl) = kubectl() else { return };
    assert_eq!(kubectl.ok_with("apply -f -", &config("{a: '1', b: '2'}")), "configmap/settings created\n");
    let object = kubectl.object("cm/settings");
    let last = object["metadata"]["annotations"][LAST_APPLIED].as_str().expect("apply leaves its annotation");
    assert!(last.contains(r#""data":{"a":"1","b":"2"}"#), "{last}");
    assert_eq!(object["metadata"]["managedFields"][0]["manager"], "kubectl-client-side-apply");

    assert_eq!(kubectl.ok_with("apply -f -", &config("{a: '1', b: '2'}")), "configmap/settings unchanged\n");
    assert_eq!(kubectl.object("cm/settings")["metadata"]["resourceVersion"], object["metadata"]["resourceVersion"]);

    // Another client adds a key: apply keeps it, updates its own keys and removes those that it no longer has.
    kubectl.ok(r#"patch cm settings --type=merge -p '{"data":{"other":"x"}}'"#);
    assert_eq!(kubectl.ok_with("apply -f -", &config("{a: '9'}")), "configmap/settings configured\n");
    assert_eq!(kubectl.object("cm/settings")["data"], json!({"a": "9", "other": "x"}));
    assert_eq!(kubectl.value("apply view-last-applied cm/settings -o json")["data"], json!({"a": "9"}));
}

#[test]
fn client_side_apply_merges_lists_by_their_keys() {
    let Some(kubectl) = kubectl() else { return };
    assert_eq!(kubectl.ok_with("apply -f -", &set("nginx:1", 1)), "statefulset.apps/web created\n");
    kubectl.ok("scale statefulset web --replicas=5");
    let without_replicas = set("nginx:2", 1).replace("  replicas: 1\n", "");
    assert_eq!(kubectl.ok_with("apply -f -", &without_replicas), "statefulset.apps/web configured\n");
    // apply owned the count, so removing it from the manifest removes the field, which is defaulted again.
    let object = kubectl.object("sts/web");
    assert_eq!((&object["spec"]["replicas"], &object["metadata"]["generation"]), (&json!(1), &json!(3)));
    assert_eq!(object["spec"]["template"]["spec"]["containers"][0]["image"], "nginx:2");

    kubectl.ok_with("apply -f -", &pod_with_sidecar("envoy:1"));
    assert_eq!(kubectl.ok_with("apply -f -", &pod_with_sidecar("envoy:2")), "pod/pair configured\n");
    kubectl.prints("get pod pair -o jsonpath={.spec.containers[*].image}", "nginx:1 envoy:2");
    assert_eq!(kubectl.ok_with("apply -f -", &pod_with_sidecar("envoy:2")), "pod/pair unchanged\n");
}

#[test]
fn apply_adopts_objects_made_by_create() {
    let Some(kubectl) = kubectl() else { return };
    kubectl.create(&config("{a: '1'}"));
    let said = kubectl.run_with("apply -f -", &config("{a: '2'}"));
    assert!(said.err.contains(&format!("is missing the {LAST_APPLIED} annotation")), "{said}");
    assert_eq!(said.succeeded(), "configmap/settings configured\n");
    let dry = kubectl.ok_with("apply -f - --dry-run=server", &config("{a: '3'}"));
    assert_eq!(dry, "configmap/settings configured (server dry run)\n");
    assert_eq!(kubectl.object("cm/settings")["data"], json!({"a": "2"}));
}

#[test]
fn server_side_apply_owns_fields_and_reports_conflicts() {
    let Some(kubectl) = kubectl() else { return };
    let apply = "apply --server-side -f -";
    assert_eq!(kubectl.ok_with(apply, &config("{a: '1', b: '2'}")), "configmap/settings serverside-applied\n");
    let object = kubectl.object("cm/settings");
    let entry = &object["metadata"]["managedFields"][0];
    assert_eq!((&entry["manager"], &entry["operation"]), (&json!("kubectl"), &json!("Apply")));
    assert_eq!(entry["fieldsV1"], json!({"f:data": {"f:a": {}, "f:b": {}}}));
    assert!(object["metadata"]["annotations"].get(LAST_APPLIED).is_none());

    // Without a change nothing is written.
    kubectl.ok_with(apply, &config("{a: '1', b: '2'}"));
    assert_eq!(kubectl.object("cm/settings")["metadata"]["resourceVersion"], object["metadata"]["resourceVersion"]);

    // Another manager sets another value.
    let other = "apply --server-side --field-manager=other -f -";
    let error = kubectl.fails_with(other, &config("{a: '9'}"));
    assert!(error.contains("Apply failed with 1 conflict: conflict with \"kubectl\": .data.a"), "{error}");
    assert!(error.contains("--force-conflicts"), "kubectl explains the ways out: {error}");
    // Equal values are no conflict: both managers own the field then.
    kubectl.ok_with(other, &config("{a: '1'}"));
    kubectl.ok_with(&format!("{other} --force-conflicts"), &config("{a: '9'}"));
    assert_eq!(kubectl.object("cm/settings")["data"], json!({"a": "9", "b": "2"}));

    // A field that a manager leaves out of its next apply is removed, unless another manager owns it too.
    kubectl.ok_with(apply, &config("{}"));
    assert_eq!(kubectl.object("cm/settings")["data"], json!({"a": "9"}));
    // An ordinary write takes ownership as well.
    kubectl.ok(r#"patch cm settings --type=merge -p '{"data":{"a":"10"}}' --field-manager=hand"#);
    let error = kubectl.fails_with(other, &config("{a: '9'}"));
    assert!(error.contains("conflict with \"hand\" using v1"), "{error}");
}

#[test]
fn server_side_apply_names_every_conflict() {
    let Some(kubectl) = kubectl() else { return };
    kubectl.ok_with("apply --server-side -f -", &set("nginx:1", 2));
    let error = kubectl.fails_with("apply --server-side --field-manager=other -f -", &set("nginx:9", 7));
    assert!(error.contains("Apply failed with 2 conflicts: conflicts with \"kubectl\""), "{error}");
    assert!(error.contains(".spec.replicas"), "{error}");
    assert!(error.contains(".spec.template.spec.containers[name=\"web\"].image"), "{error}");
    let dry = kubectl.ok_with("apply --server-side --dry-run=server -f -", &set("nginx:3", 2));
    assert_eq!(dry, "statefulset.apps/web serverside-applied (server dry run)\n");
    kubectl.prints("get sts web -o jsonpath={..image}", "nginx:1");
}

#[test]
fn server_side_apply_takes_over_from_client_side() {
    let Some(kubectl) = kubectl() else { return };
    kubectl.ok_with("apply -f -", &config("{a: '1', b: '2'}"));
    kubectl.ok_with("apply --server-side -f -", &config("{a: '1'}"));
    assert_eq!(
        kubectl.object("cm/settings")["data"],
        json!({"a": "1"}),
        "fields of the old way are migrated, then dropped"
    );
}

#[test]
fn diff_reports_changes_by_its_exit_code() {
    let Some(kubectl) = kubectl() else { return };
    kubectl.ok_with("apply -f -", &config("{a: '1'}"));
    let same = kubectl.run_with("diff -f -", &config("{a: '1'}"));
    assert_eq!((same.code(), same.out.as_str()), (0, ""), "{same}");
    for more in ["", " --server-side --force-conflicts"] {
        let other = kubectl.run_with(&format!("diff -f -{more}"), &config("{a: '2'}"));
        assert_eq!(other.code(), 1, "{other}");
        assert!(other.out.contains("-  a: \"1\"") && other.out.contains("+  a: \"2\""), "{other}");
    }
    let new = kubectl.run_with("diff -f -", &config("{a: '1'}").replace("settings", "fresh"));
    assert_eq!(new.code(), 1, "{new}");
    assert!(new.out.contains("+  name: fresh"), "{new}");
    let wrong = kubectl.run_with("diff -f -", &config("[1]"));
    assert!(wrong.code() > 1, "an error is neither same nor different: {wrong}");
    assert_eq!(kubectl.object("cm/settings")["data"], json!({"a": "1"}));
}

#[test]
fn edit_stores_what_the_editor_saves() {
    let Some(kubectl) = kubectl() else { return };
    kubectl.create(&config("{a: before}"));
    kubectl
        .with_variable("KUBE_EDITOR", "sed -i s/before/after/")
        .prints("edit cm settings", "configmap/settings edited");
    assert_eq!(kubectl.object("cm/settings")["data"], json!({"a": "after"}));
    let untouched = kubectl.with_variable("KUBE_EDITOR", "true").run("edit cm settings");
    assert!(untouched.err.contains("Edit cancelled, no changes made."), "{untouched}");
    // kubectl opens the editor again when the server refuses; the second time nothing is changed, and it stops.
    let refused =
        kubectl.with_variable("KUBE_EDITOR", "sed -i 's/name: settings/name: other/'").run("edit cm settings");
    assert!(!refused.status.success() && (refused.err.clone() + &refused.out).contains("name"), "{refused}");
}

fn with_containers(kubectl: &Kubectl) {
    kubectl.create(
        "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: web, labels: {old: 'yes'}}\nspec:\n  serviceName: web\n  \
         selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: web}}\n    spec:\n      containers:\n      \
         - {name: web, image: 'nginx:1', env: [{name: A, value: '1'}, {name: B, value: '2'}]}\n      \
         - {name: side, image: 'envoy:1'}\n",
    );
}

#[test]
fn patch_of_all_three_types() {
    let Some(kubectl) = kubectl() else { return };
    with_containers(&kubectl);
    let images = "get sts web -o jsonpath={.spec.template.spec.containers[*].image}";
    // Strategic merge patch: lists merge by name.
    let strategic = r#"{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"envoy:2"}]}}}}"#;
    kubectl.prints(&format!("patch sts web -p '{strategic}'"), "statefulset.apps/web patched");
    kubectl.prints(images, "nginx:1 envoy:2");
    let no_change = kubectl.ok(&format!("patch sts web -p '{strategic}'"));
    assert_eq!(no_change, "statefulset.apps/web patched (no change)\n");
    let delete =
        r#"{"spec":{"template":{"spec":{"containers":[{"name":"web","env":[{"name":"A","$patch":"delete"}]}]}}}}"#;
    kubectl.ok(&format!("patch sts web --type=strategic -p '{delete}'"));
    kubectl.prints("get sts web -o jsonpath={..env[*].name}", "B");
    // JSON merge patch: lists are replaced, null removes.
    kubectl.ok(r#"patch sts web --type=merge -p '{"metadata":{"labels":{"old":null,"new":"yes"}}}'"#);
    kubectl.prints("get sts web -o jsonpath={.metadata.labels}", r#"{"new":"yes"}"#);
    // JSON patch.
    let operations = r#"[{"op":"test","path":"/spec/template/spec/containers/0/image","value":"nginx:1"},{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"nginx:3"},{"op":"remove","path":"/spec/template/spec/containers/1"}]"#;
    kubectl.ok(&format!("patch sts web --type=json -p '{operations}'"));
    kubectl.prints(images, "nginx:3");
    let error = kubectl.fails(&format!("patch sts web --type=json -p '{operations}'"));
    assert!(error.starts_with("The request is invalid: ") && error.contains("test"), "{error}");
    let error = kubectl.fails(r#"patch sts web --type=json -p '[{"op":"jump","path":"/spec"}]'"#);
    assert!(error.contains("jump"), "{error}");
    // The status is a subresource.
    let status = r#"{"status":{"replicas":1,"readyReplicas":1},"spec":{"replicas":9}}"#;
    kubectl.ok(&format!("patch sts web --subresource=status --type=merge -p '{status}'"));
    kubectl.prints("get sts web -o jsonpath={.spec.replicas}/{.status.readyReplicas}", "1/1");
    let error = kubectl.fails("patch sts missing -p {}");
    assert_eq!(error, "Error from server (NotFound): statefulsets.apps \"missing\" not found");
}

#[test]
fn replace_needs_the_whole_object_and_its_version() {
    let Some(kubectl) = kubectl() else { return };
    kubectl.create(&config("{a: '1', b: '2'}"));
    let stale = kubectl.ok("get cm settings -o yaml");
    assert_eq!(kubectl.ok_with("replace -f -", &config("{a: '2'}")), "configmap/settings replaced\n");
    assert_eq!(kubectl.object("cm/settings")["data"], json!({"a": "2"}));
    let error = kubectl.fails_with("replace -f -", &stale);
    assert!(error.contains("Operation cannot be fulfilled on configmaps \"settings\": the object has been modified; please apply your changes to the latest version and try again"), "{error}");
    let error = kubectl.fails_with("replace -f -", &config("{}").replace("settings", "missing"));
    assert!(error.contains("configmaps \"missing\" not found"), "{error}");
    let uid = kubectl.object("cm/settings")["metadata"]["uid"].clone();
    let said = kubectl.ok_with("replace --force -f -", &config("{a: '3'}"));
    assert!(said.contains("deleted") && said.ends_with("configmap/settings replaced\n"), "{said}");
    assert_ne!(kubectl.object("cm/settings")["metadata"]["uid"], uid);
}

#[test]
fn label_and_annotate() {
    let Some(kubectl) = kubectl() else { return };
    kubectl.create(&config("{}"));
    for (command, said) in [
        ("label cm settings tier=front", "configmap/settings labeled"),
        ("label cm settings tier=front", "configmap/settings not labeled"),
        ("label cm settings tier=back --overwrite", "configmap/settings labeled"),
        ("label cm settings tier-", "configmap/settings unlabeled"),
        ("annotate cm settings note='one two'", "configmap/settings annotated"),
        ("annotate cm settings note=three --overwrite", "configmap/settings annotated"),
        ("annotate cm settings note-", "configmap/settings annotated"),
    ] {
        kubectl.prints(command, said);
    }
    assert!(kubectl.object("cm/settings")["metadata"].get("labels").is_none());
    kubectl.ok("label cm settings a=1");
    let error = kubectl.fails("label cm settings a=2");
    assert!(error.contains("'a' already has a value (1), and --overwrite is false"), "{error}");
    let error = kubectl.fails("label cm settings 'bad key=1'");
    assert!(error.contains("name part must consist of alphanumeric characters"), "{error}");
    let error = kubectl.fails("label cm settings a=2 --overwrite --resource-version=1");
    assert!(error.contains("the object has been modified"), "{error}");
}

#[test]
fn set_and_scale_change_one_thing() {
    let Some(kubectl) = kubectl() else { return };
    with_containers(&kubectl);
    kubectl.prints("set image statefulset/web web=nginx:7 side=envoy:7", "statefulset.apps/web image updated");
    kubectl.prints("get sts web -o jsonpath={..image}", "nginx:7 envoy:7");
    kubectl.prints("set env statefulset/web -c web C=3 A-", "statefulset.apps/web env updated");
    kubectl.prints("get sts web -o jsonpath={..containers[0].env[*].name}", "B C");
    kubectl.prints(
        "set resources sts web -c side --requests=cpu=50m",
        "statefulset.apps/web resource requirements updated",
    );
    kubectl.prints("get sts web -o jsonpath={..containers[1].resources.requests.cpu}", "50m");
    kubectl.ok("create serviceaccount robot");
    kubectl.prints("set serviceaccount sts web robot", "statefulset.apps/web serviceaccount updated");
    kubectl.prints("get sts web -o jsonpath={..serviceAccountName}", "robot");
    let error = kubectl.fails("set image sts/web nobody=nginx:1");
    assert!(error.contains("unable to find container named \"nobody\""), "{error}");

    let generation = |kubectl: &Kubectl| kubectl.object("sts/web")["metadata"]["generation"].clone();
    let before = generation(&kubectl);
    kubectl.prints("scale statefulset web --replicas=3", "statefulset.apps/web scaled");
    kubectl.prints("get sts web -o jsonpath={.spec.replicas}", "3");
    assert_ne!(generation(&kubectl), before);
    kubectl.prints("scale sts/web --current-replicas=3 --replicas=2", "statefulset.apps/web scaled");
    let error = kubectl.fails("scale sts/web --current-replicas=9 --replicas=5");
    assert!(error.contains("Expected replicas to be 9, was 2"), "{error}");
    let scale = kubectl.value("get sts web --subresource=scale -o json");
    assert_eq!((&scale["kind"], &scale["apiVersion"]), (&json!("Scale"), &json!("autoscaling/v1")));
    assert_eq!((&scale["spec"]["replicas"], &scale["status"]["selector"]), (&json!(2), &json!("app=web")));
    kubectl.ok(r#"patch sts web --subresource=scale --type=merge -p '{"spec":{"replicas":4}}'"#);
    kubectl.prints("get sts web -o jsonpath={.spec.replicas}", "4");
    let error = kubectl.fails("scale cm kube-root-ca.crt --replicas=1");
    assert!(
        error.contains("the server could not find the requested resource") || error.contains("cannot scale"),
        "{error}"
    );
}
