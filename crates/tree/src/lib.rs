//! Directories as file descriptors.
//!
//! Other users can rename a directory or replace it with a symbolic link at any time, also between a check and the call that the check is
//! for. So a path that others can change is resolved once, to a descriptor, and every later step names one entry of an open directory.
//! No step follows a symbolic link below the directory that the caller opened.

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
    /// Opens a directory by its path. Links are followed: only for paths that an administrator chose.
    pub fn open(path: &Path) -> io::Result<Dir> {
        Ok(Dir(rustix::fs::open(path, DIRECTORY, Mode::empty())?))
    }

    /// Opens a directory below this one. A link anywhere in `path` is an error (`ELOOP` or `ENOTDIR`), as are `..` and absolute paths.
    pub fn open_beneath(&self, path: &Path) -> io::Result<Dir> {
        let names = names(path)?;
        match beneath_at_once(self, path) {
            Err(Errno::NOSYS | Errno::PERM) => {}
            opened => return Ok(Dir(opened?)),
        }
        self.open_each(&names)
    }

    /// The same as `open_beneath` where the kernel, or a seccomp filter, has no `openat2`.
    fn open_each(&self, names: &[&OsStr]) -> io::Result<Dir> {
        let mut at = self.try_clone()?;
        for name in names {
            at = at.child(name)?;
        }
        Ok(at)
    }

    /// Makes the directories of `path` that are missing, with this mode, and opens the last one.
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

    /// Opens a directory in this one.
    pub fn child(&self, name: &OsStr) -> io::Result<Dir> {
        let flags = DIRECTORY | OFlags::NOFOLLOW;
        Ok(Dir(rustix::fs::openat(self, one(name)?, flags, Mode::empty())?))
    }

    pub fn try_clone(&self) -> io::Result<Dir> {
        Ok(Dir(self.0.try_clone()?))
    }

    pub fn make_dir(&self, name: &OsStr, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::mkdirat(self, one(name)?, raw(mode))?)
    }

    /// Opens a regular file to read it. Any other kind is an error, and opening it has no effect: a FIFO does not block.
    pub fn open_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(self, one(name)?, flags, Mode::empty())?;
        match Meta::of(&rustix::fs::fstat(&file)?).kind {
            Kind::File => Ok(File::from(file)),
            kind => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is {kind}", name.display()))),
        }
    }

    /// Makes a new file and opens it to write. An entry of that name is an error, a link too.
    pub fn create_file(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::openat(self, one(name)?, flags, raw(mode))?))
    }

    pub fn read_link(&self, name: &OsStr) -> io::Result<PathBuf> {
        use std::os::unix::ffi::OsStringExt;
        let target = rustix::fs::readlinkat(self, one(name)?, Vec::new())?;
        Ok(PathBuf::from(std::ffi::OsString::from_vec(target.into_bytes())))
    }

    /// Makes a symbolic link.
    pub fn link(&self, target: &Path, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::symlinkat(target, self, one(name)?)?)
    }

    /// Gives a file of another directory a second name here. A link is not followed.
    pub fn hard_link(&self, from: &Dir, file: &OsStr, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::linkat(from, one(file)?, self, one(name)?, AtFlags::empty())?)
    }

    /// What an entry is. A link is not followed.
    pub fn meta(&self, name: &OsStr) -> io::Result<Meta> {
        Ok(Meta::of(&rustix::fs::statat(self, one(name)?, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    /// What this directory is.
    pub fn own_meta(&self) -> io::Result<Meta> {
        Ok(Meta::of(&rustix::fs::fstat(self)?))
    }

    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::fchmod(self, raw(mode))?)
    }

    /// Waits until the names in this directory are on the disk.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(self)?)
    }

    pub fn entries(&self) -> io::Result<Entries> {
        Entries::of(self)
    }

    /// Whether this is one of the directories above `other`, or `other` itself.
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
fn beneath_at_once(directory: &Dir, path: &Path) -> Result<OwnedFd, Errno> {
    use rustix::fs::ResolveFlags;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(directory, path, DIRECTORY, Mode::empty(), resolve)
}

#[cfg(not(target_os = "linux"))]
fn beneath_at_once(_: &Dir, _: &Path) -> Result<OwnedFd, Errno> {
    Err(Errno::NOSYS)
}

#[allow(clippy::useless_conversion, clippy::unnecessary_cast)] // `RawMode` has 16 bits on some platforms.
fn raw(mode: u32) -> Mode {
    Mode::from_raw_mode((mode & 0o7777) as _)
}

/// The names of a path below a directory. There is at least one.
fn names(path: &Path) -> io::Result<Vec<&OsStr>> {
    let name = |part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    };
    let names: Option<Vec<_>> = path.components().map(name).collect();
    names.filter(|names| !names.is_empty()).ok_or_else(|| not_beneath(path))
}

/// One name of an entry, never a path.
fn one(name: &OsStr) -> io::Result<&OsStr> {
    match *names(Path::new(name))? {
        [only] if only == name => Ok(name),
        _ => Err(not_beneath(Path::new(name))),
    }
}

/// Whether an entry could not be opened as a directory because it is a link or another kind of file. The system says `ENOTDIR` or `ELOOP`
/// of a link, by the way in which it is resolved.
pub fn is_no_directory(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOTDIR | Errno::LOOP))
}

/// The error of an entry that is no directory.
pub fn no_directory() -> io::Error {
    Errno::NOTDIR.into()
}

fn not_beneath(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not below the directory", path.display()))
}

#[cfg(test)]
mod tests;
