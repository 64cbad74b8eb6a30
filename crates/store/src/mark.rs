//! How far the store has come, noted beside its file.
//!
//! The engine cannot tell a last commit that was damaged from one that a crash cut short: both times it goes back to the commit before. The
//! mark can: it is written when a commit is on the disk, before anybody hears of it. So what it names was durable, and must be there.

use crate::format::{u32_at, u64_at};
use crate::local::FIRST_REVISION;
use crate::medium::Medium;
use crate::{OpenError, Revision};

/// The mark of the store in a directory.
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

/// The revision that was noted last. A mark that is not there or cannot be read says nothing: the store is no worse than without one.
fn read(medium: &dyn Medium) -> Option<Revision> {
    let unreadable = |why: &str| {
        tracing::warn!(
            why,
            store = medium.place(),
            "{FILE} cannot be read: whether the newest writes are there is not known by it"
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

/// Refuses a store that has fallen back behind what was acknowledged. `found` is the revision it is at, if there is anything at all.
pub(crate) fn check(medium: &dyn Medium, found: Option<Revision>) -> Result<(), OpenError> {
    let there = found.unwrap_or(FIRST_REVISION);
    let Some(noted) = read(medium).filter(|noted| *noted > there) else { return Ok(()) };
    let is = found.map_or_else(|| "there is nothing".to_owned(), |found| format!("it is at revision {found}"));
    Err(OpenError::Damaged(format!(
        "writes up to revision {noted} were acknowledged, but {is}; \
         restore a backup with `mainstay store restore`, or delete {FILE} beside it to go on with what is left"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_mark_reads_back_and_a_damaged_one_says_nothing(revision: u64, bit in 0..BYTES * 8, end in 0..BYTES) {
            let mut bytes = encode(revision);
            prop_assert_eq!(decode(&bytes), Some(revision));
            prop_assert_eq!(decode(&bytes[..end]), None);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(decode(&bytes), None);
        }
    }

    /// What version 1 wrote is read for ever: these are its bytes.
    #[test]
    fn marks_of_version_1_are_read() {
        let bytes = [1, 0, 0, 0, 42, 0, 0, 0, 0, 0, 0, 0, 0x9e, 0xf4, 0xc6, 0x88];
        assert_eq!(decode(&bytes), Some(42));
        assert_eq!(decode(&[0; BYTES]), None);
    }
}
