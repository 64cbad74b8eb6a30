//! Reads an archive. Its content must never decide where on this machine something is written.

use super::frame::{Begin, Bytes, Frame, Meta, Reader};
use super::{ATTRIBUTES, ArchiveError, DEPTH_MAX, Summary};
use crate::directory::record::{self, SnapshotRecord, UseRecord, VolumeRecord};
use crate::directory::state::{Files, Kind, State};
use rustix::fs::{Gid, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tree::Dir;

/// The longest file that is accepted. No file system of today has longer ones.
const SIZE_MAX: u64 = i64::MAX as u64;

/// Reads and checks a whole archive, after its magic, without writing anything.
pub fn check(from: impl Read) -> Result<Summary, ArchiveError> {
    let mut order = Order::default();
    let said = each(from, &mut order, |_| Ok(()))?;
    Ok(Summary { volumes: order.volumes, ..said })
}

/// Restores the volumes and snapshots of an archive into the directory of a directory driver that has none. Afterwards
/// all of them exist, or none: after a failure they are removed, now or when the driver starts.
pub fn restore(from: impl Read, root: &Path) -> Result<Summary, ArchiveError> {
    let files = Files::open(root, true)?;
    let (state, findings) = files.load().map_err(ArchiveError::io(root.display()))?;
    if !state.volumes.is_empty() || !state.snapshots.is_empty() || !findings.is_empty() {
        return Err(ArchiveError::NotEmpty(root.to_owned()));
    }
    let mut made = Made { files: &files, drafts: Vec::new(), at: None, summary: Summary::default() };
    let mut order = Order::default();
    let read = each(from, &mut order, |frame| made.take(frame)).and_then(|_| made.publish());
    if let Err(error) = read {
        for (kind, id) in &made.drafts {
            if let Err(error) = files.remove_draft(*kind, id) {
                tracing::warn!(%error, id, "cannot remove an incomplete volume; the driver removes it when it starts");
            }
        }
        return Err(error);
    }
    Ok(Summary { volumes: order.volumes, ..made.summary })
}

/// Checks each frame and passes it to `take`; returns the summary that the writer stored.
fn each(
    from: impl Read,
    order: &mut Order,
    mut take: impl FnMut(Frame) -> Result<(), ArchiveError>,
) -> Result<Summary, ArchiveError> {
    let mut reader = Reader::open(from)?;
    loop {
        let frame = reader.next()?;
        order.check(&frame)?;
        match frame {
            Frame::Last(summary) if reader.is_at_end()? => return Ok(summary),
            Frame::Last(_) => return Err(ArchiveError::damaged("there is data after its end")),
            frame => take(frame)?,
        }
    }
}

/// Checks the order of frames.
#[derive(Default)]
struct Order {
    /// The records so far, so that each id and name occurs once.
    state: State,
    volumes: Vec<String>,
    within: bool,
    depth: usize,
    /// How far the content of the open file has been given.
    file: Option<u64>,
}

impl Order {
    fn check(&mut self, frame: &Frame) -> Result<(), ArchiveError> {
        let fits = match frame {
            Frame::Begin(begin) => {
                let fits = !self.within;
                self.within = true;
                self.add(begin)?;
                fits
            }
            Frame::Data { offset, bytes } => {
                let end = offset.checked_add(bytes.len() as u64).filter(|end| *end <= SIZE_MAX);
                let fits = self.file.is_some_and(|written| *offset >= written) && end.is_some();
                self.file = end;
                fits
            }
            Frame::FileEnd { size_bytes } => {
                self.file.take().is_some_and(|written| written <= *size_bytes && *size_bytes <= SIZE_MAX)
            }
            _ if self.file.is_some() => false,
            Frame::End => std::mem::take(&mut self.within) && self.depth == 0,
            Frame::Enter(_) => {
                self.depth += 1;
                self.within && self.depth <= DEPTH_MAX
            }
            Frame::Leave => {
                let fits = self.depth > 0;
                self.depth = self.depth.saturating_sub(1);
                fits
            }
            Frame::File(_) => {
                self.file = Some(0);
                self.within
            }
            Frame::Link(..) | Frame::Fifo(_) | Frame::Hard { .. } => self.within,
            Frame::Last(_) => !self.within,
        };
        if fits { Ok(()) } else { Err(ArchiveError::damaged("a frame is in the wrong place")) }
    }

    fn add(&mut self, begin: &Begin) -> Result<(), ArchiveError> {
        let wrong = |why: String| ArchiveError::damaged(format!("the record of {:?}: {why}", begin.id));
        if !begin.kind().is_id(&begin.id) {
            return Err(wrong("this is not the id of a volume or snapshot".to_owned()));
        }
        let record_id = match begin.kind() {
            Kind::Volume => {
                let volume: VolumeRecord = record::decode(begin.record.as_bytes()).map_err(wrong)?;
                let id = volume.id.clone();
                self.state.add_volume(volume, UseRecord::default()).map_err(wrong)?;
                self.volumes.push(id.clone());
                id
            }
            Kind::Snapshot => {
                let snapshot: SnapshotRecord = record::decode(begin.record.as_bytes()).map_err(wrong)?;
                let id = snapshot.id.clone();
                self.state.add_snapshot(snapshot).map_err(wrong)?;
                id
            }
        };
        if record_id == begin.id { Ok(()) } else { Err(wrong(format!("it is about {record_id:?}"))) }
    }
}

/// What was restored so far.
struct Made<'a> {
    files: &'a Files,
    drafts: Vec<(Kind, String)>,
    at: Option<At>,
    summary: Summary,
}

/// The volume that is being restored.
struct At {
    id: String,
    data: Dir,
    /// The open directories below the data, outermost first, with the attributes that are set when they are complete.
    open: Vec<(Dir, Meta)>,
    file: Option<(File, Meta)>,
    meta: Meta,
}

impl At {
    fn here(&self) -> &Dir {
        self.open.last().map_or(&self.data, |(directory, _)| directory)
    }
}

impl Made<'_> {
    fn take(&mut self, frame: Frame) -> Result<(), ArchiveError> {
        if let Frame::Begin(begin) = frame {
            return self.begin(begin);
        }
        // The order was checked, so a volume is open.
        let Some(mut at) = self.at.take() else { return Ok(()) };
        let ends = frame == Frame::End;
        let name = match &frame {
            Frame::Enter(meta) | Frame::File(meta) | Frame::Link(meta, _) | Frame::Fifo(meta) => meta.name.clone(),
            Frame::Hard { name, .. } => name.clone(),
            _ => at.file.as_ref().map_or_else(|| Bytes(Vec::new()), |(_, meta)| meta.name.clone()),
        };
        self.make(&mut at, frame).map_err(|error| {
            ArchiveError::Io(format!("cannot restore {} of {}", name.text().display(), at.id), error)
        })?;
        self.at = Some(at).filter(|_| !ends);
        Ok(())
    }

    fn begin(&mut self, begin: Begin) -> Result<(), ArchiveError> {
        let (kind, id) = (begin.kind(), begin.id);
        let cannot = || ArchiveError::io(format!("cannot restore {id}"));
        // Old attachments do not exist any more.
        let record = match kind {
            Kind::Volume => {
                let volume: VolumeRecord = record::decode(begin.record.as_bytes()).map_err(ArchiveError::Damaged)?;
                record::encode(&VolumeRecord { attached: Default::default(), ..volume })
            }
            Kind::Snapshot => begin.record.into_bytes(),
        };
        self.drafts.push((kind, id.clone()));
        let draft = self.files.make_draft(kind, &id, &record).map_err(cannot())?;
        let data = Dir::open(&draft).and_then(|draft| draft.child(OsStr::new("data"))).map_err(cannot())?;
        self.summary.snapshots += u64::from(kind == Kind::Snapshot);
        self.at = Some(At { id, data, open: Vec::new(), file: None, meta: begin.data });
        Ok(())
    }

    fn make(&mut self, at: &mut At, frame: Frame) -> io::Result<()> {
        match frame {
            Frame::Enter(meta) => {
                let name = meta.name.text();
                at.here().make_dir(&name, 0o700)?;
                let child = at.here().child(&name)?;
                at.open.push((child, meta));
                Ok(())
            }
            Frame::Leave => match at.open.pop() {
                Some((directory, meta)) => self.set(&at.id, &directory, &meta, 0o3777),
                None => Ok(()),
            },
            Frame::File(meta) => {
                at.file = Some((at.here().create_file(&meta.name.text(), 0o600)?, meta));
                Ok(())
            }
            Frame::Data { offset, bytes } => {
                let Some((file, _)) = &at.file else { return Ok(()) };
                self.summary.bytes += bytes.len() as u64;
                file.write_all_at(&bytes, offset)
            }
            Frame::FileEnd { size_bytes } => {
                let Some((file, meta)) = at.file.take() else { return Ok(()) };
                file.set_len(size_bytes)?;
                self.summary.files += 1;
                // No setuid and setgid bits: a volume's file must not give its readers the rights of another user of
                // this machine.
                self.set(&at.id, &file, &meta, 0o1777)
            }
            Frame::Link(meta, target) => {
                let name = meta.name.text();
                at.here().link(Path::new(&target.text()), &name)?;
                self.own(&at.id, &meta, |uid, gid| {
                    rustix::fs::chownat(at.here(), &name, uid, gid, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
                })
            }
            Frame::Fifo(meta) => {
                let name = meta.name.text();
                let mode = rustix::fs::Mode::from_raw_mode(meta.mode & 0o777);
                rustix::fs::mknodat(at.here(), &name, rustix::fs::FileType::Fifo, mode, 0)?;
                self.own(&at.id, &meta, |uid, gid| {
                    rustix::fs::chownat(at.here(), &name, uid, gid, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
                })
            }
            Frame::Hard { name, path } => {
                let names: Vec<OsString> = path.iter().map(Bytes::text).collect();
                let Some((file, above)) = names.split_last() else { return Ok(()) };
                let mut from = at.data.try_clone()?;
                for name in above {
                    from = from.child(name)?;
                }
                at.here().hard_link(&from, file, &name.text())
            }
            Frame::End => self.set(&at.id, &at.data, &at.meta, 0o3777),
            Frame::Begin(_) | Frame::Last(_) => Ok(()),
        }
    }

    /// Sets owner, attributes, mode and time, in this order: changing the owner clears mode bits.
    fn set(&mut self, id: &str, file: impl AsFd, meta: &Meta, allowed: u32) -> io::Result<()> {
        self.own(id, meta, |uid, gid| rustix::fs::fchown(&file, uid, gid))?;
        for (name, value) in &meta.attributes {
            if !ATTRIBUTES.iter().any(|known| name.starts_with(known)) {
                self.summary.leave_out(format_args!("{id}/…/{}: the attribute {name}", meta.name.text().display()));
                continue;
            }
            match rustix::fs::fsetxattr(&file, name.as_str(), &value.0, XattrFlags::empty()) {
                Err(error @ (Errno::OPNOTSUPP | Errno::PERM | Errno::INVAL | Errno::RANGE)) => self
                    .summary
                    .leave_out(format_args!("{id}/…/{}: the attribute {name}: {error}", meta.name.text().display())),
                set => set?,
            }
        }
        rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(meta.mode & allowed))?;
        let time = |(seconds, nanoseconds): (i64, u32)| Timespec {
            tv_sec: seconds,
            tv_nsec: nanoseconds.min(999_999_999).into(),
        };
        let times = Timestamps { last_access: time(meta.modified), last_modification: time(meta.modified) };
        Ok(rustix::fs::futimens(&file, &times)?)
    }

    /// Only root can change the owner of a file. For other users the file keeps its owner, which is reported.
    fn own(
        &mut self,
        id: &str,
        meta: &Meta,
        give: impl FnOnce(Option<Uid>, Option<Gid>) -> Result<(), Errno>,
    ) -> io::Result<()> {
        let (uid, gid) = (meta.uid, meta.gid);
        // The system interprets this number as "do not change".
        if uid == u32::MAX || gid == u32::MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its owner is not valid"));
        }
        match give(Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))) {
            Err(Errno::PERM | Errno::INVAL) => {
                let name = meta.name.text();
                self.summary.leave_out(format_args!("{id}/…/{}: its owner {uid}:{gid}", name.display()));
                Ok(())
            }
            given => Ok(given?),
        }
    }

    /// Renames all volumes to their final names once everything is synced.
    fn publish(&mut self) -> Result<(), ArchiveError> {
        let root = &self.files.root;
        let cannot = || ArchiveError::io(root.display().to_string());
        rustix::fs::syncfs(Dir::open(root).map_err(cannot())?).map_err(|error| cannot()(error.into()))?;
        for (kind, id) in &self.drafts {
            self.files.publish_draft(*kind, id).map_err(cannot())?;
        }
        for kind in [Kind::Volume, Kind::Snapshot] {
            Dir::open(&root.join(kind.directory())).and_then(|directory| directory.sync()).map_err(cannot())?;
        }
        // From here on nothing is removed any more.
        self.drafts.clear();
        Ok(())
    }
}
