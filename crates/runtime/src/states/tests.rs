use super::*;
use object::{Value, json};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

fn set(value: Value) -> Slim<SetSpec, SetStatus> {
    object::value::from_value(&value).expect("a set")
}

fn phased(namespace: &str, name: &str, phase: &str) -> Phased {
    let object = json!({
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"anything": ["is", "skipped"]},
        "status": {"phase": phase, "conditions": []},
    });
    object::value::from_value(&object).expect("a claim or volume")
}

fn claim_row(claim: Phased) -> Phase {
    Phase::of(&claim.status, &CLAIM_PHASES)
}

/// All figures but their help.
fn figures(states: &States) -> Vec<String> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(states.clone()));
    let mut text = String::new();
    encode(&mut text, &registry).expect("it can be written");
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

fn kept(change: impl FnOnce(&mut Tables)) -> States {
    let states = States::default();
    let mut tables = Tables::default();
    change(&mut tables);
    *states.lock() = Some(tables);
    states
}

/// R16, O6
#[test]
fn a_set_has_its_figures_under_the_known_names() {
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
    let states = kept(|tables| tables.sets.hear(Change::Seen(whole), Set::of));
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
fn what_a_set_does_not_say_is_not_made_up() {
    let bare = set(json!({"metadata": {"namespace": "a", "name": "b"}, "spec": {"ordinals": {}}}));
    let states = kept(|tables| tables.sets.hear(Change::Seen(bare), Set::of));
    let figures = figures(&states).join("\n");
    assert!(figures.contains("kube_statefulset_replicas{namespace=\"a\",statefulset=\"b\"} 1"), "{figures}");
    assert!(figures.contains("kube_statefulset_ordinals_start{namespace=\"a\",statefulset=\"b\"} 0"), "{figures}");
    assert!(!figures.contains("generation") && !figures.contains("policy"), "{figures}");
}

/// R16
#[test]
fn claims_and_volumes_show_every_phase_and_which_is_theirs() {
    let states = kept(|tables| {
        tables.claims.hear(Change::Seen(phased("a", "x", "Bound")), claim_row);
        tables.claims.hear(Change::Seen(phased("a", "y", "")), claim_row);
        tables
            .volumes
            .hear(Change::Seen(phased("", "v", "Released")), |volume| Phase::of(&volume.status, &VOLUME_PHASES));
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
    assert_eq!(figures(&states), expected);
}

#[test]
fn a_table_follows_what_comes_changes_and_goes() {
    let mut table = Table::default();
    let names = |table: &Table<Phase>| table.each().map(|(_, name, _)| name.to_owned()).collect::<Vec<_>>();
    for change in [Change::Restart, Change::Seen(phased("a", "x", "Bound")), Change::Seen(phased("b", "y", "Bound"))] {
        table.hear(change, claim_row);
    }
    assert_eq!(names(&table), [] as [&str; 0], "half a list says nothing");
    table.hear(Change::Ready, claim_row);
    assert_eq!(names(&table), ["x", "y"]);
    table.hear(Change::Seen(phased("a", "x", "Lost")), claim_row);
    assert_eq!(table.each().next().map(|(_, _, phase)| *phase), Some(Phase(Some(0))));
    table.hear(Change::Gone(phased("b", "y", "Bound")), claim_row);
    assert_eq!(names(&table), ["x"]);
    assert_eq!(table.rows.len(), 1, "nothing is kept of a namespace without objects");
    table.hear(Change::Restart, claim_row);
    assert_eq!(names(&table), ["x"], "what was known counts until the new list is complete");
    table.hear(Change::Seen(phased("c", "z", "Pending")), claim_row);
    table.hear(Change::Ready, claim_row);
    assert_eq!(names(&table), ["z"], "what went unseen is gone");
}

#[test]
fn label_values_are_escaped_and_without_a_keeper_nothing_is_shown() {
    let states = kept(|tables| tables.claims.hear(Change::Seen(phased("a\"b\\c\nd", "x", "Bound")), claim_row));
    let line = figures(&states).remove(0);
    assert!(line.contains(r#"namespace="a\"b\\c\nd","#), "{line}");
    drop(Shown(states.clone()));
    assert_eq!(figures(&states), [] as [&str; 0]);
}
