//! One container: computes its next status from the current one.

use super::PodEvent;
use super::behaviour::{Behaviour, Readiness};
use super::config::Trouble;
use jiff::{SignedDuration, Timestamp};
use object::access::Access;
use object::write::stamp;
use object::{Value, json};

const BACKOFF_FIRST: SignedDuration = SignedDuration::from_secs(10);
const BACKOFF_MAX: SignedDuration = SignedDuration::from_mins(5);
/// A container that ran this long without a crash restarts with the first backoff.
const BACKOFF_RESET: SignedDuration = SignedDuration::from_mins(10);
/// How long a pod shows ErrImagePull before ImagePullBackOff.
const PULL_ERROR_SHOWN: SignedDuration = SignedDuration::from_secs(2);

/// What all containers of a pod have in common.
pub struct Around<'a> {
    pub pod: &'a Value,
    pub uid: &'a str,
    pub behaviour: &'a Behaviour,
    /// What cannot start because a Secret or ConfigMap is missing.
    pub config: &'a Trouble,
    /// When the node began to work on the pod.
    pub since: Timestamp,
    pub now: Timestamp,
    pub restarts: bool,
}

/// The next status of a container.
pub struct Next {
    pub status: Value,
    /// When the status changes without an event.
    pub at: Option<Timestamp>,
    pub events: Vec<PodEvent>,
}

impl Next {
    fn settled(status: Value) -> Next {
        Next { status, at: None, events: Vec::new() }
    }
}

/// The status of a container whose pod has not started.
pub fn waiting(spec: &Value, reason: &str, message: &str) -> Value {
    let mut state = json!({"reason": reason});
    if !message.is_empty() {
        state["message"] = json!(message);
    }
    let name = spec.text(&["name"]);
    json!({
        "name": name, "image": spec.text(&["image"]), "imageID": "", "ready": false, "started": false, "restartCount": 0,
        "state": {"waiting": state}, "lastState": {},
    })
}

/// The status of a container that waits for the init containers.
pub fn initializing(spec: &Value) -> Next {
    Next::settled(waiting(spec, "PodInitializing", ""))
}

/// The status of a container whose environment cannot be read.
pub fn unconfigured(spec: &Value, why: &str) -> Next {
    Next::settled(waiting(spec, "CreateContainerConfigError", why))
}

/// The status of a container whose image cannot be pulled.
pub fn unpullable(spec: &Value, around: &Around) -> Next {
    let image = spec.text(&["image"]);
    let (attempt_at, next_at) = pull_attempts(around.since, around.now);
    if around.now < after(attempt_at, PULL_ERROR_SHOWN) {
        let message = format!("failed to pull image {image:?}: this is simulated, by annotation of the pod");
        let status = waiting(spec, "ErrImagePull", &message);
        let events = vec![
            PodEvent::warning(
                "Failed",
                format!("Failed to pull image {image:?}: this is simulated, by annotation of the pod"),
            ),
            PodEvent::warning("Failed", "Error: ErrImagePull".to_owned()),
        ];
        return Next { status, at: Some(after(attempt_at, PULL_ERROR_SHOWN)), events };
    }
    let message = format!("Back-off pulling image {image:?}");
    let status = waiting(spec, "ImagePullBackOff", &message);
    Next { status, at: Some(next_at), events: vec![PodEvent::normal("BackOff", message)] }
}

/// The times of the last and the next attempt to pull: each wait is twice the one before.
fn pull_attempts(since: Timestamp, now: Timestamp) -> (Timestamp, Timestamp) {
    let (mut last, mut wait) = (since, BACKOFF_FIRST);
    while after(last, wait) <= now {
        // Once all waits have the maximum, skip them in one step.
        let waits = if wait == BACKOFF_MAX { now.duration_since(last).as_secs() / BACKOFF_MAX.as_secs() } else { 1 };
        last = after(last, SignedDuration::from_secs(wait.as_secs().saturating_mul(waits)));
        wait = (wait * 2).min(BACKOFF_MAX);
    }
    (last, after(last, wait))
}

/// The status of a container of a started pod.
pub fn running(spec: &Value, before: Option<&Value>, around: &Around) -> Next {
    let mut events = Vec::new();
    let mut status = match before {
        Some(before) if before.has(&["state", "terminated"]) && !around.restarts => {
            return Next::settled(before.clone());
        }
        Some(before) if before.has(&["state", "running"]) && before.text(&["image"]) == spec.text(&["image"]) => {
            before.clone()
        }
        Some(before) if before.has(&["state", "running"]) => {
            let name = spec.text(&["name"]);
            events.push(PodEvent::normal("Killing", format!("Container {name} definition changed, will be restarted")));
            restarted(spec, before, killed(before, around), around)
        }
        Some(before) => match back_off_end(before, around) {
            Some(end) if end > around.now => return Next { status: before.clone(), at: Some(end), events },
            _ => started_again(spec, before, around),
        },
        None => started(spec, 0, json!({}), around),
    };
    let Some(crash_after) = around.behaviour.crash_after else { return ready(status, around, events) };
    loop {
        let started = time(&status, &["state", "running", "startedAt"]).unwrap_or(around.now);
        if after(started, crash_after) > around.now {
            let mut next = ready(status, around, events);
            next.at = earliest(next.at, Some(after(started, crash_after)));
            return next;
        }
        match crashed(spec, &status, started, around) {
            Crash::Again(again) => status = again,
            Crash::Stays(next) => return Next { events: [events, next.events].concat(), ..next },
        }
    }
}

enum Crash {
    /// It restarts at once.
    Again(Value),
    Stays(Next),
}

fn crashed(spec: &Value, status: &Value, started: Timestamp, around: &Around) -> Crash {
    let ended = terminated(status, around, around.behaviour.exit_code);
    let restarts = status.int(&["restartCount"]).unwrap_or(0);
    if !around.restarts {
        let mut stopped = stopped(status);
        stopped["state"] = ended;
        return Crash::Stays(Next::settled(stopped));
    }
    // The first crash restarts at once, and so does one after a long run without a crash.
    if restarts == 0 || around.now.duration_since(started) >= BACKOFF_RESET {
        return Crash::Again(restarted(spec, status, ended, around));
    }
    let wait = back_off(restarts);
    let name = spec.text(&["name"]);
    let text = format!("back-off {} restarting failed container={name} pod={}", shown(wait), pod_name(around));
    let mut status = stopped(status);
    status["lastState"] = ended;
    status["state"] = json!({"waiting": {"reason": "CrashLoopBackOff", "message": text}});
    let event = PodEvent::warning(
        "BackOff",
        format!("Back-off restarting failed container {name} in pod {}", pod_name(around)),
    );
    Crash::Stays(Next { status, at: Some(after(around.now, wait)), events: vec![event] })
}

/// As container runtimes write it: `10s`, `2m40s`, `5m0s`.
pub(super) fn shown(wait: SignedDuration) -> String {
    match wait.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds => format!("{}m{}s", seconds / 60, seconds % 60),
    }
}

fn pod_name(around: &Around) -> String {
    let (name, namespace) = (object::access::name(around.pod), object::access::namespace(around.pod));
    format!("{name}_{namespace}({})", around.uid)
}

fn back_off(restarts: i64) -> SignedDuration {
    let doublings = u32::try_from(restarts - 1).unwrap_or(0).min(10);
    (BACKOFF_FIRST * (1 << doublings)).min(BACKOFF_MAX)
}

/// When a crashed container may restart; `None`, that is at once, if the annotation was removed.
fn back_off_end(status: &Value, around: &Around) -> Option<Timestamp> {
    around.behaviour.crash_after?;
    (status.text(&["state", "waiting", "reason"]) == "CrashLoopBackOff").then_some(())?;
    let ended = time(status, &["lastState", "terminated", "finishedAt"])?;
    Some(after(ended, back_off(status.int(&["restartCount"]).unwrap_or(0))))
}

fn started(spec: &Value, restarts: i64, last: Value, around: &Around) -> Value {
    let (name, image) = (spec.text(&["name"]), spec.text(&["image"]));
    json!({
        "name": name, "image": image, "imageID": format!("simulated://{image}"),
        "containerID": format!("simulated://{}/{name}/{restarts}", around.uid),
        "ready": false, "started": true, "restartCount": restarts,
        "state": {"running": {"startedAt": stamp(around.now)}}, "lastState": last,
    })
}

/// Starts a container that waited for its image, its volumes or a backoff.
fn started_again(spec: &Value, before: &Value, around: &Around) -> Value {
    let (last, ended) = (before["lastState"].clone(), before.at(&["state", "terminated"]));
    if let Some(ended) = ended {
        return restarted(spec, before, json!({"terminated": ended}), around);
    }
    let crashed = last.has(&["terminated"]);
    let restarts = before.int(&["restartCount"]).unwrap_or(0);
    started(spec, restarts + i64::from(crashed), if last.is_object() { last } else { json!({}) }, around)
}

fn restarted(spec: &Value, before: &Value, ended: Value, around: &Around) -> Value {
    started(spec, before.int(&["restartCount"]).unwrap_or(0) + 1, ended, around)
}

fn stopped(status: &Value) -> Value {
    let mut status = status.clone();
    status["ready"] = json!(false);
    status["started"] = json!(false);
    status
}

/// The state of a container that terminates now.
fn terminated(status: &Value, around: &Around, code: i64) -> Value {
    let given = around.behaviour.exit_reason.as_deref().filter(|_| code != 0);
    let reason = given.unwrap_or(if code == 0 { "Completed" } else { "Error" });
    let started = status.at(&["state", "running", "startedAt"]).cloned().unwrap_or_else(|| json!(stamp(around.now)));
    json!({"terminated": {
        "exitCode": code, "reason": reason, "startedAt": started, "finishedAt": stamp(around.now),
        "containerID": status.text(&["containerID"]),
    }})
}

fn killed(status: &Value, around: &Around) -> Value {
    terminated(status, around, 0)
}

/// The status of a container that terminates with its pod. One that never ran is unchanged.
pub fn ended(status: &Value, around: &Around, code: i64) -> Value {
    if !status.has(&["state", "running"]) {
        return status.clone();
    }
    let state = terminated(status, around, code);
    let mut status = stopped(status);
    status["state"] = state;
    status
}

/// The status of an init container, which completes as soon as it starts.
pub fn completed(spec: &Value, around: &Around) -> Value {
    let mut status = started(spec, 0, json!({}), around);
    status["state"] = terminated(&status, around, 0);
    status["ready"] = json!(true);
    status["started"] = json!(false);
    status
}

/// Sets whether a running container is ready, and when that changes.
fn ready(mut status: Value, around: &Around, mut events: Vec<PodEvent>) -> Next {
    let started = time(&status, &["state", "running", "startedAt"]).unwrap_or(around.now);
    let (is_ready, at) = match around.behaviour.ready {
        Readiness::Never => (false, None),
        Readiness::After(delay) if after(started, delay) > around.now => (false, Some(after(started, delay))),
        Readiness::After(_) => (true, None),
    };
    if !is_ready && status.flag(&["ready"]) {
        events.push(PodEvent::warning(
            "Unhealthy",
            "Readiness probe failed: this is simulated, by annotation of the pod".to_owned(),
        ));
    }
    status["ready"] = json!(is_ready);
    Next { status, at, events }
}

/// Adds without overflow: the result is at most the largest timestamp.
pub fn after(time: Timestamp, wait: SignedDuration) -> Timestamp {
    time.checked_add(wait).unwrap_or(Timestamp::MAX)
}

pub fn earliest(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}

pub fn time(object: &Value, path: &[&str]) -> Option<Timestamp> {
    object.text(path).parse().ok()
}
