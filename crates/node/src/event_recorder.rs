//! Records the events of the scheduler and of the simulated kubelets.

use crate::informers::Watched;
use kit::api::Resource;
use kit::events::{EventSubject, Events};
use plan::schedule::Key;

#[derive(Clone)]
pub struct EventRecorder {
    events: Events,
    pods: Resource,
    nodes: Resource,
    claims: Resource,
}

impl EventRecorder {
    pub fn new(events: Events) -> EventRecorder {
        let [pods, nodes, claims] = [Watched::Pods, Watched::Nodes, Watched::Claims].map(Watched::resource);
        EventRecorder { events, pods, nodes, claims }
    }

    pub fn pod(&self, key: &Key, uid: &str, warning: bool, reason: &'static str, message: &str) {
        self.record(
            &EventSubject { resource: &self.pods, namespace: &key.0, name: &key.1, uid },
            warning,
            reason,
            message,
        );
    }

    pub fn node(&self, name: &str, uid: &str, warning: bool, reason: &'static str, message: &str) {
        self.record(&EventSubject { resource: &self.nodes, namespace: "", name, uid }, warning, reason, message);
    }

    pub fn claim(&self, key: &Key, uid: &str, warning: bool, reason: &'static str, message: &str) {
        self.record(
            &EventSubject { resource: &self.claims, namespace: &key.0, name: &key.1, uid },
            warning,
            reason,
            message,
        );
    }

    fn record(&self, about: &EventSubject<'_>, warning: bool, reason: &'static str, message: &str) {
        self.events.record(about, if warning { "Warning" } else { "Normal" }, reason, message);
    }
}
