//! Directory entries: their kinds, metadata and iteration.

use crate::Dir;
use rustix::fs::{FileType, Stat};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Directory,
    File,
    Link,
    Fifo,
    Socket,
    Device,
}

impl Kind {
    fn of(kind: FileType) -> Kind {
        match kind {
            FileType::Directory => Kind::Directory,
            FileType::RegularFile => Kind::File,
            FileType::Symlink => Kind::Link,
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            _ => Kind::Device,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Directory => "a directory",
            Kind::File => "a regular file",
            Kind::Link => "a symbolic link",
            Kind::Fifo => "a FIFO",
            Kind::Socket => "a socket",
            Kind::Device => "a device",
        })
    }
}

/// Metadata of a file, from `stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    pub kind: Kind,
    /// Permission bits, including setuid, setgid and sticky.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size_bytes: u64,
    pub allocated_bytes: u64,
    /// Seconds and nanoseconds since 1970.
    pub modified: (i64, u32),
    /// Time of the last change of the data or the metadata (`ctime`).
    pub changed: (i64, u32),
    /// Number of hard links.
    pub names: u64,
    device: u64,
    inode: u64,
}

impl Meta {
    // The integer types of `stat` differ between platforms.
    #[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, clippy::cast_possible_truncation, clippy::cast_lossless)]
    pub fn of(stat: &Stat) -> Meta {
        Meta {
            kind: Kind::of(FileType::from_raw_mode(stat.st_mode)),
            mode: stat.st_mode as u32 & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size_bytes: stat.st_size as u64,
            allocated_bytes: stat.st_blocks as u64 * 512,
            modified: (stat.st_mtime as i64, stat.st_mtime_nsec as u32),
            changed: (stat.st_ctime as i64, stat.st_ctime_nsec as u32),
            names: stat.st_nlink as u64,
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
        }
    }

    /// Device and inode: equal for two hard links of one file.
    pub fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: OsString,
    pub kind: Kind,
}

/// The entries of a directory, without `.` and `..`, in the order of the file system. They are read one buffer at a
/// time.
pub struct Entries {
    directory: Dir,
    list: rustix::fs::Dir,
}

impl Entries {
    pub(crate) fn of(directory: &Dir) -> io::Result<Entries> {
        Ok(Entries { directory: directory.try_clone()?, list: rustix::fs::Dir::read_from(directory)? })
    }
}

impl Iterator for Entries {
    type Item = io::Result<Entry>;

    fn next(&mut self) -> Option<io::Result<Entry>> {
        loop {
            let entry = match self.list.next()? {
                Ok(entry) => entry,
                Err(error) => return Some(Err(error.into())),
            };
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let kind = match entry.file_type() {
                // Some file systems do not report the type.
                FileType::Unknown => match self.directory.meta(name) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    meta => meta.map(|meta| meta.kind),
                },
                kind => Ok(Kind::of(kind)),
            };
            return Some(kind.map(|kind| Entry { name: name.to_owned(), kind }));
        }
    }
}
