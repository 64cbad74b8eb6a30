//! The driver's files. A file or directory under its final name is complete: it is written under another name, synced,
//! then renamed.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use tree::{Dir, Entry, Kind};

/// The deepest nesting of directories. Each level is an open file while a tree is read.
const DEPTH_MAX: usize = 200;

/// Refuses all but regular files. Opening a named pipe would wait for its other end, and a device may never end. Only
/// the driver writes to its directory, so the type does not change between this check and the open.
/// belongs to the driver alone, so the type does not change between this check and the open.
pub fn regular_or_absent(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not a regular file", path.display())))
        }
        Ok(_) => Ok(()),
        Err(error) => absent_is_fine(Err(error)),
    }
}

/// Reads a whole regular file.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    regular_or_absent(path)?;
    fs::read(path)
}

/// All changes of the driver's directory are made of these few steps, so that tests can crash between any two.
#[derive(Debug)]
pub struct Disk {
    /// Whether to fsync: without it a crash of the machine (not of the process) may lose the newest changes.
    durable: bool,
    #[cfg(test)]
    steps: Steps,
}

impl Disk {
    pub fn new(durable: bool) -> Disk {
        Disk {
            durable,
            #[cfg(test)]
            steps: Steps::default(),
        }
    }

    pub fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        DirBuilder::new().mode(0o700).create(path)
    }

    /// Writes a file that does not have its final name yet.
    pub fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let file = self.write_unsynced(path, bytes)?;
        self.sync(&file)
    }

    pub fn write_unsynced(&self, path: &Path, bytes: &[u8]) -> io::Result<File> {
        self.step()?;
        regular_or_absent(path)?;
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        self.tear(&mut file, bytes)?;
        file.write_all(bytes)?;
        Ok(file)
    }

    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        fs::rename(from, to)
    }

    /// Syncs a directory, so that the names in it survive a crash.
    pub fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        if self.durable { File::open(path)?.sync_all() } else { Ok(()) }
    }

    /// Replaces a file's content atomically.
    pub fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let draft = path.with_extension("new");
        self.write(&draft, bytes)?;
        self.rename(&draft, path)?;
        self.sync_dir(parent(path))
    }

    pub fn link(&self, to: &Path, place: &Dir, name: &OsStr) -> io::Result<()> {
        self.step()?;
        place.link(to, name)
    }

    pub fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        absent_is_fine(fs::remove_file(path))
    }

    pub fn remove_file_in(&self, place: &Dir, name: &OsStr) -> io::Result<()> {
        self.step()?;
        place.remove_file(name)
    }

    pub fn remove_empty_dir(&self, place: &Dir, name: &OsStr) -> io::Result<()> {
        self.step()?;
        place.remove_empty_dir(name)
    }

    /// Removes a directory and its content. Links are removed, not followed.
    pub fn remove_tree(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        let place = match Dir::open(parent(path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            place => place?,
        };
        place.remove(path.file_name().unwrap_or_default())
    }

    /// Copies the content of the directory `from` into the existing directory `to`. Links are copied as links.
    pub fn copy_tree(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.copy(&open(from)?, &open(to)?, from, 0)
    }

    /// Programs may change `from` meanwhile: an entry that no longer exists is left out, and one that became a link is
    /// not followed.
    fn copy(&self, from: &Dir, to: &Dir, path: &Path, depth: usize) -> io::Result<()> {
        if depth > DEPTH_MAX {
            return Err(too_deep());
        }
        for entry in from.entries()? {
            let entry = entry?;
            match self.copy_entry(from, to, &entry, &path.join(&entry.name), depth) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && from.meta(&entry.name).is_err() => {}
                copied => copied?,
            }
        }
        self.step()?;
        if self.durable { to.sync() } else { Ok(()) }
    }

    fn copy_entry(&self, from: &Dir, to: &Dir, entry: &Entry, path: &Path, depth: usize) -> io::Result<()> {
        let Entry { name, kind } = entry;
        match kind {
            Kind::Directory => {
                let source = from.child(name)?;
                self.step()?;
                to.make_dir(name, 0o700)?;
                let target = to.child(name)?;
                self.copy(&source, &target, path, depth + 1)?;
                // The mode is set last, because it may forbid writing into the directory.
                target.set_mode(source.own_meta()?.mode)
            }
            Kind::Link => self.link(&from.read_link(name)?, to, name),
            Kind::File => {
                let mut source = from.open_file(name)?;
                self.step()?;
                let mut target = to.create_file(name, 0o600)?;
                io::copy(&mut source, &mut target)?;
                target.set_permissions(source.metadata()?.permissions())?;
                self.sync(&target)
            }
            Kind::Fifo | Kind::Socket | Kind::Device => {
                tracing::warn!(path = %path.display(), "{kind} is not copied: it is useless outside its program");
                Ok(())
            }
        }
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        if self.durable { file.sync_all() } else { Ok(()) }
    }

    #[cfg(not(test))]
    #[allow(clippy::unused_self, clippy::unnecessary_wraps)] // They fail in tests.
    fn step(&self) -> io::Result<()> {
        Ok(())
    }

    #[cfg(not(test))]
    #[allow(clippy::unused_self, clippy::unnecessary_wraps)]
    fn tear(&self, _file: &mut File, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

pub fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or_else(|| Path::new("/"))
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Opens a directory. Users of volumes can change only the last part of the path, which must not be a link.
fn open(path: &Path) -> io::Result<Dir> {
    Dir::open(parent(path))?.child(path.file_name().unwrap_or_default())
}

fn too_deep() -> io::Error {
    io::Error::other(format!("more than {DEPTH_MAX} nested directories"))
}

/// The size on disk and the number of files and directories in a directory. Links are not followed. Entries that are
/// removed meanwhile do not count.
pub fn usage(path: &Path) -> io::Result<(u64, u64)> {
    let mut total = (0, 0);
    add_usage(&open(path)?, 0, &mut total)?;
    Ok(total)
}

fn add_usage(directory: &Dir, depth: usize, total: &mut (u64, u64)) -> io::Result<()> {
    if depth > DEPTH_MAX {
        return Err(too_deep());
    }
    for entry in directory.entries()? {
        let name = entry?.name;
        let meta = match directory.meta(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            meta => meta?,
        };
        total.1 += 1;
        if meta.kind != Kind::Directory {
            total.0 += meta.allocated_bytes;
            continue;
        }
        match directory.child(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound || tree::is_no_directory(&error) => {}
            child => add_usage(&child?, depth + 1, total)?,
        }
    }
    Ok(())
}

/// How many steps remain before the simulated crash, for tests.
#[cfg(test)]
#[derive(Debug)]
pub struct Steps {
    left: std::sync::atomic::AtomicI64,
}

#[cfg(test)]
impl Default for Steps {
    fn default() -> Steps {
        Steps { left: i64::MAX.into() }
    }
}

#[cfg(test)]
impl Disk {
    /// The process "crashes" after this many steps: from then on nothing is written, not even to clean up.
    pub fn die_after(&self, steps: u32) {
        self.steps.left.store(steps.into(), std::sync::atomic::Ordering::SeqCst);
    }

    pub fn is_dead(&self) -> bool {
        self.steps.left.load(std::sync::atomic::Ordering::SeqCst) < 0
    }

    fn step(&self) -> io::Result<()> {
        if self.steps.left.fetch_sub(1, std::sync::atomic::Ordering::SeqCst) <= 0 {
            return Err(io::Error::other("the process has crashed"));
        }
        Ok(())
    }

    /// The last step before the crash may write half of its bytes.
    fn tear(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        if self.steps.left.load(std::sync::atomic::Ordering::SeqCst) == 0 {
            file.write_all(&bytes[..bytes.len() / 2])?;
            return self.step();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A program repeatedly replaces directories and files of its volume with links to places outside, while the volume
    /// is cloned.
    #[test]
    fn a_copy_follows_no_link_that_appears_meanwhile() {
        let (place, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (from, at) = (place.path().join("from"), |name: &str| place.path().join("from").join(name));
        fs::write(outside.path().join("secret"), "secret").unwrap();
        fs::create_dir_all(at("a")).unwrap();
        fs::write(at("secret"), "own").unwrap();
        symlink(outside.path(), at("b")).unwrap();
        symlink(outside.path().join("secret"), at("other")).unwrap();
        let (disk, ended) = (Disk::new(false), AtomicBool::new(false));
        let swap = |one: &str, two: &str| {
            let flags = rustix::fs::RenameFlags::EXCHANGE;
            rustix::fs::renameat_with(rustix::fs::CWD, at(one), rustix::fs::CWD, at(two), flags).unwrap();
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    swap("a", "b");
                    swap("secret", "other");
                }
            });
            for round in 0..2000 {
                let to = place.path().join(format!("to-{round}"));
                fs::create_dir(&to).unwrap();
                // The copy may fail: an entry had another type when it was listed.
                let _ = disk.copy_tree(&from, &to);
                for (name, text) in [("secret", "own"), ("other", "own")] {
                    let copied = to.join(name);
                    if fs::symlink_metadata(&copied).is_ok_and(|metadata| metadata.is_file()) {
                        assert_eq!(fs::read_to_string(&copied).unwrap(), text, "{round}");
                    }
                }
                for name in ["a", "b"] {
                    if fs::symlink_metadata(to.join(name)).is_ok_and(|metadata| metadata.is_dir()) {
                        assert!(!to.join(name).join("secret").exists(), "{round}");
                    }
                }
                disk.remove_tree(&to).unwrap();
            }
            ended.store(true, Ordering::Relaxed);
        });
    }
}
