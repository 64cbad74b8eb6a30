//! Each invariant is violated once, and held once.

use super::*;
use object::json;

struct World {
    checker: Checker,
    now: Timestamp,
}

const SETS: Who<'_> = Who::Part(Who::SETS);
const COLLECTOR: Who<'_> = Who::Part(Who::COLLECTOR);
const NODE: Who<'_> = Who::Part("system:node:a");

impl World {
    fn new() -> World {
        let mut world = World { checker: Checker::new(Gates::default()), now: Timestamp::UNIX_EPOCH };
        let namespace = json!({"kind": "Namespace", "metadata": {"name": "ns", "uid": "ns"}});
        world.write(Who::User, namespace);
        world
    }

    /// Sets an object to this state.
    fn write(&mut self, who: Who<'_>, after: Value) -> Vec<String> {
        let before = self.checker.get(after.text(&["kind"]), namespace(&after), name(&after)).cloned();
        self.checker.see(&Change { who, now: self.now, before, after: Some(Arc::new(after)) })
    }

    fn remove(&mut self, who: Who<'_>, kind: &str, name: &str) -> Vec<String> {
        let place = if kind == "PersistentVolume" { "" } else { "ns" };
        let before = self.checker.get(kind, place, name).cloned();
        assert!(before.is_some(), "{kind} {name} is there");
        self.checker.see(&Change { who, now: self.now, before, after: None })
    }

    fn wait(&mut self, seconds: i64) {
        self.now += jiff::SignedDuration::from_secs(seconds);
    }
}

fn set(replicas: i64, more: Value) -> Value {
    let spec = object::patch::merge(&json!({"replicas": replicas}), &more);
    json!({"kind": "StatefulSet", "metadata": {"namespace": "ns", "name": "web", "uid": "web"}, "spec": spec})
}

fn policy(deleted: &str, scaled: &str) -> Value {
    json!({"persistentVolumeClaimRetentionPolicy": {"whenDeleted": deleted, "whenScaled": scaled}})
}

fn pod(ordinal: i64, uid: &str) -> Value {
    json!({
        "kind": "Pod",
        "metadata": {
            "namespace": "ns", "name": format!("web-{ordinal}"), "uid": uid,
            "ownerReferences": [{"kind": "StatefulSet", "name": "web", "uid": "web", "controller": true}],
        },
        "spec": {"nodeName": "a", "volumes": [{"persistentVolumeClaim": {"claimName": format!("data-web-{ordinal}")}}]},
        "status": {
            "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"state": {"running": {}}}],
        },
    })
}

fn claim(ordinal: i64, owner: Option<(&str, &str, &str)>) -> Value {
    let owners: Vec<Value> = owner
        .iter()
        .map(|(kind, name, uid)| json!({"kind": kind, "name": name, "uid": uid, "controller": true}))
        .collect();
    json!({
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "namespace": "ns", "name": format!("data-web-{ordinal}"), "uid": format!("claim-{ordinal}"),
            "ownerReferences": owners,
        },
        "spec": {"resources": {"requests": {"storage": "2Gi"}}, "volumeName": "volume"},
        "status": {"phase": "Bound", "capacity": {"storage": "2Gi"}},
    })
}

fn volume(policy: &str, phase: &str) -> Value {
    json!({
        "kind": "PersistentVolume", "metadata": {"name": "volume", "uid": "volume"},
        "spec": {
            "csi": {"volumeHandle": "handle"}, "persistentVolumeReclaimPolicy": policy, "capacity": {"storage": "2Gi"},
            "claimRef": {"namespace": "ns", "name": "data-web-0", "uid": "claim-0"},
        },
        "status": {"phase": phase},
    })
}

fn going(mut object: Value) -> Value {
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    object
}

const OF_SET: Option<(&str, &str, &str)> = Some(("StatefulSet", "web", "web"));

#[test]
fn a_claim_is_deleted_with_its_set_only_if_the_policy_says_so() {
    for (deleted, wrong) in [("Delete", false), ("Retain", true)] {
        let mut world = World::new();
        world.write(Who::User, set(1, policy(deleted, "Retain")));
        world.write(SETS, claim(0, OF_SET));
        world.remove(Who::User, "StatefulSet", "web");
        assert_eq!(!world.write(COLLECTOR, going(claim(0, OF_SET))).is_empty(), wrong, "{deleted}");
    }
    // Nor while it has another owner.
    let mut world = World::new();
    world.write(Who::User, set(1, policy("Delete", "Retain")));
    let mut shared = claim(0, OF_SET);
    let pod = json!({"kind": "Pod", "name": "web-0", "uid": "pod-0"});
    shared["metadata"]["ownerReferences"].as_array_mut().expect("owners").push(pod);
    world.write(SETS, shared.clone());
    world.remove(Who::User, "StatefulSet", "web");
    assert_eq!(world.write(COLLECTOR, going(shared)).len(), 1);
    // Not while the set exists, and not by another component; but always by a user.
    let mut world = World::new();
    world.write(Who::User, set(1, policy("Delete", "Delete")));
    world.write(SETS, claim(0, OF_SET));
    assert_eq!(world.write(COLLECTOR, going(claim(0, OF_SET))).len(), 1);
    world.write(SETS, claim(1, None));
    assert_eq!(world.remove(SETS, "PersistentVolumeClaim", "data-web-1").len(), 1);
    world.write(SETS, claim(2, None));
    assert!(world.remove(Who::User, "PersistentVolumeClaim", "data-web-2").is_empty());
}

#[test]
fn an_orphaned_set_deletes_no_claims_unless_a_user_deletes_it_again() {
    for (last, wrong) in [(COLLECTOR, true), (Who::User, false)] {
        let mut world = World::new();
        world.write(Who::User, set(1, policy("Delete", "Retain")));
        world.write(SETS, claim(0, OF_SET));
        let mut orphaning = going(set(1, policy("Delete", "Retain")));
        orphaning["metadata"]["finalizers"] = json!(["orphan"]);
        world.write(Who::User, orphaning);
        world.remove(last, "StatefulSet", "web");
        assert_eq!(!world.write(COLLECTOR, going(claim(0, OF_SET))).is_empty(), wrong);
        // A claim created after its set was deleted may be collected.
        world.write(SETS, claim(1, OF_SET));
        assert!(world.write(COLLECTOR, going(claim(1, OF_SET))).is_empty());
    }
}

/// A terminating set is changed to orphan its claims: a deletion at that moment may not have received this
/// change.
#[test]
fn orphaning_a_terminating_set_allows_for_delays() {
    for (wait, wrong) in [(0, false), (1000, true)] {
        let mut world = World::new();
        world.write(Who::User, set(1, policy("Delete", "Retain")));
        world.write(SETS, claim(0, OF_SET));
        let mut leaving = going(set(1, policy("Delete", "Retain")));
        leaving["metadata"]["finalizers"] = json!(["foregroundDeletion"]);
        world.write(Who::User, leaving.clone());
        leaving["metadata"]["finalizers"] = json!(["orphan"]);
        world.write(Who::User, leaving);
        world.wait(wait);
        assert_eq!(!world.write(COLLECTOR, going(claim(0, OF_SET))).is_empty(), wrong, "after {wait} s");
    }
}

#[test]
fn a_claim_is_deleted_with_its_pod_only_after_a_recent_scale_down() {
    let of_pod = Some(("Pod", "web-1", "pod-1"));
    for (replicas, wait, wrong) in [(2, 0, true), (1, 0, false), (1, 1000, false)] {
        let mut world = World::new();
        world.write(Who::User, set(2, policy("Retain", "Delete")));
        world.write(SETS, claim(1, of_pod));
        world.write(Who::User, set(replicas, policy("Retain", "Delete")));
        world.wait(wait);
        assert_eq!(!world.write(COLLECTOR, going(claim(1, of_pod))).is_empty(), wrong, "{replicas} {wait}");
    }
    let mut world = World::new();
    world.write(Who::User, set(1, policy("Retain", "Delete")));
    world.write(SETS, claim(1, of_pod));
    world.write(Who::User, set(2, policy("Retain", "Delete")));
    world.wait(1000);
    assert_eq!(world.write(COLLECTOR, going(claim(1, of_pod))).len(), 1);
}

#[test]
fn gates_decide_what_policies_mean() {
    let mut world = World::new();
    world.write(Who::User, set(1, policy("Delete", "Delete")));
    world.write(SETS, claim(0, OF_SET));
    world.checker.set_gates(Gates::default().with("StatefulSetAutoDeletePVC", false), world.now);
    world.wait(1000);
    world.remove(Who::User, "StatefulSet", "web");
    assert_eq!(world.write(COLLECTOR, going(claim(0, OF_SET))).len(), 1);
}

#[test]
fn claims_and_volumes_never_shrink() {
    let mut world = World::new();
    world.write(SETS, claim(0, None));
    let mut smaller = claim(0, None);
    smaller["spec"]["resources"]["requests"]["storage"] = json!("1Gi");
    assert!(world.write(Who::User, smaller).is_empty(), "a user may try, and the server decides");
    world.write(Who::User, claim(0, None));
    let mut smaller = claim(0, None);
    smaller["spec"]["resources"]["requests"]["storage"] = json!("2047Mi");
    assert_eq!(world.write(SETS, smaller).len(), 1);
    let mut smaller = claim(0, None);
    smaller["status"]["capacity"]["storage"] = json!("1Gi");
    assert_eq!(world.write(Who::User, smaller).len(), 1);
    world.write(SETS, volume("Delete", "Bound"));
    let mut smaller = volume("Delete", "Bound");
    smaller["spec"]["capacity"]["storage"] = json!("1Gi");
    assert_eq!(world.write(SETS, smaller).len(), 1);
}

#[test]
fn objects_in_use_are_kept() {
    let mut world = World::new();
    world.write(SETS, claim(0, None));
    world.write(SETS, volume("Delete", "Bound"));
    world.write(SETS, pod(0, "pod-0"));
    assert_eq!(world.remove(COLLECTOR, "PersistentVolume", "volume").len(), 1, "it is bound");
    world.write(Who::User, going(claim(0, None)));
    assert_eq!(world.remove(COLLECTOR, "PersistentVolumeClaim", "data-web-0").len(), 1, "a pod uses it");
    // A pod that was created after the claim's deletion began does not block it.
    world.write(SETS, claim(1, None));
    world.write(Who::User, going(claim(1, None)));
    world.write(SETS, pod(1, "pod-1"));
    assert!(world.remove(COLLECTOR, "PersistentVolumeClaim", "data-web-1").is_empty());
}

#[test]
fn a_backend_volume_is_deleted_only_after_its_claim_and_only_if_the_policy_says_so() {
    let mut world = World::new();
    world.write(SETS, claim(0, None));
    world.write(SETS, volume("Delete", "Bound"));
    assert_eq!(world.checker.backend_deleted("handle").len(), 1, "its claim exists");
    world.remove(Who::User, "PersistentVolumeClaim", "data-web-0");
    world.write(SETS, volume("Delete", "Released"));
    assert!(world.checker.backend_deleted("handle").is_empty());
    world.write(Who::User, volume("Retain", "Released"));
    assert!(world.checker.backend_deleted("handle").is_empty(), "its deletion was allowed a moment before");
    world.wait(1000);
    world.write(Who::User, volume("Retain", "Released"));
    assert_eq!(world.checker.backend_deleted("handle").len(), 1, "its deletion was allowed long ago");
    // Deleted, and set to Retain before its claim was removed.
    let mut world = World::new();
    world.write(SETS, claim(0, None));
    world.write(SETS, volume("Delete", "Bound"));
    world.write(Who::User, going(volume("Delete", "Bound")));
    world.write(Who::User, going(volume("Retain", "Bound")));
    world.remove(Who::User, "PersistentVolumeClaim", "data-web-0");
    world.write(SETS, going(volume("Retain", "Released")));
    assert_eq!(world.checker.backend_deleted("handle").len(), 1, "its policy became Retain in time");
    let mut world = World::new();
    world.write(SETS, volume("Retain", "Released"));
    assert_eq!(world.checker.backend_deleted("handle").len(), 1);
    assert!(world.checker.backend_deleted("of nobody").is_empty());
    // A retained volume gets a PV with another policy: only a user may do that.
    for (who, broken) in [(Who::User, 0), (SETS, 1)] {
        let mut world = World::new();
        world.write(SETS, volume("Retain", "Released"));
        world.remove(Who::User, "PersistentVolume", "volume");
        world.write(who, volume("Delete", "Released"));
        assert_eq!(world.checker.backend_deleted("handle").len(), broken, "{who:?}");
    }
}

#[test]
fn leaked_and_lost_volumes_are_found_at_the_end() {
    let there = |handles: &[&str]| handles.iter().map(|handle| (*handle).to_owned()).collect();
    let mut world = World::new();
    world.write(SETS, volume("Delete", "Bound"));
    assert!(world.checker.backend_at_rest(&there(&["handle"])).is_empty());
    assert_eq!(world.checker.backend_at_rest(&there(&[])), ["the backend volume handle is lost"]);
    assert_eq!(world.checker.backend_at_rest(&there(&["handle", "other"])).len(), 1, "one is leaked");
    world.write(SETS, volume("Delete", "Released"));
    world.remove(SETS, "PersistentVolume", "volume");
    assert_eq!(world.checker.backend_at_rest(&there(&["handle"])).len(), 1);
    let mut world = World::new();
    world.write(SETS, volume("Retain", "Released"));
    world.remove(Who::User, "PersistentVolume", "volume");
    assert!(world.checker.backend_at_rest(&there(&["handle"])).is_empty(), "it is retained");
    assert_eq!(world.checker.backend_at_rest(&there(&[])).len(), 1);
    // Deleted with the policy Retain, which then became Delete: the provisioner knows this from its events,
    // and the server for a while.
    for (lost_before, lost_after, leaked) in [(false, false, 1), (true, false, 0), (false, true, 0)] {
        let mut world = World::new();
        world.write(SETS, volume("Retain", "Bound"));
        world.checker.memory_lost();
        world.write(SETS, going(volume("Retain", "Bound")));
        world.write(Who::User, going(volume("Delete", "Released")));
        if lost_before {
            world.checker.memory_lost();
        }
        world.remove(SETS, "PersistentVolume", "volume");
        if lost_after {
            world.checker.memory_lost();
        }
        assert_eq!(world.checker.backend_at_rest(&there(&["handle"])).len(), leaked);
        assert!(world.checker.backend_at_rest(&there(&[])).is_empty());
        assert_eq!(world.checker.has_forgotten(), leaked == 0, "an excused leak is reported as such");
    }
}

fn held(mut volume: Value) -> Value {
    volume["metadata"]["finalizers"] = json!([crate::csi::FINALIZER]);
    volume
}

/// The provisioner did not run: this excuses a leak without a finalizer, and nothing else.
#[test]
fn a_volume_with_the_drivers_finalizer_is_not_forgotten() {
    let there = BTreeSet::from(["handle".to_owned()]);
    for (is_held, looked, leaked) in [(true, false, 1), (false, false, 0), (false, true, 1)] {
        let with = |volume: Value| if is_held { held(volume) } else { volume };
        let mut world = World::new();
        world.write(SETS, with(volume("Delete", "Bound")));
        world.checker.provisioner_died();
        world.write(Who::User, going(with(volume("Delete", "Released"))));
        if looked {
            world.checker.provisioner_looked();
        }
        world.remove(Who::User, "PersistentVolume", "volume");
        assert_eq!(world.checker.backend_at_rest(&there).len(), leaked, "held {is_held}, looked {looked}");
        assert_eq!(world.checker.has_forgotten(), leaked == 0, "an excused leak is reported as such");
    }
}

/// Without honoured policies, a PV deleted by a user leaves its backend volume; one deleted with its claim
/// does not.
#[test]
fn with_the_gate_off_only_a_user_leaves_a_backend_volume() {
    let there = BTreeSet::from(["handle".to_owned()]);
    for (who, leaked) in [(Who::User, 0), (SETS, 1)] {
        let mut world = World::new();
        let off = Gates::default().with(super::HONOURS, false);
        world.checker.set_gates(off, "2026-01-01T00:00:00Z".parse().expect("a time"));
        world.write(SETS, volume("Delete", "Bound"));
        world.write(who, going(volume("Delete", "Bound")));
        world.remove(SETS, "PersistentVolume", "volume");
        assert_eq!(world.checker.backend_at_rest(&there).len(), leaked, "{who:?}");
    }
}

#[test]
fn no_finalizer_is_removed_while_the_backend_volume_is_to_be_deleted() {
    let released = |policy: &str| volume(policy, "Released");
    let begin = |policy: &str| {
        let mut world = World::new();
        world.write(SETS, held(released(policy)));
        world
    };
    assert_eq!(begin("Delete").write(SETS, released("Delete")).len(), 1);
    assert_eq!(begin("Delete").remove(SETS, "PersistentVolume", "volume").len(), 1);
    assert!(begin("Delete").write(Who::User, released("Delete")).is_empty(), "a user may");
    assert!(begin("Retain").write(SETS, released("Retain")).is_empty(), "it is not to be deleted");
    let mut world = begin("Delete");
    world.checker.backend_deleted("handle");
    assert!(world.write(SETS, released("Delete")).is_empty(), "it is deleted");
    // Requests by the former policy may still follow.
    for (echo, seconds, broken) in [(120, 60, 0), (120, 200, 1), (5, 4, 0), (5, 6, 1)] {
        let mut world = begin("Retain");
        world.checker.set_echo(jiff::SignedDuration::from_secs(echo));
        world.write(Who::User, held(released("Delete")));
        world.wait(seconds);
        assert_eq!(world.write(SETS, released("Delete")).len(), broken, "after {seconds} s");
    }
}

#[test]
fn a_claim_is_kept_by_an_owner_that_exists() {
    let mut world = World::new();
    let owner = json!({"kind": "ConfigMap", "metadata": {"namespace": "ns", "name": "owner", "uid": "owner"}});
    world.write(Who::User, owner);
    let owned = claim(0, Some(("ConfigMap", "owner", "owner")));
    world.write(Who::User, owned.clone());
    assert_eq!(world.write(COLLECTOR, going(owned.clone())).len(), 1);
    world.write(Who::User, owned.clone());
    world.remove(Who::User, "ConfigMap", "owner");
    assert!(world.write(COLLECTOR, going(owned)).is_empty());
}

#[test]
fn a_pod_on_a_node_is_removed_only_by_its_node_or_a_user() {
    for (who, wrong) in [(NODE, false), (Who::User, false), (COLLECTOR, true), (Who::Part("system:node:b"), true)] {
        for (status, may_run) in [
            (pod(0, "pod-0")["status"].clone(), true),
            (json!({"phase": "Pending"}), true),
            (json!({"phase": "Failed"}), false),
        ] {
            let mut world = World::new();
            let mut pod = pod(0, "pod-0");
            pod["status"] = status;
            world.write(SETS, pod);
            assert_eq!(!world.remove(who, "Pod", "web-0").is_empty(), wrong && may_run, "{who:?}");
        }
    }
}

#[test]
fn no_ordinal_runs_in_two_joined_sets() {
    let mut world = World::new();
    world.checker.join(&[("ns", "web"), ("other", "web")]);
    world.write(SETS, pod(1, "here"));
    let there = |ordinal| {
        let mut pod = pod(ordinal, "there");
        pod["metadata"]["namespace"] = json!("other");
        pod
    };
    assert!(world.write(SETS, there(0)).is_empty());
    assert_eq!(world.write(SETS, there(1)).len(), 1);
}

#[test]
fn no_pod_starts_without_its_claim() {
    for (is_there, broken) in [(true, 0), (false, 1)] {
        let mut world = World::new();
        world.write(Who::User, set(1, json!({})));
        let claim =
            json!({"kind": "PersistentVolumeClaim", "metadata": {"namespace": "ns", "name": "data-web-0", "uid": "c"}});
        if is_there {
            world.write(SETS, claim);
        }
        let running = pod(0, "pod-0");
        let mut waiting = running.clone();
        waiting["status"] = json!({"phase": "Pending"});
        assert!(world.write(SETS, waiting).is_empty());
        assert_eq!(world.write(NODE, running.clone()).len(), broken);
        assert!(world.write(NODE, running).is_empty(), "it is reported once");
    }
}

#[test]
fn no_more_replicas_are_unavailable_than_the_budget_allows() {
    for (max, wrong) in [(1, true), (2, false)] {
        let mut world = World::new();
        let budget = json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": max}}});
        world.write(Who::User, set(3, budget));
        for ordinal in 0..3 {
            world.write(SETS, pod(ordinal, &format!("pod-{ordinal}")));
        }
        assert!(world.write(SETS, going(pod(2, "pod-2"))).is_empty());
        world.remove(NODE, "Pod", "web-2");
        assert_eq!(!world.write(SETS, going(pod(1, "pod-1"))).is_empty(), wrong, "{max}");
    }
    // Without the gate the budget is 1.
    let mut world = World::new();
    world.checker.set_gates(Gates::default().with("MaxUnavailableStatefulSet", false), world.now);
    world.write(Who::User, set(3, json!({"updateStrategy": {"rollingUpdate": {"maxUnavailable": 2}}})));
    for ordinal in 0..3 {
        world.write(SETS, pod(ordinal, &format!("pod-{ordinal}")));
    }
    assert!(world.write(SETS, going(pod(2, "pod-2"))).is_empty());
    assert_eq!(world.write(SETS, going(pod(1, "pod-1"))).len(), 1);
    // When the first is available again, the next may be deleted; pods out of range do not count.
    let mut world = World::new();
    world.write(Who::User, set(2, json!({})));
    for ordinal in 0..3 {
        world.write(SETS, pod(ordinal, &format!("pod-{ordinal}")));
    }
    assert!(world.write(SETS, going(pod(2, "pod-2"))).is_empty());
    assert!(world.write(SETS, going(pod(1, "pod-1"))).is_empty());
    world.remove(NODE, "Pod", "web-1");
    world.write(SETS, pod(1, "new"));
    assert!(world.write(SETS, going(pod(0, "pod-0"))).is_empty());
}

/// A user scales down and up again: the controller may still delete the pods of the first change.
#[test]
fn replicas_that_were_recently_out_of_range_may_be_deleted() {
    // Out of range before their creation, after it, and how many seconds ago.
    for (before, after, seconds, broken) in
        [(false, true, 1, 0), (false, true, 600, 1), (true, false, 1, 1), (false, false, 1, 1)]
    {
        let mut world = World::new();
        if before {
            world.write(Who::User, set(0, json!({})));
            world.wait(5);
        }
        world.write(Who::User, set(2, json!({})));
        let made = json!({"metadata": {"creationTimestamp": world.now.to_string()}});
        let pod = |ordinal| object::patch::merge(&pod(ordinal, &format!("pod-{ordinal}")), &made);
        world.write(SETS, pod(0));
        world.write(SETS, pod(1));
        if after {
            world.wait(5);
            world.write(Who::User, set(0, json!({})));
            world.write(Who::User, set(2, json!({})));
        }
        world.wait(seconds);
        assert!(world.write(SETS, going(pod(1))).is_empty());
        assert_eq!(world.write(SETS, going(pod(0))).len(), broken, "{before} {after} {seconds}");
    }
}

/// Directories of the built-in plugin have the same invariants as volumes of drivers, by the gates of the
/// binder instead of the provisioner's.
#[test]
fn directories_are_backend_volumes_too() {
    let directory = |policy: &str, phase: &str, finalizers: &[&str]| {
        let mut volume = volume(policy, phase);
        volume["spec"]["csi"] = Value::Null;
        volume["spec"]["hostPath"] = json!({"path": "/tmp/v"});
        volume["metadata"]["finalizers"] = json!(finalizers);
        volume
    };
    let binder = Who::Part("persistent-volume-binder");
    let held = [crate::reclaim::FINALIZER];
    let mut world = World::new();
    world.write(Who::User, claim(0, None));
    world.write(binder, directory("Delete", "Bound", &held));
    assert_eq!(world.checker.backend_deleted("/tmp/v").len(), 1, "its claim exists");

    // A PV with only the protection finalizer stays Bound until its directory is deleted.
    let mut world = World::new();
    world.write(Who::User, claim(0, None));
    world.write(binder, directory("Delete", "Bound", &[]));
    world.remove(Who::User, "PersistentVolumeClaim", "data-web-0");
    assert!(world.checker.backend_deleted("/tmp/v").is_empty());
    world.write(Who::User, directory("Retain", "Bound", &[]));
    assert!(world.checker.backend_deleted("/tmp/v").is_empty(), "its deletion was allowed a moment before");
    world.wait(121);
    world.write(Who::User, directory("Retain", "Bound", &[]));
    assert_eq!(world.checker.backend_deleted("/tmp/v").len(), 1, "it is retained");

    // The finalizer is removed while the directory exists: wrong if the binder honours policies, unless the
    // directory was never created.
    for (honours, provisioner, made, broken) in
        [(true, false, true, 1), (false, true, true, 0), (true, false, false, 0)]
    {
        let mut world = World::new();
        let gates = |on| Gates::default().with(HONOURS, on);
        world.checker.set_gates_apart(gates(honours), &gates(provisioner), world.now);
        if made {
            world.checker.backend_made("/tmp/v");
        }
        world.write(binder, directory("Delete", "Released", &held));
        assert_eq!(world.write(binder, directory("Delete", "Released", &[])).len(), broken, "{honours} {made}");
        let lost = world.checker.backend_at_rest(&BTreeSet::new());
        assert_eq!(lost.len(), 0, "it is to be deleted");
    }
    let mut world = World::new();
    world.write(binder, directory("Delete", "Pending", &held));
    assert!(world.checker.backend_at_rest(&BTreeSet::new()).is_empty(), "it was never created");
    world.checker.backend_made("/tmp/v");
    assert_eq!(world.checker.backend_at_rest(&BTreeSet::new()), ["the backend volume /tmp/v is lost"]);

    // The PV of a retained directory is created again by a delayed request: the PV is removed and the
    // directory is kept.
    let mut world = World::new();
    let there = BTreeSet::from(["/tmp/v".to_owned()]);
    world.write(binder, directory("Retain", "Released", &[]));
    world.remove(Who::User, "PersistentVolume", "volume");
    world.write(binder, directory("Delete", "Pending", &held));
    assert!(world.write(binder, directory("Delete", "Pending", &[])).is_empty());
    world.remove(binder, "PersistentVolume", "volume");
    assert!(world.checker.backend_at_rest(&there).is_empty());
    assert_eq!(world.checker.backend_deleted("/tmp/v").len(), 1, "the directory must not be deleted");
}

fn node(name: &str, ready: &str, taints: &[&str]) -> Value {
    let taints: Vec<Value> = taints.iter().map(|key| json!({"key": key})).collect();
    json!({
        "kind": "Node", "metadata": {"name": name, "uid": name}, "spec": {"taints": taints},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    })
}

const COLLECTS_PODS: Who<'_> = Who::Part("pod-garbage-collector");

#[test]
fn only_pods_of_lost_nodes_are_terminated_by_others() {
    let failed = || {
        let mut pod = pod(0, "one");
        pod["status"] = json!({"phase": "Failed"});
        pod
    };
    for (is_lost, seen) in [
        (false, Some(node("a", "True", &[]))),
        (false, Some(node("a", "Unknown", &["node.kubernetes.io/unreachable"]))),
        (false, Some(node("a", "True", &["node.kubernetes.io/out-of-service"]))),
        (true, Some(node("a", "Unknown", &["node.kubernetes.io/out-of-service"]))),
        (true, None),
    ] {
        let mut world = World::new();
        seen.into_iter().for_each(|node| drop(world.write(Who::User, node)));
        world.write(Who::User, pod(0, "one"));
        world.wait(200);
        let told = world.write(COLLECTS_PODS, failed());
        assert_eq!(told.iter().any(|rule| rule.contains("which is in service")), !is_lost, "{told:?}");
        assert!(world.remove(COLLECTS_PODS, "Pod", "web-0").is_empty(), "it has terminated");
    }
    // The node returns while the request is being sent; long after that no request is.
    for (wait, is_late) in [(30, false), (200, true)] {
        let mut world = World::new();
        world.write(Who::User, pod(0, "one"));
        world.write(Who::User, node("a", "True", &[]));
        world.wait(wait);
        assert_eq!(!world.write(COLLECTS_PODS, failed()).is_empty(), is_late, "{wait}");
    }
    let mut world = World::new();
    world.write(Who::User, node("a", "True", &[]));
    world.write(Who::User, pod(0, "one"));
    world.wait(200);
    assert!(world.write(NODE, failed()).is_empty(), "its own kubelet knows");
}

#[test]
fn a_volume_is_used_on_one_node_only() {
    let mut world = World::new();
    world.write(
        Who::User,
        json!({"kind": "PersistentVolumeClaim", "metadata": {"namespace": "ns", "name": "data-web-0", "uid": "c"}}),
    );
    world.write(NODE, pod(0, "one"));
    let mut twin = pod(0, "two");
    twin["metadata"]["name"] = json!("other-0");
    twin["spec"]["nodeName"] = json!("b");
    let told = world.write(Who::Part("system:node:b"), twin.clone());
    assert!(told.iter().any(|rule| rule.contains("is in use by web-0 on a")), "{told:?}");
    let volume = json!({
        "kind": "PersistentVolume", "metadata": {"name": "v", "uid": "v"}, "spec": {"claimRef": {"namespace": "ns", "name": "data-web-0"}},
    });
    world.write(Who::User, volume);
    let attachment = json!({
        "kind": "VolumeAttachment", "metadata": {"name": "v", "uid": "va"}, "spec": {"nodeName": "a", "source": {"persistentVolumeName": "v"}},
    });
    world.write(Who::User, attachment.clone());
    let detached = |world: &mut World| {
        let before = Some(Arc::new(attachment.clone()));
        world.checker.see(&Change { who: COLLECTS_PODS, now: world.now, before, after: None })
    };
    assert!(!detached(&mut world).is_empty(), "a pod uses it");
    let mut ended = pod(0, "one");
    ended["status"] = json!({"phase": "Failed"});
    world.write(NODE, ended);
    assert!(detached(&mut world).is_empty(), "the node is deleted");
    world.write(Who::User, node("a", "True", &[]));
    world.wait(200);
    assert!(!detached(&mut world).is_empty(), "the node is in service");
}

#[test]
fn endpoints_have_addresses_that_their_pods_have_had() {
    let mut world = World::new();
    let mut web = pod(0, "p");
    web["status"]["podIP"] = json!("10.1.0.1");
    world.write(NODE, web);
    let controller = Who::Part("endpoint-controller");
    let endpoints = |label: &str, ip: &str, pod: &str| {
        json!({
            "kind": "Endpoints",
            "metadata": {"namespace": "ns", "name": "web", "uid": "e", "labels": {crate::endpoints::MANAGED_BY: label}},
            "subsets": [{"notReadyAddresses": [{"ip": ip, "targetRef": {"name": "web-0", "uid": pod}}]}],
        })
    };
    let ours = crate::endpoints::CONTROLLER;
    assert!(world.write(controller, endpoints(ours, "10.1.0.1", "p")).is_empty());
    let broken = world.write(controller, endpoints(ours, "10.1.0.2", "p"));
    assert_eq!(broken, ["the Endpoints ns/web contain 10.1.0.2, which pod web-0 never had"]);
    assert_eq!(world.write(controller, endpoints(ours, "10.1.0.1", "q")).len(), 1);
    assert!(world.write(Who::User, endpoints("me", "10.1.0.9", "q")).is_empty());
}
