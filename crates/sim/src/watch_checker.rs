//! A client that lists and watches with selectors, disconnects and resumes. Lists are compared with the committed
//! state here, watches in [`crate::watch_audit`]. Objects enter and leave its selections during a run.

use crate::commit_checker::CommitChecker;
use crate::entropy::Rng;
use crate::log::Log;
use crate::watch_audit::Selection;
use futures::StreamExt;
use http::Request;
use kube::core::WatchEvent;
use object::Value;
use object::access::{Access, name, namespace};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Lists and watches to compare.
pub const SELECTIONS: [&str; 4] = [
    "/api/v1/pods?fieldSelector=status.phase%3DRunning",
    "/api/v1/pods?labelSelector=statefulset.kubernetes.io/pod-name",
    "/api/v1/persistentvolumeclaims?labelSelector=controller-revision-hash",
    "/api/v1/persistentvolumeclaims?labelSelector=!controller-revision-hash",
];

/// Pause before the next attempt after a failure, in virtual time.
const PAUSE: Duration = Duration::from_millis(500);
/// A watch is closed after fewer events than this.
const EVENTS_MAX: u64 = 8;

pub struct WatchChecker {
    pub client: kube::Client,
    pub commit_checker: Arc<CommitChecker>,
    pub log: Log,
    pub rng: Rng,
    pub view: &'static str,
}

impl WatchChecker {
    /// Lists and watches until the world ends.
    pub async fn run(mut self) {
        let mut from = None;
        loop {
            from = match from {
                None => self.list().await,
                Some(version) => self.watch(version).await,
            };
            if from.is_none() {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Compares one list with the committed state. Returns its resourceVersion if the server responded.
    async fn list(&self) -> Option<u64> {
        let request = Request::get(self.view).body(Vec::new()).ok()?;
        let list = self.client.request::<Value>(request).await.ok()?;
        let version = list.text(&["metadata", "resourceVersion"]).parse().ok()?;
        let selection = Selection::of(self.view)?;
        let kind = selection.prefix.clone();
        let key = |item: &Value| format!("{kind}{}/{}", namespace(item), name(item));
        let found: BTreeMap<String, Value> =
            list.items(&["items"]).iter().map(|item| (key(item), without_kind(item.clone()))).collect();
        let committed = self.commit_checker.selected_at(&selection, version).into_iter();
        let wanted: BTreeMap<String, Value> = committed
            .map(|(key, value)| (key.to_string(), without_kind(serde_json::from_slice(&value).unwrap_or_default())))
            .collect();
        if found == wanted {
            self.log.record(format!("the list {} at {version} has the {} committed objects", self.view, found.len()));
        } else {
            self.log.violation(format!("the list {} at {version} has {found:?}, expected {wanted:?}", self.view));
        }
        Some(version)
    }

    /// Reads some events of a watch. Returns the resourceVersion to resume from, or `None` to list again.
    async fn watch(&mut self, mut from: u64) -> Option<u64> {
        let path = format!("{}&watch=true&allowWatchBookmarks=true&resourceVersion={from}", self.view);
        let request = Request::get(path).body(Vec::new()).ok()?;
        let events = self.client.request_events::<Value>(request).await.ok()?;
        let count = 1 + self.rng.below(EVENTS_MAX);
        let mut events = std::pin::pin!(events.take(usize::try_from(count).unwrap_or(1)));
        while let Some(event) = events.next().await {
            let version = match event {
                Ok(WatchEvent::Added(object) | WatchEvent::Modified(object) | WatchEvent::Deleted(object)) => {
                    object.text(&["metadata", "resourceVersion"]).parse().ok()
                }
                Ok(WatchEvent::Bookmark(bookmark)) => bookmark.metadata.resource_version.parse().ok(),
                Ok(WatchEvent::Error(_)) => return None,
                // The server was killed while it wrote a line.
                Err(_) => break,
            };
            from = version?;
        }
        // Pauses sometimes; if the server is gone, the next attempt notices it.
        if self.rng.chance(500) {
            tokio::time::sleep(PAUSE).await;
        }
        // Sometimes lists again, although it could resume.
        if self.rng.chance(300) { None } else { Some(from) }
    }
}

/// Removes apiVersion and kind, which items of a list may omit.
fn without_kind(mut item: Value) -> Value {
    for member in ["apiVersion", "kind"] {
        item.as_object_mut().and_then(|item| item.remove(member));
    }
    item
}
