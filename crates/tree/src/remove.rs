//! Removal of files and directory trees.

use crate::{Dir, single_name};
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;
use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::io;

/// Maximum number of directories that are open at the same time. Directories below this depth are moved up to the top
/// before they are removed, so that a tree of any depth needs few file descriptors and little stack.
const DEPTH_MAX: usize = 32;

/// Maximum number of passes over a directory into which entries are moved up, or which another process still adds
/// entries to.
const PASSES_MAX: usize = 100_000;

/// Maximum number of attempts to remove an entry that another process keeps replacing.
const TRIES_MAX: usize = 100;

/// State of one removal: `top` receives the directories that are too deep.
struct Removal<'a> {
    top: &'a Dir,
    moved_up: Cell<u64>,
}

impl Dir {
    /// Removes a file or symbolic link. It is not an error if the entry does not exist.
    pub fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        ignore_absence(rustix::fs::unlinkat(self, single_name(name)?, AtFlags::empty()))
    }

    pub fn remove_empty_dir(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(self, single_name(name)?, AtFlags::REMOVEDIR)?)
    }

    /// Removes an entry. A directory is removed with everything in it. Symbolic links are removed, not followed.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        self.remove_with(name, |directory| directory.empty())
    }

    /// Removes all entries of this directory.
    pub fn empty(&self) -> io::Result<()> {
        let removal = Removal { top: self, moved_up: Cell::new(0) };
        for _ in 0..PASSES_MAX {
            let before = removal.moved_up.get();
            removal.empty(self, 0)?;
            if removal.moved_up.get() == before {
                return Ok(());
            }
        }
        Err(io::Error::other("the directory is too deep, or another process keeps writing to it"))
    }

    fn remove_with(&self, name: &OsStr, empty: impl Fn(&Dir) -> io::Result<()>) -> io::Result<()> {
        let mut result = Ok(());
        for _ in 0..TRIES_MAX {
            result = self.try_remove(name, &empty);
            match &result {
                // The entry became another kind of entry, or another process added a file to the directory.
                Err(error) if is_any_of(error, &[Errno::NOTDIR, Errno::LOOP, Errno::NOTEMPTY, Errno::EXIST]) => {}
                _ => return result,
            }
        }
        result
    }

    fn try_remove(&self, name: &OsStr, empty: impl Fn(&Dir) -> io::Result<()>) -> io::Result<()> {
        match rustix::fs::unlinkat(self, single_name(name)?, AtFlags::empty()) {
            // For a directory POSIX returns `EPERM` and Linux returns `EISDIR`.
            Err(error @ (Errno::ISDIR | Errno::PERM)) => match self.removable_child(name) {
                Ok(child) => {
                    empty_with_owner_access(&child, empty)?;
                    ignore_absence(rustix::fs::unlinkat(self, name, AtFlags::REMOVEDIR))
                }
                Err(other) if error == Errno::PERM && is_any_of(&other, &[Errno::NOTDIR, Errno::LOOP]) => {
                    Err(error.into())
                }
                Err(other) if other.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(other) => Err(other),
            },
            removed => ignore_absence(removed),
        }
    }

    /// Opens a directory that is to be removed. If its mode denies its owner access, the mode is changed first.
    fn removable_child(&self, name: &OsStr) -> io::Result<Dir> {
        match self.child(name) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.allow_owner(name)?;
                self.child(name)
            }
            opened => opened,
        }
    }

    /// Gives the owner access to a directory that cannot be opened. `chmod` by name would follow a symbolic link, so
    /// this opens the entry with `O_PATH` and changes its mode through `/proc/self/fd`.
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
                // An entry with this name already exists; try the next number.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
                // Moving a directory to another parent needs write permission on the moved directory.
                Err(Errno::ACCESS) => directory.allow_owner(name)?,
                moved => return ignore_absence(moved),
            }
        }
        Err(Errno::NOTEMPTY.into())
    }
}

/// Runs `empty` on the directory. If the directory's mode denies access, sets the mode to 0700 and tries again.
fn empty_with_owner_access(directory: &Dir, empty: impl Fn(&Dir) -> io::Result<()>) -> io::Result<()> {
    match empty(directory) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            directory.set_mode(0o700).map_err(|_| error)?;
            empty(directory)
        }
        result => result,
    }
}

fn is_any_of(error: &io::Error, errors: &[Errno]) -> bool {
    Errno::from_io_error(error).is_some_and(|error| errors.contains(&error))
}

fn ignore_absence(result: Result<(), Errno>) -> io::Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        result => Ok(result?),
    }
}
