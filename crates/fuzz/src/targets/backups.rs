//! Backup files. Each input is read unchanged, and again with all checksums corrected, because otherwise the
//! checksums would hide every other change.
//!
//! A file must be refused with one sentence, or give exactly the rows that a second reader finds, which was written
//! from `FORMAT.md` alone. No buffer may be allocated for a length before the bytes are read.

use std::io::{self, Read};
use store::backup::Reader;

const HEADER_BYTES: usize = 28;
const END: u32 = u32::MAX;
/// Bytes that the reader may read ahead, whatever a length says.
const AHEAD_BYTES_MAX: usize = 64 << 10;

/// Key, created revision, modified revision, expiry and value.
type Found = (String, u64, u64, Option<u64>, Vec<u8>);
type Contents = (u64, Vec<Found>);

pub fn read(input: &[u8]) -> String {
    format!("{}; put right: {}", compare(input), compare(&with_valid_checksums(input)))
}

fn compare(bytes: &[u8]) -> String {
    match (ours(bytes), expected(bytes)) {
        (Ok(found), Some(expected)) => {
            assert_eq!(found, expected, "the rows differ");
            format!("{} rows", if expected.1.is_empty() { "no" } else { "some" })
        }
        (Err(why), None) => why,
        (Ok(found), None) => panic!("an invalid backup is read as {found:?}"),
        (Err(why), Some(_)) => panic!("a valid backup is refused: {why}"),
    }
}

fn ours(bytes: &[u8]) -> Result<Contents, String> {
    let mut reader = Reader::open(BoundedReader { left: bytes, given: 0 }).map_err(|error| error.to_string())?;
    let mut rows = Vec::new();
    loop {
        let page = reader.page().map_err(|error| error.to_string())?;
        if page.is_empty() {
            return Ok((reader.revision, rows));
        }
        let row = |(key, row): (std::sync::Arc<str>, store::Row)| {
            (key.to_string(), row.created, row.modified, row.expires_at_s, row.value.to_vec())
        };
        rows.extend(page.into_iter().map(row));
    }
}

/// Fails if a buffer is large compared with the bytes read so far.
struct BoundedReader<'a> {
    left: &'a [u8],
    given: usize,
}

impl Read for BoundedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = buffer.len();
        assert!(
            room <= 2 * self.given + AHEAD_BYTES_MAX,
            "a buffer of {room} bytes after {} bytes were read",
            self.given
        );
        let got = self.left.read(buffer)?;
        self.given += got;
        Ok(got)
    }
}

/// A cursor over the bytes.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four")))
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight")))
    }
}

/// The content of a backup, or `None` if it is invalid.
fn expected(file: &[u8]) -> Option<Contents> {
    let mut rest = Bytes(file);
    if rest.take(16)? != b"mainstay backup\n" || rest.u32()? != 1 {
        return None;
    }
    let revision = rest.u64().filter(|revision| i64::try_from(*revision).is_ok())?;
    let (mut rows, mut sum) = (Vec::<Found>::new(), 0u64);
    loop {
        let key_length = rest.u32()?;
        if key_length == END {
            break;
        }
        let row_length = rest.u32()?;
        let key = rest.take(key_length as usize)?;
        let row = rest.take(row_length as usize)?;
        let found = expected_row(key, row)?;
        let in_order = rows.last().is_none_or(|before| before.0 < found.0);
        if !in_order || found.2 > revision {
            return None;
        }
        sum = sum.wrapping_add(mark(key, row)?);
        rows.push(found);
    }
    let end = end(&file[..HEADER_BYTES], rows.len() as u64, sum);
    (rest.0 == &end[4..]).then_some((revision, rows))
}

fn expected_row(key: &[u8], row: &[u8]) -> Option<Found> {
    let mut rest = Bytes(row);
    let is_whole = rest.u32()? == crc(&[key, rest.0]);
    let flags = rest.take(1)?[0];
    let (created, modified) = (rest.u64()?, rest.u64()?);
    let expires_at_s = if flags == 1 { Some(rest.u64()?) } else { None };
    let key = String::from_utf8(key.to_vec()).ok()?;
    let is_row = is_whole && flags <= 1 && created <= modified;
    is_row.then(|| (key, created, modified, expires_at_s, rest.0.to_vec()))
}

/// Corrects the checksums of all rows, and adds an end record if there is none.
fn with_valid_checksums(file: &[u8]) -> Vec<u8> {
    let mut rest = Bytes(file);
    let Some(header) = rest.take(HEADER_BYTES) else { return file.to_vec() };
    let (mut out, mut rows, mut sum) = (header.to_vec(), 0, 0u64);
    while let Some(key_length) = rest.u32().filter(|length| *length != END) {
        let Some(row_length) = rest.u32() else { break };
        let both = (rest.take(key_length as usize), rest.take(row_length as usize));
        let (Some(key), Some(row)) = both else {
            // The file is shorter than this length says. It stays so, because such a file must be read too.
            out.extend_from_slice(&key_length.to_le_bytes());
            out.extend_from_slice(&row_length.to_le_bytes());
            break;
        };
        let body = row.get(4..).unwrap_or_default();
        let row = [&crc(&[key, body]).to_le_bytes(), body].concat();
        out.extend_from_slice(&key_length.to_le_bytes());
        out.extend_from_slice(&u32::try_from(row.len()).expect("inputs are small").to_le_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(&row);
        rows += 1;
        sum = sum.wrapping_add(mark(key, &row).unwrap_or(0));
    }
    out.extend_from_slice(&end(header, rows, sum));
    out
}

fn end(header: &[u8], rows: u64, sum: u64) -> Vec<u8> {
    let counted = [&END.to_le_bytes()[..], &rows.to_le_bytes(), &sum.to_le_bytes()].concat();
    [&counted[..], &crc(&[header, &counted]).to_le_bytes()].concat()
}

/// The hash of a row's checksum and of the revision that wrote it.
fn mark(key: &[u8], row: &[u8]) -> Option<u64> {
    let modified = Bytes(row.get(13..)?).u64()?;
    let mut mix = modified.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(crc(&[key, &row[4..]]));
    mix = (mix ^ (mix >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mix = (mix ^ (mix >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    Some(mix ^ (mix >> 31))
}

/// CRC-32 of the concatenated pieces.
fn crc(pieces: &[&[u8]]) -> u32 {
    let mut crc = !0u32;
    for byte in pieces.iter().flat_map(|piece| piece.iter()) {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}
