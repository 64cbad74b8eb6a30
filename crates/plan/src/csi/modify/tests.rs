use super::*;
use crate::csi::Abilities;

fn driver() -> Driver {
    Driver { name: "d".to_owned(), can: Abilities { modify: true, ..Abilities::default() }, ..Driver::default() }
}

/// A bound claim with its wanted and its current class, the target and the state of a change; empty = none.
fn claim(wanted: &str, current: &str, target: &str, state: &str) -> Value {
    let mut claim = json!({
        "metadata": {"namespace": "n", "name": "c", "uid": "cu", "resourceVersion": "7"},
        "spec": {"volumeName": "v"}, "status": {"phase": "Bound"},
    });
    for (path, value) in [
        (&["spec", "volumeAttributesClassName"][..], wanted),
        (&["status", "currentVolumeAttributesClassName"], current),
        (&["status", "modifyVolumeStatus", "targetVolumeAttributesClassName"], target),
        (&["status", "modifyVolumeStatus", "status"], state),
    ] {
        if !value.is_empty() {
            claim.put(path, value);
        }
    }
    claim
}

fn volume() -> Value {
    json!({"metadata": {"name": "v", "uid": "vu", "resourceVersion": "9"}, "spec": {"csi": {"driver": "d", "volumeHandle": "h"}}})
}

fn class(name: &str) -> Value {
    json!({"metadata": {"name": name}, "driverName": "d", "parameters": {"class": name}})
}

fn now() -> Timestamp {
    "2024-01-01T00:00:00Z".parse().unwrap()
}

/// With all existing classes.
fn planned(claim: &Value, memory: &Memory) -> Step {
    let class = class(next_class(claim, memory));
    plan(claim, &volume(), Some(&class), &driver(), memory, now())
}

fn asked(claim: &Value, memory: &Memory) -> Option<String> {
    match planned(claim, memory) {
        Step::Modify(modification) => Some(modification.call.parameters["class"].clone()),
        _ => None,
    }
}

fn marked(claim: &Value, memory: &Memory) -> Value {
    let Step::Modify(modification) = planned(claim, memory) else { panic!() };
    let mut claim = claim.clone();
    if let Some(mark) = modification.mark {
        claim.put(&["status", "modifyVolumeStatus"], mark["status"]["modifyVolumeStatus"].clone());
        if mark.has(&["status", "conditions"]) {
            claim.put(&["status", "conditions"], mark["status"]["conditions"].clone());
        }
    }
    claim
}

/// Digest 6.7
#[test]
fn which_class_is_requested() {
    let (fresh, ended) = (Memory::default(), Memory { ended: true, slow: None });
    let cases = [
        (claim("gold", "", "", ""), &fresh, Some("gold")),
        (claim("gold", "gold", "", ""), &fresh, None),
        (claim("", "", "", ""), &fresh, None),
        (claim("silver", "gold", "", ""), &fresh, Some("silver")),
        // J5, J6: a call in progress is finished first, also after a restart.
        (claim("silver", "", "gold", "InProgress"), &fresh, Some("gold")),
        (claim("silver", "", "gold", "InProgress"), &ended, Some("silver")),
        (claim("", "", "gold", "InProgress"), &ended, Some("gold")),
        (claim("silver", "", "gold", "Infeasible"), &fresh, Some("silver")),
        (claim("gold", "gold", "silver", "Infeasible"), &fresh, Some("gold")),
        (claim("gold", "", "", "Pending"), &fresh, Some("gold")),
    ];
    for (claim, memory, want) in cases {
        assert_eq!(asked(&claim, memory).as_deref(), want, "{claim} {memory:?}");
    }
}

/// J1
#[test]
fn the_volume_is_written_before_the_claim() {
    let wish = claim("gold", "", "", "");
    let claim = marked(&wish, &Memory::default());
    assert_eq!(
        claim["status"]["modifyVolumeStatus"],
        json!({"targetVolumeAttributesClassName": "gold", "status": "InProgress"})
    );
    assert!(condition::is_true(&claim, "ModifyingVolume"));
    let finish = finish(&claim, &volume(), "gold", Ok(()), &mut Memory::default(), now());
    // With the seen version: a late patch must not undo a newer class.
    let of_version = json!({"uid": "vu", "resourceVersion": "9"});
    assert_eq!(finish.volume.unwrap(), json!({"metadata": of_version, "spec": {"volumeAttributesClassName": "gold"}}));
    let status = &finish.claim.unwrap()["status"];
    assert_eq!(status["currentVolumeAttributesClassName"], "gold");
    assert_eq!(status["modifyVolumeStatus"], Value::Null);
    assert_eq!(status["conditions"], json!([]));
    assert_eq!(finish.event.unwrap().reason, "VolumeModifySuccessful");
}

/// J2
#[test]
fn failures_by_class() {
    for (code, infeasible, ended) in [
        (Code::InvalidArgument, true, true),
        (Code::Internal, false, true),
        (Code::DeadlineExceeded, false, false),
        (Code::ResourceExhausted, false, false),
    ] {
        let claim = marked(&claim("gold", "", "", ""), &Memory::default());
        let mut memory = Memory::default();
        let finish = finish(&claim, &volume(), "gold", Err(Failure::new(code, "x")), &mut memory, now());
        let status = &finish.claim.as_ref().unwrap()["status"];
        let error =
            status["conditions"].as_array().unwrap().iter().find(|one| one["type"] == "ModifyVolumeError").unwrap();
        assert_eq!(error["reason"], code.to_string());
        assert_eq!(status["modifyVolumeStatus"]["status"] == "Infeasible", infeasible, "{code}");
        assert_eq!((memory.ended, memory.slow.is_some()), (ended, infeasible), "{code}");
        assert!(finish.again);
        if infeasible {
            let mut claim = claim.clone();
            claim.put(&["status", "modifyVolumeStatus", "status"], "Infeasible");
            assert!(matches!(planned(&claim, &memory), Step::Rest(_)));
            let before = now() - jiff::SignedDuration::from_hours(1);
            let jumped_back = plan(&claim, &self::volume(), Some(&class("gold")), &driver(), &memory, before);
            assert!(!matches!(jumped_back, Step::Rest(_)), "no delay is longer than the given one");
            claim.put(&["spec", "volumeAttributesClassName"], "silver");
            assert_eq!(asked(&claim, &memory).as_deref(), Some("silver"), "another class is not delayed");
        }
    }
}

/// J4
#[test]
fn a_reverted_change_is_canceled_once() {
    let mut claim = claim("", "", "gold", "Infeasible");
    claim.put(&["status", "conditions"], json!([{"type": "ModifyingVolume"}, {"type": "ModifyVolumeError"}]));
    let Step::Note { claim: Some(patch), event: Some(event) } = planned(&claim, &Memory::default()) else { panic!() };
    assert_eq!(patch["status"], json!({"conditions": [{"type": "ModifyVolumeError"}]}));
    assert_eq!((event.reason, event.message.as_str()), ("VolumeModifyCanceled", "Cancelled modify."));
    claim.put(&["status", "conditions"], json!([{"type": "ModifyVolumeError"}]));
    assert_eq!(planned(&claim, &Memory::default()), Step::Nothing);
}

/// J7
#[test]
fn a_missing_class_or_one_of_another_driver_is_waited_for() {
    let claim = claim("gold", "", "", "");
    let step = plan(&claim, &volume(), None, &driver(), &Memory::default(), now());
    let Step::Note { claim: Some(patch), event: Some(event) } = step else { panic!() };
    assert_eq!(patch["status"], json!({"modifyVolumeStatus": {"status": "Pending"}}));
    assert_eq!(event.message, "VAC \"gold\" does not exist.");
    let mut foreign = class("gold");
    foreign.put(&["driverName"], "e");
    let step = plan(&claim, &volume(), Some(&foreign), &driver(), &Memory::default(), now());
    assert!(matches!(step, Step::Note { event: Some(event), .. } if event.message.contains("is for driver e")));
}
