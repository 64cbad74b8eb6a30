//! The side controllers of CSI drivers: provisioner, resizer and modifier, capacity. They stand in for the stock sidecars.
//!
//! What to do is decided by `plan::csi`; here are the caches, the journal, and the calls.

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
pub use endpoint::{Endpoint, Pace};
pub(crate) use health::{DESCRIPTOR as MONITOR_DESCRIPTOR, run as run_monitor};
pub use journal::{NAME as JOURNAL_NAME, NAMESPACE as JOURNAL_NAMESPACE};
pub use metrics::Metrics;
pub use plan::csi::reclaim::{CONFIRM, RECORD};
pub(crate) use provisioner::{DESCRIPTOR as PROVISIONER_DESCRIPTOR, run as run_provisioner};
pub(crate) use resizer::{DESCRIPTOR as RESIZER_DESCRIPTOR, run as run_resizer};

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

fn tell(events: &Events, resource: &Resource, object: &Value, event: &Event) {
    let about = EventSubject { resource, namespace: namespace(object), name: name(object), uid: uid(object) };
    say(events, &about, event);
}

fn say(events: &Events, about: &EventSubject<'_>, event: &Event) {
    let kind = if event.warning { "Warning" } else { "Normal" };
    events.record(about, kind, event.reason, &event.message);
}
