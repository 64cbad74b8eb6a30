use super::*;
use crate::csi::Abilities;

const GI: i64 = 1 << 30;

fn driver(expand: bool, node_expand: bool) -> Driver {
    let can = Abilities { expand, node_expand, ..Abilities::default() };
    Driver { name: "d".to_owned(), can, ..Driver::default() }
}

/// A bound claim: what it requests, has, and was allocated (GiB, 0 = not), and its resize status.
fn claim(request: i64, actual: i64, allocated: i64, state: &str) -> Value {
    let mut claim = json!({
        "metadata": {"namespace": "n", "name": "c", "uid": "cu", "resourceVersion": "7"},
        "spec": {"volumeName": "v", "resources": {"requests": {"storage": format!("{request}Gi")}}},
        "status": {"phase": "Bound", "capacity": {"storage": format!("{actual}Gi")}},
    });
    if allocated > 0 {
        claim.put(&["status", "allocatedResources", "storage"], format!("{allocated}Gi"));
    }
    if !state.is_empty() {
        claim.put(&["status", "allocatedResourceStatuses", "storage"], state);
    }
    claim
}

fn volume(size: i64) -> Value {
    json!({
        "metadata": {"name": "v", "uid": "vu", "resourceVersion": "9"},
        "spec": {
            "capacity": {"storage": format!("{size}Gi")}, "accessModes": ["ReadWriteOnce"],
            "csi": {"driver": "d", "volumeHandle": "h", "fsType": "xfs", "controllerExpandSecretRef": {"name": "s", "namespace": "m"}},
            "claimRef": {"namespace": "n", "name": "c", "uid": "cu"},
        },
    })
}

fn now() -> Timestamp {
    "2024-01-01T00:00:00Z".parse().unwrap()
}

fn planned(claim: &Value, volume: &Value, driver: &Driver, memory: &Memory) -> Step {
    plan(claim, volume, driver, memory, || true, now())
}

/// The claim after a merge patch of its status.
fn patched(claim: &Value, patch: Option<&Value>) -> Value {
    let mut claim = claim.clone();
    if let Some(patch) = patch {
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        merge(&mut claim, patch);
    }
    claim
}

fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(members) = patch else {
        *object = patch.clone();
        return;
    };
    for (key, value) in members {
        if value.is_null() {
            object.cut(&[key]);
        } else {
            merge(object.entry(&[key]), value);
        }
    }
}

fn conditions(claim: &Value) -> Vec<&str> {
    claim.items(&["status", "conditions"]).iter().map(|condition| condition.text(&["type"])).collect()
}

/// The table of digest 6.3.
#[test]
fn the_size_to_ask_for() {
    let (both, node_only) = (driver(true, true), driver(false, true));
    let fresh = Memory::default();
    let ended = Memory { ended: true, ..Memory::default() };
    // volume, request, actual, allocated, state, driver, memory -> target
    let cases = [
        (1, 3, 1, 0, "", &both, &fresh, Some(3)),
        (1, 3, 1, 2, "NodeResizeInfeasible", &both, &fresh, Some(2)),
        (1, 3, 1, 2, "NodeResizePending", &both, &fresh, Some(2)),
        (2, 3, 1, 2, "NodeResizePending", &both, &fresh, None),
        (2, 3, 1, 2, "NodeResizeInProgress", &both, &fresh, None),
        (1, 3, 1, 5, "ControllerResizeInProgress", &both, &fresh, Some(5)),
        (1, 3, 1, 5, "ControllerResizeInProgress", &both, &ended, Some(3)),
        (1, 3, 1, 5, "ControllerResizeInfeasible", &both, &fresh, Some(3)),
        (5, 3, 1, 5, "NodeResizePending", &both, &fresh, None),
        (5, 3, 1, 5, "NodeResizeInProgress", &both, &fresh, None),
        (5, 3, 1, 5, "NodeResizeInfeasible", &both, &fresh, Some(5)),
        (5, 3, 1, 5, "NodeResizeInfeasible", &node_only, &fresh, Some(3)),
        (5, 3, 1, 5, "ControllerResizeInProgress", &both, &ended, Some(5)),
        (5, 3, 1, 5, "ControllerResizeInfeasible", &both, &fresh, Some(5)),
        (5, 3, 1, 5, "", &both, &fresh, Some(5)),
        (3, 3, 1, 0, "", &both, &fresh, Some(3)),
        (3, 1, 1, 0, "", &both, &fresh, None),
        (1, 3, 1, 0, "", &driver(false, false), &fresh, None),
    ];
    for (size, request, actual, allocated, state, driver, memory, want) in cases {
        let step = planned(&claim(request, actual, allocated, state), &volume(size), driver, memory);
        let target = if let Step::Expand(expansion) = &step { Some(expansion.bytes / GI) } else { None };
        assert_eq!(target, want, "{size} {request} {actual} {allocated} {state} {:?}: {step:?}", driver.can);
    }
    let mut waiting = claim(3, 1, 0, "");
    waiting.put(&["status", "conditions"], json!([{"type": "FileSystemResizePending", "status": "True"}]));
    assert_eq!(planned(&waiting, &volume(3), &both, &fresh), Step::Nothing);
}

#[test]
fn only_bound_claims_of_the_driver_that_want_more() {
    let mut pending = claim(3, 1, 0, "");
    pending.put(&["status", "phase"], "Pending");
    assert!(!wants_more(&pending));
    assert!(wants_more(&claim(3, 1, 0, "")));
    assert!(is_for(&claim(3, 1, 0, ""), &volume(1), "d"));
    assert!(!is_for(&claim(3, 1, 0, ""), &volume(1), "e"));
    let mut other = volume(1);
    other.put(&["spec", "claimRef", "uid"], "x");
    assert!(!is_for(&claim(3, 1, 0, ""), &other, "d"));
}

/// I1
#[test]
fn a_driver_without_node_expansion() {
    let (driver, volume) = (driver(true, false), volume(1));
    let mut claim = claim(2, 1, 0, "");
    claim.put(&["metadata", "annotations", NO_NODE_PART], "true");
    let Step::Expand(expansion) = planned(&claim, &volume, &driver, &Memory::default()) else { panic!() };
    assert_eq!(expansion.begins.message, "External resizer is resizing volume v");
    let marked = patched(&claim, expansion.mark.as_ref());
    assert_eq!(conditions(&marked), ["Resizing"]);
    assert_eq!(marked["status"]["allocatedResources"]["storage"], "2Gi");
    assert_eq!(marked["status"]["allocatedResourceStatuses"]["storage"], "ControllerResizeInProgress");
    assert!(!marked.has(&["metadata", "annotations", NO_NODE_PART]));
    let call = expansion.call.unwrap();
    assert_eq!((call.handle.as_str(), call.bytes), ("h", 2 * GI));
    assert_eq!(call.secret, Some(SecretRef { namespace: "m".to_owned(), name: "s".to_owned() }));

    // A repeated attempt has nothing to mark.
    let Step::Expand(again) = planned(&marked, &volume, &driver, &Memory::default()) else { panic!() };
    assert_eq!(again.mark, None);

    let answer = Ok(Expanded { bytes: 2 * GI, node_part: false });
    let finish = finish(&marked, &volume, &driver, 2 * GI, answer, &mut Memory::default(), now());
    // With the seen version: a late patch must not shrink a volume that has grown since.
    let of_version = json!({"uid": "vu", "resourceVersion": "9"});
    assert_eq!(finish.volume.unwrap(), json!({"metadata": of_version, "spec": {"capacity": {"storage": "2Gi"}}}));
    let done = patched(&marked, finish.claim.as_ref());
    assert_eq!(conditions(&done), [] as [&str; 0]);
    assert_eq!(done["status"]["capacity"]["storage"], "2Gi");
    assert_eq!(done["status"]["allocatedResources"]["storage"], "2Gi");
    assert!(!done.has(&["status", "allocatedResourceStatuses"]));
    assert_eq!(done["metadata"]["annotations"][NO_NODE_PART], "true");
    assert_eq!(finish.event.unwrap().reason, "VolumeResizeSuccessful");
    assert!(!finish.again);
}

/// I2, and drivers that expand on nodes only.
#[test]
fn nodes_finish_the_expansion() {
    for driver in [driver(true, true), driver(false, true)] {
        let (claim, mut volume) = (claim(2, 1, 0, ""), volume(1));
        let Step::Expand(expansion) = planned(&claim, &volume, &driver, &Memory::default()) else { panic!() };
        assert_eq!(expansion.call.is_some(), driver.can.expand);
        let marked = patched(&claim, expansion.mark.as_ref());
        let answer = Ok(Expanded { bytes: 2 * GI, node_part: true });
        let finish = finish(&marked, &volume, &driver, 2 * GI, answer, &mut Memory::default(), now());
        merge(&mut volume, finish.volume.as_ref().unwrap());
        assert_eq!(volume["spec"]["capacity"]["storage"], "2Gi");
        assert_eq!(annotation(&volume, SIZE_BEFORE), "1Gi");
        let mut waiting = patched(&marked, finish.claim.as_ref());
        assert_eq!(conditions(&waiting), ["FileSystemResizePending"]);
        assert_eq!(waiting["status"]["allocatedResourceStatuses"]["storage"], "NodeResizePending");
        assert_eq!(waiting["status"]["capacity"]["storage"], "1Gi");
        assert_eq!(finish.event.unwrap().reason, "FileSystemResizeRequired");
        assert_eq!(planned(&waiting, &volume, &driver, &Memory::default()), Step::Nothing);

        // The node has finished: the annotation is removed.
        waiting.put(&["status", "capacity", "storage"], "2Gi");
        let Step::Unmark(patch) = planned(&waiting, &volume, &driver, &Memory::default()) else { panic!() };
        assert_eq!(patch["metadata"]["annotations"], json!({SIZE_BEFORE: null}));
    }
}

/// The table of digest 6.4, I6.
#[test]
fn failures_by_class() {
    use Code::*;
    // code -> state, error condition, ended, slow, offline
    let cases = [
        (DeadlineExceeded, "ControllerResizeInProgress", false, false, false, false),
        (ResourceExhausted, "ControllerResizeInProgress", false, false, false, false),
        (Unavailable, "ControllerResizeInProgress", false, false, false, false),
        (InvalidArgument, "ControllerResizeInfeasible", true, true, true, false),
        (OutOfRange, "ControllerResizeInfeasible", true, true, true, false),
        (NotFound, "ControllerResizeInfeasible", true, true, true, false),
        (FailedPrecondition, "ControllerResizeInProgress", true, true, false, true),
        (Internal, "ControllerResizeInProgress", true, true, false, false),
    ];
    for (code, state, error, ended, slow, offline) in cases {
        let (driver, volume, claim) = (driver(true, false), volume(1), claim(11, 1, 0, ""));
        let Step::Expand(expansion) = planned(&claim, &volume, &driver, &Memory::default()) else { panic!() };
        let marked = patched(&claim, expansion.mark.as_ref());
        let mut memory = Memory::default();
        let finish = finish(&marked, &volume, &driver, 11 * GI, Err(Failure::new(code, "x")), &mut memory, now());
        let after = patched(&marked, finish.claim.as_ref());
        assert_eq!(after["status"]["allocatedResourceStatuses"]["storage"], state, "{code}");
        assert_eq!(conditions(&after).contains(&"ControllerResizeError"), error, "{code}");
        assert_eq!((memory.ended, memory.slow.is_some(), memory.offline_only), (ended, slow, offline), "{code}");
        assert_eq!(finish.event.unwrap().reason, "VolumeResizeFailed");
        assert!(finish.again && finish.volume.is_none());
        assert_eq!(matches!(planned(&after, &volume, &driver, &memory), Step::Rest(_)), slow, "{code}");
        let jumped_back = plan(&after, &volume, &driver, &memory, || true, now() - SignedDuration::from_hours(1));
        assert!(!matches!(jumped_back, Step::Rest(_)), "{code}: no rest lasts longer than it was given");
        assert_eq!(matches!(planned(&after, &volume, &driver, &memory), Step::InUse(_)), offline, "{code}");
    }
}

/// Recovery: after a final failure a smaller request is sent at once, after an unknown outcome only when that is known.
#[test]
fn a_request_can_be_lowered_after_a_final_failure() {
    let (driver, volume) = (driver(true, false), volume(1));
    for (code, want) in [(Code::OutOfRange, 2), (Code::Internal, 2), (Code::DeadlineExceeded, 11)] {
        let claim = claim(11, 1, 0, "");
        let Step::Expand(expansion) = planned(&claim, &volume, &driver, &Memory::default()) else { panic!() };
        let marked = patched(&claim, expansion.mark.as_ref());
        let mut memory = Memory::default();
        let finish = finish(&marked, &volume, &driver, 11 * GI, Err(Failure::new(code, "x")), &mut memory, now());
        let mut after = patched(&marked, finish.claim.as_ref());
        after.put(&["spec", "resources", "requests", "storage"], "2Gi");
        let Step::Expand(next) = planned(&after, &volume, &driver, &memory) else { panic!("{code}") };
        assert_eq!(next.bytes / GI, want, "{code}");
        if want == 2 {
            let lowered = patched(&after, next.mark.as_ref());
            assert_eq!(lowered["status"]["allocatedResources"]["storage"], "2Gi");
            assert_eq!(conditions(&lowered), ["Resizing"]);
        }
    }
}

#[test]
fn wrong_responses_do_not_shrink_a_volume() {
    let (driver, volume) = (driver(true, false), volume(1));
    let claim = patched(&claim(2, 1, 0, ""), None);
    let mut memory = Memory::default();
    let less = Ok(Expanded { bytes: GI, node_part: false });
    let finished = finish(&claim, &volume, &driver, 2 * GI, less, &mut memory, now());
    assert!(finished.again && finished.volume.is_none());
    let silent = Ok(Expanded { bytes: 0, node_part: false });
    let finished = finish(&claim, &volume, &driver, 2 * GI, silent, &mut memory, now());
    assert_eq!(finished.volume.unwrap()["spec"]["capacity"]["storage"], "2Gi");
}
