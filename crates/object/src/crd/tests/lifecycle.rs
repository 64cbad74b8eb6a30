//! The lifecycle of a definition, from its first write to its deletion.

use super::*;

fn established(name: &str, names: Value) -> Value {
    let mut definition = definition_of_spec(json!({"type": "object"}));
    definition["metadata"]["name"] = json!(name);
    definition["spec"]["names"] = names;
    with_ctx(|ctx| definition::Definition.default(&mut definition, ctx));
    establish(&mut definition, &[], now());
    definition
}

#[test]
fn a_definition_is_served_after_its_first_write() {
    let definition = established("widgets.example.com", json!({"plural": "widgets", "kind": "Widget"}));
    assert_eq!(
        definition["spec"]["names"],
        json!({"plural": "widgets", "kind": "Widget", "singular": "widget", "listKind": "WidgetList"})
    );
    assert_eq!(definition["spec"]["conversion"], json!({"strategy": "None"}));
    assert_eq!(definition["status"]["acceptedNames"], definition["spec"]["names"]);
    assert_eq!(definition["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(
        definition["status"]["conditions"],
        json!([
            {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found",
             "lastTransitionTime": "2026-11-15T10:00:00Z"},
            {"type": "Established", "status": "True", "reason": "InitialNamesAccepted",
             "message": "the initial names have been accepted", "lastTransitionTime": "2026-11-15T10:00:00Z"},
        ])
    );
    let mut again = definition.clone();
    assert!(
        !establish(&mut again, &[], "2027-01-01T00:00:00Z".parse().unwrap()),
        "a second call must not change anything"
    );
    assert_eq!(again, definition);
}

#[test]
fn names_in_use_are_not_accepted_for_another_definition() {
    let first =
        established("widgets.example.com", json!({"plural": "widgets", "kind": "Widget", "shortNames": ["w", "wi"]}));
    let cases = [
        (
            json!({"plural": "others", "kind": "Widget", "listKind": "OtherList"}),
            "KindConflict",
            "\"Widget\" is already in use",
        ),
        (json!({"plural": "others", "kind": "Other", "singular": "w"}), "SingularConflict", "\"w\" is already in use"),
        (
            json!({"plural": "others", "kind": "Other", "shortNames": ["w", "wi"]}),
            "ShortNamesConflict",
            "[\"w\" is already in use, \"wi\" is already in use]",
        ),
        (
            json!({"plural": "others", "kind": "Other", "listKind": "WidgetList"}),
            "ListKindConflict",
            "\"WidgetList\" is already in use",
        ),
        (json!({"plural": "widgets", "kind": "Other"}), "PluralConflict", "\"widgets\" is already in use"),
    ];
    for (names, reason, message) in cases {
        let mut second = definition_of_spec(json!({"type": "object"}));
        second["metadata"]["name"] = json!("others.example.com");
        second["spec"]["names"] = names;
        with_ctx(|ctx| definition::Definition.default(&mut second, ctx));
        establish(&mut second, std::slice::from_ref(&first), now());
        let conditions = second.items(&["status", "conditions"]);
        assert_eq!(conditions[0].text(&["status"]), "False", "{reason}");
        assert_eq!(conditions[0].text(&["reason"]), reason);
        assert_eq!(conditions[0].text(&["message"]), message);
        assert_eq!(conditions[1].text(&["reason"]), "NotAccepted");
        assert!(kinds_of(&second).is_empty(), "a definition without accepted names is not served");
        // The first definition is deleted, so its names are free.
        establish(&mut second, &[], now());
        assert_eq!(kinds_of(&second).len(), 1);
    }
}

#[test]
fn names_of_built_in_kinds_are_taken() {
    let mut definition = definition_of_spec(json!({"type": "object"}));
    definition["spec"]["group"] = json!("apiextensions.k8s.io");
    definition["spec"]["names"] = json!({"plural": "others", "kind": "CustomResourceDefinition"});
    establish(&mut definition, &[], now());
    assert_eq!(definition["status"]["conditions"][0]["reason"], "KindConflict");
}

#[test]
fn a_definition_is_deleted_after_its_objects() {
    let mut definition = established("widgets.example.com", json!({"plural": "widgets", "kind": "Widget"}));
    assert_eq!(cleanup(&definition, 3), Cleanup::Nothing);
    assert_eq!(refuses_create(&definition), None);
    mark_deleted(&mut definition, now());
    definition["metadata"]["deletionTimestamp"] = json!("2026-11-15T10:00:00Z");
    assert_eq!(definition["metadata"]["finalizers"], json!([CLEANUP_FINALIZER]));
    assert!(refuses_create(&definition).is_some());
    assert_eq!(kinds_of(&definition).len(), 1, "its objects must stay readable and deletable");
    assert_eq!(cleanup(&definition, 3), Cleanup::DeleteObjects);
    assert_eq!(cleanup(&definition, 0), Cleanup::Finish);
    finish(&mut definition, now());
    assert!(crate::write::is_released(&definition));
}

#[test]
fn updates_keep_immutable_fields() {
    let old = established("widgets.example.com", json!({"plural": "widgets", "kind": "Widget"}));
    let change = |path: &[&str], value: Value| {
        let mut new = old.clone();
        new.put(path, value);
        let mut errors = Errors::default();
        with_ctx(|ctx| definition::Definition.validate_update(&new, &old, ctx, &mut errors));
        errors.0.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(change(&["metadata", "labels"], json!({"a": "b"})), Vec::<String>::new());
    assert_eq!(
        change(&["spec", "scope"], json!("Cluster")),
        ["spec.scope: Invalid value: \"Cluster\": field is immutable"]
    );
    assert_eq!(
        change(&["spec", "names", "kind"], json!("Gadget")),
        ["spec.names.kind: Invalid value: \"Gadget\": field is immutable"]
    );
    assert_eq!(
        change(&["spec", "group"], json!("example.org")),
        ["spec.group: Invalid value: \"example.org\": field is immutable"]
    );
    assert_eq!(
        change(&["status", "storedVersions"], json!([])),
        ["status.storedVersions: Invalid value: []: must have at least one stored version"]
    );
    let gone = change(&["status", "storedVersions"], json!(["v1", "v1alpha1"]));
    assert!(
        gone[0].starts_with("status.storedVersions[1]: Invalid value: \"v1alpha1\": missing from spec.versions;"),
        "{gone:?}"
    );
}

#[test]
fn a_new_storage_version_is_remembered_beside_the_old_one() {
    let old = established("widgets.example.com", json!({"plural": "widgets", "kind": "Widget"}));
    let mut new = old.clone();
    let mut second = new["spec"]["versions"][0].clone();
    second["name"] = json!("v2");
    new["spec"]["versions"][0]["storage"] = json!(false);
    new["spec"]["versions"].as_array_mut().unwrap().push(second);
    let mut errors = Errors::default();
    with_ctx(|ctx| {
        definition::Definition.prepare_update(&mut new, &old, ctx);
        definition::Definition.validate_update(&new, &old, ctx, &mut errors);
    });
    assert_eq!(errors.0, Vec::new());
    assert_eq!(new["status"]["storedVersions"], json!(["v1", "v2"]));
}

#[test]
fn the_status_in_a_create_request_is_ignored() {
    let mut definition = established("widgets.example.com", json!({"plural": "widgets", "kind": "Widget"}));
    with_ctx(|ctx| definition::Definition.prepare_create(&mut definition, ctx));
    assert!(kinds_of(&definition).is_empty());
    assert_eq!(definition["status"]["storedVersions"], json!(["v1"]));
}

#[test]
fn the_kind_of_definitions_is_registered() {
    let rows = rows();
    assert_eq!(rows[0].resource(), "customresourcedefinitions.apiextensions.k8s.io");
    assert!(!rows[0].namespaced && rows[0].has_status());
    let mut definition = established("widgets.example.com", json!({"plural": "widgets", "kind": "Widget"}));
    definition["metadata"]["creationTimestamp"] = json!("2026-11-15T09:00:00Z");
    let cells = rows[0].rules.cells(&definition, now());
    assert_eq!(cells, [json!("widgets.example.com"), json!("2026-11-15T09:00:00Z")]);
}
