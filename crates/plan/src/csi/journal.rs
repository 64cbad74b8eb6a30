//! What is written down before a driver is called, so that whoever comes after a crash can finish it.
//!
//! Objects cannot say these things: before a volume is made there is no object for it, and a volume object that is already on its way
//! out can no longer be held. Claims are not the place either: their owners may write what they like into them, and must not order
//! volumes with parameters and secrets of their choice.

use super::SecretRef;
use super::provision::Intent;
use object::access::Access;
use serde::{Deserialize, Serialize};

/// One note, under the volume's name, or under [`Doomed::own_key`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Entry {
    /// A driver may have been asked to make this volume.
    Create(Box<Intent>),
    /// This volume is to be deleted when its claim is gone, even if its object goes before.
    Delete(Box<Doomed>),
}

/// A volume to delete: all that it takes, without its object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doomed {
    pub volume: String,
    pub uid: String,
    /// The version of the object that was seen.
    pub version: String,
    /// Its object was seen to go while its policy was Delete. Without this, an object that is gone may have been changed to Retain
    /// before, while nobody looked.
    pub gone: bool,
    pub driver: String,
    pub handle: String,
    pub class: String,
    pub secret: Option<SecretRef>,
    pub claim_namespace: String,
    pub claim_name: String,
    pub claim_uid: String,
}

impl Doomed {
    pub fn own_key(&self) -> String {
        own_key(&self.uid)
    }
}

/// What the note about a volume is under when another one has its name: no volume is called so, because of the underscore.
pub fn own_key(uid: &str) -> String {
    format!("_{uid}")
}

impl Entry {
    /// Whose volume it is about.
    pub fn driver(&self) -> &str {
        match self {
            Entry::Create(intent) => &intent.driver,
            Entry::Delete(doomed) => &doomed.driver,
        }
    }

    /// Whether it is about the volume that another note would have deleted.
    pub fn is_about(&self, doomed: &Doomed) -> bool {
        match self {
            Entry::Create(intent) => {
                intent.driver == doomed.driver && intent.claim().text(&["uid"]) == doomed.claim_uid
            }
            Entry::Delete(other) => other.uid == doomed.uid,
        }
    }

    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("strings, numbers and maps with string keys are JSON")
    }

    /// `None` for what nobody here has written.
    pub fn from_text(text: &str) -> Option<Entry> {
        serde_json::from_str(text).ok()
    }
}
