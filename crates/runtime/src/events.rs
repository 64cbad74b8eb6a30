//! Events: what a controller tells people. The same thing said again counts up instead of piling up.

use crate::api::{Api, Resource};
use plan::gc::Place;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// How many different things are remembered for counting; beyond that the memory starts over.
const REMEMBERED_MAX: usize = 4096;

/// Tells people, in the name of one controller. Telling never fails the work that it is about.
#[derive(Clone)]
pub struct Events {
    api: Api,
    component: &'static str,
    said: Arc<Mutex<HashMap<Key, Said>>>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    uid: String,
    reason: &'static str,
    message: String,
}

#[derive(Clone)]
struct Said {
    path: String,
    count: u64,
}

/// What an event is about.
pub struct About<'a> {
    pub resource: &'a Resource,
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
}

impl Events {
    pub fn new(api: Api, component: &'static str) -> Events {
        Events { api, component, said: Arc::default() }
    }

    pub async fn warn(&self, resource: &Resource, place: &Place, uid: &str, reason: &'static str, message: &str) {
        let about = About { resource, namespace: &place.namespace, name: &place.name, uid };
        self.say(&about, "Warning", reason, message).await;
    }

    pub async fn say(&self, about: &About<'_>, kind: &str, reason: &'static str, message: &str) {
        let key = Key { uid: about.uid.to_owned(), reason, message: message.to_owned() };
        let now = object::write::stamp(jiff::Timestamp::now());
        let said = self.said().get(&key).cloned();
        if let Some(Said { path, count }) = said {
            let count = count + 1;
            if self.api.merge(&path, &json!({"count": count, "lastTimestamp": now})).await.is_ok() {
                self.said().insert(key, Said { path, count });
                return;
            }
            // The event expired meanwhile: say it anew.
        }
        let events = Resource::new("v1", "Event", "events", true);
        let namespace = if about.namespace.is_empty() { "default" } else { about.namespace };
        let event = self.event(about, namespace, kind, reason, message, &now);
        match self.api.create(&events.collection(namespace), &event).await {
            Ok(created) => {
                let path = events.object(namespace, object::access::name(&created));
                let mut said = self.said();
                if said.len() >= REMEMBERED_MAX {
                    said.clear();
                }
                said.insert(key, Said { path, count: 1 });
            }
            Err(error) => tracing::debug!(%error, reason, message, "an event could not be told"),
        }
    }

    fn event(&self, about: &About<'_>, namespace: &str, kind: &str, reason: &str, message: &str, now: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": format!("{}.", event_name(about.name)), "namespace": namespace},
            "involvedObject": {
                "apiVersion": about.resource.api_version(),
                "kind": &*about.resource.kind,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": self.component},
            "reportingComponent": self.component,
            "reportingInstance": "",
        })
    }

    fn said(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Said>> {
        self.said.lock().expect("no panic happens under this lock")
    }
}

/// Names of some kinds hold what names of events must not.
fn event_name(name: &str) -> String {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    name.chars().map(|c| if fits(c) { c } else { '-' }).collect::<String>().trim_matches(['-', '.']).to_owned()
}
