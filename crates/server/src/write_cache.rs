//! Cache of the decoded objects of the newest writes.
//!
//! The same client often writes an object several times in sequence, such as status, spec and status. The cache
//! avoids decoding it each time. Key and revision identify a version uniquely.

use object::Value;
use object::access::Access;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use store::{Record, Revision};

/// Limit of the encoded size of all cached objects. In memory they take about three times as much.
const BYTES_MAX: usize = 4 << 20;
/// Larger objects are not cached, so that one does not displace many.
const OBJECT_BYTES_MAX: usize = 16 << 10;
/// Limit of cached versions, for small objects.
const VERSIONS_MAX: usize = 8192;

#[derive(Default)]
pub struct WriteCache {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// The newest version of each key.
    newest: HashMap<Arc<str>, Version>,
    /// All cached versions in the order of their writes, including replaced ones.
    order: VecDeque<(Arc<str>, Revision)>,
    bytes: usize,
}

struct Version {
    revision: Revision,
    bytes: usize,
    object: Arc<Value>,
}

impl WriteCache {
    /// The object of a stored version, if it is cached.
    pub fn find(&self, record: &Record) -> Option<Arc<Value>> {
        let kept = self.lock();
        let version = kept.newest.get(&record.key).filter(|version| version.revision == record.modified)?;
        Some(version.object.clone())
    }

    /// Caches the object of a version that was just stored.
    pub fn keep(&self, record: &Record, mut object: Value) {
        if record.value.len() > OBJECT_BYTES_MAX {
            return;
        }
        object.put(&["metadata", "resourceVersion"], record.modified.to_string());
        debug_assert_eq!(
            serde_json::from_slice::<Value>(&record.value).ok().as_ref(),
            Some(&object),
            "the cached object equals the stored one"
        );
        // The next version shares the unchanged parts instead of copying them.
        object.share();
        let version = Version { revision: record.modified, bytes: record.value.len(), object: Arc::new(object) };
        let forgotten = self.lock().keep(&record.key, version);
        // Drop outside the lock, because freeing large objects takes time.
        drop(forgotten);
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("no panic happens under this lock")
    }
}

impl Kept {
    /// Caches a version. Returns the versions that it displaces.
    fn keep(&mut self, key: &Arc<str>, version: Version) -> Vec<Version> {
        // Two writers of a key may arrive here in any order.
        if self.newest.get(key).is_some_and(|known| known.revision > version.revision) {
            return vec![version];
        }
        self.order.push_back((key.clone(), version.revision));
        self.bytes += version.bytes;
        let mut forgotten: Vec<Version> = self.newest.insert(key.clone(), version).into_iter().collect();
        self.bytes -= forgotten.iter().map(|version| version.bytes).sum::<usize>();
        while self.bytes > BYTES_MAX || self.order.len() > VERSIONS_MAX {
            let Some((key, revision)) = self.order.pop_front() else { break };
            if self.newest.get(&key).is_some_and(|version| version.revision == revision)
                && let Some(version) = self.newest.remove(&key)
            {
                self.bytes -= version.bytes;
                forgotten.push(version);
            }
        }
        forgotten
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
        let cache = WriteCache::default();
        let object = json!({"kind": "A", "metadata": {"name": "a"}});
        let version = record("a", &object, 7);
        assert!(cache.find(&version).is_none());
        cache.keep(&version, object.clone());
        assert_eq!(cache.find(&version).unwrap().text(&["metadata", "resourceVersion"]), "7");
        assert!(cache.find(&record("a", &object, 8)).is_none());
        assert!(cache.find(&record("b", &object, 7)).is_none());
    }

    #[test]
    fn only_the_newest_version_of_a_key_is_kept() {
        let cache = WriteCache::default();
        let object = json!({"metadata": {"name": "a"}});
        for revision in [7, 9, 8] {
            cache.keep(&record("a", &object, revision), object.clone());
        }
        let found = [7, 8, 9].map(|revision| cache.find(&record("a", &object, revision)).is_some());
        assert_eq!(found, [false, false, true]);
        assert_eq!(cache.lock().bytes, record("a", &object, 9).value.len());
    }

    #[test]
    fn the_newest_are_kept_and_the_oldest_forgotten() {
        let cache = WriteCache::default();
        let object = json!({"metadata": {"name": "a", "filling": "x".repeat(OBJECT_BYTES_MAX / 2)}});
        let versions: Vec<Record> = (0..1000).map(|number| record(&number.to_string(), &object, 7)).collect();
        versions.iter().for_each(|version| cache.keep(version, object.clone()));
        let there: Vec<bool> = versions.iter().map(|version| cache.find(version).is_some()).collect();
        let fitting = BYTES_MAX / versions[0].value.len();
        assert_eq!(there.iter().rev().take_while(|there| **there).count(), fitting);
        assert_eq!(there.iter().filter(|there| **there).count(), fitting);
        let kept = cache.lock();
        assert_eq!(kept.bytes, kept.newest.values().map(|version| version.bytes).sum::<usize>());
        assert_eq!(kept.order.len(), kept.newest.len());
    }

    #[test]
    fn neither_many_versions_nor_large_ones_take_much() {
        let cache = WriteCache::default();
        let object = json!({"metadata": {"name": "a"}});
        for revision in 1..=u64::try_from(VERSIONS_MAX).unwrap() * 3 {
            cache.keep(&record(&(revision % 7).to_string(), &object, revision), object.clone());
        }
        let kept = cache.lock();
        assert_eq!((kept.newest.len(), kept.order.len()), (7, VERSIONS_MAX));
        drop(kept);
        let large = json!({"metadata": {"name": "x".repeat(OBJECT_BYTES_MAX)}});
        let version = record("large", &large, 7);
        cache.keep(&version, large);
        assert!(cache.find(&version).is_none());
    }
}
