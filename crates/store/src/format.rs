//! Encoding of rows on disk. `docs/design/store.md` is the specification.

use crate::Revision;
use crate::disk::Row;
use bytes::Bytes;

/// The version of the format. It is raised when older programs would misread what newer programs write.
pub(crate) const FORMAT_VERSION: u32 = 1;

const FLAG_EXPIRES: u8 = 1;
const CRC_BYTES: usize = 4;
const MODIFIED_AT: usize = CRC_BYTES + 1 + 8;
const VALUE_AT: usize = MODIFIED_AT + 8;
const HEAD_BYTES: usize = 8 + 8 + 8 + CRC_BYTES;

/// The state of the whole store, rewritten by each commit. When the store opens, it proves that exactly the rows of
/// that commit are present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub revision: Revision,
    pub rows: u64,
    /// Sum of the marks of all rows, modulo 2⁶⁴.
    pub digest: u64,
}

impl Head {
    pub fn add(&mut self, mark: u64) {
        self.rows += 1;
        self.digest = self.digest.wrapping_add(mark);
    }

    pub fn remove(&mut self, mark: u64) {
        self.rows = self.rows.wrapping_sub(1);
        self.digest = self.digest.wrapping_sub(mark);
    }

    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(&self.revision.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.rows.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.digest.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..24]);
        bytes[24..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Head, String> {
        if bytes.len() != HEAD_BYTES || crc32fast::hash(&bytes[..24]) != u32_at(bytes, 24) {
            return Err("its head record is damaged".to_owned());
        }
        Ok(Head { revision: u64_at(bytes, 0), rows: u64_at(bytes, 8), digest: u64_at(bytes, 16) })
    }
}

/// Encodes a row into `to` (cleared first) and returns the row's mark.
pub(crate) fn encode(key: &str, row: &Row, to: &mut Vec<u8>) -> u64 {
    to.clear();
    to.extend_from_slice(&[0; CRC_BYTES]);
    to.push(if row.expires_at_s.is_some() { FLAG_EXPIRES } else { 0 });
    to.extend_from_slice(&row.created.to_le_bytes());
    to.extend_from_slice(&row.modified.to_le_bytes());
    if let Some(expires_at_s) = row.expires_at_s {
        to.extend_from_slice(&expires_at_s.to_le_bytes());
    }
    to.extend_from_slice(&row.value);
    let crc = checksum(key, &to[CRC_BYTES..]);
    to[..CRC_BYTES].copy_from_slice(&crc.to_le_bytes());
    mark_of(crc, row.modified)
}

/// Decodes a row and verifies its checksum. Returns the row and its mark.
pub(crate) fn decode(key: &str, bytes: &[u8]) -> Result<(Row, u64), String> {
    let damaged = || format!("the row of {key:?} is damaged");
    if bytes.len() < VALUE_AT || checksum(key, &bytes[CRC_BYTES..]) != u32_at(bytes, 0) {
        return Err(damaged());
    }
    let (expires_at_s, value) = match bytes[CRC_BYTES] {
        0 => (None, &bytes[VALUE_AT..]),
        FLAG_EXPIRES if bytes.len() >= VALUE_AT + 8 => (Some(u64_at(bytes, VALUE_AT)), &bytes[VALUE_AT + 8..]),
        _ => return Err(damaged()),
    };
    let (created, modified) = (u64_at(bytes, CRC_BYTES + 1), u64_at(bytes, MODIFIED_AT));
    if created > modified {
        return Err(damaged());
    }
    let row = Row { created, modified, expires_at_s, value: Bytes::copy_from_slice(value) };
    Ok((row, mark_of(u32_at(bytes, 0), modified)))
}

/// Returns the mark of an encoded row without verifying its value.
pub(crate) fn mark(key: &str, bytes: &[u8]) -> Result<u64, String> {
    if bytes.len() < VALUE_AT {
        return Err(format!("the row of {key:?} is damaged"));
    }
    Ok(mark_of(u32_at(bytes, 0), u64_at(bytes, MODIFIED_AT)))
}

/// Mixes a row's checksum and revision into 64 bits, so that different sets of rows have different sums.
fn mark_of(crc: u32, modified: Revision) -> u64 {
    let mut mix = modified.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(crc);
    mix = (mix ^ (mix >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mix = (mix ^ (mix >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mix ^ (mix >> 31)
}

fn checksum(key: &str, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key.as_bytes());
    hasher.update(body);
    hasher.finalize()
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_decoded_row_is_the_encoded_one_and_any_flipped_bit_is_detected(
            key in ".{0,20}",
            created in 0u64..1000,
            age in 0u64..1000,
            expires_at_s in any::<Option<u64>>(),
            value in proptest::collection::vec(any::<u8>(), 0..100),
            flip in any::<proptest::sample::Index>(),
        ) {
            let row = Row { created, modified: created + age, expires_at_s, value: value.into() };
            let mut bytes = Vec::new();
            let encoded = encode(&key, &row, &mut bytes);
            prop_assert_eq!(mark(&key, &bytes), Ok(encoded));
            prop_assert_eq!(decode(&key, &bytes), Ok((row, encoded)));
            let bit = flip.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode(&key, &bytes).is_err());
        }

        #[test]
        fn random_bytes_are_refused_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            prop_assert!(decode("key", &bytes).is_err());
            prop_assert!(Head::decode(&bytes).is_err());
            drop(mark("key", &bytes));
        }
    }

    /// Bytes that version 1 wrote. They must stay readable.
    #[test]
    fn rows_and_heads_of_version_1_are_read() {
        let row = [
            0x0a, 0xa7, 0x7a, 0x54, 1, 3, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, b'v',
            b'a', b'l',
        ];
        let expected = Row { created: 3, modified: 5, expires_at_s: Some(9), value: Bytes::from_static(b"val") };
        assert_eq!(decode("/key", &row).map(|(row, _)| row), Ok(expected));
        let head = [
            7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01, 0xe8, 0x51,
            0xa8, 0x1d,
        ];
        assert_eq!(Head::decode(&head), Ok(Head { revision: 7, rows: 1, digest: 0x0123_4567_89ab_cdef }));
    }

    #[test]
    fn a_decoded_head_is_the_encoded_one_and_removed_rows_leave_no_trace() {
        let mut head = Head { revision: 7, rows: 0, digest: 0 };
        let (one, other) = (mark_of(1, 2), mark_of(1, 3));
        assert_ne!(one, other);
        head.add(one);
        head.add(other);
        assert_eq!(Head::decode(&head.encode()), Ok(head));
        head.remove(one);
        head.remove(other);
        assert_eq!(head, Head { revision: 7, rows: 0, digest: 0 });
    }
}
