use super::super::testing::*;
use super::*;
use crate::json;

fn with(base: Value, change: Value) -> Value {
    let mut object = base;
    for (key, value) in change.members(&[]) {
        object.put(&[key], value.clone());
    }
    object
}

fn class(change: Value) -> Value {
    with(json!({"metadata": {"name": "fast"}, "provisioner": "x.io/p"}), change)
}

#[test]
fn storage_classes_are_defaulted_and_validated() {
    const SC: &str = "storage.k8s.io/StorageClass";
    let old = stored(SC, class(json!({"parameters": {"a": "b"}})));
    assert_eq!((old["reclaimPolicy"].as_str(), old["volumeBindingMode"].as_str()), (Some("Delete"), Some("Immediate")));
    assert!(!old.has(&["allowVolumeExpansion"]));
    assert_eq!(shown(SC, &old), "fast | x.io/p | Delete | Immediate | false | 0s");
    let cases = [
        (json!({"provisioner": ""}), "provisioner: Required value"),
        (
            json!({"reclaimPolicy": "Recycle"}),
            "reclaimPolicy: Unsupported value: \"Recycle\": supported values: \"Delete\", \"Retain\"",
        ),
        (
            json!({"volumeBindingMode": "x"}),
            "volumeBindingMode: Unsupported value: \"x\": supported values: \"Immediate\", \"WaitForFirstConsumer\"",
        ),
        (json!({"parameters": {"": "x"}}), "parameters: Invalid value: \"\": field can not be empty."),
        (json!({"parameters": {"a": "x".repeat(262_144)}}), "parameters: Too long: may not be more than 262144 bytes"),
        (
            json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "a", "values": []}]}]}),
            "allowedTopologies[0].matchLabelExpressions[0].values: Required value",
        ),
        (
            json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "a", "values": ["x", "x"]}]}]}),
            "allowedTopologies[0].matchLabelExpressions[0].values[1]: Duplicate value: \"x\"",
        ),
        (
            json!({"allowedTopologies": [{"matchLabelExpressions": [{"key": "a", "values": ["x"]}]}, {"matchLabelExpressions": [{"key": "a", "values": ["x"]}]}]}),
            "allowedTopologies[1].matchLabelExpressions: Duplicate value: \"\"",
        ),
    ];
    for (change, want) in cases {
        assert_eq!(refused(SC, class(change)), want);
    }
    assert!(
        refused(SC, class(json!({"provisioner": "-x"}))).starts_with("provisioner: Invalid value: \"-x\": name part")
    );
    let zone = json!([{"matchLabelExpressions": [{"key": "failure-domain.beta.kubernetes.io/zone", "values": ["z"]}]}]);
    assert_eq!(
        warnings(SC, &class(json!({"allowedTopologies": zone}))),
        [
            "allowedTopologies[0].matchLabelExpressions[0].key: failure-domain.beta.kubernetes.io/zone is deprecated since v1.17; use \"topology.kubernetes.io/zone\" instead"
        ]
    );
    let change = |change: fn(&mut Value)| change_refused(SC, &old, change);
    assert_eq!(change(|new| new["allowVolumeExpansion"] = json!(true)), "[]");
    assert_eq!(
        change(|new| new["parameters"]["a"] = json!("c")),
        "parameters: Forbidden: updates to parameters are forbidden."
    );
    assert_eq!(
        change(|new| new["provisioner"] = json!("y")),
        "provisioner: Forbidden: updates to provisioner are forbidden."
    );
    assert_eq!(
        change(|new| new["reclaimPolicy"] = json!("Retain")),
        "reclaimPolicy: Forbidden: updates to reclaimPolicy are forbidden."
    );
    assert_eq!(
        change(|new| new["volumeBindingMode"] = json!("WaitForFirstConsumer")),
        "volumeBindingMode: Invalid value: \"WaitForFirstConsumer\": field is immutable"
    );
}

#[test]
fn only_the_effective_default_class_is_marked_in_lists() {
    let class = |name: &str, created: &str, default: bool| {
        json!({"metadata": {"name": name, "creationTimestamp": created,
            "annotations": {"storageclass.kubernetes.io/is-default-class": default.to_string()}}})
    };
    let classes = [
        class("old", "2026-01-01T00:00:00Z", true),
        class("b", "2026-02-01T00:00:00Z", true),
        class("a", "2026-02-01T00:00:00Z", true),
        class("new", "2026-03-01T00:00:00Z", false),
    ];
    let refs: Vec<&Value> = classes.iter().collect();
    let rows = kind("storage.k8s.io/StorageClass").rules.list_cells(&refs, now());
    let names: Vec<&str> = rows.iter().filter_map(|row| row[0].as_str()).collect();
    assert_eq!(names, ["old", "b", "a (default)", "new"]);
    assert_eq!(effective_default_class(&classes[3..]), None);
}

#[test]
fn volume_attributes_classes_are_validated() {
    const VAC: &str = "storage.k8s.io/VolumeAttributesClass";
    let object =
        |change| with(json!({"metadata": {"name": "gold"}, "driverName": "x.io", "parameters": {"iops": "1"}}), change);
    let old = stored(VAC, object(json!({})));
    assert_eq!(shown(VAC, &old), "gold | x.io | 0s");
    assert_eq!(refused(VAC, object(json!({"driverName": ""}))), "driverName: Required value");
    assert_eq!(
        refused(VAC, object(json!({"parameters": {}}))),
        "parameters: Required value: must contain at least one key/value pair"
    );
    assert_eq!(
        change_refused(VAC, &old, |new| new["driverName"] = json!("y")),
        "driverName: Forbidden: updates to driverName are forbidden."
    );
    assert_eq!(
        change_refused(VAC, &old, |new| new["parameters"] = json!({})),
        "parameters: Forbidden: updates to parameters are forbidden."
    );
}

#[test]
fn csi_drivers_are_defaulted_and_validated() {
    const DRIVER: &str = "storage.k8s.io/CSIDriver";
    let object = |spec: Value| json!({"metadata": {"name": "x.io"}, "spec": spec});
    let old = stored(DRIVER, object(json!({"tokenRequests": [{"audience": "a"}, {"audience": "b"}]})));
    assert_eq!(
        old["spec"],
        json!({"attachRequired": true, "podInfoOnMount": false, "storageCapacity": false, "requiresRepublish": false,
            "seLinuxMount": false, "fsGroupPolicy": "ReadWriteOnceWithFSType", "volumeLifecycleModes": ["Persistent"],
            "tokenRequests": [{"audience": "a"}, {"audience": "b"}]})
    );
    assert_eq!(shown(DRIVER, &old), "x.io | true | false | false | a,b | false | Persistent | 0s");
    let cases = [
        (
            json!({"fsGroupPolicy": "x"}),
            "spec.fsGroupPolicy: Unsupported value: \"x\": supported values: \"File\", \"None\", \"ReadWriteOnceWithFSType\"",
        ),
        (
            json!({"tokenRequests": [{"audience": "a"}, {"audience": "a"}]}),
            "spec.tokenRequests[1].audience: Duplicate value: \"a\"",
        ),
        (
            json!({"tokenRequests": [{"audience": "a", "expirationSeconds": 1}]}),
            "spec.tokenRequests[0].expirationSeconds: Invalid value: 1: may not specify a duration less than 10 minutes",
        ),
        (
            json!({"volumeLifecycleModes": ["x"]}),
            "spec.volumeLifecycleModes[0]: Unsupported value: \"x\": supported values: \"Ephemeral\", \"Persistent\"",
        ),
        (
            json!({"nodeAllocatableUpdatePeriodSeconds": 1}),
            "spec.nodeAllocatableUpdatePeriodSeconds: Invalid value: 1: must be greater than or equal to 10 seconds",
        ),
    ];
    for (spec, want) in cases {
        assert_eq!(refused(DRIVER, object(spec)), want);
    }
    assert_eq!(
        change_refused(DRIVER, &old, |new| new["spec"]["attachRequired"] = json!(false)),
        "spec.attachedRequired: Invalid value: false: field is immutable"
    );
    assert_eq!(change_refused(DRIVER, &old, |new| new["spec"]["fsGroupPolicy"] = json!("File")), "[]");
}

#[test]
fn csi_nodes_are_validated() {
    const NODE: &str = "storage.k8s.io/CSINode";
    let object = |drivers: Value| json!({"metadata": {"name": "n"}, "spec": {"drivers": drivers}});
    let old = stored(NODE, object(json!([{"name": "x.io", "nodeID": "1", "topologyKeys": ["a/b"]}])));
    assert_eq!(shown(NODE, &old), "n | 1 | 0s");
    let cases = [
        (json!([{"nodeID": "1"}]), "spec.drivers[0].name: Required value"),
        (json!([{"name": "x"}]), "spec.drivers[0].nodeID: Required value"),
        (
            json!([{"name": "x", "nodeID": "1"}, {"name": "x", "nodeID": "1"}]),
            "spec.drivers[1].name: Duplicate value: \"x\"",
        ),
        (
            json!([{"name": "x", "nodeID": "1", "allocatable": {"count": -1}}]),
            "spec.drivers[0].allocatable.count: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            json!([{"name": "x", "nodeID": "1", "topologyKeys": ["a", "a"]}]),
            "spec.drivers[0].topologyKeys: Duplicate value: \"a\"",
        ),
    ];
    for (drivers, want) in cases {
        assert_eq!(refused(NODE, object(drivers)), want);
    }
    assert!(
        change_refused(NODE, &old, |new| new["spec"]["drivers"][0]["nodeID"] = json!("2"))
            .starts_with("CSINodeDriver: Invalid value: {")
    );
    assert_eq!(change_refused(NODE, &old, |new| new["spec"]["drivers"][0]["allocatable"] = json!({"count": 3})), "[]");
    assert_eq!(change_refused(NODE, &old, |new| new["spec"]["drivers"] = json!([])), "[]");
}

#[test]
fn csi_storage_capacities_are_validated() {
    const CAPACITY: &str = "storage.k8s.io/CSIStorageCapacity";
    let object =
        |change| with(json!({"metadata": {"name": "a", "namespace": "d"}, "storageClassName": "fast"}), change);
    let old = stored(CAPACITY, object(json!({"capacity": "1Gi"})));
    assert_eq!(shown(CAPACITY, &old), "a | fast | 1Gi | 0s");
    assert_eq!(
        refused(CAPACITY, object(json!({"capacity": "-1"}))),
        "capacity: Invalid value: \"-1\": must be greater than or equal to 0"
    );
    assert_eq!(
        change_refused(CAPACITY, &old, |new| new["storageClassName"] = json!("slow")),
        "storageClassName: Invalid value: \"slow\": field is immutable"
    );
    assert_eq!(change_refused(CAPACITY, &old, |new| new["capacity"] = json!("2Gi")), "[]");
}

#[test]
fn volume_attachments_are_validated() {
    const ATTACHMENT: &str = "storage.k8s.io/VolumeAttachment";
    let object = |change| {
        let spec = with(json!({"attacher": "x.io", "nodeName": "n", "source": {"persistentVolumeName": "v"}}), change);
        json!({"metadata": {"name": "a"}, "spec": spec, "status": {"attached": true}})
    };
    let old = stored(ATTACHMENT, object(json!({})));
    assert_eq!(shown(ATTACHMENT, &old), "a | x.io | v | n | false | 0s");
    let one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    assert_eq!(refused(ATTACHMENT, object(json!({"source": {}}))), format!("spec.source: Required value: {one}"));
    assert_eq!(
        refused(ATTACHMENT, object(json!({"source": {"inlineVolumeSpec": {}, "persistentVolumeName": "v"}}))),
        format!("spec.source: Forbidden: {one}")
    );
    assert_eq!(refused(ATTACHMENT, object(json!({"attacher": ""}))), "spec.attacher: Required value");
    assert!(
        refused(ATTACHMENT, object(json!({"nodeName": ""})))
            .starts_with("spec.nodeName: Invalid value: \"\": a lowercase RFC 1123")
    );
    let inline = json!({"inlineVolumeSpec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1"}}});
    assert_eq!(
        refused(ATTACHMENT, object(json!({"source": inline}))),
        "spec.source.inlineVolumeSpec: Required value: must specify a volume type"
    );
    let got = change_refused(ATTACHMENT, &old, |new| new["spec"]["nodeName"] = json!("m"));
    assert!(got.starts_with("spec: Invalid value: {") && got.ends_with("field is immutable"), "{got}");
    let status = json!({"attached": true, "attachError": {"message": "x".repeat(2000)}});
    let (new, errors) = update_status(ATTACHMENT, &old, json!({"metadata": {}, "status": status}));
    assert_eq!(new["status"]["attached"], true);
    assert_eq!(errors.message(), "status.attachError.message: Too long: may not be more than 1024 bytes");
}
