use super::*;
use object::{condition, json};
use proptest::prelude::*;

/// A pod on a node, with a clock that the test advances.
struct Life {
    pod: Value,
    now: Timestamp,
    claims: Vec<(&'static str, ClaimState)>,
    configs: config::Found,
    broken_volumes: Vec<(String, String)>,
    /// The recorded events, in order.
    told: Vec<String>,
    removed: bool,
    writes: usize,
    next: Option<Timestamp>,
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pod(spec: Value, annotations: Value) -> Value {
    let mut all = object::Map::new();
    for (key, value) in annotations.members(&[]) {
        all.insert(format!("{PREFIX}{key}"), value.clone());
    }
    let mut pod = json!({
        "metadata": {"name": "web-0", "namespace": "default", "uid": "u", "generation": 1, "annotations": all},
        "spec": {"nodeName": "n", "restartPolicy": "Always", "containers": [{"name": "main", "image": "x:1"}]},
        "status": {"phase": "Pending", "qosClass": "BestEffort"},
    });
    for (field, value) in spec.members(&[]) {
        pod["spec"][field] = value.clone();
    }
    pod
}

impl Life {
    fn of(spec: Value, annotations: Value) -> Life {
        let pod = pod(spec, annotations);
        Life {
            pod,
            now: at(1000),
            claims: Vec::new(),
            configs: config::Found::new(),
            broken_volumes: Vec::new(),
            told: Vec::new(),
            removed: false,
            writes: 0,
            next: None,
        }
    }

    /// Plans and executes until nothing is left to do now.
    fn settle(&mut self) -> &mut Life {
        for _ in 0..5 {
            let seen = Seen {
                pod: &self.pod,
                host_ip: "10.127.0.1",
                pod_ip: "10.128.0.1",
                claims: &self.claims,
                configs: &self.configs,
                broken_volumes: &self.broken_volumes,
            };
            let plan = plan(&seen, self.now);
            for event in plan.warnings.iter().chain(&plan.events) {
                let text = format!("{} {}", event.reason, event.message);
                if !plan.warnings.contains(event) || !self.told.contains(&text) {
                    self.told.push(text);
                }
            }
            self.next = plan.next;
            if let Some(next) = plan.next {
                assert!(next > self.now, "no due time is in the past: {next} at {}", self.now);
            }
            self.removed |= plan.remove;
            let Some(status) = plan.status else { return self };
            self.writes += 1;
            merge(&mut self.pod["status"], &status);
            if self.removed {
                return self;
            }
        }
        panic!("the pod does not settle: {}", self.pod["status"]);
    }

    /// Advances the clock to the next change without an event.
    fn pass(&mut self) -> &mut Life {
        self.now = self.next.expect("a change without an event");
        self.settle()
    }

    fn annotate(&mut self, name: &str, value: Option<&str>) -> &mut Life {
        self.pod["metadata"]["annotations"][format!("{PREFIX}{name}")] = json!(value);
        self.settle()
    }

    fn delete(&mut self, grace: i64) -> &mut Life {
        let deadline = object::write::stamp(at(self.now.as_second() + grace));
        self.pod["metadata"]["deletionTimestamp"] = json!(deadline);
        self.pod["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        self.settle()
    }

    fn phase(&self) -> &str {
        self.pod.text(&["status", "phase"])
    }

    /// The state of the first container, in a word.
    fn word(&self) -> String {
        let state = &self.pod["status"]["containerStatuses"][0]["state"];
        match state.at(&["waiting"]).or_else(|| state.at(&["terminated"])) {
            Some(state) => state.text(&["reason"]).to_owned(),
            None => state.members(&[]).keys().next().map(ToString::to_string).unwrap_or_default(),
        }
    }

    fn restarts(&self) -> i64 {
        self.pod["status"]["containerStatuses"][0].int(&["restartCount"]).unwrap_or(-1)
    }

    fn ready(&self) -> bool {
        condition::is_true(&self.pod, "Ready")
    }

    fn waits(&self) -> Option<i64> {
        self.next.map(|next| next.duration_since(self.now).as_secs())
    }
}

/// A strategic merge, as far as pod statuses need one.
fn merge(status: &mut Value, patch: &Value) {
    for (field, value) in patch.members(&[]) {
        if field != "conditions" {
            if value.is_null() {
                status.cut(&[field]);
            } else {
                status[field] = value.clone();
            }
            continue;
        }
        let mut conditions = status.items(&["conditions"]).to_vec();
        for change in value.as_array().unwrap() {
            match conditions.iter_mut().find(|old| old["type"] == change["type"]) {
                Some(old) => merge(old, change),
                None => conditions.push(change.clone()),
            }
        }
        status["conditions"] = json!(conditions);
    }
}

#[test]
fn one_write_starts_a_plain_pod() {
    let mut life = Life::of(json!({}), json!({}));
    life.settle();
    assert_eq!((life.writes, life.phase(), life.ready(), life.next), (1, "Running", true, None));
    assert_eq!(life.told, ["Started Started container main"]);
    let status = &life.pod["status"];
    assert_eq!(status["podIP"], "10.128.0.1");
    assert_eq!(status["podIPs"], json!([{"ip": "10.128.0.1"}]));
    assert_eq!(status["hostIP"], "10.127.0.1");
    assert_eq!(status["startTime"], "1970-01-01T00:16:40Z");
    assert_eq!(status["observedGeneration"], 1);
    assert_eq!(
        status["containerStatuses"],
        json!([{
            "name": "main", "image": "x:1", "imageID": "simulated://x:1", "containerID": "simulated://u/main/0",
            "ready": true, "started": true, "restartCount": 0,
            "state": {"running": {"startedAt": "1970-01-01T00:16:40Z"}}, "lastState": {},
        }])
    );
    for kind in ["PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready", "PodScheduled"] {
        assert!(condition::is_true(&life.pod, kind), "{kind}");
    }
}

#[test]
fn init_containers_complete_and_sidecars_run() {
    let inits = json!([{"name": "setup", "image": "x"}, {"name": "proxy", "image": "y", "restartPolicy": "Always"}]);
    let mut life = Life::of(json!({"initContainers": inits}), json!({}));
    life.settle();
    let statuses = &life.pod["status"]["initContainerStatuses"];
    assert_eq!(statuses[0]["state"]["terminated"]["reason"], "Completed");
    assert_eq!((&statuses[1]["started"], &statuses[1]["ready"]), (&json!(true), &json!(true)));
    assert_eq!((life.writes, life.ready()), (1, true));
    assert_eq!(life.told, ["Started Started containers setup, proxy, main"]);
    life.annotate("start-after", Some("1h"));
    assert_eq!(life.writes, 1, "started containers are not written again");
}

#[test]
fn a_pod_starts_and_becomes_ready_by_its_annotations() {
    let inits = json!([{"name": "setup", "image": "x"}]);
    let mut life = Life::of(json!({"initContainers": inits}), json!({"start-after": "20s", "ready": "30s"}));
    life.settle();
    assert_eq!((life.phase(), life.word().as_str(), life.waits()), ("Pending", "PodInitializing", Some(20)));
    assert!(!condition::is_true(&life.pod, "Initialized") && life.pod.text(&["status", "podIP"]).is_empty());
    life.pass();
    assert_eq!((life.phase(), life.word().as_str(), life.waits()), ("Running", "running", Some(30)));
    assert_eq!(condition::get(&life.pod, "Ready").unwrap()["message"], "containers with unready status: [main]");
    assert!(!life.ready());
    life.pass();
    assert!(life.ready() && life.next.is_none());
    life.annotate("ready", Some("false"));
    assert!(!life.ready());
    assert_eq!(condition::get(&life.pod, "Ready").unwrap()["reason"], "ContainersNotReady");
    assert!(life.told.last().unwrap().starts_with("Unhealthy Readiness probe failed"), "{:?}", life.told);
    life.annotate("ready", None);
    assert!(life.ready());
    let ready = condition::get(&life.pod, "Ready").unwrap();
    assert!(!ready.has(&["reason"]) && !ready.has(&["message"]), "{ready}");
}

#[test]
fn readiness_gates_are_respected() {
    let mut life = Life::of(json!({"readinessGates": [{"conditionType": "example.com/lb"}]}), json!({}));
    life.settle();
    assert!(condition::is_true(&life.pod, "ContainersReady") && !life.ready());
    let why = condition::get(&life.pod, "Ready").unwrap();
    assert_eq!(why["reason"], "ReadinessGatesNotReady");
    assert_eq!(why["message"], "corresponding condition of pod readiness gate \"example.com/lb\" does not exist.");
    life.pod["status"]["conditions"].as_array_mut().unwrap().push(json!({"type": "example.com/lb", "status": "True"}));
    life.settle();
    assert!(life.ready());
}

#[test]
fn the_backoff_of_crashes_doubles_up_to_five_minutes() {
    let mut life = Life::of(json!({}), json!({"crash-after": "5s", "exit-code": "137", "exit-reason": "OOMKilled"}));
    life.settle();
    assert_eq!((life.word().as_str(), life.ready(), life.waits()), ("running", true, Some(5)));
    // The first crash restarts at once.
    life.pass();
    assert_eq!((life.word().as_str(), life.restarts()), ("running", 1));
    for (restarts, wait) in [(1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 300), (7, 300)] {
        life.pass();
        assert_eq!((life.word().as_str(), life.restarts(), life.waits()), ("CrashLoopBackOff", restarts, Some(wait)));
        assert_eq!((life.phase(), life.ready()), ("Running", false));
        let last = &life.pod["status"]["containerStatuses"][0]["lastState"]["terminated"];
        assert_eq!((&last["exitCode"], &last["reason"]), (&json!(137), &json!("OOMKilled")));
        life.pass();
        assert_eq!((life.word().as_str(), life.restarts(), life.waits()), ("running", restarts + 1, Some(5)));
    }
    assert!(
        life.told
            .iter()
            .any(|told| told == "BackOff Back-off restarting failed container main in pod web-0_default(u)")
    );
    let message = "back-off 10s restarting failed container=main pod=web-0_default(u)";
    assert_eq!(super::container::shown(SignedDuration::from_secs(160)), "2m40s");
    let mut other = Life::of(json!({}), json!({"crash-after": "0s"}));
    other.settle();
    assert_eq!(other.pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"], message);
    assert_eq!((other.word().as_str(), other.restarts(), other.writes), ("CrashLoopBackOff", 1, 1));
    // Without the annotation it restarts at once.
    other.annotate("crash-after", None);
    assert_eq!((other.word().as_str(), other.restarts(), other.ready(), other.next), ("running", 2, true, None));
}

#[test]
fn a_long_run_without_a_crash_resets_the_backoff() {
    let mut life = Life::of(json!({}), json!({"crash-after": "11m"}));
    life.settle();
    for restarts in 1..4 {
        life.pass();
        assert_eq!((life.word().as_str(), life.restarts()), ("running", restarts));
    }
}

#[test]
fn a_crashed_pod_that_is_not_restarted_fails() {
    for (policy, phase, word) in [("Never", "Failed", "Error"), ("OnFailure", "Running", "CrashLoopBackOff")] {
        let mut life = Life::of(json!({"restartPolicy": policy}), json!({"crash-after": "0s", "exit-code": "3"}));
        life.settle();
        assert_eq!((life.phase(), life.word().as_str()), (phase, word), "{policy}");
    }
}

#[test]
fn images_that_cannot_be_pulled_are_tried_again() {
    let mut life = Life::of(json!({}), json!({"image-pull": "error"}));
    life.settle();
    for wait in [10, 20, 40, 80, 160, 300, 300] {
        assert_eq!((life.phase(), life.word().as_str(), life.waits()), ("Pending", "ErrImagePull", Some(2)));
        life.pass();
        assert_eq!((life.word().as_str(), life.waits()), ("ImagePullBackOff", Some(wait - 2)));
        life.pass();
    }
    assert!(life.told.contains(&"Failed Error: ErrImagePull".to_owned()));
    assert!(life.told.contains(&"BackOff Back-off pulling image \"x:1\"".to_owned()));
    life.annotate("image-pull", None);
    assert_eq!((life.word().as_str(), life.restarts(), life.ready()), ("running", 0, true));
}

#[test]
fn pods_terminate_by_their_annotations() {
    let cases = [
        (json!({"succeed-after": "10s"}), json!({}), "Succeeded", "Completed", "", 10),
        (json!({"fail-after": "10s", "exit-code": "7"}), json!({}), "Failed", "Error", "", 10),
        (json!({"fail-after": "0s", "exit-reason": "Broken"}), json!({}), "Failed", "Broken", "", 0),
        (json!({"evict-after": "10s"}), json!({}), "Failed", "", "Evicted", 10),
        (json!({}), json!({"activeDeadlineSeconds": 60}), "Failed", "Error", "DeadlineExceeded", 60),
    ];
    for (annotations, spec, phase, word, reason, wait) in cases {
        let mut life = Life::of(spec, annotations.clone());
        life.settle();
        if wait > 0 {
            assert_eq!((life.phase(), life.waits()), ("Running", Some(wait)), "{annotations}");
            life.pass();
        }
        assert_eq!((life.phase(), life.word().as_str()), (phase, word), "{annotations}");
        assert_eq!(life.pod.text(&["status", "reason"]), reason, "{annotations}");
        assert!(!life.ready() && life.next.is_none(), "{annotations}");
        let writes = life.writes;
        life.annotate("ready", Some("true"));
        assert_eq!(life.writes, writes, "terminated pods stay terminated: {annotations}");
        life.delete(30);
        assert!(life.removed, "{annotations}");
    }
    let mut evicted = Life::of(json!({}), json!({"evict-after": "0s"}));
    evicted.settle();
    assert_eq!((evicted.phase(), evicted.writes), ("Failed", 1));
    assert_eq!(condition::get(&evicted.pod, "DisruptionTarget").unwrap()["reason"], "TerminationByKubelet");
}

#[test]
fn pods_are_removed_by_annotation_and_at_the_end_of_the_grace_period() {
    let cases = [
        (json!({}), None),
        (json!({"terminate-after": "10s"}), Some(10)),
        (json!({"terminate-after": "1h"}), Some(30)),
    ];
    for (annotations, wait) in cases {
        let mut life = Life::of(json!({}), annotations.clone());
        life.settle();
        life.delete(30);
        if let Some(wait) = wait {
            assert!(!life.removed && life.phase() == "Running" && life.ready(), "{annotations}");
            assert_eq!(life.waits(), Some(wait), "{annotations}");
            assert!(life.told.contains(&"Killing Stopping container main".to_owned()), "{:?}", life.told);
            life.pass();
            let code = if wait == 30 { 137 } else { 0 };
            assert_eq!(life.pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], code);
            assert_eq!(life.phase(), if code == 0 { "Succeeded" } else { "Failed" });
        }
        assert!(life.removed, "{annotations}");
    }
    let mut stuck = Life::of(json!({}), json!({"terminate-after": "never"}));
    stuck.settle();
    stuck.delete(30);
    assert!(!stuck.removed && stuck.next.is_none());
    stuck.annotate("terminate-after", None);
    assert!(stuck.removed);
}

/// Removing the last finalizer removes the pod: before that, its status must say that it does not run.
#[test]
fn a_pod_with_a_finalizer_gets_a_terminated_status() {
    let (free, held) = (json!([]), json!(["foregroundDeletion"]));
    let cases = [
        (free, ClaimState::Bound, "Running", "running"),
        (held.clone(), ClaimState::Bound, "Succeeded", "Completed"),
        (held, ClaimState::Unbound, "Failed", "ContainerCreating"),
    ];
    for (finalizers, claim, phase, word) in cases {
        let mut life = Life::of(json!({}), json!({}));
        life.claims = vec![("data", claim)];
        life.settle();
        life.pod["metadata"]["finalizers"] = finalizers;
        life.delete(30);
        assert_eq!((life.removed, life.phase(), life.word().as_str()), (true, phase, word));
    }
}

#[test]
fn claims_delay_a_pod_until_it_runs() {
    let cases = [
        (ClaimState::Unbound, "PVC is not bound"),
        (ClaimState::Terminating, "PVC is being deleted"),
        (ClaimState::Missing, "failed to fetch PVC from API server: persistentvolumeclaims \"data\" not found"),
    ];
    for (state, why) in cases {
        let mut life = Life::of(json!({}), json!({}));
        life.claims = vec![("data", state)];
        life.settle();
        assert_eq!((life.phase(), life.word().as_str(), life.next), ("Pending", "ContainerCreating", None));
        assert_eq!(life.told, [format!("FailedMount error processing PVC default/data: {why}")]);
        life.claims = vec![("data", ClaimState::Bound)];
        life.settle();
        assert_eq!((life.phase(), life.ready()), ("Running", true));
        // Later changes of the claim do not affect a running pod.
        life.claims = vec![("data", ClaimState::Terminating)];
        let writes = life.writes;
        life.settle();
        assert_eq!((life.writes, life.ready()), (writes, true));
    }
}

#[test]
fn a_pod_whose_volume_has_no_data_is_held_until_the_data_is_back() {
    let mut life = Life::of(json!({}), json!({}));
    life.claims = vec![("data", ClaimState::DataMissing)];
    life.settle();
    let held = ("Pending", "ContainerCreating", None);
    assert_eq!((life.phase(), life.word().as_str(), life.next), held);
    let by_condition = "FailedMount error processing PVC default/data: the claim's condition VolumeDataMissing is True";
    assert_eq!(life.told, [by_condition]);
    // The driver itself says more, and counts also before the claim says anything.
    for claim in [ClaimState::Bound, ClaimState::DataMissing] {
        let mut life = Life::of(json!({}), json!({}));
        life.claims = vec![("data", claim)];
        life.broken_volumes = vec![("pv".to_owned(), "no directory".to_owned())];
        life.settle();
        assert_eq!((life.phase(), life.word().as_str(), life.next), held, "{claim:?}");
        assert_eq!(life.told, ["FailedMount MountVolume.SetUp failed for volume \"pv\" : no directory"]);
        (life.claims, life.broken_volumes) = (vec![("data", ClaimState::Bound)], Vec::new());
        life.settle();
        assert_eq!((life.phase(), life.ready()), ("Running", true));
        // A restored status says that it ran; whether the data is there is asked once.
        life.broken_volumes = vec![("pv".to_owned(), "no directory".to_owned())];
        life.settle();
        assert_eq!((life.phase(), life.word().as_str(), life.ready()), ("Pending", "ContainerCreating", false));
        life.broken_volumes.clear();
        life.settle();
        assert_eq!((life.phase(), life.ready()), ("Running", true));
    }
}

#[test]
fn another_image_restarts_the_container() {
    let mut life = Life::of(json!({}), json!({}));
    life.settle();
    life.pod["spec"]["containers"][0]["image"] = json!("x:2");
    life.settle();
    let status = &life.pod["status"]["containerStatuses"][0];
    assert_eq!((&status["image"], life.restarts(), life.ready()), (&json!("x:2"), 1, true));
    assert!(life.told.contains(&"Killing Container main definition changed, will be restarted".to_owned()));
}

#[test]
fn a_recovered_node_reports_its_pods_as_ready() {
    let mut life = Life::of(json!({}), json!({}));
    life.settle();
    let ready = json!({"type": "Ready", "status": "False", "reason": "NodeNotReady"});
    merge(&mut life.pod["status"], &json!({"conditions": [ready]}));
    life.settle();
    assert!(life.ready() && !condition::get(&life.pod, "Ready").unwrap().has(&["reason"]));
}

#[test]
fn invalid_annotations_are_reported_and_ignored() {
    let mut life = Life::of(json!({}), json!({"ready": "perhaps"}));
    life.settle();
    assert!(life.ready());
    assert!(
        life.told[0].starts_with("InvalidSimulation annotation \"sim.mainstay.dev/ready\" is \"perhaps\""),
        "{:?}",
        life.told
    );
}

fn annotations() -> impl Strategy<Value = Value> {
    let wait = prop_oneof![Just("0s"), Just("1s"), Just("7s"), Just("3m"), Just("soon")];
    let names =
        ["start-after", "ready", "crash-after", "succeed-after", "fail-after", "evict-after", "terminate-after"];
    let one = (prop::sample::select(names.to_vec()), wait).prop_map(|(name, wait)| (name, wait.to_owned()));
    let other = prop_oneof![Just(("image-pull", "error".to_owned())), Just(("ready", "false".to_owned()))];
    prop::collection::vec(prop_oneof![4 => one, 1 => other], 0..4)
        .prop_map(|list| list.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect())
}

proptest! {
    /// For any annotations the pod settles, the next time is in the future, and terminated pods stay
    /// terminated.
    #[test]
    fn any_annotations_give_a_consistent_status(annotations in annotations(), policy in prop::sample::select(vec!["Always", "OnFailure", "Never"]), steps in 1usize..12) {
        let mut life = Life::of(json!({"restartPolicy": policy}), annotations);
        life.settle();
        for _ in 0..steps {
            let (phase, restarts) = (life.phase().to_owned(), life.restarts());
            if life.next.is_none() {
                break;
            }
            life.pass();
            let over = |phase: &str| matches!(phase, "Succeeded" | "Failed");
            prop_assert!(!over(&phase) || life.phase() == phase);
            prop_assert!(phase != "Running" || life.phase() != "Pending");
            prop_assert!(life.restarts() >= restarts || life.restarts() == -1);
            prop_assert!(!life.ready() || life.phase() == "Running");
        }
        life.delete(5);
        for _ in 0..3 {
            if !life.removed && life.next.is_some() {
                life.pass();
            }
        }
        prop_assert!(life.removed, "a grace period of five seconds is over");
    }

    /// No status makes a kubelet panic.
    #[test]
    fn no_status_makes_the_planner_panic(states in prop::collection::vec(0usize..8, 0..4), time in prop::sample::select(vec!["", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "x"]), annotations in annotations()) {
        let state = |kind: usize| match kind {
            0 => json!({"name": "main", "state": {"running": {"startedAt": time}}}),
            1 => json!({"name": "main", "state": {"terminated": {"exitCode": 1}}, "containerID": "a"}),
            2 => json!({"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": i64::MAX - 1, "containerID": "a",
                "lastState": {"terminated": {"finishedAt": time}}}),
            3 => json!({"name": "main"}),
            4 => json!("main"),
            5 => json!(null),
            6 => json!({"name": "other", "state": []}),
            _ => json!({"name": "main", "state": {"running": {"startedAt": time}}, "containerID": "a", "image": 7}),
        };
        let mut pod = pod(json!({}), annotations);
        pod["status"]["startTime"] = json!(time);
        pod["status"]["containerStatuses"] = states.into_iter().map(state).collect();
        let seen = Seen { pod: &pod, host_ip: "", pod_ip: "", claims: &[], configs: &config::Found::new(), broken_volumes: &[] };
        plan(&seen, at(1000));
    }
}

fn found(objects: &[(config::Kind, &str, Option<&[&str]>)]) -> config::Found {
    let keys = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect();
    objects.iter().map(|(kind, name, found)| ((*kind, (*name).to_owned()), found.map(keys))).collect()
}

/// The status of the container or volume for each kind of reference, in the words of a real kubelet.
#[test]
fn missing_secrets_and_config_maps_delay_a_pod_as_on_a_real_kubelet() {
    use config::Kind::{ConfigMap, Secret};
    let env = |field: &str, more: Value| {
        let key = object::patch::merge(&json!({"name": "x", "key": "k"}), &more);
        json!({"containers": [{"name": "main", "image": "i", "env": [{"name": "E", "valueFrom": {field: key}}]}]})
    };
    let from =
        |field: &str| json!({"containers": [{"name": "main", "image": "i", "envFrom": [{field: {"name": "x"}}]}]});
    let volume = |source: Value| {
        json!({
            "containers": [{"name": "main", "image": "i", "volumeMounts": [{"name": "v"}]}],
            "volumes": [object::patch::merge(&json!({"name": "v"}), &source)],
        })
    };
    let items = json!([{"key": "k"}]);
    let cases: Vec<(Value, config::Found, &str)> = vec![
        (env("secretKeyRef", json!({})), found(&[(Secret, "x", None)]), "secret \"x\" not found"),
        (env("configMapKeyRef", json!({})), found(&[(ConfigMap, "x", None)]), "configmap \"x\" not found"),
        (
            env("secretKeyRef", json!({})),
            found(&[(Secret, "x", Some(&["a"]))]),
            "couldn't find key k in Secret default/x",
        ),
        (
            env("configMapKeyRef", json!({})),
            found(&[(ConfigMap, "x", Some(&[]))]),
            "couldn't find key k in ConfigMap default/x",
        ),
        (env("secretKeyRef", json!({})), found(&[(Secret, "x", Some(&["k"]))]), ""),
        (env("secretKeyRef", json!({"optional": true})), found(&[(Secret, "x", None)]), ""),
        (from("secretRef"), found(&[(Secret, "x", None)]), "secret \"x\" not found"),
        (from("configMapRef"), found(&[(ConfigMap, "x", None)]), "configmap \"x\" not found"),
        (
            volume(json!({"secret": {"secretName": "x"}})),
            found(&[(Secret, "x", None)]),
            "volume \"v\" : secret \"x\" not found",
        ),
        (
            volume(json!({"configMap": {"name": "x"}})),
            found(&[(ConfigMap, "x", None)]),
            "volume \"v\" : configmap \"x\" not found",
        ),
        (volume(json!({"configMap": {"name": "x", "optional": true}})), found(&[(ConfigMap, "x", None)]), ""),
        (
            volume(json!({"secret": {"secretName": "x", "items": items}})),
            found(&[(Secret, "x", Some(&[]))]),
            "references non-existent secret key: k",
        ),
        (
            volume(json!({"configMap": {"name": "x", "items": items}})),
            found(&[(ConfigMap, "x", Some(&[]))]),
            "references non-existent config key: k",
        ),
        (
            volume(json!({"projected": {"sources": [{"secret": {"name": "x"}}]}})),
            found(&[(Secret, "x", None)]),
            "secret \"x\" not found",
        ),
    ];
    for (spec, found, why) in cases {
        let seen = pod(spec, json!({}));
        let trouble = config::trouble(&seen, &found);
        let mut said: Vec<String> = trouble.volumes.iter().map(|event| event.message.clone()).collect();
        said.extend(trouble.containers.into_values());
        assert!(
            said.len() == usize::from(!why.is_empty()) && said.iter().all(|said| said.contains(why)),
            "{seen}: {said:?}"
        );
        let is_optional = seen.to_string().contains("\"optional\"");
        assert_eq!(config::wanted(&seen).is_empty(), is_optional, "{seen}");
    }
    // Volumes that no container mounts, and the CA's ConfigMap that every namespace has, are not looked up.
    let unmounted = json!({"volumes": [{"name": "v", "secret": {"secretName": "x"}}]});
    let root_ca = volume(json!({"projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]}}));
    for spec in [unmounted, root_ca] {
        assert!(config::wanted(&pod(spec, json!({}))).is_empty());
    }
}

#[test]
fn a_pod_starts_when_its_config_map_is_created() {
    use config::Kind::{ConfigMap, Secret};
    let env = |name: &str| json!([{"name": "E", "valueFrom": {"secretKeyRef": {"name": name, "key": "k"}}}]);
    let spec = json!({
        "initContainers": [{"name": "first", "image": "i"}],
        "containers": [
            {"name": "main", "image": "i", "env": env("s"), "volumeMounts": [{"name": "v"}]},
            {"name": "side", "image": "i"},
        ],
        "volumes": [{"name": "v", "configMap": {"name": "m"}}],
    });
    let mut life = Life::of(spec, json!({}));
    life.configs = found(&[(Secret, "s", None), (ConfigMap, "m", None)]);
    life.settle();
    assert_eq!((life.phase(), life.word().as_str()), ("Pending", "PodInitializing"));
    assert!(life.told.iter().any(|told| {
        told.contains("FailedMount MountVolume.SetUp failed for volume \"v\" : configmap \"m\" not found")
    }));
    life.configs = found(&[(Secret, "s", None), (ConfigMap, "m", Some(&[]))]);
    life.settle();
    assert_eq!((life.phase(), life.word().as_str(), life.ready()), ("Pending", "CreateContainerConfigError", false));
    let statuses = life.pod.items(&["status", "containerStatuses"]);
    assert_eq!(statuses[0]["state"]["waiting"]["message"], "secret \"s\" not found");
    assert!(statuses[1].has(&["state", "running"]), "the other container runs");
    assert!(life.told.iter().any(|told| told == "Failed Error: secret \"s\" not found"));
    assert!(!config::wanted(&life.pod).is_empty());
    life.configs = found(&[(Secret, "s", Some(&["k"])), (ConfigMap, "m", Some(&[]))]);
    life.settle();
    assert_eq!((life.phase(), life.ready()), ("Running", true));
    assert!(config::wanted(&life.pod).is_empty(), "a running pod needs nothing more");
}

#[test]
fn an_init_container_without_its_config_delays_the_others() {
    let spec =
        json!({"initContainers": [{"name": "first", "image": "i", "envFrom": [{"configMapRef": {"name": "m"}}]}]});
    let mut life = Life::of(spec, json!({}));
    life.configs = found(&[(config::Kind::ConfigMap, "m", None)]);
    life.settle();
    let status = &life.pod["status"];
    assert_eq!(status["initContainerStatuses"][0]["state"]["waiting"]["reason"], "CreateContainerConfigError");
    assert_eq!(status["containerStatuses"][0]["state"]["waiting"]["reason"], "PodInitializing");
    life.configs = found(&[(config::Kind::ConfigMap, "m", Some(&[]))]);
    life.settle();
    assert_eq!((life.phase(), life.ready()), ("Running", true));
}
