//! The backup format: one store in one file. `docs/design/store.md` specifies the layout.

use crate::disk::Row;
use crate::export::{Export, Rows};
use crate::format::{self, u32_at, u64_at};
use crate::{Error, Revision};
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use std::io::{self, Read};
use std::sync::Arc;

const MAGIC: &[u8; 16] = b"mainstay backup\n";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = MAGIC.len() + 4 + 8;
/// Marks the end of the rows, in place of a key length.
const END: u32 = u32::MAX;
/// Upper bound for the length of a key or a row. Real ones are much smaller, so a greater length means damage.
const LENGTH_MAX: u32 = 64 << 20;
/// Greatest revision that a backup may have. No real store gets there, and revisions after it must still fit into 64
/// bits.
const REVISION_MAX: Revision = i64::MAX as u64;
const ROWS_PER_PAGE: usize = 1000;

#[derive(Debug, thiserror::Error)]
pub enum BadBackup {
    #[error("it is not a backup of a store")]
    Foreign,
    #[error("it was written by a newer version (format {0}; this one reads up to {VERSION})")]
    Newer(u32),
    #[error("it is truncated: its end is missing")]
    Torn,
    #[error("it is damaged: {0}")]
    Damaged(String),
    #[error("it cannot be read: {0}")]
    Io(io::Error),
}

/// Encodes an export as a stream of file chunks. If the stream ends with an error, the trailer is missing, and readers
/// detect that.
pub fn encode(export: Export) -> BoxStream<'static, Result<Bytes, Error>> {
    let header = header(export.revision);
    let sum = (0u64, 0u64);
    let body = futures::stream::unfold(Some((export.pages, sum, header.clone())), |state| async move {
        let (mut pages, (rows, digest), header) = state?;
        match pages.next().await {
            Some(Ok(page)) => {
                let (bytes, sum) = encode_page(&page, rows, digest);
                Some((Ok(bytes), Some((pages, sum, header))))
            }
            Some(Err(error)) => Some((Err(error), None)),
            None => Some((Ok(trailer(&header, rows, digest)), None)),
        }
    });
    Box::pin(futures::stream::iter([Ok(header)]).chain(body))
}

fn header(revision: Revision) -> Bytes {
    [&MAGIC[..], &VERSION.to_le_bytes(), &revision.to_le_bytes()].concat().into()
}

fn encode_page(page: &Rows, mut rows: u64, mut digest: u64) -> (Bytes, (u64, u64)) {
    let (mut bytes, mut row_bytes) = (Vec::new(), Vec::new());
    for (key, row) in page {
        let mark = format::encode(key, row, &mut row_bytes);
        bytes.extend_from_slice(&length(key.len()).to_le_bytes());
        bytes.extend_from_slice(&length(row_bytes.len()).to_le_bytes());
        bytes.extend_from_slice(key.as_bytes());
        bytes.extend_from_slice(&row_bytes);
        rows += 1;
        digest = digest.wrapping_add(mark);
    }
    (bytes.into(), (rows, digest))
}

fn length(length: usize) -> u32 {
    u32::try_from(length).ok().filter(|length| *length <= LENGTH_MAX).expect("a key or a row is longer than 64 MiB")
}

fn trailer(header: &[u8], rows: u64, digest: u64) -> Bytes {
    let counted = [&END.to_le_bytes()[..], &rows.to_le_bytes(), &digest.to_le_bytes()].concat();
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(header);
    hasher.update(&counted);
    [&counted[..], &hasher.finalize().to_le_bytes()].concat().into()
}

/// Reads a backup and verifies all of it while reading.
pub struct Reader<R> {
    from: R,
    pub revision: Revision,
    header: [u8; HEADER_BYTES],
    rows: u64,
    digest: u64,
    /// Key of the previous row.
    last: Option<Arc<str>>,
    ended: bool,
    /// Whether other data may follow the store in the same file.
    is_part: bool,
}

impl<R: Read> Reader<R> {
    /// Opens a file that contains only a store.
    pub fn open(from: R) -> Result<Reader<R>, BadBackup> {
        Reader::begin(from, false)
    }

    /// Opens a store that other data may follow; [`Reader::into_rest`] returns the reader of that data.
    pub fn open_part(from: R) -> Result<Reader<R>, BadBackup> {
        Reader::begin(from, true)
    }

    /// Returns the reader of the data that follows the store. Call it after all rows were read.
    pub fn into_rest(self) -> R {
        self.from
    }

    fn begin(mut from: R, is_part: bool) -> Result<Reader<R>, BadBackup> {
        let mut header = [0; HEADER_BYTES];
        let got = fill(&mut from, &mut header)?;
        if !header[..got.min(MAGIC.len())].eq(&MAGIC[..got.min(MAGIC.len())]) || got == 0 {
            return Err(BadBackup::Foreign);
        }
        if got < HEADER_BYTES {
            return Err(BadBackup::Torn);
        }
        let version = u32_at(&header, MAGIC.len());
        if version > VERSION {
            return Err(BadBackup::Newer(version));
        }
        let revision = u64_at(&header, MAGIC.len() + 4);
        if version == 0 || revision > REVISION_MAX {
            return Err(BadBackup::Damaged("its version or its revision is invalid".to_owned()));
        }
        Ok(Reader { from, revision, header, rows: 0, digest: 0, last: None, ended: false, is_part })
    }

    /// Returns the next rows. An empty page means that the whole backup was read and verified.
    pub fn page(&mut self) -> Result<Rows, BadBackup> {
        let mut page = Vec::new();
        while !self.ended && page.len() < ROWS_PER_PAGE {
            page.extend(self.row()?);
        }
        Ok(page)
    }

    /// Returns the next row, or `None` at the end.
    fn row(&mut self) -> Result<Option<(Arc<str>, Row)>, BadBackup> {
        let key_length = u32_at(&self.exact(4)?, 0);
        if key_length == END {
            self.end()?;
            return Ok(None);
        }
        let row_length = u32_at(&self.exact(4)?, 0);
        if key_length > LENGTH_MAX || row_length > LENGTH_MAX {
            return Err(BadBackup::Damaged(format!("row {} has an invalid length", self.rows + 1)));
        }
        let key = self.exact(key_length as usize)?;
        let key = std::str::from_utf8(&key)
            .map_err(|_| BadBackup::Damaged(format!("the key of row {} is not UTF-8", self.rows + 1)))?;
        let key: Arc<str> = Arc::from(key);
        let bytes = self.exact(row_length as usize)?;
        let (row, mark) = format::decode(&key, &bytes).map_err(BadBackup::Damaged)?;
        self.check(&key, &row)?;
        self.rows += 1;
        self.digest = self.digest.wrapping_add(mark);
        self.last = Some(key.clone());
        Ok(Some((key, row)))
    }

    /// Checks what checksums cannot prove, because a crafted file can have valid checksums: each key exists once, in
    /// order, and no row is newer than the backup's revision.
    fn check(&self, key: &str, row: &Row) -> Result<(), BadBackup> {
        if self.last.as_deref().is_some_and(|last| last >= key) {
            return Err(BadBackup::Damaged(format!("the key of row {} is not after the previous key", self.rows + 1)));
        }
        if row.modified > self.revision {
            return Err(BadBackup::Damaged(format!("row {} is newer than the backup's revision", self.rows + 1)));
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), BadBackup> {
        let rest = self.exact(8 + 8 + 4)?;
        let said = [&END.to_le_bytes()[..], &rest].concat();
        if said != trailer(&self.header, self.rows, self.digest) {
            return Err(BadBackup::Damaged("its rows do not match the count and checksum at its end".to_owned()));
        }
        if !self.is_part && fill(&mut self.from, &mut [0])? > 0 {
            return Err(BadBackup::Damaged("there is data after its end".to_owned()));
        }
        self.ended = true;
        Ok(())
    }

    fn exact(&mut self, length: usize) -> Result<Vec<u8>, BadBackup> {
        // Grows the buffer while reading, so that a damaged length does not allocate memory that the file cannot fill.
        let mut bytes = Vec::new();
        let got = self.from.by_ref().take(length as u64).read_to_end(&mut bytes).map_err(BadBackup::Io)?;
        if got < length { Err(BadBackup::Torn) } else { Ok(bytes) }
    }
}

/// Reads until the buffer is full or the input ends. Returns the number of bytes read.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> Result<usize, BadBackup> {
    let mut got = 0;
    while got < buffer.len() {
        match from.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(BadBackup::Io(error)),
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: u64) -> Rows {
        let row = |n: u64| Row {
            created: n,
            modified: n + 1,
            expires_at_s: n.is_multiple_of(2).then_some(n),
            value: Bytes::from(vec![7; n as usize]),
        };
        (0..count).map(|n| (Arc::from(format!("/k/{n:04}")), row(n))).collect()
    }

    fn file(rows: Rows) -> Vec<u8> {
        let export = Export { revision: 9999, pages: Box::pin(futures::stream::iter([Ok(rows)])) };
        let pieces: Vec<_> = futures::executor::block_on(encode(export).map(Result::unwrap).collect());
        pieces.concat()
    }

    fn read(bytes: &[u8]) -> Result<Rows, BadBackup> {
        let mut reader = Reader::open(bytes)?;
        let mut all = Vec::new();
        loop {
            let page = reader.page()?;
            if page.is_empty() {
                assert_eq!(reader.revision, 9999);
                return Ok(all);
            }
            all.extend(page);
        }
    }

    #[test]
    fn a_decoded_backup_equals_the_export() {
        for count in [0, 1, 1000, 1001] {
            assert_eq!(read(&file(rows(count))).unwrap(), rows(count));
        }
    }

    #[test]
    fn a_truncated_backup_is_detected_at_any_length() {
        let whole = file(rows(20));
        for length in 1..whole.len() {
            let torn = read(&whole[..length]).unwrap_err();
            assert!(matches!(torn, BadBackup::Torn), "{length}: {torn}");
        }
        assert!(matches!(read(&[]), Err(BadBackup::Foreign)));
        assert!(matches!(read(b"apiVersion: v1"), Err(BadBackup::Foreign)));
        assert!(read(&[&whole[..], b"x"].concat()).is_err(), "data after the end is refused");
    }

    #[test]
    fn any_flipped_bit_is_detected() {
        let whole = file(rows(20));
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&flipped).is_err(), "bit {bit}");
        }
    }

    /// Valid checksums do not make a valid backup: its content must be possible for a store.
    #[test]
    fn impossible_content_with_valid_checksums_is_refused() {
        let all = rows(3);
        let made = |picked: &[usize]| file(picked.iter().map(|at| all[*at].clone()).collect());
        assert_eq!(read(&made(&[0, 2])).unwrap().len(), 2);
        for (picked, row) in [(&[0, 1, 1, 2][..], 3), (&[1, 0], 2)] {
            let said = read(&made(picked)).unwrap_err().to_string();
            assert_eq!(said, format!("it is damaged: the key of row {row} is not after the previous key"));
        }
        let newer = Row { modified: 10_000, ..all[0].1.clone() };
        let said = read(&file(vec![(all[0].0.clone(), newer)])).unwrap_err().to_string();
        assert_eq!(said, "it is damaged: row 1 is newer than the backup's revision");
        for (version, revision) in [(0, 9999), (VERSION, u64::MAX), (VERSION, REVISION_MAX + 1)] {
            let header = [&MAGIC[..], &version.to_le_bytes(), &u64::to_le_bytes(revision)].concat();
            let said = read(&[&header[..], &trailer(&header, 0, 0)].concat()).unwrap_err().to_string();
            assert_eq!(said, "it is damaged: its version or its revision is invalid");
        }
    }

    #[test]
    fn missing_and_duplicate_rows_are_detected() {
        let (header, all) = (header(9999), rows(3));
        for wrong in [&[0, 1][..], &[0, 1, 1], &[0, 1, 2, 2]] {
            let page: Rows = wrong.iter().map(|at| all[*at].clone()).collect();
            let (_, (rows, digest)) = encode_page(&all, 0, 0);
            let (bytes, _) = encode_page(&page, 0, 0);
            let file = [&header[..], &bytes, &trailer(&header, rows, digest)].concat();
            assert!(matches!(read(&file), Err(BadBackup::Damaged(_))), "{wrong:?}");
        }
    }
}
