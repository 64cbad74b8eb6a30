//! The driver's files. Whatever stands under its final name is whole: it is made under another name, synced, then renamed.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Refuses anything but a regular file. Opening a named pipe would wait for its other end, and a device may never end. The directory
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

/// Reads a regular file as a whole.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    regular_or_absent(path)?;
    fs::read(path)
}

/// Every change of the driver's directory is one of these few steps, so that tests can end the world between any two.
#[derive(Debug)]
pub struct Disk {
    /// Whether to wait until the disk has it: without, a crash of the machine (not of the process) may lose the newest changes.
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

    /// Writes a file that is not known by its final name yet.
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

    /// Makes the names in a directory survive a crash.
    pub fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        if self.durable { File::open(path)?.sync_all() } else { Ok(()) }
    }

    /// Puts `bytes` in the place of a file, all or nothing.
    pub fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let draft = path.with_extension("new");
        self.write(&draft, bytes)?;
        self.rename(&draft, path)?;
        self.sync_dir(parent(path))
    }

    pub fn link(&self, to: &Path, path: &Path) -> io::Result<()> {
        self.step()?;
        std::os::unix::fs::symlink(to, path)
    }

    pub fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        absent_is_fine(fs::remove_file(path))
    }

    pub fn remove_empty_dir(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        fs::remove_dir(path)
    }

    /// Removes a directory and all that is in it. Links are removed, not followed.
    pub fn remove_tree(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        match absent_is_fine(fs::remove_dir_all(path)) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                // Programs leave directories behind that their own user may not write to.
                make_removable(path)?;
                absent_is_fine(fs::remove_dir_all(path))
            }
            result => result,
        }
    }

    /// Copies what is in the directory `from` into the directory `to`, which exists. Links are copied as links.
    pub fn copy_tree(&self, from: &Path, to: &Path) -> io::Result<()> {
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let (source, target, kind) = (entry.path(), to.join(entry.file_name()), entry.file_type()?);
            if kind.is_dir() {
                self.make_dir(&target)?;
                self.copy_tree(&source, &target)?;
                // Last, because a directory may forbid to write into it.
                fs::set_permissions(&target, Permissions::from_mode(entry.metadata()?.permissions().mode()))?;
            } else if kind.is_symlink() {
                self.link(&fs::read_link(&source)?, &target)?;
            } else if kind.is_file() {
                self.step()?;
                fs::copy(&source, &target)?;
                if self.durable {
                    File::open(&target)?.sync_all()?;
                }
            } else {
                let what = if kind.is_socket() { "socket" } else { "special file" };
                tracing::warn!(path = %source.display(), "this {what} is not copied: only its program could use it");
            }
        }
        self.sync_dir(to)
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

fn make_removable(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            make_removable(&entry.path())?;
        }
    }
    Ok(())
}

/// Bytes on disk and number of the files and directories in a directory; links are not followed. What goes away meanwhile does
/// not count.
pub fn usage(path: &Path) -> io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let (mut bytes, mut entries) = (0, 0);
    let mut open: Vec<PathBuf> = vec![path.to_owned()];
    while let Some(directory) = open.pop() {
        let list = match fs::read_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && directory != path => continue,
            list => list?,
        };
        for entry in list {
            let entry = entry?;
            let metadata = match entry.metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?,
            };
            entries += 1;
            if metadata.is_dir() {
                open.push(entry.path());
            } else {
                bytes += metadata.blocks() * 512;
            }
        }
    }
    Ok((bytes, entries))
}

/// How many steps the world has left, for tests.
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
    /// The process "dies" after so many more steps: then nothing is written any more, not even to clean up.
    pub fn die_after(&self, steps: u32) {
        self.steps.left.store(steps.into(), std::sync::atomic::Ordering::SeqCst);
    }

    pub fn is_dead(&self) -> bool {
        self.steps.left.load(std::sync::atomic::Ordering::SeqCst) < 0
    }

    fn step(&self) -> io::Result<()> {
        if self.steps.left.fetch_sub(1, std::sync::atomic::Ordering::SeqCst) <= 0 {
            return Err(io::Error::other("the process has died"));
        }
        Ok(())
    }

    /// The last step before death may be half a write.
    fn tear(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        if self.steps.left.load(std::sync::atomic::Ordering::SeqCst) == 0 {
            file.write_all(&bytes[..bytes.len() / 2])?;
            return self.step();
        }
        Ok(())
    }
}
