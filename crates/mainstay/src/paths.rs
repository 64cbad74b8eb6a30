//! The default directories.

use std::path::PathBuf;

/// The user's data directory for Mainstay.
pub fn data_dir() -> Option<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = from("XDG_DATA_HOME")
        .filter(|path| path.is_absolute())
        .or_else(|| from("HOME").map(|home| home.join(".local/share")))?;
    Some(base.join("mainstay"))
}

/// A directory for files that exist only as long as this process.
pub fn scratch_dir() -> PathBuf {
    std::env::temp_dir().join(format!("mainstay-{}", std::process::id()))
}
