//! Claim templates that change in place: kubectl, the real program, and its built-in storage.

mod support;

use serde_json::{Value, json};
use support::Kubectl;

struct Wanted<'a> {
    replicas: usize,
    size: &'a str,
    image: &'a str,
    /// More of the template's spec.
    more: &'a str,
    policy: &'a str,
}

const FIRST: Wanted = Wanted { replicas: 3, size: "1Gi", image: "nginx:1", more: "", policy: "InPlace" };

fn apply(kubectl: &Kubectl, wanted: &Wanted) {
    let Wanted { replicas, size, image, more, policy } = wanted;
    kubectl.ok_with(
        "apply -f -",
        &format!(
            "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: web}}\nspec:\n  serviceName: web\n  replicas: {replicas}\n  \
             volumeClaimUpdatePolicy: {policy}\n  selector: {{matchLabels: {{app: web}}}}\n  template:\n    \
             metadata: {{labels: {{app: web}}}}\n    spec:\n      containers:\n      \
             - {{name: web, image: '{image}', volumeMounts: [{{name: data, mountPath: /data}}]}}\n  volumeClaimTemplates:\n  \
             - metadata: {{name: data}}\n    spec: {{accessModes: [ReadWriteOnce], {more} resources: {{requests: {{storage: {size}}}}}}}\n"
        ),
    );
}

fn done(kubectl: &Kubectl) -> String {
    kubectl.ok("rollout status sts/web --timeout=60s")
}

fn pods(kubectl: &Kubectl) -> Vec<String> {
    let list = kubectl.value("get pods -l app=web -o json");
    let uid = |pod: &Value| pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    list["items"].as_array().into_iter().flatten().map(uid).collect()
}

/// A field of each claim, in the order of ordinals.
fn of_claims(kubectl: &Kubectl, path: &str) -> String {
    kubectl.ok(&format!("get pvc -o jsonpath={{.items[*]{path}}}"))
}

/// T5, T6, T13: the size in the manifest expands every volume of a running set, without a restart.
#[test]
fn t5_t6_t13_apply_with_a_bigger_size_grows_every_volume() {
    let Some(kubectl) = support::kubectl() else { return };
    apply(&kubectl, &FIRST);
    done(&kubectl);
    let before = pods(&kubectl);
    // The watch lists first and continues from there, so no event is missed.
    let mut sizes =
        kubectl.start(r#"get pvc -w -o 'jsonpath={.metadata.name} {.spec.resources.requests.storage}{"\n"}'"#);
    sizes.line_with(&["data-web-2 1Gi"]);
    apply(&kubectl, &Wanted { size: "3Gi", ..FIRST });
    let status = done(&kubectl);
    assert!(status.contains("roll") && status.contains("complete"), "{status}");
    for claim in ["data-web-2 3Gi", "data-web-1 3Gi", "data-web-0 3Gi"] {
        sizes.line_with(&[claim]);
    }
    let told: Vec<&String> = sizes.said().iter().filter(|line| line.ends_with(" 3Gi")).collect();
    let first = |claim: &str| told.iter().position(|line| line.starts_with(claim)).expect("it grew");
    assert!(first("data-web-2") < first("data-web-1") && first("data-web-1") < first("data-web-0"), "{told:?}");
    sizes.terminate();
    assert_eq!(of_claims(&kubectl, ".status.capacity.storage"), "3Gi 3Gi 3Gi");
    let volumes = of_claims(&kubectl, ".spec.volumeName");
    for volume in volumes.split(' ') {
        kubectl.prints(&format!("get pv {volume} -o jsonpath={{.spec.capacity.storage}}"), "3Gi");
    }
    assert_eq!(pods(&kubectl), before, "no pod was restarted");
    kubectl.ok("wait --for=condition=VolumeClaimsUpdated sts/web --timeout=60s");
    let revision = kubectl.ok("get sts web -o jsonpath={.status.updateRevision}");
    assert_eq!(of_claims(&kubectl, ".metadata.labels.controller-revision-hash"), [revision.as_str(); 3].join(" "));
    let described = kubectl.ok("describe sts web");
    assert!(described.contains("Update Claim data-web-0 Pod web-0 in StatefulSet web success"), "{described}");
    // T17: a size cannot be reduced.
    let refused = kubectl.fails("rollout undo sts/web");
    assert!(refused.contains("field can not be less than previous value"), "{refused}");
    // A new replica has the new size, and an image is rolled out as usual.
    apply(&kubectl, &Wanted { size: "3Gi", image: "nginx:2", replicas: 4, ..FIRST });
    done(&kubectl);
    assert_eq!(of_claims(&kubectl, ".status.capacity.storage"), "3Gi 3Gi 3Gi 3Gi");
    assert!(pods(&kubectl).iter().all(|uid| !before.contains(uid)));
}

/// T7, T17: a VolumeAttributesClass, and changing it back.
#[test]
fn t7_t17_a_class_of_attributes_changes_and_is_undone() {
    let Some(kubectl) = support::kubectl() else { return };
    let driver = kubectl.ok("get sc standard -o jsonpath={.provisioner}");
    let space = kubectl.namespace().to_owned();
    for tier in ["gold", "silver"] {
        kubectl.create(&format!(
            "apiVersion: storage.k8s.io/v1\nkind: VolumeAttributesClass\nmetadata: {{name: {tier}-{space}}}\ndriverName: {driver}\n\
             parameters: {{tier: {tier}}}\n"
        ));
    }
    let (gold, silver) = (format!("gold-{space}"), format!("silver-{space}"));
    let of_class = |class: &str| format!("volumeAttributesClassName: {class},");
    apply(&kubectl, &Wanted { replicas: 2, more: &of_class(&gold), ..FIRST });
    done(&kubectl);
    let before = pods(&kubectl);
    apply(&kubectl, &Wanted { replicas: 2, more: &of_class(&silver), ..FIRST });
    done(&kubectl);
    let current = ".status.currentVolumeAttributesClassName";
    assert_eq!(of_claims(&kubectl, current), format!("{silver} {silver}"));
    let history = kubectl.ok("rollout history sts/web");
    assert_eq!(history.lines().filter(|line| line.starts_with(|it: char| it.is_ascii_digit())).count(), 2, "{history}");
    kubectl.prints("rollout undo sts/web", "statefulset.apps/web rolled back");
    done(&kubectl);
    assert_eq!(of_claims(&kubectl, current), format!("{gold} {gold}"));
    assert_eq!(pods(&kubectl), before, "no pod was restarted");
}

/// T11, T12, T18: obstacles are reported, and can be removed.
#[test]
fn t11_t12_t18_obstacles_are_reported_and_can_be_removed() {
    let Some(kubectl) = support::kubectl() else { return };
    let driver = kubectl.ok("get sc standard -o jsonpath={.provisioner}");
    let class = format!("fixed-{}", kubectl.namespace());
    kubectl.create(&format!(
        "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {{name: {class}}}\nprovisioner: {driver}\n"
    ));
    let more = format!("storageClassName: {class},");
    let wanted = Wanted { replicas: 2, more: &more, ..FIRST };
    apply(&kubectl, &wanted);
    done(&kubectl);
    let before = pods(&kubectl);
    apply(&kubectl, &Wanted { size: "2Gi", ..wanted });
    let described = kubectl.until("describe sts web", |text| text.contains("FailedUpdate"));
    for words in ["Update Claim data-web-1 for Pod web-1", "must support resize", "OnClaimDelete"] {
        assert!(described.contains(words), "{words}: {described}");
    }
    kubectl.ok("wait --for=condition=VolumeClaimsUpdated=false sts/web --timeout=60s");
    let said = kubectl
        .until(r#"get sts web -o 'jsonpath={.status.conditions[?(@.type=="VolumeClaimsUpdated")].message}'"#, |it| {
            it.contains("cannot be updated")
        });
    assert!(said.starts_with("claim data-web-1 of pod web-1 cannot be updated: "), "{said}");
    assert!(kubectl.ok("get sts web --no-headers").contains("2/2"));
    apply(&kubectl, &Wanted { size: "2Gi", policy: "OnClaimDelete", ..wanted });
    done(&kubectl);
    assert_eq!(of_claims(&kubectl, ".status.capacity.storage"), "1Gi 1Gi");
    assert_eq!(pods(&kubectl), before, "no pod was restarted");
    let explained = kubectl.ok("explain sts.spec.volumeClaimUpdatePolicy");
    assert!(explained.contains("InPlace") && explained.contains("OnClaimDelete"), "{explained}");
}

/// The manifest of a set of two replicas with these claim templates.
fn manifest(policy: &str, templates: &Value) -> String {
    let mounts: Vec<Value> = templates
        .as_array()
        .into_iter()
        .flatten()
        .map(|template| {
            let name = &template["metadata"]["name"];
            json!({"name": name, "mountPath": format!("/{}", name.as_str().unwrap_or_default())})
        })
        .collect();
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "web"},
        "spec": {
            "serviceName": "web", "replicas": 2, "volumeClaimUpdatePolicy": policy,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "nginx:1", "volumeMounts": mounts}]},
            },
            "volumeClaimTemplates": templates,
        },
    })
    .to_string()
}

/// T11, T17: one of two claim templates names a class that does not allow expansion: the update is accepted with a
/// warning, also as a dry run, and no claim is expanded until both can be.
#[test]
fn t11_t17_an_expansion_that_one_class_forbids_is_warned_of_and_not_begun() {
    let Some(kubectl) = support::kubectl() else { return };
    let driver = kubectl.ok("get sc standard -o jsonpath={.provisioner}");
    let class = format!("fixed-{}", kubectl.namespace());
    kubectl.create(
        &json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": class}, "provisioner": driver,
        })
        .to_string(),
    );
    let of_size = |size: &str| {
        let template = |name: &str, class: &str| {
            let requests = json!({"requests": {"storage": size}});
            let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": class, "resources": requests});
            json!({"metadata": {"name": name}, "spec": spec})
        };
        manifest("InPlace", &json!([template("data", "standard"), template("logs", &class)]))
    };
    kubectl.ok_with("apply -f -", &of_size("1Gi"));
    done(&kubectl);
    let before = pods(&kubectl);
    let warning = format!(
        "Warning: spec.volumeClaimTemplates[1].spec.resources.requests.storage: claim logs-web-1 of pod web-1 cannot be updated: \
         storage class {class} does not allow volume expansion; the rollout stops at this pod, and none of its claims changes"
    );
    for command in
        ["apply --dry-run=server -f -", "apply --server-side --dry-run=server --force-conflicts -f -", "apply -f -"]
    {
        let said = kubectl.run_with(command, &of_size("2Gi"));
        assert!(said.status.success() && said.err.contains(&warning), "{said}");
        assert!(!said.err.contains("volumeClaimTemplates[0]"), "the other class allows it: {said}");
    }
    let path = r#"get sts web -o 'jsonpath={.status.conditions[?(@.type=="VolumeClaimsUpdated")].message}'"#;
    let said = kubectl.until(path, |text| text.contains("cannot be updated"));
    assert!(said.starts_with("claim logs-web-1 of pod web-1 cannot be updated: "), "{said}");
    assert!(
        said.contains(&format!("(the claim's storage class is {class}); no claim of the pod is changed; ")),
        "{said}"
    );
    kubectl.until("describe sts web", |text| text.contains("Update Claim logs-web-1 for Pod web-1"));
    assert_eq!(of_claims(&kubectl, ".spec.resources.requests.storage"), "1Gi 1Gi 1Gi 1Gi");
    kubectl.ok(&format!("patch sc {class} --type=merge -p {{\"allowVolumeExpansion\":true}}"));
    done(&kubectl);
    assert_eq!(of_claims(&kubectl, ".status.capacity.storage"), "2Gi 2Gi 2Gi 2Gi");
    assert_eq!(pods(&kubectl), before, "no pod was restarted");
    let said = kubectl.run_with("apply -f -", &of_size("3Gi"));
    assert!(said.status.success() && said.err.is_empty(), "both classes allow it now: {said}");
}

/// T17: an undo restores the claim templates of a revision that contains them. A revision from before the policy
/// InPlace contains none: kubectl then compares pod templates only, and does nothing if they are equal.
#[test]
fn t17_undo_restores_what_the_revision_contains() {
    let Some(kubectl) = support::kubectl() else { return };
    let of = |policy: &str, tier: &str| {
        let metadata = json!({"name": "data", "labels": {"tier": tier}});
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        manifest(policy, &json!([{"metadata": metadata, "spec": spec}]))
    };
    let apply = |policy: &str, tier: &str| {
        kubectl.ok_with("apply -f -", &of(policy, tier));
        done(&kubectl);
    };
    let template = "get sts web -o jsonpath={.spec.volumeClaimTemplates[0].metadata.labels.tier}";
    apply("OnClaimDelete", "low");
    // Policy and labels in one apply: the previous revision contains no claim templates.
    apply("InPlace", "high");
    assert_eq!(of_claims(&kubectl, ".metadata.labels.tier"), "high high");
    // kubectl compares the encoded pod templates; 1.32 finds them different. Either way the claim templates stay.
    let said = kubectl.ok("rollout undo sts/web");
    let skipped = "statefulset.apps/web skipped rollback (current template already matches revision 0)";
    assert!([skipped, "statefulset.apps/web rolled back"].contains(&said.trim()), "{said}");
    kubectl.prints(template, "high");
    // From here on revisions contain them.
    apply("InPlace", "higher");
    assert_eq!(of_claims(&kubectl, ".metadata.labels.tier"), "higher higher");
    kubectl.prints("rollout undo sts/web", "statefulset.apps/web rolled back");
    done(&kubectl);
    kubectl.prints(template, "high");
    assert_eq!(of_claims(&kubectl, ".metadata.labels.tier"), "high high");
    // To go back beyond the change of the policy, apply the older manifest.
    apply("InPlace", "low");
    assert_eq!(of_claims(&kubectl, ".metadata.labels.tier"), "low low");
}
