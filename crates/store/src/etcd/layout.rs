//! Keys and values in etcd. `docs/design/etcd.md` is the specification.

use super::wire::layout::{Head, Row};
use crate::{Operation, Revision};
use bytes::Bytes;
use prost::Message;

/// The version of the format. It is raised when older programs would misread what newer programs write.
pub const FORMAT_VERSION: u32 = 1;

/// The keys of one store.
#[derive(Clone, Debug)]
pub struct Layout {
    prefix: String,
}

/// Added to a revision of etcd to get the store's revision. A store that was filled from another store continues after
/// the last revision of that store, because clients may still have those revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset(pub Revision);

/// Value of the key `format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    pub version: u32,
    pub offset: Offset,
}

impl Layout {
    pub fn new(prefix: &str) -> Layout {
        Layout { prefix: prefix.trim_end_matches('/').to_owned() }
    }

    /// The range of all keys of this store.
    pub fn all(&self) -> (Bytes, Bytes) {
        (self.at("/"), self.at("0"))
    }

    pub fn data(&self) -> (Bytes, Bytes) {
        (self.at("/data"), self.at("/datb"))
    }

    /// The range of the keys that change while a store is in use: data, format, guard and head.
    pub fn watched(&self) -> (Bytes, Bytes) {
        (self.at("/data"), self.at("/head\0"))
    }

    /// The range of the keys format, guard and head.
    pub fn marks(&self) -> (Bytes, Bytes) {
        (self.format(), self.at("/head\0"))
    }

    pub fn format(&self) -> Bytes {
        self.at("/format")
    }

    pub fn head(&self) -> Bytes {
        self.at("/head")
    }

    /// Present while every transaction since it was written also wrote `head` (see `docs/design/etcd.md`, "Out of space").
    pub fn guard(&self) -> Bytes {
        self.at("/guard")
    }

    /// The key with which one of several servers claims periodic work.
    pub fn turn(&self, what: &str) -> Bytes {
        self.at(&format!("/turn/{what}"))
    }

    pub fn of_key(&self, key: &str) -> Bytes {
        self.at(&format!("/data{key}"))
    }

    /// Returns the store's key for a key of etcd, or `None` for a key outside of `data`.
    pub fn key_of<'a>(&self, key: &'a [u8]) -> Option<&'a str> {
        let key = key.strip_prefix(self.prefix.as_bytes())?.strip_prefix(b"/data")?;
        std::str::from_utf8(key).ok()
    }

    fn at(&self, rest: &str) -> Bytes {
        Bytes::from(format!("{}{rest}", self.prefix))
    }
}

impl Offset {
    pub fn revision(self, of_etcd: i64) -> Revision {
        u64::try_from(of_etcd).unwrap_or(0) + self.0
    }

    /// The revision of etcd. 0 stays 0, because it means that a key is absent.
    pub fn of_etcd(self, revision: Revision) -> i64 {
        i64::try_from(revision.saturating_sub(self.0)).unwrap_or(i64::MAX)
    }

    /// The value to compare a key's `mod_revision` with: 0 for an absent key. A revision from before this store began
    /// matches no version.
    pub fn compared(self, modified: Revision) -> i64 {
        match modified {
            0 => 0,
            modified if modified <= self.0 => NEVER,
            modified => self.of_etcd(modified),
        }
    }
}

/// A revision that no key in etcd has.
const NEVER: i64 = -1;

impl Format {
    pub fn encode(self) -> Bytes {
        Bytes::from(format!("version={}\noffset={}\n", self.version, self.offset.0))
    }

    /// Parses the value of `format`. If a newer program wrote it, only the version is required.
    pub fn decode(bytes: &[u8]) -> Option<Format> {
        let text = std::str::from_utf8(bytes).ok()?;
        let number = |name: &str| -> Option<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
            line.parse().ok()
        };
        let version = u32::try_from(number("version")?).ok().filter(|version| *version > 0)?;
        let offset = if version > FORMAT_VERSION { number("offset").unwrap_or(0) } else { number("offset")? };
        Some(Format { version, offset: Offset(offset) })
    }
}

pub fn encode_row(value: &Bytes, expires_at_s: Option<u64>) -> Bytes {
    Row { value: value.clone(), expires_at_s }.encode_to_vec().into()
}

pub fn decode_row(bytes: Bytes) -> Option<Row> {
    Row::decode(bytes).ok()
}

pub fn decode_head(bytes: Bytes) -> Head {
    // Another program wrote this head, so only the keys that changed are known of that transaction.
    Head::decode(bytes).unwrap_or_default()
}

pub fn key(operation: &Operation) -> &std::sync::Arc<str> {
    match operation {
        Operation::Put { key, .. } | Operation::Delete { key, .. } => key,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_keys_are_separate_from_control_keys_and_are_decoded_again() {
        let layout = Layout::new("/mainstay/");
        let (from, to) = layout.data();
        for key in ["", "/", "/core/pods/a/b", "x", "/\u{10ffff}"] {
            let stored = layout.of_key(key);
            assert!(from <= stored && stored < to, "{key:?}");
            assert_eq!(layout.key_of(&stored), Some(key));
        }
        for other in [
            layout.format(),
            layout.guard(),
            layout.head(),
            layout.turn("compact"),
            Bytes::from_static(b"/mainstays/data/x"),
        ] {
            assert_eq!(layout.key_of(&other), None);
            assert!(!(from <= other && other < to));
        }
        let (from, to) = layout.watched();
        assert!(
            [layout.of_key("/x"), layout.format(), layout.guard(), layout.head()]
                .iter()
                .all(|key| *key >= from && *key < to)
        );
        assert!(layout.turn("compact") >= to);
    }

    #[test]
    fn a_decoded_format_is_the_encoded_one_and_newer_versions_are_recognized() {
        let format = Format { version: 1, offset: Offset(1_000_000_007) };
        assert_eq!(Format::decode(&format.encode()), Some(format));
        assert_eq!(Format::decode(b"version=9\nwords=other\n").map(|format| format.version), Some(9));
        for bad in [&b""[..], b"version=1\n", b"version=0\noffset=1\n", b"version=x\noffset=1\n", b"\xff"] {
            assert_eq!(Format::decode(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn revisions_from_before_the_offset_match_no_version() {
        let offset = Offset(100);
        assert_eq!((offset.revision(7), offset.of_etcd(107)), (107, 7));
        assert_eq!([0, 1, 100, 101].map(|modified| offset.compared(modified)), [0, NEVER, NEVER, 1]);
    }
}
