//! Why a store cannot be opened, each in one sentence.

use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("another process{} uses the store in {}", holder.map(|id| format!(" ({id})")).unwrap_or_default(), directory.display())]
    InUse {
        directory: PathBuf,
        /// Its process id, if the lock file tells it.
        holder: Option<u32>,
    },
    #[error(
        "the store in {0} is incomplete: a `mainstay store restore` or `copy` into it was killed; run it again, or remove {0}"
    )]
    Incomplete(PathBuf),
    #[error("the store was written by a newer version (format {found}; this one reads up to {known})")]
    Newer { found: u32, known: u32 },
    #[error("the store is damaged: {0}")]
    Damaged(String),
    #[error("cannot open the store: {0}")]
    Io(#[from] io::Error),
    #[error("cannot open the store in {0}: {1}")]
    Directory(PathBuf, io::Error),
    /// It may be there later.
    #[error("cannot reach the store: {0}")]
    Unreachable(String),
    #[error("the store does not let us in: {0}")]
    Refused(String),
    #[error("there is a store in {0} already; choose an empty place")]
    NotEmpty(String),
    #[error("its keys belong to another program, or to a restore or copy that was killed")]
    NotOurs,
}

impl OpenError {
    /// Adds the directory to an I/O error, which does not name it.
    pub(crate) fn in_directory(self, directory: &Path) -> OpenError {
        match self {
            OpenError::Io(error) => OpenError::Directory(directory.to_owned(), error),
            other => other,
        }
    }
}
