//! Names of members. API objects repeat the same field names many times, so names of built-in fields need no memory of
//! their own.

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::{Serialize, Serializer};
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::LazyLock;

/// All field names of the built-in schema, plain and with the prefix of managed fields. Sorted by bytes.
static FIELDS: &[&str] = include!(concat!(env!("OUT_DIR"), "/fields.rs"));

/// The name of a member of a [`super::Map`].
#[derive(Clone)]
pub struct Key(Name);

#[derive(Clone)]
enum Name {
    /// A field name of the built-in schema. Every such name is stored like this, wherever it comes from.
    Field(&'static &'static str),
    Other(Box<str>),
}

/// A hash table of the built-in field names with open addressing: each name is in the first free slot after its hash.
struct Fields {
    places: Vec<Option<&'static &'static str>>,
    longest: usize,
}

static KNOWN: LazyLock<Fields> = LazyLock::new(|| {
    // Half of the slots stay free, so that searches are short.
    let mut places = vec![None; (FIELDS.len() * 2).next_power_of_two()];
    for field in FIELDS {
        let mut at = place(field, places.len());
        while places[at].is_some() {
            at = (at + 1) % places.len();
        }
        places[at] = Some(field);
    }
    Fields { places, longest: FIELDS.iter().map(|field| field.len()).max().unwrap_or(0) }
});

/// Returns the slot of a name, from its length and its first and last bytes. The table contains only built-in names, so
/// input cannot cause collisions.
fn place(name: &str, places: usize) -> usize {
    let name = name.as_bytes();
    let (first, last) = match (name.first_chunk::<8>(), name.last_chunk::<8>()) {
        (Some(first), Some(last)) => (u64::from_le_bytes(*first), u64::from_le_bytes(*last)),
        _ => (name.iter().fold(0, |text, byte| text << 8 | u64::from(*byte)), 0),
    };
    let mixed = first.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ last.wrapping_mul(0xc2b2_ae3d_27d4_eb4f).rotate_left(31);
    let hash = (mixed ^ name.len() as u64).wrapping_mul(0x1656_67b1_9e37_79f9);
    usize::try_from(hash >> 40).unwrap_or_default() & (places - 1)
}

impl Fields {
    fn find(&self, name: &str) -> Option<&'static &'static str> {
        if name.len() > self.longest {
            return None;
        }
        let mut at = place(name, self.places.len());
        while let Some(field) = self.places[at] {
            if *field == name {
                return Some(field);
            }
            at = (at + 1) % self.places.len();
        }
        None
    }
}

impl Key {
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Name::Field(field) => field,
            Name::Other(name) => name,
        }
    }
}

impl From<&str> for Key {
    fn from(name: &str) -> Key {
        Key(KNOWN.find(name).map_or_else(|| Name::Other(name.into()), Name::Field))
    }
}

impl From<String> for Key {
    fn from(name: String) -> Key {
        Key(KNOWN.find(&name).map_or_else(|| Name::Other(name.into()), Name::Field))
    }
}

impl From<&String> for Key {
    fn from(name: &String) -> Key {
        name.as_str().into()
    }
}

impl From<&Key> for Key {
    fn from(key: &Key) -> Key {
        key.clone()
    }
}

impl From<Key> for String {
    fn from(key: Key) -> String {
        match key.0 {
            Name::Field(field) => (*field).to_owned(),
            Name::Other(name) => name.into(),
        }
    }
}

impl Deref for Key {
    type Target = str;
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        match (&self.0, &other.0) {
            (Name::Field(one), Name::Field(other)) => std::ptr::eq(*one, *other),
            (Name::Other(one), Name::Other(other)) => one == other,
            _ => false,
        }
    }
}

impl Eq for Key {}

impl PartialEq<str> for Key {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Key {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialEq<String> for Key {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == other
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), formatter)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        fmt::Display::fmt(self.as_str(), formatter)
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Key;
            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a name")
            }
            fn visit_str<E: Error>(self, name: &str) -> Result<Key, E> {
                Ok(name.into())
            }
            fn visit_string<E: Error>(self, name: String) -> Result<Key, E> {
                Ok(name.into())
            }
        }
        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builtin_field_names_need_no_memory() {
        assert!(FIELDS.is_sorted() && FIELDS.len() > 1000, "{}", FIELDS.len());
        for field in FIELDS {
            let key = Key::from(*field);
            assert!(matches!(key.0, Name::Field(_)), "{field}");
            assert_eq!(key.as_str(), *field);
            assert_eq!(Key::from((*field).to_owned()), key);
        }
        for common in ["metadata", "f:metadata", ".", "persistentVolumeReclaimPolicy"] {
            assert!(matches!(Key::from(common).0, Name::Field(_)), "{common}");
        }
        for other in ["", "metadat", "metadata.", "example.com/a", &"x".repeat(1000)] {
            let key = Key::from(other);
            assert!(matches!(key.0, Name::Other(_)), "{other}");
            assert_eq!((key.as_str(), String::from(key.clone())), (other, other.to_owned()));
            assert_ne!(key, Key::from("metadata"));
        }
        assert_eq!(size_of::<Key>(), 16);
    }

    #[test]
    fn every_name_is_found_within_a_few_slots() {
        let far = FIELDS.iter().map(|field| {
            let at = place(field, KNOWN.places.len());
            (0..)
                .find(|steps| KNOWN.places[(at + steps) % KNOWN.places.len()] == Some(field))
                .expect("the name is not in the table")
        });
        let far: Vec<usize> = far.collect();
        let (sum, most) = (far.iter().sum::<usize>(), far.iter().max().copied().unwrap_or(0));
        assert!(sum < FIELDS.len() && most < 20, "{sum} steps for {} names, {most} for one", FIELDS.len());
    }

    #[test]
    fn keys_are_ordered_as_texts() {
        let mut keys = ["b", "metadata", "a", "zz", "apiVersion", ""].map(Key::from);
        keys.sort();
        assert_eq!(keys.map(String::from), ["", "a", "apiVersion", "b", "metadata", "zz"]);
    }
}
