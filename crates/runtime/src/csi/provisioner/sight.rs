//! What the provisioner sees, and whom a change concerns. Keys without a namespace are volumes, by name; a claim that has no volume
//! yet goes by the name that its volume will have, so that making and deleting one volume are never under way at once. Keys with a
//! namespace are claims that may be sources of copies, and the key without anything is about capacity.

use super::notes::Notes;
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

pub struct Sight {
    pub claims: Cache,
    /// Claims by what they wait for: the keys of [`waited_for`].
    waiting: Index,
    pub volumes: Cache,
    /// Volumes by what their drivers call them.
    by_handle: Index,
    pub classes: Cache,
    pub nodes: Cache,
    pub csi_nodes: Cache,
    attachments: Cache,
    attached: Index,
}

impl Sight {
    pub fn new() -> Sight {
        let claims = Cache::default();
        let volumes = Cache::default();
        let attachments = Cache::default();
        Sight {
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

    /// What is followed, and what its changes wake. Volumes that come and go are noted as they do.
    pub fn sources(&self, notes: &Arc<Notes>, drivers: &Drivers) -> Vec<Source> {
        let (notes, drivers, classes) = (notes.clone(), drivers.clone(), self.classes.clone());
        let volumes = Source::with_changed(crate::csi::volumes(), move |changed| {
            let volume = changed.after.as_ref().or(changed.before.as_ref()).expect("a change is of something");
            notes.see(changed, &drivers, &classes);
            vec![volume_key(name(volume))]
        });
        let waiting = self.waiting.clone();
        let classes = Source::new(crate::csi::classes(), move |class| {
            let waiting = waiting.get(&for_class(name(class)));
            waiting.iter().map(|claim| claim_volume(claim)).chain([Key::default()]).collect()
        });
        let attachments = resource("storage.k8s.io/v1", "VolumeAttachment", "volumeattachments");
        let attachments = Source::new(attachments, |attachment| vec![volume_key(attached_volume(attachment))]);
        // It may be heard of after its CSINode. Most of its changes are signs of life, which say nothing about places.
        let nodes = Source::changing(resource("v1", "Node", "nodes"), |before, after| {
            let [before, after] = [before, after].map(|node| node.map(|node| node.members(&["metadata", "labels"])));
            if before == after { Vec::new() } else { vec![Key::default()] }
        });
        // A node that has the driver now may be in a place of its own.
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

    /// The objects that stand for a backend volume.
    pub fn standing_for(&self, driver: &str, handle: &str) -> Vec<Arc<Value>> {
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

    /// The claims that wait to be a copy of another one.
    pub fn copies(&self, namespace: &str, source: &str) -> Vec<Arc<Value>> {
        self.waiting.get(&for_source(namespace, source))
    }

    /// The claims that are on their way out and held as sources of copies.
    pub fn held_sources(&self) -> Vec<Key> {
        self.claims.all().iter().filter(|claim| cloning::is_held(claim)).map(|claim| key(claim)).collect()
    }

    /// The node that a volume is attached to, or is to be, or is about to be no more.
    pub fn attached_to(&self, volume: &str) -> Option<String> {
        let attachment = self.attached.get(&volume_key(volume)).into_iter().next()?;
        Some(attachment.text(&["spec", "nodeName"]).to_owned())
    }

    /// All that may concern drivers that were not known before.
    pub fn everything(&self) -> Vec<Key> {
        let claims = self.claims.all().into_iter().filter(|claim| is_waiting(claim)).map(|claim| claim_volume(&claim));
        let volumes = self.volumes.all().into_iter().map(|volume| volume_key(name(&volume)));
        claims.chain(volumes).collect()
    }
}

pub fn volume_key(name: &str) -> Key {
    ("".into(), name.into())
}

/// Whether a volume's backend is at a driver, whoever made it.
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
        // Volumes may have waited for its end, of which their objects can no longer tell.
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
