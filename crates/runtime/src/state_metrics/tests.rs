use super::volumes::ClaimSpec;
use super::*;
use object::{Value, json};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

fn set(value: Value) -> Slim<SetSpec, SetStatus> {
    object::value::from_value(&value).expect("a set")
}

fn claim(namespace: &str, name: &str, phase: &str) -> Slim<ClaimSpec, PhaseStatus> {
    let object = json!({
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeName": "v", "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": "1Gi"}},
        },
        "status": {"phase": phase, "conditions": []},
    });
    object::value::from_value(&object).expect("a claim")
}

fn volume(spec: Value) -> Slim<VolumeSpec, PhaseStatus> {
    let object = json!({"metadata": {"name": "v"}, "spec": spec, "status": {"phase": "Released"}});
    object::value::from_value(&object).expect("a volume")
}

/// Returns all samples, without help lines.
fn figures(states: &StateMetrics) -> Vec<String> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(states.clone()));
    let mut text = String::new();
    encode(&mut text, &registry).expect("it can be written");
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

fn kept(change: impl FnOnce(&mut Tables)) -> StateMetrics {
    let states = StateMetrics::default();
    let mut tables = Tables::default();
    change(&mut tables);
    *states.lock() = Some(tables);
    states
}

/// R16, O6
#[test]
fn a_set_has_its_metrics_under_the_names_of_kube_state_metrics() {
    let whole = set(json!({
        "metadata": {
            "namespace": "shop", "name": "web", "generation": 7, "creationTimestamp": "2023-11-14T22:13:20Z",
            "labels": {"app": "web"}, "managedFields": [{"fieldsV1": {"f:spec": {}}}],
        },
        "spec": {
            "replicas": 5, "ordinals": {"start": 3}, "template": {"spec": {"containers": []}},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Delete"},
        },
        "status": {
            "replicas": 4, "currentReplicas": 1, "updatedReplicas": 3, "readyReplicas": 2, "availableReplicas": 1,
            "observedGeneration": 6,
        },
    }));
    let states = kept(|tables| tables.sets.apply(Event::Apply(whole), Set::of));
    let both = "namespace=\"shop\",statefulset=\"web\"";
    let policy = format!("{both},when_deleted=\"Retain\",when_scaled=\"Delete\"");
    let expected = [
        ("created", 1_700_000_000),
        ("metadata_generation", 7),
        ("status_observed_generation", 6),
        ("replicas", 5),
        ("ordinals_start", 3),
        ("status_replicas", 4),
        ("status_replicas_current", 1),
        ("status_replicas_updated", 3),
        ("status_replicas_ready", 2),
        ("status_replicas_available", 1),
    ];
    let mut expected: Vec<String> =
        expected.iter().map(|(name, value)| format!("kube_statefulset_{name}{{{both}}} {value}")).collect();
    expected.push(format!("kube_statefulset_persistentvolumeclaim_retention_policy{{{policy}}} 1"));
    expected.push(format!("kube_statefulset_persistent_volume_claim_retention_policy{{{policy}}} 1"));
    assert_eq!(figures(&states), expected);
}

#[test]
fn fields_that_a_set_lacks_have_no_samples() {
    let bare = set(json!({"metadata": {"namespace": "a", "name": "b"}, "spec": {"ordinals": {}}}));
    let states = kept(|tables| tables.sets.apply(Event::Apply(bare), Set::of));
    let figures = figures(&states).join("\n");
    assert!(figures.contains("kube_statefulset_replicas{namespace=\"a\",statefulset=\"b\"} 1"), "{figures}");
    assert!(figures.contains("kube_statefulset_ordinals_start{namespace=\"a\",statefulset=\"b\"} 0"), "{figures}");
    assert!(!figures.contains("generation") && !figures.contains("policy"), "{figures}");
}

/// R16
#[test]
fn claims_and_volumes_have_a_sample_for_every_phase() {
    let states = kept(|tables| {
        tables.claims.apply(Event::Apply(claim("a", "x", "Bound")), Claim::of);
        tables.claims.apply(Event::Apply(claim("a", "y", "")), Claim::of);
        tables.volumes.apply(Event::Apply(volume(json!({}))), |volume| Some(Volume::of(volume)));
    });
    let expected = [
        r#"kube_persistentvolumeclaim_status_phase{namespace="a",persistentvolumeclaim="x",phase="Lost"} 0"#,
        r#"kube_persistentvolumeclaim_status_phase{namespace="a",persistentvolumeclaim="x",phase="Bound"} 1"#,
        r#"kube_persistentvolumeclaim_status_phase{namespace="a",persistentvolumeclaim="x",phase="Pending"} 0"#,
        r#"kube_persistentvolume_status_phase{persistentvolume="v",phase="Pending"} 0"#,
        r#"kube_persistentvolume_status_phase{persistentvolume="v",phase="Available"} 0"#,
        r#"kube_persistentvolume_status_phase{persistentvolume="v",phase="Bound"} 0"#,
        r#"kube_persistentvolume_status_phase{persistentvolume="v",phase="Released"} 1"#,
        r#"kube_persistentvolume_status_phase{persistentvolume="v",phase="Failed"} 0"#,
    ];
    let phases: Vec<String> = figures(&states).into_iter().filter(|line| line.contains("_status_phase{")).collect();
    assert_eq!(phases, expected);
}

#[test]
fn claims_and_volumes_show_their_size_class_and_backend() {
    let bare = object::value::from_value(&json!({"metadata": {"namespace": "a", "name": "y"}})).expect("a claim");
    let of_driver = json!({
        "storageClassName": "fast", "capacity": {"storage": "2Gi"},
        "csi": {"driver": "d.example.com", "volumeHandle": "h-1", "volumeAttributes": {"a": "b"}},
    });
    let states = kept(|tables| {
        tables.claims.apply(Event::Apply(claim("a", "x", "Bound")), Claim::of);
        tables.claims.apply(Event::Apply(bare), Claim::of);
        tables.volumes.apply(Event::Apply(volume(of_driver)), |volume| Some(Volume::of(volume)));
    });
    let expected = [
        r#"kube_persistentvolumeclaim_info{namespace="a",persistentvolumeclaim="x",storageclass="fast",volumename="v",volumemode="Filesystem"} 1"#,
        r#"kube_persistentvolumeclaim_info{namespace="a",persistentvolumeclaim="y",storageclass="<none>",volumename="",volumemode="<none>"} 1"#,
        r#"kube_persistentvolumeclaim_resource_requests_storage_bytes{namespace="a",persistentvolumeclaim="x"} 1073741824"#,
        r#"kube_persistentvolume_info{persistentvolume="v",storageclass="fast",csi_driver="d.example.com",csi_volume_handle="h-1"} 1"#,
        r#"kube_persistentvolume_capacity_bytes{persistentvolume="v"} 2147483648"#,
    ];
    let others: Vec<String> = figures(&states).into_iter().filter(|line| !line.contains("_status_phase{")).collect();
    assert_eq!(others, expected);
    for (spec, labels) in [
        (json!({"hostPath": {"path": "/a"}}), r#"host_path="/a""#),
        (json!({"local": {"path": "/b"}}), r#"local_path="/b""#),
        (json!({"nfs": {"server": "s", "path": "/c"}}), r#"nfs_server="s",nfs_path="/c""#),
    ] {
        let states = kept(|tables| tables.volumes.apply(Event::Apply(volume(spec)), |volume| Some(Volume::of(volume))));
        let info = format!("kube_persistentvolume_info{{persistentvolume=\"v\",storageclass=\"\",{labels}}} 1");
        assert!(figures(&states).contains(&info), "{info}: {:?}", figures(&states));
    }
}

#[test]
fn a_table_follows_creations_changes_and_deletions() {
    let mut table = Table::default();
    let names = |table: &Table<Claim>| table.each().map(|(_, name, _)| name.to_owned()).collect::<Vec<_>>();
    for change in [Event::Init, Event::Apply(claim("a", "x", "Bound")), Event::Apply(claim("b", "y", "Bound"))] {
        table.apply(change, Claim::of);
    }
    assert_eq!(names(&table), [] as [&str; 0], "an incomplete list is not shown");
    table.apply(Event::InitDone, Claim::of);
    assert_eq!(names(&table), ["x", "y"]);
    table.apply(Event::Apply(claim("a", "x", "Lost")), Claim::of);
    assert_eq!(table.each().next().map(|(_, _, claim)| claim.is_lost()), Some(true));
    table.apply(Event::Delete(claim("b", "y", "Bound")), Claim::of);
    assert_eq!(names(&table), ["x"]);
    assert_eq!(table.rows.len(), 1, "a namespace without objects has no entry");
    table.apply(Event::Init, Claim::of);
    assert_eq!(names(&table), ["x"], "the old rows are shown until the new list is complete");
    table.apply(Event::Apply(claim("c", "z", "Pending")), Claim::of);
    table.apply(Event::InitDone, Claim::of);
    assert_eq!(names(&table), ["z"], "objects that the list lacks are removed");
}

#[test]
fn label_values_are_escaped_and_nothing_is_shown_after_the_controller_stopped() {
    let states = kept(|tables| tables.claims.apply(Event::Apply(claim("a\"b\\c\nd", "x", "Bound")), Claim::of));
    let line = figures(&states).remove(0);
    assert!(line.contains(r#"namespace="a\"b\\c\nd","#), "{line}");
    drop(Shown(states.clone()));
    assert_eq!(figures(&states), [] as [&str; 0]);
}
