use super::*;

const RETAIN: &str = "Retain";
const DELETE: &str = "Delete";

/// A volume of driver `d`; `marks` are: `held` (has the finalizer), `leaving` (being deleted), `recorded` (has the
/// annotation), `protected` (annotation with the finalizer), `restored` (annotation with another uid), `confirmed`,
/// `freed` (without claim).
fn volume(phase: &str, policy: &str, marks: &str) -> Value {
    let has = |mark: &str| marks.split(' ').any(|word| word == mark);
    let mut volume = json!({
        "metadata": {"name": "v", "uid": "vu", "annotations": {PROVISIONED_BY: "d"}, "finalizers": ["kubernetes.io/pv-protection"]},
        "spec": {
            "persistentVolumeReclaimPolicy": policy, "csi": {"driver": "d", "volumeHandle": "h"},
            "claimRef": {"namespace": "n", "name": "c", "uid": "cu"},
        },
        "status": {"phase": phase},
    });
    let record = if has("protected") {
        "vu/cu/protected"
    } else if has("recorded") {
        "vu/cu"
    } else if has("restored") {
        "old/cu/protected"
    } else {
        ""
    };
    if !record.is_empty() {
        volume.put(&["metadata", "annotations", RECORD], record);
    }
    if has("held") {
        volume.put(&["metadata", "finalizers"], json!(["kubernetes.io/pv-protection", FINALIZER]));
    }
    if has("leaving") {
        volume.put(&["metadata", "deletionTimestamp"], "2024-01-01T00:00:00Z");
    }
    if has("freed") {
        volume.put(&["spec", "claimRef"], Value::Null);
    }
    if has("confirmed") {
        volume.put(&["metadata", "annotations", CONFIRM], "h");
    }
    volume
}

fn planned(volume: &Value, deletion: bool, honor: bool) -> Plan {
    plan(&Seen { volume, class: None, served: false, deletion, written: false }, "d", honor)
}

/// `+` adds the finalizer, `-` removes it, `r` writes the annotation.
fn patched(plan: &Plan) -> String {
    let Some(patch) = &plan.patch else { return String::new() };
    assert_eq!(patch["metadata"]["uid"], "vu", "only this volume");
    let mut text = String::new();
    if patch.has(&["metadata", "finalizers"]) {
        text.push('+');
    }
    if patch.has(&["metadata", "$deleteFromPrimitiveList/finalizers"]) {
        assert!(
            patch.has(&["metadata", "resourceVersion"]),
            "only this version: it may arrive when the policy is another"
        );
        text.push('-');
    }
    if patch.has(&["metadata", "annotations", RECORD]) {
        text.push('r');
    }
    text
}

fn word(step: &Step) -> &'static str {
    match step {
        Step::Nothing => "",
        Step::JournalDeletion(_) => "journal deletion",
        Step::CancelDeletion => "spare",
        Step::Delete(_) => "delete",
        Step::Keep(_) => "keep",
        Step::Stripped => "stripped",
        Step::Left(_) => "left",
        Step::Failed(_) => "failed",
    }
}

/// H1, H2, H5, H6; the digest's 4.3 and 4.4, G2, G4 and the settled disagreements.
#[test]
fn the_table_of_states() {
    // phase, policy, marks, deletion -> patch, step
    let cases = [
        // Bound: finalizer and annotation follow the policy.
        ("Bound", DELETE, "", false, "+r", ""),
        ("Bound", DELETE, "held", false, "r", ""),
        ("Bound", DELETE, "held protected", false, "", ""),
        ("Bound", RETAIN, "", false, "r", ""),
        ("Bound", RETAIN, "recorded", false, "", ""),
        ("Bound", RETAIN, "held protected", false, "-r", ""),
        ("Bound", DELETE, "recorded", false, "+r", ""),
        // A user removed the finalizer: it is added again while that is possible.
        ("Bound", DELETE, "protected", false, "+", ""),
        // The volume is deleted first: the finalizer keeps it until the claim is deleted.
        ("Bound", DELETE, "held protected leaving", false, "", ""),
        ("Released", DELETE, "held protected leaving", false, "", "delete"),
        ("Bound", RETAIN, "recorded leaving", false, "", ""),
        ("Released", RETAIN, "recorded leaving", false, "", ""),
        // Delete, then Retain, while being deleted.
        ("Bound", RETAIN, "held protected leaving", false, "-r", ""),
        // Retain, then Delete, while being deleted: no finalizer can be added any more.
        ("Bound", DELETE, "recorded leaving", false, "", "journal deletion"),
        ("Bound", DELETE, "recorded leaving", true, "", ""),
        ("Released", DELETE, "recorded leaving", true, "", "delete"),
        ("Released", DELETE, "recorded leaving", false, "", "journal deletion"),
        ("Bound", RETAIN, "recorded leaving", true, "", "spare"),
        // Bound and deleted before the finalizer could be added.
        ("Bound", DELETE, "leaving", false, "r", "journal deletion"),
        // A user removed the finalizer while the volume was being deleted.
        ("Bound", DELETE, "protected leaving", false, "", "stripped"),
        ("Released", DELETE, "protected leaving", false, "", "stripped"),
        // The claim is deleted first.
        ("Released", DELETE, "held protected", false, "", "delete"),
        ("Released", RETAIN, "recorded", false, "", ""),
        ("Released", DELETE, "recorded", false, "", "delete"),
        // From a backup, or never seen bound: kept until confirmed.
        ("Released", DELETE, "held restored", false, "", "keep"),
        ("Released", DELETE, "", false, "", "keep"),
        ("Released", DELETE, "confirmed", false, "", "delete"),
        ("Released", DELETE, "held restored leaving", false, "", "keep"),
        ("Released", DELETE, "restored leaving", false, "", ""),
        ("Released", RETAIN, "held restored", false, "-", ""),
        // It is used again.
        ("Bound", DELETE, "held restored", false, "r", ""),
        // Without claim the volume is never released, so its finalizer is removed when it is deleted.
        ("Available", DELETE, "held protected freed", false, "", ""),
        ("Available", DELETE, "held protected freed leaving", false, "-", "left"),
        ("Bound", DELETE, "held protected freed leaving", false, "", ""),
        ("Available", DELETE, "held protected leaving", false, "", ""),
        // Other phases decide nothing.
        ("Available", DELETE, "", false, "", ""),
        ("Available", DELETE, "leaving", false, "", ""),
        ("Pending", DELETE, "held", false, "", ""),
        ("Failed", DELETE, "held protected", false, "", ""),
    ];
    for (phase, policy, marks, deletion, patch, step) in cases {
        let plan = planned(&volume(phase, policy, marks), deletion, true);
        assert_eq!(
            (patched(&plan).as_str(), word(&plan.step)),
            (patch, step),
            "{phase} {policy} [{marks}] deletion: {deletion}"
        );
    }
}

/// H8: as before KEP-2644; finalizers from a time with the gate on are removed.
#[test]
fn with_the_gate_off_volumes_being_deleted_are_ignored() {
    let cases = [
        ("Bound", DELETE, "", "r", ""),
        ("Bound", DELETE, "held protected", "-r", ""),
        ("Released", DELETE, "recorded", "", "delete"),
        ("Released", DELETE, "recorded leaving", "", ""),
        ("Released", DELETE, "held protected leaving", "-r", ""),
        ("Released", DELETE, "restored", "", "keep"),
    ];
    for (phase, policy, marks, patch, step) in cases {
        let plan = planned(&volume(phase, policy, marks), false, false);
        assert_eq!((patched(&plan).as_str(), word(&plan.step)), (patch, step), "{phase} {policy} [{marks}]");
    }
    let gone = volume("Released", DELETE, "recorded leaving");
    assert_eq!(
        vanished(&Seen { volume: &gone, class: None, served: false, deletion: false, written: false }, "d", false),
        None
    );
}

#[test]
fn volumes_without_our_finalizer_are_deleted_and_those_freed_by_hand_are_not() {
    let cases = [
        (DELETE, "recorded leaving", true),
        (DELETE, "recorded", true),
        (DELETE, "protected leaving", false),
        (DELETE, "held protected", false),
        (DELETE, "", false),
        (DELETE, "restored leaving", false),
        (RETAIN, "recorded leaving", false),
    ];
    for (policy, marks, want) in cases {
        let gone = volume("Released", policy, marks);
        let found =
            vanished(&Seen { volume: &gone, class: None, served: false, deletion: false, written: false }, "d", true);
        assert_eq!(found.is_some(), want, "{policy} [{marks}]");
    }
    let seen = volume("Released", DELETE, "");
    assert!(
        vanished(&Seen { volume: &seen, class: None, served: true, deletion: false, written: false }, "d", true)
            .is_some()
    );
}

#[test]
fn a_kept_volume_reports_once_why_and_what_to_do() {
    let mut kept = volume("Released", DELETE, "held restored");
    let plan = planned(&kept, false, true);
    let status = plan.status.unwrap();
    assert_eq!(status["status"]["reason"], UNCONFIRMED);
    assert!(status["status"]["message"].as_str().unwrap().contains("mainstay.dev/confirm-delete=h"));
    kept.put(&["status", "reason"], UNCONFIRMED);
    assert_eq!(planned(&kept, false, true).status, None);
    kept.put(&["status", "phase"], "Bound");
    let plan = planned(&kept, false, true);
    assert_eq!(plan.status.unwrap()["status"], json!({"reason": null, "message": null}));

    let mut wrong = volume("Released", DELETE, "restored");
    wrong.put(&["metadata", "annotations", CONFIRM], "another");
    assert_eq!(word(&planned(&wrong, false, true).step), "keep");
}

/// H4, and the digest's 4.3: which driver a volume belongs to.
#[test]
fn responsibility_follows_the_provisioner_and_the_migration() {
    let of = |annotations: Value, source: &str| json!({"metadata": {"annotations": annotations}, "spec": {"csi": {"driver": source, "volumeHandle": "h"}}});
    let cases = [
        (of(json!({PROVISIONED_BY: "d"}), "d"), true),
        (of(json!({PROVISIONED_BY: "e"}), "d"), false),
        (of(json!({PROVISIONED_BY: "kubernetes.io/x", MIGRATED_TO: "d"}), ""), true),
        (of(json!({PROVISIONED_BY: "kubernetes.io/x"}), ""), false),
        (of(json!({}), "d"), true),
        (of(json!({}), "e"), false),
        (of(json!({MIGRATED_TO: "d"}), ""), true),
    ];
    for (volume, want) in cases {
        assert_eq!(is_of(&volume, "d"), want, "{volume}");
    }
}

/// G11: the phase may be forged; the claim decides.
#[test]
fn a_claim_uses_the_volume_unless_it_is_bound_elsewhere() {
    let claim = |uid: &str, volume: &str| json!({"metadata": {"uid": uid}, "spec": {"volumeName": volume}});
    for leaving in [false, true] {
        assert!(uses(&claim("cu", "v"), "cu", "v", leaving));
        assert_eq!(uses(&claim("cu", ""), "cu", "v", leaving), !leaving);
        assert!(!uses(&claim("cu", "w"), "cu", "v", leaving));
        assert!(!uses(&claim("other", "v"), "cu", "v", leaving));
    }
}

mod interleavings;
