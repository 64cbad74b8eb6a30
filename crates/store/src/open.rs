//! Why a store cannot be opened.

use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("another process{} uses the store in {}", holder.map(|id| format!(" ({id})")).unwrap_or_default(), directory.display())]
    InUse {
        directory: PathBuf,
        /// Process id of the holder, if the lock file has it.
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
    /// A retry may succeed.
    #[error("cannot reach the store: {0}")]
    Unreachable(String),
    #[error("the store denied access: {0}")]
    Refused(String),
    #[error("a store already exists in {0}; choose an empty directory or etcd prefix")]
    NotEmpty(String),
    #[error("its keys belong to another program, or to a restore or copy that was killed")]
    NotOurs,
}

impl OpenError {
    /// Adds the directory to an I/O error, which does not name a path.
    pub(crate) fn in_directory(self, directory: &Path) -> OpenError {
        match self {
            OpenError::Io(error) => OpenError::Directory(directory.to_owned(), error),
            other => other,
        }
    }
}
