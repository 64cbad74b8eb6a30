//! The controllers of CSI drivers, in place of the standard sidecars: provisioner, resizer and modifier, capacity,
//! health monitor.
//!
//! `plan::csi` decides; this module has the caches, the journal and the calls to drivers.

mod capacity;
mod drivers;
mod endpoint;
mod health;
mod journal;
mod metrics;
mod provisioner;
mod remote;
mod resizer;
mod secrets;

pub use drivers::Drivers;
pub use endpoint::{DriverBackoff, Endpoint};
pub use health::run as run_monitor;
pub use journal::{NAME as JOURNAL_NAME, NAMESPACE as JOURNAL_NAMESPACE};
pub use metrics::Metrics;
pub use plan::csi::reclaim::{CONFIRM, RECORD};
pub use provisioner::run as run_provisioner;
pub use resizer::run as run_resizer;

use kit::api::Resource;
use kit::events::{EventSubject, Events};
use object::Value;
use object::access::{name, namespace, uid};
use plan::csi::Event;

pub(crate) fn claims() -> Resource {
    Resource::new("v1", "PersistentVolumeClaim", "persistentvolumeclaims", true)
}

pub(crate) fn volumes() -> Resource {
    Resource::new("v1", "PersistentVolume", "persistentvolumes", false)
}

fn classes() -> Resource {
    Resource::new("storage.k8s.io/v1", "StorageClass", "storageclasses", false)
}

fn attributes_classes() -> Resource {
    Resource::new("storage.k8s.io/v1", "VolumeAttributesClass", "volumeattributesclasses", false)
}

fn record_event(events: &Events, resource: &Resource, object: &Value, event: &Event) {
    let about = EventSubject { resource, namespace: namespace(object), name: name(object), uid: uid(object) };
    record(events, &about, event);
}

fn record(events: &Events, about: &EventSubject<'_>, event: &Event) {
    let kind = if event.warning { "Warning" } else { "Normal" };
    events.record(about, kind, event.reason, &event.message);
}
