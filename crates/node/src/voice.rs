//! What the nodes and the scheduler tell people.

use crate::sight::Watched;
use plan::schedule::Key;
use runtime::api::Resource;
use runtime::events::{About, Events};

#[derive(Clone)]
pub struct Voice {
    events: Events,
    pods: Resource,
    nodes: Resource,
}

impl Voice {
    pub fn new(events: Events) -> Voice {
        Voice { events, pods: Watched::Pods.resource(), nodes: Watched::Nodes.resource() }
    }

    pub fn pod(&self, key: &Key, uid: &str, warning: bool, reason: &'static str, message: &str) {
        self.say(&About { resource: &self.pods, namespace: &key.0, name: &key.1, uid }, warning, reason, message);
    }

    pub fn node(&self, name: &str, uid: &str, warning: bool, reason: &'static str, message: &str) {
        self.say(&About { resource: &self.nodes, namespace: "", name, uid }, warning, reason, message);
    }

    fn say(&self, about: &About<'_>, warning: bool, reason: &'static str, message: &str) {
        self.events.say(about, if warning { "Warning" } else { "Normal" }, reason, message);
    }
}
