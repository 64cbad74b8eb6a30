use super::*;
use crate::csi::topology::Segment;
use crate::csi::{Abilities, AccessMode, Options};

fn driver() -> Driver {
    let can =
        Abilities { controller_service: true, create_delete: true, clone: true, modify: true, ..Abilities::default() };
    Driver { name: "d.example.com".to_owned(), can, options: Options::default() }
}

fn claim(change: Value) -> Value {
    let mut claim = json!({
        "metadata": {
            "namespace": "n", "name": "c", "uid": "u", "resourceVersion": "7",
            "annotations": {STORAGE_PROVISIONERS[0]: "d.example.com"},
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "s",
            "volumeMode": "Filesystem",
        },
        "status": {"phase": "Pending"},
    });
    merge(&mut claim, change);
    claim
}

fn class(change: Value) -> Value {
    let mut class = json!({
        "metadata": {"name": "s"}, "provisioner": "d.example.com", "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    });
    merge(&mut class, change);
    class
}

fn merge(object: &mut Value, change: Value) {
    match change {
        Value::Object(members) => members.into_iter().for_each(|(key, value)| merge(object.entry(&[&key]), value)),
        leaf => *object = leaf,
    }
}

fn planned(claim: &Value, class: Option<&Value>, driver: &Driver) -> Step {
    let seen =
        Seen { claim, class, attributes_class: None, source: None, source_volume: None, cluster: Cluster::default() };
    plan(&seen, driver)
}

fn intent(claim: Value, class: Value) -> Intent {
    match planned(&claim, Some(&class), &driver()) {
        Step::Create(intent) => *intent,
        step => panic!("{step:?}"),
    }
}

/// D1
#[test]
fn the_request_and_the_planned_volume() {
    let made = intent(claim(json!({})), class(json!({"parameters": {"speed": "high"}})));
    let request = &made.request;
    assert_eq!((request.name.as_str(), request.required_bytes), ("pvc-u", 1 << 30));
    let mount = AccessType::Mount { fs_type: String::new(), flags: Vec::new() };
    assert_eq!(request.capabilities, [Capability { mode: AccessMode::SingleNodeWriter, access: mount }]);
    assert_eq!(request.parameters, BTreeMap::from([("speed".to_owned(), "high".to_owned())]));
    assert_eq!((&request.source, &request.topology, &request.secret), (&None, &None, &None));
    assert_eq!(
        made.volume,
        json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {
                "name": "pvc-u",
                "annotations": {
                    PROVISIONED_BY: "d.example.com", secret::DELETION_NAME: "", secret::DELETION_NAMESPACE: "",
                },
                "finalizers": [FINALIZER],
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Delete", "volumeMode": "Filesystem",
                "storageClassName": "s", "csi": {"driver": "d.example.com"},
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "n", "name": "c", "uid": "u",
                    "resourceVersion": "7",
                },
            },
        })
    );
}

/// D2: volumes to be deleted have a finalizer.
#[test]
fn a_retained_volume_has_no_finalizer() {
    let made = |policy: &str| intent(claim(json!({})), class(json!({"reclaimPolicy": policy})));
    assert!(!made("Retain").volume.has(&["metadata", "finalizers"]));
    assert_eq!(made("Delete").volume["metadata"]["finalizers"], json!([FINALIZER]));
}

#[test]
fn only_waiting_claims_of_our_driver_are_provisioned() {
    let waiting = || class(json!({"volumeBindingMode": "WaitForFirstConsumer"}));
    let selected = json!({"metadata": {"annotations": {SELECTED_NODE: "node-1"}}});
    let leaving = json!({"metadata": {"deletionTimestamp": "x"}});
    let cases = [
        (claim(json!({"spec": {"volumeName": "v"}})), class(json!({})), false),
        (claim(leaving), class(json!({})), false),
        (claim(json!({})), class(json!({"provisioner": "other"})), false),
        (claim(json!({})), waiting(), false),
        (claim(selected), waiting(), true),
        (claim(json!({})), class(json!({})), true),
    ];
    for (claim, class, want) in cases {
        let step = planned(&claim, Some(&class), &driver());
        assert_eq!(matches!(step, Step::Create(_)), want, "{claim} {class}");
        assert_eq!(matches!(step, Step::Nothing), !want, "{claim} {class}");
    }
    assert_eq!(wanted_driver(&claim(json!({}))), Some("d.example.com"));
    assert_eq!(wanted_driver(&json!({})), None);
    let beta = json!({"metadata": {"annotations": {STORAGE_PROVISIONERS[1]: "x"}}});
    assert_eq!(wanted_driver(&beta), Some("x"));
}

/// D13, D14, D17, D23
#[test]
fn invalid_requests_are_refused_with_a_reason() {
    let fails = |claim: Value, class: Option<Value>, want: &str| {
        let step = planned(&claim, class.as_ref(), &driver());
        assert!(matches!(&step, Step::Failed(why) if why.contains(want)), "{step:?}: not {want}");
    };
    fails(claim(json!({})), None, "\"s\" not found");
    fails(
        claim(json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}})),
        Some(class(json!({}))),
        "claim Selector is not supported",
    );
    let unknown = json!({"parameters": {"csi.storage.k8s.io/zzz": "1"}});
    fails(claim(json!({})), Some(class(unknown)), "unknown parameter key");
    let half = json!({"parameters": {"csi.storage.k8s.io/secret-name": "s"}});
    fails(claim(json!({})), Some(class(half)), "either both");
    fails(claim(json!({"spec": {"volumeAttributesClassName": "gold"}})), Some(class(json!({}))), "\"gold\" not found");
    let copy = json!({"spec": {"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "x"}}});
    fails(claim(copy), Some(class(json!({}))), "not found");
    let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "x"});
    fails(claim(json!({"spec": {"dataSourceRef": snapshot}})), Some(class(json!({}))), "snapshots");

    let foreign = claim(json!({"spec": {"dataSourceRef": {"apiGroup": "x.io", "kind": "Y", "name": "x"}}}));
    assert!(matches!(planned(&foreign, Some(&class(json!({}))), &driver()), Step::Leave(_)));
    let mut unable = driver();
    unable.can.create_delete = false;
    let step = planned(&claim(json!({})), Some(&class(json!({}))), &unable);
    assert!(matches!(step, Step::Failed(why) if why.contains("CREATE_DELETE_VOLUME")));
}

/// D16, D20, D21
#[test]
fn file_systems_mount_options_and_blocks() {
    let with =
        class(json!({"parameters": {"csi.storage.k8s.io/fstype": "xfs", "foo": "bar"}, "mountOptions": ["noatime"]}));
    let made = intent(claim(json!({})), with.clone());
    let mount = AccessType::Mount { fs_type: "xfs".to_owned(), flags: vec!["noatime".to_owned()] };
    assert_eq!(made.request.capabilities[0].access, mount);
    assert_eq!(made.request.parameters, BTreeMap::from([("foo".to_owned(), "bar".to_owned())]));
    assert_eq!(made.volume["spec"]["csi"]["fsType"], "xfs");
    assert_eq!(made.volume["spec"]["mountOptions"], json!(["noatime"]));

    let made = intent(claim(json!({"spec": {"volumeMode": "Block"}})), with);
    assert_eq!(made.request.capabilities[0].access, AccessType::Block);
    assert_eq!(made.volume["spec"]["volumeMode"], "Block");
    assert!(!made.volume.has(&["spec", "csi", "fsType"]));
}

#[test]
fn each_access_mode_is_a_capability() {
    let many = claim(json!({"spec": {"accessModes": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"]}}));
    let modes = |driver: &Driver| {
        let Step::Create(made) = planned(&many, Some(&class(json!({}))), driver) else { panic!() };
        made.request.capabilities.iter().map(|capability| capability.mode).collect::<Vec<_>>()
    };
    use AccessMode::*;
    assert_eq!(modes(&driver()), [SingleNodeWriter, MultiNodeReaderOnly, MultiNodeMultiWriter]);
    let mut finer = driver();
    finer.can.single_node_multi_writer = true;
    assert_eq!(modes(&finer), [SingleNodeMultiWriter, MultiNodeReaderOnly, MultiNodeMultiWriter]);
    let single = Capability::of("ReadWriteOncePod", AccessType::Block, &finer);
    assert_eq!(single.mode, SingleNodeSingleWriter);
}

/// D18
#[test]
fn secrets_are_passed_to_the_calls_that_need_them() {
    let parameters = json!({
        "csi.storage.k8s.io/secret-name": "${pvc.name}", "csi.storage.k8s.io/secret-namespace": "vault",
        "csi.storage.k8s.io/controller-modify-secret-name": "m", "csi.storage.k8s.io/controller-modify-secret-namespace": "vault",
    });
    let made = intent(claim(json!({})), class(json!({"parameters": parameters})));
    let want = SecretRef { namespace: "vault".to_owned(), name: "c".to_owned() };
    assert_eq!(made.request.secret, Some(want));
    assert_eq!(made.request.parameters, BTreeMap::new());
    let annotations = &made.volume["metadata"]["annotations"];
    assert_eq!(annotations[secret::DELETION_NAME], "c");
    assert_eq!(annotations[secret::DELETION_NAMESPACE], "vault");
    assert_eq!(annotations[secret::MODIFY_NAME], "m");
    let source = &made.volume["spec"]["csi"];
    for field in ["controllerPublish", "nodeStage", "nodePublish", "controllerExpand", "nodeExpand"] {
        assert_eq!(source[format!("{field}SecretRef")], json!({"name": "c", "namespace": "vault"}), "{field}");
    }
}

/// D23
#[test]
fn attribute_classes_of_the_driver_are_passed() {
    let gold = |driver: &str| json!({"metadata": {"name": "gold"}, "driverName": driver, "parameters": {"iops": "9"}});
    let claim = claim(json!({"spec": {"volumeAttributesClassName": "gold"}}));
    let class = class(json!({}));
    let step = |attributes_class: &Value| {
        let seen = Seen {
            claim: &claim,
            class: Some(&class),
            attributes_class: Some(attributes_class),
            source: None,
            source_volume: None,
            cluster: Cluster::default(),
        };
        plan(&seen, &driver())
    };
    let Step::Create(made) = step(&gold("d.example.com")) else { panic!() };
    assert_eq!(made.request.mutable_parameters, BTreeMap::from([("iops".to_owned(), "9".to_owned())]));
    assert_eq!(made.volume["spec"]["volumeAttributesClassName"], "gold");
    assert!(matches!(step(&gold("other")), Step::Failed(why) if why.contains("does not match driver name")));
}

/// D24: the source gets its finalizer before the driver is called.
#[test]
fn the_source_of_a_copy_is_protected_first() {
    let copy = claim(json!({"spec": {"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "source"}}}));
    let mut source = json!({
        "metadata": {"namespace": "n", "name": "source", "uid": "su", "resourceVersion": "3"},
        "spec": {"storageClassName": "s", "volumeName": "v", "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound"},
    });
    let volume = json!({
        "metadata": {"name": "v"},
        "spec": {
            "csi": {"driver": "d.example.com", "volumeHandle": "h"},
            "claimRef": {"namespace": "n", "name": "source", "uid": "su"},
        },
        "status": {"phase": "Bound"},
    });
    let class = class(json!({}));
    let step = |source: &Value| {
        let seen = Seen {
            claim: &copy,
            class: Some(&class),
            attributes_class: None,
            source: Some(source),
            source_volume: Some(&volume),
            cluster: Cluster::default(),
        };
        plan(&seen, &driver())
    };
    let Step::HoldSource(patch) = step(&source) else { panic!() };
    assert_eq!(patch["metadata"]["finalizers"], json!([cloning::PROTECTION]));
    source.put(&["metadata", "finalizers"], json!([cloning::PROTECTION]));
    let Step::Create(made) = step(&source) else { panic!() };
    assert_eq!(made.request.source.as_deref(), Some("h"));
}

#[test]
fn names_are_passed_if_enabled() {
    let mut telling = driver();
    telling.options.extra_create_metadata = true;
    let Step::Create(made) = planned(&claim(json!({})), Some(&class(json!({}))), &telling) else { panic!() };
    assert_eq!(made.request.parameters["csi.storage.k8s.io/pvc/name"], "c");
    assert_eq!(made.request.parameters["csi.storage.k8s.io/pvc/namespace"], "n");
    assert_eq!(made.request.parameters["csi.storage.k8s.io/pv/name"], "pvc-u");
}

#[test]
fn journal_entries_can_be_read_back() {
    use crate::csi::journal::Entry;
    let mut made = intent(claim(json!({})), class(json!({"parameters": {"a": "b"}, "mountOptions": ["x"]})));
    let place = Segment::from([("zone".to_owned(), "a".to_owned())]);
    made.request.topology = Some(Offer { requisite: vec![place.clone()], preferred: vec![place] });
    made.request.secret = Some(SecretRef { namespace: "n".to_owned(), name: "s".to_owned() });
    let entry = Entry::Create(Box::new(made));
    assert_eq!(Entry::from_text(&entry.to_text()), Some(entry));
    assert_eq!(Entry::from_text("{}"), None);
}
