//! One object of every kind: the columns of `get` and the output of `describe`.

mod support;

use std::sync::Arc;
use support::{Cluster, Kubectl, Place, kubectl_on};

/// A server with one object of every kind. Names of cluster-scoped objects are unique, so each test has its own server.
/// The StatefulSet controller would adopt and delete the revision, and the endpoints controller would replace the
/// address.
fn every_kind() -> Option<Kubectl> {
    every_kind_with("*,-statefulset-controller,-endpoints-controller")
}

fn every_kind_with(controllers: &str) -> Option<Kubectl> {
    let arguments = ["--nodes", "0", "--controllers", controllers];
    let kubectl = kubectl_on(&Arc::new(Cluster::start_with(Place::InMemory, &arguments)))?;
    kubectl.create(include_str!("manifests/every_kind.yaml"));
    kubectl.ok("wait --for=jsonpath={.status.phase}=Bound pvc/every --timeout=30s");
    Some(kubectl)
}

fn compact(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What `describe` must contain, ignoring white space.
const DESCRIBED: &[(&str, &[&str])] = &[
    ("namespace/every-space", &["Status: Active", "team=storage", "No resource quota."]),
    ("node/every-node", &["Taints: dedicated=db:NoSchedule", "Unschedulable: false", "Non-terminated Pods:"]),
    ("serviceaccount/every", &["Name: every", "Image pull secrets: <none>"]),
    ("configmap/every", &["color: ---- blue", "raw: 3 bytes"]),
    ("secret/every", &["Type: Opaque", "password: 7 bytes"]),
    (
        "pv/every-volume",
        &["StorageClass: every-class", "Reclaim Policy: Delete", "Type: CSI", "VolumeHandle: handle-1", "tier=gold"],
    ),
    (
        "pvc/every",
        &[
            "StorageClass: every-class",
            "Status: Bound",
            "Volume: every-volume",
            "VolumeMode: Filesystem",
            "Used By: every",
        ],
    ),
    (
        "pod/every",
        &[
            "Node: every-node",
            "ClaimName: every",
            "Image: nginx:1",
            "<set to the key 'color' of config map 'every'>",
            "<set to the key 'password' in secret 'every'>",
            "memory: 128Mi",
            "Liveness: http-get",
            "QoS Class: Burstable",
            "Tolerations:",
        ],
    ),
    ("service/every", &["Selector: app=every", "Type: ClusterIP", "Port: http 80/TCP"]),
    ("endpoints/every", &["Addresses: 10.1.2.3", "http 80 TCP"]),
    ("event/every.1", &["Reason: Started", "Message: Started container main"]),
    ("event.events.k8s.io/every.2", &["Reason: Pulled"]),
    ("resourcequota/every", &["Resource", "pods", "10", "requests.storage", "100Gi"]),
    ("limitrange/every", &["Container", "cpu", "50m", "500m", "PersistentVolumeClaim", "50Gi"]),
    (
        "statefulset/every",
        &[
            "Selector: app=every-set",
            "Replicas: 2 desired",
            "Update Strategy: RollingUpdate",
            "Image: nginx:1",
            "Volume Claims:",
            "Capacity: 1Gi",
        ],
    ),
    ("controllerrevision/every-1", &["Kind: ControllerRevision", "Revision: 1"]),
    (
        "storageclass/every-class",
        &["Provisioner: every.example.com", "AllowVolumeExpansion: True", "VolumeBindingMode: WaitForFirstConsumer"],
    ),
    ("csidriver/every.example.com", &["Kind: CSIDriver", "Attach Required: false"]),
    ("csinode/every-node", &["every.example.com:", "Node ID: node-1", "Allocatables: Count: 10"]),
    ("volumeattachment/every-attachment", &["Attacher: every.example.com", "Persistent Volume Name: every-volume"]),
    ("volumeattributesclass/every-attributes", &["every.example.com", "4000"]),
    ("csistoragecapacity/every", &["Kind: CSIStorageCapacity", "Capacity: 10Gi"]),
    ("lease/every", &["Holder Identity: me", "Lease Duration Seconds: 15"]),
    ("pdb/every", &["Min available: 1", "Selector: app=every", "Allowed disruptions:"]),
    ("role/every", &["pods", "[get list]"]),
    ("rolebinding/every", &["Kind: Role", "ServiceAccount every every-space"]),
    ("clusterrole/every-role", &["nodes", "[get]"]),
    ("clusterrolebinding/every-binding", &["Kind: ClusterRole", "User someone"]),
    ("crd/everies.example.com", &["Kind: CustomResourceDefinition", "Group: example.com", "Plural: everies"]),
];

#[test]
fn the_manifest_has_every_kind() {
    let Some(kubectl) = every_kind() else { return };
    let manifest = include_str!("manifests/every_kind.yaml");
    let table = kubectl.ok("api-resources --verbs=create,list --no-headers");
    for line in table.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [.., version, _, kind] = words[..] else { panic!("an odd row: {line}") };
        if version == "example.com/v1" {
            continue;
        }
        let wanted = format!("apiVersion: {version}\nkind: {kind}\n");
        assert!(manifest.contains(&wanted), "no object of {version} {kind} in the manifest");
    }
    let again = kubectl.fails_with("create -f -", manifest);
    assert_eq!(again.matches("AlreadyExists").count(), manifest.matches("\nkind: ").count(), "{again}");
}

#[test]
fn columns_are_upstreams() {
    let Some(kubectl) = every_kind() else { return };
    for (resource, columns) in [
        ("configmaps", "NAME DATA AGE"),
        ("secrets", "NAME TYPE DATA AGE"),
        ("serviceaccounts", "NAME SECRETS AGE"),
        ("endpoints", "NAME ENDPOINTS AGE"),
        ("services", "NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE"),
        ("pods", "NAME READY STATUS RESTARTS AGE"),
        ("persistentvolumeclaims", "NAME STATUS VOLUME CAPACITY ACCESS MODES STORAGECLASS VOLUMEATTRIBUTESCLASS AGE"),
        (
            "persistentvolumes",
            "NAME CAPACITY ACCESS MODES RECLAIM POLICY STATUS CLAIM STORAGECLASS VOLUMEATTRIBUTESCLASS REASON AGE",
        ),
        ("namespaces", "NAME STATUS AGE"),
        ("nodes", "NAME STATUS ROLES AGE VERSION"),
        ("statefulsets", "NAME READY AGE"),
        ("controllerrevisions", "NAME CONTROLLER REVISION AGE"),
        ("storageclasses", "NAME PROVISIONER RECLAIMPOLICY VOLUMEBINDINGMODE ALLOWVOLUMEEXPANSION AGE"),
        ("volumeattributesclasses", "NAME DRIVERNAME AGE"),
        ("csidrivers", "NAME ATTACHREQUIRED PODINFOONMOUNT STORAGECAPACITY TOKENREQUESTS REQUIRESREPUBLISH MODES AGE"),
        ("csinodes", "NAME DRIVERS AGE"),
        ("volumeattachments", "NAME ATTACHER PV NODE ATTACHED AGE"),
        ("leases", "NAME HOLDER AGE"),
        ("events", "LAST SEEN TYPE REASON OBJECT MESSAGE"),
        ("events.events.k8s.io", "LAST SEEN TYPE REASON OBJECT MESSAGE"),
        ("poddisruptionbudgets", "NAME MIN AVAILABLE MAX UNAVAILABLE ALLOWED DISRUPTIONS AGE"),
        ("roles", "NAME CREATED AT"),
        ("clusterroles", "NAME CREATED AT"),
        ("rolebindings", "NAME ROLE AGE"),
        ("clusterrolebindings", "NAME ROLE AGE"),
        ("limitranges", "NAME CREATED AT"),
        ("resourcequotas", "NAME REQUEST LIMIT AGE"),
        ("customresourcedefinitions", "NAME CREATED AT"),
        ("csistoragecapacities", "NAME STORAGECLASSNAME CAPACITY AGE"),
    ] {
        let table = kubectl.ok(&format!("get {resource}"));
        assert_eq!(compact(table.lines().next().unwrap_or("")), columns, "{resource}:\n{table}");
    }
}

#[test]
fn cells_have_the_expected_values() {
    let Some(kubectl) = every_kind() else { return };
    for (what, row) in [
        ("configmap/every", "every 2"),
        ("secret/every", "every Opaque 1"),
        ("service/every", "every ClusterIP 10."),
        ("pv/every-volume", "every-volume 1Gi RWO Delete"),
        ("pvc/every", "every Bound every-volume 1Gi RWO every-class"),
        ("pod/every", "every 0/1 "),
        ("sc/every-class", "every-class every.example.com Delete WaitForFirstConsumer true"),
        ("statefulset/every", "every 0/2"),
        ("controllerrevision/every-1", "every-1 <none> 1"),
        ("pdb/every", "every 1 N/A 0"),
        ("lease/every", "every me"),
        ("rolebinding/every", "every Role/every"),
        ("clusterrolebinding/every-binding", "every-binding ClusterRole/every-role"),
        ("csidriver/every.example.com", "every.example.com false true false <unset> false Persistent"),
        ("csinode/every-node", "every-node 1"),
        ("volumeattachment/every-attachment", "every-attachment every.example.com every-volume every-node false"),
        ("vac/every-attributes", "every-attributes every.example.com"),
        ("node/every-node", "every-node Unknown <none>"),
        ("namespace/every-space", "every-space Active"),
        ("endpoints/every", "every 10.1.2.3:80"),
    ] {
        let line = compact(&kubectl.ok(&format!("get {what} --no-headers")));
        assert!(line.starts_with(row), "{what}: {line:?} does not start with {row:?}");
    }
    for (what, parts) in [
        ("statefulset/every", ["CONTAINERS", "IMAGES", "nginx:1"]),
        ("service/every", ["SELECTOR", "app=every", "80/TCP"]),
        ("pvc/every", ["VOLUMEMODE", "Filesystem", "every-class"]),
        ("pod/every", ["NODE", "every-node", "READINESS GATES"]),
        ("pv/every-volume", ["VOLUMEMODE", "Filesystem", "every-class"]),
        ("node/every-node", ["INTERNAL-IP", "KERNEL-VERSION", "CONTAINER-RUNTIME"]),
        ("clusterrolebinding/every-binding", ["USERS", "GROUPS", "someone"]),
    ] {
        let wide = kubectl.ok(&format!("get {what} -o wide"));
        for part in parts {
            assert!(wide.contains(part), "{what} lacks {part}:\n{wide}");
        }
    }
}

#[test]
fn describe_works_for_every_kind() {
    let Some(kubectl) = every_kind() else { return };
    for (what, parts) in DESCRIBED {
        // These read VolumeAttributesClasses in v1beta1 only, which Kubernetes 1.37 does not serve either.
        if what.starts_with("volumeattributesclass/") && (29..34).contains(&kubectl.minor()) {
            continue;
        }
        let text = kubectl.ok(&format!("describe {what}"));
        let flat = compact(&text);
        for part in *parts {
            assert!(flat.contains(part), "describe {what} lacks {part:?}:\n{text}");
        }
    }
    let error = kubectl.fails("describe pod nobody");
    assert_eq!(error, "Error from server (NotFound): pods \"nobody\" not found");
    let by_prefix = kubectl.ok("describe statefulset eve");
    assert!(by_prefix.contains("every"), "describe matches by prefix: {by_prefix}");
}

/// Exit code 0 means "no difference", 1 "differences", anything else an error: tools that deploy by diff rely on it.
#[test]
fn diff_finds_no_difference_in_an_unchanged_object_of_any_kind() {
    // The node lifecycle controller taints the node, which then differs from the manifest.
    let Some(kubectl) = every_kind_with("persistentvolume-binder-controller") else { return };
    let manifest = include_str!("manifests/every_kind.yaml");
    kubectl.ok_with("apply -f -", manifest);
    let same = kubectl.run_with("diff -f -", manifest);
    assert_eq!((same.code(), same.out.as_str()), (0, ""), "{same}");
    kubectl.ok_with("apply --server-side --force-conflicts -f -", manifest);
    let same = kubectl.run_with("diff --server-side -f -", manifest);
    assert_eq!((same.code(), same.out.as_str()), (0, ""), "{same}");

    let documents: Vec<&str> = manifest.split("\n---\n").collect();
    for mode in ["", " --server-side --force-conflicts"] {
        // One more label for each object, and nothing else in the output.
        let labelled = documents.iter().map(|text| {
            let mut object = object::decode::yaml(text.as_bytes()).expect("the manifest is YAML").value;
            object["metadata"]["labels"]["marked"] = object::json!("yes");
            object.to_string()
        });
        let labelled: Vec<String> = labelled.collect();
        let other = kubectl.run_with(&format!("diff{mode} -f -"), &labelled.join("\n---\n"));
        assert_eq!(other.code(), 1, "{other}");
        let changed: Vec<&str> = other.out.lines().filter(is_change).collect();
        let marked = changed.iter().filter(|line| **line == "+    marked: \"yes\"").count();
        assert_eq!(marked, documents.len(), "{other}");
        let is_expected = |line: &&str| ["+    marked: \"yes\"", "+  labels:"].contains(line);
        assert!(changed.iter().all(is_expected), "{other}");
    }
    let scaled = manifest.replace("replicas: 2", "replicas: 3");
    let other = kubectl.run_with("diff -f -", &scaled);
    let changed: Vec<&str> = other.out.lines().filter(is_change).collect();
    assert_eq!(changed, ["-  generation: 1", "+  generation: 2", "-  replicas: 2", "+  replicas: 3"], "{other}");
}

/// A line of a unified diff that is only in one of the two files. Client-side apply also shows its annotation, which
/// contains the whole manifest.
fn is_change(line: &&str) -> bool {
    let is_header = line.starts_with("---") || line.starts_with("+++");
    let is_annotation = line[1..].trim_start().starts_with('{');
    !is_header && !is_annotation && (line.starts_with('-') || line.starts_with('+'))
}

#[test]
fn one_command_deletes_what_one_command_created() {
    let Some(kubectl) = every_kind() else { return };
    let manifest = include_str!("manifests/every_kind.yaml");
    let said = kubectl.ok_with("delete -f - --wait=false --grace-period=0 --force", manifest);
    assert_eq!(said.matches("deleted").count(), manifest.matches("\nkind: ").count(), "{said}");
    // First the pod is force deleted, then protection releases the claim and its volume, then the namespace is deleted.
    for what in ["pod/every", "configmap/every", "statefulset/every", "node/every-node", "namespace/every-space"] {
        kubectl.ok(&format!("wait --for=delete {what} --timeout=30s"));
    }
}
