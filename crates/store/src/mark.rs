//! The mark: the store's last revision, written to a file beside the store.
//!
//! After a restart redb cannot distinguish a damaged last commit from one that a crash interrupted: in both cases it
//! falls back to the commit before. The mark can: it is written after a commit was synced and before the commit is
//! acknowledged. So the revision in the mark was durable, and the store must have it.

use crate::format::{u32_at, u64_at};
use crate::local::FIRST_REVISION;
use crate::medium::Medium;
use crate::{OpenError, Revision};

/// File name of the mark in the store's directory.
pub(crate) const FILE: &str = "store.mark";

const VERSION: u32 = 1;
const BYTES: usize = 4 + 8 + 4;

pub(crate) fn encode(revision: Revision) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..4].copy_from_slice(&VERSION.to_le_bytes());
    bytes[4..12].copy_from_slice(&revision.to_le_bytes());
    let crc = crc32fast::hash(&bytes[..12]);
    bytes[12..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<Revision> {
    let whole = bytes.len() >= BYTES && crc32fast::hash(&bytes[..12]) == u32_at(bytes, 12);
    (whole && u32_at(bytes, 0) == VERSION).then(|| u64_at(bytes, 4))
}

/// Returns the revision in the mark. A missing or unreadable mark gives `None`, and the store opens without this check.
fn read(medium: &dyn Medium) -> Option<Revision> {
    let unreadable = |why: &str| {
        tracing::warn!(
            why,
            store = medium.place(),
            "{FILE} cannot be read; the loss of the newest writes cannot be detected"
        )
    };
    match medium.noted() {
        Ok(bytes) if bytes.is_empty() => None,
        Ok(bytes) => decode(&bytes).or_else(|| {
            unreadable("it is torn or damaged");
            None
        }),
        Err(error) => {
            unreadable(&error.to_string());
            None
        }
    }
}

/// Refuses a store whose revision is behind the mark, because acknowledged writes are lost. `found` is the store's
/// revision, or `None` without a store.
pub(crate) fn check(medium: &dyn Medium, found: Option<Revision>) -> Result<(), OpenError> {
    let there = found.unwrap_or(FIRST_REVISION);
    let Some(noted) = read(medium).filter(|noted| *noted > there) else { return Ok(()) };
    let is = found.map_or_else(|| "the store is missing".to_owned(), |found| format!("it is at revision {found}"));
    Err(OpenError::Damaged(format!(
        "writes up to revision {noted} were acknowledged, but {is}; \
         restore a backup with `mainstay store restore`, or delete {FILE} beside it to continue with the older state"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_decoded_mark_is_the_encoded_one_and_damage_makes_it_unreadable(revision: u64, bit in 0..BYTES * 8, end in 0..BYTES) {
            let mut bytes = encode(revision);
            prop_assert_eq!(decode(&bytes), Some(revision));
            prop_assert_eq!(decode(&bytes[..end]), None);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(decode(&bytes), None);
        }
    }

    /// Bytes that version 1 wrote. They must stay readable.
    #[test]
    fn marks_of_version_1_are_read() {
        let bytes = [1, 0, 0, 0, 42, 0, 0, 0, 0, 0, 0, 0, 0x9e, 0xf4, 0xc6, 0x88];
        assert_eq!(decode(&bytes), Some(42));
        assert_eq!(decode(&[0; BYTES]), None);
    }
}
