//! Tests for section 1 and scenarios 5.A of the contract for upstream's StatefulSet.

use super::*;

fn gates() -> Gates {
    Gates::default()
}

fn with<T>(gates: &Gates, run: impl FnOnce(&Ctx) -> T) -> T {
    run(&Ctx { gates, now: jiff::Timestamp::UNIX_EPOCH })
}

/// The smallest valid set.
fn plain() -> Value {
    json!({
        "metadata": {"name": "web"},
        "spec": {
            "serviceName": "web",
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "a", "image": "x"}]},
            },
        },
    })
}

/// The smallest set with one changed member.
fn set(path: &[&str], value: impl Into<Value>) -> Value {
    let mut object = plain();
    object.put(path, value);
    object
}

fn claim() -> Value {
    json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
}

fn created_with(gates: &Gates, mut object: Value) -> (Value, Vec<String>) {
    with(gates, |ctx| {
        StatefulSetRules.default(&mut object, ctx);
        StatefulSetRules.prepare_create(&mut object, ctx);
        let mut errors = Errors::default();
        StatefulSetRules.validate_create(&object, ctx, &mut errors);
        (object, errors.0.iter().map(ToString::to_string).collect())
    })
}

fn created(object: Value) -> Value {
    let (object, messages) = created_with(&gates(), object);
    assert_eq!(messages, Vec::<String>::new());
    object
}

fn refused(object: Value) -> Vec<String> {
    created_with(&gates(), object).1
}

fn updated_with(gates: &Gates, old: &Value, mut new: Value) -> (Value, Vec<String>) {
    with(gates, |ctx| {
        StatefulSetRules.default(&mut new, ctx);
        StatefulSetRules.prepare_update(&mut new, old, ctx);
        let mut errors = Errors::default();
        StatefulSetRules.validate_update(&new, old, ctx, &mut errors);
        (new, errors.0.iter().map(ToString::to_string).collect())
    })
}

/// Returns the errors of an update that changes one member of a stored set.
fn change(old: &Value, path: &[&str], value: impl Into<Value>) -> Vec<String> {
    let mut new = old.clone();
    new.put(path, value);
    updated_with(&gates(), old, new).1
}

#[test]
fn a01_defaults_are_visible() {
    let object = created(plain());
    let spec = &object["spec"];
    assert_eq!(spec["replicas"], 1);
    assert_eq!(spec["podManagementPolicy"], "OrderedReady");
    assert_eq!(
        spec["updateStrategy"],
        json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 1}})
    );
    assert_eq!(spec["persistentVolumeClaimRetentionPolicy"], json!({"whenDeleted": "Retain", "whenScaled": "Retain"}));
    assert_eq!(spec["revisionHistoryLimit"], 10);
    assert!(spec.get("ordinals").is_none());
    assert_eq!(spec["template"]["spec"]["restartPolicy"], "Always");
    assert_eq!(object["status"], json!({"replicas": 0, "availableReplicas": 0}));
}

#[test]
fn a02_a04_rolling_update_is_added_only_if_the_type_is_absent() {
    let explicit = created(set(&["spec", "updateStrategy"], json!({"type": "RollingUpdate"})));
    assert_eq!(explicit["spec"]["updateStrategy"], json!({"type": "RollingUpdate"}));
    let partition = created(set(&["spec", "updateStrategy"], json!({"rollingUpdate": {"partition": 3}})));
    assert_eq!(
        partition["spec"]["updateStrategy"],
        json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 3, "maxUnavailable": 1}})
    );
    let by_hand = created(set(&["spec", "updateStrategy"], json!({"type": "OnDelete"})));
    assert_eq!(by_hand["spec"]["updateStrategy"], json!({"type": "OnDelete"}));
}

#[test]
fn json_shapes_are_upstreams() {
    let mut object = plain();
    object.cut(&["spec", "serviceName"]);
    object.put(&["spec", "ordinals"], json!({}));
    object.put(&["spec", "volumeClaimTemplates"], json!([claim()]));
    let object = created(object);
    assert_eq!(object["spec"]["serviceName"], "");
    assert_eq!(object["spec"]["ordinals"], json!({"start": 0}));
    let template = &object["spec"]["volumeClaimTemplates"][0];
    assert_eq!([&template["apiVersion"], &template["kind"]], ["v1", "PersistentVolumeClaim"]);
    assert_eq!(template["status"], json!({"phase": "Pending"}));
    assert_eq!(template["spec"]["volumeMode"], "Filesystem");
    // Applying the same manifest again changes nothing.
    let mut again = plain();
    again.cut(&["spec", "serviceName"]);
    again.put(&["spec", "volumeClaimTemplates"], json!([claim()]));
    assert_eq!(updated_with(&gates(), &object, again).1, Vec::<String>::new());
}

/// A03, A07, A08, A10, A19: V4 to V11 of the contract.
#[test]
fn invalid_fields_are_refused_with_upstreams_messages() {
    let least = "must be greater than or equal to 0";
    let percent = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
    let rolling = |field: &str, value: Value| {
        set(&["spec", "updateStrategy"], json!({"type": "RollingUpdate", "rollingUpdate": {field: value}}))
    };
    let most = "spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value";
    let cases = [
        (
            set(&["spec", "podManagementPolicy"], "x"),
            vec!["spec.podManagementPolicy: Invalid value: \"x\": must be 'OrderedReady' or 'Parallel'".to_owned()],
        ),
        (
            set(&["spec", "updateStrategy"], json!({"type": "Blue"})),
            vec!["spec.updateStrategy: Invalid value: {\"type\":\"Blue\"}: must be 'RollingUpdate' or 'OnDelete'".to_owned()],
        ),
        (
            set(&["spec", "updateStrategy"], json!({"type": "OnDelete", "rollingUpdate": {}})),
            vec!["spec.updateStrategy.rollingUpdate: Invalid value: {}: only allowed for updateStrategy 'RollingUpdate'".to_owned()],
        ),
        (rolling("partition", json!(-1)), vec![format!("spec.updateStrategy.rollingUpdate.partition: Invalid value: -1: {least}")]),
        (rolling("maxUnavailable", json!(0)), vec![format!("{most}: 0: cannot be 0")]),
        (rolling("maxUnavailable", json!("0%")), vec![format!("{most}: \"0%\": cannot be 0")]),
        (rolling("maxUnavailable", json!("101%")), vec![format!("{most}: \"101%\": must not be greater than 100%")]),
        (rolling("maxUnavailable", json!(-1)), vec![format!("{most}: -1: {least}")]),
        (
            rolling("maxUnavailable", json!("abc")),
            vec![format!("{most}: \"abc\": {percent}"), format!("{most}: \"abc\": cannot be 0")],
        ),
        (rolling("maxUnavailable", json!("100%")), vec![]),
        (rolling("maxUnavailable", json!(999)), vec![]),
        (
            set(&["spec", "persistentVolumeClaimRetentionPolicy"], json!({"whenDeleted": "foo"})),
            vec!["spec.persistentVolumeClaimRetentionPolicy.whenDeleted: Unsupported value: \"foo\": supported values: \"Retain\", \"Delete\"".to_owned()],
        ),
        (set(&["spec", "replicas"], -1), vec![format!("spec.replicas: Invalid value: -1: {least}")]),
        (set(&["spec", "minReadySeconds"], -1), vec![format!("spec.minReadySeconds: Invalid value: -1: {least}")]),
        (set(&["spec", "ordinals"], json!({"start": -1})), vec![format!("spec.ordinals.start: Invalid value: -1: {least}")]),
        (set(&["spec", "serviceName"], ""), vec![]),
        (set(&["spec", "serviceName"], "not-there"), vec![]),
        (set(&["spec", "revisionHistoryLimit"], -2), vec![]),
    ];
    for (object, want) in cases {
        assert_eq!(refused(object.clone()), want, "{object}");
    }
    let messages = refused(set(&["spec", "serviceName"], "Invalid.Name"));
    assert!(
        messages[0].starts_with("spec.serviceName: Invalid value: \"Invalid.Name\": a lowercase RFC 1123 label"),
        "{messages:?}"
    );
    let half = created(set(&["spec", "persistentVolumeClaimRetentionPolicy"], json!({"whenDeleted": "Delete"})));
    assert_eq!(half["spec"]["persistentVolumeClaimRetentionPolicy"]["whenScaled"], "Retain");
}

#[test]
fn a05_selectors_are_required_and_must_match_the_template() {
    let mut none = plain();
    none.cut(&["spec", "selector"]);
    let mismatch =
        "spec.template.metadata.labels: Invalid value: {\"app\":\"web\"}: `selector` does not match template `labels`";
    assert_eq!(refused(none), ["spec.selector: Required value", mismatch]);
    assert_eq!(
        refused(set(&["spec", "selector"], json!({}))),
        ["spec.selector: Invalid value: {}: empty selector is invalid for statefulset"]
    );
    assert_eq!(refused(set(&["spec", "selector"], json!({"matchLabels": {"app": "other"}}))), [mismatch]);
    let bad = refused(set(&["spec", "selector"], json!({"matchLabels": {"app": "a b"}})));
    assert!(bad[0].starts_with("spec.selector.matchLabels: Invalid value: \"a b\""), "{bad:?}");
}

#[test]
fn a06_names_are_labels() {
    assert_eq!(StatefulSetRules.name_rule(), NameRule::Label);
    assert!(StatefulSetRules.counts_generations());
}

#[test]
fn a09_a11_a12_a14_templates_are_validated_like_the_pods_made_from_them() {
    let pod = &["spec", "template", "spec"];
    let with_pod = |field: &str, value: Value| set(&[&pod[..], &[field]].concat(), value);
    let mounts = json!([{"name": "a", "image": "x", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]);
    let mut claimed = with_pod("containers", mounts.clone());
    claimed.put(&["spec", "volumeClaimTemplates"], json!([claim()]));
    let mut both = claimed.clone();
    both.put(&["spec", "template", "spec", "volumes"], json!([{"name": "data", "hostPath": {"path": ""}}]));
    let mut garbage = with_pod("hostname", json!("No Such.Host"));
    garbage.put(&["spec", "template", "spec", "subdomain"], "..");
    let unclaimed = set(&["spec", "volumeClaimTemplates"], json!([{"metadata": {"name": "data"}, "spec": {}}]));
    let nameless = {
        let mut template = claim();
        template.cut(&["metadata", "name"]);
        set(&["spec", "volumeClaimTemplates"], json!([template]))
    };
    let cases = [
        (
            with_pod("restartPolicy", json!("Never")),
            vec!["spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\""],
        ),
        (
            with_pod("activeDeadlineSeconds", json!(60)),
            vec![
                "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in StatefulSet is not Supported",
            ],
        ),
        (
            with_pod("containers", mounts),
            vec!["spec.template.spec.containers[0].volumeMounts[0].name: Not found: \"data\""],
        ),
        (claimed, vec![]),
        (both, vec![]),
        (garbage, vec![]),
        (with_pod("containers", json!([])), vec!["spec.template.spec.containers: Required value"]),
        (
            unclaimed,
            vec![
                "spec.volumeClaimTemplates[0].spec.accessModes: Required value: at least 1 access mode is required",
                "spec.volumeClaimTemplates[0].spec.resources[storage]: Required value",
            ],
        ),
        (
            nameless,
            vec![
                "spec.template.spec.volumes[0].persistentVolumeClaim.claimName: Required value",
                "spec.template.spec.volumes[0].name: Required value",
            ],
        ),
        // V16: a duplicate name is accepted; the later template is used.
        (set(&["spec", "volumeClaimTemplates"], json!([claim(), claim()])), vec![]),
    ];
    for (object, want) in cases {
        assert_eq!(refused(object.clone()), want, "{object}");
    }
}

#[test]
fn a15_immutable_fields() {
    let mut object = plain();
    object.put(&["spec", "volumeClaimTemplates"], json!([claim()]));
    let old = created(object);
    let larger = {
        let mut template = old["spec"]["volumeClaimTemplates"][0].clone();
        template.put(&["spec", "resources", "requests", "storage"], "2Gi");
        json!([template])
    };
    let alike = {
        let mut template = old["spec"]["volumeClaimTemplates"][0].clone();
        template.put(&["spec", "resources", "requests", "storage"], "1024Mi");
        json!([template])
    };
    let immutable = |messages: Vec<String>, field: &str| {
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert!(
            messages[0].starts_with(&format!("spec.{field}: Invalid value: "))
                && messages[0].ends_with(": field is immutable"),
            "{messages:?}"
        );
    };
    immutable(change(&old, &["spec", "serviceName"], "other"), "serviceName");
    immutable(change(&old, &["spec", "serviceName"], ""), "serviceName");
    immutable(change(&old, &["spec", "podManagementPolicy"], "Parallel"), "podManagementPolicy");
    // P06: with the gate off, no template may change.
    let off = gates().with("StatefulSetUpdateVolumeClaimTemplate", false);
    for templates in [larger, json!([])] {
        let mut new = old.clone();
        new.put(&["spec", "volumeClaimTemplates"], templates);
        immutable(updated_with(&off, &old, new).1, "volumeClaimTemplates");
    }
    assert_eq!(change(&old, &["spec", "volumeClaimTemplates"], alike), Vec::<String>::new());
    let mut new = old.clone();
    new.put(&["spec", "selector"], json!({"matchLabels": {"app": "b"}}));
    new.put(&["spec", "template", "metadata", "labels"], json!({"app": "b"}));
    immutable(updated_with(&gates(), &old, new).1, "selector");
    // A selector that no longer matches the template gives two errors.
    assert_eq!(change(&old, &["spec", "selector"], json!({"matchLabels": {"app": "b"}})).len(), 2);
}

#[test]
fn a16_mutable_fields() {
    let old = created(plain());
    let cases: [(&[&str], Value); 7] = [
        (&["spec", "replicas"], json!(5)),
        (&["spec", "template", "metadata", "annotations"], json!({"restarted": "now"})),
        (&["spec", "updateStrategy"], json!({"type": "OnDelete"})),
        (&["spec", "minReadySeconds"], json!(5)),
        (&["spec", "ordinals"], json!({"start": 3})),
        (&["spec", "persistentVolumeClaimRetentionPolicy", "whenScaled"], json!("Delete")),
        (&["spec", "revisionHistoryLimit"], json!(0)),
    ];
    for (path, value) in cases {
        assert_eq!(change(&old, path, value), Vec::<String>::new(), "{path:?}");
    }
}

#[test]
fn sets_accepted_under_older_rules_can_still_be_updated() {
    let mut old = created(plain());
    old.put(&["spec", "serviceName"], "Old.Name");
    assert_eq!(change(&old, &["spec", "replicas"], 2), Vec::<String>::new());
    old.put(&["spec", "template", "spec", "containers"], json!([]));
    assert_eq!(change(&old, &["spec", "replicas"], 2), Vec::<String>::new());
    // A valid template may not become invalid.
    let sound = created(plain());
    assert_eq!(
        change(&sound, &["spec", "template", "spec", "containers"], json!([])),
        ["spec.template.spec.containers: Required value"]
    );
}

#[test]
fn a21_status_counters_fit_together() {
    let cases = [
        (
            json!({"replicas": 3, "readyReplicas": 4}),
            json!({}),
            vec!["status.readyReplicas: Invalid value: 4: cannot be greater than status.replicas"],
        ),
        (
            json!({"replicas": 3, "readyReplicas": 1, "availableReplicas": 2}),
            json!({}),
            vec!["status.availableReplicas: Invalid value: 2: cannot be greater than status.readyReplicas"],
        ),
        (
            json!({"replicas": -1}),
            json!({}),
            vec![
                "status.replicas: Invalid value: -1: must be greater than or equal to 0",
                "status.readyReplicas: Invalid value: 0: cannot be greater than status.replicas",
                "status.currentReplicas: Invalid value: 0: cannot be greater than status.replicas",
                "status.updatedReplicas: Invalid value: 0: cannot be greater than status.replicas",
                "status.availableReplicas: Invalid value: 0: cannot be greater than status.replicas",
            ],
        ),
        (
            json!({"replicas": 0, "collisionCount": 1}),
            json!({"collisionCount": 2}),
            vec!["status.collisionCount: Invalid value: 1: cannot be decremented"],
        ),
        (
            json!({"replicas": 0}),
            json!({"collisionCount": 2}),
            vec!["status.collisionCount: Invalid value: 0: cannot be decremented"],
        ),
        (json!({"replicas": 3, "readyReplicas": 3, "availableReplicas": 3, "collisionCount": 0}), json!({}), vec![]),
    ];
    for (new, old, want) in cases {
        let mut errors = Errors::default();
        validate::status(&json!({"status": new}), &json!({"status": old}), &mut errors);
        let messages: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        assert_eq!(messages, want, "{new}");
    }
    let mut written = json!({"status": {"observedGeneration": 1}});
    with(&gates(), |ctx| StatefulSetRules.prepare_status(&mut written, &json!({}), ctx));
    assert_eq!(written["status"], json!({"observedGeneration": 1, "replicas": 0, "availableReplicas": 0}));
}

#[test]
fn a24_recreate_needs_its_gate_but_can_always_be_removed() {
    let on = gates().with("StatefulSetRecreateStrategy", true);
    let recreate = set(&["spec", "updateStrategy"], json!({"type": "Recreate"}));
    assert_eq!(
        refused(recreate.clone()),
        ["spec.updateStrategy: Invalid value: {\"type\":\"Recreate\"}: must be 'RollingUpdate' or 'OnDelete'"]
    );
    let (stored, messages) = created_with(&on, recreate);
    assert_eq!(messages, Vec::<String>::new());
    assert_eq!(
        created_with(&on, set(&["spec", "updateStrategy"], json!({"type": "x"}))).1,
        ["spec.updateStrategy: Invalid value: {\"type\":\"x\"}: must be 'RollingUpdate', 'OnDelete', or 'Recreate'"]
    );
    assert_eq!(change(&created(plain()), &["spec", "updateStrategy"], json!({"type": "Recreate"})).len(), 1);
    assert_eq!(change(&stored, &["spec", "replicas"], 2), Vec::<String>::new());
    assert_eq!(change(&stored, &["spec", "updateStrategy"], json!({"type": "OnDelete"})), Vec::<String>::new());
}

/// A25, R14, O5: fields of a disabled gate are dropped on write unless they are already stored.
#[test]
fn a25_r14_o5_gated_fields_are_dropped_unless_stored() {
    let cases = [
        ("MaxUnavailableStatefulSet", MAX_UNAVAILABLE, json!(3), json!(4)),
        (
            "StatefulSetAutoDeletePVC",
            RETENTION,
            json!({"whenDeleted": "Delete", "whenScaled": "Retain"}),
            json!({"whenDeleted": "Delete", "whenScaled": "Delete"}),
        ),
        ("StatefulSetStartOrdinal", ORDINALS, json!({"start": 3}), json!({"start": 4})),
        ("StatefulSetUpdateVolumeClaimTemplate", UPDATE_POLICY, json!("InPlace"), json!("OnClaimDelete")),
    ];
    for (gate, field, value, other) in cases {
        let off = gates().with(gate, false);
        let object = set(field, value.clone());
        let stored = created(object.clone());
        assert_eq!(stored.at(field), Some(&value), "{gate} on");
        let (dropped, messages) = created_with(&off, object.clone());
        assert_eq!((dropped.at(field), messages), (None, Vec::new()), "{gate} off");
        let mut changed = stored.clone();
        changed.put(field, other.clone());
        assert_eq!(updated_with(&off, &stored, changed.clone()).0.at(field), Some(&other), "{gate} off, stored");
        assert_eq!(updated_with(&off, &dropped, changed).0.at(field), None, "{gate} off, not stored");
    }
}

fn warned(object: &Value, old: Option<&Value>) -> Vec<String> {
    with(&gates(), |ctx| StatefulSetRules.warnings(object, old, ctx))
}

#[test]
fn a23_warnings_are_upstreams() {
    let negative = created(set(&["spec", "revisionHistoryLimit"], -2));
    let text =
        "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended";
    assert_eq!(warned(&negative, None), [text]);
    assert_eq!(warned(&negative, Some(&negative)), [text]);
    let mut template = claim();
    template.put(&["spec", "resources", "requests", "storage"], "1500m");
    let fraction = created(set(&["spec", "volumeClaimTemplates"], json!([template])));
    let why = "resources.requests[storage]: fractional byte value \"1500m\" is invalid, must be an integer";
    assert_eq!(warned(&fraction, None), [format!("spec.volumeClaimTemplates[0].{why}")]);
    assert_eq!(warned(&fraction, Some(&fraction)), [format!("spec.volumeClaimTemplates[0].Spec.{why}")]);
    let grace = created(set(&["spec", "template", "spec", "terminationGracePeriodSeconds"], -1));
    let text = "spec.template.spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1";
    assert_eq!(warned(&grace, None), [text]);
    assert_eq!(warned(&grace, Some(&grace)), Vec::<String>::new());
    assert_eq!(warned(&created(plain()), None), Vec::<String>::new());
}

/// O3: the partition is an ordinal.
#[test]
fn o3_a_partition_outside_the_ordinals_gives_a_warning() {
    let slice = |partition: i64| {
        let mut object = set(&["spec", "ordinals"], json!({"start": 5}));
        object.put(&["spec", "replicas"], 3);
        object.put(&[ROLLING, &["partition"]].concat(), partition);
        created(object)
    };
    let at = "spec.updateStrategy.rollingUpdate.partition";
    assert_eq!(
        warned(&slice(3), None),
        [format!("{at}: 3 is outside the set's ordinals 5 to 7: all pods will be updated")]
    );
    assert_eq!(
        warned(&slice(8), None),
        [format!("{at}: 8 is outside the set's ordinals 5 to 7: no pod will be updated")]
    );
    for fine in [0, 5, 6, 7] {
        assert_eq!(warned(&slice(fine), None), Vec::<String>::new(), "{fine}");
    }
    let off = gates().with("StatefulSetOrdinalPartition", false);
    assert!(with(&off, |ctx| StatefulSetRules.warnings(&slice(8), None, ctx)).is_empty());
}

#[test]
fn names_too_long_for_pod_labels_give_a_warning_at_creation() {
    let named = |len: usize| created(set(&["metadata", "name"], "a".repeat(len)));
    assert!(warned(&named(52), None).is_empty());
    let messages = warned(&named(53), None);
    assert_eq!(messages.len(), 1);
    assert!(
        messages[0].contains("the label controller-revision-hash of its pods would have up to 64 characters"),
        "{messages:?}"
    );
    assert_eq!(warned(&named(63), None).len(), 2);
    assert!(warned(&named(63), Some(&named(63))).is_empty());
}

#[test]
fn columns_are_upstreams() {
    let names: Vec<&str> = StatefulSetRules.columns().iter().map(|column| column.name.as_ref()).collect();
    assert_eq!(names, ["Name", "Ready", "Age", "Containers", "Images"]);
    assert_eq!(StatefulSetRules.columns().iter().map(|column| column.priority).collect::<Vec<_>>(), [0, 0, 0, 1, 1]);
    let mut object = plain();
    object.put(&["spec", "replicas"], 3);
    object.put(&["status", "readyReplicas"], 2);
    object.put(
        &["spec", "template", "spec", "containers"],
        json!([{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]),
    );
    let cells = StatefulSetRules.cells(&object, jiff::Timestamp::UNIX_EPOCH);
    assert_eq!(cells, [json!("web"), json!("2/3"), json!("<unknown>"), json!("a,b"), json!("x,y")]);
}

#[test]
fn the_rows_have_all_subresources_and_rules() {
    let rows = crate::kinds::apps::rows();
    let names: Vec<String> = rows.iter().map(crate::Kind::resource).collect();
    assert_eq!(names, ["statefulsets.apps", "controllerrevisions.apps"]);
    assert!(rows[0].has_status() && rows[0].subresource("scale").is_some());
    assert_eq!((rows[0].short_names.len(), rows[0].categories.len()), (1, 1));
}

/// T1, P01.
#[test]
fn t1_the_update_policy_has_two_values_and_a_default() {
    assert_eq!(created(plain()).at(UPDATE_POLICY), Some(&json!("OnClaimDelete")));
    assert_eq!(created(set(UPDATE_POLICY, "InPlace")).at(UPDATE_POLICY), Some(&json!("InPlace")));
    let texts =
        "spec.volumeClaimUpdatePolicy: Unsupported value: \"foo\": supported values: \"InPlace\", \"OnClaimDelete\"";
    assert_eq!(refused(set(UPDATE_POLICY, "foo")), [texts]);
    let old = created(plain());
    assert_eq!(change(&old, UPDATE_POLICY, "InPlace"), Vec::<String>::new());
    // With the gate off, the field may still be removed.
    let off = gates().with("StatefulSetUpdateVolumeClaimTemplate", false);
    let mut without = old.clone();
    without.cut(UPDATE_POLICY);
    assert_eq!(updated_with(&off, &old, without).0.at(UPDATE_POLICY), None);
}

/// T2, P02 to P05, P07: the same for both policies.
#[test]
fn t2_mutable_and_immutable_fields_of_a_claim_template() {
    for policy in ["OnClaimDelete", "InPlace"] {
        let mut object = set(UPDATE_POLICY, policy);
        let mut second = claim();
        second.put(&["metadata", "name"], "logs");
        object.put(&["spec", "volumeClaimTemplates"], json!([claim(), second]));
        let old = created(object);
        let edit = |path: &[&str], value: Value| {
            let mut templates = old["spec"]["volumeClaimTemplates"].clone();
            templates[0].put(path, value);
            change(&old, &["spec", "volumeClaimTemplates"], templates)
        };
        let storage = &["spec", "resources", "requests", "storage"];
        for (path, value) in [
            (&storage[..], json!("2Gi")),
            (&["spec", "volumeAttributesClassName"], json!("gold")),
            (&["metadata", "labels"], json!({"tier": "fast"})),
            (&["metadata", "annotations"], json!({"note": "any text"})),
        ] {
            assert_eq!(edit(path, value.clone()), Vec::<String>::new(), "{path:?} {value}");
        }
        let at = "spec.volumeClaimTemplates[0]";
        let less =
            format!("{at}.spec.resources.requests[storage]: Forbidden: field can not be less than previous value");
        assert_eq!(edit(storage, json!("512Mi")), [less]);
        let fraction = format!("{at}.spec.resources.requests[storage]: Forbidden: a size is a whole number of bytes");
        assert_eq!(edit(storage, json!("3000000000500m")), [fraction]);
        assert!(
            edit(&["spec", "volumeAttributesClassName"], json!("Not Valid"))[0]
                .starts_with(&format!("{at}.spec.volumeAttributesClassName: Invalid value"))
        );
        assert!(
            edit(&["metadata", "labels"], json!({"a": "b c"}))[0]
                .starts_with(&format!("{at}.metadata.labels: Invalid value"))
        );
        for (path, value) in [
            (&["spec", "storageClassName"][..], json!("other")),
            (&["spec", "accessModes"], json!(["ReadWriteMany"])),
            (&["spec", "volumeMode"], json!("Block")),
            (&["spec", "resources", "limits"], json!({"storage": "9Gi"})),
            (&["metadata", "finalizers"], json!(["example.com/x"])),
            (&["metadata", "name"], json!("renamed")),
        ] {
            let messages = edit(path, value);
            assert_eq!(messages.len(), 1, "{messages:?}");
            assert!(messages[0].starts_with("spec.volumeClaimTemplates: Invalid value: "), "{messages:?}");
            assert!(
                messages[0].contains(": field is immutable; of a template only spec.resources.requests.storage"),
                "{messages:?}"
            );
            let named = if path[1] == "name" { "renamed" } else { path[1] };
            assert!(messages[0].rsplit(": ").next().unwrap_or("").contains(named), "{messages:?}");
        }
        let templates = old["spec"]["volumeClaimTemplates"].as_array().cloned().unwrap_or_default();
        for templates in [json!([]), json!([templates[0]]), json!([templates[1], templates[0]])] {
            assert_eq!(change(&old, &["spec", "volumeClaimTemplates"], templates).len(), 1);
        }
    }
}
