//! Removing.

use crate::{Dir, one};
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;
use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::io;

/// Directories that are open at once. What is deeper is moved up first, so that a tree of any depth needs few descriptors and little stack.
const DEPTH_MAX: usize = 32;

/// Times to look through a directory whose content was moved up, or is still being added to.
const PASSES_MAX: usize = 100_000;

/// Times to remove an entry that another process keeps replacing.
const TRIES_MAX: usize = 100;

/// One removal of a tree.
struct Removal<'a> {
    top: &'a Dir,
    moved_up: Cell<u64>,
}

impl Dir {
    /// Removes a file or link. An absent one is removed already.
    pub fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        ignore_absence(rustix::fs::unlinkat(self, one(name)?, AtFlags::empty()))
    }

    pub fn remove_empty_dir(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(self, one(name)?, AtFlags::REMOVEDIR)?)
    }

    /// Removes an entry, and all that is in it if it is a directory. Links are removed, not followed.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        self.remove_with(name, |directory| directory.empty())
    }

    /// Removes all that is in this directory.
    pub fn empty(&self) -> io::Result<()> {
        let removal = Removal { top: self, moved_up: Cell::new(0) };
        for _ in 0..PASSES_MAX {
            let before = removal.moved_up.get();
            removal.empty(self, 0)?;
            if removal.moved_up.get() == before {
                return Ok(());
            }
        }
        Err(io::Error::other("the directory is too deep, or still being written to"))
    }

    fn remove_with(&self, name: &OsStr, empty: impl Fn(&Dir) -> io::Result<()>) -> io::Result<()> {
        let mut result = Ok(());
        for _ in 0..TRIES_MAX {
            result = self.try_remove(name, &empty);
            match &result {
                // It became another kind of entry, or something was put into it.
                Err(error) if is_any(error, &[Errno::NOTDIR, Errno::LOOP, Errno::NOTEMPTY, Errno::EXIST]) => {}
                _ => return result,
            }
        }
        result
    }

    fn try_remove(&self, name: &OsStr, empty: impl Fn(&Dir) -> io::Result<()>) -> io::Result<()> {
        match rustix::fs::unlinkat(self, one(name)?, AtFlags::empty()) {
            // POSIX says PERM for a directory, Linux ISDIR.
            Err(error @ (Errno::ISDIR | Errno::PERM)) => match self.removable_child(name) {
                Ok(child) => {
                    empty_writable(&child, empty)?;
                    ignore_absence(rustix::fs::unlinkat(self, name, AtFlags::REMOVEDIR))
                }
                Err(other) if error == Errno::PERM && is_any(&other, &[Errno::NOTDIR, Errno::LOOP]) => {
                    Err(error.into())
                }
                Err(other) if other.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(other) => Err(other),
            },
            removed => ignore_absence(removed),
        }
    }

    /// Opens a directory that is to be removed, also one whose mode forbids its owner to.
    fn removable_child(&self, name: &OsStr) -> io::Result<Dir> {
        match self.child(name) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.allow_owner(name)?;
                self.child(name)
            }
            opened => opened,
        }
    }

    /// Lets the owner read and change a directory that cannot be opened. `chmod` by name would follow a link.
    #[cfg(target_os = "linux")]
    fn allow_owner(&self, name: &OsStr) -> io::Result<()> {
        use rustix::fs::OFlags;
        use std::os::fd::AsRawFd;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let place = rustix::fs::openat(self, name, flags, Mode::empty())?;
        Ok(rustix::fs::chmod(format!("/proc/self/fd/{}", place.as_raw_fd()), Mode::RWXU)?)
    }

    #[cfg(not(target_os = "linux"))]
    fn allow_owner(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::chmodat(self, name, Mode::RWXU, AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

impl Removal<'_> {
    fn empty(&self, directory: &Dir, depth: usize) -> io::Result<()> {
        for entry in directory.entries()? {
            let name = entry?.name;
            if depth < DEPTH_MAX {
                directory.remove_with(&name, |child| self.empty(child, depth + 1))?;
            } else {
                self.remove_or_move_up(directory, &name)?;
            }
        }
        Ok(())
    }

    fn remove_or_move_up(&self, directory: &Dir, name: &OsStr) -> io::Result<()> {
        match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => {}
            removed => return ignore_absence(removed),
        }
        match rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::ACCESS) => {}
            removed => return ignore_absence(removed),
        }
        for _ in 0..TRIES_MAX {
            let number = self.moved_up.get();
            self.moved_up.set(number + 1);
            let place = OsString::from(format!(".removed-{}-{number}", std::process::id()));
            match rustix::fs::renameat(directory, name, self.top, place) {
                // Something of this name is there.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                // A directory that moves to another parent must be writable by its owner.
                Err(Errno::ACCESS) => directory.allow_owner(name)?,
                moved => return ignore_absence(moved),
            }
        }
        Err(Errno::NOTEMPTY.into())
    }
}

/// Empties a directory. Where its mode forbids its owner to, the mode is changed.
fn empty_writable(directory: &Dir, empty: impl Fn(&Dir) -> io::Result<()>) -> io::Result<()> {
    match empty(directory) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            directory.set_mode(0o700).map_err(|_| error)?;
            empty(directory)
        }
        result => result,
    }
}

fn is_any(error: &io::Error, errors: &[Errno]) -> bool {
    Errno::from_io_error(error).is_some_and(|error| errors.contains(&error))
}

fn ignore_absence(result: Result<(), Errno>) -> io::Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        result => Ok(result?),
    }
}
