//! Directories as file descriptors.
//!
//! Another user can rename a directory or replace it with a symbolic link at any time, even between a check and the
//! call that the check protects. So a path that other users can change is resolved once, to a file descriptor. Every
//! later step names one entry of an open directory. No step follows a symbolic link below the directory that the caller
//! opened.
//!
//! This crate must never know another crate of the workspace, nor tokio: its calls block.
//!
//! Begin with [`Dir`]; [`Dir::remove`] deletes a whole tree.

mod entries;
mod remove;

pub use entries::{Entries, Entry, Kind, Meta};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// An open directory.
#[derive(Debug)]
pub struct Dir(OwnedFd);

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Dir {
    /// Opens a directory by its path. Symbolic links are followed, so use this only for paths that an administrator
    /// chose.
    pub fn open(path: &Path) -> io::Result<Dir> {
        Ok(Dir(rustix::fs::open(path, DIRECTORY, Mode::empty())?))
    }

    /// Opens a directory below this one. A symbolic link anywhere in `path` is an error (`ELOOP` or `ENOTDIR`), and so
    /// are `..` and absolute paths.
    pub fn open_beneath(&self, path: &Path) -> io::Result<Dir> {
        let names = names(path)?;
        match open_beneath_openat2(self, path) {
            Err(Errno::NOSYS | Errno::PERM) => {}
            opened => return Ok(Dir(opened?)),
        }
        self.open_each_component(&names)
    }

    /// Same as `open_beneath`, for kernels or seccomp filters without `openat2`.
    fn open_each_component(&self, names: &[&OsStr]) -> io::Result<Dir> {
        let mut at = self.try_clone()?;
        for name in names {
            at = at.child(name)?;
        }
        Ok(at)
    }

    /// Creates the missing directories of `path` with this mode, and opens the last one.
    pub fn make_beneath(&self, path: &Path, mode: u32) -> io::Result<Dir> {
        let mut at = self.try_clone()?;
        for name in names(path)? {
            at = match at.make_dir(name, mode) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => at.child(name)?,
            };
        }
        Ok(at)
    }

    /// Opens a subdirectory by its name.
    pub fn child(&self, name: &OsStr) -> io::Result<Dir> {
        let flags = DIRECTORY | OFlags::NOFOLLOW;
        Ok(Dir(rustix::fs::openat(self, single_name(name)?, flags, Mode::empty())?))
    }

    pub fn try_clone(&self) -> io::Result<Dir> {
        Ok(Dir(self.0.try_clone()?))
    }

    pub fn make_dir(&self, name: &OsStr, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(self, single_name(name)?, raw_mode(mode))?)
    }

    /// Opens a regular file for reading. Any other kind of file is an error. Opening has no side effect: a FIFO does
    /// not block.
    pub fn open_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(self, single_name(name)?, flags, Mode::empty())?;
        match Meta::of(&rustix::fs::fstat(&file)?).kind {
            Kind::File => Ok(File::from(file)),
            kind => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is {kind}", name.display()))),
        }
    }

    /// Creates a new file and opens it for writing. An existing entry of that name is an error, even if it is a
    /// symbolic link.
    pub fn create_file(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::openat(self, single_name(name)?, flags, raw_mode(mode))?))
    }

    pub fn read_link(&self, name: &OsStr) -> io::Result<PathBuf> {
        use std::os::unix::ffi::OsStringExt;
        let target = rustix::fs::readlinkat(self, single_name(name)?, Vec::new())?;
        Ok(PathBuf::from(std::ffi::OsString::from_vec(target.into_bytes())))
    }

    /// Creates a symbolic link `name` with this target.
    pub fn link(&self, target: &Path, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(target, self, single_name(name)?)?)
    }

    /// Creates a hard link `name` here to an entry of another directory. If the entry is a symbolic link, the link
    /// itself is linked.
    pub fn hard_link(&self, from: &Dir, file: &OsStr, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::linkat(from, single_name(file)?, self, single_name(name)?, AtFlags::empty())?)
    }

    /// Metadata of an entry. A symbolic link is not followed.
    pub fn meta(&self, name: &OsStr) -> io::Result<Meta> {
        Ok(Meta::of(&rustix::fs::statat(self, single_name(name)?, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    /// Metadata of this directory.
    pub fn own_meta(&self) -> io::Result<Meta> {
        Ok(Meta::of(&rustix::fs::fstat(self)?))
    }

    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::fchmod(self, raw_mode(mode))?)
    }

    /// Syncs the names in this directory to disk.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(self)?)
    }

    pub fn entries(&self) -> io::Result<Entries> {
        Entries::of(self)
    }

    /// Whether `other` is this directory or is below it.
    pub fn contains(&self, other: &Dir) -> io::Result<bool> {
        let root = Dir::open(Path::new("/"))?.own_meta()?.identity();
        let (own, mut at) = (self.own_meta()?.identity(), other.try_clone()?);
        loop {
            let identity = at.own_meta()?.identity();
            if identity == own {
                return Ok(true);
            }
            let above = Dir(rustix::fs::openat(&at, "..", DIRECTORY, Mode::empty())?);
            if identity == root || above.own_meta()?.identity() == identity {
                return Ok(false);
            }
            at = above;
        }
    }
}

#[cfg(target_os = "linux")]
fn open_beneath_openat2(directory: &Dir, path: &Path) -> Result<OwnedFd, Errno> {
    use rustix::fs::ResolveFlags;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(directory, path, DIRECTORY, Mode::empty(), resolve)
}

#[cfg(not(target_os = "linux"))]
fn open_beneath_openat2(_: &Dir, _: &Path) -> Result<OwnedFd, Errno> {
    Err(Errno::NOSYS)
}

#[allow(clippy::useless_conversion, clippy::unnecessary_cast)] // `RawMode` is 16 bits wide on some platforms.
fn raw_mode(mode: u32) -> Mode {
    Mode::from_raw_mode((mode & 0o7777) as _)
}

/// Splits a relative path into its names. An empty path, `..`, `.` at the start and absolute paths are errors.
fn names(path: &Path) -> io::Result<Vec<&OsStr>> {
    let name = |part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    };
    let names: Option<Vec<_>> = path.components().map(name).collect();
    names.filter(|names| !names.is_empty()).ok_or_else(|| not_beneath(path))
}

/// Checks that `name` is a single name, not a path.
fn single_name(name: &OsStr) -> io::Result<&OsStr> {
    match *names(Path::new(name))? {
        [only] if only == name => Ok(name),
        _ => Err(not_beneath(Path::new(name))),
    }
}

/// Whether an entry could not be opened as a directory because it is a symbolic link or another kind of file. For a
/// link the system returns `ENOTDIR` or `ELOOP`, depending on how the path is resolved.
pub fn is_no_directory(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOTDIR | Errno::LOOP))
}

/// The error for an entry that is not a directory.
pub fn no_directory() -> io::Error {
    Errno::NOTDIR.into()
}

fn not_beneath(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not below the directory", path.display()))
}

#[cfg(test)]
mod tests;
