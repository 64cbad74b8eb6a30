//! Somebody who lists and watches what selectors take, breaks off, and goes on: lists are compared with what was committed here, watches where
//! they pass by ([`crate::audit`]). What they look at comes into their selections and leaves them.

use crate::audit::Selection;
use crate::entropy::Rng;
use crate::ledger::Ledger;
use crate::log::Log;
use futures::StreamExt;
use http::Request;
use kube::core::WatchEvent;
use object::Value;
use object::access::{Access, name, namespace};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What is looked at.
pub const VIEWS: [&str; 4] = [
    "/api/v1/pods?fieldSelector=status.phase%3DRunning",
    "/api/v1/pods?labelSelector=statefulset.kubernetes.io/pod-name",
    "/api/v1/persistentvolumeclaims?labelSelector=controller-revision-hash",
    "/api/v1/persistentvolumeclaims?labelSelector=!controller-revision-hash",
];

/// Where nobody answers, it is asked again after so long.
const PAUSE: Duration = Duration::from_millis(500);
/// A watch is broken off after less than so many events.
const EVENTS_MAX: u64 = 8;

pub struct Onlooker {
    pub client: kube::Client,
    pub ledger: Arc<Ledger>,
    pub log: Log,
    pub rng: Rng,
    pub view: &'static str,
}

impl Onlooker {
    /// For ever.
    pub async fn look(mut self) {
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

    /// The version of the list, if there was an answer.
    async fn list(&self) -> Option<u64> {
        let request = Request::get(self.view).body(Vec::new()).ok()?;
        let list = self.client.request::<Value>(request).await.ok()?;
        let version = list.text(&["metadata", "resourceVersion"]).parse().ok()?;
        let selection = Selection::of(self.view)?;
        let kind = selection.prefix.clone();
        let key = |item: &Value| format!("{kind}{}/{}", namespace(item), name(item));
        let found: BTreeMap<String, Value> =
            list.items(&["items"]).iter().map(|item| (key(item), without_kind(item.clone()))).collect();
        let committed = self.ledger.selected(&selection, version).into_iter();
        let wanted: BTreeMap<String, Value> = committed
            .map(|(key, value)| (key.to_string(), without_kind(serde_json::from_slice(&value).unwrap_or_default())))
            .collect();
        if found == wanted {
            self.log.say(format!("the list {} at {version} has {} objects as committed", self.view, found.len()));
        } else {
            self.log.broken(format!("the list {} at {version} has {found:?} instead of {wanted:?}", self.view));
        }
        Some(version)
    }

    /// Up to which version it was heard, if it can go on from there.
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
                // The server died in the middle of a line.
                Err(_) => break,
            };
            from = version?;
        }
        // Where the server is gone the next attempt finds out, a little later.
        if self.rng.chance(500) {
            tokio::time::sleep(PAUSE).await;
        }
        // It may begin anew all the same.
        if self.rng.chance(300) { None } else { Some(from) }
    }
}

/// The items of a list need not say what they are.
fn without_kind(mut item: Value) -> Value {
    for member in ["apiVersion", "kind"] {
        item.as_object_mut().and_then(|item| item.remove(member));
    }
    item
}
