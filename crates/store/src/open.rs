//! Why a store cannot be opened, each in one sentence.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("another process uses the store in {0}")]
    InUse(PathBuf),
    #[error("the store was written by a newer version (format {found}; this one reads up to {known})")]
    Newer { found: u32, known: u32 },
    #[error("the store is damaged: {0}")]
    Damaged(String),
    #[error("cannot open the store: {0}")]
    Io(#[from] io::Error),
    /// It may be there later.
    #[error("cannot reach the store: {0}")]
    Unreachable(String),
    #[error("the store does not let us in: {0}")]
    Refused(String),
    #[error("there is a store in {0} already; choose an empty place")]
    NotEmpty(String),
    #[error("other things than a store of ours are kept there; choose another place for it")]
    NotOurs,
}
