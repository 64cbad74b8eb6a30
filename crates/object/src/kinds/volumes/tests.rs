use super::super::testing::*;
use super::*;
use crate::gates::Gates;
use crate::json;

fn claim(spec: Value) -> Value {
    let mut full = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    for (key, value) in spec.members(&[]) {
        full.put(&[key], value.clone());
    }
    json!({"metadata": {"name": "c", "namespace": "d"}, "spec": full})
}

fn volume(spec: Value) -> Value {
    let mut full = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}});
    for (key, value) in spec.members(&[]) {
        full.put(&[key], value.clone());
    }
    json!({"metadata": {"name": "v"}, "spec": full})
}

fn csi() -> Value {
    json!({"csi": {"driver": "x.io", "volumeHandle": "h"}})
}

#[test]
fn new_claims_get_defaults_and_no_status() {
    let mut object = claim(json!({}));
    object["status"] = json!({"phase": "Bound", "capacity": {"storage": "9Gi"}});
    let stored = stored("PersistentVolumeClaim", object);
    assert_eq!(stored["spec"]["volumeMode"], "Filesystem");
    assert_eq!(stored["status"], json!({"phase": "Pending"}));
    assert!(!stored.has(&["spec", "storageClassName"]));
}

#[test]
fn invalid_claims_are_refused_with_upstreams_messages() {
    let cases = [
        (json!({"accessModes": []}), "spec.accessModes: Required value: at least 1 access mode is required"),
        (
            json!({"accessModes": ["X"]}),
            "spec.accessModes: Unsupported value: \"X\": supported values: \"ReadOnlyMany\", \"ReadWriteMany\", \"ReadWriteOnce\", \"ReadWriteOncePod\"",
        ),
        (
            json!({"accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]}),
            "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
        ),
        (json!({"resources": {}}), "spec.resources[storage]: Required value"),
        (
            json!({"resources": {"requests": {"storage": "0"}}}),
            "spec.resources[storage]: Invalid value: \"0\": must be greater than zero",
        ),
        (
            json!({"volumeMode": "x"}),
            "spec.volumeMode: Unsupported value: \"x\": supported values: \"Block\", \"Filesystem\"",
        ),
        (
            json!({"dataSource": {"kind": "PersistentVolumeClaim"}}),
            "[spec.dataSource.name: Required value, spec.dataSourceRef.name: Required value]",
        ),
        (
            json!({"dataSourceRef": {"kind": "X", "name": "n"}}),
            "[spec.dataSource: Invalid value: \"X\": must be 'PersistentVolumeClaim' when referencing the default apiGroup, \
             spec.dataSourceRef: Invalid value: \"X\": must be 'PersistentVolumeClaim' when referencing the default apiGroup]",
        ),
        (
            json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "a"}, "dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "b"}}),
            "spec: Invalid value: \"spec.dataSource\": must match dataSourceRef",
        ),
        (
            json!({"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
            "spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
        ),
        (json!({"storageClassName": ""}), "[]"),
        (json!({"volumeAttributesClassName": ""}), "[]"),
    ];
    for (spec, want) in cases {
        assert_eq!(refused("PersistentVolumeClaim", claim(spec)), want);
    }
    for field in ["storageClassName", "volumeAttributesClassName"] {
        let got = refused("PersistentVolumeClaim", claim(json!({field: "A_B"})));
        assert!(
            got.starts_with(&format!("spec.{field}: Invalid value: \"A_B\": a lowercase RFC 1123 subdomain")),
            "{got}"
        );
    }
}

#[test]
fn data_source_and_data_source_ref_are_made_equal() {
    let claim_source = json!({"kind": "PersistentVolumeClaim", "name": "a"});
    let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "a"});
    let other = json!({"apiGroup": "x.io", "kind": "Populator", "name": "a"});
    let elsewhere = json!({"apiGroup": "x.io", "kind": "Populator", "name": "a", "namespace": "n"});
    let cases = [
        (json!({"dataSource": claim_source}), json!({"dataSource": claim_source, "dataSourceRef": claim_source})),
        (json!({"dataSource": snapshot}), json!({"dataSource": snapshot, "dataSourceRef": snapshot})),
        (json!({"dataSource": other}), json!({})),
        (json!({"dataSourceRef": other}), json!({"dataSource": other, "dataSourceRef": other})),
        (json!({"dataSourceRef": elsewhere}), json!({})),
    ];
    for (spec, want) in cases {
        let mut got = spec.clone();
        with_ctx(&Gates::default(), |ctx| normalize_data_sources(&mut got, None, ctx));
        assert_eq!(got, want, "{spec}");
    }
    let mut got = json!({"dataSourceRef": elsewhere});
    let gates = Gates::default().with("CrossNamespaceVolumeDataSource", true);
    with_ctx(&gates, |ctx| normalize_data_sources(&mut got, None, ctx));
    assert_eq!(got, json!({"dataSourceRef": elsewhere}), "kept, and not copied to the older field");
    let mut both = got;
    both["dataSource"] = claim_source;
    let mut errors = Errors::default();
    validate_claim_spec(&claim(both)["spec"], &Path::new("spec"), &mut errors);
    assert_eq!(
        errors.message(),
        "spec: Invalid value: \"spec.dataSource\": may not be specified when dataSourceRef.namespace is specified"
    );
}

const IMMUTABLE: &str = "spec: Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";

#[test]
fn only_allowed_claim_updates_are_accepted() {
    let pending = stored("PersistentVolumeClaim", claim(json!({})));
    let mut bound = pending.clone();
    bound["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
    bound["spec"]["volumeName"] = json!("v");
    bound["spec"]["storageClassName"] = json!("fast");
    let grow = |new: &mut Value| new["spec"]["resources"]["requests"]["storage"] = json!("2Gi");
    let change = |old: &Value, change: fn(&mut Value)| change_refused("PersistentVolumeClaim", old, change);
    assert_eq!(change(&pending, |_| {}), "[]");
    assert_eq!(change(&pending, |new| new["spec"]["volumeName"] = json!("v")), "[]");
    assert_eq!(change(&pending, |new| new["spec"]["storageClassName"] = json!("")), "[]");
    assert!(change(&pending, grow).starts_with(IMMUTABLE));
    assert!(change(&pending, |new| new["spec"]["accessModes"] = json!(["ReadWriteMany"])).starts_with(IMMUTABLE));
    assert_eq!(change(&bound, grow), "[]");
    assert!(change(&bound, |new| new["spec"]["volumeName"] = json!("w")).starts_with(IMMUTABLE));
    assert!(change(&bound, |new| new["spec"]["storageClassName"] = json!("slow")).starts_with(IMMUTABLE));
    assert_eq!(
        change(&bound, |new| new["spec"]["volumeAttributesClassName"] = json!("gold")),
        "[]",
        "a class may be asked for"
    );
    let shrink = |new: &mut Value| new["spec"]["resources"]["requests"]["storage"] = json!("1Gi");
    let mut grown = bound.clone();
    grow(&mut grown);
    let refused = "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity";
    assert_eq!(change(&grown, shrink), refused, "equal to the capacity is refused too");
    grown["status"]["capacity"]["storage"] = json!("512Mi");
    assert_eq!(change(&grown, shrink), "[]", "an unfinished expansion can be reverted");
    let got = change(&bound, |new| new["spec"]["volumeMode"] = json!("Block"));
    assert!(got.contains("volumeMode: Invalid value: \"Block\": field is immutable"), "{got}");
    let mut equal = bound.clone();
    equal["spec"]["resources"]["requests"]["storage"] = json!("1024Mi");
    assert_eq!(update("PersistentVolumeClaim", &bound, equal).1.message(), "[]");
}

#[test]
fn an_applied_attributes_class_cannot_be_removed() {
    let mut bound = stored("PersistentVolumeClaim", claim(json!({"volumeAttributesClassName": "gold"})));
    bound["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
    let change = |old: &Value, change: fn(&mut Value)| change_refused("PersistentVolumeClaim", old, change);
    let clear = |new: &mut Value| drop(new.cut(&["spec", "volumeAttributesClassName"]));
    let empty = |new: &mut Value| new["spec"]["volumeAttributesClassName"] = json!("");
    assert_eq!(change(&bound, clear), "[]", "nothing was applied yet");
    bound["status"]["currentVolumeAttributesClassName"] = json!("gold");
    let path = "spec.volumeAttributesClassName: Forbidden:";
    assert_eq!(change(&bound, clear), format!("{path} update from non-nil value to nil is forbidden"));
    assert_eq!(change(&bound, empty), format!("{path} update from non-nil value to an empty string is forbidden"));
    assert_eq!(change(&bound, |new| new["spec"]["volumeAttributesClassName"] = json!("silver")), "[]");
}

#[test]
fn the_beta_class_annotation_can_only_move_to_the_spec() {
    let mut object = claim(json!({}));
    object["metadata"]["annotations"] = json!({BETA_CLASS: "fast"});
    assert_eq!(warnings("PersistentVolumeClaim", &object).len(), 1);
    let old = stored("PersistentVolumeClaim", object);
    let change = |change: fn(&mut Value)| change_refused("PersistentVolumeClaim", &old, change);
    assert_eq!(
        change(|new| {
            new["spec"]["storageClassName"] = json!("fast");
            new["metadata"].cut(&["annotations"]);
        }),
        "[]"
    );
    assert_eq!(
        change(|new| new["metadata"]["annotations"][BETA_CLASS] = json!("slow")),
        format!("metadata.annotations.{BETA_CLASS}: Invalid value: \"slow\": field is immutable")
    );
    assert!(change(|new| new["spec"]["storageClassName"] = json!("slow")).starts_with(IMMUTABLE));
}

#[test]
fn claim_status_is_checked() {
    let old = stored("PersistentVolumeClaim", claim(json!({})));
    let refused = |status: Value| {
        update_status("PersistentVolumeClaim", &old, json!({"metadata": {}, "status": status})).1.message()
    };
    assert_eq!(refused(json!({"phase": "Bound", "allocatedResourceStatuses": {"storage": "NodeResizePending"}})), "[]");
    let p = "status.allocatedResource";
    assert_eq!(
        refused(json!({"allocatedResourceStatuses": {"cpu": "NodeResizePending"}})),
        format!("{p}Status: Unsupported value: \"cpu\": supported values: \"storage\"")
    );
    assert!(
        refused(json!({"allocatedResourceStatuses": {"storage": "X"}}))
            .starts_with(&format!("{p}Status[storage]: Unsupported value: \"X\""))
    );
    assert_eq!(
        refused(json!({"allocatedResources": {"storage": "-1"}})),
        format!("{p}s[storage]: Invalid value: \"-1\": must be a valid resource quantity")
    );
    assert_eq!(
        refused(json!({"capacity": {"storage": "-1"}})),
        "status.capacity[storage]: Invalid value: \"-1\": must be a valid resource quantity"
    );
}

#[test]
fn invalid_volumes_are_refused_with_upstreams_messages() {
    let cases = [
        (json!({"accessModes": []}), "spec.accessModes: Required value"),
        (json!({"capacity": {}}), "spec.capacity: Required value"),
        (
            json!({"capacity": {"cpu": "1"}}),
            "spec.capacity: Unsupported value: {\"cpu\":\"1\"}: supported values: \"storage\"",
        ),
        (
            json!({"capacity": {"storage": "-1"}}),
            "spec.capacity[storage]: Invalid value: \"-1\": must be greater than zero",
        ),
        (
            json!({"persistentVolumeReclaimPolicy": "X"}),
            "spec.persistentVolumeReclaimPolicy: Unsupported value: \"X\": supported values: \"Delete\", \"Recycle\", \"Retain\"",
        ),
        (
            json!({"nodeAffinity": {}}),
            "spec.nodeAffinity.required: Required value: must specify required node constraints",
        ),
        (
            json!({"nodeAffinity": {"required": {"nodeSelectorTerms": []}}}),
            "spec.nodeAffinity.required.nodeSelectorTerms: Required value: must have at least one node selector term",
        ),
        (
            json!({"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Gt"}]}]}}}),
            "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].values: Required value: must be specified single value when `operator` is 'Lt' or 'Gt'",
        ),
        (
            json!({"volumeAttributesClassName": ""}),
            "spec.volumeAttributesClassName: Required value: an empty string is disallowed",
        ),
    ];
    for (spec, want) in cases {
        let mut object = volume(spec);
        object["spec"]["csi"] = csi()["csi"].clone();
        assert_eq!(refused("PersistentVolume", object), want);
    }
}

#[test]
fn volumes_need_exactly_one_complete_source() {
    let cases = [
        (json!({}), "spec: Required value: must specify a volume type"),
        (
            json!({"nfs": {"server": "s", "path": "/"}, "hostPath": {"path": "/a"}}),
            "spec.nfs: Forbidden: may not specify more than 1 volume type",
        ),
        (json!({"local": {"path": "/x"}}), "spec.nodeAffinity: Required value: Local volume requires node affinity"),
        (
            json!({"hostPath": {"path": "/a/../b"}}),
            "spec.hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
        ),
        (
            json!({"hostPath": {"path": "/."}, "persistentVolumeReclaimPolicy": "Recycle"}),
            "spec.persistentVolumeReclaimPolicy: Forbidden: may not be 'recycle' for a hostPath mount of '/'",
        ),
        (json!({"nfs": {"server": "s", "path": "x"}}), "spec.nfs.path: Invalid value: \"x\": must be an absolute path"),
        (json!({"csi": {"volumeHandle": "h"}}), "spec.csi.driver: Required value"),
        (json!({"csi": {"driver": "Ebs.CSI.io"}}), "spec.csi.volumeHandle: Required value"),
        (
            json!({"csi": {"driver": "x".repeat(64), "volumeHandle": "h"}}),
            "spec.csi.driver: Too long: may not be more than 63 bytes",
        ),
        (
            json!({"csi": {"driver": "x", "volumeHandle": "h", "nodePublishSecretRef": {"name": "a"}, "nodeStageSecretRef": {}}}),
            "spec.csi.nodePublishSecretRef.namespace: Required value",
        ),
        (
            json!({"hostPath": {"path": "/a"}, "volumeAttributesClassName": "gold"}),
            "spec.csi: Required value: has to be specified when using volumeAttributesClassName",
        ),
        (
            json!({"iscsi": {"targetPortal": "p", "iqn": "x", "lun": 300}}),
            "[spec.iscsi.iqn: Invalid value: \"x\": must be valid format starting with iqn, eui, or naa, \
             spec.iscsi.lun: Invalid value: 300: must be between 0 and 255, inclusive]",
        ),
        (
            json!({"fc": {"targetWWNs": ["a"]}}),
            "spec.fc.lun: Required value: lun is required if targetWWNs is specified",
        ),
        (json!({"flocker": {}}), "spec.flocker: Required value: one of datasetName and datasetUUID is required"),
        (json!({"cephfs": {}}), "spec.cephfs.monitors: Required value"),
    ];
    for (spec, want) in cases {
        assert_eq!(refused("PersistentVolume", volume(spec.clone())), want, "{spec}");
    }
    let mut object = volume(csi());
    object["metadata"]["annotations"] = json!({"volume.beta.kubernetes.io/mount-options": "ro"});
    assert_eq!(
        refused("PersistentVolume", object),
        "metadata.annotations.volume.beta.kubernetes.io/mount-options: Forbidden: may not specify mount options for this volume type"
    );
}

#[test]
fn only_allowed_volume_updates_are_accepted() {
    let mut old = stored("PersistentVolume", volume(csi()));
    assert_eq!(old["status"], json!({"phase": "Pending", "lastPhaseTransitionTime": "2026-11-15T12:00:00Z"}));
    assert_eq!(old["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    old["spec"]["volumeAttributesClassName"] = json!("gold");
    let change = |old: &Value, change: fn(&mut Value)| change_refused("PersistentVolume", old, change);
    let secret =
        |new: &mut Value| new["spec"]["csi"]["controllerExpandSecretRef"] = json!({"name": "a", "namespace": "b"});
    assert_eq!(change(&old, secret), "[]", "may be added once");
    assert_eq!(change(&old, |new| new["spec"]["claimRef"] = json!({"name": "c", "namespace": "d"})), "[]");
    assert_eq!(change(&old, |new| new["spec"]["capacity"]["storage"] = json!("2Gi")), "[]");
    assert!(change(&old, |new| new["spec"]["csi"]["volumeHandle"] = json!("i")).starts_with(
        "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation\n- csi: "
    ));
    let mut with_secret = old.clone();
    secret(&mut with_secret);
    assert!(
        change(&with_secret, |new| drop(new.cut(&["spec", "csi", "controllerExpandSecretRef"])))
            .contains("immutable after creation")
    );
    assert_eq!(
        change(&old, |new| new["spec"]["volumeMode"] = json!("Block")),
        "spec.volumeMode: Invalid value: \"Block\": field is immutable"
    );
    assert_eq!(
        change(&old, |new| drop(new.cut(&["spec", "volumeAttributesClassName"]))),
        "spec.volumeAttributesClassName: Forbidden: update from non-nil value to nil is forbidden"
    );
}

#[test]
fn node_affinity_can_be_set_once_and_its_beta_labels_renamed() {
    fn affinity(key: &str) -> Value {
        json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "In", "values": ["a"]}]}]}})
    }
    let old = stored("PersistentVolume", volume(csi()));
    let set = |new: &mut Value, key: &str| new["spec"]["nodeAffinity"] = affinity(key);
    assert_eq!(change_refused("PersistentVolume", &old, |new| set(new, "x")), "[]");
    let mut beta = old;
    set(&mut beta, "failure-domain.beta.kubernetes.io/zone");
    assert_eq!(change_refused("PersistentVolume", &beta, |new| set(new, "topology.kubernetes.io/zone")), "[]");
    let got = change_refused("PersistentVolume", &beta, |new| set(new, "x"));
    assert!(got.ends_with("field is immutable, except for updating from beta label to GA"), "{got}");
    let got = change_refused("PersistentVolume", &beta, |new| drop(new.cut(&["spec", "nodeAffinity"])));
    assert!(got.starts_with("spec.nodeAffinity: Invalid value: null: field is immutable"), "{got}");
}

#[test]
fn phase_transitions_get_a_time() {
    let mut old = stored("PersistentVolume", volume(csi()));
    old["status"]["lastPhaseTransitionTime"] = json!("2026-01-01T00:00:00Z");
    let time = |status: Value| {
        let (new, _) = update_status("PersistentVolume", &old, json!({"metadata": {}, "status": status}));
        new.text(&["status", "lastPhaseTransitionTime"]).to_owned()
    };
    assert_eq!(time(json!({"phase": "Bound"})), "2026-11-15T12:00:00Z");
    assert_eq!(
        time(json!({"phase": "Bound", "lastPhaseTransitionTime": "2026-01-01T00:00:00Z"})),
        "2026-11-15T12:00:00Z"
    );
    assert_eq!(
        time(json!({"phase": "Bound", "lastPhaseTransitionTime": "2026-02-01T00:00:00Z"})),
        "2026-02-01T00:00:00Z"
    );
    assert_eq!(time(json!({"phase": "Pending"})), "2026-01-01T00:00:00Z");
    assert_eq!(
        time(json!({"phase": "Pending", "lastPhaseTransitionTime": "2026-02-01T00:00:00Z"})),
        "2026-02-01T00:00:00Z"
    );
}

#[test]
fn columns_are_upstreams() {
    let mut object = stored("PersistentVolumeClaim", claim(json!({"storageClassName": "fast"})));
    assert_eq!(
        headers("PersistentVolumeClaim"),
        "Name | Status | Volume | Capacity | Access Modes | StorageClass | VolumeAttributesClass | Age | VolumeMode*"
    );
    assert_eq!(shown("PersistentVolumeClaim", &object), "c | Pending |  |  |  | fast | <unset> | 0s | Filesystem");
    object["spec"]["volumeName"] = json!("v");
    object["status"] =
        json!({"phase": "Bound", "capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteMany", "ReadWriteOnce"]});
    object["metadata"]["annotations"] = json!({BETA_CLASS: "slow"});
    assert_eq!(
        shown("PersistentVolumeClaim", &object),
        "c | Bound | v | 2Gi | RWO,RWX | slow | <unset> | 0s | Filesystem"
    );

    let mut object = stored("PersistentVolume", volume(csi()));
    object["spec"]["claimRef"] = json!({"namespace": "d", "name": "c"});
    object["metadata"]["deletionTimestamp"] = json!("2026-11-15T12:00:00Z");
    assert_eq!(
        headers("PersistentVolume"),
        "Name | Capacity | Access Modes | Reclaim Policy | Status | Claim | StorageClass | VolumeAttributesClass | Reason | Age | VolumeMode*"
    );
    assert_eq!(
        shown("PersistentVolume", &object),
        "v | 1Gi | RWO | Retain | Terminating | d/c |  | <unset> |  | 0s | Filesystem"
    );
}

#[test]
fn deprecated_fields_give_a_warning() {
    let object = claim(json!({"resources": {"requests": {"storage": "1500m"}}}));
    assert_eq!(
        warnings("PersistentVolumeClaim", &object),
        ["spec.resources.requests[storage]: fractional byte value \"1500m\" is invalid, must be an integer"]
    );
    let old_label =
        json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "beta.kubernetes.io/os"}]}]}});
    assert_eq!(
        warnings("PersistentVolume", &volume(json!({"nodeAffinity": old_label}))),
        [
            "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].key: beta.kubernetes.io/os is deprecated since v1.14; use \"kubernetes.io/os\" instead"
        ]
    );
    let object = volume(json!({"rbd": {}, "persistentVolumeReclaimPolicy": "Recycle"}));
    assert_eq!(
        warnings("PersistentVolume", &object),
        [
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
            "spec.rbd: deprecated in v1.28, non-functional in v1.31+"
        ]
    );
}
