//! Writes an archive, also while programs use the volumes.

use super::frame::{Begin, Bytes, Frame, Meta, Writer};
use super::{ATTRIBUTES, ArchiveError, DATA_BYTES_MAX, DEPTH_MAX, Summary};
use crate::directory::record::{self, SnapshotRecord, VolumeRecord};
use crate::directory::state::Kind;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tree::{Dir, Entry};

/// The longest record that is read. Real ones are much shorter.
const RECORD_BYTES_MAX: u64 = 1 << 20;

/// How many files with several names are remembered. Further ones are written once for each of their names.
const NAMED_MAX: usize = 1 << 20;

/// The ids of the volumes with data in a directory driver's directory; empty if the directory does not exist.
pub fn ids(root: &Path) -> Result<Vec<String>, ArchiveError> {
    let directory = match Dir::open(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened.map_err(ArchiveError::io(root.display()))?,
    };
    let mut ids = list(&directory, root, Kind::Volume)?;
    ids.retain(|id| opened(&directory, Kind::Volume, id).is_ok());
    Ok(ids)
}

/// Writes all volumes and snapshots of a directory driver's directory, which a driver may serve meanwhile.
pub fn write(root: &Path, to: impl Write) -> Result<Summary, ArchiveError> {
    let cannot_write = || ArchiveError::io("cannot write the volumes' data");
    let mut archive = Archive { to: Writer::begin(to).map_err(cannot_write())?, summary: Summary::default() };
    let directory = match Dir::open(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        opened => Some(opened.map_err(ArchiveError::io(root.display()))?),
    };
    if let Some(directory) = directory {
        for kind in [Kind::Volume, Kind::Snapshot] {
            for id in list(&directory, root, kind)? {
                archive.add(&directory, kind, &id)?;
            }
        }
    }
    archive.to.add(&Frame::Last(archive.summary.clone())).map_err(cannot_write())?;
    Ok(archive.summary)
}

fn list(root: &Dir, path: &Path, kind: Kind) -> Result<Vec<String>, ArchiveError> {
    let cannot_read = || ArchiveError::io(path.join(kind.directory()).display().to_string());
    let place = match root.child(OsStr::new(kind.directory())) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        place => place.map_err(cannot_read())?,
    };
    let mut ids = Vec::new();
    for entry in place.entries().map_err(cannot_read())? {
        let Entry { name, kind: of_entry } = entry.map_err(cannot_read())?;
        if let (Some(name), tree::Kind::Directory) = (name.to_str(), of_entry)
            && kind.is_id(name)
        {
            ids.push(name.to_owned());
        }
    }
    ids.sort();
    Ok(ids)
}

struct Archive<W> {
    to: Writer<W>,
    summary: Summary,
}

/// The volume that is being written.
struct Within {
    id: String,
    /// The first name of each file with several names.
    named: HashMap<(u64, u64), Vec<Bytes>>,
    path: Vec<Bytes>,
}

impl Within {
    fn at(&self, name: &OsStr) -> String {
        let mut path = self.id.clone();
        for part in self.path.iter().map(Bytes::text).chain([name.to_owned()]) {
            path.push('/');
            path.push_str(&part.to_string_lossy());
        }
        path
    }
}

/// Why an entry is not written. Other entries are still written, unless the archive itself cannot be.
enum Failed {
    Entry(io::Error),
    Archive(io::Error),
}

impl<W: Write> Archive<W> {
    fn add(&mut self, root: &Dir, kind: Kind, id: &str) -> Result<(), ArchiveError> {
        let (begin, data) = match opened(root, kind, id) {
            Ok(opened) => opened,
            // Deleted since the directory was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_absent(root, kind, id) => return Ok(()),
            Err(error) => {
                self.summary.leave_out(format_args!("{id}: {error}"));
                return Ok(());
            }
        };
        let mut within = Within { id: id.to_owned(), named: HashMap::new(), path: Vec::new() };
        let written = self.frame(&Frame::Begin(begin)).and_then(|()| self.directory(&data, &mut within));
        let written = match written {
            Err(Failed::Entry(error)) => {
                self.summary.leave_out(format_args!("{id}: {error}"));
                Ok(())
            }
            written => written,
        };
        let ended = written.and_then(|()| self.frame(&Frame::End));
        match ended {
            Ok(()) if kind == Kind::Volume => self.summary.volumes.push(id.to_owned()),
            Ok(()) => self.summary.snapshots += 1,
            Err(Failed::Entry(error) | Failed::Archive(error)) => {
                return Err(ArchiveError::Io(format!("cannot write the data of {id}"), error));
            }
        }
        Ok(())
    }

    fn frame(&mut self, frame: &Frame) -> Result<(), Failed> {
        self.to.add(frame).map_err(Failed::Archive)
    }

    fn directory(&mut self, directory: &Dir, within: &mut Within) -> Result<(), Failed> {
        for entry in directory.entries().map_err(Failed::Entry)? {
            let Entry { name, kind } = entry.map_err(Failed::Entry)?;
            match self.entry(directory, &name, kind, within) {
                // A program removed it meanwhile.
                Err(Failed::Entry(error)) if error.kind() == io::ErrorKind::NotFound => {}
                Err(Failed::Entry(error)) => {
                    let at = within.at(&name);
                    self.summary.leave_out(format_args!("{at}: {error}"));
                }
                result => result?,
            }
        }
        Ok(())
    }

    fn entry(&mut self, directory: &Dir, name: &OsStr, kind: tree::Kind, within: &mut Within) -> Result<(), Failed> {
        match kind {
            tree::Kind::Directory if within.path.len() == DEPTH_MAX => {
                Err(Failed::Entry(io::Error::other(format!("more than {DEPTH_MAX} nested directories"))))
            }
            tree::Kind::Directory => {
                let child = directory.child(name).map_err(Failed::Entry)?;
                let meta = meta_of(name, &child, &child.own_meta().map_err(Failed::Entry)?).map_err(Failed::Entry)?;
                self.frame(&Frame::Enter(meta))?;
                within.path.push(Bytes::from(name));
                let result = self.directory(&child, within);
                within.path.pop();
                let left = self.frame(&Frame::Leave);
                result.and(left)
            }
            tree::Kind::File => self.file(directory, name, within),
            tree::Kind::Link => {
                let target = directory.read_link(name).map_err(Failed::Entry)?;
                let meta = plain_meta(name, &directory.meta(name).map_err(Failed::Entry)?);
                self.frame(&Frame::Link(meta, Bytes::from(target.as_os_str())))
            }
            tree::Kind::Fifo => {
                let meta = plain_meta(name, &directory.meta(name).map_err(Failed::Entry)?);
                self.frame(&Frame::Fifo(meta))
            }
            tree::Kind::Socket | tree::Kind::Device => {
                let at = within.at(name);
                self.summary.leave_out(format_args!("{at}: {kind}"));
                Ok(())
            }
        }
    }

    fn file(&mut self, directory: &Dir, name: &OsStr, within: &mut Within) -> Result<(), Failed> {
        let file = directory.open_file(name).map_err(Failed::Entry)?;
        let before = stat(&file).map_err(Failed::Entry)?;
        if let Some(path) = within.named.get(&before.identity()) {
            return self.frame(&Frame::Hard { name: Bytes::from(name), path: path.clone() });
        }
        self.frame(&Frame::File(meta_of(name, &file, &before).map_err(Failed::Entry)?))?;
        if before.names > 1 && within.named.len() < NAMED_MAX {
            let path = within.path.iter().cloned().chain([Bytes::from(name)]).collect();
            within.named.insert(before.identity(), path);
        }
        let size_bytes = match self.content(&file, before.size_bytes) {
            Ok(size_bytes) => size_bytes,
            Err(Failed::Entry(error)) => {
                // The file's frame is already written, so its content ends here.
                let at = within.at(name);
                self.summary.leave_out(format_args!("{at}: a part of it cannot be read: {error}"));
                before.size_bytes
            }
            Err(failed) => return Err(failed),
        };
        self.frame(&Frame::FileEnd { size_bytes })?;
        self.summary.files += 1;
        let after = stat(&file).map_err(Failed::Entry)?;
        if (after.size_bytes, after.modified, after.changed) != (before.size_bytes, before.modified, before.changed) {
            self.summary.changed += 1;
        }
        Ok(())
    }

    /// Writes the content up to the length at opening, without holes; returns how far content was read.
    fn content(&mut self, file: &File, size_bytes: u64) -> Result<u64, Failed> {
        let mut at = 0;
        while at < size_bytes {
            let (begin, end) = match extent(file, at, size_bytes).map_err(Failed::Entry)? {
                Some(extent) => extent,
                None => break,
            };
            at = begin;
            while at < end {
                let length = usize::try_from(end - at).unwrap_or(usize::MAX).min(DATA_BYTES_MAX);
                let mut bytes = vec![0; length];
                let got = read_at(file, &mut bytes, at).map_err(Failed::Entry)?;
                if got == 0 {
                    // The file was truncated meanwhile.
                    return Ok(at);
                }
                bytes.truncate(got);
                self.summary.bytes += got as u64;
                self.frame(&Frame::Data { offset: at, bytes })?;
                at += got as u64;
            }
        }
        Ok(size_bytes)
    }
}

fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    loop {
        match file.read_at(bytes, offset) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// The next part of a file that is not a hole. File systems without holes report none.
fn extent(file: &File, from: u64, size_bytes: u64) -> io::Result<Option<(u64, u64)>> {
    let begin = match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(begin) => begin,
        // Only a hole up to the end.
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((from, size_bytes))),
        Err(error) => return Err(error.into()),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(begin))?;
    Ok((begin < size_bytes).then(|| (begin, end.min(size_bytes))))
}

/// The record and the data directory of a volume or snapshot.
fn opened(root: &Dir, kind: Kind, id: &str) -> io::Result<(Begin, Dir)> {
    let home = root.child(OsStr::new(kind.directory()))?.child(OsStr::new(id))?;
    let mut text = String::new();
    home.open_file(OsStr::new(kind.record_file()))?.take(RECORD_BYTES_MAX).read_to_string(&mut text)?;
    let decoded = match kind {
        Kind::Volume => record::decode::<VolumeRecord>(text.as_bytes()).map(drop),
        Kind::Snapshot => record::decode::<SnapshotRecord>(text.as_bytes()).map(drop),
    };
    decoded.map_err(|why| io::Error::new(io::ErrorKind::InvalidData, format!("its record is damaged: {why}")))?;
    let data = home.child(OsStr::new("data"))?;
    let meta = meta_of(OsStr::new(""), &data, &data.own_meta()?)?;
    Ok((Begin { snapshot: kind == Kind::Snapshot, id: id.to_owned(), record: text, data: meta }, data))
}

fn is_absent(root: &Dir, kind: Kind, id: &str) -> bool {
    let home = root.child(OsStr::new(kind.directory())).and_then(|place| place.meta(OsStr::new(id)));
    home.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn stat(file: impl AsFd) -> io::Result<tree::Meta> {
    Ok(tree::Meta::of(&rustix::fs::fstat(file)?))
}

fn plain_meta(name: &OsStr, meta: &tree::Meta) -> Meta {
    let tree::Meta { mode, uid, gid, modified, .. } = *meta;
    Meta { name: Bytes::from(name), mode, uid, gid, modified, attributes: Vec::new() }
}

fn meta_of(name: &OsStr, file: impl AsFd, meta: &tree::Meta) -> io::Result<Meta> {
    Ok(Meta { attributes: attributes(file)?, ..plain_meta(name, meta) })
}

fn attributes(file: impl AsFd) -> io::Result<Vec<(String, Bytes)>> {
    let names = match grown(|buffer| rustix::fs::flistxattr(&file, buffer)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Vec::new()),
        names => names?,
    };
    let mut attributes = Vec::new();
    for name in names.split(|byte| *byte == 0) {
        let Ok(name) = std::str::from_utf8(name) else { continue };
        if !ATTRIBUTES.iter().any(|known| name.starts_with(known)) {
            continue;
        }
        match grown(|buffer| rustix::fs::fgetxattr(&file, OsString::from(name), buffer)) {
            Err(Errno::NODATA) => {}
            value => attributes.push((name.to_owned(), Bytes(value?))),
        }
    }
    attributes.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(attributes)
}

/// Reads an attribute of unknown length. The system's limit is 64 KiB.
fn grown(read: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 256];
    loop {
        match read(&mut buffer) {
            Err(Errno::RANGE) if buffer.len() <= 64 << 10 => buffer.resize(buffer.len() * 4, 0),
            length => {
                buffer.truncate(length?);
                return Ok(buffer);
            }
        }
    }
}
