//! Decodes each object once for all controllers of the process.
//!
//! Controllers watch the same resources, each with its own permissions, and a write of one reaches all of
//! them: the same text arrives many times. The first receiver decodes it; the others get the decoded object
//! while the text is among the most recent. A later receiver, or one that lists at its start, decodes again
//! and then gets the object that others still hold in that version. So all share the memory of what they
//! keep.

use crate::strip_managed_fields::WithoutManagedFields;
use object::Value;
use object::access::{Access, uid};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Total size of the remembered texts. Receivers of the same object get it within moments of each other.
const BYTES_MAX: usize = 4 << 20;
/// Larger texts without a uid are lists and similar responses, which arrive once. Large objects are
/// remembered, because they cost most to decode and to hold twice.
const NO_OBJECT_BYTES_MAX: usize = 256 << 10;

/// The hash covers this much of the beginning and of the end of a text.
const END_BYTES: usize = 256;

/// Clones share the decoded objects.
#[derive(Clone, Default)]
pub struct DecodeCache {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    hashes: RandomState,
    recent: Mutex<Recent>,
    kept: Mutex<Kept>,
}

/// Objects that some receiver still holds, by uid and version.
#[derive(Default)]
struct Kept {
    objects: HashMap<u64, Weak<Value>>,
    /// Number of entries after the last removal of unused ones.
    swept: usize,
}

/// Below this number, unused entries are not removed.
const KEPT_MIN: usize = 1024;

#[derive(Default)]
struct Recent {
    texts: HashMap<u64, Read>,
    /// Hashes in order of arrival.
    order: VecDeque<u64>,
    bytes: usize,
}

struct Read {
    text: Box<[u8]>,
    object: Arc<Value>,
}

impl DecodeCache {
    /// Decodes the object of this text, without its managed fields.
    pub fn object(&self, text: &[u8]) -> Result<Arc<Value>, serde_json::Error> {
        let hash = self.hash(text);
        if let Some(object) = self.lock().find(hash, text) {
            return Ok(object);
        }
        let object = self.as_kept(read(text)?);
        if text.len() > NO_OBJECT_BYTES_MAX && uid(&object).is_empty() {
            return Ok(object);
        }
        let forgotten = self.lock().keep(hash, Read { text: text.into(), object: object.clone() });
        // Dropped outside the lock: freeing objects takes time.
        drop(forgotten);
        Ok(object)
    }

    /// The object of this text, if it was decoded recently.
    pub fn known(&self, text: &[u8]) -> Option<Arc<Value>> {
        self.lock().find(self.hash(text), text)
    }

    /// Hashes the ends of a text: uid and version are near the beginning. A match is confirmed by comparing
    /// whole texts.
    fn hash(&self, text: &[u8]) -> u64 {
        let (beginning, end) = (&text[..text.len().min(END_BYTES)], &text[text.len().saturating_sub(END_BYTES)..]);
        self.shared.hashes.hash_one((text.len(), beginning, end))
    }

    /// Returns the same object if some receiver holds it already, else this one.
    fn as_kept(&self, object: Arc<Value>) -> Arc<Value> {
        let (uid, version) = (uid(&object), object.text(&["metadata", "resourceVersion"]));
        if uid.is_empty() || version.is_empty() {
            return object;
        }
        let hash = self.shared.hashes.hash_one((uid, version));
        let known = self.shared.kept.lock().expect("no panic happens under this lock").find(hash);
        // Compared, because hashes collide, and because the same version may be received whole and as
        // metadata only.
        if let Some(known) = known.filter(|known| *known == object) {
            return known;
        }
        self.shared.kept.lock().expect("no panic happens under this lock").keep(hash, &object);
        object
    }

    fn lock(&self) -> MutexGuard<'_, Recent> {
        self.shared.recent.lock().expect("no panic happens under this lock")
    }
}

impl Kept {
    fn find(&self, hash: u64) -> Option<Arc<Value>> {
        self.objects.get(&hash)?.upgrade()
    }

    fn keep(&mut self, hash: u64, object: &Arc<Value>) {
        self.objects.insert(hash, Arc::downgrade(object));
        if self.objects.len() > KEPT_MIN.max(2 * self.swept) {
            self.objects.retain(|_, object| object.strong_count() > 0);
            self.objects.shrink_to(2 * self.objects.len());
            self.swept = self.objects.len();
        }
    }
}

impl Recent {
    fn find(&self, hash: u64, text: &[u8]) -> Option<Arc<Value>> {
        self.texts.get(&hash).filter(|read| *read.text == *text).map(|read| read.object.clone())
    }

    /// Remembers a text; returns the texts that exceed the limit.
    fn keep(&mut self, hash: u64, read: Read) -> Vec<Read> {
        self.bytes += read.text.len();
        let mut forgotten: Vec<Read> = self.texts.insert(hash, read).into_iter().collect();
        // Two receivers decoded the text at once, or the hash collided: its place in the order stays.
        if forgotten.is_empty() {
            self.order.push_back(hash);
        }
        let mut bytes = self.bytes - forgotten.iter().map(|read| read.text.len()).sum::<usize>();
        while bytes > BYTES_MAX {
            let Some(read) = self.order.pop_front().and_then(|oldest| self.texts.remove(&oldest)) else { break };
            bytes -= read.text.len();
            forgotten.push(read);
        }
        self.bytes = bytes;
        forgotten
    }
}

fn read(text: &[u8]) -> Result<Arc<Value>, serde_json::Error> {
    let WithoutManagedFields(object) = object::value::from_bytes(text)?;
    Ok(Arc::new(object))
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::access::Access;

    fn text(number: usize, filling: usize) -> Vec<u8> {
        format!(r#"{{"number":{number},"filling":"{}"}}"#, "x".repeat(filling)).into_bytes()
    }

    #[test]
    fn a_text_is_read_once() {
        let decoded = DecodeCache::default();
        let (first, second) = (decoded.object(&text(1, 1)).unwrap(), decoded.object(&text(1, 1)).unwrap());
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(decoded.object(&text(2, 1)).unwrap().int(&["number"]), Some(2));
        assert!(decoded.known(&text(2, 1)).is_some());
        assert!(decoded.known(&text(3, 1)).is_none());
        assert!(decoded.object(b"{\"cut\":").is_err());
        assert!(decoded.known(b"{\"cut\":").is_none());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let decoded = DecodeCache::default();
        for number in 0..200 {
            decoded.object(&text(number, NO_OBJECT_BYTES_MAX / 2)).unwrap();
        }
        assert!(decoded.known(&text(199, NO_OBJECT_BYTES_MAX / 2)).is_some());
        assert!(decoded.known(&text(0, NO_OBJECT_BYTES_MAX / 2)).is_none(), "the oldest text is forgotten");
        let recent = decoded.lock();
        assert!(recent.bytes <= BYTES_MAX);
        assert_eq!(recent.bytes, recent.texts.values().map(|read| read.text.len()).sum::<usize>());
        assert_eq!(recent.order.len(), recent.texts.len());
        drop(recent);
        decoded.object(&text(1, NO_OBJECT_BYTES_MAX)).unwrap();
        assert!(decoded.known(&text(1, NO_OBJECT_BYTES_MAX)).is_none(), "too large to be remembered");
        let large = "x".repeat(BYTES_MAX / 2);
        let objects = [1, 1].map(|number| decoded.object(&version(number, &large)).unwrap());
        assert!(Arc::ptr_eq(&objects[0], &objects[1]), "large objects are decoded once");
    }

    fn version(number: usize, filling: &str) -> Vec<u8> {
        let metadata = format!(r#"{{"uid":"u{number}","resourceVersion":"{number}"}}"#);
        format!(r#"{{"metadata":{metadata},"filling":"{filling}"}}"#).into_bytes()
    }

    #[test]
    fn what_somebody_keeps_is_shared_for_ever() {
        let decoded = DecodeCache::default();
        let first = decoded.object(&version(1, "x")).unwrap();
        for number in 0..100 {
            decoded.object(&text(number, NO_OBJECT_BYTES_MAX / 2)).unwrap();
        }
        assert!(decoded.known(&version(1, "x")).is_none(), "its text is forgotten");
        assert!(Arc::ptr_eq(&first, &decoded.object(&version(1, "x")).unwrap()));
        assert_eq!(
            decoded.object(&version(1, "y")).unwrap().text(&["filling"]),
            "y",
            "different objects are not shared"
        );
        assert_eq!(decoded.object(&version(2, "x")).unwrap().text(&["metadata", "uid"]), "u2");
    }

    #[test]
    fn what_nobody_keeps_takes_no_room() {
        let decoded = DecodeCache::default();
        let filling = "x".repeat(1 << 10);
        let kept: Vec<_> = (0..100).map(|number| decoded.object(&version(number, &filling)).unwrap()).collect();
        for number in 100..50_000 {
            decoded.object(&version(number, &filling)).unwrap();
        }
        let remembered = decoded.shared.kept.lock().unwrap().objects.len();
        // Including those whose texts are remembered.
        assert!(remembered <= 2 * (100 + BYTES_MAX / filling.len()), "{remembered}");
        assert!(
            kept.iter()
                .enumerate()
                .all(|(number, object)| { Arc::ptr_eq(object, &decoded.object(&version(number, &filling)).unwrap()) })
        );
    }

    #[test]
    fn texts_of_one_hash_are_not_taken_for_each_other() {
        let mut recent = Recent::default();
        let keep = |recent: &mut Recent, number| {
            let text = text(number, 1);
            recent.keep(7, Read { object: read(&text).unwrap(), text: text.into() }).len()
        };
        assert_eq!(keep(&mut recent, 1), 0);
        assert!(recent.find(7, &text(2, 1)).is_none());
        assert_eq!(keep(&mut recent, 2), 1, "the newer one takes its place");
        assert_eq!(recent.find(7, &text(2, 1)).unwrap().int(&["number"]), Some(2));
        assert_eq!((recent.order.len(), recent.bytes), (1, text(2, 1).len()));
    }
}
