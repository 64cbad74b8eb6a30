//! kubectl discovery: version, api-versions, api-resources, explain, raw paths.

mod support;

use support::kubectl;

/// Kind, its `kubectl explain` name and its short names, for all kinds that the server must serve.
const RESOURCES: &[(&str, &str, bool, &str)] = &[
    // name, apiVersion, namespaced, kind
    ("bindings", "v1", true, "Binding"),
    ("configmaps", "v1", true, "ConfigMap"),
    ("endpoints", "v1", true, "Endpoints"),
    ("events", "v1", true, "Event"),
    ("limitranges", "v1", true, "LimitRange"),
    ("namespaces", "v1", false, "Namespace"),
    ("nodes", "v1", false, "Node"),
    ("persistentvolumeclaims", "v1", true, "PersistentVolumeClaim"),
    ("persistentvolumes", "v1", false, "PersistentVolume"),
    ("pods", "v1", true, "Pod"),
    ("resourcequotas", "v1", true, "ResourceQuota"),
    ("secrets", "v1", true, "Secret"),
    ("serviceaccounts", "v1", true, "ServiceAccount"),
    ("services", "v1", true, "Service"),
    ("customresourcedefinitions", "apiextensions.k8s.io/v1", false, "CustomResourceDefinition"),
    ("controllerrevisions", "apps/v1", true, "ControllerRevision"),
    ("statefulsets", "apps/v1", true, "StatefulSet"),
    ("selfsubjectreviews", "authentication.k8s.io/v1", false, "SelfSubjectReview"),
    ("tokenreviews", "authentication.k8s.io/v1", false, "TokenReview"),
    ("localsubjectaccessreviews", "authorization.k8s.io/v1", true, "LocalSubjectAccessReview"),
    ("selfsubjectaccessreviews", "authorization.k8s.io/v1", false, "SelfSubjectAccessReview"),
    ("selfsubjectrulesreviews", "authorization.k8s.io/v1", false, "SelfSubjectRulesReview"),
    ("subjectaccessreviews", "authorization.k8s.io/v1", false, "SubjectAccessReview"),
    ("leases", "coordination.k8s.io/v1", true, "Lease"),
    ("events", "events.k8s.io/v1", true, "Event"),
    ("poddisruptionbudgets", "policy/v1", true, "PodDisruptionBudget"),
    ("clusterrolebindings", "rbac.authorization.k8s.io/v1", false, "ClusterRoleBinding"),
    ("clusterroles", "rbac.authorization.k8s.io/v1", false, "ClusterRole"),
    ("rolebindings", "rbac.authorization.k8s.io/v1", true, "RoleBinding"),
    ("roles", "rbac.authorization.k8s.io/v1", true, "Role"),
    ("csidrivers", "storage.k8s.io/v1", false, "CSIDriver"),
    ("csinodes", "storage.k8s.io/v1", false, "CSINode"),
    ("csistoragecapacities", "storage.k8s.io/v1", true, "CSIStorageCapacity"),
    ("storageclasses", "storage.k8s.io/v1", false, "StorageClass"),
    ("volumeattachments", "storage.k8s.io/v1", false, "VolumeAttachment"),
    ("volumeattributesclasses", "storage.k8s.io/v1", false, "VolumeAttributesClass"),
];

/// Served because an issue requires it; another server may leave out the other rows.
const OPTIONAL: &[&str] = &["bindings", "localsubjectaccessreviews"];

#[test]
fn version_names_the_server_as_kubernetes_does() {
    let Some(kubectl) = kubectl() else { return };
    let version = kubectl.value("version -o json");
    let server = &version["serverVersion"];
    assert_eq!((server["major"].as_str(), server["minor"].as_str()), (Some("1"), Some("37")), "{version}");
    assert!(server["gitVersion"].as_str().is_some_and(|text| text.starts_with("v1.37.")), "{version}");
    assert!(kubectl.ok("version").contains("Server Version: v1.37."));
}

#[test]
fn api_versions_lists_every_group() {
    let Some(kubectl) = kubectl() else { return };
    let listed = kubectl.ok("api-versions");
    let listed: Vec<&str> = listed.lines().collect();
    for (_, version, ..) in RESOURCES {
        assert!(listed.contains(version), "{version} is missing in {listed:?}");
    }
}

#[test]
fn api_resources_lists_every_kind_with_its_scope() {
    let Some(kubectl) = kubectl() else { return };
    let table = kubectl.ok("api-resources --no-headers");
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    for &(name, version, namespaced, kind) in RESOURCES.iter().filter(|row| !OPTIONAL.contains(&row.0)) {
        let scope = if namespaced { "true" } else { "false" };
        let found = rows.iter().any(|row| row[0] == name && row.ends_with(&[version, scope, kind]));
        assert!(found, "{name} {version} {scope} {kind} is missing in\n{table}");
    }
}

#[test]
fn api_resources_knows_short_names_verbs_and_categories() {
    let Some(kubectl) = kubectl() else { return };
    let wide = kubectl.ok("api-resources -o wide --no-headers");
    let row = |name: &str, version: &str| -> Vec<&str> {
        let found = wide.lines().find(|line| line.starts_with(&format!("{name} ")) && line.contains(version));
        found.unwrap_or_else(|| panic!("{name} is missing in\n{wide}")).split_whitespace().collect()
    };
    for (name, version, short) in [
        ("pods", " v1 ", "po"),
        ("persistentvolumeclaims", " v1 ", "pvc"),
        ("persistentvolumes", " v1 ", "pv"),
        ("services", " v1 ", "svc"),
        ("configmaps", " v1 ", "cm"),
        ("namespaces", " v1 ", "ns"),
        ("nodes", " v1 ", "no"),
        ("endpoints", " v1 ", "ep"),
        ("events", " v1 ", "ev"),
        ("resourcequotas", " v1 ", "quota"),
        ("limitranges", " v1 ", "limits"),
        ("serviceaccounts", " v1 ", "sa"),
        ("statefulsets", " apps/v1 ", "sts"),
        ("storageclasses", " storage.k8s.io/v1 ", "sc"),
        ("volumeattributesclasses", " storage.k8s.io/v1 ", "vac"),
        ("poddisruptionbudgets", " policy/v1 ", "pdb"),
        ("customresourcedefinitions", " apiextensions.k8s.io/v1 ", "crd,crds"),
    ] {
        assert_eq!(row(name, version)[1], short, "{name}");
    }
    assert!(row("pods", " v1 ").contains(&"create,delete,deletecollection,get,list,patch,update,watch"));
    assert!(row("selfsubjectaccessreviews", "authorization").contains(&"create"));
    assert_eq!(row("pods", " v1 ").last(), Some(&"all"));
    assert_eq!(row("statefulsets", " apps/v1 ").last(), Some(&"all"));
    let namespaced = kubectl.ok("api-resources --namespaced=false -o name");
    assert!(namespaced.contains("nodes") && !namespaced.contains("pods"), "{namespaced}");
    let storage = kubectl.ok("api-resources --api-group=storage.k8s.io -o name");
    assert!(storage.contains("csidrivers.storage.k8s.io") && !storage.contains("pods"), "{storage}");
    kubectl.ok("get all");
}

#[test]
fn explain_knows_every_kind_to_its_last_field() {
    let Some(kubectl) = kubectl() else { return };
    for &(name, version, _, kind) in RESOURCES.iter().filter(|row| !OPTIONAL.contains(&row.0)) {
        let text = kubectl.ok(&format!("explain {name} --api-version={version} --recursive"));
        let compact = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(compact.contains(&format!("KIND: {kind}")), "{name}: {text}");
        assert!(text.contains("metadata\t<ObjectMeta>") || text.contains("metadata <ObjectMeta>"), "{name}: {text}");
        assert!(text.contains("DESCRIPTION:") && !text.contains("<empty>"), "{name} has no description: {text}");
    }
}

#[test]
fn explain_describes_single_fields() {
    let Some(kubectl) = kubectl() else { return };
    let cases: &[(&str, &[&str])] = &[
        ("pod.spec.containers", &["containers <[]Container>", "imagePullPolicy", "volumeMounts"]),
        ("pods.spec.containers.resources.limits", &["limits <map[string]Quantity>"]),
        ("sts.spec.persistentVolumeClaimRetentionPolicy", &["whenDeleted", "whenScaled"]),
        ("sts.spec.ordinals.start", &["start <integer>"]),
        ("sts.spec.volumeClaimTemplates.spec.accessModes", &["accessModes <[]string>"]),
        ("sts.spec.updateStrategy.rollingUpdate.maxUnavailable", &["maxUnavailable <IntOrString>"]),
        ("pvc.spec.volumeAttributesClassName", &["volumeAttributesClassName <string>"]),
        ("pv.spec.persistentVolumeReclaimPolicy", &["persistentVolumeReclaimPolicy <string>", "Retain"]),
        ("crd.spec.versions.schema.openAPIV3Schema", &["openAPIV3Schema <JSONSchemaProps>"]),
        ("lease.spec.renewTime", &["renewTime <string>"]),
    ];
    for (field, parts) in cases {
        let text = kubectl.ok(&format!("explain {field}"));
        let compact = text.replace(": <", " <").split_whitespace().collect::<Vec<_>>().join(" ");
        for part in *parts {
            assert!(compact.contains(part), "explain {field} lacks {part:?}:\n{text}");
        }
    }
    let error = kubectl.fails("explain pod.spec.nope");
    assert!(error.contains("field \"nope\" does not exist"), "{error}");
    let error = kubectl.fails("explain nothings");
    assert!(error.contains("the server doesn't have a resource type \"nothings\""), "{error}");
}

#[test]
fn raw_paths_answer() {
    let Some(kubectl) = kubectl() else { return };
    for path in ["/healthz", "/livez", "/readyz"] {
        kubectl.prints(&format!("get --raw {path}"), "ok");
    }
    let verbose = kubectl.ok("get --raw /readyz?verbose");
    assert!(verbose.contains("[+]ping ok") && verbose.contains("readyz check passed"), "{verbose}");
    assert!(kubectl.ok("get --raw /metrics").contains("apiserver_request_total"));
    assert_eq!(kubectl.value("get --raw /api")["kind"], "APIVersions");
    assert_eq!(kubectl.value("get --raw /apis")["kind"], "APIGroupList");
    assert_eq!(kubectl.value("get --raw /apis/apps/v1")["kind"], "APIResourceList");
    assert!(kubectl.value("get --raw /openapi/v3")["paths"]["apis/apps/v1"].is_object());
    assert_eq!(kubectl.value("get --raw /openapi/v2")["swagger"], "2.0");
    let info = kubectl.ok("cluster-info");
    assert!(info.contains("control plane") && info.contains(&kubectl.cluster.url), "{info}");
    let error = kubectl.fails("get --raw /nothing/here");
    assert!(error.contains("the server could not find the requested resource"), "{error}");
}
