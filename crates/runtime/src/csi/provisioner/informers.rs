//! The caches of the provisioner, and the keys that a change adds to the queue.
//!
//! - No namespace and a name: a volume. A claim without a volume uses the name that its volume will have, so that
//!   creating and deleting one volume never run at once.
//! - A namespace and a name: a claim that may be the source of copies.
//! - The empty key: the capacity objects.

use super::volume_state::VolumeState;
use crate::csi::drivers::Drivers;
use kit::api::Resource;
use kit::cache::{Cache, Index, Key, key};
use kit::worker::Source;
use object::Value;
use object::access::{Access, name, namespace, terminating};
use object::kinds::volumes::class_of;
use plan::csi::cloning::{self, Start};
use plan::csi::{migration, provision, reclaim};
use std::sync::Arc;

pub struct Informers {
    pub claims: Cache,
    /// Claims by what they wait for; the keys come from [`waited_for`].
    waiting: Index,
    pub volumes: Cache,
    /// Volumes by volume handle.
    by_handle: Index,
    pub classes: Cache,
    pub nodes: Cache,
    pub csi_nodes: Cache,
    attachments: Cache,
    attached: Index,
}

impl Informers {
    pub fn new() -> Informers {
        let claims = Cache::default();
        let volumes = Cache::default();
        let attachments = Cache::default();
        Informers {
            waiting: claims.index(waited_for),
            attached: attachments.index(|attachment| vec![volume_key(attached_volume(attachment))]),
            claims,
            by_handle: volumes
                .index(|volume| migration::handle(volume).map(|handle| volume_key(&handle)).into_iter().collect()),
            volumes,
            classes: Cache::default(),
            nodes: Cache::default(),
            csi_nodes: Cache::default(),
            attachments,
        }
    }

    /// The watches, with the keys that their changes add. Changes of volumes are also recorded in `volume_state`.
    pub fn sources(&self, volume_state: &Arc<VolumeState>, drivers: &Drivers) -> Vec<Source> {
        let (volume_state, drivers, classes) = (volume_state.clone(), drivers.clone(), self.classes.clone());
        let volumes = Source::with_changed(crate::csi::volumes(), move |changed| {
            let volume = changed.after.as_ref().or(changed.before.as_ref()).expect("a change is of something");
            volume_state.see(changed, &drivers, &classes);
            vec![volume_key(name(volume))]
        });
        let waiting = self.waiting.clone();
        let classes = Source::new(crate::csi::classes(), move |class| {
            let waiting = waiting.get(&for_class(name(class)));
            waiting.iter().map(|claim| claim_volume(claim)).chain([Key::default()]).collect()
        });
        let attachments = resource("storage.k8s.io/v1", "VolumeAttachment", "volumeattachments");
        let attachments = Source::new(attachments, |attachment| vec![volume_key(attached_volume(attachment))]);
        // The Node may arrive after its CSINode. Most updates of a Node are heartbeats, which do not change topology.
        let nodes = Source::changing(resource("v1", "Node", "nodes"), |before, after| {
            let [before, after] = [before, after].map(|node| node.map(|node| node.members(&["metadata", "labels"])));
            if before == after { Vec::new() } else { vec![Key::default()] }
        });
        // A CSINode that now lists the driver may add a topology segment.
        let csi_nodes = Source::new(resource("storage.k8s.io/v1", "CSINode", "csinodes"), |_| vec![Key::default()]);
        vec![
            Source::changing(crate::csi::claims(), wake_for_claim).into(self.claims.clone()),
            volumes.into(self.volumes.clone()),
            classes.into(self.classes.clone()),
            attachments.into(self.attachments.clone()),
            nodes.into(self.nodes.clone()),
            csi_nodes.into(self.csi_nodes.clone()),
        ]
    }

    pub fn volume(&self, name: &str) -> Option<Arc<Value>> {
        self.volumes.get(&volume_key(name))
    }

    /// The PVs that reference a volume of a driver.
    pub fn pvs_of_handle(&self, driver: &str, handle: &str) -> Vec<Arc<Value>> {
        let mut volumes = self.by_handle.get(&volume_key(handle));
        volumes.retain(|volume| is_at(volume, driver));
        volumes
    }

    pub fn class(&self, name: &str) -> Option<Arc<Value>> {
        self.classes.get(&volume_key(name))
    }

    /// The claim that waits for the volume of this name.
    pub fn claim_of(&self, volume: &str) -> Option<Arc<Value>> {
        self.waiting.get(&for_volume(volume)).into_iter().next()
    }

    /// The claims that wait to become a copy of this claim.
    pub fn copies(&self, namespace: &str, source: &str) -> Vec<Arc<Value>> {
        self.waiting.get(&for_source(namespace, source))
    }

    /// The deleted claims that still exist because they are sources of copies.
    pub fn held_sources(&self) -> Vec<Key> {
        self.claims.all().iter().filter(|claim| cloning::is_held(claim)).map(|claim| key(claim)).collect()
    }

    /// The node of the volume's VolumeAttachment, whether it is attached, attaching or detaching.
    pub fn attached_to(&self, volume: &str) -> Option<String> {
        let attachment = self.attached.get(&volume_key(volume)).into_iter().next()?;
        Some(attachment.text(&["spec", "nodeName"]).to_owned())
    }

    /// The keys of all claims and volumes that may concern a driver that just responded for the first time.
    pub fn everything(&self) -> Vec<Key> {
        let claims = self.claims.all().into_iter().filter(|claim| is_waiting(claim)).map(|claim| claim_volume(&claim));
        let volumes = self.volumes.all().into_iter().map(|volume| volume_key(name(&volume)));
        claims.chain(volumes).collect()
    }
}

pub fn volume_key(name: &str) -> Key {
    ("".into(), name.into())
}

/// Whether the volume is of this driver, whoever provisioned it.
pub fn is_at(volume: &Value, driver: &str) -> bool {
    reclaim::is_of(volume, driver) || plan::csi::csi_source(volume).is_some_and(|(of, _)| of == driver)
}

fn claim_volume(claim: &Value) -> Key {
    volume_key(&provision::volume_name(claim))
}

fn is_waiting(claim: &Value) -> bool {
    claim.text(&["spec", "volumeName"]).is_empty() && provision::wanted_driver(claim).is_some()
}

fn wake_for_claim(before: Option<&Value>, after: Option<&Value>) -> Vec<Key> {
    let mut keys = Vec::new();
    for claim in before.into_iter().chain(after) {
        if is_waiting(claim) {
            keys.push(claim_volume(claim));
        }
        if let Start::Claim(source) = cloning::start(claim) {
            keys.push((namespace(claim).into(), source.into()));
        }
    }
    match (before, after) {
        (_, Some(claim)) if terminating(claim) => keys.push(key(claim)),
        // Volumes may have waited for this claim's deletion, and the key of such a volume cannot be found from its PV.
        (Some(gone), None) => {
            keys.push(claim_volume(gone));
            keys.push(volume_key(gone.text(&["spec", "volumeName"])));
        }
        _ => {}
    }
    keys
}

fn waited_for(claim: &Value) -> Vec<Key> {
    let mut keys = Vec::new();
    if is_waiting(claim) {
        keys.push(for_volume(&provision::volume_name(claim)));
        keys.push(for_class(class_of(claim).unwrap_or("")));
    }
    if let Start::Claim(source) = cloning::start(claim)
        && claim.text(&["status", "phase"]) == "Pending"
    {
        keys.push(for_source(namespace(claim), source));
    }
    keys
}

fn for_volume(name: &str) -> Key {
    ("volume".into(), name.into())
}

fn for_class(name: &str) -> Key {
    ("class".into(), name.into())
}

fn for_source(namespace: &str, name: &str) -> Key {
    ("source".into(), format!("{namespace}/{name}").into())
}

fn attached_volume(attachment: &Value) -> &str {
    attachment.text(&["spec", "source", "persistentVolumeName"])
}

fn resource(api_version: &str, kind: &str, plural: &str) -> Resource {
    Resource::new(api_version, kind, plural, false)
}
