//! What the nodes and the scheduler tell people.

use crate::sight::Watched;
use plan::schedule::Key;
use runtime::api::{Api, Resource};
use runtime::events::{About, Events};

#[derive(Clone)]
pub struct Voice {
    events: Events,
}

impl Voice {
    pub fn new(api: Api, component: &'static str) -> Voice {
        Voice { events: Events::new(api, component) }
    }

    pub fn pod(&self, key: &Key, uid: &str, warning: bool, reason: &'static str, message: &str) {
        self.say(Watched::Pods.resource(), key, uid, warning, reason, message);
    }

    pub fn node(&self, name: &str, uid: &str, warning: bool, reason: &'static str, message: &str) {
        self.say(Watched::Nodes.resource(), &("".into(), name.into()), uid, warning, reason, message);
    }

    fn say(&self, resource: Resource, key: &Key, uid: &str, warning: bool, reason: &'static str, message: &str) {
        let kind = if warning { "Warning" } else { "Normal" };
        let (events, key, uid, message) = (self.events.clone(), key.clone(), uid.to_owned(), message.to_owned());
        tokio::spawn(async move {
            let about = About { resource: &resource, namespace: &key.0, name: &key.1, uid: &uid };
            events.say(&about, kind, reason, &message).await;
        });
    }
}
