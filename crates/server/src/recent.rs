//! The objects of the newest writes, as they were before they became bytes.
//!
//! Who writes an object often writes it again soon: its status, then its spec, then its status. Then it need not be read from its bytes
//! anew. A version is known by its key and revision, which never belong to another one.

use object::Value;
use object::access::Access;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard};
use store::{Record, Revision};

/// Each key has one place, which it shares with others: the newest has it.
const PLACES: usize = 1024;
/// Larger objects are not kept, so that all of them together take little memory.
const BYTES_MAX: usize = 16 << 10;

pub struct Recent {
    hashes: RandomState,
    places: Box<[Mutex<Option<Kept>>]>,
}

struct Kept {
    key: Arc<str>,
    revision: Revision,
    object: Arc<Value>,
}

impl Default for Recent {
    fn default() -> Recent {
        Recent { hashes: RandomState::new(), places: (0..PLACES).map(|_| Mutex::default()).collect() }
    }
}

impl Recent {
    /// The object of a stored version, if it is still there.
    pub fn find(&self, record: &Record) -> Option<Arc<Value>> {
        let place = self.place(&record.key);
        let kept = place.as_ref().filter(|kept| kept.revision == record.modified && kept.key == record.key)?;
        Some(kept.object.clone())
    }

    /// Keeps the object of a version that was just stored.
    pub fn keep(&self, record: &Record, mut object: Value) {
        if record.value.len() > BYTES_MAX {
            return;
        }
        object.put(&["metadata", "resourceVersion"], record.modified.to_string());
        debug_assert_eq!(serde_json::from_slice::<Value>(&record.value).ok().as_ref(), Some(&object), "kept as stored");
        let kept = Kept { key: record.key.clone(), revision: record.modified, object: Arc::new(object) };
        let before = self.place(&record.key).replace(kept);
        // Not under the lock: to free an object takes its time.
        drop(before);
    }

    fn place(&self, key: &str) -> MutexGuard<'_, Option<Kept>> {
        let hash = self.hashes.hash_one(key);
        let at = usize::try_from(hash % PLACES as u64).unwrap_or_default();
        self.places[at].lock().expect("no panic happens under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;
    use bytes::Bytes;
    use object::json;
    use std::sync::OnceLock;

    fn record(key: &str, object: &Value, revision: Revision) -> Record {
        let value: Bytes = codec::finish(&codec::encode(object), revision);
        Record { key: key.into(), value, created: 1, modified: revision, memo: OnceLock::new() }
    }

    #[test]
    fn a_version_is_found_by_its_key_and_revision_alone() {
        let recent = Recent::default();
        let object = json!({"kind": "A", "metadata": {"name": "a"}});
        let version = record("a", &object, 7);
        assert!(recent.find(&version).is_none());
        recent.keep(&version, object.clone());
        assert_eq!(recent.find(&version).unwrap().text(&["metadata", "resourceVersion"]), "7");
        assert!(recent.find(&record("a", &object, 8)).is_none());
        assert!(recent.find(&record("b", &object, 7)).is_none());
    }

    #[test]
    fn little_is_kept_of_many_and_nothing_of_the_large() {
        let recent = Recent::default();
        let object = json!({"metadata": {"name": "a"}});
        let found = (0..PLACES * 4).filter(|number| {
            let version = record(&number.to_string(), &object, 7);
            recent.keep(&version, object.clone());
            recent.find(&version).is_some()
        });
        assert_eq!(found.count(), PLACES * 4, "the newest is always there");
        let left = (0..PLACES * 4).filter(|number| recent.find(&record(&number.to_string(), &object, 7)).is_some());
        assert!(left.count() <= PLACES);
        let large = json!({"metadata": {"name": "x".repeat(BYTES_MAX)}});
        let version = record("large", &large, 7);
        recent.keep(&version, large);
        assert!(recent.find(&version).is_none());
    }
}
