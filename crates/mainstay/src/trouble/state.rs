//! The sets and nodes in trouble, and which of them were reported.

use object::Value;
use object::access::{self, Access};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// How many reported events are remembered, to report each once.
const EVENTS_MAX: usize = 1000;

/// A line to print.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    Text(String),
    /// A set whose reason must be looked up.
    Stuck {
        namespace: String,
        name: String,
        uid: String,
        text: String,
    },
}

/// A set or node.
struct Tracked {
    /// The report while the object is in trouble; `None` while it is healthy.
    trouble: Option<Line>,
    recovered: String,
    /// The fields that change with each step of progress.
    progress: Vec<i64>,
    since: Instant,
    reported: bool,
}

pub struct Tracker {
    stuck_after: Duration,
    /// By uid.
    tracked: BTreeMap<String, Tracked>,
    told_events: HashSet<String>,
    event_order: VecDeque<String>,
    /// Recoveries that are still to be reported.
    recovered: Vec<String>,
}

impl Tracker {
    pub fn new(stuck_after: Duration) -> Tracker {
        Tracker {
            stuck_after,
            tracked: BTreeMap::new(),
            told_events: HashSet::new(),
            event_order: VecDeque::new(),
            recovered: Vec::new(),
        }
    }

    pub fn set(&mut self, set: &Value, gone: bool, now: Instant) {
        let (namespace, name, uid) = (access::namespace(set), access::name(set), access::uid(set));
        // A set that is being deleted is not expected to become complete.
        if gone || set.has(&["metadata", "deletionTimestamp"]) {
            self.tracked.remove(uid);
            return;
        }
        let number = |path: &[&str]| set.int(path).unwrap_or(0);
        let (replicas, ready) = (wanted_replicas(set), number(&["status", "readyReplicas"]));
        let what = format!("StatefulSet {namespace}/{name}");
        let trouble = (!is_complete(set)).then(|| {
            let state = format!("{what} makes no progress: {ready} of {replicas} replicas are ready");
            match condition_reason(set) {
                Some(why) => Line::Text(format!("{state}; {why}")),
                None => Line::Stuck {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                    uid: uid.to_owned(),
                    text: state,
                },
            }
        });
        let fields = ["observedGeneration", "replicas", "readyReplicas", "availableReplicas", "updatedReplicas"];
        let mut progress = vec![number(&["metadata", "generation"])];
        progress.extend(fields.iter().map(|field| number(&["status", field])));
        let recovered = format!("{what} is complete: {ready} of {replicas} replicas are ready");
        self.track(uid, trouble, recovered, progress, now);
    }

    pub fn node(&mut self, node: &Value, gone: bool, now: Instant) {
        let (name, uid) = (access::name(node), access::uid(node));
        if gone {
            self.tracked.remove(uid);
            return;
        }
        let condition = condition(node, "Ready");
        let trouble = (!is_ready(node)).then(|| {
            let (status, reason) = condition.map_or(("Unknown", ""), |it| (it.text(&["status"]), it.text(&["reason"])));
            let because = if reason.is_empty() { String::new() } else { format!(", {reason}") };
            Line::Text(format!("Node {name} is not ready (Ready={status}{because}); its pods count as not ready"))
        });
        self.track(uid, trouble, format!("Node {name} is ready again"), Vec::new(), now);
    }

    fn track(&mut self, uid: &str, trouble: Option<Line>, recovered: String, progress: Vec<i64>, now: Instant) {
        let is_well = trouble.is_none();
        let tracked = self.tracked.entry(uid.to_owned()).or_insert_with(|| Tracked {
            trouble: None,
            recovered: String::new(),
            progress: Vec::new(),
            since: now,
            reported: false,
        });
        if tracked.progress != progress || tracked.trouble.is_none() {
            tracked.since = now;
        }
        (tracked.trouble, tracked.recovered, tracked.progress) = (trouble, recovered, progress);
        if is_well && std::mem::take(&mut tracked.reported) {
            self.recovered.push(tracked.recovered.clone());
        }
    }

    /// The lines that are due and were not returned yet.
    pub fn due(&mut self, now: Instant) -> Vec<Line> {
        let mut lines: Vec<Line> = std::mem::take(&mut self.recovered).into_iter().map(Line::Text).collect();
        for tracked in self.tracked.values_mut() {
            let is_due = !tracked.reported && now.duration_since(tracked.since) >= self.stuck_after;
            if let (Some(line), true) = (&tracked.trouble, is_due) {
                tracked.reported = true;
                lines.push(match line {
                    Line::Text(text) => Line::Text(text.clone()),
                    Line::Stuck { namespace, name, uid, text } => Line::Stuck {
                        namespace: namespace.clone(),
                        name: name.clone(),
                        uid: uid.clone(),
                        text: text.clone(),
                    },
                });
            }
        }
        lines
    }

    /// Whether this event was not reported yet. A repeated event keeps its name, so it is reported once.
    pub fn is_new_event(&mut self, event: &Value) -> bool {
        let uid = access::uid(event).to_owned();
        if !self.told_events.insert(uid.clone()) {
            return false;
        }
        self.event_order.push_back(uid);
        if self.event_order.len() > EVENTS_MAX
            && let Some(oldest) = self.event_order.pop_front()
        {
            self.told_events.remove(&oldest);
        }
        true
    }
}

/// Whether a set matches its spec: all replicas ready, and those above the partition updated.
pub fn is_complete(set: &Value) -> bool {
    let number = |path: &[&str]| set.int(path).unwrap_or(0);
    let replicas = wanted_replicas(set);
    let observed = number(&["status", "observedGeneration"]) >= number(&["metadata", "generation"]);
    let counted = number(&["status", "replicas"]) == replicas && number(&["status", "readyReplicas"]) == replicas;
    let rolls = set.text(&["spec", "updateStrategy", "type"]) != "OnDelete"
        && set.text(&["status", "currentRevision"]) != set.text(&["status", "updateRevision"]);
    let to_update = replicas.saturating_sub(number(&["spec", "updateStrategy", "rollingUpdate", "partition"]));
    let updated = !rolls || number(&["status", "updatedReplicas"]) >= to_update;
    observed && counted && updated && condition_reason(set).is_none()
}

fn wanted_replicas(set: &Value) -> i64 {
    set.int(&["spec", "replicas"]).unwrap_or(1)
}

/// The set's condition that explains missing progress.
fn condition_reason(set: &Value) -> Option<String> {
    let failed = ["ClaimsUpdated", "Progressing"].iter().find_map(|kind| {
        let condition = condition(set, kind)?;
        (condition.text(&["status"]) == "False").then_some(condition)
    })?;
    Some(format!("{}: {}", failed.text(&["reason"]), failed.text(&["message"])))
}

/// Why a pod is not ready, from its status.
pub fn pod_reason(pod: &Value) -> Option<String> {
    let name = access::name(pod);
    let worded = |reason: &str, message: &str| {
        let message = if message.is_empty() { String::new() } else { format!(": {message}") };
        Some(format!("pod {name}: {reason}{message}"))
    };
    if let Some(scheduled) = condition(pod, "PodScheduled").filter(|it| it.text(&["status"]) == "False") {
        return worded(scheduled.text(&["reason"]), scheduled.text(&["message"]));
    }
    let containers =
        pod.items(&["status", "containerStatuses"]).iter().chain(pod.items(&["status", "initContainerStatuses"]));
    let waiting = containers.filter_map(|container| container.at(&["state", "waiting"]));
    // Every container waits with one of these reasons before it starts.
    let mut telling =
        waiting.filter(|waiting| !matches!(waiting.text(&["reason"]), "" | "ContainerCreating" | "PodInitializing"));
    let waiting = telling.next()?;
    worded(waiting.text(&["reason"]), waiting.text(&["message"]))
}

/// Whether a node or pod has the condition `Ready`.
pub fn is_ready(object: &Value) -> bool {
    condition(object, "Ready").is_some_and(|it| it.text(&["status"]) == "True")
}

fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    object.items(&["status", "conditions"]).iter().find(|it| it.text(&["type"]) == kind)
}

/// The ordinal in a pod's name; names without one sort last.
pub fn ordinal(pod: &Value) -> u64 {
    access::name(pod).rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
