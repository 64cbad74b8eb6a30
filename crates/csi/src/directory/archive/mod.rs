//! The data of all volumes and snapshots as one stream, for backups.
//!
//! ```text
//! archive = MAGIC, version u32, frame…
//! frame   = kind u8, length u32, content, CRC-32 of everything from the version up to here u32
//! ```
//!
//! All numbers are little-endian. Directories nest: the frames of a directory's entries are between `Enter` and
//! `Leave`. Each checksum covers all frames before it, so that no frame can be left out or moved. Anybody can write a
//! valid checksum, so the reader trusts no name, number or order.
//!
//! Volumes may be in use while they are written: each file has the content that was read at the time, and two files
//! need not be of the same moment. Files that changed while they were read are counted.

mod frame;
mod read;
mod write;

pub use read::{check, restore};
pub use write::{ids, write};

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;

/// The first bytes of an archive.
pub const MAGIC: &[u8; 16] = b"mainstay volumes";
const VERSION: u32 = 1;

/// The longest content of a frame; longer files are split.
const FRAME_BYTES_MAX: u32 = 2 << 20;
const DATA_BYTES_MAX: usize = 1 << 20;

/// The deepest nesting of directories; each entered directory is an open file. Deeper ones are left out.
const DEPTH_MAX: usize = 200;

/// The kinds of extended attributes that the owner of a file may set. Others (`security.`, `trusted.`) grant rights and
/// are not restored.
const ATTRIBUTES: [&str; 3] = ["user.", "system.posix_acl_access", "system.posix_acl_default"];

/// How many examples of left-out entries are printed.
const EXAMPLES_MAX: usize = 10;

/// Why an archive cannot be written, read or restored; the text is one sentence.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("the volumes' data was written by a newer version (format {0}; this one reads up to {VERSION})")]
    Newer(u32),
    #[error("the volumes' data is incomplete: its end is missing")]
    Torn,
    #[error("the volumes' data is damaged: {0}")]
    Damaged(String),
    #[error("{0} already contains volumes")]
    NotEmpty(std::path::PathBuf),
    #[error(transparent)]
    Directory(#[from] super::OpenError),
    #[error("{0}: {1}")]
    Io(String, io::Error),
}

impl ArchiveError {
    fn io(what: impl fmt::Display) -> impl FnOnce(io::Error) -> ArchiveError {
        move |error| ArchiveError::Io(what.to_string(), error)
    }

    fn damaged(why: impl Into<String>) -> ArchiveError {
        ArchiveError::Damaged(why.into())
    }
}

/// What an archive contains, or what was restored from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// The ids.
    #[serde(skip)]
    pub volumes: Vec<String>,
    pub snapshots: u64,
    pub files: u64,
    /// Without the holes of sparse files.
    pub bytes: u64,
    /// Files that changed while they were read.
    pub changed: u64,
    /// Entries that were left out: sockets, devices, too deeply nested directories, unreadable files, owners that this
    /// user may not set.
    pub left_out: u64,
    /// The first of them, with the reason.
    pub examples: Vec<String>,
}

impl Summary {
    fn leave_out(&mut self, what: impl fmt::Display) {
        self.left_out += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(what.to_string());
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} volumes, {} snapshots, {} files, {} bytes",
            self.volumes.len(),
            self.snapshots,
            self.files,
            self.bytes
        )
    }
}

#[cfg(test)]
mod tests;
