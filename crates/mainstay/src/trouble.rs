//! Tells the user of `mainstay up` about trouble while it runs: sets that make no progress, nodes that are not ready, deleted volume
//! data. One line each, repeated only after the object has recovered.
//!
//! The reasons come from conditions and from the reasons of events, never from their messages.

mod state;

use futures::StreamExt;
use kit::api::{Api, ApiError, Resource};
use kit::watcher::{self, Event};
use object::access::{self, Access};
use object::{Value, well_known};
use state::{Line, Tracker};
pub use state::{is_complete, is_ready};
use std::io::Write;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How often waiting objects are looked at.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Of many objects in trouble at once, so many get a line of their own.
const LINES_MAX: usize = 10;
/// The events to print: the reason, and the kind of the object.
const EVENTS: [(&str, &str); 3] = [
    (well_known::VOLUME_DATA_DELETED, "PersistentVolume"),
    (well_known::VOLUME_DATA_MISSING, "PersistentVolume"),
    (well_known::CLAIM_DELETED_IN_USE, "StatefulSet"),
];

/// Watches until `shutdown`. `stuck_after`: so long a set or node may make no progress.
pub async fn tell(api: Api, stuck_after: Duration, shutdown: CancellationToken) {
    let sets = Resource::new("apps/v1", "StatefulSet", "statefulsets", true);
    let nodes = Resource::new("v1", "Node", "nodes", false);
    let events = Resource::new("v1", "Event", "events", true);
    let mut sets = Box::pin(watcher::objects(&api, &sets, None));
    let mut nodes = Box::pin(watcher::objects(&api, &nodes, None));
    let events_to_print = EVENTS.map(|(reason, kind)| {
        let selector = format!("reason={reason},involvedObject.kind={kind}");
        Box::pin(watcher::objects(&api, &events, Some(&selector)))
    });
    let mut events_to_print = futures::stream::select_all(events_to_print);
    // Lines about events since the last tick, and how many more there were.
    let (mut event_lines, mut more_events) = (Vec::new(), 0_usize);
    let mut tracker = Tracker::new(stuck_after);
    let mut ticks = tokio::time::interval(CHECK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let started = jiff::Timestamp::now();
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            Some(change) = sets.next() => note(change, |set, gone| tracker.set(set, gone, Instant::now())),
            Some(change) = nodes.next() => note(change, |node, gone| tracker.node(node, gone, Instant::now())),
            Some(change) = events_to_print.next() => {
                if let Event::Apply(event) = change
                    && last_seen(&event).is_some_and(|at| at >= started)
                    && tracker.is_new_event(&event)
                {
                    if event_lines.len() < LINES_MAX {
                        event_lines.push(event_line(&event));
                    } else {
                        more_events += 1;
                    }
                }
            }
            _ = ticks.tick() => {
                event_lines.drain(..).for_each(|line| say(&line));
                let more = std::mem::take(&mut more_events);
                if more > 0 {
                    say(&format!("{more} more events about volumes: see kubectl get events -A"));
                }
                let lines = tracker.due(Instant::now());
                let rest = lines.len().saturating_sub(LINES_MAX);
                for line in lines.into_iter().take(LINES_MAX) {
                    say(&worded(&api, line).await);
                }
                if rest > 0 {
                    say(&format!("{rest} more sets and nodes changed: see kubectl get statefulsets,nodes -A"));
                }
            }
        }
    }
}

fn note(change: Event<std::sync::Arc<Value>>, mut take: impl FnMut(&Value, bool)) {
    match change {
        Event::Apply(object) => take(&object, false),
        Event::Delete(object) => take(&object, true),
        Event::Init | Event::InitDone => {}
    }
}

/// Writes one line with its time. The reader of stdout may be gone, and the server must not end because of that.
fn say(line: &str) {
    let now = jiff::Timestamp::now().round(jiff::Unit::Second).unwrap_or_default();
    drop(writeln!(std::io::stdout(), "{now} {line}"));
}

fn last_seen(event: &Value) -> Option<jiff::Timestamp> {
    let fields: [&[&str]; 4] =
        [&["series", "lastObservedTime"], &["lastTimestamp"], &["eventTime"], &["metadata", "creationTimestamp"]];
    // Events tell whole seconds.
    let second = jiff::SignedDuration::from_secs(1);
    fields.iter().find_map(|path| event.text(path).parse::<jiff::Timestamp>().ok()?.checked_add(second).ok())
}

/// The message begins with the object.
fn event_line(event: &Value) -> String {
    format!("{}: {}", event.text(&["reason"]), event.text(&["message"]))
}

async fn worded(api: &Api, line: Line) -> String {
    match line {
        Line::Text(text) => text,
        Line::Stuck { namespace, name, uid, text } => {
            let why = match reason(api, &namespace, &name, &uid).await {
                Ok(Some(why)) => format!("; {why}"),
                Ok(None) => String::new(),
                Err(error) => {
                    tracing::debug!(%error, "cannot read why a set is stuck");
                    String::new()
                }
            };
            format!("{text}{why}")
        }
    }
}

/// Why a set without a telling condition makes no progress: its first pod that is not ready, or else its newest warning.
async fn reason(api: &Api, namespace: &str, name: &str, uid: &str) -> Result<Option<String>, ApiError> {
    let mut first: Option<std::sync::Arc<Value>> = None;
    let pods = Resource::new("v1", "Pod", "pods", true);
    api.each(&pods.collection(namespace), |pod| {
        let is_its = access::controller(pod).is_some_and(|owner| owner.text(&["uid"]) == uid);
        let is_earlier = first.as_ref().is_none_or(|first| state::ordinal(pod) < state::ordinal(first));
        if is_its && !is_ready(pod) && is_earlier {
            first = Some(pod.clone());
        }
    })
    .await?;
    let Some(pod) = first else { return newest_warning(api, namespace, "StatefulSet", name).await };
    if let Some(why) = state::pod_reason(&pod) {
        return Ok(Some(why));
    }
    let pod = access::name(&pod);
    let warning = newest_warning(api, namespace, "Pod", pod).await?;
    Ok(Some(warning.unwrap_or_else(|| format!("pod {pod} is not ready"))))
}

async fn newest_warning(api: &Api, namespace: &str, kind: &str, name: &str) -> Result<Option<String>, ApiError> {
    let events = Resource::new("v1", "Event", "events", true);
    let mut newest: Option<(jiff::Timestamp, String)> = None;
    api.each(&events.collection(namespace), |event| {
        let about = (event.text(&["involvedObject", "kind"]), event.text(&["involvedObject", "name"]));
        if event.text(&["type"]) != "Warning" || about != (kind, name) {
            return;
        }
        let at = last_seen(event).unwrap_or_default();
        if newest.as_ref().is_none_or(|(newest, _)| at >= *newest) {
            newest = Some((at, format!("{}: {}", event.text(&["reason"]), event.text(&["message"]))));
        }
    })
    .await?;
    Ok(newest.map(|(_, text)| text))
}
