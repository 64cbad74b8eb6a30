//! What is journaled before a driver is called, so that a process that starts after a crash can finish it.
//!
//! Objects cannot hold this: before a volume is created it has no PV, and a PV that is already being deleted cannot get
//! a finalizer any more. Claims are not safe either: their owners can write anything into them, and must not be able to
//! request volumes with parameters and Secrets of their choice.

use super::SecretRef;
use super::provision::Intent;
use object::access::Access;
use serde::{Deserialize, Serialize};

/// A journal entry, under the volume's name or under [`PendingDeletion::own_key`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Entry {
    /// A driver may have been asked to create this volume.
    Create(Box<Intent>),
    /// This volume is to be deleted when its claim is deleted, even if its PV is deleted first.
    Delete(Box<PendingDeletion>),
}

/// All that the deletion of a volume needs when its PV no longer exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingDeletion {
    pub volume: String,
    pub uid: String,
    /// The resource version of the PV that was seen.
    pub version: String,
    /// The PV was seen to be deleted while its policy was `Delete`. Otherwise its policy may have become `Retain`
    /// before it disappeared unobserved.
    pub gone: bool,
    pub driver: String,
    pub handle: String,
    pub class: String,
    pub secret: Option<SecretRef>,
    pub claim_namespace: String,
    pub claim_name: String,
    pub claim_uid: String,
}

impl PendingDeletion {
    pub fn own_key(&self) -> String {
        own_key(&self.uid)
    }
}

/// The key of a deletion when another volume has the name. No volume name begins with an underscore.
pub fn own_key(uid: &str) -> String {
    format!("_{uid}")
}

impl Entry {
    /// The driver of the entry's volume.
    pub fn driver(&self) -> &str {
        match self {
            Entry::Create(intent) => &intent.driver,
            Entry::Delete(deletion) => &deletion.driver,
        }
    }

    /// Whether the entry is about the volume of this deletion.
    pub fn is_about(&self, deletion: &PendingDeletion) -> bool {
        match self {
            Entry::Create(intent) => {
                intent.driver == deletion.driver && intent.claim().text(&["uid"]) == deletion.claim_uid
            }
            Entry::Delete(other) => other.uid == deletion.uid,
        }
    }

    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("strings, numbers and maps with string keys are JSON")
    }

    /// `None` for text that is not a journal entry.
    pub fn from_text(text: &str) -> Option<Entry> {
        serde_json::from_str(text).ok()
    }
}
